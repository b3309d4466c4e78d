/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bounds and rights of what a peer engine sends: signals, additions, definitions of notify handles, immediates, and the messages between
 * engines, each with the last valid and the first invalid value. A peer engine runs on another machine and may be broken or hostile:
 * what it may not do is counted as refused and changes nothing. What lies behind the end of a table looks valid here, so that a check
 * that is off by one lets it through.
 */
#include "tests/unit/engine/null_rig.h"

#include "fabric/base/err.h"
#include "fabric/engine/lane_hot.h"
#include "fabric/engine/losses.h"
#include "fabric/engine/recovery.h"
#include "tests/unit/engine/grow_all.h"

#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { REGIONS = NULL_REGIONS - 1, SIGNALS = NULL_SIGNALS - 1, HANDLE = 5, OTHER = 6 };

/* Sender of the signals and additions: rank 2, so 1 + 2. */
enum { SENDER = 2 };

static struct epf_node *peer_node(struct null_rig *rig)
{
	return &rig->core->nodes[1];
}

static struct epf_rx_stream *rx(struct null_rig *rig, uint32_t handle)
{
	return epf_rx(rig->core, peer_node(rig), handle);
}

static uint64_t refused(const struct null_rig *rig)
{
	return null_rig_count(rig, EPF_STAT_CORE_ARRIVALS_REFUSED);
}

static uint64_t duplicates(const struct null_rig *rig)
{
	return null_rig_count(rig, EPF_STAT_CORE_DUPLICATES_DROPPED);
}

static void open_rig(struct null_rig *rig)
{
	memset(rig, 0, sizeof(*rig));
	null_rig_open(rig, false);
	for (uint32_t r = 0; r < NULL_LOCAL; r++) {
		struct epf_rank_state *rank = &rig->core->ranks[r];

		rank->n_signals = SIGNALS;
		rank->n_regions = REGIONS;
		rank->regions[REGIONS].access = EPF_MR_REMOTE_WRITE;
	}
	for (uint32_t r = 0; r < NULL_WORLD; r++)
		rig->core->peers[r].n_regions = REGIONS;
}

/* Hands over a message of `len` bytes on a lane of the peer's. */
static void arrive(struct null_rig *rig, const struct epf_msg *m, uint32_t len)
{
	struct epf_wc wc = { .op = EPF_WC_RECV, .lane = NULL_LANES, .len = len, .msg = m };

	epf_arrive(rig->core, &wc);
}

/* Sends the next message of stream HANDLE. Returns 1 if it was refused. */
static int send(struct null_rig *rig, struct epf_msg m)
{
	uint64_t before = refused(rig);

	m.handle = HANDLE;
	m.count = rx(rig, HANDLE)->base;
	arrive(rig, &m, sizeof(m));
	assert_in_range(refused(rig) - before, 0, 1);
	return refused(rig) != before;
}

static int send_imm(struct null_rig *rig, uint32_t imm)
{
	struct epf_wc wc = { .op = EPF_WC_RECV_IMM, .lane = NULL_LANES, .imm = imm };
	uint64_t before = refused(rig);

	epf_arrive(rig->core, &wc);
	return refused(rig) != before;
}

static struct epf_msg signal_to(uint32_t rank, uint32_t signal)
{
	return (struct epf_msg){
		.kind = EPF_MSG_SIGNAL, .rank = rank, .signal = signal, .value = 3, .c = SENDER + 1
	};
}

static struct epf_msg add_to(uint32_t rank, uint32_t region, uint64_t offset)
{
	return (struct epf_msg){
		.kind = EPF_MSG_ADD, .rank = rank, .signal = region, .a = offset, .value = 3
	};
}

static uint64_t value_of(const struct null_rig *rig, uint32_t rank, uint32_t signal)
{
	return rig->rank[rank].signals[signal].value;
}

static void signals_at_their_edges(void **state)
{
	struct null_rig rig;

	open_rig(&rig);
	assert_false(send(&rig, signal_to(0, SIGNALS - 1)));
	assert_int_equal(value_of(&rig, 0, SIGNALS - 1), 3);
	assert_false(send(&rig, signal_to(1, 0)));
	assert_int_equal(value_of(&rig, 1, 0), 3);
	assert_true(send(&rig, signal_to(0, SIGNALS)));
	assert_int_equal(value_of(&rig, 0, SIGNALS), 0);
	assert_true(send(&rig, signal_to(2, 0))); /* lives elsewhere */
	assert_true(send(&rig, signal_to(UINT32_MAX, 0)));
	rig.core->world = 1; /* rank 1 is behind the last now, and still looks like one of ours */
	assert_false(send(&rig, signal_to(0, 0)));
	assert_true(send(&rig, signal_to(1, 0)));
	assert_int_equal(value_of(&rig, 1, 0), 3);
	rig.core->world = NULL_WORLD;
	null_rig_close(&rig);
}

/* Statistics count what each rank has sent: the last rank, not the one behind it. */
static void senders_at_their_edges(void **state)
{
	struct null_rig rig;
	struct epf_msg m = signal_to(0, 0);

	open_rig(&rig);
	rig.core->world = 3;
	m.c = 3;
	assert_false(send(&rig, m));
	assert_int_equal(rig.core->peers[2].signals_applied, 1);
	m.c = 4;
	assert_false(send(&rig, m));
	assert_int_equal(rig.core->peers[3].signals_applied, 0);
	m.c = 0;
	assert_false(send(&rig, m));
	rig.core->world = NULL_WORLD;
	assert_int_equal(value_of(&rig, 0, 0), 9);
	null_rig_close(&rig);
}

