/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whose files make the graph of waits: jobs of one name stay apart, writers that die are left out or said to be dead, and files that are cut, damaged or full of any numbers do no
 * harm.
 */
#include "tests/unit/tools/waits_kit.h"

#include <fcntl.h>
#include <sys/wait.h>

/* Leaves a file behind as a killed process does: rank 5 of this job waits for rank 6. */
static void die_with(const char *name, const char *job_name, uint64_t id)
{
	pid_t pid = fork();

	if (pid == 0) {
		rank(instance_of(3, name, job_name, id), 5, 6, 2, 0);
		_exit(0);
	}
	waitpid(pid, NULL, 0);
	now_ns = clock_ns();
}

static void forget_dead(const char *name)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/%s.stats", dir, name);
	assert_int_equal(unlink(path), 0);
}

/* Jobs have no names or the same ones: ranks of one number do not meet, and what is stalled in one job says nothing of another. */
static void unnamed_jobs_are_apart(void **state)
{
	struct epf_stats *a = instance_of(0, "a", "-", 7), *b = instance_of(1, "b", "-", 8);
	struct epf_stats *c = instance_of(2, "c", "-", 0);
	struct waits *w;

	rank(a, 0, 1, 3, 0);
	rank(b, 1, UINT32_MAX, 0, 0);
	rank(c, 1, UINT32_MAX, 0, 0);
	w = graph();
	assert_int_equal(w->n_jobs, 3);
	for (uint32_t j = 0; j < 3; j++)
		assert_int_equal(w->job[j].ranks, 1);
	assert_int_equal(cause_of(w, entry(w, WAITS_RANK, 0))->reason, WAITS_R_UNSEEN);
	assert_int_equal(w->job[0].entries, 1);
	assert_int_equal(w->job[1].entries + w->job[2].entries, 0);
	waits_free(w);
	end_all();
}

/* Two instances that have not joined are no job, and neither are the same ranks of another file. */
static void engines_without_a_number_are_alone(void **state)
{
	struct epf_stats *a = instance_of(0, "a", "train", 0);
	struct epf_stats *b = instance_of(1, "b", "train", 0);
	struct waits *w;

	rank(a, 0, 1, 0, 0);
	rank(b, 1, 0, 0, 0);
	w = graph();
	assert_int_equal(w->n_jobs, 2);
	waits_free(w);
	end_all();
}

/* Of a job that has ended nothing is said unless somebody asks, whatever it was called. */
static void the_dead_are_left_out(void **state)
{
	struct waits *w;
	char line[80];

	die_with("dead", "-", 7);
	die_with("old", "-", 0);
	w = graph();
	assert_int_equal(w->n_left_out, 2);
	assert_int_equal(w->n_jobs + w->n_ranks + w->n_entries, 0);
	assert_string_equal(waits_nobody(w->n_left_out, line, sizeof(line)),
			    "no instance is alive, 2 have exited: see --dead");
	assert_string_equal(waits_nobody(1, line, sizeof(line)),
			    "no instance is alive, 1 has exited: see --dead");
	rank(instance_of(0, "a", "-", 8), 5, 6, 2, 0);
	assert_true(waits_add_dir(w, dir) >= 0);
	assert_int_equal(waits_refresh(w, now_ns, SECOND / 2), 0);
	assert_int_equal(w->n_left_out, 2);
	assert_int_equal(w->n_jobs, 1);
	assert_int_equal(w->n_ranks, 1);
	assert_int_equal(w->job[0].entries, 1);
	w->with_dead = true;
	assert_int_equal(waits_refresh(w, now_ns, SECOND / 2), 0);
	assert_int_equal(w->n_left_out, 0);
	assert_int_equal(w->n_jobs, 3);
	waits_free(w);
	end_all();
	forget_dead("dead");
	forget_dead("old");
}

/* A rank that was killed is why another one of its job waits; that is all that is said of it. */
static void who_waits_for_the_dead_is_told(void **state)
{
	struct epf_stats *a;
	struct waits *w;

	die_with("dead", "-", 7);
	a = instance_of(0, "a", "-", 7);
	rank(a, 0, 1, 0, 0);
	w = graph();
	assert_int_equal(w->job[0].ranks, 1);
	assert_int_equal(w->n_entries, 0); /* nobody waits for it */
	assert_int_equal(w->job[0].causes, 0);
	rank(a, 1, 5, 2, 0);
	assert_int_equal(waits_refresh(w, now_ns, SECOND / 2), 0);
	assert_int_equal(w->n_jobs, 1);
	assert_int_equal(w->n_left_out, 1);
	assert_int_equal(w->n_entries, 2);
	assert_int_equal(nth(w, 0)->reason, WAITS_R_ENGINE_ENDED);
	assert_int_equal(nth(w, 0)->consequences, 1);
	assert_non_null(strstr(text(w, nth(w, 0)), "the engine dead (process "));
	waits_free(w);
	/* It rejoined elsewhere: it is not waited for in vain. */
	rank(a, 5, UINT32_MAX, 0, (uint64_t)getpid());
	w = graph();
	assert_int_equal(cause_of(w, entry(w, WAITS_RANK, 1))->reason, WAITS_R_BUSY);
	w->with_dead = true;
	assert_int_equal(waits_refresh(w, now_ns, SECOND / 2), 0);
	assert_int_equal(w->job[0].ranks, 3);
	waits_free(w);
	end_all();
	forget_dead("dead");
}

