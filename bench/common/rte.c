/* SPDX-License-Identifier: Apache-2.0 */
/* See rte.h. */
#include "bench/common/rte.h"

#include "bench/common/bench.h"
#include "bench/common/pair.h"
#include "fabric/base/clock.h"
#include "queues/rte_ring_init.h"

#include <errno.h>
#include <stdlib.h>

#define BURST_MAX 256u

struct element {
	uint64_t lo;
	uint64_t hi;
};

struct producer {
	struct rte_ring *ring;
	unsigned burst;
	uint64_t sum;
	uint64_t sent;
};

static struct rte_ring *make_ring(unsigned slots)
{
	if (slots < 2 || (slots & (slots - 1)))
		return NULL;
	return epf_rte_ring_new(slots, sizeof(struct element), true);
}

static void produce(struct bench_pair *pair, void *arg)
{
	struct producer *p = arg;
	struct element e[BURST_MAX];
	uint64_t n = 0;

	while (!bench_pair_stopped(pair)) {
		unsigned done = 0;

		for (unsigned i = 0; i < p->burst; i++)
			e[i] = (struct element){ .lo = n + i, .hi = ~(n + i) };
		while (done < p->burst) {
			unsigned k = rte_ring_sp_enqueue_burst_elem(p->ring, e + done, sizeof(*e),
								    p->burst - done, NULL);

			if (!k && bench_pair_stopped(pair))
				break;
			if (!k)
				bench_pair_wait(pair);
			done += k;
		}
		for (unsigned i = 0; i < done; i++)
			p->sum += e[i].lo ^ e[i].hi >> 1;
		n += done;
	}
	p->sent = n;
}

static unsigned consume(struct producer *p, struct element *e, uint64_t *sum)
{
	unsigned k = rte_ring_sc_dequeue_burst_elem(p->ring, e, sizeof(*e), p->burst, NULL);

	for (unsigned i = 0; i < k; i++)
		*sum += e[i].lo ^ e[i].hi >> 1;
	return k;
}

int bench_rte_transfer(unsigned slots, unsigned burst, double seconds, struct bench_transfer *out)
{
	struct producer p = { .ring = make_ring(slots), .burst = burst };
	struct element e[BURST_MAX];
	struct bench_pair pair;
	uint64_t sum = 0;
	uint64_t n = 0;
	uint64_t start;
	uint64_t now;
	unsigned k;

	if (!p.ring)
		return -ENOMEM;
	if (bench_pair_start(&pair, produce, &p)) {
		free(p.ring);
		return -EAGAIN;
	}
	start = epf_now_ns();
	do {
		for (int i = 0; i < 1000; i++) {
			k = consume(&p, e, &sum);
			if (!k)
				bench_pair_wait(&pair);
			n += k;
		}
		now = epf_now_ns();
	} while ((double)(now - start) < seconds * 1e9 ||
		 !n); /* on a busy machine the producer may not have run yet */
	out->per_second = (double)n / ((double)(now - start) / 1e9);
	bench_pair_stop(&pair);
	while ((k = consume(&p, e, &sum)) > 0)
		n += k;
	out->elements = n;
	out->same = n == p.sent && sum == p.sum;
	free(p.ring);
	return 0;
}

struct echo {
	struct rte_ring *there;
	struct rte_ring *back;
};

static void echo(struct bench_pair *pair, void *arg)
{
	struct echo *x = arg;
	struct element e;

	while (!bench_pair_stopped(pair)) {
		if (rte_ring_sc_dequeue_burst_elem(x->there, &e, sizeof(e), 1, NULL))
			(void)rte_ring_sp_enqueue_burst_elem(x->back, &e, sizeof(e), 1, NULL);
		else
			bench_pair_wait(pair);
	}
}

int bench_rte_round_trip(unsigned slots, unsigned rounds, double *ns)
{
	struct echo x = { .there = make_ring(slots), .back = make_ring(slots) };
	double *sample = calloc(rounds, sizeof(*sample));
	struct element e = { 1, 2 };
	struct bench_pair pair;
	int err = x.there && x.back && sample ? 0 : -ENOMEM;

	if (!err)
		err = bench_pair_start(&pair, echo, &x);
	if (!err) {
		for (unsigned i = 0; i < rounds; i++) {
			uint64_t t = epf_tsc();

			(void)rte_ring_sp_enqueue_burst_elem(x.there, &e, sizeof(e), 1, NULL);
			while (!rte_ring_sc_dequeue_burst_elem(x.back, &e, sizeof(e), 1, NULL))
				bench_pair_wait(&pair);
			sample[i] = (double)epf_tsc_to_ns(epf_tsc() - t);
		}
		bench_pair_stop(&pair);
		*ns = bench_median(sample, rounds);
	}
	free(x.there);
	free(x.back);
	free(sample);
	return err;
}
