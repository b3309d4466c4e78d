/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory for outputs, given out in segments to an allocator that outlives every object of the fabric: PyTorch frees tensors when it likes. Memory
 * that other processes map must not go before they have let it go. Knows the driver's two calls and nothing else of a GPU.
 */
#include "kernels/ht/ht.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/queue.h>

#define GRANULE \
 (2u << 20) /* what a driver maps at once: a smaller allocation may share a block with others */

struct pool_segment {
	LIST_ENTRY(pool_segment) link;
	struct ht_segment at;
	uint32_t held; /* objects that map it */
	int freed;     /* by its owner */
};

static LIST_HEAD(pool, pool_segment) segments = LIST_HEAD_INITIALIZER(segments);
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct {
	int (*alloc)(void **at, size_t bytes);
	int (*free)(void *at);
} driver;

static int host_alloc(void **at, size_t bytes)
{
	*at = aligned_alloc(GRANULE, bytes);
	return *at ? 0 : 1;
}

static int host_free(void *at)
{
	free(at);
	return 0;
}

static void load_driver(void)
{
	static const char *const names[][3] = {
		{ "libcuda.so.1", "cuMemAlloc_v2", "cuMemFree_v2" },
		{ "libamdhip64.so", "hipMalloc", "hipFree" },
	};

	/* The driver that the program uses is loaded already. */
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && !driver.alloc; i++) {
		void *lib = dlopen(names[i][0], RTLD_NOW | RTLD_NOLOAD);

		if (!lib)
			continue;
		*(void **)&driver.free = dlsym(lib, names[i][2]);
		*(void **)&driver.alloc = driver.free ? dlsym(lib, names[i][1]) : NULL;
	}
	if (!driver.alloc) {
		driver.alloc = host_alloc;
		driver.free = host_free;
	}
}

void *epf_ht_pool_alloc(size_t bytes, int device, void *stream)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct pool_segment *s = calloc(1, sizeof(*s));

	(void)device, (void)stream;
	pthread_once(&once, load_driver);
	if (!s)
		return NULL;
	s->at.bytes = (bytes + GRANULE - 1) / GRANULE * GRANULE;
	if (driver.alloc(&s->at.base, s->at.bytes)) {
		free(s);
		return NULL;
	}
	pthread_mutex_lock(&lock);
	LIST_INSERT_HEAD(&segments, s, link);
	pthread_mutex_unlock(&lock);
	return s->at.base;
}

static struct pool_segment *find(const void *at)
{
	struct pool_segment *s;

	LIST_FOREACH(s, &segments, link)
	if ((uintptr_t)at - (uintptr_t)s->at.base < s->at.bytes)
		return s;
	return NULL;
}

/* Under the lock. */
static void end_if_unused(struct pool_segment *s)
{
	if (s->held || !s->freed)
		return;
	LIST_REMOVE(s, link);
	(void)driver.free(s->at.base);
	free(s);
}

void epf_ht_pool_free(void *base, size_t bytes, int device, void *stream)
{
	struct pool_segment *s;

	(void)bytes, (void)device, (void)stream;
	pthread_mutex_lock(&lock);
	s = find(base);
	if (s) {
		s->freed = 1;
		end_if_unused(s);
	}
	pthread_mutex_unlock(&lock);
}

int ht_pool_find(const void *at, struct ht_segment *out)
{
	const struct pool_segment *s;

	pthread_mutex_lock(&lock);
	s = find(at);
	if (s)
		*out = s->at;
	pthread_mutex_unlock(&lock);
	return s != NULL;
}

void ht_pool_hold(void *base)
{
	struct pool_segment *s;

	pthread_mutex_lock(&lock);
	s = find(base);
	if (s)
		s->held++;
	pthread_mutex_unlock(&lock);
}

void ht_pool_let_go(void *base)
{
	struct pool_segment *s;

	pthread_mutex_lock(&lock);
	s = find(base);
	if (s && s->held) {
		s->held--;
		end_if_unused(s);
	}
	pthread_mutex_unlock(&lock);
}