static uint64_t word_of(const struct null_rig *rig, uint32_t rank, uint32_t region, uint64_t offset)
{
	uint64_t word;

	memcpy(&word, rig->rank[rank].memory[region] + offset, sizeof(word));
	return word;
}

/* Nothing but the words that the test added to has changed. */
static void assert_sum(const struct null_rig *rig, uint32_t rank, uint64_t sum)
{
	uint64_t all = 0;

	for (uint32_t i = 0; i < NULL_REGIONS; i++)
		for (uint32_t b = 0; b < null_regions[i].bytes; b++)
			all += rig->rank[rank].memory[i][b];
	assert_int_equal(all, sum);
}

static void additions_at_their_edges(void **state)
{
	struct null_rig rig;

	open_rig(&rig);
	assert_false(send(&rig, add_to(0, NULL_BOTH, NULL_BYTES - 8)));
	assert_int_equal(word_of(&rig, 0, NULL_BOTH, NULL_BYTES - 8), 3);
	assert_true(send(&rig, add_to(0, NULL_BOTH, NULL_BYTES)));
	assert_true(send(&rig, add_to(0, NULL_BOTH, NULL_BYTES + 8)));
	assert_true(send(&rig, add_to(0, NULL_BOTH, UINT64_MAX - 7)));
	for (uint64_t off = 1; off < 8; off++)
		assert_true(send(&rig, add_to(0, NULL_BOTH, 64 + off)));
	/* The last whole word of an odd region, and the half behind it. */
	assert_false(send(&rig, add_to(0, NULL_ODD, NULL_ODD_BYTES - 12)));
	assert_int_equal(word_of(&rig, 0, NULL_ODD, NULL_ODD_BYTES - 12), 3);
	assert_true(send(&rig, add_to(0, NULL_ODD, NULL_ODD_BYTES - 4)));
	assert_false(send(&rig, add_to(0, NULL_WRITE_ONLY, 0)));
	assert_true(send(&rig, add_to(0, NULL_READ_ONLY, 0)));
	assert_true(send(&rig, add_to(0, REGIONS, 0))); /* behind the last */
	assert_true(send(&rig, add_to(0, UINT32_MAX, 0)));
	assert_false(send(&rig, add_to(0, REGIONS - 1, 0)));
	assert_sum(&rig, 0, 12);
	assert_true(send(&rig, add_to(3, NULL_BOTH, 0)));
	rig.core->world = 1;
	assert_true(send(&rig, add_to(1, NULL_BOTH, 0)));
	rig.core->world = NULL_WORLD;
	assert_false(send(&rig, add_to(1, NULL_BOTH, 0)));
	assert_sum(&rig, 1, 3);
	null_rig_close(&rig);
}

/* A rank that exports nothing is not added to. */
static void private_memory_is_not_added_to(void **state)
{
	struct null_rig rig;

	open_rig(&rig);
	rig.core->ranks[0].n_regions = NULL_REGIONS;
	rig.core->ranks[0].regions[NULL_PRIVATE].access = 0;
	assert_true(send(&rig, add_to(0, NULL_PRIVATE, 0)));
	rig.core->ranks[0].n_regions = REGIONS;
	assert_int_equal(epf_core_revoke_begin(rig.core, 0, NULL_BOTH), 0);
	assert_true(send(&rig, add_to(0, NULL_BOTH, 0)));
	assert_sum(&rig, 0, 0);
	null_rig_close(&rig);
}

/* A rank that has gone takes nothing; what arrives for it is not the peer's fault. */
static void nothing_reaches_a_rank_that_has_gone(void **state)
{
	struct null_rig rig;

	open_rig(&rig);
	epf_core_rank_gone(rig.core, 0, 0);
	assert_false(send(&rig, signal_to(0, 0)));
	assert_false(send(&rig, add_to(0, NULL_BOTH, 0)));
	assert_int_equal(null_rig_count(&rig, EPF_STAT_CORE_ARRIVALS_FOR_GONE), 2);
	assert_int_equal(value_of(&rig, 0, 0), 0);
	assert_sum(&rig, 0, 0);
	null_rig_close(&rig);
}

static struct epf_msg define(uint32_t d, uint32_t c, uint32_t signal, uint64_t value)
{
	return (struct epf_msg){ .kind = EPF_MSG_NOTIFY,
				 .rank = 0,
				 .signal = signal,
				 .value = value,
				 .a = SENDER + 1,
				 .c = c,
				 .d = d };
}

