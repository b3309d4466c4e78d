/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that leave and return while the engine runs: in a daemon several ranks share an engine that outlives its clients.
 * Control messages notify every node of a local rank's state; messages about remote ranks arrive here, too. When a rank leaves,
 * its rings are closed and their deferred commands fail, its regions are withdrawn (revoke, peers drain, deregister), and its
 * signals are dropped once nobody adds to them.
 *
 * A returning rank has an epoch one higher and new regions. One message per region and one for the rank announce it; they may
 * overtake each other, and the rank is UP for a peer when all have arrived.
 *
 * Runs on the core's thread, rarely; may allocate. Must never log.
 */
#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/engine/engine.h"
#include "fabric/engine/fail.h"
#include "fabric/engine/losses.h"
#include "fabric/engine/recovery.h"

#include <errno.h>
#include <stdlib.h>

void epf_spread_keys(struct epf_region_remote *region, uint32_t keys)
{
	for (uint32_t i = keys ? keys : 1; i < EPF_NIC_LINKS; i++)
		region->rkeys[i] = region->rkeys[keys ? i % keys : 0];
}

static void refresh(struct epf_core *core, uint32_t rank)
{
	for (uint32_t i = 0; i < core->n_ranks; i++)
		core->ranks[i].usable[rank] = core->peers[rank].up && !core->ranks[i].masked[rank];
}

void epf_peer_changed(struct epf_core *core, uint32_t rank, unsigned state, unsigned cause,
		      uint32_t epoch)
{
	const struct epf_peer_word *w = &core->peers_page->peers[rank];
	/* The goodbye of its node has overtaken the news of its loss. */
	bool was_lost = w->state == EPF_PEER_LEFT && state == EPF_PEER_DOWN &&
			core->nodes[core->peers[rank].node].state == EPF_NODE_LEFT;

	/* A lost rank stays lost, whether its node is then lost, too, or leaves in order. */
	if (state != EPF_PEER_UP && w->epoch == epoch && !was_lost &&
	    (w->state == EPF_PEER_DOWN || w->state == EPF_PEER_LEFT))
		return;
	core->peers[rank].up = state == EPF_PEER_UP;
	refresh(core, rank);
	epf_peers_set(core->peers_page, rank, state, cause, epoch);
	epf_loss_review(core);
	EPF_PROBE4(peer_state, rank, state, cause, epoch);
	epf_flight_note(core->flight, epf_tsc(), EPF_FLIGHT_PEER, state, rank, cause, epoch, 0);
	if (state == EPF_PEER_DOWN)
		epf_fail_streams_cold(core, rank, EPF_NONE);
	for (uint32_t i = 0; i < core->n_ranks; i++)
		core->ranks[i].notify = EPF_NOTIFY_PEERS;
	core->wakes = 1;
}

void epf_core_mask_peer(struct epf_core *core, uint32_t local, uint32_t rank, int masked)
{
	core->ranks[local].masked[rank] = masked != 0;
	refresh(core, rank);
	epf_loss_review(core);
	if (masked)
		epf_fail_streams_cold(core, rank, local);
}

/* Begins to notify every node of a local rank's state. */
static void begin_news(struct epf_core *core, struct epf_rank_state *r)
{
	for (uint32_t i = 0; i < core->n_nodes; i++)
		r->notified[i] = 0;
	core->telling += !r->telling;
	r->telling = 1;
	core->cold_work = 1;
}

void epf_core_rank_gone(struct epf_core *core, uint32_t local, uint32_t cause)
{
	struct epf_rank_state *r = &core->ranks[local];

	if (r->life != EPF_RANK_LIVE)
		return;
	r->life = EPF_RANK_GONE;
	r->wakeup = NULL;
	for (uint32_t i = 0; i < core->n_rings; i++)
		if (core->rings[i]->rank == local)
			epf_core_close_ring(core, i);
	epf_fail_streams_cold(core, EPF_NONE, local);
	for (uint32_t i = 0; i < r->n_regions; i++)
		if (r->regions[i].state == EPF_REGION_LIVE)
			epf_core_revoke_begin(core, local, i);
	if (!core->peers || core->peers_page->peers[r->rank].state == EPF_PEER_UNKNOWN)
		return; /* the job is not connected yet: no peer to notify */
	epf_loss_of_rank(core, local);
	epf_peer_changed(core, r->rank, cause ? EPF_PEER_DOWN : EPF_PEER_LEFT, cause,
			 core->peers_page->peers[r->rank].epoch);
	begin_news(core, r);
}

