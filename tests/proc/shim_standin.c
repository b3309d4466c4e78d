/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stand-in for NVSHMEM's host library: the same symbols with the same symbol version, each with a distinctive result. The test's modules
 * are linked against it, so symbols bind as in a real program.
 */
#include "tools/shim/host.h"

#pragma GCC visibility push(default)
void *nvshmem_malloc(size_t bytes);

int nvshmem_selected_device_transport;

void *nvshmem_malloc(size_t bytes)
{
	return (void *)(uintptr_t)(bytes + 1);
}

int nvshmemx_get_uniqueid(struct epf_host_id *id)
{
	return 77;
}

int nvshmemx_set_attr_uniqueid_args(const int rank, const int world, const struct epf_host_id *id,
				    struct epf_host_attr *attr)
{
	return 77;
}

int nvshmemid_hostlib_init_attr(int requested, int *provided, unsigned flags,
				struct epf_host_attr *attr, struct epf_nv_version version,
				epf_host_states_fn device_states)
{
	return requested + (int)flags + version.major * 100 + version.minor * 10 + version.patch;
}

int nvshmemid_init_status(void)
{
	return 77;
}

void nvshmemid_hostlib_finalize(void *device, void *transport)
{
	*(int *)device = 77;
}

int nvshmem_my_pe(void)
{
	return 4242;
}

void *nvshmem_align(size_t alignment, size_t bytes)
{
	return (void *)(uintptr_t)(alignment + bytes);
}

void nvshmem_free(void *addr)
{
	*(int *)addr = 77;
}

void nvshmem_barrier_all(void)
{
}

void nvshmemx_barrier_all_on_stream(void *stream)
{
	*(int *)stream = 77;
}

int nvshmem_team_split_strided(int32_t parent, int start_pe, int stride, int size,
			       const void *config, long mask, int32_t *team)
{
	*team = parent + start_pe + stride + size + (int)mask;
	return 77;
}

void nvshmem_team_destroy(int32_t team)
{
}

#pragma GCC visibility pop
