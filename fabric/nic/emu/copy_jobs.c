/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a NIC's jobs to batches of copies: finds where the bytes of each span are (import.c) and hands them to the queue of a device
 * (copy_queue.c). Runs on the copier's thread only.
 */
#define EPF_LOG_COMP "emu"
#include "fabric/base/err.h"
#include "fabric/base/log.h"
#include "fabric/nic/emu/copier_priv.h"
#include "fabric/nic/emu/copies.h"
#include "fabric/nic/emu/copy_queue.h"
#include "fabric/nic/emu/emu.h"

enum {
	TURN_ENTRIES = 1024,   /* of one NIC before the next one's turn */
	PREFETCH_ENTRIES = 64, /* 32 lines: as long as it takes to read them out of another core */
};

/* True when the region that was found last is the one that a span's source lies in, and is still there. */
static bool is_in_window(const struct epf_emu_copier *c, const struct epf_emu_job_span *s,
			 int device)
{
	const struct epf_emu_window *w = &c->window;

	return w->seg == c->job.peer && w->key == s->src_key && w->want == device &&
	       w->generation == epf_emu_import_generation() &&
	       epf_emu_is_gpu_key(c->job.peer, s->src_key);
}

static inline bool window_covers(const struct epf_emu_window *w, const struct epf_emu_job_span *s)
{
	return s->src >= w->base && s->bytes <= w->len && s->src - w->base <= w->len - s->bytes;
}

/* Where the bytes of a peer's region are: as the last time, or again. *device: whose copies it is for, -1 if that is open. */
static int find_source(struct epf_emu_copier *c, const struct epf_emu_job_span *s, uint64_t *src,
		       int *device)
{
	struct epf_emu_window *w = &c->window;
	struct epf_emu_seg *peer = c->job.peer;
	int rc;

	if (!is_in_window(c, s, *device)) {
		w->seg = NULL;
		rc = epf_emu_import_peer(c->ops, peer, s->src_key, *device, c->kernel, w);
		if (rc)
			return rc;
	}
	if (!window_covers(w, s))
		return epf_fail(EPF_R_GPU_PEER,
				"GPU region %#x of process %d: %u bytes are not inside", s->src_key,
				(int)peer->pid, s->bytes);
	*src = w->at + (s->src - w->base);
	*device = w->device;
	return 0;
}

/* Where the bytes of a span are, and which device copies them. */
static int resolve(struct epf_emu_copier *c, const struct epf_emu_job_span *s,
		   struct epf_copy_span *span, int *device)
{
	int rc = 0;

	*device = -1;
	span->dst = s->dst;
	span->src = s->src;
	span->bytes = s->bytes;
	span->host = !s->dst_mem || !s->src_key;
	if (s->dst_mem) {
		rc = epf_emu_import_own(s->dst_mem);
		if (rc)
			return rc;
		span->dst += s->dst_mem->device_addr;
		*device = s->dst_mem->device;
	}
	if (s->src_key)
		rc = find_source(c, s, &span->src, device);
	else
		epf_emu_import_host(c->ops, c->job.peer);
	return rc;
}

static const struct epf_emu_job_span *span_at(const struct epf_emu_copier *c, uint32_t number)
{
	return &c->entries[number & (EPF_EMU_ENTRIES - 1)].span;
}

/* Takes entry `in`, a span of the NIC's job, into a batch; false: the queue is full, try again later. */
static bool take(struct epf_emu_copier *c, uint32_t in)
{
	const struct epf_emu_job_span *s = span_at(c, in);
	struct epf_emu_run run = { .entries = c->entries, .first = in, .n = 1 };
	struct epf_emu_queue *q = NULL;
	struct epf_copy_span span;
	int device;

	epf_copy_stall_enters(&epf_emu_copier_stall, "mapping memory");
	if (resolve(c, s, &span, &device) ||
	    !(q = epf_emu_queue_of(c, device < 0 ? 0 : device, false))) {
		epf_copy_stall_enters(&epf_emu_copier_stall, NULL);
		if (epf_last_reason() == EPF_R_NIC_PEER_GONE) /* the outcome reports it */
			epf_dbg("a copy: %s", epf_last_error());
		else
			epf_warn_ratelimited("a copy to or from GPU memory: %s", epf_last_error());
		epf_emu_job_done(c, c->job.slot, 1, EPF_S_REMOTE_ACCESS);
		return true;
	}
	epf_copy_stall_enters(&epf_emu_copier_stall, NULL);
	if (!s->bytes) {
		epf_emu_job_done(c, c->job.slot, 1, EPF_S_OK);
		return true;
	}
	run.to_dst = span.dst - s->dst;
	run.to_src = span.src - s->src;
	run.host = span.host;
	return epf_emu_queue_copies(q, c, c->job.slot, &run) == 1;
}

