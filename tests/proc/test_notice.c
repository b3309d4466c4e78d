/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank that is alone reports which rank it waits for, and where: rank 0, which serves the rendezvous, and another rank, which finds
 * none; each embedded and with a daemon. Started with three environment variables, as in the README.
 */
#include "fabric/base/clock.h"
#include "fabric/client/epf.h"
#include "tests/proc/daemons.h"

#include <arpa/inet.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { LIMIT_MS = 60000 };

static struct daemons daemons;

/* Reserves a loopback port while the socket is open; the port refuses connections until a rank listens. */
static int reserve_port(unsigned *port)
{
	struct sockaddr_in at = { .sin_family = AF_INET,
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(at);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;

	assert_true(fd >= 0);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &len), 0);
	*port = ntohs(at.sin_port);
	return fd;
}

static void be_lonely(unsigned rank, const char *where, const char *const *settings)
{
	struct epf_options o;
	struct epf *ep;
	char text[8];

	snprintf(text, sizeof(text), "%u", rank);
	setenv("EPF_WORLD_SIZE", "2", 1);
	setenv("EPF_RANK", text, 1);
	setenv("EPF_RENDEZVOUS", where, 1);
	unsetenv("EPF_LOG");
	epf_options_init(&o);
	o.settings = settings;
	if (epf_open(&o, &ep) == 0)
		(void)epf_join(ep, NULL);
	fprintf(stderr, "rank %u: %s\n", rank, epf_last_error());
	_exit(1);
}

/* Runs a lonely rank until it has written the words and its address. */
static void expect(unsigned rank, const char *const *settings, const char *a)
{
	uint64_t deadline = epf_now_ns() + UINT64_C(1000000) * LIMIT_MS;
	char text[4096] = "", where[64];
	size_t got = 0;
	int fds[2], held;
	unsigned port;
	pid_t pid;

	held = reserve_port(&port);
	snprintf(where, sizeof(where), "127.0.0.1:%u", port);
	assert_int_equal(pipe(fds), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		dup2(fds[1], 2);
		be_lonely(rank, where, settings);
	}
	close(fds[1]);
	while (!(strstr(text, a) && strstr(text, where)) && epf_now_ns() < deadline) {
		struct pollfd p = { .fd = fds[0], .events = POLLIN };
		ssize_t n = 1;

		if (poll(&p, 1, 100) > 0)
			n = read(fds[0], text + got, sizeof(text) - 1 - got);
		if (n <= 0)
			break;
		got += p.revents ? (size_t)n : 0;
		text[got] = 0;
	}
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	close(fds[0]);
	close(held);
	if (!strstr(text, a) || !strstr(text, where))
		fail_msg("rank %u did not write \"%s\" and \"%s\": \"%s\"", rank, a, where, text);
	printf("# %s", text);
}

static void both(const char *const *settings)
{
	expect(0, settings, "waiting for rank 1 of 2");
	expect(1, settings, "rank 1 of 2: waiting for the rendezvous at ");
}

static void an_embedded_rank(void **state)
{
	char dir[] = "/tmp/epf-test-notice-XXXXXX", set[64], command[64];
	const char *const settings[] = { set, NULL };

	(void)state;
	assert_non_null(mkdtemp(dir));
	snprintf(set, sizeof(set), "stats-dir=%s", dir);
	both(settings);
	snprintf(command, sizeof(command), "rm -r %s", dir);
	assert_int_equal(system(command), 0);
}

static void a_client_of_a_daemon(void **state)
{
	(void)state;
	both(daemons_client(&daemons, 0));
}

static int start_daemons(void **state)
{
	(void)state;
	return daemons_start(&daemons, 1, NULL);
}

static int stop_daemons(void **state)
{
	(void)state;
	return daemons_stop(&daemons);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_embedded_rank),
		cmocka_unit_test_setup_teardown(a_client_of_a_daemon, start_daemons, stop_daemons),
	};

	return cmocka_run_group_tests_name("notice", tests, NULL, NULL);
}
