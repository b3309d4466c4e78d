/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dispatch and combine of the host kernels with all ranks in this process: many shapes against the
 * reference, by the checks of ep-bench moe, which are themselves tested here: a flipped bit must be
 * seen.
 */
#include "bench/common/bench.h"
#include "bench/moe/moe.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define WORDS_MAX 48

/* Splits a line of options into argv; o must stay where it is, its settings point into it. */
static void options(char *line, struct moe_opts *o)
{
	char *argv[WORDS_MAX] = { "moe", "--local" };
	int argc = 2;

	for (char *w = strtok(line, " "); w && argc < WORDS_MAX - 1; w = strtok(NULL, " "))
		argv[argc++] = w;
	assert_int_equal(moe_opts_parse(argc, argv, o), 0);
}

/* Runs a shape; how much of it was wrong. */
static uint64_t run(const char *text, moe_progress progress, void *arg, struct moe_result *res)
{
	char line[512];
	char note[256] = "";
	struct moe_opts o;
	uint64_t wrong = 0;
	int err;

	snprintf(line, sizeof(line), "%s", text);
	options(line, &o);
	memset(res, 0, sizeof(*res));
	err = moe_local_run(&o, progress, arg, res);
	if (err)
		fail_msg("ep-bench moe --local %s: error %d", text, err);
	for (int p = 0; p < MOE_PHASES; p++)
		wrong += moe_phase_wrong(&o, res, p, note, sizeof(note));
	if (wrong && !progress)
		print_message("ep-bench moe --local %s: %s%s\n", text, res->first_wrong, note);
	return wrong;
}

static void each_shape(const char *const *shapes, const char *more)
{
	static const char *const modes[] = { "ll", "ht" };
	struct moe_result res;

	for (int i = 0; shapes[i]; i++)
		for (int m = 0; m < 2; m++) {
			char text[512];

			snprintf(text, sizeof(text), "--mode %s %s %s", modes[m], shapes[i], more);
			assert_int_equal(run(text, NULL, NULL, &res), 0);
		}
}

static const char *const shapes[] = {
	"--ranks 1 --nodes 1 --experts 4 --topk 2 --tokens 5 --hidden 128",
	"--ranks 2 --nodes 1 --experts 4 --topk 4 --tokens 7 --hidden 256",
	"--ranks 2 --nodes 2 --experts 2 --topk 1 --tokens 3 --hidden 128 --dispatch bf16",
	"--ranks 8 --nodes 2 --experts 32 --topk 8 --tokens 16 --hidden 384 --rounds 4",
	"--ranks 8 --nodes 2 --experts 64 --topk 8 --tokens 9 --hidden 128 --routing deepseek",
	"--ranks 12 --nodes 2 --experts 12 --topk 12 --tokens 5 --hidden 128",
	"--ranks 5 --nodes 2 --experts 20 --topk 6 --tokens 11 --hidden 128 --rounds 3",
	"--ranks 7 --nodes 3 --experts 14 --topk 5 --tokens 8 --hidden 256 --dispatch bf16",
	"--ranks 7 --nodes 5 --experts 28 --topk 16 --tokens 6 --hidden 128 --rounds 3",
	"--ranks 6 --nodes 6 --experts 12 --topk 3 --tokens 13 --hidden 128",
	"--ranks 8 --nodes 2 --experts 32 --topk 8 --tokens 0 --hidden 128",
	"--ranks 8 --nodes 3 --experts 32 --topk 4 --tokens 10 --hidden 128 --routing one-expert",
	"--ranks 9 --nodes 2 --experts 36 --topk 4 --tokens 10 --hidden 128 --routing empty-ranks",
	"--ranks 8 --nodes 2 --experts 32 --topk 6 --tokens 10 --hidden 128 --routing zipf",
	"--ranks 6 --nodes 2 --experts 12 --topk 4 --tokens 10 --hidden 128 --unselected 0.4",
	"--ranks 4 --nodes 2 --experts 8 --topk 8 --tokens 4 --hidden 128 --unselected 1",
	NULL,
};

static void test_shapes_ordered(void **state)
{
	each_shape(shapes, "--seed 3");
}

static void test_shapes_unordered(void **state)
{
	each_shape(
		shapes,
		"--seed 5 --order unordered --reorder 0.3 --duplicate 0.1 --drop 0.05 --delay-us 50");
}

