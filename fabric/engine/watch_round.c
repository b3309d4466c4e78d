/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Creates and runs the watch: memory, blocks, recorder, rounds (watch.h). watch_sample.c samples objects, watch_wait.c finds wait
 * reasons. Memory is allocated when the world is set; a round allocates only for a new ring.
 */
#include "fabric/engine/watch_priv.h"

#include "fabric/base/clock.h"
#include "fabric/base/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LOOKS_PER_ASKING = 16 };

static void open_recorder(struct epf_core *core)
{
	struct epf_watch *w = core->watch;
	struct epf_stats_label label = { NULL, w->cfg.number };

	EPF_STATIC_ASSERT((EPF_STAT_FLIGHT_EVENTS & 0xffff) ==
				  (EPF_STAT_FLIGHT_WRITTEN & 0xffff) + 1,
			  "struct epf_flight");
	if (epf_stats_add_block(w->cfg.stats, EPF_STATS_FLIGHT, &label, 1, &w->recorder))
		return;
	epf_stat_set(w->recorder, EPF_STAT_FLIGHT_CLOCK_TSC, epf_tsc());
	epf_stat_set(w->recorder, EPF_STAT_FLIGHT_CLOCK_NS, epf_now_ns());
	epf_stat_know(w->recorder, EPF_STAT_FLIGHT_EVENTS);
	core->flight =
		(struct epf_flight *)(void *)epf_stat_word(w->recorder, EPF_STAT_FLIGHT_WRITTEN);
}

int epf_watch_open(struct epf_core *core, const struct epf_watch_config *cfg)
{
	struct epf_watch *w = calloc(1, sizeof(*w));

	if (!w)
		return epf_fail(EPF_R_NO_MEMORY, "statistics: no memory for a core");
	w->cfg = *cfg;
	core->watch = w;
	open_recorder(core);
	return 0;
}

/* Its name, as far as a label takes it: the whole name is the file's or the daemon's to tell. */
static void open_job(struct epf_watch *w)
{
	char name[EPF_STATS_LABEL_BYTES];
	struct epf_stats_label labels[] = { { NULL, w->cfg.number }, { name, 0 } };

	snprintf(name, sizeof(name), "%.31s", w->cfg.job && *w->cfg.job ? w->cfg.job : "-");
	for (char *c = name; *c; c++)
		if (*c < ' ' || *c > '~')
			*c = '?';
	if (epf_stats_add_block(w->cfg.stats, EPF_STATS_JOB, labels, 2, &w->job))
		w->job = NULL;
}

static void show_job(struct epf_core *core)
{
	struct epf_watch *w = core->watch;
	struct epf_stats_block *b = w->job;
	uint32_t rings = 0;

	if (!b)
		return;
	for (uint32_t i = 0; i < core->n_rings; i++)
		rings += core->rings[i]->live;
	/* 63 bits: readers print it as a JSON integer, which is signed, and it must stay whole. */
	if (w->cfg.id && *w->cfg.id)
		epf_stat_set(b, EPF_STAT_JOB_ID, *w->cfg.id & INT64_MAX);
	epf_stat_set(b, EPF_STAT_JOB_WORLD, core->world);
	epf_stat_set(b, EPF_STAT_JOB_NODES, core->n_nodes);
	epf_stat_set(b, EPF_STAT_JOB_NODE, core->self);
	epf_stat_set(b, EPF_STAT_JOB_RANKS, core->n_ranks);
	epf_stat_set(b, EPF_STAT_JOB_RANKS_LOST, core->peers_page->lost);
	epf_stat_set(b, EPF_STAT_JOB_RINGS, rings);
	epf_stat_set(b, EPF_STAT_JOB_LANES, core->n_lanes);
	epf_stat_set(b, EPF_STAT_JOB_WAITS, w->waits);
	if (w->next_ns) /* it has looked */
		epf_stat_set(b, EPF_STAT_JOB_LOOK_NS, w->next_ns - EPF_WATCH_LOOK_NS);
	epf_stat_set(b, EPF_STAT_JOB_WAITS_HIDDEN, w->waits_hidden);
	epf_stat_set(b, EPF_STAT_JOB_RANKS_HIDDEN, core->n_ranks - w->ranks.shown);
	epf_stat_set(b, EPF_STAT_JOB_RINGS_HIDDEN, rings - w->rings.shown);
	epf_stat_set(b, EPF_STAT_JOB_LANES_HIDDEN, core->n_lanes - w->lanes.shown);
	epf_stat_set(b, EPF_STAT_JOB_PEERS_HIDDEN, core->world - w->peers.shown);
}

