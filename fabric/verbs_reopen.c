/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lanes of the verbs NIC that are opened again after a failure (epf_nic_ops.lane_reopen, lane_reconnect). Making, moving and destroying queue
 * pairs asks the kernel, which may in turn ask the network for long; so a thread of the NIC's own does that, and the core's thread, which asks between
 * two steps, makes no system call. One lane at a time: there is one order, that goes to the thread and comes back.
 *
 * The order belongs to the core's thread while its state is NONE or DONE, and to the other while it is ASKED (release when it changes
 * hands, acquire when it is looked at). Of the NIC the other thread uses the device, the settings and the random numbers, which have a lock.
 */
#include "fabric/verbs.h"

#include "fabric/base/err.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum state { NONE, ASKED, DONE };

enum kind { OPEN, CONNECT, DISCARD };

enum { LOOK_AGAIN_US = 500 };

struct epf_verbs_opener {
	uint32_t state;     /* enum state */
	uint8_t kind;       /* enum kind */
	uint8_t is_dropped; /* nobody waits for it any more; the core's thread's alone */
	uint8_t is_waking;  /* the thread has to be woken; the core's thread's alone */
	uint8_t link_up;    /* in: what events said last; out: what is known now */
	uint16_t lane;
	uint32_t depth;
	uint64_t token; /* of the peer */
	size_t addr_len;
	uint8_t addr[EPF_VERBS_ADDR_BYTES];
	struct epf_verbs_lane old;   /* OPEN: to be freed first */
	struct epf_verbs_lane fresh; /* OPEN: made; CONNECT: a copy of the lane */
	int rc;
	/* The thread. */
	pthread_t thread;
	int runs, stop, fd;
};

static uint32_t state_of(const struct epf_verbs_opener *o)
{
	return __atomic_load_n(&o->state, __ATOMIC_ACQUIRE);
}

static void set_state(struct epf_verbs_opener *o, uint32_t state)
{
	__atomic_store_n(&o->state, state, __ATOMIC_RELEASE);
}

int epf_verbs_reopen_init(struct epf_verbs *v)
{
	v->opener = calloc(1, sizeof(*v->opener));
	if (!v->opener)
		return epf_fail(EPF_R_NO_MEMORY, "verbs: a NIC");
	v->opener->fd = -1;
	return 0;
}

/* ---- the other thread ---- */

static int is_up(struct epf_verbs *v)
{
	struct epf_verbs_opener *o = v->opener;

	if (!o->link_up)
		o->link_up = epf_verbs_ask_port(v) != 0;
	return o->link_up;
}

static int make(struct epf_verbs *v, struct epf_verbs_opener *o)
{
	int rc;

	if (o->old.qp)
		epf_verbs_lane_free(v, &o->old);
	if (!is_up(v))
		return -ENETDOWN;
	rc = epf_verbs_lane_make(v, &o->fresh, o->lane, o->depth);
	if (rc)
		epf_verbs_lane_free(v, &o->fresh);
	return rc;
}

static void carry_out(struct epf_verbs *v)
{
	struct epf_verbs_opener *o = v->opener;

	if (o->kind == OPEN)
		o->rc = make(v, o);
	else if (o->kind == CONNECT)
		o->rc = epf_verbs_lane_join(v, &o->fresh, o->lane, o->addr, o->addr_len, o->token,
					    is_up);
	else
		epf_verbs_lane_free(v, &o->fresh);
	set_state(o, o->kind == DISCARD ? NONE : DONE);
	if (epf_bell_must_ring(v->bell))
		epf_bell_ring(v->bell);
}

static void *opener_thread(void *arg)
{
	struct epf_verbs *v = arg;
	struct epf_verbs_opener *o = v->opener;
	uint64_t times;

	pthread_setname_np(pthread_self(), "epf-opener");
	for (;;) {
		ssize_t n = read(o->fd, &times, sizeof(times));

		if (n < 0 && errno != EINTR)
			break;
		if (__atomic_load_n(&o->stop, __ATOMIC_ACQUIRE))
			break;
		if (n > 0 && state_of(o) == ASKED)
			carry_out(v);
	}
	return NULL;
}

static int start(struct epf_verbs *v)
{
	struct epf_verbs_opener *o = v->opener;
	sigset_t all, old;
	int rc;

	if (o->fd < 0)
		o->fd = eventfd(0, EFD_CLOEXEC);
	if (o->fd < 0)
		return -errno;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(&o->thread, NULL, opener_thread, v);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	o->runs = !rc;
	return -rc;
}

/* ---- the core's thread: epf_nic_ops.wake_pending, wake_peers, called by its run loop ---- */

int epf_verbs_reopen_pending(const struct epf_nic *nic)
{
	return epf_verbs_of(nic)->opener->is_waking;
}

void epf_verbs_reopen_wake(struct epf_nic *nic)
{
	struct epf_verbs *v = epf_verbs_of(nic);
	struct epf_verbs_opener *o = v->opener;
	uint64_t one = 1;

	if (!o->is_waking)
		return;
	o->is_waking = 0;
	if ((!o->runs && start(v)) || write(o->fd, &one, sizeof(one)) != sizeof(one))
		carry_out(v); /* without a thread it takes as long as it takes */
}

