/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of the service back-end: signals and rings are memfds of the daemon, regions are memfds of ours (epf_memory_alloc). Called by
 * remote.c and through the back-end's table. After a restart of the daemon everything is registered again: the same regions under
 * the same numbers, new memory for signals and rings over the same addresses, so that no pointer of the user moves.
 */
#define EPF_LOG_COMP "epf"
#include "fabric/base/err.h"
#include "fabric/base/log.h"
#include "fabric/client/remote_priv.h"
#include "fabric/engine/limits.h"
#include "fabric/gpu/rdma.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGE = 4096, POLL_NS = 500 * 1000, SIGNALS_EXTRA = 1 << 20 };

static uint64_t pages(uint64_t bytes)
{
	return (bytes + PAGE - 1) / PAGE * PAGE;
}

int remote_map(int fd, uint64_t bytes, int prot, void *at, void **out, const char *what)
{
	int seals = fcntl(fd, F_GET_SEALS), err;
	struct stat st;
	void *mem = NULL;

	if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &st) || st.st_size < 0 ||
	    (uint64_t)st.st_size < bytes || !bytes) {
		close(fd);
		return epf_fail(
			EPF_R_SVC_DESCRIPTOR,
			"%s: the daemon gave a descriptor that is no sealed memfd of %llu bytes",
			what, (unsigned long long)bytes);
	}
	mem = mmap(at, bytes, prot, MAP_SHARED | (at ? MAP_FIXED : 0), fd, 0);
	err = errno;
	close(fd);
	if (mem == MAP_FAILED)
		return epf_fail_sys(EPF_R_NO_MEMORY, err, "%s: cannot map %llu bytes", what,
				    (unsigned long long)bytes);
	*out = mem;
	return 0;
}

int remote_signals(struct epf *ep)
{
	struct epf_remote *r = ep->remote;
	struct epf_svc_signals req = { .count = (uint32_t)ep->conf.signals };
	struct epf_svc_signals_reply a;
	uint64_t need = (uint64_t)req.count * sizeof(struct epf_signal);
	void *mem = NULL;
	int fd, rc;

	rc = remote_call_once(ep, EPF_SVC_SIGNALS, &req, -1, &a, &fd, 1);
	if (rc)
		return rc;
	if (a.count != req.count || a.wakeup_offset < need || a.wakeup_offset % 128 != 0 ||
	    a.wakeup_offset > need + SIGNALS_EXTRA || a.bytes > need + 2 * SIGNALS_EXTRA ||
	    a.bytes < a.wakeup_offset + sizeof(struct epf_wakeup) ||
	    (ep->signals &&
	     (pages(a.bytes) != pages(r->signal_bytes) ||
	      a.wakeup_offset != (uint64_t)((uint8_t *)ep->wakeup - (uint8_t *)ep->signals)))) {
		close(fd);
		return epf_fail(
			EPF_R_SVC_MESSAGE,
			"signals: the daemon answers %u signals in %llu bytes, wakeup at %llu; "
			"%u were asked for",
			a.count, (unsigned long long)a.bytes, (unsigned long long)a.wakeup_offset,
			req.count);
	}
	rc = remote_map(fd, a.bytes, PROT_READ | PROT_WRITE, ep->signals, &mem, "signals");
	if (rc)
		return rc;
	if (ep->signals) /* the same addresses and numbers, which other threads may be reading */
		return 0;
	ep->signals = mem;
	ep->n_signals = a.count;
	ep->wakeup = (struct epf_wakeup *)(void *)((uint8_t *)mem + a.wakeup_offset);
	r->signal_bytes = a.bytes;
	return 0;
}

static int wrong_number(uint32_t got, uint32_t want)
{
	return epf_fail(EPF_R_SVC_MESSAGE, "region: the daemon numbers it %u, it is number %u", got,
			want);
}

