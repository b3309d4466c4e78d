/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The TCP NIC while copies of GPU memory are under way, held back by the test: events come after their bytes, what comes later waits in order, a core that waits has
 * nothing to do, and a fence outlasts them.
 */
#include "tests/unit/nic/tcp/gpu_kinds.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* Reaps both ends until the copies that are held back leave nothing else to do. */
static void reap_often(struct rig *rig)
{
	for (int i = 0; i < 200; i++) {
		rig_reap(&rig->a);
		rig_reap(&rig->b);
		usleep(100);
	}
}

/* Neither the event nor the completion of a write comes before its bytes are in GPU memory, nor those of a later one to the host. */
static void events_wait(const struct nic_kind *kind)
{
	static unsigned char host[64];
	struct rig *rig = rig_open(kind, NULL);
	struct epf_nic_mr mr;
	struct epf_wr wr[3];

	assert_int_equal(rig->b.nic->ops->region_register(rig->b.nic, host, sizeof(host),
							  EPF_MR_REMOTE_WRITE, &mr),
			 0);
	memset(host, 0, sizeof(host));
	rig->b.nic->ops->post_receives(rig->b.nic, 8);
	rig_fill(rig->a.mem, RIG_BYTES, 3);
	wr[0] = rig_write(rig, 1, 0, 0, 512);
	rig_post(rig, &wr[0]); /* rings are there */
	assert_int_equal(gpu_outcome(rig, 1), EPF_S_OK);
	rig_clear(rig);
	epf_copy_fake_hold(2);
	wr[0] = rig_write(rig, 2, 0, 4096, 20000);
	wr[0].op = EPF_WR_WRITE_IMM;
	wr[0].imm = 70;
	wr[1] = rig_write(rig, 3, 0, 0, 8);
	wr[1].raddr = mr.raddr;
	wr[1].rkey = mr.rkey;
	rig_inline(rig, &wr[1]);
	wr[2] = wr[1];
	wr[2].id = 4;
	wr[2].op = EPF_WR_SEND;
	gpu_post_all(rig, wr, 3);
	reap_often(rig);
	assert_int_equal(rig->a.n, 0);
	assert_int_equal(rig->b.n, 0);
	epf_copy_fake_hold(0);
	assert_int_equal(gpu_outcome(rig, 4), EPF_S_OK);
	assert_int_equal(rig->b.n, 2);
	assert_int_equal(rig->b.log[0].imm, 70);
	assert_int_equal(rig->b.log[0].len, 20000);
	assert_int_equal(rig->b.log[1].op, EPF_WC_RECV);
	assert_memory_equal(rig->b.mem + 4096, rig->a.mem, 20000);
	rig_close(rig);
}

static void test_events(void **state)
{
	events_wait(&both);
	events_wait(&to_gpu);
	events_wait(&from_gpu);
}

/* A core that waits for copies has nothing to do until one ends. */
static void test_idle_while_copying(void **state)
{
	struct rig *rig = rig_open(&both, NULL);
	struct epf_wr wr = rig_write(rig, 1, 0, 0, 512);
	struct epf_nic *a = rig->a.nic, *b = rig->b.nic;

	rig_post(rig, &wr);
	assert_int_equal(gpu_outcome(rig, 1), EPF_S_OK);
	rig_clear(rig);
	epf_copy_fake_hold(2);
	for (wr.id = 2; wr.id < 6; wr.id++)
		rig_post(rig, &wr);
	reap_often(rig);
	assert_true(a->ops->next_event(a) > 0); /* its copies to the ring are held */
	/* One copy for each end: those of a first. */
	epf_copy_fake_let(1);
	reap_often(rig);
	assert_true(a->ops->next_event(a) > 0);
	assert_true(b->ops->next_event(b) > 0);
	epf_copy_fake_hold(0);
	assert_int_equal(gpu_outcome(rig, 5), EPF_S_OK);
	rig_close(rig);
}

