/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The checking traffic (order.h) in real time, over an unordered NIC that reorders, duplicates and drops; in some seeds lanes fail. Each
 * seed is a job of 3 or 4 ranks: processes that meet over TCP on loopback, or with --threads threads of one process with an engine thread
 * each, for ThreadSanitizer. A failing seed prints one line:
 *   EPF_SEED=n build/tests/proc/test_order [--threads]
 * EPF_PROC_SEEDS: how many (processes: 40, under a sanitizer 4; threads: at most 6), EPF_TEST_LONG: 1,000.
 */
#include "tests/proc/order.h"

#include "fabric/base/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SEEDS = 4, SEED_SECONDS = 240 };
#else
enum { SEEDS = 40, SEED_SECONDS = 60 };
#endif
enum { THREAD_SEEDS = 6, LONG_SEEDS = 1000, MOST_FAILURES = 3 };

static bool threads;

static uint64_t number(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);

	return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

/* ---- ranks as processes ---- */

/* Returns a port that is free now, below those that the kernel by default gives to connections (../free_port.py says why). */
static uint16_t free_port(void)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return 0;
	do
		a.sin_port = htons((uint16_t)(10000 + epf_now_ns() / 1000 % 20000));
	while (bind(fd, (struct sockaddr *)&a, sizeof(a)) != 0);
	close(fd);
	return ntohs(a.sin_port);
}

/* Waits for the ranks; kills those left at the deadline. Returns 0 if all ended well. */
static int reap(const struct order_job *job, pid_t *pids)
{
	uint64_t end = epf_now_ns() + SEED_SECONDS * UINT64_C(1000000000);
	unsigned left = job->ranks;
	int status, bad = 0;

	while (left) {
		for (uint32_t r = 0; r < job->ranks; r++) {
			pid_t pid = pids[r] ? waitpid(pids[r], &status, WNOHANG) : 0;

			if (pid <= 0)
				continue;
			pids[r] = 0;
			left--;
			if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
				continue;
			bad = 1;
			/* The others must not wait for it. */
			__atomic_store_n(&job->page->failed, 1, __ATOMIC_RELEASE);
			if (!job->page->text[r][0])
				snprintf(job->page->text[r], ORDER_TEXT,
					 "rank %u: ended with status %#x", r, (unsigned)status);
		}
		if (left && epf_now_ns() > end) {
			for (uint32_t r = 0; r < job->ranks; r++)
				if (pids[r]) {
					snprintf(job->page->text[r], ORDER_TEXT,
						 "rank %u: killed after %d s", r, SEED_SECONDS);
					kill(pids[r], SIGKILL);
				}
			end = UINT64_MAX;
		}
		usleep(500);
	}
	return bad;
}

static int run_processes(struct order_job *job)
{
	pid_t pids[SIM_RANKS] = { 0 };

	job->port = free_port();
	fflush(NULL);
	for (uint32_t r = 0; r < job->ranks; r++) {
		pids[r] = fork();
		if (pids[r] == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			_exit(order_run_rank(job, r, NULL) != 0);
		}
		if (pids[r] < 0) {
			perror("fork");
			exit(1); /* the ranks die with this process */
		}
	}
	return reap(job, pids);
}

/* ---- ranks as threads ---- */

struct thread_arg {
	struct order_job *job;
	struct epf_boot *boot;
	uint32_t rank;
	int rc;
};

static void *run_rank(void *arg)
{
	struct thread_arg *a = arg;

	a->rc = order_run_rank(a->job, a->rank, a->boot);
	return NULL;
}

static int run_threads(struct order_job *job)
{
	struct thread_arg args[SIM_RANKS];
	pthread_t thread[SIM_RANKS];
	struct epf_boot_group *group;
	int bad = 0;

	if (epf_boot_local_create(job->ranks, &group))
		return 1;
	for (uint32_t r = 0; r < job->ranks; r++) {
		args[r] = (struct thread_arg){ .job = job, .rank = r };
		if (epf_boot_local_open(group, r, &args[r].boot) ||
		    pthread_create(&thread[r], NULL, run_rank, &args[r])) {
			fprintf(stderr, "cannot start rank %u\n", r);
			exit(1);
		}
	}
	for (uint32_t r = 0; r < job->ranks; r++) {
		pthread_join(thread[r], NULL);
		bad |= args[r].rc != 0;
	}
	for (uint32_t r = 0; r < job->ranks; r++)
		epf_boot_close(args[r].boot);
	epf_boot_local_destroy(group);
	return bad;
}

/* ---- seeds ---- */

struct totals {
	uint64_t commands, replays, lane_errors, threaded;
	uint64_t proof[ORDER_PROOFS];
};

static int run_seed(uint64_t seed, struct totals *t)
{
	struct order_page *page = mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE,
				       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	static struct order_job job;
	int bad;

	if (page == MAP_FAILED)
		return 1;
	order_job_make(&job, seed, threads ? 1 : -1);
	job.page = page;
	bad = threads ? run_threads(&job) : run_processes(&job);
	for (uint32_t r = 0; bad && r < job.ranks; r++)
		if (page->text[r][0])
			printf("FAILED: replay with EPF_SEED=%llu build/tests/proc/test_order%s: %s [ranks %u "
			       "rings %u lanes %u errors %d progress=%s]\n",
			       (unsigned long long)seed, threads ? " --threads" : "", page->text[r],
			       job.ranks, job.rings, job.lanes, job.errors,
			       job.threaded ? "thread" : "caller");
	order_proof(&job, t->proof);
	t->threaded += (uint64_t)job.threaded;
	for (uint32_t r = 0; r < job.ranks; r++) {
		t->commands += page->commands[r];
		t->replays += page->replays[r];
		t->lane_errors += page->lane_errors[r];
	}
	munmap(page, sizeof(*page));
	fflush(stdout);
	return bad;
}

int main(int argc, char **argv)
{
	uint64_t one = number("EPF_SEED", 0), first = one ? one : 1, start = epf_now_ns();
	uint64_t count = number("EPF_PROC_SEEDS", getenv("EPF_TEST_LONG") ? LONG_SEEDS : SEEDS);
	struct totals t = { 0 };
	int failures = 0;

	threads = argc > 1 && !strcmp(argv[1], "--threads");
	if (threads)
		count = count < THREAD_SEEDS ? count : THREAD_SEEDS;
	if (one)
		count = 1;
	/* The library warns about unknown EPF_ variables. */
	unsetenv("EPF_PROC_SEEDS");
	unsetenv("EPF_SEEDS");
	unsetenv("EPF_TEST_LONG");
	for (uint64_t seed = first; seed < first + count && failures < MOST_FAILURES; seed++)
		failures += run_seed(seed, &t);
	printf("# %llu seeds (%llu with progress=thread), %llu commands; reordered %llu, duplicated %llu, dropped "
	       "%llu, signals waited %llu, duplicates dropped %llu, lanes failed %llu, replayed %llu; %.0f ms a "
	       "seed\n",
	       (unsigned long long)count, (unsigned long long)t.threaded,
	       (unsigned long long)t.commands, (unsigned long long)t.proof[0],
	       (unsigned long long)t.proof[1], (unsigned long long)t.proof[2],
	       (unsigned long long)t.proof[3], (unsigned long long)t.proof[4],
	       (unsigned long long)t.lane_errors, (unsigned long long)t.replays,
	       (double)(epf_now_ns() - start) / 1e6 / (double)count);
	return failures != 0;
}
