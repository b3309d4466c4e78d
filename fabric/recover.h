/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recovery of a failed lane: fence at both ends, ask what has arrived, replay what is missing on another lane, open the
 * lane again. Interface between cold.c, control.c and recover.c.
 */
#ifndef EPF_FABRIC_RECOVER_H
#define EPF_FABRIC_RECOVER_H

#include "fabric/core.h"

/* Stages a control message to a node on any lane that is up; 0: no room now. */
int epf_control_send(struct epf_core *core, struct epf_node *node, struct epf_msg *m);

/* Moves every recovery on; returns how much was done. */
unsigned epf_recover_step(struct epf_core *core, uint64_t now);
/* A control message that belongs to recovery has arrived. */
void epf_recover_message(struct epf_core *core, struct epf_node *node, struct epf_lane *lane,
			 const struct epf_msg *m);
/* Moves withdrawals on (control.c). */
unsigned epf_revoke_step(struct epf_core *core);
/* Ends one entry of a lane: its command fails. The entry is reclaimed; the lane's tail is the caller's. */
void epf_fail_entry_cold(struct epf_core *core, struct epf_lane *lane, struct epf_wr *wr,
			 unsigned status, unsigned reason);
/* A region has `keys` keys: gives one to each index a lane can have. */
void epf_spread_keys(struct epf_region_remote *region, uint32_t keys);
/* Tells nodes the news of local ranks (ranks.c); returns how much was done. */
unsigned epf_ranks_step(struct epf_core *core);
/* A message about a rank of another node has arrived: RANK or REGION. */
void epf_rank_message(struct epf_core *core, struct epf_node *node, const struct epf_msg *m);
/*
 * A rank's state for everybody here: peers page, who may send to it, and what was parked for it. state: enum epf_peer_state_id;
 * cause: reason number of DOWN. Wakes every local rank.
 */
void epf_peer_changed(struct epf_core *core, uint32_t rank, unsigned state, unsigned cause,
		      uint32_t epoch);
/* Fails what is parked in streams of local rank index `local` to rank `peer`; EPF_NONE: any. */
void epf_fail_streams_cold(struct epf_core *core, uint32_t peer, uint32_t local);
/* Frees withdrawals that never ended. */
void epf_revokes_free(struct epf_core *core);
/* A ring's place is used again: withdrawals need not wait for it. */
void epf_revokes_new_ring(struct epf_core *core, uint32_t id);
/* Takes the snapshot of lane heads that a withdrawal waits for (control.c). */
void epf_drain_snapshot(struct epf_core *core, struct epf_node *node);

/* Recoveries of one node, one per lane. Allocated with the node when it has more than one lane. */
enum epf_recovery_phase {
	EPF_REC_NONE = 0,
	EPF_REC_FENCING = 1,   /* fenced here; waiting until drained here and fenced at the peer */
	EPF_REC_ASKING = 2,    /* going through the entries: which have arrived? */
	EPF_REC_REPLAY = 3,    /* moving the rest to another lane */
	EPF_REC_OPENING = 4,   /* new queue pair made; waiting for the peer's */
	EPF_REC_CONNECTED = 5, /* connected here; waiting until the peer is */
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
	uint8_t asked;  /* a STREAM_QUERY is on its way */
	uint8_t answer; /* a STREAM_QUERY of the peer has to be answered */
	uint8_t to;     /* index + 1 of the lane its entries move to; 0: not chosen yet */
	uint16_t answer_handle;
	uint32_t answer_from;
	uint32_t questions; /* asked so far; never begins anew */
	uint32_t answered;  /* newest question of the peer that was taken */
	uint16_t
		known_handle; /* the last answer: bits for counts known_from .. +255 of this stream */
	uint8_t known;
	uint32_t known_from;
	uint32_t cursor;       /* next entry to look at */
	uint32_t peer_arrived; /* what the peer counts of our events on this lane */
	uint64_t bits[4];
	uint64_t token; /* of our new queue pair */
	uint64_t peer_token;
	uint64_t since_ns;
};

struct epf_recovery {
	struct epf_lane_recovery lanes[EPF_MAX_LANES_PER_NODE];
};

#endif
