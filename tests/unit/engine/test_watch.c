/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an engine core reports of its waits (fabric/engine/watch.h): that something waits, for whom, why and since when; that what moves does not; that
 * with too few blocks those that wait come first and the others are counted.
 */
#include "tests/unit/engine/grow_all.h"
#include "tests/unit/engine/watch_kit.h"

static void a_rank_waits_for_a_signal(void **state)
{
	struct core_rig *rig = open_watched(NULL, 16);
	struct core_rank *r = &rig->rank[1];

	/* Rank 2 raises it once: who is missing is known then. */
	core_rig_put(&rig->rank[2], 1, BYTES, SIGNAL);
	assert_true(core_rig_run(rig, NULL, NULL));
	rig->core[0]->ranks[r->local].pid = 4711;
	epf_wakeup_set_condition(&r->wakeup, EPF_WAKE_ON_SIGNAL, SIGNAL, 3);
	look(rig, 10);
	assert_wait("rank", "rank", "1", "none", 0);
	look(rig, 10.1);
	assert_wait("rank", "rank", "1", "signal", 10);
	look(rig, 12);
	assert_wait("rank", "rank", "1", "signal", 10);
	assert_int_equal(row("rank", "rank", "1", "wait_number").number, SIGNAL);
	assert_int_equal(row("rank", "rank", "1", "wait_value").number, 1);
	assert_int_equal(row("rank", "rank", "1", "wait_least").number, 3);
	assert_int_equal(row("rank", "rank", "1", "wait_rank").number, 2);
	assert_int_equal(row("rank", "rank", "1", "pid").number, 4711);
	assert_int_equal(row("rank", "rank", "1", "active_ns").number, 10 * SECOND);
	assert_wait("rank", "rank", "0", "none", 0);
	assert_int_equal(row("job", NULL, NULL, "waits").number, 1);
	/* It is awake for a moment: still the same wait. The signal moves: another one. */
	epf_wakeup_clear_condition(&r->wakeup);
	look(rig, 12.1);
	assert_wait("rank", "rank", "1", "signal", 10);
	epf_wakeup_set_condition(&r->wakeup, EPF_WAKE_ON_SIGNAL, SIGNAL, 3);
	core_rig_put(&rig->rank[3], 1, BYTES, SIGNAL);
	assert_true(core_rig_run(rig, NULL, NULL));
	look(rig, 12.2);
	look(rig, 12.3);
	assert_wait("rank", "rank", "1", "signal", 12.2);
	assert_int_equal(row("rank", "rank", "1", "wait_rank").number, 3);
	/* Awake for longer: it has given up, or begun something else. */
	epf_wakeup_clear_condition(&r->wakeup);
	for (unsigned i = 0; i < 9; i++)
		look(rig, 12.4 + 0.01 * i);
	assert_wait("rank", "rank", "1", "signal", 12.2);
	look(rig, 12.6);
	assert_wait("rank", "rank", "1", "none", 0);
	epf_wakeup_set_condition(&r->wakeup, EPF_WAKE_ON_SIGNAL, SIGNAL, 3);
	look(rig, 12.7);
	look(rig, 12.8);
	assert_wait("rank", "rank", "1", "signal", 12.7);
	/* It comes: there is no wait, though the rank has not woken up yet. */
	core_rig_put(&rig->rank[3], 1, BYTES, SIGNAL);
	assert_true(core_rig_run(rig, NULL, NULL));
	look(rig, 13);
	look(rig, 13.1);
	look(rig, 13.2);
	assert_wait("rank", "rank", "1", "none", 0);
	epf_wakeup_clear_condition(&r->wakeup);
	close_watched(rig);
}

/* A kernel's report of its wait is passed on, as long as no thread of the rank waits. */
static void a_kernel_waits_for_a_signal(void **state)
{
	struct core_rig *rig = open_watched(NULL, 16);
	struct epf_wakeup *wakeup = &rig->rank[1].wakeup;

	wakeup->kernel_index = SIGNAL;
	wakeup->kernel_least = 3;
	wakeup->kernel_condition = EPF_WAKE_ON_SIGNAL;
	look(rig, 10);
	look(rig, 12);
	assert_wait("rank", "rank", "1", "signal", 10);
	assert_int_equal(row("rank", "rank", "1", "wait_kernel").number, 1);
	assert_int_equal(row("rank", "rank", "1", "wait_number").number, SIGNAL);
	assert_int_equal(row("rank", "rank", "1", "wait_least").number, 3);
	epf_wakeup_set_condition(wakeup, EPF_WAKE_ON_SIGNAL, SIGNAL, 2); /* and a thread */
	look(rig, 13);
	look(rig, 14);
	assert_wait("rank", "rank", "1", "signal", 13);
	assert_int_equal(row("rank", "rank", "1", "wait_kernel").number, 0);
	epf_wakeup_clear_condition(wakeup);
	wakeup->kernel_condition = EPF_WAKE_ON_ANY;
	for (unsigned i = 0; i < 12; i++)
		look(rig, 15 + 0.1 * i);
	assert_wait("rank", "rank", "1", "none", 0);
	wakeup->kernel_condition = 77; /* what no one knows is no wait, and no harm */
	wakeup->kernel_index = UINT32_MAX;
	look(rig, 18);
	look(rig, 19);
	assert_wait("rank", "rank", "1", "none", 0);
	close_watched(rig);
}

