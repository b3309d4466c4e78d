/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts of the high-throughput kernels as plain C, without a rig: which tokens go to which node, where there are more ranks than one node has; what
 * is added to what.
 */
#include "kernels/ht/epf_ht_combine.cuh"
#include "kernels/ht/ht.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LOCAL = 3, NODE = HT_NODE * LOCAL, TOPK = 2 };

/* Tokens whose only expert is the last of a node, the first of the next one, or both. */
static void tokens_go_to_the_node_of_their_experts(void **state)
{
	static const int64_t idx[][TOPK] = {
		{ NODE - 1, -1 }, { NODE, -1 }, { NODE, NODE },       { NODE - 1, NODE },
		{ -1, -1 },       { 0, 1 },     { 2 * NODE - 1, -1 },
	};
	uint32_t per_node[2] = { 77, 77 };
	struct ht_job j = { .tokens = sizeof(idx) / sizeof(idx[0]),
			    .topk = TOPK,
			    .ranks = 2 * HT_NODE,
			    .local = LOCAL,
			    .threads = 1,
			    .topk_idx = (uint64_t)(uintptr_t)idx,
			    .per_node = (uint64_t)(uintptr_t)per_node };

	ht_layout_node(&j, 0);
	ht_layout_node(&j, 1);
	assert_int_equal(per_node[0], 3);
	assert_int_equal(per_node[1], 4);
}

/* All of one piece is added, and nothing of the next. */
static void a_piece_is_added_and_no_more(void **state)
{
	enum { FLOATS = HT_VECS * 8, ONE = 0x3f80 }; /* 1.0 in bf16 */

	float sum[FLOATS + 2] = { 0 };
	struct ht_piece p[2];

	for (unsigned i = 0; i < 2 * HT_VECS * 4u; i++)
		p[i / (HT_VECS * 4u)].v[i / 4u % HT_VECS].w[i % 4u] = ONE | (uint32_t)ONE << 16;
	ht_add(sum, &p[0]);
	for (unsigned i = 0; i < FLOATS; i++)
		assert_true(sum[i] == 1.0f);
	assert_true(sum[FLOATS] == 0.0f && sum[FLOATS + 1] == 0.0f);
}

/* A chunk is moved as it is: one that all lanes share alike, which is moved without comparisons, and those that are shorter. */
static void a_chunk_is_moved_and_no_more(void **state)
{
	enum { MOST = HT_CHUNK_VECS + 1, POISON = 0xee };

	struct ll_vec from[MOST], to[MOST];
	struct ht_chunk p;

	for (unsigned i = 0; i < sizeof(from); i++)
		((uint8_t *)from)[i] = (uint8_t)i;
	for (uint32_t n = 1; n <= HT_CHUNK_VECS; n++) {
		struct ht_chunks c = { 1, n, n };

		memset(to, POISON, sizeof(to));
		ht_load(&c, &p, 0, (uintptr_t)from);
		ht_store(&c, &p, 0, (uintptr_t)to);
		assert_memory_equal(to, from, n * HT_VEC);
		for (unsigned i = n * HT_VEC; i < sizeof(to); i++)
			assert_int_equal(((uint8_t *)to)[i], POISON);
	}
}

/* Two rows are added as in FP32, from +0, and rounded once: zeros of both signs, numbers too small for an exponent, the largest, infinities, NaNs, and others. */
static void two_rows_are_added_as_in_fp32(void **state)
{
	static const uint16_t special[] = { 0x0000, 0x8000, 0x0001, 0x8001, 0x007f, 0x0080,
					    0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7fc0, 0xffff };

	enum { SPECIAL = sizeof(special) / sizeof(special[0]), OTHERS = 100000 };

	uint32_t random = 1;

	for (unsigned i = 0; i < SPECIAL * SPECIAL + OTHERS; i++) {
		uint32_t a = special[i % SPECIAL], b = special[i / SPECIAL % SPECIAL], sum;

		random = random * 1664525u + 1013904223u;
		if (i >= SPECIAL * SPECIAL) {
			a = random >> 16;
			b = a ^
			    (random >> 3 & 0x87ffu); /* of nearly the same size, or of neither */
		}
		sum = ll_to_bf16(0.0f + ll_from_bf16(a) + ll_from_bf16(b));
		assert_int_equal(ll_add_bf16_pairs(a | b << 16, b | a << 16), sum | sum << 16);
	}
}

