/* SPDX-License-Identifier: Apache-2.0 */
/* What an adder (adder.h) needs of a driver: a stream in each of two contexts of one device. Filled by copy_driver_add.c, copy_fake.c and a test. */
#ifndef EPF_FABRIC_GPU_ADDER_SIDE_H
#define EPF_FABRIC_GPU_ADDER_SIDE_H

#include "fabric/gpu/copy.h"

#include <stdbool.h>
#include <stdint.h>

struct epf_adder_side; /* a stream in one of the two contexts */

struct epf_adder_batch {
	uint64_t number; /* from 1 on, rises */
	uint64_t claim;  /* address of the word of claims; 0: nobody else gets this batch */
	unsigned n;
	struct epf_copy_add adds[EPF_COPY_ADDS];
};

struct epf_adder_ops {
	/* A stream in the usual context (may wait for loads), or in one of its own. */
	int (*open)(int device, bool is_own, struct epf_adder_side **out);
	/* Waits for what was launched. Accepts NULL. */
	void (*close)(struct epf_adder_side *side);
	/* The word of claims, zeroed at open: in GPU memory that both contexts reach. Of the usual side. */
	uint64_t (*claim)(const struct epf_adder_side *side);
	/* Launches a batch after those before it. On the usual side it may wait for loads. *batch is copied. */
	int (*launch)(struct epf_adder_side *side, const struct epf_adder_batch *batch);
	/* The newest number that this side has made [acquire]. Any thread, waits for nothing. */
	uint64_t (*done)(const struct epf_adder_side *side);
	/* Returns 0, or -errno with a reason if kernels of this side failed. May wait as launch() does. */
	int (*check)(struct epf_adder_side *side);
	/* True if kernels of the usual context may be given this address. */
	bool (*is_usual)(uint64_t addr);
};

#endif
