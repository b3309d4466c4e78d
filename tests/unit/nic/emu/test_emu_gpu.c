/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The emulated NIC and GPU memory (a fake one, that no CPU code may touch): what the conformance suite and the random traffic, which run
 * over it too, do not look at. Order of overlapping writes, fences with copies under way, withdrawn regions, additions, a NIC
 * without a GPU, many regions.
 */
#include "fabric/nic/emu/copier_priv.h"
#include "fabric/nic/emu/copies.h"
#include "fabric/nic/emu/emu.h"
#include "tests/unit/nic/gpu_kit.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static int open_fake(const struct epf_emu_opts *tune, int end, uint64_t (*now)(void *), void *arg,
		     struct epf_nic **out)
{
	struct epf_emu_opts opts = *tune;

	opts.ordered = 1;
	return epf_emu_open(&opts, now, arg, out);
}

/* b has no GPU. */
static int open_half(const struct epf_emu_opts *tune, int end, uint64_t (*now)(void *), void *arg,
		     struct epf_nic **out)
{
	struct epf_emu_opts opts = *tune;

	opts.ordered = 1;
	if (end)
		opts.gpu = "none";
	return epf_emu_open(&opts, now, arg, out);
}

static const struct nic_kind both = { "emu ordered, GPU to GPU", 1, 1, 0, 0, 0, 0, 3, open_fake };
static const struct nic_kind to_gpu = {
	"emu ordered, host to GPU", 1, 1, 0, 0, 0, 0, 2, open_fake
};
static const struct nic_kind from_gpu = {
	"emu ordered, GPU to host", 1, 1, 0, 0, 0, 0, 1, open_fake
};
static const struct nic_kind half = {
	"emu ordered, GPU to a NIC without", 1, 1, 0, 0, 0, 0, 1, open_half
};

static void test_overlap(void **state)
{
	gpu_later_writes_win(&both);
	gpu_later_writes_win(&to_gpu);
	gpu_later_writes_win(&from_gpu);
}

/* Writes posted together that share a packet: each has its event, in order, none without a receive, and after its bytes. */
static void test_events(void **state)
{
	enum { WRITES = 100, LEN = 1024, EVERY = 7, EVENTS = (WRITES + EVERY - 1) / EVERY };
	struct rig *rig = rig_open(&both, NULL);
	struct epf_wr wr[WRITES];
	unsigned seen = 0;
	int status;

	rig_fill(rig->a.mem, RIG_BYTES, 3);
	memset(rig->b.mem, 0, RIG_BYTES);
	for (uint32_t i = 0; i < WRITES; i++) {
		wr[i] = rig_write(rig, i, i * LEN, i * LEN, LEN - 24);
		wr[i].imm = 1000 + i;
		if (i % EVERY == 0)
			wr[i].op = EPF_WR_WRITE_IMM;
	}
	gpu_post_all(rig, wr, WRITES);
	for (unsigned given = 0; given < EVENTS; given++) {
		rig_run(rig, 10 * MS);
		assert_int_equal(rig->b.n, given);
		rig->b.nic->ops->post_receives(rig->b.nic, 1);
	}
	rig_run(rig, 10 * MS);
	assert_int_equal(rig->b.n, EVENTS);
	for (unsigned i = 0; i < rig->b.n; i++, seen += EVERY) {
		assert_int_equal(rig->b.log[i].op, EPF_WC_RECV_IMM);
		assert_int_equal(rig->b.log[i].imm, 1000 + seen);
		assert_int_equal(rig->b.log[i].len, LEN - 24);
		assert_memory_equal(rig->b.mem + seen * LEN, rig->a.mem + seen * LEN, LEN - 24);
	}
	assert_true(rig_sent(rig, &rig->a, WRITES - 1, &status) && status == EPF_S_OK);
	for (uint32_t i = 0; i < WRITES; i++)
		assert_memory_equal(rig->b.mem + i * LEN, rig->a.mem + i * LEN, LEN - 24);
	rig_close(rig);
}

static void test_wrong_among_many(void **state)
{
	gpu_wrong_among_many(&both);
}

