/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stalled jobs and `ep-fabric why`: a stopped rank, a cut link, a ring that is not drained, in jobs on two daemons and in one with
 * embedded engines. Within 2 seconds of the stall the tool must name the right rank, peer and reason as the cause, and its consequences;
 * when the job has recovered it must report nothing. It also reads the files of dead processes.
 */
#include "fabric/base/clock.h"
#include "tests/proc/svc_job.h"

#include <errno.h>
#include <jansson.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { WORLD = 4, ROUNDS = 20, FLOOD_BYTES = 64 };

/* Longer than any stall here, so that no wait gives up. */
#define PATIENT \
 "emu-retry-timeout=60s", "emu-stall-timeout=60s", "peer-timeout=60s", "service-grace=100ms"

static const char *const settings[] = { PATIENT, NULL };
static const char *const of_ranks[] = { "wait-timeout=600s", NULL };
static const char *const unordered[] = { PATIENT, "emu-order=unordered", "lane-receives=16", NULL };

static struct daemons daemons;
static uint64_t begun_ns; /* this program */
static struct job job, other;

static void start(const char *name, const char *const *with, void (*body)(struct job_rank *r))
{
	struct job_plan plan = { .name = name,
				 .world = WORLD,
				 .tag = 9,
				 .daemons = &daemons,
				 .settings = of_ranks,
				 .body = body,
				 .alarm_s = 150 };

	assert_int_equal(daemons_start(&daemons, 2, with), 0);
	assert_int_equal(job_fork(&job, &plan), 0);
	assert_int_equal(job_reach(&job, ROUNDS, job_ms(JOB_WAIT_MS)), 0);
}

static int stop(void **state)
{
	for (unsigned i = 0; i < daemons.n; i++)
		if (daemons.pid[i] > 0)
			kill(daemons.pid[i], SIGCONT);
	for (unsigned i = 0; job.page && i < WORLD; i++)
		if (job.pid[i] > 0)
			kill(job.pid[i], SIGCONT);
	job_end(&other);
	job_end(&job);
	return daemons.n ? daemons_stop(&daemons) : 0;
}

/* ---- the tool's report ---- */

static json_t *ask(const char *name)
{
	const char *argv[] = { "why", "--json", name, NULL };
	char *text = NULL;
	json_t *top;

	assert_int_equal(daemons_reader(&daemons, argv, &text), 0);
	top = json_loads(text, 0, NULL);
	if (!top)
		print_error("not JSON: %s\n", text);
	assert_non_null(top);
	free(text);
	return top;
}

static long long num(const json_t *e, const char *key)
{
	const json_t *v = json_object_get(e, key);

	return json_is_integer(v) ? (long long)json_integer_value(v) : -1;
}

static const char *str(const json_t *e, const char *key)
{
	const char *s = json_string_value(json_object_get(e, key));

	return s ? s : "";
}

/* An expected entry. -1 and NULL: anything. */
struct want {
	int cause;
	const char *who, *reason, *instance;
	int rank, peer;
	int consequences; /* at least */
};

static bool fits(const json_t *e, const struct want *w)
{
	return (w->cause < 0 || json_is_true(json_object_get(e, "cause")) == w->cause) &&
	       (!w->who || !strcmp(str(e, "who"), w->who)) &&
	       (!w->reason || strstr(w->reason, str(e, "reason"))) &&
	       (!w->instance || !strcmp(str(e, "instance"), w->instance)) &&
	       (w->rank < 0 || num(e, "rank") == w->rank) &&
	       (w->peer < 0 || num(e, "peer") == w->peer) &&
	       num(e, "consequences") >= w->consequences;
}

/* Returns the first entry that fits, with its index in *place; or NULL. */
static json_t *find(const json_t *top, const struct want *w, size_t *place)
{
	json_t *one, *e;
	size_t j, i;

	json_array_foreach(json_object_get(top, "jobs"), j, one)
	{
		json_array_foreach(json_object_get(one, "waits"), i, e)
		{
			if (!fits(e, w))
				continue;
			if (place)
				*place = i;
			return e;
		}
	}
	return NULL;
}

