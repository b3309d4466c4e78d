/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device API and the GPU context without a GPU: kernels/epf_device.cuh as plain C on CPU threads, over the fake back-end. Leases, private
 * and shared rings over many laps with every command checked, deadlines, abort, what a failure says. Through engines: test_gpu_engine.c.
 */
#include "fabric/base/err.h"
#include "fabric/gpu/context.h"
#include "kernels/epf_device.cuh"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { LOG2 = 6, PRODUCERS = 6, EACH = 5000, SHARED_LOG2 = 7 };

/* A context over plain memory: one shared ring and n private ones. */
struct rig {
	struct epf_gpu_dev *dev;
	struct epf_gpu_context *context;
	struct epf_gpu_ring_from from[8];
	uint32_t n;
};

static struct epf_ring_shm *new_ring(unsigned log2, uint32_t id)
{
	size_t bytes = (epf_ring_bytes(log2) + 4095) / 4096 * 4096;
	struct epf_ring_shm *shm = aligned_alloc(4096, bytes);

	assert_non_null(shm);
	memset(shm, 0, bytes);
	epf_ring_format(shm, log2, id, 0);
	return shm;
}

static void rig_open(struct rig *r, uint32_t n_private, uint64_t timeout_ns)
{
	struct epf_gpu_parts parts = { .rings = r->from,
				       .n_shared = 1,
				       .n_private = n_private,
				       .world = 70,
				       .timeout_ns = timeout_ns };
	const struct epf_gpu_ops *ops;

	memset(r, 0, sizeof(*r));
	r->n = 1 + n_private;
	for (uint32_t i = 0; i < r->n; i++)
		r->from[i].shm = new_ring(i ? LOG2 : SHARED_LOG2, i);
	assert_return_code(epf_gpu_backend("fake", &ops), 0);
	assert_return_code(ops->open(-1, &r->dev), 0);
	assert_return_code(epf_gpu_context_create(r->dev, &parts, &r->context), 0);
}

static void rig_close(struct rig *r)
{
	epf_gpu_context_destroy(r->context);
	r->dev->ops->close(r->dev);
	for (uint32_t i = 0; i < r->n; i++)
		free(r->from[i].shm);
}

static const struct epf_gpu_ctx *ctx_of(const struct rig *r)
{
	return (const struct epf_gpu_ctx *)(uintptr_t)epf_gpu_context_addr(r->context);
}

/* ---- back-ends ---- */

static void tables_have_no_holes(void **state)
{
	static const char *const names[] = { "cuda", "hip", "fake", "none" };
	const struct epf_gpu_ops *ops;
	int n = 0;

	for (size_t i = 0; i < 4; i++) {
		const void *const *entry;

		assert_return_code(epf_gpu_backend(names[i], &ops), 0);
		assert_string_equal(ops->name, names[i]);
		entry = (const void *const *)ops;
		for (size_t k = 0; k < sizeof(*ops) / sizeof(void *); k++)
			assert_non_null(entry[k]);
	}
	assert_int_equal(epf_gpu_backend("cudd", &ops), -EINVAL);
	assert_non_null(strstr(epf_last_error(), "cudd"));
	assert_return_code(epf_gpu_backend("none", &ops), 0);
	assert_return_code(ops->count(&n), 0);
	assert_int_equal(n, 0);
}

