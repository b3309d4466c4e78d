/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bounds and rights of what a peer engine sends: signals, additions, definitions of notify handles, flushes and immediates, each with the last
 * valid and the first invalid value. A peer engine runs on another machine and may be broken or hostile: what it may not do is counted as
 * refused and changes nothing. Messages about ranks, regions and recovery: test_control_messages.c.
 */
#include "tests/unit/engine/arrivals_kit.h"

/* Sender of the signals and additions: rank 2, so 1 + 2. */
enum { SENDER = 2 };

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

/* A flush names the word for its acknowledgement: the last one is valid, the one behind it is refused. */
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
	/* The second time in places that were free before. */
	for (uint32_t round = 0; round < 2; round++) {
		for (uint32_t h = 8; h < 16; h++)
			for (uint32_t c = 1; c < 4; c++) {
				struct epf_msg m = signal_to(0, h - 8);

				m.handle = (uint16_t)h;
				m.count = 4 * round + c;
				m.value = UINT64_C(1) << 8 * c;
				arrive(&rig, &m, sizeof(m));
			}
		for (uint32_t h = 8; h < 16; h++) {
			struct epf_msg first = signal_to(0, h - 8);

			assert_int_equal(value_of(&rig, 0, h - 8), round * 0x01010101);
			first.handle = (uint16_t)h;
			first.count = 4 * round;
			first.value = 1;
			arrive(&rig, &first, sizeof(first));
			assert_int_equal(value_of(&rig, 0, h - 8), (round + 1) * 0x01010101);
		}
	}
	assert_int_equal(refused(&rig), 0);
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
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
