/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FLUSH (fabric/engine/flush_hot.c) step by step: it retires when the peer has acknowledged every stream that the ring, the rank's groups, and
 * with EPF_F_ALL its other rings have posted to, and not before; counts of acknowledgements and sequences of commands wrap. On the null
 * NIC: the test writes the acknowledgements that a peer engine would write into the control memory.
 */
#include "tests/unit/engine/null_rig.h"

#include "fabric/base/err.h"
#include "fabric/engine/lane_hot.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { PEER = 2, OTHER = 3 };

static void open_rig(struct null_rig *rig, uint64_t start)
{
	memset(rig, 0, sizeof(*rig));
	rig->ring_start = start;
	null_rig_open(rig, false);
}

static void push_on(struct epf_ring_producer *ring, struct epf_op op)
{
	assert_true(epf_ring_room(ring, 1) >= 1);
	epf_ring_push(ring, epf_op_pack_narrow(&op));
}

static void push(struct null_rig *rig, struct epf_op op)
{
	push_on(&rig->rank[0].ring, op);
}

static struct epf_op put_to(uint32_t rank)
{
	return (struct epf_op){ .op = EPF_OP_PUT, .rank = rank, .length = 16, .add = 1 };
}

static struct epf_op flush(unsigned flags)
{
	return (struct epf_op){ .op = EPF_OP_FLUSH, .flags = (uint8_t)flags };
}

static void steps(struct null_rig *rig)
{
	for (unsigned i = 0; i < 20; i++)
		epf_core_step(rig->core);
}

/* Acknowledges a stream's flush, if it has sent one. */
static void acknowledge_stream(struct null_rig *rig, const struct epf_stream *s)
{
	if (s->kind != EPF_STREAM_CONTROL && s->ack != EPF_NO_ACK)
		rig->core->nodes[s->node].ctl->acks[s->ack] =
			epf_ack_word(s->handle, s->flush_count);
}

/* Acknowledges what streams of kind `kind` to `rank` have sent, less `short_of`. */
static void acknowledge(struct null_rig *rig, unsigned kind, uint32_t rank, uint32_t short_of)
{
	for (uint32_t i = 0; i < rig->core->n_streams; i++) {
		const struct epf_stream *s = &rig->core->streams[i];

		if (s->kind == kind && s->peer == rank && s->ack != EPF_NO_ACK)
			rig->core->nodes[s->node].ctl->acks[s->ack] =
				epf_ack_word(s->handle, s->count - 1 - short_of);
	}
	steps(rig);
}

static uint64_t retired(const struct null_rig *rig)
{
	return rig->rank[0].shm->done.retired - rig->ring_start;
}

/* All streams are new, or have counted so far. */
static void set_counts(struct null_rig *rig, uint32_t count)
{
	for (uint32_t i = 0; i < rig->core->n_streams; i++)
		rig->core->streams[i].count = count;
}

static void a_flush_waits_for_its_streams(void **state)
{
	static const uint64_t starts[] = { 0, UINT64_C(0) - 3, (UINT64_C(1) << 32) - 3 };
	static const uint32_t counts[] = { 0, 1, UINT32_MAX, UINT32_MAX - 1, 0x7fffffff };
	struct null_rig rig;

	for (unsigned i = 0; i < sizeof(starts) / sizeof(starts[0]); i++)
		for (unsigned c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
			open_rig(&rig, starts[i]);
			push(&rig, put_to(PEER));
			push(&rig, put_to(OTHER));
			steps(&rig);
			set_counts(&rig, counts[c]);
			push(&rig, flush(0));
			push(&rig, put_to(PEER)); /* goes on behind it */
			steps(&rig);
			assert_int_equal(retired(&rig), 2);
			acknowledge(&rig, EPF_STREAM_RING, PEER, 1); /* of one before */
			acknowledge(&rig, EPF_STREAM_RING, OTHER, 0);
			assert_int_equal(retired(&rig), 2);
			acknowledge(&rig, EPF_STREAM_RING, PEER, 0);
			assert_int_equal(retired(&rig), 4);
			assert_int_equal(rig.rank[0].shm->done.failed, 0);
			/* The next one has to wait again. */
			push(&rig, flush(0));
			steps(&rig);
			assert_int_equal(retired(&rig), 4);
			acknowledge(&rig, EPF_STREAM_RING, PEER, 0);
			assert_int_equal(retired(&rig), 5);
			null_rig_close(&rig);
		}
}

