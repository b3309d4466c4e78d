/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of where configuration comes from: files, environment, aliases, command line; their
 * precedence and origins; what unknown names and bad lines say; and that a secret is neither taken
 * from nor shown in places that others can read. Run by meson.
 */
#define EPF_LOG_COMP "unit"
#include "fabric/base/conf_cli.h"

#include "fabric/base/err.h"
#include "fabric/base/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SECRET "correct-horse-battery"

static char dir[] = "/tmp/epf-test-conf-XXXXXX";
static char system_file[64], named_file[64];
static int saved_stderr = -1;
static FILE *captured;

static void write_file(const char *path, const char *text)
{
	FILE *f = fopen(path, "w");

	assert_non_null(f);
	fputs(text, f);
	assert_int_equal(fclose(f), 0);
}

static int setup(void **state)
{
	if (!mkdtemp(dir))
		return -1;
	snprintf(system_file, sizeof(system_file), "%s/system.conf", dir);
	snprintf(named_file, sizeof(named_file), "%s/named.conf", dir);
	return 0;
}

static int teardown(void **state)
{
	unlink(system_file);
	unlink(named_file);
	return rmdir(dir);
}

static void capture_start(void)
{
	captured = tmpfile();
	assert_non_null(captured);
	fflush(stderr);
	saved_stderr = dup(STDERR_FILENO);
	assert_true(dup2(fileno(captured), STDERR_FILENO) >= 0);
}

static void capture_end(char *text, size_t size)
{
	size_t n;

	fflush(stderr);
	dup2(saved_stderr, STDERR_FILENO);
	close(saved_stderr);
	rewind(captured);
	n = fread(text, 1, size - 1, captured);
	text[n] = '\0';
	fclose(captured);
}

static int load_text(struct epf_conf *conf, const char *text)
{
	return epf_conf_load_text(conf, text, strlen(text), EPF_CONF_FILE, "test.conf");
}

static error_t top_parse(int key, char *arg, struct argp_state *state)
{
	if (key == ARGP_KEY_INIT) {
		state->child_inputs[0] = state->input;
		return 0;
	}
	return ARGP_ERR_UNKNOWN;
}

/* Parses options as a tool would, without ending the process. */
static error_t parse_cli(struct epf_conf *conf, const struct argp *child, char *option)
{
	const struct argp_child children[] = { { .argp = child }, { 0 } };
	const struct argp top = { .parser = top_parse, .children = children };
	char *argv[] = { (char *)"tool", option, NULL };

	return argp_parse(&top, 2, argv, ARGP_NO_EXIT | ARGP_NO_HELP, NULL, conf);
}

static void a_file_sets_values_with_lines(void **state)
{
	struct epf_conf conf;

	epf_conf_init(&conf);
	assert_int_equal(load_text(&conf, "# comment\n"
					  "\n"
					  "ring-slots = 128\n"
					  "; comment\n"
					  "  ring_window=256 ; behind a value\n"
					  "\tnic: null\r\n"
					  "job = two words"),
			 0);
	assert_int_equal(conf.ring_slots, 128);
	assert_int_equal(conf.ring_window, 256);
	assert_int_equal(conf.nic, EPF_CONF_NIC_NULL);
	assert_string_equal(conf.job, "two words");
	assert_string_equal(epf_conf_origin(&conf, EPF_CONF_ID_ring_slots), "test.conf:3");
	assert_string_equal(epf_conf_origin(&conf, EPF_CONF_ID_ring_window), "test.conf:5");
	assert_string_equal(epf_conf_origin(&conf, EPF_CONF_ID_job), "test.conf:7");
	epf_conf_destroy(&conf);
}

/* Loading the text must fail with this number and a message with this part. */
static void file_refused(const char *text, size_t len, int rc, const char *part)
{
	struct epf_conf conf;

	epf_conf_init(&conf);
	assert_int_equal(epf_conf_load_text(&conf, text, len, EPF_CONF_FILE, "test.conf"), rc);
	if (!strstr(epf_last_error(), part))
		fail_msg("message '%s' lacks '%s'", epf_last_error(), part);
	epf_conf_destroy(&conf);
}

#define REFUSED(text, rc, part) file_refused(text, sizeof(text) - 1, rc, part)