static void fake_memory_moves(void **state)
{
	const struct epf_gpu_ops *ops = &epf_gpu_fake_ops;
	struct epf_gpu_copy two[2];
	struct epf_gpu_mem a, b, c, d;
	struct epf_gpu_place place;
	struct epf_gpu_dev *dev;
	struct epf_gpu_ipc ipc;
	void *stream, *event;
	uint64_t offset;
	int fd;

	assert_return_code(ops->open(1, &dev), 0);
	assert_return_code(ops->mem_alloc(dev, 10000, EPF_GPU_MEM_EXPORT, &a), 0);
	assert_return_code(ops->mem_alloc(dev, 10000, 0, &b), 0);
	assert_return_code(ops->fill(dev, a.addr, 7, 10000), 0);
	assert_return_code(ops->stream_create(dev, &stream), 0);
	assert_return_code(ops->event_create(dev, &event), 0);
	two[0] = (struct epf_gpu_copy){ b.addr, a.addr, 5000 };
	two[1] = (struct epf_gpu_copy){ b.addr + 6000, a.addr, 4 };
	assert_return_code(ops->copy_batch(dev, stream, two, 2), 0);
	assert_return_code(ops->event_record(dev, stream, event), 0);
	assert_int_equal(ops->event_query(dev, event), 1);
	assert_return_code(ops->stream_wait(dev, stream, event), 0);
	assert_memory_equal((void *)(uintptr_t)a.addr, (void *)(uintptr_t)b.addr, 5000);
	assert_int_equal(((uint8_t *)(uintptr_t)b.addr)[5000], 0);
	assert_return_code(ops->mem_export_fd(dev, &a, &fd), 0);
	assert_return_code(ops->mem_import_fd(dev, fd, a.bytes, &c), 0);
	close(fd);
	assert_return_code(ops->mem_export_ipc(dev, a.addr + 16, &ipc), 0);
	assert_return_code(ops->mem_import_ipc(dev, &ipc, &d), 0);
	((uint8_t *)(uintptr_t)a.addr)[16] = 99;
	assert_int_equal(((uint8_t *)(uintptr_t)c.addr)[16], 99);
	assert_int_equal(((uint8_t *)(uintptr_t)d.addr)[0], 99);
	assert_return_code(ops->mem_dmabuf(dev, a.addr + 4096, 100, &fd, &offset), 0);
	assert_int_equal(offset, 4096);
	close(fd);
	assert_return_code(ops->mem_place(dev, a.addr + 9, &place), 0);
	assert_int_equal(place.where, EPF_GPU_DEVICE);
	assert_int_equal(place.device, 1);
	assert_return_code(ops->mem_place(dev, (uintptr_t)&a, &place), 0);
	assert_int_equal(place.where, EPF_GPU_HOST);
	ops->mem_free(dev, &d);
	ops->mem_free(dev, &c);
	ops->mem_free(dev, &b);
	ops->mem_free(dev, &a);
	ops->event_destroy(dev, event);
	ops->stream_destroy(dev, stream);
	ops->close(dev);
}

/* ---- leases ---- */

static void leases_are_handed_round(void **state)
{
	struct epf_gpu_ring_at at;
	struct epf_dev d[4];
	struct rig r;

	rig_open(&r, 2, 1000000000);
	for (int i = 0; i < 4; i++)
		epf_dev_open(&d[i], ctx_of(&r));
	assert_int_not_equal(d[0].index, d[1].index);
	assert_false(epf_dev_is_shared(&d[0]) || epf_dev_is_shared(&d[1]));
	assert_true(epf_dev_is_shared(&d[2]) && epf_dev_is_shared(&d[3]));
	assert_int_equal(epf_dev_push(&d[0], epf_cmd_flush(0)), 0);
	assert_int_equal(epf_dev_ticket(&d[0]), 1);
	assert_return_code(epf_gpu_context_ring(r.context, 1 + d[0].index, &at), 0);
	assert_true(at.leased);
	epf_dev_close(&d[0]);
	assert_return_code(epf_gpu_context_ring(r.context, 1 + d[0].index, &at), 0);
	assert_false(at.leased);
	assert_int_equal(at.pushed, 1);
	/* The next holder goes on where the last one stopped. */
	epf_dev_open(&d[3], ctx_of(&r));
	assert_int_equal(d[3].index, d[0].index);
	assert_int_equal(d[3].head, 1);
	assert_int_equal(epf_dev_push(&d[3], epf_cmd_flush(0)), 0);
	assert_int_equal(epf_dev_ticket(&d[3]), 2);
	rig_close(&r);
}

