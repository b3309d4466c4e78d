/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory regions of the verbs NIC (region.h). A dma-buf needs nothing but the driver that exported it and a kernel from 5.12 on; a
 * peer-memory module finds the pages of an address itself, but only of the process that has it mapped.
 */
#include "fabric/nic/verbs/region.h"

#include "fabric/base/err.h"
#include "fabric/nic/rdma/peer_memory.h"

#include <errno.h>
#include <string.h>

static int is_refused(int err)
{
	return err == EINVAL || err == EOPNOTSUPP;
}

struct ibv_mr *epf_verbs_register_host(struct epf_verbs *v, void *addr, uint64_t len,
				       unsigned flags)
{
	struct ibv_mr *mr = NULL;

	if (v->opts.relaxed_ordering)
		mr = v->lib->reg_mr_iova2(v->pd, addr, len, (uintptr_t)addr,
					  flags | IBV_ACCESS_RELAXED_ORDERING);
	if (!mr && (!v->opts.relaxed_ordering || is_refused(errno)))
		mr = v->lib->reg_mr_iova2(v->pd, addr, len, (uintptr_t)addr, flags);
	return mr;
}

static struct ibv_mr *by_dmabuf(struct epf_verbs *v, const struct epf_device_mem *mem,
				unsigned flags)
{
	struct ibv_mr *mr = NULL;

	errno = EOPNOTSUPP;
	if (!v->lib->reg_dmabuf_mr || mem->dmabuf_fd < 0)
		return NULL;
	if (v->opts.relaxed_ordering)
		mr = v->lib->reg_dmabuf_mr(v->pd, mem->dmabuf_offset, mem->bytes, mem->addr,
					   mem->dmabuf_fd,
					   (int)(flags | IBV_ACCESS_RELAXED_ORDERING));
	if (!mr && (!v->opts.relaxed_ordering || is_refused(errno)))
		mr = v->lib->reg_dmabuf_mr(v->pd, mem->dmabuf_offset, mem->bytes, mem->addr,
					   mem->dmabuf_fd, (int)flags);
	return mr;
}

/* Why no way was open, as one line. */
static int no_way(const struct epf_verbs *v, const struct epf_device_mem *mem, int dmabuf_err,
		  const char *module, const char *want, int peer_err)
{
	const char *first = mem->dmabuf_fd < 0       ? "its driver exports no dma-buf"
			    : !v->lib->reg_dmabuf_mr ? "this libibverbs has no ibv_reg_dmabuf_mr"
						     : strerror(dmabuf_err);

	if (!mem->is_mapped)
		return epf_fail(
			EPF_R_GPU_REGION,
			"verbs: %s: GPU memory of %llu bytes: by dma-buf: %s; by a peer-memory "
			"module: only in the process that owns it, not in a daemon",
			v->device, (unsigned long long)mem->bytes, first);
	if (!module)
		return epf_fail(
			EPF_R_GPU_REGION,
			"verbs: %s: GPU memory of %llu bytes: by dma-buf: %s; the module %s is "
			"not loaded",
			v->device, (unsigned long long)mem->bytes, first, want);
	return epf_fail(EPF_R_GPU_REGION,
			"verbs: %s: GPU memory of %llu bytes: by dma-buf: %s; by %s: %s", v->device,
			(unsigned long long)mem->bytes, first, module, strerror(peer_err));
}

int epf_verbs_register_gpu(struct epf_verbs *v, const struct epf_device_mem *mem, unsigned flags,
			   const char *sysfs, struct ibv_mr **out)
{
	const char *want, *module = epf_rdma_peer_memory(sysfs, mem->vendor, &want);
	struct ibv_mr *mr = by_dmabuf(v, mem, flags);
	int dmabuf_err = errno, peer_err = 0;

	if (!mr && mem->is_mapped && module) {
		mr = epf_verbs_register_host(v, (void *)(uintptr_t)mem->addr, mem->bytes, flags);
		peer_err = errno;
	}
	if (!mr)
		return no_way(v, mem, dmabuf_err, module, want, peer_err);
	*out = mr;
	return 0;
}
