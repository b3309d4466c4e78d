/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Peers that die, stop, or come and go: every wait ends, errors name the peer, withdrawal and deregistration hold under traffic. Numbers of rounds, no
 * verdict on time but the deadlines that calls were given.
 */
#include "fabric/p2p/p2p_priv.h"
#include "tests/unit/p2p/p2p_kit.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

static uint64_t seed = 12345;

static uint32_t any(uint32_t below)
{
	seed = seed * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(seed >> 33) % below;
}

struct traffic {
	struct epf_p2p *ep;
	uint64_t conn, region, import;
	uint8_t *memory;
};

static void open_traffic(struct traffic *t, struct target *target)
{
	t->ep = endpoint("survivor");
	t->conn = connect_to(t->ep, target);
	t->memory = calloc(1, TARGET_BYTES);
	assert_ok(epf_p2p_register(t->ep, t->memory, TARGET_BYTES, EPF_P2P_HOST, &t->region));
	assert_ok(epf_p2p_import(t->ep, t->conn, target->key, 5 * SECOND, &t->import));
}

static void close_traffic(struct traffic *t)
{
	epf_p2p_close(t->ep);
	free(t->memory);
}

/* The peer dies while transfers are prepared, posted, tested or waited for: each ends, with its name, and the memory is free at once. */
static void kill_once(bool mapped, unsigned moment)
{
	enum { N = 64 };
	struct epf_p2p_block blocks[N];
	struct epf_p2p_event e;
	struct target target;
	struct epf_p2p_xfer *x;
	struct traffic t;
	int rc = 0;

	target_start(&target, mapped ? T_MAPPED : T_MMAP, "the-victim", NULL);
	open_traffic(&t, &target);
	for (uint64_t i = 0; i < N; i++)
		blocks[i] = epf_p2p_block(i * 60000, i * 60000, 50000);
	assert_ok(epf_p2p_prepare(t.ep, t.conn, moment % 2 ? EPF_P2P_OP_READ : EPF_P2P_OP_WRITE,
				  &(struct epf_p2p_vector){ t.region, t.import, blocks, N }, 1,
				  NULL, &x));
	if (moment == 0)
		target_kill(&target);
	for (unsigned i = 0; !rc && i < 100000; i++) {
		rc = epf_p2p_post(x, "n", i % 2);
		if (i == moment * 3 && moment)
			target_kill(&target);
		if (!rc)
			rc = epf_p2p_wait(x, 10 * SECOND);
	}
	if (rc != -ECONNRESET && rc != -EFAULT)
		fail_msg("moment %u: %d, %s", moment, rc, epf_last_error());
	assert_non_null(strstr(epf_last_error(), "the-victim"));
	for (rc = 0; rc != EPF_P2P_LOST; epf_p2p_event_free(&e)) {
		assert_ok(epf_p2p_wait_event(t.ep, 10 * SECOND));
		assert_int_equal(epf_p2p_events(t.ep, &e, 1), 1);
		rc = (int)e.kind;
	}
	assert_int_equal(e.status, -ECONNRESET);
	assert_err(epf_p2p_post(x, NULL, 0), ECONNRESET);
	assert_err(epf_p2p_notify(t.ep, t.conn, "x", 1, SECOND), ECONNRESET);
	assert_err(epf_p2p_import(t.ep, t.conn, target.key, SECOND, &t.import), ECONNRESET);
	assert_non_null(strstr(epf_last_error(), "the-victim"));
	epf_p2p_xfer_free(x);
	assert_ok(epf_p2p_deregister(t.ep, t.region, SECOND));
	assert_ok(epf_p2p_disconnect(t.ep, t.conn, SECOND));
	close_traffic(&t);
}

static void test_kill(void **state)
{
	(void)state;
	for (unsigned moment = 0; moment < 12; moment++)
		kill_once(moment % 3 == 0, moment);
}

