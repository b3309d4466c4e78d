/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Entry points of the low-latency kernels for nvcc and hipcc. Built into a fat binary that libepf-ll carries and loads through the driver; the
 * argument comes by value. Names: ll_gpu.c. The plain C form of the same: ll_cpu.c.
 */
#include "kernels/ll/epf_ll_combine.cuh"
#include "kernels/ll/epf_ll_dispatch.cuh"
#include "kernels/ll/epf_ll_meet.cuh"

/* CUDA: the argument is used where it lies, in constant memory; HIP's compilers do so by themselves. */
#if defined(__HIP__)
# define KERNEL __attribute__((global, amdgpu_flat_work_group_size(1, 512))) void
# define JOB    const struct ll_job
#else
# define KERNEL __global__ void __launch_bounds__(512, 1)
# define JOB    const __grid_constant__ struct ll_job
#endif

namespace ep_fabric
{

KERNEL dispatch(JOB j)
{
	ll_dispatch(&j);
}

KERNEL combine(JOB j)
{
	ll_combine(&j);
}

KERNEL combine_sums(JOB j)
{
	ll_combine_sums(&j);
}

KERNEL mask_set(JOB j)
{
	ll_mask_set(&j);
}

KERNEL mask_get(JOB j)
{
	ll_mask_get(&j);
}

KERNEL reset(JOB j)
{
	ll_reset(&j);
}

} // namespace ep_fabric
