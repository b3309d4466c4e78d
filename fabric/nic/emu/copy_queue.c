/* SPDX-License-Identifier: Apache-2.0 */
/* See copy_queue.h. Runs on the copier's thread only. */
#define EPF_LOG_COMP "emu"
#include "fabric/nic/emu/copy_queue.h"

#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/base/log.h"
#include "fabric/nic/emu/copier_priv.h"
#include "fabric/nic/nic.h"

#include <stdlib.h>
#include <string.h>

enum {
	GRAIN_LOG = 14, /* bytes of destination that share a bucket */
	GRAIN = 1 << GRAIN_LOG,
	BUCKETS_LOG = 11,
	BUCKETS = 1 << BUCKETS_LOG,
	GRAINS = 8, /* that a span of LONG bytes may touch, at least; a power of two */
	LONG = (GRAINS - 1) * GRAIN, /* longer ones are compared with all others */
	LONGS = 16,                  /* of them in a batch */
	UNDER_WAY = 2,               /* batches, while the next one may grow: fewer, longer calls */
};

#define FAILED (1u << 31) /* in epf_emu_copier.undone */

struct owner {
	struct epf_emu_copier *copier;
	uint32_t slot, n;
};

struct flight {
	uint64_t value;
	uint64_t number; /* epf_emu_queues_newest() */
	unsigned n;
	struct owner owners[EPF_COPY_BATCH];
};

/* Spans of the batch whose destination touches a grain of this hash: the batch's number above the first node + 1; another number: none. */
typedef uint32_t bucket_t;

/*
 * Copies on one device, or additions, in order. They are separate queues: an addition comes when what it must follow has landed, so it need
 * not wait for the copies of others, nor end their batch.
 */
struct epf_emu_queue {
	struct epf_emu_queue *next;
	bool adds;
	const struct epf_copy_ops *ops;
	struct epf_copy_queue *q;
	int device, kernel;
	uint64_t value;
	unsigned first,
		count; /* flights under way; the owners of what is being gathered are in the one after them */
	struct flight flights[EPF_COPY_FLIGHTS];
	unsigned most;      /* in one submit */
	unsigned n;         /* of the batch being gathered */
	uint32_t batch;     /* its number << 16 */
	uint64_t low, high; /* its destinations lie in [low, high) */
	struct epf_copy_add to_add[EPF_COPY_ADDS];
	struct epf_copy_span spans[EPF_COPY_BATCH];
	bucket_t buckets[BUCKETS];
	uint16_t
		nodes[EPF_COPY_BATCH * GRAINS]; /* node i is of span i / GRAINS; the next one + 1 */
	unsigned longs;
	uint16_t long_spans[LONGS];
	uint64_t copies, batches, submit_tsc; /* in all, for the log */
};

static struct epf_emu_queue *queues;
static uint64_t newest;              /* number of the batch begun last */
static uint64_t calls, calls_pumped; /* of the driver, for copies: all, and up to the last pump */

static void ring_nic(const struct epf_emu_copier *c)
{
	if (epf_wakeup_is_needed(c->nic_wakeup))
		epf_wakeup_wake(c->nic_wakeup);
}

void epf_emu_job_done(struct epf_emu_copier *c, uint32_t slot, uint32_t n, uint32_t status)
{
	uint32_t *undone = &c->undone[slot];

	if (status != EPF_S_OK)
		*undone |= FAILED;
	*undone -= n;
	if (*undone & ~FAILED)
		return;
	c->outcomes[c->outcomes_out & (EPF_EMU_COPIES - 1)] =
		(struct epf_emu_outcome){ slot, *undone & FAILED ? EPF_S_REMOTE_ACCESS : EPF_S_OK };
	__atomic_store_n(&c->outcomes_out, c->outcomes_out + 1, __ATOMIC_RELEASE); /* C2 */
	ring_nic(c);
}

struct epf_emu_queue *epf_emu_queue_of(const struct epf_emu_copier *c, int device, bool adds)
{
	struct epf_emu_queue *q;

	for (q = queues; q; q = q->next)
		if (q->ops == c->ops && q->device == device && q->kernel == c->kernel &&
		    q->adds == adds)
			return q;
	q = calloc(1, sizeof(*q));
	if (!q) {
		epf_fail(EPF_R_NO_MEMORY, "GPU copies: no memory");
		return NULL;
	}
	q->ops = c->ops;
	q->device = device;
	q->kernel = c->kernel;
	q->batch = 1 << 16;
	q->adds = adds;
	q->low = UINT64_MAX;
	if (c->ops->queue_open(device,
			       adds        ? EPF_COPY_ADDITIONS
			       : c->kernel ? EPF_COPY_KERNEL
					   : EPF_COPY_ENGINES,
			       &q->q)) {
		free(q);
		return NULL;
	}
	q->most = adds ? EPF_COPY_ADDS : c->ops->queue_batch(q->q);
	q->next = queues;
	queues = q;
	return q;
}

