/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stand-in for PyTorch, which also uses NVSHMEM's host library: functions that the shim has and one that it lacks. Despite the preload it
 * must reach the real library, with unchanged arguments.
 */
#include "tests/proc/shim_kernels.h"
#include "tools/shim/host.h"

void *nvshmem_malloc(size_t bytes);

int torch_play(void)
{
	struct epf_nv_version v = { 3, 4, 5 };
	int word = 0, provided = 5;
	int32_t team = 0;

	MUST(nvshmem_malloc(99) == (void *)100);
	MUST(nvshmem_my_pe() == 4242);
	MUST(nvshmemid_init_status() == 77);
	MUST(nvshmemx_get_uniqueid(NULL) == 77);
	MUST(nvshmemx_set_attr_uniqueid_args(1, 2, NULL, NULL) == 77);
	MUST(nvshmemid_hostlib_init_attr(1000, &provided, 8, NULL, v, NULL) == 1000 + 8 + 345);
	MUST(provided == 5);
	MUST(nvshmem_align(64, 36) == (void *)100);
	nvshmem_free(&word);
	MUST(word == 77);
	word = 0;
	nvshmemid_hostlib_finalize(&word, NULL);
	MUST(word == 77);
	word = 0;
	nvshmemx_barrier_all_on_stream(&word);
	MUST(word == 77);
	MUST(nvshmem_team_split_strided(1, 2, 3, 4, NULL, 5, &team) == 77 && team == 15);
	nvshmem_team_destroy(3);
	nvshmem_barrier_all();
	return 0;
}
