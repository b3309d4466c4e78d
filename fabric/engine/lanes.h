/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Creating and connecting the lanes of an engine when its job is joined: a job on 256 nodes has hundreds of queue pairs, and each
 * asks the kernel and the device four times and waits. So they are set up several at a time (connect-threads), by the thread that joins
 * and helpers that live only as long: no core and no other job waits for it. Called by core_world.c and join/world.c before traffic.
 */
#ifndef EPF_FABRIC_ENGINE_LANES_H
#define EPF_FABRIC_ENGINE_LANES_H

#include "fabric/engine/core.h"

/* Creates every lane of the core at its NIC; tokens[n_lanes]. 0, or what lane_create said for the lowest lane that failed. */
int epf_lanes_create(struct epf_core *core, uint64_t *tokens);

/*
 * Connects a lane to the one of its index at a node (whose address stands in *node) that has this token; between
 * epf_lanes_begin() and epf_lanes_end() it is only noted, and done there.
 */
int epf_lanes_connect(struct epf_core *core, struct epf_node *node, struct epf_lane *lane,
		      uint64_t token);

/* From here on connections are collected. -ENOMEM. */
int epf_lanes_begin(struct epf_core *core);
/*
 * Makes the connections collected. 0, or what lane_connect said for the lowest lane that failed, *rank then being its node's lowest rank;
 * the core can then only be destroyed. Ends the collection in any case.
 */
int epf_lanes_end(struct epf_core *core, uint32_t *rank);
/* Forgets a collection; for destroying. */
void epf_lanes_forget(struct epf_core *core);

#endif
