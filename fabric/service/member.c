/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank's memory in the daemon: made with its first request, with its signals. Its regions are in region.c, its rings in ring.c; all
 * of it counts against the user's limits. handover.c gives it to an engine and frees it.
 */
#include "fabric/service/service_priv.h"

#include <errno.h>
#include <stdlib.h>

enum { SIGNALS_MAX = 1 << 24 };

struct svc_member *svc_member_get(struct epf_svc *s, struct svc_session *c)
{
	struct svc_member *m = c->member;

	if (m)
		return m;
	m = calloc(1, sizeof(*m));
	if (!m || !(m->user = svc_user_get(s, c->uid))) {
		free(m);
		epf_fail(EPF_R_NO_MEMORY, "client: no memory");
		return NULL;
	}
	c->member = m;
	return m;
}

int svc_member_signals(struct epf_svc *s, struct svc_session *c, const union svc_message *msg,
		       struct svc_answer *a)
{
	uint32_t n = msg->signals.count;
	uint64_t bytes = ((uint64_t)n * sizeof(struct epf_signal) + 127) / 128 * 128;
	size_t all = svc_pages(bytes + sizeof(struct epf_wakeup));
	struct svc_member *m = svc_member_get(s, c);
	void *at;
	int rc;

	if (!m)
		return -ENOMEM;
	if (m->signals)
		return epf_fail(EPF_R_SVC_MESSAGE, "SIGNALS: this client has its signals already");
	if (!n || n > SIGNALS_MAX)
		return epf_fail(EPF_R_SVC_MESSAGE, "SIGNALS: count %u is outside 1 .. %d", n,
				SIGNALS_MAX);
	rc = svc_user_take(s, m->user, SVC_SIGNALS, n);
	if (rc)
		return rc;
	rc = svc_memory_make("epf-signals", all, false, &at, &a->fds[0]);
	if (rc) {
		svc_user_give(m->user, SVC_SIGNALS, n);
		return rc;
	}
	a->n_fds = 1;
	m->signals = at;
	m->n_signals = n;
	m->signal_bytes = all;
	m->wakeup = (struct epf_wakeup *)(void *)((uint8_t *)at + bytes);
	a->signals =
		(struct epf_svc_signals_reply){ .count = n, .bytes = all, .wakeup_offset = bytes };
	return 0;
}
