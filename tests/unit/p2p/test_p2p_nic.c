/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Endpoints over the engine and a NIC, as between machines: the same transfers, notifications, rights, withdrawal and death. Arguments: the NIC,
 * more settings of both endpoints, and more of the other one.
 */
#include "tests/unit/p2p/p2p_kit.h"

#include "fabric/client/handle.h"
#include "fabric/p2p/engine_priv.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>

static char nic_setting[96];                      /* settings of the NIC, separated by spaces */
static uint32_t held_epoll = UINT32_MAX, is_held; /* atomic */

int __real_epoll_wait(int fd, struct epoll_event *events, int most, int ms);
int __wrap_epoll_wait(int fd, struct epoll_event *events, int most, int ms);

/* A thread that would sleep there sleeps as long as it is held, whatever comes. */
int __wrap_epoll_wait(int fd, struct epoll_event *events, int most, int ms)
{
	if (ms <= 0 || EPF_LOAD_ACQUIRE(&held_epoll) != (uint32_t)fd)
		return __real_epoll_wait(fd, events, most, ms);
	EPF_STORE_RELEASE(&is_held, 1u);
	while (EPF_LOAD_ACQUIRE(&held_epoll) == (uint32_t)fd)
		poll(NULL, 0, 1);
	return 0;
}

static void begin(struct both *b, enum target_memory from, const char *more)
{
	struct epf_p2p_peer peer = { .size = sizeof(peer) };
	char setting[128];

	snprintf(setting, sizeof(setting), "%s p2p-local=no %s", nic_setting, more);
	both_begin(b, from, from, "near", "far-target", setting);
	assert_ok(epf_p2p_peer(b->ep, b->conn, &peer));
	assert_string_equal(peer.path, "engine");
}

static void test_transfers(void **state)
{
	enum { N = 3000, BYTES = 1000, STRIDE = 1300 };
	struct epf_p2p_block *blocks = calloc(N, sizeof(*blocks));
	struct epf_p2p_xfer *x;
	struct both b;
	char got[16];
	int32_t len;

	(void)state;
	begin(&b, T_MMAP, "");
	assert_ok(epf_p2p_write(b.ep, b.conn, b.region, 0, b.import, 0, TARGET_BYTES, 0));
	memset(b.bytes, 0, TARGET_BYTES);
	assert_ok(epf_p2p_read(b.ep, b.conn, b.region, 0, b.import, 0, TARGET_BYTES, 0));
	for (uint64_t i = 0; i < TARGET_BYTES; i++)
		if (b.bytes[i] != pattern(i))
			fail_msg("byte %llu", (unsigned long long)i);
	for (uint64_t i = 0; i < N; i++)
		blocks[i] = epf_p2p_block((N - 1 - i) * STRIDE, i * STRIDE, BYTES);
	assert_ok(epf_p2p_prepare(b.ep, b.conn, EPF_P2P_OP_WRITE,
				  &(struct epf_p2p_vector){ b.region, b.import, blocks, N }, 1,
				  NULL, &x));
	for (int round = 0; round < 3; round++) {
		target_tell(&b.t, T_NOTE);
		assert_ok(epf_p2p_post(x, "there", 5));
		assert_ok(epf_p2p_wait(x, 0));
		assert_int_equal(target_answer(&b.t, &len, sizeof(len)), sizeof(len));
		assert_int_equal(len, 5);
		assert_int_equal(target_answer(&b.t, got, 5), 5);
	}
	epf_p2p_xfer_free(x);
	assert_ok(epf_p2p_read(b.ep, b.conn, b.region, 0, b.import, (N - 1) * STRIDE, BYTES, 0));
	for (uint64_t i = 0; i < BYTES; i++)
		assert_int_equal(b.bytes[i], pattern(i));
	both_end(&b);
	free(blocks);
}

