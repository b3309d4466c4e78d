/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Regions and rings of the embedded back-end (client/embedded_priv.h), and the lock that keeps threads apart on an engine that has no thread of its
 * own. Called through the back-end's table, under locks.calls.
 */
#define EPF_LOG_COMP "epf"
#include "fabric/base/err.h"
#include "fabric/base/log.h"
#include "fabric/client/embedded_priv.h"
#include "fabric/gpu/copy.h"
#include "fabric/gpu/rdma.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

void epf_engine_lock(struct epf *ep)
{
	__atomic_fetch_add(&ep->engine_wanted, 1u, __ATOMIC_RELAXED);
	pthread_mutex_lock(&ep->locks.engine);
	__atomic_fetch_sub(&ep->engine_wanted, 1u, __ATOMIC_RELAXED);
}

bool epf_engine_try(struct epf *ep)
{
	return !EPF_LOAD_RELAXED(&ep->engine_wanted) &&
	       pthread_mutex_trylock(&ep->locks.engine) == 0;
}

void epf_engine_unlock(struct epf *ep)
{
	pthread_mutex_unlock(&ep->locks.engine);
}

int epf_engine_call(struct epf *ep, int (*fn)(struct epf_core *core, void *arg), void *arg)
{
	int rc;

	epf_engine_lock(ep);
	rc = epf_core_call(ep->core, fn, arg);
	epf_engine_unlock(ep);
	return rc;
}

struct region_args {
	void *addr;
	uint64_t bytes;
	unsigned access;
	uint32_t region;
	uint32_t missing;
};

static int add_region(struct epf_core *core, void *arg)
{
	struct region_args *a = arg;

	return epf_core_add_region(core, LOCAL, a->addr, a->bytes, a->access, &a->region);
}

int epf_embedded_region_register(struct epf *ep, void *addr, uint64_t bytes, unsigned access,
				 uint32_t *region)
{
	struct region_args a = { .addr = addr, .bytes = bytes, .access = access };
	int rc = epf_engine_call(ep, add_region, &a);

	if (!rc)
		*region = a.region;
	return rc;
}

struct gpu_region_args {
	struct epf_copy_mem *mem;
	unsigned access;
	uint32_t region;
};

static int add_gpu_region(struct epf_core *core, void *arg)
{
	struct gpu_region_args *a = arg;

	return epf_core_add_gpu_region(core, LOCAL, a->mem, a->access, &a->region);
}

/* GPU memory for a NIC that has it copied. */
static int register_copied(struct epf *ep, struct epf_copy_mem *mem, unsigned access,
			   uint32_t *region)
{
	struct gpu_region_args a = { .mem = mem, .access = access };
	int rc = epf_engine_call(ep, add_gpu_region, &a);

	if (!rc)
		*region = a.region;
	return rc;
}

struct device_region_args {
	struct epf_device_mem mem;
	unsigned access;
	uint32_t region;
};

static int add_device_region(struct epf_core *core, void *arg)
{
	struct device_region_args *a = arg;

	return epf_core_add_device_region(core, LOCAL, &a->mem, a->access, &a->region);
}

/* GPU memory for an RDMA device, which reaches it by itself. */
static int register_device(struct epf *ep, uint64_t addr, uint64_t bytes, unsigned access,
			   uint32_t *region)
{
	struct device_region_args a = { .access = access };
	const struct epf_gpu_ops *ops;
	int rc = epf_gpu_backend(epf_copy_gpu_name(&ep->conf), &ops);

	if (!rc)
		rc = epf_device_gpu_mem(&ep->device_gpus, ops, addr, bytes, &a.mem);
	if (rc)
		return rc;
	rc = epf_engine_call(ep, add_device_region, &a);
	if (a.mem.dmabuf_fd >= 0)
		close(a.mem.dmabuf_fd);
	if (!rc)
		*region = a.region;
	return rc;
}

int epf_embedded_region_register_gpu(struct epf *ep, struct epf_copy_mem *mem, unsigned access,
				     uint32_t *region)
{
	if (!epf_conf_nic_copies(ep->conf.nic))
		return register_device(ep, mem->addr, mem->bytes, access, region);
	return register_copied(ep, mem, access, region);
}

