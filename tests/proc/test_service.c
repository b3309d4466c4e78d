/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The service end to end, as seen by an operator and a job: real daemons, real rank processes. test_svc_*.c cover hostile clients, kills,
 * links and containers. Needs the ep-fabric program (daemons.h).
 */
#include "tests/proc/svc_job.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static struct daemons d;

static struct job_plan plan_of(const char *name, uint32_t world, uint64_t tag,
			       void (*body)(struct job_rank *r))
{
	return (struct job_plan){
		.name = name, .world = world, .tag = tag, .daemons = &d, .body = body
	};
}

static void run(const char *name, uint32_t world, uint64_t tag, void (*body)(struct job_rank *r))
{
	struct job_plan plan = plan_of(name, world, tag, body);

	assert_int_equal(job_run(&plan), 0);
}

static void run_on(unsigned daemon, const char *name, void (*body)(struct job_rank *r))
{
	struct job_plan plan = { .name = name, .world = 1, .body = body };

	plan.client[0] = daemons_client(&d, daemon);
	assert_int_equal(job_run(&plan), 0);
}

/* Forks a job and waits for its first rounds. */
static void start(struct job *job, const char *name, uint32_t world, uint64_t tag)
{
	struct job_plan plan = plan_of(name, world, tag, job_play);

	assert_int_equal(job_fork(job, &plan), 0);
	assert_int_equal(job_reach(job, 10, job_ms(JOB_WAIT_MS)), 0);
}

/* Puts, signals, flushes and gets with every rank; checks every byte. */
static void play_all(struct job_rank *r)
{
	uint64_t out = (uint64_t)(2 * r->world) * JOB_SLOT, back = out + JOB_SLOT;
	uint8_t *slots;

	job_rank_enter(r);
	JOB_CHECK(r, strcmp(epf_mode(r->ep), "embedded") != 0);
	slots = r->mem;
	for (uint32_t round = 0; round < 15; round++) {
		memset(slots + out, (int)(round * 16 + r->me + 1), JOB_SLOT);
		for (uint32_t p = 0; p < r->world; p++)
			JOB_CHECK(r, epf_put(r->ring, p, 0, out, 0, (uint64_t)r->me * JOB_SLOT,
					     JOB_SLOT, 0) == 0);
		JOB_CHECK(r, epf_flush(r->ring, 0, 0) == 0);
		JOB_CHECK(r, epf_wait_retired(r->ring, epf_ring_pushed(r->ring), 0) == 0);
		/* A flushed put is visible at the peer: a get reads it back. */
		for (uint32_t p = 0; p < r->world; p++) {
			memset(slots + back, 0, JOB_SLOT);
			JOB_CHECK(r, epf_get(r->ring, p, 0, back, 0, (uint64_t)r->me * JOB_SLOT,
					     JOB_SLOT, 0) == 0);
			JOB_CHECK(r, epf_wait_retired(r->ring, epf_ring_pushed(r->ring), 0) == 0);
			JOB_CHECK(r, memcmp(slots + back, slots + out, JOB_SLOT) == 0);
		}
		for (uint32_t p = 0; p < r->world; p++)
			JOB_CHECK(r, epf_signal_send(r->ring, p, 0, 1, 0) == 0);
		JOB_CHECK(r, epf_signal_wait(r->ep, 0, (uint64_t)(round + 1) * r->world, 0) == 0);
		for (uint32_t p = 0; p < r->world; p++)
			JOB_CHECK(r, slots[p * JOB_SLOT] >= (uint8_t)(round * 16 + p + 1));
		job_set(&r->report->rounds, round + 1);
	}
	JOB_CHECK(r, epf_barrier(r->ep) == 0);
	job_rank_leave(r);
}

static unsigned count_files(const char *word)
{
	return proc_files(d.dir, word, NULL, 0);
}

static bool status_has(unsigned i, const char *text)
{
	char *status = daemons_status(&d, i);
	bool has = status && strstr(status, text);

	free(status);
	return has;
}

/* Waits until daemon i's status contains text. */
static void await_status(unsigned i, const char *text)
{
	for (int at = 0; at < 1200; at++) {
		if (status_has(i, text))
			return;
		usleep(50000);
	}
	fail_msg("the status of node%u never contains %s", i, text);
}

static void two_daemons_serve_a_job(void **state)
{
	assert_int_equal(daemons_start(&d, 2, NULL), 0);
	run("four", 4, 1, play_all);
	await_status(0, "\"jobs\": []");
	assert_true(status_has(1, "\"jobs_begun\": 1"));
	assert_true(status_has(0, "\"ranks_lost\": 0"));
	assert_true(status_has(0, "\"refusals\": {}"));
	assert_int_equal(daemons_stop(&d), 0);
}

static void two_jobs_run_at_once(void **state)
{
	struct job job[2];

	assert_int_equal(daemons_start(&d, 2, NULL), 0);
	start(&job[0], "one", 4, 1);
	start(&job[1], "two", 3, 2);
	for (int i = 0; i < 2; i++)
		assert_int_equal(job_more(&job[i], 50), 0);
	assert_true(status_has(0, "\"name\": \"one\""));
	assert_true(status_has(0, "\"name\": \"two\""));
	for (int i = 0; i < 2; i++) {
		assert_int_equal(job_finish(&job[i]), 0);
		job_end(&job[i]);
	}
	assert_int_equal(daemons_stop(&d), 0);
}

