/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The TCP NIC and GPU memory (a fake one, that no CPU code may touch): what the conformance suite, which runs over it too, does not look at. Overlapping writes, transfers longer
 * than a ring, events after their bytes, reads, refusals, fences and withdrawals with copies under way, copies that fail, additions, several links. Fake copies are held by the
 * test, so nothing depends on time.
 */
#include "fabric/gpu/copy.h"
#include "fabric/nic/tcp/tcp.h"
#include "tests/unit/nic/nic_rig.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define MS 1000000ull

static int open_one(const struct epf_emu_opts *tune, const char *gpu, uint64_t (*now)(void *),
		    void *arg, struct epf_nic **out)
{
	struct epf_tcp_opts opts;

	(void)tune;
	epf_tcp_opts_defaults(&opts);
	opts.gpu = gpu;
	return epf_tcp_open(&opts, now, arg, out);
}

static int open_fake(const struct epf_emu_opts *tune, int end, uint64_t (*now)(void *), void *arg,
		     struct epf_nic **out)
{
	return open_one(tune, "fake", now, arg, out);
}

static int open_links(const struct epf_emu_opts *tune, int end, uint64_t (*now)(void *), void *arg,
		      struct epf_nic **out)
{
	struct epf_nic *child[2];

	assert_int_equal(open_one(tune, "fake", now, arg, &child[0]), 0);
	assert_int_equal(open_one(tune, "fake", now, arg, &child[1]), 0);
	epf_tcp_share_wakeup(child[1], child[0]);
	return epf_nic_rails_open(child, 2, out);
}

static const struct nic_kind both = { "tcp, GPU to GPU", 1, 1, 1, 1, 0, 0, 3, open_fake };
static const struct nic_kind to_gpu = { "tcp, host to GPU", 1, 1, 1, 1, 0, 0, 2, open_fake };
static const struct nic_kind from_gpu = { "tcp, GPU to host", 1, 1, 1, 1, 0, 0, 1, open_fake };
static const struct nic_kind links = { "tcp, two links", 1, 1, 1, 1, 0, 0, 3, open_links };

static void post_all(struct rig *rig, const struct epf_wr *wr, unsigned n)
{
	while (n) {
		int taken = rig->a.nic->ops->post(rig->a.nic, 0, wr, n);

		assert_true(taken >= 0 && (unsigned)taken <= n);
		wr += taken;
		n -= (unsigned)taken;
		rig_reap(&rig->b);
		rig_reap(&rig->a);
	}
}

/* Reaps both ends until the copies that are held back leave nothing else to do. */
static void reap_often(struct rig *rig)
{
	for (int i = 0; i < 200; i++) {
		rig_reap(&rig->a);
		rig_reap(&rig->b);
		usleep(100);
	}
}

/* Runs until request `id` is reported; returns its status. */
static int outcome(struct rig *rig, uint32_t id)
{
	int status = -1;

	for (int i = 0; i < 200 && !rig_sent(rig, &rig->a, id, &status); i++)
		rig_run(rig, MS);
	return status;
}

/* The later of two writes wins, however many are posted at once and however their copies are gathered. */
static void overlapping_writes(const struct nic_kind *kind, unsigned at_once)
{
	enum { WRITES = 1500, SPAN = 8192, LEN = 900, MOST = 128 };
	struct rig *rig = rig_open(kind, NULL);
	unsigned char *model = calloc(1, SPAN);
	struct epf_wr wr[MOST];
	uint64_t random = 12345;
	unsigned n = 0;

	assert_non_null(model);
	rig_fill(rig->a.mem, RIG_BYTES, 77);
	memset(rig->b.mem, 0, SPAN);
	for (uint32_t i = 0; i < WRITES; i++) {
		uint32_t len = 1 + (uint32_t)(rig_random(&random) % LEN);
		uint64_t src = rig_random(&random) % (RIG_BYTES - LEN);
		uint64_t dst = rig_random(&random) % (SPAN - LEN);

		wr[n] = rig_write(rig, i, src, dst, len);
		if (i % 37 == 0) {
			wr[n].len = len = 1 + len % EPF_NIC_MSG_BYTES;
			rig_inline(rig, &wr[n]);
		}
		memcpy(model + dst, rig->a.mem + src, len);
		if (++n == at_once || i + 1 == WRITES) {
			post_all(rig, wr, n);
			n = 0;
		}
	}
	assert_int_equal(outcome(rig, WRITES - 1), EPF_S_OK);
	assert_memory_equal(rig->b.mem, model, SPAN);
	free(model);
	rig_close(rig);
}

