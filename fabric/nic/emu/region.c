/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The software NIC's table of memory regions. Slow path.
 */
#include "fabric/base/err.h"
#include "fabric/nic/emu/copies.h"
#include "fabric/nic/emu/emu.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_REGIONS = 65535 };

/* A free place in the table of regions; grows it when there is none. */
static int free_region(struct epf_emu *e, uint32_t *out)
{
	struct epf_emu_region *more;
	uint32_t i, count;

	for (i = 0; i < e->nregions && e->regions[i].key; i++)
		;
	if (i == e->nregions) {
		if (i == MAX_REGIONS)
			return epf_fail(EPF_R_NIC_LIMIT, "emu: a NIC has %d regions", MAX_REGIONS);
		count = i ? 2 * i : 8;
		if (count > MAX_REGIONS)
			count = MAX_REGIONS;
		more = realloc(e->regions, count * sizeof(*more));
		if (!more)
			return epf_fail(EPF_R_NO_MEMORY, "emu: a table of %u regions", count);
		memset(more + i, 0, (count - i) * sizeof(*more));
		e->regions = more;
		e->nregions = count;
	}
	*out = i;
	return 0;
}

int epf_emu_region_add(struct epf_emu *e, uint64_t base, uint64_t len, unsigned access,
		       struct epf_nic_mr *out)
{
	uint32_t i = 0;
	int rc;

	if (!base || len == 0 || base + len < base)
		return epf_fail(EPF_R_NIC_REGION, "emu: a region of %llu bytes at %#llx",
				(unsigned long long)len, (unsigned long long)base);
	if (access & ~(unsigned)(EPF_MR_REMOTE_WRITE | EPF_MR_REMOTE_READ))
		return epf_fail(EPF_R_NIC_REGION, "emu: unknown access bits in %#x", access);
	rc = free_region(e, &i);
	if (rc)
		return rc;
	if (++e->region_generation == 0)
		e->region_generation = 1;
	e->regions[i] = (struct epf_emu_region){
		.base = base,
		.len = len,
		.key = (uint32_t)e->region_generation << 16 | i,
		.access = access,
	};
	*out = (struct epf_nic_mr){
		.raddr = base,
		.lkey = e->regions[i].key,
		.rkey = e->regions[i].key,
	};
	return 0;
}
