/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Creates and connects an engine's lanes at the join. A job on 256 nodes has hundreds of queue pairs, and each needs four blocking
 * requests to kernel and device. So the joining thread and short-lived helpers (connect-threads) set up several at once; no core
 * and no other job waits. Called by core_world.c and join/world.c before traffic.
 */
#ifndef EPF_FABRIC_ENGINE_LANES_H
#define EPF_FABRIC_ENGINE_LANES_H

#include "fabric/engine/core.h"

/* Creates every lane of the core at its NIC and fills tokens[n_lanes]. Returns 0, or lane_create's error for the lowest failed lane. */
int epf_lanes_create(struct epf_core *core, uint64_t *tokens);

/*
 * Connects a lane to its peer at *node, which has this token. Between epf_lanes_begin() and epf_lanes_end() it only queues the
 * connection; epf_lanes_end() makes it.
 */
int epf_lanes_connect(struct epf_core *core, struct epf_node *node, struct epf_lane *lane,
		      uint64_t token);

/* Begins to collect connections. Returns 0 or -ENOMEM. */
int epf_lanes_begin(struct epf_core *core);
/*
 * Makes the collected connections and ends the collection. Returns 0, or lane_connect's error for the lowest failed lane and sets
 * *rank to its node's lowest rank; the core can then only be destroyed.
 */
int epf_lanes_end(struct epf_core *core, uint32_t *rank);
/* Drops a collection when the core is destroyed. */
void epf_lanes_forget(struct epf_core *core);

#endif
