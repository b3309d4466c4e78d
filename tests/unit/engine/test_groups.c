/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups of counted puts that share a stream (fabric/engine/stage_hot.c): a counted signal waits for the puts of its own group and for nothing else,
 * a flush knows which puts are whose, and a lost peer leaves nothing behind. On the null NIC.
 */
#include "tests/unit/engine/null_rig.h"

#include "fabric/engine/lane_hot.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* With two lanes the first and the third group have one stream. */
enum { PEER = 2, FIRST = 1, SECOND = 2, THIRD = 3 };

static void open_rig(struct null_rig *rig)
{
	memset(rig, 0, sizeof(*rig));
	null_rig_open(rig, false);
}

static void push_on(struct epf_ring_producer *ring, struct epf_op op)
{
	struct epf_cmd two[2];

	epf_op_pack_wide(&op, two);
	assert_true(epf_ring_push_wide(ring, two));
}

static struct epf_op put_of(uint32_t group)
{
	return (struct epf_op){ .op = EPF_OP_PUT,
				.flags = EPF_F_COUNTED,
				.rank = PEER,
				.signal = group,
				.length = 16 };
}

static struct epf_op signal_of(uint32_t group, uint32_t count)
{
	return (struct epf_op){ .op = EPF_OP_SIGNAL,
				.flags = EPF_F_COUNTED,
				.rank = PEER,
				.signal = group,
				.value = 1,
				.count = count };
}

static void push(struct null_rig *rig, struct epf_op op)
{
	push_on(&rig->rank[0].ring, op);
}

static void steps(struct null_rig *rig)
{
	for (unsigned i = 0; i < 20; i++)
		epf_core_step(rig->core);
}

/* As if so much were in flight that no put may follow; messages may. Or again as before. */
static void stop_puts(struct null_rig *rig, int stop)
{
	uint64_t *most = &rig->core->limits.rank_inflight_bytes;
	static uint64_t before;

	if (stop)
		before = *most;
	*most = stop ? 0 : before;
	rig->core->ranks[0].inflight_bytes += stop ? 1 : UINT64_MAX;
}

/* Opens the three groups; each has sent a put and its signal. Returns the stream of the first and the third. */
static struct epf_stream *open_groups(struct null_rig *rig)
{
	for (uint32_t g = FIRST; g <= THIRD; g++) {
		push(rig, put_of(g));
		push(rig, signal_of(g, 1));
		steps(rig);
	}
	assert_int_equal(rig->core->n_groups, 3);
	assert_int_equal(rig->core->groups[0].stream, rig->core->groups[2].stream);
	assert_int_not_equal(rig->core->groups[0].stream, rig->core->groups[1].stream);
	return &rig->core->streams[rig->core->groups[0].stream];
}

static uint32_t retired(const struct null_rig *rig)
{
	return rig->core->rings[0]->retired - 6; /* without those of open_groups() */
}

static void a_signal_waits_for_its_own_puts(void **state)
{
	struct epf_stream *s;
	struct null_rig rig;

	open_rig(&rig);
	s = open_groups(&rig);
	push(&rig, put_of(THIRD));
	push(&rig, put_of(THIRD));
	push(&rig, signal_of(FIRST, 2)); /* has no put yet */
	push(&rig, signal_of(THIRD, 2));
	steps(&rig);
	assert_int_equal(s->held, 1);
	assert_int_equal(rig.core->groups[0].spare, 0);
	assert_int_equal(rig.core->groups[2].spare, 0);
	push(&rig, put_of(FIRST));
	steps(&rig);
	assert_int_equal(s->held, 1);
	push(&rig, put_of(FIRST));
	steps(&rig);
	assert_int_equal(s->held, 0);
	assert_int_equal(retired(&rig), 6);
	null_rig_close(&rig);
}

/* Signals whose puts are out go before deferred puts, which may be of other groups and need other credit. */
static void a_ready_signal_passes_deferred_puts(void **state)
{
	struct epf_stream *s;
	struct null_rig rig;
	struct epf_lane *lane;
	uint32_t granted;

	open_rig(&rig);
	s = open_groups(&rig);
	lane = &rig.core->lanes[s->lane];
	granted = lane->granted;
	lane->granted = lane->events;
	for (uint32_t g = FIRST; g <= THIRD; g++) {
		push(&rig, put_of(g));
		push(&rig, signal_of(g, 1));
	}
	steps(&rig);
	assert_int_equal(s->held, 2); /* both for lack of credit */
	assert_int_not_equal(s->ready, EPF_NONE);
	stop_puts(&rig, 1);
	push(&rig, put_of(THIRD));
	steps(&rig);
	assert_int_equal(s->deferred_count, 1);
	lane->granted = lane->events + 1;
	steps(&rig);
	assert_int_equal(s->held, 1); /* credit for one: the other keeps its place */
	assert_int_not_equal(s->ready, EPF_NONE);
	lane->granted = granted;
	steps(&rig);
	assert_int_equal(s->held, 0);
	assert_int_equal(s->ready, EPF_NONE);
	assert_int_equal(s->deferred_count, 1);
	stop_puts(&rig, 0);
	steps(&rig);
	assert_int_equal(retired(&rig), 7);
	assert_int_equal(s->deferred_count, 0);
	null_rig_close(&rig);
}

