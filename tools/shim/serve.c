/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The serving thread (serve.h). One pass looks at every doorbell and at the channel; requests become commands at once. A completion must mean
 * "visible at the target", which the fabric says of a FLUSH: each ring of the fabric has one on its way at most, posted when a pass brought
 * nothing more for it, or after FLUSH_AFTER commands. Slow path, on a separate thread: it may log and sleep, the two files _hot may not.
 */
#define EPF_LOG_COMP "shim"
#include "tools/shim/serve.h"

#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/base/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TAKE_AT_ONCE = 32, FLUSH_AFTER = 256, FEW = 8, IDLE_PASSES = 2000, IDLE_SLEEP_NS = 20000 };

/* A ring of the fabric and what of it is not known to be visible. */
struct lane {
	struct epf_ring *ring;
	uint64_t fresh;            /* commands since the last flush */
	uint64_t ticket;           /* of the flush on its way */
	uint64_t flush_tsc;        /* when it was posted */
	bool is_flushing, is_busy; /* is_busy: this pass brought something */
};

struct epf_serve {
	struct epf_serve_opts o;
	pthread_t thread;
	struct lane *lanes; /* fabric_rings, and one more for the channel */
	uint64_t *marked;   /* a ring's requests that the flush on its way covers */
	uint64_t *completed;
	uint64_t *wakeups; /* a ring's doorbell when all that it announces had been dequeued */
	uint32_t *ringing; /* the rings that a pass serves */
	struct epf_channel channel;
	struct epf_channel_req held;        /* a channel request that must wait; kind 0: none */
	uint64_t sent[EPF_WR_MAX_PES / 64]; /* ranks to which a SET is on its way */
	struct epf_serve_stats stats;
	uint64_t drain_asked, drain_done;
	uint32_t is_stopping, has_failed;
};

static void fail(struct epf_serve *s, const char *what)
{
	if (!s->has_failed)
		epf_warn("%s: %s; this rank's kernels are served no more", what, epf_last_error());
	EPF_STORE_RELEASE(&s->has_failed, 1u);
}

static void refuse(struct epf_serve *s, const char *where, uint32_t number, uint64_t at,
		   const char *text)
{
	epf_warn("%s %u, request %llu: %s; it is served no more", where, number,
		 (unsigned long long)at, text);
	s->stats.refusals++;
}

static int push(struct lane *l, const struct epf_op *op)
{
	int rc;

	if (op->op == EPF_OP_PUT)
		rc = epf_put(l->ring, op->rank, op->local_region, op->local_offset,
			     op->remote_region, op->remote_offset, op->length, 0);
	else if (op->op == EPF_OP_PUT_INLINE)
		rc = epf_put_inline(l->ring, op->rank, op->remote_region, op->remote_offset,
				    op->value, op->length, 0);
	else
		rc = epf_add(l->ring, op->rank, op->remote_region, op->remote_offset, op->value, 0);
	l->fresh++;
	l->is_busy = true;
	return rc;
}

static unsigned serve_ring(struct epf_serve *s, uint32_t i)
{
	struct lane *l = &s->lanes[i % s->o.fabric_rings];
	struct epf_wr_ring *ring = &s->o.rings[i];
	uint32_t early = ring->early, refusal = ring->refusal;
	unsigned n = 0;
	struct epf_wr wr;

	while (n < TAKE_AT_ONCE && epf_wr_take(ring, &s->o.space, &wr)) {
		struct epf_op op;

		epf_wr_op(&wr, &s->o.space, &op);
		if (push(l, &op))
			fail(s, "a work request");
		s->stats.puts += wr.kind == EPF_WR_PUT;
		s->stats.put_bytes += wr.kind == EPF_WR_PUT ? wr.bytes : 0;
		s->stats.inlines += wr.kind == EPF_WR_INLINE;
		s->stats.adds += wr.kind == EPF_WR_ADD;
		n++;
	}
	s->stats.early += ring->early - early;
	if (ring->refusal != refusal)
		refuse(s, "ring", ring->number, ring->dequeued, epf_wr_refusal_text(ring->refusal));
	return n;
}

/*
 * Serves the rings whose doorbells have moved. Doorbells lie side by side, so most rings cost an eighth of a line; and all first requests are on
 * their way from where the GPU wrote them before the first one is looked at.
 */
static unsigned serve_rings(struct epf_serve *s)
{
	unsigned n = 0, count = 0;

	for (uint32_t i = 0; i < s->o.n_rings; i++) {
		if (EPF_LOAD_RELAXED(&s->o.wakeups[i]) == s->wakeups[i])
			continue;
		epf_wr_prefetch(&s->o.rings[i]);
		s->ringing[count++] = i;
	}
	for (unsigned k = 0; k < count; k++) {
		uint32_t i = s->ringing[k];
		uint64_t wakeup = EPF_LOAD_RELAXED(&s->o.wakeups[i]);

		n += serve_ring(s, i);
		if (s->o.rings[i].dequeued == s->o.rings[i].rung)
			s->wakeups[i] = wakeup; /* if it has moved since, it differs from this */
	}
	return n;
}

