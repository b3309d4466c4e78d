/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that grows on demand: a lane keeps its entries while it grows, tables end where they should, and reused memory is clean. Over the
 * null NIC.
 */
#include "fabric/engine/bench_core.h"
#include "fabric/engine/data_path.h"
#include "fabric/engine/lane_hot.h"
#include "queues/epf_cmd.h"
#include "queues/epf_ring.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { PEERS = 3, REGION = 1 << 16, DEPTH = 64, START = 0xfffffff0u };

struct rig {
	struct epf_bench_core *bc;
	struct epf_core *core;
	struct epf_ring_producer ring;
	struct epf_nic_ops holds;
};

static int reap_nothing(struct epf_nic *nic, struct epf_wc *wc, unsigned n)
{
	return 0;
}

static void open_rig_with(struct rig *r, uint32_t lanes)
{
	struct epf_bench_core_options o = { .nic = "null",
					    .peers = PEERS,
					    .regions = 1,
					    .region_bytes = REGION,
					    .signals = 4096,
					    .ring_slots = 256,
					    .batch = 64,
					    .lanes_per_peer = lanes,
					    .lane_depth = DEPTH };

	assert_int_equal(epf_bench_core_create(&o, &r->bc), 0);
	r->core = epf_bench_core_of(r->bc);
	epf_ring_producer_init(&r->ring, epf_bench_core_ring(r->bc, 0), 0);
	r->holds = *r->core->ops;
	r->holds.reap = reap_nothing;
}

static void open_rig(struct rig *r)
{
	open_rig_with(r, 1);
}

static void close_rig(struct rig *r)
{
	epf_bench_core_destroy(r->bc);
}

static void push(struct rig *r, const struct epf_op *op)
{
	struct epf_cmd two[2];

	epf_op_pack_wide(op, two);
	assert_true(epf_ring_push_wide(&r->ring, two));
}

/* Every third one a plain put, a put of 8 bytes that lie in a slot, a message. */
static struct epf_op op_of(uint32_t i)
{
	struct epf_op op = { .op = EPF_OP_PUT, .rank = 1, .length = 16, .remote_offset = 16 * i };

	if (i % 3 == 1)
		op = (struct epf_op){ .op = EPF_OP_PUT_INLINE,
				      .rank = 1,
				      .length = 8,
				      .value = 1000 + i,
				      .remote_offset = 16 * i };
	if (i % 3 == 2)
		op = (struct epf_op){ .op = EPF_OP_SIGNAL, .rank = 1, .signal = i, .value = 1 };
	return op;
}

/* The i-th command's entry is what it would be in a lane that never grew. */
static void assert_entry(const struct epf_lane *lane, uint32_t at, uint32_t i, uint32_t earlier)
{
	const struct epf_wr *wr = &lane->wrs[at & lane->mask];
	uint64_t slots = (uint64_t)(uintptr_t)lane->msgs;

	assert_int_equal(wr->id, at);
	assert_int_equal((uint32_t)wr->core, i + earlier);
	if (i % 3 == 0) {
		assert_int_equal(wr->flags, 0);
		return;
	}
	assert_int_equal(wr->flags, EPF_WR_INLINE | EPF_WR_SLOT);
	assert_in_range(wr->laddr, slots, slots + lane->n_slots * sizeof(struct epf_msg) - 8);
	if (i % 3 == 1)
		assert_int_equal(*(uint64_t *)(uintptr_t)wr->laddr, 1000 + i);
	else
		assert_int_equal(entry_message(wr)->signal, i);
}

