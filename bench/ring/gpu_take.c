/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The consuming side of ep-bench ring --gpu: threads that take test commands out of raw rings and check every one. No engine, and no
 * GPU library in this process.
 */
#include "bench/common/bench.h"
#include "bench/ring/gpu.h"
#include "fabric/base/clock.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SSE2__) && !defined(__SANITIZE_THREAD__)
# include <emmintrin.h>
#endif

enum {
	BATCH = 256,
	AHEAD = 32,
	AHEAD_ALONE = 64, /* of who has one ring only, and so knows where he reads next */
	LINE_SLOTS = 4,
	LINE = EPF_CACHELINE / 8,
	QUIET_NS = 200 * 1000 * 1000
};

/* One thread's work. */
struct taker {
	pthread_t thread;
	struct ring_gpu_shared *s;
	struct epf_ring_consumer *rings;
	uint64_t *
		next; /* [RING_BENCH_PRODUCERS] lines, shared: each producer's commands come to one thread */
	uint32_t n;
	uint32_t cpu;
	bool sum_only;
	uint64_t sum;
	uint64_t commands;
	uint64_t wrong;
	uint64_t first_ns;
	uint64_t last_ns;
};

/* Checks one command and moves its producer on. */
static unsigned check(struct taker *t, struct epf_cmd c)
{
	uint64_t lo = c.lo & ~EPF_CMD_PARITY_BITS;
	uint64_t name = lo >> 1;
	uint64_t *next = &t->next[(name & (RING_BENCH_PRODUCERS - 1u)) * LINE];
	uint64_t seq = name >> RING_BENCH_PRODUCER_BITS;
	unsigned wrong =
		(c.hi & ~EPF_CMD_PARITY_BITS) != (ring_bench_mix(lo) & ~EPF_CMD_PARITY_BITS);

	wrong |= seq != *next;
	*next = seq + 1;
	return wrong;
}

#if defined(__SSE2__) && !defined(__SANITIZE_THREAD__)
/*
 * Adds up a line's four commands if all of them are there: 0 if not. Each slot is one 16-byte load, as in epf_slot_load(); what all four
 * have in common says of each whether it is full.
 */
static unsigned sum_line(const struct epf_ring_consumer *r, uint64_t at, uint64_t *sum)
{
	const __m128i *slot = (const __m128i *)(const void *)&r->slots[at & r->mask];
	__m128i a = _mm_load_si128(slot), b = _mm_load_si128(slot + 1);
	__m128i c = _mm_load_si128(slot + 2), d = _mm_load_si128(slot + 3);
	uint64_t parity = epf_cmd_parity(at, r->log2);
	__m128i all, any, v;

	__asm__ __volatile__("" ::: "memory");
	all = _mm_and_si128(_mm_and_si128(a, b), _mm_and_si128(c, d));
	any = _mm_or_si128(_mm_or_si128(a, b), _mm_or_si128(c, d));
	v = _mm_slli_epi64(parity ? all : any, 63);
	if (_mm_movemask_pd(_mm_castsi128_pd(v)) != (parity ? 3 : 0))
		return 0;
	v = _mm_add_epi64(_mm_add_epi64(a, b), _mm_add_epi64(c, d));
	*sum += (uint64_t)_mm_cvtsi128_si64(v) +
		(uint64_t)_mm_cvtsi128_si64(_mm_unpackhi_epi64(v, v)) - 8 * parity;
	return LINE_SLOTS;
}
#else
static unsigned sum_line(const struct epf_ring_consumer *r, uint64_t at, uint64_t *sum)
{
	(void)r;
	(void)at;
	(void)sum;
	return 0;
}
#endif