/* After a fence nothing of the lane changes memory once it is drained, whatever was under way. */
static void test_fence(void **state)
{
	unsigned char *seen = malloc(RIG_BYTES);
	unsigned landed = 0, kept = 0;

	assert_non_null(seen);
	for (unsigned round = 0; round < 30; round++) {
		struct rig *rig = rig_open(&both, NULL);

		rig->b.nic->ops->post_receives(rig->b.nic, 200);
		rig_fill(rig->a.mem, RIG_BYTES, round);
		for (uint32_t i = 0; i < 100; i++) {
			struct epf_wr wr = rig_write(rig, i, i * 2048, i * 2048, 2000);

			wr.op = EPF_WR_WRITE_IMM;
			rig_post(rig, &wr);
		}
		for (unsigned i = 0; i < round; i++)
			rig_reap(&rig->b);
		rig->b.nic->ops->lane_fence(rig->b.nic, 0);
		for (unsigned i = 0; i < 20000; i++) {
			rig_reap(&rig->b);
			if (rig->b.nic->ops->lane_drained(rig->b.nic, 0))
				break;
			usleep(500);
		}
		assert_int_equal(rig->b.nic->ops->lane_drained(rig->b.nic, 0), 1);
		memcpy(seen, rig->b.mem, RIG_BYTES);
		rig_run(rig, 20 * MS);
		assert_memory_equal(seen, rig->b.mem, RIG_BYTES);
		/* What was announced is there. */
		for (unsigned i = 0; i < rig->b.n; i++)
			assert_memory_equal(rig->b.mem + i * 2048, rig->a.mem + i * 2048, 2000);
		landed += rig->b.n;
		kept += 100 - rig->b.n;
		rig_expect_whole(rig);
		rig_close(rig);
	}
	printf("# fence: %u writes were in time, %u were not\n", landed, kept);
	assert_true(kept);
	free(seen);
}

static void test_withdrawn(void **state)
{
	gpu_withdrawn(&both);
}

/* Copies begun at b when nothing more is there to begin. */
static unsigned copies_begun(struct rig *rig)
{
	for (int i = 0; i < 100; i++) {
		rig_reap(&rig->a);
		rig_reap(&rig->b);
	}
	return epf_emu_of(rig->b.nic)->copies_count;
}

/*
 * A write that the CPU lands, as control writes are, holds up no copies to GPU memory behind it, but those to host memory, where both could
 * write the same bytes.
 */
static void test_ahead_of_cpu(void **state)
{
	static unsigned char host[1024];
	struct rig *rig = rig_open(&both, NULL);
	struct epf_nic_mr mr;
	struct epf_wr wr[4];
	int status;

	assert_int_equal(rig->b.nic->ops->region_register(rig->b.nic, host, sizeof(host),
							  EPF_MR_REMOTE_WRITE, &mr),
			 0);
	rig_fill(rig->a.mem, RIG_BYTES, 9);
	wr[0] = rig_write(rig, 1, 0, 0, 512);
	rig_post(rig, &wr[0]); /* the copier is there, and the memory mapped */
	rig_run(rig, 10 * MS);
	for (unsigned i = 0; i < 4; i++)
		wr[i] = rig_write(rig, 2 + i, 1024 * i, 1024 * i, 512);
	wr[1].len = 8;
	rig_inline(rig, &wr[1]);
	wr[1].raddr = wr[3].raddr = mr.raddr;
	wr[1].rkey = wr[3].rkey = mr.rkey;
	epf_copy_fake_hold(1);
	for (unsigned i = 0; i < 3; i++) /* each in a separate packet */
		rig_post(rig, &wr[i]);
	assert_int_equal(copies_begun(rig), 2);
	rig_post(rig, &wr[3]);
	assert_int_equal(copies_begun(rig), 2);
	epf_copy_fake_hold(0);
	rig_run(rig, 10 * MS);
	assert_true(rig_sent(rig, &rig->a, 5, &status) && status == EPF_S_OK);
	assert_memory_equal(rig->b.mem + 2048, rig->a.mem + 2048, 512);
	assert_memory_equal(host, rig->a.mem + 3072, 512);
	rig_close(rig);
}

