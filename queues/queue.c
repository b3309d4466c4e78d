/* SPDX-License-Identifier: Apache-2.0 */
/* rte_ring behind epf_queue.h; the only source of the libraries that includes DPDK, and none of them links it (rte_ring_init.h). */
#include "queues/epf_queue.h"
#include "queues/rte_ring_init.h"

#include <errno.h>
#include <stdlib.h>

struct epf_queue {
	struct rte_ring *ring;
};

/*
 * ThreadSanitizer does not see through rte_ring (inline assembly, compiler barriers): it ignores accesses inside and
 * that who pops has everything that those who pushed had [Q1].
 */
#ifdef __SANITIZE_THREAD__
# include <sanitizer/tsan_interface.h>
void AnnotateIgnoreReadsBegin(const char *file, int line);
void AnnotateIgnoreReadsEnd(const char *file, int line);
void AnnotateIgnoreWritesBegin(const char *file, int line);
void AnnotateIgnoreWritesEnd(const char *file, int line);

static void look_away(void)
{
	AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
	AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
}

static void look_again(void)
{
	AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
	AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
}
#else
# define __tsan_release(p) ((void)(p))
# define __tsan_acquire(p) ((void)(p))
# define look_away()       ((void)0)
# define look_again()      ((void)0)
#endif

_Static_assert(sizeof(struct epf_queue_item) == 16, "an element is 16 bytes");

int epf_queue_create(unsigned slots, struct epf_queue **out)
{
	struct epf_queue *q;

	if (slots < 2 || slots > RTE_RING_SZ_MASK || (slots & (slots - 1)))
		return -EINVAL;
	q = calloc(1, sizeof(*q));
	if (!q)
		return -ENOMEM;
	q->ring = epf_rte_ring_new(slots, sizeof(struct epf_queue_item), false);
	if (!q->ring) {
		free(q);
		return -ENOMEM;
	}
	*out = q;
	return 0;
}

void epf_queue_destroy(struct epf_queue *q)
{
	if (!q)
		return;
	free(q->ring);
	free(q);
}

int epf_queue_push(struct epf_queue *q, struct epf_queue_item item)
{
	int rc;

	__tsan_release(q);
	look_away();
	rc = rte_ring_mp_enqueue_elem(q->ring, &item, sizeof(item));
	look_again();
	return rc == 0;
}

int epf_queue_pop(struct epf_queue *q, struct epf_queue_item *item)
{
	int rc;

	look_away();
	rc = rte_ring_sc_dequeue_elem(q->ring, item, sizeof(*item));
	look_again();
	__tsan_acquire(q);
	return rc == 0;
}

int epf_queue_is_empty(const struct epf_queue *q)
{
	int empty;

	look_away();
	empty = rte_ring_empty(q->ring);
	look_again();
	return empty;
}
