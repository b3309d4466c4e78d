/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Entry points of the low-latency kernels for nvcc and hipcc. Built into a fat binary that libepf-ll carries and loads through the driver; the
 * argument comes by value. The plain C form of the same: ll_cpu.c.
 */
#include "kernels/ll/epf_ll_combine.cuh"
#include "kernels/ll/epf_ll_dispatch.cuh"

#if defined(__HIP__)
# define KERNEL extern "C" __attribute__((global)) void
#else
# define KERNEL extern "C" __global__ void
#endif

KERNEL epf_ll_dispatch_send_kernel(struct ll_job j)
{
	ll_dispatch_send(&j);
}

KERNEL epf_ll_dispatch_recv_kernel(struct ll_job j)
{
	ll_dispatch_recv(&j);
}

KERNEL epf_ll_combine_send_kernel(struct ll_job j)
{
	ll_combine_send(&j);
}

KERNEL epf_ll_combine_recv_kernel(struct ll_job j)
{
	ll_combine_recv(&j);
}

KERNEL epf_ll_mask_set_kernel(struct ll_job j)
{
	ll_mask_set(&j);
}

KERNEL epf_ll_mask_get_kernel(struct ll_job j)
{
	ll_mask_get(&j);
}

KERNEL epf_ll_reset_kernel(struct ll_job j)
{
	ll_reset(&j);
}
