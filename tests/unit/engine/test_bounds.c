/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bounds and rights of commands, end to end: every check with the last valid and the first invalid value, in the narrow and in the wide
 * form, through the general path and through runs of plain puts. What passes must be staged exactly as the command says, and lie inside the
 * regions (null_rig_inspect); what does not must be refused for the right reason, and nothing staged. What lies behind the end of a table looks valid
 * here, so that a check that is off by one lets it through instead of meeting zeros.
 */
#include "tests/unit/engine/null_kit.h"

#include "fabric/base/err.h"
#include "fabric/engine/lane_hot.h"

#include <errno.h>
#include <stdio.h>

#define R(x) EPF_R_CMD_##x

/* Counts used by the tables below: one less than exist, so that a valid entry follows the last. */
enum { REGIONS = NULL_REGIONS - 1, SIGNALS = NULL_SIGNALS - 1, PEER = 3 };

struct row {
	const char *what;
	struct epf_op op;
	unsigned reason; /* 0: passes */
};

#define PUT    .op = EPF_OP_PUT, .rank = PEER
#define PUTSIG .op = EPF_OP_PUT_SIGNAL, .rank = PEER, .add = 1
#define GET    .op = EPF_OP_GET, .rank = PEER
#define INLINE .op = EPF_OP_PUT_INLINE, .rank = PEER, .value = 7
#define ADD    .op = EPF_OP_ADD, .rank = PEER, .value = 7
#define SIGNAL .op = EPF_OP_SIGNAL, .rank = PEER, .value = 7
#define COUNT  .flags = EPF_F_COUNTED
#define FROM   .local_region
#define TO     .remote_region
#define AT     .local_offset
#define ON     .remote_offset
#define LEN    .length

