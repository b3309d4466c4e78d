/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model of ep-top on statistics files of its own making: numbers, rates, tables with their order and filter, details, metrics. JSON,
 * recordings and files that go wrong: test_top_record.c.
 */
#include "tests/unit/tools/top_kit.h"

#include <errno.h>
#include <inttypes.h>
#include <sys/wait.h>

/* ---- tables ---- */

static void totals_are_whole(void **state)
{
	struct rig r = open_rig();

	table(&r, TOP_CORES);
	assert_int_equal(r.table.n_lines, 1);
	assert_false(r.table.has_rates);
	is(&r, 0, "INSTANCE", "one");
	is(&r, 0, "COMMANDS", "1000");
	is(&r, 0, "PUT-REMOTE", "9007199254740993"); /* a floating-point number has no such */
	is(&r, 0, "STEP-P99", "7ns");
	is(&r, 0, "BUSY", "-");
	table(&r, TOP_RINGS);
	assert_int_equal(r.table.n_lines, 2);
	is(&r, 1, "TAKEN", "101");
	is(&r, 1, "FILL", "16/64");
	is(&r, 0, "GPU", "-");
	is(&r, 0, "WAIT", "");
	table(&r, TOP_JOBS);
	is(&r, 0, "JOB", "train");
	is(&r, 0, "COMMANDS", "1000");
	is(&r, 0, "SEEN", "2");
	table(&r, TOP_INSTANCES);
	is(&r, 0, "WRITER", "alive");
	is(&r, 0, "FILE", "one.stats");
	table(&r, TOP_WAITING);
	assert_int_equal(r.table.n_lines, 0);
	close_rig(&r);
}

static void rates_are_of_the_time_between(void **state)
{
	struct rig r = open_rig();
	struct top_sums s;

	epf_stat_add(r.core, EPF_STAT_CORE_CMDS_DEQUEUED, 5000);
	epf_stat_add(r.core, EPF_STAT_CORE_PUT_BYTES_REMOTE_NODE, 3000000);
	epf_stat_add(r.core, EPF_STAT_CORE_BUSY_TSC, SECOND);
	read_more(&r);
	r.now->now_ns = r.before->now_ns + 2 * SECOND;
	table(&r, TOP_CORES);
	assert_true(r.table.has_rates);
	is(&r, 0, "COMMANDS", "2.50k/s");
	is(&r, 0, "PUT-REMOTE", "1.50MB/s");
	is(&r, 0, "BUSY", "50.0%");
	is(&r, 0, "", "[|||||     ]");
	table(&r, TOP_JOBS);
	is(&r, 0, "COMMANDS", "2.50k/s");
	top_sum(r.schema, r.now, r.before, &s);
	assert_true(s.commands == 2500 && s.bytes == 1500000 && s.busy == 0.5);
	r.look.totals = true;
	table(&r, TOP_CORES);
	is(&r, 0, "COMMANDS", "6000");
	close_rig(&r);
}

/* A ring that was closed and opened again counts from zero: its rate must not be that of 2^64. */
static void what_began_anew_has_a_small_rate(void **state)
{
	struct rig r = open_rig();

	epf_stats_remove_block(r.st, r.ring[0]);
	epf_stats_remove_block(r.st, r.rank[0]);
	add_ring(&r, 0);
	epf_stat_add(r.ring[0], EPF_STAT_RING_CMDS_DEQUEUED, (uint64_t)-50);
	read_more(&r);
	r.now->now_ns = r.before->now_ns + SECOND;
	table(&r, TOP_RINGS);
	for (uint32_t i = 0; i < 2; i++)
		if (!strcmp(cell(&r, i, "RING")->text, "0"))
			is(&r, i, "TAKEN", "50.0/s");
	close_rig(&r);
}

static void sorted_and_filtered(void **state)
{
	struct rig r = open_rig();

	epf_stat_forget(r.ring[0], EPF_STAT_RING_CMDS_DEQUEUED);
	read_more(&r);
	r.look.totals = true;
	table(&r, TOP_RINGS);
	is(&r, 0, "TAKEN", "-");
	for (unsigned invert = 0; invert < 2; invert++) {
		/* The largest first; what is not known last, whichever the way. */
		r.look.invert = invert;
		r.look.sort = column(&r, "TAKEN");
		table(&r, TOP_RINGS);
		is(&r, 0, "TAKEN", "101");
		is(&r, 1, "TAKEN", "-");
		r.look.sort = column(&r, "FILL");
		table(&r, TOP_RINGS);
		is(&r, 0, "FILL", invert ? "0/64" : "16/64");
		r.look.sort = column(&r, "RING");
		table(&r, TOP_RINGS);
		is(&r, 0, "RING", invert ? "1" : "0"); /* names go upwards */
	}
	r.look.invert = false;
	strcpy(r.look.filter, "16/6");
	table(&r, TOP_RINGS);
	assert_int_equal(r.table.n_lines, 1);
	assert_int_equal(r.table.n_all, 2);
	is(&r, 0, "RING", "1");
	strcpy(r.look.filter, "ONE"); /* any case */
	table(&r, TOP_RINGS);
	assert_int_equal(r.table.n_lines, 2);
	strcpy(r.look.filter, "nowhere");
	table(&r, TOP_RINGS);
	assert_int_equal(r.table.n_lines, 0);
	close_rig(&r);
}

