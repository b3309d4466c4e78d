/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions of the control plane that cross its files: messages between cores, ranks that come and go, withdrawals, lost nodes. Recovery of a lane
 * is in recovery.h, losses in losses.h.
 */
#ifndef EPF_FABRIC_ENGINE_CONTROL_PLANE_H
#define EPF_FABRIC_ENGINE_CONTROL_PLANE_H

#include "fabric/engine/core.h"

/* control.c: stages a control message to a node on any lane that is up. Returns 0 if there is no room now. */
int epf_control_send(struct epf_core *core, struct epf_node *node, struct epf_msg *m);
/* messages.c: a control message has arrived. */
EPF_COLD void epf_control_cold(struct epf_core *core, struct epf_node *node, struct epf_lane *lane,
			       const struct epf_msg *m);
/* tick.c: what is done now and then: recovery, messages about ranks, withdrawals, heartbeats. Returns how much was done. */
EPF_COLD unsigned epf_core_tick_cold(struct epf_core *core);

/* ranks.c */

/* Copies a region's keys (the first `keys` are set) to the indices of all lanes. */
void epf_spread_keys(struct epf_region_remote *region, uint32_t keys);
/* Sends nodes pending messages about local ranks. Returns how much was done. */
unsigned epf_ranks_step(struct epf_core *core);
/* A message about a rank of another node has arrived: RANK, REGION or KEYS. */
void epf_rank_message(struct epf_core *core, struct epf_node *node, const struct epf_msg *m);
/*
 * Sets a rank's state for everybody here: peers page, who may send to it, and what was deferred for it. state: enum epf_peer_state_id;
 * cause: reason number of DOWN. Wakes every local rank.
 */
void epf_peer_changed(struct epf_core *core, uint32_t rank, unsigned state, unsigned cause,
		      uint32_t epoch);

/* revoke.c */

/* Moves withdrawals on. Returns how much was done. */
unsigned epf_revoke_step(struct epf_core *core);
/* REVOKE or REVOKED has arrived. */
void epf_revoke_message(struct epf_core *core, struct epf_node *node, const struct epf_msg *m);
/* Frees withdrawals that never ended. */
void epf_revokes_free(struct epf_core *core);
/* The node has returned: sends it the withdrawals under way, even those it was sent before. */
void epf_revokes_tell_again(struct epf_core *core, const struct epf_node *node);
/* A ring's place is used again: withdrawals need not wait for it. */
void epf_revokes_new_ring(struct epf_core *core, uint32_t id);
/* Takes the snapshot of lane heads that a withdrawal waits for. */
void epf_drain_snapshot(struct epf_core *core, struct epf_node *node);

#endif