/* Stores over NVLink pass no engine: the kernel's report is all there is, and names the rank. */
static void a_kernel_waits_for_a_store(void **state)
{
	struct core_rig *rig = open_watched(NULL, 16);
	struct epf_wakeup *wakeup = &rig->rank[1].wakeup;

	wakeup->kernel_index = 0;
	wakeup->kernel_least = 8;
	wakeup->kernel_seen = 7;
	wakeup->kernel_condition = EPF_WAKE_ON_STORE;
	look(rig, 10);
	look(rig, 12);
	assert_wait("rank", "rank", "1", "signal", 10);
	assert_int_equal(row("rank", "rank", "1", "wait_number").number, EPF_STATS_NO_SIGNAL);
	assert_int_equal(row("rank", "rank", "1", "wait_rank").number, 0);
	assert_int_equal(row("rank", "rank", "1", "wait_value").number, 7);
	wakeup->kernel_index = UINT32_MAX; /* no such rank */
	look(rig, 13);
	look(rig, 14);
	assert_wait("rank", "rank", "1", "signal", 13);
	wakeup->kernel_condition = EPF_WAKE_ON_ANY;
	for (unsigned i = 0; i < 12; i++)
		look(rig, 15 + 0.1 * i);
	assert_wait("rank", "rank", "1", "none", 0);
	close_watched(rig);
}

static void a_notify_handle_says_who(void **state)
{
	struct core_rig *rig = open_watched(NULL, 16);
	struct epf_op op = {
		.op = EPF_OP_PUT_SIGNAL, .rank = 0, .length = BYTES, .signal = SIGNAL, .add = 1
	};

	for (unsigned i = 0; i < 3; i++) { /* the first defines the handle, later ones name it */
		epf_ring_push(&rig->rank[3].ring, epf_op_pack_narrow(&op));
		assert_true(core_rig_run(rig, NULL, NULL));
	}
	assert_int_equal(epf_signal_read(&rig->rank[0].signals[SIGNAL]), 3);
	assert_int_equal(rig->rank[0].signals[SIGNAL].from, 3 + 1);
	rig->rank[0].signals[SIGNAL].from = 0;
	epf_ring_push(&rig->rank[3].ring, epf_op_pack_narrow(&op));
	assert_true(core_rig_run(rig, NULL, NULL));
	assert_int_equal(rig->rank[0].signals[SIGNAL].from, 3 + 1);
	close_watched(rig);
}

static void a_ring_waits_for_an_engine_that_stands_still(void **state)
{
	static const char *const settings[] = { "lane-depth=64", "defer-limit=16", NULL };
	struct core_rig *rig = open_watched(settings, 16);
	struct core_rank *r = &rig->rank[0];

	core_rig_put(r, 2, BYTES, SIGNAL);
	step_alone(rig);
	look(rig, 1);
	look(rig, 1.1);
	assert_wait("ring", "rank", "0", "sent", 1);
	assert_wait("lane", "peer", "2", "sent", 1);
	assert_int_equal(row("ring", "rank", "0", "wait_rank").number, 2);
	assert_wait("ring", "rank", "1", "none", 0);
	assert_int_equal(row("ring", "rank", "0", "cmds_dequeued").number, 1);
	assert_int_equal(row("ring", "rank", "0", "cmds_retired").number, 0);
	/* Until the lane is full, then deferred ones block the ring, then it is full. */
	while (epf_ring_room(&r->ring, 2) >= 2) {
		core_rig_put(r, 2, 16, SIGNAL);
		step_alone(rig);
	}
	look(rig, 2);
	look(rig, 3);
	assert_wait("ring", "rank", "0", "queue", 2);
	assert_wait("peer", "peer", "2", "queue", 2);
	assert_int_equal(row("ring", "rank", "0", "wait_rank").number, 2);
	assert_int_equal(row("ring", "rank", "0", "occupancy").number, 255);
	assert_int_equal(row("ring", "rank", "0", "slots").number, 256);
	assert_int_equal(row("ring", "rank", "0", "ring_full_seen").number, 1);
	assert_true(row("ring", "rank", "0", "deferred").number > 0);
	assert_int_equal(row("peer", "peer", "2", "deferred").number,
			 row("ring", "rank", "0", "deferred").number);
	assert_wait("peer", "peer", "3", "none", 0);
	assert_stalls(rig, "2", 0, row("peer", "peer", "2", "deferred").number, 0);
	assert_stalls(rig, "3", 0, 0, 0);
	/* The other engine goes on: all moves, and then there is nothing to wait for. */
	assert_true(core_rig_run(rig, NULL, NULL));
	look(rig, 4);
	look(rig, 5);
	assert_wait("ring", "rank", "0", "none", 0);
	assert_wait("lane", "peer", "2", "none", 0);
	assert_wait("peer", "peer", "2", "none", 0);
	assert_int_equal(row("ring", "rank", "0", "occupancy").number, 0);
	assert_int_equal(row("ring", "rank", "0", "cmds_retired").number, r->ring.pushed);
	assert_int_equal(row("job", NULL, NULL, "waits").number, 0);
	close_watched(rig);
}