/* A peer that closes in order is no lost peer. */
static void test_leave(void **state)
{
	struct target target;
	struct traffic t;
	int rc = 0;

	(void)state;
	target_start(&target, T_MMAP, "leaver", NULL);
	open_traffic(&t, &target);
	target_exit(&target);
	for (int i = 0; i < 100000 && !rc; i++)
		rc = epf_p2p_write(t.ep, t.conn, t.region, 0, t.import, 0, 100, SECOND);
	if (rc != -EPIPE && rc != -EKEYREVOKED)
		fail_msg("%d %s", rc, epf_last_error());
	close_traffic(&t);
}

/* A stopped peer takes no part in transfers, so they go on; it answers no question, and that ends in time. */
static void test_stopped(void **state)
{
	uint64_t import;
	struct target target;
	struct traffic t;

	(void)state;
	target_start(&target, T_MMAP, "sleeper", NULL);
	open_traffic(&t, &target);
	target_stop(&target);
	assert_ok(epf_p2p_write(t.ep, t.conn, t.region, 0, t.import, 0, TARGET_BYTES, 0));
	assert_err(epf_p2p_import(t.ep, t.conn, target.key, 100 * MILLISECOND, &import), ETIMEDOUT);
	assert_non_null(strstr(epf_last_error(), "sleeper"));
	kill(target.pid, SIGCONT);
	assert_ok(epf_p2p_import(t.ep, t.conn, target.key, 10 * SECOND, &import));
	close_traffic(&t);
	target_exit(&target);
}

/* A peer that never takes its notifications: whoever sends them waits, and no longer than it said. */
static void test_unread(void **state)
{
	static char note[EPF_P2P_NOTE_BYTES];
	struct epf_p2p_xfer_options o = { .size = sizeof(o), .deadline_ns = 200 * MILLISECOND };
	struct target target;
	struct epf_p2p_xfer *x;
	struct traffic t;
	int rc = 0, sent = 0;

	(void)state;
	target_start(&target, T_MMAP, "deaf", NULL);
	open_traffic(&t, &target);
	target_stop(&target);
	for (; !rc && sent < 100; sent++)
		rc = epf_p2p_notify(t.ep, t.conn, note, sizeof(note), 200 * MILLISECOND);
	assert_err(rc, ETIMEDOUT);
	assert_non_null(strstr(epf_last_error(), "deaf"));
	assert_true(sent > 1);
	assert_ok(epf_p2p_prepare(t.ep, t.conn, EPF_P2P_OP_WRITE, NULL, 0, &o, &x));
	assert_ok(epf_p2p_post(x, note, sizeof(note)));
	assert_err(epf_p2p_wait(x, 10 * SECOND), ETIMEDOUT);
	assert_ok(epf_p2p_post(x, note, sizeof(note)));
	kill(target.pid, SIGCONT);
	rc = epf_p2p_wait(x, 10 * SECOND);
	if (rc != 0 && rc != -ETIMEDOUT)
		fail_msg("%d %s", rc, epf_last_error());
	epf_p2p_xfer_free(x);
	close_traffic(&t);
	target_exit(&target);
}

struct writer {
	struct traffic *t;
	uint64_t at; /* the half that it writes */
	uint32_t stop, failed, ok;
};

static void *write_on(void *arg)
{
	struct writer *w = arg;

	while (!__atomic_load_n(&w->stop, __ATOMIC_ACQUIRE)) {
		int rc = epf_p2p_write(w->t->ep, w->t->conn, w->t->region, w->at, w->t->import,
				       w->at, 100000, 10 * SECOND);

		__atomic_fetch_add(rc ? &w->failed : &w->ok, 1u, __ATOMIC_SEQ_CST);
		if (rc && rc != -EKEYREVOKED && rc != -ENOENT && rc != -EFAULT)
			fprintf(stderr, "writer: %d %s\n", rc, epf_last_error());
	}
	return NULL;
}

/*
 * Withdrawn under traffic: nothing is written after the withdrawal has returned. The peer is an endpoint of this process, whose memory the
 * test can watch.
 */
