/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank's memory: signals, regions, rings. Made or checked when the client asks, handed to the job's engine when it attaches (or at
 * once after that), unmapped when the engine has let go. Everything here is counted against the user's limits.
 */
#include "fabric/service/service_priv.h"

#include "fabric/client/epf.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGE = 4096, SIGNALS_MAX = 1 << 24 };

static uint64_t pages(uint64_t bytes)
{
	return (bytes + PAGE - 1) / PAGE * PAGE;
}

static struct svc_member *get_member(struct epf_svc *s, struct svc_session *c)
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
	size_t all = pages(bytes + sizeof(struct epf_wakeup));
	struct svc_member *m = get_member(s, c);
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

int svc_member_may_register(struct epf_svc *s, struct svc_session *c, uint32_t access,
			    struct svc_member **out)
{
	struct svc_member *m = get_member(s, c);

	if (!m)
		return -ENOMEM;
	if (access & ~(uint32_t)(EPF_REMOTE_WRITE | EPF_REMOTE_READ | EPF_MR_SIGNALS))
		return epf_fail(EPF_R_SVC_MESSAGE, "REGION: access %#x has unknown bits", access);
	if (m->n_regions >= s->conf->regions)
		return epf_fail(EPF_R_REGION_LIMIT,
				"regions: all %u of the client are in use, regions is %llu",
				m->n_regions, (unsigned long long)s->conf->regions);
	*out = m;
	return 0;
}

int svc_member_take(struct epf_svc *s, struct svc_member *m, uint64_t bytes)
{
	int rc = svc_user_take(s, m->user, SVC_REGIONS, 1);

	if (rc)
		return rc;
	rc = svc_user_take(s, m->user, SVC_BYTES, bytes);
	if (rc)
		svc_user_give(m->user, SVC_REGIONS, 1);
	return rc;
}

void svc_member_give(struct svc_member *m, uint64_t bytes)
{
	svc_user_give(m->user, SVC_REGIONS, 1);
	svc_user_give(m->user, SVC_BYTES, bytes);
}

int svc_member_region(struct epf_svc *s, struct svc_session *c, const union svc_message *msg,
		      struct svc_answer *a)
{
	const struct epf_svc_region *r = &msg->region;
	struct svc_member *m;
	int rc = svc_member_may_register(s, c, r->access, &m);

	if (!rc && (r->access & EPF_MR_SIGNALS))
		rc = epf_fail(EPF_R_SVC_MESSAGE, "REGION: signals have host memory of their own");
	if (!rc)
		rc = svc_memory_check(c->in.fds[0], r->offset, r->bytes);
	if (!rc)
		rc = svc_member_take(s, m, r->bytes);
	if (rc)
		return rc;
	c->filling = (struct svc_filling){ .fd = c->in.fds[0],
					   .offset = r->offset,
					   .bytes = r->bytes,
					   .access = r->access,
					   .head = c->in.head };
	c->in.fds[0] = -1;
	s->n_filling++;
	a->later = true;
	return 0;
}

void svc_member_stop_filling(struct epf_svc *s, struct svc_session *c)
{
	if (c->filling.fd < 0)
		return;
	svc_unmap_close(s, c->filling.fd);
	c->filling.fd = -1;
	s->n_filling--;
}

struct region_args {
	struct svc_member *m;
	struct svc_region *r;
	uint32_t number;
};

static int add_region(struct epf_core *core, void *arg)
{
	struct region_args *a = arg;

	if (a->r->gpu)
		return epf_core_add_gpu_region(core, a->m->local, a->r->gpu, a->r->access,
					       &a->number);
	if (a->r->device)
		return epf_core_add_device_region(core, a->m->local, a->r->device, a->r->access,
						  &a->number);
	return epf_core_add_region(core, a->m->local, a->r->addr, a->r->bytes, a->r->access,
				   &a->number);
}