/* Asks until the report has all n entries. Returns it, and sets *after_ns to its age relative to `since`. */
static json_t *named(uint64_t since, const struct want *want, unsigned n, uint64_t *after_ns)
{
	uint64_t limit = epf_now_ns() + job_wait_ns();

	for (;;) {
		json_t *top = ask(NULL);
		unsigned found = 0;

		*after_ns = (uint64_t)num(top, "now_ns") - since;
		while (found < n && find(top, &want[found], NULL))
			found++;
		if (found == n)
			return top;
		if (epf_now_ns() > limit) {
			char *text = json_dumps(top, JSON_INDENT(1));

			fprintf(stderr, "after %.1f s only %u of %u: %s\n", (double)*after_ns / 1e9,
				found, n, text);
			free(text);
			assert_int_equal(found, n);
		}
		json_decref(top);
		usleep(20000);
	}
}

/* Waits until the report has no entry of this kind. */
static void await_recovery(const char *who)
{
	uint64_t limit = epf_now_ns() + (uint64_t)job_ms(20000) * 1000000;
	const struct want any = { .cause = -1, .who = who, .rank = -1, .peer = -1 };
	json_t *top;

	while (find(top = ask(NULL), &any, NULL) && epf_now_ns() < limit) {
		json_decref(top);
		usleep(100000);
	}
	if (find(top, &any, NULL))
		fprintf(stderr, "the job has recovered but the tool reports: %s\n",
			str(find(top, &any, NULL), "text"));
	assert_null(find(top, &any, NULL));
	json_decref(top);
}

static void play_to_end(void)
{
	assert_int_equal(job_more(&job, 10), 0);
	await_recovery(NULL);
	assert_int_equal(job_finish(&job), 0);
}

static void print_named(const char *what, uint64_t after_ns, const json_t *e)
{
	printf("# %s: named after %.2f s: %s\n", what, (double)after_ns / 1e9, str(e, "text"));
}

/* ---- the cases ---- */

/* own_engine: its engine stops with it, so the others may wait for their rings as well. */
static void rank_is_stopped(uint32_t rank, const char *name, bool own_engine)
{
	struct want want[4] = { { .cause = 1,
				  .who = "fact",
				  .reason = "process-stopped",
				  .rank = (int)rank,
				  .peer = -1,
				  .consequences = 3 } };
	uint64_t since, after;
	unsigned n = 1;
	json_t *top;
	size_t place;

	/* In the end every rank waits, for this rank or for one that waits for it. */
	for (uint32_t i = 0; i < WORLD; i++)
		if (i != rank)
			want[n++] = (struct want){ .cause = 0,
						   .who = "rank",
						   .reason = own_engine ? "signal-missing, ring"
									: "signal-missing",
						   .rank = (int)i,
						   .peer = -1 };
	assert_int_equal(kill(job.pid[rank], SIGSTOP), 0);
	since = epf_now_ns();
	top = named(since, want, n, &after);
	print_named(name, after, find(top, &want[0], &place));
	assert_int_equal(place, 0); /* the cause comes first */
	/* At least one rank waits for its signal, whose number is the rank's in this job. */
	if (!own_engine) {
		want[1].rank = -1;
		want[1].peer = (int)rank;
		assert_non_null(find(top, &want[1], NULL));
		assert_int_equal(num(find(top, &want[1], NULL), "signal"), rank);
		assert_int_equal(num(find(top, &want[1], NULL), "follows"), 0);
	}
	json_decref(top);
	kill(job.pid[rank], SIGCONT);
	play_to_end();
}

static void stopped_rank_of_a_daemon(void **state)
{
	start("why-stopped", settings, job_play);
	await_recovery(NULL);
	rank_is_stopped(2, "stopped rank", false);
}