int epf_core_rank_drained(struct epf_core *core, uint32_t local)
{
	struct epf_rank_state *r = &core->ranks[local];
	uint32_t missing;
	int open = r->telling;

	if (r->life != EPF_RANK_GONE)
		return r->life == EPF_RANK_DRAINED;
	for (uint32_t i = 0; i < r->n_regions; i++)
		if (r->regions[i].state == EPF_REGION_REVOKED)
			open |= epf_core_revoke_done(core, local, i, &missing) == 0;
	for (uint32_t i = 0; i < core->n_rings; i++)
		if (core->rings[i]->rank == local)
			open |= !epf_core_ring_drained(core, i);
	if (open)
		return 0;
	r->life = EPF_RANK_DRAINED;
	r->signals = NULL;
	r->n_signals = 0;
	return 1;
}

int epf_core_rank_back(struct epf_core *core, uint32_t local, struct epf_signal *signals,
		       uint32_t n_signals, struct epf_wakeup *wakeup)
{
	struct epf_rank_state *r = &core->ranks[local];

	if (r->life == EPF_RANK_LIVE)
		return epf_fail(EPF_R_SVC_RANK_TAKEN, "rank %u: it is not lost", r->rank);
	if (!epf_core_rank_drained(core, local))
		return epf_fail(EPF_R_REJOIN, "rank %u: its peers still clear up behind it",
				r->rank);
	for (uint32_t i = 0; i < core->n_groups; i++)
		if (core->streams[core->groups[i].stream].rank == local)
			core->groups[i].spare = 0;
	for (uint32_t p = 0; p < core->world; p++)
		r->masked[p] = 0;
	for (uint32_t p = 0; p < core->world; p++)
		refresh(core, p);
	r->n_regions = 0;
	r->free_regions = 0;
	r->signals = signals;
	r->signal_region = EPF_NONE;
	r->n_signals = n_signals;
	r->wakeup = wakeup;
	r->life = EPF_RANK_LIVE;
	return 0;
}

/* Allocates the regions of a returning rank. */
static int make_regions(struct epf_peer *peer, uint32_t n)
{
	struct epf_region_remote *regions = calloc(n ? n : 1, sizeof(*regions));

	if (!regions)
		return -ENOMEM;
	free(peer->regions);
	peer->regions = regions;
	peer->n_regions = n;
	return 0;
}

int epf_core_rank_announce(struct epf_core *core, uint32_t local)
{
	struct epf_rank_state *r = &core->ranks[local];
	struct epf_peer *self = &core->peers[r->rank];

	if (make_regions(self, r->n_regions))
		return epf_fail(EPF_R_NO_MEMORY, "rank %u: no memory to rejoin", r->rank);
	for (uint32_t i = 0; i < r->n_regions; i++) {
		const struct epf_region_local *l = &r->regions[i];

		self->regions[i] = (struct epf_region_remote){ .raddr = l->mr.raddr,
							       .bytes = l->access ? l->bytes : 0,
							       .state = l->access ? EPF_REGION_LIVE
										  : EPF_REGION_FREE,
							       .access = (uint16_t)l->access };
		for (unsigned k = 0; k < EPF_NIC_LINKS; k++)
			self->regions[i].rkeys[k] = l->mr.keys[k].rkey;
	}
	self->n_signals = r->n_signals;
	epf_peer_changed(core, r->rank, EPF_PEER_UP, 0, core->peers_page->peers[r->rank].epoch + 1);
	begin_news(core, r);
	return 0;
}

/* Packs all keys of a region except the first, two in a word. */
static struct epf_msg keys_message(const struct epf_region_remote *region, uint32_t rank,
				   uint32_t number, uint32_t epoch, uint32_t regions)
{
	const uint32_t *k = region->rkeys;

	return (struct epf_msg){ .kind = EPF_MSG_KEYS,
				 .rank = rank,
				 .signal = number,
				 .c = epoch,
				 .d = regions,
				 .value = k[1] | (uint64_t)k[2] << 32,
				 .a = k[3] | (uint64_t)k[4] << 32,
				 .b = k[5] | (uint64_t)k[6] << 32,
				 .e = k[7] };
}

