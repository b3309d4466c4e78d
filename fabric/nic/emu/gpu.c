/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPU memory and the emulated NIC, the slow side: regions, the table of them that peers read, joining and leaving the copier. Called
 * through epf_nic_ops and by lane.c and nic.c. Only here does the NIC wait for copies, and only with a limit.
 */
#define EPF_LOG_COMP "emu"
#include "fabric/base/clock.h"
#include "fabric/base/conf.h"
#include "fabric/base/err.h"
#include "fabric/base/log.h"
#include "fabric/nic/emu/copies.h"
#include "fabric/nic/emu/emu.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

/* Copies are finite: what is not back after this time never comes. */
static const uint64_t QUIESCE_NS = 5000000000ull;

/* [own context] */
static const char *const copy_names[2][5] = {
	{ [EPF_CONF_GPU_AUTO] = "auto",
	  [EPF_CONF_GPU_CUDA] = "cuda",
	  [EPF_CONF_GPU_HIP] = "hip",
	  [EPF_CONF_GPU_FAKE] = "fake",
	  [EPF_CONF_GPU_NONE] = "none" },
	{ [EPF_CONF_GPU_AUTO] = "auto/own",
	  [EPF_CONF_GPU_CUDA] = "cuda/own",
	  [EPF_CONF_GPU_HIP] = "hip/own",
	  [EPF_CONF_GPU_FAKE] = "fake/own",
	  [EPF_CONF_GPU_NONE] = "none" },
};

const char *epf_copy_gpu_name(const struct epf_conf *conf)
{
	return copy_names[0][conf->gpu_backend];
}

const char *epf_copy_name(const struct epf_conf *conf)
{
	return copy_names[conf->gpu_own_context][conf->gpu_backend];
}

/* Joins the copier, with all its records free. */
static int attach(struct epf_emu *e)
{
	const struct epf_copy_ops *ops;
	int rc;

	if (e->copier)
		return 0;
	rc = epf_copy_ops_find(e->opts.gpu, &ops);
	if (!rc && !e->copies)
		e->copies = calloc(EPF_EMU_COPIES, sizeof(*e->copies));
	if (!rc && !e->copies)
		rc = epf_fail(EPF_R_NO_MEMORY, "emu: GPU copies");
	if (!rc)
		rc = epf_emu_copier_open(ops, e->opts.gpu_kernel, &e->seg->hdr->wakeup, &e->copier);
	if (rc)
		return rc;
	for (uint32_t i = 0; i < EPF_EMU_COPIES; i++)
		e->copies[i].next = i + 1 < EPF_EMU_COPIES ? i + 2 : 0;
	e->copy_free = 1;
	e->copier_state = EPF_EMU_COPIER_READY;
	return 0;
}

void epf_emu_copier_attach(struct epf_emu *e)
{
	if (attach(e) == 0)
		return;
	epf_err("GPU memory of a peer cannot be copied here: %s", epf_last_error());
	e->copier_state = EPF_EMU_COPIER_FAILED;
}

void epf_emu_copier_detach(struct epf_emu *e)
{
	if (e->copier && !epf_emu_copies_quiesce(e, EPF_EMU_NO_LANE)) {
		epf_warn("emu: the GPU does not finish its copies; their memory is kept");
		return; /* the copier still writes to it */
	}
	epf_emu_copier_close(e->copier);
	free(e->copies);
	e->copier = NULL;
	e->copies = NULL;
}

bool epf_emu_copies_quiesce(struct epf_emu *e, uint16_t lane)
{
	uint64_t deadline = 0;

	while (lane == EPF_EMU_NO_LANE ? e->copies_count : e->lanes[lane].copies) {
		if (!deadline)
			deadline = epf_now_ns() + QUIESCE_NS;
		else if (epf_now_ns() > deadline)
			return false;
		if (epf_emu_copier_sleeps())
			epf_emu_copier_ring();
		epf_emu_copies_reap(e);
		sched_yield();
	}
	return true;
}