/* Who waits for a transfer steps the engine of its connection while that engine's thread sleeps. */
static void test_wait_steps_the_engine(void **state)
{
	struct epf_p2p_block block = epf_p2p_block(0, 0, 8);
	struct epf_p2p_xfer *x;
	uint64_t before, now;
	struct both b;
	int rc;

	(void)state;
	begin(&b, T_MMAP, "");
	assert_ok(epf_p2p_prepare(b.ep, b.conn, EPF_P2P_OP_WRITE,
				  &(struct epf_p2p_vector){ b.region, b.import, &block, 1 }, 1,
				  NULL, &x));
	x->conn->engine->ep->is_crowded = true; /* however many CPUs there are */
	assert_ok(epf_counter(x->conn->engine->ep, "drives", &before));
	do {
		assert_ok(epf_p2p_post(x, NULL, 0));
		assert_ok(epf_p2p_wait(x, 0));
		assert_ok(epf_counter(x->conn->engine->ep, "drives", &now));
	} while (now == before);
	do { /* so does who polls */
		assert_ok(epf_p2p_post(x, NULL, 0));
		while ((rc = epf_p2p_test(x)) == 0)
			;
		assert_ok(rc);
		assert_ok(epf_counter(x->conn->engine->ep, "drives", &before));
	} while (now == before);
	epf_p2p_xfer_free(x);
	both_end(&b);
}

/* Who polls for events takes notifications while the endpoint's thread sleeps: waking that thread first would take longer. */
static void test_poller_takes_notes(void **state)
{
	struct epf_p2p_event e = { .kind = 0 };
	struct both b;

	(void)state;
	begin(&b, T_MMAP, "");
	EPF_STORE_RELEASE(&held_epoll, (uint32_t)b.ep->epoll);
	epf_p2p_kick(b.ep); /* it may sleep already, and not look at held_epoll */
	while (!EPF_LOAD_ACQUIRE(&is_held))
		poll(NULL, 0, 1);
	target_tell(&b.t, T_SEND);
	while (epf_p2p_events(b.ep, &e, 1) != 1)
		poll(NULL, 0, 1);
	EPF_STORE_RELEASE(&held_epoll, UINT32_MAX);
	assert_int_equal(e.kind, EPF_P2P_NOTE);
	assert_int_equal(e.bytes, 5);
	epf_p2p_event_free(&e);
	both_end(&b);
}

static void test_withdrawn(void **state)
{
	struct both b;
	int32_t rc = 1;
	uint64_t again;

	(void)state;
	begin(&b, T_MMAP, "");
	assert_ok(epf_p2p_write(b.ep, b.conn, b.region, 0, b.import, 0, 4096, 0));
	target_tell(&b.t, T_WITHDRAW);
	assert_int_equal(target_answer(&b.t, &rc, sizeof(rc)), sizeof(rc));
	assert_int_equal(rc, 0);
	assert_err(epf_p2p_write(b.ep, b.conn, b.region, 0, b.import, 0, 4096, 0), EKEYREVOKED);
	assert_err(epf_p2p_import(b.ep, b.conn, b.t.key, 5 * SECOND, &again), EKEYREVOKED);
	assert_ok(epf_p2p_deregister(b.ep, b.region, 5 * SECOND));
	both_end(&b);
}

/* Whether a ring for what is not urgent takes a chunk. (epf_p2p_engine_has_room() also says no while another thread has the lock.) */
static bool has_room(const struct conn *c)
{
	struct engine_path *e = c->engine;
	bool has = false;

	pthread_mutex_lock(&e->ring_lock);
	for (unsigned i = 0; i < e->n_rings; i++)
		has |= epf_ring_pushed(e->rings[i].ring) - epf_ring_done(e->rings[i].ring) <
		       RING_SLOTS / 2 - 2 * P2P_CHUNK_BLOCKS;
	pthread_mutex_unlock(&e->ring_lock);
	return has;
}

/* The rings that have commands of a transfer. */
static uint32_t rings_of(const struct epf_p2p_xfer *x)
{
	uint32_t rings;

	pthread_mutex_lock(&x->conn->engine->ring_lock);
	rings = x->rings;
	pthread_mutex_unlock(&x->conn->engine->ring_lock);
	return rings;
}

/* Transfers that come one at a time share the first ring; a second one that is under way at the same time takes another ring (test_urgent_passes_bulk). */
static void test_lone_transfers_share_a_ring(void **state)
{
	struct epf_p2p_block block = epf_p2p_block(0, 0, 4096);
	struct epf_p2p_xfer *x;
	struct both b;

	(void)state;
	begin(&b, T_MMAP, "");
	assert_ok(epf_p2p_prepare(b.ep, b.conn, EPF_P2P_OP_WRITE,
				  &(struct epf_p2p_vector){ b.region, b.import, &block, 1 }, 1,
				  NULL, &x));
	assert_true(x->conn->engine->n_rings > 1);
	for (int i = 0; i < 5; i++) {
		assert_ok(epf_p2p_post(x, NULL, 0));
		assert_ok(epf_p2p_wait(x, 0));
		assert_int_equal(rings_of(x), 1);
	}
	epf_p2p_xfer_free(x);
	both_end(&b);
}