/* Returns the number of messages that describe one region. */
static uint32_t per_region(uint32_t keys)
{
	return keys > 1 ? 2 : 1;
}

/* Returns message number `at` about a local rank: its regions if it is UP, then the rank. */
static struct epf_msg news_message(const struct epf_core *core, const struct epf_rank_state *r,
				   uint32_t at)
{
	const struct epf_peer_word *w = &core->peers_page->peers[r->rank];
	const struct epf_peer *self = &core->peers[r->rank];
	uint32_t regions = w->state == EPF_PEER_UP ? self->n_regions : 0;
	uint32_t each = per_region(core->caps.keys), number = at / each;
	uint32_t epoch =
		w->epoch -
		self->returns; /* relative to what peers know: they may not have lost this node */
	const struct epf_region_remote *region = &self->regions[number];
	struct epf_msg m;

	if (number < regions && at % each)
		return keys_message(region, r->rank, number, epoch, regions);
	at = number;
	if (at < regions)
		return (struct epf_msg){ .kind = EPF_MSG_REGION,
					 .rank = r->rank,
					 .signal = at,
					 .value = epoch,
					 .a = region->raddr,
					 .b = region->bytes,
					 .c = region->rkey,
					 .d = region->access,
					 .e = regions };
	m = (struct epf_msg){ .kind = EPF_MSG_RANK,
			      .rank = r->rank,
			      .signal = w->state,
			      .c = epoch,
			      .d = w->cause,
			      .value = regions,
			      .a = self->n_signals };
	if (w->state != EPF_PEER_UP)
		epf_loss_put(core, r->rank, &m);
	return m;
}

/* Sends a node as many messages as fit. Returns 1 if all are sent. */
static int tell_node(struct epf_core *core, struct epf_rank_state *r, uint32_t n, unsigned *handled)
{
	const struct epf_peer *self = &core->peers[r->rank];
	uint32_t last = core->peers_page->peers[r->rank].state == EPF_PEER_UP
				? self->n_regions * per_region(core->caps.keys)
				: 0;

	while (r->notified[n] <= last) {
		struct epf_msg m = news_message(core, r, r->notified[n]);

		if (core->nodes[n].state != EPF_NODE_UP || n == core->self)
			return 1;
		if (!epf_control_send(core, &core->nodes[n], &m))
			return 0;
		r->notified[n]++;
		*handled += 1;
	}
	return 1;
}

unsigned epf_ranks_step(struct epf_core *core)
{
	unsigned handled = epf_loss_step(core);

	for (uint32_t i = 0; core->telling && i < core->n_ranks; i++) {
		struct epf_rank_state *r = &core->ranks[i];
		int all = 1;

		if (!r->telling)
			continue;
		for (uint32_t n = 0; n < core->n_nodes; n++)
			all &= tell_node(core, r, n, &handled);
		if (all) {
			r->telling = 0;
			core->telling--;
		}
	}
	return handled;
}

static void refuse(struct epf_core *core)
{
	epf_stat_add(core->stats, EPF_STAT_CORE_ARRIVALS_REFUSED, 1);
}

/* Prepares for a message about a returning rank; the first allocates its regions. Returns 0 or -ENOMEM. */
static int collect(struct epf_core *core, struct epf_peer *peer, uint32_t epoch, uint32_t regions)
{
	if (peer->expects == 0 || peer->epoch != epoch) {
		if (make_regions(peer, regions))
			return -ENOMEM;
		core->recheck = 1; /* deferred commands name the old ones */
		peer->epoch = epoch;
		peer->expects = regions * per_region(core->nodes[peer->node].keys) + 1;
		peer->coming = 0;
	}
	return 0;
}

static void came(struct epf_core *core, uint32_t rank)
{
	struct epf_peer *peer = &core->peers[rank];

	if (++peer->coming < peer->expects)
		return;
	peer->expects = 0;
	epf_peer_changed(core, rank, EPF_PEER_UP, 0, peer->epoch + peer->returns);
}

