/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whose turn it is among jobs that share a thread (fabric/engine/fair.h), on a fake clock: shares, bursts after a pause, debts, jobs that
 * come and go.
 */
#include "fabric/engine/fair.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { QUANTUM = 50, LOOK = 1, JOBS = 8, COST_64K = 16 };

/* A job: what it has to do, and how long a step of it lasts. */
struct job {
	uint64_t work, step;
	uint64_t used;    /* of the thread */
	uint64_t asked;   /* times it was looked at */
	uint64_t waited;  /* longest time with work and without a step */
	uint64_t since;   /* the end of its last step, or when its work came */
	unsigned breaths; /* every so many steps one finds nothing; 0: never */
	uint64_t steps;
	uint64_t sends; /* bytes of a step */
};

struct thread {
	struct epf_fair fair;
	uint32_t at; /* who was looked at last */
	uint64_t now;
	struct job job[JOBS];
};

static void one_step(struct thread *t, uint32_t at, int *worked)
{
	struct job *j = &t->job[at];
	uint64_t took = j->step;

	j->asked++;
	*worked = j->work > 0 && !(j->breaths && ++j->steps % j->breaths == 0);
	if (!*worked) {
		t->now += LOOK;
		epf_fair_step(&t->fair, at, LOOK, 0, 0);
		return;
	}
	if (t->now - j->since > j->waited)
		j->waited = t->now - j->since;
	took = took < j->work ? took : j->work;
	j->work -= took;
	j->used += took;
	t->now += took;
	j->since = t->now;
	epf_fair_step(&t->fair, at, took, j->sends, 1);
}

/* One round, as the scheduler's thread makes it. */
static void one_round(struct thread *t)
{
	for (uint32_t i = 0; i < t->fair.n; i++) {
		uint64_t until;
		int worked = 1;

		t->at = epf_fair_next(&t->fair, t->at);
		if (!epf_fair_turn(&t->fair, t->at, &until))
			continue;
		while (worked && (int64_t)(until - t->fair.seat[t->at].time) > 0)
			one_step(t, t->at, &worked);
	}
}

static void run_for(struct thread *t, uint64_t time)
{
	uint64_t end = t->now + time;

	while (t->now < end)
		one_round(t);
}

static void begin(struct thread *t, uint32_t jobs, int by_share, uint64_t from)
{
	memset(t, 0, sizeof(*t));
	epf_fair_init(&t->fair, by_share ? QUANTUM : 200 * QUANTUM, by_share, COST_64K);
	t->fair.time = from;
	for (uint32_t i = 0; i < jobs; i++) {
		epf_fair_add(&t->fair, 1);
		t->job[i].step = 20;
	}
}

static void give(struct thread *t, uint32_t job, uint64_t work)
{
	if (!t->job[job].work)
		t->job[job].since = t->now;
	t->job[job].work += work;
}

enum { ENDLESS = 1 << 30 };

/* Rounds of 150 with pauses beside a job that always has work. Also across the wrap of the times. */
static void a_short_round_is_served_at_once(void **state)
{
	static const uint64_t from[] = { 0, UINT64_MAX - 20000 };

	for (unsigned i = 0; i < 2; i++) {
		struct thread t;
		uint64_t worst = 0;

		begin(&t, 2, 1, from[i]);
		give(&t, 0, ENDLESS);
		for (unsigned k = 0; k < 1000; k++) {
			uint64_t came;

			run_for(&t, 700 + k % 97);
			came = t.now;
			give(&t, 1, 150);
			while (t.job[1].work)
				one_round(&t);
			worst = t.now - came > worst ? t.now - came : worst;
		}
		printf("# rounds of 150 beside a busy job, turns of %d: done after %llu at most\n",
		       QUANTUM, (unsigned long long)worst);
		assert_true(worst <= 150 + QUANTUM + 2 * LOOK);
		/* What it did not take is the other's. */
		assert_true(t.job[0].used * 100 > (t.now - t.job[1].used) * 90);
	}
}

static void time_goes_by_share(void **state)
{
	struct thread t;

	begin(&t, 2, 1, 0);
	epf_fair_add(&t.fair, 4);
	t.job[0].step = 7;
	t.job[1].step = 90; /* a step longer than a turn is paid back */
	t.job[2].step = 33;
	for (uint32_t i = 0; i < 3; i++)
		give(&t, i, ENDLESS);
	run_for(&t, 600000);
	assert_in_range(t.job[0].used, 97000, 103000);
	assert_in_range(t.job[1].used, 97000, 103000);
	assert_in_range(t.job[2].used, 388000, 412000);
}