static void last_words_of_the_dead(void **state)
{
	struct waits *w;

	die_with("dead", "j", 99);
	w = waits_new();
	w->with_dead = true;
	assert_int_equal(waits_add_dir(w, dir), 1);
	assert_int_equal(waits_refresh(w, now_ns, SECOND / 2), 0);
	assert_int_equal(entry(w, WAITS_RANK, 5)->reason, EPF_STATS_WAIT_SIGNAL);
	assert_int_equal(entry(w, WAITS_FACT, WAITS_NONE)->reason, WAITS_R_ENGINE_ENDED);
	/* Begun again under the same name: the same model reads the new one. */
	rank(instance(0, "dead"), 0, 1, 2, 0);
	assert_int_equal(waits_refresh(w, now_ns, SECOND / 2), 0);
	assert_int_equal(entry(w, WAITS_RANK, 0)->peer, 1);
	assert_int_equal(w->n_ranks, 1);
	end_all();
	/* It ends: there is nothing, and that is no failure. */
	assert_int_equal(waits_refresh(w, now_ns, SECOND / 2), 0);
	assert_int_equal(w->n_ranks, 0);
	assert_null(w->instance[0].reader);
	waits_free(w);
}

/* Every file that a broken one can be: an instance with a reason, and the others are read. */
static void broken_files(void **state)
{
	static const char *const names[] = { "cut", "noise", "empty" };
	struct epf_stats *st = instance(0, "a");
	uint8_t *bytes = malloc(1 << 20);
	char path[128];
	struct waits *w;
	ssize_t n;
	int fd;

	rank(st, 0, 1, 2, 0);
	fd = open(epf_stats_path(st), O_RDONLY);
	n = read(fd, bytes, 1 << 20);
	close(fd);
	assert_true(n > 4096);
	for (unsigned i = 0; i < 3; i++) {
		snprintf(path, sizeof(path), "%s/%s.stats", dir, names[i]);
		fd = open(path, O_WRONLY | O_CREAT, 0600);
		memset(bytes, i == 1 ? 0x5a : bytes[0], i == 1 ? 4096 : 1);
		assert_true(write(fd, bytes, i == 2 ? 0 : i == 1 ? 4096 : (size_t)n / 2) >= 0);
		close(fd);
	}
	w = graph();
	assert_int_equal(w->n_instances, 4);
	assert_int_equal(w->n_ranks, 1);
	for (uint32_t i = 0; i < w->n_instances; i++)
		assert_int_equal(w->instance[i].reader == NULL, w->instance[i].error[0] != 0);
	waits_free(w);
	for (unsigned i = 0; i < 3; i++) {
		snprintf(path, sizeof(path), "%s/%s.stats", dir, names[i]);
		unlink(path);
	}
	free(bytes);
	end_all();
}

/* A writer that lies: ranks, times and reasons of any value. Nothing is believed beyond what it says. */
static void any_numbers(void **state)
{
	struct epf_stats *st = instance(0, "a");
	char line[512];
	struct waits *w;

	for (uint32_t i = 0; i < 8; i++) {
		struct epf_stats_block *b = rank(st, i % 2, UINT32_MAX - 1, 2, UINT64_MAX - i);

		epf_stat_state(b, EPF_STAT_RANK_WAIT, i + 6, i & 1 ? 0 : UINT64_MAX);
		epf_stat_set(b, EPF_STAT_RANK_WAIT_RANK, i & 2 ? UINT64_MAX : i);
		epf_stat_set(b, EPF_STAT_RANK_ACTIVE_NS, UINT64_MAX);
		b = ring(st, i, UINT32_MAX - i, 15, 2);
		epf_stat_set(b, EPF_STAT_RING_SLOTS, UINT64_MAX);
	}
	w = graph();
	assert_true(w->n_entries > 0);
	for (uint32_t i = 0; i < w->n_entries; i++) {
		assert_true(strlen(waits_sentence(w, &w->entry[i], line, sizeof(line))) > 0);
		assert_true(strlen(waits_sentence(w, &w->entry[i], line, 8)) == 7);
	}
	waits_free(w);
	end_all();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		IN_DIR(unnamed_jobs_are_apart),
		IN_DIR(engines_without_a_number_are_alone),
		IN_DIR(the_dead_are_left_out),
		IN_DIR(who_waits_for_the_dead_is_told),
		IN_DIR(last_words_of_the_dead),
		IN_DIR(broken_files),
		IN_DIR(any_numbers),
	};

	return cmocka_run_group_tests_name("waits of files", tests, NULL, NULL);
}
