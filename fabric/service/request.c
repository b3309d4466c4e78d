/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a message to its handler and back to an answer. One table says what each request needs: the state of its connection and whether an
 * operator may send it. A message that cannot be is answered with the reason and ends its connection; a request that is
 * only refused does not. Every refusal is counted by reason.
 */
#define EPF_LOG_COMP "svc"
#include "fabric/base/clock.h"
#include "fabric/base/log.h"
#include "fabric/service/service_priv.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SMALL_BODY = 4096, SEALED_BYTES = 4096, REGION_BYTES = 64 };

typedef int (*handler_fn)(struct epf_svc *s, struct svc_session *c, const union svc_message *m,
			  struct svc_answer *a);

struct row {
	handler_fn handle;
	enum svc_state least, most;
	bool operators; /* those who only look and manage may send it */
};

static int leave(struct epf_svc *s, struct svc_session *c, const union svc_message *m,
		 struct svc_answer *a)
{
	(void)m;
	(void)a;
	svc_rank_gone(s, c, 0);
	c->state = SVC_LEAVING;
	c->ending = true;
	return 0;
}

/* Takes the connection into its user's account and the daemon's. */
static int admit(struct epf_svc *s, struct svc_session *c)
{
	int rc;

	if (s->n_clients >= s->conf->service_clients)
		return epf_fail(EPF_R_SVC_LIMIT,
				"service: %u clients are connected, service-clients is %llu",
				s->n_clients, (unsigned long long)s->conf->service_clients);
	c->user = svc_user_get(s, c->uid);
	if (!c->user)
		return epf_fail(EPF_R_NO_MEMORY, "client: no memory");
	rc = svc_user_take(s, c->user, SVC_CLIENTS, 1);
	if (rc) {
		svc_user_put(s, c->user);
		c->user = NULL;
	}
	return rc;
}

static int hello(struct epf_svc *s, struct svc_session *c, const union svc_message *m,
		 struct svc_answer *a)
{
	const struct epf_svc_hello *h = &m->hello;
	int rc = epf_svc_version_check(*h->program ? h->program : "the client", h->major, h->minor);

	if (rc)
		return rc;
	snprintf(c->program, sizeof(c->program), "%s", *h->program ? h->program : "-");
	if (!(h->flags & 1))
		rc = admit(s, c);
	if (rc)
		return rc;
	c->minor = epf_svc_minor(h->minor);
	c->state = h->flags & 1 ? SVC_OPERATOR : SVC_GREETED;
	if (c->state ==
	    SVC_GREETED) { /* an operator stays in the strangers' budget, and keeps its deadline */
		s->n_strangers--;
		s->n_clients++;
		c->deadline_ns = 0;
	}
	a->hello = (struct epf_svc_hello_reply){ .major = EPF_SVC_MAJOR,
						 .minor = EPF_SVC_MINOR,
						 .max_regions = (uint32_t)s->conf->regions,
						 .max_rings = (uint32_t)s->conf->client_rings,
						 .max_jobs = (uint32_t)s->conf->user_jobs };
	memcpy(a->hello.node_id, s->node_id, sizeof(a->hello.node_id));
	memcpy(a->hello.instance, s->instance, sizeof(a->hello.instance));
	memcpy(a->hello.version, s->version, sizeof(a->hello.version));
	if (c->state == SVC_OPERATOR)
		epf_dbg("operator %s: process %d, user %u: in", c->program, (int)c->pid,
			(unsigned)c->uid);
	else
		epf_info("client %s: process %d, user %u: in", c->program, (int)c->pid,
			 (unsigned)c->uid);
	return 0;
}

static const struct row rows[EPF_SVC_TYPES] = {
	[EPF_SVC_HELLO] = { hello, SVC_STRANGER, SVC_STRANGER, false },
	[EPF_SVC_SIGNALS] = { svc_member_signals, SVC_GREETED, SVC_GREETED, false },
	[EPF_SVC_REGION] = { svc_member_region, SVC_GREETED, SVC_CONNECTED, false },
	[EPF_SVC_GPU_REGION] = { svc_member_gpu_region, SVC_GREETED, SVC_CONNECTED, false },
	[EPF_SVC_REGION_CLOSE] = { svc_member_region_close, SVC_CONNECTED, SVC_CONNECTED, false },
	[EPF_SVC_RING] = { svc_member_ring, SVC_GREETED, SVC_CONNECTED, false },
	[EPF_SVC_RING_CLOSE] = { svc_member_ring_close, SVC_GREETED, SVC_CONNECTED, false },
	[EPF_SVC_ATTACH] = { svc_join_attach, SVC_GREETED, SVC_GREETED, false },
	[EPF_SVC_WORLD] = { svc_join_world, SVC_ATTACHED, SVC_ATTACHED, false },
	[EPF_SVC_CONNECT] = { svc_join_connect, SVC_ATTACHED, SVC_WORLD, false },
	[EPF_SVC_DESCRIBE] = { svc_join_describe, SVC_CONNECTED, SVC_CONNECTED, false },
	[EPF_SVC_UPDATE] = { svc_join_update, SVC_CONNECTED, SVC_CONNECTED, false },
	[EPF_SVC_RECONNECT] = { svc_join_reconnect, SVC_CONNECTED, SVC_CONNECTED, false },
	[EPF_SVC_MASK] = { svc_operate_mask, SVC_CONNECTED, SVC_CONNECTED, false },
	[EPF_SVC_AWAKE] = { svc_operate_awake, SVC_CONNECTED, SVC_CONNECTED, false },
	[EPF_SVC_COUNTER] = { svc_operate_counter, SVC_GREETED, SVC_CONNECTED, false },
	[EPF_SVC_LEAVE] = { leave, SVC_GREETED, SVC_CONNECTED, false },
	[EPF_SVC_STATUS] = { svc_status, SVC_OPERATOR, SVC_CONNECTED, true },
	[EPF_SVC_DRAIN] = { svc_operate_drain, SVC_OPERATOR, SVC_CONNECTED, true },
	[EPF_SVC_LINK] = { svc_operate_link, SVC_OPERATOR, SVC_CONNECTED, true },
};

