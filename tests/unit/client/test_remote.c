/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libepf in service mode against a fake daemon that behaves: results of each call, lost and masked ranks, reports of kernels that push commands, epf_rejoin.
 * test_remote_bad.c has daemons that fail; tests/proc has the real daemon.
 */
#include "fabric/base/err.h"
#include "fabric/base/log.h"
#include "fabric/client/handle.h"
#include "fabric/protocol/proto.h"
#include "tests/unit/client/remote_kit.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void a_job_is_joined(void **state)
{
	pair_serves_a_job();
}

static void lost_ranks_and_masks(void **state)
{
	struct pair p;

	assert_return_code(pair_set_up(&p, NULL), 0);
	ask(p.ep[0], "lose_1");
	assert_int_equal(epf_signal_wait(p.ep[0], 0, 1, 0), -ECONNRESET);
	assert_int_equal(epf_last_reason(), EPF_R_RANK_DIED);
	says("rank 1 on node 1 is lost: a rank's process ended without closing");
	assert_int_equal(epf_peer_state(p.ep[0], 1), -ECONNRESET);
	/* Masked, it does not end waits; unmasked, it does. */
	assert_return_code(epf_peer_mask(p.ep[0], 1), 0);
	assert_int_equal(epf_signal_wait(p.ep[0], 0, 1, 30000000), -ETIMEDOUT);
	assert_return_code(epf_peer_unmask(p.ep[0], 1), 0);
	assert_int_equal(epf_signal_wait(p.ep[0], 0, 1, 0), -ECONNRESET);
	ask(p.ep[0], "return_1");
	assert_int_equal(epf_signal_wait(p.ep[0], 0, 1, 30000000), -ETIMEDOUT);
	assert_int_equal(epf_peer_epoch(p.ep[0], 1), 1);
	assert_true(epf_peer_mask(p.ep[0], RANKS) < 0);
	pair_tear_down(&p);
}

/* Commands that fail because their rank is lost, or has closed for another one's loss, fail with what is known of the loss. */
static void commands_name_the_loss(void **state)
{
	struct epf_ring_failure f;
	struct epf_done *done;
	struct pair p;

	assert_return_code(pair_set_up(&p, NULL), 0);
	done = &p.ring[0]->shm->done;
	for (uint64_t lost = 0; lost < 2; lost++) {
		if (lost)
			ask(p.ep[0], "lose_1");
		done->error_index = 8;
		done->error_rank = 1;
		done->error_reason = EPF_R_PEER_DOWN;
		EPF_STORE_RELEASE(&done->failed, 3 * (lost + 1));
		assert_int_equal(epf_ring_error(p.ring[0], &f), 1);
		assert_int_equal(epf_last_reason(), lost ? EPF_R_RANK_DIED : EPF_R_PEER_DOWN);
		says("3 commands failed, first number 7 to rank 1: ");
		says(lost ? ": rank 1 on node 1 is lost: a rank's process ended"
			  : ": A rank of the job is lost, or has closed");
	}
	pair_tear_down(&p);
}

/* What a daemon must know of kernels, which wake nobody. The one of another rank hears nothing. */
static void a_daemon_hears_of_kernels(void **state)
{
	struct epf_gpu_options o;
	struct epf_gpu *gpu;
	struct pair p;

	epf_gpu_options_init(&o);
	o.backend = "fake";
	assert_return_code(pair_set_up(&p, NULL), 0);
	assert_return_code(epf_gpu_open(p.ep[0], &o, &gpu), 0);
	assert_int_equal(ask(p.ep[0], "awake"), 1);
	assert_return_code(epf_gpu_pushes(gpu, 0), 0);
	assert_int_equal(ask(p.ep[0], "awake"), 0);
	assert_return_code(epf_gpu_pushes(gpu, 1), 0);
	assert_int_equal(ask(p.ep[0], "awake"), 1);
	epf_gpu_close(gpu);
	assert_int_equal(ask(p.ep[0], "awake"), 0);
	assert_int_equal(ask(p.ep[0], "awakes"), 4);
	assert_int_equal(ask(p.ep[1], "awakes"), 0);
	pair_tear_down(&p);
}

