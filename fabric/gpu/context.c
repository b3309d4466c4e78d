/* SPDX-License-Identifier: Apache-2.0 */
/* See context.h. Layouts: queues/epf_gpu.h. */
#include "fabric/gpu/context.h"

#include "fabric/base/err.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096 };

struct epf_gpu_context {
	struct epf_gpu_dev *dev;
	struct epf_gpu_mem ctx; /* struct epf_gpu_ctx, then the word that elects who fails */
	struct epf_gpu_mem rings;
	struct epf_gpu_mem leases;
	struct epf_gpu_ctx host; /* what ctx holds */
	struct epf_gpu_ring_from *from;
	struct epf_signal *signals; /* pinned, or NULL */
	uint32_t pinned;            /* rings that are */
	/* Pinned memory of our own: abort lines, the status record, then a bit for each rank. */
	uint8_t *words;
	uint64_t words_bytes;
	bool words_pinned;
};

#define STATUS_AT (EPF_GPU_ABORT_LINES * EPF_GPU_LINE)
#define GONE_AT   (STATUS_AT + EPF_GPU_LINE)

static uint64_t pages(uint64_t bytes)
{
	return (bytes + PAGE - 1) / PAGE * PAGE;
}

static struct epf_gpu_status *status_of(const struct epf_gpu_context *c)
{
	return (struct epf_gpu_status *)(void *)(c->words + STATUS_AT);
}

static int pin(struct epf_gpu_context *c, void *addr, uint64_t bytes, uint64_t *at)
{
	return c->dev->ops->pin(c->dev, addr, pages(bytes), 0, at);
}

static int make_words(struct epf_gpu_context *c)
{
	uint64_t at = 0;
	int rc;

	c->words_bytes = pages(GONE_AT + ((uint64_t)c->host.world + 31) / 32 * sizeof(uint32_t));
	c->words = mmap(NULL, c->words_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
			-1, 0);
	if (c->words == MAP_FAILED) {
		c->words = NULL;
		return epf_fail(EPF_R_NO_MEMORY, "gpu context: no memory for its words");
	}
	rc = pin(c, c->words, c->words_bytes, &at);
	if (rc)
		return rc;
	c->words_pinned = true;
	c->host.aborts = at;
	c->host.status = at + STATUS_AT;
	c->host.gone = at + GONE_AT;
	return 0;
}

static int make_signals(struct epf_gpu_context *c, const struct epf_gpu_parts *p)
{
	uint64_t bytes = (uint64_t)p->n_signals * sizeof(struct epf_signal), at = 0;
	uint64_t wakeup = p->wakeup ? (uint64_t)((uint8_t *)p->wakeup - (uint8_t *)p->signals) : 0;
	int rc;

	c->host.signal_stride = sizeof(struct epf_signal);
	if (!p->signals)
		return 0;
	rc = pin(c, p->signals, wakeup ? wakeup + sizeof(*p->wakeup) : bytes, &at);
	if (rc)
		return rc;
	c->signals = p->signals;
	c->host.signals = p->device_signals ? p->device_signals : at;
	c->host.wakeup = wakeup ? at + wakeup : 0;
	c->host.n_signals = p->n_signals;
	return 0;
}

