/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank of test_shim.py: a program with stand-ins for DeepEP and PyTorch, unaware of the preloaded shim.
 *   shim_rank RANK WORLD ID-FILE NVSHMEM-VERSION DEEP-EP-MODULE TORCH-MODULE
 * Exit status: 0, 1 if something was wrong, 3 if NVSHMEM did not start. The modules are opened RTLD_LOCAL, as Python does.
 */
#include "tests/proc/shim_kernels.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static void *function(const char *module, const char *name)
{
	void *handle = dlopen(module, RTLD_NOW | RTLD_LOCAL), *at = NULL;

	if (handle)
		at = dlsym(handle, name);
	if (!at) {
		fprintf(stderr, "%s\n", dlerror());
		exit(2);
	}
	return at;
}

int main(int argc, char **argv)
{
	__typeof__(&deep_ep_play) deep_ep;
	__typeof__(&torch_play) torch;
	int rc;

	if (argc != 7)
		return 2;
	torch = (__typeof__(&torch_play))(uintptr_t)function(argv[6], "torch_play");
	deep_ep = (__typeof__(&deep_ep_play))(uintptr_t)function(argv[5], "deep_ep_play");
	if (torch())
		return 1;
	rc = deep_ep(atoi(argv[1]), atoi(argv[2]), argv[3], argv[4]);
	return rc ? rc : torch();
}