static int on_region(struct epf_core *core, struct epf_peer *peer, const struct epf_msg *m)
{
	struct epf_region_remote *region;

	if (m->e > EPF_MAX_REGIONS || m->signal >= m->e || m->b > EPF_WIDE_REGION_BYTES ||
	    m->b > UINT64_MAX - m->a ||
	    (m->d & ~(uint32_t)(EPF_MR_REMOTE_WRITE | EPF_MR_REMOTE_READ)) ||
	    collect(core, peer, (uint32_t)m->value, (uint32_t)m->e) || m->signal >= peer->n_regions)
		return 0;
	region = &peer->regions[m->signal];
	region->raddr = m->a;
	region->bytes = m->b;
	region->rkeys[0] = m->c;
	if (core->nodes[peer->node].keys == 1)
		epf_spread_keys(region, 1);
	region->access = (uint16_t)m->d;
	region->state = m->b ? EPF_REGION_LIVE : EPF_REGION_FREE;
	came(core, m->rank);
	return 1;
}

static int on_keys(struct epf_core *core, struct epf_peer *peer, const struct epf_msg *m)
{
	uint32_t keys = core->nodes[peer->node].keys, first;
	struct epf_region_remote *region;

	if (keys < 2 || m->d > EPF_MAX_REGIONS || m->signal >= m->d ||
	    collect(core, peer, m->c, m->d) || m->signal >= peer->n_regions)
		return 0;
	region = &peer->regions[m->signal];
	first = region->rkeys[0]; /* the REGION message carries it, before or after this one */
	*region = (struct epf_region_remote){ .raddr = region->raddr,
					      .bytes = region->bytes,
					      .state = region->state,
					      .access = region->access,
					      .rkeys = { first, (uint32_t)m->value,
							 (uint32_t)(m->value >> 32), (uint32_t)m->a,
							 (uint32_t)(m->a >> 32), (uint32_t)m->b,
							 (uint32_t)(m->b >> 32), (uint32_t)m->e } };
	came(core, m->rank);
	return 1;
}

static int on_rank(struct epf_core *core, struct epf_peer *peer, const struct epf_msg *m)
{
	if (m->signal == EPF_PEER_DOWN || m->signal == EPF_PEER_LEFT) {
		epf_loss_take(core, m->rank, m);
		epf_peer_changed(core, m->rank, m->signal, m->d, m->c + peer->returns);
		return 1;
	}
	if (m->signal != EPF_PEER_UP || m->value > EPF_MAX_REGIONS || m->a > EPF_WIDE_SIGNALS ||
	    collect(core, peer, m->c, (uint32_t)m->value))
		return 0;
	peer->n_signals = (uint32_t)m->a;
	came(core, m->rank);
	return 1;
}

void epf_rank_message(struct epf_core *core, struct epf_node *node, const struct epf_msg *m)
{
	struct epf_peer *peer;
	uint32_t epoch = m->kind == EPF_MSG_REGION ? (uint32_t)m->value : m->c;
	int is_end = m->kind == EPF_MSG_RANK && m->signal != EPF_PEER_UP;
	uint32_t known, state;
	int is_valid;

	if (m->rank >= core->world || &core->nodes[core->peers[m->rank].node] != node) {
		refuse(core);
		return;
	}
	peer = &core->peers[m->rank];
	known = core->peers_page->peers[m->rank].epoch - peer->returns;
	state = core->peers_page->peers[m->rank].state;
	if ((int32_t)(epoch - known) < 0)
		return; /* overtaken by a newer message on another lane */
	/* News of its next loss, or its node's goodbye, overtakes what announces a rank's return. */
	if (!is_end && (node->state == EPF_NODE_LEFT ||
			(epoch == known && (state == EPF_PEER_DOWN || state == EPF_PEER_LEFT))))
		return;
	if (m->kind == EPF_MSG_RANK)
		is_valid = on_rank(core, peer, m);
	else if (m->kind == EPF_MSG_REGION)
		is_valid = on_region(core, peer, m);
	else
		is_valid = on_keys(core, peer, m);
	if (!is_valid)
		refuse(core);
}
