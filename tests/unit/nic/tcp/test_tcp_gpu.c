/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The TCP NIC and GPU memory (a fake one, that no CPU code may touch): what the conformance suite, which runs over it too, does not look at. Overlapping writes, transfers longer
 * than a ring, reads, refusals, withdrawals, copies that fail, additions, several links. What waits for copies: test_tcp_gpu_held.c.
 */
#include "tests/unit/nic/tcp/gpu_kinds.h"

#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static int open_links(const struct epf_emu_opts *tune, int end, uint64_t (*now)(void *), void *arg,
		      struct epf_nic **out)
{
	struct epf_nic *child[2];

	assert_int_equal(open_one("fake", now, arg, &child[0]), 0);
	assert_int_equal(open_one("fake", now, arg, &child[1]), 0);
	epf_tcp_share_wakeup(child[1], child[0]);
	return epf_nic_rails_open(child, 2, out);
}

static const struct nic_kind links = { "tcp, two links", 1, 1, 1, 1, 0, 0, 3, open_links };

static void test_overlap(void **state)
{
	gpu_later_writes_win(&both);
	gpu_later_writes_win(&to_gpu);
	gpu_later_writes_win(&from_gpu);
}

/* Long and short ones mixed: rings grow, wrap and run full. */
static void test_sizes(void **state)
{
	enum { WRITES = 300 };
	struct rig *rig = rig_open(&both, NULL);
	uint64_t random = 99;
	unsigned char *model = malloc(RIG_BYTES);

	assert_non_null(model);
	rig_fill(rig->a.mem, RIG_BYTES, 7);
	memset(rig->b.mem, 0, RIG_BYTES);
	memset(model, 0, RIG_BYTES);
	for (uint32_t i = 0; i < WRITES; i++) {
		uint32_t most = i % 5 == 0 ? RIG_BYTES : i % 5 == 1 ? 70000 : 3000;
		uint32_t len = 1 + (uint32_t)(rig_random(&random) % most);
		uint64_t src = rig_random(&random) % (RIG_BYTES - len + 1);
		uint64_t dst = rig_random(&random) % (RIG_BYTES - len + 1);
		struct epf_wr wr = rig_write(rig, i, src, dst, len);

		memcpy(model + dst, rig->a.mem + src, len);
		gpu_post_all(rig, &wr, 1);
	}
	assert_int_equal(gpu_outcome(rig, WRITES - 1), EPF_S_OK);
	assert_memory_equal(rig->b.mem, model, RIG_BYTES);
	free(model);
	rig_close(rig);
}

static void reads(const struct nic_kind *kind)
{
	enum { READS = 100 };
	struct rig *rig = rig_open(kind, NULL);

	rig_fill(rig->b.mem, RIG_BYTES, 11);
	memset(rig->a.mem, 0, RIG_BYTES);
	for (uint32_t i = 0; i < READS; i++) {
		struct epf_wr wr = rig_write(rig, i, i * 2000, i * 2000, 1 + i * 19);

		wr.op = EPF_WR_READ;
		gpu_post_all(rig, &wr, 1);
	}
	assert_int_equal(gpu_outcome(rig, READS - 1), EPF_S_OK);
	for (uint32_t i = 0; i < READS; i++)
		assert_memory_equal(rig->a.mem + i * 2000, rig->b.mem + i * 2000, 1 + i * 19);
	rig_close(rig);
}

static void test_reads(void **state)
{
	reads(&both);
	reads(&to_gpu);
	reads(&from_gpu);
}

static void test_wrong_among_many(void **state)
{
	gpu_wrong_among_many(&both);
}

static void test_withdrawn(void **state)
{
	gpu_withdrawn(&both);
}

