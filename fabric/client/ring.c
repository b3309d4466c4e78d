/* SPDX-License-Identifier: Apache-2.0 */
/* libepf: opening and closing rings. Slow path; any thread. What goes through a ring is in command.c. */
#define EPF_LOG_COMP "epf"
#include "fabric/client/handle.h"

#include "fabric/base/err.h"
#include "fabric/base/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Gives the ring to the engine and into the list. A rank that was aborted has no ring without the word. */
static int add_ring(struct epf *ep, struct epf_ring *ring, unsigned log2)
{
	int rc;

	epf_lock_calls(ep);
	rc = ep->be->ring_open(ep, ring, log2, ring->weight, ring->start);
	if (!rc) {
		epf_ring_producer_init(&ring->producer, ring->shm, ring->start);
		epf_lock_lists(ep);
		ring->next = ep->rings;
		ep->rings = ring;
		if (EPF_LOAD_RELAXED(&ep->aborted))
			EPF_STORE_RELEASE(&ring->shm->abort, -ECANCELED);
		epf_unlock_lists(ep);
	}
	epf_unlock_calls(ep);
	return rc;
}

static void remove_ring(struct epf *ep, struct epf_ring *ring)
{
	epf_lock_calls(ep);
	epf_lock_lists(ep);
	for (struct epf_ring **link = &ep->rings; *link; link = &(*link)->next)
		if (*link == ring) {
			*link = ring->next;
			break;
		}
	epf_unlock_lists(ep);
	ep->be->ring_close(ring);
	epf_unlock_calls(ep);
}

int epf_ring_open(struct epf *ep, const struct epf_ring_options *opts, struct epf_ring **out)
{
	struct epf_ring_options o = { 0 };
	struct epf_ring *ring;
	int rc;

	if (opts)
		memcpy(&o, opts, opts->size < sizeof(o) ? opts->size : sizeof(o));
	o.slots = o.slots ? o.slots : (uint32_t)ep->conf.ring_slots;
	o.weight = o.weight ? o.weight : 1;
	if ((o.slots & (o.slots - 1)) || o.slots < 1u << EPF_RING_LOG2_MIN ||
	    o.slots > 1u << EPF_RING_LOG2_MAX || o.weight > 255)
		return epf_fail(EPF_R_RING_OPTION, "ring: %u slots, weight %u", o.slots, o.weight);
	ring = calloc(1, sizeof(*ring));
	if (!ring)
		return epf_fail(EPF_R_NO_MEMORY, "ring: no memory");
	ring->ep = ep;
	ring->start = o.start;
	ring->weight = o.weight;
	rc = add_ring(ep, ring, (unsigned)__builtin_ctz(o.slots));
	if (rc)
		free(ring);
	else
		*out = ring;
	return rc;
}

void epf_ring_close(struct epf_ring *ring)
{
	if (!ring)
		return;
	if (epf_wait_retired(ring, epf_ring_pushed(ring), 0))
		epf_warn("ring %u: closed with commands under way: %s", ring->id, epf_last_error());
	remove_ring(ring->ep, ring);
	free(ring);
}
