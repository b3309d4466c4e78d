/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an engine core counts of itself (fabric/engine/watch.h): the flight recorder's events, what was sent and what was set aside by peer and lane,
 * times of steps and commands.
 */
#include "tests/unit/engine/grow_all.h"
#include "tests/unit/engine/watch_kit.h"

/* The newest event of a kind; NULL: none. */
static const struct epf_flight_event *event(unsigned kind)
{
	struct epf_stats_value v = row("flight", NULL, NULL, "events");
	uint64_t written = row("flight", NULL, NULL, "written").number;

	assert_int_equal(v.number, EPF_FLIGHT_EVENTS);
	for (uint64_t n = written; n > 0 && written - n < EPF_FLIGHT_EVENTS; n--) {
		const struct epf_flight_event *e = &v.events[(n - 1) % EPF_FLIGHT_EVENTS];

		assert_int_equal(e->what >> 16 & 0xffff, (n - 1) & 0xffff);
		if ((e->what & 0xff) == kind)
			return e;
	}
	return NULL;
}

static void the_recorder_has_what_happened(void **state)
{
	struct core_rig *rig = open_watched(NULL, 16);
	const struct epf_flight_event *e;
	uint64_t before = epf_tsc(), written;

	for (unsigned i = 0; i < 3; i++)
		core_rig_put(&rig->rank[1], 2, BYTES, SIGNAL);
	assert_true(core_rig_run(rig, NULL, NULL));
	look(rig, 1);
	e = event(EPF_FLIGHT_DEQUEUE);
	assert_non_null(e);
	assert_int_equal(e->what >> 32, rig->rank[1].ring_id);
	assert_int_equal((uint32_t)e->xy, 3);
	assert_int_equal(e->b, 0);
	assert_true(e->tsc > before && e->tsc < epf_tsc());
	assert_non_null(event(EPF_FLIGHT_STEP));
	assert_null(event(EPF_FLIGHT_LANE_ERROR));
	/* Idle steps and what the engine says by itself are no events. */
	written = row("flight", NULL, NULL, "written").number;
	for (unsigned i = 0; i < 1000; i++)
		(void)epf_core_step(rig->core[0]);
	look(rig, 2);
	assert_int_equal(row("flight", NULL, NULL, "written").number, written);
	/* A wait and a lost rank are. */
	epf_wakeup_set_condition(&rig->rank[0].wakeup, EPF_WAKE_ON_SIGNAL, SIGNAL, 3);
	look(rig, 3);
	look(rig, 4);
	e = event(EPF_FLIGHT_WAIT);
	assert_non_null(e);
	assert_int_equal(e->what >> 8 & 0xff, EPF_STATS_WAIT_SIGNAL);
	assert_int_equal(e->b, 3 * SECOND);
	epf_core_rank_gone(rig->core[0], rig->rank[1].local, 7);
	look(rig, 5);
	e = event(EPF_FLIGHT_PEER);
	assert_non_null(e);
	assert_int_equal(e->what >> 32, 1);
	assert_int_equal((uint32_t)e->xy, 7);
	epf_wakeup_clear_condition(&rig->rank[0].wakeup);
	close_watched(rig);
}

static void the_recorder_wraps(void **state)
{
	struct core_rig *rig = open_watched(NULL, 16);
	uint64_t written;

	for (unsigned i = 0; i < 2000; i++)
		epf_flight_note(rig->core[0]->flight, i, EPF_FLIGHT_DEFER, 0, i, 0, 0, 0);
	look(rig, 1);
	written = row("flight", NULL, NULL, "written").number;
	assert_true(written >= 2000);
	assert_non_null(event(EPF_FLIGHT_DEFER)); /* and the numbers of all that are kept fit */
	assert_null(event(200));
	close_watched(rig);
}