/* ---- many producers, one consumer, every command looked at ---- */

struct producer {
	pthread_t thread;
	struct rig *r;
	uint32_t number;
	int rc;
};

static struct epf_cmd content(uint32_t producer, uint32_t seq)
{
	struct epf_cmd c = { ((uint64_t)seq << 16 | producer) << 1, 0 };

	c.hi = (c.lo * UINT64_C(0x9e3779b97f4a7c15)) & ~UINT64_C(1);
	return c;
}

static void *produce(void *arg)
{
	struct producer *p = arg;
	struct epf_dev d;

	epf_host_block = p->number;
	epf_dev_open(&d, ctx_of(p->r));
	for (uint32_t i = 0; i < EACH && !p->rc; i++)
		p->rc = epf_warp_push(&d, content(p->number, i), 1);
	epf_dev_close(&d);
	return NULL;
}

static void no_command_is_lost(void **state)
{
	struct producer p[PRODUCERS] = { 0 };
	struct epf_ring_consumer ring[3];
	uint32_t next[PRODUCERS] = { 0 };
	uint64_t left = PRODUCERS * EACH;
	struct rig r;

	/* Two have separate rings, four share one; 5,000 commands are many laps of 64 and 128 slots. */
	rig_open(&r, 2, UINT64_C(60000000000));
	for (uint32_t i = 0; i < 3; i++)
		epf_ring_consumer_init(&ring[i], r.from[i].shm, r.from[i].shm->log2_slots, 0);
	for (uint32_t i = 0; i < PRODUCERS; i++) {
		p[i].r = &r;
		p[i].number = i;
		assert_int_equal(pthread_create(&p[i].thread, NULL, produce, &p[i]), 0);
	}
	while (left)
		for (uint32_t i = 0; i < 3; i++) {
			struct epf_cmd c, want;

			if (!epf_ring_peek(&ring[i], ring[i].tail, &c)) {
				usleep(20);
				continue;
			}
			c.lo &= ~UINT64_C(1);
			c.hi &= ~UINT64_C(1);
			assert_in_range(c.lo >> 1 & 0xffff, 0, PRODUCERS - 1);
			want = content(c.lo >> 1 & 0xffff, next[c.lo >> 1 & 0xffff]++);
			assert_memory_equal(&c, &want, sizeof(c));
			ring[i].tail++;
			epf_ring_release(&ring[i]);
			left--;
		}
	for (uint32_t i = 0; i < PRODUCERS; i++) {
		pthread_join(p[i].thread, NULL);
		assert_int_equal(p[i].rc, 0);
	}
	rig_close(&r);
}

/* ---- what goes wrong ends, and says so ---- */

static void a_full_ring_ends_by_its_deadline(void **state)
{
	struct epf_gpu_status s;
	struct epf_dev d, e;
	struct rig r;
	int rc = 0;

	rig_open(&r, 1, 50000000);
	epf_dev_open(&d, ctx_of(&r));
	for (int i = 0; i < 1 << LOG2; i++)
		assert_int_equal(epf_dev_push(&d, epf_cmd_flush(0)), 0);
	assert_int_equal(epf_dev_push(&d, epf_cmd_flush(0)), EPF_GPU_TIMEOUT);
	assert_int_equal(epf_gpu_context_failure(r.context, &s), 1);
	assert_int_equal(s.code, EPF_GPU_TIMEOUT);
	assert_int_equal(s.what, EPF_GPU_ROOM);
	assert_int_equal(s.number, 1);
	assert_int_equal(s.want, 1);
	assert_int_equal(epf_gpu_context_failure(r.context, &s), 0);
	/* A shared ring has a slot that will never be written then: everybody gets an error, later ones too. */
	epf_dev_open_shared(&d, ctx_of(&r));
	epf_dev_open_shared(&e, ctx_of(&r));
	for (int i = 0; i <= 1 << SHARED_LOG2 && !rc; i++)
		rc = epf_dev_push(&d, epf_cmd_flush(0));
	assert_int_equal(rc, EPF_GPU_TIMEOUT);
	assert_int_equal(epf_dev_push(&e, epf_cmd_flush(0)), EPF_GPU_BROKEN);
	rig_close(&r);
}

