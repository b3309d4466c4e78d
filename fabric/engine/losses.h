/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the peers page says of peers besides their states: whose loss came first, which loss another one follows from, and who is silent.
 * Engines exchange why their ranks end, so that everybody names the rank that failed first (docs/guides/failover.md). Used by the engine, on the
 * core's thread, and by the waits of libepf (epf_first_loss() only).
 */
#ifndef EPF_FABRIC_ENGINE_LOSSES_H
#define EPF_FABRIC_ENGINE_LOSSES_H

#include "fabric/engine/core.h"

#include <stdbool.h>

struct epf_loss {
	uint32_t rank;  /* the rank that was lost first, as far as is known */
	uint32_t cause; /* why: a reason number, 0: not known */
	uint32_t after; /* a rank that ended because of it and said so; EPF_NONE: nobody did */
};

/**
 * epf_first_loss() - the loss from which all others follow, as one rank sees it.
 * @details: of all ranks, or NULL where the writer of the page has none.
 * @masked: by rank: losses that do not count.
 * @left: ranks that closed because of a loss count as lost, too.
 *
 * Return: false if no rank that counts is lost. May be called while the engine writes.
 */
bool epf_first_loss(const struct epf_peers_shm *page, const struct epf_peer_detail *details,
		    uint32_t world, const uint8_t *masked, uint32_t self, bool left,
		    struct epf_loss *out);

/* Local rank index `local` is about to be announced as gone: notes in the page which loss that follows from. */
void epf_loss_of_rank(struct epf_core *core, uint32_t local);
/* Writes that into a goodbye, or into the message about rank `rank`: words b and e. */
void epf_loss_put(const struct epf_core *core, uint32_t rank, struct epf_msg *m);
/* Takes it from a message about rank `rank`, of which a peer may have written anything. */
void epf_loss_take(struct epf_core *core, uint32_t rank, const struct epf_msg *m);

/*
 * An engine with one rank may end together with its process, without a goodbye. So it announces to all nodes beforehand which loss its rank would end
 * for. epf_loss_review(): losses or masks have changed; epf_loss_step(): sends to nodes as there is room, returns how much was done;
 * epf_loss_is_notified(): 1 when all have been notified.
 */
void epf_loss_review(struct epf_core *core);
unsigned epf_loss_step(struct epf_core *core);
int epf_loss_is_notified(struct epf_core *core);
/* Handles EPF_MSG_LOST. */
void epf_loss_message(struct epf_core *core, struct epf_node *node, const struct epf_msg *m);

/* Shows in the page since when a node's engine is silent, or that it is not. */
void epf_silence_show(struct epf_core *core, struct epf_node *node);

#endif
