/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a process costs in memory, for the peak that ep-bench moe prints. The proportional set size alone is too little in service mode: the
 * daemon allocates a region whole when it is registered, and pages that nobody has touched are in nobody's set. Such memory is
 * counted by what its memfd has allocated, once, in the rank that holds it. Reads /proc only.
 */
#include "bench/common/bench.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MEMORY_NAME "/memfd:epf-memory" /* fabric/client/lib.c */

enum { HELD_MAX = 256, BLOCK = 512 }; /* st_blocks counts these */

/* Memfds of epf_memory_alloc that this process has open. */
struct held {
	unsigned n;
	ino_t inode[HELD_MAX];
	uint64_t bytes; /* allocated by them */
};

static bool has(const struct held *h, ino_t inode)
{
	for (unsigned i = 0; i < h->n; i++)
		if (h->inode[i] == inode)
			return true;
	return false;
}

/* Each file once, however many descriptors it has; past HELD_MAX the rest is counted by what is mapped. */
static void find_held(struct held *h)
{
	DIR *d = opendir("/proc/self/fd");

	for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d)) {
		char to[64] = "";
		struct stat st;

		if (readlinkat(dirfd(d), e->d_name, to, sizeof(to) - 1) < 0 ||
		    strncmp(to, MEMORY_NAME, strlen(MEMORY_NAME)) != 0 ||
		    fstat(atoi(e->d_name), &st) || h->n == HELD_MAX || has(h, st.st_ino))
			continue;
		h->inode[h->n++] = st.st_ino;
		h->bytes += (uint64_t)st.st_blocks * BLOCK;
	}
	if (d)
		closedir(d);
}

/* Sum of the Pss of a process's mappings but those `held` names; held NULL: but all of epf_memory_alloc. */
static uint64_t mapped_bytes(const char *path, const struct held *held)
{
	FILE *f = fopen(path, "re");
	uint64_t sum = 0;
	bool counts = true;
	char line[512];

	while (f && fgets(line, sizeof(line), f)) {
		unsigned long long inode, kib;

		/* "55d0-55d1 rw-s 00000000 00:01 2049   /memfd:epf-memory (deleted)" begins a mapping. */
		if (sscanf(line, "%*x-%*x %*4s %*x %*x:%*x %llu", &inode) == 1)
			counts = held ? !has(held, (ino_t)inode) : !strstr(line, MEMORY_NAME);
		else if (counts && sscanf(line, "Pss: %llu kB", &kib) == 1)
			sum += (uint64_t)kib << 10;
	}
	if (f)
		fclose(f);
	return sum;
}

uint64_t bench_held_bytes(void)
{
	struct held held = { 0 };

	find_held(&held);
	return held.bytes + mapped_bytes("/proc/self/smaps", &held);
}

uint64_t bench_held_of_daemon(unsigned long pid)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%lu/smaps", pid);
	return mapped_bytes(path, NULL);
}