/* Counts by peer and lane are exact, go on over looks, and over a wrap of what the core keeps. */
static void what_was_sent_by_peer_and_lane(void **state)
{
	struct core_rig *rig = open_watched(NULL, 16);
	uint64_t lanes = 0;

	rig->core[0]->peers[2].signals_applied = UINT32_MAX;
	look(rig, 9);
	assert_int_equal(row("peer", "peer", "2", "signals_applied").number, UINT32_MAX);
	for (unsigned i = 0; i < 5; i++) {
		core_rig_put(&rig->rank[0], 2, BYTES, SIGNAL);
		core_rig_put(&rig->rank[1], 3, BYTES, SIGNAL);
		core_rig_put(&rig->rank[1], 2, 2 * BYTES, SIGNAL);
		core_rig_put(&rig->rank[2], 1, BYTES, SIGNAL);
		assert_true(core_rig_run(rig, NULL, NULL));
		look(rig, 10 + i);
	}
	assert_int_equal(row("peer", "peer", "2", "cmds").number, 10);
	assert_int_equal(row("peer", "peer", "2", "bytes_sent").number, 15 * BYTES);
	assert_int_equal(row("peer", "peer", "2", "signals_sent").number, 10);
	assert_int_equal(row("peer", "peer", "2", "signals_applied").number,
			 (uint64_t)UINT32_MAX + 5);
	assert_int_equal(row("peer", "peer", "3", "cmds").number, 5);
	assert_int_equal(row("peer", "peer", "3", "bytes_sent").number, 5 * BYTES);
	assert_int_equal(row("peer", "peer", "1", "cmds").number, 0);
	for (uint32_t i = 0; i < rig->core[0]->n_lanes; i++) {
		char number[16];

		snprintf(number, sizeof(number), "%u", i);
		lanes += row("lane", "lane", number, "bytes_posted").number;
		assert_true(row("lane", "lane", number, "errors").known);
	}
	assert_int_equal(lanes, 20 * BYTES);
	for (uint32_t i = 0; i < rig->core[0]->n_streams; i++)
		assert_int_equal(rig->core[0]->streams[i].sent, 0);
	close_watched(rig);
}

/* A put without a signal: one work request, and no message. */
static void put_bare(struct core_rank *r, uint32_t to)
{
	struct epf_op op = { .op = EPF_OP_PUT, .rank = to, .length = BYTES };

	assert_true(epf_ring_push(&r->ring, epf_op_pack_narrow(&op)));
}

/* Each reason for which a command is set aside counts for its peer, once a command; what is behind others waits for what they wait for. */
static void why_commands_were_set_aside_by_peer(void **state)
{
	struct core_rig *rig = open_watched(NULL, 16);
	struct epf_core *core = rig->core[0];
	struct core_rank *r = &rig->rank[0];

	grow_all(core);
	core->limits.nic_inflight_messages = 1;
	for (unsigned i = 0; i < 4; i++)
		put_bare(r, 2);
	for (unsigned i = 0; i < 20; i++) /* asked for each time, counted once */
		step_alone(rig);
	look(rig, 1);
	assert_stalls(rig, "2", 3, 0, 0);
	core->limits.nic_inflight_messages = 1000;
	assert_true(core_rig_run(rig, NULL, NULL));
	/* Lanes that are not up. */
	for (uint32_t i = 0; i < core->n_lanes; i++)
		core->lanes[i].state = EPF_LANE_FENCED;
	put_bare(r, 2);
	put_bare(r, 3);
	put_bare(r, 3);
	(void)epf_core_step(core);
	for (uint32_t i = 0; i < core->n_lanes; i++)
		core->lanes[i].state = EPF_LANE_UP;
	assert_true(core_rig_run(rig, NULL, NULL));
	look(rig, 2);
	assert_stalls(rig, "2", 3, 0, 1);
	assert_stalls(rig, "3", 0, 0, 2);
	/* What they wait for changes while they wait: for what comes behind them, too. */
	core->limits.nic_inflight_messages = 1;
	for (unsigned i = 0; i < 2; i++)
		put_bare(r, 2);
	step_alone(rig);
	for (uint32_t i = 0; i < core->n_lanes; i++)
		core->lanes[i].limit = core->lanes[i].head - core->lanes[i].tail;
	step_alone(rig);
	put_bare(r, 2);
	step_alone(rig);
	look(rig, 3);
	assert_stalls(rig, "2", 4, 1, 1);
	/* What the core keeps wraps. */
	core->peers[3].stalls[EPF_STALL_QUEUE] += UINT32_MAX;
	look(rig, 4);
	core->peers[3].stalls[EPF_STALL_QUEUE] += 2;
	look(rig, 5);
	assert_int_equal(row("peer", "peer", "3", "stalls_queue_full").number,
			 (uint64_t)UINT32_MAX + 2);
	close_watched(rig);
}