/* Waits until no copy of another NIC of this process reads a region that was disowned; false: the GPU does not answer. */
static bool wait_for_readers(const struct epf_emu *e, uint32_t key)
{
	uint64_t deadline = epf_now_ns() + QUIESCE_NS;

	while (epf_emu_copier_may_read(e->seg->nonce, key)) {
		if (epf_now_ns() > deadline)
			return false;
		if (epf_emu_copier_sleeps())
			epf_emu_copier_ring();
		sched_yield();
	}
	return true;
}

/* Publishes a region to the peers; writes the key last [C3]. */
static void tell(struct epf_emu *e, const struct epf_emu_region *r, const struct epf_copy_mem *mem)
{
	struct epf_emu_gpu_region fresh = { .kind = mem->handle.kind,
					    .fd = mem->handle.fd,
					    .base = r->base,
					    .len = r->len,
					    .bytes = mem->handle.bytes,
					    .offset = mem->handle.offset };
	struct epf_emu_gpu_region *g = &e->seg->gpu[r->key & 0xffff];
	const uint32_t *from = (const uint32_t *)&fresh + 1;
	uint32_t *to = (uint32_t *)g + 1;

	memcpy(fresh.ipc, mem->handle.ipc, sizeof(fresh.ipc));
	memcpy(fresh.pci, mem->handle.pci, sizeof(fresh.pci));
	__atomic_thread_fence(__ATOMIC_RELEASE); /* behind the key of the last one, which is 0 */
	for (unsigned i = 0; i < EPF_EMU_GPU_WORDS; i++)
		__atomic_store_n(&to[i], from[i], __ATOMIC_RELAXED);
	__atomic_store_n(&g->key, r->key, __ATOMIC_RELEASE); /* C3 */
}

int epf_emu_register_gpu(struct epf_nic *nic, struct epf_copy_mem *mem, unsigned access,
			 struct epf_nic_mr *out)
{
	struct epf_emu *e = epf_emu_of(nic);
	struct epf_emu_region *r;
	struct epf_nic_mr mr;
	int rc = attach(e);

	if (rc)
		return rc;
	if (mem->ops != e->copier->ops)
		return epf_fail(EPF_R_GPU_MEMORY, "emu: memory of %s, but gpu-backend is %s",
				mem->ops->name, e->copier->ops->name);
	rc = epf_emu_region_add(e, mem->addr, mem->bytes, access, &mr);
	if (rc)
		return rc;
	r = &e->regions[mr.rkey & 0xffff];
	if ((mr.rkey & 0xffff) >= EPF_EMU_GPU_REGIONS)
		rc = epf_fail(EPF_R_NIC_LIMIT,
			      "emu: region %u is GPU memory, but only the first %d of a NIC can be",
			      mr.rkey & 0xffff, EPF_EMU_GPU_REGIONS);
	else
		rc = epf_emu_copier_own(e->seg->nonce, mr.rkey, mem);
	if (rc) {
		memset(r, 0, sizeof(*r));
		return rc;
	}
	epf_copy_mem_get(mem);
	r->mem = mem;
	tell(e, r, mem);
	*out = mr;
	return 0;
}

void epf_emu_deregister_gpu(struct epf_emu *e, uint32_t index)
{
	struct epf_emu_region *r = &e->regions[index];
	uint32_t key = r->key;

	/* Work requests that come now find neither key; those under way end before the memory is let go. */
	__atomic_store_n(&e->seg->gpu[index].key, 0, __ATOMIC_RELEASE); /* C3 */
	r->key = 0;
	if (!epf_emu_copies_quiesce(e, EPF_EMU_NO_LANE)) {
		epf_warn("emu: the GPU does not finish its copies; a region of it is kept");
		return;
	}
	epf_emu_copier_disown(e->seg->nonce, key);
	/* What the copier has mapped itself it keeps; other memory is its owner's to free, now. */
	if (!r->mem->reserved && !wait_for_readers(e, key))
		epf_warn(
			"emu: the GPU does not finish the copies that another NIC of this process makes out of a region: its memory must not be freed");
	epf_copy_mem_put(r->mem);
}