static bool is_clean(const struct lane *l)
{
	return !l->is_flushing && l->fresh == 0;
}

/*
 * Two values for one word may not be on their way at once, on an unordered NIC the older could land last: a SET to a rank waits for the
 * SETs to it before, a FENCE for all of them.
 */
static bool may_go(struct epf_serve *s, struct lane *l, const struct epf_channel_req *r)
{
	if (is_clean(l))
		memset(s->sent, 0, sizeof(s->sent));
	if (r->kind == EPF_CHANNEL_FENCE)
		return is_clean(l);
	return r->kind != EPF_CHANNEL_SET || !(s->sent[r->pe / 64] >> r->pe % 64 & 1);
}

static unsigned serve_channel(struct epf_serve *s)
{
	struct lane *l = &s->lanes[s->o.fabric_rings];
	uint32_t early = s->channel.early, refusal = s->channel.refusal;
	unsigned n = 0;

	while (n < TAKE_AT_ONCE) {
		struct epf_channel_req r = s->held;
		struct epf_op op;

		if (!r.kind && !epf_channel_take(&s->channel, &s->o.space, &r))
			break;
		s->held = r;
		if (!may_go(s, l, &r))
			break;
		s->held.kind = 0;
		epf_channel_op(&r, &s->o.space, &op);
		if (op.op != EPF_OP_NOP && push(l, &op))
			fail(s, "a request of the proxy channel");
		if (r.kind == EPF_CHANNEL_SET)
			s->sent[r.pe / 64] |= UINT64_C(1) << r.pe % 64;
		s->stats.channel_requests++;
		n++;
	}
	s->stats.early += s->channel.early - early;
	if (s->channel.refusal != refusal)
		refuse(s, "proxy channel", 0, s->channel.processed / 8,
		       epf_channel_refusal_text(s->channel.refusal));
	EPF_STORE_RELEASE(&s->o.words->complete, s->channel.processed);
	return n;
}

/* The flush of lane `at` is over: what it covered is done. */
static void complete(struct epf_serve *s, uint32_t at)
{
	if (at == s->o.fabric_rings)
		return;
	for (uint32_t i = at; i < s->o.n_rings; i += s->o.fabric_rings) {
		if (s->marked[i] == s->completed[i])
			continue;
		s->completed[i] = s->marked[i];
		epf_wr_complete(&s->o.rings[i], s->completed[i]);
	}
}

static void flush(struct epf_serve *s, uint32_t at)
{
	struct lane *l = &s->lanes[at];

	if (at < s->o.fabric_rings)
		for (uint32_t i = at; i < s->o.n_rings; i += s->o.fabric_rings)
			s->marked[i] = s->o.rings[i].dequeued;
	if (epf_flush_post(l->ring, 0)) {
		fail(s, "a flush");
		return;
	}
	l->ticket = epf_ring_pushed(l->ring);
	l->flush_tsc = epf_tsc();
	l->is_flushing = true;
	l->fresh = 0;
	s->stats.flushes++;
}

/*
 * Is it time for a flush? When a pass brought nothing more, but not while many commands are under way: a flush among them is answered no sooner
 * than they are done, and the messages of it would stand between them. The channel's are few, and a barrier waits for each.
 */
static bool is_flush_due(const struct epf_serve *s, uint32_t at)
{
	const struct lane *l = &s->lanes[at];

	if (l->is_flushing || !l->fresh)
		return false;
	if (l->fresh >= FLUSH_AFTER)
		return true;
	return !l->is_busy && (at == s->o.fabric_rings ||
			       epf_ring_pushed(l->ring) - epf_ring_done(l->ring) <= FEW);
}

static void look_after(struct epf_serve *s, uint32_t at)
{
	struct lane *l = &s->lanes[at];
	struct epf_ring_failure bad;

	if (l->is_flushing && epf_ring_done(l->ring) >= l->ticket) {
		l->is_flushing = false;
		s->stats.flush_tsc += epf_tsc() - l->flush_tsc;
		if (epf_ring_error(l->ring, &bad)) {
			epf_fail(EPF_R_SHIM_COMMAND, "%s", epf_last_error());
			fail(s, "the fabric refused a command");
			return;
		}
		complete(s, at);
	}
	if (is_flush_due(s, at))
		flush(s, at);
	l->is_busy = false;
}

