/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several users on one daemon: only members of service-group are admitted, jobs of two users run correctly at the same time, limits apply
 * per user, only the daemon's user and root manage it, and another user cannot join a job even with its number and key. Children switch
 * to other users, so the test needs root and is skipped elsewhere (an unprivileged user namespace has a single user).
 */
#include "tests/proc/svc_job.h"
#include "tests/proc/svc_raw.h"

#include <errno.h>
#include <grp.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cmocka.h>

/* Unused numbers: the kernel needs no entry for them. */
enum { ALICE = 54101, BOB = 54102, EVE = 54103, GROUP = 54200, CLIENTS = 5, WAIT_MS = 20000 };

static const char *const settings[] = { "service-group=54200", "user-clients=5",
					"service-grace=100ms", NULL };

static struct daemons daemons;
static struct job job[2];

static uint64_t *page; /* words shared with the children */

enum { ALICE_IS_IN, ALICE_MAY_GO, WORDS };

static int become(uid_t uid, bool in_group)
{
	gid_t group = GROUP;

	if (setgroups(in_group ? 1 : 0, &group) || setresgid(uid, uid, uid) ||
	    setresuid(uid, uid, uid))
		return -errno;
	/* Changing the user cleared it. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	return 0;
}

#define CHILD_CHECK(condition)                                                              \
 do {                                                                                       \
  if (!(condition)) {                                                                       \
   fprintf(stderr, "%s:%d: user %u: %s is false\n", __FILE__, __LINE__, (unsigned)getuid(), \
	   #condition);                                                                     \
   _exit(1);                                                                                \
  }                                                                                         \
 } while (0)

static pid_t start_as(uid_t uid, bool in_group, void (*body)(void))
{
	pid_t pid;

	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		alarm(180);
		CHILD_CHECK(become(uid, in_group) == 0);
		body();
		_exit(0);
	}
	assert_true(pid > 0);
	return pid;
}

static void await_child(pid_t pid)
{
	int status;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static int start(void **state)
{
	memset(page, 0, WORDS * sizeof(*page));
	return daemons_start(&daemons, 2, settings);
}

static int stop(void **state)
{
	job_end(&job[0]);
	job_end(&job[1]);
	return daemons_stop(&daemons);
}

static void directory_and_socket_are_the_groups(void **state)
{
	struct stat st;

	assert_int_equal(stat(daemons.dir, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0750);
	assert_int_equal(st.st_gid, GROUP);
	assert_int_equal(stat(daemons_socket(&daemons, 0), &st), 0);
	assert_int_equal(st.st_mode & 07777, 0660);
	assert_int_equal(st.st_gid, GROUP);
}

/* With libepf, and by hand. */
static void is_kept_out(void)
{
	const char *list[] = { daemons_client(&daemons, 0)[0], "service-timeout=500ms", NULL };
	struct epf_options o;
	struct epf *ep;
	struct raw c;

	CHILD_CHECK(raw_open(&c, daemons_socket(&daemons, 0)) == -EACCES);
	epf_options_init(&o);
	o.settings = list;
	CHILD_CHECK(epf_open(&o, &ep) == -EACCES);
	CHILD_CHECK(strstr(epf_last_error(), "node0.sock") != NULL);
}

static void gets_in(void)
{
	struct raw c;

	CHILD_CHECK(raw_connect(&c, daemons_socket(&daemons, 0), 0) == 0);
	raw_close(&c);
}

static void the_group_decides_who_gets_in(void **state)
{
	await_child(start_as(EVE, false, is_kept_out));
	await_child(start_as(ALICE, true, gets_in));
	await_child(start_as(BOB, true, gets_in));
}

static void only_looks(void)
{
	struct epf_svc_drain q = { .on = 1 };
	char *text = raw_status(daemons_socket(&daemons, 0));
	struct raw c;

	CHILD_CHECK(text && strstr(text, "node0"));
	free(text);
	CHILD_CHECK(raw_connect(&c, daemons_socket(&daemons, 0), 1) == 0);
	CHILD_CHECK(raw_call(&c, EPF_SVC_DRAIN, &q, NULL, 0, NULL) == -EACCES);
	CHILD_CHECK(strstr(c.text, "drain: user 54101 may not") != NULL);
	raw_close(&c);
	CHILD_CHECK(raw_link(daemons_socket(&daemons, 0), "", 0, false) == -EACCES);
}

static void only_operators_manage(void **state)
{
	static const char *const off[] = { "drain", "--off", NULL };

	await_child(start_as(ALICE, true, only_looks));
	/* Root may, and nothing was changed before. */
	assert_int_equal(daemons_command(&daemons, off, NULL), 0);
}

static void takes_all_it_may(void)
{
	struct raw c[CLIENTS + 1];

	for (int i = 0; i < CLIENTS; i++)
		CHILD_CHECK(raw_connect(&c[i], daemons_socket(&daemons, 0), 0) == 0);
	CHILD_CHECK(raw_connect(&c[CLIENTS], daemons_socket(&daemons, 0), 0) < 0);
	CHILD_CHECK(strstr(c[CLIENTS].text, "user-clients is 5") != NULL);
	raw_close(&c[CLIENTS]);
	if (getuid() == ALICE) {
		job_set(&page[ALICE_IS_IN], 1);
		CHILD_CHECK(job_await(&page[ALICE_MAY_GO], 1, job_ms(3 * WAIT_MS)) == 0);
	}
	for (int i = 0; i < CLIENTS; i++)
		raw_close(&c[i]);
}

static void limits_are_each_users_own(void **state)
{
	pid_t alice = start_as(ALICE, true, takes_all_it_may);

	assert_int_equal(job_await(&page[ALICE_IS_IN], 1, job_ms(3 * WAIT_MS)), 0);
	await_child(start_as(BOB, true, takes_all_it_may));
	job_set(&page[ALICE_MAY_GO], 1);
	await_child(alice);
}

/* Both users know the number and key of Alice's job. */
static int attach(struct raw_rank *r, uint32_t rank)
{
	uint8_t id[EPF_SVC_ID], key[EPF_SVC_KEY];

	raw_job_names(77, id, key);
	CHILD_CHECK(raw_rank_open(r, daemons_socket(&daemons, 0), EPF_SVC_MINOR, 0, 16) == 0);
	return raw_rank_attach(r, "hers", id, key, rank, 3, 0);
}

static void begins_a_job(void)
{
	struct raw_rank zero = { .rank = 0 }, one = { .rank = 1 };

	CHILD_CHECK(attach(&zero, 0) == 0);
	job_set(&page[ALICE_IS_IN], 1);
	CHILD_CHECK(job_await(&page[ALICE_MAY_GO], 1, job_ms(3 * WAIT_MS)) == 0);
	CHILD_CHECK(attach(&one, 1) == 0);
	raw_rank_close(&one, true);
	raw_rank_close(&zero, true);
}

static void wants_in(void)
{
	struct raw_rank r = { .rank = 2 };

	CHILD_CHECK(attach(&r, 2) < 0);
	CHILD_CHECK(strstr(r.c.text, "user or secret of rank 2 is not that of the others") != NULL);
	raw_rank_close(&r, false);
}

static void a_job_is_its_users(void **state)
{
	pid_t alice = start_as(ALICE, true, begins_a_job);

	assert_int_equal(job_await(&page[ALICE_IS_IN], 1, job_ms(3 * WAIT_MS)), 0);
	await_child(start_as(BOB, true, wants_in));
	job_set(&page[ALICE_MAY_GO], 1);
	await_child(alice);
}

static void play_as_alice(struct job_rank *r)
{
	JOB_CHECK(r, become(ALICE, true) == 0);
	job_play(r);
}

static void play_as_bob(struct job_rank *r)
{
	JOB_CHECK(r, become(BOB, true) == 0);
	job_play(r);
}

static void two_users_work_at_once(void **state)
{
	struct job_plan plan = { .name = "same", .world = 4, .daemons = &daemons };
	char *text;

	for (unsigned i = 0; i < 2; i++) {
		plan.tag = i + 1;
		plan.body = i ? play_as_bob : play_as_alice;
		assert_int_equal(job_fork(&job[i], &plan), 0);
	}
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(job_reach(&job[i], 20, job_ms(2 * WAIT_MS)), 0);
	text = daemons_status(&daemons, 0);
	assert_non_null(text);
	assert_non_null(strstr(text, "54101"));
	assert_non_null(strstr(text, "54102"));
	free(text);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(job_finish(&job[i]), 0);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, start, stop)

/* Returns why children cannot become other users here, or NULL. */
static const char *why_not(void)
{
	int status = 1;
	pid_t pid;

	if (geteuid() != 0)
		return "only root can become other users";
	pid = fork();
	if (pid == 0)
		_exit(become(EVE, true) ? 1 : 0);
	if (pid < 0 || waitpid(pid, &status, 0) != pid || status)
		return "this user namespace has no other users";
	return NULL;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(directory_and_socket_are_the_groups),
		TEST(the_group_decides_who_gets_in),
		TEST(only_operators_manage),
		TEST(limits_are_each_users_own),
		TEST(a_job_is_its_users),
		TEST(two_users_work_at_once),
	};
	const char *why = why_not();

	if (why) {
		printf("skipped: %s\n", why);
		return 77;
	}
	page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (page == MAP_FAILED)
		return 1;
	return cmocka_run_group_tests_name("users", tests, NULL, NULL);
}