static void test_overlap(void **state)
{
	for (unsigned at_once = 1; at_once <= 128; at_once = at_once * 4 + 3) {
		overlapping_writes(&both, at_once);
		overlapping_writes(&to_gpu, at_once);
		overlapping_writes(&from_gpu, at_once);
	}
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
		post_all(rig, &wr, 1);
	}
	assert_int_equal(outcome(rig, WRITES - 1), EPF_S_OK);
	assert_memory_equal(rig->b.mem, model, RIG_BYTES);
	free(model);
	rig_close(rig);
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
	assert_int_equal(outcome(rig, 1), EPF_S_OK);
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
	post_all(rig, wr, 3);
	reap_often(rig);
	assert_int_equal(rig->a.n, 0);
	assert_int_equal(rig->b.n, 0);
	epf_copy_fake_hold(0);
	assert_int_equal(outcome(rig, 4), EPF_S_OK);
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
	assert_int_equal(outcome(rig, 1), EPF_S_OK);
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
	assert_int_equal(outcome(rig, 5), EPF_S_OK);
	rig_close(rig);
}

/* The same where the ring that is received into is full. */
static void test_idle_while_full(void **state)
{
	struct rig *rig = rig_open(&to_gpu, NULL);
	struct epf_wr wr = rig_write(rig, 1, 0, 0, 30000);
	struct epf_nic *b = rig->b.nic;

	rig_post(rig, &wr);
	assert_int_equal(outcome(rig, 1), EPF_S_OK);
	rig_clear(rig);
	epf_copy_fake_hold(2);
	for (wr.id = 2; wr.id < 10; wr.id++)
		rig_post(rig, &wr);
	reap_often(rig);
	assert_int_equal(rig->a.n, 0);
	assert_true(b->ops->next_event(b) > 0);
	epf_copy_fake_hold(0);
	assert_int_equal(outcome(rig, 9), EPF_S_OK);
	rig_close(rig);
}

/* Trains are received while copies of those before are under way, and take effect in order when these are over. */
static void test_held_trains(void **state)
{
	enum { WRITES = 120, LEN = 100 };
	struct rig *rig = rig_open(&to_gpu, NULL);
	const struct epf_tcp_lane *lane = epf_tcp_lane_at(epf_tcp_of(rig->b.nic), 0);
	struct epf_wr wr = rig_write(rig, 1, 0, 0, LEN);

	rig_post(rig, &wr);
	assert_int_equal(outcome(rig, 1), EPF_S_OK);
	rig_clear(rig);
	rig->b.nic->ops->post_receives(rig->b.nic, WRITES);
	rig_fill(rig->a.mem, RIG_BYTES, 13);
	epf_copy_fake_hold(2);
	for (uint32_t i = 0; i < WRITES; i++) {
		wr = rig_write(rig, 100 + i, i * 200, i * 200, LEN);
		wr.op = EPF_WR_WRITE_IMM;
		wr.imm = i;
		post_all(rig, &wr, 1);
	}
	reap_often(rig);
	assert_true(epf_tcp_is_holding(lane));
	assert_true(lane->gpu->held_last > EPF_TCP_TRAIN); /* more than one train */
	assert_true(rig->b.nic->ops->next_event(rig->b.nic) > 0);
	assert_int_equal(rig->a.n + rig->b.n, 0);
	epf_copy_fake_hold(0);
	assert_int_equal(outcome(rig, 100 + WRITES - 1), EPF_S_OK);
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
	assert_int_equal(outcome(rig, 1), EPF_S_OK);
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
	assert_int_equal(outcome(rig, 30), EPF_S_OK);
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
	assert_int_equal(outcome(rig, 41), EPF_S_OK);
	assert_int_equal(rig->b.log[0].imm, 3);
	assert_int_equal(rig->b.log[1].imm, 2);
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
		post_all(rig, &wr, 1);
	}
	assert_int_equal(outcome(rig, READS - 1), EPF_S_OK);
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

/* One of many that are posted together is wrong: those before it are there, none behind it, and the lane is in error. */
static void test_wrong_among_many(void **state)
{
	enum { WRITES = 40, LEN = 1024, WRONG = 11 };

	for (unsigned how = 0; how < 3; how++) {
		struct rig *rig = rig_open(&both, NULL);
		struct epf_wr wr[WRITES];
		unsigned failed = 0;

		rig_fill(rig->a.mem, RIG_BYTES, 3);
		memset(rig->b.mem, 0, RIG_BYTES);
		for (uint32_t i = 0; i < WRITES; i++)
			wr[i] = rig_write(rig, i, i * LEN, i * LEN, LEN);
		if (how == 0)
			wr[WRONG].rkey ^= 0x10000;
		else if (how == 1)
			wr[WRONG].raddr = rig->b.base + RIG_BYTES - LEN + 1;
		else
			wr[WRONG].laddr += RIG_BYTES;
		assert_int_not_equal(rig->a.nic->ops->post(rig->a.nic, 0, wr, WRITES), 0);
		assert_int_equal(outcome(rig, WRONG), how == 2 ? EPF_S_LOCAL : EPF_S_REMOTE_ACCESS);
		for (unsigned i = 0; i < rig->a.n; i++)
			failed += rig->a.log[i].status == EPF_S_LOCAL ||
				  rig->a.log[i].status == EPF_S_REMOTE_ACCESS;
		assert_int_equal(failed, 1);
		assert_int_equal(rig->a.nic->ops->lane_link(rig->a.nic, 0), EPF_LANE_ERROR);
		assert_memory_equal(rig->b.mem, rig->a.mem, WRONG * LEN);
		for (unsigned i = WRONG * LEN; i < RIG_BYTES; i++)
			assert_int_equal(rig->b.mem[i], 0);
		rig_expect_whole(rig);
		rig_close(rig);
	}
}

