/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-fabric as its users meet it: the program is started, its output and exit status are read. What stats and bootstrap
 * print has tests of its own (test_stats_tool.c, test_boot_tool.c). Started with the program's path.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "fabric/client/epf.h"

static const char *program;
static char out[65536], err[65536];

static void slurp(FILE *f, char *text, size_t size)
{
	size_t n;

	rewind(f);
	n = fread(text, 1, size - 1, f);
	text[n] = '\0';
	fclose(f);
}

/* Runs the tool, with the variables first; returns its exit status and leaves its output in out and err. */
static int run(char *const variables[], char *const argv[])
{
	FILE *o = tmpfile(), *e = tmpfile();
	int status;
	pid_t pid;

	assert_true(o && e);
	pid = fork();
	if (pid == 0) {
		dup2(fileno(o), 1);
		dup2(fileno(e), 2);
		for (char *const *v = variables; *v; v++)
			putenv(*v);
		execv(program, argv);
		_exit(99);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	slurp(o, out, sizeof(out));
	slurp(e, err, sizeof(err));
	return WEXITSTATUS(status);
}

#define LIST(...)   ((char *[]){ __VA_ARGS__, NULL })
#define ARGS(...)   LIST((char *)"ep-fabric", __VA_ARGS__)
#define NO_ENV      ((char *[]){ NULL })
#define TOOL(...)   run(NO_ENV, ARGS(__VA_ARGS__))
#define one_line(s) (strchr(s, '\n') == (s) + strlen(s) - 1)

static const char golden_help[] =
	"Usage: ep-fabric COMMAND [OPTION...]\n"
	"\n"
	"  bootstrap  serve the rendezvous of a job, or print what it would do\n"
	"  config     print every setting with its value and where that comes from\n"
	"  doctor     check what this node needs; name each fault and the command that fixes it\n"
	"  drain      let the jobs of a daemon run to their end and refuse new ones\n"
	"  exec       run a program over the back end that EPF_BACKEND names\n"
	"  launch     run a program as the ranks of a job on several hosts\n"
	"  link       cut or restore a link of the software NIC, for tests\n"
	"  nics       print the kinds of NIC, and which device serves which GPU\n"
	"  report     gather what a bug report needs into one JSON object\n"
	"  run        serve the ranks of this node: the daemon\n"
	"  shim       run a program whose DeepEP was compiled with NVSHMEM over this fabric\n"
	"  stats      print the statistics of instances\n"
	"  status     print what the daemons of this node do\n"
	"  trace      print the last events of engine cores for a trace viewer\n"
	"  version    print the versions of this release and its formats\n"
	"  why        say why a job hangs: what waits for what, and the cause\n"
	"\n"
	"ep-fabric COMMAND --help lists the options; what reads prints JSON with --json.\n";

static void help_is_as_written_here(void **state)
{
	assert_int_equal(TOOL("--help"), 0);
	assert_string_equal(out, golden_help);
	assert_string_equal(err, "");
	assert_int_equal(run(NO_ENV, LIST((char *)"ep-fabric")), 2); /* nothing was asked for */
	assert_string_equal(out, "");
	assert_string_equal(err, golden_help);
}

static void an_unknown_command_gets_the_nearest(void **state)
{
	assert_int_equal(TOOL("confg"), 2);
	assert_string_equal(out, "");
	assert_string_equal(
		err,
		"ep-fabric: 'confg' is not a command; did you mean config? See ep-fabric --help\n");
	assert_int_equal(TOOL("stat"), 2);
	assert_non_null(strstr(err, "did you mean stats?"));
	assert_int_equal(TOOL(""), 2);
	assert_true(one_line(err));
	assert_int_equal(TOOL("--json"), 2);
	assert_true(one_line(err));
	assert_non_null(strstr(err, "--json"));
}

/* The line of a setting: "ring-slots             = 128              (environment EPF_RING_SLOTS)". */
static void assert_setting(const char *name, const char *value, const char *origin)
{
	char line[256];

	snprintf(line, sizeof(line), "%-22s = %-16s (%s)\n", name, value, origin);
	if (!strstr(out, line))
		fail_msg("no line '%s' in:\n%s", line, out);
}

static void config_names_each_origin(void **state)
{
	char path[] = "/tmp/epf-tool-XXXXXX", option[80], origin[64];
	char *env[] = { (char *)"EPF_RING_SLOTS=128", (char *)"EPF_CORE_BATCH=8", NULL };
	static const char text[] = "# a comment\npark-limit = 99\ncore-batch = 7\n";
	int fd = mkstemp(path);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, sizeof(text) - 1), sizeof(text) - 1);
	close(fd);
	snprintf(option, sizeof(option), "--config=%s", path);
	snprintf(origin, sizeof(origin), "%s:2", path);
	assert_int_equal(run(env, ARGS("config", option, "--nic=null")), 0);
	assert_setting("nic", "null", "command line");
	assert_setting("ring-slots", "128", "environment EPF_RING_SLOTS");
	assert_setting("core-batch", "8", "environment EPF_CORE_BATCH");
	assert_setting("defer-limit", "99", origin);
	assert_setting("core-idle", "sleep", "default");
	assert_int_equal(run(env, ARGS("config", option, "--changed")), 0);
	assert_setting("defer-limit", "99", origin);
	assert_null(strstr(out, "core-idle"));
	unlink(path);
	assert_int_equal(TOOL("config", option), 1);
	assert_true(one_line(err));
	assert_non_null(strstr(err, path));
}

