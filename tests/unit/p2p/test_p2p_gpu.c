/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPU memory of endpoints over the fake GPU, whose memory no CPU code can touch and whose copies are made later, by another thread, in random
 * order: between processes, within one, to and from host memory of every kind, and what withdrawal, failure and death do to copies under way.
 */
#include "fabric/gpu/copy.h"
#include "tests/unit/p2p/p2p_kit.h"

#include <poll.h>

#define FAKE "gpu-backend=fake"

static void begin(struct both *b, enum target_memory here, enum target_memory there)
{
	both_begin(b, here, there, "initiator", "gpu-target", FAKE);
}

/* Blocks of odd sizes, apart, each to another place than it comes from, in random order. */
enum { N = 2500, STRIDE = 1600, MOST = 1531 };

static void shuffle(struct epf_p2p_block *blocks, uint64_t *from, uint64_t *to, uint32_t *bytes)
{
	uint32_t seed = 7;

	for (uint32_t i = 0; i < N; i++) {
		from[i] = (uint64_t)i * STRIDE;
		to[i] = (uint64_t)(N - 1 - i) * STRIDE + i % 7;
		bytes[i] = 1 + i * 13 % MOST;
	}
	for (uint32_t i = 0; i < N; i++) {
		uint32_t j = (seed = seed * 1664525 + 1013904223) % N;
		uint64_t f = from[i], t = to[i];
		uint32_t n = bytes[i];

		from[i] = from[j];
		to[i] = to[j];
		bytes[i] = bytes[j];
		from[j] = f;
		to[j] = t;
		bytes[j] = n;
	}
	for (uint32_t i = 0; i < N; i++)
		blocks[i] = epf_p2p_block(from[i], to[i], bytes[i]);
}

static void run_blocks(struct both *b, enum epf_p2p_op op, const struct epf_p2p_block *blocks)
{
	struct epf_p2p_xfer *x;

	assert_ok(epf_p2p_prepare(b->ep, b->conn, op,
				  &(struct epf_p2p_vector){ b->region, b->import, blocks, N }, 1,
				  NULL, &x));
	for (int round = 0; round < 2; round++) {
		assert_ok(epf_p2p_post(x, NULL, 0));
		assert_ok(epf_p2p_wait(x, 0));
	}
	epf_p2p_xfer_free(x);
}

static void transfers(enum target_memory here, enum target_memory there)
{
	struct epf_p2p_block *blocks = calloc(N, sizeof(*blocks));
	uint64_t *from = calloc(N, sizeof(*from)), *to = calloc(N, sizeof(*to));
	uint32_t *bytes = calloc(N, sizeof(*bytes));
	uint8_t *want = calloc(1, TARGET_BYTES);
	struct both b;

	begin(&b, here, there);
	shuffle(blocks, from, to, bytes);
	/* Everything, and then the blocks over it: the rest must stay as it is. */
	memset(want, 0xa5, TARGET_BYTES);
	memset(b.bytes, 0xa5, TARGET_BYTES);
	assert_ok(epf_p2p_write(b.ep, b.conn, b.region, 0, b.import, 0, TARGET_BYTES, 0));
	assert_int_equal(sum_there(&b), sum_of(want));
	for (uint64_t i = 0; i < TARGET_BYTES; i++)
		b.bytes[i] = pattern(i);
	run_blocks(&b, EPF_P2P_OP_WRITE, blocks);
	for (uint32_t i = 0; i < N; i++)
		memcpy(want + to[i], b.bytes + from[i], bytes[i]);
	assert_int_equal(sum_there(&b), sum_of(want));
	/* Back: what the blocks do not cover keeps its poison. */
	memset(b.bytes, 0x5a, TARGET_BYTES);
	run_blocks(&b, EPF_P2P_OP_READ, blocks);
	memset(want, 0x5a, TARGET_BYTES);
	for (uint32_t i = 0; i < N; i++)
		for (uint32_t k = 0; k < bytes[i]; k++)
			want[from[i] + k] = pattern(from[i] + k);
	assert_memory_equal(b.bytes, want, TARGET_BYTES);
	/* One byte, the last. */
	assert_ok(epf_p2p_read(b.ep, b.conn, b.region, 3, b.import, TARGET_BYTES - 1, 1, 0));
	assert_int_equal(b.bytes[3], 0xa5);
	assert_ok(epf_p2p_deregister(b.ep, b.region, 5 * SECOND));
	both_end(&b);
	free(blocks);
	free(from);
	free(to);
	free(bytes);
	free(want);
}

