/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank of test_gpu_job, shared by its parts (test_gpu_job.c: checked traffic; gpu_rate.c: rates).
 */
#ifndef EPF_TESTS_GPU_JOB_H
#define EPF_TESTS_GPU_JOB_H

#include "fabric/base/clock.h"
#include "tests/proc/svc_job.h"

#include <stdlib.h>
#include <string.h>

#define MS      UINT64_C(1000000)
#define WAIT_NS (60000 * MS)

enum { GPU = 1, HOST = 2 }; /* regions; 0 is small, or holds the signals */

enum {
	SLOTS = 16,     /* slots of one sender in a region; a round uses the first few */
	SLOT = 1 << 17, /* bytes of a slot */
	WORDS = 4096,   /* bytes for additions, at the end of a sender's part */
	PART = SLOTS * SLOT + WORDS,
	RATE_SLOTS = 1024,
	RATE_STRIDE = 16384,
	RATE_BYTES = RATE_SLOTS * RATE_STRIDE,
};

enum {
	SIG_DATA = 0,
	SIG_READ = 8,
	SIG_DONE = 16,
	SIG_RATE = 24,
}; /* + sender */

struct gpu_rank {
	struct job_rank r;
	const struct job_plan *plan;
	uint8_t *gpu,
		*host; /* regions: [world + 1] parts, the last one to send from; then RATE_BYTES */
	uint8_t *plain, *want; /* a slot each, ordinary memory */
	uint64_t bytes_checked;
};

#define CHECK(g, condition) JOB_CHECK(&(g)->r, condition)

static inline uint64_t mix(uint64_t x)
{
	return job_random(&x);
}

static inline void fill(uint8_t *at, uint32_t bytes, uint64_t key)
{
	for (uint32_t i = 0; i < bytes; i += 8) {
		uint64_t v = mix(key + i);

		memcpy(at + i, &v, bytes - i < 8 ? bytes - i : 8);
	}
}

/*
 * gpu_rate.c. Collective, `count` messages per sender; prints one line. pairs: every even rank sends to the next one as fast as it can;
 * otherwise rank 0 sends to the last one: with two devices always from the first to the second. Compares the bytes of the last lap.
 */
void gpu_rate(struct gpu_rank *g, const char *what, uint32_t count, uint32_t bytes, bool pairs,
	      uint64_t seed);
/* Ping-pong of put_signal between the first and the last rank. */
void gpu_round_trip(struct gpu_rank *g, const char *what, uint32_t bytes);
/*
 * For repeatable figures on a machine with many CPUs: gives each rank's engine a CPU to itself and keeps other threads of the process off
 * the next CPU, which may be the same core. Returns 1 with the setting in text, or 0.
 */
int gpu_own_cpus(uint32_t rank, uint32_t ranks, char text[32]);

#endif