/*
 * Bulk fills the window of its rings while the peer is stopped. What is urgent is posted after it, does not wait for room, and ends first. Nobody
 * tests or waits for either: the endpoint's thread does all.
 */
static void test_urgent_passes_bulk(void **state)
{
	enum { N = 20000, BYTES = 64 }; /* two rings take 1,800 commands each */
	struct epf_p2p_xfer_options o = { .size = sizeof(o), .event = 1 };
	struct epf_p2p_block *blocks;
	struct epf_p2p_xfer *bulk, *urgent;
	struct epf_p2p_event e = { .kind = 0 };
	struct both b;

	(void)state;
	if (strncmp(nic_setting, "nic=ofi", 7) ==
	    0) /* one operation at a time over shm: too slow for so many */
		skip();
	blocks = calloc(N, sizeof(*blocks));
	assert_non_null(blocks);
	for (uint64_t i = 0; i < N; i++) /* with gaps: they do not merge */
		blocks[i] = epf_p2p_block(i * 100, i * 100, BYTES);
	begin(&b, T_MMAP, "peer-timeout=1h");
	assert_ok(epf_p2p_prepare(b.ep, b.conn, EPF_P2P_OP_READ,
				  &(struct epf_p2p_vector){ b.region, b.import, blocks, N }, 1, &o,
				  &bulk));
	o.priority = EPF_P2P_URGENT;
	o.user = &urgent;
	assert_ok(epf_p2p_prepare(b.ep, b.conn, EPF_P2P_OP_READ,
				  &(struct epf_p2p_vector){ b.region, b.import, blocks, 1 }, 1, &o,
				  &urgent));
	target_stop(&b.t);
	assert_ok(epf_p2p_post(bulk, NULL, 0));
	while (has_room(bulk->conn))
		sched_yield();
	assert_ok(epf_p2p_post(urgent, NULL, 0));
	for (int i = 0; i < 20000 && !rings_of(urgent); i++)
		poll(NULL, 0, 1);
	assert_int_not_equal(rings_of(urgent), 0); /* pushed, while the bulk waits */
	kill(b.t.pid, SIGCONT);
	do {
		assert_ok(epf_p2p_wait_event(b.ep, 30 * SECOND));
		assert_int_equal(epf_p2p_events(b.ep, &e, 1), 1);
	} while (e.kind != EPF_P2P_DONE);
	assert_int_equal(e.status, 0);
	assert_ptr_equal(e.user, &urgent);
	assert_ok(epf_p2p_wait(bulk, 0));
	epf_p2p_xfer_free(bulk);
	epf_p2p_xfer_free(urgent);
	both_end(&b);
	free(blocks);
}

/* An urgent transfer that waits for room, because its peer is stopped, does not hold up a transfer to another peer. */
static void test_stalled_holds_up_nobody(void **state)
{
	enum { N = 2500, BYTES = 64 };
	struct epf_p2p_xfer_options o = { .size = sizeof(o), .priority = EPF_P2P_URGENT };
	struct epf_p2p_block *blocks = calloc(2 * N, sizeof(*blocks));
	struct epf_p2p_xfer *stalled, *other;
	struct epf_p2p_event e = { .kind = 0 };
	uint64_t conn, import;
	char setting[128];
	struct target t;
	struct both b;

	(void)state;
	assert_non_null(blocks);
	/* The transfers share no local memory: each connection's engine writes from another thread. */
	for (uint64_t i = 0; i < 2 * N; i++)
		blocks[i] = epf_p2p_block(i * 100, i % N * 100, BYTES);
	snprintf(setting, sizeof(setting), "%s p2p-local=no", nic_setting);
	target_start(&t, T_MMAP, "second", setting); /* before this process has threads */
	begin(&b, T_MMAP, "peer-timeout=1h");
	conn = connect_to(b.ep, &t);
	assert_ok(epf_p2p_import(b.ep, conn, t.key, 10 * SECOND, &import));
	assert_ok(epf_p2p_prepare(b.ep, b.conn, EPF_P2P_OP_READ,
				  &(struct epf_p2p_vector){ b.region, b.import, blocks, N }, 1, &o,
				  &stalled));
	o.priority = EPF_P2P_NORMAL;
	o.event = 1;
	assert_ok(epf_p2p_prepare(b.ep, conn, EPF_P2P_OP_READ,
				  &(struct epf_p2p_vector){ b.region, import, blocks + N, N }, 1,
				  &o, &other));
	target_stop(&b.t);
	assert_ok(epf_p2p_post(stalled, NULL, 0));
	assert_ok(epf_p2p_post(other, NULL, 0));
	do {
		assert_ok(epf_p2p_wait_event(b.ep, 30 * SECOND));
		assert_int_equal(epf_p2p_events(b.ep, &e, 1), 1);
	} while (e.kind != EPF_P2P_DONE);
	assert_int_equal(e.status, 0);
	/* An RDMA NIC reads without the peer's process. */
	if (!strstr(nic_setting, "nic=verbs"))
		assert_int_equal(epf_p2p_test(stalled), 0);
	kill(b.t.pid, SIGCONT);
	assert_ok(epf_p2p_wait(stalled, 0));
	epf_p2p_xfer_free(stalled);
	epf_p2p_xfer_free(other);
	both_end(&b);
	target_exit(&t);
	free(blocks);
}

