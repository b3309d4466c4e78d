/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank of test_shim.py: a program with a DeepEP and a PyTorch in it, which knows nothing of the shim that is preloaded.
 *   shim_rank RANK WORLD ID-FILE NVSHMEM-VERSION
 * Exit status: 0, 1 when something was wrong, 3 when NVSHMEM would not start.
 */
#include "tests/proc/shim_kernels.h"

#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
	int rc;

	if (argc != 5)
		return 2;
	if (torch_play())
		return 1;
	rc = deep_ep_play(atoi(argv[1]), atoi(argv[2]), argv[3], argv[4]);
	return rc ? rc : torch_play();
}
