/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors name the rank that failed first. A rank is killed while all others but one are stopped; that one gets the error and exits at
 * once. The others continue one by one, each after the previous one has exited on its error, so each sees more dead ranks. All must name
 * the killed rank: with embedded engines, and with daemons, one of which is stopped as well and so learns of several losses at once.
 * A wait that ends because a peer's engine is stopped names that engine's process; and so does a barrier, to which a stopped rank never comes.
 */
#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "tests/proc/svc_job.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

enum { WORLD = 5, VICTIM = 4, NODES = 3, LIMIT_MS = 60000, EXIT_LOST = 3, STOPPED_DAEMON = 1 };

/* No stopped rank is declared lost. */
#define PATIENT "peer-silence=1h", "emu-retry-timeout=1h", "emu-rnr-timeout=1h"

static const char *const patient[] = { "peer-timeout=1h", PATIENT, NULL };
static const char *const ticking[] = { "peer-timeout=400ms", PATIENT, NULL }; /* a tick is 50 ms */

/* Silence that ends a peer. Of a machine that may be busy: a rank that runs is not that late. */
static const char *const *prompt(void)
{
	static char timeout[32], silence[32];
	static const char *const list[] = { timeout,
					    silence,
					    "emu-retry-timeout=1h",
					    "emu-rnr-timeout=1h",
					    "bootstrap-timeout=1h",
					    NULL };

	snprintf(timeout, sizeof(timeout), "peer-timeout=%ums", job_ms(400));
	snprintf(silence, sizeof(silence), "peer-silence=%ums", job_ms(500));
	return list;
}

static struct daemons daemons;
static struct job job;
static char embedded_dir[64];

static const char *const *embedded(void)
{
	static char text[96];
	static const char *const list[] = { text, NULL };

	snprintf(text, sizeof(text), "stats-dir=%s", embedded_dir);
	return list;
}

/* Exits on its error without closing, so the engine of an embedded rank sends no farewell. */
static void play(struct job_rank *r)
{
	job_rank_enter(r);
	job_rank_told(r, job_rank_until_error(r));
	_exit(EXIT_LOST);
}

static void start_job(const char *name, uint32_t world, const char *const *settings,
		      void (*body)(struct job_rank *r), bool service)
{
	static const unsigned daemon_of[WORLD] = { 0, 1, 2, 1, 2 };
	struct job_plan plan = {
		.name = name, .world = world, .settings = settings, .body = body, .alarm_s = 600
	};

	for (uint32_t i = 0; i < world; i++)
		plan.client[i] = service ? daemons_client(&daemons, daemon_of[i]) : embedded();
	assert_int_equal(job_fork(&job, &plan), 0);
}

static void expect_error(uint32_t rank)
{
	int status = 0;

	assert_int_equal(waitpid(job.pid[rank], &status, 0), job.pid[rank]);
	job.pid[rank] = 0;
	if (!WIFEXITED(status) || WEXITSTATUS(status) != EXIT_LOST ||
	    !strstr(job.page->rank[rank].text, "rank 4 on node "))
		fail_msg("rank %u ended with %#x: %s", rank, (unsigned)status,
			 job.page->rank[rank].text);
	assert_int_equal(job.page->rank[rank].rc, -ECONNRESET);
	printf("# rank %u: %s\n", rank, job.page->rank[rank].text);
}

static void kill_and_continue(void **state)
{
	bool service = *state != NULL;

	start_job(service ? "root-daemons" : "root-embedded", WORLD, patient, play, service);
	assert_int_equal(job_reach(&job, 20, LIMIT_MS), 0);
	for (uint32_t i = 1; i < VICTIM; i++)
		kill(job.pid[i], SIGSTOP);
	if (service)
		kill(daemons.pid[STOPPED_DAEMON], SIGSTOP);
	job_kill(&job, VICTIM);
	expect_error(0);
	if (service) {
		usleep(500 * 1000); /* all notifications for this daemon are pending by then */
		kill(daemons.pid[STOPPED_DAEMON], SIGCONT);
		usleep(500 * 1000);
	}
	for (uint32_t i = 1; i < VICTIM; i++) {
		kill(job.pid[i], SIGCONT);
		expect_error(i);
	}
	job_end(&job);
}

enum { W_ASK = 1, W_SILENT = 2, W_AWAKE = 3 };

/* Waits for a signal that is never sent, until the error says (or no longer says) that the peer is silent. */
static void ask_until(struct job_rank *r, bool silent)
{
	uint64_t deadline = epf_now_ns() + UINT64_C(1000000) * LIMIT_MS;
	int rc;

	do {
		rc = epf_signal_wait(r->ep, JOB_SIGNALS - 1, 1, 100 * UINT64_C(1000000));
		JOB_CHECK(r, rc == -ETIMEDOUT && epf_now_ns() < deadline);
	} while ((epf_last_reason() == EPF_R_PEER_SILENT) != silent);
}