/* Copies that fail: at the source its request fails as wrong by itself, at the target it is refused, and a new lane works when the GPU does. */
static void copies_fail(const struct nic_kind *kind, int is_read, int expected)
{
	struct rig *rig = rig_open(kind, NULL);
	struct epf_wr wr = rig_write(rig, 1, 0, 0, 3000);

	rig_post(rig, &wr);
	assert_int_equal(gpu_outcome(rig, 1), EPF_S_OK);
	epf_copy_fake_hold(3);
	if (is_read)
		wr.op = EPF_WR_READ;
	wr.id = 2;
	rig_post(rig, &wr);
	wr.id = 3;
	rig_post(rig, &wr);
	assert_int_equal(gpu_outcome(rig, 2), expected);
	assert_int_equal(gpu_outcome(rig, 3), EPF_S_FLUSHED);
	epf_copy_fake_hold(0);
	rig_reconnect(rig);
	rig_clear(rig);
	/* Other bytes: copies that have failed may still be made. */
	rig_fill(rig->a.mem + 65536, 3000, 21);
	wr = rig_write(rig, 4, 65536, 65536, 3000);
	rig_post(rig, &wr);
	assert_int_equal(gpu_outcome(rig, 4), EPF_S_OK);
	assert_true(rig_matches(rig->b.mem + 65536, 3000, 21));
	rig_close(rig);
}

static void test_failing_gpu(void **state)
{
	copies_fail(&from_gpu, 0, EPF_S_LOCAL);
	copies_fail(&to_gpu, 0, EPF_S_REMOTE_ACCESS);
	copies_fail(&both, 0, EPF_S_LOCAL);
	copies_fail(&to_gpu, 1, EPF_S_REMOTE_ACCESS); /* an answer cannot be read */
	copies_fail(&from_gpu, 1, EPF_S_LOCAL);       /* an answer cannot be stored */
}

/* Memory that belongs to another process, as a daemon has it: the NIC maps it. */
static void test_adopted(void **state)
{
	struct rig *rig = rig_open(&to_gpu, NULL);
	struct epf_copy_handle h;
	struct epf_copy_mem *mem;
	struct epf_nic_mr mr;
	struct epf_wr wr = rig_write(rig, 1, 0, 0, 5000);

	assert_int_equal(epf_copy_fake.mem_export(rig->b.gpu, RIG_BYTES, &h), 0);
	assert_int_equal(epf_copy_mem_adopt(&epf_copy_fake, &h, RIG_BYTES, &mem), 0);
	close(h.fd);
	assert_int_equal(
		rig->b.nic->ops->region_register_gpu(rig->b.nic, mem, EPF_MR_REMOTE_WRITE, &mr), 0);
	rig_fill(rig->a.mem, 5000, 31);
	wr.raddr = mr.raddr + 512;
	wr.rkey = mr.rkey;
	rig_post(rig, &wr);
	assert_int_equal(gpu_outcome(rig, 1), EPF_S_OK);
	assert_true(rig_matches(rig->b.mem + 512, 5000, 31));
	rig->b.nic->ops->region_deregister(rig->b.nic, &mr);
	epf_copy_mem_put(mem);
	rig_close(rig);
}

/* Additions are made in order, and pending until the word has them. */
static void add_up(const struct nic_kind *kind)
{
	struct rig *rig = rig_open(kind, NULL);
	struct epf_nic *b = rig->b.nic;
	uint64_t *word = (uint64_t *)(void *)(rig->b.mem + 64);

	*word = 5;
	epf_copy_fake_hold(2);
	for (uint64_t i = 1; i <= 100; i++)
		assert_int_equal(b->ops->add(b, &rig->b.mr, 64, i), 0);
	assert_int_equal(b->ops->add_pending(b), 1);
	epf_copy_fake_hold(0);
	while (b->ops->add_pending(b))
		usleep(100);
	assert_int_equal(__atomic_load_n(word, __ATOMIC_ACQUIRE), 5 + 5050);
	rig_close(rig);
}

static void test_additions(void **state)
{
	add_up(&both);
	add_up(&links);
}

