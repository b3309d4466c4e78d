/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs of the service daemon: who may join what, how jobs end, and that all they used is given back. The clients are this test's own connections;
 * traffic is tests/proc/test_service.c's.
 */
#include "bootstrap/boot.h"
#include "fabric/base/clock.h"
#include "fabric/service/service_priv.h"
#include "tests/unit/service/svc_kit.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { RANKS = 2, MIB = 1 << 20 };

static struct kit k;

static int setup(void **state)
{
	kit_make(&k);
	return 0;
}

static int teardown(void **state)
{
	kit_remove(&k);
	return 0;
}

/* A rank up to its ATTACH. */
static struct epf_svc_channel *attach(const struct epf_svc_attach *q,
				      struct epf_svc_attach_reply *reply)
{
	struct epf_svc_channel *ch = kit_client(&k);
	int fd = kit_memfd(65536, F_SEAL_SHRINK);

	if (!ch || kit_signals(ch, 8) || kit_ring(ch) || kit_region(ch, fd, 0, 65536, NULL) ||
	    kit_call(ch, EPF_SVC_ATTACH, q, -1, reply, NULL)) {
		epf_svc_channel_close(ch);
		ch = NULL;
	}
	close(fd);
	return ch;
}

static void ranks_must_belong_together(void **state)
{
	struct epf_svc_attach q = kit_attach(1, 0, 2);
	struct epf_svc_attach_reply r;
	struct epf_svc_channel *ch;

	assert_int_equal(kit_run(&k), 0);
	ch = attach(&q, &r);
	assert_non_null(ch);
	assert_null(attach(&q, &r));
	kit_says("rank 0 is served already");
	q.rank = 1;
	q.world = 3;
	assert_null(attach(&q, &r));
	kit_says("says 3 ranks, the others 2");
	q.world = 2;
	q.job_key[31] ^= 1;
	assert_null(attach(&q, &r));
	kit_says("secret");
	assert_int_equal(kit_refusals(&k, EPF_R_SVC_JOB), 2);
	assert_int_equal(kit_refusals(&k, EPF_R_SVC_RANK_TAKEN), 1);
	q = kit_attach(2, 2, 2);
	assert_null(attach(&q, &r));
	kit_says("rank 2 of 2");
	q = kit_attach(0, 0, 1);
	assert_null(attach(&q, &r));
	kit_says("number is 0");
	q = kit_attach(2, 0, 5000);
	assert_null(attach(&q, &r));
	q = kit_attach(1, 1, 2);
	q.flags = EPF_SVC_REJOIN;
	assert_null(attach(&q, &r));
	kit_says("has lost rank 1 here");
	/* The job is none the worse. */
	assert_int_equal(kit_number(&k, "jobs"), 1);
	epf_svc_channel_close(ch);
	assert_int_equal(kit_await(&k, "jobs", 0), 0);
	assert_int_equal(kit_await(&k, "users", 0), 0);
}

static void user_jobs_is_a_limit(void **state)
{
	struct epf_svc_attach q = kit_attach(1, 0, 1);
	struct epf_svc_attach_reply r;
	struct epf_svc_channel *ch;

	kit_set(&k, "user-jobs", "1");
	assert_int_equal(kit_run(&k), 0);
	ch = attach(&q, &r);
	assert_non_null(ch);
	q = kit_attach(2, 0, 1);
	assert_null(attach(&q, &r));
	kit_says("user-jobs is 1");
	epf_svc_channel_close(ch);
	assert_int_equal(kit_await(&k, "jobs", 0), 0);
	ch = attach(&q, &r);
	assert_non_null(ch);
	epf_svc_channel_close(ch);
}

/* All ranks of a job on this daemon, up to the connection. */
struct team {
	struct epf_svc_channel *ch[RANKS];
	uint8_t table[RANKS * EPF_SVC_MEMBER_BYTES];
	struct epf_blob sealed[RANKS];
	uint8_t bytes[RANKS][8192];
};

static void team_attach(struct team *t, uint8_t id)
{
	memset(t, 0, sizeof(*t));
	for (uint32_t i = 0; i < RANKS; i++) {
		struct epf_svc_attach q = kit_attach(id, i, RANKS);
		struct epf_svc_attach_reply r;

		t->ch[i] = attach(&q, &r);
		if (!t->ch[i])
			fail_msg("%s", epf_last_error());
		memcpy(t->table + i * EPF_SVC_MEMBER_BYTES, r.node_id, EPF_SVC_ID);
		memcpy(t->table + i * EPF_SVC_MEMBER_BYTES + EPF_SVC_ID, r.nonce, EPF_SVC_ID);
	}
}

