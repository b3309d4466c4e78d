/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernels of `ep-bench p2p --gpu` (p2p.cuh) and the program that launches them (bench/p2p/gpu.c) agree on. Included as C, CUDA
 * and HIP.
 */
#ifndef EPF_KERNELS_BENCH_P2P_BENCH_H
#define EPF_KERNELS_BENCH_P2P_BENCH_H

#include <stdint.h>

/* What is transferred. */
enum p2p_bench_op {
	P2P_BENCH_PUT = 0,
	P2P_BENCH_PUT_SIGNAL = 1,
	P2P_BENCH_GET = 2,
	P2P_BENCH_PUT_ADD = 3, /* trips only: the signal is a word of GPU memory */
};

/* Arguments of both kernels; each uses what it needs. Addresses are device addresses, offsets lie in `region`. */
struct p2p_bench_args {
	uint64_t ctx;     /* struct epf_gpu_ctx */
	uint64_t result;  /* struct p2p_bench_result */
	uint64_t samples; /* uint64_t[count]: cycles of each transfer of p2p_bench_trips */
	uint64_t from;    /* offset of the first source: here, of a get at the peer */
	uint64_t to;      /* offset of the first target: at the peer, of a get here */
	uint64_t bytes;   /* of a transfer */
	uint64_t stride;  /* from one place to the next */
	uint64_t places;  /* that a stream goes round in */
	uint64_t count;   /* transfers in all */
	uint64_t seen;    /* value of signal 0, or of the word, before */
	uint64_t
		word; /* PUT_ADD: a word of the region at word_at, here; the peer's lies there too */
	uint64_t word_at; /* its offset */
	uint32_t peer;
	uint32_t region; /* the same number at both */
	uint32_t op;     /* enum p2p_bench_op */
	uint32_t lanes;  /* of a warp that push at once, in a stream */
	uint32_t warps;  /* of the grid */
	uint32_t first;  /* 1: puts first, then waits; 0: the other way round */
};

struct p2p_bench_result {
	int64_t rc;      /* 0, or the worst negative enum epf_gpu_code */
	uint64_t cycles; /* trips: of the whole, and the same in ns */
	uint64_t ns;
	uint64_t reserved;
};

#endif
