/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kill -9 of a rank, a daemon, and a rank on the other node, each at start, register, join, dispatch, combine and close. Every survivor's
 * call must return with an error that names the victim, and not because a timeout has passed: peer-timeout is longer than a test waits; then the next job is served, and nothing is left
 * behind but the dead daemon's statistics file, which the next start replaces.
 *
 * The point of a run is the step in which the victim died (of a daemon: its first rank's), read from shared memory. Each run aims at the
 * point with the fewest runs so far, until all have their share. If it missed, because ranks pass the point faster than this test runs,
 * the rank is paused there the next time.
 */
#include "fabric/base/clock.h"
#include "tests/proc/svc_job.h"

#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
	WORLD = 4,
	FIRST = JOB_START,
	LAST = JOB_CLOSE,
	POINTS = LAST - FIRST + 1,
	RUNS = 25,
	RUNS_LONG = 100,
	SPOILT_MAX = 200,
	GRACE_MS = 100,
	ROUND_NS = 50 * 1000 * 1000 /* of one wait in a round, between checks of the job */
};

/* Words of the page. */
enum { W_CLOSERS = 1, W_KILLED_NS = 2, W_ALL_TOLD = 3, W_VICTIMS = 4 };

/* Counters of a rank's report. */
enum { C_CLOSE_NS = 0 };

/*
 * How long a rank waits before the join for a dead daemon to return; all other settings are defaults. A living daemon gets no more time to
 * answer, which may be too little on a busy machine, so the short value is for runs in which a daemon dies.
 */
static const char *const impatient[] = { "service-timeout=700ms", NULL };
static const char *const patient[] = { "service-timeout=60s", NULL };
/* No timeout of the fabric ends before a test gives up: who is notified was notified by somebody. */
static const char *const daemon_settings[] = { "service-grace=100ms", "peer-timeout=1h",
					       "peer-silence=0", NULL };

enum { BOOT_TIMEOUT_MS = 60000 };

#define NO_ANSWER "[EPF-713]" /* of a living daemon */

static struct daemons daemons;
static struct job dying, after; /* after a failure: ended by the next run, or at the end */
static struct proc_holds base[2];
static uint64_t random_state;
static uint64_t worst_ns, worst_close_ns;
static unsigned spoilt; /* runs in which a living daemon did not answer in time: a busy machine */

struct victim {
	const char *name;
	bool daemon;
	unsigned number; /* of the rank, or of the daemon */
};

static const struct victim victims[] = { { .name = "rank 1", .number = 1 },
					 { .name = "rank 2, on the other node", .number = 2 },
					 { .name = "daemon node1", .daemon = true, .number = 1 } };

/* ---- a rank ---- */

static void end_with(struct job_rank *r, int rc, bool joined)
{
	uint64_t start, victim = job_get(&r->page->words[W_VICTIMS]);

	job_rank_told(r, rc);
	/*
	 * A rank that lost its daemon while joining leaves the rendezvous, as an exiting program would, which notifies the others. So does a
	 * rank whose living daemon did not answer in time: the others would wait until the rendezvous gives up. All others stay, so that
	 * nobody sees their departure instead of the first cause.
	 */
	if (!joined && ((victim >> 32 && (victim & UINT32_MAX) == r->me / 2) ||
			strstr(r->report->text, NO_ANSWER))) {
		epf_boot_close(r->boot);
		r->boot = NULL;
	}
	JOB_CHECK(r, job_await(&r->page->words[W_ALL_TOLD], 1, job_ms(JOB_WAIT_MS)) == 0);
	start = epf_now_ns();
	epf_close(r->ep);
	job_set(&r->report->counter[C_CLOSE_NS], epf_now_ns() - start);
	epf_boot_close(r->boot);
}