/* A put without a signal raises no event: the region it goes to says whose it is. */
static void a_bare_put_is_told_by_its_region(void **state)
{
	struct core_rig *rig = open_watched(NULL, 16);
	struct epf_op op = { .op = EPF_OP_PUT, .rank = 3, .length = BYTES };

	epf_ring_push(&rig->rank[0].ring, epf_op_pack_narrow(&op));
	step_alone(rig);
	look(rig, 1);
	look(rig, 2);
	assert_wait("ring", "rank", "0", "sent", 1);
	assert_int_equal(row("ring", "rank", "0", "wait_rank").number, 3);
	assert_true(row("ring", "rank", "0", "wait_stream").known);
	close_watched(rig);
}

static void a_flush_waits_for_its_answer(void **state)
{
	struct core_rig *rig = open_watched(NULL, 16);
	struct epf_op op = { .op = EPF_OP_FLUSH };

	core_rig_put(&rig->rank[1], 3, BYTES, SIGNAL);
	for (unsigned i = 0; i < 20; i++) /* it arrives, and its completion comes */
		for (uint32_t n = 0; n < CORE_NODES; n++)
			(void)epf_core_step(rig->core[n]);
	epf_ring_push(&rig->rank[1].ring, epf_op_pack_narrow(&op));
	step_alone(rig);
	look(rig, 1);
	look(rig, 2);
	assert_wait("ring", "rank", "1", "ack", 1);
	assert_int_equal(row("ring", "rank", "1", "wait_rank").number, 3);
	close_watched(rig);
}

static void a_counted_signal_lacks_puts(void **state)
{
	struct core_rig *rig = open_watched(NULL, 16);
	struct epf_op op = { .op = EPF_OP_SIGNAL,
			     .flags = EPF_F_COUNTED,
			     .rank = 3,
			     .signal = SIGNAL,
			     .value = 1,
			     .count = 2 };

	epf_ring_push(&rig->rank[0].ring, epf_op_pack_narrow(&op));
	assert_true(core_rig_run(rig, NULL, NULL));
	look(rig, 1);
	look(rig, 2);
	assert_wait("ring", "rank", "0", "puts", 1);
	assert_int_equal(row("ring", "rank", "0", "wait_rank").number, 3);
	close_watched(rig);
}

static void a_cut_link_is_named(void **state)
{
	struct core_rig *rig = open_watched(NULL, 16);

	assert_int_equal(rig->nic[0]->ops->set_link(rig->nic[0], 0, 0), 0);
	core_rig_put(&rig->rank[0], 2, BYTES, SIGNAL);
	step_alone(rig);
	look(rig, 1);
	look(rig, 2);
	assert_wait("ring", "rank", "0", "link", 1);
	assert_wait("lane", "peer", "2", "link", 1);
	close_watched(rig);
}

/* A gap as an unordered NIC leaves one: the event before it is on its way. */
static void a_gap_is_followed(void **state)
{
	struct core_rig *rig = open_watched(NULL, 16);
	struct core_rank *r = &rig->rank[1];
	struct epf_rx_stream *rx;
	uint64_t since;

	grow_all(rig->core[0]);
	rx = &rig->core[0]->nodes[1].rx[4];
	epf_wakeup_set_condition(&r->wakeup, EPF_WAKE_ON_SIGNAL, SIGNAL, 1);
	look(rig, 1);
	rx->ahead = 1;
	/* A wait this old is looked into, some thousand streams at a time. */
	for (unsigned i = 0; i < 10; i++)
		look(rig, 2 + 0.1 * i);
	since = row("peer", "peer", "2", "wait").since_ns;
	assert_true(since >= 2 * SECOND && since < 3 * SECOND);
	assert_wait("peer", "peer", "2", "gap", (double)since / (double)SECOND);
	assert_int_equal(row("peer", "peer", "2", "wait_stream").number, 4);
	look(rig, 3);
	assert_int_equal(row("peer", "peer", "2", "wait").since_ns, since);
	rx->ahead = 0;
	look(rig, 4);
	assert_wait("peer", "peer", "2", "none", 0);
	epf_wakeup_clear_condition(&r->wakeup);
	close_watched(rig);
}

