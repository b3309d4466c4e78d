/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registered regions. The NIC checks local keys and ranges itself, because most providers do not look at them. Remote keys are random, unless the
 * provider chooses them: over a provider that authenticates nobody, a stranger has to guess. Slow path.
 */
#include "fabric/nic/ofi/ofi.h"

#include "fabric/base/err.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_REGIONS = 64, MOST_REGIONS = 65536 };

static int free_region(struct epf_ofi *v, uint32_t *out)
{
	struct epf_ofi_region *more;
	uint32_t i, count;

	for (i = 0; i < v->n_regions && v->regions[i].key; i++)
		;
	if (i == v->n_regions) {
		count = i ? 2 * i : FIRST_REGIONS;
		if (count > MOST_REGIONS)
			return epf_fail(EPF_R_NIC_LIMIT, "ofi: a NIC has %d regions", MOST_REGIONS);
		more = realloc(v->regions, count * sizeof(*more));
		if (!more)
			return epf_fail(EPF_R_NO_MEMORY, "ofi: a table of %u regions", count);
		memset(more + i, 0, (count - i) * sizeof(*more));
		v->regions = more;
		v->n_regions = count;
	}
	*out = i;
	return 0;
}

int epf_ofi_register(struct epf_nic *nic, void *addr, uint64_t len, unsigned access,
		     struct epf_nic_mr *out)
{
	struct epf_ofi *v = epf_ofi_of(nic);
	uint64_t base = (uint64_t)(uintptr_t)addr, flags = FI_WRITE | FI_READ;
	struct epf_ofi_region *r;
	struct fid_mr *mr;
	uint32_t i = 0;
	int rc;

	if (!base || len == 0 || base + len < base)
		return epf_fail(EPF_R_NIC_REGION, "ofi: a region of %llu bytes at %p",
				(unsigned long long)len, addr);
	if (access & ~(unsigned)(EPF_MR_REMOTE_WRITE | EPF_MR_REMOTE_READ))
		return epf_fail(EPF_R_NIC_REGION, "ofi: unknown access bits in %#x", access);
	rc = free_region(v, &i);
	if (rc)
		return rc;
	flags |= access & EPF_MR_REMOTE_WRITE ? FI_REMOTE_WRITE : 0;
	flags |= access & EPF_MR_REMOTE_READ ? FI_REMOTE_READ : 0;
	rc = epf_ofi_mr_make(v, addr, len, flags, &mr);
	if (rc)
		return epf_ofi_call_failed(v, "fi_mr_reg", rc);
	if (fi_mr_key(mr) > UINT32_MAX) {
		fi_close(&mr->fid);
		return epf_fail(EPF_R_OFI_UNFIT, "ofi: %s gives keys of more than 32 bits",
				v->name);
	}
	if (++v->region_generation == 0)
		v->region_generation = 1;
	r = &v->regions[i];
	*r = (struct epf_ofi_region){ .base = base,
				      .len = len,
				      .key = (uint32_t)v->region_generation << 16 | i,
				      .rkey = (uint32_t)fi_mr_key(mr),
				      .desc = fi_mr_desc(mr),
				      .mr = mr };
	*out = (struct epf_nic_mr){ .raddr = v->is_virtual ? base : 0,
				    .lkey = r->key,
				    .rkey = r->rkey };
	return 0;
}

void epf_ofi_deregister(struct epf_nic *nic, struct epf_nic_mr *mr)
{
	struct epf_ofi *v = epf_ofi_of(nic);
	uint32_t i;

	if (!mr)
		return;
	i = mr->lkey & 0xffff;
	if (i < v->n_regions && mr->lkey && v->regions[i].key == mr->lkey) {
		fi_close(&v->regions[i].mr->fid);
		memset(&v->regions[i], 0, sizeof(v->regions[i]));
	}
	memset(mr, 0, sizeof(*mr));
}