static const char *const states[] = {
	[SVC_STRANGER] = "before HELLO", [SVC_OPERATOR] = "as operator",
	[SVC_GREETED] = "before ATTACH", [SVC_ATTACHED] = "after ATTACH",
	[SVC_WORLD] = "after WORLD",     [SVC_CONNECTED] = "when connected",
	[SVC_LEAVING] = "after LEAVE",
};

/* Whether this request may come now. */
static int check_turn(const struct svc_session *c, unsigned type)
{
	const struct row *row = type < EPF_SVC_TYPES ? &rows[type] : NULL;

	if (!row || !row->handle)
		return epf_fail(EPF_R_SVC_MESSAGE, "request: type %u is not known", type);
	if (c->state < row->least || c->state > row->most ||
	    (c->state == SVC_OPERATOR && !row->operators))
		return epf_fail(EPF_R_SVC_MESSAGE, "%s: not %s", epf_svc_type_name(type),
				states[c->state]);
	return 0;
}

static bool is_breach(int rc)
{
	enum epf_reason r = epf_last_reason();

	return rc < 0 &&
	       (r == EPF_R_SVC_MESSAGE || r == EPF_R_SVC_DESCRIPTOR || r == EPF_R_SVC_VERSION);
}

void svc_refused(struct epf_svc *s, const struct svc_session *c, const char *what)
{
	enum epf_reason reason = epf_last_reason();
	struct svc_refusal *r = &s->refusals[(unsigned)reason < SVC_REASONS ? reason : 0];
	uint64_t now = epf_now_ns(), more = r->count - r->notified;

	if (!reason)
		return;
	r->count++;
	if (r->notified_ns && now - r->notified_ns < 1000 * (uint64_t)SVC_MS)
		return;
	r->notified = r->count;
	r->notified_ns = now;
	if (c)
		epf_warn("client %s: process %d, user %u: %s refused: %s",
			 c->program[0] ? c->program : "-", (int)c->pid, (unsigned)c->uid, what,
			 epf_last_error());
	else
		epf_warn("%s refused: %s", what, epf_last_error());
	if (more)
		epf_warn("service: %llu more refusals like it before, reason EPF-%d",
			 (unsigned long long)more, (int)reason);
}

/*
 * The longest body that makes sense from this client now: descriptions of all ranks once it is one of them. So a client cannot make the
 * daemon hold more for it than its job is large.
 */
static uint32_t body_limit(const struct epf_svc *s, const struct svc_session *c)
{
	const struct svc_job *job = c->member ? c->member->job : NULL;
	uint64_t each = SEALED_BYTES + REGION_BYTES * s->conf->regions, all;

	if (!job)
		return SMALL_BODY;
	each += sizeof(uint64_t) * job->world * s->conf->lanes_per_peer;
	all = SMALL_BODY + job->world * each;
	return all < EPF_SVC_BODY_MAX ? (uint32_t)all : EPF_SVC_BODY_MAX;
}

static void give_up(struct svc_answer *a)
{
	for (unsigned i = 0; i < a->n_fds; i++)
		close(a->fds[i]);
	a->n_fds = 0;
}

void svc_request_finish(struct epf_svc *s, struct svc_session *c, const struct epf_svc_head *head,
			int rc, const void *reply)
{
	if (rc)
		svc_refused(s, c, epf_svc_type_name(head->type));
	if (rc)
		rc = epf_svc_output_failure(&c->out, head, rc);
	else
		rc = epf_svc_output_answer(&c->out, head, c->minor, reply, NULL, 0);
	if (rc)
		c->ending = true;
}

void svc_request(struct epf_svc *s, struct svc_session *c)
{
	struct epf_svc_head head = c->in.head;
	struct svc_answer a = { .n_fds = 0 };
	union svc_message m;
	bool has_body;
	int rc;

	memset(&m, 0, sizeof(m));
	epf_clear_error();
	rc = check_turn(c, head.type);
	if (!rc)
		rc = epf_svc_input_request(&c->in, c->minor, &m);
	if (!rc)
		rc = rows[head.type].handle(s, c, &m, &a);
	epf_dbg("client %s: process %d: %s: %s", c->program, (int)c->pid,
		epf_svc_type_name(head.type), rc ? epf_last_error() : "ok");
	if (rc) {
		svc_refused(s, c, epf_svc_type_name(head.type));
		/* Who is not let in, or speaks another language, is not listened to any further. */
		c->ending |= is_breach(rc) || c->state == SVC_STRANGER;
		give_up(&a);
		if (epf_svc_output_failure(&c->out, &head, rc))
			c->ending = true;
	} else if (!a.later) {
		has_body = head.type != EPF_SVC_CONNECT && head.type != EPF_SVC_UPDATE &&
			   head.type != EPF_SVC_MASK && head.type != EPF_SVC_AWAKE &&
			   head.type != EPF_SVC_LEAVE && head.type != EPF_SVC_RING_CLOSE;
		if (epf_svc_output_answer(&c->out, &head, c->minor, has_body ? &a : NULL, a.fds,
					  a.n_fds))
			c->ending = true;
	}
	free(a.owned);
	epf_svc_input_reset(&c->in);
	if (c->state > SVC_OPERATOR)
		c->in.limit = body_limit(s, c);
}
