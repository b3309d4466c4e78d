/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From descriptions to connections: what every rank says of itself when a job is joined, and what an engine makes of all of
 * it. Used by client/join.c (embedded: each rank an engine and a separate node) and by the service daemon (one engine a job
 * and node, several local ranks). Slow path; before traffic, or on the core's thread by epf_core_call().
 */
#ifndef EPF_FABRIC_JOIN_WORLD_H
#define EPF_FABRIC_JOIN_WORLD_H

#include "bootstrap/boot.h"
#include "fabric/engine/engine.h"

/*
 * Describes local rank `local` as bytes (malloced). tokens: NULL, or n_nodes * lanes-per-peer of them: then the description of the
 * engine itself (NIC address, lanes, control writes) is in it; exactly one rank of each node gives that, its lowest. place: the node's
 * name, for people.
 */
int epf_world_describe(struct epf_core *core, uint32_t local, const char *place,
		       const uint64_t *tokens, uint8_t **buf, size_t *len);

/*
 * Connects the engine with what all ranks said. blobs[world]; node_of[world]: engine number of each rank (0..n_nodes-1), as given to
 * epf_core_set_world. Fills the peers page (states UP, node numbers). -EPROTO with a reason when something does not fit; the core
 * can then only be destroyed.
 */
int epf_world_connect(struct epf_core *core, const struct epf_blob *blobs, const uint32_t *node_of);

/*
 * Numbers 0 .. n-1 by kind: equal ones (compare gives 0; it orders them in any way) get the same group[], groups are numbered in order
 * of their lowest member; *groups: how many. In n log n steps: jobs have thousands of ranks. -ENOMEM.
 */
int epf_world_group(uint32_t n, int (*compare)(const void *arg, uint32_t a, uint32_t b),
		    const void *arg, uint32_t *group, uint32_t *groups);

/* Takes in regions that ranks have registered since: blobs as in epf_world_connect; an empty one changes nothing. On the core's thread. */
int epf_world_update(struct epf_core *core, const struct epf_blob *blobs);

/* Steps of epf_world_reconnect; what one gives, all get with the next. */
enum epf_reconnect_step {
	EPF_RECONNECT_BEGIN = 0,   /* gives which nodes are lost */
	EPF_RECONNECT_PREPARE = 1, /* gives descriptions of the node's ranks, and its new lanes */
	EPF_RECONNECT_CONNECT = 2, /* gives nothing: its end is that all lanes are connected */
	EPF_RECONNECT_PROVE = 3,   /* gives which lanes lead to their peers */
	EPF_RECONNECT_FINISH = 4,  /* gives nothing */
	EPF_RECONNECT_STEPS = 5
};

/*
 * One step of reconnecting nodes that were lost (engine/reconnect.h), on the core's thread. blobs[world]: what all ranks gave after the step before, NULL for
 * the first; of each node only its lowest rank's counts. *buf: malloced or NULL, to be given to all. -EAGAIN: the same call again, after the core
 * has been stepped. -ENETUNREACH: a node stays lost; at the end of an attempt the others are back all the same.
 */
int epf_world_reconnect(struct epf_core *core, unsigned step, const char *place,
			const struct epf_blob *blobs, uint8_t **buf, size_t *len);

#endif
