/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The yardstick: a bare single-producer single-consumer rte_ring of 16-byte elements between two
 * threads. Used by ep-bench core and ring. The only file pair that knows DPDK here.
 */
#ifndef EPF_BENCH_RTE_H
#define EPF_BENCH_RTE_H

#include <stdint.h>

/* What a transfer measured. */
struct bench_transfer {
	double per_second; /* elements */
	uint64_t elements;
	int same; /* 1: the consumer's sum equals the producer's */
};

/*
 * Moves elements through a ring of `slots` (a power of two) for `seconds`, in bursts of at most
 * `burst` (1..256). The caller's thread consumes on the first CPU, a new thread produces on
 * the second. Return 0 or -errno.
 */
int bench_rte_transfer(unsigned slots, unsigned burst, double seconds, struct bench_transfer *out);

/* Median time of a round trip of one element over two rings, ns; `rounds` of them. */
int bench_rte_round_trip(unsigned slots, unsigned rounds, double *ns);

#endif