int svc_member_add(struct svc_member *m, const struct svc_region *region)
{
	struct svc_region r = *region;
	struct region_args args = { .m = m, .r = &r, .number = m->n_regions };
	struct svc_region *more = realloc(m->regions, (m->n_regions + 1) * sizeof(*more));
	int rc = 0;

	if (!more)
		return epf_fail(EPF_R_NO_MEMORY, "region: no memory");
	m->regions = more;
	if (m->job)
		rc = svc_job_check(m->job);
	if (!rc && m->job)
		rc = svc_core_call(m->job, add_region, &args);
	if (!rc && args.number != m->n_regions)
		rc = epf_fail(EPF_R_REGION_BAD, "region: the engine numbers it %u, not %u",
			      args.number, m->n_regions);
	if (!rc)
		m->regions[m->n_regions++] = r;
	return rc;
}

/* Maps what was allocated, and registers it where the rank is attached. */
static int take_region(struct svc_member *m, const struct svc_filling *f)
{
	struct svc_region r = { .bytes = f->bytes, .access = f->access, .state = SVC_REGION_LIVE };
	int rc = svc_memory_map(f->fd, f->offset, f->bytes, &r.addr);
	struct stat st;

	r.file_bytes = fstat(f->fd, &st) ? f->bytes : (uint64_t)st.st_size;
	if (!rc)
		rc = svc_member_add(m, &r);
	if (rc)
		svc_memory_unmap(r.addr, r.bytes);
	return rc;
}

int svc_member_fill(struct epf_svc *s, struct svc_session *c, uint32_t *region)
{
	struct svc_filling *f = &c->filling;
	struct svc_member *m = c->member;
	uint64_t n = f->bytes - f->done;
	int rc;

	if (n > SVC_SLICE_BYTES)
		n = SVC_SLICE_BYTES;
	rc = svc_memory_fill(f->fd, f->offset + f->done, n);
	f->done += n;
	if (!rc && f->done < f->bytes)
		return 0;
	if (!rc)
		rc = take_region(m, f);
	if (rc)
		svc_member_give(m, f->bytes);
	svc_member_stop_filling(s, c);
	*region = rc ? 0 : m->n_regions - 1;
	return rc ? rc : 1;
}

struct revoke_args {
	uint32_t local, region, missing;
};

static int revoke_begin(struct epf_core *core, void *arg)
{
	struct revoke_args *a = arg;

	return epf_core_revoke_begin(core, a->local, a->region);
}

static int revoke_done(struct epf_core *core, void *arg)
{
	struct revoke_args *a = arg;

	return epf_core_revoke_done(core, a->local, a->region, &a->missing);
}

static void free_region(struct epf_svc *s, struct svc_member *m, struct svc_region *r)
{
	if (r->state == SVC_REGION_GONE)
		return;
	if (r->gpu) {
		epf_copy_mem_put(r->gpu);
		svc_member_give(m, r->bytes);
		r->gpu = NULL;
	} else if (r->device) {
		svc_device_free(r->device);
		svc_member_give(m, r->bytes);
		r->device = NULL;
	} else {
		svc_unmap_region(s, m->user, r->addr, r->bytes, r->file_bytes);
	}
	r->addr = NULL;
	r->state = SVC_REGION_GONE;
}

int svc_member_region_close(struct epf_svc *s, struct svc_session *c, const union svc_message *msg,
			    struct svc_answer *a)
{
	struct svc_member *m = c->member;
	struct revoke_args args = { .region = msg->region_close.region, .missing = EPF_NONE };
	struct svc_region *r;
	int rc = svc_job_check(m->job);

	if (rc)
		return rc;
	if (args.region >= m->n_regions)
		return epf_fail(EPF_R_REGION_BAD, "region %u: this client has registered %u",
				args.region, m->n_regions);
	r = &m->regions[args.region];
	args.local = m->local;
	if (r->state == SVC_REGION_LIVE) {
		rc = svc_core_call(m->job, revoke_begin, &args);
		if (rc)
			return rc;
		r->state = SVC_REGION_WITHDRAWING;
	}
	rc = r->state == SVC_REGION_GONE ? 1 : svc_core_call(m->job, revoke_done, &args);
	if (rc < 0)
		return rc;
	if (rc)
		free_region(s, m, r);
	a->region_close =
		(struct epf_svc_region_close_reply){ .done = (uint32_t)rc,
						     .missing = rc ? EPF_NONE : args.missing };
	return 0;
}

struct ring_args {
	struct svc_member *m;
	struct svc_ring *r;
};