static struct flight *open_flight(struct epf_emu_queue *q)
{
	return &q->flights[(q->first + q->count) % EPF_COPY_FLIGHTS];
}

static void flight_done(struct flight *f, uint32_t status)
{
	for (unsigned i = 0; i < f->n; i++)
		epf_emu_job_done(f->owners[i].copier, f->owners[i].slot, f->owners[i].n, status);
	f->n = 0;
}

/* What was submitted as the flight after the last is under way, or has failed. */
static void launched(struct epf_emu_queue *q, int rc)
{
	struct flight *f = open_flight(q);

	if (!rc) {
		f->value = q->value;
		q->count++;
		return;
	}
	epf_err("copies to GPU memory fail: %s", epf_last_error());
	flight_done(f, EPF_S_REMOTE_ACCESS);
}

static void submit(struct epf_emu_queue *q)
{
	if (!q->n)
		return;
	q->copies += q->n;
	q->batches++;
	calls += !q->adds;
	q->submit_tsc -= epf_tsc();
	epf_copy_stall_enters(&epf_emu_copier_stall,
			      q->adds ? "submitting additions" : "submitting copies");
	launched(q, q->adds ? q->ops->add(q->q, q->to_add, q->n, ++q->value)
			    : q->ops->submit(q->q, q->spans, q->n, ++q->value));
	epf_copy_stall_enters(&epf_emu_copier_stall, NULL);
	q->submit_tsc += epf_tsc();
	q->n = 0;
	q->longs = 0;
	q->low = UINT64_MAX;
	q->high = 0;
	q->batch += 1 << 16;
	if (EPF_UNLIKELY(!q->batch)) { /* numbers come again */
		memset(q->buckets, 0, sizeof(q->buckets));
		q->batch = 1 << 16;
	}
}

static inline bucket_t *bucket_of(struct epf_emu_queue *q, uint64_t grain)
{
	return &q->buckets[grain * 0x9e3779b97f4a7c15ull >> (64 - BUCKETS_LOG)];
}

/* The first node of a bucket + 1; 0: none. */
static inline unsigned first_of(const struct epf_emu_queue *q, bucket_t b)
{
	return (b ^ q->batch) < 1u << 16 ? (uint16_t)b : 0;
}

static inline bool meets(const struct epf_copy_span *a, uint64_t low, uint64_t high)
{
	return a->dst < high && low < a->dst + a->bytes;
}

/* True when bytes of a destination are one of a span of the batch that touches the same grain. */
static inline bool overlaps_in(struct epf_emu_queue *q, uint64_t grain, uint64_t low, uint64_t high)
{
	unsigned at = first_of(q, *bucket_of(q, grain));

	for (; at; at = q->nodes[at - 1])
		if (meets(&q->spans[(at - 1) / GRAINS], low, high))
			return true;
	return false;
}

/* True when bytes of a destination are one of the batch already. */
static inline bool overlaps(struct epf_emu_queue *q, uint64_t low, uint64_t high)
{
	uint64_t last = (high - 1) >> GRAIN_LOG;

	if (low >= q->high || high <= q->low)
		return false;
	for (unsigned i = 0; i < q->longs; i++)
		if (meets(&q->spans[q->long_spans[i]], low, high))
			return true;
	if (EPF_UNLIKELY(high - low > LONG)) {
		for (unsigned i = 0; i < q->n; i++)
			if (meets(&q->spans[i], low, high))
				return true;
		return false;
	}
	for (uint64_t g = low >> GRAIN_LOG; g <= last; g++)
		if (overlaps_in(q, g, low, high))
			return true;
	return false;
}

/* Notes the destination of the next span, which overlaps none. */
static inline void note(struct epf_emu_queue *q, uint64_t low, uint64_t high)
{
	uint64_t last = (high - 1) >> GRAIN_LOG;
	unsigned node = q->n * GRAINS;

	q->low = low < q->low ? low : q->low;
	q->high = high > q->high ? high : q->high;
	if (EPF_UNLIKELY(high - low > LONG)) {
		q->long_spans[q->longs++] = (uint16_t)q->n;
		return;
	}
	for (uint64_t g = low >> GRAIN_LOG; g <= last; g++, node++) {
		bucket_t *b = bucket_of(q, g);

		q->nodes[node] = (uint16_t)first_of(q, *b);
		*b = q->batch | (node + 1);
	}
}

static void own(struct flight *f, struct epf_emu_copier *c, uint32_t slot, uint32_t n)
{
	struct owner *last = f->n ? &f->owners[f->n - 1] : NULL;

	if (!last)
		f->number = ++newest;
	if (last && last->copier == c && last->slot == slot)
		last->n += n;
	else
		f->owners[f->n++] = (struct owner){ c, slot, n };
}