static void the_host_can_stop_waits(void **state)
{
	struct epf_gpu_status s;
	struct epf_dev d;
	struct rig r;

	rig_open(&r, 1, UINT64_C(60000000000));
	epf_dev_open(&d, ctx_of(&r));
	epf_gpu_context_abort(r.context, -ECANCELED);
	assert_int_equal(epf_dev_wait(&d, 1), EPF_GPU_ABORTED);
	assert_int_equal(epf_gpu_context_failure(r.context, &s), 1);
	assert_int_equal(s.what, EPF_GPU_RETIRED);
	epf_gpu_context_abort(r.context, 0);
	assert_int_equal(epf_dev_wait_signal(ctx_of(&r), 0, 1), EPF_GPU_SIGNAL);
	rig_close(&r);
}

/* Kernels ask about one rank; waits for words end only where the host says so, and not when the word has come. */
static void a_loss_ends_waits(void **state)
{
	uint32_t gone[3] = { 0, 0, 1u << 1 }; /* rank 65 */
	struct epf_gpu_status s;
	uint64_t word = 0;
	struct rig r;

	rig_open(&r, 1, 20000000);
	assert_int_equal(epf_dev_losses(ctx_of(&r)), 0);
	epf_gpu_context_lose(r.context, gone, 1, false);
	assert_int_equal(epf_dev_losses(ctx_of(&r)), 1);
	for (uint32_t i = 0; i < 70; i++)
		assert_int_equal(epf_dev_is_gone(ctx_of(&r), i), i == 65);
	assert_int_equal(epf_dev_wait_word(ctx_of(&r), &word, 1), EPF_GPU_TIMEOUT);
	rig_close(&r);

	rig_open(&r, 1, UINT64_C(3600000000000));
	epf_gpu_context_lose(r.context, gone, 1, true);
	assert_int_equal(epf_dev_wait_word(ctx_of(&r), &word, 1), EPF_GPU_LOST);
	assert_int_equal(epf_gpu_context_failure(r.context, &s), 1);
	assert_int_equal(s.code, EPF_GPU_LOST);
	assert_int_equal(epf_dev_wait_word(ctx_of(&r), &word, 0), 0);
	gone[2] = 0;
	epf_gpu_context_lose(r.context, gone, 0, false);
	assert_int_equal(epf_dev_losses(ctx_of(&r)), 0);
	assert_int_equal(epf_dev_is_gone(ctx_of(&r), 65), 0);
	rig_close(&r);
}

static void what_cannot_be_said_is_refused(void **state)
{
	struct epf_ring_consumer c;
	struct epf_cmd slot[2] = { { 0, 0 } };
	struct epf_op op;
	struct epf_dev d;
	struct rig r;

	rig_open(&r, 1, 1000000000);
	epf_dev_open(&d, ctx_of(&r));
	/* Unaligned: two slots, one command. */
	assert_int_equal(epf_dev_put(&d, 3, 1, 5, 2, 7, 33, 0), 0);
	assert_int_equal(epf_dev_ticket(&d), 1);
	epf_ring_consumer_init(&c, r.from[1].shm, LOG2, 0);
	assert_true(epf_ring_peek(&c, 0, &slot[0]) && epf_ring_peek(&c, 1, &slot[1]));
	epf_op_unpack_wide(slot[0], slot[1], &op);
	assert_int_equal(op.op, EPF_OP_PUT);
	assert_int_equal(op.length, 33);
	assert_int_equal(op.remote_offset, 7);
	assert_int_equal(op.local_offset, 5);
	assert_false(op.reserved);
	assert_int_equal(epf_dev_put(&d, 1u << 24, 0, 0, 0, 0, 16, 0), EPF_GPU_LIMIT);
	assert_int_equal(epf_dev_put(&d, 0, 70000, 0, 0, 0, 16, 0), EPF_GPU_LIMIT);
	assert_int_equal(epf_dev_put(&d, 0, 0, 0, 0, 0, UINT64_C(1) << 32, 0), EPF_GPU_LIMIT);
	assert_int_equal(epf_warp_put(&d, 1, 0, 70000, 1, 0, 0, 16, 0), EPF_GPU_LIMIT);
	epf_dev_open_shared(&d, ctx_of(&r));
	assert_int_equal(epf_dev_put(&d, 0, 70000, 1, 0, 0, 16, 0), EPF_GPU_LIMIT);
	rig_close(&r);
}