/* Copies that fail: at the source its request fails as wrong by itself, at the target it is refused, and a new lane works when the GPU does. */
static void copies_fail(const struct nic_kind *kind, int is_read, int expected)
{
	struct rig *rig = rig_open(kind, NULL);
	struct epf_wr wr = rig_write(rig, 1, 0, 0, 3000);

	rig_post(rig, &wr);
	assert_int_equal(outcome(rig, 1), EPF_S_OK);
	epf_copy_fake_hold(3);
	if (is_read)
		wr.op = EPF_WR_READ;
	wr.id = 2;
	rig_post(rig, &wr);
	wr.id = 3;
	rig_post(rig, &wr);
	assert_int_equal(outcome(rig, 2), expected);
	assert_int_equal(outcome(rig, 3), EPF_S_FLUSHED);
	epf_copy_fake_hold(0);
	rig_reconnect(rig);
	rig_clear(rig);
	/* Other bytes: copies that have failed may still be made. */
	rig_fill(rig->a.mem + 65536, 3000, 21);
	wr = rig_write(rig, 4, 65536, 65536, 3000);
	rig_post(rig, &wr);
	assert_int_equal(outcome(rig, 4), EPF_S_OK);
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
	assert_int_equal(outcome(rig, 1), EPF_S_OK);
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

/* A region's key stops working, at the target as at the source; its copies are over when it has gone. */
static void test_withdrawn(void **state)
{
	struct rig *rig = rig_open(&both, NULL);
	struct epf_wr wr = rig_write(rig, 1, 0, 0, 5000);
	struct epf_copy_mem *mem;

	rig_fill(rig->a.mem, 5000, 5);
	rig_post(rig, &wr);
	assert_int_equal(outcome(rig, 1), EPF_S_OK);
	memset(rig->b.mem, 0, 5000);
	rig->b.nic->ops->region_deregister(rig->b.nic, &rig->b.mr);
	wr.id = 2;
	rig_post(rig, &wr);
	assert_int_equal(outcome(rig, 2), EPF_S_REMOTE_ACCESS);
	for (unsigned i = 0; i < 5000; i++)
		assert_int_equal(rig->b.mem[i], 0);
	assert_int_equal(epf_copy_mem_wrap(&epf_copy_fake, rig->b.gpu, RIG_BYTES, &mem), 0);
	assert_int_equal(rig->b.nic->ops->region_register_gpu(rig->b.nic, mem, EPF_MR_REMOTE_WRITE,
							      &rig->b.mr),
			 0);
	epf_copy_mem_put(mem);
	rig_reconnect(rig);
	rig_clear(rig);
	wr = rig_write(rig, 3, 0, 0, 5000);
	rig_post(rig, &wr);
	assert_int_equal(outcome(rig, 3), EPF_S_OK);
	assert_true(rig_matches(rig->b.mem, 5000, 5));
	wr.id = 4; /* not for reading */
	wr.op = EPF_WR_READ;
	rig_post(rig, &wr);
	assert_int_equal(outcome(rig, 4), EPF_S_REMOTE_ACCESS);
	rig_close(rig);
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
	assert_int_equal(outcome(rig, 1), EPF_S_OK);
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
	assert_int_equal(open_one(NULL, "none", NULL, &now, &nic), 0);
	assert_int_not_equal(nic->ops->region_register_gpu(nic, mem, 0, &mr), 0);
	nic->ops->close(nic);
	epf_copy_mem_put(mem);
	epf_copy_fake.mem_free(gpu);
}

static int release(void **state)
{
	epf_copy_fake_hold(0);
	return 0;
}

#define CASE(name) cmocka_unit_test_teardown(name, release)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_overlap),
		CASE(test_sizes),
		CASE(test_events),
		CASE(test_idle_while_copying),
		CASE(test_idle_while_full),
		CASE(test_held_trains),
		CASE(test_behind_held),
		CASE(test_reads),
		CASE(test_wrong_among_many),
		CASE(test_failing_gpu),
		CASE(test_fence),
		CASE(test_withdrawn),
		CASE(test_adopted),
		CASE(test_additions),
		CASE(test_links),
		CASE(test_no_gpu),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
