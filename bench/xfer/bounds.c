/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What bounds one large transfer between two processes of a machine: memcpy(3) between two mappings, and process_vm_writev(2) and
 * process_vm_readv(2) to and from memory of another process, in pieces, by one thread and by two. Alternating; GB/s by the clock, and by CPU time
 * of the process, which a busy machine disturbs less. Usage: bench-bounds [ROUNDS [MIB]]
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS_MOST = 64, KIB = 1024 };

enum how { MEMCPY, WRITEV, READV };

struct way {
	const char *name;
	enum how how;
	size_t piece; /* 0: all in one */
	unsigned threads;
};

static const struct way ways[] = {
	{ "memcpy", MEMCPY, 0, 1 },
	{ "memcpy", MEMCPY, 256 * KIB, 1 },
	{ "memcpy", MEMCPY, 256 * KIB, 2 },
	{ "process_vm_writev", WRITEV, 64 * KIB, 1 },
	{ "process_vm_writev", WRITEV, 256 * KIB, 1 },
	{ "process_vm_writev", WRITEV, 256 * KIB, 2 },
	{ "process_vm_writev", WRITEV, 8192 * KIB, 1 },
	{ "process_vm_writev", WRITEV, 8192 * KIB, 2 },
	{ "process_vm_readv", READV, 256 * KIB, 1 },
	{ "process_vm_readv", READV, 256 * KIB, 2 },
};

enum { WAYS = sizeof(ways) / sizeof(ways[0]) };

struct copy {
	uint8_t *here, *shared, *there; /* there: at the same address in the other process */
	size_t bytes, next;             /* next: of the piece to be claimed */
	pid_t other;
	const struct way *way;
	int err;
};

static double seconds(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static bool copy_piece(const struct copy *c, size_t at, size_t n)
{
	struct iovec here = { c->here + at, n }, there = { c->there + at, n };

	switch (c->way->how) {
	case MEMCPY:
		memcpy(c->shared + at, c->here + at, n);
		return true;
	case WRITEV:
		return process_vm_writev(c->other, &here, 1, &there, 1, 0) == (ssize_t)n;
	default:
		return process_vm_readv(c->other, &here, 1, &there, 1, 0) == (ssize_t)n;
	}
}

static void *work(void *arg)
{
	struct copy *c = arg;
	size_t piece = c->way->piece ? c->way->piece : c->bytes, at;

	while ((at = __atomic_fetch_add(&c->next, piece, __ATOMIC_RELAXED)) < c->bytes)
		if (!copy_piece(c, at, c->bytes - at < piece ? c->bytes - at : piece))
			c->err = errno ? errno : EIO;
	return NULL;
}

/* Copies all once; returns GB/s by the clock and by CPU time. */
static void once(struct copy *c, const struct way *way, double *wall, double *cpu)
{
	double begin = seconds(CLOCK_MONOTONIC), used = seconds(CLOCK_PROCESS_CPUTIME_ID);
	pthread_t helper;
	bool has = false;

	c->way = way;
	c->next = 0;
	if (way->threads == 2)
		has = pthread_create(&helper, NULL, work, c) == 0;
	work(c);
	if (has)
		pthread_join(helper, NULL);
	*cpu = (double)c->bytes / (seconds(CLOCK_PROCESS_CPUTIME_ID) - used) / 1e9;
	*wall = (double)c->bytes / (seconds(CLOCK_MONOTONIC) - begin) / 1e9;
}

static uint8_t *map(size_t bytes, int flags)
{
	uint8_t *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		return NULL;
	(void)madvise(at, bytes, MADV_HUGEPAGE); /* as NumPy does */
	return at;
}

static int compare(const void *a, const void *b)
{
	const double *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

int main(int argc, char **argv)
{
	static double wall[WAYS][ROUNDS_MOST], cpu[WAYS][ROUNDS_MOST];
	unsigned rounds = argc > 1 ? (unsigned)atoi(argv[1]) : 9;
	struct copy c = { .bytes = (size_t)(argc > 2 ? atoi(argv[2]) : 256) << 20 };
	int ready[2];
	char byte = 0;

	c.here = map(c.bytes, MAP_PRIVATE);
	c.shared = map(c.bytes, MAP_SHARED);
	c.there = map(c.bytes, MAP_PRIVATE);
	if (!c.here || !c.shared || !c.there || !rounds || rounds > ROUNDS_MOST || pipe(ready)) {
		fprintf(stderr, "bench-bounds: no memory, or not 1 to %d rounds\n", ROUNDS_MOST);
		return 2;
	}
	memset(c.here, 1, c.bytes);
	memset(c.shared, 1, c.bytes);
	c.other = fork(); /* which touches c.there first: copies on write would be of small pages */
	if (c.other == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		memset(c.there, 2, c.bytes);
		(void)!write(ready[1], &byte, 1);
		for (;;)
			pause();
	}
	(void)!read(ready[0], &byte, 1);
	for (unsigned r = 0; r < rounds; r++)
		for (unsigned w = 0; w < WAYS; w++)
			once(&c, &ways[w], &wall[w][r], &cpu[w][r]);
	kill(c.other, SIGKILL);
	waitpid(c.other, NULL, 0);
	printf("# %zu MiB, medians of %u, alternating\n# %-20s %10s %8s %8s %12s\n", c.bytes >> 20,
	       rounds, "how", "KiB apiece", "threads", "GB/s", "GB/CPU s");
	for (unsigned w = 0; w < WAYS; w++) {
		qsort(wall[w], rounds, sizeof(double), compare);
		qsort(cpu[w], rounds, sizeof(double), compare);
		printf("  %-20s %10zu %8u %8.2f %12.2f\n", ways[w].name, ways[w].piece / KIB,
		       ways[w].threads, wall[w][rounds / 2], cpu[w][rounds / 2]);
	}
	if (c.err)
		fprintf(stderr, "bench-bounds: a copy failed: %s\n", strerror(c.err));
	return c.err != 0;
}
