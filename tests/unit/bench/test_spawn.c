/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starting rank processes (bench/common/spawn.h): what they are given, that it does not stay in the parent, and that a rank is not a copy of a
 * process with running threads. A copy has the locks those threads held: one rank of a job under AddressSanitizer once hung in its first
 * allocation, before exec, and all others waited for it in the join. This program is its own rank.
 */
#include "bench/common/bench.h"
#include "bench/common/spawn.h"
#include "bootstrap/boot.h"
#include "fabric/base/err.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

enum { RANKS = 5, SECOND = 2, WORDS = 20, LIMIT_S = 30, SHORT_S = 4, SHORT_S_MAX = 32 };

static char absent[] = "--rank-1-never-comes";

/* What a rank says of itself. */
struct report {
	uint32_t rank, ranks, job;
	uint32_t words;    /* arguments after the subcommand */
	uint32_t shared;   /* what the shared descriptor's page held */
	uint32_t secrets;  /* EPF_SECRET_FILE and EPF_SECRET_FD that reached it */
	uint32_t inherits; /* a variable of the parent that it must have */
	uint32_t open_fds; /* besides the standard ones, its pipe and the shared one */
};

static uint32_t other_descriptors(void)
{
	DIR *d = opendir("/proc/self/fd");
	struct dirent *e;
	uint32_t n = 0;

	while (d && (e = readdir(d))) {
		int fd = atoi(e->d_name);

		n += e->d_name[0] != '.' && fd > STDERR_FILENO && fd != dirfd(d) &&
		     fd != atoi(getenv("EP_BENCH_FD")) && fd != bench_child_share();
	}
	if (d)
		closedir(d);
	return n;
}

/* Of the run in which a rank never comes; its ranks inherit it. */
static uint64_t short_s(void)
{
	const char *text = getenv("SPAWN_SHORT_S");

	return text ? strtoull(text, NULL, 0) : SHORT_S;
}

/* The rank's side: argv as bench_spawn_run made it. */
static int rank_main(int argc, char **argv)
{
	const char *me = getenv("EPF_RANK");
	struct report r = { .words = (uint32_t)argc - 2, .open_fds = other_descriptors() };
	struct epf_boot *boot;

	while (!strcmp(argv[argc - 1], absent) && me && !strcmp(me, "1"))
		pause();
	if (bench_child_start(&r.rank, &r.ranks,
			      bench_rank_limit_ns(r.words > 1 ? LIMIT_S : short_s()), &boot))
		return 1;
	r.job = bench_child_job();
	if (bench_child_share() >= 0 &&
	    pread(bench_child_share(), &r.shared, sizeof(r.shared), 0) != sizeof(r.shared))
		return 1;
	r.secrets = (getenv("EPF_SECRET_FILE") ? 1u : 0u) + (getenv("EPF_SECRET_FD") ? 1u : 0u);
	r.inherits = getenv("SPAWN_TEST") && !strcmp(getenv("SPAWN_TEST"), "kept");
	if (epf_boot_barrier(boot)) {
		bench_complain("%s", epf_last_error());
		return 1;
	}
	epf_boot_close(boot);
	bench_child_send(BENCH_MSG_RESULT, 0, 0, &r, sizeof(r));
	return 0;
}

struct reports {
	struct report r[RANKS];
	uint32_t n;
};

static void on_message(void *arg, uint32_t rank, const struct bench_message *m, const void *bytes)
{
	struct reports *all = arg;

	assert_int_equal(m->bytes, sizeof(struct report));
	assert_true(rank < RANKS);
	memcpy(&all->r[rank], bytes, sizeof(struct report));
	all->n++;
}

static char word[] = "--word";

static int spawn(struct reports *all, uint32_t ranks, uint32_t second, int share)
{
	char *args[1 + WORDS];
	struct bench_spawn s = { .ranks = ranks,
				 .second = second,
				 .share = share,
				 .command = "rank",
				 .argc = 1 + WORDS,
				 .argv = args,
				 .timeout_ns = LIMIT_S * 1000000000ull,
				 .message = on_message,
				 .arg = all };

	for (int i = 0; i <= WORDS; i++)
		args[i] = word;
	memset(all, 0, sizeof(*all));
	return bench_spawn_run(&s);
}