static void team_world(struct team *t)
{
	for (uint32_t i = 0; i < RANKS; i++) {
		struct epf_svc_world q = { .table = { t->table, sizeof(t->table) } };
		struct epf_svc_world_reply r;

		if (kit_call(t->ch[i], EPF_SVC_WORLD, &q, -1, &r, NULL))
			fail_msg("%s", epf_last_error());
		assert_int_equal(r.n_nodes, 1);
		assert_true(r.sealed.len <= sizeof(t->bytes[i]));
		memcpy(t->bytes[i], r.sealed.data, r.sealed.len);
		t->sealed[i] = (struct epf_blob){ t->bytes[i], r.sealed.len };
	}
}

static int team_connect(struct team *t)
{
	struct epf_svc_connect q = { .sealed = { NULL, 0 } };
	uint8_t *all;
	size_t len;
	int rc;

	assert_int_equal(epf_svc_pack(t->sealed, RANKS, &all, &len), 0);
	q.sealed = (struct epf_svc_bytes){ all, (uint32_t)len };
	rc = kit_call(t->ch[0], EPF_SVC_CONNECT, &q, -1, NULL, NULL);
	free(all);
	q.sealed = (struct epf_svc_bytes){ NULL, 0 };
	for (uint32_t i = 1; i < RANKS && !rc; i++)
		rc = kit_call(t->ch[i], EPF_SVC_CONNECT, &q, -1, NULL, NULL);
	return rc;
}

static void team_close(struct team *t)
{
	for (uint32_t i = 0; i < RANKS; i++)
		epf_svc_channel_close(t->ch[i]);
}

static void a_job_lives_and_ends(void **state)
{
	struct epf_svc_counter c = { .name = "steps_busy" };
	struct epf_svc_counter_reply v = { .value = 0 };
	struct team t;
	json_t *top, *job;

	assert_int_equal(kit_run(&k), 0);
	team_attach(&t, 1);
	team_world(&t);
	if (team_connect(&t))
		fail_msg("%s", epf_last_error());
	top = kit_status(&k);
	job = json_array_get(json_object_get(top, "jobs"), 0);
	assert_string_equal(json_string_value(json_object_get(job, "state")), "running");
	assert_string_equal(json_string_value(json_object_get(job, "name")), "job1");
	assert_int_equal(json_array_size(json_object_get(job, "ranks")), RANKS);
	json_decref(top);
	assert_int_equal(kit_call(t.ch[0], EPF_SVC_COUNTER, &c, -1, &v, NULL), 0);
	strcpy(c.name, "no_such_counter");
	assert_int_equal(kit_call(t.ch[0], EPF_SVC_COUNTER, &c, -1, &v, NULL), -ENOENT);
	for (uint32_t i = 0; i < RANKS; i++)
		assert_int_equal(kit_call(t.ch[i], EPF_SVC_LEAVE, NULL, -1, NULL, NULL), 0);
	team_close(&t);
	assert_int_equal(kit_await(&k, "jobs", 0), 0);
	assert_int_equal(kit_await(&k, "users", 0), 0);
	assert_int_equal(kit_number(&k, "ranks_lost"), 0);
}

/* Each client withdraws its own region; one more than it has registered is refused. */
static void clients_withdraw_their_own_regions(void **state)
{
	struct team t;

	assert_int_equal(kit_run(&k), 0);
	team_attach(&t, 1);
	team_world(&t);
	assert_int_equal(team_connect(&t), 0);
	for (uint32_t i = RANKS; i-- > 0;) {
		struct epf_svc_region_close q = { .region = 1 };
		struct epf_svc_region_close_reply r = { .done = 0 };

		assert_true(kit_call(t.ch[i], EPF_SVC_REGION_CLOSE, &q, -1, &r, NULL) < 0);
		kit_says("has registered 1");
		q.region = 0;
		for (int n = 0; n < 12000 && !r.done; n++, usleep(n ? 5000 : 0))
			if (kit_call(t.ch[i], EPF_SVC_REGION_CLOSE, &q, -1, &r, NULL))
				fail_msg("rank %u: %s", i, epf_last_error());
		assert_int_equal(r.done, 1);
	}
	team_close(&t);
	assert_int_equal(kit_await(&k, "jobs", 0), 0);
}

