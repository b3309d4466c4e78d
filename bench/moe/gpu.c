/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-bench moe --gpu: gives way to gpu.py, which calls deep_ep.Buffer as programs do, so that what users wait for is what is measured. Reads no options but
 * --gpu.
 */
#include "bench/common/bench.h"
#include "bench/moe/moe.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#define SCRIPT "ep-bench-moe-gpu"

bool moe_wants_gpu(int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		if (!strcmp(argv[i], "--gpu"))
			return true;
	return false;
}

int moe_gpu_run(int argc, char **argv)
{
	char path[PATH_MAX];
	int n = 0;

	if (bench_find_program(SCRIPT, "--gpu", NULL, path, sizeof(path)))
		return BENCH_USAGE;
	for (int i = 0; i < argc; i++)
		if (strcmp(argv[i], "--gpu") != 0)
			argv[n++] = argv[i];
	argv[n] = NULL;
	argv[0] = path;
	(void)execv(path, argv);
	bench_complain("%s cannot be run: %s", path, strerror(errno));
	return BENCH_USAGE;
}
