/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an engine core tells of itself (fabric/watch.h): that something waits, for whom, why and since when; that what moves does not; that
 * with too few blocks those that wait come first and the others are counted; and the flight recorder's events. Times are made up.
 */
#include "fabric/base/clock.h"
#include "fabric/watch.h"
#include "tests/unit/core_rig.h"
#include "tests/unit/stats_kit.h"

#define SECOND UINT64_C(1000000000)

enum { SIGNAL = 5, BYTES = 4096 };

static struct epf_stats *watched[CORE_NODES];
static struct epf_stats_reader *reader;

/* A rig whose cores are watched with up to `most` blocks of rings, lanes, peers and ranks; the file has room for in_file. */
static struct core_rig *open_short(const char *const *settings, uint32_t most, uint32_t in_file)
{
	struct core_rig *rig = core_rig_open(settings);

	reader = NULL; /* of a test that failed */
	for (uint32_t n = 0; n < CORE_NODES; n++) {
		static const uint64_t id = 77;
		struct epf_stats_opts o = { .size = sizeof(o),
					    .instance = "w",
					    .tsc_hz = epf_tsc_hz() };
		struct epf_watch_config cfg = { .number = n, .most = most, .job = "j", .id = &id };

		o.blocks[EPF_STATS_JOB] = o.blocks[EPF_STATS_FLIGHT] = 1;
		o.blocks[EPF_STATS_RING] = o.blocks[EPF_STATS_LANE] = in_file;
		o.blocks[EPF_STATS_PEER] = o.blocks[EPF_STATS_RANK] = in_file;
		assert_int_equal(epf_stats_create(&o, &watched[n], why, sizeof(why)), 0);
		cfg.stats = watched[n];
		assert_int_equal(epf_watch_open(rig->core[n], &cfg), 0);
		assert_int_equal(epf_watch_world(rig->core[n]), 0);
	}
	return rig;
}

static struct core_rig *open_watched(const char *const *settings, uint32_t most)
{
	return open_short(settings, most, most);
}

static void close_watched(struct core_rig *rig)
{
	epf_stats_reader_close(reader);
	reader = NULL;
	core_rig_close(rig);
	for (uint32_t n = 0; n < CORE_NODES; n++)
		epf_stats_destroy(watched[n], 0);
}

/* Looks at node 0 at a second of the made-up time, and reads what it wrote. */
static void look(struct core_rig *rig, double second)
{
	epf_watch_look_at(rig->core[0], (uint64_t)(second * (double)SECOND));
	if (reader)
		refresh(reader);
	else
		reader = open_memory(watched[0]);
}

/* The block of a class with this in one of its labels; -1: none. */
static int block(const char *cls, const char *label, const char *text)
{
	const struct epf_stats_entry *e;

	for (unsigned b = 0; (e = epf_stats_reader_block(reader, b)); b++) {
		const struct epf_stats_class *c = epf_stats_reader_class(reader, e->class_index);

		if (strcmp(c->name, cls) != 0)
			continue;
		for (unsigned i = 0; i < c->label_count; i++)
			if (!label || (!strcmp(c->label[i], label) && !strcmp(e->label[i], text)))
				return (int)b;
	}
	return -1;
}

static struct epf_stats_value row(const char *cls, const char *label, const char *text,
				  const char *name)
{
	int b = block(cls, label, text);

	if (b < 0)
		fail_msg("no block %s %s=%s", cls, label, text);
	return value_of(reader, (unsigned)b, name);
}

static void assert_wait(const char *cls, const char *label, const char *text, const char *reason,
			double since)
{
	struct epf_stats_value v = row(cls, label, text, "wait");

	assert_true(v.known);
	assert_string_equal(v.state, reason);
	if (strcmp(reason, "none") != 0)
		assert_int_equal(v.since_ns, (uint64_t)(since * (double)SECOND));
}

/* What was set aside for a peer, by reason; of all peers together, what the core counts. */
static void assert_stalls(struct core_rig *rig, const char *peer, uint64_t credit, uint64_t queue,
			  uint64_t lane)
{
	static const char *const names[] = { "stalls_no_credit", "stalls_queue_full",
					     "stalls_lane_down" };
	uint64_t all = 0;

	for (unsigned n = 0; n < 3; n++)
		for (uint32_t i = 0; i < rig->core[0]->world; i++) {
			char number[16];
			struct epf_stats_value v;

			snprintf(number, sizeof(number), "%u", i);
			v = row("peer", "peer", number, names[n]);
			assert_true(v.known);
			all += v.number;
		}
	assert_int_equal(row("peer", "peer", peer, names[0]).number, credit);
	assert_int_equal(row("peer", "peer", peer, names[1]).number, queue);
	assert_int_equal(row("peer", "peer", peer, names[2]).number, lane);
	assert_int_equal(all, epf_stat_get(rig->core[0]->stats, EPF_STAT_CORE_CMDS_PARKED));
}

