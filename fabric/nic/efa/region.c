/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory regions of the EFA NIC: host memory, and GPU memory by a dma-buf first, a peer-memory module second, and an error that names
 * what is missing third. Called through epf_nic_ops when a region is registered and withdrawn; slow path.
 */
#include "fabric/nic/efa/efa.h"

#include "fabric/base/err.h"
#include "fabric/gpu/device_mem.h"
#include "fabric/nic/rdma/peer_memory.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int epf_efa_register(struct epf_nic *nic, void *addr, uint64_t len, unsigned access,
		     struct epf_nic_mr *out)
{
	struct epf_efa *v = epf_efa_of(nic);
	uint64_t base = (uint64_t)(uintptr_t)addr;
	struct ibv_mr *mr;
	unsigned flags = 0;
	int rc;

	if (!addr || len == 0 || base + len < base)
		return epf_fail(EPF_R_NIC_REGION, "efa: a region of %llu bytes at %p",
				(unsigned long long)len, addr);
	rc = epf_rdma_access_flags("efa", access, &flags);
	if (rc)
		return rc;
	mr = v->lib->verbs->reg_mr_iova2(v->pd, addr, len, base, flags);
	if (!mr)
		return epf_fail_sys(errno == ENOMEM ? EPF_R_VERBS_PIN : EPF_R_NIC_REGION, errno,
				    "efa: %s: a region of %llu bytes at %p", v->device,
				    (unsigned long long)len, addr);
	return epf_rdma_region_keep("efa", v->lib->verbs, &v->regions, mr, base, out);
}

/* The module that finds pages of GPU memory for this driver, if it is loaded: EFA's own, or one that all devices use. */
static const char *peer_memory(const char *sysfs, uint32_t vendor, const char **want)
{
	const char *module = epf_rdma_peer_memory(sysfs, vendor, want);
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/module/efa_nv_peermem", sysfs);
	if (vendor != 0x1002 && access(path, F_OK) == 0)
		return "efa_nv_peermem";
	if (vendor != 0x1002)
		*want = "efa_nv_peermem or nvidia-peermem";
	return module;
}

int epf_efa_register_gpu(struct epf_nic *nic, const struct epf_device_mem *mem, unsigned access,
			 const char *sysfs, struct epf_nic_mr *out)
{
	struct epf_efa *v = epf_efa_of(nic);
	const struct epf_verbs_lib *verbs = v->lib->verbs;
	const char *want, *module = peer_memory(sysfs, mem->vendor, &want), *first;
	struct ibv_mr *mr = NULL;
	unsigned flags = 0;
	int rc = epf_rdma_access_flags("efa", access, &flags);

	if (rc)
		return rc;
	first = mem->dmabuf_fd < 0      ? "its driver exports no dma-buf"
		: !verbs->reg_dmabuf_mr ? "this libibverbs has no ibv_reg_dmabuf_mr"
					: NULL;
	if (!first) {
		mr = verbs->reg_dmabuf_mr(v->pd, mem->dmabuf_offset, mem->bytes, mem->addr,
					  mem->dmabuf_fd, (int)flags);
		first = mr ? NULL : strerror(errno);
	}
	if (!mr && mem->is_mapped && module)
		mr = verbs->reg_mr_iova2(v->pd, (void *)(uintptr_t)mem->addr, mem->bytes, mem->addr,
					 flags);
	if (mr)
		return epf_rdma_region_keep("efa", verbs, &v->regions, mr, mem->addr, out);
	return epf_fail(EPF_R_GPU_REGION,
			"efa: %s: GPU memory of %llu bytes: by dma-buf: %s; by a module: %s%s",
			v->device, (unsigned long long)mem->bytes, first,
			!mem->is_mapped ? "only in the process that owns it, not in a daemon"
			: module        ? module
					: want,
			!mem->is_mapped ? ""
			: module        ? " did not find it"
					: " is not loaded");
}

int epf_efa_register_device(struct epf_nic *nic, const struct epf_device_mem *mem, unsigned access,
			    struct epf_nic_mr *out)
{
	return epf_efa_register_gpu(nic, mem, access, "/sys", out);
}

void epf_efa_deregister(struct epf_nic *nic, struct epf_nic_mr *mr)
{
	if (!mr)
		return;
	if (mr->priv)
		epf_rdma_region_drop(epf_efa_of(nic)->lib->verbs, mr->priv);
	memset(mr, 0, sizeof(*mr));
}

void epf_efa_drop_regions(struct epf_efa *v)
{
	while (v->regions)
		epf_rdma_region_drop(v->lib->verbs, v->regions);
}
