/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queues between threads of one trust domain (core to core, library to core): DPDK's rte_ring with 16-byte elements in
 * our own memory, no EAL. Many producers, one consumer. Not for memory a client of another trust can write: an
 * rte_ring header is believed by both sides.
 * Source: DPDK programmer's guide, "Ring Library"; rte_ring_init() in caller-owned memory.
 */
#ifndef EPF_QUEUES_QUEUE_H
#define EPF_QUEUES_QUEUE_H

#include <stdint.h>

struct epf_queue;

struct epf_queue_item {
	uint64_t a;
	uint64_t b;
};

/* Creates a queue of `slots` (a power of two, at least 2) elements; one slot stays unused. -ENOMEM, -EINVAL. */
int epf_queue_create(unsigned slots, struct epf_queue **out);
void epf_queue_destroy(struct epf_queue *q);
/* Any thread. 1, or 0 when full. */
int epf_queue_push(struct epf_queue *q, struct epf_queue_item item);
/* The one consumer. 1 and *item, or 0 when empty. */
int epf_queue_pop(struct epf_queue *q, struct epf_queue_item *item);
/* The one consumer: 1 when there is nothing. */
int epf_queue_is_empty(const struct epf_queue *q);

#endif
