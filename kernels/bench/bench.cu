/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Entry points of the benchmarks' kernels (ring.cuh, p2p.cuh), for nvcc and hipcc. Built into a fat binary that `ep-bench`
 * carries and loads through the driver. Arguments come by value.
 */
#include "kernels/bench/p2p.cuh"
#include "kernels/bench/ring.cuh"

#if defined(__HIP__)
# define KERNEL extern "C" __attribute__((global)) void
#else
# define KERNEL extern "C" __global__ void
#endif

KERNEL ring_bench_push_kernel(struct ring_bench_args a)
{
	ring_bench_push(&a);
}

KERNEL ring_bench_round_kernel(struct ring_bench_args a)
{
	ring_bench_round(&a);
}

KERNEL ring_bench_flag_kernel(struct ring_bench_args a)
{
	ring_bench_flag(&a);
}

KERNEL ring_bench_busy_kernel(struct ring_bench_args a)
{
	ring_bench_busy(&a);
}

KERNEL ring_bench_hang_kernel(struct ring_bench_args a)
{
	ring_bench_hang(&a);
}

KERNEL p2p_bench_trips_kernel(struct p2p_bench_args a)
{
	p2p_bench_trips(&a);
}

KERNEL p2p_bench_stream_kernel(struct p2p_bench_args a)
{
	p2p_bench_stream(&a);
}
