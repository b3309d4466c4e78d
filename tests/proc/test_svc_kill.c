/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kill -9, everywhere: a rank, a daemon, a rank on the other node, each at points spread over start, register, join, dispatch, combine
 * and close. Everybody left must come back from whatever it is in, within 2 seconds of the kill, with an error that names who is
 * gone; then the next job is served and nothing is left behind but the dead daemon's one statistics file, which the next start replaces.
 *
 * The point of a run is where the victim's process, or for a daemon the first of its ranks, was when it died: it keeps that
 * in shared memory. Points that have the fewest runs so far are aimed at next, until all have their share; where one was missed, since ranks
 * pass it faster than this test is run, the rank is stalled there the next time.
 */
#include "fabric/base/clock.h"
#include "tests/proc/daemons.h"
#include "tests/proc/svc_job.h"
#include "tests/proc/svc_proc.h"
#include "tests/stall.h"

#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

enum {
	WORLD = 4,
	FIRST = JOB_START,
	LAST = JOB_CLOSE,
	POINTS = LAST - FIRST + 1,
	RUNS = 25,
	RUNS_LONG = 100,
	NOTIFIED_MS = 2000,
	LONG_MS = 60000, /* a hang */
	SPOILT_MAX = 200,
	GRACE_MS = 100,
	ROUND_NS =
		50 * 1000 * 1000 /* of one wait in a round; then it looks around and waits again */
};

/* Words of the page. */
enum { W_CLOSERS = 1, W_KILLED_NS = 2, W_ALL_TOLD = 3, W_VICTIMS = 4 };

/* Counters of a rank's report. */
enum { C_CLOSE_NS = 0 };

/*
 * The setting that decides how soon anybody gets the error, all others are defaults: a daemon that died before the join is waited for this long to
 * appear again. A living one has no more time to answer, which on a busy machine may be too little, so it is for runs in which a daemon dies.
 */
static const char *const impatient[] = { "service-timeout=700ms", NULL };
static const char *const patient[] = { "service-timeout=60s", NULL };
static const char *const daemon_settings[] = { "service-grace=100ms", NULL };

enum { BOOT_TIMEOUT_MS = 60000, TOO_BUSY_MS = 300 };

#define NO_ANSWER "[EPF-713]" /* a daemon that is there */

static struct daemons daemons;
static struct job dying, after; /* of a run that failed: ended by the next one, or at the end */
static struct proc_holds base[2];
static uint64_t random_state;
static uint64_t worst_ns, worst_close_ns, worst_stall_ns;
static struct stall_mark forked_at, killed_at; /* what this machine takes is taken off limits */
static unsigned spoilt; /* runs in which this machine kept a living daemon from answering in time */

struct victim {
	const char *name;
	bool daemon;
	unsigned number; /* of the rank, or of the daemon */
};

/* ---- a rank ---- */

static void end_told(struct job_rank *r, int rc, bool joined)
{
	uint64_t start, victims = job_get(&r->page->words[W_VICTIMS]);

	job_rank_told(r, rc);
	/*
	 * Who lost its daemon while it was joining leaves the rendezvous, as a program that ends would; others hear of it there. So does whom a living
	 * one kept waiting for too long: nobody else would come back before the rendezvous gives up. All others stay, or the next one would hear of
	 * them in place of the first cause.
	 */
	if (!joined && ((victims >> 32 && (victims & UINT32_MAX) == r->me / 2) ||
			strstr(r->report->text, NO_ANSWER))) {
		epf_boot_close(r->boot);
		r->boot = NULL;
	}
	JOB_CHECK(r, job_await(&r->page->words[W_ALL_TOLD], 1, job_ms(LONG_MS)) == 0);
	start = epf_now_ns();
	epf_close(r->ep);
	job_set(&r->report->counter[C_CLOSE_NS], epf_now_ns() - start);
	epf_boot_close(r->boot);
}

/* True when some rank has closed: then nobody will send any more. */
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

/*
 * A flush asks everybody this rank has written to, and fails where one of them has closed before it answered: no more an error of the job than
 * waiting in vain for that one's next letter.
 */
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
		end_told(r, rc, false);
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
			continue; /* waits for one that has closed already, and is to close as well */
		if (rc != -ETIMEDOUT || somebody_left(r))
			break;
		stuck_ns += ROUND_NS;
		JOB_CHECK(r, stuck_ns < (uint64_t)job_ms(LONG_MS) * 1000000);
	}
	end_told(r, rc == -ETIMEDOUT ? 0 : rc, true);
}