int remote_region_register(struct epf *ep, void *addr, uint64_t bytes, unsigned access,
			   uint32_t *region)
{
	struct epf_remote *r = ep->remote;
	struct epf_mapping *m = epf_mapping_find(ep, addr, bytes);
	struct epf_svc_region req = { .bytes = bytes, .access = access };
	struct epf_svc_region_reply a;
	struct remote_region *grown, kept;
	int rc;

	if (!m)
		return epf_fail(EPF_R_SVC_MEMORY,
				"region of %llu bytes at %p: not inside one epf_memory_alloc block",
				(unsigned long long)bytes, addr);
	req.offset = (uint64_t)((uintptr_t)addr - (uintptr_t)m->addr);
	grown = realloc(r->regions, (r->n_regions + 1) * sizeof(*grown));
	if (!grown)
		return epf_fail(EPF_R_NO_MEMORY, "region: no memory");
	r->regions = grown;
	kept = (struct remote_region){ -1, false, access, req.offset, bytes, NULL, 0 };
	if (!r->attached) {
		kept.fd = fcntl(m->fd, F_DUPFD_CLOEXEC, 0);
		if (kept.fd < 0)
			return epf_fail_sys(EPF_R_SYSTEM, errno,
					    "region: no descriptor to keep its memory by");
	}
	rc = remote_call(ep, EPF_SVC_REGION, &req, m->fd, &a, NULL, 0);
	if (!rc && a.region != r->n_regions)
		rc = wrong_number(a.region, r->n_regions);
	if (rc) {
		if (kept.fd >= 0)
			close(kept.fd);
		return rc;
	}
	r->regions[r->n_regions++] = kept;
	*region = a.region;
	return 0;
}

static void put_le(uint8_t *at, uint64_t value, unsigned bytes)
{
	for (unsigned i = 0; i < bytes; i++)
		at[i] = (uint8_t)(value >> 8 * i);
}

/* For a daemon with RDMA devices: the memory's dma-buf, asked of the driver. */
static int ask_dmabuf_region(struct epf *ep, const struct epf_copy_mem *mem, unsigned access,
			     bool again, uint32_t *region)
{
	struct epf_svc_gpu_region req = { .kind = EPF_SVC_GPU_DMABUF,
					  .access = access,
					  .bytes = mem->bytes,
					  .whole = mem->bytes };
	struct epf_svc_region_reply a;
	struct epf_device_mem d;
	const struct epf_gpu_ops *ops;
	int rc = epf_gpu_backend(epf_copy_gpu_name(&ep->conf), &ops);

	if (!rc)
		rc = epf_device_gpu_mem(&ep->device_gpus, ops, mem->addr, mem->bytes, &d);
	if (rc)
		return rc;
	if (d.dmabuf_fd < 0)
		return epf_fail(
			EPF_R_GPU_REGION,
			"GPU region: its driver exports no dma-buf, and a peer-memory module "
			"serves only the process that owns the memory, not a daemon");
	req.offset = d.dmabuf_offset;
	put_le(req.ipc, d.addr, 8);
	put_le(req.ipc + 8, d.order, 4);
	put_le(req.ipc + 12, d.vendor, 4);
	rc = (again ? remote_call_once : remote_call)(ep, EPF_SVC_GPU_REGION, &req, d.dmabuf_fd, &a,
						      NULL, 0);
	close(d.dmabuf_fd);
	if (!rc)
		*region = a.region;
	return rc;
}

/* Asks the daemon for a region of GPU memory. A handle that is no descriptor goes in the message, beside a descriptor that says nothing. */
static int ask_gpu_region(struct epf *ep, const struct epf_copy_mem *mem, unsigned access,
			  bool again, uint32_t *region)
{
	const struct epf_copy_handle *h = &mem->handle;
	struct epf_svc_gpu_region req = { .kind = h->kind,
					  .access = access,
					  .bytes = mem->bytes,
					  .whole = h->bytes,
					  .offset = h->offset };
	struct epf_svc_region_reply a;
	int fd = h->fd, rc;

	memcpy(req.ipc, h->ipc, sizeof(req.ipc));
	memcpy(req.pci, h->pci, sizeof(req.pci));
	if (fd < 0)
		fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return epf_fail_sys(EPF_R_SYSTEM, errno, "GPU region: /dev/null");
	rc = (again ? remote_call_once : remote_call)(ep, EPF_SVC_GPU_REGION, &req, fd, &a, NULL,
						      0);
	if (fd != h->fd)
		close(fd);
	/* Which NIC it has only the daemon knows: one of RDMA devices wants the memory in another form. */
	if (rc && epf_last_reason() == EPF_R_GPU_REGION)
		return ask_dmabuf_region(ep, mem, access, again, region);
	if (!rc)
		*region = a.region;
	return rc;
}

int remote_region_register_gpu(struct epf *ep, struct epf_copy_mem *mem, unsigned access,
			       uint32_t *region)
{
	struct epf_remote *r = ep->remote;
	struct remote_region *grown = realloc(r->regions, (r->n_regions + 1) * sizeof(*grown));
	uint32_t number = 0;
	int rc;

	if (!grown)
		return epf_fail(EPF_R_NO_MEMORY, "region: no memory");
	r->regions = grown;
	rc = ask_gpu_region(ep, mem, access, false, &number);
	if (!rc && number != r->n_regions)
		rc = wrong_number(number, r->n_regions);
	if (rc)
		return rc;
	grown[r->n_regions] = (struct remote_region){ -1, false, access, 0, mem->bytes, NULL, 0 };
	if (!r->attached) {
		epf_copy_mem_get(mem);
		grown[r->n_regions].gpu = mem;
	}
	*region = r->n_regions++;
	return 0;
}