static void definitions_at_their_edges(void **state)
{
	struct null_rig rig;

	open_rig(&rig);
	limit_streams(peer_node(&rig), NULL_STREAMS - 1); /* one handle more is allocated */
	assert_true(send(&rig, define(NULL_STREAMS - 1, OTHER, 0, 1)));
	assert_int_equal(peer_node(&rig)->notify_in[NULL_STREAMS - 1].defined, 0);
	assert_true(send(&rig, define(0, NULL_STREAMS - 1, 0, 1)));
	assert_true(send(&rig, define(0, OTHER, 0, EPF_WIDE_ADD)));
	assert_int_equal(peer_node(&rig)->notify_in[0].defined, 0);
	assert_false(send(&rig, define(NULL_STREAMS - 2, NULL_STREAMS - 2, 1, EPF_WIDE_ADD - 1)));
	assert_false(send_imm(&rig, epf_imm(EPF_IMM_NOTIFY, NULL_STREAMS - 2, 0)));
	assert_int_equal(value_of(&rig, 0, 1), EPF_WIDE_ADD - 1);
	assert_int_equal(rx(&rig, NULL_STREAMS - 2)->base, 1);
	/* Again: a duplicate. */
	assert_false(send_imm(&rig, epf_imm(EPF_IMM_NOTIFY, NULL_STREAMS - 2, 0)));
	assert_int_equal(duplicates(&rig), 1);
	assert_int_equal(value_of(&rig, 0, 1), EPF_WIDE_ADD - 1);
	/* The signal itself is checked when it is raised. */
	assert_false(send(&rig, define(1, OTHER, SIGNALS, 1)));
	assert_true(send_imm(&rig, epf_imm(EPF_IMM_NOTIFY, 1, 0)));
	assert_int_equal(value_of(&rig, 0, SIGNALS), 0);
	/* Handles that nobody defined, and one that lies behind the last although it looks defined. */
	assert_true(send_imm(&rig, epf_imm(EPF_IMM_NOTIFY, 2, 0)));
	peer_node(&rig)->notify_in[NULL_STREAMS - 1] =
		(struct epf_notify_in){ .signal = 2, .add = 1, .stream = OTHER, .defined = 1 };
	assert_true(send_imm(&rig, epf_imm(EPF_IMM_NOTIFY, NULL_STREAMS - 1, 0)));
	assert_int_equal(value_of(&rig, 0, 2), 0);
	null_rig_close(&rig);
}

/* A flush names the word in which it wants its acknowledgement: the last one is written there, one more is refused. */
static void flushes_at_their_edges(void **state)
{
	struct epf_msg m = { .kind = EPF_MSG_FLUSH };
	struct null_rig rig;

	open_rig(&rig);
	m.d = rig.core->n_acks;
	assert_true(send(&rig, m));
	assert_null(peer_node(&rig)->acks);
	m.d = rig.core->n_acks - 1;
	assert_false(send(&rig, m));
	assert_non_null(peer_node(&rig)->acks);
	assert_int_equal(peer_node(&rig)->acks[m.d].value >> 32 & 1, 1);
	null_rig_close(&rig);
}

static void immediates_at_their_edges(void **state)
{
	struct null_rig rig;

	open_rig(&rig);
	limit_streams(peer_node(&rig), NULL_STREAMS - 1);
	for (unsigned kind = 0; kind < 8; kind++)
		if (kind != EPF_IMM_STREAM)
			assert_true(send_imm(&rig, epf_imm(kind, OTHER, 0)));
	assert_false(send_imm(&rig, epf_imm(EPF_IMM_STREAM, NULL_STREAMS - 2, 0)));
	assert_int_equal(rx(&rig, NULL_STREAMS - 2)->base, 1);
	assert_true(send_imm(&rig, epf_imm(EPF_IMM_STREAM, NULL_STREAMS - 1, 0)));
	assert_int_equal(rx(&rig, NULL_STREAMS - 1)->base, 0);
	null_rig_close(&rig);
}

static void messages_at_their_edges(void **state)
{
	struct null_rig rig;
	struct epf_msg m = signal_to(0, 0);
	unsigned char longer[sizeof(m) + 1] = { 0 };

	open_rig(&rig);
	m.handle = HANDLE;
	memcpy(longer, &m, sizeof(m));
	arrive(&rig, &m, sizeof(m) - 1);
	assert_int_equal(refused(&rig), 1);
	arrive(&rig, (struct epf_msg *)(void *)longer, sizeof(longer));
	assert_int_equal(refused(&rig), 2);
	limit_streams(peer_node(&rig), NULL_STREAMS - 1);
	m.handle = NULL_STREAMS - 1;
	arrive(&rig, &m, sizeof(m));
	assert_int_equal(refused(&rig), 3);
	assert_int_equal(value_of(&rig, 0, 0), 0);
	m.handle = NULL_STREAMS - 2;
	arrive(&rig, &m, sizeof(m));
	assert_int_equal(refused(&rig), 3);
	assert_int_equal(value_of(&rig, 0, 0), 3);
	null_rig_close(&rig);
}

/* The window of a stream, also where counts wrap: first and last count in it, the one behind it, and what has arrived before. */
static void counts_at_the_edges_of_the_window(void **state)
{
	static const uint32_t starts[] = { 0, 1, 0xffff, 0x10000, UINT32_MAX, UINT32_MAX - 10 };
	struct null_rig rig;

	for (unsigned i = 0; i < sizeof(starts) / sizeof(starts[0]); i++) {
		uint32_t base = starts[i];
		uint64_t dropped;

		open_rig(&rig);
		rx(&rig, HANDLE)->base = base;
		dropped = duplicates(&rig);
		assert_true(send_imm(&rig, epf_imm(EPF_IMM_STREAM, HANDLE, base + NULL_WINDOW)));
		assert_false(
			send_imm(&rig, epf_imm(EPF_IMM_STREAM, HANDLE, base + NULL_WINDOW - 1)));
		assert_int_equal(rx(&rig, HANDLE)->ahead, 1);
		assert_int_equal(duplicates(&rig), dropped);
		assert_false(
			send_imm(&rig, epf_imm(EPF_IMM_STREAM, HANDLE, base + NULL_WINDOW - 1)));
		assert_int_equal(duplicates(&rig), dropped + 1);
		assert_false(send_imm(&rig, epf_imm(EPF_IMM_STREAM, HANDLE, base - 1)));
		assert_int_equal(duplicates(&rig), dropped + 2);
		assert_int_equal(rx(&rig, HANDLE)->base, base);
		/* The farthest that 16 bits reach behind. */
		assert_false(send_imm(&rig, epf_imm(EPF_IMM_STREAM, HANDLE, base - 0x8000)));
		assert_int_equal(duplicates(&rig), dropped + 3);
		for (uint32_t c = 0; c < NULL_WINDOW - 1; c++)
			assert_false(send_imm(&rig, epf_imm(EPF_IMM_STREAM, HANDLE, base + c)));
		assert_int_equal(rx(&rig, HANDLE)->base, base + NULL_WINDOW);
		assert_int_equal(rx(&rig, HANDLE)->ahead, 0);
		assert_int_equal(duplicates(&rig), dropped + 3);
		null_rig_close(&rig);
	}
}

