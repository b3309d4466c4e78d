/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lost node returns to the job, and so does a device of the NIC: the engine's part of epf_reconnect(), which join/world.c
 * moves through its steps. All engines of a job take part at once, and between two steps everybody hears what everybody said; so both ends
 * of a pair forget what was between them before either makes new lanes, and neither uses those before both have proven them.
 *
 *   begin     which nodes are lost here
 *   prepare   pairs of which either end says so: both ends drain and destroy the old lanes, forget counts, windows and words, make new lanes
 *   connect   to the peer's new lanes
 *   prove     a first write on each must complete
 *   finish    lanes that both ends have proven are used; the others are opened later, by recovery; ranks are UP again
 *
 * What was under way to a lost node has failed with a status when it was lost, and can take effect no more once `prepare` is over at both
 * ends: a queue pair that is drained lands nothing, and no new one is connected before. On the core's thread; slow path.
 */
#ifndef EPF_FABRIC_ENGINE_RECONNECT_H
#define EPF_FABRIC_ENGINE_RECONNECT_H

#include "fabric/engine/engine.h"

/* Begins an attempt; one that was not finished is given up. lost[n_nodes]: 1 where this engine cannot reach the node. -ENOMEM. */
int epf_reconnect_begin(struct epf_core *core, uint8_t *lost);

/*
 * lost[n_nodes]: 1 for the nodes to be reconnected. *tokens: those of all lanes, as epf_core_set_world gives them, the core's, until the
 * next attempt. -EAGAIN: old lanes still drain; ask again while the core is stepped.
 */
int epf_reconnect_prepare(struct epf_core *core, const uint8_t *lost, const uint64_t **tokens);

/* Connects the lanes to a node; what cannot be connected is left for recovery. Nothing, where the node was not lost. */
int epf_reconnect_node(struct epf_core *core, uint32_t node, const struct epf_node_info *info);

/* proven[n_nodes]: bit l: lane l leads to the peer. -EAGAIN: not known yet; ask again while the core is stepped. */
int epf_reconnect_prove(struct epf_core *core, uint8_t *proven);

/*
 * proven[n_nodes]: what each node has proven of its lanes to this one. Lanes proven by both are used from now on; the ranks of those nodes are UP
 * with an epoch one higher. 0, or -ENETUNREACH naming a node that stays lost: the same at both ends.
 */
int epf_reconnect_finish(struct epf_core *core, const uint8_t *proven);

void epf_reconnect_free(struct epf_core *core);

#endif
