/* SPDX-License-Identifier: Apache-2.0 */
/* See gpi.h: requests of kernels become commands. Made and ended in gpi_open.c. */
#include "tools/nccl/gpi.h"

#include "fabric/base/err.h"

#include <errno.h>

enum {
	/* Commands of a ring that may be under way when a request is taken, which makes two at most: all find room. */
	COMMANDS_MAX = EPF_GIN_SLOTS / 2 - 2,
	TAKEN_MAX = 64, /* requests of one queue before the others have their turn */
};

/* A request, taken apart. */
struct request {
	unsigned op, flags;
	uint32_t counter, signal, rank, bytes;
	const struct epf_group_mr *src, *dst;
	uint64_t src_at, dst_at, add, value;
};

static uint64_t *counter_at(const struct epf_gpi_queue *q, uint32_t i)
{
	return (uint64_t *)(void *)(q->counters + (size_t)i * EPF_GPI_STRIDE);
}

/* Copies the next request, if all of it has come. Acquire: what the kernel wrote before it is there, too. */
static bool take(const struct epf_gpi_queue *q, struct epf_gpi_entry *out)
{
	uint64_t mask = (UINT64_C(1) << q->log2_slots) - 1, lap = q->taken >> q->log2_slots & 1;
	const struct epf_gpi_entry *e = &q->entries[q->taken & mask];

	for (unsigned i = 0; i < 8; i++) {
		out->word[i] = __atomic_load_n(&e->word[i], __ATOMIC_ACQUIRE);
		if ((out->word[i] & 1) != lap)
			return false;
	}
	return true;
}

static const struct epf_group_mr *window_of(const struct epf_group *g, uint64_t word)
{
	unsigned i = (unsigned)(word >> 16 & 0xffff);

	return i == 0 || i > EPF_GIN_WINDOWS ? NULL
					     : __atomic_load_n(&g->window[i - 1], __ATOMIC_ACQUIRE);
}

static struct request parse(const struct epf_group *g, const struct epf_gpi_entry *e)
{
	const uint64_t *w = e->word;

	return (struct request){
		.op = (unsigned)(w[EPF_GPI_HEADER] >> 16 & 0xff),
		.flags = (unsigned)(w[EPF_GPI_HEADER] >> 24 & 0xff),
		.counter = (uint32_t)(w[EPF_GPI_HEADER] >> 32 & 0xffff),
		.signal = (uint32_t)(w[EPF_GPI_HEADER] >> 48),
		.rank = (uint32_t)(w[EPF_GPI_TARGET] >> 1 & 0x7fffffff),
		.bytes = (uint32_t)(w[EPF_GPI_TARGET] >> 32),
		.src = window_of(g, w[EPF_GPI_SRC]),
		.dst = window_of(g, w[EPF_GPI_DST]),
		.src_at = w[EPF_GPI_SRC_OFFSET] >> 1,
		.dst_at = w[EPF_GPI_DST_OFFSET] >> 1,
		.add = w[EPF_GPI_SRC] >> 32 << 32 | w[EPF_GPI_DST] >> 32,
		.value = w[EPF_GPI_INLINE_HIGH] >> 32 << 32 | w[EPF_GPI_INLINE_LOW] >> 32,
	};
}

static int bad(const struct request *r, const char *what)
{
	return epf_fail(EPF_R_NCCL_CALL, "nccl: a kernel's operation %u on rank %u: %s", r->op,
			r->rank, what);
}

/* 1 to 8 bytes out of the request, then the signal, if there is one. */
static int put_value(struct epf_gpi *g, struct epf_gpi_queue *q, const struct request *r,
		     struct epf_gin_put *signal)
{
	void *unused;
	int rc;

	if (!r->dst || r->bytes < 1 || r->bytes > 8)
		return bad(r, "a value of no window, or not of 1 to 8 bytes");
	rc = epf_put_inline(q->ring, r->rank, r->dst->remote[r->rank], r->dst_at, r->value,
			    r->bytes, 0);
	if (!rc && signal->signal_mr)
		rc = epf_gin_put(g->rings, (int)(q - g->queue), signal, &unused);
	return rc;
}

static int control(const struct epf_gpi_queue *q, const struct request *r)
{
	uint64_t *signal = (uint64_t *)(void *)(q->signals + (size_t)r->signal * EPF_GPI_STRIDE);

	if (r->op == EPF_GPI_SIGNAL_RESET && r->signal < q->n_signals)
		__atomic_store_n(signal, 0, __ATOMIC_RELAXED);
	else if (r->op <= EPF_GPI_COUNTER_RESET_QUIET && r->counter < q->n_counters)
		__atomic_store_n(counter_at(q, r->counter), 0, __ATOMIC_RELAXED);
	else if (r->op != EPF_GPI_COUNTER_WRITE) /* they are always written */
		return bad(r, "it is none, or of no counter or signal");
	return 0;
}

