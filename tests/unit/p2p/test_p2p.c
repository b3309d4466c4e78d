/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Endpoints of two processes on one machine when all goes well: connecting, writes, reads, vectors, merging, notifications, priorities, events. What
 * goes wrong is in test_p2p_bad.c, death and churn in test_p2p_kill.c.
 */
#include "tests/unit/p2p/p2p_kit.h"

#include <poll.h>

static void begin(struct both *b, bool mapped)
{
	both_begin(b, T_MMAP, mapped ? T_MAPPED : T_MMAP, "initiator", "target", NULL);
}

static void write_and_read(bool mapped)
{
	struct both b;

	begin(&b, mapped);
	assert_ok(epf_p2p_write(b.ep, b.conn, b.region, 0, b.import, 0, TARGET_BYTES, 0));
	assert_int_equal(sum_there(&b), sum_of(b.bytes));
	memset(b.bytes, 0, TARGET_BYTES);
	/* The last byte, the first, and everything. */
	assert_ok(epf_p2p_read(b.ep, b.conn, b.region, 5, b.import, TARGET_BYTES - 1, 1, 0));
	assert_int_equal(b.bytes[5], pattern(TARGET_BYTES - 1));
	assert_ok(epf_p2p_read(b.ep, b.conn, b.region, 0, b.import, 0, TARGET_BYTES, 0));
	for (uint64_t i = 0; i < TARGET_BYTES; i++)
		if (b.bytes[i] != pattern(i))
			fail_msg("byte %llu", (unsigned long long)i);
	both_end(&b);
}

static void test_process(void **state)
{
	(void)state;
	write_and_read(false);
}

static void test_mapped(void **state)
{
	(void)state;
	write_and_read(true);
}

static struct epf_p2p_block *shuffled(uint32_t n, uint32_t bytes, uint32_t stride)
{
	struct epf_p2p_block *blocks = calloc(n, sizeof(*blocks));
	uint32_t seed = 7;

	assert_non_null(blocks);
	for (uint32_t i = 0; i < n; i++)
		blocks[i] = epf_p2p_block((uint64_t)i * stride, (uint64_t)i * stride, bytes);
	for (uint32_t i = n - 1; i > 0; i--) {
		uint32_t j = (seed = seed * 1664525 + 1013904223) % (i + 1);
		struct epf_p2p_block t = blocks[i];

		blocks[i] = blocks[j];
		blocks[j] = t;
	}
	return blocks;
}

static void vectored(bool mapped)
{
	enum { N = 10000, BYTES = 273, STRIDE = 401 };
	struct epf_p2p_block *blocks = shuffled(N, BYTES, STRIDE);
	uint8_t *want = calloc(1, TARGET_BYTES);
	struct epf_p2p_vector v[2];
	struct epf_p2p_xfer *x;
	struct both b;

	begin(&b, mapped);
	v[0] = (struct epf_p2p_vector){ b.region, b.import, blocks, N / 3 };
	v[1] = (struct epf_p2p_vector){ b.region, b.import, blocks + N / 3, N - N / 3 };
	assert_ok(epf_p2p_prepare(b.ep, b.conn, EPF_P2P_OP_WRITE, v, 2, NULL, &x));
	assert_err(epf_p2p_test(x), EINVAL);
	for (uint64_t i = 0; i < N; i++)
		memcpy(want + i * STRIDE, b.bytes + i * STRIDE, BYTES);
	/* Twice: a prepared transfer is posted again. */
	for (int i = 0; i < 2; i++) {
		assert_ok(epf_p2p_post(x, NULL, 0));
		assert_ok(epf_p2p_wait(x, 0));
		assert_int_equal(sum_there(&b), sum_of(want));
	}
	epf_p2p_xfer_free(x);
	memset(b.bytes, 0, TARGET_BYTES);
	assert_ok(epf_p2p_prepare(b.ep, b.conn, EPF_P2P_OP_READ, v, 2, NULL, &x));
	assert_ok(epf_p2p_post(x, NULL, 0));
	assert_ok(epf_p2p_wait(x, 0));
	epf_p2p_xfer_free(x);
	assert_memory_equal(b.bytes, want, TARGET_BYTES);
	both_end(&b);
	free(want);
	free(blocks);
}

static void test_vectors(void **state)
{
	(void)state;
	vectored(false);
	vectored(true);
}