/* Pins the rings and writes what kernels know of each. */
static int make_rings(struct epf_gpu_context *c, const struct epf_gpu_parts *p)
{
	uint32_t n = p->n_shared + p->n_private;
	struct epf_gpu_ring *table = calloc(n, sizeof(*table));
	int rc = table ? 0 : epf_fail(EPF_R_NO_MEMORY, "gpu context: no memory for %u rings", n);

	for (uint32_t i = 0; i < n && !rc; i++) {
		const struct epf_gpu_ring_from *from = &p->rings[i];
		struct epf_gpu_ring *r = &table[i];

		rc = pin(c, from->shm, epf_ring_bytes(from->shm->log2_slots), &r->shm);
		if (rc)
			break;
		c->pinned = i + 1;
		r->slots = r->shm + sizeof(struct epf_ring_shm);
		r->log2 = from->shm->log2_slots;
		r->id = from->shm->ring_id;
		r->head = from->head;
		r->pushed = i < p->n_shared ? 0 : from->pushed; /* shared: wide ones since now */
		r->wides = from->head - from->pushed;
		r->dequeued = EPF_LOAD_ACQUIRE(&from->shm->dequeued);
		r->retired = EPF_LOAD_ACQUIRE(&from->shm->done.retired);
		r->failed = EPF_LOAD_ACQUIRE(&from->shm->done.failed);
	}
	if (!rc)
		rc = c->dev->ops->mem_alloc(c->dev, n * sizeof(*table), 0, &c->rings);
	if (!rc)
		rc = c->dev->ops->copy(c->dev, c->rings.addr, (uintptr_t)table, n * sizeof(*table));
	free(table);
	c->host.rings = c->rings.addr;
	return rc;
}

/* All private rings free. */
static int make_leases(struct epf_gpu_context *c)
{
	uint32_t words = (c->host.n_private + 63) / 64;
	struct epf_gpu_leases *table = calloc(words + 1, sizeof(*table));
	int rc = table ? 0 : epf_fail(EPF_R_NO_MEMORY, "gpu context: no memory for leases");

	for (uint32_t i = 0; i < c->host.n_private && !rc; i++)
		table[i / 64].free |= UINT64_C(1) << i % 64;
	if (!rc)
		rc = c->dev->ops->mem_alloc(c->dev, (words + 1) * sizeof(*table), 0, &c->leases);
	if (!rc)
		rc = c->dev->ops->copy(c->dev, c->leases.addr, (uintptr_t)table,
				       words * sizeof(*table));
	free(table);
	c->host.leases = c->leases.addr;
	c->host.lease_words = words;
	return rc;
}

static int make_ctx(struct epf_gpu_context *c, uint64_t timeout_ns)
{
	struct epf_gpu_props props;
	int rc = c->dev->ops->describe(c->dev, &props);

	if (!rc)
		rc = c->dev->ops->mem_alloc(c->dev, 2 * EPF_GPU_LINE, 0, &c->ctx);
	if (rc)
		return rc;
	c->host.magic = EPF_GPU_MAGIC;
	c->host.version = EPF_GPU_VERSION;
	c->host.timer_khz = props.timer_khz;
	c->host.deadline_ticks = timeout_ns / 1000000 * props.timer_khz;
	c->host.failed = c->ctx.addr + EPF_GPU_LINE;
	return c->dev->ops->copy(c->dev, c->ctx.addr, (uintptr_t)&c->host, sizeof(c->host));
}

int epf_gpu_context_create(struct epf_gpu_dev *dev, const struct epf_gpu_parts *p,
			   struct epf_gpu_context **out)
{
	struct epf_gpu_context *c = calloc(1, sizeof(*c));
	uint32_t n = p->n_shared + p->n_private;
	int rc = 0;

	if (!c)
		return epf_fail(EPF_R_NO_MEMORY, "gpu context: no memory");
	c->dev = dev;
	c->host.rank = p->rank;
	c->host.world = p->world;
	c->host.n_shared = p->n_shared;
	c->host.n_private = p->n_private;
	if (!p->n_shared || p->n_shared > EPF_GPU_SHARED_MAX || p->n_private > EPF_GPU_PRIVATE_MAX)
		rc = epf_fail(EPF_R_RING_OPTION, "gpu context: %u shared and %u private rings",
			      p->n_shared, p->n_private);
	if (!rc) {
		c->from = calloc(n, sizeof(*c->from));
		if (c->from)
			memcpy(c->from, p->rings, n * sizeof(*c->from));
		else
			rc = epf_fail(EPF_R_NO_MEMORY, "gpu context: no memory");
	}
	if (!rc)
		rc = make_words(c);
	if (!rc)
		rc = make_signals(c, p);
	if (!rc)
		rc = make_rings(c, p);
	if (!rc)
		rc = make_leases(c);
	if (!rc)
		rc = make_ctx(c, p->timeout_ns);
	if (rc) {
		epf_gpu_context_destroy(c);
		return rc;
	}
	*out = c;
	return 0;
}