static void config_says_what_settings_mean(void **state)
{
	assert_int_equal(TOOL("config", "--docs"), 0);
	assert_non_null(
		strstr(out, "Command slots of a ring.\n    range: 64 .. 65536, a power of two;"));
	assert_int_equal(TOOL("config", "--help"), 0);
	assert_non_null(strstr(out, "Usage: ep-fabric config [OPTION...]"));
	assert_non_null(strstr(out, "--ring-slots=N"));
}

static void config_hides_the_secret(void **state)
{
	char *env[] = { (char *)"EPF_SECRET=sixteen-letters-or-more", NULL };

	assert_int_equal(run(env, ARGS("config", "--docs")), 0);
	assert_setting("secret", "(set)", "environment EPF_SECRET");
	assert_null(strstr(out, "sixteen"));
	assert_int_equal(run(env, ARGS("config", "--json")), 0);
	assert_null(strstr(out, "sixteen"));
	assert_int_equal(TOOL("config", "--secret=sixteen-letters-or-more"), 2);
	assert_null(strstr(err, "sixteen"));
}

static void wrong_settings_are_explained(void **state)
{
	char *env[] = { (char *)"EPF_RING_SLOTS=17", NULL };

	assert_int_equal(TOOL("config", "--ring-slots=17"), 2);
	assert_non_null(strstr(err, "64 .. 65536, a power of two"));
	assert_true(one_line(err));
	assert_int_equal(TOOL("config", "--bogus"), 2);
	assert_non_null(strstr(err, "--bogus"));
	assert_int_equal(TOOL("config", "surplus"), 2);
	assert_int_equal(run(env, ARGS("config")), 1);
	assert_non_null(strstr(err, "environment EPF_RING_SLOTS"));
	assert_true(one_line(err));
	assert_string_equal(out, "");
}

/* The parsed output of a command that must succeed, with this schema. */
static json_t *json_of(const char *schema, char *const argv[])
{
	json_t *top;

	assert_int_equal(run(NO_ENV, argv), 0);
	top = json_loads(out, 0, NULL);
	if (!top)
		fail_msg("no JSON: %s", out);
	assert_string_equal(json_string_value(json_object_get(top, "schema")), schema);
	return top;
}

static void json_is_json(void **state)
{
	json_t *top = json_of("epf.config/1", ARGS("config", "--json", "--nic=null", "--changed"));
	json_t *rows = json_object_get(top, "settings"), *row;

	assert_int_equal(json_array_size(rows), 1);
	row = json_array_get(rows, 0);
	assert_string_equal(json_string_value(json_object_get(row, "name")), "nic");
	assert_string_equal(json_string_value(json_object_get(row, "value")), "null");
	assert_string_equal(json_string_value(json_object_get(row, "origin")), "command line");
	json_decref(top);
	top = json_of("epf.version/1", ARGS("version", "--json"));
	assert_string_equal(json_string_value(json_object_get(top, "version")), epf_version());
	assert_true(json_is_integer(json_object_get(top, "ring_version")));
	assert_true(json_is_integer(json_object_get(top, "service_version_major")));
	json_decref(top);
	json_decref(
		json_of("epf.stats/1", ARGS("stats", "--json", "--stats-dir=/tmp/no/such/dir")));
	json_decref(json_of("epf.why/1", ARGS("why", "--json", "--stats-dir=/tmp/no/such/dir")));
	assert_int_equal(TOOL("trace", "--stats-dir=/tmp/no/such/dir"), 1);
	assert_true(one_line(err));
	assert_int_equal(TOOL("why", "--least-ms=x"), 2);
	assert_int_equal(TOOL("why", "/no/such.stats"), 1);
	assert_true(one_line(err));
	json_decref(json_of("epf.status/1",
			    ARGS("status", "--json", "--runtime-dir=/tmp/no/such/dir")));
	json_decref(json_of("epf.bootstrap_plan/1",
			    ARGS("bootstrap", "dry-run", "--ranks=2", "--nodes=1", "--json")));
}