/* The warps that add are told how many rows have arrived; after the last part nobody waits, not even for a row that there is not. */
static void rows_arrive_in_parts(void **state)
{
	struct ht_job j = { .ranks = 2, .nodes = 1, .threads = 1, .parts = 3 };
	struct ht_mark *m = &ht_marks()[1];

	*m = (struct ht_mark){ .rank = 1, .rows = 7 };
	ht_note_arrived(&j, m, 1);
	assert_int_equal(m->arrived, 2);
	ht_wait_row(&j, 1, 1);
	ht_note_arrived(&j, m, 2);
	assert_int_equal(m->arrived, 4);
	ht_note_arrived(&j, m, 3);
	assert_int_equal(m->parts, 3);
	assert_int_equal(m->arrived, UINT32_MAX);
	ht_wait_row(&j, 1, 7);
}

/* ---- as many ranks as there may be ---- */

enum { MANY = EPF_HT_RANKS_MAX, NODE_RANKS = 8, NODES = MANY / NODE_RANKS, ME = MANY - 1 };

struct traffic {
	uint32_t from, to, rows;
};

/* Zeros that take memory when they are touched. */
static void *zeros(uint64_t bytes)
{
	void *at = calloc(1, bytes);

	assert_non_null(at);
	return at;
}

static void make_topology(struct ht_job *j)
{
	struct ht_node *node = (struct ht_node *)(uintptr_t)j->topology;
	uint32_t *member = (uint32_t *)(void *)(node + NODES);

	for (uint32_t r = 0; r < MANY; r++) {
		ht_peer_of(j, r)->node = r / NODE_RANKS;
		ht_peer_of(j, r)->index = r % NODE_RANKS;
		node[r / NODE_RANKS] = (struct ht_node){ r / NODE_RANKS * NODE_RANKS, NODE_RANKS };
		member[r] = r;
	}
}

/* What each source sends to each rank and each node. */
static void make_counts(const struct ht_job *j, const struct traffic *t, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		uint32_t words[] = { t[i].to, MANY + t[i].to / NODE_RANKS };

		for (unsigned k = 0; k < 2; k++)
			if (ht_is_mate(j, t[i].from))
				ht_counts_at(j, j->control, 0, t[i].from)[words[k]] += t[i].rows;
			else
				ht_counts_far(j, j->counts, 0, t[i].from)[words[k]] += t[i].rows;
	}
}

/* What a window and the memory between nodes must hold, with 2,048 ranks: the last rank, and the one whose words lie 1,024 before. */
static void sizes_of_as_many_ranks_as_there_may_be(void **state)
{
	static const struct traffic t[] = {
		{ 7, ME - 7, 9 }, { ME, 0, 7 }, { ME, 1016, 2 }, { 1023, 0, 4 }
	};
	uint64_t host[HT_HOST] = { 0 };
	struct ht_job j = { .ranks = MANY,
			    .nodes = NODES,
			    .node = NODES - 1,
			    .node_max = NODE_RANKS,
			    .rank = ME,
			    .threads = 1,
			    .host = (uint64_t)(uintptr_t)host };
	uint64_t counts = 2ull * MANY * ht_counts_words(&j) * 4;
	struct ht_verdict v;

	j.state = (uintptr_t)zeros(sizeof(struct ht_state) + MANY * sizeof(struct ht_peer));
	j.topology = (uintptr_t)zeros(NODES * sizeof(struct ht_node) + MANY * 4);
	j.control = (uintptr_t)zeros((uint64_t)HT_FLAGS * MANY * HT_LINE + 2 * counts);
	j.counts = (uintptr_t)zeros(counts);
	j.matrix = (uintptr_t)zeros((uint64_t)MANY * MANY * 4);
	j.plan = (uintptr_t)zeros(HT_VEC);
	make_topology(&j);
	make_counts(&j, t, sizeof(t) / sizeof(t[0]));
	ht_read_rows(&j, 0, 0, ht_sizes());
	v = ht_decide(&j, 0, ht_sizes());
	ht_say_verdict(&j, &v);
	assert_int_equal(host[1], 0);
	assert_int_equal(host[2], 11); /* rank 0 receives 7 and 4 */
	assert_int_equal(host[3], 11); /* rank 7 forwards them */
	assert_int_equal(host[4], 9);  /* the last rank what rank 7 sends to its node */
	assert_int_equal(*(uint32_t *)(uintptr_t)j.plan, 11);
	free((void *)(uintptr_t)j.state);
	free((void *)(uintptr_t)j.topology);
	free((void *)(uintptr_t)j.control);
	free((void *)(uintptr_t)j.counts);
	free((void *)(uintptr_t)j.matrix);
	free((void *)(uintptr_t)j.plan);
}