/* Lost ranks: the job waits service-grace for one of them, then ends. */
static void a_lost_rank_comes_back(void **state)
{
	struct epf_svc_attach again = kit_attach(1, 1, RANKS);
	struct epf_svc_connect empty = { .sealed = { NULL, 0 } };
	struct epf_svc_attach_reply r;
	struct epf_svc_channel *ch = NULL;
	uint64_t begun;
	struct team t;
	long jobs;

	kit_set(&k, "service-grace", "2s");
	assert_int_equal(kit_run(&k), 0);
	team_attach(&t, 1);
	team_world(&t);
	assert_int_equal(team_connect(&t), 0);
	again.flags = EPF_SVC_REJOIN;
	memset(again.job_id, 0, sizeof(again.job_id));
	assert_null(attach(&again, &r));
	kit_says("rank 1 is not lost");
	epf_svc_channel_close(t.ch[1]);
	t.ch[1] = NULL;
	assert_int_equal(kit_await(&k, "ranks_lost", 1), 0);
	for (int i = 0; i < 12000 && !ch; i++, usleep(5000))
		ch = attach(&again, &r);
	if (!ch)
		fail_msg("%s", epf_last_error());
	assert_int_equal(r.epoch, 1);
	assert_int_equal(kit_call(ch, EPF_SVC_CONNECT, &empty, -1, NULL, NULL), 0);
	begun = epf_now_ns();
	epf_svc_channel_close(ch);
	epf_svc_channel_close(t.ch[0]);
	assert_int_equal(kit_await(&k, "ranks_lost", 3), 0);
	usleep(250000);
	jobs = kit_number(&k, "jobs");
	if (epf_now_ns() - begun < UINT64_C(2000000000)) /* in its grace */
		assert_int_equal(jobs, 1);
	assert_int_equal(kit_await(&k, "jobs", 0), 0);
	assert_int_equal(kit_await(&k, "users", 0), 0);
}

static void pushes(struct epf_svc_channel *ch, uint32_t on)
{
	struct epf_svc_awake q = { .on = on };

	assert_int_equal(kit_call(ch, EPF_SVC_AWAKE, &q, -1, NULL, NULL), 0);
}

static uint64_t sleeps(struct epf_svc_channel *ch)
{
	struct epf_svc_counter q = { .name = "sleeps" };
	struct epf_svc_counter_reply r = { .value = 0 };

	assert_int_equal(kit_call(ch, EPF_SVC_COUNTER, &q, -1, &r, NULL), 0);
	return r.value;
}

static void assert_awake(struct epf_svc_channel *ch)
{
	uint64_t before = sleeps(ch);

	usleep(50000); /* more than the longest sleep */
	assert_int_equal(sleeps(ch), before);
}

static void assert_falls_asleep(struct epf_svc_channel *ch)
{
	uint64_t before = sleeps(ch);

	for (int i = 0; i < 12000 && sleeps(ch) == before; i++)
		usleep(5000);
	assert_true(sleeps(ch) > before);
}

/* Kernels cannot wake a core: it stays awake while a rank says that its kernels push, and while that rank is there. */
static void kernels_keep_a_core_awake(void **state)
{
	struct team t;

	assert_int_equal(kit_run(&k), 0);
	team_attach(&t, 1);
	team_world(&t);
	assert_int_equal(team_connect(&t), 0);
	assert_falls_asleep(t.ch[1]);
	pushes(t.ch[0], 1);
	pushes(t.ch[0], 1);
	assert_awake(t.ch[1]);
	pushes(t.ch[0], 0);
	assert_falls_asleep(t.ch[1]);
	/* Of two that push, one stops, says so again, and dies. */
	pushes(t.ch[0], 1);
	pushes(t.ch[1], 1);
	pushes(t.ch[0], 0);
	assert_awake(t.ch[1]);
	pushes(t.ch[0], 1);
	epf_svc_channel_close(t.ch[0]);
	t.ch[0] = NULL;
	assert_int_equal(kit_await(&k, "ranks_lost", 1), 0);
	assert_awake(t.ch[1]);
	pushes(t.ch[1], 0);
	assert_falls_asleep(t.ch[1]);
	team_close(&t);
	assert_int_equal(kit_await(&k, "jobs", 0), 0);
}

