/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libepf in service mode against a false daemon (fake_svc.h): what a right one gives is used as promised, what a wrong one gives is
 * refused with a reason and harms nothing, one that dies is noticed and, before the join, replaced. Also epf_rejoin.
 * The real daemon is met in tests/proc.
 */
#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/base/log.h"
#include "fabric/client/handle.h"
#include "fabric/protocol/proto.h"
#include "tests/unit/client/fake_svc.h"

#include <dirent.h>
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { RANKS = 2, BYTES = 8192 };

/* How long a rank waits for its daemon: long, so that a machine that is stalled is no error, but where a test waits for the end of it. */
#define PATIENT   "service-timeout=20s"
#define IMPATIENT "service-timeout=300ms"

static const char *patience = PATIENT;
static char dir[64], socket_setting[128];

/* Two ranks of one job, driven by one thread, both with the same daemon. */
struct pair {
	pid_t daemon;
	struct epf_boot_group *group;
	struct epf_boot *boot[RANKS];
	struct epf *ep[RANKS];
	struct epf_ring *ring[RANKS];
	void *mem[RANKS];
	uint32_t region[RANKS];
};

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

static int open_rank(struct epf **ep)
{
	const char *const settings[] = {
		socket_setting,         patience, "signals=16", "ring-slots=64", "job=remote",
		"bootstrap-timeout=2s", NULL
	};
	struct epf_options o;

	epf_options_init(&o);
	o.settings = settings;
	return epf_open(&o, ep);
}

static int set_up_rank(struct pair *p, int i)
{
	int rc = open_rank(&p->ep[i]);

	if (!rc)
		rc = epf_memory_alloc(p->ep[i], BYTES, &p->mem[i]);
	if (!rc)
		rc = epf_region_register(p->ep[i], p->mem[i], BYTES, EPF_REMOTE_WRITE,
					 &p->region[i]);
	if (!rc)
		rc = epf_ring_open(p->ep[i], NULL, &p->ring[i]);
	return rc;
}

static int join_pair(struct pair *p)
{
	int rc = 0, left = RANKS;

	for (int i = 0; i < RANKS && !rc; i++)
		rc = epf_join_post(p->ep[i], p->boot[i]);
	for (int turns = 0; !rc && left; turns++) {
		left = RANKS;
		for (int i = 0; i < RANKS && (!rc || rc == -EAGAIN); i++) {
			rc = epf_join_finish(p->ep[i]);
			left -= !rc;
		}
		rc = rc == -EAGAIN ? 0 : rc;
		assert_true(turns < 100);
	}
	return rc;
}

/* Everything up to the join; the first failure. */
static int set_up(struct pair *p, const struct fake_plan *plan)
{
	int rc = 0;

	memset(p, 0, sizeof(*p));
	p->daemon = fake_svc_start(dir, "fake", plan);
	assert_true(p->daemon > 0);
	assert_return_code(epf_boot_local_create(RANKS, &p->group), 0);
	for (int i = 0; i < RANKS; i++)
		assert_return_code(epf_boot_local_open(p->group, (uint32_t)i, &p->boot[i]), 0);
	for (int i = 0; i < RANKS && !rc; i++)
		rc = set_up_rank(p, i);
	return rc ? rc : join_pair(p);
}

static void tear_down(struct pair *p)
{
	for (int i = 0; i < RANKS; i++)
		epf_close(p->ep[i]);
	for (int i = 0; i < RANKS; i++)
		epf_boot_close(p->boot[i]);
	epf_boot_local_destroy(p->group);
	fake_svc_kill(p->daemon);
}

static uint64_t ask(struct epf *ep, const char *what)
{
	uint64_t value = 0;

	assert_return_code(epf_counter(ep, what, &value), 0);
	return value;
}

static void says(const char *text)
{
	if (!strstr(epf_last_error(), text))
		fail_msg("\"%s\" does not say \"%s\"", epf_last_error(), text);
}

static void a_job_is_joined(void **state)
{
	struct pair p;
	void *stray = malloc(64);
	uint64_t value;
	uint32_t region;

	assert_return_code(set_up(&p, NULL), 0);
	assert_string_equal(epf_mode(p.ep[0]), "service:fake");
	assert_int_equal(p.region[0], 0);
	assert_int_equal(epf_nodes(p.ep[0]), 2);
	assert_int_equal(epf_node_of(p.ep[0], 1), 1);
	assert_int_equal(epf_node_of(p.ep[0], 2), UINT32_MAX);
	assert_int_equal(epf_peer_state(p.ep[0], 1), 1);
	assert_int_equal(epf_peer_epoch(p.ep[0], 1), 0);
	assert_string_equal(epf_stats_file(p.ep[0]), "");
	/* A command goes into the daemon's memory as it is. */
	assert_return_code(epf_put(p.ring[0], 1, 0, 0, 0, 0, 16, 0), 0);
	assert_int_equal(ask(p.ep[0], "slots"), 1);
	assert_int_equal(epf_counter(p.ep[0], "no_such", &value), -ENOENT);
	/* A signal of the daemon ends a wait. */
	ask(p.ep[0], "poke");
	assert_return_code(epf_signal_wait(p.ep[0], 0, 1, 0), 0);
	assert_int_equal(epf_signal_wait(p.ep[0], 0, 2, 30000000), -ETIMEDOUT);
	/* Only memory that can be shared is registered. */
	assert_int_equal(epf_region_register(p.ep[0], stray, 64, 0, &region), -EINVAL);
	assert_int_equal(epf_last_reason(), EPF_R_SVC_MEMORY);
	assert_int_equal(epf_region_register(p.ep[0], p.mem[0], BYTES + 1, 0, &region), -EINVAL);
	assert_return_code(epf_region_register(p.ep[0], (char *)p.mem[0] + 4096, 4096, 0, &region),
			   0);
	assert_int_equal(region, 1);
	assert_return_code(epf_region_withdraw(p.ep[0], 1, 0), 0);
	assert_true(epf_region_withdraw(p.ep[0], 1, 0) < 0);
	assert_true(epf_region_withdraw(p.ep[0], 2, 0) < 0);
	assert_int_equal(epf_rejoin(p.ep[0]), -EALREADY);
	free(stray);
	tear_down(&p);
}