int epf_watch_world(struct epf_core *core)
{
	struct epf_watch *w = core->watch;
	int rc;

	if (!w)
		return 0;
	open_job(w);
	w->rank = calloc(core->n_ranks + 1, sizeof(*w->rank));
	w->ring = calloc(EPF_MAX_RINGS, sizeof(struct ring_track *));
	w->lane = calloc(core->n_lanes + 1, sizeof(*w->lane));
	rc = w->rank && w->ring && w->lane
		     ? 0
		     : epf_fail(EPF_R_NO_MEMORY, "statistics: no memory for a job's world");
	if (!rc)
		rc = watch_shelf_make(&w->ranks, EPF_STATS_RANK, w->cfg.most, core->n_ranks);
	if (!rc)
		rc = watch_shelf_make(&w->rings, EPF_STATS_RING, w->cfg.most, EPF_MAX_RINGS);
	if (!rc)
		rc = watch_shelf_make(&w->lanes, EPF_STATS_LANE, w->cfg.most, core->n_lanes);
	if (!rc)
		rc = watch_shelf_make(&w->peers, EPF_STATS_PEER, w->cfg.most, core->world);
	for (uint32_t i = 0; !rc && i < core->n_lanes; i++)
		w->lane[i].last_posted = w->lane[i].last_tail = core->lanes[i].tail;
	if (rc)
		return rc;
	w->peer = calloc(core->world, sizeof(*w->peer)); /* last: from now on the watch looks */
	if (!w->peer)
		return epf_fail(EPF_R_NO_MEMORY, "statistics: no memory for a job's world");
	/* Readers then know the job even if the engine stops before its first sample. */
	show_job(core);
	core->peer_memory_bytes += core->world * (sizeof(*w->peer) + sizeof(uint32_t)) +
				   core->n_lanes * (sizeof(*w->lane) + sizeof(uint32_t));
	return 0;
}

void epf_watch_close(struct epf_core *core)
{
	struct epf_watch *w = core->watch;

	if (!w)
		return;
	core->flight = NULL;
	core->watch = NULL;
	watch_shelf_free(w->cfg.stats, &w->ranks);
	watch_shelf_free(w->cfg.stats, &w->rings);
	watch_shelf_free(w->cfg.stats, &w->lanes);
	watch_shelf_free(w->cfg.stats, &w->peers);
	epf_stats_remove_block(w->cfg.stats, w->job);
	epf_stats_remove_block(w->cfg.stats, w->recorder);
	for (uint32_t i = 0; w->ring && i < EPF_MAX_RINGS; i++)
		free(w->ring[i]);
	free(w->ring);
	free(w->rank);
	free(w->lane);
	free(w->peer);
	free(w);
}

void epf_watch_nic(const struct epf_core *core, struct epf_stats_block *b)
{
	struct epf_nic_counters c;

	core->ops->counters(core->nic, &c);
	watch_state(b, EPF_STAT_NIC_LINK, c.link_up ? EPF_STATS_LINK_UP : EPF_STATS_LINK_DOWN,
		    epf_now_ns());
	epf_stat_set(b, EPF_STAT_NIC_LINKS, core->caps.links);
	epf_stat_set(b, EPF_STAT_NIC_LINKS_UP, c.link_up);
	epf_stat_set(b, EPF_STAT_NIC_BYTES_TX, c.bytes_tx);
	epf_stat_set(b, EPF_STAT_NIC_BYTES_RX, c.bytes_rx);
	epf_stat_set(b, EPF_STAT_NIC_MESSAGES_TX, c.messages_tx);
	epf_stat_set(b, EPF_STAT_NIC_MESSAGES_RX, c.messages_rx);
	epf_stat_set(b, EPF_STAT_NIC_PACKETS_DROPPED, c.packets_dropped);
	epf_stat_set(b, EPF_STAT_NIC_PACKETS_DUPLICATED, c.packets_duplicated);
	epf_stat_set(b, EPF_STAT_NIC_PACKETS_REORDERED, c.packets_reordered);
	epf_stat_set(b, EPF_STAT_NIC_RETRANSMITS, c.retransmits);
	epf_stat_set(b, EPF_STAT_NIC_RNR_EVENTS, c.rnr_events);
	epf_stat_set(b, EPF_STAT_NIC_ERRORS, c.errors);
	epf_stat_set(b, EPF_STAT_NIC_STRANGERS, c.strangers);
}

void epf_watch_look_at(struct epf_core *core, uint64_t now_ns)
{
	struct epf_watch *w = core->watch;

	if (!w || !w->peer)
		return;
	w->next_ns = now_ns + EPF_WATCH_LOOK_NS;
	/* Other jobs of the file may have ended and freed blocks. */
	if (++w->look % LOOKS_PER_ASKING == 0) {
		w->ranks.most = w->ranks.room;
		w->rings.most = w->rings.room;
		w->lanes.most = w->lanes.room;
		w->peers.most = w->peers.room;
	}
	w->searches = WATCH_SEARCHES;
	w->waits = w->waits_hidden = 0;
	w->signal_wait_ns = 0;
	watch_take_counts(core);
	for (uint32_t i = 0; i < core->n_rings; i++)
		watch_look_ring(core, i, now_ns);
	for (uint32_t i = 0; i < core->n_ranks; i++)
		watch_look_rank(core, i, now_ns);
	for (uint32_t i = 0; i < core->n_lanes; i++)
		watch_look_lane(core, i, now_ns);
	watch_look_peers(core, now_ns);
	show_job(core);
}

void epf_watch_look(struct epf_core *core)
{
	uint64_t now;

	if (!core->watch)
		return;
	now = epf_now_ns();
	if (now >= core->watch->next_ns)
		epf_watch_look_at(core, now);
}
