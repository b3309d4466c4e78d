/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The checking traffic with ranks as threads of one process, each with its own engine thread: shows
 * ThreadSanitizer the library, the queues and the software NIC. EPF_SEED: this seed only; EPF_PROC_SEEDS: how many (6).
 */
#include "tests/proc/order.h"

#include "fabric/base/clock.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEEDS = 6 };

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

static int run_seed(uint64_t seed, uint64_t *commands, uint64_t proof[ORDER_PROOFS])
{
	static struct order_job job;
	static struct order_page page;
	struct thread_arg args[SIM_RANKS];
	pthread_t threads[SIM_RANKS];
	struct epf_boot_group *group;
	int bad = 0;

	memset(&page, 0, sizeof(page));
	order_job_make(&job, seed, 1);
	job.page = &page;
	if (epf_boot_local_create(job.ranks, &group))
		return 1;
	for (uint32_t r = 0; r < job.ranks; r++) {
		args[r] = (struct thread_arg){ .job = &job, .rank = r };
		if (epf_boot_local_open(group, r, &args[r].boot) ||
		    pthread_create(&threads[r], NULL, run_rank, &args[r])) {
			fprintf(stderr, "cannot start rank %u\n", r);
			exit(1);
		}
	}
	for (uint32_t r = 0; r < job.ranks; r++) {
		pthread_join(threads[r], NULL);
		bad |= args[r].rc != 0;
		if (page.text[r][0])
			printf("FAILED: replay with EPF_SEED=%llu build/tests/proc/test_threads: %s [ranks %u rings "
			       "%u lanes %u errors %d]\n",
			       (unsigned long long)seed, page.text[r], job.ranks, job.rings,
			       job.lanes, job.errors);
		*commands += page.commands[r];
	}
	order_proof(&job, proof);
	for (uint32_t r = 0; r < job.ranks; r++)
		epf_boot_close(args[r].boot);
	epf_boot_local_destroy(group);
	return bad;
}

int main(void)
{
	const char *one = getenv("EPF_SEED"), *many = getenv("EPF_PROC_SEEDS");
	uint64_t first = one && *one ? strtoull(one, NULL, 10) : 1;
	uint64_t count = one && *one ? 1 : many && *many ? strtoull(many, NULL, 10) : SEEDS;
	uint64_t start = epf_now_ns(), commands = 0, proof[ORDER_PROOFS] = { 0 };
	int failures = 0;

	if (count > SEEDS && !one)
		count = SEEDS;
	unsetenv("EPF_PROC_SEEDS");
	unsetenv("EPF_SEEDS");
	unsetenv("EPF_TEST_LONG");
	for (uint64_t seed = first; seed < first + count && !failures; seed++)
		failures += run_seed(seed, &commands, proof);
	printf("# %llu seeds, %llu commands; reordered %llu, duplicated %llu, dropped %llu, signals waited %llu; %.0f "
	       "ms a seed\n",
	       (unsigned long long)count, (unsigned long long)commands,
	       (unsigned long long)proof[0], (unsigned long long)proof[1],
	       (unsigned long long)proof[2], (unsigned long long)proof[3],
	       (double)(epf_now_ns() - start) / 1e6 / (double)count);
	return failures != 0;
}
