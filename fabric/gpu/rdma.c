/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Questions to a GPU's driver for RDMA (rdma.h). A driver that exports no dma-buf is no failure here: the NIC then looks for a
 * peer-memory module, and says what is missing.
 */
#define EPF_LOG_COMP "gpu"
#include "fabric/gpu/rdma.h"

#include "fabric/base/err.h"
#include "fabric/base/log.h"

#include <stdlib.h>
#include <string.h>

enum { NVIDIA = 0x10de, AMD = 0x1002 };

struct epf_device_gpu {
	struct epf_device_gpu *next;
	const struct epf_gpu_ops *ops;
	struct epf_gpu_dev *dev;
	struct epf_gpu_props props;
	int index; /* -1: whichever the driver gave first, for asking what an address is */
};

static int open_gpu(struct epf_device_gpu **gpus, const struct epf_gpu_ops *ops, int index,
		    struct epf_device_gpu **out)
{
	struct epf_device_gpu *g;
	int rc;

	for (g = *gpus; g; g = g->next)
		if (g->index == index && g->ops == ops) {
			*out = g;
			return 0;
		}
	g = calloc(1, sizeof(*g));
	if (!g)
		return epf_fail(EPF_R_NO_MEMORY, "GPU region: a device");
	g->ops = ops;
	g->index = index;
	rc = ops->open(index, &g->dev);
	if (!rc)
		rc = ops->describe(g->dev, &g->props);
	if (rc) {
		if (g->dev)
			ops->close(g->dev);
		free(g);
		return rc;
	}
	g->next = *gpus;
	*gpus = *out = g;
	return 0;
}

static void flush(void *arg)
{
	struct epf_device_gpu *g = arg;

	if (g->ops->flush_writes(g->dev))
		epf_warn_ratelimited("GPU %d: its writes cannot be flushed: %s", g->index,
				     epf_last_error());
}

static uint32_t vendor_of(const struct epf_gpu_ops *ops)
{
	return strcmp(ops->name, "cuda") == 0 ? NVIDIA : strcmp(ops->name, "hip") == 0 ? AMD : 0;
}

int epf_device_gpu_mem(struct epf_device_gpu **gpus, const struct epf_gpu_ops *ops, uint64_t addr,
		       uint64_t bytes, struct epf_device_mem *out)
{
	struct epf_gpu_place place = { .where = EPF_GPU_HOST };
	struct epf_device_gpu *g;
	int rc = open_gpu(gpus, ops, -1, &g);

	if (!rc)
		rc = ops->mem_place(g->dev, addr, &place);
	if (rc)
		return rc;
	if (place.where != EPF_GPU_DEVICE || addr - place.base > place.bytes ||
	    bytes > place.bytes - (addr - place.base))
		return epf_fail(
			EPF_R_GPU_REGION,
			"GPU region: %llu bytes at %#llx are not inside one allocation of a GPU",
			(unsigned long long)bytes, (unsigned long long)addr);
	rc = open_gpu(gpus, ops, place.device, &g);
	if (rc)
		return rc;
	*out = (struct epf_device_mem){ .addr = addr,
					.bytes = bytes,
					.dmabuf_fd = -1,
					.is_mapped = true,
					.vendor = vendor_of(ops),
					.order = (enum epf_write_order)g->props.write_order,
					.flush = g->props.has_flush ? flush : NULL,
					.flush_arg = g };
	if (g->props.has_dmabuf &&
	    ops->mem_dmabuf(g->dev, addr, bytes, &out->dmabuf_fd, &out->dmabuf_offset))
		out->dmabuf_fd = -1;
	return 0;
}

void epf_device_gpu_close(struct epf_device_gpu *gpus)
{
	while (gpus) {
		struct epf_device_gpu *g = gpus;

		gpus = g->next;
		g->ops->close(g->dev);
		free(g);
	}
}

_Static_assert((int)EPF_ORDER_NONE == (int)EPF_GPU_ORDER_NONE &&
		       (int)EPF_ORDER_OWNER == (int)EPF_GPU_ORDER_OWNER &&
		       (int)EPF_ORDER_ALL == (int)EPF_GPU_ORDER_ALL,
	       "the driver's words are the engine's");