/* An addition goes before copies that were pushed earlier: what it must follow has landed, and a kernel waits for it. */
static void test_add_before_copies(void **state)
{
	enum { WRITES = 10 };
	struct rig *rig = rig_open(&both, NULL);
	const struct epf_nic_ops *ops = rig->b.nic->ops;
	uint64_t *word = (uint64_t *)(void *)(rig->b.mem + 8192);
	struct epf_wr wr = rig_write(rig, 0, 0, 0, 512);
	int status;

	rig_fill(rig->a.mem, 4096, 9);
	rig_post(rig, &wr); /* the copier is there, and the memory mapped */
	rig_run(rig, 10 * MS);
	epf_copy_fake_hold(1);
	for (uint32_t i = 1; i <= WRITES; i++) { /* the same bytes: each is a call by itself */
		wr = rig_write(rig, i, i, 0, 512);
		rig_post(rig, &wr);
	}
	assert_int_equal(copies_begun(rig), WRITES);
	usleep(20000); /* the copier waits in the first call */
	assert_int_equal(ops->add(rig->b.nic, &rig->b.mr, 8192, 5), 0);
	epf_copy_fake_let(2); /* the call that waits, and the next one */
	for (int i = 0; i < 5000 && __atomic_load_n(word, __ATOMIC_ACQUIRE) != 5; i++)
		usleep(1000);
	assert_int_equal(*word, 5);
	assert_true(epf_emu_of(rig->b.nic)->copies_count >= WRITES - 1);
	epf_copy_fake_hold(0);
	rig_run(rig, 10 * MS);
	assert_true(rig_sent(rig, &rig->a, WRITES, &status) && status == EPF_S_OK);
	assert_memory_equal(rig->b.mem, rig->a.mem + WRITES, 512);
	rig_close(rig);
}

/* Stalled copies are reported once, with what blocks them (a call of the driver's, or the device), and that they go on. */
static void test_stuck_driver(void **state)
{
	gpu_stands_still(&both, 1, "does not return from submitting copies");
}

static void test_stuck_copies(void **state)
{
	gpu_stands_still(&both, 2, "has accepted them and they do not end");
}

static void test_range(void **state)
{
	struct rig *rig = rig_open(&both, NULL);
	struct epf_wr wr = rig_write(rig, 1, 0, RIG_BYTES - 999, 1000);
	int status;

	rig_post(rig, &wr);
	rig_run(rig, MS);
	assert_true(rig_sent(rig, &rig->a, 1, &status));
	assert_int_equal(status, EPF_S_REMOTE_ACCESS);
	rig_reconnect(rig);
	rig_clear(rig);
	wr = rig_write(rig, 2, RIG_BYTES - 999, 0, 1000);
	rig_post(rig, &wr);
	rig_run(rig, MS);
	assert_true(rig_sent(rig, &rig->a, 2, &status));
	assert_int_equal(status, EPF_S_LOCAL);
	rig_close(rig);
}

static void test_add(void **state)
{
	struct rig *rig = rig_open(&both, NULL);
	const struct epf_nic_ops *ops = rig->b.nic->ops;
	uint64_t *words = (uint64_t *)(void *)rig->b.mem, sum = 0, was = UINT64_MAX - 10;

	words[3] = was;
	for (uint64_t i = 1; i <= 500; i++) {
		int rc = ops->add(rig->b.nic, &rig->b.mr, 24, i * i);

		assert_int_equal(rc, 0);
		sum += i * i;
		ops->wake_peers(rig->b.nic);
	}
	assert_int_equal(ops->add_pending(rig->b.nic), 1);
	while (ops->add_pending(rig->b.nic))
		sched_yield();
	assert_int_equal(words[3], was + sum);
	assert_int_equal(words[2], 0);
	assert_int_equal(words[4], 0);
	/* Not beyond the region, and not more at a time than there is room for. */
	assert_int_equal(ops->add(rig->b.nic, &rig->b.mr, RIG_BYTES - 7, 1), -EINVAL);
	for (unsigned i = 0, full = 0; !full; i++) {
		int rc = ops->add(rig->b.nic, &rig->b.mr, 0, 1);

		full = rc == -EAGAIN;
		assert_true(full || (rc == 0 && i < 5000));
		if (full)
			sum = i;
	}
	while (ops->add_pending(rig->b.nic)) {
		ops->wake_peers(rig->b.nic);
		sched_yield();
	}
	assert_int_equal(words[0], sum);
	rig_close(rig);
}

/* Whoever has no GPU software refuses, and says so; nobody hangs, and other traffic goes on. */
static void test_no_gpu(void **state)
{
	struct rig *rig = rig_open(&half, NULL);
	struct epf_wr wr = rig_write(rig, 1, 0, 0, 5000);
	int status;

	rig_post(rig, &wr);
	rig_run(rig, 10 * MS);
	assert_true(rig_sent(rig, &rig->a, 1, &status));
	assert_int_equal(status, EPF_S_REMOTE_ACCESS);
	rig_reconnect(rig);
	rig_clear(rig);
	wr.id = 2;
	rig_inline(rig, &wr);
	wr.len = 100;
	rig_fill(rig->a.mem, 100, 9);
	rig_post(rig, &wr);
	rig_run(rig, MS);
	assert_true(rig_sent(rig, &rig->a, 2, &status) && status == EPF_S_OK);
	assert_true(rig_matches(rig->b.mem, 100, 9));
	rig_close(rig);
}