static void more_ranks_are_refused(void **state)
{
	assert_int_equal(EPF_HT_RANKS_MAX, 2048);
	assert_int_equal(ht_check_ranks(2048, 1024), 0);
	assert_int_equal(ht_check_ranks(2049, 8), -EINVAL);
	assert_non_null(strstr(epf_ll_error(), "2049 ranks"));
	assert_int_equal(ht_check_ranks(2048, 1025), -EINVAL);
	assert_non_null(strstr(epf_ll_error(), "1025 ranks reach each other"));
}

static void say_place(uint64_t *line, enum ht_place place, uint64_t at)
{
	line[HT_READY_PLACES + 2 * place] |= (uint32_t)at;
	line[HT_READY_PLACES + 2 * place + 1] |= at >> 32;
}

/* Where what travels with rows goes, as the ranks of a node say: to their outputs where the node is small, to their windows where it is large. */
static void outputs_beside_rows(void **state)
{
	(void)state;
	for (uint32_t ranks = HT_BESIDE_RANKS; ranks <= HT_BESIDE_RANKS + 1; ranks++) {
		struct ht_job j = { .ranks = ranks,
				    .nodes = 1,
				    .node_max = ranks,
				    .rank = 3,
				    .threads = 1,
				    .received = 10,
				    .room = 10,
				    .out = 16,
				    .out_index = 32,
				    .out_scales = 48,
				    .out_stride = { 7, 2 },
				    .scale_words = 11,
				    .lay = { .index = 512, .weights = 1024, .scales = 2048 } };
		uint32_t last = ranks - 1;
		struct ht_beside own, other;
		int few = ranks == HT_BESIDE_RANKS;

		j.state =
			(uintptr_t)zeros(sizeof(struct ht_state) + ranks * sizeof(struct ht_peer));
		j.control = (uintptr_t)zeros((uint64_t)HT_FLAGS * ranks * HT_LINE);
		j.matrix = (uintptr_t)zeros((uint64_t)ranks * ranks * 4);
		j.segments = (uintptr_t)zeros((uint64_t)ranks * HT_SEGMENTS * 8);
		((uint64_t *)(uintptr_t)j.segments)[(uint64_t)last * HT_SEGMENTS + 5] = 1 << 20;
		for (uint32_t r = 0; r < ranks; r++) {
			uint64_t *line = ht_flag_at(&j, j.control, HT_READY, r);

			ht_peer_of(&j, r)->window = 4096;
			line[HT_READY_FLAG] = ht_begun(&j, 0);
			for (uint32_t w = HT_READY_PLACES; w < HT_READY_SAID; w++)
				line[w] = ht_begun(&j, 0) << 32;
			say_place(line, HT_PLACE_INDEX, HT_PLACE(6, 64));
			say_place(line, HT_PLACE_SCALES, HT_PLACE(6, 128));
			line[HT_READY_STRIDE] |= 9;
		}
		ht_mark_members(&j);
		ht_mark_rows(&j, 1);
		ht_mark_targets(&j, 0, 1);
		own = ht_beside_of(&j, &ht_marks()[3]);
		other = ht_beside_of(&j, &ht_marks()[last]);
		assert_int_equal(own.index, 32);
		assert_int_equal(own.scales, 48);
		assert_int_equal(own.stride[0], 7);
		assert_int_equal(own.stride[1], 2);
		assert_int_equal(own.in_window, 0);
		assert_int_equal(other.in_window, !few);
		assert_int_equal(other.index, few ? (1 << 20) + 64 : 4096 + 512);
		assert_int_equal(other.weights, few ? 0 : 4096 + 1024);
		assert_int_equal(other.scales, few ? (1 << 20) + 128 : 4096 + 2048);
		assert_int_equal(other.numbers, 0);
		assert_int_equal(other.stride[0], few ? 9 : 11);
		assert_int_equal(other.stride[1], 1);
		/* What a rank has not said of this call is not believed. */
		assert_int_not_equal(ht_marks()[last].room, 0);
		*ht_word_at(&j, j.control, HT_READY, last, HT_READY_STRIDE) = 9;
		ht_mark_targets(&j, 0, 1);
		assert_int_equal(ht_marks()[last].room, 0);
		free((void *)(uintptr_t)j.state);
		free((void *)(uintptr_t)j.control);
		free((void *)(uintptr_t)j.matrix);
		free((void *)(uintptr_t)j.segments);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(tokens_go_to_the_node_of_their_experts),
		cmocka_unit_test(a_piece_is_added_and_no_more),
		cmocka_unit_test(a_chunk_is_moved_and_no_more),
		cmocka_unit_test(two_rows_are_added_as_in_fp32),
		cmocka_unit_test(rows_arrive_in_parts),
		cmocka_unit_test(sizes_of_as_many_ranks_as_there_may_be),
		cmocka_unit_test(outputs_beside_rows),
		cmocka_unit_test(more_ranks_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
