/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The commands that the simulation pushes (bench/scale) are those of the kernels: both play the same tokens on four ranks, once on the
 * emulated NIC with the kernels as plain C, and once simulated, and every rank's engine has counted the same commands, bytes and signals.
 */
#include "bench/scale/scale.h"
#include "fabric/client/epf.h"
#include "tests/unit/kernels/ll_kit.h"
#include "tests/unit/kernels/ll_kit_impl.h"

#include "fabric/base/err.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 4, TOKENS = 16, HIDDEN = 256, COUNTERS = 3 };

/* All ranks of the kit are on one node, all simulated ones on another each. */
static const char *const counter[COUNTERS] = { "cmds_dequeued", "put_bytes_same_node",
					       "signals_applied" };

static const struct ll_kit_case play = { .experts = SCALE_EXPERTS,
					 .topk = SCALE_TOPK,
					 .hidden = HIDDEN,
					 .tokens_max = TOKENS,
					 .tokens = { TOKENS, TOKENS, TOKENS, TOKENS },
					 .flags = 1 /* EPF_LL_FP8, as the simulation has it */,
					 .seed = 3 };

/* Runs the kernels; what each engine has counted. */
static void run_kernels(struct ll_kit *k, uint64_t count[RANKS][COUNTERS])
{
	ll_kit_run(k, &play, 1);
	for (uint32_t r = 0; r < RANKS; r++)
		for (unsigned c = 0; c < COUNTERS; c++)
			assert_int_equal(epf_counter(ll_kit_ep(k, r), counter[c], &count[r][c]), 0);
}

static void route(void *arg, uint32_t rank, uint32_t token, uint32_t to[SCALE_TOPK])
{
	const struct batch *b = arg;
	const int64_t *experts = b->t[rank].topk + (size_t)token * SCALE_TOPK;

	for (uint32_t k = 0; k < SCALE_TOPK; k++)
		to[k] = (uint32_t)experts[k] / (SCALE_EXPERTS / RANKS);
}

static uint64_t stat_of(const struct scale *s, uint32_t r, unsigned c)
{
	static const uint32_t stat[COUNTERS] = { EPF_STAT_CORE_CMDS_DEQUEUED,
						 EPF_STAT_CORE_PUT_BYTES_REMOTE_NODE,
						 EPF_STAT_CORE_SIGNALS_APPLIED };

	return epf_stat_get(s->cores[r].block, stat[c]);
}

static void same_commands(void **state)
{
	/* Nobody reaches anybody by stores. */
	struct ll_kit_options ko = { .ranks = RANKS,
				     .direct = LL_KIT_NONE,
				     .blocks = 2,
				     .bytes = UINT64_C(1) << 25,
				     .timeout_ns = UINT64_C(60000000000),
				     .seed = 1 };
	struct ll_kit *k = ll_kit_open(&ko);
	struct batch b;
	struct scale_options o = { .ranks = RANKS,
				   .per_node = 1,
				   .near = 1,
				   .jobs = 1,
				   .hidden = HIDDEN,
				   .tokens = TOKENS,
				   .tokens_max = TOKENS,
				   .step_ns = 100,
				   .command_ns = 60,
				   .arrival_ns = 60,
				   .route = route,
				   .route_arg = &b,
				   .limit_ns = UINT64_C(60000000000),
				   .net = { .links = 1,
					    .lanes = 2,
					    .bytes_per_ns = 50,
					    .delay_ns = 1500,
					    .segment = 4096,
					    .header = 62,
					    .mtu = 4096,
					    .retry_ns = 500000,
					    .receives = 32767 } };
	uint64_t real[RANKS][COUNTERS];
	struct scale *s = scale_open(&o);
	struct scale_ll *ll;

	if (!s)
		fail_msg("%s", epf_last_error());
	run_kernels(k, real);
	memset(&b, 0, sizeof(b));
	b.c = play;
	ll_kit_make(k, &b);
	ll = scale_ll_open(s, 0);
	assert_non_null(ll);
	for (int combine = 0; combine < 2; combine++) {
		scale_ll_begin(ll, 0, combine);
		if (scale_run(s))
			fail_msg("%s", s->why);
	}
	for (uint32_t r = 0; r < RANKS; r++)
		for (unsigned c = 0; c < COUNTERS; c++) {
			/* On a CPU each call ends with a flush of the host, because kernels cannot wake an engine. */
			uint64_t flushes = c == 0 ? 2 : 0;

			if (stat_of(s, r, c) + flushes != real[r][c])
				fail_msg("rank %u: %s: %llu simulated, %llu real", r, counter[c],
					 (unsigned long long)stat_of(s, r, c),
					 (unsigned long long)real[r][c]);
			assert_true(real[r][c] > 0);
		}
	scale_ll_close(ll);
	scale_close(s);
	ll_kit_free(k, &b);
	ll_kit_close(k);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(same_commands) };

	return cmocka_run_group_tests_name("sim_commands", tests, NULL, NULL);
}