static void a_flush_waits_for_groups(void **state)
{
	struct null_rig rig;
	struct epf_op counted = put_to(PEER);

	counted.flags = EPF_F_COUNTED;
	counted.signal = 5;
	open_rig(&rig, 0);
	push(&rig, counted);
	push(&rig, flush(0));
	steps(&rig);
	assert_int_equal(retired(&rig), 1);
	acknowledge(&rig, EPF_STREAM_GROUP, PEER, 0);
	assert_int_equal(retired(&rig), 2);
	null_rig_close(&rig);
}

/* Adds another ring to the rank. The caller frees it, after the rig. */
static struct epf_ring_shm *second_ring(struct null_rig *rig, struct epf_ring_producer *producer,
					uint32_t *id)
{
	struct epf_ring_shm *shm = aligned_alloc(128, epf_ring_bytes(NULL_RING_LOG2));

	assert_non_null(shm);
	memset(shm, 0, epf_ring_bytes(NULL_RING_LOG2));
	epf_ring_format(shm, NULL_RING_LOG2, 9, 0);
	assert_int_equal(
		epf_core_add_ring(rig->core, rig->rank[0].local, shm, NULL_RING_LOG2, 1, 0, id), 0);
	epf_ring_producer_init(producer, shm, 0);
	return shm;
}

/* Of all rings: what another ring of the rank has posted counts, too, and so does what it has still in it. */
static void a_flush_of_all_rings_waits_for_them(void **state)
{
	struct epf_ring_producer second;
	struct epf_ring_shm *shm;
	uint32_t id;
	struct null_rig rig;

	open_rig(&rig, 0);
	shm = second_ring(&rig, &second, &id);
	push_on(&second, put_to(PEER));
	push(&rig, flush(0)); /* of its own ring only: nothing to wait for */
	steps(&rig);
	assert_int_equal(retired(&rig), 1);
	push_on(&second, put_to(OTHER));
	push(&rig, flush(EPF_F_ALL));
	steps(&rig);
	assert_int_equal(retired(&rig), 1);
	acknowledge(&rig, EPF_STREAM_RING, PEER, 0);
	assert_int_equal(retired(&rig), 1);
	acknowledge(&rig, EPF_STREAM_RING, OTHER, 0);
	assert_int_equal(retired(&rig), 2);
	epf_core_close_ring(rig.core, id);
	null_rig_close(&rig);
	free(shm);
}

/* Half a wide command in another ring is none yet: its second half may never come. */
static void a_flush_does_not_wait_for_half_a_command(void **state)
{
	const struct epf_op wide = { .op = EPF_OP_PUT, .rank = PEER, .length = 16 };
	struct epf_ring_producer second;
	struct epf_ring_shm *shm;
	uint32_t id;
	struct epf_cmd two[2];
	struct null_rig rig;

	open_rig(&rig, 0);
	shm = second_ring(&rig, &second, &id);
	epf_op_pack_wide(&wide, two);
	epf_ring_put_slot(&second, two[0]);
	push(&rig, flush(EPF_F_ALL));
	steps(&rig);
	assert_int_equal(retired(&rig), 1);
	epf_ring_put_slot(&second, two[1]);
	steps(&rig);
	assert_int_equal(shm->done.retired, 1);
	epf_core_close_ring(rig.core, id);
	null_rig_close(&rig);
	free(shm);
}

/* What is deferred before it is staged first, wherever counts stand; what comes behind it does not hold it up. */
static void a_flush_waits_for_deferred_commands(void **state)
{
	static const uint64_t starts[] = { 0, UINT64_C(0) - 2, (UINT64_C(1) << 32) - 2,
					   (UINT64_C(1) << 31) - 2 };
	struct null_rig rig;

	for (unsigned i = 0; i < sizeof(starts) / sizeof(starts[0]); i++) {
		struct epf_lane *lane;

		open_rig(&rig, starts[i]);
		push(&rig, put_to(PEER));
		steps(&rig);
		lane = &rig.core->lanes[rig.core->streams[rig.core->rings[0]->streams[PEER]].lane];
		lane->state = EPF_LANE_FENCED;
		push(&rig, put_to(PEER));
		push(&rig, flush(0));
		push(&rig, put_to(PEER));
		steps(&rig);
		acknowledge(&rig, EPF_STREAM_RING, PEER, 0);
		assert_int_equal(retired(&rig), 1);
		assert_int_equal(rig.core->rings[0]->flush_phase, EPF_FLUSH_DRAINING);
		lane->state = EPF_LANE_UP;
		steps(&rig);
		assert_int_equal(retired(&rig), 2);
		acknowledge(&rig, EPF_STREAM_RING, PEER, 0);
		assert_int_equal(retired(&rig), 4);
		null_rig_close(&rig);
	}
}