void epf_gpu_context_destroy(struct epf_gpu_context *c)
{
	const struct epf_gpu_ops *ops;

	if (!c)
		return;
	ops = c->dev->ops;
	ops->mem_free(c->dev, &c->ctx);
	ops->mem_free(c->dev, &c->leases);
	ops->mem_free(c->dev, &c->rings);
	for (uint32_t i = 0; i < c->pinned; i++)
		ops->unpin(c->dev, c->from[i].shm);
	if (c->signals)
		ops->unpin(c->dev, c->signals);
	if (c->words_pinned)
		ops->unpin(c->dev, c->words);
	if (c->words)
		munmap(c->words, c->words_bytes);
	free(c->from);
	free(c);
}

uint64_t epf_gpu_context_addr(const struct epf_gpu_context *c)
{
	return c->ctx.addr;
}

int epf_gpu_context_failure(struct epf_gpu_context *c, struct epf_gpu_status *out)
{
	struct epf_gpu_status *s = status_of(c);
	int32_t code = EPF_LOAD_ACQUIRE(&s->code);

	if (!code)
		return 0;
	*out = *s;
	out->code = code;
	EPF_STORE_RELEASE(&s->code, 0);
	/* The next failure may be written again. */
	(void)c->dev->ops->fill(c->dev, c->host.failed, 0, sizeof(uint32_t));
	return 1;
}

void epf_gpu_context_abort(struct epf_gpu_context *c, int64_t value)
{
	struct epf_gpu_abort *lines = (struct epf_gpu_abort *)(void *)c->words;

	for (uint32_t i = 0; i < EPF_GPU_ABORT_LINES; i++)
		EPF_STORE_RELEASE(&lines[i].abort, value);
	for (uint32_t i = 0; i < c->pinned; i++)
		EPF_STORE_RELEASE(&c->from[i].shm->abort, value);
}

void epf_gpu_context_lose(struct epf_gpu_context *c, const uint32_t *gone, uint32_t lost, bool stop)
{
	struct epf_gpu_abort *lines = (struct epf_gpu_abort *)(void *)c->words;
	uint32_t *bits = (uint32_t *)(void *)(c->words + GONE_AT);
	uint64_t n = 0;

	for (uint32_t i = 0; i < (c->host.world + 31) / 32; i++) {
		EPF_STORE_RELAXED(&bits[i], gone[i]);
		n += (uint64_t)__builtin_popcount(gone[i]);
	}
	for (uint32_t i = 0; i < EPF_GPU_ABORT_LINES; i++) {
		EPF_STORE_RELEASE(&lines[i].gone, n);
		EPF_STORE_RELEASE(&lines[i].lost, (uint64_t)lost);
		EPF_STORE_RELEASE(&lines[i].stop, (uint64_t)stop);
	}
}

int epf_gpu_context_ring(struct epf_gpu_context *c, uint32_t i, struct epf_gpu_ring_at *out)
{
	struct epf_gpu_leases lease = { 0 };
	struct epf_gpu_ring r;
	uint32_t index = i - c->host.n_shared;
	int rc = c->dev->ops->copy(c->dev, (uintptr_t)&r, c->rings.addr + i * sizeof(r), sizeof(r));

	if (!rc && i >= c->host.n_shared)
		rc = c->dev->ops->copy(c->dev, (uintptr_t)&lease,
				       c->leases.addr + index / 64 * sizeof(lease), sizeof(lease));
	if (rc)
		return rc;
	out->head = r.head;
	out->pushed = r.pushed;
	if (i < c->host.n_shared) {
		out->head = epf_gpu_head_slots(r.head, r.dequeued);
		out->pushed = out->head - r.wides - epf_gpu_head_wides(r.head, out->head, r.pushed);
	}
	out->broken = r.broken != 0;
	out->leased = i >= c->host.n_shared && !(lease.free >> index % 64 & 1);
	return 0;
}