/* A signal that came early takes effect when what was before it is there, exactly once, and its place in the pool is free again. */
static void a_signal_waits_for_what_it_covers(void **state)
{
	struct epf_msg m = signal_to(0, 0);
	struct null_rig rig;

	open_rig(&rig);
	for (unsigned round = 0; round < 2000; round++) {
		m.handle = HANDLE;
		m.count = rx(&rig, HANDLE)->base + 2;
		arrive(&rig, &m, sizeof(m));
		arrive(&rig, &m, sizeof(m)); /* a duplicate while it waits */
		assert_int_equal(value_of(&rig, 0, 0), 3 * round);
		m.count--;
		send_imm(&rig, epf_imm(EPF_IMM_STREAM, HANDLE, m.count));
		assert_int_equal(value_of(&rig, 0, 0), 3 * round);
		m.count--;
		send_imm(&rig, epf_imm(EPF_IMM_STREAM, HANDLE, m.count));
		assert_int_equal(value_of(&rig, 0, 0), 3 * (round + 1));
	}
	assert_int_equal(refused(&rig), 0);
	assert_int_equal(duplicates(&rig), 2000);
	null_rig_close(&rig);
}

/* Several signals wait at the same time, in several streams, and one comes last of all: each takes effect once, none for another. */
static void many_signals_wait(void **state)
{
	struct null_rig rig;

	open_rig(&rig);
	for (uint32_t h = 8; h < 16; h++)
		for (uint32_t c = 1; c < 4; c++) {
			struct epf_msg m = signal_to(0, h - 8);

			m.handle = (uint16_t)h;
			m.count = c;
			m.value = UINT64_C(1) << 8 * c;
			arrive(&rig, &m, sizeof(m));
		}
	for (uint32_t h = 8; h < 16; h++) {
		struct epf_msg first = signal_to(0, h - 8);

		assert_int_equal(value_of(&rig, 0, h - 8), 0);
		first.handle = (uint16_t)h;
		first.value = 1;
		arrive(&rig, &first, sizeof(first));
		assert_int_equal(value_of(&rig, 0, h - 8), 0x01010101);
	}
	assert_int_equal(refused(&rig), 0);
	null_rig_close(&rig);
}

static void withdrawals_at_their_edges(void **state)
{
	struct epf_msg m = { .kind = EPF_MSG_REVOKE, .rank = 2 };
	struct null_rig rig;

	open_rig(&rig);
	m.signal = EPF_MAX_REGIONS; /* behind the last that can be */
	assert_true(send(&rig, m));
	assert_int_equal(rig.core->peers[2].n_regions, REGIONS);
	m.signal = REGIONS - 1;
	assert_false(send(&rig, m));
	assert_int_equal(rig.core->peers[2].regions[REGIONS - 1].state, EPF_REGION_REVOKED);
	assert_int_equal(rig.core->peers[2].regions[REGIONS - 1].bytes, 0);
	m.rank = 0; /* our own: not that node's to withdraw */
	m.signal = 0;
	assert_true(send(&rig, m));
	assert_int_equal(rig.core->peers[0].regions[0].bytes, NULL_BYTES);
	m.rank = NULL_WORLD;
	assert_true(send(&rig, m));
	rig.core->world = 3; /* rank 3 is behind the last, and looks like one of that node */
	m.rank = 3;
	assert_true(send(&rig, m));
	assert_int_equal(rig.core->peers[3].regions[0].bytes, NULL_BYTES);
	rig.core->world = NULL_WORLD;
	null_rig_close(&rig);
}

/* This engine is a node of the job, too, and answers itself. */
static void acknowledge_own(struct null_rig *rig, uint32_t rank, uint32_t region)
{
	struct epf_msg m = {
		.kind = EPF_MSG_REVOKED, .rank = rank, .signal = region, .handle = HANDLE
	};
	struct epf_wc wc = { .op = EPF_WC_RECV, .lane = 0, .len = sizeof(m), .msg = &m };

	m.count = epf_rx(rig->core, &rig->core->nodes[0], HANDLE)->base;
	epf_arrive(rig->core, &wc);
}

/* A peer answers for its own withdrawal only: for another region or rank nothing is over. */
static void answers_are_for_what_was_asked(void **state)
{
	struct epf_msg m = { .kind = EPF_MSG_REVOKED, .rank = 0, .signal = 2 };
	struct null_rig rig;
	uint32_t missing;

	open_rig(&rig);
	assert_int_equal(epf_core_revoke_begin(rig.core, 0, 1), 0);
	for (unsigned i = 0; i < 8; i++)
		epf_core_step(rig.core);
	acknowledge_own(&rig, 0, 1);
	send(&rig, m);
	m.rank = 1;
	m.signal = 1;
	send(&rig, m);
	assert_int_equal(epf_core_revoke_done(rig.core, 0, 1, &missing), 0);
	assert_int_equal(missing, 2); /* the first rank of the peer engine */
	m.rank = 0;
	send(&rig, m);
	assert_int_equal(epf_core_revoke_done(rig.core, 0, 1, &missing), 1);
	null_rig_close(&rig);
}