/* One that covers a lost rank fails, whether its message was sent before or not at all; an acknowledgement from before counts. */
static void a_flush_to_a_lost_rank_fails(void **state)
{
	for (int when = 0; when < 3; when++) {
		struct null_rig rig;

		open_rig(&rig, 0);
		push(&rig, put_to(PEER));
		steps(&rig);
		if (when == 0)
			epf_core_mask_peer(rig.core, 0, PEER, 1);
		push(&rig, flush(0));
		if (when == 2) {
			null_rig_hold(&rig, true);
			epf_core_step(rig.core);
			epf_core_mask_peer(rig.core, 0, PEER, 1);
			for (uint32_t s = 0; s < rig.core->n_streams; s++)
				acknowledge_stream(&rig, &rig.core->streams[s]);
			null_rig_hold(&rig, false);
		}
		steps(&rig);
		if (when == 1) {
			assert_int_equal(retired(&rig), 1);
			epf_core_mask_peer(rig.core, 0, PEER, 1);
			steps(&rig);
		}
		assert_int_equal(retired(&rig), 2);
		assert_int_equal(rig.rank[0].shm->done.failed, when < 2);
		if (when < 2) {
			assert_int_equal(rig.rank[0].shm->done.error_status, EPF_S_PEER_DOWN);
			assert_int_equal(rig.rank[0].shm->done.error_rank, PEER);
		}
		null_rig_close(&rig);
	}
}

/* An acknowledgement of an earlier flush says nothing of what was posted since. */
static void an_old_acknowledgement_does_not_count(void **state)
{
	struct null_rig rig;

	open_rig(&rig, 0);
	push(&rig, put_to(PEER));
	push(&rig, flush(0));
	steps(&rig);
	acknowledge(&rig, EPF_STREAM_RING, PEER, 0);
	assert_int_equal(retired(&rig), 2);
	push(&rig, put_to(PEER));
	steps(&rig);
	epf_core_mask_peer(rig.core, 0, PEER, 1);
	push(&rig, flush(0));
	steps(&rig);
	assert_int_equal(retired(&rig), 4);
	assert_int_equal(rig.rank[0].shm->done.failed, 1);
	null_rig_close(&rig);
}

/* Of two rings of a rank one flush runs at a time; the other's turn comes. */
static void flushes_take_turns(void **state)
{
	struct epf_ring_producer second;
	struct epf_ring_shm *shm;
	uint32_t id;
	struct null_rig rig;

	open_rig(&rig, 0);
	shm = second_ring(&rig, &second, &id);
	for (unsigned i = 0; i < 3; i++) {
		push(&rig, put_to(PEER));
		push_on(&second, put_to(OTHER));
		steps(&rig);
		push(&rig, flush(0));
		push_on(&second, flush(0));
		steps(&rig);
		assert_int_equal(rig.core->flushing, 2);
		assert_int_equal(rig.core->rings[0]->flush_phase, EPF_FLUSH_WAITING);
		assert_int_equal(rig.core->rings[id]->flush_phase, EPF_FLUSH_WAITING_TURN);
		acknowledge(&rig, EPF_STREAM_RING, PEER, 0);
		assert_int_equal(retired(&rig), 2 * (i + 1));
		assert_int_equal(shm->done.retired, 2 * i + 1);
		acknowledge(&rig, EPF_STREAM_RING, OTHER, 0);
		assert_int_equal(shm->done.retired, 2 * (i + 1));
		assert_int_equal(rig.core->flushing, 0);
		assert_int_equal(rig.core->ranks[0].flushing, 0);
	}
	epf_core_close_ring(rig.core, id);
	null_rig_close(&rig);
	free(shm);
}

static unsigned flushes_under_way(const struct null_rig *rig)
{
	return (unsigned)__builtin_popcountll(rig->core->nodes[1].acks_busy);
}

