/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libepf in service mode against a fake daemon that fails: a wrong answer is refused with a reason and harms nothing; a daemon that dies is noticed
 * and, before the join, replaced. test_remote.c has daemons that do nothing wrong.
 */
#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/protocol/proto.h"
#include "tests/unit/client/remote_kit.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static unsigned open_files(void)
{
	DIR *d = opendir("/proc/self/fd");
	unsigned n = 0;

	assert_non_null(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static const struct {
	struct fake_plan plan;
	enum epf_reason
		reason; /* what it must end in; NONE: a newer daemon may do so, and nothing is kept */
} faults[] = {
	{ { EPF_SVC_HELLO, FAKE_VERSION, 0, 0 }, EPF_R_SVC_VERSION },
	{ { EPF_SVC_HELLO, FAKE_SHORT, 0, 0 }, EPF_R_SVC_MESSAGE },
	{ { EPF_SVC_HELLO, FAKE_GARBAGE, 0, 0 }, EPF_R_SVC_MESSAGE },
	{ { EPF_SVC_HELLO, FAKE_SILENT, 0, 0 }, EPF_R_SVC_TIMEOUT },
	{ { EPF_SVC_HELLO, FAKE_REFUSE, 0, 0 }, EPF_R_SVC_DRAINING },
	{ { EPF_SVC_HELLO, FAKE_CLOSE, 0, 0 }, EPF_R_SVC_GONE },
	{ { EPF_SVC_SIGNALS, FAKE_NUMBERS, 0, 0 }, EPF_R_SVC_MESSAGE },
	{ { EPF_SVC_SIGNALS, FAKE_SHORT, 0, 0 }, EPF_R_SVC_MESSAGE },
	{ { EPF_SVC_SIGNALS, FAKE_NO_FD, 0, 0 }, EPF_R_SVC_DESCRIPTOR },
	{ { EPF_SVC_SIGNALS, FAKE_EXTRA_FD, 0, 0 }, EPF_R_NONE },
	{ { EPF_SVC_SIGNALS, FAKE_OTHER_FD, 0, 0 }, EPF_R_SVC_DESCRIPTOR },
	{ { EPF_SVC_SIGNALS, FAKE_SMALL_FD, 0, 0 }, EPF_R_SVC_DESCRIPTOR },
	{ { EPF_SVC_SIGNALS, FAKE_UNSEALED, 0, 0 }, EPF_R_SVC_DESCRIPTOR },
	{ { EPF_SVC_SIGNALS, FAKE_EXIT, 0, 0 }, EPF_R_SVC_ABSENT },
	{ { EPF_SVC_REGION, FAKE_NUMBERS, 0, 0 }, EPF_R_SVC_MESSAGE },
	{ { EPF_SVC_REGION, FAKE_REFUSE, 0, 0 }, EPF_R_SVC_DRAINING },
	{ { EPF_SVC_REGION, FAKE_EXTRA_FD, 0, 0 }, EPF_R_NONE },
	{ { EPF_SVC_ATTACH, FAKE_EXTRA_FD, 0, 0 }, EPF_R_NONE },
	{ { EPF_SVC_REGION, FAKE_CLOSE, 0, 0 }, EPF_R_SVC_GONE },
	{ { EPF_SVC_REGION, FAKE_EXIT, 0, 0 }, EPF_R_SVC_ABSENT },
	{ { EPF_SVC_RING, FAKE_NUMBERS, 0, 0 }, EPF_R_SVC_MESSAGE },
	{ { EPF_SVC_RING, FAKE_CONTENT, 0, 0 }, EPF_R_SVC_MESSAGE },
	{ { EPF_SVC_RING, FAKE_SMALL_FD, 0, 0 }, EPF_R_SVC_DESCRIPTOR },
	{ { EPF_SVC_RING, FAKE_UNSEALED, 0, 0 }, EPF_R_SVC_DESCRIPTOR },
	{ { EPF_SVC_RING, FAKE_NO_FD, 0, 0 }, EPF_R_SVC_DESCRIPTOR },
	{ { EPF_SVC_RING, FAKE_EXIT, 0, 0 }, EPF_R_SVC_ABSENT },
	{ { EPF_SVC_ATTACH, FAKE_NUMBERS, 0, 0 }, EPF_R_SVC_MESSAGE },
	{ { EPF_SVC_ATTACH, FAKE_CONTENT, 0, 0 }, EPF_R_SVC_MESSAGE },
	{ { EPF_SVC_ATTACH, FAKE_SMALL_FD, 0, 0 }, EPF_R_SVC_DESCRIPTOR },
	{ { EPF_SVC_ATTACH, FAKE_NO_FD, 0, 0 }, EPF_R_SVC_DESCRIPTOR },
	{ { EPF_SVC_ATTACH, FAKE_REFUSE, 0, 0 }, EPF_R_SVC_DRAINING },
	{ { EPF_SVC_ATTACH, FAKE_AGAIN, 0, 0 }, EPF_R_REJOIN },
	{ { EPF_SVC_ATTACH, FAKE_EXIT, 0, 0 }, EPF_R_SVC_ABSENT },
	{ { EPF_SVC_ATTACH, FAKE_EXIT, 0, 1 }, EPF_R_SVC_ABSENT },
	{ { EPF_SVC_WORLD, FAKE_SHORT, 0, 0 }, EPF_R_SVC_MESSAGE },
	{ { EPF_SVC_WORLD, FAKE_SILENT, 0, 0 }, EPF_R_SVC_TIMEOUT },
	{ { EPF_SVC_WORLD, FAKE_EXIT, 0, 0 }, EPF_R_SVC_GONE },
	{ { EPF_SVC_CONNECT, FAKE_REFUSE, 0, 0 }, EPF_R_SVC_DRAINING },
	{ { EPF_SVC_CONNECT, FAKE_EXIT, 0, 0 }, EPF_R_SVC_GONE },
	{ { EPF_SVC_CONNECT, FAKE_CLOSE, 0, 1 }, EPF_R_SVC_GONE },
};

/* The patience of the rank may end in these: it asks a daemon that is lost again and again. */
static bool is_of_time(enum epf_reason reason)
{
	return reason == EPF_R_SVC_TIMEOUT || reason == EPF_R_SVC_ABSENT ||
	       reason == EPF_R_SVC_GONE;
}

/* True when it ends as it should; false to try again: it is a rank's patience that ended, on one that is for a busy machine too short. */
static bool try_fault(size_t i)
{
	unsigned files = open_files();
	struct pair p;
	bool good;
	int rc;

	patience = is_of_time(faults[i].reason) ? IMPATIENT : PATIENT;
	rc = pair_set_up(&p, &faults[i].plan);
	patience = PATIENT;
	good = faults[i].reason ? rc < 0 && epf_last_reason() == faults[i].reason : !rc;
	if (!good && !(rc < 0 && is_of_time(faults[i].reason) && is_of_time(epf_last_reason())))
		fail_msg("%s, fault %d: %d \"%s\", reason %d was due",
			 epf_svc_type_name(faults[i].plan.type), faults[i].plan.fault, rc,
			 epf_last_error(), faults[i].reason);
	pair_tear_down(&p);
	assert_int_equal(open_files(), files);
	return good;
}

/* Whatever the daemon does wrong: an error with its reason, nothing left behind, in bounded time. */
static void wrong_daemons(void **state)
{
	for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
		unsigned tries = 0;

		while (!try_fault(i))
			assert_true(++tries < 50);
	}
}

/* A connection that ends before the join is replaced, and nothing that the user holds moves. */
static void a_lost_connection_is_replaced(void **state)
{
	static const struct fake_plan plans[] = {
		{ EPF_SVC_HELLO, FAKE_CLOSE, 1, 0 },  { EPF_SVC_SIGNALS, FAKE_CLOSE, 1, 0 },
		{ EPF_SVC_REGION, FAKE_CLOSE, 1, 0 }, { EPF_SVC_REGION, FAKE_CLOSE, 2, 0 },
		{ EPF_SVC_RING, FAKE_CLOSE, 1, 0 },   { EPF_SVC_ATTACH, FAKE_CLOSE, 1, 0 },
		{ EPF_SVC_ATTACH, FAKE_CLOSE, 1, 1 },
	};

	for (size_t i = 0; i < sizeof(plans) / sizeof(plans[0]); i++) {
		struct pair p;

		if (pair_set_up(&p, &plans[i]))
			fail_msg("plan %zu: %s", i, epf_last_error());
		for (int r = 0; r < RANKS; r++) {
			assert_int_equal(p.region[r], 0);
			assert_int_equal(ask(p.ep[r], "regions"), 1);
			assert_int_equal(ask(p.ep[r], "rings"), 1);
			assert_return_code(epf_put(p.ring[r], 1, 0, 0, 0, 0, 16, 0), 0);
			assert_int_equal(ask(p.ep[r], "slots"), 1);
		}
		pair_tear_down(&p);
	}
}

static void a_restarted_daemon_gets_everything(void **state)
{
	struct epf_signal *signals;
	struct epf_ring_shm *shm;
	struct epf_ring *second;
	struct pair p = { 0 };
	uint32_t region;
	pid_t late;

	p.daemon = fake_svc_start(dir, "fake", NULL);
	assert_return_code(pair_rank_set_up(&p, 0), 0);
	assert_return_code(epf_region_register(p.ep[0], (char *)p.mem[0] + 4096, 4096, 0, &region),
			   0);
	assert_return_code(epf_region_withdraw(p.ep[0], region, 0), 0);
	assert_return_code(epf_ring_open(p.ep[0], NULL, &second), 0);
	/* Pushed before the join: it waits in the ring, also over the daemon's end. */
	assert_return_code(epf_put(second, 0, 0, 0, 0, 0, 16, 0), 0);
	assert_return_code(epf_put(second, 0, 0, 0, 0, 3, 16, 0), 0);
	signals = p.ep[0]->signals;
	shm = second->shm;
	fake_svc_kill(p.daemon);
	late = fake_svc_start_late(dir, "fake", 100);
	assert_return_code(epf_region_register(p.ep[0], p.mem[0], 4096, 0, &region), 0);
	assert_int_equal(region, 2);
	assert_ptr_equal(p.ep[0]->signals, signals);
	assert_ptr_equal(second->shm, shm);
	assert_int_equal(ask(p.ep[0], "regions"), 3);
	assert_int_equal(ask(p.ep[0], "closed"), 1);
	assert_int_equal(ask(p.ep[0], "rings"), 2);
	assert_int_equal(ask(p.ep[0], "slots"), 3);
	ask(p.ep[0], "poke");
	assert_int_equal(epf_signal_value(p.ep[0], 0), 1);
	epf_close(p.ep[0]);
	fake_svc_kill(late);
}

/* A wait that looked at a living daemon just before must notice its end too. */
static void a_daemon_dies_during_a_wait(void **state)
{
	uint64_t begun;
	struct pair p;
	pid_t killer;

	assert_return_code(pair_set_up(&p, NULL), 0);
	assert_int_equal(epf_signal_wait(p.ep[0], 0, 1, 30000000), -ETIMEDOUT);
	begun = epf_now_ns();
	killer = fork();
	if (killer == 0) {
		usleep(100000);
		_exit(kill(p.daemon, SIGKILL) != 0);
	}
	assert_int_equal(epf_signal_wait(p.ep[0], 0, 1, 0), -ECONNRESET);
	assert_int_equal(epf_last_reason(), EPF_R_SVC_GONE);
	assert_true(epf_now_ns() - begun >= 100000000);
	assert_int_equal(waitpid(killer, NULL, 0), killer);
	pair_tear_down(&p);
}

/* After the join: every kind of wait ends with the daemon, also one without a deadline, and says which daemon it was. */
static void a_dead_daemon_ends_waits(void **state)
{
	for (int kind = 0; kind < 4; kind++) {
		struct pair p;
		int rc;

		assert_return_code(pair_set_up(&p, NULL), 0);
		if (kind == 1)
			for (int i = 0; i < 63; i++)
				assert_return_code(epf_put(p.ring[0], 1, 0, 0, 0, 0, 16, 0), 0);
		fake_svc_kill(p.daemon);
		switch (kind) {
		case 0:
			rc = epf_signal_wait(p.ep[0], 0, 1, 0);
			break;
		case 1: /* for room */
			rc = epf_put(p.ring[0], 1, 0, 0, 0, 0, 16, 0);
			break;
		case 2:
			rc = epf_region_withdraw(p.ep[0], 0, 0);
			break;
		default:
			rc = epf_peer_mask(p.ep[0], 1);
			break;
		}
		assert_int_equal(rc, -ECONNRESET);
		assert_int_equal(epf_last_reason(), EPF_R_SVC_GONE);
		says("fake");
		/* Closing works, and the next job is served by the next daemon. */
		epf_ring_close(p.ring[0]);
		p.daemon = fake_svc_start(dir, "fake", NULL);
		pair_tear_down(&p);
	}
	pair_serves_a_job();
}

static void an_absent_daemon(void **state)
{
	uint64_t begun = epf_now_ns();
	struct pair p = { 0 };
	struct epf *ep = NULL;

	patience = IMPATIENT;
	assert_int_equal(pair_rank_open(&ep), -ENOENT);
	patience = PATIENT;
	assert_int_equal(epf_last_reason(), EPF_R_SVC_ABSENT);
	assert_true(epf_now_ns() - begun >= 300000000);
	assert_null(ep);
	/* One that comes while we wait is in time. */
	p.daemon = fake_svc_start_late(dir, "fake", 100);
	assert_return_code(pair_rank_open(&ep), 0);
	epf_close(ep);
	fake_svc_kill(p.daemon);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(wrong_daemons),
		cmocka_unit_test(a_lost_connection_is_replaced),
		cmocka_unit_test(a_restarted_daemon_gets_everything),
		cmocka_unit_test(a_daemon_dies_during_a_wait),
		cmocka_unit_test(a_dead_daemon_ends_waits),
		cmocka_unit_test(an_absent_daemon),
	};

	return cmocka_run_group_tests(tests, pair_make_dir, pair_remove_dir) ? 1 : 0;
}
