/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rates between ranks of test_gpu_job (gpu_job.h), with the messages of expert-parallel decoding: one-way throughput and round trips.
 * Speeds are printed and not judged; bytes are compared.
 */
#include "tests/proc/gpu_job.h"

#include <sched.h>

/* The time of a sender. */
struct took {
	uint64_t puts, begin_ns, end_ns;
};

/* Sends count messages to the peer, the last one with a signal, and flushes. */
static struct took send_many(struct gpu_rank *g, uint32_t peer, uint64_t base, uint32_t count,
			     uint32_t bytes)
{
	struct took t = { .puts = count, .begin_ns = epf_now_ns() };

	for (uint32_t i = 0; i < count; i++) {
		uint64_t at = base + (uint64_t)(i % RATE_SLOTS) * RATE_STRIDE;

		if (i + 1 < count)
			CHECK(g, epf_put(g->r.ring, peer, GPU, at, GPU, at, bytes, 0) == 0);
		else
			CHECK(g, epf_put_signal(g->r.ring, peer, GPU, at, GPU, at, bytes, SIG_RATE,
						1, EPF_FENCE) == 0);
	}
	CHECK(g, epf_flush(g->r.ring, 0, WAIT_NS) == 0);
	t.end_ns = epf_now_ns();
	return t;
}

static void print_rate(struct gpu_rank *g, const char *what, const struct took *t, uint32_t bytes)
{
	uint64_t puts = 0, begin = UINT64_MAX, end = 0;
	uint32_t senders = 0;
	double ns;

	for (uint32_t i = 0; i < g->r.world; i++) {
		if (!t[i].puts)
			continue;
		senders++;
		puts += t[i].puts;
		begin = t[i].begin_ns < begin ? t[i].begin_ns : begin;
		end = t[i].end_ns > end ? t[i].end_ns : end;
	}
	ns = (double)(end - begin);
	printf("gpu_job %s: put %u bytes GPU to GPU, %u senders: %.3f M/s, %.2f GB/s (%llu puts in %.1f ms)\n",
	       what, bytes, senders, (double)puts * 1e3 / ns, (double)puts * bytes / ns,
	       (unsigned long long)puts, ns / 1e6);
	fflush(stdout);
}

void gpu_rate(struct gpu_rank *g, const char *what, uint32_t count, uint32_t bytes, bool pairs,
	      uint64_t seed)
{
	uint32_t me = g->r.me, peer = pairs ? me + 1 : g->r.world - 1;
	bool sends = pairs ? me % 2 == 0 && peer < g->r.world : me == 0;
	bool takes = pairs ? me % 2 == 1 : me == g->r.world - 1;
	uint64_t base = (uint64_t)(g->r.world + 1) * PART,
		 key = mix(seed ^ mix(bytes * 2ull + pairs));
	uint64_t seen = epf_signal_value(g->r.ep, SIG_RATE);
	uint8_t *all = malloc(RATE_BYTES), *want = malloc(RATE_BYTES);
	struct took mine = { 0 }, took[JOB_RANKS_MAX];

	CHECK(g, all && want);
	fill(want, RATE_BYTES, key);
	if (sends)
		CHECK(g, epf_gpu_copy(g->r.ep, g->gpu + base, want, RATE_BYTES) == 0);
	CHECK(g, epf_barrier(g->r.ep) == 0);
	if (sends)
		mine = send_many(g, peer, base, count, bytes);
	if (takes) {
		CHECK(g, epf_signal_wait(g->r.ep, SIG_RATE, seen + 1, WAIT_NS) == 0);
		CHECK(g, epf_gpu_copy(g->r.ep, all, g->gpu + base, RATE_BYTES) == 0);
		for (uint64_t i = 0; i < RATE_SLOTS && i < count; i++)
			CHECK(g, memcmp(all + i * RATE_STRIDE, want + i * RATE_STRIDE, bytes) == 0);
	}
	free(all);
	free(want);
	CHECK(g, epf_allgather(g->r.ep, &mine, sizeof(mine), took) == 0);
	if (me == 0)
		print_rate(g, what, took, bytes);
	CHECK(g, epf_barrier(g->r.ep) == 0);
}

void gpu_round_trip(struct gpu_rank *g, const char *what, uint32_t bytes)
{
	uint32_t last = g->r.world - 1, me = g->r.me, n = 2000;
	uint64_t base = (uint64_t)(g->r.world + 1) * PART, t0 = epf_now_ns();
	uint64_t seen = epf_signal_value(g->r.ep, SIG_RATE + 1);

	CHECK(g, epf_barrier(g->r.ep) == 0);
	for (uint32_t i = 0; i < n && (me == 0 || me == last); i++) {
		if (me == last)
			CHECK(g,
			      epf_signal_wait(g->r.ep, SIG_RATE + 1, seen + i + 1, WAIT_NS) == 0);
		CHECK(g, epf_put_signal(g->r.ring, me ? 0 : last, GPU, base, GPU, base, bytes,
					SIG_RATE + 1, 1, 0) == 0);
		if (me == 0)
			CHECK(g,
			      epf_signal_wait(g->r.ep, SIG_RATE + 1, seen + i + 1, WAIT_NS) == 0);
	}
	if (me == 0)
		printf("gpu_job %s: put_signal %u bytes there and back: %.2f us\n", what, bytes,
		       (double)(epf_now_ns() - t0) / 1e3 / n);
	fflush(stdout);
	CHECK(g, epf_barrier(g->r.ep) == 0);
}

int gpu_own_cpus(uint32_t rank, uint32_t ranks, char text[32])
{
	int all = (int)sysconf(_SC_NPROCESSORS_ONLN), share = all / (int)ranks;
	cpu_set_t cpus;

	if (share < 6)
		return 0;
	CPU_ZERO(&cpus);
	for (int c = (int)rank * share + 2; c < ((int)rank + 1) * share; c++)
		CPU_SET((size_t)c, &cpus);
	if (sched_setaffinity(0, sizeof(cpus), &cpus))
		return 0;
	snprintf(text, 32, "cpu=%d", (int)rank * share);
	return 1;
}