/* The same where the ring that is received into is full. */
static void test_idle_while_full(void **state)
{
	struct rig *rig = rig_open(&to_gpu, NULL);
	struct epf_wr wr = rig_write(rig, 1, 0, 0, 30000);
	struct epf_nic *b = rig->b.nic;

	rig_post(rig, &wr);
	assert_int_equal(gpu_outcome(rig, 1), EPF_S_OK);
	rig_clear(rig);
	epf_copy_fake_hold(2);
	for (wr.id = 2; wr.id < 10; wr.id++)
		rig_post(rig, &wr);
	reap_often(rig);
	assert_int_equal(rig->a.n, 0);
	assert_true(b->ops->next_event(b) > 0);
	epf_copy_fake_hold(0);
	assert_int_equal(gpu_outcome(rig, 9), EPF_S_OK);
	rig_close(rig);
}

/* A ring that was full has more memory from the next time that it is empty. */
static void ring_grows(const struct nic_kind *kind)
{
	enum { WRITES = 12, LEN = 14336 };
	struct rig *rig = rig_open(kind, NULL);
	bool sends = kind == &from_gpu;
	const struct rig_end *end = sends ? &rig->a : &rig->b;
	const struct epf_tcp_lane *lane = epf_tcp_lane_at(epf_tcp_of(end->nic), 0);
	const struct epf_tcp_ring *ring = sends ? &lane->gpu->tx : &lane->gpu->rx;
	struct epf_wr wr = rig_write(rig, 1, 0, 0, LEN);

	rig_fill(rig->a.mem, RIG_BYTES, 23);
	rig_post(rig, &wr);
	assert_int_equal(gpu_outcome(rig, 1), EPF_S_OK);
	assert_int_equal(ring->size, EPF_TCP_RING_LEAST);
	epf_copy_fake_hold(2);
	for (uint32_t i = 0; i < WRITES; i++) {
		wr = rig_write(rig, 2 + i, i * LEN, i * LEN, LEN);
		gpu_post_all(rig, &wr, 1);
	}
	reap_often(rig);
	epf_copy_fake_hold(0);
	assert_int_equal(gpu_outcome(rig, 1 + WRITES), EPF_S_OK);
	wr = rig_write(rig, 2 + WRITES, 0, 0, LEN);
	rig_post(rig, &wr);
	assert_int_equal(gpu_outcome(rig, 2 + WRITES), EPF_S_OK);
	assert_int_equal(ring->size, EPF_TCP_RING_BUSY);
	assert_memory_equal(rig->b.mem, rig->a.mem, WRITES * LEN);
	rig_close(rig);
}

static void test_ring_grows(void **state)
{
	ring_grows(&from_gpu);
	ring_grows(&to_gpu);
}

/* Trains are received while copies of those before are under way, and take effect in order when these are over. */
static void test_held_trains(void **state)
{
	enum { WRITES = 120, LEN = 100 };
	struct rig *rig = rig_open(&to_gpu, NULL);
	const struct epf_tcp_lane *lane = epf_tcp_lane_at(epf_tcp_of(rig->b.nic), 0);
	struct epf_wr wr = rig_write(rig, 1, 0, 0, LEN);
	uint64_t trains;

	rig_post(rig, &wr);
	assert_int_equal(gpu_outcome(rig, 1), EPF_S_OK);
	rig_clear(rig);
	trains = epf_tcp_of(rig->a.nic)->counters.doorbells;
	rig->b.nic->ops->post_receives(rig->b.nic, WRITES);
	rig_fill(rig->a.mem, RIG_BYTES, 13);
	epf_copy_fake_hold(2);
	for (uint32_t i = 0; i < WRITES; i++) {
		wr = rig_write(rig, 100 + i, i * 200, i * 200, LEN);
		wr.op = EPF_WR_WRITE_IMM;
		wr.imm = i;
		gpu_post_all(rig, &wr, 1);
	}
	reap_often(rig);
	assert_true(epf_tcp_is_holding(lane));
	assert_true(epf_tcp_of(rig->a.nic)->counters.doorbells > trains + 1);
	assert_true(lane->gpu->held_last - lane->gpu->held_first == WRITES);
	assert_true(rig->b.nic->ops->next_event(rig->b.nic) > 0);
	assert_int_equal(rig->a.n + rig->b.n, 0);
	epf_copy_fake_hold(0);
	assert_int_equal(gpu_outcome(rig, 100 + WRITES - 1), EPF_S_OK);
	assert_int_equal(rig->b.n, WRITES);
	for (uint32_t i = 0; i < WRITES; i++) {
		assert_int_equal(rig->b.log[i].imm, i);
		assert_memory_equal(rig->b.mem + i * 200, rig->a.mem + i * 200, LEN);
	}
	assert_false(epf_tcp_is_holding(lane));
	rig_close(rig);
}