/* A job with embedded engines, whose statistics are in the daemons' directory. */
static void start_embedded(struct job *j, const char *name, uint64_t tag)
{
	static const char *own[] = { PATIENT, NULL, NULL };
	static char dir[96];
	struct job_plan plan = {
		.name = name, .world = WORLD, .tag = tag, .settings = own, .body = job_play
	};

	snprintf(dir, sizeof(dir), "stats-dir=%s", daemons.dir);
	own[4] = dir;
	assert_int_equal(job_fork(j, &plan), 0);
	assert_int_equal(job_reach(j, ROUNDS, job_ms(JOB_WAIT_MS)), 0);
}

static void stopped_rank_with_its_own_engine(void **state)
{
	/* The daemon serves no rank; the ranks write to its directory. */
	assert_int_equal(daemons_start(&daemons, 1, settings), 0);
	start_embedded(&job, "why-embedded", 3);
	rank_is_stopped(1, "stopped rank, embedded", true);
}

/* Counts the jobs in the report that stall, or do not. */
static unsigned jobs_of(const json_t *top, bool stalls)
{
	unsigned n = 0;
	json_t *one;
	size_t i;

	json_array_foreach(json_object_get(top, "jobs"), i, one)
	{
		assert_int_equal(num(one, "world"), WORLD);
		assert_true(num(one, "ranks_seen") <= WORLD);
		n += (json_array_size(json_object_get(one, "waits")) > 0) == stalls;
	}
	return n;
}

/* Runs argv until the report names the cause. */
static json_t *ask_until(const char *const *argv, const struct want *cause)
{
	uint64_t limit = epf_now_ns() + (uint64_t)job_ms(JOB_WAIT_MS) * 1000000;

	for (;;) {
		char *text = NULL;
		json_t *top;

		assert_int_equal(daemons_reader(&daemons, argv, &text), 0);
		top = json_loads(text, 0, NULL);
		assert_non_null(top);
		if (epf_now_ns() > limit && !find(top, cause, NULL))
			fail_msg("no %s: %s", cause->reason, text);
		free(text);
		if (find(top, cause, NULL))
			return top;
		json_decref(top);
		usleep(50000);
	}
}

/*
 * Two unnamed jobs in one directory, with the files of a dead third one: each is a separate job with its ranks, a stall belongs to the job
 * that stalls, and dead instances are shown on request only.
 */
static void unnamed_jobs(void **state)
{
	static const char *const why[] = { "why", "--json", NULL }, *const plain[] = { "why",
										       NULL };
	static const char *const all[] = { "why", "--json", "--dead", NULL };
	const struct want stopped = {
		.cause = 1, .who = "fact", .reason = "process-stopped", .rank = 1, .peer = -1
	};
	char *text = NULL;
	json_t *top;

	assert_int_equal(daemons_start(&daemons, 1, settings), 0);
	start_embedded(&other, "", 5);
	kill(other.pid[1], SIGSTOP);
	json_decref(ask_until(why, &stopped)); /* so they die waiting */
	job_end(&other);
	daemons_kill(&daemons, 0);
	assert_int_equal(daemons_reader(&daemons, plain, &text), 0);
	assert_string_equal(text, "no instance is alive, 5 have exited: see --dead\n");
	free(text);
	start_embedded(&job, "", 3);
	start_embedded(&other, "", 4);
	kill(other.pid[1], SIGSTOP);
	top = ask_until(why, &stopped);
	assert_int_equal(jobs_of(top, true), 1);
	assert_int_equal(jobs_of(top, false), 1);
	assert_int_equal(json_array_size(json_object_get(top, "instances")), 2 * WORLD);
	assert_int_equal(num(top, "instances_left_out"), WORLD + 1);
	json_decref(top);
	top = ask_until(all, &stopped);
	assert_int_equal(jobs_of(top, true), 2);
	assert_int_equal(jobs_of(top, false), 1);
	assert_int_equal(num(top, "instances_left_out"), 0);
	json_decref(top);
	job_end(&other);
	assert_int_equal(job_finish(&job), 0);
}