/* Copies that fail on the device, after they were taken, are reported, and fail what waits for them. */
static void test_failed_copies(void **state)
{
	struct rig *rig = rig_open(&both, NULL);
	struct epf_wr wr = rig_write(rig, 1, 0, 0, 5000);
	int status = EPF_S_OK, before;
	FILE *file;

	file = gpu_catch_log(&before);
	epf_copy_fake_hold(3);
	rig_post(rig, &wr);
	rig_run(rig, 10 * MS);
	epf_copy_fake_hold(0);
	fflush(stderr);
	dup2(before, STDERR_FILENO);
	close(before);
	assert_true(gpu_was_logged(
		file, "failed on the device, 1 batches of them: fake GPU: a copy failed"));
	assert_true(rig_sent(rig, &rig->a, 1, &status));
	assert_int_equal(status, EPF_S_REMOTE_ACCESS);
	fclose(file);
	rig_close(rig);
}

/* A message's bytes come from host memory. */
static void test_send_from_gpu(void **state)
{
	struct rig *rig = rig_open(&both, NULL);
	struct epf_wr wr = rig_write(rig, 1, 0, 0, 8);
	int status;

	wr.op = EPF_WR_SEND;
	rig_post(rig, &wr);
	rig_run(rig, MS);
	assert_true(rig_sent(rig, &rig->a, 1, &status));
	assert_int_equal(status, EPF_S_LOCAL);
	rig_close(rig);
}

/* Memory without a name, as that of NCCL's signals, is a target of writes and additions; no other process can map it. */
static void test_private(void **state)
{
	struct epf_copy_mem *adopted;
	struct epf_copy_handle h;
	struct rig *rig;
	struct epf_wr wr;
	uint64_t *words, at;
	void *memory;
	int status;

	epf_copy_fake_private(1);
	rig = rig_open(&to_gpu, NULL);
	words = (uint64_t *)(void *)rig->b.mem;
	rig_fill(rig->a.mem, 5000, 8);
	wr = rig_write(rig, 1, 0, 0, 5000);
	rig_post(rig, &wr);
	rig_run(rig, MS);
	assert_true(rig_sent(rig, &rig->a, 1, &status) && status == EPF_S_OK);
	assert_true(rig_matches(rig->b.mem, 5000, 8));
	words[700] = 5;
	assert_int_equal(rig->b.nic->ops->add(rig->b.nic, &rig->b.mr, 5600, 37), 0);
	for (int i = 0; i < 60000 && rig->b.nic->ops->add_pending(rig->b.nic); i++) {
		rig_reap(&rig->b);
		usleep(100);
	}
	assert_int_equal(words[700], 42);
	rig_close(rig);
	assert_int_equal(epf_copy_fake.mem_alloc(0, 4096, &memory), 0);
	assert_int_equal(epf_copy_fake.mem_export(memory, 4096, &h), 0);
	epf_copy_fake_private(0);
	assert_int_equal(h.kind, EPF_COPY_LOCAL);
	assert_int_equal(h.fd, -1);
	assert_true(epf_copy_mem_adopt(&epf_copy_fake, &h, 4096, &adopted) < 0);
	assert_true(epf_copy_fake.mem_import(&h, 0, &at) < 0);
	epf_copy_fake.mem_free(memory);
}

/* A region of the segment's own NIC, with entry `at` of its table of GPU memory. */
static struct epf_copy_mem *own_region(struct epf_emu_seg *seg, uint32_t at, void *addr)
{
	struct epf_copy_mem *mem;

	assert_int_equal(epf_copy_mem_wrap(&epf_copy_fake, addr, 4096, &mem), 0);
	seg->gpu[at] = (struct epf_emu_gpu_region){
		.key = at, .kind = mem->handle.kind, .base = mem->addr, .len = 4096, .bytes = 4096
	};
	assert_int_equal(epf_emu_import_add_own(seg->nonce, at, mem), 0);
	return mem;
}

/*
 * Memory made for sharing is mapped for each GPU that copies it, whichever asks first; what was not is copied as it is, on its own GPU. Each question has the
 * same answer when it is asked again.
 */