static void a_bad_line_is_named(void **state)
{
	char line[400];

	REFUSED("\nring-slots = 65\n", -ERANGE,
		"test.conf:2: ring-slots = '65' is outside 64 .. 65536, a power of two: ");
	REFUSED("# x\nring-slot = 64\n", -EINVAL,
		"test.conf:2: 'ring-slot' is not a setting, the nearest is ring-slots");
	REFUSED("peer-timeout = 5\n", -EINVAL, "test.conf:1: peer-timeout = '5' is not a time");
	REFUSED("nic = emu\nno equals sign\n", -EINVAL, "test.conf:2: is not 'name = value'");
	REFUSED("nic = emu\nnic = null\n", -EEXIST, "test.conf:2: nic is set in line 1 already");
	REFUSED("nic = emu\n[engine]\n", -EINVAL, "test.conf:2: this file has no sections");
	REFUSED("nic = e\0mu\n", -EINVAL, "test.conf:1: holds a zero byte");
	REFUSED("= 5\n", -EINVAL, "test.conf:1: '' is not a setting");
	memset(line, 'x', sizeof(line));
	memcpy(line, "job = ", 6);
	file_refused(line, sizeof(line), -E2BIG, "test.conf:1: 400 bytes, the limit is ");
}

static void an_indented_line_is_not_a_continuation(void **state)
{
	struct epf_conf conf;

	epf_conf_init(&conf);
	assert_int_equal(load_text(&conf, "job = one\n   instance = two\n"), 0);
	assert_string_equal(conf.job, "one");
	assert_string_equal(conf.instance, "two");
	epf_conf_destroy(&conf);
}

static void the_stronger_source_wins(void **state)
{
	static char *const env[] = { (char *)"EPF_RANK=4", (char *)"EPF_JOB=env",
				     (char *)"NCCL_SOCKET_IFNAME=eth7",
				     (char *)"NCCL_IB_GID_INDEX=3", NULL };
	struct epf_conf_places places = { .system_file = system_file,
					  .named_file = named_file,
					  .environment = env };
	struct epf_conf conf;
	char origin[96];

	write_file(system_file, "rank = 1\njob = system\ncore-batch = 11\nregions = 5\n"
				"gid-index = 9\n");
	write_file(named_file, "rank = 2\njob = named\ncore-batch = 22\n");
	epf_conf_init(&conf);
	/* The command line comes first in time and still wins. */
	assert_int_equal(parse_cli(&conf, &epf_conf_argp, (char *)"--rank=5"), 0);
	assert_int_equal(epf_conf_load(&conf, &places), 0);
	assert_int_equal(conf.rank, 5);
	assert_string_equal(epf_conf_origin(&conf, EPF_CONF_ID_rank), "command line");
	assert_string_equal(conf.job, "env");
	assert_string_equal(epf_conf_origin(&conf, EPF_CONF_ID_job), "environment EPF_JOB");
	assert_int_equal(conf.core_batch, 22);
	snprintf(origin, sizeof(origin), "%s:3", named_file);
	assert_string_equal(epf_conf_origin(&conf, EPF_CONF_ID_core_batch), origin);
	assert_int_equal(conf.regions, 5);
	snprintf(origin, sizeof(origin), "%s:4", system_file);
	assert_string_equal(epf_conf_origin(&conf, EPF_CONF_ID_regions), origin);
	assert_string_equal(conf.socket_ifname, "eth7");
	assert_string_equal(epf_conf_origin(&conf, EPF_CONF_ID_socket_ifname),
			    "environment NCCL_SOCKET_IFNAME (alias)");
	assert_int_equal(conf.gid_index, 9);
	assert_string_equal(epf_conf_origin(&conf, EPF_CONF_ID_signals), "default");
	/* A weaker source later changes nothing, a program's option beats the environment. */
	assert_int_equal(epf_conf_set(&conf, "job", "late", EPF_CONF_FILE), 0);
	assert_string_equal(conf.job, "env");
	assert_int_equal(epf_conf_set(&conf, "job", "api", EPF_CONF_PROGRAM), 0);
	assert_string_equal(conf.job, "api");
	epf_conf_destroy(&conf);
	unlink(system_file);
	unlink(named_file);
}

static void a_named_file_must_be_readable(void **state)
{
	static char *const env[] = { (char *)"EPF_CONFIG=/nonexistent/ep-fabric.conf", NULL };
	struct epf_conf_places places = { .system_file = system_file, .environment = env };
	struct epf_conf conf;

	epf_conf_init(&conf);
	assert_int_equal(epf_conf_load(&conf, &places), -ENOENT);
	assert_non_null(strstr(epf_last_error(), "/nonexistent/ep-fabric.conf: No such file"));
	assert_non_null(strstr(epf_last_error(), "[EPF-103]"));
	places.named_file = dir;
	assert_true(epf_conf_load(&conf, &places) < 0);
	assert_non_null(strstr(epf_last_error(), "[EPF-103]"));
	places.named_file = "/dev/zero";
	assert_int_equal(epf_conf_load(&conf, &places), -EINVAL);
	assert_non_null(strstr(epf_last_error(), "not a regular file"));
	/* The system file may be absent; --config goes before EPF_CONFIG. */
	write_file(named_file, "rank = 6\n");
	conf.config_file = strdup(named_file);
	places.named_file = NULL;
	assert_int_equal(epf_conf_load(&conf, &places), 0);
	assert_int_equal(conf.rank, 6);
	epf_conf_destroy(&conf);
	unlink(named_file);
}