static void push_put(struct null_rig *rig, uint32_t region, uint32_t to_region)
{
	const struct epf_op op = { .op = EPF_OP_PUT,
				   .rank = 2,
				   .local_region = (uint16_t)region,
				   .remote_region = (uint16_t)to_region,
				   .length = 16,
				   .add = 1 };

	epf_ring_push(&rig->rank[0].ring, epf_op_pack_narrow(&op));
	for (unsigned i = 0; i < 4; i++)
		epf_core_step(rig->core);
}

/* A region stays registered while commands read from it, wherever their numbers stand, although every peer has answered. */
static void a_source_is_withdrawn_when_it_is_read(void **state)
{
	static const uint64_t starts[] = { 0, UINT64_C(0) - 1, (UINT64_C(1) << 32) - 1 };

	for (unsigned i = 0; i < sizeof(starts) / sizeof(starts[0]); i++) {
		struct epf_msg m = { .kind = EPF_MSG_REVOKED, .rank = 0, .signal = 1 };
		struct null_rig rig;
		uint32_t missing;

		memset(&rig, 0, sizeof(rig));
		rig.ring_start = starts[i];
		null_rig_open(&rig, false);
		null_rig_hold(&rig, true);
		push_put(&rig, 1, 0);
		assert_int_equal(epf_core_revoke_begin(rig.core, 0, 1), 0);
		for (unsigned n = 0; n < 8; n++)
			epf_core_step(rig.core);
		acknowledge_own(&rig, 0, 1);
		send(&rig, m);
		assert_int_equal(epf_core_revoke_done(rig.core, 0, 1, &missing), 0);
		assert_int_equal(missing, EPF_NONE);
		null_rig_hold(&rig, false);
		for (unsigned n = 0; n < 4; n++)
			epf_core_step(rig.core);
		assert_int_equal(epf_core_revoke_done(rig.core, 0, 1, &missing), 1);
		null_rig_close(&rig);
	}
}

static unsigned answers(const struct null_rig *rig)
{
	unsigned n = 0;

	for (uint32_t l = NULL_LANES; l < 2 * NULL_LANES; l++)
		for (uint32_t at = 0; at <= rig->core->lanes[l].mask; at++)
			n += rig->core->lanes[l].wrs[at].op == EPF_WR_SEND &&
			     entry_message(&rig->core->lanes[l].wrs[at])->kind == EPF_MSG_REVOKED;
	return n;
}

/* A peer may withdraw what it never published: it gets its answer, and an exchange that began before does not bring the region back. */
static void a_region_nobody_knows_is_withdrawn(void **state)
{
	struct epf_msg m = { .kind = EPF_MSG_REVOKE, .rank = 2, .signal = REGIONS };
	struct epf_region_remote published[REGIONS + 3];
	struct epf_peer_info info = {
		.n_regions = REGIONS + 3, .regions = published, .keys = 1, .n_signals = SIGNALS
	};
	struct null_rig rig;

	mallopt(M_PERTURB, 0x5a); /* what is not known and not set looks valid */
	open_rig(&rig);
	info.node = rig.core->peers[2].node;
	assert_false(send(&rig, m));
	assert_int_equal(rig.core->peers[2].n_regions, REGIONS + 1);
	m.signal = REGIONS + 2;
	assert_false(send(&rig, m));
	for (unsigned i = 0; i < 8; i++)
		epf_core_step(rig.core);
	assert_int_equal(answers(&rig), 2);
	assert_int_equal(rig.core->peers[2].regions[REGIONS + 2].state, EPF_REGION_WITHDRAWN);
	assert_int_equal(rig.core->peers[2].regions[REGIONS + 1].state, EPF_REGION_FREE);
	push_put(&rig, 0, REGIONS + 1);
	assert_int_equal(rig.rank[0].shm->done.error_status, EPF_S_REFUSED);
	assert_int_equal(rig.rank[0].shm->done.error_reason, EPF_R_CMD_REMOTE_REGION);
	for (unsigned i = 0; i < REGIONS + 3; i++)
		published[i] = (struct epf_region_remote){ .bytes = 64,
							   .state = EPF_REGION_LIVE,
							   .access = EPF_MR_REMOTE_WRITE };
	assert_int_equal(epf_core_set_peer(rig.core, 2, &info), 0);
	assert_int_equal(rig.core->peers[2].regions[REGIONS + 1].state, EPF_REGION_LIVE);
	assert_int_equal(rig.core->peers[2].regions[REGIONS + 2].state, EPF_REGION_WITHDRAWN);
	assert_int_equal(rig.core->peers[2].regions[REGIONS + 2].bytes, 0);
	null_rig_close(&rig);
	mallopt(M_PERTURB, 0);
}