/* Credit is for who was idle, not for who has a gap now and then. */
static void gaps_do_not_bring_more_than_the_share(void **state)
{
	struct thread t;

	begin(&t, 2, 1, 0);
	t.job[1].breaths = 3;
	give(&t, 0, ENDLESS);
	give(&t, 1, ENDLESS);
	run_for(&t, 600000);
	assert_true(t.job[1].used <= 300000 + EPF_FAIR_CREDIT * QUANTUM + QUANTUM);
	assert_true(t.job[1].used >= 200000);
}

/* The kernel may run somebody else in the middle of a step: the job is not shut out for as long. */
static void a_debt_has_a_limit(void **state)
{
	struct thread t;

	begin(&t, 2, 1, 0);
	give(&t, 0, ENDLESS);
	give(&t, 1, ENDLESS);
	run_for(&t, 1000);
	t.job[0].waited = 0;
	t.job[0].step = 100000;
	while (t.job[0].used < 100000)
		one_round(&t);
	t.job[0].step = 20;
	t.job[0].waited = 0;
	run_for(&t, 10000);
	assert_in_range(t.job[0].waited, QUANTUM, (EPF_FAIR_DEBT + 2) * QUANTUM);
}

/* Who comes late, or slept forever, is not owed all that time; and who worked alone owes nothing for it. */
static void the_past_is_forgotten(void **state)
{
	struct thread t;

	begin(&t, 2, 1, 0);
	give(&t, 0, ENDLESS);
	run_for(&t, 1000000);
	epf_fair_add(&t.fair, 1);
	t.job[2].step = 20;
	give(&t, 1, ENDLESS);
	give(&t, 2, ENDLESS);
	t.job[0].used = 0;
	run_for(&t, 10000);
	assert_in_range(t.job[0].used, 3000, 3500);
	/* Two of them end, the third has the thread alone; then one comes back. */
	t.job[1].work = t.job[2].work = 0;
	run_for(&t, 1000000);
	give(&t, 1, ENDLESS);
	t.job[0].used = t.job[1].used = 0;
	run_for(&t, 10000);
	assert_in_range(t.job[0].used, 4500, 5100); /* the idle one is looked at after each turn */
	assert_in_range(t.job[1].used, 4700, 5300);
}

static void a_seat_is_given_back(void **state)
{
	struct thread t;

	begin(&t, 2, 1, 0);
	epf_fair_add(&t.fair, 3);
	t.job[2].step = 20;
	for (uint32_t i = 0; i < 3; i++)
		give(&t, i, ENDLESS);
	run_for(&t, 3000);
	epf_fair_remove(&t.fair, 0); /* the last one sits there now */
	t.job[0] = t.job[2];
	assert_int_equal(t.fair.n, 2);
	t.job[0].used = t.job[1].used = 0;
	run_for(&t, 10000);
	assert_in_range(t.job[0].used, 7200, 7800);
	assert_in_range(t.job[1].used, 2200, 2800);
}

/* Beside seven that always have work, a job that uses little waits for a turn of one of them, not of each. */
static void who_is_behind_is_looked_at_between_turns(void **state)
{
	struct thread t;

	begin(&t, 8, 1, 0);
	for (uint32_t i = 1; i < 8; i++)
		give(&t, i, ENDLESS);
	run_for(&t, 3000);
	for (unsigned round = 0; round < 50; round++) {
		run_for(&t, 5 * QUANTUM + round);
		give(&t, 0, 1);
		run_for(&t, 8 * QUANTUM);
		assert_int_equal(t.job[0].work, 0);
	}
	assert_true(t.job[0].waited <= QUANTUM);
}

/* The length of a turn of seat 0, which has work, while so many idle seats are behind. */
static uint64_t turn_beside(uint32_t idle)
{
	struct epf_fair f;
	uint64_t until;

	epf_fair_init(&f, 1280, 1, COST_64K);
	for (uint32_t i = 0; i <= idle + 1; i++) {
		epf_fair_add(&f, 1);
		f.seat[i].active = !i || i > idle;
		f.seat[i].time = i && i <= idle ? 1000 : 2000;
	}
	f.time = 2000;
	assert_true(epf_fair_turn(&f, 0, &until));
	return until - f.seat[0].time;
}