static void nics_are_described(void **state)
{
	json_t *top = json_of("epf.nics/1", ARGS("nics", "--json", "--emu-order=unordered"));
	json_t *list = json_object_get(top, "nics"), *emu = json_array_get(list, 0);

	assert_true(json_array_size(list) >= 2);
	assert_true(json_is_array(json_object_get(top, "devices")));
	assert_true(json_array_size(json_object_get(top, "choices")) >= 1);
	assert_string_equal(json_string_value(json_object_get(emu, "name")), "emu");
	assert_true(json_is_false(json_object_get(emu, "is_ordered")));
	assert_true(json_is_true(json_object_get(emu, "is_chosen")));
	assert_true(json_integer_value(json_object_get(emu, "max_message_bytes")) > 0);
	json_decref(top);
	assert_int_equal(run(LIST((char *)"EPF_EMU_ORDER=unordered"), ARGS("nics")), 0);
	assert_non_null(strstr(out, "\n*emu    unordered"));
	assert_int_equal(TOOL("nics", "--nic=null"), 0);
	assert_non_null(strstr(out, "\n*null"));
	assert_non_null(strstr(out, "\n emu"));
	/* One kind that cannot be opened does not hide the other. */
	assert_int_equal(TOOL("nics", "--emu-mtu=300"), 1);
	assert_non_null(strstr(out, " null"));
	assert_non_null(strstr(err, "emu-mtu is 300"));
	/* One that nobody asked for is no failure. */
	assert_int_equal(TOOL("nics", "--emu-mtu=300", "--nic=null"), 0);
	assert_non_null(strstr(out, "\n emu    cannot be opened here: "));
	assert_string_equal(err, "");
	assert_int_equal(TOOL("nics", "--sysfs=/no/such/dir"), 1);
	assert_true(one_line(err));
	assert_non_null(strstr(err, "/no/such/dir: No such file or directory"));
	assert_int_equal(TOOL("nics", "--ranks=0"), 2);
	assert_int_equal(TOOL("nics", "--ranks=x"), 2);
}

/* Daemons that run are asked in tests/proc/test_service.c. */
static void no_daemon_is_a_failure(void **state)
{
	char *const here = (char *)"--runtime-dir=/tmp/no/such/dir";

	assert_int_equal(TOOL("status", here, "--instance=x"), 1);
	assert_true(one_line(err));
	assert_non_null(strstr(err, "EPF-701"));
	assert_int_equal(TOOL("drain", here), 1);
	assert_true(one_line(err));
	assert_non_null(strstr(err, "no daemon has a socket in /tmp/no/such/dir"));
	assert_int_equal(TOOL("link", here), 2);
	assert_non_null(strstr(err, "--up or --down"));
	assert_int_equal(TOOL("link", here, "--link=x", "--up"), 2);
	assert_int_equal(TOOL("run", here, "--ready-fd=x"), 2);
	assert_int_equal(TOOL("run", here, "--drain-timeout=soon"), 2);
	assert_int_equal(TOOL("run", here), 1);
	assert_true(one_line(err));
	assert_non_null(strstr(err, "/tmp/no/such/dir"));
}

/* A socket in a separate directory on which nobody listens any more. */
static void leave_daemon(char dir[32], char path[64])
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	strcpy(dir, "/tmp/epf-tool-XXXXXX");
	assert_non_null(mkdtemp(dir));
	snprintf(path, 64, "%s/node0.sock", dir);
	memcpy(at.sun_path, path, strlen(path) + 1);
	assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	close(fd);
}

/* How many daemons the status in a report has. */
static size_t reported(char *const env[], char *const argv[])
{
	const char *name;
	json_t *top, *part;
	size_t n;

	assert_int_equal(run(env, argv), 0);
	top = json_loads(out, 0, NULL);
	assert_non_null(top);
	n = json_array_size(json_object_get(json_object_get(top, "status"), "instances"));
	json_object_foreach(top, name, part) if (json_object_get(part, "error"))
		fail_msg("%s: %s", name, json_string_value(json_object_get(part, "error")));
	json_decref(top);
	return n;
}

