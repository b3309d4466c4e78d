/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batches of copies on a device, and which jobs they belong to: between the copier's thread (copier_thread.c), which calls all of this, and a
 * filling of gpu/copy.h. It must never submit two copies to the same bytes in one batch.
 */
#ifndef EPF_FABRIC_NIC_EMU_COPY_QUEUE_H
#define EPF_FABRIC_NIC_EMU_COPY_QUEUE_H

#include "fabric/nic/emu/copier.h"
#include "fabric/nic/emu/stages.h"

struct epf_emu_queue;

/* The queue of a device for this NIC's copies, or for its additions, made when it is first asked for; NULL with a reason. */
struct epf_emu_queue *epf_emu_queue_of(const struct epf_emu_copier *c, int device, bool adds);

/* Spans behind each other in a NIC's ring of jobs: what their addresses need, to be those that the filling understands. */
struct epf_emu_run {
	const union epf_emu_entry *entries; /* the ring */
	uint32_t first, n;
	uint64_t to_dst, to_src; /* to be added */
	uint64_t host;           /* as in struct epf_copy_span */
};

/*
 * Takes spans of the job `slot` of c, or its addition, each into a queue for such, in order. copies: returns how many; fewer than there are,
 * and false: the queue is full, try again later.
 */
uint32_t epf_emu_queue_copies(struct epf_emu_queue *q, struct epf_emu_copier *c, uint32_t slot,
			      const struct epf_emu_run *run);
bool epf_emu_queue_add(struct epf_emu_queue *q, struct epf_emu_copier *c, uint32_t slot,
		       uint64_t dst, uint64_t value);
/* Submits the additions that were gathered. */
void epf_emu_queues_add(void);
/* Submits what was gathered, hands back what is complete; *busy: copies are under way. Returns how many batches were completed. */
unsigned epf_emu_queues_pump(bool *busy);
/*
 * Batches of all queues have numbers, in the order in which they were begun. newest: of the last one, which may still be gathered. are_past: true when
 * nothing is under way any more of those up to a number.
 */
uint64_t epf_emu_queues_newest(void);
bool epf_emu_queues_are_past(uint64_t number);
/* Batches of copies that were given to a driver so far. */
uint64_t epf_emu_queues_calls(void);
/* Adds what the queues know of their time. */
void epf_emu_queues_stages(struct epf_emu_copier_stages *out);
/* Waits for what is under way and ends all queues. */
void epf_emu_queues_close(void);

/* n spans of a job are over, with a status (enum epf_status); with the last one its outcome goes back [C2]. */
void epf_emu_job_done(struct epf_emu_copier *c, uint32_t slot, uint32_t n, uint32_t status);

#endif
