/* SPDX-License-Identifier: Apache-2.0 */
/*
 * docs/getting-started.md shows a program: this test checks that it is the one in docs/examples/hello.c, and that two processes of it do what
 * the page says. Started with the paths of the program, its source and the page.
 */
#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static char **path; /* 1: program, 2: source, 3: page */

static void slurp(FILE *f, char *text, size_t size)
{
	size_t n;

	assert_non_null(f);
	n = fread(text, 1, size - 1, f);
	text[n] = '\0';
	fclose(f);
}

static void page_shows_the_program(void **state)
{
	static char page[65536], source[65536];
	char *code;

	slurp(fopen(path[2], "r"), source, sizeof(source));
	slurp(fopen(path[3], "r"), page, sizeof(page));
	code = strstr(source, "#include <epf.h>");
	assert_non_null(code);
	if (!strstr(page, code))
		fail_msg("%s does not hold the program of %s, line by line", path[3], path[2]);
}

/* A port of loopback that was free a moment ago. */
static unsigned free_port(void)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(a);
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	assert_true(fd >= 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&a, len), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &len), 0);
	close(fd);
	return ntohs(a.sin_port);
}

static pid_t start(int rank, unsigned port, const char *dir, FILE *out)
{
	char text[64];
	pid_t pid = fork();

	if (pid)
		return pid;
	snprintf(text, sizeof(text), "%d", rank);
	setenv("EPF_RANK", text, 1);
	setenv("EPF_WORLD_SIZE", "2", 1);
	snprintf(text, sizeof(text), "127.0.0.1:%u", port);
	setenv("EPF_RENDEZVOUS", text, 1);
	setenv("EPF_STATS_DIR", dir, 1);
	dup2(fileno(out), 1);
	execl(path[1], path[1], (char *)NULL);
	_exit(99);
}

static void two_ranks_greet_each_other(void **state)
{
	char dir[] = "/tmp/epf-readme-XXXXXX";
	unsigned port = free_port();
	pid_t pid[2];
	FILE *out[2];

	assert_non_null(mkdtemp(dir));
	for (int r = 0; r < 2; r++) {
		out[r] = tmpfile();
		assert_non_null(out[r]);
		pid[r] = start(r, port, dir, out[r]);
	}
	for (int r = 0; r < 2; r++) {
		char text[256], wanted[256];
		int status;

		assert_int_equal(waitpid(pid[r], &status, 0), pid[r]);
		rewind(out[r]);
		slurp(out[r], text, sizeof(text));
		snprintf(wanted, sizeof(wanted), "rank %d reads: hello from rank %d\n", r, 1 - r);
		assert_string_equal(text, wanted);
		assert_true(WIFEXITED(status));
		assert_int_equal(WEXITSTATUS(status), 0);
	}
	assert_int_equal(rmdir(dir), 0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(page_shows_the_program),
		cmocka_unit_test(two_ranks_greet_each_other),
	};

	if (argc != 4) {
		fprintf(stderr, "usage: test_hello PROGRAM SOURCE PAGE\n");
		return 1;
	}
	path = argv;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
