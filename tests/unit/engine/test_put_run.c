/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of plain puts (fabric/engine/put_hot.c, and their completions in fabric/engine/retire_hot.h) against the ordinary way: the same random commands go to two
 * cores, narrow to one and wide to the other, and wide ones never go in rows. Work requests, completion counters, refusals and counts must be
 * the same. And where a row ends: at another command, a wrong one, a full lane, a limit of what is in flight. On the null NIC.
 */
#include "fabric/engine/bench_core.h"
#include "fabric/engine/data_path.h"
#include "queues/epf_ring.h"
#include "queues/epf_stats.h"
#include "tests/unit/engine/grow_all.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

enum { PEERS = 3, REGIONS = 4, REGION = 1 << 20, SIGNALS = 8, DEPTH = 64, ROUNDS = 3000 };

struct rig {
	struct epf_bench_core *bc;
	struct epf_core *core;
	struct epf_ring_shm *shm;
	struct epf_ring_producer ring;
};

static uint64_t random_state;

static uint32_t draw(uint32_t below)
{
	random_state = random_state * UINT64_C(6364136223846793005) + 1442695040888963407u;
	return (uint32_t)(random_state >> 33) % below;
}

static void open_rig(struct rig *r)
{
	struct epf_bench_core_options o = { .nic = "null",
					    .peers = PEERS,
					    .regions = REGIONS,
					    .region_bytes = REGION,
					    .signals = SIGNALS,
					    .ring_slots = 256,
					    .batch = 64,
					    .lane_depth = DEPTH };

	assert_int_equal(epf_bench_core_create(&o, &r->bc), 0);
	r->core = epf_bench_core_of(r->bc);
	grow_all(r->core);
	r->shm = epf_bench_core_ring(r->bc, 0);
	epf_ring_producer_init(&r->ring, r->shm, 0);
	while (epf_core_step(r->core))
		;
}

static uint64_t counter(const struct rig *r, uint32_t stat)
{
	return epf_bench_core_counter(r->bc, stat);
}

/* Mostly plain puts in rows to one peer; of the rest something of everything, and some wrong. */
static struct epf_op draw_op(uint32_t peer)
{
	struct epf_op op = { .op = EPF_OP_PUT,
			     .rank = draw(12) ? peer : draw(PEERS),
			     .local_region = draw(9) ? 1 : (uint16_t)draw(REGIONS),
			     .remote_region = draw(9) ? 2 : (uint16_t)draw(REGIONS),
			     .length = (draw(200) + 1) * 16,
			     .add = 1 };

	op.local_offset = draw(REGION / 16 - 256) * UINT64_C(16);
	op.remote_offset = draw(REGION / 16 - 256) * UINT64_C(16);
	switch (draw(40)) {
	case 0:
		op.op = EPF_OP_PUT_SIGNAL;
		op.signal = draw(SIGNALS + 1);
		break;
	case 1:
		op.op = EPF_OP_GET;
		break;
	case 2:
		op = (struct epf_op){ .op = EPF_OP_SIGNAL, .rank = op.rank, .value = 3 };
		break;
	case 3:
		op.flags = EPF_F_COUNTED;
		op.signal = draw(SIGNALS);
		break;
	case 4:
	case 5:
		op.flags = EPF_F_BULK;
		break;
	case 6:
		op.flags = EPF_F_FENCE;
		break;
	case 7:
		op.rank = PEERS + draw(9);
		break;
	case 8:
		op.local_offset = REGION - 16 * draw(32);
		break;
	case 9:
		op.remote_offset = REGION - 16 * draw(32);
		break;
	case 10:
		op.local_region = REGIONS + 1;
		break;
	case 11:
		op.remote_region = REGIONS;
		break;
	default:
		break;
	}
	return op;
}

static void push(struct rig *narrow, struct rig *wide, struct epf_op op)
{
	struct epf_cmd two[2];

	assert_true(epf_op_is_narrow(&op));
	assert_true(epf_ring_push(&narrow->ring, epf_op_pack_narrow(&op)));
	epf_op_pack_wide(&op, two);
	assert_true(epf_ring_push_wide(&wide->ring, two));
}

