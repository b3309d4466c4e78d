/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread of opener.h. It knows of no NIC: what is to be done its owner's function does.
 */
#include "fabric/nic/rdma/opener.h"

#include <errno.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

static void set_state(struct epf_opener *o, enum epf_opener_state state)
{
	__atomic_store_n(&o->state, (uint32_t)state, __ATOMIC_RELEASE);
}

enum epf_opener_state epf_opener_state(const struct epf_opener *o)
{
	return (enum epf_opener_state)__atomic_load_n(&o->state, __ATOMIC_ACQUIRE);
}

void epf_opener_init(struct epf_opener *o, void (*carry_out)(void *nic), void *nic,
		     struct epf_wakeup *const *wakeup)
{
	*o = (struct epf_opener){ .carry_out = carry_out, .nic = nic, .wakeup = wakeup, .fd = -1 };
}

/* ---- the other thread ---- */

static void carry_out(struct epf_opener *o)
{
	o->carry_out(o->nic);
	set_state(o, o->kind == EPF_OPENER_DISCARD ? EPF_OPENER_NONE : EPF_OPENER_DONE);
	if (epf_wakeup_is_needed(*o->wakeup))
		epf_wakeup_wake(*o->wakeup);
}

static void *opener_thread(void *arg)
{
	struct epf_opener *o = arg;
	uint64_t times;

	pthread_setname_np(pthread_self(), "epf-opener");
	for (;;) {
		ssize_t n = read(o->fd, &times, sizeof(times));

		if (n < 0 && errno != EINTR)
			break;
		if (__atomic_load_n(&o->stop, __ATOMIC_ACQUIRE))
			break;
		if (n > 0 && epf_opener_state(o) == EPF_OPENER_ASKED)
			carry_out(o);
	}
	return NULL;
}

static int start(struct epf_opener *o)
{
	sigset_t all, old;
	int rc;

	if (o->fd < 0)
		o->fd = eventfd(0, EFD_CLOEXEC);
	if (o->fd < 0)
		return -errno;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(&o->thread, NULL, opener_thread, o);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	o->runs = !rc;
	return -rc;
}

/* ---- the core's thread: by its run loop ---- */

void epf_opener_wake(struct epf_opener *o)
{
	uint64_t one = 1;

	if (!o->is_waking)
		return;
	o->is_waking = 0;
	if ((!o->runs && start(o)) || write(o->fd, &one, sizeof(one)) != sizeof(one))
		carry_out(o); /* without a thread it takes as long as it takes */
}

void epf_opener_stop(struct epf_opener *o)
{
	uint64_t one = 1;

	__atomic_store_n(&o->stop, 1, __ATOMIC_RELEASE);
	if (o->runs && write(o->fd, &one, sizeof(one)) == sizeof(one))
		pthread_join(o->thread, NULL);
	o->runs = 0;
	if (o->fd >= 0)
		close(o->fd);
	o->fd = -1;
}

/* ---- the core's thread, between two steps ---- */

void epf_opener_ask(struct epf_opener *o, enum epf_opener_kind kind, uint16_t lane, int link_up)
{
	o->kind = (uint8_t)kind;
	o->lane = lane;
	o->is_dropped = 0;
	o->link_up = link_up != 0;
	o->rc = 0;
	o->is_waking = 1;
	set_state(o, EPF_OPENER_ASKED);
}

void epf_opener_clear(struct epf_opener *o)
{
	set_state(o, EPF_OPENER_NONE);
}

int epf_opener_take(struct epf_opener *o, enum epf_opener_kind kind, uint16_t lane)
{
	if (epf_opener_state(o) != EPF_OPENER_DONE || o->is_dropped || o->kind != kind ||
	    o->lane != lane)
		return 0;
	set_state(o, EPF_OPENER_NONE);
	return 1;
}
