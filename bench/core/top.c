/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See top.h. What is counted is the CPU time of the thread that steps (CLOCK_THREAD_CPUTIME_ID), in ticks of the time-stamp counter, over the
 * commands it retired. Where ep-top shares the core's CPU, and on two CPUs it may, the counter itself goes on while the thread waits for its
 * turn: a ratio of it would say how the kernel shares CPUs. The thread's own time says what ep-top costs the core: lines that both touch,
 * caches and predictors that are cold after ep-top had the CPU. (Counting cycles by perf would do as well, but needs rights that containers lack.)
 */
#include "bench/core/top.h"

#include "bench/common/bench.h"
#include "fabric/base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAIRS_MOST = 1024, SLICE_MS = 250, WARM_UP = 200, PATIENCE_MS = 60000, LOOK_AT = 16 };

/* An ep-top on a separate terminal, which nobody looks at. */
struct top {
	pid_t pid;
	clockid_t clock; /* its CPU time */
	int terminal;
	bool is_gone;
	uint64_t drawn;    /* bytes */
	uint64_t awake_ns; /* while it was not stopped */
	uint64_t cpu_ns;   /* of it, in that time */
};

static uint64_t clock_of(clockid_t id)
{
	struct timespec ts = { 0 };

	clock_gettime(id, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* Takes what was drawn, or a full terminal would stop ep-top. */
static void drain(struct top *t)
{
	char bytes[4096];
	ssize_t n;

	while ((n = read(t->terminal, bytes, sizeof(bytes))) > 0)
		t->drawn += (uint64_t)n;
	t->is_gone |= n < 0 && errno == EIO; /* nobody has the other end any more */
}

/* Stops or resumes the child and waits until it has. Returns 0, or -ECHILD if it exited. */
static int set_awake(struct top *t, bool awake)
{
	int status;

	if (kill(t->pid, awake ? SIGCONT : SIGSTOP) ||
	    waitpid(t->pid, &status, awake ? WCONTINUED : WUNTRACED) != t->pid ||
	    WIFEXITED(status) || WIFSIGNALED(status)) {
		t->pid = -1;
		bench_complain("ep-top has ended by itself");
		return -ECHILD;
	}
	return 0;
}

static void end_top(struct top *t)
{
	if (t->pid > 0) {
		kill(t->pid, SIGKILL);
		waitpid(t->pid, NULL, 0);
	}
	if (t->terminal >= 0)
		close(t->terminal);
}

/* Waits until it has drawn something: on a machine full of other work that may be long after the slices it was awake in. */
static void await_drawing(struct top *t)
{
	uint64_t end = epf_now_ns() + PATIENCE_MS * UINT64_C(1000000);

	while (!t->drawn && !t->is_gone && epf_now_ns() < end) {
		usleep(10000);
		drain(t);
	}
}

/* Starts it, waits until it has drawn something, and stops it. */
static int start_top(struct top *t, const char *program, const char *dir)
{
	struct winsize size = { .ws_row = 50, .ws_col = 200 };

	t->pid = forkpty(&t->terminal, NULL, NULL, &size);
	if (t->pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		setenv("TERM", "xterm-256color", 1);
		execl(program, program, "--stats-dir", dir, "--delay", "0.1", "--screen", "lanes",
		      NULL);
		_exit(127);
	}
	if (t->pid < 0) {
		t->terminal = -1;
		bench_complain("ep-top cannot be started: %s", strerror(errno));
		return -EAGAIN;
	}
	fcntl(t->terminal, F_SETFL, O_NONBLOCK);
	await_drawing(t);
	if (clock_getcpuclockid(t->pid, &t->clock) || !t->drawn) {
		bench_complain("%s: draws nothing", program);
		return -EIO;
	}
	return set_awake(t, false);
}

/* CPU time of this thread for the steps of one ring full, ns. */
static uint64_t step_ring(struct core_load *l)
{
	struct epf_core *core = epf_bench_core_of(l->bc);
	uint64_t begin;

	core_load_push(l);
	begin = bench_thread_ns();
	while (epf_ring_retired(&l->ring) != l->ring.pushed)
		(void)epf_core_step(core);
	epf_bench_core_look(l->bc);
	return bench_thread_ns() - begin;
}

/* One slice: CPU time per command in ticks of the time-stamp counter. */
static int step_slice(struct core_load *l, struct top *t, bool awake, double *cycles)
{
	uint64_t begin = epf_now_ns(), end = begin + SLICE_MS * UINT64_C(1000000), ns = 0, cpu;
	uint64_t before = l->ring.pushed, drawn = t->drawn;
	int rc = awake ? set_awake(t, true) : 0;

	if (rc)
		return rc;
	cpu = clock_of(t->clock);
	for (unsigned i = 1; epf_now_ns() < end; i++) {
		ns += step_ring(l);
		if (i % LOOK_AT == 0) /* awake or not: the same calls in both */
			drain(t);
	}
	if (awake)
		rc = set_awake(t, false);
	drain(t);
	if (awake) {
		t->awake_ns += epf_now_ns() - begin;
		t->cpu_ns += clock_of(t->clock) - cpu;
	} else {
		t->drawn = drawn; /* leftovers prove nothing */
	}
	*cycles = (double)ns * ((double)epf_tsc_hz() / 1e9) / (double)(l->ring.pushed - before);
	return rc;
}

int bench_core_top_step(struct epf_bench_core *bc, const struct epf_cmd *table, uint32_t n_table,
			const char *dir, const char *program, double seconds,
			struct core_paired_run *out, uint64_t *pushed)
{
	struct core_load l = { .bc = bc, .table = table, .n_table = n_table };
	struct top t = { .pid = -1, .terminal = -1 };
	double ratio[PAIRS_MOST], without[PAIRS_MOST], cycles[2];
	uint64_t end;
	char path[4096];
	unsigned n = 0;
	int rc = bench_find_program("ep-top", "--top-program", program, path, sizeof(path));

	*pushed = 0;
	*out = (struct core_paired_run){ 0 };
	epf_bench_core_look(bc);
	if (!rc)
		rc = start_top(&t, path, dir);
	epf_ring_producer_init(&l.ring, epf_bench_core_ring(bc, 0), 0);
	bench_pin(0); /* ep-top began before that: it may run on any CPU, this one too */
	for (int i = 0; i < WARM_UP && !rc; i++)
		(void)step_ring(&l);
	t.drawn = 0;
	end = epf_now_ns() + (uint64_t)(seconds * 1e9);
	while (!rc && n < PAIRS_MOST && (n == 0 || epf_now_ns() < end)) {
		rc = step_slice(&l, &t, n & 1, &cycles[n & 1]); /* which comes first alternates */
		if (!rc)
			rc = step_slice(&l, &t, ~n & 1, &cycles[~n & 1]);
		if (rc)
			break;
		ratio[n] = cycles[1] / cycles[0];
		without[n++] = cycles[0];
	}
	if (!rc && !t.drawn) {
		rc = set_awake(&t, true);
		if (!rc)
			await_drawing(&t);
	}
	if (!rc)
		*out = (struct core_paired_run){ .pairs = n,
						 .ratio = bench_median(ratio, n),
						 .cycles = bench_median(without, n),
						 .top_share = (double)t.cpu_ns / (double)t.awake_ns,
						 .drawn = (double)t.drawn };
	end_top(&t);
	*pushed = l.ring.pushed;
	return rc;
}