/* clang-format off */
static const struct row rows[] = {
	{ "put: own end, last", { PUT, AT = NULL_BYTES - 64, LEN = 64 }, 0 },
	{ "put: own end, a granule further", { PUT, AT = NULL_BYTES - 48, LEN = 64 }, R(LOCAL_RANGE) },
	{ "put: own end, a byte further", { PUT, AT = NULL_BYTES - 63, LEN = 64 }, R(LOCAL_RANGE) },
	{ "put: own end, far", { PUT, AT = NULL_BYTES, LEN = 16 }, R(LOCAL_RANGE) },
	{ "put: own odd end, last byte", { PUT, FROM = NULL_ODD, AT = NULL_ODD_BYTES - 1, LEN = 1 }, 0 },
	{ "put: own odd end, a byte further", { PUT, FROM = NULL_ODD, AT = NULL_ODD_BYTES - 1, LEN = 2 }, R(LOCAL_RANGE) },
	{ "put: own odd end, last granule", { PUT, FROM = NULL_ODD, AT = 496, LEN = 16 }, 0 },
	{ "put: own odd end, a granule further", { PUT, FROM = NULL_ODD, AT = 512, LEN = 16 }, R(LOCAL_RANGE) },
	{ "put: the peer's end, last", { PUT, ON = NULL_BYTES - 64, LEN = 64 }, 0 },
	{ "put: the peer's end, a granule further", { PUT, ON = NULL_BYTES - 48, LEN = 64 }, R(REMOTE_RANGE) },
	{ "put: the peer's end, a byte further", { PUT, ON = NULL_BYTES - 63, LEN = 64 }, R(REMOTE_RANGE) },
	{ "put: the peer's odd end, last byte", { PUT, TO = NULL_ODD, ON = NULL_ODD_BYTES - 1, LEN = 1 }, 0 },
	{ "put: the peer's odd end, a granule further", { PUT, TO = NULL_ODD, ON = 512, LEN = 16 }, R(REMOTE_RANGE) },
	{ "put: all of a region", { PUT, LEN = NULL_BYTES }, 0 },
	{ "put: all and a byte", { PUT, LEN = NULL_BYTES + 1 }, R(LOCAL_RANGE) },
	{ "put: last own region", { PUT, FROM = REGIONS - 1, LEN = 16 }, 0 },
	{ "put: own region behind the last", { PUT, FROM = REGIONS, LEN = 16 }, R(LOCAL_REGION) },
	{ "put: last region of the peer", { PUT, TO = REGIONS - 1, LEN = 16 }, 0 },
	{ "put: the peer's region behind the last", { PUT, TO = REGIONS, LEN = 16 }, R(REMOTE_REGION) },
	{ "put: last rank", { PUT, LEN = 16 }, 0 },
	{ "put: rank behind the last", { .op = EPF_OP_PUT, .rank = NULL_WORLD, LEN = 16 }, R(RANK) },
	{ "put: to what may be written", { PUT, TO = NULL_WRITE_ONLY, LEN = 16 }, 0 },
	{ "put: to what may only be read", { PUT, TO = NULL_READ_ONLY, LEN = 16 }, R(ACCESS) },
	{ "put: bulk, to what may only be read", { PUT, .flags = EPF_F_BULK, TO = NULL_READ_ONLY, LEN = 16 }, R(ACCESS) },
	{ "put: counted, last group", { PUT, COUNT, .signal = SIGNALS - 1, LEN = 16 }, 0 },
	{ "put: counted, group behind the last", { PUT, COUNT, .signal = SIGNALS, LEN = 16 }, R(SIGNAL) },

	{ "put and signal: both ends, last", { PUTSIG, AT = NULL_BYTES - 16, ON = NULL_BYTES - 16, LEN = 16 }, 0 },
	{ "put and signal: own end further", { PUTSIG, AT = NULL_BYTES - 16, LEN = 32 }, R(LOCAL_RANGE) },
	{ "put and signal: the peer's end further", { PUTSIG, ON = NULL_BYTES - 16, LEN = 32 }, R(REMOTE_RANGE) },
	{ "put and signal: own region behind the last", { PUTSIG, FROM = REGIONS, LEN = 16 }, R(LOCAL_REGION) },
	{ "put and signal: region behind the last", { PUTSIG, TO = REGIONS, LEN = 16 }, R(REMOTE_REGION) },
	{ "put and signal: no right", { PUTSIG, TO = NULL_READ_ONLY, LEN = 16 }, R(ACCESS) },
	{ "put and signal: last signal", { PUTSIG, .signal = SIGNALS - 1, LEN = 16 }, 0 },
	{ "put and signal: signal behind the last", { PUTSIG, .signal = SIGNALS, LEN = 16 }, R(SIGNAL) },
	{ "put and signal: rank behind the last", { .op = EPF_OP_PUT_SIGNAL, .add = 1, .rank = NULL_WORLD, LEN = 16 }, R(RANK) },

	{ "get: both ends, last", { GET, AT = NULL_BYTES - 32, ON = NULL_BYTES - 32, LEN = 32 }, 0 },
	{ "get: own end further", { GET, AT = NULL_BYTES - 16, LEN = 32 }, R(LOCAL_RANGE) },
	{ "get: own end a byte further", { GET, AT = NULL_BYTES - 31, LEN = 32 }, R(LOCAL_RANGE) },
	{ "get: the peer's end further", { GET, ON = NULL_BYTES - 16, LEN = 32 }, R(REMOTE_RANGE) },
	{ "get: the peer's end a byte further", { GET, ON = NULL_BYTES - 31, LEN = 32 }, R(REMOTE_RANGE) },
	{ "get: own region behind the last", { GET, FROM = REGIONS, LEN = 16 }, R(LOCAL_REGION) },
	{ "get: region behind the last", { GET, TO = REGIONS, LEN = 16 }, R(REMOTE_REGION) },
	{ "get: what may be read", { GET, TO = NULL_READ_ONLY, LEN = 16 }, 0 },
	{ "get: what may only be written", { GET, TO = NULL_WRITE_ONLY, LEN = 16 }, R(ACCESS) },
	{ "get: rank behind the last", { .op = EPF_OP_GET, .rank = NULL_WORLD, LEN = 16 }, R(RANK) },

	{ "inline: last word", { INLINE, ON = NULL_BYTES - 8, LEN = 8 }, 0 },
	{ "inline: over the end", { INLINE, ON = NULL_BYTES - 7, LEN = 8 }, R(REMOTE_RANGE) },
	{ "inline: last byte of an odd end", { INLINE, TO = NULL_ODD, ON = NULL_ODD_BYTES - 1, LEN = 1 }, 0 },
	{ "inline: behind an odd end", { INLINE, TO = NULL_ODD, ON = NULL_ODD_BYTES, LEN = 1 }, R(REMOTE_RANGE) },
	{ "inline: nine bytes", { INLINE, LEN = 9 }, R(LENGTH) },
	{ "inline: region behind the last", { INLINE, TO = REGIONS, LEN = 8 }, R(REMOTE_REGION) },
	{ "inline: no right", { INLINE, TO = NULL_READ_ONLY, LEN = 8 }, R(ACCESS) },
	{ "inline: rank behind the last", { .op = EPF_OP_PUT_INLINE, .rank = NULL_WORLD, LEN = 8 }, R(RANK) },

	{ "add: last word", { ADD, ON = NULL_BYTES - 8, LEN = 8 }, 0 },
	{ "add: word behind the last", { ADD, ON = NULL_BYTES, LEN = 8 }, R(REMOTE_RANGE) },
	{ "add: last whole word of an odd region", { ADD, TO = NULL_ODD, ON = 504, LEN = 8 }, 0 },
	{ "add: half a word at an odd end", { ADD, TO = NULL_ODD, ON = 512, LEN = 8 }, R(REMOTE_RANGE) },
	{ "add: one off a word", { ADD, ON = 9, LEN = 8 }, R(ALIGN) },
	{ "add: two off a word", { ADD, ON = 10, LEN = 8 }, R(ALIGN) },
	{ "add: four off a word", { ADD, ON = 12, LEN = 8 }, R(ALIGN) },
	{ "add: seven bytes", { ADD, LEN = 7 }, R(LENGTH) },
	{ "add: nine bytes", { ADD, LEN = 9 }, R(LENGTH) },
	{ "add: region behind the last", { ADD, TO = REGIONS, LEN = 8 }, R(REMOTE_REGION) },
	{ "add: no right", { ADD, TO = NULL_READ_ONLY, LEN = 8 }, R(ACCESS) },
	{ "add: rank behind the last", { .op = EPF_OP_ADD, .rank = NULL_WORLD, LEN = 8 }, R(RANK) },

	{ "signal: last", { SIGNAL, .signal = SIGNALS - 1 }, 0 },
	{ "signal: behind the last", { SIGNAL, .signal = SIGNALS }, R(SIGNAL) },
	{ "signal: rank behind the last", { .op = EPF_OP_SIGNAL, .rank = NULL_WORLD }, R(RANK) },
	{ "signal: counted, behind the last", { SIGNAL, COUNT, .count = 1, .signal = SIGNALS }, R(SIGNAL) },
	{ "signal: counted, of no puts", { SIGNAL, COUNT, .signal = 1 }, R(COUNT) },
};

