/* SPDX-License-Identifier: Apache-2.0 */
/* GPU memory of endpoints: finding its holder, naming it for peers on this machine, mapping theirs, and lanes (gpu.h). Slow path. */
#define EPF_LOG_COMP "p2p"
#include "fabric/p2p/gpu.h"

#include "fabric/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096 };

/* Loads the driver. */
static int driver(struct epf_p2p *ep, const struct epf_copy_ops **out)
{
	const struct epf_copy_ops *ops;
	int rc = epf_copy_ops_find(epf_copy_name(&ep->conf), &ops);

	if (!rc)
		rc = ops->load();
	if (!rc)
		*out = ops;
	return rc;
}

int epf_p2p_gpu_find(struct epf_p2p *ep, void *addr, uint64_t bytes, int device, int *out,
		     struct epf_copy_handle **handle)
{
	const struct epf_copy_ops *ops;
	struct epf_copy_handle h;
	int holder = EPF_P2P_HOST, rc;

	*out = EPF_P2P_HOST;
	*handle = NULL;
	if (device == EPF_P2P_HOST ||
	    (device == EPF_P2P_AUTO && !epf_copy_may_have(epf_copy_gpu_name(&ep->conf))))
		return 0;
	rc = driver(ep, &ops);
	if (!rc)
		rc = ops->mem_place(addr, bytes, &holder);
	if (rc < 0)
		return rc;
	if (device != EPF_P2P_AUTO && holder != device)
		return epf_fail(EPF_R_P2P_ARGUMENT,
				rc ? "register: memory of GPU %d at %p, but it is GPU %d's"
				   : "register: memory of GPU %d at %p, but it is host memory",
				device, addr, holder);
	if (!rc)
		return 0;
	*out = holder;
	/* Memory without a name still serves over NICs, and in this endpoint's own transfers. */
	if (ops->mem_export(addr, bytes, &h)) {
		epf_info("register: %s", epf_last_error());
		return 0;
	}
	if (h.kind == EPF_COPY_LOCAL)
		return 0;
	*handle = malloc(sizeof(h));
	if (*handle)
		**handle = h;
	else if (h.fd >= 0)
		close(h.fd);
	return *handle ? 0 : epf_fail(EPF_R_NO_MEMORY, "register: a region");
}

static void free_handle(struct epf_copy_handle *h)
{
	if (h && h->fd >= 0)
		close(h->fd);
	free(h);
}

/* Registers host memory with the driver, for faster copies. Returns NULL if that fails: the program may have registered its pages already. */
static void *pin(const struct epf_copy_ops *ops, const void *addr, uint64_t bytes)
{
	uintptr_t from = (uintptr_t)addr & ~(uintptr_t)(PAGE - 1);
	uintptr_t end = ((uintptr_t)addr + bytes + PAGE - 1) & ~(uintptr_t)(PAGE - 1);

	return ops->host_register((void *)from, end - from) ? NULL : (void *)from;
}

void epf_p2p_gpu_forget(struct epf_p2p *ep, struct region *r)
{
	const struct epf_copy_ops *ops;

	if (r->pinned && driver(ep, &ops) == 0)
		ops->host_unregister(r->pinned);
	free_handle(r->handle);
}

int epf_p2p_gpu_answer(const struct region *r, const struct export_key *key, struct msg_imported *a)
{
	const struct epf_copy_handle *h = r->handle;

	a->kind = MEMORY_GPU;
	a->device = r->device;
	if (!h)
		return -1;
	a->gpu_kind = h->kind;
	a->gpu_bytes = h->bytes;
	a->gpu_offset = h->offset + (key->addr - (uint64_t)(uintptr_t)r->addr);
	memcpy(a->gpu_handle, h->ipc, sizeof(a->gpu_handle));
	memcpy(a->gpu_pci, h->pci, sizeof(a->gpu_pci));
	return h->kind == EPF_COPY_FD ? h->fd : -1;
}

