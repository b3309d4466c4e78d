/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One-sided operations (gin.h). A request is no object: it is the number of the ring and how many commands had been pushed, in the bits of the pointer that NCCL
 * keeps, so a kernel's operation takes no memory and no lock here.
 */
#include "tools/nccl/gin.h"

#include "fabric/base/err.h"

#include <errno.h>

enum { TICKET_BITS = 48, BULK_BYTES = 128 * 1024 };

#define TICKET_MASK ((UINT64_C(1) << TICKET_BITS) - 1)

static struct epf_ring *ring_of(const struct epf_gin_context *c, int index, uint32_t rank)
{
	if (index < 0 || (unsigned)index >= c->n || rank >= c->group->ranks) {
		epf_fail(EPF_R_NCCL_CALL, "nccl: context %d of %u, rank %u of %u", index, c->n,
			 rank, c->group->ranks);
		return NULL;
	}
	return c->group->ring[c->ring[index]];
}

static void *request_of(const struct epf_gin_context *c, int index, const struct epf_ring *ring)
{
	uint64_t v = (uint64_t)(c->ring[index] + 1) << TICKET_BITS |
		     (epf_ring_pushed(ring) & TICKET_MASK);

	return (void *)(uintptr_t)v;
}

static int is_inside(uint64_t at, uint64_t bytes, const struct epf_group_mr *mr)
{
	return mr && bytes <= mr->bytes && at <= mr->bytes - bytes;
}

static int outside(const struct epf_gin_put *p)
{
	return epf_fail(EPF_R_NCCL_CALL, "nccl: %llu bytes outside a registration",
			(unsigned long long)p->bytes);
}

int epf_gin_put(struct epf_gin_context *context, int index, const struct epf_gin_put *p,
		void **request)
{
	struct epf_ring *ring = ring_of(context, index, p->rank);
	int rc = 0;

	if (!ring)
		return -EINVAL;
	/* The target's size is checked by the engine: ranks may register different ones. */
	if (p->bytes && (!is_inside(p->src, p->bytes, p->src_mr) || !p->dst_mr))
		return outside(p);
	if (p->signal_mr && p->signal_mr->is_gpu && !context->group->adds_to_gpus)
		return epf_fail(
			EPF_R_NCCL_CALL,
			"nccl: signals in GPU memory on a NIC that cannot add to it: set "
			"NCCL_GIN_TYPE=4 (NCCL 2.30.7; not for DeepEP V2), or EPF_NIC=tcp, or "
			"within a host EPF_NIC=emu");
	if (p->bytes)
		rc = epf_put(ring, p->rank, p->src_mr->region, p->src, p->dst_mr->remote[p->rank],
			     p->dst, p->bytes, p->bytes >= BULK_BYTES ? EPF_BULK : 0);
	if (!rc && p->signal_mr)
		rc = epf_add(ring, p->rank, p->signal_mr->remote[p->rank], p->signal, p->add, 0);
	if (!rc)
		*request = request_of(context, index, ring);
	return rc;
}

int epf_gin_get(struct epf_gin_context *context, int index, const struct epf_gin_put *p,
		void **request)
{
	struct epf_ring *ring = ring_of(context, index, p->rank);
	int rc = 0;

	if (!ring)
		return -EINVAL;
	if (p->bytes && (!is_inside(p->dst, p->bytes, p->dst_mr) || !p->src_mr))
		return outside(p);
	if (p->bytes)
		rc = epf_get(ring, p->rank, p->dst_mr->region, p->dst, p->src_mr->remote[p->rank],
			     p->src, p->bytes, p->bytes >= BULK_BYTES ? EPF_BULK : 0);
	if (!rc)
		*request = request_of(context, index, ring);
	return rc;
}

int epf_gin_flush(struct epf_gin_context *context, int index, uint32_t rank, void **request)
{
	struct epf_ring *ring = ring_of(context, index, rank);
	int rc;

	if (!ring)
		return -EINVAL;
	rc = epf_flush_post(ring, 0);
	if (!rc)
		*request = request_of(context, index, ring);
	return rc;
}

int epf_gin_ring_failed(struct epf_ring *ring)
{
	struct epf_ring_failure f;

	if (!epf_ring_error(ring, &f))
		return 0;
	return epf_fail(EPF_R_NCCL_PEER, "nccl: an operation on rank %u failed: %s", f.rank,
			epf_last_error());
}

/* Commands to a lost rank fail by themselves, so a request of one ends. The ticket's lower bits are compared as distances, which are never that long. */
int epf_gin_test(struct epf_group *group, void *request, int *done)
{
	uint64_t v = (uint64_t)(uintptr_t)request, number = v >> TICKET_BITS;
	struct epf_ring *ring;

	*done = 0;
	if (number == 0 || number > EPF_GIN_RINGS || !group->ring[number - 1])
		return epf_fail(EPF_R_NCCL_CALL, "nccl: a request that is none");
	ring = group->ring[number - 1];
	if (((epf_ring_done(ring) - v) & TICKET_MASK) < TICKET_MASK / 2) {
		*done = 1;
		return epf_gin_ring_failed(ring);
	}
	return epf_gin_ring_failed(ring);
}