/* clang-format on */

static void open_rig(struct null_rig *rig)
{
	struct epf_region_local *own;

	null_open(rig);
	own = rig->core->ranks[0].regions;
	/* What follows the last region looks like one. */
	own[REGIONS].access = EPF_MR_REMOTE_WRITE;
	rig->core->ranks[0].n_regions = REGIONS;
	for (uint32_t r = 0; r < NULL_WORLD; r++) {
		struct epf_peer *peer = &rig->core->peers[r];

		peer->n_signals = SIGNALS;
		peer->n_regions = REGIONS;
		peer->regions[REGIONS].bytes = NULL_BYTES;
		peer->regions[REGIONS].state = EPF_REGION_LIVE;
		peer->regions[REGIONS].access = EPF_MR_REMOTE_WRITE | EPF_MR_REMOTE_READ;
	}
}

static void expect(struct null_rig *rig, const struct row *row, bool wide)
{
	uint32_t index = row->reason ? row->reason - EPF_CMD_REASON_FIRST : 0;
	uint64_t refused = rig->core->refusals[index], failed = rig->rank[0].shm->done.failed;
	uint64_t retired = rig->rank[0].shm->done.retired;
	uint32_t before = null_staged(rig);

	null_push(&rig->rank[0], &row->op, wide);
	null_drain(rig);
	if (rig->rank[0].shm->done.retired != retired + 1)
		fail_msg("%s (%s): not retired", row->what, wide ? "wide" : "narrow");
	if (rig->rank[0].shm->done.failed - failed != (row->reason != 0))
		fail_msg("%s (%s): %s", row->what, wide ? "wide" : "narrow",
			 row->reason ? "not refused" : "refused");
	if (row->reason && rig->core->refusals[index] != refused + 1)
		fail_msg("%s (%s): another reason", row->what, wide ? "wide" : "narrow");
	if ((null_staged(rig) != before) == (row->reason != 0))
		fail_msg("%s (%s): %u entries staged", row->what, wide ? "wide" : "narrow",
			 null_staged(rig) - before);
}

