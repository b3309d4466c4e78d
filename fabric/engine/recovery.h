/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recovery of a failed lane: fence both ends, query what has arrived, replay the rest on another lane, reopen the
 * lane. Interface of recover.c, replay.c and reopen.c.
 */
#ifndef EPF_FABRIC_ENGINE_RECOVERY_H
#define EPF_FABRIC_ENGINE_RECOVERY_H

#include "fabric/engine/control_plane.h"
#include "fabric/engine/grow.h"

struct epf_lane_recovery;

/* Begins the recovery of a failed lane, or declares its node lost. */
EPF_COLD void epf_lane_error_cold(struct epf_core *core, struct epf_lane *lane, unsigned status);

/* Advances every recovery. Returns how much was done. */
unsigned epf_recover_step(struct epf_core *core, uint64_t now);

/* Returns the next backoff of a failed reopening, in ns: doubles the last one, 20 to 200 ms. */
static inline uint64_t epf_more_backoff(uint64_t ns)
{
	uint64_t more = ns ? 2 * ns : 20000000u;

	return more < 200000000u ? more : 200000000u;
}

/* Advances a lane whose work another lane has taken over (reopen.c). */
void epf_reopen_step(struct epf_core *core, struct epf_node *node, struct epf_lane *lane,
		     struct epf_lane_recovery *r, uint64_t now);
/* Schedules a lane that could not be connected at the join; peer_token is the peer's. The node has other lanes. */
void epf_reopen_later(struct epf_core *core, struct epf_node *node, struct epf_lane *lane,
		      uint64_t peer_token);
/* Statistics: a lane's recovery begins, its work has moved to another lane, the lane is in use again or abandoned. */
void epf_outage_begin(struct epf_core *core, const struct epf_lane *lane);
void epf_outage_moved(struct epf_core *core, const struct epf_lane *lane,
		      struct epf_lane_recovery *r);
void epf_outage_end(struct epf_core *core, const struct epf_lane *lane, int is_up);
/* Ends all recoveries of a lost node. */
void epf_recover_forget(struct epf_core *core, struct epf_node *node);
/* Advances streams that fail back to their lanes. Returns how much was done. */
unsigned epf_home_step(struct epf_core *core, struct epf_node *node);
/* Moves a lane's waiting streams to the lists of the lanes they are bound to now. */
void epf_relist(struct epf_core *core, struct epf_lane *lane);
/* Moves a failed lane's entries to another one, a bounded number at a time. 1: its streams are bound there (replay.c). */
int epf_replay(struct epf_core *core, struct epf_node *node, struct epf_lane *lane,
	       struct epf_lane_recovery *r);
/* Handles a control message of recovery. */
void epf_recover_message(struct epf_core *core, struct epf_node *node, struct epf_lane *lane,
			 const struct epf_msg *m);

/* Recoveries of one node, one per lane. Allocated at its first failure, if it has more than one lane (epf_recovery_of). */
enum epf_recovery_phase {
	EPF_REC_NONE = 0,
	EPF_REC_FENCING = 1,   /* fenced here; waiting until drained here and fenced at the peer */
	EPF_REC_ASKING = 2,    /* going through the entries: which have arrived? */
	EPF_REC_REPLAY = 3,    /* moving the rest to another lane */
	EPF_REC_CLOSED = 4,    /* its work has moved; waiting until it is time to open it */
	EPF_REC_OPENING = 5,   /* new queue pair made; waiting for the peer's, or to connect */
	EPF_REC_CONNECTED = 6, /* connected here; waiting until the peer is */
	EPF_REC_PROVING = 7,   /* both are; waiting for the completion of a first write */
};

struct epf_lane_recovery {
	uint32_t
		generation; /* failures of this lane so far; both ends count alike, messages carry it */
	uint8_t phase;
	uint8_t tell_fence;  /* LANE_FENCE has to be sent */
	uint8_t tell_fenced; /* LANE_FENCED has to be sent once drained */
	uint8_t peer_fenced;
	uint8_t tell_open; /* LANE_OPEN has to be sent */
	uint8_t tell_opened;
	uint8_t peer_open; /* peer's token is known */
	uint8_t peer_opened;
	uint8_t asked;    /* a STREAM_QUERY is on its way */
	uint8_t answer;   /* a STREAM_QUERY of the peer has to be answered */
	uint8_t is_moved; /* its work went on once since it was in use last */
	uint8_t to;       /* index + 1 of the lane its entries move to; 0: not chosen yet */
	uint16_t answer_handle;
	uint32_t answer_from;
	uint32_t questions; /* asked so far; never begins again */
	uint32_t answered;  /* newest question of the peer that was dequeued */
	uint16_t
		known_handle; /* the last answer: bits for counts known_from .. +255 of this stream */
	uint8_t known;
	uint32_t known_from;
	uint32_t cursor;       /* next entry to look at */
	uint32_t peer_arrived; /* what the peer counts of our events on this lane */
	uint64_t bits[4];
	uint64_t token; /* of our new queue pair */
	uint64_t peer_token;
	uint64_t since_ns;   /* when it failed; time in which this core was not run is added */
	uint64_t failed_ns;  /* when it failed */
	uint64_t retry_ns;   /* not opened or connected before */
	uint64_t backoff_ns; /* until the next attempt, when this one fails */
};

struct epf_recovery {
	uint8_t homing;  /* streams in limbo: failing back to a recovered lane */
	uint8_t is_late; /* an entry may have changed lanes since the heads were noted */
	uint32_t home_heads
		[EPF_MAX_LANES_PER_NODE]; /* those streams wait until all lanes have passed these */
	struct epf_lane_recovery lanes[];
};

static inline size_t epf_recovery_bytes(unsigned lanes)
{
	return sizeof(struct epf_recovery) + lanes * sizeof(struct epf_lane_recovery);
}

/*
 * Does a node take part in recoveries? One that has said goodbye does, too: what it sent before, such as the news that one of its ranks was lost, may be on a lane that
 * fails, and its engine stays until that has been moved.
 */
static inline int epf_node_recovers(const struct epf_node *node)
{
	return node->state == EPF_NODE_UP || node->state == EPF_NODE_LEFT;
}

/* Returns the recoveries of a node's lanes, made at its first failure. NULL if it has one lane only: nothing takes over. */
static inline struct epf_recovery *epf_recovery_of(struct epf_core *core, struct epf_node *node)
{
	if (!node->recovery && node->n_lanes > 1)
		node->recovery = epf_grow_take(core, epf_recovery_bytes(node->n_lanes));
	return node->recovery;
}

#endif