static void a_huge_file_is_refused(void **state)
{
	struct epf_conf_places places = { .named_file = named_file };
	struct epf_conf conf;

	write_file(named_file, "#");
	assert_int_equal(truncate(named_file, EPF_CONF_FILE_MAX_BYTES + 1), 0);
	epf_conf_init(&conf);
	assert_int_equal(epf_conf_load(&conf, &places), -EFBIG);
	assert_non_null(strstr(epf_last_error(), "larger than 1048576 bytes"));
	epf_conf_destroy(&conf);
	unlink(named_file);
}

static void an_unknown_variable_is_a_warning(void **state)
{
	static char *const env[] = { (char *)"EPF_RING_SLOT=" SECRET,
				     (char *)"EPF_rank=1",
				     (char *)"EPF_LOGS=x",
				     (char *)"EPF_LOG=info",
				     (char *)"EPF_SEED=1",
				     (char *)"EPF_",
				     (char *)"EPF_=x",
				     (char *)"EPFX=1",
				     (char *)"EPF_RING-SLOTS=64",
				     NULL };
	struct epf_conf_places places = { .environment = env };
	struct epf_conf conf;
	char text[4096];

	epf_conf_init(&conf);
	capture_start();
	assert_int_equal(epf_conf_load(&conf, &places), 0);
	capture_end(text, sizeof(text));
	assert_non_null(strstr(text, "environment EPF_RING_SLOT: is no variable of ep-fabric and "
				     "does nothing; nearest: EPF_RING_SLOTS"));
	assert_non_null(strstr(text, "EPF_LOGS: is no variable of ep-fabric and does nothing; "
				     "nearest: EPF_LOG\n"));
	assert_non_null(strstr(text, "environment EPF_rank: is no variable"));
	assert_non_null(strstr(text, "environment EPF_RING-SLOTS: is no variable"));
	assert_null(strstr(text, "EPF_SEED:"));
	assert_null(strstr(text, "EPFX"));
	assert_null(strstr(text, SECRET)); /* it might be a mistyped EPF_SECRET */
	assert_int_equal(conf.rank, -1);
	assert_int_equal(conf.ring_slots, 4096);
	epf_conf_destroy(&conf);
}

static void a_bad_variable_is_an_error(void **state)
{
	static char *const env[] = { (char *)"EPF_RANK=4096", NULL };
	static char *const empty[] = { (char *)"EPF_RANK=", NULL };
	struct epf_conf_places places = { .environment = env };
	struct epf_conf conf;

	epf_conf_init(&conf);
	assert_int_equal(epf_conf_load(&conf, &places), -ERANGE);
	assert_non_null(strstr(epf_last_error(), "environment EPF_RANK: rank = '4096' is outside "
						 "0 .. 4095 or auto"));
	places.environment = empty;
	assert_int_equal(epf_conf_load(&conf, &places), -EINVAL);
	epf_conf_destroy(&conf);
}

static void a_bad_alias_is_a_warning(void **state)
{
	static char *const env[] = { (char *)"NCCL_IB_GID_INDEX=many", NULL };
	static char *const minus[] = { (char *)"NCCL_IB_GID_INDEX=-1", NULL };
	struct epf_conf_places places = { .environment = env };
	struct epf_conf conf;
	char text[1024];

	epf_conf_init(&conf);
	capture_start();
	assert_int_equal(epf_conf_load(&conf, &places), 0);
	capture_end(text, sizeof(text));
	assert_non_null(strstr(text, "environment NCCL_IB_GID_INDEX (alias): gid-index = 'many'"));
	assert_int_equal(conf.gid_index, -1);
	assert_string_equal(epf_conf_origin(&conf, EPF_CONF_ID_gid_index), "default");
	places.environment = minus;
	assert_int_equal(epf_conf_load(&conf, &places), 0);
	assert_int_equal(conf.gid_index, -1);
	assert_string_equal(epf_conf_origin(&conf, EPF_CONF_ID_gid_index),
			    "environment NCCL_IB_GID_INDEX (alias)");
	epf_conf_destroy(&conf);
}