/* One that does not know the message gets none, and the log says what that means. */
static void a_daemon_of_1_4_hears_nothing_of_kernels(void **state)
{
	const struct fake_plan old = { EPF_SVC_HELLO, FAKE_1_4, 0, 0 };
	FILE *captured = tmpfile();
	struct epf_gpu_options o;
	struct epf_gpu *gpu;
	char line[512] = "";
	struct pair p;
	int saved = dup(STDERR_FILENO), rc;

	epf_gpu_options_init(&o);
	o.backend = "fake";
	assert_return_code(pair_set_up(&p, &old), 0);
	assert_int_equal(epf_log_configure("note"), 0);
	assert_true(captured && dup2(fileno(captured), STDERR_FILENO) >= 0);
	rc = epf_gpu_open(p.ep[0], &o, &gpu);
	dup2(saved, STDERR_FILENO);
	close(saved);
	assert_return_code(rc, 0);
	rewind(captured);
	assert_true(fread(line, 1, sizeof(line) - 1, captured) > 0);
	fclose(captured);
	if (!strstr(line, "core-idle is pause or spin"))
		fail_msg("the log says: %s", line);
	epf_gpu_close(gpu);
	assert_int_equal(ask(p.ep[0], "awakes"), 0);
	pair_tear_down(&p);
}

static int open_to_rejoin(struct epf **ep, const char *rank, const char *how_long)
{
	char setting[32];
	const char *const settings[] = { socket_setting, patience,     "signals=16", how_long,
					 "world-size=2", "job=remote", setting,      NULL };
	struct epf_options o;

	snprintf(setting, sizeof(setting), "rank=%s", rank);
	epf_options_init(&o);
	o.settings = settings;
	return epf_open(&o, ep);
}

static void a_rank_comes_back(void **state)
{
	const struct fake_plan again = { EPF_SVC_ATTACH, FAKE_AGAIN, 3, 0 };
	const struct fake_plan lost = { EPF_SVC_CONNECT, FAKE_CLOSE, 1, 0 };
	const struct fake_plan never = { EPF_SVC_ATTACH, FAKE_AGAIN, 0, 0 };
	const struct fake_plan *plans[] = { &again, &lost };
	struct epf *ep;
	pid_t pid;

	for (int i = 0; i < 2; i++) {
		pid = fake_svc_start(dir, "fake", plans[i]);
		assert_return_code(open_to_rejoin(&ep, "1", "bootstrap-timeout=20s"), 0);
		if (epf_rejoin(ep))
			fail_msg("plan %d: %s", i, epf_last_error());
		assert_int_equal(epf_rank(ep), 1);
		assert_int_equal(epf_world(ep), 2);
		assert_int_equal(epf_peer_epoch(ep, 1), 1);
		/* There is no rendezvous with the others any more. */
		assert_int_equal(epf_barrier(ep), -EOPNOTSUPP);
		assert_int_equal(epf_exchange(ep), -EOPNOTSUPP);
		assert_int_equal(epf_allgather(ep, NULL, 0, NULL), -EOPNOTSUPP);
		says("epf_rejoin");
		epf_close(ep);
		fake_svc_kill(pid);
	}
	pid = fake_svc_start(dir, "fake", &never);
	assert_return_code(open_to_rejoin(&ep, "1", "bootstrap-timeout=400ms"), 0);
	assert_int_equal(epf_rejoin(ep), -ETIMEDOUT);
	says("clears up");
	epf_close(ep);
	assert_return_code(open_to_rejoin(&ep, "2", "bootstrap-timeout=400ms"), 0);
	assert_int_equal(epf_rejoin(ep), -ERANGE);
	epf_close(ep);
	fake_svc_kill(pid);
}

static void embedded_ranks_do_not_come_back(void **state)
{
	const char *const settings[] = { "stats-dir=/proc/nonexistent", NULL };
	struct epf_options o;
	struct epf *ep;

	epf_options_init(&o);
	o.settings = settings;
	assert_return_code(epf_open(&o, &ep), 0);
	assert_string_equal(epf_mode(ep), "embedded");
	assert_int_equal(epf_rejoin(ep), -EOPNOTSUPP);
	assert_int_equal(epf_last_reason(), EPF_R_SVC_UNSUPPORTED);
	epf_close(ep);
}

static void bad_names(void **state)
{
	static const char *const bad[] = { "service=a/b", "service=../x" };

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		const char *const settings[] = { bad[i], NULL };
		struct epf_options o;
		struct epf *ep;

		epf_options_init(&o);
		o.settings = settings;
		assert_int_equal(epf_open(&o, &ep), -ERANGE);
		says("service");
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_job_is_joined),
		cmocka_unit_test(lost_ranks_and_masks),
		cmocka_unit_test(commands_name_the_loss),
		cmocka_unit_test(a_daemon_hears_of_kernels),
		cmocka_unit_test(a_daemon_of_1_4_hears_nothing_of_kernels),
		cmocka_unit_test(a_rank_comes_back),
		cmocka_unit_test(embedded_ranks_do_not_come_back),
		cmocka_unit_test(bad_names),
	};

	return cmocka_run_group_tests(tests, pair_make_dir, pair_remove_dir) ? 1 : 0;
}
