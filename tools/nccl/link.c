/* SPDX-License-Identifier: Apache-2.0 */
/* See link.h: a link's memory and references, its end, and what connections ask of it. How it is made: join.c; what its thread does: serve.c. */
#define EPF_LOG_COMP "nccl"
#include "tools/nccl/link.h"

#include "bootstrap/boot.h"
#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/base/log.h"

#include <endian.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define SAY_NS 10000000000ull

struct epf_link *epf_link_make(int fd)
{
	struct epf_link *l = calloc(1, sizeof(*l));

	if (!l)
		return NULL;
	l->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (l->wake_fd < 0) {
		free(l);
		return NULL;
	}
	l->fd = fd;
	l->refs = 1;
	pthread_mutex_init(&l->writing, NULL);
	LIST_INIT(&l->mrs);
	return l;
}

static void destroy(struct epf_link *l)
{
	struct epf_mr *mr;

	epf_close(l->ep);
	epf_boot_close(l->boot);
	epf_boot_server_stop(l->server);
	if (l->control)
		munmap(l->control, EPF_NET_CONTROL_BYTES);
	while ((mr = LIST_FIRST(&l->mrs))) {
		LIST_REMOVE(mr, entry);
		free(mr);
	}
	if (l->fd >= 0)
		close(l->fd);
	close(l->wake_fd);
	pthread_mutex_destroy(&l->writing);
	free(l);
}

void epf_link_ref(struct epf_link *link)
{
	link->refs++;
}

void epf_link_unref(struct epf_link *link)
{
	bool last;

	epf_plug_lock();
	last = --link->refs == 0;
	epf_plug_unlock();
	if (last)
		destroy(link);
}

void epf_link_die(struct epf_link *l)
{
	if (l->state == EPF_LINK_DEAD)
		return;
	if (epf_link_is_stopping(l))
		epf_fail(EPF_R_NCCL_PEER, "nccl: the plug-in was finalized");
	epf_error_get(&l->why);
	l->state = EPF_LINK_DEAD;
	__atomic_store_n(&l->lost, 1, __ATOMIC_RELEASE);
	TAILQ_REMOVE(&epf_plug.links, l, entry);
	epf_plug.events->died(l);
	epf_plug_notify();
}

void epf_links_stop(void)
{
	struct epf_link *l;
	uint64_t one = 1;

	TAILQ_FOREACH(l, &epf_plug.links, entry) {
		__atomic_store_n(&l->stop, 1, __ATOMIC_RELAXED);
		if (l->ep && l->state != EPF_LINK_UP)
			epf_abort(l->ep);
		if (l->state == EPF_LINK_GREETING && l->fd >= 0)
			shutdown(l->fd, SHUT_RDWR);
		if (write(l->wake_fd, &one, sizeof(one)) < 0)
			epf_warn("a link's thread cannot be woken: %s", strerror(errno));
	}
	epf_plug_notify();
}

int epf_link_fail(const struct epf_link *link, const char *format, ...)
{
	char what[256];
	va_list args;

	va_start(args, format);
	vsnprintf(what, sizeof(what), format, args);
	va_end(args);
	return epf_fail(EPF_R_NCCL_PEER, "nccl: process %u on host %s %s", link->peer.pid,
			link->peer.name, what);
}

int epf_link_say(struct epf_link *link, enum epf_link_message type, uint32_t slot, uint32_t other,
		 uint64_t value)
{
	struct epf_link_msg m = { .type = htole32(type),
				  .slot = htole32(slot),
				  .other = htole32(other),
				  .value = htole64(value) };
	int rc;

	pthread_mutex_lock(&link->writing);
	rc = epf_nccl_send_all(link->fd, &m, sizeof(m), epf_now_ns() + SAY_NS);
	pthread_mutex_unlock(&link->writing);
	return rc ? epf_link_fail(link, "takes no message: %s", strerror(-rc)) : 0;
}

bool epf_link_is_lost(const struct epf_link *link)
{
	return __atomic_load_n(&link->lost, __ATOMIC_ACQUIRE) ||
	       epf_peer_state(link->ep, link->other) < 0;
}

int epf_link_why(struct epf_link *link)
{
	int rc = -ECONNRESET, state = epf_peer_state(link->ep, link->other);

	epf_plug_lock();
	if (link->state == EPF_LINK_DEAD && link->why.reason)
		epf_error_set(&link->why);
	else
		rc = epf_link_fail(link, state == -EPIPE ? "has closed" : "is lost");
	epf_plug_unlock();
	return rc;
}

int epf_link_publish(struct epf_link *link, uint64_t order)
{
	uint64_t end = epf_now_ns() + epf_plug.conf.bootstrap_timeout_ns, one = 1;
	int rc = 0;

	epf_plug_lock();
	if (link->wanted < order)
		link->wanted = order;
	if (write(link->wake_fd, &one, sizeof(one)) < 0)
		epf_dbg("a link is awake already");
	while (!rc && link->published < order && link->state == EPF_LINK_UP)
		rc = epf_plug_wait(end);
	if (link->published >= order)
		rc = 0;
	else if (link->state != EPF_LINK_UP)
		rc = -ECONNRESET;
	epf_plug_unlock();
	if (rc == -ECONNRESET)
		return epf_link_why(link);
	return rc ? epf_link_fail(link, "does not take part in a registration") : 0;
}
