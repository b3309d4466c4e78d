/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Statistics as writer and reader use them: numbers come back by name, unknown is not zero, blocks
 * come and go under a reader's eyes. What is particular to files is in test_stats_file.c, damage in
 * test_stats_bad.c.
 */
#include "tests/unit/queues/stats_kit.h"

#include <ctype.h>
#include <errno.h>
#include <pthread.h>

static void names_follow_the_table(void **state)
{
	static const struct {
		const char *id, *name, *unit;
	} rows[] = {

#define EPF_ROW(cls, rid, rname, runit, type, states, help) { #rid, rname, runit },
#include "queues/stats_keys.h"
	};
	size_t i, k;

	for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		assert_int_equal(strlen(rows[i].id), strlen(rows[i].name));
		for (k = 0; rows[i].id[k]; k++)
			assert_int_equal(tolower((unsigned char)rows[i].id[k]), rows[i].name[k]);
		if (!strcmp(rows[i].unit, "ns"))
			assert_string_equal(rows[i].name + strlen(rows[i].name) - 3, "_ns");
		if (!strcmp(rows[i].unit, "cycles"))
			assert_string_equal(rows[i].name + strlen(rows[i].name) - 4, "_tsc");
		if (!strcmp(rows[i].unit, "bytes"))
			assert_non_null(strstr(rows[i].name, "bytes"));
	}
}

static void numbers_come_back_by_name(void **state)
{
	static const struct epf_stats_label labels[] = { { NULL, 5 }, EPF_STATS_NO_LABEL };
	struct epf_stats *st = make(NULL, "t");
	struct epf_stats_reader *r;
	struct epf_stats_block *b;
	struct epf_stats_value v;

	assert_null(epf_stats_path(st));
	assert_int_equal(epf_stats_add_block(st, EPF_STATS_CORE, labels, 2, &b), 0);
	assert_int_equal((uintptr_t)b % 128, 0);
	epf_stat_add(b, EPF_STAT_CORE_CMDS_DEQUEUED, 3);
	epf_stat_add(b, EPF_STAT_CORE_CMDS_DEQUEUED, 4);
	epf_stat_add(b, EPF_STAT_CORE_PUBLISH_TSC, UINT64_MAX);
	epf_hist_add(epf_stat_hist(b, EPF_STAT_CORE_STEP_NS), 20);
	epf_hist_add(epf_stat_hist(b, EPF_STAT_CORE_QUEUE_DELAY_NS), 31);
	epf_hist_add(epf_stat_hist(b, EPF_STAT_CORE_QUEUE_DELAY_NS), 30);
	assert_int_equal(epf_stat_get(b, EPF_STAT_CORE_CMDS_DEQUEUED), 7);

	r = open_memory(st);
	assert_int_equal(epf_stats_reader_info(r)->block_count, 1);
	assert_string_equal(epf_stats_reader_info(r)->instance, "t");
	assert_string_equal(epf_stats_reader_info(r)->job, "job-7");
	assert_true(epf_stats_reader_info(r)->tsc_hz == 2100000000u);
	assert_string_equal(epf_stats_reader_block(r, 0)->label[0], "5");
	assert_string_equal(epf_stats_reader_block(r, 0)->label[1], "");
	assert_null(epf_stats_reader_block(r, 1));
	assert_int_equal(value_of(r, 0, "cmds_dequeued").number, 7);
	assert_true(value_of(r, 0, "publish_tsc").number == UINT64_MAX);
	assert_int_equal(value_of(r, 0, "doorbells").number, 0);
	assert_true(value_of(r, 0, "doorbells").known);
	v = value_of(r, 0, "step_ns");
	assert_int_equal(v.type, EPF_STATS_HISTOGRAM);
	assert_int_equal(v.number, 1);
	assert_int_equal(epf_hist_max(v.hist), 20);
	v = value_of(r, 0, "queue_delay_ns");
	assert_int_equal(v.number, 2);
	assert_int_equal(v.hist->sum, 61);
	epf_stats_reader_value(r, 1, 0, &v);
	assert_false(v.known);
	epf_stats_reader_value(r, 0, 128, &v);
	assert_false(v.known);
	epf_stats_reader_close(r);
	epf_stats_destroy(st, 0);
}

