/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a replay (fabric/engine/replay.c) moves from a failed lane to another one: every entry once, in order, with its counts, bytes and
 * inline payload; events count on the lane that carries them now, against the receives that the peer has there. On the null NIC, which
 * holds what it was given until the lane has failed.
 */
#include "tests/unit/engine/null_rig.h"

#include "fabric/base/err.h"
#include "fabric/engine/lane_hot.h"
#include "fabric/engine/recovery.h"
#include "fabric/engine/retire_hot.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { PEER = 2, PUTS = 3, SIGNALS = 4, BYTES = 64 };

static struct epf_node *peer_node(struct null_rig *rig)
{
	return &rig->core->nodes[1];
}

/* The lane that the ring's stream to PEER is bound to, and the other one. */
static struct epf_lane *lane_of(struct null_rig *rig, bool other)
{
	struct epf_ring_state *ring = rig->core->rings[rig->rank[0].ring_id];
	struct epf_lane *lane = &rig->core->lanes[rig->core->streams[ring->streams[PEER]].lane];

	return other ? &rig->core->lanes[2 * NULL_LANES + NULL_LANES - 1 - lane->id] : lane;
}

static void push(struct null_rig *rig, const struct epf_op *op)
{
	struct epf_cmd two[2];

	epf_op_pack_wide(op, two);
	assert_true(epf_ring_push_wide(&rig->rank[0].ring, two));
	epf_core_step(rig->core);
}

static void put(struct null_rig *rig)
{
	const struct epf_op op = { .op = EPF_OP_PUT, .rank = PEER, .length = BYTES };

	push(rig, &op);
}

static void put_inline(struct null_rig *rig, uint64_t value)
{
	const struct epf_op op = {
		.op = EPF_OP_PUT_INLINE, .rank = PEER, .length = 8, .value = value
	};

	push(rig, &op);
}

static void signal_one(struct null_rig *rig)
{
	const struct epf_op op = { .op = EPF_OP_SIGNAL, .rank = PEER, .value = 1 };

	push(rig, &op);
}

/* A lane with puts, an inline put and signals on it that the NIC has not completed. */
static void open_rig(struct null_rig *rig, bool unordered)
{
	memset(rig, 0, sizeof(*rig));
	null_rig_open(rig, unordered);
	put(rig);
	for (unsigned i = 0; i < 70; i++) /* and the first control writes are over */
		epf_core_step(rig->core);
	null_rig_hold(rig, true);
}

static void fill(struct null_rig *rig)
{
	for (unsigned i = 0; i < PUTS; i++)
		put(rig);
	put_inline(rig, UINT64_C(0x1122334455667788));
	for (unsigned i = 0; i < SIGNALS; i++)
		signal_one(rig);
}

/* Fails the lane and moves what it holds. Returns whether all of it has moved. */
static int fail_and_replay(struct null_rig *rig, struct epf_lane *lane)
{
	epf_lane_error_cold(rig->core, lane, EPF_S_RETRY_EXCEEDED);
	assert_int_equal(lane->state, EPF_LANE_FENCED);
	return epf_replay(rig->core, peer_node(rig), lane,
			  &peer_node(rig)->recovery->lanes[lane->index]);
}

static void events_count_where_they_are_now(void **state)
{
	struct null_rig rig;

	for (int unordered = 0; unordered < 2; unordered++) {
		struct epf_lane *from, *to;
		uint32_t events, entries, head;

		open_rig(&rig, unordered);
		from = lane_of(&rig, false);
		to = lane_of(&rig, true);
		fill(&rig);
		entries = from->head - from->tail;
		events = to->events;
		head = to->head;
		assert_int_equal(entries, PUTS + 1 + SIGNALS);
		assert_int_equal(fail_and_replay(&rig, from), 1);
		assert_int_equal(to->head - head, entries);
		assert_int_equal(to->events - events, unordered ? entries : SIGNALS);
		assert_int_equal(from->tail, from->head);
		assert_int_equal(from->posted, from->head);
		assert_int_equal(from->replays, entries);
		assert_ptr_equal(lane_of(&rig, false), to);
		null_rig_close(&rig);
	}
}