/* True if a rank has closed: then no more letters arrive. */
static bool somebody_left(struct job_rank *r)
{
	for (uint32_t p = 0; p < r->world; p++) {
		if (p == r->me || epf_peer_state(r->ep, p) != -EPIPE)
			continue;
		snprintf(r->report->failure, sizeof(r->report->failure), "rank %u has left", p);
		return true;
	}
	return false;
}

/* True if a flush failed because a rank closed before it acknowledged: no more an error of the job than a letter that it no longer sends. */
static bool asked_a_leaver(struct job_rank *r, int rc)
{
	return rc == -EIO && epf_peer_state(r->ep, r->failure.rank) == -EPIPE;
}

static void play(struct job_rank *r)
{
	uint64_t stuck_ns = 0;
	int rc = job_rank_open(r);

	if (!rc)
		rc = job_rank_join(r);
	if (rc) {
		end_with(r, rc, false);
		return;
	}
	for (;;) {
		if (job_get(&r->page->words[W_CLOSERS]) >> r->me & 1) {
			job_rank_step(r, JOB_CLOSE);
			epf_close(r->ep);
			job_rank_told(r, 0);
			epf_boot_close(r->boot);
			return;
		}
		job_rank_step(r, r->round & 1 ? JOB_COMBINE : JOB_DISPATCH);
		rc = job_rank_round(r, ROUND_NS);
		if (rc == 0) {
			stuck_ns = 0;
			continue;
		}
		if (asked_a_leaver(r, rc))
			rc = -ETIMEDOUT;
		if (rc == -ETIMEDOUT && job_get(&r->page->words[W_CLOSERS]) >> r->me & 1)
			continue; /* waits for one that has closed; is to close as well */
		if (rc != -ETIMEDOUT || somebody_left(r))
			break;
		stuck_ns += ROUND_NS;
		JOB_CHECK(r, stuck_ns < (uint64_t)job_ms(JOB_WAIT_MS) * 1000000);
	}
	end_with(r, rc == -ETIMEDOUT ? 0 : rc, true);
}

/* ---- one run ---- */

static void plan_job(struct job_plan *plan, const char *name, void (*body)(struct job_rank *r))
{
	*plan = (struct job_plan){ .name = name,
				   .world = WORLD,
				   .daemons = &daemons,
				   .tag = random_state & 0xff,
				   .settings = patient,
				   .body = body,
				   .flush_every = 1 + (random_state >> 8 & 7),
				   .boot_timeout_ns = BOOT_TIMEOUT_MS * UINT64_C(1000000) };
}

/* True if a rank got an error; ranks that closed in order report 0. */
static bool somebody_failed(struct job *job)
{
	for (unsigned i = 0; i < WORLD; i++)
		if (job_get(&job->page->rank[i].notified_ns) && job->page->rank[i].rc < 0)
			return true;
	return false;
}

/* The rank whose step is the victim's. */
static unsigned watched(const struct victim *v)
{
	return v->daemon ? v->number * 2 : v->number;
}

/* Waits until the victim reaches the point, plus a random time; kills it. Returns the step in which it died. */
static unsigned kill_at(struct job *job, const struct victim *v, unsigned point)
{
	uint64_t *step = &job->page->rank[watched(v)].step;
	unsigned at;
	uint64_t deadline = epf_now_ns() + (uint64_t)job_ms(JOB_WAIT_MS) * 1000000, until;
	uint64_t spread = point <= JOB_JOIN ? 1000000 : point < JOB_CLOSE ? 5000000 : 300000;

	/* A rank that reaches the rendezvous after a death finds none: all must have reached it before. */
	for (unsigned i = 0; i < WORLD; i++)
		assert_int_equal(
			job_await(&job->page->rank[i].step, JOB_START, job_ms(JOB_WAIT_MS)), 0);
	if (point == JOB_CLOSE && job_reach(job, 4, job_ms(JOB_WAIT_MS)) == 0)
		job_set(&job->page->words[W_CLOSERS],
			v->daemon ? UINT64_C(3) << v->number * 2 : UINT64_C(1) << v->number);
	while (job_get(step) < point && epf_now_ns() < deadline && !somebody_failed(job))
		sched_yield();
	/* A paused rank dies where it is. */
	if (job->plan.pause_at || job_random(&random_state) & 1)
		spread = 1;
	until = epf_now_ns() + job_random(&random_state) % spread;
	while (epf_now_ns() < until)
		sched_yield();
	at = (unsigned)job_get(step);
	job_set(&job->page->words[W_KILLED_NS], epf_now_ns());
	if (v->daemon) {
		daemons_kill(&daemons, v->number);
	} else {
		job_kill(job, v->number);
		at = (unsigned)job_get(step); /* it may have got further before the signal */
	}
	job_set(&job->page->go, 1);
	return at;
}