/* Makes room for another span of the batch; false: as many are under way as may be. */
static bool make_room(struct epf_emu_queue *q)
{
	submit(q);
	return q->count != EPF_COPY_FLIGHTS;
}

uint32_t epf_emu_queue_copies(struct epf_emu_queue *q, struct epf_emu_copier *c, uint32_t slot,
			      const struct epf_emu_run *run)
{
	uint32_t done, since = 0;

	if (q->count == EPF_COPY_FLIGHTS)
		return 0;
	for (done = 0; done < run->n; done++) {
		const struct epf_emu_job_span *s =
			&run->entries[(run->first + done) & (EPF_EMU_ENTRIES - 1)].span;
		uint64_t low = s->dst + run->to_dst, high = low + s->bytes;

		if (EPF_UNLIKELY(q->n == q->most || q->longs == LONGS) || overlaps(q, low, high)) {
			if (done != since)
				own(open_flight(q), c, slot, done - since);
			since = done;
			if (!make_room(q))
				return done;
		}
		note(q, low, high);
		q->spans[q->n++] =
			(struct epf_copy_span){ low, s->src + run->to_src, s->bytes, run->host };
	}
	if (done != since)
		own(open_flight(q), c, slot, done - since);
	return done;
}

bool epf_emu_queue_add(struct epf_emu_queue *q, struct epf_emu_copier *c, uint32_t slot,
		       uint64_t dst, uint64_t value)
{
	if (q->count == EPF_COPY_FLIGHTS)
		return false;
	if (q->n == q->most) {
		submit(q);
		if (q->count == EPF_COPY_FLIGHTS)
			return false;
	}
	own(open_flight(q), c, slot, 1);
	q->to_add[q->n++] = (struct epf_copy_add){ dst, value };
	return true;
}

/* Hands back what is complete; returns how many batches. */
static unsigned harvest(struct epf_emu_queue *q)
{
	uint64_t reached = 0;
	unsigned batches = 0;

	if (q->count) {
		epf_copy_stall_enters(&epf_emu_copier_stall, "asking what is done");
		reached = q->ops->reached(q->q);
		epf_copy_stall_enters(&epf_emu_copier_stall, NULL);
	}
	if (reached == UINT64_MAX)
		epf_err("copies to GPU memory failed on the device, %u batches of them: %s",
			q->count, epf_last_error());
	while (q->count && reached >= q->flights[q->first].value) {
		flight_done(&q->flights[q->first],
			    reached == UINT64_MAX ? EPF_S_REMOTE_ACCESS : EPF_S_OK);
		q->first = (q->first + 1) % EPF_COPY_FLIGHTS;
		q->count--;
		batches++;
	}
	return batches;
}

void epf_emu_queues_add(void)
{
	for (struct epf_emu_queue *q = queues; q; q = q->next) {
		if (!q->adds)
			continue;
		(void)harvest(q);
		if (q->count < UNDER_WAY)
			submit(q);
	}
}

unsigned epf_emu_queues_pump(bool *busy)
{
	bool was_called = calls != calls_pumped; /* then additions that came meanwhile are first */
	unsigned done = 0;

	*busy = false;
	for (struct epf_emu_queue *q = queues; q; q = q->next) {
		done += harvest(q);
		if ((q->adds || !was_called) &&
		    (q->count < UNDER_WAY || (q->n == q->most && q->count < EPF_COPY_FLIGHTS)))
			submit(q);
		*busy |= q->count || q->n;
	}
	calls_pumped = calls;
	return done;
}

uint64_t epf_emu_queues_newest(void)
{
	return newest;
}

bool epf_emu_queues_are_past(uint64_t number)
{
	for (struct epf_emu_queue *q = queues; q; q = q->next) {
		const struct flight *oldest = q->count ? &q->flights[q->first] : open_flight(q);

		if (oldest->n && oldest->number <= number)
			return false;
	}
	return true;
}

uint64_t epf_emu_queues_calls(void)
{
	return calls;
}

void epf_emu_queues_stages(struct epf_emu_copier_stages *out)
{
	for (const struct epf_emu_queue *q = queues; q; q = q->next) {
		out->submit_tsc += q->submit_tsc;
		out->copies += q->adds ? 0 : q->copies;
		out->batches += q->batches;
	}
}

void epf_emu_queues_close(void)
{
	struct epf_emu_queue *q;

	while ((q = queues)) {
		queues = q->next;
		if (q->batches)
			epf_dbg("GPU %d: %llu %s in %llu batches, %llu ms in submitting them",
				q->device, (unsigned long long)q->copies,
				q->adds ? "additions" : "copies", (unsigned long long)q->batches,
				(unsigned long long)(epf_tsc_to_ns(q->submit_tsc) / 1000000));
		q->ops->queue_close(q->q);
		free(q);
	}
}
