/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slow half of clock.h: the monotonic clock and the calibration of the time-stamp counter.
 * Called by set-up and wait code. Never called from a _hot file.
 */
#include "fabric/base/clock.h"

#include <pthread.h>
#include <time.h>

#define NS_PER_S       1000000000ull
#define CALIBRATION_NS 20000000ull

static pthread_once_t once = PTHREAD_ONCE_INIT;
static uint64_t hz;
/* Nanoseconds of a tick times 2^shift, of 63 bits: a multiplication is much cheaper than a division, and a core asks twice a step. */
static uint64_t ratio;
static unsigned shift;

uint64_t epf_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * NS_PER_S + (uint64_t)ts.tv_nsec;
}

#if defined(__aarch64__)
static void calibrate(void)
{
	__asm__ volatile("mrs %0, cntfrq_el0" : "=r"(hz));
	if (!hz)
		hz = NS_PER_S;
}
#else
/*
 * Both clocks at nearly the same instant: of several tries, the one with the fewest ticks between
 * its two counter reads was the least disturbed.
 */
static void sample(uint64_t *tsc, uint64_t *ns)
{
	uint64_t best = UINT64_MAX;

	for (int i = 0; i < 16; i++) {
		uint64_t before = epf_tsc();
		uint64_t now = epf_now_ns();
		uint64_t after = epf_tsc();

		if (after - before < best) {
			best = after - before;
			*tsc = before + best / 2;
			*ns = now;
		}
	}
}

static void calibrate(void)
{
	struct timespec rest = { .tv_nsec = CALIBRATION_NS };
	uint64_t tsc0 = 0, tsc1 = 0, ns0 = 0, ns1 = 0;

	sample(&tsc0, &ns0);
	do {
		nanosleep(&rest, NULL); /* a signal may cut it short: look at the clock */
		sample(&tsc1, &ns1);
	} while (ns1 - ns0 < CALIBRATION_NS / 2);
	hz = (uint64_t)((unsigned __int128)(tsc1 - tsc0) * NS_PER_S / (ns1 - ns0));
	if (!hz)
		hz = 1;
}
#endif

static void prepare(void)
{
	calibrate();
	while (((unsigned __int128)NS_PER_S << (shift + 1)) / hz < (uint64_t)1 << 63)
		shift++;
	ratio = (uint64_t)(((unsigned __int128)NS_PER_S << shift) / hz);
}

uint64_t epf_tsc_hz(void)
{
	pthread_once(&once, prepare);
	return hz;
}

uint64_t epf_tsc_to_ns(uint64_t ticks)
{
	pthread_once(&once, prepare);
	return (uint64_t)((unsigned __int128)ticks * ratio >> shift);
}
