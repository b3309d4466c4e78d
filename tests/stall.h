/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long this machine has kept a test from running: for tests that hold the fabric to a time limit. Processes that only sleep, one on each
 * CPU, add up by how much they wake too late: in all of them shows a virtual machine that was not run, in some a CPU that is busy. A limit is
 * compared with stall_less(), so that it is the fabric's and not the machine's: who waits for a timer gains nothing by it.
 * Included by cmocka programs of tests/unit and tests/proc; it must never judge anything by itself.
 */
#ifndef EPF_TESTS_STALL_H
#define EPF_TESTS_STALL_H

#include "fabric/base/clock.h"

#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

enum { STALL_CPUS_MAX = 8 };

#define STALL_PERIOD_NS UINT64_C(4000000)
#define STALL_USUAL_NS  UINT64_C(1000000) /* by which a sleep is late on an idle machine, at most */

/* Shared with the sleepers; plain words, one writer each. */
struct stall_page {
	unsigned n;

	struct {
		uint64_t late_ns, woken_ns;
	} cpu[STALL_CPUS_MAX];
};

static struct stall_page *stall_page;

/* A sleeper: never returns, dies with the test. */
static inline void stall_sleep(struct stall_page *page, unsigned i, const cpu_set_t *where,
			       pid_t parent)
{
	struct timespec ts = { .tv_nsec = (long)STALL_PERIOD_NS };

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(0);
	(void)sched_setaffinity(0, sizeof(*where), where);
	for (;;) {
		uint64_t before = epf_now_ns(), took;

		__atomic_store_n(&page->cpu[i].woken_ns, before, __ATOMIC_RELEASE);
		nanosleep(&ts, NULL);
		took = epf_now_ns() - before;
		if (took > STALL_PERIOD_NS + STALL_USUAL_NS)
			__atomic_fetch_add(&page->cpu[i].late_ns, took - STALL_PERIOD_NS,
					   __ATOMIC_ACQ_REL);
	}
}

/**
 * stall_begin() - start the sleepers, as processes: call it before the test has a thread. A second call does nothing.
 *
 * Return: 0; -1 where they cannot be had.
 */
static inline int stall_begin(void)
{
	pid_t parent = getpid();
	cpu_set_t all;

	if (stall_page)
		return 0;
	stall_page = mmap(NULL, sizeof(*stall_page), PROT_READ | PROT_WRITE,
			  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (stall_page == MAP_FAILED || sched_getaffinity(0, sizeof(all), &all))
		return -1;
	fflush(NULL);
	for (int cpu = 0; cpu < CPU_SETSIZE && stall_page->n < STALL_CPUS_MAX; cpu++) {
		unsigned i = stall_page->n; /* the page is shared: a child looks too late */
		cpu_set_t one;
		pid_t pid;

		if (!CPU_ISSET(cpu, &all))
			continue;
		CPU_ZERO(&one);
		CPU_SET(cpu, &one);
		stall_page->cpu[i].woken_ns = epf_now_ns();
		pid = fork();
		if (pid == 0)
			stall_sleep(stall_page, i, &one, parent);
		if (pid < 0)
			return -1;
		stall_page->n++;
	}
	return 0;
}

/* stall_begin() as the set-up function of a group of cmocka's. */
static inline int stall_set_up(void **state)
{
	return stall_begin();
}

/**
 * stall_of() - how long the threads of a process were ready to run and were not, since they began, by what the kernel counts
 * (/proc/PID/task/TID/schedstat).
 *
 * Return: the sum in ns; 0 where the kernel does not say, or the process is gone.
 */
static inline uint64_t stall_of(pid_t pid)
{
	uint64_t sum = 0;
	char path[64];
	DIR *d;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
	d = opendir(path);
	for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d)) {
		unsigned long long ran, waited;
		char name[400];
		FILE *f;

		if (e->d_name[0] == '.')
			continue;
		snprintf(name, sizeof(name), "%s/%s/schedstat", path, e->d_name);
		f = fopen(name, "r");
		if (f && fscanf(f, "%llu %llu", &ran, &waited) == 2)
			sum += waited;
		if (f)
			fclose(f);
	}
	if (d)
		closedir(d);
	return sum;
}

enum { STALL_PROCESSES_MAX = 16 };

/* A moment, and processes that a test waits for from then on. */
struct stall_mark {
	uint64_t at_ns, late_ns[STALL_CPUS_MAX];
	unsigned n;

	struct {
		pid_t pid;
		uint64_t waited_ns; /* stall_of() */
	} of[STALL_PROCESSES_MAX];
};

/* By how much a sleeper was late since stall_begin(); one that should be awake by now counts. */
static inline uint64_t stall_late(unsigned cpu)
{
	uint64_t woken = __atomic_load_n(&stall_page->cpu[cpu].woken_ns, __ATOMIC_ACQUIRE);
	uint64_t late = __atomic_load_n(&stall_page->cpu[cpu].late_ns, __ATOMIC_ACQUIRE);
	uint64_t now = epf_now_ns();

	return now > woken + STALL_PERIOD_NS + STALL_USUAL_NS ? late + now - woken - STALL_PERIOD_NS
							      : late;
}

/** stall_mark() - the moment is now, nobody is waited for; then stall_mark_processes(). After stall_begin(). */
static inline void stall_mark(struct stall_mark *m)
{
	for (unsigned i = 0; i < stall_page->n; i++)
		m->late_ns[i] = stall_late(i);
	m->n = 0;
	m->at_ns = epf_now_ns();
}

/** stall_mark_processes() - n more that are waited for; no process (0) and more than fit are ignored. */
static inline void stall_mark_processes(struct stall_mark *m, const pid_t *pid, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		if (pid[i] <= 0 || m->n == STALL_PROCESSES_MAX)
			continue;
		m->of[m->n].waited_ns = stall_of(pid[i]);
		m->of[m->n++].pid = pid[i];
	}
}

/**
 * stall_since() - how long this machine kept the test waiting since a mark. All of the time in which it was not run on any CPU; of the time in
 * which it was slow (the latest sleeper, or the marked process that waited longest for a CPU) no more than half of what has passed: a limit
 * must not grow as fast as time.
 */
static inline uint64_t stall_since(const struct stall_mark *m)
{
	uint64_t least = UINT64_MAX, most = 0, half = (epf_now_ns() - m->at_ns) / 2;

	for (unsigned i = 0; i < stall_page->n; i++) {
		uint64_t late = stall_late(i) - m->late_ns[i];

		least = late < least ? late : least;
		most = late > most ? late : most;
	}
	for (unsigned i = 0; i < m->n; i++) {
		uint64_t waited = stall_of(m->of[i].pid);

		if (waited > m->of[i].waited_ns && waited - m->of[i].waited_ns > most)
			most = waited - m->of[i].waited_ns;
	}
	most = most < half ? most : half;
	return most > least ? most : least;
}

/** stall_less() - the time since a mark without that in which this machine kept the test waiting. */
static inline uint64_t stall_less(const struct stall_mark *m)
{
	uint64_t took = epf_now_ns() - m->at_ns, stalled = stall_since(m);

	return took > stalled ? took - stalled : 0;
}

#endif
