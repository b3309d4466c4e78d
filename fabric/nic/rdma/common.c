/* SPDX-License-Identifier: Apache-2.0 */
/* See common.h. */
#include "fabric/nic/rdma/common.h"

#include "fabric/base/err.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

int epf_rdma_set_nonblocking(const char *nic, int fd)
{
	int flags = fcntl(fd, F_GETFL);

	if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
		return epf_fail_sys(EPF_R_SYSTEM, errno, "%s: fcntl", nic);
	return 0;
}

int epf_rdma_access_flags(const char *nic, unsigned access, unsigned *flags)
{
	if (access & ~(unsigned)(EPF_MR_REMOTE_WRITE | EPF_MR_REMOTE_READ))
		return epf_fail(EPF_R_NIC_REGION, "%s: unknown access bits in %#x", nic, access);
	*flags = IBV_ACCESS_LOCAL_WRITE;
	if (access & EPF_MR_REMOTE_WRITE)
		*flags |= IBV_ACCESS_REMOTE_WRITE;
	if (access & EPF_MR_REMOTE_READ)
		*flags |= IBV_ACCESS_REMOTE_READ;
	return 0;
}

int epf_rdma_region_keep(const char *nic, const struct epf_verbs_lib *lib,
			 struct epf_rdma_region **list, struct ibv_mr *mr, uint64_t base,
			 struct epf_nic_mr *out)
{
	struct epf_rdma_region *region = calloc(1, sizeof(*region));

	if (!region) {
		lib->dereg_mr(mr);
		return epf_fail(EPF_R_NO_MEMORY, "%s: a region", nic);
	}
	region->mr = mr;
	region->next = *list;
	region->link = list;
	if (region->next)
		region->next->link = &region->next;
	*list = region;
	*out = (struct epf_nic_mr){
		.raddr = base, .lkey = mr->lkey, .rkey = mr->rkey, .priv = region
	};
	return 0;
}

void epf_rdma_region_drop(const struct epf_verbs_lib *lib, struct epf_rdma_region *region)
{
	lib->dereg_mr(region->mr);
	*region->link = region->next;
	if (region->next)
		region->next->link = region->link;
	free(region);
}