/* True if a survivor's error names the victim. */
static bool names(const struct victim *v, unsigned rank, unsigned at, const char *text)
{
	char want[3][32];

	if (!v->daemon) {
		snprintf(want[0], sizeof(want[0]), "rank %u", v->number);
		snprintf(want[1], sizeof(want[1]), "rank %u: its node", v->number & ~1u);
		/* A job that loses a rank before it runs ends on that node; the other node may see only that, and names the node by its first rank. */
		return strstr(text, want[0]) || (at <= JOB_JOIN && strstr(text, want[1]));
	}
	snprintf(want[0], sizeof(want[0]), "node%u", v->number); /* the daemon, to its own ranks */
	snprintf(want[1], sizeof(want[1]), "rank %u", v->number * 2);
	snprintf(want[2], sizeof(want[2]), "rank %u", v->number * 2 + 1);
	/* While joining, a rank may learn first that its neighbour on the same daemon has left the rendezvous. */
	if (rank / 2 == v->number && (at > JOB_JOIN || strstr(text, want[0])))
		return strstr(text, want[0]) != NULL;
	return strstr(text, want[1]) != NULL || strstr(text, want[2]) != NULL;
}

/* Prints the end of the daemons' logs and every rank's report. */
static void explain(struct job *job)
{
	for (unsigned i = 0; i < 2; i++) {
		char *log = daemons_log(&daemons, i);
		size_t len = log ? strlen(log) : 0;

		fprintf(stderr, "end of node%u's log:\n...%s\n", i,
			log ? log + (len > 2500 ? len - 2500 : 0) : "");
		free(log);
	}
	for (unsigned i = 0; i < WORLD; i++) {
		const struct job_report *rep = &job->page->rank[i];

		fprintf(stderr, "rank %u in step %s, %llu rounds, got %lld: %s %s\n", i,
			job_step_name[rep->step % JOB_STEPS], (unsigned long long)rep->rounds,
			(long long)rep->rc, rep->text, rep->failure);
	}
}

static void await_errors(struct job *job, const struct victim *v)
{
	for (unsigned i = 0; i < WORLD; i++) {
		struct job_report *rep = &job->page->rank[i];

		if (!v->daemon && i == v->number)
			continue;
		if (job_await(&rep->notified_ns, 1, job_ms(JOB_WAIT_MS))) {
			explain(job);
			print_error("rank %u was not notified in step %s\n", i,
				    job_step_name[rep->step % JOB_STEPS]);
		}
		assert_int_not_equal(job_get(&rep->notified_ns), 0);
	}
}

/* True if a living daemon did not answer within the patience for dead ones: nothing can be said of this run. */
static bool is_spoilt(const struct job *job, const struct victim *v)
{
	for (unsigned i = 0; i < WORLD; i++)
		if (v->daemon && job->page->rank[i].rc < 0 &&
		    strstr(job->page->rank[i].text, NO_ANSWER))
			return true;
	return false;
}