static void a_job_name_cannot_steer_a_terminal(void **state)
{
	struct epf_stats_opts opts = opts_of(NULL, "t");
	struct epf_stats_reader *r;
	struct epf_stats *st = NULL;

	opts.job = "a\033[2J\xc3";
	assert_int_equal(epf_stats_create(&opts, &st, why, sizeof(why)), 0);
	r = open_memory(st);
	assert_string_equal(epf_stats_reader_info(r)->job, "a?[2J?");
	epf_stats_reader_close(r);
	epf_stats_destroy(st, 0);
}

static void every_row_reads_its_own_word(void **state)
{
	static const struct epf_stats_label labels[] = { { "nic0", 0 }, { NULL, 1 }, { NULL, 2 } };
	static const uint32_t stats[] = {
#define EPF_ROW(cls, id, name, unit, type, states, help) \
 EPF_STATS_##cls == EPF_STATS_NIC ? (uint32_t)EPF_STAT_##cls##_##id : 0,
#include "queues/stats_keys.h"
	};
	struct epf_stats *st = make(NULL, "t");
	struct epf_stats_reader *r;
	struct epf_stats_block *b;
	struct epf_stats_value v;
	unsigned i, row = 0;

	assert_int_equal(epf_stats_add_block(st, EPF_STATS_NIC, labels, 3, &b), 0);
	for (i = 0; i < sizeof(stats) / sizeof(stats[0]); i++)
		if (stats[i])
			epf_stat_set(b, stats[i], 100 + i);
	r = open_memory(st);
	for (i = 0; i < sizeof(stats) / sizeof(stats[0]); i++) {
		if (!stats[i])
			continue;
		epf_stats_reader_value(r, 0, row++, &v);
		assert_true(v.known);
		if (v.type == EPF_STATS_STATE)
			assert_int_equal(v.since_ns, 100 + i);
		else
			assert_int_equal(v.number, 100 + i);
	}
	epf_stats_reader_close(r);
	epf_stats_destroy(st, 0);
}

static void unknown_is_not_zero(void **state)
{
	struct epf_stats *st = make(NULL, "t");
	struct epf_stats_block *b = add_peer(st, 0, 1);
	struct epf_stats_reader *r = open_memory(st);
	struct epf_stats_value v = value_of(r, 0, "state");

	assert_false(v.known);
	assert_int_equal(v.type, EPF_STATS_STATE);
	epf_stat_state(b, EPF_STAT_PEER_STATE, EPF_STATS_PEER_UP, 123456789);
	epf_stat_forget(b, EPF_STAT_PEER_STALLS_NO_CREDIT);
	assert_false(value_of(r, 0, "state").known); /* the reader's numbers stall */
	refresh(r);
	v = value_of(r, 0, "state");
	assert_true(v.known);
	assert_string_equal(v.state, "up");
	assert_int_equal(v.number, EPF_STATS_PEER_UP);
	assert_int_equal(v.since_ns, 123456789);
	assert_false(value_of(r, 0, "stalls_no_credit").known);
	assert_true(value_of(r, 0, "stalls_queue_full").known);
	epf_stat_know(b, EPF_STAT_PEER_STALLS_NO_CREDIT);
	epf_stat_state(b, EPF_STAT_PEER_STATE, 9, UINT64_MAX);
	refresh(r);
	assert_true(value_of(r, 0, "stalls_no_credit").known);
	v = value_of(r, 0, "state");
	assert_string_equal(v.state, "9"); /* a state without a name */
	assert_true(v.since_ns == EPF_STATS_SINCE_MASK);
	epf_stats_reader_close(r);
	epf_stats_destroy(st, 0);
}