/* 112,000 blocks, and those that follow each other on both sides travel as one. */
static void test_many_blocks(void **state)
{
	enum { N = 112000, BYTES = 32 };
	struct epf_p2p_block *blocks = calloc(N, sizeof(*blocks));
	struct epf_p2p_xfer *x;
	struct epf_p2p_peer peer = { .size = sizeof(peer) };
	struct both b;

	(void)state;
	begin(&b, false);
	for (uint64_t i = 0; i < N; i++)
		blocks[i] = epf_p2p_block(i * BYTES, (N - 1 - i) * BYTES, BYTES);
	assert_ok(epf_p2p_prepare(b.ep, b.conn, EPF_P2P_OP_WRITE,
				  &(struct epf_p2p_vector){ b.region, b.import, blocks, N }, 1,
				  NULL, &x));
	assert_ok(epf_p2p_post(x, NULL, 0));
	assert_err(epf_p2p_post(x, NULL, 0), EBUSY);
	assert_ok(epf_p2p_wait(x, 0));
	epf_p2p_xfer_free(x);
	assert_ok(epf_p2p_read(b.ep, b.conn, b.region, 0, b.import, 0, BYTES, 0));
	for (uint64_t i = 0; i < BYTES; i++)
		assert_int_equal(b.bytes[i], pattern((N - 1) * (uint64_t)BYTES + i));
	assert_ok(epf_p2p_peer(b.ep, b.conn, &peer));
	assert_int_equal(peer.transfers, 2);
	assert_int_equal(peer.bytes_written, (uint64_t)N * BYTES);
	assert_int_equal(peer.bytes_read, BYTES);
	assert_int_equal(peer.under_way, 0);
	assert_string_equal(peer.name, "target");
	assert_string_equal(peer.path, "local");
	assert_int_equal(peer.pid, b.t.pid);
	both_end(&b);
	free(blocks);
}

static void expect_note(struct both *b, const char *text, int32_t bytes)
{
	char got[EPF_P2P_NOTE_BYTES];
	int32_t len = 0;

	assert_int_equal(target_answer(&b->t, &len, sizeof(len)), sizeof(len));
	assert_int_equal(len, bytes);
	if (len)
		assert_int_equal(target_answer(&b->t, got, (size_t)len), len);
	assert_memory_equal(got, text, (size_t)bytes);
}

static void test_notes(void **state)
{
	static char longest[EPF_P2P_NOTE_BYTES + 1];
	struct epf_p2p_block block = epf_p2p_block(0, 64, 8);
	struct epf_p2p_xfer *x;
	struct both b;

	(void)state;
	begin(&b, true);
	memset(longest, 'y', sizeof(longest));
	assert_ok(epf_p2p_prepare(b.ep, b.conn, EPF_P2P_OP_WRITE,
				  &(struct epf_p2p_vector){ b.region, b.import, &block, 1 }, 1,
				  NULL, &x));
	assert_err(epf_p2p_post(x, longest, sizeof(longest)), EINVAL);
	for (int i = 0; i < 20; i++) {
		target_tell(&b.t, T_NOTE);
		assert_ok(epf_p2p_post(x, longest, i % 2 ? EPF_P2P_NOTE_BYTES : 3));
		assert_ok(epf_p2p_wait(x, 0));
		expect_note(&b, longest, i % 2 ? EPF_P2P_NOTE_BYTES : 3);
	}
	epf_p2p_xfer_free(x);
	assert_ok(epf_p2p_notify(b.ep, b.conn, "", 0, SECOND));
	target_tell(&b.t, T_NOTE);
	expect_note(&b, "", 0);
	assert_err(epf_p2p_notify(b.ep, b.conn, longest, sizeof(longest), SECOND), EINVAL);
	both_end(&b);
}

/* The peer's notification makes the descriptor readable, and taking it makes it unreadable again. */
static void test_fd(void **state)
{
	struct epf_p2p_event e;
	struct pollfd p;
	struct both b;

	(void)state;
	begin(&b, false);
	p = (struct pollfd){ epf_p2p_fd(b.ep), POLLIN, 0 };
	assert_true(p.fd >= 0);
	assert_int_equal(epf_p2p_fd(b.ep), p.fd);
	assert_int_equal(poll(&p, 1, 0), 0);
	for (int i = 0; i < 3; i++) {
		/* It accepts once; later ones come over what this side has made. */
		if (i == 0)
			target_tell(&b.t, T_SEND);
		else
			assert_ok(epf_p2p_notify(b.ep, b.conn, "x", 1, SECOND));
		if (i)
			continue;
		assert_int_equal(poll(&p, 1, 20000), 1);
		assert_int_equal(epf_p2p_events(b.ep, &e, 1), 1);
		assert_int_equal(e.kind, EPF_P2P_NOTE);
		assert_int_equal(e.conn, b.conn);
		assert_int_equal(e.bytes, 5);
		assert_memory_equal(e.data, "hello", 5);
		epf_p2p_event_free(&e);
		assert_int_equal(poll(&p, 1, 0), 0);
	}
	both_end(&b);
}

