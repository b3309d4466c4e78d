/* SPDX-License-Identifier: Apache-2.0 */
/* Additions by two contexts (adder.h): what is under way, and when it goes to which side. adder_usual.c has the thread of the usual side. */
#define EPF_LOG_COMP "gpu"
#include "fabric/gpu/adder.h"

#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/base/log.h"
#include "fabric/gpu/adder_usual.h"

#include <sched.h>
#include <stdlib.h>

/*
 * After this time the other context gets the batch too, which takes 2 ms there. Long enough for a thread that has to be woken on a busy CPU; short, because only the
 * first batch of a load pays it: while a launch has not returned, the other context gets batches at once.
 */
static const uint64_t LATE_NS = 1000000;

enum { ROOM = EPF_COPY_FLIGHTS * EPF_COPY_ADDS };

/* A call of add(): its additions end before `end`. */
struct flight {
	uint64_t value, end;
};

struct epf_adder {
	const struct epf_adder_ops *ops;
	struct epf_adder_side *own;
	struct epf_adder_usual *usual; /* NULL: no memory for it */
	struct epf_copy_add adds[ROOM];
	uint64_t in, out; /* of adds, running */
	struct flight flights[EPF_COPY_FLIGHTS];
	unsigned first, count;
	uint64_t reached;
	/* Under way, if n is not 0: */
	struct epf_adder_batch batch;
	unsigned batch_flights;
	uint64_t began_ns;
	bool is_usual, is_own; /* which sides have it */
	struct epf_adder_counts counts;
};

int epf_adder_open(const struct epf_adder_ops *ops, int device, struct epf_adder **out)
{
	struct epf_adder *a = calloc(1, sizeof(*a));
	int rc;

	if (!a)
		return epf_fail(EPF_R_NO_MEMORY, "GPU additions: no memory");
	a->ops = ops;
	rc = ops->open(device, true, &a->own);
	if (rc) {
		free(a);
		return rc;
	}
	a->usual = epf_adder_usual_start(ops, device, a->own);
	*out = a;
	return 0;
}

/* True if kernels of the usual context may make all additions of the batch. */
static bool may_be_usual(const struct epf_adder *a)
{
	for (unsigned i = 0; i < a->batch.n; i++)
		if (!a->ops->is_usual(a->batch.adds[i].dst))
			return false;
	return true;
}

/* Takes as many whole flights as fit into a batch. */
static void gather(struct epf_adder *a)
{
	struct epf_adder_batch *b = &a->batch;
	unsigned n = 0;

	for (; n < a->count; n++)
		if (a->flights[(a->first + n) % EPF_COPY_FLIGHTS].end - a->out > EPF_COPY_ADDS)
			break;
	a->batch_flights = n;
	b->n = (unsigned)(a->flights[(a->first + n - 1) % EPF_COPY_FLIGHTS].end - a->out);
	for (unsigned i = 0; i < b->n; i++)
		b->adds[i] = a->adds[(a->out + i) % ROOM];
	b->number++;
}

static int give_own(struct epf_adder *a)
{
	a->is_own = true;
	return a->ops->launch(a->own, &a->batch);
}

static int begin(struct epf_adder *a)
{
	gather(a);
	a->counts.batches++;
	a->is_own = false;
	a->batch.claim = epf_adder_usual_claim(a->usual);
	a->is_usual =
		a->batch.claim && may_be_usual(a) && epf_adder_usual_give(a->usual, &a->batch);
	if (!a->is_usual)
		return give_own(a);
	a->counts.usual++;
	a->began_ns = epf_now_ns();
	return 0;
}

static bool is_done(const struct epf_adder *a)
{
	return a->ops->done(a->own) >= a->batch.number ||
	       epf_adder_usual_done(a->usual) >= a->batch.number;
}

/* Ends the batch: its flights are reached. */
static void end(struct epf_adder *a)
{
	unsigned last = a->first + a->batch_flights - 1;

	a->reached = a->flights[last % EPF_COPY_FLIGHTS].value;
	a->first = (last + 1) % EPF_COPY_FLIGHTS;
	a->count -= a->batch_flights;
	a->out += a->batch.n;
	a->batch.n = 0;
}

/* Looks after a batch that is not done. Returns 0, or -errno: it will never be. */
static int attend(struct epf_adder *a)
{
	if (a->is_own) {
		int rc = a->ops->check(a->own);

		return !rc && a->is_usual ? epf_adder_usual_lost(a->usual, a->batch.number) : rc;
	}
	if (epf_now_ns() - a->began_ns < LATE_NS)
		return 0;
	a->counts.late++;
	return give_own(a);
}

static int advance(struct epf_adder *a)
{
	int rc = 0;

	while (!rc && a->reached != UINT64_MAX) {
		if (a->batch.n && !is_done(a))
			return attend(a);
		if (a->batch.n)
			end(a);
		if (!a->count)
			return 0;
		rc = begin(a);
	}
	return rc;
}

int epf_adder_add(struct epf_adder *a, const struct epf_copy_add *adds, unsigned n, uint64_t value)
{
	if (a->reached == UINT64_MAX)
		return epf_fail(EPF_R_GPU_CALL, "GPU additions: an earlier one failed");
	for (unsigned i = 0; i < n; i++)
		a->adds[(a->in + i) % ROOM] = adds[i];
	a->in += n;
	a->flights[(a->first + a->count++) % EPF_COPY_FLIGHTS] = (struct flight){ value, a->in };
	(void)epf_adder_reached(a);
	return 0;
}

uint64_t epf_adder_reached(struct epf_adder *a)
{
	if (advance(a))
		a->reached = UINT64_MAX;
	return a->reached;
}

void epf_adder_close(struct epf_adder *a)
{
	if (!a)
		return;
	while (a->count && epf_adder_reached(a) != UINT64_MAX)
		sched_yield();
	epf_info(
		"%llu batches of additions to GPU memory: %llu in the program's context, of which %llu were late there and went to ours too",
		(unsigned long long)a->counts.batches, (unsigned long long)a->counts.usual,
		(unsigned long long)a->counts.late);
	epf_adder_usual_stop(a->usual);
	a->ops->close(a->own);
	epf_adder_usual_free(a->usual); /* with the word of claims, which the own side used */
	free(a);
}

struct epf_adder_counts epf_adder_counts(const struct epf_adder *a)
{
	return a->counts;
}