static void a_rank_waits_for_a_signal(void **state)
{
	struct core_rig *rig = open_watched(NULL, 16);
	struct core_rank *r = &rig->rank[1];

	(void)state;
	/* Rank 2 raises it once: who is missing is known then. */
	core_rig_put(&rig->rank[2], 1, BYTES, SIGNAL);
	assert_true(core_rig_run(rig, NULL, NULL));
	rig->core[0]->ranks[r->local].pid = 4711;
	epf_bell_wish(&r->bell, EPF_WISH_SIGNAL, SIGNAL, 3);
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
	epf_bell_unwish(&r->bell);
	look(rig, 12.1);
	assert_wait("rank", "rank", "1", "signal", 10);
	epf_bell_wish(&r->bell, EPF_WISH_SIGNAL, SIGNAL, 3);
	core_rig_put(&rig->rank[3], 1, BYTES, SIGNAL);
	assert_true(core_rig_run(rig, NULL, NULL));
	look(rig, 12.2);
	look(rig, 12.3);
	assert_wait("rank", "rank", "1", "signal", 12.2);
	assert_int_equal(row("rank", "rank", "1", "wait_rank").number, 3);
	/* Awake for longer: it has given up, or begun something else. */
	epf_bell_unwish(&r->bell);
	for (unsigned i = 0; i < 9; i++)
		look(rig, 12.4 + 0.01 * i);
	assert_wait("rank", "rank", "1", "signal", 12.2);
	look(rig, 12.6);
	assert_wait("rank", "rank", "1", "none", 0);
	epf_bell_wish(&r->bell, EPF_WISH_SIGNAL, SIGNAL, 3);
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
	epf_bell_unwish(&r->bell);
	close_watched(rig);
}

static void a_notify_handle_says_who(void **state)
{
	struct core_rig *rig = open_watched(NULL, 16);
	struct epf_op op = {
		.op = EPF_OP_PUT_SIGNAL, .rank = 0, .length = BYTES, .signal = SIGNAL, .add = 1
	};

	(void)state;
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

/* Steps node 0 alone: the other engine stands still. */
static void step_alone(struct core_rig *rig)
{
	for (unsigned i = 0; i < 1000; i++)
		(void)epf_core_step(rig->core[0]);
}

static void a_ring_waits_for_an_engine_that_stands_still(void **state)
{
	static const char *const settings[] = { "lane-depth=64", "park-limit=16", NULL };
	struct core_rig *rig = open_watched(settings, 16);
	struct core_rank *r = &rig->rank[0];

	(void)state;
	core_rig_put(r, 2, BYTES, SIGNAL);
	step_alone(rig);
	look(rig, 1);
	look(rig, 1.1);
	assert_wait("ring", "rank", "0", "sent", 1);
	assert_wait("lane", "peer", "2", "sent", 1);
	assert_int_equal(row("ring", "rank", "0", "wait_rank").number, 2);
	assert_wait("ring", "rank", "1", "none", 0);
	assert_int_equal(row("ring", "rank", "0", "cmds_taken").number, 1);
	assert_int_equal(row("ring", "rank", "0", "cmds_retired").number, 0);
	/* Until the lane is full, then parked ones block the ring, then it is full. */
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
	assert_true(row("ring", "rank", "0", "parked").number > 0);
	assert_int_equal(row("peer", "peer", "2", "parked").number,
			 row("ring", "rank", "0", "parked").number);
	assert_wait("peer", "peer", "3", "none", 0);
	assert_stalls(rig, "2", 0, row("peer", "peer", "2", "parked").number, 0);
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

	(void)state;
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

	(void)state;
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

	(void)state;
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

	(void)state;
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
	struct epf_rx_stream *rx = epf_rx(rig->core[0], &rig->core[0]->nodes[1], 4);
	uint64_t since;

	(void)state;
	epf_bell_wish(&r->bell, EPF_WISH_SIGNAL, SIGNAL, 1);
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
	epf_bell_unwish(&r->bell);
	close_watched(rig);
}

static void those_that_wait_come_first(void **state)
{
	struct core_rig *rig = open_watched(NULL, 1);
	struct core_rank *r = &rig->rank[1];

	(void)state;
	look(rig, 1);
	assert_true(block("rank", "rank", "0") >= 0);
	assert_int_equal(block("rank", "rank", "1"), -1);
	assert_int_equal(row("job", NULL, NULL, "ranks").number, 2);
	assert_int_equal(row("job", NULL, NULL, "ranks_hidden").number, 1);
	assert_int_equal(row("job", NULL, NULL, "rings_hidden").number, 1);
	assert_int_equal(row("job", NULL, NULL, "peers_hidden").number, 3);
	epf_bell_wish(&r->bell, EPF_WISH_SIGNAL, SIGNAL, 3);
	look(rig, 2);
	look(rig, 3);
	assert_wait("rank", "rank", "1", "signal", 2);
	assert_int_equal(block("rank", "rank", "0"), -1);
	assert_int_equal(row("job", NULL, NULL, "waits_hidden").number, 0);
	/* Two wait and there is one block: the other is counted. */
	epf_bell_wish(&rig->rank[0].bell, EPF_WISH_SIGNAL, SIGNAL, 3);
	look(rig, 4);
	look(rig, 5);
	assert_int_equal(row("job", NULL, NULL, "waits").number, 2);
	assert_int_equal(row("job", NULL, NULL, "waits_hidden").number, 1);
	epf_bell_unwish(&r->bell);
	epf_bell_unwish(&rig->rank[0].bell);
	close_watched(rig);
}

/* A daemon's file that other jobs have filled: what is free is used, what becomes free later too, and nothing is left behind. */
static void a_full_file(void **state)
{
	static const struct epf_stats_label labels[] = { { NULL, 9 }, { NULL, 9 } };
	struct core_rig *rig = open_short(NULL, 16, 3);
	struct epf_stats_block *other[2];

	(void)state;
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

	(void)state;
	reader = open_memory(watched[0]);
	assert_int_equal(row("job", NULL, NULL, "id").number, 77);
	assert_int_equal(row("job", NULL, NULL, "world").number, rig->core[0]->world);
	assert_false(row("job", NULL, NULL, "look_ns").known);
	close_watched(rig);
}

static void blocks_go_with_the_core(void **state)
{
	struct core_rig *rig = open_watched(NULL, 16);

	(void)state;
	look(rig, 1);
	assert_true(epf_stats_reader_info(reader)->block_count > 8);
	epf_watch_close(rig->core[0]);
	refresh(reader);
	assert_int_equal(epf_stats_reader_info(reader)->block_count, 0);
	epf_watch_look_at(rig->core[0], SECOND); /* nobody watches: nothing */
	close_watched(rig);
}

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

	(void)state;
	for (unsigned i = 0; i < 3; i++)
		core_rig_put(&rig->rank[1], 2, BYTES, SIGNAL);
	assert_true(core_rig_run(rig, NULL, NULL));
	look(rig, 1);
	e = event(EPF_FLIGHT_TAKE);
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
	epf_bell_wish(&rig->rank[0].bell, EPF_WISH_SIGNAL, SIGNAL, 3);
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
	epf_bell_unwish(&rig->rank[0].bell);
	close_watched(rig);
}

