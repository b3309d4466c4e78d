/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the ring benchmark's kernels (ring.cuh) and the program that launches them (bench/ring_gpu*.c) agree on: arguments, results, and the
 * content of a test command. Included as C, CUDA and HIP.
 *
 * A test command is a function of who pushed it and of its place in that producer's sequence, in all 126 bits: the low half says both, the
 * high half is a hash of the low one. So a consumer sees loss, duplicates, tears and wrong order of every single command.
 */
#ifndef EPF_KERNELS_BENCH_RING_BENCH_H
#define EPF_KERNELS_BENCH_RING_BENCH_H

#include "queues/epf_cmd.h"

#include <stdint.h>

#define RING_BENCH_PRODUCER_BITS 14u
#define RING_BENCH_PRODUCERS     (1u << RING_BENCH_PRODUCER_BITS)

/* What a kernel does. */
enum ring_bench_kind {
	RING_BENCH_RAW = 0, /* test commands, for a consumer that checks each */
	RING_BENCH_PUT =
		1, /* puts of `bytes` to rank 0 itself, for an engine; then a wait for the last */
};

/* Arguments of every kernel; each uses what it needs. Addresses are device addresses. */
struct ring_bench_args {
	uint64_t ctx;     /* struct epf_gpu_ctx */
	uint64_t results; /* struct ring_bench_result[] */
	uint64_t samples; /* uint64_t[]: cycles of each round trip */
	uint64_t payload; /* GPU memory that is written before fenced commands */
	uint64_t flag;    /* pinned host word: commands of the bare round trip go here */
	uint64_t ack;     /* pinned host word: where they are acknowledged */
	uint64_t stop;    /* pinned host word: not 0 ends a busy kernel */
	uint64_t
		halt; /* word in GPU memory, 0 at first: by which the first warp of a busy kernel stops the others */
	uint64_t peer; /* memory of another GPU that a busy kernel writes */
	uint64_t peer_bytes;
	uint64_t count;    /* pushes of each warp, or round trips */
	uint64_t pace;     /* cycles from one push of a warp to its next; 0: as fast as it goes */
	uint64_t limit_ns; /* a busy kernel ends by itself after this */
	uint32_t kind;     /* enum ring_bench_kind */
	uint32_t shared;   /* 1: the shared ring, 0: a private one, if one is free */
	uint32_t lanes;    /* lanes of a warp that push at once: 1 .. warp */
	uint32_t bytes;    /* of a put */
	uint32_t
		wide; /* not 0: every so many puts of a warp are a byte longer, which makes them wide commands */
	uint32_t batch; /* commands of one round trip, or behind one fence */
	uint32_t
		fence; /* 1: payload is written and a fence made before each batch; 2: written, no fence */
};

/* Bytes of put number `seq` of a warp. */
EPF_CMD_FN uint32_t ring_bench_bytes(const struct ring_bench_args *a, uint64_t seq)
{
	return a->bytes + (a->wide && seq % a->wide == 0 ? 1u : 0u);
}

/* What a warp reports. */
struct ring_bench_result {
	int64_t rc;      /* 0, or negative enum epf_gpu_code */
	uint64_t pushed; /* commands */
	uint64_t cycles; /* of the whole */
	uint64_t inside; /* cycles inside push calls */
	uint64_t ns;     /* of the whole */
	uint64_t shared; /* 1: it got no private ring */
	uint64_t reserved[2];
};

/* A mixing function: every bit of the result depends on every bit of x. Source: the finaliser of splitmix64. */
EPF_CMD_FN uint64_t ring_bench_mix(uint64_t x)
{
	x += UINT64_C(0x9e3779b97f4a7c15);
	x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
	return x ^ (x >> 31);
}

/* Command number `seq` of a producer, parity 0. */
EPF_CMD_FN struct epf_cmd ring_bench_cmd(uint32_t producer, uint64_t seq)
{
	struct epf_cmd c;

	c.lo = (seq << RING_BENCH_PRODUCER_BITS | producer) << 1;
	c.hi = ring_bench_mix(c.lo) & ~(uint64_t)1;
	return c;
}

#endif