/* Joining must be refused, with a reason. */
static void is_refused(struct job_rank *r)
{
	int rc = job_rank_open(r);

	if (!rc)
		rc = job_rank_join(r);
	JOB_CHECK(r, rc == -ESHUTDOWN);
	JOB_CHECK(r, strstr(epf_last_error(), "EPF-710") != NULL);
	job_rank_leave(r);
}

static void term_drains(void **state)
{
	struct job job;
	char *log;

	assert_int_equal(daemons_start(&d, 1, NULL), 0);
	start(&job, "old", 2, 1);
	assert_int_equal(daemons_end(&d, 0, SIGTERM, 300), -1); /* keeps running */
	assert_true(status_has(0, "\"draining\": true"));
	run("late", 1, 2, is_refused);
	/* The running job is not disturbed; the daemon ends with it. */
	assert_int_equal(job_more(&job, 20), 0);
	assert_int_equal(job_finish(&job), 0);
	job_end(&job);
	assert_int_equal(daemons_end(&d, 0, 0, job_ms(JOB_WAIT_MS)), 0);
	assert_int_equal(count_files(".sock") + count_files(".lock") + count_files(".stats"), 0);
	log = daemons_log(&d, 0);
	assert_non_null(strstr(log, "instance node0: ended in order"));
	free(log);
	assert_int_equal(daemons_stop(&d), 0);
}

static void second_term_ends_jobs(void **state)
{
	struct job job;

	assert_int_equal(daemons_start(&d, 1, NULL), 0);
	start(&job, "stays", 2, 1);
	assert_int_equal(daemons_end(&d, 0, SIGTERM, 200), -1);
	assert_int_equal(daemons_end(&d, 0, SIGTERM, job_ms(JOB_WAIT_MS)), 0);
	/* Its ranks get the error that the daemon is gone, which fails a check of this body. */
	assert_int_equal(job_wait(&job, 0, job_ms(JOB_WAIT_MS)), 2);
	job_end(&job);
	assert_int_equal(daemons_stop(&d), 0);
}

/* A draining daemon finishes its job and refuses others; the other daemon serves; after --off it serves again. */
static void drain_and_back(void **state)
{
	static const char *const begin[] = { "drain", "--instance", "node0", NULL };
	static const char *const on[] = { "drain", "--wait", "--instance", "node0", NULL };
	static const char *const off[] = {
		"drain", "--off", "--json", "--instance", "node0", NULL
	};
	struct job job;
	char *out = NULL;

	assert_int_equal(daemons_start(&d, 2, NULL), 0);
	start(&job, "runs", 4, 3);
	assert_int_equal(daemons_command(&d, begin, &out), 0);
	assert_string_equal(out, "node0: draining, 1 jobs run\n");
	free(out);
	run_on(0, "late", is_refused);
	run_on(1, "elsewhere", job_play);
	assert_true(status_has(0, "\"EPF-710\": 1"));
	assert_int_equal(job_more(&job, 100), 0);
	assert_int_equal(job_finish(&job), 0);
	job_end(&job);
	assert_int_equal(daemons_command(&d, on, &out), 0);
	assert_string_equal(out, "node0: draining, 0 jobs run\n");
	free(out);
	assert_int_equal(daemons_command(&d, off, &out), 0);
	assert_non_null(strstr(out, "\"draining\": false"));
	free(out);
	run_on(0, "again", play_all);
	assert_int_equal(daemons_stop(&d), 0);
}

static void second_daemon_is_refused(void **state)
{
	static const char *const run[] = { "run", "--instance", "node0", NULL };
	char *out = NULL, want[160];

	assert_int_equal(daemons_start(&d, 1, NULL), 0);
	assert_int_equal(daemons_command(&d, run, &out), 1);
	snprintf(want, sizeof(want), "instance node0: process %d serves", (int)d.pid[0]);
	assert_non_null(strstr(out, want));
	assert_non_null(strstr(out, "EPF-712"));
	assert_ptr_equal(strchr(out, '\n'), out + strlen(out) - 1); /* one line */
	free(out);
	assert_true(status_has(0, "\"schema\": \"epf.service/1\"")); /* the first one is unharmed */
	assert_int_equal(daemons_stop(&d), 0);
}

static void killed_daemon_starts_again(void **state)
{
	assert_int_equal(daemons_start(&d, 2, NULL), 0);
	for (uint64_t at = 0; at < 3; at++) {
		daemons_kill(&d, 1);
		/* It had no clients: its sweeper removes socket and lock, unless the next start comes first. */
		for (unsigned ms = 0; at == 0 && ms < job_ms(JOB_WAIT_MS); ms++) {
			if (count_files(".sock") + count_files(".lock") == 2)
				break;
			usleep(1000);
		}
		if (at == 0)
			assert_int_equal(count_files(".sock") + count_files(".lock"), 2);
		assert_int_equal(daemons_restart(&d, 1), 0);
		run("after", 4, at, play_all);
	}
	assert_int_equal(count_files(".stats"), 2);
	assert_int_equal(daemons_stop(&d), 0);
}

static int end_daemons(void **state)
{
	for (unsigned i = 0; i < d.n; i++)
		daemons_kill(&d, i);
	if (d.n)
		daemons_stop(&d);
	d.n = 0;
	return 0;
}

#define TEST(fn) cmocka_unit_test_teardown(fn, end_daemons)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(two_daemons_serve_a_job),
		TEST(two_jobs_run_at_once),
		TEST(term_drains),
		TEST(second_term_ends_jobs),
		TEST(drain_and_back),
		TEST(second_daemon_is_refused),
		TEST(killed_daemon_starts_again),
	};

	return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
