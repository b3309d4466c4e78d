/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lanes of a job when it is joined: the plan of jobs that are not there and what the engine really takes, to the byte; and setting up
 * many lanes at once over a provider whose every call takes its time (fake_verbs.h).
 */
#include "tests/unit/nic/verbs/fake_verbs.h"

#include "fabric/base/clock.h"
#include "fabric/base/conf.h"
#include "fabric/base/err.h"
#include "fabric/engine/engine.h"
#include "fabric/engine/grow.h"
#include "fabric/engine/lanes.h"
#include "fabric/engine/lanes_plan.h"
#include "fabric/engine/limits.h"
#include "fabric/engine/watch_priv.h"
#include "fabric/join/world.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { NODES = 32, LANES = 64, SETUP_US = 10000 };

struct rig {
	struct epf_conf conf;
	struct epf_nic *nic;
	struct epf_stats *stats;
	struct epf_core *core;
	uint64_t *tokens;
	char addr[EPF_NIC_ADDR_BYTES];
	size_t addr_len;
};

static uint64_t clock_ns(void *arg)
{
	return 1;
}

static void rig_open(struct rig *r, struct epf_nic *nic, const char *const *settings,
		     uint32_t ranks)
{
	struct epf_core_config cfg = { .max_ranks = 1, .now = clock_ns, .nic = nic };
	struct epf_stats_opts o = { .size = sizeof(o), .instance = "rig", .tsc_hz = epf_tsc_hz() };
	struct epf_stats_label labels[2] = { { NULL, 0 }, EPF_STATS_NO_LABEL };
	uint32_t local;
	char why[256];
	int n;

	memset(r, 0, sizeof(*r));
	r->nic = nic;
	assert_int_equal(epf_conf_init(&r->conf), 0);
	for (; settings && settings[0]; settings += 2)
		assert_int_equal(epf_conf_set(&r->conf, settings[0], settings[1], EPF_CONF_CLI), 0);
	epf_limits_from_conf(&r->conf, &cfg.limits);
	o.blocks[EPF_STATS_CORE] = 1;
	assert_int_equal(epf_stats_create(&o, &r->stats, why, sizeof(why)), 0);
	assert_int_equal(epf_stats_add_block(r->stats, EPF_STATS_CORE, labels, 2, &cfg.stats), 0);
	assert_int_equal(epf_core_create(&cfg, &r->core), 0);
	assert_int_equal(epf_core_add_rank(r->core, 0, NULL, 0, 1, NULL, &local), 0);
	r->tokens = calloc((size_t)ranks * EPF_MAX_LANES_PER_NODE, sizeof(*r->tokens));
	assert_non_null(r->tokens);
	n = nic->ops->address(nic, r->addr, sizeof(r->addr));
	assert_true(n > 0);
	r->addr_len = (size_t)n;
}

static void rig_close(struct rig *r)
{
	epf_core_destroy(r->core);
	r->nic->ops->close(r->nic);
	epf_stats_destroy(r->stats, 0);
	epf_conf_destroy(&r->conf);
	free(r->tokens);
}

/* Connects every node to this NIC itself; *rank: whose lane failed. */
static int connect_all(struct rig *r, uint32_t *rank)
{
	int rc = epf_lanes_begin(r->core);

	for (uint32_t n = 0; n < r->core->n_nodes && !rc; n++) {
		uint32_t first = n * r->core->limits.lanes_per_node;
		struct epf_node_info info = { .nic_addr = r->addr,
					      .nic_addr_len = r->addr_len,
					      .tokens = r->tokens + first,
					      .receives = 8,
					      .streams = r->core->limits.streams_per_node,
					      .rank = 100 + n };

		rc = epf_core_connect(r->core, n, &info);
	}
	return rc ? rc : epf_lanes_end(r->core, rank);
}

static const char *const small[] = { "lane-depth", "16", "lane-receives",    "16",
				     "window",     "64", "streams-per-peer", "16",
				     NULL };

/* ---- many at once ---------------------------------------------------------------------------- */