static void every_check_at_its_edge(void **state)
{
	struct null_rig rig;

	open_rig(&rig);
	null_warm_up(&rig, PEER);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		if (epf_op_is_narrow(&rows[i].op))
			expect(&rig, &rows[i], false);
		expect(&rig, &rows[i], true);
	}
	null_rig_close(&rig);
}

static unsigned run(struct null_rig *rig)
{
	struct epf_ring_state *ring = rig->core->rings[rig->rank[0].ring_id];
	struct epf_put_run out;

	ring->last_step = rig->core->steps - 1;
	ring->deficit = 0;
	return epf_put_run(rig->core, ring, 8, 1 << 20, &out);
}

/* The same for a run of plain puts: it takes what the general path takes, and leaves the rest to it. */
static void a_run_of_puts_at_every_edge(void **state)
{
	struct null_rig rig;

	open_rig(&rig);
	null_warm_up(&rig, PEER);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		const struct row *row = &rows[i];
		const char *wrong;
		unsigned n;

		if (row->op.op != EPF_OP_PUT || (row->op.flags & EPF_F_COUNTED) ||
		    !epf_op_is_narrow(&row->op))
			continue;
		/* Alone, and behind one that has begun the run. */
		for (unsigned before = 0; before < 2; before++) {
			struct epf_op first = row->op;

			first.local_offset = first.remote_offset = 0;
			first.length = 16;
			if (before)
				null_push(&rig.rank[0], &first, false);
			null_push(&rig.rank[0], &row->op, false);
			n = run(&rig);
			wrong = null_rig_inspect(&rig);
			if (wrong)
				fail_msg("%s: %s", row->what, wrong);
			if (!row->reason && n != before + 1)
				fail_msg("%s: %u staged in a run", row->what, n);
			if (row->reason && n > before)
				fail_msg("%s: staged in a run", row->what);
			null_drain(&rig);
		}
	}
	null_rig_close(&rig);
}