int epf_p2p_gpu_take(struct import *i, const struct msg_imported *a, int file)
{
	struct conn *c = i->conn;
	struct epf_copy_handle *h;
	const struct epf_copy_ops *ops;
	int rc = driver(c->ep, &ops);

	if (rc)
		return rc;
	i->kind = MEMORY_GPU;
	i->device = a->device;
	if (c->pid == getpid()) /* its addresses are this endpoint's too */
		return 0;
	if (a->gpu_kind != EPF_COPY_FD && a->gpu_kind != EPF_COPY_IPC)
		return epf_fail(
			EPF_R_GPU_UNSUPPORTED,
			"import: %s cannot share its GPU memory with other processes; memory of cudaMalloc or hipMalloc can be "
			"(PyTorch: without expandable_segments)",
			c->label);
	if ((a->gpu_kind == EPF_COPY_FD && file < 0) || a->gpu_offset > a->gpu_bytes ||
	    i->key.bytes > a->gpu_bytes - a->gpu_offset)
		return epf_fail(EPF_R_P2P_METADATA, "import: %s names its GPU memory wrongly",
				c->label);
	h = calloc(1, sizeof(*h));
	if (!h)
		return epf_fail(EPF_R_NO_MEMORY, "import: no memory");
	h->kind = a->gpu_kind;
	h->bytes = a->gpu_bytes;
	h->offset = a->gpu_offset;
	memcpy(h->ipc, a->gpu_handle, sizeof(h->ipc));
	memcpy(h->pci, a->gpu_pci, sizeof(h->pci));
	h->pci[sizeof(h->pci) - 1] = 0;
	h->fd = h->kind == EPF_COPY_FD ? fcntl(file, F_DUPFD_CLOEXEC, 0) : -1;
	if (h->kind == EPF_COPY_FD && h->fd < 0) {
		free(h);
		return epf_fail_sys(EPF_R_SYSTEM, errno, "import: a descriptor");
	}
	i->handle = h;
	i->device = ops->mem_device(h);
	return 0;
}

void epf_p2p_gpu_release(struct import *i)
{
	const struct epf_copy_ops *ops;

	while (i->maps) {
		struct gpu_map *m = i->maps;

		i->maps = m->next;
		if (i->handle && driver(i->conn->ep, &ops) == 0)
			ops->mem_unimport(i->handle, m->addr);
		free(m);
	}
	if (i->pinned && driver(i->conn->ep, &ops) == 0)
		ops->host_unregister(i->pinned);
	free_handle(i->handle);
}

/* Returns the address of an import's memory for copies by a GPU; maps it at its first use. gpu.lock held. */
static int map(const struct epf_copy_ops *ops, struct import *i, int device, uint64_t *addr)
{
	struct gpu_map *m;
	int rc, holder;

	if (!i->handle) {
		*addr = i->key.addr;
		return 0;
	}
	for (m = i->maps; m; m = m->next)
		if (m->device == device) {
			*addr = m->addr;
			return 0;
		}
	m = calloc(1, sizeof(*m));
	if (!m)
		return epf_fail(EPF_R_NO_MEMORY, "GPU memory of %s", i->conn->label);
	m->device = device;
	rc = ops->mem_import(i->handle, device, &m->addr);
	if (!rc) {
		/* A copy beyond an allocation would break this process's GPU context. 0: the driver does not know its own mapping. */
		rc = ops->mem_place((void *)(uintptr_t)m->addr, i->key.bytes, &holder) < 0
			     ? epf_fail(EPF_R_P2P_METADATA,
					"GPU memory of %s is shorter than its key says",
					i->conn->label)
			     : 0;
		if (rc)
			ops->mem_unimport(i->handle, m->addr);
	}
	if (rc) {
		free(m);
		return rc;
	}
	m->next = i->maps;
	i->maps = m;
	*addr = m->addr;
	return 0;
}

/* Finds the lane of a GPU; opens it at its first use. gpu.lock held. */
static int lane_of(struct epf_p2p *ep, const struct epf_copy_ops *ops, int device,
		   struct gpu_lane **out)
{
	struct gpu_lane *l;
	int rc;