static void test_withdraw_under_traffic(void **state)
{
	struct epf_p2p *owner = endpoint("owner");
	uint8_t meta[EPF_P2P_METADATA_BYTES];
	int n = epf_p2p_metadata(owner, meta, sizeof(meta));
	struct traffic t = { .ep = endpoint("writer") };

	(void)state;
	t.memory = malloc(200000);
	assert_non_null(t.memory);
	memset(t.memory, 0xab, 200000);
	assert_ok(epf_p2p_connect(t.ep, meta, (size_t)n, 5 * SECOND, &t.conn));
	assert_ok(epf_p2p_register(t.ep, t.memory, 200000, EPF_P2P_HOST, &t.region));
	for (int round = 0; round < 40; round++) {
		struct writer w[2] = { { .t = &t }, { .t = &t, .at = 100000 } };
		uint8_t key[EPF_P2P_KEY_BYTES];
		pthread_t thread[2];
		uint8_t *memory;
		void *at;
		uint64_t region;

		if (round % 2)
			assert_ok(epf_p2p_alloc(owner, 200000, &at));
		else
			at = malloc(200000);
		memory = at;
		assert_ok(epf_p2p_register(owner, memory, 200000, EPF_P2P_HOST, &region));
		assert_ok(epf_p2p_export(owner, region, 0, 200000, EPF_P2P_WRITE, 0, 0, key));
		assert_ok(epf_p2p_import(t.ep, t.conn, key, 5 * SECOND, &t.import));
		for (int i = 0; i < 2; i++)
			assert_int_equal(pthread_create(&thread[i], NULL, write_on, &w[i]), 0);
		while (!__atomic_load_n(&w[0].ok, __ATOMIC_SEQ_CST))
			usleep(50);
		usleep(any(300));
		if (round % 4 < 2)
			assert_ok(epf_p2p_withdraw(owner, key, 10 * SECOND));
		else
			assert_ok(epf_p2p_deregister(owner, region, 10 * SECOND));
		memset(memory, 0, 200000);
		/* The writers find out. */
		while (!__atomic_load_n(&w[0].failed, __ATOMIC_SEQ_CST) ||
		       !__atomic_load_n(&w[1].failed, __ATOMIC_SEQ_CST))
			usleep(50);
		for (int i = 0; i < 200000; i++)
			if (memory[i])
				fail_msg("round %d: byte %d was written after the withdrawal",
					 round, i);
		for (int i = 0; i < 2; i++)
			__atomic_store_n(&w[i].stop, 1u, __ATOMIC_RELEASE);
		for (int i = 0; i < 2; i++)
			pthread_join(thread[i], NULL);
		epf_p2p_release(t.ep, t.import);
		if (round % 4 < 2)
			assert_ok(epf_p2p_deregister(owner, region, SECOND));
		if (round % 2)
			epf_p2p_free(owner, at);
		else
			free(at);
	}
	epf_p2p_close(t.ep);
	epf_p2p_close(owner);
	free(t.memory);
}

static unsigned open_descriptors(void)
{
	DIR *d = opendir("/proc/self/fd");
	unsigned n = 0;

	while (d && readdir(d))
		n++;
	if (d)
		closedir(d);
	return n;
}

#ifdef __SANITIZE_THREAD__ /* takes ten times as long */
enum { ROUNDS = 2000 };
#else
enum { ROUNDS = 10000 };
#endif