static void set_link(bool up)
{
	const char *argv[] = { "link", up ? "--up" : "--down", "--instance", "node0", NULL };

	assert_int_equal(daemons_command(&daemons, argv, NULL), 0);
}

static void cut_link(void **state)
{
	const struct want want[] = {
		{ .cause = 1,
		  .who = "fact",
		  .reason = "link-down",
		  .instance = "node0",
		  .rank = -1,
		  .peer = -1,
		  .consequences = 4 },
		{ .cause = 0,
		  .who = "ring",
		  .reason = "link-down, not-arrived, flush-not-acknowledged",
		  .rank = -1,
		  .peer = -1 },
	};
	uint64_t since, after;
	json_t *top, *e;
	unsigned rings = 0;
	size_t place, i;

	start("why-link", settings, job_play);
	set_link(false);
	since = epf_now_ns();
	top = named(since, want, 2, &after);
	print_named("cut link", after, find(top, &want[0], &place));
	assert_int_equal(place, 0);
	/* Which rings stall depends on the moment: each one towards the other node, and the end that is cut gives the reason. */
	json_array_foreach(
		json_object_get(json_array_get(json_object_get(top, "jobs"), 0), "waits"), i, e)
	{
		if (strcmp(str(e, "who"), "ring") != 0)
			continue;
		print_named("cut link", after, e);
		assert_int_equal(num(e, "peer") / 2, 1 - num(e, "rank") / 2);
		if (num(e, "rank") / 2 == 0)
			assert_string_equal(str(e, "reason"), "link-down");
		assert_int_equal(num(e, "follows"), 0);
		rings++;
	}
	assert_true(rings > 0);
	json_decref(top);
	set_link(true);
	play_to_end();
}

/* Rank 0 sends to rank 2 without pause, faster than a window; the others wait for it. */
static void flood(struct job_rank *r)
{
	job_rank_enter(r);
	job_set(&r->report->rounds, ROUNDS);
	while (r->me == 0 && !job_get(&r->page->end))
		JOB_CHECK(r, epf_put(r->ring, 2, 0, 0, 0, 0, FLOOD_BYTES, 0) == 0);
	if (r->me == 0)
		JOB_CHECK(r, epf_signal_send(r->ring, 3, 0, 1, 0) == 0);
	if (r->me == 3)
		JOB_CHECK(r, epf_signal_wait(r->ep, 0, 1, (uint64_t)job_ms(100000) * 1000000) == 0);
	JOB_CHECK(r, epf_barrier(r->ep) == 0);
	job_rank_leave(r);
}

/* A daemon publishes a job's ranks a moment after they have begun: one that is stopped before is known to serve nobody. */
static void await_ranks(void)
{
	uint64_t limit = epf_now_ns() + job_wait_ns();
	int64_t seen = 0;

	while (seen != WORLD) {
		json_t *top = ask(NULL);

		seen = num(json_array_get(json_object_get(top, "jobs"), 0), "ranks_seen");
		json_decref(top);
		assert_true(epf_now_ns() < limit);
		usleep(20000);
	}
}