/* A flush of all rings does not wait for another ring's signal that lacks puts, whatever else is deferred in its stream. */
static void a_flush_knows_whose_puts_are_deferred(void **state)
{
	const struct epf_op flush = { .op = EPF_OP_FLUSH, .flags = EPF_F_ALL };
	struct epf_ring_producer second;
	struct epf_ring_shm *shm = aligned_alloc(128, epf_ring_bytes(NULL_RING_LOG2));
	struct epf_stream *s;
	struct null_rig rig;
	uint32_t id;

	assert_non_null(shm);
	open_rig(&rig);
	s = open_groups(&rig);
	memset(shm, 0, epf_ring_bytes(NULL_RING_LOG2));
	epf_ring_format(shm, NULL_RING_LOG2, 9, 0);
	assert_int_equal(
		epf_core_add_ring(rig.core, rig.rank[0].local, shm, NULL_RING_LOG2, 1, 0, &id), 0);
	epf_ring_producer_init(&second, shm, 0);
	stop_puts(&rig, 1);
	push_on(&second, signal_of(FIRST, 1));
	push(&rig, put_of(THIRD));
	steps(&rig);
	assert_int_equal(s->deferred_count, 1);
	assert_int_equal(s->held, 1);
	epf_ring_push(&rig.rank[0].ring, epf_op_pack_narrow(&flush));
	steps(&rig);
	assert_int_equal(rig.core->ranks[0].covered, 1); /* the put */
	stop_puts(&rig, 0);
	steps(&rig);
	for (uint32_t i = 0; i < rig.core->n_streams; i++) {
		const struct epf_stream *t = &rig.core->streams[i];

		if (t->kind == EPF_STREAM_GROUP && t->ack != EPF_NO_ACK)
			rig.core->nodes[t->node].ctl->acks[t->ack] =
				epf_ack_word(t->handle, t->flush_count);
	}
	steps(&rig);
	assert_int_equal(retired(&rig), 2);
	assert_int_equal(s->held, 1);
	epf_core_close_ring(rig.core, id);
	null_rig_close(&rig);
	free(shm);
}

/* What groups hold for a lost peer fails, be it without puts or without credit, and each of them once. */
static void a_lost_peer_leaves_no_signal(void **state)
{
	struct epf_stream *s;
	struct null_rig rig;

	open_rig(&rig);
	s = open_groups(&rig);
	rig.core->lanes[s->lane].granted = rig.core->lanes[s->lane].events;
	push(&rig, signal_of(FIRST, 3)); /* lacks puts */
	push(&rig, signal_of(SECOND, 3));
	push(&rig, put_of(THIRD));
	push(&rig, signal_of(THIRD, 1)); /* lacks credit */
	push(&rig, signal_of(THIRD, 1)); /* is behind it */
	steps(&rig);
	assert_int_equal(s->held, 3);
	epf_core_mask_peer(rig.core, 0, PEER, 1);
	steps(&rig);
	assert_int_equal(s->held, 0);
	assert_int_equal(s->ready, EPF_NONE);
	for (unsigned g = 0; g < 3; g++) {
		assert_int_equal(rig.core->groups[g].signals_head, EPF_NONE);
		assert_int_equal(rig.core->groups[g].next_ready, EPF_NONE);
	}
	assert_int_equal(retired(&rig), 5);
	assert_int_equal(rig.rank[0].shm->done.failed, 4);
	assert_int_equal(rig.core->n_deferred, 0);
	null_rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_signal_waits_for_its_own_puts),
		cmocka_unit_test(a_ready_signal_passes_deferred_puts),
		cmocka_unit_test(a_flush_knows_whose_puts_are_deferred),
		cmocka_unit_test(a_lost_peer_leaves_no_signal),
	};

	return cmocka_run_group_tests_name("groups", tests, NULL, NULL);
}
