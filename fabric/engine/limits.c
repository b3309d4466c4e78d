/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings to the numbers an engine core works with (limits.h). Called once for each core; must not decide anything a setting can.
 */
#include "fabric/engine/limits.h"

#include "fabric/base/clock.h"
#include "fabric/base/conf.h"
#include "fabric/engine/core.h"

enum { MIN_DEFERRED = 1024, DEFERRED_PER_LIMIT = 16, REAP_BATCH = 64 };

void epf_limits_from_conf(const struct epf_conf *c, struct epf_core_limits *l)
{
	l->batch = (uint32_t)c->core_batch;
	l->reap_batch = REAP_BATCH;
	l->defer_limit = (uint32_t)c->defer_limit;
	l->max_deferred = l->defer_limit * DEFERRED_PER_LIMIT < MIN_DEFERRED
				  ? MIN_DEFERRED
				  : l->defer_limit * DEFERRED_PER_LIMIT;
	l->window = (uint32_t)c->window;
	l->ring_window = (uint32_t)c->ring_window;
	l->lane_depth = (uint32_t)c->lane_depth;
	l->lane_receives = (uint32_t)c->lane_receives;
	l->lanes_per_node = (uint32_t)c->lanes_per_peer;
	l->streams_per_node = (uint32_t)c->streams_per_peer;
	l->nic_inflight_bytes = c->nic_inflight_bytes;
	l->nic_inflight_messages = (uint32_t)c->nic_inflight_messages;
	l->rank_inflight_bytes = c->rank_inflight_bytes;
	l->rank_inflight_messages = (uint32_t)c->rank_inflight_messages;
	l->peer_timeout_ns = c->peer_timeout_ns;
	l->peer_silence_ns = c->peer_silence_ns;
	/* Between the calls of a program that drives its engine itself, anything may pass. */
	l->beats = c->progress == EPF_CONF_PROGRESS_THREAD;
	l->start_count = (uint32_t)c->start_count;
	l->connect_threads = (uint32_t)c->connect_threads;
}

const char *epf_limits_nic(const struct epf_conf *c)
{
	return epf_conf_nic(c);
}

uint64_t epf_limits_now(void *arg)
{
	(void)arg;
	return epf_tsc_to_ns(epf_tsc());
}
