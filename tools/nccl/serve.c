/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A link that is up: its thread waits for control messages and for wishes of this process. Publishing regions (epf_exchange) is collective over the two ranks:
 * rank 0 says when, rank 1 asks for it, and the two threads, which do nothing else that waits, meet there. A publication covers what was registered when it began.
 */
#define EPF_LOG_COMP "nccl"
#include "tools/nccl/serve.h"

#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/base/log.h"
#include "tools/nccl/link.h"

#include <endian.h>
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#define SAY_NS 10000000000ull

enum { LOOK_MS = 200 };

/* Registrations so far become visible at the peer. */
static int publish(struct epf_link *l)
{
	uint64_t covered;
	int rc;

	epf_plug_lock();
	covered = l->registered;
	l->asked = false;
	epf_plug_unlock();
	rc = epf_exchange(l->ep);
	if (rc)
		return rc;
	epf_plug_lock();
	l->published = covered;
	epf_plug_notify();
	epf_plug_unlock();
	return 0;
}

/* Somebody here wants a publication. */
static int look_for_wishes(struct epf_link *l)
{
	bool wanted;

	epf_plug_lock();
	wanted = l->wanted > l->published && !l->asked;
	l->asked |= wanted;
	epf_plug_unlock();
	if (!wanted)
		return 0;
	if (l->other == 0) /* this is rank 1 */
		return epf_link_say(l, EPF_LINK_PUBLISH, 0, 0, 0);
	return epf_link_say(l, EPF_LINK_PUBLISH_NOW, 0, 0, 0) ? -EPIPE : publish(l);
}

static int handle(struct epf_link *l, const struct epf_link_msg *m)
{
	switch (m->type) {
	case EPF_LINK_PUBLISH:
		if (l->other == 0)
			break;
		return epf_link_say(l, EPF_LINK_PUBLISH_NOW, 0, 0, 0) ? -EPIPE : publish(l);
	case EPF_LINK_PUBLISH_NOW:
		if (l->other != 0)
			break;
		return publish(l);
	default:
		if (m->type < EPF_LINK_OPEN || m->type > EPF_LINK_RECV_CLOSED ||
		    m->slot >= EPF_LINK_SLOTS)
			break;
		epf_plug.events->message(l, m);
		return 0;
	}
	return epf_link_fail(l, "sends messages that are none");
}

static int take_message(struct epf_link *l)
{
	struct epf_link_msg m;
	int rc = epf_nccl_recv_all(l->fd, &m, sizeof(m), epf_now_ns() + SAY_NS);

	if (rc)
		return epf_link_fail(l, rc == -EPIPE ? "has closed its connection" : "has ended");
	m.type = le32toh(m.type);
	m.slot = le32toh(m.slot);
	m.other = le32toh(m.other);
	m.value = le64toh(m.value);
	return handle(l, &m);
}

void epf_link_serve(struct epf_link *link)
{
	struct pollfd fds[2] = { { .fd = link->fd, .events = POLLIN },
				 { .fd = link->wake_fd, .events = POLLIN } };
	int rc = 0;

	while (!rc && !__atomic_load_n(&link->stop, __ATOMIC_RELAXED)) {
		uint64_t n;

		if (poll(fds, 2, LOOK_MS) < 0 && errno != EINTR)
			return;
		if (fds[1].revents && read(link->wake_fd, &n, sizeof(n)) < 0)
			epf_dbg("a wakeup of a link was spurious");
		if (fds[0].revents)
			rc = take_message(link);
		if (!rc)
			rc = look_for_wishes(link);
	}
	if (rc)
		epf_info("a link ends: %s", epf_last_error());
}
