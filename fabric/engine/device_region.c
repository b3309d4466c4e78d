/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Regions of GPU memory in the engine: registering them, and the rule of write visibility. Data reaches GPU memory by the NIC, its
 * signal by the CPU; where the GPU does not promise that its kernels see the one when they see the other, the engine calls the GPU's flush
 * after reaping arrivals and before it applies what they promise. Called by whoever registers, and by the core's own thread.
 */
#include "fabric/base/err.h"
#include "fabric/engine/core_priv.h"
#include "fabric/engine/data_path.h"
#include "fabric/engine/engine.h"

static int check(const struct epf_rank_state *r, const struct epf_device_mem *mem)
{
	if (r->life != EPF_RANK_LIVE)
		return epf_fail(EPF_R_RANK_DIED, "rank %u: has gone", r->rank);
	if (!mem->addr || !mem->bytes || mem->bytes > EPF_WIDE_REGION_BYTES ||
	    mem->addr + mem->bytes < mem->addr)
		return epf_fail(EPF_R_REGION_BAD, "region: GPU address %#llx, %llu bytes",
				(unsigned long long)mem->addr, (unsigned long long)mem->bytes);
	if (mem->order == EPF_ORDER_NONE && !mem->flush)
		return epf_fail(
			EPF_R_GPU_REGION,
			"region: the GPU promises no order of a NIC's writes, and its driver has "
			"no flush for them");
	return 0;
}

/* Registers the flush of a GPU, once. */
static int add_flush(struct epf_core *core, const struct epf_device_mem *mem)
{
	if (mem->order != EPF_ORDER_NONE)
		return 0;
	for (uint32_t i = 0; i < core->n_gpu_flushes; i++)
		if (core->gpu_flushes[i].flush == mem->flush &&
		    core->gpu_flushes[i].arg == mem->flush_arg)
			return 0;
	if (core->n_gpu_flushes == EPF_MAX_GPU_FLUSHES)
		return epf_fail(EPF_R_GPU_REGION,
				"region: GPU memory of more than %d GPUs that need a flush",
				EPF_MAX_GPU_FLUSHES);
	core->gpu_flushes[core->n_gpu_flushes++] =
		(struct epf_gpu_flush){ mem->flush, mem->flush_arg };
	core->gpu_flushed = core->steps - 1;
	return 0;
}

int epf_core_add_device_region(struct epf_core *core, uint32_t local,
			       const struct epf_device_mem *mem, unsigned access, uint32_t *region)
{
	struct epf_rank_state *r = &core->ranks[local];
	uint32_t keys = core->caps.keys ? core->caps.keys : 1;
	struct epf_region_local *l;
	uint32_t number = 0;
	int rc = check(r, mem);

	if (!rc)
		rc = epf_core_next_region(r, &number);
	if (!rc && (access & EPF_MR_SIGNALS))
		rc = epf_fail(EPF_R_GPU_REGION,
			      "signals: nic %s cannot add to GPU memory, leave them in host memory",
			      core->caps.name);
	if (rc)
		return rc;
	l = &r->regions[number];
	rc = core->ops->region_register_device(core->nic, mem, access, &l->mr);
	if (rc)
		return rc;
	rc = add_flush(core, mem);
	if (rc) {
		core->ops->region_deregister(core->nic, &l->mr);
		return rc;
	}
	for (uint32_t i = keys; i < EPF_NIC_LINKS; i++)
		l->mr.keys[i] = l->mr.keys[i % keys];
	l->addr = mem->addr;
	l->bytes = mem->bytes;
	l->access = access;
	l->device = 1;
	l->state = EPF_REGION_LIVE;
	epf_core_took_region(r, number);
	*region = number;
	return 0;
}