static void test_copies_of_two_devices(void **state)
{
	const struct epf_emu_opts opts = { .packets = 16, .mtu = 1024, .lanes = 1 };
	struct epf_emu_window w[2][4];
	struct epf_copy_mem *shared, *private;
	struct epf_emu_seg *seg;
	void *memory[2];
	uint32_t before;

	(void)state;
	assert_int_equal(epf_emu_seg_create(&opts, &seg), 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(epf_copy_fake.mem_alloc(0, 4096, &memory[i]), 0);
	shared = own_region(seg, 1, memory[0]);
	epf_copy_fake_private(1);
	private = own_region(seg, 2, memory[1]);
	epf_copy_fake_private(0);
	for (uint32_t key = 1; key <= 2; key++)
		for (int i = 0; i < 4; i++)
			assert_int_equal(epf_emu_import_peer(&epf_copy_fake, seg, key, i % 2, false,
							     &w[key - 1][i]),
					 0);
	for (int i = 0; i < 4; i++) {
		assert_int_equal(w[0][i].device, i % 2);
		assert_int_equal(w[1][i].device, 0);
		assert_true(w[0][i].at == w[0][i % 2].at);
		assert_true(w[1][i].at == w[1][0].at);
	}
	assert_true(w[0][0].at != w[0][1].at);
	before = epf_emu_import_generation();
	epf_emu_import_drop(seg);
	assert_int_equal(epf_emu_import_generation(), before + 4); /* none was noted twice */
	epf_emu_import_remove_own(seg->nonce, 1);
	epf_emu_import_remove_own(seg->nonce, 2);
	epf_emu_import_owns(NULL); /* ends the uses of both */
	epf_copy_mem_put(shared);
	epf_copy_mem_put(private);
	for (int i = 0; i < 2; i++)
		epf_copy_fake.mem_free(memory[i]);
	epf_emu_seg_put(seg);
}

static struct {
	struct epf_emu_copier *copier;
	struct epf_emu_seg *seg;
	int is_put;
} ending;

static void *end_copier(void *arg)
{
	epf_emu_copier_close(ending.copier);
	return arg;
}

static void *put_segment(void *arg)
{
	epf_emu_seg_put(ending.seg);
	__atomic_store_n(&ending.is_put, 1, __ATOMIC_RELEASE);
	return arg;
}

/* The copier's last user leaves while another thread's NIC ends: its segment stays until the copier has let go of it. */
static void test_end_beside_segment(void **state)
{
	const struct epf_emu_opts opts = { .packets = 16, .mtu = 1024, .lanes = 1 };
	struct epf_wakeup wakeup = { 0 };
	pthread_t closer, putter;
	int is_put;

	(void)state;
	assert_int_equal(epf_emu_seg_create(&opts, &ending.seg), 0);
	assert_int_equal(epf_emu_copier_open(&epf_copy_fake, 0, &wakeup, &ending.copier), 0);
	epf_emu_import_host(&epf_copy_fake, ending.seg);
	epf_copy_fake_hold(4); /* unregistering the segment's packets waits */
	assert_int_equal(pthread_create(&closer, NULL, end_copier, NULL), 0);
	for (int i = 0; i < 60000 && !epf_copy_fake_held(); i++)
		usleep(1000);
	assert_int_equal(epf_copy_fake_held(), 1);
	assert_int_equal(pthread_create(&putter, NULL, put_segment, NULL), 0);
	usleep(20000);
	is_put = __atomic_load_n(&ending.is_put, __ATOMIC_ACQUIRE);
	epf_copy_fake_hold(0);
	assert_int_equal(pthread_join(closer, NULL), 0);
	assert_int_equal(pthread_join(putter, NULL), 0);
	assert_int_equal(is_put, 0);
	assert_int_equal(ending.is_put, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_end_beside_segment),
		cmocka_unit_test(test_copies_of_two_devices),
		cmocka_unit_test(test_overlap),
		cmocka_unit_test(test_fence),
		cmocka_unit_test(test_withdrawn),
		cmocka_unit_test(test_range),
		cmocka_unit_test(test_add),
		cmocka_unit_test(test_no_gpu),
		cmocka_unit_test(test_send_from_gpu),
		cmocka_unit_test(test_private),
		cmocka_unit_test(test_ahead_of_cpu),
		cmocka_unit_test(test_events),
		cmocka_unit_test(test_wrong_among_many),
		cmocka_unit_test(test_stuck_driver),
		cmocka_unit_test(test_stuck_copies),
		cmocka_unit_test(test_add_before_copies),
		cmocka_unit_test(test_failed_copies),
	};

	return cmocka_run_group_tests_name("emulated NIC, GPU memory", tests, NULL, NULL);
}
