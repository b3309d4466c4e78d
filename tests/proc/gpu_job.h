/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank of test_gpu_job: what its parts share (test_gpu_job.c: the traffic that is compared; gpu_rate.c: what it reaches).
 */
#ifndef EPF_TESTS_GPU_JOB_H
#define EPF_TESTS_GPU_JOB_H

#include "tests/proc/ranks.h"

#define MS      UINT64_C(1000000)
#define WAIT_NS (60000 * MS)

enum { GPU = 1, HOST = 2 }; /* regions; 0 is ranks.h's */

enum {
	SLOTS = 16,     /* places of one sender in a region, a round uses the first few */
	SLOT = 1 << 17, /* bytes of a place */
	WORDS = 4096,   /* bytes for additions, at the end of a sender's part */
	PART = SLOTS * SLOT + WORDS,
	RATE_SLOTS = 1024,
	RATE_STRIDE = 16384,
	RATE_BYTES = RATE_SLOTS * RATE_STRIDE,
};

enum {
	RANKS = 8,
	SIG_DATA = 0,
	SIG_READ = 8,
	SIG_DONE = 16,
	SIG_RATE = 24,
	SIGNALS = 32
}; /* + sender */

/* A rank of such a job. */
struct gpu_rank {
	struct rank r;
	uint8_t *gpu,
		*host; /* regions: [world + 1] parts; the last one is what this rank sends from; then RATE_BYTES */
	uint8_t *plain, *want; /* a slot each, ordinary memory */
	uint64_t bytes, bytes_checked;
};

#define CHECK(g, condition) RANK_CHECK(&(g)->r, condition)

static inline uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15ull;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}

static inline void fill(uint8_t *at, uint32_t bytes, uint64_t key)
{
	for (uint32_t i = 0; i < bytes; i += 8) {
		uint64_t v = mix(key + i);

		memcpy(at + i, &v, bytes - i < 8 ? bytes - i : 8);
	}
}

/*
 * gpu_rate.c. Collective, `count` messages a sender; prints one line. pairs: every rank with an even number sends to the one behind it as fast
 * as it can, else only rank 0 to the last one: with two devices always from the first to the second. The bytes of the last lap are compared.
 */
void gpu_rate(struct gpu_rank *g, const char *what, uint32_t count, uint32_t bytes, bool pairs,
	      uint64_t seed);
/* One put with its signal, and one back, again and again. */
void gpu_round_trip(struct gpu_rank *g, const char *what, uint32_t bytes);
/*
 * On a machine with many CPUs each engine of `ranks` gets one to itself, with no thread of this process on the one beside it, which may be
 * the same core: figures that can be repeated. Returns how many settings were made, of *text.
 */
int gpu_own_cpus(uint32_t rank, uint32_t ranks, char text[32]);

#endif
