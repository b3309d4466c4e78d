/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Entry points of the low-latency kernels for nvcc and hipcc. Built into a fat binary that libepf-ll carries and loads through the driver; the
 * argument comes by value. The plain C form of the same: ll_cpu.c.
 */
#include "kernels/ll/epf_ll_combine.cuh"
#include "kernels/ll/epf_ll_dispatch.cuh"

/* CUDA: the argument is used where it lies, in constant memory; HIP's compilers do so by themselves. */
#if defined(__HIP__)
# define KERNEL extern "C" __attribute__((global)) void
# define JOB    const struct ll_job
#else
# define KERNEL extern "C" __global__ void __launch_bounds__(512)
# define JOB    const __grid_constant__ struct ll_job
#endif

KERNEL epf_ll_dispatch_send_kernel(JOB j)
{
	ll_dispatch_send(&j);
}

KERNEL epf_ll_dispatch_recv_kernel(JOB j)
{
	ll_dispatch_recv(&j);
}

KERNEL epf_ll_combine_send_kernel(JOB j)
{
	ll_combine_send(&j);
}

KERNEL epf_ll_combine_recv_kernel(JOB j)
{
	ll_combine_recv(&j);
}

KERNEL epf_ll_mask_set_kernel(JOB j)
{
	ll_mask_set(&j);
}

KERNEL epf_ll_mask_get_kernel(JOB j)
{
	ll_mask_get(&j);
}

KERNEL epf_ll_reset_kernel(JOB j)
{
	ll_reset(&j);
}