/* Entries arrive as they were: order, counts, addresses; payloads that lay in the old lane's slots lie in the new one's. */
static void entries_move_as_they_are(void **state)
{
	struct null_rig rig;
	struct epf_lane *from, *to;
	struct epf_wr before[NULL_DEPTH];
	struct epf_msg messages[NULL_DEPTH];
	uint32_t first, n, at;

	open_rig(&rig, false);
	from = lane_of(&rig, false);
	to = lane_of(&rig, true);
	fill(&rig);
	first = from->tail;
	n = from->head - first;
	for (uint32_t i = 0; i < n; i++) {
		before[i] = from->wrs[(first + i) & from->mask];
		if (before[i].op == EPF_WR_SEND)
			messages[i] = *entry_message(&before[i]);
		else if (before[i].flags & EPF_WR_INLINE)
			messages[i].value = *(uint64_t *)(uintptr_t)before[i].laddr;
	}
	at = to->head;
	assert_int_equal(fail_and_replay(&rig, from), 1);
	for (uint32_t i = 0; i < n; i++) {
		const struct epf_wr *wr = &to->wrs[(at + i) & to->mask];

		assert_int_equal(wr->id, at + i);
		assert_int_equal(wr->core, before[i].core);
		assert_int_equal(wr->op, before[i].op);
		assert_int_equal(wr->len, before[i].len);
		assert_int_equal(wr->raddr, before[i].raddr);
		assert_int_equal(wr->flags, before[i].flags);
		if (wr->flags & EPF_WR_SLOT)
			assert_true(wr->laddr - (uint64_t)(uintptr_t)to->msgs <
				    to->n_slots * sizeof(struct epf_msg));
		if (wr->op == EPF_WR_SEND)
			assert_memory_equal(entry_message(wr), &messages[i], sizeof(messages[i]));
		else if (wr->flags & EPF_WR_INLINE)
			assert_int_equal(*(uint64_t *)(uintptr_t)wr->laddr, messages[i].value);
		else
			assert_int_equal(wr->laddr, before[i].laddr);
	}
	null_rig_close(&rig);
}

/* What is in flight is counted once, and is zero when all of it has completed on the other lane. */
static void bytes_and_messages_are_counted_once(void **state)
{
	struct null_rig rig;
	struct epf_lane *from, *to;
	uint64_t bytes;
	uint32_t messages, link;

	open_rig(&rig, false);
	from = lane_of(&rig, false);
	to = lane_of(&rig, true);
	to->link = 1;
	fill(&rig);
	bytes = rig.core->load[0].bytes;
	messages = rig.core->load[0].messages;
	assert_int_equal(bytes, PUTS * BYTES + 8);
	assert_int_equal(messages, PUTS + 1 + SIGNALS);
	assert_int_equal(fail_and_replay(&rig, from), 1);
	assert_int_equal(rig.core->load[0].bytes, 0);
	assert_int_equal(rig.core->load[0].messages, 0);
	assert_int_equal(rig.core->load[1].bytes, bytes);
	assert_int_equal(rig.core->load[1].messages, messages);
	null_rig_hold(&rig, false);
	for (unsigned i = 0; i < 20; i++)
		epf_core_step(rig.core);
	for (link = 0; link < 2; link++) {
		assert_int_equal(rig.core->load[link].bytes, 0);
		assert_int_equal(rig.core->load[link].messages, 0);
	}
	assert_int_equal(rig.core->ranks[0].inflight_messages, 0);
	assert_int_equal(rig.rank[0].shm->done.retired, epf_ring_retired(&rig.rank[0].ring));
	assert_int_equal(rig.rank[0].shm->done.failed, 0);
	null_rig_close(&rig);
}

