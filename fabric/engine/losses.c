/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the loss that others follow from (losses.h). When a rank is lost, its peers end one after another, and a late observer sees several of them
 * gone at once. The order in which losses are noticed does not say which came first, so ranks that end name it: in the goodbye, in the message
 * of the daemon that notices their end, or beforehand where engine and rank end together.
 *
 * Runs on the core's thread, rarely, between the steps; but for epf_first_loss(), which reads the page from any thread.
 */
#include "fabric/engine/losses.h"

#include "fabric/base/err.h"
#include "fabric/engine/engine.h"
#include "fabric/engine/lane_hot.h"
#include "fabric/engine/recovery.h"

enum { SILENT_TICKS = 2 }; /* one may be missed by chance */

/* Returns how well a lost rank explains the other losses: the lower the better. */
static uint64_t weight(const struct epf_peers_shm *page, const struct epf_peer_detail *details,
		       uint32_t rank, uint32_t self)
{
	const struct epf_peer_word *w = &page->peers[rank];
	uint64_t order = details ? EPF_LOAD_RELAXED(&details[rank].order) : 0;
	/* A NIC that is cut off loses this node's ranks, too: a weaker explanation. */
	uint64_t own = EPF_LOAD_RELAXED(&w->node) == EPF_LOAD_RELAXED(&page->peers[self].node) &&
		       EPF_LOAD_RELAXED(&w->cause) != EPF_R_RANK_DIED;

	return own << 63 | order << 24 | rank;
}

/* Follows the chain of causes from a lost rank; not to this rank itself, and not to masked ranks. */
static void follow(const struct epf_peer_detail *details, uint32_t world, const uint8_t *masked,
		   uint32_t self, struct epf_loss *out)
{
	uint32_t rank = out->rank, cause = 0, after = EPF_NONE;

	for (uint32_t steps = 0;; steps++) {
		uint32_t root = EPF_LOAD_RELAXED(&details[rank].root) - 1;

		if (root >= world || root == self || EPF_LOAD_RELAXED(&masked[root]))
			break;
		/* Two ranks that blame each other lost the link between them: either may be named. */
		if (steps == world)
			return;
		cause = EPF_LOAD_RELAXED(&details[rank].root_cause);
		after = rank;
		rank = root;
	}
	if (after != EPF_NONE)
		*out = (struct epf_loss){ rank, cause, after };
}

bool epf_first_loss(const struct epf_peers_shm *page, const struct epf_peer_detail *details,
		    uint32_t world, const uint8_t *masked, uint32_t self, bool left,
		    struct epf_loss *out)
{
	uint64_t best = UINT64_MAX;

	for (uint32_t r = 0; r < world; r++) {
		uint32_t state = EPF_LOAD_ACQUIRE(&page->peers[r].state);
		uint64_t at;

		if (r == self || EPF_LOAD_RELAXED(&masked[r]))
			continue;
		if (state != EPF_PEER_DOWN && !(left && state == EPF_PEER_LEFT && details &&
						EPF_LOAD_RELAXED(&details[r].root)))
			continue;
		at = weight(page, details, r, self);
		if (at >= best)
			continue;
		best = at;
		*out = (struct epf_loss){ r, EPF_LOAD_RELAXED(&page->peers[r].cause), EPF_NONE };
	}
	if (best == UINT64_MAX)
		return false;
	if (details)
		follow(details, world, masked, self, out);
	if (EPF_LOAD_ACQUIRE(&page->peers[out->rank].state) == EPF_PEER_DOWN)
		out->cause = EPF_LOAD_RELAXED(&page->peers[out->rank].cause);
	return true;
}

static struct epf_peer_detail *detail(const struct epf_core *core, uint32_t rank)
{
	return &epf_peers_details(core->peers_page, core->world)[rank];
}

static void note(const struct epf_core *core, uint32_t rank, uint32_t root, uint32_t cause)
{
	EPF_STORE_RELAXED(&detail(core, rank)->root_cause, cause);
	EPF_STORE_RELAXED(&detail(core, rank)->root, root);
}