static void count_event(void *arg, const struct epf_p2p_event *e)
{
	int *n = arg;

	if (e->kind == EPF_P2P_DONE && e->user == arg && e->status == 0)
		__atomic_fetch_add(n, 1, __ATOMIC_SEQ_CST);
}

/* A transfer that nobody waits for ends by the endpoint's thread, which calls back. */
static void test_callback(void **state)
{
	struct epf_p2p_xfer_options o = { .size = sizeof(o), .event = 1 };
	struct epf_p2p_block block = epf_p2p_block(0, 0, TARGET_BYTES);
	struct epf_p2p_xfer *x[3];
	struct both b;
	int n = 0;

	(void)state;
	begin(&b, false);
	o.user = &n;
	assert_ok(epf_p2p_on_event(b.ep, count_event, &n));
	for (int i = 0; i < 3; i++) {
		o.priority = (enum epf_p2p_priority)i;
		assert_ok(epf_p2p_prepare(b.ep, b.conn, EPF_P2P_OP_WRITE,
					  &(struct epf_p2p_vector){ b.region, b.import, &block, 1 },
					  1, &o, &x[i]));
		assert_ok(epf_p2p_post(x[i], NULL, 0));
	}
	for (int i = 0; i < 20000 && __atomic_load_n(&n, __ATOMIC_SEQ_CST) < 3; i++)
		poll(NULL, 0, 1);
	assert_int_equal(__atomic_load_n(&n, __ATOMIC_SEQ_CST), 3);
	assert_ok(epf_p2p_on_event(b.ep, NULL, NULL));
	for (int i = 0; i < 3; i++) {
		assert_int_equal(epf_p2p_test(x[i]), 1);
		epf_p2p_xfer_free(x[i]);
	}
	assert_int_equal(sum_there(&b), sum_of(b.bytes));
	both_end(&b);
}

/* Transfers larger than the caches store past them: blocks of every length and alignment, from the same memory into nine times as much. */
static void test_past_the_caches(void **state)
{
	enum { TIMES = 9, SHIFT = 3, MOST = TIMES * 1024 };
	struct epf_p2p_block *blocks = calloc(MOST, sizeof(*blocks));
	uint8_t *into = calloc(TIMES + 1, TARGET_BYTES);
	uint64_t from, len, sum = 0, region;
	struct epf_p2p_xfer *x;
	struct both b;
	size_t n = 0;

	(void)state;
	begin(&b, true);
	target_tell(&b.t, T_FILL);
	(void)sum_there(&b); /* it has filled its memory */
	for (uint64_t time = 0; time < TIMES; time++)
		for (from = 0; from + 30011 < TARGET_BYTES; from += len + 1, n++) {
			len = 1 + n % 512 * 677 % 30011;
			assert_true(n < MOST);
			sum += len;
			blocks[n] = epf_p2p_block(time * TARGET_BYTES + from + SHIFT, from,
						  (uint32_t)len);
		}
	assert_true(sum > 32 << 20);
	assert_ok(
		epf_p2p_register(b.ep, into, (TIMES + 1ull) * TARGET_BYTES, EPF_P2P_HOST, &region));
	assert_ok(epf_p2p_prepare(b.ep, b.conn, EPF_P2P_OP_READ,
				  &(struct epf_p2p_vector){ region, b.import, blocks, n }, 1, NULL,
				  &x));
	assert_ok(epf_p2p_post(x, NULL, 0));
	assert_ok(epf_p2p_wait(x, 0));
	for (size_t k = 0; k < n; k++)
		for (uint64_t i = 0; i < (blocks[k].lo >> 48); i++) {
			uint64_t at = blocks[k].hi & 0xffffffffffffull;

			if (into[(blocks[k].lo & 0xffffffffffffull) + i] != pattern(at + i))
				fail_msg("block %zu, byte %llu", k, (unsigned long long)i);
		}
	epf_p2p_xfer_free(x);
	both_end(&b);
	free(blocks);
	free(into);
}

struct race {
	struct epf_p2p_xfer *x[3]; /* by priority */
	enum epf_p2p_priority ended[3];
	uint32_t n;
};

