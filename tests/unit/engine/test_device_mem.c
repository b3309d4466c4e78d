/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPU memory without a GPU: registered over a scripted provider (fake_verbs.h), with a sysfs in which modules are loaded or
 * not; and the rule of write visibility with host memory in its place and a flush that counts.
 */
#include "tests/unit/nic/verbs/fake_verbs.h"

#include "fabric/base/err.h"
#include "fabric/engine/data_path.h"
#include "fabric/engine/limits.h"
#include "fabric/gpu/device_mem.h"
#include "fabric/gpu/rdma.h"
#include "fabric/nic/verbs/region.h"
#include "tests/unit/engine/core_rig.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define FLAGS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)

static const struct epf_device_mem gpu = { .addr = 0x7f0000200000,
					   .bytes = 1 << 21,
					   .dmabuf_fd = 42,
					   .dmabuf_offset = 0x3000,
					   .is_mapped = true,
					   .vendor = 0x10de,
					   .order = EPF_ORDER_OWNER };

/* ---- registering ----------------------------------------------------------------------------- */

static char sysfs[64];

static void load_module(const char *path)
{
	char text[256];

	snprintf(text, sizeof(text), "mkdir -p '%s/%s'", sysfs, path);
	assert_int_equal(system(text), 0);
}

static int setup(void **state)
{
	fake_reset();
	snprintf(sysfs, sizeof(sysfs), "/tmp/epf-devmem-XXXXXX");
	assert_non_null(mkdtemp(sysfs));
	return 0;
}

static int teardown(void **state)
{
	char text[128];

	snprintf(text, sizeof(text), "rm -rf '%s'", sysfs);
	assert_int_equal(system(text), 0);
	assert_int_equal(fake.open_things, 0);
	return 0;
}

static int try_with(const struct epf_verbs_lib *lib, const struct epf_device_mem *mem,
		    struct ibv_mr **mr)
{
	struct epf_verbs_opts opts;
	struct epf_nic *nic;
	int rc;

	epf_verbs_opts_defaults(&opts);
	assert_int_equal(epf_verbs_open(lib, &opts, epf_limits_now, NULL, &nic), 0);
	epf_clear_error();
	rc = epf_verbs_register_gpu(epf_verbs_of(nic), mem, FLAGS, sysfs, mr);
	if (!rc)
		lib->dereg_mr(*mr);
	nic->ops->close(nic);
	return rc;
}

static void says(const char *words)
{
	if (!strstr(epf_last_error(), words))
		fail_msg("'%s' does not say '%s'", epf_last_error(), words);
	assert_int_equal(epf_last_reason(), EPF_R_GPU_REGION);
}

static void a_dma_buf_comes_first(void **state)
{
	struct ibv_mr *mr;

	load_module("module/nvidia_peermem");
	assert_int_equal(try_with(&fake_lib, &gpu, &mr), 0);
	assert_int_equal(fake.dmabuf.calls, 1);
	assert_int_equal(fake.dmabuf.fd, 42);
	assert_int_equal(fake.dmabuf.offset, 0x3000);
	assert_int_equal(fake.dmabuf.length, 1 << 21);
	assert_int_equal(fake.dmabuf.iova, gpu.addr); /* what peers name */
	assert_int_equal(fake.dmabuf.access, FLAGS | IBV_ACCESS_RELAXED_ORDERING);
	fake.fail = "reg_dmabuf_mr relaxed"; /* a device without relaxed ordering */
	fake.fail_errno = EOPNOTSUPP;
	assert_int_equal(try_with(&fake_lib, &gpu, &mr), 0);
	assert_int_equal(fake.dmabuf.calls, 3);
	assert_int_equal(fake.dmabuf.access, FLAGS);
}