/* The peer has as many receives as it granted: the last one may be used, and what lacks one waits on the failed lane. */
static void a_replay_waits_for_receives(void **state)
{
	struct null_rig rig;
	struct epf_lane *from, *to;

	open_rig(&rig, false);
	from = lane_of(&rig, false);
	to = lane_of(&rig, true);
	fill(&rig);
	to->events = to->granted - (SIGNALS - 1);
	assert_int_equal(fail_and_replay(&rig, from), 0);
	assert_int_equal(to->events, to->granted);
	assert_int_equal(from->head - from->tail, 1);
	assert_ptr_equal(lane_of(&rig, false), from);
	to->granted++;
	assert_int_equal(epf_replay(rig.core, peer_node(&rig), from,
				    &peer_node(&rig)->recovery->lanes[from->index]),
			 1);
	assert_int_equal(to->events, to->granted);
	null_rig_close(&rig);
}

/* A lane takes as many entries as it has, and no more. */
static void a_replay_waits_for_room(void **state)
{
	struct null_rig rig;
	struct epf_lane *from, *to;

	open_rig(&rig, false);
	from = lane_of(&rig, false);
	to = lane_of(&rig, true);
	fill(&rig);
	to->tail = to->head - NULL_DEPTH + 2; /* room for two */
	assert_int_equal(fail_and_replay(&rig, from), 0);
	assert_int_equal(to->head - to->tail, NULL_DEPTH);
	assert_int_equal(from->head - from->tail, PUTS + 1 + SIGNALS - 2);
	null_rig_close(&rig);
}

/* Entries whose effect is known retire and do not move. */
static void what_has_arrived_does_not_move(void **state)
{
	struct null_rig rig;
	struct epf_lane *from, *to;
	uint64_t retired;
	uint32_t head;

	open_rig(&rig, false);
	from = lane_of(&rig, false);
	to = lane_of(&rig, true);
	fill(&rig);
	for (uint32_t i = 0; i < PUTS; i++)
		from->wrs[(from->tail + i) & from->mask].core |= EPF_WRC_DONE;
	retired = rig.core->rings[0]->retired;
	head = to->head;
	assert_int_equal(fail_and_replay(&rig, from), 1);
	assert_int_equal(to->head - head, 1 + SIGNALS);
	assert_int_equal(rig.core->rings[0]->retired - retired, PUTS);
	assert_int_equal(rig.core->load[0].bytes, 8);
	null_rig_close(&rig);
}

/* Hands over a message of the peer engine on the lane that still works. */
static void tell(struct null_rig *rig, struct epf_msg m)
{
	struct epf_wc wc = {
		.op = EPF_WC_RECV, .lane = lane_of(rig, true)->id, .len = sizeof(m), .msg = &m
	};

	m.count = peer_node(rig)->rx[0].base;
	epf_arrive(rig->core, &wc);
	for (unsigned i = 0; i < 4; i++)
		epf_core_step(rig->core);
}

/* Returns the newest question that was staged on the lane that still works. */
static struct epf_msg asked(struct null_rig *rig, const struct epf_lane *lane)
{
	for (uint32_t at = lane->head; at != lane->head - NULL_DEPTH;) {
		const struct epf_wr *wr = &lane->wrs[--at & lane->mask];

		if (wr->op == EPF_WR_SEND && entry_message(wr)->kind == EPF_MSG_STREAM_QUERY)
			return *entry_message(wr);
	}
	return (struct epf_msg){ 0 };
}

/* Fails the lane, and the peer says that it has fenced it, too: now it is asked. */
static void fail_and_fence(struct null_rig *rig, struct epf_lane *lane)
{
	epf_lane_error_cold(rig->core, lane, EPF_S_RETRY_EXCEEDED);
	for (unsigned i = 0; i < 4; i++)
		epf_core_step(rig->core);
	assert_int_equal(asked(rig, lane_of(rig, true)).kind, 0);
	tell(rig, (struct epf_msg){ .kind = EPF_MSG_LANE_FENCED, .c = lane->index, .signal = 1 });
}

static struct epf_msg answer_to(const struct epf_msg *question, uint64_t bits)
{
	return (struct epf_msg){ .kind = EPF_MSG_STREAM_STATE,
				 .signal = question->signal,
				 .c = question->c,
				 .d = question->d,
				 .value = bits,
				 .a = bits,
				 .b = bits,
				 .e = bits };
}

