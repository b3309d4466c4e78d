/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions of the data path that cross its files. The control plane may call them; the data path reaches the control plane through
 * struct epf_control_ops (core.h) only.
 */
#ifndef EPF_FABRIC_ENGINE_DATA_PATH_H
#define EPF_FABRIC_ENGINE_DATA_PATH_H

#include "fabric/engine/core.h"
#include "fabric/engine/fail.h"
#include "fabric/engine/plain_hot.h"
#include "fabric/engine/words_hot.h"

/* stage_hot.c */

/* Stages, defers, fails or begins each of n checked commands of a ring; the first has number first_seq. */
void epf_stage_batch(struct epf_core *core, struct epf_ring_state *ring, const struct epf_op *ops,
		     unsigned n, uint32_t first_seq);
/* Returns the stream that a command goes to, EPF_NONE if it is not open yet. */
uint32_t epf_stage_stream(const struct epf_core *core, const struct epf_ring_state *ring,
			  const struct epf_op *op);
/* Stages deferred commands while credit lasts. Returns the number of entries. */
unsigned epf_stage_waiting(struct epf_core *core);

/* put_hot.c */

/*
 * Moves plain puts from the head of the ring to their lanes, at most `budget` and for the bytes of its turn (quantum: what each step brings).
 * Stops before the first command that is none, or that cannot be staged now. Returns how many.
 */
unsigned epf_put_run(struct epf_core *core, struct epf_ring_state *ring, unsigned budget,
		     int64_t quantum, struct epf_put_run *out);

/* message_hot.c: stages a message on a stream. Returns 0 if there is no credit. */
int epf_stage_message(struct epf_core *core, struct epf_stream *s, struct epf_msg *m,
		      uint64_t wr_core);

/* notify_hot.c */

/* Returns the notify handle for (stream, signal, add), or EPF_NONE while its definition is under way or there is none. */
uint32_t epf_notify_handle(struct epf_core *core, struct epf_stream *s, uint32_t signal,
			   uint32_t add);
/* Handles a definition from a peer. Returns 0 if it is malformed. */
int epf_notify_defined(struct epf_core *core, struct epf_node *node, const struct epf_msg *m);

/* flush_hot.c */

/* Begins a dequeued FLUSH command. all: covers all rings of its rank. */
void epf_flush_begin(struct epf_core *core, struct epf_ring_state *ring, uint32_t seq,
		     unsigned all);
/* Advances all flushes. Returns how much was done. */
unsigned epf_flush_step(struct epf_core *core);

/* arrive_hot.c */

/* Handles one arrival. */
void epf_arrive(struct epf_core *core, const struct epf_wc *wc);
/* Resumes the stream that stopped behind an addition to GPU memory, once it is applied. */
void epf_arrive_resume(struct epf_core *core);

/* stream_open.c */

/* Returns a lane of the node that is up, or NULL. */
struct epf_lane *epf_other_lane(struct epf_core *core, const struct epf_node *node);
/* Opens a stream. Returns its index, EPF_NONE if no more can be opened. kind: enum epf_stream_kind. */
EPF_COLD uint32_t epf_stream_open_cold(struct epf_core *core, unsigned kind,
				       struct epf_ring_state *ring, uint32_t rank);
/* Opens the group (rank of the ring, rank, signal). Returns NULL if no more groups, or no stream for it, can be opened. */
EPF_COLD struct epf_group *epf_group_open_cold(struct epf_core *core, struct epf_ring_state *ring,
					       uint32_t rank, uint32_t signal);
/* Opens the control streams of a node's lanes before anything else is sent to it. Does nothing if they are open. */
EPF_COLD void epf_control_open_cold(struct epf_core *core, struct epf_node *node);

/* gpu_add.c */

/* Begins an addition to a word of GPU memory of the local rank with that index; holds arrivals if the NIC cannot accept it. */
EPF_COLD void epf_gpu_add_cold(struct epf_core *core, uint32_t local,
			       const struct epf_region_local *region, uint64_t offset,
			       uint64_t value);
/* Begins to queue arrivals. */
EPF_COLD void epf_hold_cold(struct epf_core *core);

/* gpu_hold.c */

/* Called for an arrival while additions are under way. Returns 0 if it may take effect, 1 if it was queued. */
EPF_COLD int epf_adding_stops_cold(struct epf_core *core, const struct epf_wc *wc);
/* Returns 1 if the additions are done and arrivals take effect again. */
EPF_COLD int epf_hold_over_cold(struct epf_core *core);

/* gpu_add.c: calls the flushes of all GPUs that need one. */
EPF_COLD void epf_gpu_flush_cold(struct epf_core *core);

/*
 * Makes GPU data visible before anything that promises it is applied or published. Once a step suffices: a step reaps once, and
 * everything reaped has landed by then.
 */
EPF_INLINE void epf_gpu_visible(struct epf_core *core)
{
	if (EPF_UNLIKELY(core->n_gpu_flushes) && core->gpu_flushed != core->steps)
		epf_gpu_flush_cold(core);
}

#endif
