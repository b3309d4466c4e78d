/* SPDX-License-Identifier: Apache-2.0 */
/*
 * This process is one rank of a job that a launcher started: ep-fabric launch, torchrun, srun or mpirun. Used by ep-bench moe
 * --launched. Must start no process: the other ranks are started by the same launcher.
 */
#ifndef EPF_BENCH_LAUNCHED_H
#define EPF_BENCH_LAUNCHED_H

#include <stddef.h>
#include <stdint.h>

struct epf_boot;

struct bench_launched {
	uint32_t rank;
	uint32_t ranks;
	uint32_t nodes; /* different node names among the ranks */
	struct epf_boot *boot;
};

/**
 * bench_launched_meet() - find out which rank this is, meet the others, count the nodes.
 * @timeout_ns: of each wait, also later ones of boot.
 *
 * Nodes must be placed as bench_nodes() (world.h) says: in blocks, as even as can be. Complaints name the rank from then on.
 * Return: 0, the caller closes out->boot; or -errno after a complaint.
 */
int bench_launched_meet(uint64_t timeout_ns, struct bench_launched *out);

/**
 * bench_launched_gather() - give `bytes` bytes and get those of all ranks: each(arg, bytes) in rank order.
 *
 * Return: 0, or -errno after a complaint; -EPROTO if a rank gives another number of bytes, as another release would.
 */
int bench_launched_gather(struct epf_boot *boot, const void *mine, size_t bytes,
			  void (*each)(void *arg, const void *bytes), void *arg);

#endif