/* A peer's withdrawal is answered when nothing of ours is on its way there any more; what still waits fails. */
static void a_target_is_left_before_the_answer(void **state)
{
	struct epf_msg m = { .kind = EPF_MSG_REVOKE, .rank = 2, .signal = 3 };
	struct null_rig rig;

	open_rig(&rig);
	push_put(&rig, 0, 0);
	null_rig_hold(&rig, true);
	push_put(&rig, 0, 3);
	assert_null(null_rig_inspect(&rig));
	for (uint32_t l = NULL_LANES; l < 2 * NULL_LANES; l++)
		rig.core->lanes[l].state = EPF_LANE_FENCED;
	push_put(&rig, 0, 3);
	assert_int_equal(rig.core->n_deferred, 1);
	assert_false(send(&rig, m));
	assert_int_equal(rig.core->recheck, 1);
	for (uint32_t l = NULL_LANES; l < 2 * NULL_LANES; l++)
		rig.core->lanes[l].state = EPF_LANE_UP;
	for (unsigned i = 0; i < 8; i++)
		epf_core_step(rig.core);
	assert_null(null_rig_inspect(&rig));
	assert_int_equal(rig.core->n_deferred, 0);
	assert_int_equal(rig.rank[0].shm->done.failed, 1);
	assert_int_equal(rig.rank[0].shm->done.error_status, EPF_S_REVOKED);
	assert_int_equal(answers(&rig), 0);
	null_rig_hold(&rig, false);
	for (unsigned i = 0; i < 8; i++)
		epf_core_step(rig.core);
	assert_int_equal(answers(&rig), 1);
	/* What is deferred from now on was checked by the tables of now. */
	assert_int_equal(rig.core->recheck, 0);
	null_rig_close(&rig);
}

static struct epf_msg region_of(uint32_t rank, uint32_t region, uint64_t regions)
{
	return (struct epf_msg){ .kind = EPF_MSG_REGION,
				 .rank = rank,
				 .signal = region,
				 .value = 1, /* epoch */
				 .a = 4096,
				 .b = 64,
				 .c = 9,
				 .d = EPF_MR_REMOTE_WRITE,
				 .e = regions };
}

/* A returning rank: where its regions may lie, how many they may be, and which rights there are. */
static void returning_ranks_at_their_edges(void **state)
{
	struct null_rig rig;
	struct epf_msg m;

	open_rig(&rig);
	assert_true(send(&rig, region_of(0, 0, 1))); /* ours */
	assert_true(send(&rig, region_of(NULL_WORLD, 0, 1)));
	rig.core->world = 3;
	assert_true(send(&rig, region_of(3, 0, 1)));
	rig.core->world = NULL_WORLD;
	assert_true(send(&rig, region_of(2, 1, 1)));
	assert_true(send(&rig, region_of(2, 0, EPF_MAX_REGIONS + 1)));
	m = region_of(2, 0, 1);
	m.b = EPF_WIDE_REGION_BYTES + 1;
	m.a = 0;
	assert_true(send(&rig, m));
	m.b = EPF_WIDE_REGION_BYTES;
	m.a = UINT64_MAX - EPF_WIDE_REGION_BYTES + 1;
	assert_true(send(&rig, m));
	m = region_of(2, 0, 1);
	m.d = EPF_MR_SIGNALS;
	assert_true(send(&rig, m));
	assert_int_equal(rig.core->peers[2].regions[0].raddr, null_rig_raddr(2, 0));
	m = region_of(2, EPF_MAX_REGIONS - 1, EPF_MAX_REGIONS);
	m.b = EPF_WIDE_REGION_BYTES;
	m.a = UINT64_MAX - EPF_WIDE_REGION_BYTES;
	assert_false(send(&rig, m));
	assert_int_equal(rig.core->peers[2].n_regions, EPF_MAX_REGIONS);
	assert_int_equal(rig.core->peers[2].regions[EPF_MAX_REGIONS - 1].raddr, m.a);
	assert_int_equal(rig.core->peers[2].regions[EPF_MAX_REGIONS - 1].bytes, m.b);
	/* The same number was announced: another one is another description. */
	m = region_of(2, 5, 6);
	m.value = 2;
	assert_false(send(&rig, m));
	assert_int_equal(rig.core->peers[2].n_regions, 6);
	m = region_of(2, 6, 7); /* with that epoch there are six */
	m.value = 2;
	assert_true(send(&rig, m));
	null_rig_close(&rig);
}

static void returning_ranks_have_limits(void **state)
{
	struct epf_msg m = {
		.kind = EPF_MSG_RANK, .rank = 2, .signal = EPF_PEER_UP, .c = 1, .value = 1
	};
	struct null_rig rig;

	open_rig(&rig);
	m.a = EPF_WIDE_SIGNALS + 1;
	assert_true(send(&rig, m));
	m.a = EPF_WIDE_SIGNALS;
	m.value = EPF_MAX_REGIONS + 1;
	assert_true(send(&rig, m));
	m.value = EPF_MAX_REGIONS;
	m.signal = 99;
	assert_true(send(&rig, m));
	m.signal = EPF_PEER_UP;
	assert_false(send(&rig, m));
	assert_int_equal(rig.core->peers[2].n_signals, EPF_WIDE_SIGNALS);
	assert_int_equal(rig.core->peers[2].n_regions, EPF_MAX_REGIONS);
	/* Keys: that node has one, so there are no messages about more. */
	m = (struct epf_msg){ .kind = EPF_MSG_KEYS, .rank = 2, .c = 1, .d = EPF_MAX_REGIONS };
	assert_true(send(&rig, m));
	peer_node(&rig)->keys = 2;
	m.d = 8;
	m.c = 2;
	m.signal = 8;
	assert_true(send(&rig, m));
	m.d = EPF_MAX_REGIONS + 1;
	assert_true(send(&rig, m));
	assert_int_equal(rig.core->peers[2].n_regions, EPF_MAX_REGIONS);
	m.d = 8;
	m.signal = 7;
	m.value = 77;
	assert_false(send(&rig, m));
	assert_int_equal(rig.core->peers[2].regions[7].rkeys[1], 77);
	/* Seven regions, after eight were announced. */
	m.signal = 8;
	m.d = 9;
	assert_true(send(&rig, m));
	null_rig_close(&rig);
}

