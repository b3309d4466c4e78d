/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions of the control plane that cross its files: messages between cores, ranks that leave and return, withdrawals, lost nodes. See
 * recovery.h for lane recovery and losses.h for losses.
 */
#ifndef EPF_FABRIC_ENGINE_CONTROL_PLANE_H
#define EPF_FABRIC_ENGINE_CONTROL_PLANE_H

#include "fabric/engine/core.h"

/* control.c: stages a control message to a node on any lane that is up. Returns 0 if there is no room. */
int epf_control_send(struct epf_core *core, struct epf_node *node, struct epf_msg *m);
/* messages.c: dispatches an arrived control message. */
EPF_COLD void epf_control_cold(struct epf_core *core, struct epf_node *node, struct epf_lane *lane,
			       const struct epf_msg *m);
/* tick.c: periodic work: recovery, rank notifications, withdrawals, heartbeats. Returns how much was done. */
EPF_COLD unsigned epf_core_tick_cold(struct epf_core *core);

/* ranks.c */

/* Copies a region's keys (the first `keys` are set) to the indices of all lanes. */
void epf_spread_keys(struct epf_region_remote *region, uint32_t keys);
/* Sends nodes the pending notifications of local ranks. Returns how much was done. */
unsigned epf_ranks_step(struct epf_core *core);
/* Handles RANK, REGION or KEYS: a message about a remote rank. */
void epf_rank_message(struct epf_core *core, struct epf_node *node, const struct epf_msg *m);
/*
 * Sets a rank's state for all local ranks: peers page, send permission, commands deferred for it. state: enum epf_peer_state_id;
 * cause: reason number of DOWN. Wakes every local rank.
 */
void epf_peer_changed(struct epf_core *core, uint32_t rank, unsigned state, unsigned cause,
		      uint32_t epoch);

/* revoke.c */

/* Advances withdrawals. Returns how much was done. */
unsigned epf_revoke_step(struct epf_core *core);
/* Handles REVOKE or REVOKED. */
void epf_revoke_message(struct epf_core *core, struct epf_node *node, const struct epf_msg *m);
/* Frees unfinished withdrawals. */
void epf_revokes_free(struct epf_core *core);
/* Sends a reconnected node all withdrawals under way, even those sent before. */
void epf_revokes_tell_again(struct epf_core *core, const struct epf_node *node);
/* Called when a ring is reused: withdrawals need not wait for it. */
void epf_revokes_new_ring(struct epf_core *core, uint32_t id);
/* Records the lane heads that a withdrawal waits for. */
void epf_drain_snapshot(struct epf_core *core, struct epf_node *node);

#endif