/* The same, but only added up: as much as a consumer that only counts would do. */
static unsigned take_sum(struct taker *t, struct epf_ring_consumer *r)
{
	struct epf_cmd c;
	unsigned ahead = t->n == 1 ? AHEAD_ALONE : AHEAD;
	uint64_t sum = 0;
	unsigned k = 0;

	while (k < BATCH) {
		uint64_t at = r->tail + k;
		unsigned n = 0;

		if (at % LINE_SLOTS == 0 && k + LINE_SLOTS <= BATCH) {
			__builtin_prefetch(&r->slots[(at + ahead) & r->mask]);
			n = sum_line(r, at, &sum);
		}
		if (!n) {
			if (!epf_ring_peek(r, at, &c))
				break;
			sum += (c.lo & ~EPF_CMD_PARITY_BITS) + (c.hi & ~EPF_CMD_PARITY_BITS);
			n = 1;
		}
		k += n;
	}
	t->sum += sum;
	r->tail += k;
	epf_ring_release(r);
	return k;
}

static unsigned take(struct taker *t, struct epf_ring_consumer *r)
{
	struct epf_cmd c;
	unsigned k = 0;

	while (k < BATCH && epf_ring_peek(r, r->tail + k, &c)) {
		__builtin_prefetch(&r->slots[(r->tail + k + AHEAD) & r->mask]);
		t->wrong += check(t, c);
		k++;
	}
	r->tail += k;
	epf_ring_release(r);
	return k;
}

/* The first slots of the ring that comes next. */
static void near(const struct epf_ring_consumer *r)
{
	for (unsigned i = 0; i < AHEAD; i += LINE_SLOTS)
		__builtin_prefetch(&r->slots[(r->tail + i) & r->mask]);
}

static void *take_all(void *arg)
{
	struct taker *t = arg;
	uint64_t seen = 0;

	bench_pin(t->cpu);
	while (!EPF_LOAD_ACQUIRE(&t->s->stop_takers)) {
		/* Before the first round that takes something: those commands took time too. */
		uint64_t begin = t->first_ns ? 0 : epf_now_ns();
		unsigned k = 0;

		for (uint32_t i = 0; i < t->n; i++) {
			near(&t->rings[i + 1 < t->n ? i + 1 : 0]);
			k += t->sum_only ? take_sum(t, &t->rings[i]) : take(t, &t->rings[i]);
		}
		if (!k) {
			/* The time of the last command is that of the first empty round behind it. */
			if (seen != t->commands)
				t->last_ns = epf_now_ns();
			seen = t->commands;
			if (bench_cpus() < 4)
				sched_yield();
			continue;
		}
		if (!t->first_ns)
			t->first_ns = begin;
		EPF_STORE_RELAXED(&t->commands, t->commands + k);
	}
	if (seen != t->commands)
		t->last_ns = epf_now_ns();
	return NULL;
}

static int start_takers(struct ring_gpu_shared *s, const struct ring_gpu_request *r, uint32_t cores,
			struct taker *takers, uint64_t *next)
{
	EPF_STORE_RELEASE(&s->stop_takers, 0);
	for (uint32_t i = 0; i < cores; i++) {
		struct taker *t = &takers[i];

		*t = (struct taker){
			.s = s, .next = next, .sum_only = r->sum, .cpu = ring_gpu_cpu(i + 1)
		};
		t->rings = calloc(ring_gpu_rings(r) / cores + 1, sizeof(*t->rings));
		if (!t->rings)
			return -ENOMEM;
		for (uint32_t k = i; k < ring_gpu_rings(r); k += cores) {
			struct epf_ring_shm *shm = ring_gpu_ring_of(s, r, k);

			epf_ring_consumer_init(&t->rings[t->n++], shm, shm->log2_slots, 0);
		}
		if (pthread_create(&t->thread, NULL, take_all, t)) {
			free(t->rings);
			t->rings = NULL;
			return -EAGAIN;
		}
	}
	return 0;
}

static uint64_t total(const struct taker *takers, uint32_t cores)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < cores; i++)
		n += EPF_LOAD_RELAXED(&takers[i].commands);
	return n;
}

/* Waits for the answer and for the commands: both, or a quiet time after the answer, or the end of patience. */
static int wait_all(struct ring_gpu_shared *s, pid_t child, const struct taker *takers,
		    uint32_t cores, uint64_t expected, uint64_t timeout_ns,
		    struct ring_gpu_reply *reply)
{
	uint64_t end = epf_now_ns() + timeout_ns;
	uint64_t quiet_since = 0, last = 0;
	int answered = 0;