static void waiting_is_told(void **state)
{
	struct found because = { .name = "because" };
	struct rig r = open_rig();
	uint64_t since = r.now->now_ns - 3 * SECOND;

	/* Rank 0 waits for rank 1, which waits for room in its ring, which waits for credit of rank 0's engine. */
	epf_stat_state(r.rank[0], EPF_STAT_RANK_WAIT, EPF_STATS_WAIT_SIGNAL, since);
	epf_stat_set(r.rank[0], EPF_STAT_RANK_WAIT_NUMBER, 5);
	epf_stat_set(r.rank[0], EPF_STAT_RANK_WAIT_VALUE, 6);
	epf_stat_set(r.rank[0], EPF_STAT_RANK_WAIT_LEAST, 7);
	epf_stat_set(r.rank[0], EPF_STAT_RANK_WAIT_RANK, 1);
	epf_stat_state(r.ring[1], EPF_STAT_RING_WAIT, EPF_STATS_WAIT_CREDIT, since - SECOND);
	epf_stat_set(r.ring[1], EPF_STAT_RING_WAIT_RANK, 0);
	epf_stat_set(r.ring[1], EPF_STAT_RING_WAIT_STREAM, 12);
	read_more(&r);
	table(&r, TOP_WAITING);
	assert_int_equal(r.table.n_lines, 2);
	is(&r, 0, "WHAT", "CAUSE");
	is(&r, 0, "WHO", "ring");
	is(&r, 0, "RANK", "1");
	is(&r, 0, "PEER", "0");
	is(&r, 0, "STREAM", "12");
	is(&r, 0, "REASON", "no-credit");
	is(&r, 0, "BEHIND", "1");
	is(&r, 0, "JOB", "train");
	is(&r, 1, "WHAT", "follows");
	is(&r, 1, "PEER", "1");
	is(&r, 1, "REASON", "signal-missing");
	assert_true(cell(&r, 0, "SINCE")->key >= 4e9 && cell(&r, 0, "SINCE")->key < 60e9);
	assert_true(strstr(r.table.line[1].tail, "signal 5"));
	top_details(r.schema, r.now, NULL, &r.table.line[1], find_detail, &because);
	assert_string_equal(because.value, r.now->wait[0].text);
	table(&r, TOP_RINGS);
	assert_true(strstr(cell(&r, 1, "WAIT")->text, "credit 4."));
	is(&r, 1, "FOR-RANK", "0");
	close_rig(&r);
}

/* Who of a rank waits: a thread of it, or one of its kernels; screens, details, JSON. */
static void kernels_waits_are_told(void **state)
{
	struct found by = { .name = "by" };
	struct rig r = open_rig();
	struct top_schema *schema;
	struct top_shot *again;
	json_t *json;

	for (unsigned i = 0; i < 2; i++) {
		epf_stat_state(r.rank[i], EPF_STAT_RANK_WAIT, EPF_STATS_WAIT_SIGNAL,
			       r.now->now_ns - (3 - i) * SECOND);
		epf_stat_set(r.rank[i], EPF_STAT_RANK_WAIT_KERNEL, i);
	}
	read_more(&r);
	table(&r, TOP_RANKS);
	is(&r, 0, "BY", "thread");
	is(&r, 1, "BY", "kernel");
	table(&r, TOP_WAITING);
	assert_int_equal(r.table.n_lines, 2);
	is(&r, 0, "WHO", "rank");
	is(&r, 1, "WHO", "kernel");
	is(&r, 1, "RANK", "1");
	top_details(r.schema, r.now, NULL, &r.table.line[1], find_detail, &by);
	assert_string_equal(by.value, "a kernel of a GPU");
	json = top_json(r.schema, r.now, false);
	for (size_t i = 0; i < 2; i++) {
		json_t *wait = json_array_get(json_object_get(json, "waits"), i);

		assert_string_equal(json_string_value(json_object_get(wait, "who")), "rank");
		assert_true(json_is_boolean(json_object_get(wait, "kernel")));
		assert_int_equal(json_is_true(json_object_get(wait, "kernel")), i);
	}
	schema = top_schema_new();
	assert_int_equal(top_load(schema, json, &again, why, sizeof(why)), 0);
	assert_false(again->wait[0].kernel);
	assert_true(again->wait[1].kernel);
	top_shot_free(again);
	top_schema_free(schema);
	json_decref(json);
	epf_stat_state(r.rank[1], EPF_STAT_RANK_WAIT, EPF_STATS_WAIT_NONE, 1);
	read_more(&r);
	table(&r, TOP_RANKS);
	is(&r, 1, "BY", "");
	close_rig(&r);
}