static void a_peer_memory_module_comes_second(void **state)
{
	struct epf_device_mem mem = gpu;
	struct ibv_mr *mr;

	fake.fail = "reg_dmabuf_mr";
	fake.fail_errno = EOPNOTSUPP;
	fake.fail_after = 0;
	load_module("module/nvidia_peermem");
	assert_int_equal(try_with(&fake_lib, &mem, &mr), 0);
	assert_ptr_equal(fake.last_addr, (void *)(uintptr_t)gpu.addr);
	mem.dmabuf_fd = -1; /* the driver exports none: the device is not asked */
	fake.dmabuf.calls = 0;
	assert_int_equal(try_with(&fake_lib, &mem, &mr), 0);
	assert_int_equal(fake.dmabuf.calls, 0);
}

static void what_is_missing_is_named(void **state)
{
	struct epf_verbs_lib old = fake_lib;
	struct epf_device_mem mem = gpu;
	struct ibv_mr *mr = (void *)7;

	old.reg_dmabuf_mr = NULL; /* before rdma-core 34 */
	assert_true(try_with(&old, &mem, &mr) < 0);
	says("this libibverbs has no ibv_reg_dmabuf_mr");
	says("the module nvidia-peermem is not loaded");
	mem.vendor = 0x1002;
	load_module("module/nvidia_peermem"); /* another vendor's */
	assert_true(try_with(&old, &mem, &mr) < 0);
	says("the module amdgpu with peer memory (amdkfd) is not loaded");
	load_module("kernel/mm/memory_peers/amdkfd");
	assert_int_equal(try_with(&old, &mem, &mr), 0);
	mr = (void *)7;
	mem.is_mapped = false; /* a daemon: no module finds memory of another process */
	assert_true(try_with(&old, &mem, &mr) < 0);
	says("not in a daemon");
	mem.dmabuf_fd = -1;
	assert_true(try_with(&fake_lib, &mem, &mr) < 0);
	says("its driver exports no dma-buf");
	assert_ptr_equal(mr, (void *)7);
}

static void both_refusals_are_told(void **state)
{
	struct epf_verbs_lib old = fake_lib;
	struct epf_device_mem mem = gpu;
	struct epf_verbs_opts opts;
	struct epf_nic *nic;
	struct ibv_mr *mr;

	old.reg_dmabuf_mr = NULL;
	load_module("kernel/mm/memory_peers/nv_mem");
	epf_verbs_opts_defaults(&opts);
	assert_int_equal(epf_verbs_open(&old, &opts, epf_limits_now, NULL, &nic), 0);
	fake.fail = "reg_mr";
	fake.fail_errno = EFAULT;
	assert_true(epf_verbs_register_gpu(epf_verbs_of(nic), &mem, FLAGS, sysfs, &mr) < 0);
	says("by nvidia-peermem: Bad address");
	fake.fail = NULL;
	nic->ops->close(nic);
}

static void regions_go_with_the_nic(void **state)
{
	struct epf_nic *nic = fake_open(NULL);
	struct epf_nic_mr a, b;
	struct epf_device_mem mem = gpu;

	assert_int_equal(nic->ops->region_register_device(nic, &mem, EPF_MR_REMOTE_READ, &a), 0);
	assert_int_equal(a.raddr, gpu.addr);
	assert_int_equal(a.lkey, a.rkey);
	assert_int_equal(fake.dmabuf.access & IBV_ACCESS_REMOTE_WRITE, 0);
	assert_int_equal(nic->ops->region_register_device(nic, &mem, EPF_MR_REMOTE_WRITE, &b), 0);
	assert_true(a.rkey != b.rkey);
	assert_true(nic->ops->region_register_device(nic, &mem, 4, &b) < 0);
	nic->ops->region_deregister(nic, &a);
	nic->ops->close(nic); /* b with it */
}

