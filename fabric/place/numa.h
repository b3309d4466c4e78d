/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory from a chosen NUMA node while an engine is set up: libnuma, opened at run time. Called around the allocations of an engine by
 * who makes one (client/embedded_start.c, the daemon). It prefers and never insists: a machine without libnuma, without NUMA or whose
 * sandbox forbids it works as before.
 */
#ifndef EPF_FABRIC_PLACE_NUMA_H
#define EPF_FABRIC_PLACE_NUMA_H

#include <stdbool.h>

enum { EPF_NUMA_NODES = 1024 }; /* nodes that a kernel can have */

/* The calling thread's policy, kept to be put back. */
struct epf_numa {
	unsigned long mask[EPF_NUMA_NODES / (8 * sizeof(unsigned long))];
	int mode;
	bool is_set;
};

/* The functions used; as get_mempolicy(2) and set_mempolicy(2). */
struct epf_numa_lib {
	long (*get)(int *mode, unsigned long *mask, unsigned long max_node, void *addr,
		    unsigned long flags);
	long (*set)(int mode, const unsigned long *mask, unsigned long max_node);
};

/* epf_numa_lib() - libnuma's; NULL where it cannot be loaded. */
const struct epf_numa_lib *epf_numa_lib(void);

/**
 * epf_numa_begin() - from here on this thread's new memory comes from @node where there is some.
 * @lib: epf_numa_lib() or a table of a test; NULL: nothing happens.
 * @node: -1: nothing happens.
 * @before: what epf_numa_end() needs.
 *
 * Return: 0, also when nothing happens; minus errno when the kernel refuses, and nothing has changed.
 */
int epf_numa_begin(const struct epf_numa_lib *lib, int node, struct epf_numa *before);

/* epf_numa_end() - as it was before. Fine after a refusal. */
void epf_numa_end(const struct epf_numa_lib *lib, struct epf_numa *before);

#endif
