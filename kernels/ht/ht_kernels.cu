/* SPDX-License-Identifier: Apache-2.0 */
/* Entry points of the high-throughput kernels for nvcc and hipcc. Names: ht_open.c. The plain C form of the same: ht_cpu.c. */
#include "kernels/ht/epf_ht_fold.cuh"

/* CUDA: the argument is used where it lies, in constant memory; HIP's compilers do so by themselves. */
#if defined(__HIP__)
# define KERNEL __attribute__((global, amdgpu_flat_work_group_size(1, 512))) void
# define JOB    const struct ht_job
#else
# define KERNEL __global__ void __launch_bounds__(512)
# define JOB    const __grid_constant__ struct ht_job
#endif

namespace ep_fabric
{
namespace ht
{

KERNEL layout(JOB j)
{
	ht_layout(&j);
}

KERNEL notify(JOB j)
{
	ht_notify(&j);
}

KERNEL cached_notify(JOB j)
{
	ht_ready(&j);
}

KERNEL dispatch(JOB j)
{
	ht_dispatch(&j);
}

KERNEL counted_dispatch(JOB j)
{
	ht_counted_dispatch(&j);
}

KERNEL combine(JOB j)
{
	ht_combine(&j);
}

KERNEL tally(JOB j)
{
	ht_tally(&j);
}

KERNEL number(JOB j)
{
	ht_number(&j);
}

KERNEL groups(JOB j)
{
	ht_groups(&j);
}

KERNEL spread(JOB j)
{
	ht_spread(&j);
}

KERNEL fold(JOB j)
{
	ht_fold(&j);
}

} // namespace ht
} // namespace ep_fabric