/* What the driver says of a pointer, over the back-end that is host memory. */
static void a_gpu_s_driver_is_asked(void **state)
{
	struct epf_device_gpu *gpus = NULL;
	const struct epf_gpu_ops *ops;
	struct epf_device_mem mem, more;
	struct epf_gpu_dev *dev;
	struct epf_gpu_mem m;
	uint64_t host = 7;

	assert_int_equal(epf_gpu_backend("fake", &ops), 0);
	assert_int_equal(ops->open(0, &dev), 0);
	assert_int_equal(ops->mem_alloc(dev, 1 << 20, EPF_GPU_MEM_EXPORT, &m), 0);
	assert_int_equal(epf_device_gpu_mem(&gpus, ops, m.addr + 8192, 4096, &mem), 0);
	assert_int_equal(mem.addr, m.addr + 8192);
	assert_int_equal(mem.bytes, 4096);
	assert_int_equal(mem.dmabuf_offset, 8192);
	assert_true(mem.dmabuf_fd >= 0);
	assert_int_equal(mem.order, EPF_ORDER_ALL);
	assert_true(mem.is_mapped);
	mem.flush(mem.flush_arg);
	assert_int_equal(epf_device_gpu_mem(&gpus, ops, m.addr, m.bytes, &more), 0);
	assert_ptr_equal(more.flush_arg, mem.flush_arg); /* one GPU, one flush */
	assert_int_equal(close(mem.dmabuf_fd) | close(more.dmabuf_fd), 0);
	memset(&more, 0x5a, sizeof(more));
	assert_int_equal(epf_device_gpu_mem(&gpus, ops, m.addr, m.bytes + 1, &more), -EOPNOTSUPP);
	assert_int_equal(epf_device_gpu_mem(&gpus, ops, (uintptr_t)&host, 8, &more), -EOPNOTSUPP);
	says("not inside one allocation of a GPU");
	assert_int_equal(more.bytes, 0x5a5a5a5a5a5a5a5a);
	epf_device_gpu_close(gpus);
	epf_device_gpu_close(NULL);
	ops->mem_free(dev, &m);
	ops->close(dev);
}

/* ---- visibility ------------------------------------------------------------------------------ */

static struct {
	const struct core_rank *rank;
	unsigned calls;
	uint64_t signals_before; /* sum of the rank's signals at the last call */
} seen;

static void count_flush(void *arg)
{
	assert_ptr_equal(arg, &seen);
	seen.calls++;
	seen.signals_before = 0;
	for (uint32_t i = 0; i < CORE_SIGNALS; i++)
		seen.signals_before += seen.rank->signals[i].value;
}

static uint64_t sum(const struct core_rank *r)
{
	uint64_t all = 0;

	for (uint32_t i = 0; i < CORE_SIGNALS; i++)
		all += r->signals[i].value;
	return all;
}

/* Host memory says it were a GPU's, over a NIC that believes it. */
static struct epf_nic_ops believer;

static int believe(struct epf_nic *nic, const struct epf_device_mem *mem, unsigned access,
		   struct epf_nic_mr *out)
{
	return believer.region_register(nic, (void *)(uintptr_t)mem->addr, mem->bytes, access, out);
}

static int add_device(struct core_rank *r, enum epf_write_order order, void (*flush)(void *arg))
{
	struct epf_device_mem mem = { .addr = (uint64_t)(uintptr_t)r->memory,
				      .bytes = CORE_BYTES,
				      .dmabuf_fd = -1,
				      .order = order,
				      .flush = flush,
				      .flush_arg = &seen };
	uint32_t region;

	believer = *r->core->ops;
	believer.region_register_device = believe;
	r->core->ops = r->core->nic->ops = &believer;
	return epf_core_add_device_region(r->core, r->local, &mem, EPF_MR_REMOTE_WRITE, &region);
}

static struct core_rig *rig_for(enum epf_write_order order)
{
	struct core_rig *rig = core_rig_open(NULL);

	memset(&seen, 0, sizeof(seen));
	seen.rank = &rig->rank[2];
	assert_int_equal(add_device(&rig->rank[2], order, count_flush), 0);
	return rig;
}

static void flushes_come_before_signals_where_no_order_is_promised(void **state)
{
	struct core_rig *rig = rig_for(EPF_ORDER_NONE);
	struct core_rank *to = &rig->rank[2];

	for (unsigned i = 1; i <= 20; i++) {
		unsigned calls = seen.calls;

		core_rig_put(&rig->rank[0], 2, 4096, 3);
		assert_true(core_rig_run(rig, NULL, NULL));
		assert_int_equal(sum(to), i);
		assert_true(seen.calls > calls);
		assert_int_equal(seen.signals_before, i - 1); /* the flush was before the signal */
	}
	core_rig_close(rig);
}