static void test_gpu_to_gpu(void **state)
{
	(void)state;
	transfers(T_GPU, T_GPU);
}

static void test_host_to_gpu(void **state)
{
	(void)state;
	transfers(T_MMAP, T_GPU);
}

static void test_gpu_to_mapped(void **state)
{
	(void)state;
	transfers(T_GPU, T_MAPPED);
}

/* The peer's memory cannot be mapped: two copies, over memory of this process. */
static void test_gpu_to_private(void **state)
{
	(void)state;
	transfers(T_GPU, T_MMAP);
}

/* Without a GPU, the same blocks: reads take short gaps between them too, which must not show. */
static void test_host_to_host(void **state)
{
	(void)state;
	transfers(T_MMAP, T_MMAP);
	transfers(T_MMAP, T_MAPPED);
}

/* Pages that lie side by side on both sides, but not in the same order: those that only the peer has side by side must not become one. */
static void test_pages(void **state)
{
	enum { PAGE = 1600 };
	struct epf_p2p_block *blocks = calloc(N, sizeof(*blocks));
	uint8_t *want = calloc(1, TARGET_BYTES);
	struct both b;

	(void)state;
	begin(&b, T_MMAP, T_MMAP);
	assert_ok(epf_p2p_write(b.ep, b.conn, b.region, 0, b.import, 0, TARGET_BYTES, 0));
	memcpy(want, b.bytes, TARGET_BYTES);
	for (uint64_t i = 0; i < N; i++) { /* 7 and 9 have no divisor with N in common */
		uint64_t from = i * 7 % N * PAGE, to = i * 9 % N * PAGE;

		blocks[i] = epf_p2p_block(from, to, PAGE);
		memcpy(want + to, b.bytes + from, PAGE);
	}
	run_blocks(&b, EPF_P2P_OP_WRITE, blocks);
	assert_int_equal(sum_there(&b), sum_of(want));
	both_end(&b);
	free(blocks);
	free(want);
}

/* Two endpoints of one process, whose drivers cannot import each other's memory; one block of several chunks. */
static void test_one_process(void **state)
{
	enum { BYTES = 40 << 20 };
	struct epf_p2p *a = endpoint_with("a", FAKE), *b = endpoint_with("b", FAKE);
	uint8_t meta[EPF_P2P_METADATA_BYTES], key[EPF_P2P_KEY_BYTES];
	uint64_t conn, from, to, import;
	void *here, *there;
	uint32_t *h, *t;
	int n;

	(void)state;
	assert_ok(epf_copy_fake.mem_alloc(0, BYTES, &here));
	assert_ok(epf_copy_fake.mem_alloc(0, BYTES, &there));
	h = epf_copy_fake_bytes(here, BYTES);
	t = epf_copy_fake_bytes(there, BYTES);
	for (uint32_t i = 0; i < BYTES / 4; i++)
		h[i] = i * 2654435761u;
	assert_ok(epf_p2p_register(a, here, BYTES, 0, &from));
	assert_ok(epf_p2p_register(b, there, BYTES, 0, &to));
	assert_ok(epf_p2p_export(b, to, 0, BYTES, EPF_P2P_WRITE, 0, 0, key));
	n = epf_p2p_metadata(b, meta, sizeof(meta));
	assert_ok(n);
	assert_ok(epf_p2p_connect(a, meta, (size_t)n, 5 * SECOND, &conn));
	assert_ok(epf_p2p_import(a, conn, key, 5 * SECOND, &import));
	assert_ok(epf_p2p_write(a, conn, from, 4, import, 8, BYTES - 16, 0));
	assert_int_equal(t[0] | t[1], 0);
	assert_memory_equal(t + 2, h + 1, BYTES - 16);
	assert_int_equal(t[BYTES / 4 - 1] | t[BYTES / 4 - 2], 0);
	epf_p2p_close(a);
	epf_p2p_close(b);
	epf_copy_fake.mem_free(here);
	epf_copy_fake.mem_free(there);
}