static int withdraw_begin(struct epf_core *core, void *arg)
{
	return epf_core_revoke_begin(core, LOCAL, *(uint32_t *)arg);
}

int epf_embedded_region_withdraw(struct epf *ep, uint32_t region)
{
	return epf_engine_call(ep, withdraw_begin, &region);
}

static int withdraw_poll(struct epf_core *core, void *arg)
{
	struct region_args *a = arg;

	return epf_core_revoke_done(core, LOCAL, a->region, &a->missing);
}

int epf_embedded_region_withdrawn(struct epf *ep, uint32_t region, uint32_t *missing)
{
	struct region_args a = { .region = region, .missing = EPF_NONE };
	int rc = epf_engine_call(ep, withdraw_poll, &a);

	*missing = a.missing;
	return rc;
}

struct reuse_args {
	uint32_t own, rank, region;
};

static int reuse(struct epf_core *core, void *arg)
{
	struct reuse_args *a = arg;

	return a->rank == a->own ? epf_core_free_region(core, LOCAL, a->region)
				 : epf_core_forget_region(core, a->rank, a->region);
}

int epf_embedded_region_reuse(struct epf *ep, uint32_t rank, uint32_t region)
{
	struct reuse_args a = { ep->rank, rank, region };

	return epf_engine_call(ep, reuse, &a);
}

struct ring_args {
	struct epf_ring_shm *shm;
	unsigned log2, weight;
	uint64_t start;
	uint32_t id;
};

static int add_ring(struct epf_core *core, void *arg)
{
	struct ring_args *a = arg;

	return epf_core_add_ring(core, LOCAL, a->shm, a->log2, a->weight, a->start, &a->id);
}

int epf_embedded_ring_open(struct epf *ep, struct epf_ring *ring, unsigned log2, unsigned weight,
			   uint64_t start)
{
	struct ring_args a = { .log2 = log2, .weight = weight, .start = start };
	int rc;

	ring->bytes = epf_ring_bytes(log2);
	a.shm = mmap(NULL, ring->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (a.shm == MAP_FAILED)
		return epf_fail(EPF_R_NO_MEMORY, "ring: no memory for %u slots", 1u << log2);
	epf_ring_format(a.shm, log2, 0, ep->rank);
	epf_ring_reset(a.shm, start);
	rc = epf_engine_call(ep, add_ring, &a);
	if (rc) {
		munmap(a.shm, ring->bytes);
		return rc;
	}
	ring->shm = a.shm;
	ring->id = a.id;
	EPF_STORE_RELAXED(&ring->shm->ring_id, a.id); /* the core's watch may look already */
	return 0;
}

static int close_ring(struct epf_core *core, void *arg)
{
	epf_core_close_ring(core, *(uint32_t *)arg);
	return 0;
}

static int ring_drained(struct epf_core *core, void *arg)
{
	return epf_core_ring_drained(core, *(uint32_t *)arg);
}

/* Unmaps the memory of closed rings that the core has let go of. */
static void sweep_rings(struct epf *ep)
{
	struct epf_ring_memory **link = &ep->undrained;

	while (*link) {
		struct epf_ring_memory *m = *link;

		if (epf_engine_call(ep, ring_drained, &m->id) != 1) {
			link = &m->next;
			continue;
		}
		*link = m->next;
		munmap(m->shm, m->bytes);
		free(m);
	}
}

void epf_embedded_ring_close(struct epf_ring *ring)
{
	struct epf *ep = ring->ep;
	struct epf_ring_memory *m;

	epf_engine_call(ep, close_ring, &ring->id);
	m = malloc(sizeof(*m));
	if (!m) {
		/* The mapping stays for good: better than memory pulled away under the core. */
		epf_warn("ring %u: no memory to note its end, its pages are kept", ring->id);
		return;
	}
	*m = (struct epf_ring_memory){ ep->undrained, ring->shm, ring->bytes, ring->id };
	ep->undrained = m;
	sweep_rings(ep);
}