/* Checks that one rank got its error, and that it names the victim. How soon is printed. */
static void check_one(struct job *job, const struct victim *v, unsigned at, unsigned i)
{
	uint64_t killed = job_get(&job->page->words[W_KILLED_NS]);
	struct job_report *rep = &job->page->rank[i];
	uint64_t notified = rep->notified_ns > killed ? rep->notified_ns - killed : 0;

	worst_ns = notified > worst_ns ? notified : worst_ns;
	/* A closing rank returns from epf_close; one that closed in order before the kill has left, not died. */
	if (rep->rc == 0 && at >= JOB_CLOSE)
		return;
	if (rep->rc >= 0 || !names(v, i, at, rep->text)) {
		explain(job);
		print_error("%s killed in %s: rank %u got %lld: %s %s\n", v->name,
			    job_step_name[at], i, (long long)rep->rc, rep->text, rep->failure);
	}
	assert_true(rep->rc < 0);
	assert_true(names(v, i, at, rep->text));
}

/* Checks every survivor. `at`: where the victim died. Returns false if nothing can be said of this run. */
static bool check_all(struct job *job, const struct victim *v, unsigned at)
{
	await_errors(job, v);
	if (is_spoilt(job, v))
		return false;
	for (unsigned i = 0; i < WORLD; i++)
		if (v->daemon || i != v->number)
			check_one(job, v, at, i);
	return true;
}

/*
 * After a daemon's death: its clients, or its sweeper if it had none, remove socket and lock; the statistics file remains, and the next
 * start replaces it.
 */
static void check_files_and_restart(const struct victim *v, unsigned at)
{
	char prefix[32], found[512], stats[64];

	snprintf(prefix, sizeof(prefix), "node%u.s", v->number);
	snprintf(stats, sizeof(stats), "node%u.stats ", v->number);
	for (unsigned i = 0; i < job_ms(20000); i++) {
		proc_files(daemons.dir, prefix, found, sizeof(found));
		if (strcmp(found, stats) == 0)
			break;
		usleep(1000);
	}
	if (strcmp(found, stats) != 0)
		print_error("left of daemon node%u, killed in %s: %s\n", v->number,
			    job_step_name[at], found);
	assert_string_equal(found, stats);
	snprintf(prefix, sizeof(prefix), "node%u.lock", v->number);
	for (unsigned i = 0; i < job_ms(20000); i++) {
		if (proc_files(daemons.dir, prefix, found, sizeof(found)) == 0)
			break;
		usleep(1000);
	}
	assert_int_equal(proc_files(daemons.dir, prefix, found, sizeof(found)), 0);
	assert_int_equal(daemons_restart(&daemons, v->number), 0);
	snprintf(prefix, sizeof(prefix), "node%u.stats", v->number);
	assert_int_equal(proc_files(daemons.dir, prefix, found, sizeof(found)), 1);
}

static void next_job(void)
{
	struct job_plan plan;

	job_end(&after);
	plan_job(&plan, "next", job_play);
	/* It must be served, however busy the machine is. */
	plan.settings = NULL;
	assert_int_equal(job_fork(&after, &plan), 0);
	assert_int_equal(job_finish(&after), 0);
	job_end(&after);
}

static void nothing_is_left(void)
{
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(
			proc_settle(daemons.pid[i], base[i], GRACE_MS + job_ms(JOB_WAIT_MS)), 0);
}

