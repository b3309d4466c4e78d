/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Periodic work of a core, between two steps: advances recovery, notifications and withdrawals, sends heartbeats, and detects silent
 * peers and lanes. Allocates nothing and makes no system call.
 */
#include "fabric/base/err.h"
#include "fabric/engine/engine.h"
#include "fabric/engine/losses.h"
#include "fabric/engine/recovery.h"
#include "fabric/engine/words_hot.h"

/* A beat takes a tick of the peer, its step, the way: so many ticks of ours beyond the limit. */
enum { SILENT_TICKS_MORE = 2 };

/* Until the first tick: time between two checks for peers that may learn that this engine sends heartbeats. */
#define PROMISE_TICK_NS UINT64_C(10000000)

/* Returns 1 if the peer's engine has been silent for too long. Counted in our own ticks, so time in which this engine stalled does not count. */
static int is_silent(struct epf_core *core, struct epf_node *node)
{
	uint64_t sum = 0, limit;

	for (unsigned l = 0; l < node->n_lanes; l++)
		sum += EPF_LOAD_RELAXED(&node->ctl->grants[l]) >> 33;
	if (node->heard || sum != node->beats_seen || !sum) {
		node->beats_seen = sum;
		node->silent_ticks = 0;
		return 0;
	}
	limit = core->limits.peer_silence_ns /
		(core->limits.peer_timeout_ns / EPF_TICKS_PER_TIMEOUT);
	return ++node->silent_ticks > limit + SILENT_TICKS_MORE && core->limits.peer_silence_ns;
}

/*
 * A silent node is probed by a plain write of the grant word: it completes or fails, costs the peer nothing and needs no receive. But a NIC answers
 * for a hung process, too; so the word carries the heartbeat of this engine, written once a tick on at least one lane, and an engine that has
 * begun to send heartbeats must continue.
 */
static void heartbeat(struct epf_core *core)
{
	core->beats += core->limits.beats;
	for (uint32_t i = 0; i < core->n_nodes; i++) {
		struct epf_node *node = &core->nodes[i];
		unsigned asked = 0;

		if (node->state == EPF_NODE_UP && is_silent(core, node))
			epf_node_down(core, node, EPF_S_RETRY_EXCEEDED);
		epf_silence_show(core, node);
		for (unsigned l = 0; l < node->n_lanes && node->state == EPF_NODE_UP; l++)
			if (core->lanes[node->first_lane + l].state == EPF_LANE_UP &&
			    (!node->heard || (core->beats && !asked++)))
				epf_grant_mark(core, &core->lanes[node->first_lane + l]);
		node->heard = 0;
	}
	core->unpromised = 0;
}

/*
 * A peer may stop before its first tick, which comes up to more than a second after the join; without heartbeats nobody could tell that it is silent.
 * So until then every node learns that this engine sends heartbeats as soon as something of it has arrived: then it is connected and may be written to.
 */
static void promise_beats(struct epf_core *core)
{
	unsigned left = 0;

	core->beats += !core->beats;
	for (uint32_t i = 0; i < core->n_nodes; i++) {
		struct epf_node *node = &core->nodes[i];

		if (i == core->self || node->promised || node->state != EPF_NODE_UP)
			continue;
		left += !node->heard;
		for (unsigned l = 0; l < node->n_lanes && node->heard && !node->promised; l++)
			if (core->lanes[node->first_lane + l].state == EPF_LANE_UP) {
				epf_grant_mark(core, &core->lanes[node->first_lane + l]);
				node->promised = 1;
			}
	}
	core->unpromised = left != 0;
}

/*
 * Returns for how many ticks a lane may stall, 0: forever. To this node itself there is no network to wait for; a lane that is the last one of several must not
 * stall forever either, because the others are recovered over it. To another node the device has its own time limits, and peer-silence detects an engine that has
 * stopped: what lasts longer than both is a device that reports nothing.
 */
static uint64_t patience(const struct epf_core *core, const struct epf_lane *lane)
{
	const struct epf_core_limits *l = &core->limits;

	if (lane->node == core->self)
		return core->nodes[lane->node].n_lanes > 1 ? EPF_TICKS_PER_TIMEOUT : 0;
	/* A peer that has promised no heartbeats may be stopped for as long as it likes. */
	if (!l->peer_silence_ns || !core->nodes[lane->node].beats_seen)
		return 0;
	return EPF_TICKS_PER_TIMEOUT +
	       l->peer_silence_ns / (l->peer_timeout_ns / EPF_TICKS_PER_TIMEOUT + 1);
}

/*
 * A device may forget a lane and report neither completions nor an error; while other lanes of the node work, nobody would notice.
 * Soft-RoCE of Linux 6.1 does so (docs/reference/transports.md). Another post may remind the device; if it does not, the lane fails.
 */
static void look_after(struct epf_core *core, struct epf_lane *lane)
{
	uint64_t most;

	if (lane->state != EPF_LANE_UP || lane->tail == lane->posted ||
	    lane->tail != lane->seen_tail) {
		lane->seen_tail = lane->tail;
		lane->still = 0;
		return;
	}
	if (lane->still < UINT16_MAX)
		lane->still++;
	most = patience(core, lane);
	if (most && lane->still > most)
		epf_lane_error_cold(core, lane, EPF_S_RETRY_EXCEEDED);
	else if (core->ordered)
		epf_nudge(core, lane);
}

unsigned epf_core_tick_cold(struct epf_core *core)
{
	uint64_t now = core->now(core->now_arg);
	unsigned handled = 0;

	if (!core->n_deferred) /* nothing is left that an older table has checked */
		core->recheck = 0;
	if (core->cold_work || now >= core->reopen_ns)
		handled =
			epf_recover_step(core, now) + epf_ranks_step(core) + epf_revoke_step(core);
	if (core->unpromised && core->caps.carries_events)
		promise_beats(core);
	if (now >= core->next_beat_ns) {
		core->next_beat_ns = now + core->limits.peer_timeout_ns / EPF_TICKS_PER_TIMEOUT;
		if (core->caps.carries_events && core->n_nodes > 1)
			heartbeat(core);
		for (uint32_t i = 0; core->caps.carries_events && i < core->n_lanes; i++)
			look_after(core, &core->lanes[i]);
	}
	core->next_tick_ns =
		core->reopen_ns < core->next_beat_ns ? core->reopen_ns : core->next_beat_ns;
	if (core->unpromised && now + PROMISE_TICK_NS < core->next_tick_ns)
		core->next_tick_ns = now + PROMISE_TICK_NS;
	return handled;
}