static void a_rank_is_told_who_it_is(void **state)
{
	struct reports all;
	uint32_t page = 4711;
	int fd = memfd_create("spawn", MFD_CLOEXEC);

	assert_true(fd > 0 && write(fd, &page, sizeof(page)) == sizeof(page));
	setenv("SPAWN_TEST", "kept", 1);
	setenv("EPF_SECRET_FILE", "/nonexistent", 1);
	setenv("EPF_RANK", "99", 1);
	assert_int_equal(spawn(&all, RANKS, SECOND, fd), 0);
	assert_int_equal(all.n, RANKS);
	for (uint32_t i = 0; i < RANKS; i++) {
		const struct report *r = &all.r[i];
		uint32_t first = RANKS - SECOND;

		assert_int_equal(r->job, i >= first);
		assert_int_equal(r->rank, r->job ? i - first : i);
		assert_int_equal(r->ranks, r->job ? SECOND : first);
		assert_int_equal(r->words, WORDS);
		assert_int_equal(r->shared, 4711);
		assert_int_equal(r->secrets, 0);
		assert_int_equal(r->inherits, 1);
		assert_int_equal(r->open_fds, 0);
	}
	/* What ranks were given is not the parent's, nor what they inherit by descriptor. */
	assert_string_equal(getenv("EPF_RANK"), "99");
	assert_null(getenv("EP_BENCH_FD"));
	assert_null(getenv("EPF_SECRET"));
	assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	unsetenv("EPF_SECRET_FILE");
	unsetenv("EPF_RANK");
	close(fd);
}

static atomic_uint copies;

static void note_copy(void)
{
	DIR *d = opendir("/proc/self/task");
	struct dirent *e;
	unsigned threads = 0;

	while (d && (e = readdir(d)))
		threads += e->d_name[0] != '.';
	if (d)
		closedir(d);
	if (threads != 1)
		atomic_fetch_add(&copies, 1);
}

static void no_rank_is_a_copy_of_running_threads(void **state)
{
	struct reports all;

	assert_int_equal(pthread_atfork(note_copy, NULL, NULL), 0);
	assert_int_equal(spawn(&all, RANKS, 0, 0), 0);
	assert_int_equal(atomic_load(&copies), 0);
}

static char said[600];

static void note_line(const char *line)
{
	snprintf(said, sizeof(said), "%s", line);
}

/*
 * The run's own deadline names nobody, so the ranks' come first, by a quarter of it: more than a machine needs to start a rank, and if not,
 * twice as much is tried.
 */
static void a_rank_never_comes(uint64_t limit_s)
{
	struct reports all = { 0 };
	char *args[] = { word, absent };
	struct bench_spawn s = { .ranks = 3,
				 .command = "rank",
				 .argc = 2,
				 .argv = args,
				 .timeout_ns = limit_s * 1000000000ull,
				 .message = on_message,
				 .arg = &all };
	char text[24];

	snprintf(text, sizeof(text), "%llu", (unsigned long long)limit_s);
	setenv("SPAWN_SHORT_S", text, 1);
	bench_complain_to(note_line);
	assert_int_not_equal(bench_spawn_run(&s), 0);
	bench_complain_to(NULL);
	unsetenv("SPAWN_SHORT_S");
}

static void who_never_comes_is_named(void **state)
{
	for (uint64_t s = SHORT_S; s <= SHORT_S_MAX; s *= 2) {
		a_rank_never_comes(s);
		if (strstr(said, "rank 1 did not arrive"))
			return;
		print_message("not within %llu s: %s\n", (unsigned long long)s, said);
	}
	fail_msg("no word of rank 1: %s", said);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_rank_is_told_who_it_is),
		cmocka_unit_test(no_rank_is_a_copy_of_running_threads),
		cmocka_unit_test(who_never_comes_is_named),
	};

	if (argc > 1 && !strcmp(argv[1], "rank"))
		return rank_main(argc, argv);
	(void)close_range(STDERR_FILENO + 1, ~0u,
			  0); /* what this process was given is not what ranks are given */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
