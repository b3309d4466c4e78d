/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPU memory of clients. The daemon gets a name of it and passes that to the job's NIC: for the emulated one it is mapped by its copier, on
 * that thread, so that neither the control thread nor an engine waits for a driver; for RDMA devices it is a dma-buf, which they register by its
 * descriptor. So a daemon never loads a GPU's driver for RDMA, and cannot flush a GPU's writes either.
 * Called on the control thread. It must never touch the memory.
 */
#include "fabric/client/epf.h"
#include "fabric/engine/limits.h"
#include "fabric/gpu/copy.h"
#include "fabric/service/service_priv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

#ifndef DMA_BUF_MAGIC
# define DMA_BUF_MAGIC 0x444d4142 /* linux/magic.h since 5.3 */
#endif

/* A dma-buf is a file of a separate file system, and its end is its size (linux/Documentation/driver-api/dma-buf.rst). */
static int dmabuf_bytes(int fd, uint64_t *bytes)
{
	struct statfs fs;
	off_t end;

	if (fstatfs(fd, &fs) || (uint32_t)fs.f_type != DMA_BUF_MAGIC)
		return -EINVAL;
	end = lseek(fd, 0, SEEK_END);
	if (end < 0)
		return -EINVAL;
	*bytes = (uint64_t)end;
	return 0;
}

int (*svc_dmabuf_bytes)(int fd, uint64_t *bytes) = dmabuf_bytes;

static uint64_t get_le(const uint8_t *at, unsigned bytes)
{
	uint64_t value = 0;

	for (unsigned i = 0; i < bytes; i++)
		value |= (uint64_t)at[i] << 8 * i;
	return value;
}

/* What the client says of a dma-buf, and what the descriptor says. The address is only a name that its own commands and its peers use. */
static int take_dmabuf(const struct epf_svc_gpu_region *g, int fd, struct epf_device_mem **out)
{
	struct epf_device_mem mem = { .addr = get_le(g->ipc, 8),
				      .bytes = g->bytes,
				      .dmabuf_offset = g->offset,
				      .order = (enum epf_write_order)get_le(g->ipc + 8, 4),
				      .vendor = (uint32_t)get_le(g->ipc + 12, 4) };
	uint64_t whole = 0;

	if (svc_dmabuf_bytes(fd, &whole))
		return epf_fail(EPF_R_SVC_MEMORY, "GPU region: the descriptor is no dma-buf");
	if (!g->bytes || g->offset > whole || g->bytes > whole - g->offset || !mem.addr ||
	    mem.addr + g->bytes < mem.addr)
		return epf_fail(
			EPF_R_SVC_MEMORY,
			"GPU region: %llu bytes at offset %llu reach beyond the dma-buf's %llu, or "
			"%#llx is no address for them",
			(unsigned long long)g->bytes, (unsigned long long)g->offset,
			(unsigned long long)whole, (unsigned long long)mem.addr);
	if (mem.order != EPF_ORDER_OWNER && mem.order != EPF_ORDER_ALL)
		return epf_fail(
			EPF_R_GPU_REGION,
			"GPU region: the GPU promises no order of a NIC's writes, and a daemon "
			"cannot call its driver's flush for them: use an engine of the rank's own");
	mem.dmabuf_fd = dup(fd);
	*out = mem.dmabuf_fd < 0 ? NULL : malloc(sizeof(mem));
	if (!*out) {
		if (mem.dmabuf_fd >= 0)
			close(mem.dmabuf_fd);
		return epf_fail(EPF_R_NO_MEMORY, "GPU region: no descriptor or no memory for it");
	}
	**out = mem;
	return 0;
}

/* What a NIC's copier maps, or what an RDMA device registers: the daemon's NIC decides. */
static int take_memory(const struct epf_svc *s, const struct epf_svc_gpu_region *g, int fd,
		       struct svc_region *r)
{
	struct epf_copy_handle h = {
		.kind = g->kind, .fd = fd, .bytes = g->whole, .offset = g->offset
	};
	const struct epf_copy_ops *ops;
	int rc, copies = epf_conf_nic_copies(s->conf->nic);

	if (copies == (g->kind == EPF_SVC_GPU_DMABUF))
		return epf_fail(EPF_R_GPU_REGION,
				"GPU region: the NIC of this daemon, %s, takes GPU memory as %s",
				epf_limits_nic(s->conf),
				copies ? "a handle of the GPU's driver" : "a dma-buf");
	if (!copies)
		return take_dmabuf(g, fd, &r->device);
	memcpy(h.ipc, g->ipc, sizeof(h.ipc));
	memcpy(h.pci, g->pci, sizeof(h.pci));
	rc = epf_copy_ops_find(epf_copy_name(s->conf), &ops);
	return rc ? rc : epf_copy_mem_adopt(ops, &h, g->bytes, &r->gpu);
}

static void give_memory(struct svc_region *r)
{
	if (r->gpu)
		epf_copy_mem_put(r->gpu);
	svc_device_free(r->device);
}

/* A region that is to hold its rank's signals: one, before the rank is attached, and large enough. */
static int check_signals(const struct svc_member *m, const struct epf_svc_gpu_region *g)
{
	uint32_t before = 0;

	for (uint32_t i = 0; i < m->n_regions; i++)
		before |= m->regions[i].access & EPF_MR_SIGNALS;
	if (g->kind == EPF_SVC_GPU_DMABUF)
		return epf_fail(
			EPF_R_GPU_REGION,
			"signals: an RDMA device cannot add to GPU memory, leave them in host memory");
	if (before || !m->signals || g->bytes / sizeof(struct epf_signal) < m->n_signals)
		return epf_fail(EPF_R_SVC_MESSAGE,
				"GPU_REGION: %llu bytes for %u signals, which have %s place",
				(unsigned long long)g->bytes, m->n_signals, before ? "a" : "no");
	return 0;
}

int svc_member_gpu_region(struct epf_svc *s, struct svc_session *c, const union svc_message *msg,
			  struct svc_answer *a)
{
	const struct epf_svc_gpu_region *g = &msg->gpu_region;
	struct svc_region r = { .bytes = g->bytes, .access = g->access, .state = SVC_REGION_LIVE };
	struct svc_member *m;
	int rc = svc_member_may_register(s, c, g->access, &m);

	if (!rc && (g->access & EPF_MR_SIGNALS))
		rc = check_signals(m, g);
	if (!rc)
		rc = take_memory(s, g, c->in.fds[0], &r);
	if (rc)
		return rc;
	rc = svc_member_take(s, m, g->bytes);
	if (rc) {
		give_memory(&r);
		return rc;
	}
	r.addr = (void *)(uintptr_t)(r.gpu ? r.gpu->addr : r.device->addr);
	rc = svc_member_add(m, &r);
	if (rc) {
		svc_member_give(m, g->bytes);
		give_memory(&r);
		return rc;
	}
	a->region.region = m->n_regions - 1;
	return 0;
}