/* ---- one run ---- */

static void plan_job(struct job_plan *plan, const char *name, void (*body)(struct job_rank *r))
{
	*plan = (struct job_plan){ .name = name,
				   .world = WORLD,
				   .tag = random_state & 0xff,
				   .settings = patient,
				   .body = body,
				   .flush_every = 1 + (random_state >> 8 & 7),
				   .boot_timeout_ns = BOOT_TIMEOUT_MS * UINT64_C(1000000) };
	for (unsigned i = 0; i < WORLD; i++)
		plan->client[i] = daemons_client(&daemons, i / 2);
}

/* Of an error: who closed in order says so there, too. */
static bool somebody_was_told(struct job *job)
{
	for (unsigned i = 0; i < WORLD; i++)
		if (job_get(&job->page->rank[i].notified_ns) && job->page->rank[i].rc < 0)
			return true;
	return false;
}

/* The rank whose place is the victim's. */
static unsigned watched(const struct victim *v)
{
	return v->daemon ? v->number * 2 : v->number;
}

/* Waits until the victim is where it is to die; a little longer at random; kills. Where it was. */
static unsigned kill_at(struct job *job, const struct victim *v, unsigned point)
{
	uint64_t *step = &job->page->rank[watched(v)].step;
	unsigned at;
	uint64_t deadline = epf_now_ns() + (uint64_t)job_ms(LONG_MS) * 1000000, until;
	uint64_t spread = point <= JOB_JOIN ? 1000000 : point < JOB_CLOSE ? 5000000 : 300000;

	/* Who has not met the rendezvous yet when a rank dies finds none: everybody is there before anybody dies. */
	for (unsigned i = 0; i < WORLD; i++)
		assert_int_equal(job_await(&job->page->rank[i].step, JOB_START, job_ms(LONG_MS)),
				 0);
	if (point == JOB_CLOSE && job_reach(job, 4, job_ms(LONG_MS)) == 0)
		job_set(&job->page->words[W_CLOSERS],
			v->daemon ? UINT64_C(3) << v->number * 2 : UINT64_C(1) << v->number);
	while (job_get(step) < point && epf_now_ns() < deadline && !somebody_was_told(job))
		sched_yield();
	/* Who is stalled there dies there. */
	if (job->plan.pause_at || job_random(&random_state) & 1)
		spread = 1;
	until = epf_now_ns() + job_random(&random_state) % spread;
	while (epf_now_ns() < until)
		sched_yield();
	at = (unsigned)job_get(step);
	stall_mark(&killed_at);
	for (unsigned i = 0; i < WORLD + 2; i++)
		stall_mark_process(&killed_at, i < WORLD ? job->pid[i] : daemons.pid[i - WORLD]);
	job_set(&job->page->words[W_KILLED_NS], epf_now_ns());
	if (v->daemon) {
		daemons_kill(&daemons, v->number);
	} else {
		kill(job->pid[v->number], SIGKILL);
		waitpid(job->pid[v->number], NULL, 0);
		job->pid[v->number] = 0;
		at = (unsigned)job_get(step); /* it may have got further before the signal */
	}
	job_set(&job->page->go, 1);
	return at;
}

/* Whether a survivor's error names who is gone. */
static bool names(const struct victim *v, unsigned rank, unsigned at, const char *text)
{
	char want[3][32];

	if (!v->daemon) {
		snprintf(want[0], sizeof(want[0]), "rank %u", v->number);
		snprintf(want[1], sizeof(want[1]), "rank %u: its node", v->number & ~1u);
		/* A job that loses a rank before it runs is over on that node: the other node may see only that, and names it by its first rank. */
		return strstr(text, want[0]) || (at <= JOB_JOIN && strstr(text, want[1]));
	}
	snprintf(want[0], sizeof(want[0]), "node%u", v->number); /* the daemon, to its own ranks */
	snprintf(want[1], sizeof(want[1]), "rank %u", v->number * 2);
	snprintf(want[2], sizeof(want[2]), "rank %u", v->number * 2 + 1);
	/* While joining, a rank may hear first that its neighbour, whose daemon it was too, has left the rendezvous. */
	if (rank / 2 == v->number && (at > JOB_JOIN || strstr(text, want[0])))
		return strstr(text, want[0]) != NULL;
	return strstr(text, want[1]) != NULL || strstr(text, want[2]) != NULL;
}