struct withdrawal {
	struct epf_p2p *ep;
	const uint8_t *key;
	uint32_t is_over;
	int rc;
};

static void *withdraw(void *arg)
{
	struct withdrawal *w = arg;

	w->rc = epf_p2p_withdraw(w->ep, w->key, 100 * SECOND);
	__atomic_store_n(&w->is_over, 1u, __ATOMIC_RELEASE);
	return NULL;
}

static bool is_withdrawing(const struct conn *c)
{
	bool is;

	pthread_mutex_lock(&c->engine->ring_lock);
	is = c->engine->withdrawing != 0;
	pthread_mutex_unlock(&c->engine->ring_lock);
	return is;
}

/* While a withdrawal waits for a peer that is stopped, other threads post over that connection, and wait as long as they like. */
static void test_withdrawal_lets_others_post(void **state)
{
	struct epf_p2p_block block = epf_p2p_block(0, 0, 4096);
	uint8_t key[EPF_P2P_KEY_BYTES];
	struct withdrawal w = { .key = key };
	struct epf_p2p_xfer *x;
	pthread_t thread;
	struct both b;
	int32_t rc = 1;

	(void)state;
	begin(&b, T_MMAP, "peer-timeout=1h");
	w.ep = b.ep;
	assert_ok(epf_p2p_export(b.ep, b.region, 0, 4096, EPF_P2P_WRITE, 0, 0, key));
	assert_int_equal(send(b.t.socket, "i", 1, 0), 1);
	assert_int_equal(send(b.t.socket, key, sizeof(key), 0), sizeof(key));
	assert_int_equal(target_answer(&b.t, &(char){ 0 }, 1), 1);
	assert_int_equal(target_answer(&b.t, &rc, sizeof(rc)), sizeof(rc));
	assert_int_equal(rc, 0);
	assert_ok(epf_p2p_prepare(b.ep, b.conn, EPF_P2P_OP_WRITE,
				  &(struct epf_p2p_vector){ b.region, b.import, &block, 1 }, 1,
				  NULL, &x));
	target_stop(&b.t);
	assert_int_equal(pthread_create(&thread, NULL, withdraw, &w), 0);
	while (!is_withdrawing(x->conn) && !__atomic_load_n(&w.is_over, __ATOMIC_ACQUIRE))
		sched_yield();
	assert_ok(epf_p2p_post(x, NULL, 0));
	rc = epf_p2p_wait(x, 50 * MILLISECOND);
	assert_false(__atomic_load_n(&w.is_over, __ATOMIC_ACQUIRE));
	assert_true(rc == 0 || rc == -ETIMEDOUT); /* 0: the NIC needs no help of the peer */
	/* Its death ends the withdrawal. */
	target_kill(&b.t);
	pthread_join(thread, NULL);
	assert_int_equal(w.rc, 0);
	epf_p2p_xfer_free(x);
	both_end_here(&b);
}

