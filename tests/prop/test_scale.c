/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scale: 256, 1,024 and in the long form 512 ranks of one job inside this one process, driven by one thread on a virtual clock. Every
 * rank is source and target of a real low-latency dispatch and combine, top-8 over 1,024 experts, compared with the
 * reference: rows byte for byte, sums bit for bit. What an engine keeps per peer is printed and must not grow.
 */
#include "tests/ref/ref.h"
#include "tests/unit/client/job.h"

#include "fabric/base/clock.h"
#include "kernels/host/moe.h"

#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

enum {
	EXPERTS = 1024,
	TOPK = 8,
	HIDDEN = 128,
	TOKENS = 3,
	ROUNDS = 2,
	MAX_RANKS = 1024,
	FAULTS_AT = 12
};

#define MEMORY_LIMIT_BYTES (12ull << 30)

/* A sanitizer doubles the memory and the time of every access: one size shows it what there is to see. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
# define SANITIZED 1
#elif defined(__has_feature)
# if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#  define SANITIZED 1
# endif
#endif

/* Small engines: what a peer costs is what this test looks at. */
static const char *settings[] = { "lanes-per-peer=1",
				  "lane-depth=4",
				  "lane-receives=4",
				  "streams-per-peer=16",
				  "window=64",
				  "ring-slots=2048",
				  "ring-window=2048",
				  "defer-limit=8",
				  "regions=2",
				  "signals=3072",
				  "emu-packets=64",
				  "emu-mtu=1024",
				  [FAULTS_AT] = "emu-order=ordered",
				  [FAULTS_AT + 5] = NULL };

struct world {
	struct job job;
	struct epf_moe *moe[MAX_RANKS];
	uint32_t node_of[MAX_RANKS];
	int node_of_rank[MAX_RANKS];
	int tokens[MAX_RANKS];
	int64_t *idx[MAX_RANKS];
	float *weight[MAX_RANKS];
	uint16_t *x[MAX_RANKS];
	struct ref_job ref;
	uint32_t round;
};

static struct world *w;
static uint64_t bytes_per_peer;

static uint64_t mix(uint64_t a, uint64_t b)
{
	uint64_t h = a * UINT64_C(0x9e3779b97f4a7c15) ^ (b + 1) * UINT64_C(0xbf58476d1ce4e5b9);

	h ^= h >> 31;
	h *= UINT64_C(0x94d049bb133111eb);
	return h ^ h >> 29;
}

/* A BF16 pattern of modest size: sign, exponent 120..135, any mantissa. */
static uint16_t some_bf16(uint64_t h)
{
	return (uint16_t)((h & 0x807f) | (120 + (h >> 16) % 16) << 7);
}

static uint64_t name_of(uint32_t round, uint32_t source, uint32_t token)
{
	return ((uint64_t)round * MAX_RANKS + source) * TOKENS + token;
}

/* What expert e makes of a token: nothing like its input, so that a lost or stale row shows. */
static void expert_output(uint32_t e, uint32_t source, uint32_t token, uint16_t *out)
{
	uint64_t h = mix(name_of(w->round, source, token), e);

	for (uint32_t c = 0; c < HIDDEN; c++)
		out[c] = some_bf16(mix(h, c));
}

static const uint16_t *ref_row(void *arg, int expert, int src, int token)
{
	expert_output((uint32_t)expert, (uint32_t)src, (uint32_t)token, arg);
	return arg;
}

/* Tokens of a rank: 1 to TOKENS; 8 distinct experts each, the first of them in turn so that all ranks are targets. */
static void make_tokens(uint32_t rank)
{
	uint32_t n = 1 + rank % TOKENS;

	w->tokens[rank] = (int)n;
	for (uint32_t t = 0; t < n; t++) {
		uint64_t h = mix(name_of(w->round, rank, t), 77);
		int64_t *idx = w->idx[rank] + (size_t)t * TOPK;
		uint32_t stride = 2 * (uint32_t)(h % 511) + 1; /* odd: visits distinct experts */

		for (uint32_t k = 0; k < TOPK; k++) {
			idx[k] = (rank * 5 + t * 331 + k * stride) % EXPERTS;
			w->weight[rank][t * TOPK + k] = (float)(1 + (h >> 8) % 97) / 64.0f;
			if (k && (h >> (20 + k)) % 16 == 0)
				idx[k] = -1;
		}
		for (uint32_t c = 0; c < HIDDEN; c++)
			w->x[rank][(size_t)t * HIDDEN + c] = some_bf16(mix(h, c));
	}
}