static int add_ring(struct epf_core *core, void *arg)
{
	struct ring_args *a = arg;

	return epf_core_add_ring(core, a->m->local, a->r->shm, a->r->log2, a->r->weight,
				 a->r->start, &a->r->core_id);
}

/* A place for one more ring; numbers of closed ones are used again. */
static int free_ring(struct epf_svc *s, struct svc_member *m, uint32_t *number)
{
	struct svc_ring *more;

	for (uint32_t i = 0; i < m->n_rings; i++)
		if (m->rings[i].state == SVC_RING_FREE) {
			*number = i;
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
	struct ring_args args = { .m = m, .r = r };
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
		rc = svc_core_call(m->job, add_ring, &args);
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
	struct svc_member *m = get_member(s, c);
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
	r.bytes = pages(epf_ring_bytes(q->log2));
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

static void unmap_ring(struct svc_member *m, struct svc_ring *r)
{
	if (r->state == SVC_RING_FREE)
		return;
	svc_memory_unmap(r->shm, r->bytes);
	svc_user_give(m->user, SVC_RINGS, 1);
	r->shm = NULL;
	r->state = SVC_RING_FREE;
}

static int close_ring(struct epf_core *core, void *arg)
{
	epf_core_close_ring(core, *(uint32_t *)arg);
	return 0;
}

static int ring_drained(struct epf_core *core, void *arg)
{
	return epf_core_ring_drained(core, *(uint32_t *)arg);
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
		unmap_ring(m, r);
		return 0;
	}
	svc_core_call(m->job, close_ring, &r->core_id);
	r->state = SVC_RING_CLOSING;
	m->closing++;
	svc_job_look(m->job);
	return 0;
}

int svc_member_sweep(struct svc_member *m)
{
	for (uint32_t i = 0; m->closing && i < m->n_rings; i++) {
		struct svc_ring *r = &m->rings[i];

		if (r->state != SVC_RING_CLOSING)
			continue;
		if (m->job->core && svc_core_call(m->job, ring_drained, &r->core_id) != 1)
			continue;
		unmap_ring(m, r);
		m->closing--;
	}
	return m->closing != 0;
}

struct hand_over {
	struct svc_member *m;
	uint32_t rank, max_regions;
	pid_t pid;
};

static int hand_over(struct epf_core *core, void *arg)
{
	struct hand_over *h = arg;
	struct svc_member *m = h->m;
	int rc = m->rejoining
			 ? epf_core_rank_back(core, m->local, m->signals, m->n_signals, m->wakeup)
			 : epf_core_add_rank(core, h->rank, m->signals, m->n_signals,
					     h->max_regions, m->wakeup, &m->local);

	m->handed = rc == 0;
	if (m->handed)
		core->ranks[m->local].pid = (uint32_t)h->pid;
	for (uint32_t i = 0; i < m->n_regions && !rc; i++) {
		struct region_args args = { .m = m, .r = &m->regions[i] };

		rc = add_region(core, &args);
	}
	for (uint32_t i = 0; i < m->n_rings && !rc; i++) {
		struct ring_args args = { .m = m, .r = &m->rings[i] };

		if (m->rings[i].state != SVC_RING_OPEN)
			continue;
		m->rings[i].shm->rank = h->rank;
		rc = add_ring(core, &args);
	}
	if (rc && m->handed && m->rejoining)
		epf_core_rank_gone(core, m->local, EPF_R_RANK_DIED);
	return rc;
}

int svc_member_hand_over(struct svc_member *m, struct svc_job *job, uint32_t rank, pid_t pid)
{
	struct hand_over h = {
		.m = m, .pid = pid, .rank = rank, .max_regions = (uint32_t)job->svc->conf->regions
	};

	return svc_core_call(job, hand_over, &h);
}

void svc_member_destroy(struct epf_svc *s, struct svc_member *m)
{
	if (!m)
		return;
	for (uint32_t i = 0; i < m->n_rings; i++)
		unmap_ring(m, &m->rings[i]);
	for (uint32_t i = 0; i < m->n_regions; i++)
		free_region(s, m, &m->regions[i]);
	if (m->signals) {
		svc_memory_unmap(m->signals, m->signal_bytes);
		svc_user_give(m->user, SVC_SIGNALS, m->n_signals);
	}
	svc_user_put(s, m->user);
	free(m->regions);
	free(m->rings);
	free(m);
}