static void blocks_come_and_go(void **state)
{
	static const struct epf_stats_label bad[] = { { "x", 0 }, { NULL, 0 } };
	static const struct epf_stats_label good[] = { { NULL, 9 }, { NULL, 9 } };
	struct epf_stats *st = make(NULL, "t");
	struct epf_stats_reader *r = open_memory(st);
	struct epf_stats_block *b[3], *more;

	b[0] = add_peer(st, 0, 10);
	b[1] = add_peer(st, 0, 11);
	b[2] = add_peer(st, 0, 12);
	assert_int_equal(epf_stats_add_block(st, EPF_STATS_PEER, good, 2, &more), -ENOSPC);
	epf_stat_add(b[1], EPF_STAT_PEER_CMDS, 5);
	epf_stats_remove_block(st, b[1]);
	epf_stats_remove_block(st, b[1]); /* harmless */
	epf_stats_remove_block(st, NULL);
	refresh(r);
	assert_int_equal(epf_stats_reader_info(r)->block_count, 2);
	assert_string_equal(epf_stats_reader_block(r, 1)->label[1], "12");
	assert_ptr_equal(add_peer(st, 0, UINT64_MAX), b[1]);
	refresh(r);
	assert_int_equal(epf_stats_reader_info(r)->block_count, 3);
	assert_string_equal(epf_stats_reader_block(r, 1)->label[1], "18446744073709551615");
	assert_int_equal(value_of(r, 1, "cmds").number, 0); /* not the 5 of the one before */

	epf_stats_remove_block(st, b[0]);
	assert_int_equal(epf_stats_add_block(st, EPF_STATS_PEER, bad, 2, &more), -EINVAL);
	assert_int_equal(epf_stats_add_block(st, EPF_STATS_PEER, good, 1, &more), -EINVAL);
	assert_int_equal(epf_stats_add_block(st, EPF_STATS_CLASSES, good, 2, &more), -EINVAL);
	epf_stats_reader_close(r);
	epf_stats_destroy(st, 0);
}

static void wrong_options_are_named(void **state)
{
	struct epf_stats_opts opts = opts_of(NULL, "t");
	struct epf_stats *st = NULL;
	char long_job[EPF_STATS_JOB_BYTES + 1] = { 0 };
	static const char *const names[] = { "",
					     ".hidden",
					     "a/b",
					     "a b",
					     "\xc3\xa4",
					     NULL,
					     "0123456789012345678901234567890123456789"
					     "012345678901234567890123" };
	size_t i;

	memset(long_job, 'j', EPF_STATS_JOB_BYTES);
	for (i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		opts.instance = names[i];
		assert_int_equal(epf_stats_create(&opts, &st, why, sizeof(why)), -EINVAL);
		assert_non_null(strstr(why, "instance name"));
	}
	opts = opts_of(NULL, "t");
	opts.job = long_job;
	assert_int_equal(epf_stats_create(&opts, &st, why, sizeof(why)), -EINVAL);
	assert_non_null(strstr(why, "EPF_STATS_JOB_BYTES"));
	opts = opts_of(NULL, "t");
	opts.size = 8;
	assert_int_equal(epf_stats_create(&opts, &st, why, sizeof(why)), -EINVAL);
	opts = opts_of(NULL, "t");
	opts.blocks[EPF_STATS_RING] = EPF_STATS_MAX_BLOCKS;
	assert_int_equal(epf_stats_create(&opts, &st, why, sizeof(why)), -E2BIG);
	assert_non_null(strstr(why, "EPF_STATS_MAX_BLOCKS"));
	opts = opts_of(NULL, "t");
	opts.blocks[EPF_STATS_CORE] = 30000;
	assert_int_equal(epf_stats_create(&opts, &st, NULL, 0), -E2BIG);
	assert_null(st);
	opts = opts_of(NULL, "t");
	opts.size =
		offsetof(struct epf_stats_opts, blocks) + 4; /* an older caller: fewer classes */
	assert_int_equal(epf_stats_create(&opts, &st, NULL, 0), 0);
	epf_stats_destroy(st, 0);
	epf_stats_destroy(NULL, 0);
}