static uint64_t join_ns(const char *threads, unsigned gather, unsigned *most)
{
	const char *settings[] = {
		"lane-depth",       "16", "lane-receives",   "16",    "window", "64",
		"streams-per-peer", "16", "connect-threads", threads, NULL
	};
	uint64_t begin, took;
	uint32_t rank;
	struct rig r;

	fake_reset();
	rig_open(&r, fake_open(NULL), settings, NODES);
	fake.setup_us = SETUP_US;
	fake.setup_gather = gather;
	begin = epf_now_ns();
	assert_int_equal(epf_core_set_world(r.core, NODES, NODES, 0, NULL, r.tokens), 0);
	assert_int_equal(connect_all(&r, &rank), 0);
	took = epf_now_ns() - begin;
	*most = fake.most_in_setup;
	/* Each lane: made, INIT, RTR, RTS; all different, all ready, all known to arrivals. */
	assert_int_equal(fake.n_qps, LANES);
	assert_int_equal(fake.n_modifies, 3 * LANES);
	for (uint32_t l = 0; l < LANES; l++) {
		uint64_t psn = r.tokens[l] >> 32 & 0xffffff;

		assert_int_equal(r.nic->ops->lane_link(r.nic, (uint16_t)l), EPF_LANE_READY);
		assert_int_equal(r.core->lanes[l].state, EPF_LANE_UP);
		for (uint32_t k = 0; k < l; k++) {
			assert_true((uint32_t)r.tokens[k] != (uint32_t)r.tokens[l]);
			assert_true((r.tokens[k] >> 32 & 0xffffff) != psn);
		}
	}
	for (uint32_t l = 0; l < LANES; l++) {
		struct epf_wc wc;

		fake_arrive((uint32_t)r.tokens[l] & 0xffffff, NULL, 0, l);
		assert_int_equal(r.nic->ops->reap(r.nic, &wc, 1), 1);
		assert_int_equal(wc.lane, l);
	}
	fake.setup_us = fake.setup_gather = 0;
	rig_close(&r);
	assert_int_equal(fake.open_things, 0);
	return took;
}

/*
 * 64 lanes of four calls that take 10 ms each: 2.56 s one after the other, 0.32 s by eight. What is judged is how many went on at once; the
 * times are only shown, for they are a busy machine's too.
 */
static void lanes_are_set_up_several_at_a_time(void **state)
{
	uint64_t serial, took;
	unsigned most;

	serial = join_ns("1", 1, &most);
	assert_int_equal(most, 1);
	assert_true(serial >= UINT64_C(1000) * SETUP_US * 4 * LANES);
	took = join_ns("8", 8, &most);
	print_message("1 thread: %u ms, 8 threads: %u ms\n", (unsigned)(serial / 1000000),
		      (unsigned)(took / 1000000));
	assert_int_equal(most, 8);
}

static void a_lane_that_fails_is_named_by_its_node(void **state)
{
	uint32_t rank = 0;
	struct rig r;

	fake_reset();
	rig_open(&r, fake_open(NULL), small, NODES);
	assert_int_equal(epf_core_set_world(r.core, NODES, NODES, 0, NULL, r.tokens), 0);
	fake.setup_us = 2000;
	fake.fail = "modify_qp";
	fake.fail_errno = ETIMEDOUT;
	fake.fail_after = 24;
	assert_int_equal(connect_all(&r, &rank), -ETIMEDOUT);
	assert_in_range(rank, 100, 100 + NODES - 1);
	assert_non_null(strstr(epf_last_error(), "ibv_modify_qp"));
	fake.setup_us = 0;
	rig_close(&r);
	assert_int_equal(fake.open_things, 0);
}

static void a_queue_pair_that_cannot_be_made_fails_the_join(void **state)
{
	struct rig r;

	fake_reset();
	rig_open(&r, fake_open(NULL), small, NODES);
	fake.setup_us = 2000;
	fake.fail = "create_qp";
	fake.fail_errno = ENOMEM;
	fake.fail_after = 20;
	fake.max_inline = 0; /* a second try with fewer inline bytes is not the failure meant */
	assert_true(epf_core_set_world(r.core, NODES, NODES, 0, NULL, r.tokens) < 0);
	fake.setup_us = 0;
	rig_close(&r);
	assert_int_equal(fake.open_things, 0);
}

/* ---- the plan -------------------------------------------------------------------------------- */