static void a_lane_keeps_what_it_holds(void **state)
{
	enum { WARM_UP = 3, PUSHED = DEPTH + 8 };

	const struct epf_nic_ops *ops;
	const struct epf_lane *lane;
	uint32_t sizes = 0, before = 0, first;
	struct rig r;

	open_rig(&r);
	ops = r.core->ops;
	lane = &r.core->lanes[1 * r.core->limits.lanes_per_node];
	assert_int_equal(lane->mask, EPF_GROW_WRS - 1);
	assert_int_equal(lane->n_slots, 0);
	/* What it holds begins in the middle of its ring. */
	for (uint32_t i = 0; i < WARM_UP; i++) {
		struct epf_op op = op_of(0);

		push(&r, &op);
		while (epf_core_step(r.core))
			;
	}
	assert_int_equal(lane->mask, 3);
	r.core->ops = &r.holds;
	first = lane->head;
	before = lane->mask;
	for (uint32_t i = 0; i < PUSHED; i++) {
		struct epf_op op = op_of(i);

		push(&r, &op);
		for (unsigned n = 0; n < 4; n++)
			(void)epf_core_step(r.core);
		for (uint32_t at = first; at != lane->head; at++)
			assert_entry(lane, at, at - first, WARM_UP);
		sizes += lane->mask != before;
		before = lane->mask;
	}
	/* 4, 16, 64: entries are made as they are needed; then commands wait, and two stay free for control writes. */
	assert_int_equal(sizes, 2);
	assert_int_equal(lane->mask, DEPTH - 1);
	assert_int_equal(lane->limit, DEPTH - EPF_LANE_RESERVE);
	assert_int_equal(lane->head - first, DEPTH - EPF_LANE_RESERVE);
	assert_true(r.core->n_deferred > 0);
	assert_int_equal(epf_nudge(r.core, &r.core->lanes[lane->id]), 1);
	assert_int_equal(epf_nudge(r.core, &r.core->lanes[lane->id]), 1);
	assert_int_equal(epf_nudge(r.core, &r.core->lanes[lane->id]), 0);
	assert_true(lane->n_slots <= DEPTH);
	r.core->ops = ops;
	while (epf_core_step(r.core))
		;
	assert_int_equal(epf_ring_retired(&r.ring), WARM_UP + PUSHED);
	assert_int_equal(lane->slot_head, lane->slot_tail);
	assert_int_equal(lane->head, lane->tail);
	close_rig(&r);
}

/* One put in flight needs no more than the room for one, and a lane that nobody uses has one entry. */
static void nobody_pays_for_others(void **state)
{
	uint64_t before, bytes;
	struct rig r;

	open_rig(&r);
	before = epf_grow_bytes(r.core);
	for (uint32_t i = 0; i < 1000; i++) {
		struct epf_op op = { .op = EPF_OP_PUT, .rank = 1, .length = 16 };

		push(&r, &op);
		while (epf_core_step(r.core))
			;
	}
	bytes = epf_grow_bytes(r.core) - before;
	assert_in_range(bytes, 1, 4096);
	for (uint32_t l = 0; l < r.core->n_lanes; l++)
		if (r.core->lanes[l].node != 1)
			assert_int_equal(r.core->lanes[l].mask, 0);
	assert_int_equal(r.core->nodes[2].n_handles, 0);
	assert_int_equal(r.core->nodes[2].n_rx, 0);
	close_rig(&r);
}

static void tables_end_where_they_should(void **state)
{
	struct epf_node *node;
	uint32_t last;
	struct rig r;

	open_rig(&r);
	node = &r.core->nodes[2];
	last = node->rx_streams - 1u;
	r.core->limits.start_count = START;
	assert_int_equal(epf_rx_grow_cold(r.core, node, last + 1), 0);
	assert_int_equal(node->n_rx, 0);
	assert_int_equal(epf_rx_grow_cold(r.core, node, 0), 1);
	assert_int_equal(node->n_rx, EPF_GROW_STREAMS);
	node->rx[3].base = 77;
	node->rx[2].ahead = 5;
	assert_int_equal(epf_rx_grow_cold(r.core, node, EPF_GROW_STREAMS), 1);
	assert_int_equal(node->n_rx, 2 * EPF_GROW_STREAMS);
	assert_int_equal(node->rx[3].base, 77);
	assert_int_equal(epf_rx_grow_cold(r.core, node, last), 1);
	assert_int_equal(node->n_rx, last + 1);
	for (uint32_t h = 0; h <= last; h++) {
		const struct epf_rx_stream *rx = &node->rx[h];

		assert_int_equal(rx->base, h == 3 ? 77 : START);
		assert_int_equal(rx->pending, EPF_NONE);
		assert_int_equal(rx->ahead, h == 2 ? 5 : 0);
		assert_null(rx->bits);
	}
	assert_int_equal(epf_notify_in_grow_cold(r.core, node, last + 1), 0);
	assert_int_equal(epf_notify_in_grow_cold(r.core, node, last), 1);
	assert_int_equal(node->n_notify_in, last + 1);
	/* In reused memory: no trace of the table before. */
	for (uint32_t n = 0; n <= last; n++)
		assert_int_equal(node->notify_in[n].defined, 0);
	assert_int_equal(epf_rx_grow_cold(r.core, &r.core->nodes[1], 1), 1);
	assert_int_equal(r.core->nodes[1].rx[3].base, START);
	assert_int_equal(r.core->nodes[1].rx[2].ahead, 0);
	close_rig(&r);
}