static void options_are_parsed_and_refused(void **state)
{
	struct epf_conf conf;
	char text[2048];

	epf_conf_init(&conf);
	assert_int_equal(parse_cli(&conf, &epf_conf_argp, (char *)"--emu-delay=1.5ms"), 0);
	assert_int_equal(conf.emu_delay_ns, 1500000);
	assert_int_equal(parse_cli(&conf, &epf_conf_argp, (char *)"--config=/x/y"), 0);
	assert_string_equal(conf.config_file, "/x/y");
	capture_start();
	assert_int_equal(parse_cli(&conf, &epf_conf_argp, (char *)"--lane-depth=3"), ERANGE);
	capture_end(text, sizeof(text));
	assert_non_null(strstr(text, "command line: lane-depth = '3' is outside 4 .. 32768"));
	assert_int_equal(conf.lane_depth, 256);
	epf_conf_destroy(&conf);
}

static void a_tool_can_choose_groups(void **state)
{
	struct epf_conf_cli cli;
	struct epf_conf conf;
	unsigned int names = 0, shown = 0;
	char text[2048];

	epf_conf_init(&conf);
	epf_conf_cli_init(&cli, EPF_CONF_GROUP_BIT(EMU), false);
	for (const struct argp_option *o = cli.option; o->name || o->doc; o++) {
		names += o->name != NULL;
		shown += o->name && !(o->flags & OPTION_HIDDEN);
	}
	assert_int_equal(names, 1 + EPF_CONF_FIRST_VERBS - EPF_CONF_FIRST_EMU);
	assert_true(shown < names && shown > 1);
	assert_int_equal(parse_cli(&conf, &cli.argp, (char *)"--emu-mtu=1k"), 0);
	assert_int_equal(conf.emu_mtu_bytes, 1024);
	capture_start();
	assert_int_not_equal(parse_cli(&conf, &cli.argp, (char *)"--rank=1"), 0);
	capture_end(text, sizeof(text));
	assert_int_equal(conf.rank, -1);
	epf_conf_destroy(&conf);
}

static void help_tells_range_default_and_variable(void **state)
{
	struct epf_conf_cli cli;
	char *text = NULL;
	size_t len = 0;
	FILE *out = open_memstream(&text, &len);

	epf_conf_cli_init(&cli, EPF_CONF_GROUPS_ALL, true);
	argp_help(&cli.argp, out, ARGP_HELP_LONG, (char *)"tool");
	fclose(out);
	assert_non_null(strstr(text, "--ring-slots=N"));
	assert_non_null(strstr(text, "--config=PATH"));
	assert_non_null(strstr(text, "default 4096;"));
	assert_non_null(strstr(text, "EPF_RING_SLOTS]"));
	assert_non_null(strstr(text, "Software NIC"));
	assert_null(strstr(text, "--secret=")); /* refused there, so not offered */
	free(text);
}

static void a_secret_is_taken_from_the_environment_only(void **state)
{
	static char *const env[] = { (char *)"EPF_SECRET=" SECRET, NULL };
	static char *const tiny[] = { (char *)"EPF_SECRET=hunter2", NULL };
	struct epf_conf_places places = { .environment = env };
	struct epf_conf conf;
	char text[2048], *value;

	epf_conf_init(&conf);
	capture_start();
	assert_int_equal(parse_cli(&conf, &epf_conf_argp, (char *)"--secret=" SECRET), EPERM);
	capture_end(text, sizeof(text));
	assert_non_null(strstr(text, "command line: secret is taken from the environment only"));
	assert_null(strstr(text, SECRET));
	assert_int_equal(load_text(&conf, "secret = " SECRET "\n"), -EPERM);
	assert_null(strstr(epf_last_error(), SECRET));
	places.environment = tiny;
	assert_int_equal(epf_conf_load(&conf, &places), -ERANGE);
	assert_null(strstr(epf_last_error(), "hunter2"));
	places.environment = env;
	assert_int_equal(epf_conf_load(&conf, &places), 0);
	assert_string_equal(conf.secret, SECRET);
	value = epf_conf_value(&conf, EPF_CONF_ID_secret);
	assert_string_equal(value, "(set)");
	free(value);
	epf_conf_destroy(&conf);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_file_sets_values_with_lines),
		cmocka_unit_test(a_bad_line_is_named),
		cmocka_unit_test(an_indented_line_is_not_a_continuation),
		cmocka_unit_test(the_stronger_source_wins),
		cmocka_unit_test(a_named_file_must_be_readable),
		cmocka_unit_test(a_huge_file_is_refused),
		cmocka_unit_test(an_unknown_variable_is_a_warning),
		cmocka_unit_test(a_bad_variable_is_an_error),
		cmocka_unit_test(a_bad_alias_is_a_warning),
		cmocka_unit_test(options_are_parsed_and_refused),
		cmocka_unit_test(a_tool_can_choose_groups),
		cmocka_unit_test(help_tells_range_default_and_variable),
		cmocka_unit_test(a_secret_is_taken_from_the_environment_only),
	};

	epf_log_configure("warning");
	return cmocka_run_group_tests(tests, setup, teardown) ? 1 : 0;
}