static void drain(struct rig *r)
{
	while (epf_core_step(r->core))
		;
	assert_int_equal(r->core->n_deferred, 0);
	assert_int_equal(r->shm->done.retired, epf_ring_retired(&r->ring));
	assert_int_equal(r->shm->done.retired, r->ring.pushed);
	assert_int_equal(r->core->load[0].bytes, 0);
	assert_int_equal(r->core->load[0].messages, 0);
	assert_int_equal(r->core->ranks[0].inflight_bytes, 0);
	assert_int_equal(r->core->ranks[0].inflight_messages, 0);
}

static void compare(const struct rig *a, const struct rig *b)
{
	static const uint32_t counts[] = { EPF_STAT_CORE_CMDS_DEQUEUED,
					   EPF_STAT_CORE_PUT_BYTES_SAME_NODE,
					   EPF_STAT_CORE_PUT_BYTES_REMOTE_NODE,
					   EPF_STAT_CORE_GET_BYTES, EPF_STAT_CORE_WRS_POSTED };

	for (unsigned i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
		assert_int_equal(counter(a, counts[i]), counter(b, counts[i]));
	assert_int_equal(a->shm->done.failed, b->shm->done.failed);
	for (unsigned i = 0; i < EPF_CMD_REASONS; i++)
		assert_int_equal(a->core->refusals[i], b->core->refusals[i]);
	for (uint32_t l = 0; l < a->core->n_lanes; l++) {
		const struct epf_lane *x = &a->core->lanes[l], *y = &b->core->lanes[l];

		assert_int_equal(x->head, y->head);
		assert_int_equal(x->tail, x->head);
		for (uint32_t i = 0; i <= x->mask; i++) {
			const struct epf_wr *v = &x->wrs[i], *w = &y->wrs[i];

			assert_true(v->op == w->op && v->len == w->len && v->id == w->id &&
				    v->core == w->core && v->imm == w->imm && v->flags == w->flags);
			if (v->op != EPF_WR_WRITE && v->op != EPF_WR_READ)
				continue;
			assert_true(v->laddr == w->laddr && v->raddr == w->raddr &&
				    v->lkey == w->lkey && v->rkey == w->rkey);
		}
	}
	for (uint32_t s = 0; s < a->core->n_streams; s++)
		assert_int_equal(a->core->streams[s].sent, b->core->streams[s].sent);
}

static void rows_do_what_single_commands_do(void **state)
{
	struct rig narrow, wide;

	random_state = 1;
	open_rig(&narrow);
	open_rig(&wide);
	for (unsigned round = 0; round < ROUNDS; round++) {
		uint32_t peer = draw(PEERS);

		for (unsigned n = draw(120); n; n--)
			push(&narrow, &wide, draw_op(peer));
		/* Now and then little may be in flight. */
		narrow.core->limits.rank_inflight_bytes = wide.core->limits.rank_inflight_bytes =
			draw(4) ? UINT64_C(1) << 40 : 5000;
		narrow.core->limits.nic_inflight_messages =
			wide.core->limits.nic_inflight_messages = draw(4) ? 1 << 20 : 7;
		drain(&narrow);
		drain(&wide);
		compare(&narrow, &wide);
	}
	assert_true(counter(&narrow, EPF_STAT_CORE_CMDS_DEQUEUED) > ROUNDS * 40);
	epf_bench_core_destroy(narrow.bc);
	epf_bench_core_destroy(wide.bc);
}

static unsigned run(struct rig *r, unsigned budget, int64_t quantum)
{
	struct epf_put_run out;

	r->core->rings[0]->last_step = r->core->steps - 1;
	r->core->rings[0]->deficit = 0;
	return epf_put_run(r->core, r->core->rings[0], budget, quantum, &out);
}

static void push_puts(struct rig *r, unsigned n, unsigned flags, uint64_t offset)
{
	for (unsigned i = 0; i < n; i++)
		assert_true(epf_ring_push(&r->ring, epf_cmd_transfer(EPF_OP_PUT, flags, 1, 0, 1, 0,
								     offset, 0, offset, 64)));
}

/* The first put of a ring to a peer opens its stream, the ordinary way. */
static void open_stream(struct rig *r)
{
	push_puts(r, 1, 0, 0);
	assert_int_equal(run(r, 64, 1 << 20), 0);
	drain(r);
}

static void a_row_ends_where_it_must(void **state)
{
	struct rig r;
	uint32_t most;

	open_rig(&r);
	open_stream(&r);
	push_puts(&r, 5, 0, 0); /* five, and a signal */
	assert_true(epf_ring_push(&r.ring, epf_cmd_signal(0, 1, 0, 1, 0)));
	push_puts(&r, 1, 0, 0);
	assert_int_equal(run(&r, 64, 1 << 20), 5);
	assert_int_equal(run(&r, 64, 1 << 20), 0);
	drain(&r);
	push_puts(&r, 3, 0, 64); /* three, and one that leaves its region */
	push_puts(&r, 1, 0, REGION - 32);
	assert_int_equal(run(&r, 64, 1 << 20), 3);
	drain(&r);
	assert_int_equal(r.shm->done.failed, 1);
	push_puts(&r, 9, 0, 0); /* as many as the ring's turn has, in number and in bytes */
	assert_int_equal(run(&r, 4, 1 << 20), 4);
	assert_int_equal(run(&r, 64, 2 * (64 + EPF_COMMAND_COST)), 2);
	drain(&r);
	r.core->limits.rank_inflight_bytes = 200; /* three of 64 */
	push_puts(&r, 9, 0, 0);
	assert_int_equal(run(&r, 64, 1 << 20), 3);
	r.core->limits.rank_inflight_bytes = UINT64_C(1) << 40;
	r.core->limits.nic_inflight_messages = 5; /* two more */
	assert_int_equal(run(&r, 64, 1 << 20), 2);
	r.core->limits.nic_inflight_messages = 1 << 20;
	drain(&r);
	most = r.core->lanes[r.core->streams[r.core->rings[0]->streams[1]].lane].limit;
	push_puts(&r, DEPTH, EPF_F_BULK, 0); /* bulk traffic leaves a quarter of the lane */
	push_puts(&r, DEPTH, 0, 0);
	assert_int_equal(run(&r, 2 * DEPTH, 1 << 20), most - most / 4);
	drain(&r);
	push_puts(&r, 2 * DEPTH, 0, 0);
	assert_int_equal(run(&r, 2 * DEPTH, 1 << 20), most);
	assert_int_equal(run(&r, 2 * DEPTH, 1 << 20), 0);
	drain(&r);
	epf_bench_core_destroy(r.bc);
}

static void nothing_goes_to_a_rank_that_must_not_be_sent_to(void **state)
{
	struct rig r;

	open_rig(&r);
	open_stream(&r);
	epf_core_mask_peer(r.core, 0, 1, 1);
	push_puts(&r, 4, 0, 0);
	assert_int_equal(run(&r, 64, 1 << 20), 0);
	drain(&r);
	assert_int_equal(r.shm->done.failed, 4);
	epf_bench_core_destroy(r.bc);
}

/* The first lane to a peer that the ring has sent to. */
static struct epf_lane *lane_to(const struct rig *r, uint32_t peer)
{
	return &r->core->lanes[r->core->streams[r->core->rings[0]->streams[peer]].lane];
}

static void push_put_to(struct rig *r, uint32_t peer)
{
	assert_true(epf_ring_push(&r->ring,
				  epf_cmd_transfer(EPF_OP_PUT, 0, peer, 0, 1, 0, 0, 0, 0, 64)));
}

static void step_often(struct rig *r)
{
	for (unsigned i = 0; i < 20; i++)
		(void)epf_core_step(r->core);
}

/* Puts that find no credit stay in the ring but for a few, and the core may sleep; what is for somebody else passes them, however late it comes. */
static void what_lets_nobody_pass_is_left(void **state)
{
	enum { FEW = 8, PUTS = 150 };

	uint64_t posted, taken;
	uint32_t limit;
	struct rig r;

	open_rig(&r);
	open_stream(&r);
	push_put_to(&r, 2);
	drain(&r);
	limit = lane_to(&r, 1)->limit;
	lane_to(&r, 1)->limit = 0;
	r.core->rings[0]->mixed = 0; /* as after some turns */
	taken = counter(&r, EPF_STAT_CORE_CMDS_DEQUEUED);
	push_puts(&r, PUTS, 0, 0);
	step_often(&r);
	assert_in_range(counter(&r, EPF_STAT_CORE_CMDS_DEQUEUED) - taken, 1, FEW);
	assert_in_range(r.core->n_deferred, 1, FEW);
	assert_false(epf_core_has_work(r.core));
	push_puts(&r, 1, 0, 0);
	assert_true(epf_core_has_work(r.core));
	step_often(&r);
	assert_false(epf_core_has_work(r.core));
	assert_in_range(r.core->n_deferred, 1, FEW);
	posted = lane_to(&r, 2)->head;
	push_put_to(&r, 2);
	push_puts(&r, 3, 0, 0);
	step_often(&r);
	assert_int_equal(lane_to(&r, 2)->head - posted, 1);
	lane_to(&r, 1)->limit = limit;
	drain(&r);
	assert_int_equal(r.core->n_deferred, 0);
	assert_int_equal(counter(&r, EPF_STAT_CORE_CMDS_DEQUEUED) - taken, PUTS + 5);
	assert_int_equal(r.shm->done.retired, r.ring.head);
	assert_int_equal(r.shm->done.failed, 0);
	epf_bench_core_destroy(r.bc);
}

/* A ring that may not be dequeued, because the limit of deferred commands is reached, does not keep its core awake. */
static void a_blocked_ring_lets_the_core_sleep(void **state)
{
	enum { MOST = 16, PUTS = 200 };

	uint32_t limit;
	struct rig r;

	open_rig(&r);
	open_stream(&r);
	drain(&r);
	limit = lane_to(&r, 1)->limit;
	lane_to(&r, 1)->limit = 0;
	r.core->limits.defer_limit = MOST;
	for (unsigned i = 0; i < PUTS; i++) /* not alike, or they would stay in the ring */
		assert_true(epf_ring_push(
			&r.ring, epf_cmd_transfer(EPF_OP_PUT, 0, 1, 0, 1, i % 2, 0, 0, 0, 64)));
	assert_true(epf_core_has_work(r.core));
	step_often(&r);
	assert_in_range(r.core->n_deferred, MOST, PUTS - 1);
	assert_false(epf_core_has_work(r.core));
	lane_to(&r, 1)->limit = limit;
	drain(&r);
	assert_int_equal(r.shm->done.failed, 0);
	epf_bench_core_destroy(r.bc);
}

/* The same where the puts are alike and stay in the ring, and there are more of them than would be deferred: what stands behind those is not work either. */
static void a_ring_of_more_than_is_compared_lets_the_core_sleep(void **state)
{
	enum { MOST = 16, PUTS = 200 };

	uint32_t limit;
	struct rig r;

	open_rig(&r);
	open_stream(&r);
	drain(&r);
	limit = lane_to(&r, 1)->limit;
	lane_to(&r, 1)->limit = 0;
	r.core->rings[0]->mixed = 0;
	r.core->limits.defer_limit = MOST;
	push_puts(&r, PUTS, 0, 0);
	assert_true(epf_core_has_work(r.core));
	step_often(&r);
	assert_in_range(r.core->n_deferred, 1, MOST - 1);
	assert_false(epf_core_has_work(r.core));
	lane_to(&r, 1)->limit = limit;
	drain(&r);
	assert_int_equal(r.shm->done.retired, r.ring.head);
	assert_int_equal(r.shm->done.failed, 0);
	epf_bench_core_destroy(r.bc);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(rows_do_what_single_commands_do),
		cmocka_unit_test(a_row_ends_where_it_must),
		cmocka_unit_test(what_lets_nobody_pass_is_left),
		cmocka_unit_test(a_blocked_ring_lets_the_core_sleep),
		cmocka_unit_test(a_ring_of_more_than_is_compared_lets_the_core_sleep),
		cmocka_unit_test(nothing_goes_to_a_rank_that_must_not_be_sent_to),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