static void the_recorder_wraps(void **state)
{
	struct core_rig *rig = open_watched(NULL, 16);
	uint64_t written;

	(void)state;
	for (unsigned i = 0; i < 2000; i++)
		epf_flight_note(rig->core[0]->flight, i, EPF_FLIGHT_PARK, 0, i, 0, 0, 0);
	look(rig, 1);
	written = row("flight", NULL, NULL, "written").number;
	assert_true(written >= 2000);
	assert_non_null(event(EPF_FLIGHT_PARK)); /* and the numbers of all that are kept fit */
	assert_null(event(200));
	close_watched(rig);
}

/* Counts by peer and lane are exact, go on over looks, and over a wrap of what the core keeps. */
static void what_was_sent_by_peer_and_lane(void **state)
{
	struct core_rig *rig = open_watched(NULL, 16);
	uint64_t lanes = 0;

	(void)state;
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

	(void)state;
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

	(void)state;
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

/* A command in a timed step is followed until it is posted, also while it is set aside; steps are timed. */
static void times_of_steps_and_commands(void **state)
{
	struct core_rig *rig = open_watched(NULL, 16);
	struct epf_core *core = rig->core[0];
	struct epf_hist *delay = epf_stat_hist(core->stats, EPF_STAT_CORE_QUEUE_DELAY_NS);
	uint64_t followed;

	(void)state;
	for (unsigned i = 0; i < 400 && !epf_hist_count(delay); i++) {
		core_rig_put(&rig->rank[0], 2, BYTES, SIGNAL);
		assert_true(core_rig_run(rig, NULL, NULL));
	}
	followed = epf_hist_count(delay);
	assert_true(followed > 0);
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
		cmocka_unit_test(a_rank_waits_for_a_signal),
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
		cmocka_unit_test(the_recorder_has_what_happened),
		cmocka_unit_test(the_recorder_wraps),
		cmocka_unit_test(what_was_sent_by_peer_and_lane),
		cmocka_unit_test(why_commands_were_set_aside_by_peer),
		cmocka_unit_test(a_counted_signal_stalls_once),
		cmocka_unit_test(times_of_steps_and_commands),
	};

	return cmocka_run_group_tests_name("watch", tests, NULL, NULL);
}