/*
 * Commands that wait for a lane hold what was true when they were checked. A peer engine that describes its rank anew meanwhile, with fewer or
 * smaller regions, must not lead them out of its tables.
 */
static void what_waits_is_checked_again(void **state)
{
	static const struct epf_op ops[] = {
		{ .op = EPF_OP_PUT, .rank = 2, .remote_region = REGIONS - 1, .length = 16 },
		{ .op = EPF_OP_PUT, .rank = 2, .remote_offset = 64, .length = 16 },
		{ .op = EPF_OP_GET, .rank = 2, .length = 16 }, /* the right to read is gone */
		{ .op = EPF_OP_PUT, .rank = 2, .length = 64 },
		{ .op = EPF_OP_PUT, .rank = 3, .remote_region = REGIONS - 1, .length = 16 },
	};

	enum { OPS = sizeof(ops) / sizeof(ops[0]) };

	struct null_rig rig;
	struct null_rank *r = &rig.rank[0];

	open_rig(&rig);
	for (uint32_t rank = 2; rank < 4; rank++) {
		const struct epf_op put = { .op = EPF_OP_PUT, .rank = rank, .length = 16 };

		epf_ring_push(&r->ring, epf_op_pack_narrow(&put));
		epf_core_step(rig.core);
	}
	for (uint32_t i = 0; i < NULL_LANES; i++)
		rig.core->lanes[NULL_LANES + i].state = EPF_LANE_FENCED;
	for (unsigned i = 0; i < OPS; i++)
		epf_ring_push(&r->ring, epf_op_pack_narrow(&ops[i]));
	epf_core_step(rig.core);
	assert_int_equal(rig.core->n_deferred, OPS);
	assert_null(null_rig_inspect(&rig));
	assert_false(send(&rig, region_of(2, 0, 1)));
	for (uint32_t i = 0; i < NULL_LANES; i++)
		rig.core->lanes[NULL_LANES + i].state = EPF_LANE_UP;
	for (unsigned i = 0; i < 8; i++) {
		const char *wrong;

		epf_core_step(rig.core);
		wrong = null_rig_inspect(&rig);
		if (wrong)
			fail_msg("%s", wrong);
	}
	assert_int_equal(rig.core->n_deferred, 0);
	assert_int_equal(r->shm->done.retired, 2 + OPS);
	assert_int_equal(r->shm->done.failed, 3);
	assert_int_equal(r->shm->done.error_status, EPF_S_REVOKED);
	null_rig_close(&rig);
}

/* A rank is UP only when all that was announced about it has come; each of the messages counts. */
static void a_rank_returns_when_it_is_complete(void **state)
{
	struct epf_msg up = {
		.kind = EPF_MSG_RANK, .rank = 2, .signal = EPF_PEER_UP, .c = 1, .value = 2, .a = 4
	};
	struct epf_msg down = { .kind = EPF_MSG_RANK, .rank = 2, .signal = EPF_PEER_DOWN };
	struct null_rig rig;

	open_rig(&rig);
	assert_false(send(&rig, down));
	assert_int_equal(rig.core->peers[2].up, 0);
	assert_int_equal(rig.core->ranks[0].usable[2], 0);
	assert_false(send(&rig, up));
	assert_false(send(&rig, region_of(2, 0, 2)));
	assert_int_equal(rig.core->peers[2].up, 0);
	assert_false(send(&rig, region_of(2, 1, 2)));
	assert_int_equal(rig.core->peers[2].up, 1);
	assert_int_equal(rig.core->ranks[0].usable[2], 1);
	assert_int_equal(rig.core->ranks[0].usable[3], 1);
	/* What is older than that is overtaken, not refused. */
	down.c = 0;
	assert_false(send(&rig, down));
	assert_int_equal(rig.core->peers[2].up, 1);
	null_rig_close(&rig);
}

static uint32_t root_of(const struct null_rig *rig, uint32_t rank)
{
	return epf_peers_details(rig->core->peers_page, NULL_WORLD)[rank].root;
}

static uint32_t root_cause_of(const struct null_rig *rig, uint32_t rank)
{
	return epf_peers_details(rig->core->peers_page, NULL_WORLD)[rank].root_cause;
}

/* Why a rank was lost: the last rank of the job may be named, the one behind it not, nor the rank itself. */
static void causes_at_their_edges(void **state)
{
	struct epf_msg m = { .kind = EPF_MSG_LOST, .rank = 2, .c = EPF_NONE };
	struct null_rig rig;

	open_rig(&rig);
	m.b = NULL_WORLD;
	m.e = UINT16_MAX;
	assert_false(send(&rig, m));
	assert_int_equal(root_of(&rig, 2), NULL_WORLD);
	assert_int_equal(root_cause_of(&rig, 2), UINT16_MAX);
	m.e = UINT16_MAX + 1;
	assert_false(send(&rig, m));
	assert_int_equal(root_cause_of(&rig, 2), 0);
	m.b = NULL_WORLD + 1;
	assert_false(send(&rig, m));
	assert_int_equal(root_of(&rig, 2), 0);
	m.b = 2 + 1;
	assert_false(send(&rig, m));
	assert_int_equal(root_of(&rig, 2), 0);
	m.rank = 1; /* ours */
	assert_true(send(&rig, m));
	m.rank = NULL_WORLD;
	assert_true(send(&rig, m));
	rig.core->world = 3;
	m.rank = 3;
	m.b = 1;
	assert_true(send(&rig, m));
	rig.core->world = NULL_WORLD;
	null_rig_close(&rig);
}