static void test_registering(void **state)
{
	struct epf_p2p *ep = endpoint_with("a", FAKE), *plain = endpoint("without-gpu");
	uint64_t region;
	uint8_t host[64];
	void *at;

	(void)state;
	assert_ok(epf_copy_fake.mem_alloc(0, 8192, &at));
	assert_ok(epf_p2p_register(ep, at, 8192, 0, &region));
	assert_ok(epf_p2p_register(ep, (uint8_t *)at + 1, 8191, EPF_P2P_AUTO, &region));
	assert_ok(epf_p2p_register(ep, host, sizeof(host), EPF_P2P_AUTO, &region));
	assert_err(epf_p2p_register(ep, at, 8193, 0, &region), EINVAL); /* leaves its allocation */
	assert_err(epf_p2p_register(ep, at, 8192, 1, &region), EINVAL); /* another GPU's */
	assert_non_null(strstr(epf_last_error(), "it is GPU 0's"));
	assert_err(epf_p2p_register(ep, host, sizeof(host), 0, &region), EINVAL);
	assert_non_null(strstr(epf_last_error(), "it is host memory"));
	assert_err(epf_p2p_register(ep, host, sizeof(host), -3, &region), EINVAL);
	/* No driver here: said by the call that needs it. */
	assert_true(epf_p2p_register(plain, at, 8192, 0, &region) < 0);
	epf_p2p_close(ep);
	epf_p2p_close(plain);
	epf_copy_fake.mem_free(at);
}

/* Nobody polls: the endpoint's thread sees that the copies have ended, and the notification comes after them. */
static void test_event(void **state)
{
	struct epf_p2p_xfer_options o = { .size = sizeof(o), .event = 1 };
	struct epf_p2p_block block = epf_p2p_block(0, 0, TARGET_BYTES);
	struct epf_p2p_event e;
	struct epf_p2p_xfer *x;
	struct both b;
	char got[8];
	int32_t len;

	(void)state;
	begin(&b, T_GPU, T_GPU);
	epf_copy_fake_pause(
		100 * 1000 *
		1000); /* copies begin late: a notification that does not wait comes first */
	assert_ok(epf_p2p_prepare(b.ep, b.conn, EPF_P2P_OP_WRITE,
				  &(struct epf_p2p_vector){ b.region, b.import, &block, 1 }, 1, &o,
				  &x));
	assert_ok(epf_p2p_post(x, "after", 5));
	target_tell(&b.t, T_NOTE);
	assert_int_equal(target_answer(&b.t, &len, sizeof(len)), sizeof(len));
	assert_int_equal(len, 5);
	assert_int_equal(target_answer(&b.t, got, 5), 5);
	assert_int_equal(sum_there(&b), sum_of(b.bytes));
	epf_copy_fake_pause(0);
	assert_ok(epf_p2p_wait_event(b.ep, 10 * SECOND));
	assert_int_equal(epf_p2p_events(b.ep, &e, 1), 1);
	assert_int_equal(e.kind, EPF_P2P_DONE);
	assert_int_equal(e.status, 0);
	epf_p2p_xfer_free(x);
	both_end(&b);
}

static void post_one(struct both *b, struct epf_p2p_xfer **x)
{
	struct epf_p2p_block block = epf_p2p_block(0, 0, TARGET_BYTES);

	assert_ok(epf_p2p_prepare(b->ep, b->conn, EPF_P2P_OP_WRITE,
				  &(struct epf_p2p_vector){ b->region, b->import, &block, 1 }, 1,
				  NULL, x));
	assert_ok(epf_p2p_post(*x, NULL, 0));
}

/* A withdrawal waits for copies that the GPU has not made yet. */
static void test_withdrawn(void **state)
{
	struct pollfd p = { .events = POLLIN };
	struct epf_p2p_xfer *x;
	struct both b;
	int32_t rc = 1;
	int status;

	(void)state;
	begin(&b, T_GPU, T_GPU);
	epf_copy_fake_hold(2);
	post_one(&b, &x);
	assert_int_equal(epf_p2p_test(x), 0); /* the chunk is under way, if it was not */
	target_tell(&b.t, T_WITHDRAW);
	p.fd = b.t.socket;
	assert_int_equal(poll(&p, 1, 200), 0); /* no answer while the GPU may write */
	epf_copy_fake_hold(0);
	assert_int_equal(target_answer(&b.t, &rc, sizeof(rc)), sizeof(rc));
	assert_int_equal(rc, 0);
	status = epf_p2p_wait(x, 0);
	assert_true(status == 0 || status == -EKEYREVOKED);
	assert_err(epf_p2p_write(b.ep, b.conn, b.region, 0, b.import, 0, 64, 0), EKEYREVOKED);
	epf_p2p_xfer_free(x);
	both_end(&b);
}