/* 1 + the rank for which local rank index `local` would end now; 0: for none. */
static uint32_t root_of(const struct epf_core *core, uint32_t local, uint32_t *cause)
{
	const struct epf_rank_state *r = &core->ranks[local];
	struct epf_loss loss = { 0 };

	*cause = 0;
	if (!epf_first_loss(core->peers_page, detail(core, 0), core->world, r->masked, r->rank,
			    false, &loss))
		return 0;
	*cause = loss.cause;
	return loss.rank + 1;
}

void epf_loss_of_rank(struct epf_core *core, uint32_t local)
{
	uint32_t cause, root = root_of(core, local, &cause);

	note(core, core->ranks[local].rank, root, cause);
}

void epf_loss_put(const struct epf_core *core, uint32_t rank, struct epf_msg *m)
{
	m->b = detail(core, rank)->root;
	m->e = detail(core, rank)->root_cause;
}

void epf_loss_take(struct epf_core *core, uint32_t rank, const struct epf_msg *m)
{
	uint64_t root = m->b <= core->world && m->b != (uint64_t)rank + 1 ? m->b : 0;

	note(core, rank, (uint32_t)root, root && m->e <= UINT16_MAX ? (uint32_t)m->e : 0);
}

void epf_loss_review(struct epf_core *core)
{
	uint32_t cause, root;

	if (core->n_ranks != 1 || core->ranks[0].life != EPF_RANK_LIVE || !core->peers_page->lost)
		return;
	root = root_of(core, 0, &cause);
	if (root == detail(core, core->ranks[0].rank)->root)
		return;
	note(core, core->ranks[0].rank, root, cause);
	for (uint32_t i = 0; i < core->n_nodes; i++)
		core->nodes[i].told_loss = 0;
	core->telling += !core->telling_loss;
	core->telling_loss = 1;
	core->cold_work = 1;
}

unsigned epf_loss_step(struct epf_core *core)
{
	unsigned left = 0, handled = 0;

	for (uint32_t i = 0; core->telling_loss && i < core->n_nodes; i++) {
		struct epf_node *node = &core->nodes[i];
		/* An engine that does not know the message refuses it for its lane number. */
		struct epf_msg m = { .kind = EPF_MSG_LOST,
				     .rank = core->ranks[0].rank,
				     .c = EPF_NONE };

		if (i == core->self || node->state != EPF_NODE_UP || node->told_loss)
			continue;
		epf_loss_put(core, core->ranks[0].rank, &m);
		node->told_loss = epf_control_send(core, node, &m) != 0;
		handled += node->told_loss;
		left += !node->told_loss;
	}
	core->telling -= core->telling_loss && !left;
	core->telling_loss = left != 0;
	return handled;
}

int epf_loss_is_notified(struct epf_core *core)
{
	return !core->telling_loss;
}

void epf_loss_message(struct epf_core *core, struct epf_node *node, const struct epf_msg *m)
{
	if (m->rank >= core->world || &core->nodes[core->peers[m->rank].node] != node) {
		EPF_COUNT(core, ARRIVALS_REFUSED, 1);
		return;
	}
	epf_loss_take(core, m->rank, m);
}

void epf_silence_show(struct epf_core *core, struct epf_node *node)
{
	bool silent = node->state == EPF_NODE_UP && node->silent_ticks >= SILENT_TICKS;
	uint64_t since = 0;

	if (silent == node->shown_silent)
		return;
	node->shown_silent = silent;
	if (silent)
		since = core->now(core->now_arg) -
			node->silent_ticks * (core->limits.peer_timeout_ns / EPF_TICKS_PER_TIMEOUT);
	for (uint32_t r = 0; r < core->world; r++)
		if (&core->nodes[core->peers[r].node] == node)
			EPF_STORE_RELEASE(&detail(core, r)->silent_ns, since);
}