static void setup_rank(struct job *job, uint32_t rank)
{
	struct epf_moe_config cfg = { .mode = EPF_MOE_LL,
				      .tokens_max = TOKENS,
				      .hidden = HIDDEN,
				      .topk = TOPK,
				      .experts = EXPERTS,
				      .ranks = job->ranks,
				      .rank = rank,
				      .node_of = w->node_of };
	char why[EPF_MOE_WHY_BYTES] = "";

	if (epf_moe_open(job->ep[rank], &cfg, &w->moe[rank], why))
		fail_msg("rank %u: %s", rank, why);
}

static void open_world(uint32_t ranks)
{
	w = calloc(1, sizeof(*w));
	assert_non_null(w);
	for (uint32_t r = 0; r < ranks; r++) {
		w->node_of[r] = (uint32_t)((uint64_t)r * 8 / ranks);
		w->node_of_rank[r] = (int)w->node_of[r];
		w->idx[r] = calloc(TOKENS * TOPK, sizeof(*w->idx[r]));
		w->weight[r] = calloc(TOKENS * TOPK, sizeof(*w->weight[r]));
		w->x[r] = calloc(TOKENS * HIDDEN, sizeof(*w->x[r]));
		assert_true(w->idx[r] && w->weight[r] && w->x[r]);
	}
	w->ref = (struct ref_job){ .ranks = (int)ranks,
				   .experts = EXPERTS,
				   .topk = TOPK,
				   .hidden = HIDDEN,
				   .node_of_rank = w->node_of_rank,
				   .tokens = w->tokens,
				   .topk_idx = (const int64_t *const *)w->idx,
				   .weights = (const float *const *)w->weight,
				   .x = (const uint16_t *const *)w->x };
	assert_return_code(job_open(&w->job, ranks, 8, settings, 1000, setup_rank), 0);
}

static void close_world(uint32_t ranks)
{
	for (uint32_t r = 0; r < ranks; r++) {
		epf_moe_close(w->moe[r]);
		free(w->idx[r]);
		free(w->weight[r]);
		free(w->x[r]);
	}
	job_close(&w->job);
	free(w);
}

/* The received rows of rank dst are those of the reference, in its order; writes the experts' outputs. */
static uint64_t check_rows(uint32_t dst)
{
	const struct epf_moe_layout *lay = epf_moe_layout(w->moe[dst]);
	struct ref_entry list[512];
	uint16_t want[HIDDEN];
	uint64_t rows = 0;

	for (uint32_t local = 0; local < lay->local_experts; local++) {
		uint32_t expert = dst * lay->local_experts + local;
		int counts[MAX_RANKS];
		long n = ref_ll_list(&w->ref, (int)dst, (int)local, list, 512, counts);
		uint32_t at = 0;

		assert_in_range(n, 0, 512);
		for (uint32_t i = 0; i < w->job.ranks; i++) {
			uint32_t block = local * w->job.ranks + i;

			assert_int_equal(epf_moe_block_rows(w->moe[dst], block), counts[i]);
		}
		for (long i = 0; i < n; i++) {
			uint32_t source = (uint32_t)list[i].src, token = (uint32_t)list[i].token;
			uint32_t block = local * w->job.ranks + source;
			const struct epf_moe_head *row;

			at = i && list[i - 1].src == list[i].src ? at + 1 : 0;
			row = epf_moe_row(w->moe[dst], block, at);
			assert_int_equal(row->token, token);
			assert_int_equal(row->source, source);
			assert_int_equal(row->round, w->round);
			assert_return_code(
				ref_payload(&w->ref, list[i].src, list[i].token, REF_BF16, want),
				0);
			assert_memory_equal(epf_moe_row_payload(w->moe[dst], row), want,
					    sizeof(want));
			expert_output(expert, source, token, epf_moe_out(w->moe[dst], block, at));
			rows++;
		}
	}
	assert_true(rows > 0); /* every rank is a target */
	return rows;
}

static void check_sums(uint32_t rank)
{
	uint16_t out[TOKENS * HIDDEN], want[HIDDEN], scratch[HIDDEN];

	memset(out, 0x5a, sizeof(out));
	assert_return_code(epf_moe_combine_recv(w->moe[rank], out), 0);
	for (int t = 0; t < w->tokens[rank]; t++) {
		assert_return_code(ref_ll_combine(&w->ref, (int)rank, t, ref_row, scratch, want),
				   0);
		assert_memory_equal(out + (size_t)t * HIDDEN, want, sizeof(want));
	}
}