static void lost_ranks_and_masks(void **state)
{
	struct pair p;

	assert_return_code(set_up(&p, NULL), 0);
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
	tear_down(&p);
}

/* What a daemon must know of kernels, which wake nobody. The one of another rank hears nothing. */
static void a_daemon_hears_of_kernels(void **state)
{
	struct epf_gpu_options o;
	struct epf_gpu *gpu;
	struct pair p;

	epf_gpu_options_init(&o);
	o.backend = "fake";
	assert_return_code(set_up(&p, NULL), 0);
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
	tear_down(&p);
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
	assert_return_code(set_up(&p, &old), 0);
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
	tear_down(&p);
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
	rc = set_up(&p, &faults[i].plan);
	patience = PATIENT;
	good = faults[i].reason ? rc < 0 && epf_last_reason() == faults[i].reason : !rc;
	if (!good && !(rc < 0 && is_of_time(faults[i].reason) && is_of_time(epf_last_reason())))
		fail_msg("%s, fault %d: %d \"%s\", reason %d was due",
			 epf_svc_type_name(faults[i].plan.type), faults[i].plan.fault, rc,
			 epf_last_error(), faults[i].reason);
	tear_down(&p);
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

		if (set_up(&p, &plans[i]))
			fail_msg("plan %zu: %s", i, epf_last_error());
		for (int r = 0; r < RANKS; r++) {
			assert_int_equal(p.region[r], 0);
			assert_int_equal(ask(p.ep[r], "regions"), 1);
			assert_int_equal(ask(p.ep[r], "rings"), 1);
			assert_return_code(epf_put(p.ring[r], 1, 0, 0, 0, 0, 16, 0), 0);
			assert_int_equal(ask(p.ep[r], "slots"), 1);
		}
		tear_down(&p);
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
	assert_return_code(set_up_rank(&p, 0), 0);
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

	assert_return_code(set_up(&p, NULL), 0);
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
	tear_down(&p);
}

/* After the join: every kind of wait ends with the daemon, also one without a deadline, and says which daemon it was. */
static void a_dead_daemon_ends_waits(void **state)
{
	for (int kind = 0; kind < 4; kind++) {
		struct pair p;
		int rc;

		assert_return_code(set_up(&p, NULL), 0);
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
		tear_down(&p);
	}
	a_job_is_joined(NULL);
}

static void an_absent_daemon(void **state)
{
	uint64_t begun = epf_now_ns();
	struct pair p = { 0 };
	struct epf *ep = NULL;

	patience = IMPATIENT;
	assert_int_equal(open_rank(&ep), -ENOENT);
	patience = PATIENT;
	assert_int_equal(epf_last_reason(), EPF_R_SVC_ABSENT);
	assert_true(epf_now_ns() - begun >= 300000000);
	assert_null(ep);
	/* One that comes while we wait is in time. */
	p.daemon = fake_svc_start_late(dir, "fake", 100);
	assert_return_code(open_rank(&ep), 0);
	epf_close(ep);
	fake_svc_kill(p.daemon);
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

static int make_dir(void **state)
{
	snprintf(dir, sizeof(dir), "/tmp/epf-remote-XXXXXX");
	if (!mkdtemp(dir))
		return -1;
	snprintf(socket_setting, sizeof(socket_setting), "service=%s/fake.sock", dir);
	return 0;
}

static int remove_dir(void **state)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/fake.sock", dir);
	unlink(path);
	snprintf(path, sizeof(path), "%s/fake.lock", dir);
	unlink(path);
	return rmdir(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_job_is_joined),
		cmocka_unit_test(lost_ranks_and_masks),
		cmocka_unit_test(a_daemon_hears_of_kernels),
		cmocka_unit_test(a_daemon_of_1_4_hears_nothing_of_kernels),
		cmocka_unit_test(wrong_daemons),
		cmocka_unit_test(a_lost_connection_is_replaced),
		cmocka_unit_test(a_restarted_daemon_gets_everything),
		cmocka_unit_test(a_daemon_dies_during_a_wait),
		cmocka_unit_test(a_dead_daemon_ends_waits),
		cmocka_unit_test(an_absent_daemon),
		cmocka_unit_test(a_rank_comes_back),
		cmocka_unit_test(embedded_ranks_do_not_come_back),
		cmocka_unit_test(bad_names),
	};

	return cmocka_run_group_tests(tests, make_dir, remove_dir) ? 1 : 0;
}