static void those_that_wait_come_first(void **state)
{
	struct core_rig *rig = open_watched(NULL, 1);
	struct core_rank *r = &rig->rank[1];

	look(rig, 1);
	assert_true(block("rank", "rank", "0") >= 0);
	assert_int_equal(block("rank", "rank", "1"), -1);
	assert_int_equal(row("job", NULL, NULL, "ranks").number, 2);
	assert_int_equal(row("job", NULL, NULL, "ranks_hidden").number, 1);
	assert_int_equal(row("job", NULL, NULL, "rings_hidden").number, 1);
	assert_int_equal(row("job", NULL, NULL, "peers_hidden").number, 3);
	epf_wakeup_set_condition(&r->wakeup, EPF_WAKE_ON_SIGNAL, SIGNAL, 3);
	look(rig, 2);
	look(rig, 3);
	assert_wait("rank", "rank", "1", "signal", 2);
	assert_int_equal(block("rank", "rank", "0"), -1);
	assert_int_equal(row("job", NULL, NULL, "waits_hidden").number, 0);
	/* Two wait and there is one block: the other is counted. */
	epf_wakeup_set_condition(&rig->rank[0].wakeup, EPF_WAKE_ON_SIGNAL, SIGNAL, 3);
	look(rig, 4);
	look(rig, 5);
	assert_int_equal(row("job", NULL, NULL, "waits").number, 2);
	assert_int_equal(row("job", NULL, NULL, "waits_hidden").number, 1);
	epf_wakeup_clear_condition(&r->wakeup);
	epf_wakeup_clear_condition(&rig->rank[0].wakeup);
	close_watched(rig);
}

/* A daemon's file that other jobs have filled: what is free is used, what becomes free later too, and nothing is left behind. */
static void a_full_file(void **state)
{
	static const struct epf_stats_label labels[] = { { NULL, 9 }, { NULL, 9 } };
	struct core_rig *rig = open_short(NULL, 16, 3);
	struct epf_stats_block *other[2];

	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(
			epf_stats_add_block(watched[0], EPF_STATS_PEER, labels, 2, &other[i]), 0);
	look(rig, 1);
	assert_int_equal(row("job", NULL, NULL, "peers_hidden").number, 3);
	epf_stats_remove_block(watched[0], other[0]);
	for (unsigned i = 0; i < 20; i++)
		look(rig, 2 + i);
	assert_int_equal(row("job", NULL, NULL, "peers_hidden").number, 2);
	epf_watch_close(rig->core[0]);
	refresh(reader);
	assert_int_equal(epf_stats_reader_info(reader)->block_count, 1);
	close_watched(rig);
}

/* An engine that is stopped before its first look: its job's other engines must be found with it. */
static void a_job_is_known_before_the_first_look(void **state)
{
	struct core_rig *rig = open_watched(NULL, 16);

	reader = open_memory(watched[0]);
	assert_int_equal(row("job", NULL, NULL, "id").number, 77);
	assert_int_equal(row("job", NULL, NULL, "world").number, rig->core[0]->world);
	assert_false(row("job", NULL, NULL, "look_ns").known);
	close_watched(rig);
}

static void blocks_go_with_the_core(void **state)
{
	struct core_rig *rig = open_watched(NULL, 16);

	look(rig, 1);
	assert_true(epf_stats_reader_info(reader)->block_count > 8);
	epf_watch_close(rig->core[0]);
	refresh(reader);
	assert_int_equal(epf_stats_reader_info(reader)->block_count, 0);
	epf_watch_look_at(rig->core[0], SECOND); /* nobody watches: nothing */
	close_watched(rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_rank_waits_for_a_signal),
		cmocka_unit_test(a_kernel_waits_for_a_signal),
		cmocka_unit_test(a_kernel_waits_for_a_store),
		cmocka_unit_test(a_notify_handle_says_who),
		cmocka_unit_test(a_ring_waits_for_an_engine_that_stands_still),
		cmocka_unit_test(a_bare_put_is_told_by_its_region),
		cmocka_unit_test(a_flush_waits_for_its_answer),
		cmocka_unit_test(a_counted_signal_lacks_puts),
		cmocka_unit_test(a_cut_link_is_named),
		cmocka_unit_test(a_gap_is_followed),
		cmocka_unit_test(those_that_wait_come_first),
		cmocka_unit_test(a_full_file),
		cmocka_unit_test(a_job_is_known_before_the_first_look),
		cmocka_unit_test(blocks_go_with_the_core),
	};

	return cmocka_run_group_tests_name("watch", tests, NULL, NULL);
}