	for (l = ep->gpu.lanes; l; l = l->next)
		if (l->device == device) {
			*out = l;
			return 0;
		}
	l = calloc(1, sizeof(*l));
	if (!l)
		return epf_fail(EPF_R_NO_MEMORY, "copies by GPU %d", device);
	l->ops = ops;
	l->device = device;
	rc = ops->queue_open(device, EPF_COPY_ENGINES, &l->engines.q);
	if (rc) {
		free(l);
		return rc;
	}
	if (ops->queue_open(device, EPF_COPY_KERNEL, &l->kernels.q)) {
		epf_info("GPU %d: small blocks take its copy engines too: %s", device,
			 epf_last_error());
		l->kernels.q = NULL;
	}
	pthread_mutex_init(&l->lock, NULL);
	pthread_mutex_init(&l->stage.lock, NULL);
	l->next = ep->gpu.lanes;
	EPF_STORE_RELEASE(&ep->gpu.lanes, l);
	*out = l;
	return 0;
}

/* gpu.lock held. */
static int open_stage(struct gpu_lane *l)
{
	void *at;
	int rc;

	if (l->stage.memory)
		return 0;
	at = mmap(NULL, P2P_CHUNK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		return epf_fail(EPF_R_NO_MEMORY, "copies by GPU %d", l->device);
	rc = l->ops->queue_open(l->device, EPF_COPY_ENGINES, &l->stage.q);
	if (rc) {
		munmap(at, P2P_CHUNK);
		return rc;
	}
	(void)l->ops->host_register(at, P2P_CHUNK);
	l->stage.memory = at;
	return 0;
}

/* The peer's side is GPU memory, this endpoint's is of either kind. gpu.lock held. */
static int reach_gpu(struct epf_p2p *ep, const struct epf_copy_ops *ops, struct vector *v)
{
	struct import *i = v->import;
	int device = v->region->device >= 0 ? v->region->device : i->device, rc;

	/* Within a process, kernels of one GPU have no access to the memory of another; copy engines need none. */
	v->by_kernel = v->region->device >= 0 && (i->handle || device == i->device);
	rc = map(ops, i, device, &v->there);
	if (rc && device != i->device) {
		/* That GPU cannot map it: the copy engines of the memory's own GPU copy, by whatever path the machine has. */
		device = i->device;
		v->by_kernel = false;
		rc = map(ops, i, device, &v->there);
	}
	if (!rc)
		rc = lane_of(ep, ops, device, &v->lane);
	if (!rc && v->region->device < 0 && !v->region->pin_tried) {
		v->region->pinned = pin(ops, v->region->addr, v->region->bytes);
		v->region->pin_tried = true;
	}
	return rc;
}

/* This endpoint's side is GPU memory, the peer's is host memory. gpu.lock held. */
static int reach_host(struct epf_p2p *ep, const struct epf_copy_ops *ops, struct vector *v)
{
	struct import *i = v->import;
	int rc = lane_of(ep, ops, v->region->device, &v->lane);

	if (rc)
		return rc;
	if (i->mapped) {
		v->there = (uint64_t)(uintptr_t)i->mapped;
		if (!i->pin_tried)
			i->pinned = pin(ops, i->map_base, i->map_bytes);
		i->pin_tried = true;
	} else if (i->conn->pid == getpid()) {
		v->there = i->key.addr;
	} else {
		v->is_staged = true;
		rc = open_stage(v->lane);
	}
	return rc;
}

int epf_p2p_gpu_reach(struct epf_p2p_xfer *x, struct vector *v)
{
	struct epf_p2p *ep = x->ep;
	const struct epf_copy_ops *ops;
	int rc = driver(ep, &ops);

	if (rc)
		return rc;
	pthread_mutex_lock(&ep->gpu.lock);
	rc = v->import->kind == MEMORY_GPU ? reach_gpu(ep, ops, v) : reach_host(ep, ops, v);
	pthread_mutex_unlock(&ep->gpu.lock);
	return rc;
}

void epf_p2p_gpu_close(struct epf_p2p *ep)
{
	struct gpu_lane *l;

	while ((l = ep->gpu.lanes)) {
		ep->gpu.lanes = l->next;
		l->ops->queue_close(l->engines.q);
		l->ops->queue_close(l->kernels.q);
		l->ops->queue_close(l->stage.q);
		if (l->stage.memory) {
			l->ops->host_unregister(l->stage.memory);
			munmap(l->stage.memory, P2P_CHUNK);
		}
		pthread_mutex_destroy(&l->lock);
		pthread_mutex_destroy(&l->stage.lock);
		free(l);
	}
}