/* What the engine takes for its peers is what the plan says, to the byte. */
static void plan_is_kept(uint32_t world, uint32_t nodes, const char *const *settings)
{
	struct epf_nic *nic;
	struct epf_lanes_plan plan;
	struct epf_lanes_ask ask;
	struct epf_conf conf;
	uint32_t rank;
	struct rig r;

	assert_int_equal(epf_conf_init(&conf), 0);
	assert_int_equal(epf_nic_find("null")->open(&conf, clock_ns, NULL, &nic), 0);
	epf_conf_destroy(&conf);
	rig_open(&r, nic, settings, world);
	ask = (struct epf_lanes_ask){
		.world = world,
		.n_nodes = nodes,
		.lanes_per_node = r.core->limits.lanes_per_node,
		.streams_per_peer = r.core->limits.streams_per_node,
		.window = r.core->limits.window,
		.lane_depth = r.core->limits.lane_depth,
		.lane_receives = r.core->limits.lane_receives,
		.max_lanes = r.core->caps.max_lanes,
		.receives = r.core->caps.receives,
		.addr_bytes = (uint32_t)r.addr_len,
		.nic = "null",
	};
	assert_int_equal(epf_lanes_plan(&ask, &plan), 0);
	assert_int_equal(epf_core_set_world(r.core, world, nodes, 0, NULL, r.tokens), 0);
	assert_int_equal(connect_all(&r, &rank), 0);
	assert_int_equal(r.core->n_lanes, plan.lanes);
	assert_int_equal(r.core->limits.streams_per_node, plan.streams_per_node);
	assert_int_equal(r.core->limits.max_pending, plan.max_pending);
	assert_int_equal(r.core->peer_memory_bytes - epf_peers_bytes(world), plan.all_bytes);
	assert_int_equal(plan.all_bytes - r.core->grow_most + epf_grow_bytes(r.core),
			 plan.join_bytes);
	rig_close(&r);
}

static void the_engine_takes_what_is_planned(void **state)
{
	static const char *const one_lane[] = {
		"lanes-per-peer",   "1",  "window", "64", "lane-depth", "8",
		"streams-per-peer", "16", NULL
	};

	plan_is_kept(1, 1, NULL);
	plan_is_kept(8, 8, NULL);
	plan_is_kept(64, 8, NULL);
	plan_is_kept(61, 8, NULL); /* not evenly spread */
	plan_is_kept(256, 256, one_lane);
	plan_is_kept(512, 64, small);
}

/* A rank without traffic costs an engine at most 1 KiB, with what the watch keeps of it and one exported region. */
static void a_peer_that_is_not_used(void **state)
{
	enum { WORLD = 256, PAIRS = 2, ADDR = 40 };

	uint64_t watch = sizeof(struct peer_track *) + sizeof(uint32_t) +
			 PAIRS * (sizeof(struct lane_track) + sizeof(uint32_t));
	struct epf_lanes_ask ask = { .world = WORLD,
				     .n_nodes = WORLD,
				     .lanes_per_node = PAIRS,
				     .streams_per_peer = 512,
				     .window = 1024,
				     .lane_depth = 256,
				     .lane_receives = 512,
				     .max_lanes = 65535,
				     .receives = 1 << 20,
				     .addr_bytes = ADDR,
				     .carries_events = 1,
				     .nic = "null" };
	struct epf_lanes_plan plan;
	uint64_t each;

	assert_int_equal(epf_lanes_plan(&ask, &plan), 0);
	each = plan.join_bytes / WORLD + watch + sizeof(struct epf_peer_word);
	assert_in_range(each + sizeof(struct epf_region_remote), 512, 1024);
}

static struct epf_lanes_ask ask_for(uint32_t world, uint32_t nodes)
{
	return (struct epf_lanes_ask){ .world = world,
				       .n_nodes = nodes,
				       .lanes_per_node = 2,
				       .streams_per_peer = 512,
				       .window = 1024,
				       .lane_depth = 256,
				       .lane_receives = 512,
				       .max_lanes = 65535,
				       .receives = 32767,
				       .carries_events = 1,
				       .nic = "verbs" };
}