/* Lanes of both links write to one region. */
static void test_links(void **state)
{
	struct rig *rig = rig_open(&links, NULL);

	rig_lanes(rig, 1, 1);
	rig_fill(rig->a.mem, RIG_BYTES, 51);
	memset(rig->b.mem, 0, RIG_BYTES);
	for (uint16_t lane = 0; lane < 2; lane++) {
		struct epf_wr wr = rig_write(rig, 1, lane * 100000u, lane * 100000u, 100000);

		wr.lkey = rig->a.mr.keys[lane].lkey;
		wr.rkey = rig->b.mr.keys[lane].rkey;
		assert_int_equal(rig->a.nic->ops->post(rig->a.nic, lane, &wr, 1), 1);
	}
	for (int i = 0; i < 200 && rig_count(&rig->a, EPF_WC_SENT, EPF_S_OK) < 2; i++)
		rig_run(rig, MS);
	assert_memory_equal(rig->b.mem, rig->a.mem, 200000);
	rig_close(rig);
}

/* A NIC without a GPU says so, and memory of another kind is refused. */
static void test_no_gpu(void **state)
{
	struct epf_copy_mem *mem;
	struct epf_nic_mr mr;
	struct epf_nic *nic;
	uint64_t now = 0;
	void *gpu;

	assert_int_equal(epf_copy_fake.mem_alloc(0, 4096, &gpu), 0);
	assert_int_equal(epf_copy_mem_wrap(&epf_copy_fake, gpu, 4096, &mem), 0);
	assert_int_equal(open_one("none", NULL, &now, &nic), 0);
	assert_int_not_equal(nic->ops->region_register_gpu(nic, mem, 0, &mr), 0);
	nic->ops->close(nic);
	epf_copy_mem_put(mem);
	epf_copy_fake.mem_free(gpu);
}

/* A driver that accepts the first submit and refuses all others. */
static struct {
	uint64_t submitted, reached;
} refusing;

static int refusing_open(int device, enum epf_copy_kind kind, struct epf_copy_queue **out)
{
	(void)device;
	(void)kind;
	*out = NULL;
	return 0;
}

static void refusing_close(struct epf_copy_queue *q)
{
	(void)q;
}

static int refusing_submit(struct epf_copy_queue *q, const struct epf_copy_span *spans, unsigned n,
			   uint64_t value)
{
	(void)q;
	(void)spans;
	(void)n;
	__atomic_store_n(&refusing.submitted, value, __ATOMIC_RELEASE);
	return value == 1 ? 0 : -EIO;
}

static uint64_t refusing_reached(struct epf_copy_queue *q)
{
	(void)q;
	return __atomic_load_n(&refusing.reached, __ATOMIC_ACQUIRE);
}

static int loads(void)
{
	return 0;
}

/* Submits that the driver refuses, one after the other, while an earlier one is under way: all of their jobs end, as failed. */
static void test_refused_submits(void **state)
{
	static const struct epf_copy_ops ops = { .name = "refusing",
						 .load = loads,
						 .queue_open = refusing_open,
						 .queue_close = refusing_close,
						 .submit = refusing_submit,
						 .reached = refusing_reached };
	struct epf_copy_mem mem = { .ops = &ops, .state = 1 };
	struct epf_tcp_pinned pinned = { 0 };
	struct epf_tcp_job job = {
		.kind = EPF_TCP_JOB_COPY, .dst.mem = &mem, .bytes = 8, .pinned = &pinned
	};
	struct epf_wakeup wakeup = { 0 };
	struct epf_tcp_copier *c;

	(void)state;
	assert_int_equal(epf_tcp_copier_open(&ops, &wakeup, &c), 0);
	for (uint64_t i = 1; i <= 3; i++) {
		epf_tcp_copier_push(c, &job);
		epf_tcp_copier_kick(c);
		while (__atomic_load_n(&refusing.submitted, __ATOMIC_ACQUIRE) != i)
			sched_yield();
	}
	assert_int_equal(epf_tcp_copier_done(c), 0);
	__atomic_store_n(&refusing.reached, 1, __ATOMIC_RELEASE);
	while (epf_tcp_copier_done(c) != 3)
		sched_yield();
	assert_true(pinned.failed);
	epf_tcp_copier_close(c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_overlap),          CASE(test_sizes),     CASE(test_reads),
		CASE(test_wrong_among_many), CASE(test_withdrawn), CASE(test_failing_gpu),
		CASE(test_adopted),          CASE(test_additions), CASE(test_links),
		CASE(test_refused_submits),  CASE(test_no_gpu),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