/*
 * An answer tells of 256 counts of one stream: of the last of them, not of the next one, nor of another stream's. What has arrived does not
 * move, what has not does, each once.
 */
static void an_answer_reaches_so_far(void **state)
{
	static const uint32_t starts[] = { 5, UINT32_MAX - 100, UINT32_MAX - 255, 0xff80 };

	for (unsigned i = 0; i < sizeof(starts) / sizeof(starts[0]); i++) {
		struct null_rig rig;
		struct epf_lane *from, *to;
		struct epf_stream *s;
		struct epf_msg question;
		uint32_t sent;

		open_rig(&rig, false);
		from = lane_of(&rig, false);
		to = lane_of(&rig, true);
		s = &rig.core->streams[rig.core->rings[0]->streams[PEER]];
		s->count = starts[i];
		signal_one(&rig);
		s->count = starts[i] + 255;
		signal_one(&rig); /* count 255 */
		signal_one(&rig); /* count 256 */
		fail_and_fence(&rig, from);
		question = asked(&rig, to);
		assert_int_equal(question.c, s->handle);
		assert_int_equal(question.d, starts[i]);
		sent = question.rank;
		/* Of another lane, stream or count: not the answer. */
		question.d++;
		tell(&rig, answer_to(&question, UINT64_MAX));
		question.d--;
		question.c++;
		tell(&rig, answer_to(&question, UINT64_MAX));
		question.c--;
		assert_int_equal(asked(&rig, to).rank, sent);
		tell(&rig, answer_to(&question, UINT64_MAX));
		question = asked(&rig, to);
		assert_int_equal(question.rank, sent + 1);
		assert_int_equal(question.d, starts[i] + 256);
		sent = rig.core->rings[0]->retired;
		tell(&rig, answer_to(&question, 0));
		assert_int_equal(from->replays, 1);
		assert_int_equal(rig.core->rings[0]->retired - sent, 2);
		null_rig_close(&rig);
	}
}

/* Two streams on the lane, with the same counts: what is known of one says nothing of the other. */
static void streams_are_asked_for_apart(void **state)
{
	const struct epf_op other = { .op = EPF_OP_SIGNAL, .rank = PEER + 1, .value = 1 };
	struct null_rig rig;
	struct epf_lane *from, *to;
	struct epf_stream *s, *t;
	struct epf_msg question;

	open_rig(&rig, true);
	null_rig_hold(&rig, false);
	push(&rig, &other);
	for (unsigned i = 0; i < 8; i++)
		epf_core_step(rig.core);
	null_rig_hold(&rig, true);
	from = lane_of(&rig, false);
	to = lane_of(&rig, true);
	s = &rig.core->streams[rig.core->rings[0]->streams[PEER]];
	t = &rig.core->streams[rig.core->rings[0]->streams[PEER + 1]];
	t->lane = s->lane;
	s->count = t->count = 7;
	signal_one(&rig);
	push(&rig, &other);
	fail_and_fence(&rig, from);
	question = asked(&rig, to);
	assert_int_equal(question.c, s->handle);
	tell(&rig, answer_to(&question, UINT64_MAX));
	question = asked(&rig, to);
	assert_int_equal(question.c, t->handle);
	assert_int_equal(question.d, 7);
	tell(&rig, answer_to(&question, 0));
	assert_int_equal(from->replays, 1);
	null_rig_close(&rig);
}

/* That the peer has served a read does not bring its bytes here: it moves, whatever has arrived behind it. */
static void reads_move_in_any_case(void **state)
{
	const struct epf_op get = { .op = EPF_OP_GET, .rank = PEER, .length = BYTES };
	struct null_rig rig;
	struct epf_lane *from, *to;
	struct epf_msg question;

	open_rig(&rig, false);
	from = lane_of(&rig, false);
	to = lane_of(&rig, true);
	put(&rig);
	push(&rig, &get);
	signal_one(&rig);
	fail_and_fence(&rig, from);
	question = asked(&rig, to);
	tell(&rig, answer_to(&question, UINT64_MAX));
	assert_int_equal(from->replays, 1);
	assert_int_equal(null_rig_count(&rig, EPF_STAT_CORE_REPLAYS_SPARED), 2);
	null_rig_close(&rig);
}