/* 256 nodes of 8 ranks: lanes grow with nodes, not with ranks; receives are shared; handles end at 13 bits. */
static void two_thousand_ranks(void **state)
{
	struct epf_lanes_ask service = ask_for(2048, 256), embedded = ask_for(2048, 2048);
	struct epf_lanes_plan s, e, half;

	assert_int_equal(epf_lanes_plan(&service, &s), 0);
	assert_int_equal(s.lanes, 512);
	assert_int_equal(s.lane_receives, 63);
	assert_int_equal(s.receives, 512 * 63);
	assert_int_equal(s.streams_wanted, 512 * 8 * 8);
	assert_int_equal(s.streams_per_node, EPF_MAX_STREAMS_PER_NODE);
	assert_int_equal(s.max_pending, 512 * 256);
	assert_int_equal(s.description_bytes, 512 * 8);
	assert_int_equal(epf_lanes_plan(&embedded, &e), 0);
	assert_int_equal(e.lanes, 4096);
	assert_int_equal(e.lane_receives, 7);
	assert_int_equal(e.streams_per_node, 512);
	assert_int_equal(8 * e.lanes / s.lanes,
			 64);  /* queue pairs of a node: 8 engines against one */
	service.n_nodes = 128; /* the same ranks on half the nodes: half the lanes */
	assert_int_equal(epf_lanes_plan(&service, &half), 0);
	assert_int_equal(half.lanes, s.lanes / 2);
}

static void what_does_not_fit_is_said(void **state)
{
	struct epf_lanes_ask ask = ask_for(4096, 4096);
	struct epf_lanes_plan plan = { .lanes = 7 };

	ask.lanes_per_node = 8;
	ask.max_lanes = 32768;
	ask.receives = 4 * 32768;
	assert_int_equal(epf_lanes_plan(&ask, &plan), 0);
	assert_int_equal(plan.lane_receives, 4);
	plan.lanes = 7;
	ask.receives--;
	assert_true(epf_lanes_plan(&ask, &plan) < 0);
	assert_int_equal(epf_last_reason(), EPF_R_RECEIVE_LIMIT);
	ask.max_lanes--;
	assert_true(epf_lanes_plan(&ask, &plan) < 0);
	assert_int_equal(epf_last_reason(), EPF_R_LANE_LIMIT);
	ask.n_nodes = 4097; /* more nodes than ranks */
	assert_int_equal(epf_lanes_plan(&ask, &plan), -ERANGE);
	ask.n_nodes = 0;
	assert_int_equal(epf_lanes_plan(&ask, &plan), -ERANGE);
	ask = ask_for(EPF_MAX_WORLD, 1);
	assert_int_equal(epf_lanes_plan(&ask, &(struct epf_lanes_plan){ 0 }), 0);
	ask.world++;
	assert_int_equal(epf_lanes_plan(&ask, &plan), -ERANGE);
	assert_int_equal(plan.lanes, 7); /* outputs on success only */
}

/* ---- numbering thousands of ranks ------------------------------------------------------------- */

static int compare_text(const void *arg, uint32_t a, uint32_t b)
{
	const char(*names)[16] = arg;

	return strcmp(names[a], names[b]);
}

static void groups_are_numbered_by_their_lowest_member(void **state)
{
	static char names[4096][16];
	static uint32_t group[4096];
	uint32_t groups;

	for (uint32_t i = 0; i < 4096;
	     i++) /* names that sort the other way round, ranks dealt out in turn */
		snprintf(names[i], sizeof(names[i]), "n%04u", 9999 - i % 512);
	assert_int_equal(epf_world_group(4096, compare_text, names, group, &groups), 0);
	assert_int_equal(groups, 512);
	for (uint32_t i = 0; i < 4096; i++)
		assert_int_equal(group[i], i % 512);
	assert_int_equal(epf_world_group(1, compare_text, names, group, &groups), 0);
	assert_int_equal(groups, 1);
	assert_int_equal(epf_world_group(0, compare_text, names, group, &groups), 0);
	assert_int_equal(groups, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lanes_are_set_up_several_at_a_time),
		cmocka_unit_test(a_lane_that_fails_is_named_by_its_node),
		cmocka_unit_test(a_queue_pair_that_cannot_be_made_fails_the_join),
		cmocka_unit_test(the_engine_takes_what_is_planned),
		cmocka_unit_test(a_peer_that_is_not_used),
		cmocka_unit_test(two_thousand_ranks),
		cmocka_unit_test(what_does_not_fit_is_said),
		cmocka_unit_test(groups_are_numbered_by_their_lowest_member),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
