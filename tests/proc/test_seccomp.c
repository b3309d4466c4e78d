/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hot path makes no system call, allocates nothing and takes no lock, checked at run time. Child processes (seccomp_child.c) run 5 s
 * of load under a seccomp filter that kills them on any system call but exit_group, with traps in malloc and pthread_mutex_lock; this
 * parent checks what they leave in shared memory. Children that violate a rule on purpose show that the check works.
 */
#include "tests/proc/seccomp_child.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

struct run {
	pid_t pid;
	int status;
	struct report *report;
};

static struct run start(enum load load, enum violation violation, uint64_t ms)
{
	struct rlimit no_core = { 0, 0 };
	struct run run;

	run.report = mmap(NULL, sizeof(*run.report), PROT_READ | PROT_WRITE,
			  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(run.report != MAP_FAILED);
	fflush(NULL);
	run.pid = fork();
	assert_true(run.pid >= 0);
	if (run.pid > 0)
		return run;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	setrlimit(RLIMIT_CORE, &no_core);
	signal(SIGILL, SIG_DFL); /* not cmocka's handler */
	run_load(run.report, load, violation, ms);
}

static void finish(struct run *run)
{
	assert_int_equal(waitpid(run->pid, &run->status, 0), run->pid);
}

static struct run runs[3];

static int start_loads(void **state)
{
	for (enum load load = LOAD_ORDERED; load <= LOAD_NULL; load++)
		runs[load] = start(load, VIOLATION_NONE, 5000);
	return 0;
}

/* Checks every child without a violation. */
static const struct report *check_load(enum load load, const char *name)
{
	struct run *run = &runs[load];
	const struct report *r = run->report;

	finish(run);
	if (r->wrong)
		print_error("%s: %s\n", name, r->wrong);
	if (r->trapped)
		print_error("%s: %s was called\n", name, r->trapped);
	if (WIFSIGNALED(run->status))
		print_error("%s: ended by signal %d%s\n", name, WTERMSIG(run->status),
			    WTERMSIG(run->status) == SIGSYS ? ": a system call" : "");
	assert_true(WIFEXITED(run->status));
	assert_null(r->wrong);
	assert_int_equal(r->armed, 1);
	assert_int_equal(r->finished, 1);
	assert_int_equal(r->pushed, r->retired);
	assert_int_equal(r->pushed, r->dequeued);
	assert_int_equal(r->failed, r->refused);
	assert_true(r->refused > 100);
	assert_true(r->bytes > 1 << 20);
	assert_true(r->gets > 1 << 20);
	printf("# %s: %llu commands, %llu refused, %llu deferred, %llu flushes, %llu bytes put, no system call\n",
	       name, (unsigned long long)r->dequeued, (unsigned long long)r->refused,
	       (unsigned long long)r->deferred, (unsigned long long)r->flushes,
	       (unsigned long long)r->bytes);
	return r;
}

/* Lanes failed, and were opened and used again. */
static void check_links(const struct report *r)
{
	printf("# links cut %llu times, %llu lanes failed, %llu recoveries\n",
	       (unsigned long long)r->cuts / 2, (unsigned long long)r->lane_errors,
	       (unsigned long long)r->recoveries);
	assert_true(r->lane_errors >= 4 && r->recoveries >= 4);
}

static void emu_ordered(void **state)
{
	const struct report *r = check_load(LOAD_ORDERED, "emu ordered");

	assert_true(r->deferred > 100 && r->stalls > 100 && r->flushes > 100 && r->signals > 100);
	check_links(r);
}

static void emu_unordered(void **state)
{
	const struct report *r = check_load(LOAD_UNORDERED, "emu unordered");

	assert_true(r->deferred > 100 && r->stalls > 100 && r->flushes > 100 && r->signals > 100);
	assert_true(r->waited > 100 && r->duplicates > 100);
	check_links(r);
}

static void null(void **state)
{
	check_load(LOAD_NULL, "null");
}

/* Each violation is detected. */
static void a_system_call_is_seen(void **state)
{
	struct run run = start(LOAD_ORDERED, VIOLATION_SYSCALL, 10);

	finish(&run);
	assert_true(WIFSIGNALED(run.status));
	assert_int_equal(WTERMSIG(run.status), SIGSYS);
	assert_int_equal(run.report->finished, 0);
}

static void violated(enum load load, enum violation violation, const char *what)
{
	struct run run = start(load, violation, 10);

	finish(&run);
	assert_true(WIFSIGNALED(run.status));
	assert_true(WTERMSIG(run.status) != SIGSYS);
	assert_int_equal(run.report->finished, 0);
	assert_non_null(run.report->trapped);
	assert_string_equal(run.report->trapped, what);
}

static void an_allocation_is_seen(void **state)
{
	violated(LOAD_ORDERED, VIOLATION_MALLOC, "malloc");
	violated(LOAD_NULL, VIOLATION_MALLOC, "malloc");
}

static void a_lock_is_seen(void **state)
{
	violated(LOAD_ORDERED, VIOLATION_LOCK, "pthread_mutex_lock");
}

/* Returns 0 if a process may load a seccomp filter here. */
static int probe(void)
{
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		int rc = load_filter();

		if (rc)
			_exit(1);
		leave();
	}
	return pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status) ||
	       WEXITSTATUS(status) != 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_system_call_is_seen), cmocka_unit_test(an_allocation_is_seen),
		cmocka_unit_test(a_lock_is_seen),        cmocka_unit_test(emu_ordered),
		cmocka_unit_test(emu_unordered),         cmocka_unit_test(null),
	};

	if (probe()) {
		printf("seccomp: this kernel or container does not let a process load a filter\n");
		return 77;
	}
	return cmocka_run_group_tests_name("seccomp", tests, start_loads, NULL);
}