/* A put goes where it says, with the keys of the device that its lane is on: in a run, and in both forms. */
static void a_put_goes_where_it_says(void **state)
{
	const struct epf_op op = { PUT, FROM = 1, AT = NULL_BYTES - 32, TO = 2, ON = 16, LEN = 32 };
	struct null_rig rig;
	struct epf_stream *s;

	open_rig(&rig);
	null_warm_up(&rig, PEER);
	s = &rig.core->streams[rig.core->rings[0]->streams[PEER]];
	rig.core->ranks[0].regions[1].mr.keys[1].lkey = 77;
	rig.core->peers[PEER].regions[2].rkeys[1] = 88;
	for (unsigned i = 0; i < 6; i++) {
		const struct epf_lane *lane = &rig.core->lanes[NULL_LANES + i % 2];
		const struct epf_wr *wr;

		s->lane = lane->id;
		null_push(&rig.rank[0], &op, i >= 4);
		if (i < 2)
			assert_int_equal(run(&rig), 1);
		else
			epf_core_step(rig.core);
		wr = &lane->wrs[(lane->head - 1) & lane->mask];
		assert_int_equal(wr->laddr, (uintptr_t)rig.rank[0].memory[1] + NULL_BYTES - 32);
		assert_int_equal(wr->raddr, null_rig_raddr(PEER, 2) + 16);
		assert_int_equal(wr->rkey, lane->index ? 88 : null_rig_rkey(PEER, 2));
		assert_int_equal(wr->lkey, lane->index ? 77 : rig.rank[0].lkeys[1]);
		assert_int_equal(wr->len, 32);
		assert_int_equal(wr->op, EPF_WR_WRITE);
	}
	null_rig_close(&rig);
}

/* What is longer than the NIC takes at once is cut, each piece behind the other at both ends; a run leaves it to that. */
static void long_transfers_are_cut(void **state)
{
	static const struct epf_op ops[] = {
		{ PUT, AT = 16, ON = 32, LEN = 80 },
		{ GET, AT = 16, ON = 32, LEN = 80 },
		{ PUTSIG, .flags = EPF_F_FENCE, AT = 16, ON = 32, LEN = 80 },
	};
	struct null_rig rig;

	open_rig(&rig);
	null_warm_up(&rig, PEER);
	rig.core->caps.max_msg_bytes = 32;
	for (unsigned i = 0; i < 6; i++) {
		const struct epf_lane *lane = null_lane(&rig, PEER);
		uint32_t head = lane->head;

		null_push(&rig.rank[0], &ops[i / 2], i & 1);
		if (i == 0)
			assert_int_equal(run(&rig), 0);
		null_drain(&rig);
		for (uint32_t piece = 0; piece < 3; piece++) {
			const struct epf_wr *wr = &lane->wrs[(head + piece) & lane->mask];

			assert_int_equal(wr->len, piece < 2 ? 32 : 16);
			assert_int_equal(wr->laddr,
					 (uintptr_t)rig.rank[0].memory[0] + 16 + 32 * piece);
			assert_int_equal(wr->raddr, null_rig_raddr(PEER, 0) + 32 + 32 * piece);
		}
		assert_int_equal(lane->head - head, i < 4 ? 3 : 4);
		assert_int_equal(rig.rank[0].shm->done.retired, rig.rank[0].ring.pushed);
	}
	null_push(&rig.rank[0], &(struct epf_op){ PUT, LEN = 32 },
		  false); /* the longest that is not */
	assert_int_equal(run(&rig), 1);
	null_rig_close(&rig);
}

/* The record of a failure names the first command that failed, by its number in the ring, and the rank. */
static void a_failure_is_recorded_where_it_was(void **state)
{
	const struct epf_op good = { PUT, LEN = 16 };
	const struct epf_op bad = { PUT, .local_region = REGIONS, LEN = 16 };
	struct null_rig rig;

	open_rig(&rig);
	null_warm_up(&rig, PEER);
	null_push(&rig.rank[0], &good, false);
	null_push(&rig.rank[0], &good, true);
	null_push(&rig.rank[0], &bad, false);
	null_push(&rig.rank[0], &good, false);
	null_push(&rig.rank[0], &bad, false);
	null_drain(&rig);
	assert_int_equal(rig.rank[0].shm->done.retired, 6);
	assert_int_equal(rig.rank[0].shm->done.failed, 2);
	assert_int_equal(rig.rank[0].shm->done.error_index, 4);
	assert_int_equal(rig.rank[0].shm->done.error_rank, PEER);
	assert_int_equal(rig.rank[0].shm->done.error_status, EPF_S_REFUSED);
	assert_int_equal(rig.rank[0].shm->done.error_reason, R(LOCAL_REGION));
	null_rig_close(&rig);
}

