/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reconnects a lost node, or a lost device of the NIC, within a job: the engine's part of epf_reconnect(). join/world.c drives the
 * phases. All engines of a job take part and exchange their results between phases: both ends of a pair drop the old state before
 * either creates new lanes, and neither uses a lane before both have proven it.
 *
 *   begin     reports the nodes lost here
 *   prepare   if either end reports a loss, both drain and destroy the old lanes, reset counts, windows and words, create new lanes
 *   connect   to the peer's new lanes
 *   prove     a first write on each must complete
 *   finish    uses the lanes that both ends have proven; recovery opens the others later; ranks are UP again
 *
 * Work in flight to a node failed with a status when the node was lost. Once `prepare` is over at both ends it cannot take effect:
 * a drained queue pair lands nothing, and no new one is connected earlier. On the core's thread; slow path.
 */
#ifndef EPF_FABRIC_ENGINE_RECONNECT_H
#define EPF_FABRIC_ENGINE_RECONNECT_H

#include "fabric/engine/engine.h"

/* Begins an attempt and abandons an unfinished one. Sets lost[n_nodes] to 1 for each node that is unreachable here. 0 or -ENOMEM. */
int epf_reconnect_begin(struct epf_core *core, uint8_t *lost);

/*
 * lost[n_nodes]: 1 for the nodes to be reconnected. *tokens: those of all lanes, as epf_core_set_world gives them, the core's, until the
 * next attempt. -EAGAIN: old lanes still drain, or it is not known yet whether a lane to this node itself still works, which takes a tick (an eighth of
 * peer-timeout); call again while the core is stepped.
 */
int epf_reconnect_prepare(struct epf_core *core, const uint8_t *lost, const uint64_t **tokens);

/* Connects the lanes to a node; recovery retries those that fail. Does nothing for a node that was not lost. */
int epf_reconnect_node(struct epf_core *core, uint32_t node, const struct epf_node_info *info);

/* proven[n_nodes]: bit l: lane l leads to the peer. -EAGAIN: not known yet; call again while the core is stepped. */
int epf_reconnect_prove(struct epf_core *core, uint8_t *proven);

/*
 * proven[n_nodes]: what each node has proven of its lanes to this one. Lanes proven by both are used from now on; the ranks of those nodes are UP
 * with an epoch one higher. 0, or -ENETUNREACH naming a node that stays lost: the same at both ends.
 */
int epf_reconnect_finish(struct epf_core *core, const uint8_t *proven);

void epf_reconnect_free(struct epf_core *core);

#endif