void epf_verbs_reopen_close(struct epf_verbs *v)
{
	struct epf_verbs_opener *o = v->opener;
	uint64_t one = 1;

	if (!o)
		return;
	__atomic_store_n(&o->stop, 1, __ATOMIC_RELEASE);
	if (o->runs && write(o->fd, &one, sizeof(one)) == sizeof(one))
		pthread_join(o->thread, NULL);
	if (o->fd >= 0)
		close(o->fd);
	if (o->state == ASKED && o->kind == OPEN)
		epf_verbs_lane_free(v, &o->old);
	if ((o->state == DONE && o->kind == OPEN && !o->rc) ||
	    (o->state == ASKED && o->kind == DISCARD))
		epf_verbs_lane_free(v, &o->fresh);
	free(o);
	v->opener = NULL;
}

/* ---- the core's thread, between two steps ---- */

static void ask(struct epf_verbs *v, unsigned kind, uint16_t lane)
{
	struct epf_verbs_opener *o = v->opener;

	o->kind = (uint8_t)kind;
	o->lane = lane;
	o->is_dropped = 0;
	o->link_up = v->counters.link_up != 0 && !v->dead;
	o->rc = 0;
	o->is_waking = 1;
	set_state(o, ASKED);
}

/* What came back and nobody waits for any more goes: a queue pair by the other thread. 1: there is room for an order. */
static int is_free(struct epf_verbs *v)
{
	struct epf_verbs_opener *o = v->opener;

	if (state_of(o) == DONE && o->is_dropped) {
		if (o->kind == CONNECT)
			v->lanes[o->lane].has_let_go = 1;
		if (o->kind == OPEN && !o->rc)
			ask(v, DISCARD, o->lane);
		else
			set_state(o, NONE);
	}
	return state_of(o) == NONE;
}

/* 1: what was asked for this lane is done; it is taken. */
static int is_done(struct epf_verbs *v, unsigned kind, uint16_t lane)
{
	struct epf_verbs_opener *o = v->opener;

	if (state_of(o) != DONE || o->is_dropped || o->kind != kind || o->lane != lane)
		return 0;
	if (o->link_up)
		v->counters.link_up = !v->dead;
	set_state(o, NONE);
	return 1;
}

int epf_verbs_lane_reopen(struct epf_nic *nic, uint16_t lane, uint32_t depth, uint64_t *token)
{
	struct epf_verbs *v = epf_verbs_of(nic);
	struct epf_verbs_opener *o = v->opener;
	int rc;

	if (is_done(v, OPEN, lane)) {
		if (o->rc)
			return o->rc;
		v->lanes[lane] = o->fresh;
		rc = epf_verbs_lane_install(v, lane);
		if (rc) { /* not for as many lanes as there were */
			v->lanes[lane] =
				(struct epf_verbs_lane){ .generation = o->fresh.generation };
			ask(v, DISCARD, lane);
			return rc;
		}
		*token = epf_verbs_token(o->fresh.qp->qp_num, o->fresh.psn);
		return 0;
	}
	if (v->dead)
		return -ENETDOWN;
	if (!is_free(v) || !epf_verbs_lane_drained(nic, lane))
		return -EAGAIN;
	o->old = (struct epf_verbs_lane){ .qp = NULL };
	if (v->lanes[lane].qp)
		epf_verbs_lane_detach(v, lane, &o->old);
	o->fresh = (struct epf_verbs_lane){ .generation = v->lanes[lane].generation };
	o->depth = depth;
	ask(v, OPEN, lane);
	return -EAGAIN;
}

int epf_verbs_lane_reconnect(struct epf_nic *nic, uint16_t lane, const void *addr, size_t addr_len,
			     uint64_t token)
{
	struct epf_verbs *v = epf_verbs_of(nic);
	struct epf_verbs_opener *o = v->opener;
	struct epf_verbs_lane *l = &v->lanes[lane];

	if (is_done(v, CONNECT, lane)) {
		l->is_loop = o->fresh.is_loop;
		if (!o->rc)
			l->link = EPF_LANE_READY;
		return o->rc;
	}
	if (v->dead)
		return -ENETDOWN;
	if (lane >= v->max_lanes || !l->qp || l->link != EPF_LANE_IDLE ||
	    addr_len > sizeof(o->addr))
		return epf_fail(EPF_R_NIC_LANE, "verbs: lane %u is not idle", lane);
	if (!is_free(v))
		return -EAGAIN;
	o->fresh = *l;
	o->token = token;
	o->addr_len = addr_len;
	memcpy(o->addr, addr, addr_len);
	ask(v, CONNECT, lane);
	return -EAGAIN;
}

int epf_verbs_reopen_end(struct epf_verbs *v, uint16_t lane, int wait)
{
	struct epf_verbs_opener *o = v->opener;

	if (!o || state_of(o) == NONE || o->lane != lane)
		return 0;
	if (o->kind != CONNECT) { /* the lane itself is not in it */
		o->is_dropped = 1;
		return 0;
	}
	if (wait && o->is_waking)
		epf_verbs_reopen_wake(&v->nic);
	while (wait && state_of(o) == ASKED)
		usleep(LOOK_AGAIN_US);
	if (state_of(o) == ASKED) {
		o->is_dropped = 1;
		return 1;
	}
	v->lanes[lane].has_let_go = 1;
	set_state(o, NONE);
	return 0;
}