/* One look at everything. Returns how much was dequeued. */
static unsigned pass(struct epf_serve *s)
{
	uint64_t drain = EPF_LOAD_ACQUIRE(&s->drain_asked);
	uint64_t quiet = EPF_LOAD_ACQUIRE(&s->o.words->quiet_issue);
	uint64_t cst = EPF_LOAD_ACQUIRE(&s->o.words->cst_issue);
	uint64_t began = epf_tsc();
	bool clean = true;
	unsigned n;

	n = serve_rings(s);
	n += serve_channel(s);
	for (uint32_t i = 0; i <= s->o.fabric_rings && !s->has_failed; i++) {
		look_after(s, i);
		clean &= is_clean(&s->lanes[i]);
	}
	s->stats.passes += n != 0;
	s->stats.pass_tsc += n ? epf_tsc() - began : 0;
	/* What was asked for before this pass had been seen by it: nothing more came, and nothing is on its way. */
	if (n || !clean || s->held.kind || s->has_failed)
		return n;
	if (s->channel.processed >= quiet && s->o.words->quiet_ack != quiet)
		EPF_STORE_RELEASE(&s->o.words->quiet_ack, quiet);
	if (s->channel.processed >= cst && s->o.words->cst_ack != cst)
		EPF_STORE_RELEASE(&s->o.words->cst_ack, cst);
	if (s->drain_done != drain)
		EPF_STORE_RELEASE(&s->drain_done, drain);
	return 0;
}

static void *run(void *arg)
{
	struct epf_serve *s = arg;
	unsigned idle = 0;

	while (!EPF_LOAD_ACQUIRE(&s->is_stopping) && !s->has_failed) {
		struct timespec nap = { .tv_nsec = IDLE_SLEEP_NS };

		idle = pass(s) ? 0 : idle + 1;
		if (idle > IDLE_PASSES && !s->o.is_spinning)
			nanosleep(&nap, NULL);
		else
			EPF_CPU_PAUSE();
	}
	return NULL;
}

static void destroy(struct epf_serve *s)
{
	for (uint32_t i = 0; s->lanes && i <= s->o.fabric_rings; i++)
		if (s->lanes[i].ring)
			epf_ring_close(s->lanes[i].ring);
	free(s->lanes);
	free(s->marked);
	free(s->completed);
	free(s->wakeups);
	free(s->ringing);
	free(s);
}

int epf_serve_start(const struct epf_serve_opts *opts, struct epf_serve **out)
{
	struct epf_serve *s = calloc(1, sizeof(*s));
	int rc = 0;

	if (!s)
		return epf_fail(EPF_R_NO_MEMORY, "shim: the serving thread");
	s->o = *opts;
	s->channel.words = opts->channel;
	s->lanes = calloc(opts->fabric_rings + 1u, sizeof(*s->lanes));
	s->marked = calloc(opts->n_rings + 1u, sizeof(*s->marked));
	s->completed = calloc(opts->n_rings + 1u, sizeof(*s->completed));
	s->wakeups = calloc(opts->n_rings + 1u, sizeof(*s->wakeups));
	s->ringing = calloc(opts->n_rings + 1u, sizeof(*s->ringing));
	if (!s->lanes || !s->marked || !s->completed || !s->wakeups || !s->ringing)
		rc = epf_fail(EPF_R_NO_MEMORY, "shim: the serving thread");
	for (uint32_t i = 0; !rc && i <= opts->fabric_rings; i++)
		rc = epf_ring_open(opts->ep, NULL, &s->lanes[i].ring);
	if (!rc) {
		int err = pthread_create(&s->thread, NULL, run, s);

		if (err)
			rc = epf_fail_sys(EPF_R_SYSTEM, err, "shim: the serving thread");
	}
	if (rc) {
		destroy(s);
		return rc;
	}
	*out = s;
	return 0;
}

int epf_serve_drain(struct epf_serve *s, uint64_t timeout_ns)
{
	uint64_t end = epf_now_ns() + timeout_ns;
	struct timespec nap = { .tv_nsec = IDLE_SLEEP_NS };
	uint64_t ticket = s->drain_asked + 1;

	EPF_STORE_RELEASE(&s->drain_asked, ticket);
	while (EPF_LOAD_ACQUIRE(&s->drain_done) != ticket) {
		if (EPF_LOAD_ACQUIRE(&s->has_failed))
			return epf_fail(EPF_R_SHIM_COMMAND, "shim: the serving thread has stopped");
		if (epf_now_ns() > end)
			return epf_fail(EPF_R_SHIM_TIMEOUT,
					"shim: the kernels' requests did not come to an end");
		nanosleep(&nap, NULL);
	}
	return 0;
}

void epf_serve_stats(const struct epf_serve *s, struct epf_serve_stats *out)
{
	const uint64_t *from = (const uint64_t *)(const void *)&s->stats;
	uint64_t *to = (uint64_t *)(void *)out;

	for (size_t i = 0; i < sizeof(*out) / sizeof(*to); i++)
		to[i] = EPF_LOAD_RELAXED(&from[i]);
}

void epf_serve_stop(struct epf_serve *s)
{
	if (!s)
		return;
	EPF_STORE_RELEASE(&s->is_stopping, 1u);
	pthread_join(s->thread, NULL);
	destroy(s);
}