/* Rows that come late must hold their signal back: many small rounds with long delays. */
static void test_late_rows(void **state)
{
	struct moe_result res;

	for (int seed = 0; seed < 12; seed++)
		for (int m = 0; m < 2; m++) {
			char text[256];

			snprintf(
				text, sizeof(text),
				"--ranks 4 --nodes 2 --experts 4 --topk 3 --tokens 12 --hidden 128 --seed %d --mode %s "
				"--order unordered --reorder 0.5 --drop 0.1 --delay-us 300",
				seed, m ? "ht" : "ll");
			assert_int_equal(run(text, NULL, NULL, &res), 0);
			assert_true(res.fault[MOE_F_signals_waited].count > 0);
		}
}

static void test_every_topk(void **state)
{
	struct moe_result res;

	for (int k = 1; k <= 16; k++)
		for (int m = 0; m < 2; m++) {
			char text[256];

			snprintf(
				text, sizeof(text),
				"--ranks 4 --nodes 2 --experts 16 --topk %d --tokens 5 --hidden 128 --rounds 1 --mode %s",
				k, m ? "ht" : "ll");
			assert_int_equal(run(text, NULL, NULL, &res), 0);
			assert_true(res.received_rows > 0);
		}
}

/* ---- the checks can fail ---- */

enum damage { PAYLOAD, HEAD, BEHIND, RESULT };

/* Damages one bit or byte of what a rank got, after the phase where it is looked at. */
static void damage(void *arg, struct moe_job *job, uint32_t round, unsigned phase)
{
	enum damage what = *(const enum damage *)arg;
	struct moe_rank *r = &job->rank[1];
	uint32_t blocks = epf_moe_layout(r->moe)->blocks;
	uint8_t *row = NULL;
	uint32_t n = 0;

	if (round != 1)
		return;
	if (phase == MOE_COMBINE) {
		if (what == RESULT)
			r->out[job->opts->hidden - 1] ^= 1;
		return;
	}
	for (uint32_t b = 0; b < blocks && !row; b++) {
		n = epf_moe_block_rows(r->moe, b);
		if (n)
			row = (uint8_t *)(uintptr_t)epf_moe_row(r->moe, b, n - 1);
	}
	assert_non_null(row);
	if (what == PAYLOAD)
		row[epf_moe_layout(r->moe)->head_bytes + 77] ^= 4;
	else if (what == HEAD)
		((struct epf_moe_head *)(void *)row)->token ^= 1;
	else if (what == BEHIND)
		row[epf_moe_layout(r->moe)->row_bytes] ^= 1;
}

static void test_checks_see_damage(void **state)
{
	static const enum damage kinds[] = { PAYLOAD, HEAD, BEHIND, RESULT };

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		enum damage what = kinds[i];
		struct moe_result res;
		const char *text =
			"--mode ht --ranks 4 --nodes 2 --experts 8 --topk 3 --tokens 16 --hidden 128";

		assert_true(run(text, damage, &what, &res) > 0);
		assert_true(res.first_wrong[0] != 0);
	}
}

static void no_sink(const char *line)
{
	(void)line;
}

static void test_settings_of_nodes(void **state)
{
	static const char *const list[] = { "nic=emu", "1:emu-mtu=2048", "0:emu-mtu=1024",
					    "12:emu-seed=3", NULL };
	static const char *const bad[] = { "nic",        "1:nic",       ":nic=emu",
					   "-1:nic=emu", "1:2:nic=emu", "1:=emu" };
	const char *out[4];

	assert_int_equal(bench_settings_of(list, 0, out), 2);
	assert_string_equal(out[0], "nic=emu");
	assert_string_equal(out[1], "emu-mtu=1024");
	assert_int_equal(bench_settings_of(list, 12, out), 2);
	assert_string_equal(out[1], "emu-seed=3");
	assert_int_equal(bench_settings_of(list, 2, out), 1);
	bench_complain_to(no_sink);
	assert_int_equal(bench_settings_check(list, 13), 0);
	assert_int_equal(bench_settings_check(list, 12), -EINVAL);
	assert_int_equal(bench_setting_check("18446744073709551616:nic=emu"), 0);
	assert_int_equal(
		bench_settings_check((const char *[]){ "18446744073709551616:nic=emu", NULL },
				     UINT32_MAX),
		-EINVAL);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(bench_setting_check(bad[i]), -EINVAL);
	bench_complain_to(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_topk),        cmocka_unit_test(test_shapes_ordered),
		cmocka_unit_test(test_shapes_unordered),  cmocka_unit_test(test_late_rows),
		cmocka_unit_test(test_checks_see_damage), cmocka_unit_test(test_settings_of_nodes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