/* A counted signal waits for its puts first, which is no stall, and then for credit, which is one. */
static void a_counted_signal_stalls_once(void **state)
{
	struct core_rig *rig = open_watched(NULL, 16);
	struct epf_op put = { .op = EPF_OP_PUT,
			      .flags = EPF_F_COUNTED,
			      .rank = 2,
			      .signal = SIGNAL,
			      .length = BYTES };
	struct epf_op raise = { .op = EPF_OP_SIGNAL,
				.flags = EPF_F_COUNTED,
				.rank = 2,
				.signal = SIGNAL,
				.value = 1,
				.count = 1 };

	rig->core[0]->limits.nic_inflight_messages = 1;
	epf_ring_push(&rig->rank[0].ring, epf_op_pack_narrow(&raise));
	step_alone(rig);
	look(rig, 1);
	assert_int_equal(row("peer", "peer", "2", "stalls_no_credit").number, 0);
	epf_ring_push(&rig->rank[0].ring, epf_op_pack_narrow(&put));
	for (unsigned i = 0; i < 20; i++)
		step_alone(rig);
	look(rig, 2);
	assert_int_equal(row("peer", "peer", "2", "stalls_no_credit").number, 1);
	assert_true(core_rig_run(rig, NULL, NULL));
	look(rig, 3);
	assert_int_equal(row("peer", "peer", "2", "stalls_no_credit").number, 1);
	close_watched(rig);
}

/* A command, the last of a batch now and then, is followed until it is posted, also while it is set aside; steps are timed. */
static void times_of_steps_and_commands(void **state)
{
	struct core_rig *rig = open_watched(NULL, 16);
	struct epf_core *core = rig->core[0];
	struct epf_hist *delay = epf_stat_hist(core->stats, EPF_STAT_CORE_QUEUE_DELAY_NS);
	uint64_t followed;

	for (unsigned i = 0; i < 400 && !epf_hist_count(delay); i++) {
		core_rig_put(&rig->rank[0], 2, BYTES, SIGNAL);
		assert_true(core_rig_run(rig, NULL, NULL));
	}
	followed = epf_hist_count(delay);
	assert_true(followed > 0);
	/* The same commands until the NIC says that they are done, and the newest one of a ring until it is taken. */
	assert_int_equal(epf_hist_count(epf_stat_hist(core->stats, EPF_STAT_CORE_NIC_NS)),
			 followed);
	assert_true(epf_hist_count(epf_stat_hist(core->stats, EPF_STAT_CORE_RING_WAIT_NS)) > 0);
	assert_true(epf_hist_max(epf_stat_hist(core->stats, EPF_STAT_CORE_RING_WAIT_NS)) <
		    60 * SECOND);
	assert_true(epf_hist_count(epf_stat_hist(core->stats, EPF_STAT_CORE_STEP_NS)) > 0);
	assert_true(epf_hist_max(delay) < 60 * SECOND);
	assert_int_equal(core->sample.state, EPF_SAMPLE_NONE);
	/* One that is staged in a lane which fails is given up, and does not stand in the way of the next. */
	core->sample = (struct epf_sample){ .state = EPF_SAMPLE_STAGED,
					    .head = core->lanes[0].head + 1,
					    .tsc = epf_tsc() };
	(void)epf_core_step(core);
	assert_int_equal(core->sample.state, EPF_SAMPLE_STAGED);
	core->lanes[0].state = EPF_LANE_FENCED;
	(void)epf_core_step(core);
	core->lanes[0].state = EPF_LANE_UP;
	assert_int_equal(core->sample.state, EPF_SAMPLE_NONE);
	close_watched(rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_recorder_has_what_happened),
		cmocka_unit_test(the_recorder_wraps),
		cmocka_unit_test(what_was_sent_by_peer_and_lane),
		cmocka_unit_test(why_commands_were_set_aside_by_peer),
		cmocka_unit_test(a_counted_signal_stalls_once),
		cmocka_unit_test(times_of_steps_and_commands),
	};

	return cmocka_run_group_tests_name("watch_counts", tests, NULL, NULL);
}
