/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registers regions of local ranks with the NIC, numbered consecutively. revoke.c withdraws them. Slow path.
 */
#include "fabric/engine/core_priv.h"
#include "fabric/gpu/copy.h"

/* A region's keys as many as a node has lanes, so that a lane finds its own by its index. */
int epf_core_register(struct epf_core *core, void *addr, struct epf_copy_mem *gpu, uint64_t bytes,
		      unsigned access, struct epf_nic_mr *mr)
{
	uint32_t keys = core->caps.keys ? core->caps.keys : 1;
	int rc = gpu ? core->ops->region_register_gpu(core->nic, gpu, access, mr)
		     : core->ops->region_register(core->nic, addr, bytes, access, mr);

	for (uint32_t i = keys; !rc && i < EPF_NIC_LINKS; i++)
		mr->keys[i] = mr->keys[i % keys];
	return rc;
}

int epf_core_next_region(const struct epf_rank_state *r, uint32_t *region)
{
	*region = r->n_regions;
	for (uint32_t i = 0; r->free_regions && i < r->n_regions; i++)
		if (r->regions[i].state == EPF_REGION_FREE) {
			*region = i;
			return 0;
		}
	return *region == r->max_regions
		       ? epf_fail(EPF_R_REGION_LIMIT, "regions: all %u are in use", r->max_regions)
		       : 0;
}

void epf_core_took_region(struct epf_rank_state *r, uint32_t region)
{
	if (region == r->n_regions)
		r->n_regions++;
	else
		r->free_regions--;
}

/* Returns 0 if the signals of a rank may lie in this region. */
static int check_signals(const struct epf_rank_state *r, const struct epf_copy_mem *gpu,
			 uint64_t bytes)
{
	if (!gpu || r->signal_region != EPF_NONE ||
	    bytes / sizeof(struct epf_signal) < r->n_signals)
		return epf_fail(EPF_R_REGION_BAD,
				"region: %llu bytes of %s memory for %u signals of rank %u%s",
				(unsigned long long)bytes, gpu ? "GPU" : "host", r->n_signals,
				r->rank,
				r->signal_region != EPF_NONE ? ", which have a place" : "");
	return 0;
}

/* A region of host memory at addr, or of GPU memory. */
static int add_region(struct epf_core *core, uint32_t local, void *addr, struct epf_copy_mem *gpu,
		      uint64_t bytes, unsigned access, uint32_t *region)
{
	struct epf_rank_state *r = &core->ranks[local];
	struct epf_region_local *l;
	uint32_t number;
	int rc;

	if (r->life != EPF_RANK_LIVE)
		return epf_fail(EPF_R_RANK_DIED, "rank %u: has gone", r->rank);
	rc = epf_core_next_region(r, &number);
	if (rc)
		return rc;
	if (!addr || !bytes || bytes > EPF_WIDE_REGION_BYTES)
		return epf_fail(EPF_R_REGION_BAD, "region: address %p, %llu bytes", addr,
				(unsigned long long)bytes);
	rc = access & EPF_MR_SIGNALS ? check_signals(r, gpu, bytes) : 0;
	if (rc)
		return rc;
	l = &r->regions[number];
	rc = epf_core_register(core, addr, gpu, bytes, access & ~(unsigned)EPF_MR_SIGNALS, &l->mr);
	if (rc)
		return rc;
	if (access & EPF_MR_SIGNALS)
		r->signal_region = number;
	l->addr = (uint64_t)(uintptr_t)addr;
	l->bytes = bytes;
	l->access = access & ~(unsigned)EPF_MR_SIGNALS;
	l->device = gpu != NULL;
	l->state = EPF_REGION_LIVE;
	epf_core_took_region(r, number);
	*region = number;
	return 0;
}

int epf_core_add_region(struct epf_core *core, uint32_t local, void *addr, uint64_t bytes,
			unsigned access, uint32_t *region)
{
	return add_region(core, local, addr, NULL, bytes, access, region);
}

int epf_core_add_gpu_region(struct epf_core *core, uint32_t local, struct epf_copy_mem *mem,
			    unsigned access, uint32_t *region)
{
	return add_region(core, local, (void *)(uintptr_t)mem->addr, mem, mem->bytes, access,
			  region);
}
