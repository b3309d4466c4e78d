/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-bench's side of daemons.h: the private directory, the keeper process, and what ranks are given. The daemons themselves are
 * the keeper's (keeper.c). Must not be called beside other threads: it forks and goes on without exec.
 */
#include "bench/common/daemons.h"

#include "bench/common/bench.h"
#include "bench/common/keeper.h"
#include "bench/common/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct bench_daemons {
	uint32_t nodes;
	char dir[BENCH_DAEMONS_DIR];
	pid_t keeper;
	int control; /* a byte ends the daemons in order, its end at once */
	int report;
};

/* Reads the keeper's one report: its first byte says whether it is good. */
static int read_report(int fd, char *text, size_t bytes)
{
	size_t have = 0;

	while (have < bytes - 1) {
		ssize_t n = read(fd, text + have, bytes - 1 - have);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			break;
		have += (size_t)n;
		if (memchr(text, '\n', have))
			break;
	}
	text[have] = 0;
	text[strcspn(text, "\n")] = 0;
	if (have && text[0] == KEEPER_GOOD)
		return 0;
	bench_complain("%s", have ? text + 1 : "the process that keeps the daemons was killed");
	return -EIO;
}

static int start_keeper(const struct bench_daemons_options *o, struct bench_daemons *d,
			const char *program)
{
	int control[2], report[2];

	if (pipe2(control, O_CLOEXEC))
		return -errno;
	if (pipe2(report, O_CLOEXEC)) {
		close(control[0]);
		close(control[1]);
		return -EMFILE;
	}
	(void)signal(SIGPIPE,
		     SIG_IGN); /* the keeper may have been killed when it is asked to end */
	(void)bench_cpus();    /* learns them before any thread is pinned */
	d->keeper = fork();
	if (d->keeper == 0) {
		close(control[1]);
		close(report[0]);
		bench_keeper_main(o, d->dir, program, control[0], report[1]);
	}
	close(control[0]);
	close(report[1]);
	d->control = control[1];
	d->report = report[0];
	return d->keeper > 0 ? 0 : -EAGAIN;
}

int bench_daemons_start(const struct bench_daemons_options *o, struct bench_daemons **out)
{
	struct bench_daemons *d = calloc(1, sizeof(*d));
	char text[KEEPER_REPORT_MAX];
	char program[4096];
	int err = d ? bench_find_program("ep-fabric", "--fabric-program", o->program, program,
					 sizeof(program))
		    : -ENOMEM;

	if (!err)
		err = bench_private_dir(d->dir, sizeof(d->dir));
	if (err) {
		free(d);
		return err;
	}
	d->nodes = o->nodes;
	err = start_keeper(o, d, program);
	if (err) {
		bench_complain("no process for the daemons: %s", strerror(-err));
		(void)rmdir(d->dir);
		free(d);
		return err;
	}
	err = read_report(d->report, text, sizeof(text));
	if (err) {
		close(d->control);
		close(d->report);
		(void)waitpid(d->keeper, NULL, 0);
		free(d);
		return err;
	}
	(void)setenv(BENCH_DAEMONS_ENV, d->dir, 1);
	(void)setenv(BENCH_DAEMONS_PIDS_ENV, text + 1, 1);
	*out = d;
	return 0;
}

static void complain_of(uint32_t n, const char *line)
{
	bench_complain("daemon node%u: %s", n, line);
}

void bench_daemons_complain(const struct bench_daemons *d)
{
	for (uint32_t n = 0; n < d->nodes; n++)
		bench_keeper_warnings(d->dir, n, complain_of);
}

int bench_daemons_stop(struct bench_daemons *d)
{
	char text[KEEPER_REPORT_MAX];
	int err;

	if (!d)
		return 0;
	(void)unsetenv(BENCH_DAEMONS_ENV);
	(void)unsetenv(BENCH_DAEMONS_PIDS_ENV);
	(void)!write(d->control, "e",
		     1); /* fails when the keeper was killed, which the report says */
	close(d->control);
	err = read_report(d->report, text, sizeof(text));
	close(d->report);
	(void)waitpid(d->keeper, NULL, 0);
	free(d);
	return err;
}

int bench_daemons_run(const struct bench_daemons_options *o, const struct bench_spawn *s)
{
	struct bench_daemons *d = NULL;
	int err = bench_daemons_start(o, &d);
	int end_err;

	if (err)
		return err;
	err = bench_spawn_run(s);
	if (err)
		bench_daemons_complain(d);
	end_err = bench_daemons_stop(d);
	return err ? err : end_err;
}

int bench_daemons_setting(uint32_t node, char *out, size_t bytes)
{
	const char *dir = getenv(BENCH_DAEMONS_ENV);

	if (!dir)
		return -ENOENT;
	snprintf(out, bytes, "service=%s/node%u.sock", dir, node);
	return 0;
}

uint64_t bench_daemons_held(uint32_t node)
{
	const char *list = getenv(BENCH_DAEMONS_PIDS_ENV);
	unsigned long pid = 0;

	for (uint32_t n = 0; list && *list && n <= node; n++) {
		char *end;

		pid = strtoul(list, &end, 10);
		if (n < node)
			pid = 0;
		list = *end ? end + 1 : end;
	}
	return pid ? bench_held_of_daemon(pid) : 0;
}