/* Messages of recovery: lanes, streams and questions. */
static void recovery_at_its_edges(void **state)
{
	struct epf_msg fence = { .kind = EPF_MSG_LANE_FENCE, .signal = 1 };
	struct epf_msg query = { .kind = EPF_MSG_STREAM_QUERY, .rank = 1 };
	struct null_rig rig;
	struct epf_lane_recovery *r;

	open_rig(&rig);
	assert_non_null(peer_node(&rig)->recovery);
	r = peer_node(&rig)->recovery->lanes;
	fence.c = NULL_LANES;
	assert_true(send(&rig, fence));
	peer_node(&rig)->n_lanes = 1; /* lane 1 is behind the last now */
	fence.c = 1;
	assert_true(send(&rig, fence));
	query.signal = 1;
	assert_true(send(&rig, query));
	assert_int_equal(r[1].answer, 0);
	assert_int_equal(rig.core->lanes[NULL_LANES + 1].state, EPF_LANE_UP);
	peer_node(&rig)->n_lanes = NULL_LANES;
	limit_streams(peer_node(&rig), NULL_STREAMS - 1);
	query.c = NULL_STREAMS - 1;
	assert_true(send(&rig, query));
	assert_int_equal(r[1].answer, 0);
	query.c = NULL_STREAMS - 2;
	assert_false(send(&rig, query));
	assert_int_equal(r[1].answer, 1);
	assert_int_equal(r[1].answer_handle, NULL_STREAMS - 2);
	for (unsigned i = 0; i < 4; i++)
		epf_core_step(rig.core);
	assert_int_equal(r[1].answer, 0); /* answered */
	assert_false(send(&rig, query));  /* twice, or overtaken: not again */
	query.rank = 0;
	assert_false(send(&rig, query));
	assert_int_equal(r[1].answer, 0);
	query.rank = 2;
	assert_false(send(&rig, query));
	assert_int_equal(r[1].answer, 1);
	fence.kind = 99;
	fence.signal = 0;
	assert_true(send(&rig, fence));
	fence.kind = EPF_MSG_LANE_FENCE;
	fence.signal = 2; /* two failures ahead of us: neither ours nor the next */
	assert_false(send(&rig, fence));
	assert_int_equal(rig.core->lanes[NULL_LANES + 1].state, EPF_LANE_UP);
	fence.signal = 1;
	assert_false(send(&rig, fence));
	assert_int_equal(rig.core->lanes[NULL_LANES + 1].state, EPF_LANE_FENCED);
	assert_int_equal(r[1].generation, 1);
	/* Only what was asked is answered, and only once. */
	query = (struct epf_msg){ .kind = EPF_MSG_STREAM_STATE, .signal = 1, .value = 1 };
	assert_false(send(&rig, query));
	assert_int_equal(r[1].known, 0);
	null_rig_close(&rig);
}

/* A goodbye takes the node's own ranks from us, and no others. */
static void a_goodbye_is_the_senders(void **state)
{
	struct epf_msg m = { .kind = EPF_MSG_BYE };
	struct null_rig rig;

	open_rig(&rig);
	assert_false(send(&rig, m));
	assert_int_equal(rig.core->peers[2].up, 0);
	assert_int_equal(rig.core->peers[3].up, 0);
	assert_int_equal(rig.core->peers[0].up, 1);
	assert_int_equal(rig.core->peers[1].up, 1);
	null_rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(signals_at_their_edges),
		cmocka_unit_test(senders_at_their_edges),
		cmocka_unit_test(additions_at_their_edges),
		cmocka_unit_test(private_memory_is_not_added_to),
		cmocka_unit_test(nothing_reaches_a_rank_that_has_gone),
		cmocka_unit_test(definitions_at_their_edges),
		cmocka_unit_test(immediates_at_their_edges),
		cmocka_unit_test(flushes_at_their_edges),
		cmocka_unit_test(messages_at_their_edges),
		cmocka_unit_test(counts_at_the_edges_of_the_window),
		cmocka_unit_test(a_signal_waits_for_what_it_covers),
		cmocka_unit_test(many_signals_wait),
		cmocka_unit_test(withdrawals_at_their_edges),
		cmocka_unit_test(answers_are_for_what_was_asked),
		cmocka_unit_test(a_source_is_withdrawn_when_it_is_read),
		cmocka_unit_test(a_region_nobody_knows_is_withdrawn),
		cmocka_unit_test(a_target_is_left_before_the_answer),
		cmocka_unit_test(returning_ranks_at_their_edges),
		cmocka_unit_test(returning_ranks_have_limits),
		cmocka_unit_test(what_waits_is_checked_again),
		cmocka_unit_test(a_rank_returns_when_it_is_complete),
		cmocka_unit_test(causes_at_their_edges),
		cmocka_unit_test(recovery_at_its_edges),
		cmocka_unit_test(a_goodbye_is_the_senders),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