static int close_region(struct epf *ep, uint32_t region, uint32_t *missing,
			int (*call)(struct epf *ep, unsigned type, const void *req, int fd,
				    void *reply, int *reply_fds, unsigned n_reply_fds))
{
	struct epf_svc_region_close req = { .region = region };
	struct epf_svc_region_close_reply a;
	int rc = call(ep, EPF_SVC_REGION_CLOSE, &req, -1, &a, NULL, 0);

	if (rc)
		return rc;
	*missing = a.missing;
	return a.done != 0;
}

int remote_region_withdraw(struct epf *ep, uint32_t region)
{
	struct epf_remote *r = ep->remote;
	uint32_t missing;
	int rc;

	if (region >= r->n_regions || r->regions[region].closed)
		return epf_fail(EPF_R_CMD_LOCAL_REGION, "region %u: not registered", region);
	rc = close_region(ep, region, &missing, remote_call);
	if (rc < 0)
		return rc;
	r->regions[region].closed = true;
	return 0;
}

int remote_region_withdrawn(struct epf *ep, uint32_t region, uint32_t *missing)
{
	struct remote_region *r = &ep->remote->regions[region];
	uint64_t now = epf_limits_now(NULL);

	/* A wait asks again and again; the daemon need not hear each time. */
	if (now < r->next_poll_ns)
		return 0;
	r->next_poll_ns = now + POLL_NS;
	return close_region(ep, region, missing, remote_call);
}

/* Asks the daemon for a ring; the returned memory is checked and mapped. */
static int ask_ring(struct epf *ep, const struct epf_svc_ring *req, bool again, void **out,
		    uint32_t *id)
{
	struct epf_svc_ring_reply a;
	struct epf_ring_shm *shm;
	uint64_t bytes = epf_ring_bytes(req->log2);
	void *mem = NULL;
	int fd, rc;

	rc = (again ? remote_call_once : remote_call)(ep, EPF_SVC_RING, req, -1, &a, &fd, 1);
	if (rc)
		return rc;
	if (a.bytes < bytes || a.bytes - bytes >= 65536) { /* whole pages */
		close(fd);
		return epf_fail(EPF_R_SVC_MESSAGE,
				"ring: the daemon answers %llu bytes, %llu belong to %u slots",
				(unsigned long long)a.bytes, (unsigned long long)bytes,
				1u << req->log2);
	}
	rc = remote_map(fd, bytes, PROT_READ | PROT_WRITE, NULL, &mem, "ring");
	if (rc)
		return rc;
	shm = mem;
	if (EPF_LOAD_ACQUIRE(&shm->magic) != EPF_RING_MAGIC || shm->version != EPF_RING_VERSION ||
	    shm->log2_slots != req->log2 || shm->dequeued != req->start ||
	    shm->done.retired != req->start) {
		munmap(mem, bytes);
		return epf_fail(EPF_R_SVC_MESSAGE,
				"ring: its memory is not a new ring of %u slots, version %u",
				1u << req->log2, EPF_RING_VERSION);
	}
	*out = mem;
	*id = a.ring;
	return 0;
}

int remote_ring_open(struct epf *ep, struct epf_ring *ring, unsigned log2, unsigned weight,
		     uint64_t start)
{
	struct epf_svc_ring req = { .log2 = log2, .weight = weight, .start = start };
	void *mem = NULL;
	int rc = ask_ring(ep, &req, false, &mem, &ring->id);

	if (rc)
		return rc;
	ring->shm = mem;
	ring->bytes = epf_ring_bytes(log2);
	return 0;
}

void remote_ring_close(struct epf_ring *ring)
{
	struct epf_svc_ring_close req = { .ring = ring->id };
	struct epf *ep = ring->ep;

	/* A daemon that is gone has closed it. */
	if (!EPF_LOAD_RELAXED(&ep->remote->gone))
		(void)remote_call_once(ep, EPF_SVC_RING_CLOSE, &req, -1, NULL, NULL, 0);
	munmap(ring->shm, ring->bytes);
}

/*
 * Gives the commands of the ring's former memory to the new one. Nobody has dequeued any of them, so that each slot was filled at most once, in the
 * one memory or the other; the daemon stops at the first that is still missing.
 */
