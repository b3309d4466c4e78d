/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batches of copies on a device, and which jobs they belong to: between the copier's thread (emu_copier.c), which calls all of this, and a
 * filling of emu_gpu.h. It must never submit two copies to the same bytes in one batch.
 */
#ifndef EPF_FABRIC_EMU_COPY_QUEUE_H
#define EPF_FABRIC_EMU_COPY_QUEUE_H

#include "fabric/emu_copier.h"

struct epf_emu_queue;

/* The queue of a device for this NIC's copies, or for its additions, made when it is first asked for; NULL with a reason. */
struct epf_emu_queue *epf_emu_queue_of(const struct epf_emu_copier *c, int device, bool adds);
/*
 * Takes a span of the job `slot` of c, or its addition, each into a queue for such, in order; false: the queue is full, try again later.
 */
bool epf_emu_queue_copy(struct epf_emu_queue *q, struct epf_emu_copier *c, uint32_t slot,
			const struct epf_copy_span *span);
bool epf_emu_queue_add(struct epf_emu_queue *q, struct epf_emu_copier *c, uint32_t slot,
		       uint64_t dst, uint64_t value);
/* Submits what was gathered, hands back what is complete; *busy: copies are under way. Returns how many batches were completed. */
unsigned epf_emu_queues_pump(bool *busy);
/* Waits for what is under way and ends all queues. */
void epf_emu_queues_close(void);

/* n spans of a job are over, with a status (enum epf_status); with the last one its outcome goes back [C2]. */
void epf_emu_job_done(struct epf_emu_copier *c, uint32_t slot, uint32_t n, uint32_t status);

#endif