static void ask(struct job_rank *r)
{
	job_rank_enter(r);
	/* Once traffic has gone both ways, the engines exchange heartbeats. */
	for (int i = 0; i < 4; i++)
		JOB_CHECK(r, job_rank_round(r, UINT64_C(1000000) * LIMIT_MS) == 0);
	if (r->me == 0) {
		JOB_CHECK(r, job_await(&r->page->words[W_ASK], 1, LIMIT_MS) == 0);
		ask_until(r, true);
		job_rank_told(r, -ETIMEDOUT);
		job_set(&r->page->words[W_SILENT], 1);
		ask_until(r, false);
		job_set(&r->page->words[W_AWAKE], 1);
	}
	JOB_CHECK(r, job_await(&r->page->words[W_AWAKE], 1, LIMIT_MS) == 0);
	JOB_CHECK(r, epf_barrier(r->ep) == 0);
	job_rank_leave(r);
}

static void stop_one(void **state)
{
	bool service = *state != NULL;
	char host[65] = "", want[128];
	pid_t stopped;

	start_job(service ? "silent-daemon" : "silent-embedded", 2, ticking, ask, service);
	assert_int_equal(job_reach(&job, 4, LIMIT_MS), 0);
	stopped = service ? daemons.pid[1] : job.pid[1];
	kill(stopped, SIGSTOP);
	job_set(&job.page->words[W_ASK], 1);
	assert_int_equal(job_await(&job.page->words[W_SILENT], 1, LIMIT_MS), 0);
	kill(stopped, SIGCONT);
	gethostname(host, sizeof(host) - 1);
	snprintf(want, sizeof(want), "rank 1 on node %d (host %s, process %d) is silent since ",
		 service, host, (int)stopped);
	if (!strstr(job.page->rank[0].text, want) || !strstr(job.page->rank[0].text, "[EPF-413]"))
		fail_msg("\"%s\" lacks \"%s\"", job.page->rank[0].text, want);
	printf("# %s\n", job.page->rank[0].text);
	assert_int_equal(job_wait(&job, 0, LIMIT_MS), 0);
	job_end(&job);
}

static void meet(struct job_rank *r)
{
	job_rank_enter(r);
	for (int i = 0; i < 4; i++)
		JOB_CHECK(r, job_rank_round(r, UINT64_C(1000000) * LIMIT_MS) == 0);
	if (r->me == 0) {
		JOB_CHECK(r, job_await(&r->page->words[W_ASK], 1, LIMIT_MS) == 0);
		job_rank_told(r, epf_barrier(r->ep));
		job_set(&r->page->words[W_SILENT], 1);
	}
	(void)job_await(&r->page->words[W_AWAKE], 1, LIMIT_MS);
	_exit(EXIT_LOST);
}

/* The rendezvous cannot know: the stopped rank's connection stands. */
static void stop_before_a_barrier(void **state)
{
	start_job("barrier", 2, prompt(), meet, false);
	assert_int_equal(job_reach(&job, 4, LIMIT_MS), 0);
	kill(job.pid[1], SIGSTOP);
	job_set(&job.page->words[W_ASK], 1);
	assert_int_equal(job_await(&job.page->words[W_SILENT], 1, LIMIT_MS), 0);
	printf("# %s\n", job.page->rank[0].text);
	assert_int_equal(job.page->rank[0].rc, -ECONNRESET);
	assert_non_null(strstr(job.page->rank[0].text, "rank 1 on node "));
	assert_non_null(strstr(job.page->rank[0].text, "[EPF-409]"));
}

static int start_daemons(void **state)
{
	return daemons_start(&daemons, NODES, ticking);
}

static int stop_daemons(void **state)
{
	kill(daemons.pid[STOPPED_DAEMON], SIGCONT);
	job_end(&job);
	return daemons_stop(&daemons);
}

static int end_job(void **state)
{
	job_end(&job);
	return 0;
}

static int make_dir(void **state)
{
	snprintf(embedded_dir, sizeof(embedded_dir), "/tmp/epf-test-root-XXXXXX");
	return mkdtemp(embedded_dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
	char command[96];

	snprintf(command, sizeof(command), "rm -r %s", embedded_dir);
	return system(command);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		JOB_CASE(engines_in_the_ranks, kill_and_continue, NULL, NULL, end_job),
		JOB_CASE(engines_in_daemons, kill_and_continue, 1, start_daemons, stop_daemons),
		JOB_CASE(a_stopped_rank_is_named, stop_one, NULL, NULL, end_job),
		JOB_CASE(a_barrier_names_a_stopped_rank, stop_before_a_barrier, NULL, NULL,
			 end_job),
		JOB_CASE(a_stopped_daemon_is_named, stop_one, 1, start_daemons, stop_daemons),
	};

	return cmocka_run_group_tests_name("root_cause", tests, make_dir, remove_dir);
}