/* What needs no copy, in later trains, waits for those that are held; messages keep their bytes. */
static void test_behind_held(void **state)
{
	static unsigned char host[64];
	struct rig *rig = rig_open(&to_gpu, NULL);
	struct epf_nic_mr mr;
	struct epf_wr wr = rig_write(rig, 1, 0, 0, 512), last;

	assert_int_equal(rig->b.nic->ops->region_register(rig->b.nic, host, sizeof(host),
							  EPF_MR_REMOTE_WRITE, &mr),
			 0);
	rig_post(rig, &wr);
	assert_int_equal(gpu_outcome(rig, 1), EPF_S_OK);
	rig_clear(rig);
	rig->b.nic->ops->post_receives(rig->b.nic, 8);
	rig_fill(rig->a.mem, RIG_BYTES, 17);
	epf_copy_fake_hold(2);
	for (uint32_t i = 0; i < 2; i++) { /* each with a message */
		wr = rig_write(rig, 10 + i, 4096, 4096, 600);
		wr.op = EPF_WR_WRITE_IMM;
		wr.imm = i;
		rig_post(rig, &wr);
		wr = rig_write(rig, 20 + i, i * 64, 0, 64);
		wr.op = EPF_WR_SEND;
		rig_inline(rig, &wr);
		rig_post(rig, &wr);
		reap_often(rig);
	}
	last = rig_write(rig, 30, 0, 0, 8);
	last.op = EPF_WR_WRITE_IMM;
	last.imm = 2;
	last.raddr = mr.raddr;
	last.rkey = mr.rkey;
	rig_inline(rig, &last);
	rig_post(rig, &last);
	reap_often(rig);
	assert_int_equal(rig->a.n + rig->b.n, 0);
	epf_copy_fake_hold(0);
	assert_int_equal(gpu_outcome(rig, 30), EPF_S_OK);
	assert_int_equal(rig->b.n, 5);
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(rig->b.log[2 * i].imm, i);
		assert_int_equal(rig->b.log[2 * i + 1].op, EPF_WC_RECV);
		assert_memory_equal(rig->b.msg[2 * i + 1], rig->a.mem + i * 64, 64);
	}
	assert_int_equal(rig->b.log[4].imm, 2);
	/* The same without messages, so that the first train is held and the second is not copied. */
	rig_clear(rig);
	epf_copy_fake_hold(2);
	wr = rig_write(rig, 40, 4096, 4096, 600);
	wr.op = EPF_WR_WRITE_IMM;
	wr.imm = 3;
	rig_post(rig, &wr);
	reap_often(rig);
	last.id = 41;
	rig_post(rig, &last);
	reap_often(rig);
	assert_int_equal(rig->a.n + rig->b.n, 0);
	epf_copy_fake_hold(0);
	assert_int_equal(gpu_outcome(rig, 41), EPF_S_OK);
	assert_int_equal(rig->b.log[0].imm, 3);
	assert_int_equal(rig->b.log[1].imm, 2);
	rig_close(rig);
}

/* A fenced lane is not drained while its copies may still land. */
static void test_fence(void **state)
{
	unsigned char *seen = malloc(RIG_BYTES);
	struct rig *rig = rig_open(&to_gpu, NULL);
	struct epf_nic *b = rig->b.nic;
	struct epf_wr wr = rig_write(rig, 1, 0, 0, 3000);

	assert_non_null(seen);
	rig_fill(rig->a.mem, RIG_BYTES, 5);
	memset(rig->b.mem, 0, RIG_BYTES);
	rig_post(rig, &wr);
	assert_int_equal(gpu_outcome(rig, 1), EPF_S_OK);
	epf_copy_fake_hold(2);
	wr = rig_write(rig, 2, 0, 8192, 3000);
	rig_post(rig, &wr);
	reap_often(rig);
	b->ops->lane_fence(b, 0);
	reap_often(rig);
	assert_int_equal(b->ops->lane_drained(b, 0), 0);
	epf_copy_fake_hold(0);
	for (int i = 0; i < 20000 && !b->ops->lane_drained(b, 0); i++) {
		rig_reap(&rig->b);
		usleep(500);
	}
	assert_int_equal(b->ops->lane_drained(b, 0), 1);
	memcpy(seen, rig->b.mem, RIG_BYTES);
	reap_often(rig);
	assert_memory_equal(seen, rig->b.mem, RIG_BYTES);
	rig_run(rig, MS);
	rig_expect_whole(rig);
	rig_close(rig);
	free(seen);
}

