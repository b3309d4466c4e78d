/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Entry points of the kernels of compressed chunks for nvcc; hipcc only proves that they compile, because nvCOMP is CUDA's. Built into a fat binary
 * that libepf carries. The plain C form of the same: pack_cpu.c.
 */
#include "kernels/pack/epf_pack.cuh"

#if defined(__HIP__)
# define KERNEL extern "C" __attribute__((global)) void
# define JOB    const struct epf_pack_job
#else
# define KERNEL extern "C" __global__ void __launch_bounds__(EPF_PACK_THREADS)
# define JOB    const __grid_constant__ struct epf_pack_job
#endif

KERNEL epf_pack_k_move(JOB j)
{
	epf_pack_move(&j);
}

KERNEL epf_pack_k_split(JOB j)
{
	epf_pack_split(&j);
}

KERNEL epf_pack_k_join(JOB j)
{
	epf_pack_join(&j);
}

KERNEL epf_pack_k_sum(JOB j)
{
	epf_pack_sum(&j);
}

KERNEL epf_pack_k_close(JOB j)
{
	epf_pack_close(&j);
}

KERNEL epf_pack_k_verdict(JOB j)
{
	epf_pack_verdict(&j);
}
