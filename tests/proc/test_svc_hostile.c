/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hostile clients beside an honest job. Two daemons serve four honest ranks that exchange checked random bytes throughout; the attacks of
 * svc_hostile_*.c run one after the other on the same daemons, as another job of the same user. During all of them the honest job's bytes
 * are right, its other memory is unchanged, and none of its lanes fails; afterwards the daemons are alive, hold nothing of the attackers,
 * and serve the next job.
 */
#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "tests/proc/svc_hostile.h"

#include <jansson.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <cmocka.h>

static const char *const daemon_settings[] = { "service-grace=100ms", "service-strangers=16",
					       "service-stranger-timeout=500ms",
					       "user-bytes=256MiB", NULL };
static struct daemons daemons;
static struct job honest;
static struct proc_holds base[2];
static uint64_t seed;

static void plan_job(struct job_plan *plan, const char *name)
{
	*plan = (struct job_plan){ .name = name,
				   .world = 4,
				   .tag = seed & 0xff,
				   .daemons = &daemons,
				   .body = job_play,
				   .rest_us = 2000,
				   .alarm_s = job_long() ? 3000 : 600 };
}

static int begin(void **state)
{
	struct job_plan plan;

	seed = job_seed(epf_now_ns() ^ (uint64_t)getpid() << 40);
	printf("# hostile: EPF_SEED=%llu\n", (unsigned long long)seed);
	if (daemons_start(&daemons, 2, daemon_settings))
		return -1;
	plan_job(&plan, "honest");
	if (job_fork(&honest, &plan) || job_reach(&honest, 20, job_ms(30000)))
		return -1;
	for (unsigned i = 0; i < 2; i++)
		base[i] = proc_look(daemons.pid[i]);
	return 0;
}

static int finish(void **state)
{
	job_end(&honest);
	return daemons_stop(&daemons);
}

static uint64_t rounds_now(void)
{
	uint64_t most = 0;

	for (unsigned i = 0; i < 4; i++)
		if (job_get(&honest.page->rank[i].rounds) > most)
			most = job_get(&honest.page->rank[i].rounds);
	return most;
}

/* An attack, and its repetitions in the normal and the long form. */
struct attack {
	const char *name;
	void (*fn)(const struct hostile *h);
	uint64_t normal, full;
};

/* Runs one attack in a separate process. The honest job plays on during and after it, and the daemons keep nothing of it. */
static void attack(void **state)
{
	const struct attack *a = *state;
	uint64_t normal = job_ms(1) > 1 ? a->normal / 5 : a->normal;
	struct hostile h = { .path = { daemons_socket(&daemons, 0), daemons_socket(&daemons, 1) },
			     .honest = "honest",
			     .seed = seed + strlen(a->name) * 7919,
			     .count = job_long() ? a->full : normal };
	uint64_t before = rounds_now(), start = epf_now_ns();
	int status = -1;
	pid_t pid;

	fflush(NULL);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		alarm(job_long() ? 1200 : 600);
		a->fn(&h);
		fflush(NULL);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (!WIFEXITED(status) || WEXITSTATUS(status))
		print_error("%s ended with wait status %#x\n", a->name, (unsigned)status);
	printf("# %s: %.1f s, honest job played %llu rounds meanwhile\n", a->name,
	       (double)(epf_now_ns() - start) / 1e9, (unsigned long long)(rounds_now() - before));
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	assert_int_equal(job_reach(&honest, rounds_now() + 20, job_ms(20000)), 0);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(proc_settle(daemons.pid[i], base[i], job_ms(60000)), 0);
}

static void the_honest_job_is_unharmed(void **state)
{
	uint64_t rounds = rounds_now();

	assert_int_equal(job_finish(&honest), 0);
	for (unsigned i = 0; i < 4; i++) {
		assert_int_equal(honest.page->rank[i].failed, 0);
		assert_int_equal(honest.page->rank[i].counter[JOB_LANE_ERRORS], 0);
		assert_int_equal(honest.page->rank[i].counter[JOB_ARRIVALS_REFUSED], 0);
	}
	printf("# hostile: honest job: %llu rounds, 0 wrong, 0 lane errors, other memory unchanged\n",
	       (unsigned long long)rounds);
}

static void the_next_job_is_served(void **state)
{
	struct job_plan plan;
	struct job next;

	plan_job(&plan, "next");
	assert_int_equal(job_fork(&next, &plan), 0);
	assert_int_equal(job_reach(&next, 20, job_ms(JOB_WAIT_MS)), 0);
	assert_int_equal(job_finish(&next), 0);
	job_end(&next);
}

/* Every reason of the command check, and those of refused control messages. */
static void refusals_are_counted(void **state)
{
	static const unsigned met[] = { EPF_R_CMD_ACCESS,     EPF_R_SVC_MESSAGE,
					EPF_R_SVC_DESCRIPTOR, EPF_R_SVC_MEMORY,
					EPF_R_SVC_LIMIT,      EPF_R_SVC_JOB,
					EPF_R_SVC_RANK_TAKEN };
	const unsigned many = sizeof(met) / sizeof(met[0]);
	char *text = raw_status(daemons_socket(&daemons, 0));
	json_t *json, *refusals;

	assert_non_null(text);
	json = json_loads(text, 0, NULL);
	assert_non_null(json);
	refusals = json_object_get(json, "refusals");
	printf("# hostile: refusals counted:");
	for (unsigned i = 0; i < many + EPF_R_CMD_REVOKED - EPF_R_CMD_OP + 1; i++) {
		unsigned reason = i < many ? met[i] : EPF_R_CMD_OP + i - many;
		char key[16];
		json_int_t n;

		snprintf(key, sizeof(key), "EPF-%u", reason);
		n = json_integer_value(json_object_get(refusals, key));
		printf(" %s %lld", key, (long long)n);
		if (n <= 0)
			print_error("refusals: %s is not counted: %s\n", key, text);
		assert_true(n > 0);
	}
	printf("\n");
	json_decref(json);
	free(text);
}

#define ATTACK(name, normal, full)            \
 {                                            \
#  name, attack, NULL, NULL, &(struct attack) \
  {                                           \
#   name, hostile_##name, normal, full        \
  }                                           \
 }

int main(void)
{
	const struct CMUnitTest tests[] = {
		ATTACK(directed, 0, 0),
		ATTACK(mutated, 100000, 10000000),
		ATTACK(scribble, 2000, 20000),
		ATTACK(descriptors, 0, 0),
		ATTACK(punch, 1500, 20000),
		ATTACK(dies, 20, 200),
		ATTACK(withdraws, 20, 200),
		ATTACK(strangers, 0, 0),
		ATTACK(garbage, 2000, 100000),
		ATTACK(states, 0, 0),
		ATTACK(names, 0, 0),
		ATTACK(deaf, 1000, 10000),
		cmocka_unit_test(refusals_are_counted),
		cmocka_unit_test(the_honest_job_is_unharmed),
		cmocka_unit_test(the_next_job_is_served),
	};

	return cmocka_run_group_tests_name("hostile clients", tests, begin, finish);
}
