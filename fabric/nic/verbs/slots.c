/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for the receives of the verbs NIC: registered in chunks, which are never released while the NIC is open. Slow path. */
#include "fabric/nic/verbs/verbs.h"

#include "fabric/base/err.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int epf_verbs_call_failed(const struct epf_verbs *v, const char *call, const char *what)
{
	int err = errno;

	if (err == ENOMEM)
		return epf_fail_sys(EPF_R_VERBS_PIN, err, "verbs: %s: %s: %s", v->device, call,
				    what);
	return epf_fail_sys(EPF_R_VERBS_CALL, err, "verbs: %s: %s: %s", v->device, call, what);
}

static int register_chunk(struct epf_verbs *v, struct epf_verbs_chunk *c, uint32_t count)
{
	size_t bytes = (size_t)count * EPF_NIC_MSG_BYTES;

	c->slots = calloc(count, sizeof(*c->slots));
	c->memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
	if (!c->slots || !c->memory)
		return epf_fail(EPF_R_NO_MEMORY, "verbs: %u receives", count);
	c->mr = v->lib->reg_mr_iova2(v->pd, c->memory, bytes, (uintptr_t)c->memory,
				     IBV_ACCESS_LOCAL_WRITE);
	return c->mr ? 0 : epf_verbs_call_failed(v, "ibv_reg_mr", "receives");
}

static void free_chunk(struct epf_verbs *v, struct epf_verbs_chunk *c)
{
	if (c->mr)
		v->lib->dereg_mr(c->mr);
	free(c->memory);
	free(c->slots);
	memset(c, 0, sizeof(*c));
}

int epf_verbs_more_slots_cold(struct epf_verbs *v, uint32_t n)
{
	struct epf_verbs_chunk *c = &v->chunks[v->n_chunks];
	uint32_t count = n > v->all_slots ? n - v->all_slots : 0;
	int rc;

	if (count < EPF_VERBS_MIN_SLOTS)
		count = EPF_VERBS_MIN_SLOTS;
	if (count < v->all_slots)
		count = v->all_slots;
	if (v->n_chunks == EPF_VERBS_CHUNKS)
		return epf_fail(EPF_R_NIC_LIMIT, "verbs: %u receives", n);
	rc = register_chunk(v, c, count);
	if (rc) {
		free_chunk(v, c);
		return rc;
	}
	c->count = count;
	v->n_chunks++;
	v->all_slots += count;
	for (uint32_t i = count; i-- > 0;) {
		struct epf_verbs_slot *s = &c->slots[i];

		s->sge = (struct ibv_sge){ .addr = (uintptr_t)c->memory +
						   (uint64_t)i * EPF_NIC_MSG_BYTES,
					   .length = EPF_NIC_MSG_BYTES,
					   .lkey = c->mr->lkey };
		s->wr = (struct ibv_recv_wr){ .wr_id = (uintptr_t)s,
					      .sg_list = &s->sge,
					      .num_sge = 1 };
		s->next = v->free_slots;
		v->free_slots = s;
	}
	return 0;
}

void epf_verbs_slots_free(struct epf_verbs *v)
{
	for (uint32_t i = 0; i < v->n_chunks; i++)
		free_chunk(v, &v->chunks[i]);
}