static void details_have_every_row(void **state)
{
	struct found taken = { .name = "cmds_dequeued" }, hist = { .name = "step_ns" };
	struct rig r = open_rig();
	uint32_t n;

	table(&r, TOP_CORES);
	n = top_details(r.schema, r.now, NULL, &r.table.line[0], find_detail, &taken);
	top_details(r.schema, r.now, NULL, &r.table.line[0], find_detail, &hist);
	assert_true(n >= EPF_STATROWS_CORE + 2);
	assert_string_equal(taken.value, "1000 commands");
	assert_string_equal(hist.value, "n 3 p50 7 p99 7 p99.9 7 max 7 ns");
	close_rig(&r);
}

/* ---- metrics ---- */

static char *metrics(const struct rig *r, bool peer_labels)
{
	char *text = NULL;
	size_t bytes;
	FILE *f = open_memstream(&text, &bytes);

	assert_int_equal(top_prometheus(f, r->schema, r->now, peer_labels), 0);
	fclose(f);
	return text;
}

static void metrics_are_named_as_prometheus_wants(void **state)
{
	static const char *const lines[] = {
		"\n# TYPE ep_fabric_core_commands_dequeued_total counter\nep_fabric_core_commands_dequeued_total{instance=\"one\",core=\"0\",numa=\"1\"} 1000\n",
		"put_bytes_remote_node_total{instance=\"one\",core=\"0\",numa=\"1\"} 9007199254740993\n",
		"\n# TYPE ep_fabric_core_step_seconds summary\n",
		"\nep_fabric_core_step_seconds{instance=\"one\",core=\"0\",numa=\"1\",quantile=\"0.99\"} 7e-09\n",
		"\nep_fabric_core_step_seconds_sum{instance=\"one\",core=\"0\",numa=\"1\"} 2.1e-08\n",
		"\nep_fabric_core_step_seconds_count{instance=\"one\",core=\"0\",numa=\"1\"} 3\n",
		"\nep_fabric_core_busy_seconds_total{instance=\"one\",core=\"0\",numa=\"1\"} 0\n",
		"\nep_fabric_nic_link{instance=\"one\",device=\"mlx\\\"5\\\\0\",port=\"1\",core=\"0\",state=\"up\"} 1\n",
		"\nep_fabric_nic_link{instance=\"one\",device=\"mlx\\\"5\\\\0\",port=\"1\",core=\"0\",state=\"down\"} 0\n",
		"\nep_fabric_up{instance=\"one\"} 1\n",
		"\nep_fabric_blocks_left_out{class=\"peer\"} 0\n",
	};
	struct rig r = open_rig();
	char *text = metrics(&r, false);

	for (unsigned i = 0; i < sizeof(lines) / sizeof(*lines); i++)
		if (!strstr(text, lines[i]))
			fail_msg("missing: %s", lines[i]);
	/* What has no value has no line, and no head either. */
	assert_null(strstr(text, "failover_max"));
	free(text);
	close_rig(&r);
}

static void peers_are_left_out_where_there_are_many(void **state)
{
	struct epf_stats_opts opts = opts_of(dir, "many");
	struct rig r = { .look = { .sort = TOP_NATURAL } };
	char *text;

	opts.blocks[EPF_STATS_PEER] = TOP_LABELS_MAX + 1;
	assert_int_equal(epf_stats_create(&opts, &r.st, why, sizeof(why)), 0);
	for (unsigned i = 0; i <= TOP_LABELS_MAX; i++)
		add_peer(r.st, 0, i);
	r.schema = top_schema_new();
	assert_int_equal(
		top_source_live(&r.source, r.schema, dir, NULL, 0, 0, false, why, sizeof(why)), 0);
	read_more(&r);
	text = metrics(&r, false);
	assert_null(strstr(text, "ep_fabric_peer_"));
	assert_non_null(strstr(text, "blocks_left_out{class=\"peer\"} 1025\n"));
	free(text);
	text = metrics(&r, true);
	assert_non_null(strstr(
		text,
		"ep_fabric_peer_commands_total{instance=\"many\",core=\"0\",peer=\"1024\"} 0\n"));
	free(text);
	close_rig(&r);
}