/* A rank that leaves without a word, or dies, counts no more. */
static void a_core_forgets_kernels_of_ranks_that_go(void **state)
{
	struct team t;

	assert_int_equal(kit_run(&k), 0);
	for (uint8_t id = 1; id <= 2; id++) {
		team_attach(&t, id);
		team_world(&t);
		assert_int_equal(team_connect(&t), 0);
		pushes(t.ch[0], 1);
		assert_awake(t.ch[1]);
		if (id == 1)
			assert_int_equal(kit_call(t.ch[0], EPF_SVC_LEAVE, NULL, -1, NULL, NULL), 0);
		epf_svc_channel_close(t.ch[0]);
		t.ch[0] = NULL;
		assert_falls_asleep(t.ch[1]);
		team_close(&t);
		assert_int_equal(kit_await(&k, "jobs", 0), 0);
	}
	assert_int_equal(kit_await(&k, "users", 0), 0);
}

static bool is_true(const json_t *o, const char *key)
{
	return json_is_true(json_object_get(o, key));
}

/* Fails unless the status says of the only job, and of each of its ranks, what it should: bit r of `ranks` is rank r. */
static void check_pushers(unsigned ranks)
{
	json_t *top = kit_status(&k), *job = json_array_get(json_object_get(top, "jobs"), 0);
	const json_t *rank;
	size_t i;

	assert_int_equal(is_true(job, "stays_awake"), ranks != 0);
	assert_int_equal(json_array_size(json_object_get(job, "ranks")), RANKS);
	json_array_foreach(json_object_get(job, "ranks"), i, rank)
		assert_int_equal(is_true(rank, "kernels_push"), ranks >> i & 1);
	json_decref(top);
}

/* The status names the ranks whose kernels push commands, and the job whose core stays awake for them. */
static void status_says_whose_kernels_push(void **state)
{
	struct team t;

	assert_int_equal(kit_run(&k), 0);
	team_attach(&t, 1);
	team_world(&t);
	assert_int_equal(team_connect(&t), 0);
	check_pushers(0);
	pushes(t.ch[1], 1);
	check_pushers(2);
	pushes(t.ch[0], 1);
	check_pushers(3);
	pushes(t.ch[1], 0);
	check_pushers(1);
	/* One that is lost pushes nothing any more. */
	epf_svc_channel_close(t.ch[0]);
	t.ch[0] = NULL;
	assert_int_equal(kit_await(&k, "ranks_lost", 1), 0);
	check_pushers(0);
	team_close(&t);
}

static void a_job_that_cannot_join_is_told(void **state)
{
	struct epf_svc_world q;
	struct epf_svc_world_reply r;
	struct team t;

	assert_int_equal(kit_run(&k), 0);
	/* A rank dies before the others know the world. */
	team_attach(&t, 1);
	epf_svc_channel_close(t.ch[1]);
	t.ch[1] = NULL;
	assert_int_equal(kit_await(&k, "ranks_lost", 1), 0);
	q.table = (struct epf_svc_bytes){ t.table, sizeof(t.table) };
	assert_int_equal(kit_call(t.ch[0], EPF_SVC_WORLD, &q, -1, &r, NULL), -ECONNRESET);
	kit_says("rank 1 died before the job was joined");
	team_close(&t);
	assert_int_equal(kit_await(&k, "jobs", 0), 0);
	/* A table that does not say what is so. */
	team_attach(&t, 2);
	t.table[EPF_SVC_MEMBER_BYTES] ^= 1;
	assert_int_equal(kit_call(t.ch[0], EPF_SVC_WORLD, &q, -1, &r, NULL), -EBADMSG);
	kit_says("rank 1 is attached here");
	team_close(&t);
	assert_int_equal(kit_await(&k, "jobs", 0), 0);
	/* A description that somebody has touched. */
	team_attach(&t, 3);
	team_world(&t);
	t.bytes[1][30] ^= 1;
	assert_int_equal(team_connect(&t), -EBADMSG);
	kit_says("rank 1");
	assert_int_equal(kit_refusals(&k, EPF_R_SVC_SEAL), 1);
	team_close(&t);
	assert_int_equal(kit_await(&k, "jobs", 0), 0);
	assert_int_equal(kit_await(&k, "users", 0), 0);
}

