/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Additions to GPU memory by two CUDA contexts (copy.h, tables with "own context"). An addition is a kernel. In the context of our own it waits for no load of the
 * program's, but kernels of two contexts take turns, 2 ms beside a kernel that waits. In the usual context it takes microseconds, but its launch waits for loads. So a batch
 * goes to the usual context first and, if it is late, to the other one too. The kernel that claims the batch first makes its additions, the other one makes none: each
 * batch has a number, and a word in GPU memory holds the highest number that was claimed.
 *
 * One batch is under way at a time: batches become visible in their order, whichever context makes them. A thread launches in the usual context, because that may
 * wait; all other functions are called by the copier's thread. Slow path.
 */
#ifndef EPF_FABRIC_GPU_ADDER_H
#define EPF_FABRIC_GPU_ADDER_H

#include "fabric/gpu/adder_side.h"

#include <stdint.h>

struct epf_adder;

/* How batches were made, for tests and probes. */
struct epf_adder_counts {
	uint64_t batches;
	uint64_t usual; /* given to the usual context */
	uint64_t late;  /* of these, given to the other one too */
};

/* Opens the own side, and the usual one in the background: until that is there, or if it fails, the own side makes all additions. */
int epf_adder_open(const struct epf_adder_ops *ops, int device, struct epf_adder **out);
/* Waits for what is under way, and for a launch in the usual context that a load holds up. Accepts NULL. */
void epf_adder_close(struct epf_adder *adder);
/* As add() and reached() of struct epf_copy_ops. */
int epf_adder_add(struct epf_adder *adder, const struct epf_copy_add *adds, unsigned n,
		  uint64_t value);
uint64_t epf_adder_reached(struct epf_adder *adder);
/* The thread that calls add(). */
struct epf_adder_counts epf_adder_counts(const struct epf_adder *adder);

#endif