/* The daemons' final snapshot, and what everybody said, when something was wrong. */
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

		fprintf(stderr, "rank %u in step %s, %llu rounds, told %lld: %s %s\n", i,
			job_step_name[rep->step % JOB_STEPS], (unsigned long long)rep->rounds,
			(long long)rep->rc, rep->text, rep->failure);
	}
}

/* How long this machine had kept the test waiting when a rank had been notified. */
struct waits {
	uint64_t since_kill, since_fork;
};

static void wait_told(struct job *job, const struct victim *v, struct waits *waits)
{
	for (unsigned i = 0; i < WORLD; i++) {
		struct job_report *rep = &job->page->rank[i];

		if (!v->daemon && i == v->number)
			continue;
		if (job_await(&rep->notified_ns, 1, job_ms(LONG_MS))) {
			explain(job);
			print_error("rank %u was not told in step %s\n", i,
				    job_step_name[rep->step % JOB_STEPS]);
		}
		assert_int_not_equal(job_get(&rep->notified_ns), 0);
		waits[i].since_kill = stall_since(&killed_at);
		waits[i].since_fork = stall_since(&forked_at);
	}
}

/* This machine kept a living daemon from answering a patience that is for dead ones. */
static bool is_spoilt(const struct job *job, const struct victim *v, const struct waits *waits)
{
	for (unsigned i = 0; i < WORLD; i++)
		if (v->daemon && job->page->rank[i].rc < 0 &&
		    strstr(job->page->rank[i].text, NO_ANSWER) &&
		    waits[i].since_fork > TOO_BUSY_MS * UINT64_C(1000000))
			return true;
	return false;
}

/* One rank got its error in time, and for whom. */
static void check_one(struct job *job, const struct victim *v, unsigned at, unsigned i,
		      uint64_t stalled)
{
	uint64_t killed = job_get(&job->page->words[W_KILLED_NS]);
	struct job_report *rep = &job->page->rank[i];
	uint64_t notified = rep->notified_ns > killed ? rep->notified_ns - killed : 0;

	worst_ns = notified > worst_ns ? notified : worst_ns;
	worst_stall_ns = stalled > worst_stall_ns ? stalled : worst_stall_ns;
	if (notified >= NOTIFIED_MS * UINT64_C(1000000))
		print_error(
			"%s killed in %s: rank %u told after %.0f ms, in %.0f of which it or the machine was kept waiting: %s\n",
			v->name, job_step_name[at], i, (double)notified / 1e6,
			(double)stalled / 1e6, rep->text);
	assert_true(notified < (uint64_t)job_ms(NOTIFIED_MS) * 1000000 + stalled);
	/* A closer returns from epf_close; and a rank that closed in order before the kill has left, not died. */
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

/* Every survivor got its error in time. `at`: where the victim died. False when this machine was too busy for it to tell anything. */
static bool check_told(struct job *job, const struct victim *v, unsigned at)
{
	struct waits waits[WORLD] = { { 0 } };

	wait_told(job, v, waits);
	if (is_spoilt(job, v, waits))
		return false;
	for (unsigned i = 0; i < WORLD; i++)
		if (v->daemon || i != v->number)
			check_one(job, v, at, i, waits[i].since_kill);
	return true;
}

/*
 * A daemon has died: its clients, or its sweeper where it had none, have removed socket and lock; its statistics file is all there is, and the next
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
	/* It is to be served, however busy the machine is. */
	plan.settings = NULL;
	plan.boot_timeout_ns = UINT64_C(20000000000);
	assert_int_equal(job_fork(&after, &plan), 0);
	job_set(&after.page->end, 1); /* a few rounds, and the end */
	assert_int_equal(job_wait(&after, 0, job_ms(LONG_MS)), 0);
	job_end(&after);
}

static void nothing_is_left(void)
{
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(proc_settle(daemons.pid[i], base[i], GRACE_MS + job_ms(LONG_MS)),
				 0);
}

