/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hash functions of the tables of group streams and notify handles. Used by the hot files that look something up, and by grow.c, which
 * makes the tables larger.
 */
#ifndef EPF_FABRIC_ENGINE_HASH_HOT_H
#define EPF_FABRIC_ENGINE_HASH_HOT_H

#include "fabric/engine/core.h"

/* Returns the chain of the group stream of (local rank, peer, signal). */
EPF_INLINE uint32_t group_hash(const struct epf_core *core, uint32_t local, uint32_t peer,
			       uint32_t signal)
{
	uint32_t hash = peer * 0x9e3779b1u ^ signal * 0x85ebca6bu ^ local * 0xc2b2ae35u;

	return (hash ^ hash >> 15) & core->group_mask;
}

/* Returns the chain of the notify handle of (stream, signal, add). */
EPF_INLINE uint32_t notify_hash(const struct epf_core *core, uint32_t stream, uint32_t signal,
				uint32_t add)
{
	uint32_t hash = stream * 0x9e3779b1u ^ signal * 0x85ebca6bu ^ add * 0xc2b2ae35u;

	return (hash ^ hash >> 15) & core->group_mask;
}

#endif