/* Connections come and go, several endpoints in turn with one: numbers are never used again, and nothing is left over. */
static void test_churn(void **state)
{
	struct epf_p2p *hub = endpoint("hub");
	uint8_t meta[EPF_P2P_METADATA_BYTES], key[EPF_P2P_KEY_BYTES];
	static uint8_t memory[4096], mine[4096];
	int n = epf_p2p_metadata(hub, meta, sizeof(meta));
	uint64_t region, last = 0;
	unsigned before = 0;

	(void)state;
	assert_ok(epf_p2p_register(hub, memory, sizeof(memory), EPF_P2P_HOST, &region));
	assert_ok(epf_p2p_export(hub, region, 0, sizeof(memory), EPF_P2P_WRITE, 0, 0, key));
	for (unsigned i = 0; i < ROUNDS / 50; i++) {
		struct epf_p2p *ep = endpoint("guest");
		uint64_t own, conn, import;

		assert_ok(epf_p2p_register(ep, mine, sizeof(mine), EPF_P2P_HOST, &own));
		for (unsigned k = 0; k < 50; k++) {
			assert_ok(epf_p2p_connect(ep, meta, (size_t)n, 10 * SECOND, &conn));
			assert_true(conn != last);
			last = conn;
			assert_ok(epf_p2p_import(ep, conn, key, 10 * SECOND, &import));
			mine[0] = (uint8_t)(i + k + 1);
			assert_ok(epf_p2p_write(ep, conn, own, 0, import, 0, 64, 0));
			assert_int_equal(memory[0], mine[0]);
			assert_ok(epf_p2p_disconnect(ep, conn, 10 * SECOND));
		}
		epf_p2p_close(ep);
		if (i == 2)
			before = open_descriptors();
	}
	for (int i = 0; i < 20000 && open_descriptors() > before + 4; i++)
		usleep(1000);
	assert_true(open_descriptors() <= before + 4);
	epf_p2p_close(hub);
}

/* Many at the same time. */
static void test_many(void **state)
{
	enum { PEERS = 150 };
	struct epf_p2p *hub = endpoint("hub"), *ep[PEERS];
	uint8_t meta[EPF_P2P_METADATA_BYTES];
	int n = epf_p2p_metadata(hub, meta, sizeof(meta));
	struct epf_p2p_event e[PEERS];
	uint64_t conn[PEERS], got;
	unsigned notes = 0;

	(void)state;
	for (int i = 0; i < PEERS; i++) {
		ep[i] = endpoint("peer");
		assert_ok(epf_p2p_connect(ep[i], meta, (size_t)n, 10 * SECOND, &conn[i]));
		assert_ok(epf_p2p_accept(hub, 10 * SECOND, &got));
	}
	for (int i = 0; i < PEERS; i++)
		assert_ok(epf_p2p_notify(ep[i], conn[i], &i, sizeof(i), SECOND));
	while (notes < PEERS) {
		int k;

		assert_ok(epf_p2p_wait_event(hub, 10 * SECOND));
		k = epf_p2p_events(hub, e, PEERS);
		for (int i = 0; i < k; i++) {
			notes += e[i].kind == EPF_P2P_NOTE;
			epf_p2p_event_free(&e[i]);
		}
	}
	for (int i = 0; i < PEERS; i++)
		epf_p2p_close(ep[i]);
	epf_p2p_close(hub);
}

/* Closes once the wait has begun: no call may follow a close. */
static void *close_it(void *arg)
{
	const struct epf_p2p *ep = arg;

	while (!__atomic_load_n(&ep->events.sleepers, __ATOMIC_ACQUIRE))
		usleep(100);
	epf_p2p_close(arg);
	return NULL;
}

/* Closing ends the waits of other threads. */
static void test_close_ends_waits(void **state)
{
	struct epf_p2p *ep = endpoint("closing");
	pthread_t thread;

	(void)state;
	assert_int_equal(pthread_create(&thread, NULL, close_it, ep), 0);
	assert_err(epf_p2p_wait_event(ep, 30 * SECOND), ECANCELED);
	pthread_join(thread, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_kill),
		cmocka_unit_test(test_leave),
		cmocka_unit_test(test_stopped),
		cmocka_unit_test(test_unread),
		cmocka_unit_test(test_withdraw_under_traffic),
		cmocka_unit_test(test_churn),
		cmocka_unit_test(test_many),
		cmocka_unit_test(test_close_ends_waits),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
