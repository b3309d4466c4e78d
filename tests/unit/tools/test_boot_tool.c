/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ep-fabric bootstrap`: its commands run in child processes, their output is read back. The bytes
 * that the dry run promises are compared with what a server counts when the ranks really come.
 */
#include "tests/unit/bootstrap/boot_kit.h"
#include "tools/cli/tools.h"

#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <sys/wait.h>

#define RANKS 5u
#define BLOB  70000u

struct child {
	pid_t pid;
	FILE *out;
};

/* Starts a command with stdout and stderr in one pipe. */
static struct child run(char *const argv[])
{
	struct child c;
	int fds[2], argc = 0;

	while (argv[argc])
		argc++;
	assert_int_equal(pipe(fds), 0);
	c.pid = fork();
	if (c.pid == 0) {
		dup2(fds[1], 1);
		dup2(fds[1], 2);
		close(fds[0]);
		close(fds[1]);
		exit(epf_tool_bootstrap(argc, (char **)argv));
	}
	close(fds[1]);
	c.out = fdopen(fds[0], "r");
	return c;
}

static int end(struct child *c)
{
	int status;

	fclose(c->out);
	assert_int_equal(waitpid(c->pid, &status, 0), c->pid);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

/* Runs a command to its end; returns its status and all it printed. */
static int output_of(char *text, size_t size, char *const argv[])
{
	struct child c = run(argv);
	size_t n = fread(text, 1, size - 1, c.out);

	text[n] = 0;
	return end(&c);
}

#define ARGS(...) ((char *[]){ (char *)"bootstrap", __VA_ARGS__, NULL })

static json_int_t total_of(const json_t *plan, const char *name)
{
	json_t *v = json_object_get(json_object_get(plan, "total"), name);

	assert_true(json_is_integer(v));
	return json_integer_value(v);
}

static int run_promised(struct epf_boot *boot, void *arg)
{
	static const uint8_t blob[BLOB];
	struct epf_blob *all;
	int rc = epf_boot_allgather(boot, blob, BLOB, &all);

	if (rc)
		return rc;
	epf_boot_free_blobs(all);
	return epf_boot_barrier(boot);
}

static void dry_run_promises_the_real_bytes(void **state)
{
	static char text[65536];
	struct epf_boot_server_opts opts = server_opts(RANKS);
	struct rank_thread t[RANKS] = { 0 };
	struct epf_boot_server_stats st;
	struct epf_boot_server *srv;
	json_t *plan;

	assert_int_equal(output_of(text, sizeof(text),
				   ARGS("dry-run", "--ranks=5", "--nodes=2", "--blob-bytes=70000",
					"--json")),
			 0);
	plan = json_loads(text, 0, NULL);
	assert_non_null(plan);
	assert_int_equal(json_array_size(json_object_get(plan, "ranks")), RANKS);
	assert_int_equal(json_array_size(json_object_get(plan, "nodes")), 2);
	opts.job = "";
	srv = start(&opts);
	for (uint32_t r = 0; r < RANKS; r++) {
		t[r].opts = rank_opts(epf_boot_server_address(srv), r, RANKS);
		t[r].opts.job = "";
		t[r].opts.node = r < 3 ? "node0" : "node1";
		t[r].run = run_promised;
		spawn(&t[r]);
	}
	for (uint32_t r = 0; r < RANKS; r++)
		pthread_join(t[r].thread, NULL);
	assert_ok(epf_boot_server_wait(srv, LONG_NS));
	epf_boot_server_stats(srv, &st);
	assert_int_equal(st.received_bytes, total_of(plan, "join_sent_bytes") +
						    total_of(plan, "allgather_sent_bytes") +
						    total_of(plan, "barrier_sent_bytes"));
	assert_int_equal(st.sent_bytes, total_of(plan, "join_received_bytes") +
						total_of(plan, "allgather_received_bytes") +
						total_of(plan, "barrier_received_bytes"));
	epf_boot_server_stop(srv);
	json_decref(plan);
}

static void rank_prints_origins(void **state)
{
	char text[4096];

	setenv("RANK", "1", 1);
	setenv("WORLD_SIZE", "2", 1);
	setenv("MASTER_ADDR", "head", 1);
	setenv("MASTER_PORT", "29500", 1);
	assert_int_equal(output_of(text, sizeof(text), ARGS("rank")), 0);
	assert_non_null(strstr(text, "head:29637"));
	assert_non_null(strstr(text, "MASTER_PORT + 137"));
	assert_int_equal(output_of(text, sizeof(text), ARGS("rank", "--json")), 0);
	assert_non_null(strstr(text, "\"origin\": \"WORLD_SIZE\""));
	unsetenv("WORLD_SIZE");
	assert_int_equal(output_of(text, sizeof(text), ARGS("rank")), 1);
	assert_non_null(strstr(text, "world size"));
	unsetenv("RANK");
}

static void serve_serves_one_job(void **state)
{
	struct rank_thread t[3] = { 0 };
	struct child c;
	char line[256], where[64];

	setenv("EPF_SECRET", SECRET, 1);
	c = run(ARGS("serve", "--world=3", "--listen=127.0.0.1:0"));
	assert_non_null(fgets(line, sizeof(line), c.out));
	assert_int_equal(sscanf(line, "listening at %63s for 3 ranks", where), 1);
	for (uint32_t r = 0; r < 3; r++) {
		t[r].opts = rank_opts(where, r, 3);
		t[r].run = run_gather;
		spawn(&t[r]);
	}
	for (int r = 0; r < 3; r++) {
		pthread_join(t[r].thread, NULL);
		if (t[r].rc)
			fail_msg("rank %d: %s", r, t[r].error);
	}
	assert_non_null(fgets(line, sizeof(line), c.out));
	assert_non_null(strstr(line, "joined 3, exchanges 1, refused 0"));
	assert_int_equal(end(&c), 0);
	unsetenv("EPF_SECRET");
}

static void serve_ends_at_a_signal(void **state)
{
	struct child c = run(ARGS("serve", "--world=3", "--listen=127.0.0.1:0"));
	char line[256];

	assert_non_null(fgets(line, sizeof(line), c.out));
	kill(c.pid, SIGTERM);
	while (fgets(line, sizeof(line), c.out))
		;
	assert_int_equal(end(&c), 1);
}

static void wrong_usage_is_explained(void **state)
{
	char text[4096];

	assert_int_equal(output_of(text, sizeof(text), ARGS("frob")), 2);
	assert_non_null(strstr(text, "'frob'"));
	assert_int_equal(output_of(text, sizeof(text), ARGS("--help")), 0);
	assert_non_null(strstr(text, "dry-run"));
	assert_int_equal(output_of(text, sizeof(text), ARGS("serve")), 2);
	assert_non_null(strstr(text, "--world"));
	assert_int_equal(output_of(text, sizeof(text), ARGS("serve", "--world=0")), 2);
	assert_non_null(strstr(text, "from 1 to 4096"));
	assert_int_equal(output_of(text, sizeof(text), ARGS("rank", "x")), 2);
	assert_int_equal(output_of(text, sizeof(text), ARGS("dry-run", "--ranks=2", "--nodes=3")),
			 1);
	assert_non_null(strstr(text, "--nodes is 3"));
	assert_int_equal(
		output_of(text, sizeof(text), ARGS("serve", "--world=2", "--listen=0.0.0.0:0")), 1);
	assert_non_null(strstr(text, "EPF_SECRET_FILE"));
	assert_int_equal(output_of(text, sizeof(text),
				   ARGS("dry-run", "--ranks=4096", "--blob-bytes=16777216")),
			 1);
	assert_non_null(strstr(text, "1073741824"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(dry_run_promises_the_real_bytes),
		cmocka_unit_test(rank_prints_origins),
		cmocka_unit_test(serve_serves_one_job),
		cmocka_unit_test(serve_ends_at_a_signal),
		cmocka_unit_test(wrong_usage_is_explained),
	};

	unsetenv("EPF_SECRET");
	unsetenv("EPF_SECRET_FD");
	unsetenv("EPF_SECRET_FILE");
	return cmocka_run_group_tests(tests, NULL, NULL);
}
