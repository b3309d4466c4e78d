/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client's regions: checked, allocated a slice at a time, registered with the job's engine, withdrawn. gpu.c has those in GPU memory.
 */
#include "fabric/service/service_priv.h"

#include "fabric/client/epf.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

int svc_member_may_register(struct epf_svc *s, struct svc_session *c, uint32_t access,
			    struct svc_member **out)
{
	struct svc_member *m = svc_member_get(s, c);

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
					   .done = svc_memory_must_fill(s->conf) ? 0 : r->bytes,
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

int svc_region_add(struct epf_core *core, void *arg)
{
	struct svc_region_args *a = arg;

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
	struct svc_region_args args = { .m = m, .r = &r, .number = m->n_regions };
	struct svc_region *more = realloc(m->regions, (m->n_regions + 1) * sizeof(*more));
	int rc = 0;

	if (!more)
		return epf_fail(EPF_R_NO_MEMORY, "region: no memory");
	m->regions = more;
	if (m->job)
		rc = svc_job_check(m->job);
	if (!rc && m->job)
		rc = epf_core_call(m->job->core, svc_region_add, &args);
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
	int rc = 0;

	if (n > SVC_SLICE_BYTES)
		n = SVC_SLICE_BYTES;
	if (n)
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

void svc_region_free(struct epf_svc *s, struct svc_member *m, struct svc_region *r)
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
		rc = epf_core_call(m->job->core, revoke_begin, &args);
		if (rc)
			return rc;
		r->state = SVC_REGION_WITHDRAWING;
	}
	rc = r->state == SVC_REGION_GONE ? 1 : epf_core_call(m->job->core, revoke_done, &args);
	if (rc < 0)
		return rc;
	if (rc)
		svc_region_free(s, m, r);
	a->region_close =
		(struct epf_svc_region_close_reply){ .done = (uint32_t)rc,
						     .missing = rc ? EPF_NONE : args.missing };
	return 0;
}