/* More streams than acknowledgement words: they are used again as acknowledgements come. */
static void words_are_used_again(void **state)
{
	enum { WORDS = 4, STREAMS = 6 };

	struct null_rig rig;

	open_rig(&rig, 0);
	assert_int_equal(rig.core->n_acks, NULL_LOCAL * EPF_ACKS_PER_RANK);
	rig.core->n_acks = WORDS;
	/* To each of two ranks the ring's stream, and one of groups for each lane. */
	for (uint32_t i = 0; i < STREAMS; i++)
		push(&rig, (struct epf_op){ .op = EPF_OP_PUT,
					    .flags = i < 4 ? EPF_F_COUNTED : 0,
					    .rank = PEER + i % 2,
					    .length = 16,
					    .signal = i });
	steps(&rig);
	push(&rig, flush(0));
	steps(&rig);
	for (uint32_t done = 0; done < STREAMS; done += WORDS) {
		uint32_t left = STREAMS - done;

		assert_int_equal(flushes_under_way(&rig), left < WORDS ? left : WORDS);
		assert_int_equal(retired(&rig), STREAMS);
		for (uint32_t i = 0; i < rig.core->n_streams; i++)
			if (rig.core->nodes[1].acks_busy >> (rig.core->streams[i].ack & 63) & 1)
				acknowledge_stream(&rig, &rig.core->streams[i]);
		steps(&rig);
	}
	assert_int_equal(flushes_under_way(&rig), 0);
	assert_int_equal(retired(&rig), STREAMS + 1);
	assert_int_equal(rig.rank[0].shm->done.failed, 0);
	null_rig_close(&rig);
}

/* The acknowledgement of an abandoned flush may still come: until it has, no other flush gets its word. */
static void a_word_that_was_given_up_stays_taken(void **state)
{
	const struct epf_stream *s, *other;
	struct null_rig rig;

	open_rig(&rig, 0);
	rig.core->n_acks = 1;
	push(&rig, put_to(PEER));
	push(&rig, put_to(OTHER));
	steps(&rig);
	s = &rig.core->streams[rig.core->rings[0]->streams[PEER]];
	other = &rig.core->streams[rig.core->rings[0]->streams[OTHER]];
	rig.core->streams[rig.core->rings[0]->streams[OTHER]].dirty = 0;
	push(&rig, flush(0));
	steps(&rig);
	epf_core_mask_peer(rig.core, 0, PEER, 1);
	epf_core_mask_peer(rig.core, 0, OTHER, 1);
	steps(&rig);
	assert_int_equal(retired(&rig), 3);
	assert_int_equal(flushes_under_way(&rig), 1);
	epf_core_mask_peer(rig.core, 0, OTHER, 0);
	push(&rig, put_to(OTHER));
	push(&rig, flush(0));
	steps(&rig);
	assert_int_equal(retired(&rig), 4);
	assert_int_equal(other->ack, EPF_NO_ACK);
	/* Now it comes, and does not count for the flush that gets the word next. */
	rig.core->nodes[1].ctl->acks[0] = epf_ack_word(s->handle, other->count);
	steps(&rig);
	assert_int_equal(retired(&rig), 4);
	assert_int_equal(other->ack, 0);
	assert_int_equal(rig.core->nodes[1].ctl->acks[0], 0);
	rig.core->nodes[1].ctl->acks[0] = epf_ack_word(s->handle, other->flush_count);
	steps(&rig);
	assert_int_equal(retired(&rig), 4);
	acknowledge(&rig, EPF_STREAM_RING, OTHER, 0);
	assert_int_equal(retired(&rig), 5);
	null_rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_flush_waits_for_its_streams),
		cmocka_unit_test(a_flush_waits_for_groups),
		cmocka_unit_test(a_flush_of_all_rings_waits_for_them),
		cmocka_unit_test(a_flush_does_not_wait_for_half_a_command),
		cmocka_unit_test(a_flush_waits_for_deferred_commands),
		cmocka_unit_test(a_flush_to_a_lost_rank_fails),
		cmocka_unit_test(an_old_acknowledgement_does_not_count),
		cmocka_unit_test(flushes_take_turns),
		cmocka_unit_test(words_are_used_again),
		cmocka_unit_test(a_word_that_was_given_up_stays_taken),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