/* Kernels run and wait for copies, so a call of the driver that waits for kernels never returns. The first copies of a region need none. */
static void test_first_copies(void **state)
{
	static unsigned char host[3][64];
	static struct epf_tcp_pinned failures;
	struct epf_copy_mem *mem;
	struct epf_nic *nic;
	struct epf_nic_mr mr;
	struct epf_tcp_copier *copier;
	void *gpu;

	assert_int_equal(open_one("fake", NULL, NULL, &nic), 0);
	assert_int_equal(epf_copy_fake.mem_alloc(0, 4096, &gpu), 0);
	assert_int_equal(epf_copy_mem_wrap(&epf_copy_fake, gpu, 4096, &mem), 0);
	assert_int_equal(nic->ops->region_register_gpu(nic, mem, EPF_MR_REMOTE_WRITE, &mr), 0);
	copier = epf_tcp_of(nic)->copier;
	epf_copy_fake_hold(4);
	/* The three queues may run at once, so each job uses different memory. */
	for (uint64_t i = 0; i < 3; i++) {
		struct epf_tcp_spot at = { mem, 64 * (i + 1) };
		struct epf_tcp_spot of = { NULL, (uint64_t)(uintptr_t)host[i] };
		struct epf_tcp_job job = { i == 1 ? of : at, i ? at : of, sizeof(host[i]),
					   &failures, i == 2 ? EPF_TCP_JOB_ADD : EPF_TCP_JOB_COPY };

		epf_tcp_copier_push(copier, &job);
		epf_tcp_copier_kick(copier);
	}
	assert_true(epf_tcp_copier_quiesce(copier));
	assert_int_equal(failures.failed, 0);
	epf_copy_fake_hold(0);
	nic->ops->region_deregister(nic, &mr);
	epf_copy_mem_put(mem);
	nic->ops->close(nic);
	epf_copy_fake.mem_free(gpu);
}

/* Nor do those for which rings grow, and the first of a new connection. */
static void test_while_kernels_wait(void **state)
{
	enum { MANY = 100000 };
	struct rig *rig = rig_open(&both, NULL);
	struct epf_wr wr = rig_write(rig, 1, 0, 0, 512);

	rig_fill(rig->a.mem, RIG_BYTES, 23);
	rig_post(rig, &wr);
	assert_int_equal(gpu_outcome(rig, 1), EPF_S_OK);
	epf_copy_fake_hold(4);
	wr = rig_write(rig, 2, 4096, 4096, MANY);
	rig_post(rig, &wr);
	assert_int_equal(gpu_outcome(rig, 2), EPF_S_OK);
	rig_reconnect(rig);
	rig_clear(rig);
	wr = rig_write(rig, 3, 4096 + MANY, 4096 + MANY, 512);
	rig_post(rig, &wr);
	assert_int_equal(gpu_outcome(rig, 3), EPF_S_OK);
	epf_copy_fake_hold(0);
	assert_memory_equal(rig->b.mem, rig->a.mem, 512);
	assert_memory_equal(rig->b.mem + 4096, rig->a.mem + 4096, MANY + 512);
	rig_close(rig);
}

/* Stalled copies are reported, as those of the software NIC. */
static void test_stuck(void **state)
{
	gpu_stands_still(&both, 1, "does not return from submitting copies");
	gpu_stands_still(&both, 2, "has accepted them and they do not end");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_events),     CASE(test_idle_while_copying), CASE(test_idle_while_full),
		CASE(test_ring_grows), CASE(test_held_trains),        CASE(test_behind_held),
		CASE(test_fence),      CASE(test_first_copies),       CASE(test_while_kernels_wait),
		CASE(test_stuck),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
