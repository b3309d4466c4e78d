/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The checking traffic between real processes: each seed forks a job of 3 or 4 ranks that meet over TCP on loopback and
 * talk over an unordered NIC that reorders, duplicates and drops; lanes fail in some. A failing seed prints one line:
 *   EPF_SEED=n build/tests/proc/test_order
 * EPF_PROC_SEEDS: how many (40; under a sanitizer 4), EPF_TEST_LONG: 1,000.
 */
#include "tests/proc/order.h"

#include "fabric/base/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
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
enum { LONG_SEEDS = 1000, MOST_FAILURES = 3 };

static uint64_t number(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);

	return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

/* Returns a port that is free now. */
static uint16_t free_port(void)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(a);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof(a)) ||
	    getsockname(fd, (struct sockaddr *)&a, &len))
		a.sin_port = 0;
	if (fd >= 0)
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

struct totals {
	uint64_t commands, replays, lane_errors, threaded;
	uint64_t proof[ORDER_PROOFS];
};

static int run_seed(uint64_t seed, struct totals *t)
{
	struct order_page *page = mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE,
				       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	static struct order_job job;
	pid_t pids[SIM_RANKS] = { 0 };
	int bad = 0;

	if (page == MAP_FAILED)
		return 1;
	order_job_make(&job, seed, -1);
	job.page = page;
	job.port = free_port();
	fflush(NULL);
	for (uint32_t r = 0; r < job.ranks; r++) {
		pids[r] = fork();
		if (pids[r] < 0) {
			snprintf(page->text[r], ORDER_TEXT, "fork: %s", strerror(errno));
			__atomic_store_n(&page->failed, 1, __ATOMIC_RELEASE);
			pids[r] = 0;
			bad = 1;
			break;
		}
		if (pids[r] == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			_exit(order_run_rank(&job, r, NULL) != 0);
		}
	}
	if (bad)
		for (uint32_t r = 0; r < job.ranks; r++)
			if (pids[r])
				kill(pids[r], SIGKILL);
	bad |= reap(&job, pids);
	for (uint32_t r = 0; bad && r < job.ranks; r++)
		if (page->text[r][0])
			printf("FAILED: replay with EPF_SEED=%llu build/tests/proc/test_order: %s [ranks %u "
			       "rings %u lanes %u errors %d progress=%s]\n",
			       (unsigned long long)seed, page->text[r], job.ranks, job.rings,
			       job.lanes, job.errors, job.threaded ? "thread" : "caller");
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

int main(void)
{
	uint64_t one = number("EPF_SEED", 0), first = one ? one : 1;
	uint64_t count = number("EPF_PROC_SEEDS", getenv("EPF_TEST_LONG") ? LONG_SEEDS : SEEDS);
	uint64_t start = epf_now_ns();
	struct totals t = { 0 };
	int failures = 0;

	/* The library warns about unknown EPF_ variables. */
	unsetenv("EPF_PROC_SEEDS");
	unsetenv("EPF_SEEDS");
	unsetenv("EPF_TEST_LONG");
	if (one)
		count = 1;
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
