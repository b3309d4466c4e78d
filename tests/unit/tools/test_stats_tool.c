/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ep-fabric stats` on files of its own making: the same numbers as text and as JSON, unknown as
 * "-" and null, damage reported with an exit status and without losing the other instances.
 */
#include "tests/unit/queues/stats_kit.h"
#include "tools/cli/tools.h"

#include <fcntl.h>
#include <jansson.h>
#include <sys/stat.h>
#include <sys/wait.h>

static char output[65536];

/* Run the tool with its output in a file; returns its exit status. */
static int run(const char *a1, const char *a2, const char *a3)
{
	char stats_dir[96], *argv[6] = { (char *)"stats", stats_dir };
	const char *args[] = { a1, a2, a3 };
	int argc = 2, saved, status, fd, i;
	ssize_t n;

	snprintf(stats_dir, sizeof(stats_dir), "--stats-dir=%s", dir);
	for (i = 0; i < 3; i++)
		if (args[i])
			argv[argc++] = (char *)args[i];
	fflush(stdout);
	fd = open("/tmp", O_RDWR | O_TMPFILE, 0600);
	assert_true(fd >= 0);
	saved = dup(1);
	dup2(fd, 1);
	status = epf_tool_stats(argc, argv);
	fflush(stdout);
	dup2(saved, 1);
	close(saved);
	n = pread(fd, output, sizeof(output) - 1, 0);
	assert_true(n >= 0);
	output[n] = '\0';
	close(fd);
	return status;
}

static struct epf_stats *make_two_blocks(const char *name)
{
	static const struct epf_stats_label core[] = { { NULL, 0 }, EPF_STATS_NO_LABEL };
	struct epf_stats *st = make(dir, name);
	struct epf_stats_block *b;

	assert_int_equal(epf_stats_add_block(st, EPF_STATS_CORE, core, 2, &b), 0);
	epf_stat_add(b, EPF_STAT_CORE_CMDS_DEQUEUED, 123);
	epf_stat_set(b, EPF_STAT_CORE_BUSY_TSC, UINT64_MAX);
	epf_stat_forget(b, EPF_STAT_CORE_RING_FULL_SEEN);
	epf_hist_add_n(epf_stat_hist(b, EPF_STAT_CORE_STEP_NS), 7, 3);
	b = add_peer(st, 0, 9);
	epf_stat_state(b, EPF_STAT_PEER_STATE, EPF_STATS_PEER_UP, 1);
	return st;
}

static void text_has_every_number(void **state)
{
	struct epf_stats *st = make_two_blocks("t");

	assert_int_equal(run("t", NULL, NULL), 0);
	assert_non_null(strstr(output, "t: alive, process "));
	assert_non_null(strstr(output, "  core core=0 numa=-\n"));
	assert_non_null(strstr(output, "cmds_dequeued            123 commands\n"));
	assert_non_null(strstr(output, "ring_full_seen           -\n"));
	assert_non_null(strstr(output, "n 3, p50 7, p99 7, p99.9 7, max 7 ns\n"));
	assert_non_null(strstr(output, "  peer core=0 peer=9\n"));
	assert_non_null(strstr(output, "state                    up for "));
	epf_stats_destroy(st, 0);
}

/* A node by its path: "instances/0/blocks". */
static json_t *at(json_t *node, const char *path)
{
	char steps[128], *rest = steps, *step;

	snprintf(steps, sizeof(steps), "%s", path);
	while (node && (step = strsep(&rest, "/")))
		node = json_is_array(node) ? json_array_get(node, (size_t)atoi(step))
					   : json_object_get(node, step);
	if (!node)
		fail_msg("no %s in %s", path, output);
	return node;
}

static void json_has_every_number(void **state)
{
	struct epf_stats *st = make_two_blocks("t");
	json_t *top, *values;

	assert_int_equal(run("--json", NULL, NULL), 0);
	top = json_loads(output, 0, NULL);
	assert_non_null(top);
	assert_string_equal(json_string_value(at(top, "schema")), "epf.stats/1");
	assert_string_equal(json_string_value(at(top, "instances/0/instance")), "t");
	assert_string_equal(json_string_value(at(top, "instances/0/writer")), "alive");
	assert_string_equal(json_string_value(at(top, "instances/0/blocks/0/class")), "core");
	assert_int_equal(json_integer_value(at(top, "instances/0/blocks/0/labels/core")), 0);
	assert_true(json_is_integer(at(top, "instances/0/blocks/0/labels/core")));
	assert_true(json_is_null(at(top, "instances/0/blocks/0/labels/numa")));
	values = at(top, "instances/0/blocks/0/values");
	assert_int_equal(json_object_size(values), EPF_STATROWS_CORE);
	assert_int_equal(json_integer_value(at(values, "cmds_dequeued")), 123);
	assert_true(json_is_null(at(values, "ring_full_seen")));
	assert_true(json_real_value(at(values, "busy_tsc")) > 1.8e19);
	assert_int_equal(json_integer_value(at(values, "step_ns/count")), 3);
	assert_int_equal(json_integer_value(at(values, "step_ns/sum")), 21);
	assert_int_equal(json_integer_value(at(values, "step_ns/buckets/0/2")), 3);
	values = at(top, "instances/0/blocks/1/values");
	assert_string_equal(json_string_value(at(values, "state/state")), "up");
	assert_int_equal(json_integer_value(at(values, "state/since_ns")), 1);
	json_decref(top);
	epf_stats_destroy(st, 0);
}

static void damage_does_not_hide_the_others(void **state)
{
	struct epf_stats *a = make_two_blocks("a"), *c = make_two_blocks("c");
	char bad[128];
	json_t *top;

	snprintf(bad, sizeof(bad), "%s/b.stats", dir);
	fclose(fopen(bad, "w"));
	assert_int_equal(run("--json", NULL, NULL), 1);
	top = json_loads(output, 0, NULL);
	assert_non_null(top);
	assert_int_equal(json_array_size(at(top, "instances")), 3);
	assert_non_null(strstr(json_string_value(at(top, "instances/1/error")), "b.stats"));
	assert_string_equal(json_string_value(at(top, "instances/2/instance")), "c");
	json_decref(top);
	assert_int_equal(run(bad, "a", NULL), 1);
	assert_non_null(strstr(output, "a: alive"));
	unlink(bad);
	epf_stats_destroy(a, 0);
	epf_stats_destroy(c, 0);
}

/* What has exited is printed if it is named, or asked for. */
static void the_dead_are_left_out(void **state)
{
	char dead[128];
	pid_t pid = fork();
	json_t *top;

	if (pid == 0) {
		make_two_blocks("dead");
		_exit(0);
	}
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	snprintf(dead, sizeof(dead), "%s/dead.stats", dir);
	assert_int_equal(run("--json", NULL, NULL), 0);
	top = json_loads(output, 0, NULL);
	assert_int_equal(json_array_size(at(top, "instances")), 0);
	assert_int_equal(json_integer_value(at(top, "instances_left_out")), 1);
	json_decref(top);
	assert_int_equal(run(NULL, NULL, NULL), 0);
	assert_string_equal(output, "");
	assert_int_equal(run("--dead", NULL, NULL), 0);
	assert_non_null(strstr(output, "dead: dead, process "));
	assert_int_equal(run("dead", NULL, NULL), 0);
	assert_non_null(strstr(output, "dead: dead, process "));
	unlink(dead);
}

static void nothing_there_is_no_failure(void **state)
{
	assert_int_equal(run("--json", NULL, NULL), 0);
	assert_non_null(strstr(output, "\"instances\": []"));
	assert_int_equal(run("nobody", NULL, NULL), 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		IN_DIR(text_has_every_number),           IN_DIR(json_has_every_number),
		IN_DIR(damage_does_not_hide_the_others), IN_DIR(nothing_there_is_no_failure),
		IN_DIR(the_dead_are_left_out),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
