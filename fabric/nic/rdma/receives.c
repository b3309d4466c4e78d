/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for the receives of an RDMA NIC (receives.h). */
#include "fabric/nic/rdma/receives.h"

#include "fabric/base/err.h"
#include "fabric/nic/nic.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int epf_rdma_call_failed(const char *kind, const char *device, const char *call, const char *what)
{
	int err = errno;

	if (err == ENOMEM)
		return epf_fail_sys(EPF_R_VERBS_PIN, err, "%s: %s: %s: %s", kind, device, call,
				    what);
	return epf_fail_sys(EPF_R_VERBS_CALL, err, "%s: %s: %s: %s", kind, device, call, what);
}

static int register_chunk(struct epf_rdma_receives *r, struct epf_rdma_chunk *c, uint32_t count)
{
	size_t bytes = (size_t)count * EPF_NIC_MSG_BYTES;

	c->slots = calloc(count, sizeof(*c->slots));
	c->memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
	if (!c->slots || !c->memory)
		return epf_fail(EPF_R_NO_MEMORY, "%s: %u receives", r->kind, count);
	c->mr = r->lib->reg_mr_iova2(r->pd, c->memory, bytes, (uintptr_t)c->memory,
				     IBV_ACCESS_LOCAL_WRITE);
	return c->mr ? 0 : epf_rdma_call_failed(r->kind, r->device, "ibv_reg_mr", "receives");
}

static void free_chunk(struct epf_rdma_receives *r, struct epf_rdma_chunk *c)
{
	if (c->mr)
		r->lib->dereg_mr(c->mr);
	free(c->memory);
	free(c->slots);
	memset(c, 0, sizeof(*c));
}

int epf_rdma_more_slots_cold(struct epf_rdma_receives *r, uint32_t n)
{
	struct epf_rdma_chunk *c = &r->chunks[r->n_chunks];
	uint32_t count = n > r->all ? n - r->all : 0;
	int rc;

	if (count < EPF_RDMA_MIN_SLOTS)
		count = EPF_RDMA_MIN_SLOTS;
	if (count < r->all)
		count = r->all;
	if (r->n_chunks == EPF_RDMA_CHUNKS)
		return epf_fail(EPF_R_NIC_LIMIT, "%s: %u receives", r->kind, n);
	rc = register_chunk(r, c, count);
	if (rc) {
		free_chunk(r, c);
		return rc;
	}
	c->count = count;
	r->n_chunks++;
	r->all += count;
	for (uint32_t i = count; i-- > 0;) {
		struct epf_rdma_slot *s = &c->slots[i];

		s->sge = (struct ibv_sge){ .addr = (uintptr_t)c->memory +
						   (uint64_t)i * EPF_NIC_MSG_BYTES,
					   .length = EPF_NIC_MSG_BYTES,
					   .lkey = c->mr->lkey };
		s->wr = (struct ibv_recv_wr){ .wr_id = (uintptr_t)s,
					      .sg_list = &s->sge,
					      .num_sge = 1 };
		s->lane = UINT16_MAX;
		s->next = r->free;
		r->free = s;
	}
	return 0;
}

void epf_rdma_slots_free(struct epf_rdma_receives *r)
{
	for (uint32_t i = 0; i < r->n_chunks; i++)
		free_chunk(r, &r->chunks[i]);
}