/* About one step while an idle job is behind, which may have work by now; with many of them not so short that asking them takes most of the time. */
static void turns_are_short_while_an_idle_job_is_behind(void **state)
{
	assert_int_equal(turn_beside(0), 1280);
	assert_int_equal(turn_beside(1), 40);
	assert_int_equal(turn_beside(4), 40);
	assert_int_equal(turn_beside(5), 50);
	assert_int_equal(turn_beside(40), 400);
}

/*
 * Three jobs whose steps take the thread hardly any time but fill the wire have gaps all the time; one sends little, uses the thread more than each of them,
 * and still goes first when it begins. If only time counted, they would be behind it and go first, each with its credit.
 */
static void who_sends_little_goes_first(void **state)
{
	for (int counts = 0; counts < 2; counts++) {
		uint64_t worst = 0;
		struct thread t;

		begin(&t, 4, 1, 0);
		for (uint32_t i = 1; i < 4; i++) {
			t.job[i].step = 5;
			t.job[i].sends = counts ? 4 << 16 : 0; /* as long as 64 */
		}
		t.job[0].step = 10;
		for (unsigned round = 0; round < 200; round++) {
			uint64_t came;

			for (uint32_t i = 1; i < 4; i++)
				give(&t, i, 40);
			run_for(&t, 150 + round % 37);
			for (uint32_t i = 1; i < 4; i++)
				give(&t, i, 40);
			came = t.now;
			give(&t, 0, 100);
			while (t.job[0].work)
				one_round(&t);
			if (round >= 20)
				worst = t.now - came > worst ? t.now - came : worst;
		}
		printf("# rounds of 100 beside three jobs of 40, bytes %s: done after %llu at most\n",
		       counts ? "count" : "do not count", (unsigned long long)worst);
		assert_true(counts ? worst < 170 : worst > 200);
	}
}

/* One job's bytes are its own affair; a step is not charged more than so many turns for them. */
static void bytes_are_counted_by_the_64_kib(void **state)
{
	struct epf_fair f;

	epf_fair_init(&f, QUANTUM, 1, COST_64K);
	epf_fair_add(&f, 1);
	epf_fair_add(&f, 2);
	epf_fair_step(&f, 0, 10, 3 << 16, 1);
	assert_int_equal(f.seat[0].time, 10 + 3 * COST_64K);
	epf_fair_step(&f, 1, 10, 3 << 16, 1);
	assert_int_equal(f.seat[1].time, (10 + 3 * COST_64K) / 2);
	epf_fair_step(&f, 0, 10, UINT64_C(1) << 38, 1);
	assert_int_equal(f.seat[0].time, 10 + 3 * COST_64K + EPF_FAIR_DEBT * QUANTUM);
	epf_fair_init(&f, QUANTUM, 0, COST_64K);
	epf_fair_add(&f, 1);
	epf_fair_step(&f, 0, 10, 3 << 16, 1);
	assert_int_equal(f.seat[0].time, 10);
}

/* For measuring what fairness is good for. */
static void without_fairness_a_turn_is_long(void **state)
{
	struct thread t;

	begin(&t, 2, 0, 0);
	give(&t, 0, ENDLESS);
	run_for(&t, 100);
	give(&t, 1, 150);
	run_for(&t, 300 * QUANTUM);
	assert_int_equal(t.job[1].work, 0);
	assert_true(t.job[1].waited > 100 * QUANTUM);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_short_round_is_served_at_once),
		cmocka_unit_test(time_goes_by_share),
		cmocka_unit_test(who_sends_little_goes_first),
		cmocka_unit_test(bytes_are_counted_by_the_64_kib),
		cmocka_unit_test(gaps_do_not_bring_more_than_the_share),
		cmocka_unit_test(a_debt_has_a_limit),
		cmocka_unit_test(the_past_is_forgotten),
		cmocka_unit_test(a_seat_is_given_back),
		cmocka_unit_test(who_is_behind_is_looked_at_between_turns),
		cmocka_unit_test(turns_are_short_while_an_idle_job_is_behind),
		cmocka_unit_test(without_fairness_a_turn_is_long),
	};

	return cmocka_run_group_tests_name("fair", tests, NULL, NULL);
}