/* Memory of this endpoint stays in use by its own copies, too; a transfer freed meanwhile does not wait for ever. */
static void test_stuck(void **state)
{
	struct epf_p2p_xfer *x;
	struct both b;

	(void)state;
	begin(&b, T_GPU, T_GPU);
	epf_copy_fake_hold(2);
	post_one(&b, &x);
	assert_err(epf_p2p_wait(x, 20 * 1000 * 1000), ETIMEDOUT);
	epf_p2p_xfer_free(x);
	assert_err(epf_p2p_deregister(b.ep, b.region, 20 * 1000 * 1000), ETIMEDOUT);
	epf_copy_fake_hold(0);
	assert_ok(epf_p2p_deregister(b.ep, b.region, 10 * SECOND));
	both_end(&b);
}

/* A staged copy that missed its deadline keeps the stage until it has ended; then the stage is of use again. */
static void test_late_stage(void **state)
{
	enum { LEN = 4096, FIRST = 1 << 16, SECOND_ONE = 1 << 17, SOON = 20 * 1000 * 1000 };
	struct both b;

	(void)state;
	begin(&b, T_GPU, T_MMAP);
	for (int i = 0; i < LEN; i++)
		b.bytes[LEN + i] = (uint8_t)~b.bytes[i];
	assert_ok(epf_p2p_write(b.ep, b.conn, b.region, 0, b.import, 0, 2 * LEN, 0));
	memset(b.bytes + FIRST, 0, LEN);
	epf_copy_fake_hold(2);
	assert_err(epf_p2p_read(b.ep, b.conn, b.region, FIRST, b.import, 0, LEN, SOON), ETIMEDOUT);
	assert_err(epf_p2p_read(b.ep, b.conn, b.region, SECOND_ONE, b.import, LEN, LEN, SOON),
		   ETIMEDOUT);
	epf_copy_fake_hold(0);
	assert_ok(epf_p2p_read(b.ep, b.conn, b.region, SECOND_ONE, b.import, LEN, LEN, 0));
	assert_memory_equal(b.bytes + FIRST, b.bytes, LEN);
	assert_memory_equal(b.bytes + SECOND_ONE, b.bytes + LEN, LEN);
	both_end(&b);
}

/* Closing does not wait for ever for a GPU that hangs. */
static void test_close_stuck(void **state)
{
	static struct both b; /* stays: the GPU still uses it */
	struct epf_p2p_xfer *x;

	(void)state;
	begin(&b, T_GPU, T_GPU);
	epf_copy_fake_hold(2);
	post_one(&b, &x);
	assert_int_equal(epf_p2p_test(x), 0); /* the chunk is under way, if it was not */
	epf_p2p_close(b.ep);
	epf_copy_fake_hold(0);
	target_exit(&b.t);
}

static void test_failed(void **state)
{
	struct epf_p2p_xfer *x;
	struct both b;

	(void)state;
	begin(&b, T_GPU, T_GPU);
	epf_copy_fake_hold(3);
	post_one(&b, &x);
	assert_err(epf_p2p_wait(x, 10 * SECOND), EIO);
	assert_non_null(strstr(epf_last_error(), "gpu-target"));
	epf_p2p_xfer_free(x);
	both_end(&b);
	epf_copy_fake_hold(0); /* after the queue is closed: what has failed must not begin again */
}

static void test_killed(void **state)
{
	struct epf_p2p_xfer *x;
	struct both b;
	int rc = 0;

	(void)state;
	begin(&b, T_GPU, T_GPU);
	epf_copy_fake_hold(2);
	post_one(&b, &x);
	target_kill(&b.t);
	epf_copy_fake_hold(0);
	(void)epf_p2p_wait(x, 10 * SECOND);
	for (int i = 0; i < 100000 && !rc; i++)
		rc = epf_p2p_write(b.ep, b.conn, b.region, 0, b.import, 0, 4096, 10 * SECOND);
	assert_err(rc, ECONNRESET);
	assert_non_null(strstr(epf_last_error(), "gpu-target"));
	epf_p2p_xfer_free(x);
	assert_ok(epf_p2p_deregister(b.ep, b.region, 5 * SECOND));
	both_end_here(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_gpu_to_gpu),    cmocka_unit_test(test_host_to_gpu),
		cmocka_unit_test(test_gpu_to_mapped), cmocka_unit_test(test_gpu_to_private),
		cmocka_unit_test(test_host_to_host),  cmocka_unit_test(test_pages),
		cmocka_unit_test(test_one_process),   cmocka_unit_test(test_registering),
		cmocka_unit_test(test_event),         cmocka_unit_test(test_withdrawn),
		cmocka_unit_test(test_stuck),         cmocka_unit_test(test_failed),
		cmocka_unit_test(test_killed),        cmocka_unit_test(test_late_stage),
		cmocka_unit_test(test_close_stuck),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