/* An instance with an unnamed job, whose rank 0 waits for rank 1. */
static struct epf_stats *unnamed(const char *name, uint64_t id)
{
	static const struct epf_stats_label job[] = { { NULL, 0 }, { "-", 0 } },
					    core[] = { { NULL, 0 }, { NULL, 1 } },
					    rank[] = { { NULL, 0 }, { NULL, 0 } };
	struct epf_stats_opts opts = opts_of(dir, name);
	struct epf_stats_block *b;
	struct epf_stats *st;

	opts.blocks[EPF_STATS_JOB] = opts.blocks[EPF_STATS_RANK] = 1;
	assert_int_equal(epf_stats_create(&opts, &st, why, sizeof(why)), 0);
	epf_stat_add(add(st, EPF_STATS_CORE, core, 2), EPF_STAT_CORE_CMDS_DEQUEUED, id);
	b = add(st, EPF_STATS_JOB, job, 2);
	epf_stat_set(b, EPF_STAT_JOB_ID, id);
	epf_stat_set(b, EPF_STAT_JOB_WORLD, 2);
	b = add(st, EPF_STATS_RANK, rank, 2);
	epf_stat_set(b, EPF_STAT_RANK_WAIT_RANK, 1);
	epf_stat_state(b, EPF_STAT_RANK_WAIT, EPF_STATS_WAIT_SIGNAL, 1);
	return st;
}

/* Each has its own line, numbers and metrics; what has exited has none unless it is asked for. */
static void unnamed_jobs_and_the_dead(void **state)
{
	struct rig r = open_rig();
	struct epf_stats *a = unnamed("a", 0xa), *b = unnamed("b", 0xb);
	char path[128], *text;
	pid_t pid = fork();

	if (pid == 0) {
		unnamed("dead", 0xd);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	r.look.totals = true;
	read_more(&r);
	assert_int_equal(r.now->n_instances, 3);
	assert_int_equal(r.now->left_out, 1);
	table(&r, TOP_JOBS);
	assert_int_equal(r.table.n_lines, 3);
	for (unsigned i = 0; i < 3; i++) {
		if (strcmp(cell(&r, i, "JOB")->text, "-") != 0)
			continue;
		is(&r, i, "SEEN", "1");
		is(&r, i, "WAITS", "1");
		is(&r, i, "ID",
		   strcmp(cell(&r, i, "COMMANDS")->text, "10") ? "000000000000000b"
							       : "000000000000000a");
	}
	text = metrics(&r, false);
	assert_non_null(strstr(text, "ep_fabric_waits{job=\"-\",job_id=\"000000000000000a\","
				     "reason=\"signal-missing\"} 1\n"));
	assert_non_null(strstr(text, "ep_fabric_waits{job=\"-\",job_id=\"000000000000000b\","
				     "reason=\"signal-missing\"} 1\n"));
	assert_null(strstr(text, "dead"));
	free(text);
	top_source_close(r.source);
	assert_int_equal(
		top_source_live(&r.source, r.schema, dir, NULL, 0, 0, true, why, sizeof(why)), 0);
	read_more(&r);
	assert_int_equal(r.now->n_instances, 4);
	assert_int_equal(r.now->left_out, 0);
	assert_int_equal(r.now->n_jobs, 4);
	snprintf(path, sizeof(path), "%s/dead.stats", dir);
	assert_int_equal(unlink(path), 0);
	epf_stats_destroy(a, 0);
	epf_stats_destroy(b, 0);
	close_rig(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		IN_DIR(totals_are_whole),
		IN_DIR(rates_are_of_the_time_between),
		IN_DIR(what_began_anew_has_a_small_rate),
		IN_DIR(sorted_and_filtered),
		IN_DIR(waiting_is_told),
		IN_DIR(kernels_waits_are_told),
		IN_DIR(details_have_every_row),
		IN_DIR(metrics_are_named_as_prometheus_wants),
		IN_DIR(peers_are_left_out_where_there_are_many),
		IN_DIR(unnamed_jobs_and_the_dead),
	};

	return cmocka_run_group_tests_name("ep-top's model", tests, NULL, NULL);
}