static int carry_out(struct epf_gpi *g, struct epf_gpi_queue *q, const struct request *r)
{
	struct epf_gin_put p = { .src = r->src_at,
				 .src_mr = r->src,
				 .dst = r->dst_at,
				 .dst_mr = r->dst,
				 .bytes = r->bytes,
				 .rank = r->rank };
	struct epf_gin_put signal = { .rank = r->rank,
				      .signal =
					      q->signals_at + (uint64_t)r->signal * EPF_GPI_STRIDE,
				      .signal_mr = g->words,
				      .add = r->add };
	int index = (int)(q - g->queue);
	void *unused;

	if (r->op & EPF_GPI_CONTROL)
		return control(q, r);
	if (r->rank >= g->group->ranks)
		return bad(r, "there is no such rank");
	switch (r->op) {
	case EPF_GPI_WRITE_INC:
	case EPF_GPI_INLINE_INC:
		signal.add = 1;
		/* fallthrough */
	case EPF_GPI_WRITE_ADD:
	case EPF_GPI_INLINE_ADD:
		if (r->signal >= q->n_signals)
			return bad(r, "there is no such signal");
		if (r->op >= EPF_GPI_INLINE)
			return put_value(g, q, r, &signal);
		p.signal = signal.signal;
		p.signal_mr = signal.signal_mr;
		p.add = signal.add;
		/* fallthrough */
	case EPF_GPI_WRITE:
		return epf_gin_put(g->rings, index, &p, &unused);
	case EPF_GPI_INLINE:
		signal.signal_mr = NULL;
		return put_value(g, q, r, &signal);
	case EPF_GPI_READ: /* the windows' places in the request are those of a write */
		p = (struct epf_gin_put){ .src = r->dst_at,
					  .src_mr = r->dst,
					  .dst = r->src_at,
					  .dst_mr = r->src,
					  .bytes = r->bytes,
					  .rank = r->rank };
		return epf_gin_get(g->rings, index, &p, &unused);
	case EPF_GPI_ADD:
		if (!r->dst)
			return bad(r, "an addition to no window");
		signal.signal = r->dst_at;
		signal.signal_mr = r->dst;
		signal.add = r->value;
		return epf_gin_put(g->rings, index, &signal, &unused);
	case EPF_GPI_FLUSH: /* what is over is at its target: nothing has to be asked of it */
		return 0;
	default:
		return bad(r, "there is no such operation");
	}
}

/* Whoever waits for a counter waits no longer. */
static void fail_counters(const struct epf_gpi_queue *q, uint32_t from, uint32_t to)
{
	for (uint32_t i = from; i < to; i++)
		__atomic_fetch_or(counter_at(q, i), EPF_GPI_COUNTER_ERROR, __ATOMIC_RELEASE);
}

static bool has_room(const struct epf_gpi_queue *q)
{
	return q->last - q->first < UINT64_C(1) << q->log2_slots &&
	       epf_ring_pushed(q->ring) - epf_ring_done(q->ring) <= COMMANDS_MAX;
}

static int take_requests(struct epf_gpi *g, struct epf_gpi_queue *q, int *handled)
{
	uint64_t mask = (UINT64_C(1) << q->log2_slots) - 1, before = q->taken;
	struct epf_gpi_entry e;
	int rc, first = 0;

	while (q->taken - before < TAKEN_MAX && has_room(q) && take(q, &e)) {
		struct request r = parse(g->group, &e);
		bool counts = r.flags & EPF_GPI_COUNTS;

		q->taken++;
		rc = counts && r.counter >= q->n_counters ? bad(&r, "there is no such counter")
							  : carry_out(g, q, &r);
		if (!rc && counts)
			q->pending[q->last++ & mask] =
				(struct epf_gpi_pending){ epf_ring_pushed(q->ring), r.counter, 0 };
		else if (rc && counts && r.counter < q->n_counters)
			fail_counters(q, r.counter, r.counter + 1);
		if (!first)
			first = rc;
	}
	if (q->taken != before) /* release: the slots may be written again */
		__atomic_store_n(q->taken_word, q->taken, __ATOMIC_RELEASE);
	*handled += (int)(q->taken - before);
	return first;
}

static int count_done(struct epf_gpi_queue *q, int *handled)
{
	uint64_t mask = (UINT64_C(1) << q->log2_slots) - 1, done = epf_ring_done(q->ring);
	int rc = epf_gin_ring_failed(q->ring);

	if (rc)
		fail_counters(q, 0, q->n_counters);
	while (q->first != q->last && q->pending[q->first & mask].ticket <= done) {
		__atomic_fetch_add(counter_at(q, q->pending[q->first & mask].counter), 1,
				   __ATOMIC_RELEASE);
		q->first++;
		(*handled)++;
	}
	return rc;
}

int epf_gpi_poll(struct epf_gpi *gpi)
{
	int handled = 0, rc = 0;

	for (unsigned i = 0; i < gpi->n; i++) {
		int taken = take_requests(gpi, &gpi->queue[i], &handled);
		int counted = count_done(&gpi->queue[i], &handled);

		if (!rc)
			rc = taken ? taken : counted;
	}
	if (!rc || gpi->failed)
		return handled;
	__atomic_store_n(&gpi->failed, true, __ATOMIC_RELAXED);
	return rc;
}

bool epf_gpi_has_failed(const struct epf_gpi *gpi)
{
	bool failed = __atomic_load_n(&gpi->failed, __ATOMIC_RELAXED);

	for (uint32_t r = 0; r < gpi->group->ranks && !failed; r++)
		failed = r != gpi->group->rank && epf_peer_state(gpi->group->ep, r) < 0;
	return failed;
}
