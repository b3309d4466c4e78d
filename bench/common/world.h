/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All ranks of a job inside one process, driven by one thread: progress=caller, in-process
 * bootstrap. Called by ep-bench moe --local and by the tests. Never starts a thread.
 */
#ifndef EPF_BENCH_WORLD_H
#define EPF_BENCH_WORLD_H

#include "fabric/client/epf.h"

#include <stdint.h>

struct epf_boot_group;

struct bench_world {
	uint32_t ranks;
	struct epf_boot_group *group;
	struct epf_boot **boot; /* [ranks] */
	struct epf **ep;        /* [ranks] */
};

/* Node of each rank: contiguous blocks, as even as can be, larger ones first. */
void bench_nodes(uint32_t ranks, uint32_t nodes, uint32_t *node_of);

/*
 * Opens all ranks. settings: NULL-terminated "name=value" list for all, or NULL; progress and
 * node are added. Return: 0 or -errno, text in epf_last_error(); on an error *w is empty.
 */
int bench_world_open(struct bench_world *w, uint32_t ranks, const uint32_t *node_of,
		     const char *const *settings);

/* Joins all ranks (after regions were registered). */
int bench_world_join(struct bench_world *w);

/* One step of every rank's engine; how much was done. arg: the world. */
int bench_world_progress(void *arg);

/* Ends all ranks. */
void bench_world_close(struct bench_world *w);

#endif
