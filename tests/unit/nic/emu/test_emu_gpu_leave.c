/* SPDX-License-Identifier: Apache-2.0 */
/* The emulated NIC and GPU memory that leaves while copies of another NIC of the process still read it. */
#include "fabric/nic/emu/copies.h"
#include "fabric/nic/emu/emu.h"
#include "tests/unit/nic/gpu_kit.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { LEN = 5000 };

static int open_fake(const struct epf_emu_opts *tune, int end, uint64_t (*now)(void *), void *arg,
		     struct epf_nic **out)
{
	struct epf_emu_opts opts = *tune;

	opts.ordered = 1;
	return epf_emu_open(&opts, now, arg, out);
}

static const struct nic_kind both = { "emu ordered, GPU to GPU", 1, 1, 0, 0, 0, 0, 3, open_fake };

/* Until b's copier has all that b pushed, which is under way at a device that ends no copy. */
static void copy_without_end(struct rig *rig, const struct epf_wr *wr)
{
	const struct epf_emu_copier *c;

	rig_post(rig, wr);
	for (int i = 0; i < 100; i++) {
		rig_reap(&rig->a);
		rig_reap(&rig->b);
	}
	c = epf_emu_of(rig->b.nic)->copier;
	for (int i = 0;
	     i < 60000 && __atomic_load_n(&c->entries_in, __ATOMIC_ACQUIRE) != c->entries_out; i++)
		usleep(1000);
	assert_int_equal(c->entries_in, c->entries_out);
	assert_true(epf_emu_of(rig->b.nic)->copies_count > 0);
}

/* A rig whose copies do not end, once its first one has. */
static struct rig *open_held(void)
{
	struct rig *rig = rig_open(&both, NULL);
	struct epf_wr wr = rig_write(rig, 1, 0, 0, LEN);

	rig_fill(rig->a.mem, RIG_BYTES, 7);
	rig_post(rig, &wr);
	assert_int_equal(gpu_outcome(rig, 1), EPF_S_OK);
	memset(rig->b.mem, 0, RIG_BYTES);
	epf_copy_fake_hold(2);
	return rig;
}

struct leaver {
	struct rig *rig;
	int has_left;
};

static void *leave(void *arg)
{
	struct leaver *l = arg;

	l->rig->a.nic->ops->region_deregister(l->rig->a.nic, &l->rig->a.mr);
	__atomic_store_n(&l->has_left, 1, __ATOMIC_RELEASE);
	return NULL;
}

/* Whose memory it is may free it when it is no region any more: not before the last copy has read it. */
static void test_region_of_the_program(void **state)
{
	struct leaver l = { .rig = open_held() };
	struct epf_wr wr = rig_write(l.rig, 2, 0, 0, LEN);
	pthread_t thread;
	int too_early;

	(void)state;
	copy_without_end(l.rig, &wr);
	assert_int_equal(pthread_create(&thread, NULL, leave, &l), 0);
	usleep(20000);
	too_early = __atomic_load_n(&l.has_left, __ATOMIC_ACQUIRE);
	epf_copy_fake_hold(0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(too_early, 0);
	assert_int_equal(gpu_outcome(l.rig, 2), EPF_S_OK);
	assert_true(rig_matches(l.rig->b.mem, LEN, 7));
	rig_close(l.rig);
}

/* A region at a of other memory, which the NIC has mapped itself, as the daemon has its clients'. */
static struct epf_copy_mem *adopt(struct rig *rig, void *memory, struct epf_nic_mr *mr)
{
	struct epf_copy_mem *mem, *adopted;

	assert_int_equal(epf_copy_mem_wrap(&epf_copy_fake, memory, RIG_BYTES, &mem), 0);
	assert_int_equal(epf_copy_mem_adopt(&epf_copy_fake, &mem->handle, RIG_BYTES, &adopted), 0);
	epf_copy_mem_put(mem);
	assert_int_equal(
		rig->a.nic->ops->region_register_gpu(rig->a.nic, adopted, EPF_MR_REMOTE_READ, mr),
		0);
	return adopted;
}

/* The daemon's mapping of a client's memory ends with the last copy out of it, and nobody waits for that. */
static void test_region_of_a_client(void **state)
{
	struct rig *rig = open_held();
	struct epf_nic_mr mr;
	struct epf_copy_mem *mem = adopt(rig, rig->a.gpu, &mr);
	struct epf_wr wr = rig_write(rig, 2, 0, 0, LEN);
	const void *at;

	(void)state;
	wr.laddr = mem->addr;
	wr.lkey = mr.lkey;
	copy_without_end(rig, &wr);
	at = (const void *)(uintptr_t)mem->device_addr;
	rig->a.nic->ops->region_deregister(rig->a.nic, &mr);
	epf_copy_mem_put(mem);
	usleep(20000);
	assert_non_null(epf_copy_fake_bytes(at, LEN));
	epf_copy_fake_hold(0);
	assert_int_equal(gpu_outcome(rig, 2), EPF_S_OK);
	assert_true(rig_matches(rig->b.mem, LEN, 7));
	for (int i = 0; i < 60000 && epf_copy_fake_bytes(at, LEN); i++)
		usleep(1000);
	assert_null(epf_copy_fake_bytes(at, LEN));
	rig_close(rig);
}

/* A peer's region that was withdrawn stays mapped while a copy reads it, though another one is mapped meanwhile. */
static void test_region_of_a_peer(void **state)
{
	struct rig *rig = rig_open(&both, NULL);
	struct epf_emu_seg *seg = epf_emu_of(rig->a.nic)->seg;
	struct epf_emu_gpu_region *of_a = &seg->gpu[rig->a.mr.lkey & 0xffff];
	struct epf_nic_mr mr;
	struct epf_copy_mem *mem;
	struct epf_wr wr = rig_write(rig, 1, 0, 0, LEN);
	void *other;

	(void)state;
	assert_int_equal(epf_copy_fake.mem_alloc(0, RIG_BYTES, &other), 0);
	mem = adopt(rig, other, &mr);
	rig_fill(rig->a.mem, RIG_BYTES, 7);
	rig_fill(epf_copy_fake_bytes(other, RIG_BYTES), RIG_BYTES, 8);
	memset(rig->b.mem, 0, RIG_BYTES);
	seg->own = false; /* found as another process's */
	epf_copy_fake_hold(2);
	copy_without_end(rig, &wr);
	__atomic_store_n(&of_a->key, 0, __ATOMIC_RELEASE);
	wr = rig_write(rig, 2, 0, LEN, LEN);
	wr.laddr = mem->addr;
	wr.lkey = mr.lkey;
	copy_without_end(rig, &wr);
	epf_copy_fake_hold(0);
	assert_int_equal(gpu_outcome(rig, 2), EPF_S_OK);
	assert_true(rig_matches(rig->b.mem, LEN, 7));
	assert_true(rig_matches(rig->b.mem + LEN, LEN, 8));
	seg->own = true;
	rig->a.nic->ops->region_deregister(rig->a.nic, &mr);
	epf_copy_mem_put(mem);
	rig_close(rig);
	epf_copy_fake.mem_free(other);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_region_of_the_program),
		cmocka_unit_test(test_region_of_a_client),
		cmocka_unit_test(test_region_of_a_peer),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