static void test_killed(void **state)
{
	struct both b;
	int rc = 0;

	(void)state;
	/* Whether or not the NIC notices: no timeout of the engine ends it. */
	begin(&b, T_MMAP, "peer-timeout=1h");
	assert_ok(epf_p2p_write(b.ep, b.conn, b.region, 0, b.import, 0, TARGET_BYTES, 0));
	target_kill(&b.t);
	for (int i = 0; i < 100000 && !rc; i++)
		rc = epf_p2p_write(b.ep, b.conn, b.region, 0, b.import, 0, TARGET_BYTES,
				   30 * SECOND);
	assert_err(rc, ECONNRESET);
	assert_non_null(strstr(epf_last_error(), "far-target"));
	assert_ok(epf_p2p_deregister(b.ep, b.region, 5 * SECOND));
	assert_ok(epf_p2p_disconnect(b.ep, b.conn, 5 * SECOND));
	both_end_here(&b);
}

/* A peer that may open no more files has no engine for this connection: whoever connects hears the cause, and later ones are served. */
static void test_peer_without_files(void **state)
{
	struct target t;
	struct epf_p2p *ep;
	uint64_t conn;
	int32_t rc;
	char setting[160];

	(void)state;
	snprintf(setting, sizeof(setting), "%s p2p-local=no", nic_setting);
	target_start(&t, T_MMAP, "far-target", setting);
	ep = endpoint_with("near", setting);
	target_tell(&t, T_FULL);
	assert_int_equal(target_answer(&t, &rc, sizeof(rc)), sizeof(rc));
	assert_err(epf_p2p_connect(ep, t.metadata, t.metadata_bytes, 100 * SECOND, &conn),
		   ECONNRESET);
	assert_non_null(strstr(epf_last_error(), "far-target"));
	assert_non_null(strstr(epf_last_error(), strerror(EMFILE)));
	target_tell(&t, T_ROOM);
	assert_int_equal(target_answer(&t, &rc, sizeof(rc)), sizeof(rc));
	conn = connect_to(ep, &t);
	assert_ok(epf_p2p_notify(ep, conn, "here", 4, SECOND));
	epf_p2p_close(ep);
	target_exit(&t);
}

/* NICs that reach GPU memory by dma-bufs only, which a fake GPU has not: the import says whom to ask, and the connection lives. */
static void refuses_gpu(void)
{
	struct target t;
	struct epf_p2p *ep;
	uint64_t conn, import;
	char setting[160];

	snprintf(setting, sizeof(setting), "%s p2p-local=no gpu-backend=fake", nic_setting);
	target_start(&t, T_GPU, "far-target", setting);
	ep = endpoint_with("near", setting);
	conn = connect_to(ep, &t);
	assert_err(epf_p2p_import(ep, conn, t.key, 10 * SECOND, &import), EOPNOTSUPP);
	assert_non_null(strstr(epf_last_error(), "far-target"));
	assert_ok(epf_p2p_notify(ep, conn, "still here", 10, SECOND));
	epf_p2p_close(ep);
	target_exit(&t);
}

/* GPU memory on both sides: the software NIC copies it directly, the TCP NIC stages it. */
static void test_gpu(void **state)
{
	struct both b;

	(void)state;
	if (strncmp(nic_setting, "nic=emu", 7) != 0 && strncmp(nic_setting, "nic=tcp", 7) != 0) {
		refuses_gpu();
		return;
	}
	begin(&b, T_GPU, "gpu-backend=fake");
	assert_ok(epf_p2p_write(b.ep, b.conn, b.region, 0, b.import, 0, TARGET_BYTES, 0));
	memset(b.bytes, 0, TARGET_BYTES);
	assert_ok(epf_p2p_read(b.ep, b.conn, b.region, 3, b.import, 5, TARGET_BYTES - 5, 0));
	for (uint64_t i = 0; i < TARGET_BYTES - 5; i++)
		if (b.bytes[i + 3] != pattern(i + 5))
			fail_msg("byte %llu", (unsigned long long)i);
	both_end(&b);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_transfers),
		cmocka_unit_test(test_wait_steps_the_engine),
		cmocka_unit_test(test_poller_takes_notes),
		cmocka_unit_test(test_lone_transfers_share_a_ring),
		cmocka_unit_test(test_urgent_passes_bulk),
		cmocka_unit_test(test_withdrawn),
		cmocka_unit_test(test_stalled_holds_up_nobody),
		cmocka_unit_test(test_withdrawal_lets_others_post),
		cmocka_unit_test(test_killed),
		cmocka_unit_test(test_peer_without_files),
		cmocka_unit_test(test_gpu),
	};

	snprintf(nic_setting, sizeof(nic_setting), "nic=%s %s", argc > 1 ? argv[1] : "tcp",
		 argc > 2 ? argv[2] : "");
	target_more = argc > 3 ? argv[3] : NULL;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
