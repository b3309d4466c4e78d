/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libepf: memory of GPUs. Allocation that can be shared with a daemon and with peers of this host, and registration as regions. Slow
 * path; any thread. The driver is loaded with the first of these calls, in this process, and never otherwise.
 */
#define EPF_LOG_COMP "epf"
#include "fabric/base/err.h"
#include "fabric/client/handle.h"
#include "fabric/gpu/copy.h"
#include "fabric/nic/nic.h"

#include <stdlib.h>

/* The driver that the setting gpu-backend names, loaded. */
static int driver_of(const struct epf *ep, const struct epf_copy_ops **out)
{
	const struct epf_copy_ops *ops;
	int rc = epf_copy_ops_find(epf_copy_name(&ep->conf), &ops);

	if (!rc)
		rc = ops->load();
	if (!rc)
		*out = ops;
	return rc;
}

int epf_gpu_alloc(struct epf *ep, int device, uint64_t bytes, void **addr)
{
	const struct epf_copy_ops *ops;
	int rc = driver_of(ep, &ops);

	if (rc)
		return rc;
	if (!bytes || device < 0)
		return epf_fail(EPF_R_GPU_MEMORY, "epf_gpu_alloc: %llu bytes on device %d",
				(unsigned long long)bytes, device);
	return ops->mem_alloc(device, bytes, addr);
}

void epf_gpu_free(struct epf *ep, void *addr)
{
	const struct epf_copy_ops *ops;

	if (addr && driver_of(ep, &ops) == 0)
		ops->mem_free(addr);
}

int epf_gpu_copy(struct epf *ep, void *dst, const void *src, uint64_t bytes)
{
	const struct epf_copy_ops *ops;
	int rc = driver_of(ep, &ops);

	return rc ? rc : ops->copy(dst, src, bytes);
}

/* Under locks.calls. */
static int register_gpu(struct epf *ep, void *addr, uint64_t bytes, unsigned access,
			uint32_t *region)
{
	const struct epf_copy_ops *ops;
	struct epf_copy_mem *mem;
	int rc = driver_of(ep, &ops);

	if (rc)
		return rc;
	if (!addr || !bytes)
		return epf_fail(EPF_R_GPU_MEMORY, "GPU region: address %p, %llu bytes", addr,
				(unsigned long long)bytes);
	rc = epf_copy_mem_wrap(ops, addr, bytes, &mem);
	if (rc)
		return rc;
	rc = ep->be->region_register_gpu(ep, mem, access, region);
	epf_copy_mem_put(mem);
	return rc;
}

int epf_region_register_gpu(struct epf *ep, void *addr, uint64_t bytes, unsigned access,
			    uint32_t *region)
{
	int rc;

	epf_lock_calls(ep);
	rc = register_gpu(ep, addr, bytes, access, region);
	epf_unlock_calls(ep);
	return rc;
}

static uint64_t signals_bytes(const struct epf *ep)
{
	return (uint64_t)ep->n_signals * sizeof(struct epf_signal);
}

/* Under locks.calls. */
static int place_signals(struct epf *ep, enum epf_signals_where where, int device)
{
	uint32_t region;
	void *signals;
	int rc;

	if (where != EPF_SIGNALS_HOST && where != EPF_SIGNALS_GPU)
		return epf_fail(EPF_R_GPU_MEMORY, "epf_signals_place: %d is no place", (int)where);
	if (EPF_LOAD_ACQUIRE(&ep->join_phase) != EPF_JOIN_NONE)
		return epf_fail(EPF_R_JOIN_ORDER, "epf_signals_place: the join has begun");
	if (ep->gpu_signals)
		return epf_fail(EPF_R_JOIN_ORDER, "epf_signals_place: they have their place");
	if (where == EPF_SIGNALS_HOST)
		return 0;
	rc = epf_gpu_alloc(ep, device, signals_bytes(ep), &signals);
	if (rc)
		return rc;
	rc = register_gpu(ep, signals, signals_bytes(ep), EPF_MR_SIGNALS, &region);
	if (rc) {
		epf_gpu_free(ep, signals);
		return rc;
	}
	ep->gpu_signals_device = device;
	EPF_STORE_RELEASE(&ep->gpu_signals, signals);
	return 0;
}

int epf_signals_place(struct epf *ep, enum epf_signals_where where, int device)
{
	int rc;

	epf_lock_calls(ep);
	rc = place_signals(ep, where, device);
	epf_unlock_calls(ep);
	return rc;
}

void epf_gpu_signals_free(struct epf *ep)
{
	epf_gpu_free(ep, ep->gpu_signals);
	ep->gpu_signals = NULL;
}

uint64_t epf_gpu_signal_value(struct epf *ep, uint32_t signal)
{
	const uint8_t *at = ep->gpu_signals;
	uint64_t value = 0;

	if (epf_gpu_copy(ep, &value, at + (uint64_t)signal * sizeof(struct epf_signal),
			 sizeof(value)))
		return 0;
	return value;
}

uint64_t epf_gpu_signals_for_kernels(struct epf *ep)
{
	const struct epf_copy_ops *ops;

	if (driver_of(ep, &ops))
		return 0;
	return ops->mem_for_kernels(ep->gpu_signals, signals_bytes(ep));
}