static void daemons_that_have_exited_are_left_out(void **state)
{
	char dir[32], path[64], in_stats[64], in_runtime[64], option[80];
	char *env[] = { in_runtime, in_stats, NULL };

	leave_daemon(dir, path);
	snprintf(in_runtime, sizeof(in_runtime), "EPF_RUNTIME_DIR=%s", dir);
	snprintf(in_stats, sizeof(in_stats), "EPF_STATS_DIR=%s", dir);
	assert_int_equal(run(env, ARGS("status")), 0);
	assert_string_equal(out, "no daemon is alive, 1 has exited: see --dead\n");
	assert_string_equal(err, "");
	assert_int_equal(run(env, ARGS("status", "--json")), 0);
	assert_non_null(strstr(out, "\"instances_left_out\": 1"));
	assert_int_equal(run(env, ARGS("status", "--dead")), 1);
	assert_non_null(strstr(err, "status: node0: "));
	snprintf(option, sizeof(option), "--service=%s", path);
	assert_int_equal(run(env, ARGS("status", option)), 1);
	assert_int_equal(reported(env, ARGS("report")), 0);
	assert_int_equal(reported(env, ARGS("report", "--dead")), 1);
	unlink(path);
	rmdir(dir);
}

static void a_report_has_all_parts_and_no_secret(void **state)
{
	static const char *const parts[] = { "version", "config", "doctor", "nics",
					     "status",  "stats",  "why" };
	char path[] = "/tmp/epf-tool-XXXXXX", option[80];
	char *env[] = { (char *)"EPF_SECRET=correct horse battery staple", NULL };
	struct stat st;
	json_t *top;
	char *text;
	int fd = mkstemp(path);

	assert_true(fd >= 0);
	close(fd);
	unlink(path);
	snprintf(option, sizeof(option), "--output=%s", path);
	assert_int_equal(run(env, ARGS("report", option)), 0);
	assert_string_equal(out, "");
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	top = json_load_file(path, 0, NULL);
	assert_non_null(top);
	assert_string_equal(json_string_value(json_object_get(top, "schema")), "epf.report/1");
	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
		const json_t *part = json_object_get(top, parts[i]);

		if (!json_object_get(part, "schema"))
			fail_msg("%s: %s", parts[i],
				 json_string_value(json_object_get(part, "error")));
	}
	text = json_dumps(top, 0);
	assert_null(strstr(text, "horse"));
	free(text);
	json_decref(top);
	unlink(path);
	assert_int_equal(TOOL("report", "--output=/nonexistent/x"), 1);
	assert_true(one_line(err));
}

static void version_says_versions(void **state)
{
	char first[64];

	snprintf(first, sizeof(first), "ep-fabric %s\n", epf_version());
	assert_int_equal(TOOL("--version"), 0);
	assert_memory_equal(out, first, strlen(first));
	assert_int_equal(TOOL("version", "surplus"), 2);
}

static void a_full_disk_is_a_failure(void **state)
{
	static const char *const commands[] = { "config", "nics", "stats", "status", "version" };

	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
		char line[512];

		snprintf(line, sizeof(line), "'%s' %s --json >/dev/full 2>/dev/null", program,
			 commands[i]);
		assert_int_equal(WEXITSTATUS(system(line)), 1);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(help_is_as_written_here),
		cmocka_unit_test(an_unknown_command_gets_the_nearest),
		cmocka_unit_test(config_names_each_origin),
		cmocka_unit_test(config_says_what_settings_mean),
		cmocka_unit_test(config_hides_the_secret),
		cmocka_unit_test(wrong_settings_are_explained),
		cmocka_unit_test(json_is_json),
		cmocka_unit_test(nics_are_described),
		cmocka_unit_test(no_daemon_is_a_failure),
		cmocka_unit_test(daemons_that_have_exited_are_left_out),
		cmocka_unit_test(a_report_has_all_parts_and_no_secret),
		cmocka_unit_test(version_says_versions),
		cmocka_unit_test(a_full_disk_is_a_failure),
	};

	if (argc != 2) {
		fprintf(stderr, "usage: test_fabric_tool PATH-OF-EP-FABRIC\n");
		return 1;
	}
	program = argv[1];
	clearenv();
	setenv("LC_ALL", "C", 1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
