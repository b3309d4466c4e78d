/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine core with fake peers on any NIC that needs no peer (null), for `ep-bench core`, `ep-bench empty` and the no-system-call
 * test. Creation is slow path; the caller then steps the core and pushes commands into its ring.
 */
#ifndef EPF_FABRIC_ENGINE_BENCH_CORE_H
#define EPF_FABRIC_ENGINE_BENCH_CORE_H

#include "fabric/engine/engine.h"

struct epf_bench_core_options {
	const char
		*nic;   /* "null", or "verbs" over a provider that completes all (ep-bench empty) */
	uint32_t peers; /* ranks of the fake job, 1..4096 */
	uint32_t regions; /* per rank, local and remote, 1..16 */
	uint64_t
		region_bytes; /* of each; only numbers: no such memory is touched on the null NIC */
	uint32_t signals;     /* of each rank */
	uint32_t ring_slots;  /* power of two */
	uint32_t batch;       /* commands per dequeue, 1..256 */
	uint32_t rings;       /* 0: 1 */
	uint32_t lanes_per_peer; /* 0: 1 */
	uint32_t lane_depth;     /* 0: 64 */
	int lists; /* verbs: ibv_post_send lists even where there are ibv_wr_ functions */
	/*
	 * Directory of its statistics file `bench`, with the watch of a real job's engine. NULL: in memory, without a watch.
	 */
	const char *stats_dir;
};

struct epf_bench_core;

int epf_bench_core_create(const struct epf_bench_core_options *opts, struct epf_bench_core **out);
void epf_bench_core_destroy(struct epf_bench_core *bc);
/* The core to step: epf_core_step(). */
struct epf_core *epf_bench_core_of(struct epf_bench_core *bc);
/* Ring i to push to: epf_ring_producer_init(&p, shm, 0). */
struct epf_ring_shm *epf_bench_core_ring(struct epf_bench_core *bc, uint32_t i);
/* With or without its flight recorder; with it when it is made. Between two steps. */
void epf_bench_core_recorder(struct epf_bench_core *bc, int on);
/* Between two steps, with stats_dir: the watch looks if it is time, and the file's writer gives a sign of life, as in a real run loop. */
void epf_bench_core_look(struct epf_bench_core *bc);
/* A counter of class core by its constant, EPF_STAT_CORE_*. */
uint64_t epf_bench_core_counter(struct epf_bench_core *bc, uint32_t stat);

#endif
