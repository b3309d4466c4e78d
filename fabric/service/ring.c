/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client's rings: made, opened in the job's engine, closed, unmapped when the engine no longer uses them.
 */
#include "fabric/service/service_priv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int svc_ring_add(struct epf_core *core, void *arg)
{
	struct svc_ring_args *a = arg;

	return epf_core_add_ring(core, a->m->local, a->r->shm, a->r->log2, a->r->weight,
				 a->r->start, &a->r->core_id);
}

void svc_ring_unmap(struct svc_member *m, struct svc_ring *r)
{
	if (r->state == SVC_RING_FREE)
		return;
	svc_memory_unmap(r->shm, r->bytes);
	svc_user_give(m->user, SVC_RINGS, 1);
	r->shm = NULL;
	r->state = SVC_RING_FREE;
}

static int ring_drained(struct epf_core *core, void *arg)
{
	return epf_core_ring_drained(core, *(uint32_t *)arg);
}

int svc_member_sweep(struct svc_member *m)
{
	for (uint32_t i = 0; m->closing && i < m->n_rings; i++) {
		struct svc_ring *r = &m->rings[i];

		if (r->state != SVC_RING_CLOSING)
			continue;
		if (m->job->core && epf_core_call(m->job->core, ring_drained, &r->core_id) != 1)
			continue;
		svc_ring_unmap(m, r);
		m->closing--;
	}
	return m->closing != 0;
}

static bool find_free(const struct svc_member *m, uint32_t *number)
{
	for (*number = 0; *number < m->n_rings; ++*number)
		if (m->rings[*number].state == SVC_RING_FREE)
			return true;
	return false;
}

/* A place for one more ring; numbers of closed ones are used again. At the limit, closed rings that have drained make room first. */
static int free_ring(struct epf_svc *s, struct svc_member *m, uint32_t *number)
{
	struct svc_ring *more;

	if (find_free(m, number))
		return 0;
	if (m->n_rings >= s->conf->client_rings && m->closing) {
		svc_member_sweep(m);
		if (find_free(m, number))
			return 0;
	}
	if (m->n_rings >= s->conf->client_rings)
		return epf_fail(EPF_R_SVC_LIMIT, "client: %u rings are open, client-rings is %llu",
				m->n_rings, (unsigned long long)s->conf->client_rings);
	more = realloc(m->rings, (m->n_rings + 1) * sizeof(*more));
	if (!more)
		return epf_fail(EPF_R_NO_MEMORY, "ring: no memory");
	m->rings = more;
	memset(&more[m->n_rings], 0, sizeof(*more));
	*number = m->n_rings++;
	return 0;
}

/* Makes the ring's memory and, where the rank is attached, opens it in the engine. */
static int open_ring(struct svc_member *m, struct svc_ring *r, uint32_t number, int *fd)
{
	struct svc_ring_args args = { .m = m, .r = r };
	void *at;
	int rc = svc_memory_make("epf-ring", r->bytes, false, &at, fd);

	if (rc)
		return rc;
	r->shm = at;
	epf_ring_format(r->shm, r->log2, number, 0);
	if (r->start)
		epf_ring_reset(r->shm, r->start);
	if (m->job)
		rc = svc_job_check(m->job);
	if (m->job && !rc)
		rc = epf_core_call(m->job->core, svc_ring_add, &args);
	if (rc) {
		svc_memory_unmap(r->shm, r->bytes);
		close(*fd);
	}
	return rc;
}

int svc_member_ring(struct epf_svc *s, struct svc_session *c, const union svc_message *msg,
		    struct svc_answer *a)
{
	const struct epf_svc_ring *q = &msg->ring;
	struct svc_member *m = svc_member_get(s, c);
	struct svc_ring r = { .log2 = q->log2, .weight = q->weight, .start = q->start };
	uint32_t number = 0;
	int rc;

	if (!m)
		return -ENOMEM;
	if (q->log2 < EPF_RING_LOG2_MIN || q->log2 > EPF_RING_LOG2_MAX || !q->weight ||
	    q->weight > 255)
		return epf_fail(EPF_R_RING_OPTION, "ring: 2^%u slots, weight %u", q->log2,
				q->weight);
	rc = free_ring(s, m, &number);
	if (!rc)
		rc = svc_user_take(s, m->user, SVC_RINGS, 1);
	if (rc)
		return rc;
	r.bytes = svc_pages(epf_ring_bytes(q->log2));
	rc = open_ring(m, &r, number, &a->fds[0]);
	if (rc) {
		svc_user_give(m->user, SVC_RINGS, 1);
		return rc;
	}
	r.state = SVC_RING_OPEN;
	m->rings[number] = r;
	a->n_fds = 1;
	a->ring = (struct epf_svc_ring_reply){ .ring = number, .bytes = r.bytes };
	return 0;
}

static int close_ring(struct epf_core *core, void *arg)
{
	epf_core_close_ring(core, *(uint32_t *)arg);
	return 0;
}

int svc_member_ring_close(struct epf_svc *s, struct svc_session *c, const union svc_message *msg,
			  struct svc_answer *a)
{
	struct svc_member *m = c->member;
	uint32_t number = msg->ring_close.ring;
	struct svc_ring *r;

	(void)s;
	(void)a;
	if (!m || number >= m->n_rings || m->rings[number].state != SVC_RING_OPEN)
		return epf_fail(EPF_R_RING_OPTION, "ring %u: it is not open", number);
	r = &m->rings[number];
	if (!m->job || !m->job->core) {
		svc_ring_unmap(m, r);
		return 0;
	}
	epf_core_call(m->job->core, close_ring, &r->core_id);
	r->state = SVC_RING_CLOSING;
	m->closing++;
	svc_job_look(m->job);
	return 0;
}
