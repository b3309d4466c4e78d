/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What only fabric/p2p/run.c's hooks show, which this test is built with: a transfer that is posted again while the endpoint's thread still leaves the one before, and must
 * not be ended by it, because its data is not there yet; blocks that a GPU copies in several chunks.
 */
#include "fabric/gpu/copy.h"
#include "fabric/p2p/p2p_priv.h"
#include "tests/unit/p2p/p2p_kit.h"

#include <sched.h>

extern void (*epf_p2p_hook_visit)(const struct epf_p2p_xfer *x, bool leaves);
extern uint64_t epf_p2p_hook_gpu_chunk;

/* How far the endpoint's thread has come; it goes on at LETS_COPY and LETS_END. */
enum { NOT_HERE, VISITS, LETS_COPY, LEAVES, LETS_END };

static pthread_t program;
static uint32_t stage;

static uint32_t at(void)
{
	return __atomic_load_n(&stage, __ATOMIC_SEQ_CST);
}

static void go(uint32_t to)
{
	__atomic_store_n(&stage, to, __ATOMIC_SEQ_CST);
}

static void wait_for(uint32_t to)
{
	uint64_t end = epf_now_ns() + 60 * SECOND;

	while (at() != to) {
		assert_true(epf_now_ns() < end);
		sched_yield();
	}
}

static void hold(const struct epf_p2p_xfer *x, bool leaves)
{
	(void)x;
	if (pthread_equal(pthread_self(), program) || at() != (leaves ? LETS_COPY : NOT_HERE))
		return;
	go(leaves ? LEAVES : VISITS);
	while (at() == (leaves ? LEAVES : VISITS))
		sched_yield();
}

static bool is_queued(struct epf_p2p_xfer *x)
{
	bool queued;

	pthread_mutex_lock(&x->ep->run.lock);
	queued = x->is_queued;
	pthread_mutex_unlock(&x->ep->run.lock);
	return queued;
}

static void thread_that_leaves_late(void **state)
{
	struct epf_p2p_block block = epf_p2p_block(0, 0, 8);
	struct epf_p2p_xfer *x;
	struct both b;
	uint64_t end = epf_now_ns() + 60 * SECOND;
	int rc;

	(void)state;
	both_begin(&b, T_GPU, T_GPU, "initiator", "target", "gpu-backend=fake");
	assert_ok(epf_p2p_prepare(b.ep, b.conn, EPF_P2P_OP_WRITE,
				  &(struct epf_p2p_vector){ b.region, b.import, &block, 1 }, 1,
				  NULL, &x));
	program = pthread_self();
	epf_p2p_hook_visit = hold;
	assert_ok(epf_p2p_post(x, NULL, 0));
	wait_for(VISITS);
	while (__atomic_load_n(&x->left, __ATOMIC_SEQ_CST)) {
		assert_int_equal(epf_p2p_test(x), 0);
		assert_true(epf_now_ns() < end);
	}
	/* All is copied, and the thread is the last to leave. */
	go(LETS_COPY);
	wait_for(LEAVES);
	while ((rc = epf_p2p_test(x)) == 0)
		assert_true(epf_now_ns() < end);
	assert_int_equal(rc, 1);
	epf_copy_fake_hold(2);
	assert_ok(epf_p2p_post(x, NULL, 0));
	go(LETS_END);
	while (is_queued(x)) /* until the thread has gone */
		assert_true(epf_now_ns() < end);
	assert_int_equal(epf_p2p_test(x), 0);
	epf_copy_fake_hold(0);
	assert_ok(epf_p2p_wait(x, 60 * SECOND));
	/* Nothing is left over that would keep the next one from ending. */
	for (int i = 0; i < 100; i++) {
		assert_ok(epf_p2p_post(x, NULL, 0));
		assert_ok(epf_p2p_wait(x, 60 * SECOND));
	}
	epf_p2p_hook_visit = NULL;
	epf_p2p_xfer_free(x);
	both_end(&b);
}

/* A block of an odd number of chunks, the last one short, at odd places of both memories. */
static void blocks_of_several_chunks(void **state)
{
	enum { CHUNK = 48 * 1024, FROM = 4097, TO = 8191, BYTES = 17 * CHUNK + 1023 };

	uint8_t *want = calloc(1, TARGET_BYTES);
	uint64_t chunk = epf_p2p_hook_gpu_chunk;
	struct both b;

	(void)state;
	both_begin(&b, T_GPU, T_GPU, "initiator", "target", "gpu-backend=fake");
	memset(b.bytes, 0, TARGET_BYTES);
	assert_ok(epf_p2p_write(b.ep, b.conn, b.region, 0, b.import, 0, TARGET_BYTES, 0));
	for (uint64_t i = 0; i < TARGET_BYTES; i++)
		b.bytes[i] = pattern(i);
	memcpy(want + TO, b.bytes + FROM, BYTES);
	epf_p2p_hook_gpu_chunk = CHUNK;
	assert_ok(epf_p2p_write(b.ep, b.conn, b.region, FROM, b.import, TO, BYTES, 0));
	assert_int_equal(sum_there(&b), sum_of(want));
	memset(b.bytes, 0, TARGET_BYTES);
	assert_ok(epf_p2p_read(b.ep, b.conn, b.region, TO, b.import, TO, BYTES, 0));
	assert_memory_equal(b.bytes, want, TARGET_BYTES);
	epf_p2p_hook_gpu_chunk = chunk;
	both_end(&b);
	free(want);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(thread_that_leaves_late),
					    cmocka_unit_test(blocks_of_several_chunks) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