/* Many signals that arrive together need one flush. */
static void one_flush_serves_all_that_was_reaped_together(void **state)
{
	struct core_rig *rig = rig_for(EPF_ORDER_NONE);

	for (unsigned i = 0; i < 32; i++)
		core_rig_put(&rig->rank[0], 2, 256, 3);
	assert_true(core_rig_run(rig, NULL, NULL));
	assert_int_equal(sum(&rig->rank[2]), 32);
	assert_true(seen.calls >= 1 && seen.calls <= 16);
	core_rig_close(rig);
}

static void promised_order_needs_no_flush(void **state)
{
	static const enum epf_write_order orders[] = { EPF_ORDER_OWNER, EPF_ORDER_ALL };

	for (unsigned i = 0; i < 2; i++) {
		struct core_rig *rig = rig_for(orders[i]);

		core_rig_put(&rig->rank[0], 2, 4096, 3);
		assert_true(core_rig_run(rig, NULL, NULL));
		assert_int_equal(sum(&rig->rank[2]), 1);
		assert_int_equal(seen.calls, 0);
		core_rig_close(rig);
	}
}

/* A NIC that makes additions on request. */
static struct {
	unsigned begun, full;
	int pending;
} adder;

static int begin_add(struct epf_nic *nic, const struct epf_nic_mr *mr, uint64_t offset,
		     uint64_t value)
{
	(void)nic;
	(void)mr;
	(void)offset;
	(void)value;
	if (adder.full && adder.full--)
		return -EAGAIN;
	adder.begun++;
	return 0;
}

static int adds_pending(struct epf_nic *nic)
{
	(void)nic;
	return adder.pending;
}

/* Ranks 2 and 3, of one node, have their regions in GPU memory, and additions to them are under way until the test says otherwise. */
static struct core_rig *rig_that_adds(void)
{
	struct core_rig *rig = core_rig_open(NULL);

	believer = *rig->core[1]->ops;
	believer.add = begin_add;
	believer.add_pending = adds_pending;
	rig->core[1]->ops = rig->nic[1]->ops = &believer;
	for (unsigned r = 2; r < 4; r++)
		rig->core[1]->ranks[rig->rank[r].local].regions[0].device = 1;
	memset(&adder, 0, sizeof(adder));
	adder.pending = 1;
	return rig;
}

static void push_add(struct core_rank *r, uint32_t to, uint32_t region)
{
	struct epf_op op = { .op = EPF_OP_ADD,
			     .rank = to,
			     .length = 8,
			     .value = 1,
			     .remote_region = (uint16_t)region };
	struct epf_cmd slots[2];

	epf_op_pack_wide(&op, slots);
	epf_ring_push_wide(&r->ring, slots);
}

/* Gives rank 2 a second region, which the other node knows. */
static void add_region(struct core_rig *rig)
{
	struct epf_rank_state *r = &rig->core[1]->ranks[rig->rank[2].local];
	struct epf_peer *p = &rig->core[0]->peers[2];

	assert_true(r->max_regions >= 2);
	r->regions[1] = r->regions[0];
	r->n_regions = 2;
	p->regions = realloc(p->regions, 2 * sizeof(*p->regions));
	assert_non_null(p->regions);
	p->regions[1] = p->regions[0];
	p->n_regions = 2;
}

/*
 * They go to the NIC one behind the other, beside those to another rank; a signal behind them waits until all are done, and so does an addition
 * to another region of the same rank.
 */
