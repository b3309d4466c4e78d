/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adds, closes and reuses rings of a core. Slow path: before traffic, or between two steps on the core's thread.
 */
#define EPF_LOG_COMP "core"
#include "fabric/engine/control_plane.h"
#include "fabric/engine/core_priv.h"
#include "fabric/engine/retire_hot.h"

#include <stdlib.h>
#include <string.h>

void epf_ring_free(struct epf_ring_state *ring)
{
	if (!ring)
		return;
	free(ring->streams);
	free(ring->pend);
	free(ring);
}

static struct epf_ring_state *ring_alloc(struct epf_core *core, uint32_t window)
{
	struct epf_ring_state *ring = calloc(1, sizeof(*ring));

	if (!ring)
		return NULL;
	ring->pend = calloc(window, sizeof(*ring->pend));
	ring->streams = malloc((core->world ? core->world : 1) * sizeof(*ring->streams));
	if (!ring->pend || !ring->streams) {
		epf_ring_free(ring);
		return NULL;
	}
	memset(ring->streams, 0xff, core->world * sizeof(*ring->streams));
	return ring;
}

/* Returns a closed ring of the same rank to reuse, or NULL. Its streams keep their counts. */
static struct epf_ring_state *ring_again(struct epf_core *core, uint32_t local)
{
	for (uint32_t i = 0; i < core->n_rings; i++)
		if (core->rings[i]->spare && core->rings[i]->rank == local)
			return core->rings[i];
	return NULL;
}

int epf_core_add_ring(struct epf_core *core, uint32_t local, struct epf_ring_shm *shm,
		      unsigned log2, unsigned weight, uint64_t start, uint32_t *id)
{
	struct epf_ring_state *ring = ring_again(core, local);

	if (!ring) {
		if (core->n_rings == EPF_MAX_RINGS)
			return epf_fail(EPF_R_RING_LIMIT, "rings: all %u of the core are in use",
					EPF_MAX_RINGS);
		ring = ring_alloc(core, core->limits.ring_window);
		if (!ring)
			return no_memory("a ring");
		ring->id = (uint16_t)core->n_rings;
		ring->dirty = EPF_NONE;
		ring->rank = local;
		core->rings[core->n_rings++] = ring;
	}
	epf_ring_consumer_init(&ring->consumer, shm, log2, start);
	ring->pend_mask = core->limits.ring_window - 1;
	ring->seq = ring->retired = ring->published = (uint32_t)start;
	ring->retired64 = start;
	ring->failed = 0;
	ring->deficit = 0;
	ring->left = 0;
	ring->alike = 0;
	ring->flush_list = EPF_NONE;
	ring->blocked = EPF_NONE;
	ring->weight = (uint8_t)weight;
	ring->last_step = core->steps - 1;
	ring->retired_word = &core->retired[ring->id / 64];
	ring->retired_bit = UINT64_C(1) << ring->id % 64;
	epf_ring_poll_next(core, ring);
	ring->done = &shm->done;
	ring->spare = 0;
	ring->live = 1;
	epf_revokes_new_ring(core, ring->id);
	*id = ring->id;
	return 0;
}

void epf_core_close_ring(struct epf_core *core, uint32_t id)
{
	core->rings[id]->live = 0;
	if (core->seen.ring == id + 1)
		core->seen.ring = 0;
	core->polls[id] = (struct epf_ring_poll){ &core->never, 1 };
}

int epf_core_ring_drained(struct epf_core *core, uint32_t id)
{
	struct epf_ring_state *ring = core->rings[id];

	if (!ring->spare && !ring->live && ring->retired == ring->seq && !ring->deferred &&
	    ring->flush_phase == EPF_FLUSH_NONE)
		ring->spare = 1;
	return ring->spare;
}