struct pounding {
	struct epf_stats *st;
	struct epf_stats_block *steady;
	bool stop;
	uint64_t rounds;
};

/*
 * One number of the steady block only grows, with equal halves (a torn word would show); peers come
 * and go, each with all numbers equal to its label (an owner mixed up would show).
 */
static void *pound(void *arg)
{
	const uint64_t ones = ((uint64_t)1 << 32) + 1;
	struct pounding *p = arg;
	struct epf_stats_block *b;
	uint64_t n;

	for (n = 1; !EPF_LOAD_ACQUIRE(&p->stop); n++) {
		epf_stat_add(p->steady, EPF_STAT_PEER_CMDS, ones);
		if (n % 4)
			continue;
		b = add_peer(p->st, 7, n);
		epf_stat_add(b, EPF_STAT_PEER_BYTES_SENT, n);
		epf_stats_remove_block(p->st, b);
		EPF_STORE_RELAXED(&p->rounds, p->rounds + 1);
	}
	return NULL;
}

static void check_pounded(struct epf_stats_reader *r, uint64_t *last)
{
	struct epf_stats_value v;
	unsigned i;

	for (i = 0; i < epf_stats_reader_info(r)->block_count; i++) {
		if (strcmp(epf_stats_reader_block(r, i)->label[0], "7") != 0) {
			v = value_of(r, i, "cmds");
			assert_true(v.number >> 32 == (v.number & 0xffffffff));
			assert_true(v.number >= *last);
			*last = v.number;
			continue;
		}
		v = value_of(r, i, "bytes_sent");
		assert_true(v.number == 0 ||
			    v.number == strtoull(epf_stats_reader_block(r, i)->label[1], NULL, 10));
	}
	assert_true(i >= 1);
}

static void pound_and_read(struct epf_stats *st, struct epf_stats_reader *r)
{
	struct pounding p = { .st = st, .steady = add_peer(st, 0, 1) };
	uint64_t last = 0, changing = 0;
	pthread_t thread;
	int i;

	assert_int_equal(pthread_create(&thread, NULL, pound, &p), 0);
	/* On a busy machine the writer may not run for a while: until both have done something. */
	for (i = 0; i < 10000 || EPF_LOAD_RELAXED(&p.rounds) < 1000 || last == 0; i++) {
		refresh(r);
		check_pounded(r, &last);
		changing += epf_stats_reader_info(r)->blocks_changing;
	}
	EPF_STORE_RELEASE(&p.stop, true);
	assert_int_equal(pthread_join(thread, NULL), 0);
	print_message("%llu blocks made, %llu seen changing\n", (unsigned long long)p.rounds,
		      (unsigned long long)changing);
	assert_true(last > 0);
	epf_stats_reader_close(r);
	epf_stats_destroy(st, 0);
}

static void reader_in_memory_beside_writer(void **state)
{
	struct epf_stats *st = make(NULL, "busy");

	pound_and_read(st, open_memory(st));
}

static void reader_of_file_beside_writer(void **state)
{
	struct epf_stats *st = make(dir, "busy");

	pound_and_read(st, open_path(epf_stats_path(st)));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(names_follow_the_table),
		cmocka_unit_test(numbers_come_back_by_name),
		cmocka_unit_test(a_job_name_cannot_steer_a_terminal),
		cmocka_unit_test(every_row_reads_its_own_word),
		cmocka_unit_test(unknown_is_not_zero),
		cmocka_unit_test(blocks_come_and_go),
		cmocka_unit_test(wrong_options_are_named),
		cmocka_unit_test(reader_in_memory_beside_writer),
		IN_DIR(reader_of_file_beside_writer),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