static unsigned staged_of_kind(const struct epf_lane *lane, unsigned kind)
{
	unsigned n = 0;

	for (uint32_t at = 0; at <= lane->mask; at++)
		n += lane->wrs[at].op == EPF_WR_SEND && entry_message(&lane->wrs[at])->kind == kind;
	return n;
}

/* The peer is told that the lane is fenced here only when nothing on it can take effect any more. */
static void fenced_means_drained(void **state)
{
	struct null_rig rig;
	struct epf_lane *from, *to;

	open_rig(&rig, false);
	from = lane_of(&rig, false);
	to = lane_of(&rig, true);
	signal_one(&rig);
	null_lanes_drain = 0;
	epf_lane_error_cold(rig.core, from, EPF_S_RETRY_EXCEEDED);
	for (unsigned i = 0; i < 8; i++)
		epf_core_step(rig.core);
	assert_int_equal(staged_of_kind(to, EPF_MSG_LANE_FENCE), 1);
	assert_int_equal(staged_of_kind(to, EPF_MSG_LANE_FENCED), 0);
	/* That the peer has fenced its end is not enough either. */
	tell(&rig, (struct epf_msg){ .kind = EPF_MSG_LANE_FENCED, .c = from->index, .signal = 1 });
	assert_int_equal(staged_of_kind(to, EPF_MSG_STREAM_QUERY), 0);
	null_lanes_drain = 1;
	for (unsigned i = 0; i < 8; i++)
		epf_core_step(rig.core);
	assert_int_equal(staged_of_kind(to, EPF_MSG_LANE_FENCED), 1);
	assert_int_equal(staged_of_kind(to, EPF_MSG_STREAM_QUERY), 1);
	null_rig_close(&rig);
}

/* The count of a write's immediate has 16 bits; the question is for all 32 of it. */
static void counts_of_immediates_are_widened(void **state)
{
	static const uint32_t starts[] = { 0x1fffe, 0x2fffd, UINT32_MAX, 0 };

	for (unsigned i = 0; i < sizeof(starts) / sizeof(starts[0]); i++) {
		struct null_rig rig;
		struct epf_lane *from;

		open_rig(&rig, true);
		from = lane_of(&rig, false);
		rig.core->streams[rig.core->rings[0]->streams[PEER]].count = starts[i];
		for (unsigned n = 0; n < 4; n++)
			put(&rig);
		fail_and_fence(&rig, from);
		assert_int_equal(asked(&rig, lane_of(&rig, true)).d, starts[i]);
		null_rig_close(&rig);
	}
}

/* A lane whose other end does not answer is given up after peer-timeout, with its node; not before. */
static void a_recovery_has_a_deadline(void **state)
{
	struct null_rig rig;
	uint64_t timeout;

	open_rig(&rig, false);
	timeout = rig.core->limits.peer_timeout_ns;
	signal_one(&rig);
	epf_lane_error_cold(rig.core, lane_of(&rig, false), EPF_S_RETRY_EXCEEDED);
	for (unsigned i = 0; i < 19; i++) {
		rig.now_ns += timeout / 20;
		epf_core_step(rig.core);
		assert_int_equal(peer_node(&rig)->state, EPF_NODE_UP);
	}
	for (unsigned i = 0; i < 4; i++) {
		rig.now_ns += timeout / 20;
		epf_core_step(rig.core);
	}
	assert_int_equal(peer_node(&rig)->state, EPF_NODE_DOWN);
	null_rig_close(&rig);
}

