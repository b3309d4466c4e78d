/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preferred memory nodes (numa.h), by libnuma.so.1. MPOL_PREFERRED falls back to other nodes when one is full.
 */
#include "fabric/place/numa.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>

enum { PREFERRED = 1 /* MPOL_PREFERRED of the kernel's ABI */ };

static struct epf_numa_lib table;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void load(void)
{
	static void *library; /* stays open */
	void *get, *set;

	library = dlopen("libnuma.so.1", RTLD_NOW | RTLD_LOCAL);
	get = library ? dlsym(library, "get_mempolicy") : NULL;
	set = library ? dlsym(library, "set_mempolicy") : NULL;

	if (!get || !set)
		return;
	memcpy(&table.get, &get, sizeof(get));
	memcpy(&table.set, &set, sizeof(set));
}

const struct epf_numa_lib *epf_numa_lib(void)
{
	pthread_once(&once, load);
	return table.set ? &table : NULL;
}

int epf_numa_begin(const struct epf_numa_lib *lib, int node, struct epf_numa *before)
{
	unsigned long mask[sizeof(before->mask) / sizeof(before->mask[0])] = { 0 };
	unsigned bits = 8 * sizeof(mask[0]);

	memset(before, 0, sizeof(*before));
	if (!lib || node < 0)
		return 0;
	if (node >= EPF_NUMA_NODES)
		return -EINVAL;
	if (lib->get(&before->mode, before->mask, EPF_NUMA_NODES, NULL, 0))
		return -errno;
	mask[(unsigned)node / bits] = 1ul << (unsigned)node % bits;
	if (lib->set(PREFERRED, mask, EPF_NUMA_NODES))
		return -errno;
	before->is_set = true;
	return 0;
}

void epf_numa_end(const struct epf_numa_lib *lib, struct epf_numa *before)
{
	if (lib && before->is_set)
		lib->set(before->mode, before->mask, EPF_NUMA_NODES);
	before->is_set = false;
}