/* Groups are found after the tables have grown, several times. */
static void groups_are_found_again(void **state)
{
	enum { GROUPS = 400 };

	const struct epf_group *group[GROUPS];
	struct rig r;

	open_rig(&r);
	for (uint32_t i = 0; i < GROUPS; i++)
		group[i] = epf_group_open_cold(r.core, r.core->rings[0], i % PEERS, i);
	assert_true(r.core->group_mask >= 255);
	for (uint32_t i = 0; i < GROUPS; i++) {
		struct epf_op op = {
			.op = EPF_OP_SIGNAL, .flags = EPF_F_COUNTED, .rank = i % PEERS, .signal = i
		};

		assert_ptr_equal(group[i], &r.core->groups[i]);
		assert_int_equal(group[i]->signal, i);
		assert_int_equal(r.core->streams[group[i]->stream].peer, i % PEERS);
		assert_int_equal(epf_stage_stream(r.core, r.core->rings[0], &op), group[i]->stream);
		op.rank = (i + 1) % PEERS;
		assert_int_equal(epf_stage_stream(r.core, r.core->rings[0], &op), EPF_NONE);
	}
	close_rig(&r);
}

/* However many groups go to a peer, they share a stream for each lane, in turn. */
static void groups_share_a_stream_for_each_lane(void **state)
{
	enum { LANES = 4, GROUPS = 100 };

	const struct epf_core *core;
	unsigned on[LANES] = { 0 };
	struct rig r;

	open_rig_with(&r, LANES);
	core = r.core;
	for (uint32_t i = 0; i < GROUPS; i++) {
		const struct epf_group *g = epf_group_open_cold(r.core, core->rings[0], 1, i);

		/* Other streams in between. */
		if (i < 2)
			assert_non_null(epf_group_open_cold(r.core, core->rings[0], 2, i));
		if (i < 1)
			(void)epf_stream_open_cold(r.core, EPF_STREAM_RING, core->rings[0], 1);
		assert_non_null(g);
		assert_int_equal(core->streams[g->stream].kind, EPF_STREAM_GROUP);
		assert_int_equal(core->streams[g->stream].peer, 1);
		on[core->streams[g->stream].lane - core->nodes[1].first_lane]++;
	}
	for (unsigned l = 0; l < LANES; l++)
		assert_int_equal(on[l], GROUPS / LANES);
	/* With the control streams, and the ring's. */
	assert_int_equal(core->nodes[1].n_handles, 2 * LANES + 1);
	assert_int_equal(core->nodes[2].n_handles, LANES + 2);
	close_rig(&r);
}

/* Arrival windows are all zero but for their link, which goes when one is taken (arrive_hot.c). */
static void windows_are_clean(void **state)
{
	unsigned n = 0;
	struct rig r;

	open_rig(&r);
	assert_null(r.core->grow.windows);
	assert_int_equal(epf_windows_grow_cold(r.core), 1);
	for (const uint64_t *w = r.core->grow.windows; w; w = *(void *const *)(const void *)w, n++)
		for (uint32_t i = 1; i < r.core->limits.window / 64; i++)
			assert_int_equal(w[i], 0);
	assert_int_equal(n, EPF_GROW_WINDOWS);
	close_rig(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_lane_keeps_what_it_holds),
		cmocka_unit_test(nobody_pays_for_others),
		cmocka_unit_test(tables_end_where_they_should),
		cmocka_unit_test(groups_are_found_again),
		cmocka_unit_test(groups_share_a_stream_for_each_lane),
		cmocka_unit_test(windows_are_clean),
	};

	return cmocka_run_group_tests_name("grow", tests, NULL, NULL);
}