/* Returns where the victim died, or 0 if the run has no verdict. pause: its rank pauses at the point. */
static unsigned run(const struct victim *v, unsigned point, bool pause)
{
	struct job_plan plan;
	unsigned at;
	bool judged;

	job_end(&dying);
	plan_job(&plan, "victims", play);
	if (v->daemon)
		plan.settings = impatient;
	if (pause)
		plan.pause_at = (enum job_step)point;
	plan.pauses = watched(v);
	assert_int_equal(job_fork(&dying, &plan), 0);
	job_set(&dying.page->words[W_VICTIMS], (uint64_t)v->daemon << 32 | v->number);
	at = kill_at(&dying, v, point);
	judged = check_all(&dying, v, at);
	job_set(&dying.page->words[W_ALL_TOLD], 1);
	assert_int_equal(job_wait(&dying, v->daemon ? 0 : 1u << v->number, job_ms(JOB_WAIT_MS)), 0);
	for (unsigned i = 0; i < WORLD; i++) {
		uint64_t ns = dying.page->rank[i].counter[C_CLOSE_NS];

		worst_close_ns = ns > worst_close_ns ? ns : worst_close_ns;
		assert_int_equal(dying.page->rank[i].failed, 0);
	}
	job_end(&dying);
	if (v->daemon)
		check_files_and_restart(v, at);
	next_job();
	nothing_is_left();
	return judged ? at : 0;
}

static void print_counts(const struct victim *v, const unsigned *count, unsigned runs)
{
	printf("# %s killed:", v->name);
	for (unsigned p = FIRST; p <= LAST; p++)
		printf(" %s %u", job_step_name[p], count[p]);
	printf(" (%u runs); all notified after %.0f ms at most, closed in %.0f ms at most; %u more runs in which a living daemon did not answer in time\n",
	       runs, (double)worst_ns / 1e6, (double)worst_close_ns / 1e6, spoilt);
}

static void matrix(void **state)
{
	const struct victim *v = *state;
	unsigned want = job_long() ? RUNS_LONG : job_ms(1) > 1 ? POINTS : RUNS;
	unsigned least = want / (2 * POINTS) + (want < 2 * POINTS); /* of each point */
	unsigned count[JOB_STEPS] = { 0 }, runs = 0, most = want * 3 + POINTS;
	bool missed[JOB_STEPS] = { false }; /* at the last attempt */

	worst_ns = worst_close_ns = spoilt = 0;
	for (unsigned i = 0; i < 2; i++)
		if (!daemons.pid[i])
			assert_int_equal(daemons_restart(&daemons, i), 0);
	for (;;) {
		unsigned point = FIRST, counted = 0, at;

		for (unsigned p = FIRST; p <= LAST; p++) {
			counted += count[p];
			if (count[p] < count[point])
				point = p;
		}
		if (counted >= want && count[point] >= least)
			break;
		if (runs >= most || spoilt >= SPOILT_MAX)
			print_counts(v, count, runs);
		assert_true(runs < most && spoilt < SPOILT_MAX);
		at = run(v, point, missed[point]);
		missed[point] = at && at != point;
		spoilt += at == 0;
		runs += at != 0;
		count[at] += at != 0;
	}
	print_counts(v, count, runs);
}

static int begin(void **state)
{
	uint64_t seed = job_seed(epf_now_ns() ^ (uint64_t)getpid() << 40);

	random_state = seed;
	printf("# kill: EPF_SEED=%llu; a rank waits %s for a daemon that dies before the join\n",
	       (unsigned long long)seed, strchr(impatient[0], '=') + 1);
	if (daemons_start(&daemons, 2, daemon_settings))
		return -1;
	/* What a daemon holds after a job that has ended. */
	next_job();
	usleep(GRACE_MS * 1000 + job_ms(500) * 1000);
	for (unsigned i = 0; i < 2; i++)
		base[i] = proc_look(daemons.pid[i]);
	return 0;
}

static int finish(void **state)
{
	/* Daemons wait for the ranks of a failed run: their logs would bury its message. */
	job_end(&dying);
	job_end(&after);
	return daemons_stop(&daemons);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		JOB_CASE(a_rank, matrix, &victims[0], NULL, NULL),
		JOB_CASE(a_rank_on_the_other_node, matrix, &victims[1], NULL, NULL),
		JOB_CASE(a_daemon, matrix, &victims[2], NULL, NULL),
	};

	return cmocka_run_group_tests_name("kill -9 with daemons", tests, begin, finish);
}