/* An engine's memory for packets and peers is its user's, and released; where the limit is in its way the job gets that error. */
static void engines_count_for_their_user(void **state)
{
	struct epf_svc_attach a = kit_attach(2, 0, RANKS);
	struct epf_svc_attach_reply ar;
	struct epf_svc_world q;
	struct epf_svc_world_reply r;
	struct team t;
	long nic, world;
	char room[32];

	kit_set(&k, "user-engine-bytes", "64MiB");
	assert_int_equal(kit_run(&k), 0);
	team_attach(&t, 1);
	nic = kit_used(&k, "user-engine-bytes");
	assert_true(nic > 65536 && nic < 60 * MIB);
	team_world(&t);
	world = kit_used(&k, "user-engine-bytes") - nic;
	assert_true(world > 4096 && world < 8 * MIB);
	assert_int_equal(team_connect(&t), 0);
	assert_true(kit_used(&k, "user-engine-bytes") > nic + world);
	team_close(&t);
	assert_int_equal(kit_await(&k, "users", 0), 0);
	kit_stop(&k);
	/* Room for the packets, not for the peers. */
	snprintf(room, sizeof(room), "%ld", nic + 4096);
	kit_set(&k, "user-engine-bytes", room);
	assert_int_equal(kit_run(&k), 0);
	team_attach(&t, 2);
	q.table = (struct epf_svc_bytes){ t.table, sizeof(t.table) };
	assert_int_equal(kit_call(t.ch[0], EPF_SVC_WORLD, &q, -1, &r, NULL), -ENOSPC);
	kit_says("bytes of engines in use");
	kit_says("user-engine-bytes is");
	assert_int_equal(kit_used(&k, "user-engine-bytes"), 0);
	team_close(&t);
	assert_int_equal(kit_await(&k, "users", 0), 0);
	kit_stop(&k);
	/* Not even for the packets. */
	kit_set(&k, "user-engine-bytes", "64k");
	assert_int_equal(kit_run(&k), 0);
	assert_null(attach(&a, &ar));
	kit_says("user-engine-bytes is 65536");
	assert_int_equal(kit_await(&k, "users", 0), 0);
}

static void the_daemon_ends_with_jobs(void **state)
{
	struct team t;

	assert_int_equal(kit_run(&k), 0);
	team_attach(&t, 1);
	team_world(&t);
	assert_int_equal(team_connect(&t), 0);
	assert_int_equal(kit_stop(&k), 0);
	assert_int_equal(kit_files(&k), 0);
	team_close(&t);
}

/* What the NIC of a job is opened with. */
static uint64_t opened_weight;

static int note_open(const struct epf_conf *conf, uint64_t (*now)(void *), void *now_arg,
		     struct epf_nic **out)
{
	opened_weight = conf->job_weight;
	*out = NULL;
	return -ENODEV;
}

/* A NIC chooses its traffic class by the weight of the job, not of the daemon's settings, which other jobs share. */
static void a_nic_knows_the_jobs_weight(void **state)
{
	static const struct epf_nic_ops ops = { .open = note_open };
	struct svc_job job = { .ops = &ops, .weight = 64 };
	struct epf_conf conf;
	struct epf_svc s = { .conf = &conf };

	assert_int_equal(epf_conf_init(&conf), 0);
	assert_int_equal(svc_job_open_nic(&s, &job, NULL), -ENODEV);
	assert_int_equal(opened_weight, 64);
	assert_int_equal(conf.job_weight, 1);
	epf_conf_destroy(&conf);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(ranks_must_belong_together),
		TEST(user_jobs_is_a_limit),
		TEST(a_job_lives_and_ends),
		TEST(clients_withdraw_their_own_regions),
		TEST(a_lost_rank_comes_back),
		TEST(kernels_keep_a_core_awake),
		TEST(a_core_forgets_kernels_of_ranks_that_go),
		TEST(status_says_whose_kernels_push),
		TEST(a_job_that_cannot_join_is_told),
		TEST(engines_count_for_their_user),
		TEST(the_daemon_ends_with_jobs),
		cmocka_unit_test(a_nic_knows_the_jobs_weight),
	};

	return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