static void additions_follow_each_other_and_stop_the_rest(void **state)
{
	struct core_rig *rig = rig_that_adds();
	struct epf_hist *held = epf_stat_hist(rig->core[1]->stats, EPF_STAT_CORE_HOLD_NS);

	add_region(rig);
	for (unsigned i = 0; i < 4; i++)
		push_add(&rig->rank[0], 2, 0);
	push_add(&rig->rank[0], 3, 0);
	assert_true(core_rig_run(rig, NULL, NULL));
	assert_int_equal(adder.begun, 5);
	core_rig_put(&rig->rank[0], 2, 256, 3);
	assert_true(core_rig_run(rig, NULL, NULL));
	push_add(&rig->rank[0], 3, 0);
	push_add(&rig->rank[0], 3, 0);
	assert_true(core_rig_run(rig, NULL, NULL));
	assert_int_equal(adder.begun, 5);
	assert_int_equal(sum(&rig->rank[2]), 0);
	assert_int_equal(epf_hist_count(held), 0);
	adder.pending = 0;
	assert_true(core_rig_run(rig, NULL, NULL));
	assert_int_equal(sum(&rig->rank[2]), 1);
	assert_int_equal(adder.begun, 7);
	assert_int_equal(epf_hist_count(held), 1);
	/* What comes when they are long done does not wait. */
	core_rig_put(&rig->rank[0], 3, 256, 3);
	assert_true(core_rig_run(rig, NULL, NULL));
	assert_int_equal(sum(&rig->rank[3]), 1);
	assert_int_equal(epf_hist_count(held), 1);
	/* One to another region of the same rank waits, too. */
	adder.pending = 1;
	push_add(&rig->rank[0], 2, 0);
	push_add(&rig->rank[0], 2, 1);
	assert_true(core_rig_run(rig, NULL, NULL));
	assert_int_equal(adder.begun, 8);
	adder.pending = 0;
	assert_true(core_rig_run(rig, NULL, NULL));
	assert_int_equal(adder.begun, 9);
	core_rig_close(rig);
}

/* What arrives meanwhile is deferred, however much it is; what completes is not. */
static void completions_go_on_beside_additions(void **state)
{
	struct core_rig *rig = rig_that_adds();
	struct core_rank *from = &rig->rank[0], *to = &rig->rank[2];
	unsigned pushed = 0;

	push_add(from, 2, 0);
	core_rig_put(from, 2, 256, 3);
	assert_true(core_rig_run(rig, NULL, NULL));
	assert_int_equal(rig->core[1]->adds, EPF_ADDS_HOLD);
	core_rig_put(to, 0, 256, 3);
	assert_true(core_rig_run(rig, NULL, NULL));
	assert_int_equal(sum(from), 1);
	assert_int_equal(to->shm->done.retired, 1);
	for (pushed = 1; pushed < 3 * EPF_MAX_QUEUED_ARRIVALS; pushed++) {
		if (epf_ring_room(&from->ring, 2) < 2)
			assert_true(core_rig_run(rig, NULL, NULL));
		if (epf_ring_room(&from->ring, 2) < 2)
			break; /* lanes, receives and ring are full, as they may be */
		core_rig_put(from, 2, 256, 3);
	}
	assert_true(pushed > EPF_MAX_QUEUED_ARRIVALS);
	assert_true(core_rig_run(rig, NULL, NULL));
	assert_true(rig->core[1]->n_queued_arrivals > 64);
	assert_int_equal(sum(to), 0);
	adder.pending = 0;
	assert_true(core_rig_run(rig, NULL, NULL));
	assert_int_equal(sum(to), pushed);
	assert_int_equal(rig->core[1]->n_queued_arrivals, 0);
	core_rig_close(rig);
}

/* One that finds no room is begun later, once, before anything behind it. */
static void an_addition_without_room_is_begun_later(void **state)
{
	struct core_rig *rig = rig_that_adds();

	adder.full = 3;
	adder.pending = 0;
	for (unsigned i = 0; i < 4; i++)
		push_add(&rig->rank[0], 2, 0);
	core_rig_put(&rig->rank[0], 2, 256, 3);
	assert_true(core_rig_run(rig, NULL, NULL));
	assert_int_equal(adder.begun, 4);
	assert_int_equal(sum(&rig->rank[2]), 1);
	core_rig_close(rig);
}

static bool retired(void *arg)
{
	struct core_rank *r = arg;

	return epf_ring_retired(&r->ring) == r->ring.pushed;
}