/* ---- wide commands among narrow ones ---- */

static void a_head_counts_two_things(void **state)
{
	static const uint64_t starts[] = { 0, 5, (UINT64_C(1) << 40) - 3, UINT64_MAX - 7 };

	for (unsigned i = 0; i < 4; i++) {
		uint64_t slots = starts[i], wides = 0, head = slots;

		for (uint64_t n = 0; n < 100; n++) {
			uint64_t wide = n % 3 == 0;

			assert_int_equal(epf_gpu_head_slots(head, slots - n % 20), slots);
			assert_int_equal(epf_gpu_head_slots(head, slots + n % 20), slots);
			assert_int_equal(epf_gpu_head_wides(head, slots, wides + n % 7), wides);
			assert_int_equal(epf_gpu_head_wides(head, slots, wides - n % 7), wides);
			head += 1 + wide + wide * EPF_GPU_HEAD_WIDE;
			slots += 1 + wide;
			wides += wide;
		}
		/* Many turns of the 24 bits. */
		head += (UINT64_C(1) << 30) * EPF_GPU_HEAD_WIDE;
		assert_int_equal(epf_gpu_head_wides(head, slots, wides + (UINT64_C(1) << 30) - 9),
				 wides + (UINT64_C(1) << 30));
	}
}

/* A producer of narrow and wide puts: an odd length is a wide one. Keeps the ticket of each. */
struct mixer {
	pthread_t thread;
	struct rig *r;
	uint32_t number;
	int rc;
	uint64_t ticket[EACH];
};

static uint64_t mixed_bytes(uint32_t producer, uint32_t seq)
{
	return (seq * 7 + producer) % 5 == 0 ? seq * 16 + 33 : (seq + 1) * 16;
}

static void *mix(void *arg)
{
	struct mixer *m = arg;
	struct epf_dev d;

	epf_host_block = m->number;
	epf_dev_open(&d, ctx_of(m->r));
	for (uint32_t i = 0; i < EACH && !m->rc; i++) {
		uint64_t bytes = mixed_bytes(m->number, i);

		/* Thread and warp forms alternate. */
		m->rc = i % 2 ? epf_dev_put(&d, m->number, 0, 0, 0, 16, bytes, 0)
			      : epf_warp_put(&d, 1, m->number, 0, 0, 0, 16, bytes, 0);
		m->ticket[i] = epf_dev_ticket(&d);
	}
	epf_dev_close(&d);
	return NULL;
}

/* Takes a command of one or two slots; 0 when it is not all there. */
static uint32_t take_mixed(struct epf_ring_consumer *c, struct epf_op *op)
{
	struct epf_cmd a, b;

	if (!epf_ring_peek(c, c->tail, &a))
		return 0;
	if (epf_cmd_op(a) != EPF_OP_WIDE) {
		epf_op_unpack_narrow(a, op);
	} else {
		if (!epf_ring_peek(c, c->tail + 1, &b))
			return 0;
		epf_op_unpack_wide(a, b, op);
	}
	c->tail += op->slots;
	epf_ring_release(c);
	return op->slots;
}