/* Where the victim died; 0: the run tells nothing. pause: its rank is stalled at the point, or this machine would miss it. */
static unsigned run(const struct victim *v, unsigned point, bool pause)
{
	struct job_plan plan;
	uint64_t stalled;
	unsigned at;
	bool tells;

	job_end(&dying);
	plan_job(&plan, "victims", play);
	if (v->daemon)
		plan.settings = impatient;
	if (pause)
		plan.pause_at = (enum job_step)point;
	plan.pauses = watched(v);
	stall_mark(&forked_at);
	for (unsigned i = 0; i < 2; i++)
		stall_mark_process(&forked_at, daemons.pid[i]);
	assert_int_equal(job_fork(&dying, &plan), 0);
	job_set(&dying.page->words[W_VICTIMS], (uint64_t)v->daemon << 32 | v->number);
	at = kill_at(&dying, v, point);
	tells = check_told(&dying, v, at);
	job_set(&dying.page->words[W_ALL_TOLD], 1);
	assert_int_equal(job_wait(&dying, v->daemon ? 0 : 1u << v->number, job_ms(LONG_MS)), 0);
	stalled = stall_since(&killed_at);
	for (unsigned i = 0; i < WORLD; i++) {
		uint64_t ns = dying.page->rank[i].counter[C_CLOSE_NS];

		worst_close_ns = ns > worst_close_ns ? ns : worst_close_ns;
		assert_int_equal(dying.page->rank[i].failed, 0);
		assert_true(ns < (uint64_t)job_ms(NOTIFIED_MS) * 1000000 + stalled);
	}
	job_end(&dying);
	if (v->daemon)
		check_files_and_restart(v, at);
	next_job();
	nothing_is_left();
	return tells ? at : 0;
}

static void print_counts(const struct victim *v, const unsigned *count, unsigned runs)
{
	printf("# %s killed:", v->name);
	for (unsigned p = FIRST; p <= LAST; p++)
		printf(" %s %u", job_step_name[p], count[p]);
	printf(" (%u runs); everybody told after %.0f ms at most, closed in %.0f ms at most; kept waiting by the machine %.0f ms at most; %u runs spoilt by it\n",
	       runs, (double)worst_ns / 1e6, (double)worst_close_ns / 1e6,
	       (double)worst_stall_ns / 1e6, spoilt);
}

static void matrix(const struct victim *v)
{
	unsigned want = job_long() ? RUNS_LONG : job_ms(1) > 1 ? POINTS : RUNS;
	unsigned least = want / (2 * POINTS) + (want < 2 * POINTS); /* of each point */
	unsigned count[JOB_STEPS] = { 0 }, runs = 0, most = want * 3 + POINTS;
	bool missed[JOB_STEPS] = { false }; /* at the last attempt */

	worst_ns = worst_close_ns = worst_stall_ns = spoilt = 0;
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

static void a_rank(void **state)
{
	(void)state;
	matrix(&(struct victim){ .name = "rank 1", .number = 1 });
}

static void a_rank_on_the_other_node(void **state)
{
	(void)state;
	matrix(&(struct victim){ .name = "rank 2, on the other node", .number = 2 });
}

static void a_daemon(void **state)
{
	(void)state;
	matrix(&(struct victim){ .name = "daemon node1", .daemon = true, .number = 1 });
}

static int begin(void **state)
{
	uint64_t seed = job_seed(epf_now_ns() ^ (uint64_t)getpid() << 40);

	(void)state;
	random_state = seed;
	printf("# kill: EPF_SEED=%llu; a rank waits %s for a daemon that dies before the join\n",
	       (unsigned long long)seed, strchr(impatient[0], '=') + 1);
	if (stall_begin() || daemons_start(&daemons, 2, daemon_settings))
		return -1;
	/* What daemons hold that have served a job and forgotten it. */
	next_job();
	usleep(GRACE_MS * 1000 + job_ms(500) * 1000);
	for (unsigned i = 0; i < 2; i++)
		base[i] = proc_look(daemons.pid[i]);
	return 0;
}

static int finish(void **state)
{
	(void)state;
	/* Daemons wait for the ranks of a run that failed: their logs would bury what it said. */
	job_end(&dying);
	job_end(&after);
	return daemons_stop(&daemons);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_rank),
		cmocka_unit_test(a_rank_on_the_other_node),
		cmocka_unit_test(a_daemon),
	};

	return cmocka_run_group_tests_name("kill -9 with daemons", tests, begin, finish);
}