static void must(uint32_t rank, int rc)
{
	if (rc)
		fail_msg("rank %u: %s", rank, epf_moe_error(w->moe[rank]));
}

static uint64_t play_round(uint32_t ranks, uint32_t round)
{
	uint64_t rows = 0;

	w->round = round;
	for (uint32_t r = 0; r < ranks; r++)
		make_tokens(r);
	assert_null(ref_job_error(&w->ref));
	for (uint32_t r = 0; r < ranks; r++) {
		struct epf_moe_tokens in = { .x = w->x[r],
					     .expert = w->idx[r],
					     .weight = w->weight[r],
					     .tokens = (uint32_t)w->tokens[r] };

		must(r, epf_moe_dispatch_send(w->moe[r], &in));
	}
	for (uint32_t r = 0; r < ranks; r++)
		must(r, epf_moe_dispatch_recv(w->moe[r]));
	for (uint32_t r = 0; r < ranks; r++)
		rows += check_rows(r);
	for (uint32_t r = 0; r < ranks; r++)
		must(r, epf_moe_combine_send(w->moe[r]));
	for (uint32_t r = 0; r < ranks; r++)
		check_sums(r);
	for (uint32_t r = 0; r < ranks; r++)
		must(r, epf_moe_drain(w->moe[r]));
	return rows;
}

static double seconds(uint64_t since_ns)
{
	return (double)(epf_now_ns() - since_ns) / 1e9;
}

static void scale(uint32_t ranks)
{
	uint64_t start = epf_now_ns(), rows = 0, per_peer, commands = 0, value;
	struct rusage usage;
	double setup;

	open_world(ranks);
	setup = seconds(start);
	start = epf_now_ns();
	for (uint32_t round = 0; round < ROUNDS; round++)
		rows += play_round(ranks, round);
	assert_true(rows > ranks);
	for (uint32_t r = 0; r < ranks; r++) {
		assert_return_code(epf_counter(w->job.ep[r], "cmds_dequeued", &value), 0);
		commands += value;
		assert_return_code(epf_counter(w->job.ep[r], "cmds_failed", &value), 0);
		assert_int_equal(value, 0);
	}
	per_peer = epf_bytes_per_peer(w->job.ep[0]);
	getrusage(RUSAGE_SELF, &usage);
	printf("# %u ranks: %llu bytes per peer, %llu rows, %llu commands, set-up %.1f s, traffic %.1f s, peak %ld MiB\n",
	       ranks, (unsigned long long)per_peer, (unsigned long long)rows,
	       (unsigned long long)commands, setup, seconds(start), usage.ru_maxrss / 1024);
	fflush(stdout);
	start = epf_now_ns();
	close_world(ranks);
	printf("# %u ranks: closed in %.1f s\n", ranks, seconds(start));
	/* It does not grow with their number; events out of order take a few windows. */
	if (!bytes_per_peer)
		bytes_per_peer = per_peer;
	assert_true(per_peer <= bytes_per_peer + bytes_per_peer / 8);
	assert_true((uint64_t)usage.ru_maxrss * 1024 < MEMORY_LIMIT_BYTES);
}

#ifndef SANITIZED /* there the ranks without order run all of that code */
static void ordered_256(void **state)
{
	scale(256);
}

static void ordered_512(void **state)
{
	scale(512);
}

static void ordered_1024(void **state)
{
	scale(1024);
}
#endif

static void unordered_256(void **state)
{
	static const char *const faults[] = { "emu-order=unordered", "emu-delay=5us",
					      "emu-reorder=0.05", "emu-duplicate=0.05",
					      "emu-drop=0.01" };

	memcpy(&settings[FAULTS_AT], faults, sizeof(faults));
	scale(256);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#ifndef SANITIZED
		cmocka_unit_test(ordered_256),
		cmocka_unit_test(ordered_512),
		cmocka_unit_test(ordered_1024),
#endif
		cmocka_unit_test(unordered_256),
	};

	/* Recycled memory would have to be cleared, and so touched, for each size after the first. */
	mallopt(M_MMAP_THRESHOLD, 128 * 1024);
	if (!getenv("EPF_TEST_LONG"))
		cmocka_set_skip_filter("ordered_512");
	return cmocka_run_group_tests_name("scale", tests, NULL, NULL);
}