static void ring_is_not_drained(void **state)
{
	bool by_credit = *state != NULL;
	const char *what = by_credit ? "ring without credit" : "ring behind a full queue";
	const char *reasons = by_credit ? "no-credit" : "send-queue-full";
	const struct want want[] = {
		{ .cause = 1,
		  .who = "fact",
		  .reason = "engine-stopped",
		  .instance = "node1",
		  .rank = -1,
		  .peer = -1,
		  .consequences = 2 },
		{ .cause = 0,
		  .who = "ring",
		  .reason = reasons,
		  .instance = "node0",
		  .rank = 0,
		  .peer = 2 },
		{ .cause = 0,
		  .who = "rank",
		  .reason = "ring",
		  .instance = "node0",
		  .rank = 0,
		  .peer = -1 },
		{ .cause = 0,
		  .who = "peer",
		  .reason = reasons,
		  .instance = "node0",
		  .rank = -1,
		  .peer = 2 },
	};
	uint64_t since, after;
	json_t *top, *ring;
	size_t place;

	start(what, by_credit ? unordered : settings, flood);
	await_ranks();
	kill(daemons.pid[1], SIGSTOP);
	since = epf_now_ns();
	top = named(since, want, 4, &after);
	print_named(what, after, find(top, &want[0], &place));
	assert_int_equal(place, 0);
	ring = find(top, &want[1], NULL);
	print_named(what, after, ring);
	assert_true(num(ring, "deferred") > 0);
	assert_true(strstr(str(ring, "text"), "slots full"));
	json_decref(top);
	kill(daemons.pid[1], SIGCONT);
	await_recovery("ring"); /* rank 3 waits for the end of the flood */
	assert_int_equal(job_finish(&job), 0);
}

/* Checks the flight recorder of a file: its events are there, in order and recent. */
static void trace_of(const char *path)
{
	const char *argv[] = { "trace", path, NULL };
	unsigned takes = 0, steps = 0, waits = 0;
	char *text = NULL;
	json_t *top, *e;
	double last = 0;
	size_t i;

	assert_int_equal(daemons_reader(&daemons, argv, &text), 0);
	top = json_loads(text, 0, NULL);
	free(text);
	assert_non_null(top);
	json_array_foreach(json_object_get(top, "traceEvents"), i, e)
	{
		double ts = json_real_value(json_object_get(e, "ts"));

		if (!strcmp(str(e, "ph"), "M"))
			continue;
		takes += !strcmp(str(e, "name"), "take");
		steps += !strcmp(str(e, "name"), "step");
		waits += !strncmp(str(e, "name"), "wait: ", 6);
		/* A take and a step carry the time at which the step began; other events their own. */
		assert_true(ts > last - 1e6);
		last = ts;
	}
	printf("# trace of a dead daemon: %u takes, %u steps, %u waits\n", takes, steps, waits);
	assert_true(takes > 0 && steps > 0 && waits > 0);
	/* From this boot, and this test: the newest came after it had begun. */
	assert_true(last > (double)begun_ns / 1e3);
	assert_true((double)epf_now_ns() / 1e3 - last > 0);
	json_decref(top);
}

/* A daemon is killed: its final snapshot is read by name. */
static void final_snapshot(void **state)
{
	const struct want want[] = { { .cause = 1,
				       .who = "fact",
				       .reason = "engine-ended",
				       .instance = "node1",
				       .rank = -1,
				       .peer = -1 } };
	char path[128];
	json_t *top;

	start("why-dead", settings, job_play);
	kill(job.pid[0], SIGSTOP);
	usleep(job_ms(1000) * 1000);
	daemons_kill(&daemons, 1);
	snprintf(path, sizeof(path), "%s/node1.stats", daemons.dir);
	top = ask(path);
	assert_non_null(find(top, want, NULL));
	printf("# final snapshot: %s\n", str(find(top, want, NULL), "text"));
	json_decref(top);
	trace_of(path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(stopped_rank_of_a_daemon, stop),
		cmocka_unit_test_teardown(stopped_rank_with_its_own_engine, stop),
		cmocka_unit_test_teardown(unnamed_jobs, stop),
		cmocka_unit_test_teardown(cut_link, stop),
		JOB_CASE(undrained_ring_by_credit, ring_is_not_drained, 1, NULL, stop),
		JOB_CASE(undrained_ring_by_queue, ring_is_not_drained, NULL, NULL, stop),
		cmocka_unit_test_teardown(final_snapshot, stop),
	};

	begun_ns = epf_now_ns();
	return cmocka_run_group_tests_name("why a job hangs", tests, NULL, NULL);
}
