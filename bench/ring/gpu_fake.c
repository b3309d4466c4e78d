/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of ep-bench ring --gpu and p2p --gpu as C functions for the fake GPU back-end: each block is a thread, each warp has one lane. So the device
 * API, the rings and the whole benchmark run, and are tested, on machines without a GPU. Slow, and its figures mean nothing.
 */
#include "bench/ring/gpu.h"
#include "fabric/gpu/fake.h"
#include "kernels/bench/p2p.cuh"
#include "kernels/bench/ring.cuh"

#include <pthread.h>

enum { THREADS_MAX = 256 };

struct block {
	pthread_t thread;
	void (*body)(const void *args);
	const void *args;
	uint32_t number;
};

static void *run_block(void *arg)
{
	struct block *b = arg;

	epf_host_block = b->number;
	b->body(b->args);
	return NULL;
}

/* A grid of at most THREADS_MAX blocks, all at once: kernels may wait for each other. */
static void run_grid(const struct epf_gpu_launch *l, void (*body)(const void *args))
{
	struct block blocks[THREADS_MAX];
	uint32_t n = l->grid < THREADS_MAX ? l->grid : THREADS_MAX;
	uint32_t started = 0;

	while (started < n) {
		struct block *b = &blocks[started];

		*b = (struct block){ .body = body, .args = l->args[0], .number = started };
		if (pthread_create(&b->thread, NULL, run_block, b))
			break;
		started++;
	}
	while (started)
		pthread_join(blocks[--started].thread, NULL);
}

/* A kernel as the fake back-end launches it; its only argument comes by value. */
#define KERNEL(name, body, type)                  \
 static void name##_block(const void *args)       \
 {                                                \
  body((const type *)args);                       \
 }                                                \
 static void name(const struct epf_gpu_launch *l) \
 {                                                \
  run_grid(l, name##_block);                      \
 }

KERNEL(push, ring_bench_push, struct ring_bench_args)
KERNEL(round_trips, ring_bench_round, struct ring_bench_args)
KERNEL(flag, ring_bench_flag, struct ring_bench_args)
KERNEL(hang, ring_bench_hang, struct ring_bench_args)
KERNEL(p2p_trips, p2p_bench_trips, struct p2p_bench_args)
KERNEL(p2p_stream, p2p_bench_stream, struct p2p_bench_args)

static void busy(const struct epf_gpu_launch *l)
{
	/* A launch of the fake is over when it returns: nothing can be busy beside it. */
}

const struct epf_gpu_fake_kernel ring_gpu_fake_kernels[] = {
	{ "ring_bench_push_kernel", push },        { "ring_bench_round_kernel", round_trips },
	{ "ring_bench_flag_kernel", flag },        { "ring_bench_busy_kernel", busy },
	{ "ring_bench_hang_kernel", hang },        { "p2p_bench_trips_kernel", p2p_trips },
	{ "p2p_bench_stream_kernel", p2p_stream }, { NULL, NULL },
};