/*
 * Brings the line of an entry near, if it has been pushed. Not before: the NIC's core is about to write it, and would have to fetch it
 * back.
 */
static inline void fetch(const struct epf_emu_copier *c, uint32_t number, uint32_t out)
{
	if (!(number & 1) && (int32_t)(out - number) > 0)
		__builtin_prefetch(span_at(c, number));
}

/*
 * Takes spans from entry `in` on, at most n of those before `out`, that go from the region found last to one memory of ours: most of all spans, so what they share is
 * asked once. Returns how many; 0: the first one is another, or finds no room.
 */
static uint32_t take_run(struct epf_emu_copier *c, uint32_t in, uint32_t n, uint32_t out)
{
	const struct epf_emu_window *w = &c->window;
	const struct epf_emu_job_span *s = span_at(c, in);
	const struct epf_copy_mem *mem = s->dst_mem;
	struct epf_emu_run run = { .entries = c->entries, .first = in };
	struct epf_emu_queue *q;

	if (!mem || !s->src_key || mem->state != 1 || !is_in_window(c, s, mem->device))
		return 0;
	for (; run.n < n; run.n++) {
		s = span_at(c, in + run.n);
		fetch(c, in + run.n + PREFETCH_ENTRIES, out);
		if (s->dst_mem != mem || s->src_key != w->key || !s->bytes || !window_covers(w, s))
			break;
	}
	q = run.n ? epf_emu_queue_of(c, w->device, false) : NULL;
	if (!q)
		return 0;
	run.to_dst = mem->device_addr;
	run.to_src = w->at - w->base;
	return epf_emu_queue_copies(q, c, c->job.slot, &run);
}

/* Takes one addition; false: the queue is full, try again later. */
static bool take_add(struct epf_emu_copier *c, const struct epf_emu_add_job *add)
{
	struct epf_emu_queue *q = NULL;

	c->undone[add->slot] = 1;
	if (epf_emu_import_own(add->dst_mem) ||
	    !(q = epf_emu_queue_of(c, add->dst_mem->device, true))) {
		epf_warn_ratelimited("an addition to GPU memory: %s", epf_last_error());
		epf_emu_job_done(c, add->slot, 1, EPF_S_REMOTE_ACCESS);
		return true;
	}
	return epf_emu_queue_add(q, c, add->slot, add->dst + add->dst_mem->device_addr, add->value);
}

/* Takes the additions that a NIC has pushed; returns how many. [C1] */
unsigned epf_emu_take_adds(struct epf_emu_copier *c)
{
	uint32_t out = __atomic_load_n(&c->adds_out, __ATOMIC_ACQUIRE); /* C1 */
	unsigned n = 0;

	for (; c->adds_in != out; c->adds_in++, n++)
		if (!take_add(c, &c->adds[c->adds_in & (EPF_EMU_COPIES - 1)]))
			break;
	return n;
}

/*
 * Takes the copies that a NIC has pushed, up to the first call of the driver: it takes as long as some twenty copies, and what has landed
 * meanwhile, or is to be added, comes first. Returns how many entries. [C1, C6]
 */
unsigned epf_emu_take_entries(struct epf_emu_copier *c)
{
	uint64_t calls = epf_emu_queues_calls();
	uint32_t out = __atomic_load_n(&c->entries_out, __ATOMIC_ACQUIRE),
		 in = c->entries_in; /* C1 */
	unsigned n = 0;

	for (uint32_t i = 0; i < PREFETCH_ENTRIES; i++)
		fetch(c, in + i, out);
	while (in != out && n < TURN_ENTRIES && epf_emu_queues_calls() == calls) {
		uint32_t left = out - in < c->job_left ? out - in : c->job_left, taken = 1;

		if (c->job_left == 0) {
			c->job = c->entries[in & (EPF_EMU_ENTRIES - 1)].job;
			c->job_left = c->undone[c->job.slot] = c->job.spans;
		} else {
			taken = take_run(c, in, left, out);
			if (!taken)
				taken = take(c, in);
			c->job_left -= taken;
		}
		if (!taken)
			break;
		in += taken;
		n += taken;
	}
	if (n)
		__atomic_store_n(&c->entries_in, in, __ATOMIC_RELEASE); /* C6 */
	return n;
}