/* The endpoint's thread is in this callback and copies nothing meanwhile: the least urgent is posted first. */
static void post_or_note(void *arg, const struct epf_p2p_event *e)
{
	struct race *r = arg;

	if (e->kind == EPF_P2P_CONNECTED || e->kind == EPF_P2P_LOST)
		return;
	if (e->kind == EPF_P2P_NOTE) {
		assert_ok(epf_p2p_post(r->x[EPF_P2P_BACKGROUND], NULL, 0));
		assert_ok(epf_p2p_post(r->x[EPF_P2P_NORMAL], NULL, 0));
		assert_ok(epf_p2p_post(r->x[EPF_P2P_URGENT], NULL, 0));
		return;
	}
	assert_int_equal(e->status, 0);
	for (unsigned i = 0; i < 3; i++)
		if (e->user == &r->x[i])
			r->ended[r->n] = (enum epf_p2p_priority)i;
	__atomic_store_n(&r->n, r->n + 1, __ATOMIC_RELEASE);
}

static void test_priorities(void **state)
{
	struct epf_p2p_xfer_options o = { .size = sizeof(o), .event = 1 };
	struct epf_p2p_block block = epf_p2p_block(0, 0, TARGET_BYTES);
	struct race r = { .n = 0 };
	struct both b;

	(void)state;
	begin(&b, false);
	for (unsigned i = 0; i < 3; i++) {
		o.priority = (enum epf_p2p_priority)i;
		o.user = &r.x[i];
		assert_ok(epf_p2p_prepare(b.ep, b.conn, EPF_P2P_OP_WRITE,
					  &(struct epf_p2p_vector){ b.region, b.import, &block, 1 },
					  1, &o, &r.x[i]));
	}
	assert_ok(epf_p2p_on_event(b.ep, post_or_note, &r));
	target_tell(&b.t, T_SEND);
	while (__atomic_load_n(&r.n, __ATOMIC_ACQUIRE) < 3)
		poll(NULL, 0, 1);
	assert_ok(epf_p2p_on_event(b.ep, NULL, NULL));
	assert_int_equal(r.ended[0], EPF_P2P_URGENT);
	assert_int_equal(r.ended[1], EPF_P2P_NORMAL);
	assert_int_equal(r.ended[2], EPF_P2P_BACKGROUND);
	for (unsigned i = 0; i < 3; i++)
		epf_p2p_xfer_free(r.x[i]);
	both_end(&b);
}

/* One connection a peer, in both directions, and by address. */
static void test_connect(void **state)
{
	struct epf_p2p *a = endpoint("a"), *c = endpoint("c");
	struct epf_p2p_peer peer = { .size = sizeof(peer) };
	uint8_t meta[EPF_P2P_METADATA_BYTES];
	uint64_t one, two, back, again;
	int n = epf_p2p_metadata(c, meta, sizeof(meta));

	(void)state;
	assert_true(n > 0);
	assert_ok(epf_p2p_describe(meta, (size_t)n, &peer));
	assert_string_equal(peer.name, "c");
	assert_ok(epf_p2p_connect(a, meta, (size_t)n, SECOND * 10, &one));
	assert_ok(epf_p2p_connect_to(a, "127.0.0.1", peer.port, SECOND * 10, &two));
	assert_int_equal(one, two);
	assert_ok(epf_p2p_accept(c, SECOND * 10, &back));
	n = epf_p2p_metadata(a, meta, sizeof(meta));
	assert_ok(epf_p2p_connect(c, meta, (size_t)n, SECOND * 10, &again));
	assert_int_equal(back, again);
	assert_err(epf_p2p_accept(c, EPF_P2P_NOW, &again), ETIMEDOUT);
	/* An endpoint may also talk to itself. */
	assert_ok(epf_p2p_connect(a, meta, (size_t)n, SECOND * 10, &again));
	assert_ok(epf_p2p_disconnect(a, one, SECOND));
	assert_err(epf_p2p_disconnect(a, one, SECOND), ENOENT);
	epf_p2p_close(c);
	epf_p2p_close(a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_connect),     cmocka_unit_test(test_process),
		cmocka_unit_test(test_mapped),      cmocka_unit_test(test_vectors),
		cmocka_unit_test(test_many_blocks), cmocka_unit_test(test_notes),
		cmocka_unit_test(test_fd),          cmocka_unit_test(test_callback),
		cmocka_unit_test(test_priorities),  cmocka_unit_test(test_past_the_caches),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