/* An addition says where it goes, and a control write of a lane goes to that lane's word. */
static void messages_and_words_go_where_they_say(void **state)
{
	const struct epf_op add = { ADD, TO = NULL_ODD, ON = 24, LEN = 8 };
	struct null_rig rig;

	open_rig(&rig);
	null_warm_up(&rig, PEER);
	null_push(&rig.rank[0], &add, true);
	null_drain(&rig);
	for (uint32_t l = NULL_LANES; l < 2 * NULL_LANES; l++) {
		struct epf_lane *lane = &rig.core->lanes[l];
		const struct epf_wr *wr = &lane->wrs[(lane->head - 1) & lane->mask];

		if (rig.core->streams[rig.core->rings[0]->streams[PEER]].lane == l) {
			const struct epf_msg *m = entry_message(wr);

			assert_int_equal(m->kind, EPF_MSG_ADD);
			assert_int_equal(m->rank, PEER);
			assert_int_equal(m->signal, NULL_ODD);
			assert_int_equal(m->a, 24);
			assert_int_equal(m->value, 7);
		}
		assert_int_equal(epf_nudge(rig.core, lane), 1);
		wr = &lane->wrs[(lane->head - 1) & lane->mask];
		assert_int_equal(wr->raddr, rig.core->nodes[1].ctl_raddr + 8 * lane->index);
		assert_null(null_rig_inspect(&rig));
	}
	null_drain(&rig);
	null_rig_close(&rig);
}

/* The regions of one rank are not those of the other rank of this engine. */
static void each_rank_has_its_own_regions(void **state)
{
	const struct epf_op op = { PUT, LEN = 16 };
	struct null_rig rig;

	open_rig(&rig);
	null_warm_up(&rig, PEER);
	rig.core->ranks[0].n_regions = 0;
	null_push(&rig.rank[0], &op, false);
	null_push(&rig.rank[0], &op, true);
	null_push(&rig.rank[1], &op, false);
	null_drain(&rig);
	assert_int_equal(rig.rank[0].shm->done.failed, 2);
	assert_int_equal(rig.rank[1].shm->done.failed, 0);
	assert_int_equal(rig.rank[1].shm->done.retired, 1);
	null_rig_close(&rig);
}

/* A withdrawn region takes nothing, from its end or its beginning, at either side. */
static void a_withdrawn_region_takes_nothing(void **state)
{
	const struct epf_op op = { PUT, FROM = 1, TO = 2, LEN = 16 };
	struct null_rig rig;
	uint32_t before;

	open_rig(&rig);
	null_warm_up(&rig, PEER);
	assert_int_equal(epf_core_revoke_begin(rig.core, 0, REGIONS), -ENOENT);
	assert_int_equal(epf_core_revoke_begin(rig.core, 0, REGIONS - 1), 0);
	assert_int_equal(epf_core_revoke_begin(rig.core, 0, REGIONS - 1), 0); /* under way */
	assert_int_equal(epf_core_revoke_begin(rig.core, 0, 1), 0);
	for (unsigned i = 0; i < 20; i++)
		epf_core_step(rig.core);
	before = null_staged(&rig);
	null_push(&rig.rank[0], &op, false);
	null_push(&rig.rank[0], &op, true);
	null_drain(&rig);
	assert_int_equal(rig.rank[0].shm->done.failed, 2);
	assert_int_equal(rig.rank[0].shm->done.error_status, EPF_S_REVOKED);
	assert_int_equal(null_staged(&rig), before);
	null_rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_check_at_its_edge),
		cmocka_unit_test(a_run_of_puts_at_every_edge),
		cmocka_unit_test(a_put_goes_where_it_says),
		cmocka_unit_test(long_transfers_are_cut),
		cmocka_unit_test(a_failure_is_recorded_where_it_was),
		cmocka_unit_test(messages_and_words_go_where_they_say),
		cmocka_unit_test(each_rank_has_its_own_regions),
		cmocka_unit_test(a_withdrawn_region_takes_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