	while (epf_now_ns() < end) {
		struct timespec nap = { 0, 200000 };
		uint64_t n = total(takers, cores);

		if (!answered)
			answered = ring_gpu_answer(s, child, reply);
		if (answered < 0)
			return answered;
		if (answered && n >= expected)
			return 0;
		if (n != last || !answered)
			quiet_since = epf_now_ns();
		else if (epf_now_ns() - quiet_since > QUIET_NS)
			return 0;
		last = n;
		nanosleep(&nap, NULL);
	}
	return answered > 0 ? 0 : -ETIMEDOUT;
}

static void sum_up(const struct taker *takers, uint32_t cores, struct ring_gpu_taken *out)
{
	uint64_t first = UINT64_MAX, last = 0;

	memset(out, 0, sizeof(*out));
	for (uint32_t i = 0; i < cores; i++) {
		const struct taker *t = &takers[i];

		out->commands += t->commands;
		out->wrong += t->wrong;
		if (t->first_ns && t->first_ns < first)
			first = t->first_ns;
		if (t->last_ns > last)
			last = t->last_ns;
	}
	if (last > first)
		out->per_second = (double)out->commands / ((double)(last - first) / 1e9);
}

/* What all commands of all producers must add up to. */
static void compare_sums(const struct taker *takers, uint32_t cores, uint32_t producers,
			 uint64_t each, struct ring_gpu_taken *out)
{
	uint64_t want = 0, got = 0;

	for (uint32_t i = 0; i < cores; i++)
		got += takers[i].sum;
	for (uint32_t p = 0; p < producers; p++)
		for (uint64_t seq = 0; seq < each; seq++) {
			struct epf_cmd c = ring_bench_cmd(p, seq);

			want += c.lo + c.hi;
		}
	out->wrong += got != want;
	out->missing = producers * each - out->commands;
}

int ring_gpu_take(struct ring_gpu_shared *s, pid_t child, const struct ring_gpu_request *r,
		  uint32_t cores, uint32_t producers, uint64_t each, uint64_t timeout_ns,
		  struct ring_gpu_taken *out, struct ring_gpu_reply *reply)
{
	uint64_t *next = calloc(RING_BENCH_PRODUCERS * LINE, sizeof(*next));
	struct taker takers[RING_GPU_CORES] = { 0 };
	int rc = next && cores <= RING_GPU_CORES ? 0 : -ENOMEM;

	if (!rc) {
		ring_gpu_format(s, r);
		rc = start_takers(s, r, cores, takers, next);
	}
	if (!rc) {
		ring_gpu_ask(s, r);
		rc = wait_all(s, child, takers, cores, (uint64_t)producers * each, timeout_ns,
			      reply);
	}
	EPF_STORE_RELEASE(&s->stop_takers, 1);
	for (uint32_t i = 0; i < cores; i++)
		if (takers[i].rings) {
			pthread_join(takers[i].thread, NULL);
			free(takers[i].rings);
		}
	sum_up(takers, cores, out);
	if (r->sum)
		compare_sums(takers, cores, producers, each, out);
	for (uint32_t p = 0; next && !r->sum && p < producers; p++)
		out->missing +=
			next[p * LINE] > each ? next[p * LINE] - each : each - next[p * LINE];
	free(next);
	return rc;
}

void ring_gpu_echo(struct ring_gpu_shared *s)
{
	const struct epf_cmd *flag = (const void *)(s->words + RING_GPU_FLAG_AT);
	uint64_t *ack = (uint64_t *)(void *)(s->words + RING_GPU_ACK_AT);
	uint64_t seen = 0;

	while (!EPF_LOAD_ACQUIRE(&s->stop_takers)) {
		struct epf_cmd c = epf_slot_load(flag);

		if (c.lo == seen || c.lo != c.hi)
			continue;
		seen = c.lo;
		EPF_STORE_RELEASE(ack, seen);
	}
}