static void wide_commands_share_a_ring(void **state)
{
	static struct mixer m[PRODUCERS];
	static uint64_t placed[PRODUCERS][EACH];
	struct epf_ring_consumer ring[2];
	uint64_t place[2] = { 0, 0 };
	uint32_t next[PRODUCERS] = { 0 };
	uint64_t left = PRODUCERS * EACH;
	struct epf_gpu_ring_at at;
	struct rig r;

	/* One has a separate ring, the others share one. */
	rig_open(&r, 1, UINT64_C(60000000000));
	for (uint32_t i = 0; i < 2; i++)
		epf_ring_consumer_init(&ring[i], r.from[i].shm, r.from[i].shm->log2_slots, 0);
	memset(m, 0, sizeof(m));
	for (uint32_t i = 0; i < PRODUCERS; i++) {
		m[i].r = &r;
		m[i].number = i;
		assert_int_equal(pthread_create(&m[i].thread, NULL, mix, &m[i]), 0);
	}
	while (left)
		for (uint32_t i = 0; i < 2; i++) {
			struct epf_op op;
			uint32_t seq;

			if (!take_mixed(&ring[i], &op)) {
				usleep(20);
				continue;
			}
			place[i]++;
			assert_in_range(op.rank, 0, PRODUCERS - 1);
			assert_false(op.reserved);
			seq = next[op.rank]++;
			assert_in_range(seq, 0, EACH - 1);
			placed[op.rank][seq] = place[i];
			assert_int_equal(op.length, mixed_bytes(op.rank, seq));
			assert_int_equal(op.slots, op.length % 16 ? 2 : 1);
			EPF_STORE_RELEASE(&r.from[i].shm->done.retired, place[i]);
			left--;
		}
	for (uint32_t i = 0; i < PRODUCERS; i++) {
		pthread_join(m[i].thread, NULL);
		assert_int_equal(m[i].rc, 0);
		assert_memory_equal(m[i].ticket, placed[i], sizeof(placed[i]));
	}
	/* What the host takes back is what was pushed. */
	assert_return_code(epf_gpu_context_ring(r.context, 0, &at), 0);
	assert_int_equal(at.head, ring[0].tail);
	assert_int_equal(at.pushed, place[0]);
	rig_close(&r);
}

/* Tickets of a shared ring are the places of its commands. */
static void tickets_of_a_shared_ring_count_commands(void **state)
{
	struct epf_dev d, e;
	struct rig r;

	rig_open(&r, 0, 1000000000);
	epf_dev_open_shared(&d, ctx_of(&r));
	epf_dev_open_shared(&e, ctx_of(&r));
	assert_int_equal(epf_dev_test(&d, epf_dev_ticket(&d)), 1);
	for (uint32_t i = 0; i < 20; i++) {
		assert_int_equal(epf_dev_put(&d, 0, 0, i % 3, 0, 0, 16, 0), 0);
		assert_int_equal(epf_dev_ticket(&d), 2 * i + 1);
		assert_int_equal(epf_warp_put(&e, 1, 0, 0, 0, 0, 0, 16 + i % 2, 0), 0);
		assert_int_equal(epf_dev_ticket(&e), 2 * i + 2);
	}
	rig_close(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(tables_have_no_holes),
		cmocka_unit_test(fake_memory_moves),
		cmocka_unit_test(leases_are_handed_round),
		cmocka_unit_test(no_command_is_lost),
		cmocka_unit_test(a_full_ring_ends_by_its_deadline),
		cmocka_unit_test(the_host_can_stop_waits),
		cmocka_unit_test(a_loss_ends_waits),
		cmocka_unit_test(what_cannot_be_said_is_refused),
		cmocka_unit_test(a_head_counts_two_things),
		cmocka_unit_test(wide_commands_share_a_ring),
		cmocka_unit_test(tickets_of_a_shared_ring_count_commands),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
