/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The service end to end, as an operator and a job see it: real daemons, real rank processes. What hostile clients, kills, links and
 * containers do to it has tests of its own (test_svc_*.c). Needs the ep-fabric program (daemons.h).
 */
#include "tests/proc/daemons.h"
#include "tests/proc/svc_job.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { STEP_MS = 60000 };

static struct daemons d;
static const char *const no_client[] = { NULL };

static struct job_plan plan_of(const char *name, uint32_t world, uint64_t tag,
			       void (*body)(struct job_rank *r))
{
	struct job_plan p = { .name = name,
			      .world = world,
			      .tag = tag,
			      .body = body,
			      .boot_timeout_ns = UINT64_C(20000000000) };

	for (uint32_t r = 0; r < world; r++)
		p.client[r] = d.n ? daemons_client(&d, r * d.n / world) : no_client;
	return p;
}

/* Puts, signals, flushes and gets, with every rank, and looks at every byte. */
static void play_all(struct job_rank *r)
{
	uint64_t out = (uint64_t)(2 * r->world) * JOB_SLOT, back = out + JOB_SLOT;
	uint8_t *slots = NULL;

	JOB_CHECK(r, job_rank_open(r) == 0);
	JOB_CHECK(r, job_rank_join(r) == 0);
	JOB_CHECK(r, strcmp(epf_mode(r->ep), "embedded") != 0);
	slots = r->mem;
	for (uint32_t round = 0; round < 15; round++) {
		memset(slots + out, (int)(round * 16 + r->me + 1), JOB_SLOT);
		for (uint32_t p = 0; p < r->world; p++)
			JOB_CHECK(r, epf_put(r->ring, p, 0, out, 0, (uint64_t)r->me * JOB_SLOT,
					     JOB_SLOT, 0) == 0);
		JOB_CHECK(r, epf_flush(r->ring, 0, 0) == 0);
		JOB_CHECK(r, epf_wait_retired(r->ring, epf_ring_pushed(r->ring), 0) == 0);
		/* Flushed is visible there: what is read back now is what was put. */
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
	epf_close(r->ep);
	epf_boot_close(r->boot);
}

static int count_files(const char *dir, const char *suffix)
{
	DIR *dp = opendir(dir);
	int n = 0;

	for (struct dirent *e = dp ? readdir(dp) : NULL; e; e = readdir(dp)) {
		size_t len = strlen(e->d_name), s = strlen(suffix);

		n += len > s && strcmp(e->d_name + len - s, suffix) == 0;
	}
	if (dp)
		closedir(dp);
	return n;
}

static bool status_has(unsigned i, const char *text)
{
	char *status = daemons_status(&d, i);
	bool has = status && strstr(status, text);

	free(status);
	return has;
}

/* Waits until daemon i's status says so. */
static void await_status(unsigned i, const char *text)
{
	for (int at = 0; at < 1200; at++) {
		if (status_has(i, text))
			return;
		usleep(50000);
	}
	fail_msg("node%u never says %s", i, text);
}

static void two_daemons_serve_a_job(void **state)
{
	struct job_plan p;
	struct job job;

	(void)state;
	assert_int_equal(daemons_start(&d, 2, NULL), 0);
	p = plan_of("four", 4, 1, play_all);
	assert_int_equal(job_fork(&job, &p), 0);
	assert_int_equal(job_wait(&job, 0, job_ms(STEP_MS)), 0);
	job_end(&job);
	await_status(0, "\"jobs\": []");
	assert_true(status_has(1, "\"jobs_begun\": 1"));
	assert_true(status_has(0, "\"ranks_lost\": 0"));
	assert_true(status_has(0, "\"refusals\": {}"));
	assert_int_equal(daemons_stop(&d), 0);
}

static void two_jobs_run_at_once(void **state)
{
	struct job_plan p[2];
	struct job job[2];

	(void)state;
	assert_int_equal(daemons_start(&d, 2, NULL), 0);
	p[0] = plan_of("one", 4, 1, job_play);
	p[1] = plan_of("two", 3, 2, job_play);
	for (int i = 0; i < 2; i++)
		assert_int_equal(job_fork(&job[i], &p[i]), 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(job_reach(&job[i], 50, job_ms(STEP_MS)), 0);
	assert_true(status_has(0, "\"name\": \"one\""));
	assert_true(status_has(0, "\"name\": \"two\""));
	for (int i = 0; i < 2; i++)
		job_set(&job[i].page->end, 1);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(job_wait(&job[i], 0, job_ms(STEP_MS)), 0);
		job_end(&job[i]);
	}
	assert_int_equal(daemons_stop(&d), 0);
}

/* Joining is to be refused, in words. */
static void is_refused(struct job_rank *r)
{
	int rc = job_rank_open(r);

	if (!rc)
		rc = job_rank_join(r);
	JOB_CHECK(r, rc == -ESHUTDOWN);
	JOB_CHECK(r, strstr(epf_last_error(), "EPF-710") != NULL);
	epf_close(r->ep);
	epf_boot_close(r->boot);
}

static void term_drains(void **state)
{
	struct job_plan p, late;
	struct job job, second;
	char *log;

	(void)state;
	assert_int_equal(daemons_start(&d, 1, NULL), 0);
	p = plan_of("old", 2, 1, job_play);
	late = plan_of("late", 1, 2, is_refused);
	assert_int_equal(job_fork(&job, &p), 0);
	assert_int_equal(job_reach(&job, 10, job_ms(STEP_MS)), 0);
	assert_int_equal(daemons_end(&d, 0, SIGTERM, 300), -1); /* it goes on */
	assert_true(status_has(0, "\"draining\": true"));
	assert_int_equal(job_fork(&second, &late), 0);
	assert_int_equal(job_wait(&second, 0, job_ms(STEP_MS)), 0);
	job_end(&second);
	/* The running job is not disturbed, and the daemon ends with it. */
	assert_int_equal(job_reach(&job, job_get(&job.page->rank[0].rounds) + 20, job_ms(STEP_MS)),
			 0);
	job_set(&job.page->end, 1);
	assert_int_equal(job_wait(&job, 0, job_ms(STEP_MS)), 0);
	job_end(&job);
	assert_int_equal(daemons_end(&d, 0, 0, job_ms(60000)), 0);
	assert_int_equal(count_files(d.dir, ".sock") + count_files(d.dir, ".lock") +
				 count_files(d.dir, ".stats"),
			 0);
	log = daemons_log(&d, 0);
	assert_non_null(strstr(log, "instance node0: ended in order"));
	free(log);
	assert_int_equal(daemons_stop(&d), 0);
}

static void second_term_ends_jobs(void **state)
{
	struct job_plan p;
	struct job job;

	(void)state;
	assert_int_equal(daemons_start(&d, 1, NULL), 0);
	p = plan_of("stays", 2, 1, job_play);
	assert_int_equal(job_fork(&job, &p), 0);
	assert_int_equal(job_reach(&job, 10, job_ms(STEP_MS)), 0);
	assert_int_equal(daemons_end(&d, 0, SIGTERM, 200), -1);
	assert_int_equal(daemons_end(&d, 0, SIGTERM, job_ms(60000)), 0);
	/* Its ranks get the error that the daemon is gone, which to this body is a fault. */
	assert_int_equal(job_wait(&job, 0, job_ms(STEP_MS)), 2);
	job_end(&job);
	assert_int_equal(daemons_stop(&d), 0);
}

static void drain_and_back(void **state)
{
	static const char *const on[] = { "drain", "--wait", NULL };
	static const char *const off[] = { "drain", "--off", "--json", NULL };
	struct job_plan late, p;
	struct job job;
	char *out = NULL;

	(void)state;
	assert_int_equal(daemons_start(&d, 1, NULL), 0);
	assert_int_equal(daemons_command(&d, on, &out), 0);
	assert_string_equal(out, "node0: draining, 0 jobs run\n");
	free(out);
	late = plan_of("late", 1, 2, is_refused);
	assert_int_equal(job_fork(&job, &late), 0);
	assert_int_equal(job_wait(&job, 0, job_ms(STEP_MS)), 0);
	job_end(&job);
	assert_true(status_has(0, "\"EPF-710\": 1"));
	assert_int_equal(daemons_command(&d, off, &out), 0);
	assert_non_null(strstr(out, "\"draining\": false"));
	free(out);
	p = plan_of("again", 2, 1, play_all);
	assert_int_equal(job_fork(&job, &p), 0);
	assert_int_equal(job_wait(&job, 0, job_ms(STEP_MS)), 0);
	job_end(&job);
	assert_int_equal(daemons_stop(&d), 0);
}

static void second_daemon_is_refused(void **state)
{
	static const char *const run[] = { "run", "--instance", "node0", NULL };
	char *out = NULL, want[160];

	(void)state;
	assert_int_equal(daemons_start(&d, 1, NULL), 0);
	assert_int_equal(daemons_command(&d, run, &out), 1);
	snprintf(want, sizeof(want), "instance node0: process %d serves", (int)d.pid[0]);
	assert_non_null(strstr(out, want));
	assert_non_null(strstr(out, "EPF-712"));
	assert_ptr_equal(strchr(out, '\n'), out + strlen(out) - 1); /* one line */
	free(out);
	assert_true(status_has(0, "\"schema\": \"epf.service/1\"")); /* the first one is well */
	assert_int_equal(daemons_stop(&d), 0);
}

static void killed_daemon_starts_again(void **state)
{
	struct job_plan p;
	struct job job;

	(void)state;
	assert_int_equal(daemons_start(&d, 2, NULL), 0);
	for (int at = 0; at < 3; at++) {
		daemons_kill(&d, 1);
		/* Nobody was connected: its sweeper removes socket and lock, unless the next start comes first. */
		for (unsigned ms = 0; at == 0 && ms < job_ms(60000); ms++) {
			if (count_files(d.dir, ".sock") + count_files(d.dir, ".lock") == 2)
				break;
			usleep(1000);
		}
		if (at == 0)
			assert_int_equal(count_files(d.dir, ".sock") + count_files(d.dir, ".lock"),
					 2);
		assert_int_equal(daemons_restart(&d, 1), 0);
		p = plan_of("after", 4, (uint64_t)at, play_all);
		assert_int_equal(job_fork(&job, &p), 0);
		assert_int_equal(job_wait(&job, 0, job_ms(STEP_MS)), 0);
		job_end(&job);
	}
	assert_int_equal(count_files(d.dir, ".stats"), 2);
	assert_int_equal(daemons_stop(&d), 0);
}

static int end_daemons(void **state)
{
	(void)state;
	for (unsigned i = 0; i < d.n; i++)
		daemons_kill(&d, i);
	if (d.n)
		daemons_stop(&d);
	d.n = 0;
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(two_daemons_serve_a_job, end_daemons),
		cmocka_unit_test_teardown(two_jobs_run_at_once, end_daemons),
		cmocka_unit_test_teardown(term_drains, end_daemons),
		cmocka_unit_test_teardown(second_term_ends_jobs, end_daemons),
		cmocka_unit_test_teardown(drain_and_back, end_daemons),
		cmocka_unit_test_teardown(second_daemon_is_refused, end_daemons),
		cmocka_unit_test_teardown(killed_daemon_starts_again, end_daemons),
	};

	return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
