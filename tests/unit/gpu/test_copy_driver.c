/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The copy driver (fabric/gpu/copy_driver*.c) over the fake back-end: which addresses kernels of the program's context may be given (one that only a context of our own has
 * mapped would fail every later call of the program), and what the kernel of additions is given in each context. A C function makes what the PTX text does.
 */
#include "fabric/gpu/copy_driver_priv.h"
#include "fabric/gpu/fake.h"

#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { BYTES = 1 << 21, OFFSET = 4096, USUAL = 0, OWN = 1 };

/* Both contexts of device 0: their launches are counted, and modules are the table below. */
static struct {
	struct epf_gpu_ops ops[2];
	uint32_t launches[2], wrong, claims;
} gpu;

static void add_kernel(const struct epf_gpu_launch *launch)
{
	const struct epf_copy_add *adds = launch->args[0];
	uint64_t n = *(uint64_t *)launch->args[1], number = *(uint64_t *)launch->args[2];
	uint64_t *claim = (uint64_t *)(uintptr_t) * (uint64_t *)launch->args[3];
	uint64_t *done = (uint64_t *)(uintptr_t) * (uint64_t *)launch->args[4];

	if (launch->grid != 1 || launch->block != 1 || n > EPF_COPY_ADDS)
		__atomic_fetch_add(&gpu.wrong, 1, __ATOMIC_RELEASE);
	if (claim) {
		uint64_t before = __atomic_load_n(claim, __ATOMIC_ACQUIRE);

		do {
			if (before >= number)
				return;
		} while (!__atomic_compare_exchange_n(claim, &before, number, false,
						      __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
		__atomic_fetch_add(&gpu.claims, 1, __ATOMIC_RELEASE);
	}
	for (uint64_t i = 0; i < n; i++)
		__atomic_fetch_add((uint64_t *)(uintptr_t)adds[i].dst, adds[i].add,
				   __ATOMIC_RELEASE);
	if (done)
		__atomic_store_n(done, number, __ATOMIC_RELEASE);
}

static const struct epf_gpu_fake_kernel kernels[] = { { "epf_add", add_kernel }, { 0 } };

static int load(struct epf_gpu_dev *dev, const void *image, void **module)
{
	if (!strstr(image, ".entry epf_add("))
		__atomic_fetch_add(&gpu.wrong, 1, __ATOMIC_RELEASE);
	*module = (void *)(uintptr_t)kernels;
	return 0;
}

static int launch_usual(struct epf_gpu_dev *dev, void *stream, void *function,
			const struct epf_gpu_launch *launch)
{
	__atomic_fetch_add(&gpu.launches[USUAL], 1, __ATOMIC_RELEASE);
	return epf_gpu_fake_ops.launch(dev, stream, function, launch);
}

static int launch_own(struct epf_gpu_dev *dev, void *stream, void *function,
		      const struct epf_gpu_launch *launch)
{
	__atomic_fetch_add(&gpu.launches[OWN], 1, __ATOMIC_RELEASE);
	return epf_gpu_fake_ops.launch(dev, stream, function, launch);
}

static uint32_t launches(unsigned context)
{
	return __atomic_load_n(&gpu.launches[context], __ATOMIC_ACQUIRE);
}

static int open_gpu(void **state)
{
	struct epf_gpu_dev *dev[2];

	epf_copy_driver_choose("fake");
	if (epf_copy_driver_get(0, &dev[USUAL]) || epf_copy_driver_get_own(0, &dev[OWN]))
		return -1;
	for (unsigned i = 0; i < 2; i++) {
		gpu.ops[i] = epf_gpu_fake_ops;
		gpu.ops[i].module_load = load;
		gpu.ops[i].launch = i == OWN ? launch_own : launch_usual;
		dev[i]->ops = &gpu.ops[i];
	}
	return 0;
}

static void add_one(const struct epf_copy_ops *ops, struct epf_copy_queue *q, uint64_t at,
		    uint64_t *value)
{
	struct epf_copy_add add = { at, 1 };

	assert_int_equal(ops->add(q, &add, 1, ++*value), 0);
	while (ops->reached(q) < *value)
		sched_yield();
}

/* Queues of both kinds; those in a context of our own begin there and go over to the usual one. */
static void test_additions(void **state)
{
	const struct epf_copy_ops *tables[2] = { &epf_copy_driver, &epf_copy_driver_own };
	struct epf_copy_queue *q;
	uint64_t *words, value;
	void *memory;

	for (unsigned i = 0; i < 2; i++) {
		uint32_t before;

		value = 0;
		assert_int_equal(tables[i]->mem_alloc(0, BYTES, &memory), 0);
		words = memory;
		assert_int_equal(tables[i]->queue_open(0, EPF_COPY_ADDITIONS, &q), 0);
		before = launches(USUAL);
		while (launches(USUAL) < before + 20)
			add_one(tables[i], q, (uint64_t)(uintptr_t)words, &value);
		tables[i]->queue_close(q);
		assert_int_equal(words[0], value);
		tables[i]->mem_free(memory);
	}
	assert_int_equal(gpu.wrong, 0);
	assert_true(gpu.claims >= 10); /* all but the first launches */
}

/* Memory of another process that our context has mapped. */
static void test_additions_there_only(void **state)
{
	const struct epf_copy_ops *own = &epf_copy_driver_own;
	struct epf_copy_handle h;
	struct epf_copy_queue *q;
	uint64_t at, value = 0, *words;
	uint32_t before;
	void *memory;

	assert_int_equal(own->mem_alloc(0, BYTES, &memory), 0);
	words = memory;
	assert_int_equal(own->mem_export(memory, BYTES, &h), 0);
	assert_int_equal(own->mem_import(&h, 0, &at), 0);
	assert_int_equal(own->queue_open(0, EPF_COPY_ADDITIONS, &q), 0);
	before = launches(USUAL);
	while (launches(USUAL) < before + 5) /* the usual context takes additions */
		add_one(own, q, (uint64_t)(uintptr_t)&words[1], &value);
	before = launches(OWN);
	for (unsigned i = 0; i < 20; i++)
		add_one(own, q, at, &value);
	assert_int_equal(launches(OWN), before + 20);
	own->queue_close(q);
	assert_int_equal(words[0], 20);
	assert_int_equal(words[0] + words[1], value);
	own->mem_unimport(&h, at);
	close(h.fd);
	own->mem_free(memory);
}

static void test_a_queue_does_one_thing(void **state)
{
	const struct epf_copy_ops *tables[2] = { &epf_copy_driver, &epf_copy_driver_own };
	struct epf_copy_span span = { 0 };
	struct epf_copy_add add = { 0 };
	struct epf_copy_queue *q;

	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(tables[i]->queue_open(0, EPF_COPY_ENGINES, &q), 0);
		assert_true(tables[i]->add(q, &add, 1, 1) < 0);
		tables[i]->queue_close(q);
		assert_int_equal(tables[i]->queue_open(0, EPF_COPY_ADDITIONS, &q), 0);
		assert_true(tables[i]->submit(q, &span, 1, 1) < 0);
		tables[i]->queue_close(q);
	}
}

static void test_memory_of_the_usual_context(void **state)
{
	const struct epf_copy_ops *own = &epf_copy_driver_own, *usual = &epf_copy_driver;
	struct epf_copy_handle h;
	uint64_t at, ours, theirs;
	void *memory;

	assert_int_equal(usual->mem_alloc(0, BYTES, &memory), 0);
	at = (uint64_t)(uintptr_t)memory;
	assert_true(epf_copy_driver_is_usual(at));
	assert_int_equal(usual->mem_export((uint8_t *)memory + OFFSET, BYTES - OFFSET, &h), 0);
	assert_int_equal(own->mem_import(&h, 0, &ours), 0);
	assert_int_equal(usual->mem_import(&h, 0, &theirs), 0);
	assert_true(ours != theirs && ours != at + OFFSET);
	assert_false(epf_copy_driver_is_usual(ours));
	assert_false(epf_copy_driver_is_usual(ours + BYTES - OFFSET - 1));
	assert_false(epf_copy_driver_is_usual(ours - OFFSET));
	assert_true(epf_copy_driver_is_usual(theirs));
	assert_true(epf_copy_driver_is_usual(at));
	own->mem_unimport(&h, ours);
	assert_true(epf_copy_driver_is_usual(ours));
	usual->mem_unimport(&h, theirs);
	close(h.fd);
	usual->mem_free(memory);
}

/* The second device of test_memory_for_each_device: whether it maps memory with an IPC handle, and who was let to whose. */
static struct {
	struct epf_gpu_ops ops;
	bool maps_none;
	int let, to;
} second;

static int import_or_not(struct epf_gpu_dev *dev, const struct epf_gpu_ipc *ipc,
			 struct epf_gpu_mem *out)
{
	return second.maps_none ? -EIO : epf_gpu_fake_ops.mem_import_ipc(dev, ipc, out);
}

static int note_peer(struct epf_gpu_dev *dev, struct epf_gpu_dev *peer)
{
	second.let = dev->index;
	second.to = peer->index;
	return 0;
}

/* Memory with an IPC handle is mapped for each device that uses it, once; where the driver does not, a device uses another one's mapping. */
static void test_memory_for_each_device(void **state)
{
	const struct epf_copy_ops *ops = &epf_copy_driver;
	uint64_t at[2], again, word = 0x1122334455667788u;
	struct epf_gpu_dev *dev[2];
	struct epf_gpu_mem mem;
	struct epf_copy_handle h;

	assert_int_equal(epf_copy_driver_get(0, &dev[0]), 0);
	assert_int_equal(epf_copy_driver_get(1, &dev[1]), 0);
	second.ops = epf_gpu_fake_ops;
	second.ops.mem_import_ipc = import_or_not;
	second.ops.peer_enable = note_peer;
	dev[1]->ops = &second.ops;
	assert_int_equal(epf_gpu_fake_ops.mem_alloc(dev[0], BYTES, 0, &mem), 0);
	memcpy((void *)(uintptr_t)(mem.addr + OFFSET), &word, sizeof(word));
	assert_int_equal(ops->mem_export((void *)(uintptr_t)(mem.addr + OFFSET), 4096, &h), 0);
	assert_int_equal(h.kind, EPF_COPY_IPC);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(ops->mem_import(&h, i, &at[i]), 0);
		assert_memory_equal((void *)(uintptr_t)at[i], &word, sizeof(word));
		assert_int_equal(ops->mem_import(&h, i, &again), 0);
		assert_int_equal(again, at[i]);
		ops->mem_unimport(&h, again);
	}
	assert_int_not_equal(at[0], at[1]);
	assert_int_equal(second.let, 0);
	ops->mem_unimport(&h, at[1]);
	second.maps_none = true;
	assert_int_equal(ops->mem_import(&h, 1, &at[1]), 0);
	assert_int_equal(at[1], at[0]);
	assert_int_equal(second.let, 1);
	assert_int_equal(second.to, 0);
	ops->mem_unimport(&h, at[1]);
	assert_memory_equal((void *)(uintptr_t)at[0], &word, sizeof(word)); /* still mapped */
	ops->mem_unimport(&h, at[0]);
	assert_true(ops->mem_import(&h, 1, &at[1]) < 0);
	dev[1]->ops = &epf_gpu_fake_ops;
	epf_gpu_fake_ops.mem_free(dev[0], &mem);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_memory_of_the_usual_context),
		cmocka_unit_test(test_additions),
		cmocka_unit_test(test_additions_there_only),
		cmocka_unit_test(test_a_queue_does_one_thing),
		cmocka_unit_test(test_memory_for_each_device),
	};

	return cmocka_run_group_tests(tests, open_gpu, NULL);
}