/* Entries that move to a lane of another device get that device's keys: of data at both ends, and of control writes. */
static void entries_get_the_keys_of_their_device(void **state)
{
	struct null_rig rig;
	struct epf_lane *from, *to;
	uint32_t head;

	open_rig(&rig, false);
	from = &rig.core->lanes[NULL_LANES];
	to = &rig.core->lanes[NULL_LANES + 1];
	rig.core->streams[rig.core->rings[0]->streams[PEER]].lane = from->id;
	rig.core->caps.keys = 2;
	peer_node(&rig)->keys = 2;
	peer_node(&rig)->ctl_rkeys[1] = 99;
	rig.core->ranks[0].regions[0].mr.keys[1].lkey = 77;
	rig.core->peers[PEER].regions[0].rkeys[1] = 88;
	put(&rig);
	assert_int_equal(epf_ack_mark(rig.core, peer_node(&rig), 3, 3, 1), 1);
	epf_core_step(rig.core);
	assert_int_equal(from->head - from->tail, 2);
	head = to->head;
	assert_int_equal(fail_and_replay(&rig, from), 1);
	assert_int_equal(to->wrs[head & to->mask].lkey, 77);
	assert_int_equal(to->wrs[head & to->mask].rkey, 88);
	assert_int_equal(to->wrs[(head + 1) & to->mask].rkey, 99);
	null_rig_close(&rig);
}

/* What other recoveries of the node had sent may have been on the lane that fails: they say it again. */
static void other_recoveries_say_it_again(void **state)
{
	static const unsigned phases[] = { EPF_REC_FENCING, EPF_REC_OPENING, EPF_REC_CONNECTED };

	for (unsigned i = 0; i < sizeof(phases) / sizeof(phases[0]); i++) {
		struct null_rig rig;
		struct epf_lane_recovery *r;

		open_rig(&rig, false);
		r = &peer_node(&rig)->recovery->lanes[0];
		r->phase = (uint8_t)phases[i];
		r->asked = 1;
		epf_lane_error_cold(rig.core, &rig.core->lanes[NULL_LANES + 1],
				    EPF_S_RETRY_EXCEEDED);
		assert_int_equal(r->tell_fence, 1);
		assert_int_equal(r->tell_fenced, 1);
		assert_int_equal(r->tell_open, phases[i] != EPF_REC_FENCING);
		assert_int_equal(r->tell_opened, phases[i] == EPF_REC_CONNECTED);
		assert_int_equal(r->asked, 0);
		r->phase = EPF_REC_NONE;
		null_rig_close(&rig);
	}
}

/* A completion of what was not posted is the NIC's error: the first number behind the last, and one before the first. */
static void impossible_completions_are_ignored(void **state)
{
	struct null_rig rig;
	struct epf_lane *lane;
	uint32_t tail;

	open_rig(&rig, false);
	lane = lane_of(&rig, false);
	fill(&rig);
	tail = lane->tail;
	epf_complete(rig.core, lane, lane->posted);
	assert_int_equal(lane->tail, tail);
	epf_complete(rig.core, lane, tail - 1);
	assert_int_equal(lane->tail, tail);
	epf_complete(rig.core, lane, lane->posted - 1);
	assert_int_equal(lane->tail, lane->posted);
	null_rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(events_count_where_they_are_now),
		cmocka_unit_test(entries_move_as_they_are),
		cmocka_unit_test(bytes_and_messages_are_counted_once),
		cmocka_unit_test(a_replay_waits_for_receives),
		cmocka_unit_test(a_replay_waits_for_room),
		cmocka_unit_test(what_has_arrived_does_not_move),
		cmocka_unit_test(an_answer_reaches_so_far),
		cmocka_unit_test(streams_are_asked_for_apart),
		cmocka_unit_test(reads_move_in_any_case),
		cmocka_unit_test(fenced_means_drained),
		cmocka_unit_test(counts_of_immediates_are_widened),
		cmocka_unit_test(a_recovery_has_a_deadline),
		cmocka_unit_test(entries_get_the_keys_of_their_device),
		cmocka_unit_test(other_recoveries_say_it_again),
		cmocka_unit_test(impossible_completions_are_ignored),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
