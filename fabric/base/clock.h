/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Time in two forms: the monotonic clock in nanoseconds for deadlines, and the CPU's time-stamp
 * counter for measuring inside the engine's loop. Used everywhere. epf_tsc() may be called from
 * hot code; the rest is for slow paths and must never be called there.
 */
#ifndef EPF_BASE_CLOCK_H
#define EPF_BASE_CLOCK_H

#include <stdint.h>

/**
 * epf_tsc() - the time-stamp counter of this CPU, in ticks of epf_tsc_hz().
 *
 * Not a barrier: the CPU may read it a little before or after its neighbours (Intel SDM, RDTSC;
 * Arm ARM, CNTVCT_EL0). Counters of the CPUs of one machine are assumed to be synchronous; a
 * difference between two CPUs may still be some ticks negative, so compare as signed.
 */
static inline uint64_t epf_tsc(void)
{
#if defined(__x86_64__) || defined(__i386__)
	/* Not by <x86intrin.h>, whose 60 headers take longer to compile than most files that include this one. */
	return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
	uint64_t t;

	__asm__ volatile("mrs %0, cntvct_el0" : "=r"(t));
	return t;
#else
# error "no time-stamp counter known for this architecture"
#endif
}

/**
 * epf_tsc_hz() - ticks of epf_tsc() in a second, never 0.
 *
 * The first call measures against CLOCK_MONOTONIC for about 20 ms (x86) or reads the architected
 * frequency (aarch64); later calls return that number. Error below 0.01 % on an idle machine.
 */
uint64_t epf_tsc_hz(void);

/* epf_tsc_to_ns() - a difference of epf_tsc() in nanoseconds. */
uint64_t epf_tsc_to_ns(uint64_t ticks);

/* epf_now_ns() - CLOCK_MONOTONIC in nanoseconds, see clock_gettime(2). */
uint64_t epf_now_ns(void);

#endif
