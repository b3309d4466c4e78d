/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two jobs of one user at the same time on one machine do not see each other: both play their rounds, each sees its own
 * bytes and signals only, their files have different names and are gone afterwards, nothing appears in /dev/shm, and a
 * rank that comes to the wrong job's rendezvous is refused without harm.
 */
#include "tests/proc/ranks.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { RANKS = 2, ROUNDS = 300 };

#define WAIT_NS UINT64_C(20000000000)

static unsigned count_files(const char *path, const char *word)
{
	DIR *d = opendir(path);
	unsigned n = 0;

	for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d))
		n += e->d_name[0] != '.' && (!word || strstr(e->d_name, word) != NULL);
	if (d)
		closedir(d);
	return n;
}

static void play(struct rank *r)
{
	snprintf(r->page->stats_file[r->me], sizeof(r->page->stats_file[0]), "%s",
		 epf_stats_file(r->ep));
	while (r->round < ROUNDS)
		RANK_CHECK(r, rank_round(r, WAIT_NS) == 0);
	RANK_CHECK(r, epf_barrier(r->ep) == 0);
	/* One signal a round and peer, and nothing from anybody else. */
	for (uint32_t s = 0; s < epf_signal_count(r->ep); s++)
		RANK_CHECK(r,
			   epf_signal_value(r->ep, s) == (s < r->world && s != r->me ? ROUNDS : 0));
	__atomic_fetch_add(&r->page->done, 1, __ATOMIC_ACQ_REL);
	while (__atomic_load_n(&r->page->end, __ATOMIC_ACQUIRE) == 0)
		usleep(1000);
}

static void wait_for(const uint64_t *word, uint64_t value)
{
	for (int i = 0; i < 60000 && __atomic_load_n(word, __ATOMIC_ACQUIRE) != value; i++)
		usleep(1000);
	assert_int_equal(__atomic_load_n(word, __ATOMIC_ACQUIRE), value);
}

/* A rank of job b comes to job a's rendezvous. */
static void intrude(struct ranks *a)
{
	struct epf_boot_opts o = { .size = sizeof(o),
				   .rank = 0,
				   .world = RANKS,
				   .rendezvous = epf_boot_server_address(a->server),
				   .job = "b",
				   .timeout_ns = WAIT_NS };
	struct epf_boot *boot;

	assert_true(epf_boot_tcp_open(&o, &boot) < 0);
	assert_non_null(strstr(epf_last_error(), "job"));
	printf("# refused: %s\n", epf_last_error());
}

static void two_jobs_do_not_meet(void **state)
{
	unsigned shm = count_files("/dev/shm", NULL);
	struct ranks job[2];

	(void)state;
	assert_int_equal(ranks_fork(&job[0], "a", RANKS, 1, NULL, play), 0);
	assert_int_equal(ranks_fork(&job[1], "b", RANKS, 2, NULL, play), 0);
	assert_int_equal(ranks_serve(&job[0], "a"), 0);
	assert_int_equal(ranks_serve(&job[1], "b"), 0);
	intrude(&job[0]);
	for (int j = 0; j < 2; j++)
		wait_for(&job[j].page->done, RANKS);
	/* All four are done and still there: their files are four, and /dev/shm is as it was. */
	assert_int_equal(count_files(ranks_dir, ".stats"), 2 * RANKS);
	for (unsigned i = 0; i < 2 * RANKS; i++)
		for (unsigned k = 0; k < i; k++)
			assert_string_not_equal(job[i / RANKS].page->stats_file[i % RANKS],
						job[k / RANKS].page->stats_file[k % RANKS]);
	assert_int_equal(count_files("/dev/shm", NULL), shm);
	for (int j = 0; j < 2; j++) {
		__atomic_store_n(&job[j].page->end, 1, __ATOMIC_RELEASE);
		assert_int_equal(ranks_wait(&job[j], -1), 0);
		ranks_end(&job[j]);
	}
	assert_int_equal(count_files(ranks_dir, ".stats"), 0);
}

/* The death of a rank of one job is no matter of the other. */
static void one_job_dies_the_other_lives(void **state)
{
	const char *const settings[] = { "peer-timeout=1s", "emu-retry-timeout=1s", NULL };
	struct ranks job[2];

	(void)state;
	assert_int_equal(ranks_fork(&job[0], "a", RANKS, 1, settings, play), 0);
	assert_int_equal(ranks_fork(&job[1], "b", RANKS, 2, settings, play), 0);
	assert_int_equal(ranks_serve(&job[0], "a"), 0);
	assert_int_equal(ranks_serve(&job[1], "b"), 0);
	assert_int_equal(ranks_reach(&job[0], 10), 0);
	for (int i = 0; i < RANKS; i++)
		kill(job[0].pid[i], SIGKILL);
	wait_for(&job[1].page->done, RANKS);
	__atomic_store_n(&job[1].page->end, 1, __ATOMIC_RELEASE);
	assert_int_equal(ranks_wait(&job[1], -1), 0);
	ranks_end(&job[1]);
	assert_int_equal(ranks_wait(&job[0], -1), RANKS);
	ranks_end(&job[0]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(two_jobs_do_not_meet),
		cmocka_unit_test(one_job_dies_the_other_lives),
	};

	return cmocka_run_group_tests_name("jobs", tests, ranks_dir_make, ranks_dir_remove);
}