static void copy_slots(struct epf_ring *ring, struct epf_ring_shm *former)
{
	uint64_t size = UINT64_C(1) << ring->producer.log2;
	struct epf_ring_consumer c;
	struct epf_cmd cmd;

	epf_ring_consumer_init(&c, former, ring->producer.log2, ring->start);
	for (uint64_t i = 0; i < size; i++)
		if (epf_ring_peek(&c, ring->start + i, &cmd))
			epf_slot_store(&ring->producer.slots[(ring->start + i) & (size - 1)], cmd);
	EPF_STORE_RELEASE(&ring->shm->abort, EPF_LOAD_RELAXED(&former->abort));
}

/*
 * The ring's new memory under its old address, with what was pushed already. Its producer may go on meanwhile: the address is always
 * mapped, and a second mapping keeps what went to the former memory.
 */
static int ring_again(struct epf *ep, struct epf_ring *ring)
{
	struct epf_svc_ring req = { .log2 = ring->producer.log2,
				    .weight = ring->weight,
				    .start = ring->start };
	void *mem = NULL, *former = mremap(ring->shm, 0, ring->bytes, MREMAP_MAYMOVE);
	uint32_t id = ring->id;
	int rc;

	if (former == MAP_FAILED)
		return epf_fail_sys(EPF_R_NO_MEMORY, errno, "ring %u: cannot map it twice",
				    ring->id);
	rc = ask_ring(ep, &req, true, &mem, &id);
	if (!rc && mremap(mem, ring->bytes, ring->bytes, MREMAP_MAYMOVE | MREMAP_FIXED,
			  ring->shm) == MAP_FAILED) {
		rc = epf_fail_sys(EPF_R_SYSTEM, errno, "ring %u: cannot take its old address",
				  ring->id);
		munmap(mem, ring->bytes);
	}
	if (!rc) {
		if (id != ring->id) /* texts of other threads name it */
			EPF_STORE_RELAXED(&ring->id, id);
		copy_slots(ring, former);
	}
	munmap(former, ring->bytes);
	return rc;
}

static int region_again(struct epf *ep, uint32_t i)
{
	const struct remote_region *g = &ep->remote->regions[i];
	struct epf_svc_region req = { g->offset, g->bytes, g->access };
	struct epf_svc_region_reply a;
	uint32_t missing;
	int rc = g->gpu ? ask_gpu_region(ep, g->gpu, g->access, true, &a.region)
			: remote_call_once(ep, EPF_SVC_REGION, &req, g->fd, &a, NULL, 0);

	if (!rc && a.region != i)
		rc = wrong_number(a.region, i);
	if (!rc && g->closed)
		rc = close_region(ep, i, &missing, remote_call_once);
	return rc < 0 ? rc : 0;
}

int remote_register_again(struct epf *ep)
{
	int rc = 0;

	for (uint32_t i = 0; i < ep->remote->n_regions && !rc; i++)
		rc = region_again(ep, i);
	/* The list begins with the newest; numbers are given in order of opening. */
	for (uint32_t done = 0; !rc; done++) {
		struct epf_ring *ring = ep->rings;
		uint32_t n = 0;

		for (const struct epf_ring *k = ep->rings; k; k = k->next)
			n++;
		if (done == n)
			break;
		for (uint32_t skip = n - 1 - done; skip; skip--)
			ring = ring->next;
		rc = ring_again(ep, ring);
	}
	return rc;
}

void remote_forget(struct epf *ep)
{
	struct epf_remote *r = ep->remote;

	for (uint32_t i = 0; i < r->n_regions; i++) {
		if (r->regions[i].fd >= 0)
			close(r->regions[i].fd);
		r->regions[i].fd = -1;
		epf_copy_mem_put(r->regions[i].gpu);
		r->regions[i].gpu = NULL;
	}
}

void remote_pages_free(struct epf *ep)
{
	struct epf_remote *r = ep->remote;

	if (r->peers)
		munmap(r->peers, r->peers_bytes);
	if (r->kick)
		munmap(r->kick, r->kick_bytes);
	r->peers = NULL;
	r->kick = NULL;
	ep->peers = NULL;
	ep->kick = NULL;
}

void remote_mem_free(struct epf *ep)
{
	struct epf_remote *r = ep->remote;

	for (struct epf_ring *ring = ep->rings; ring; ring = ring->next)
		munmap(ring->shm, ring->bytes);
	if (ep->signals)
		munmap(ep->signals, r->signal_bytes);
	remote_pages_free(ep);
	ep->signals = NULL;
	remote_forget(ep);
	free(r->regions);
}
