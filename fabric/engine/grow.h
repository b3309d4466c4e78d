/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory of peers that follows use. Address space for all of it is reserved when the world is set (core_world.c); a page takes memory
 * once it is touched. So growth needs no allocator, no lock and no system call, and cannot fail in the middle of a job: the reservation
 * holds the most that the plan (lanes_plan.h) comes to.
 *
 * The *_cold functions are called at first use, by the data path and the control plane alike, on the core's thread. They return 1 when
 * there is more, 0 when a limit is reached.
 */
#ifndef EPF_FABRIC_ENGINE_GROW_H
#define EPF_FABRIC_ENGINE_GROW_H

#include "fabric/engine/core.h"

/* Returns the bytes of all blocks that an array of elements takes while it grows from `first` to `most`. */
uint64_t epf_grow_chain(uint64_t first, uint64_t factor, uint64_t most, uint64_t element);

/*
 * Reserves memory for so many streams (and notify handles, and groups), waiting messages and bytes of blocks, and places the core's pools in it.
 * Returns 0, or -ENOMEM with epf_last_error().
 */
int epf_grow_reserve(struct epf_core *core, uint32_t streams, uint32_t pending, uint64_t blocks);
/* Returns it all. */
void epf_grow_release(struct epf_core *core);
/* Returns how many bytes are in use now, outgrown blocks included. */
uint64_t epf_grow_bytes(const struct epf_core *core);

/* More entries for a lane. Returns 0 if it has as many as lane-depth and the share of all peers allow. */
int epf_lane_grow_cold(struct epf_core *core, struct epf_lane *lane);
/* More payload slots for a lane. Returns 0 if it has one for each entry that it may hold. */
int epf_slots_grow_cold(struct epf_core *core, struct epf_lane *lane);
/* Room for the receiving stream `handle` of a node. Returns 0 if no peer may use that number. */
int epf_rx_grow_cold(struct epf_core *core, struct epf_node *node, uint32_t handle);
/* The same for the notify handle that a peer defines. */
int epf_notify_in_grow_cold(struct epf_core *core, struct epf_node *node, uint32_t number);
/* The acknowledgements that a node's flushes ask for. Returns 0 if there is no room. */
int epf_acks_grow_cold(struct epf_core *core, struct epf_node *node);
/* Room for one more sending stream of a node, and for one more notify handle defined there. Returns 0 at their limit. */
int epf_handles_grow_cold(struct epf_core *core, struct epf_node *node);
int epf_notifies_grow_cold(struct epf_core *core, struct epf_node *node);
/* Gives the hash tables of groups and notify handles a head for each entry again. */
int epf_hash_grow_cold(struct epf_core *core);
/* More arrival windows, for streams whose events arrive out of order. Returns 0 if every stream has one. */
int epf_windows_grow_cold(struct epf_core *core);
/* Keeps a node's address, which may be another one when it is reconnected. Returns 0 or -ENOMEM with epf_last_error(). */
int epf_node_address_keep(struct epf_core *core, struct epf_node *node, const void *addr,
			  size_t len);
/* Returns a block of zeros, NULL if the reservation is used up. It is never given back. */
void *epf_grow_take(struct epf_core *core, size_t bytes);

#endif