/* What a get brought is visible before the command is seen to have retired. */
static void gets_are_flushed_before_they_retire(void **state)
{
	struct core_rig *rig = rig_for(EPF_ORDER_NONE);
	struct core_rank *r = &rig->rank[2];
	struct epf_op op = { .op = EPF_OP_GET, .rank = 0, .length = 4096, .local_region = 1 };

	epf_ring_push(&r->ring, epf_op_pack_narrow(&op));
	assert_true(core_rig_run(rig, retired, r));
	assert_int_equal(r->shm->done.failed, 0);
	assert_true(seen.calls >= 1);
	assert_int_equal(r->memory[0], 0x40);
	core_rig_close(rig);
}

static void a_gpu_that_cannot_be_flushed_is_refused(void **state)
{
	struct core_rig *rig = core_rig_open(NULL);
	struct core_rank *r = &rig->rank[2];

	assert_int_equal(add_device(r, EPF_ORDER_NONE, NULL), -EOPNOTSUPP);
	assert_int_equal(epf_last_reason(), EPF_R_GPU_REGION);
	assert_int_equal(add_device(r, EPF_ORDER_OWNER, NULL), 0);
	core_rig_close(rig);
}

static void nics_without_devices_take_no_gpu_memory(void **state)
{
	struct core_rig *rig = core_rig_open(NULL);
	struct epf_device_mem mem = gpu;
	uint32_t region;

	assert_int_equal(epf_core_add_device_region(rig->core[0], 0, &mem, 0, &region),
			 -EOPNOTSUPP);
	mem.bytes = 0;
	assert_true(epf_core_add_device_region(rig->core[0], 0, &mem, 0, &region) < 0);
	assert_int_equal(epf_last_reason(), EPF_R_REGION_BAD);
	core_rig_close(rig);
}

/* No CPU adds to GPU memory: the address is a device's. */
static void an_add_to_gpu_memory_is_refused(void **state)
{
	struct core_rig *rig = rig_for(EPF_ORDER_OWNER);
	struct epf_msg m = { .kind = EPF_MSG_ADD, .rank = 2, .signal = 1, .value = 5 };
	struct epf_core *core = rig->core[1];
	struct epf_wc wc = { .op = EPF_WC_RECV, .msg = &m, .len = sizeof(m) };
	uint64_t refused = epf_stat_get(core->stats, EPF_STAT_CORE_ARRIVALS_REFUSED);
	uint64_t word;

	memcpy(&word, rig->rank[2].memory, sizeof(word));
	m.handle = 9;
	epf_arrive(core, &wc);
	assert_int_equal(epf_stat_get(core->stats, EPF_STAT_CORE_ARRIVALS_REFUSED), refused + 1);
	assert_memory_equal(&word, rig->rank[2].memory, sizeof(word));
	core_rig_close(rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(a_dma_buf_comes_first, setup, teardown),
		cmocka_unit_test_setup_teardown(a_peer_memory_module_comes_second, setup, teardown),
		cmocka_unit_test_setup_teardown(what_is_missing_is_named, setup, teardown),
		cmocka_unit_test_setup_teardown(both_refusals_are_told, setup, teardown),
		cmocka_unit_test_setup_teardown(regions_go_with_the_nic, setup, teardown),
		cmocka_unit_test(a_gpu_s_driver_is_asked),
		cmocka_unit_test(flushes_come_before_signals_where_no_order_is_promised),
		cmocka_unit_test(one_flush_serves_all_that_was_reaped_together),
		cmocka_unit_test(promised_order_needs_no_flush),
		cmocka_unit_test(additions_follow_each_other_and_stop_the_rest),
		cmocka_unit_test(completions_go_on_beside_additions),
		cmocka_unit_test(an_addition_without_room_is_begun_later),
		cmocka_unit_test(gets_are_flushed_before_they_retire),
		cmocka_unit_test(a_gpu_that_cannot_be_flushed_is_refused),
		cmocka_unit_test(nics_without_devices_take_no_gpu_memory),
		cmocka_unit_test(an_add_to_gpu_memory_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
