/* SPDX-License-Identifier: Apache-2.0 */
/* Small things that the verbs and the EFA NIC both do when they open and register. nic: "verbs" or "efa", for errors. Return 0, or -errno with epf_last_error(). */
#ifndef EPF_FABRIC_NIC_RDMA_COMMON_H
#define EPF_FABRIC_NIC_RDMA_COMMON_H

#include "fabric/nic/nic.h"
#include "fabric/nic/rdma/lib.h"

#include <stdint.h>

/* A registered region; epf_nic_mr.priv. */
struct epf_rdma_region {
	struct ibv_mr *mr;
	struct epf_rdma_region *next, **link; /* link: what points here */
};

int epf_rdma_set_nonblocking(const char *nic, int fd);

/* EPF_MR_* as IBV_ACCESS_*. */
int epf_rdma_access_flags(const char *nic, unsigned access, unsigned *flags);

/* Keeps a registration in a NIC's list until it is dropped; without memory it ends at once. */
int epf_rdma_region_keep(const char *nic, const struct epf_verbs_lib *lib,
			 struct epf_rdma_region **list, struct ibv_mr *mr, uint64_t base,
			 struct epf_nic_mr *out);
void epf_rdma_region_drop(const struct epf_verbs_lib *lib, struct epf_rdma_region *region);

#endif
