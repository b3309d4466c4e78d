/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device API through engines, without a GPU: kernels/epf_device.cuh as plain C on CPU threads, over the fake back-end, two ranks' engines and
 * the emulated NIC; bytes, signals and words compared, long waits, what failures say. Rings alone: test_gpu.c.
 */
#include "bootstrap/boot.h"
#include "fabric/base/err.h"
#include "fabric/client/epf.h"
#include "fabric/client/handle.h"
#include "kernels/epf_device.cuh"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { BYTES = 1 << 16 };

struct job {
	struct epf_boot_group *group;
	struct epf_boot *boot[2];
	struct epf *ep[2];
	uint8_t *mem[2];
	struct epf_gpu *gpu;
};

static void job_open(struct job *j)
{
	const char *settings[] = { "core-idle=sleep",  "signals=64",  "emu-packets=256",
				   "gpu-backend=fake", "gpu-rings=2", NULL };
	struct epf_options opts;

	memset(j, 0, sizeof(*j));
	epf_options_init(&opts);
	opts.settings = settings;
	assert_return_code(epf_boot_local_create(2, &j->group), 0);
	for (uint32_t i = 0; i < 2; i++) {
		void *mem;
		uint32_t region;

		assert_return_code(epf_boot_local_open(j->group, i, &j->boot[i]), 0);
		assert_return_code(epf_open(&opts, &j->ep[i]), 0);
		assert_return_code(epf_memory_alloc(j->ep[i], BYTES, &mem), 0);
		assert_return_code(epf_region_register(j->ep[i], mem, BYTES,
						       EPF_REMOTE_READ | EPF_REMOTE_WRITE, &region),
				   0);
		j->mem[i] = mem;
		assert_int_equal(epf_gpu_open(j->ep[i], NULL, &j->gpu), -ENOTCONN);
		assert_return_code(epf_join_post(j->ep[i], j->boot[i]), 0);
	}
	for (int done[2] = { 0 }; !done[0] || !done[1];)
		for (uint32_t i = 0; i < 2; i++)
			if (!done[i] && epf_join_finish(j->ep[i]) != -EAGAIN)
				done[i] = 1;
	assert_return_code(epf_gpu_open(j->ep[0], NULL, &j->gpu), 0);
}

static void job_close(struct job *j)
{
	for (uint32_t i = 0; i < 2; i++)
		epf_close(j->ep[i]); /* closes the GPU context too */
	for (uint32_t i = 0; i < 2; i++)
		epf_boot_close(j->boot[i]);
	epf_boot_local_destroy(j->group);
}

static void fill(uint8_t *p, size_t n, unsigned seed)
{
	for (size_t i = 0; i < n; i++)
		p[i] = (uint8_t)(seed * 31 + i * 7 + (i >> 8));
}

static void commands_arrive(void **state)
{
	const struct epf_gpu_ctx *ctx;
	struct epf_dev d, shared;
	struct job j;

	job_open(&j);
	ctx = epf_gpu_context(j.gpu);
	fill(j.mem[0], BYTES, 1);
	memset(j.mem[1], 0xee, BYTES);
	epf_dev_open(&d, ctx);
	epf_dev_open_shared(&shared, ctx);
	epf_dev_fence();
	assert_int_equal(epf_dev_put(&d, 1, 0, 0, 0, 4096, 8192, 0), 0);
	assert_int_equal(epf_dev_put_signal(&d, 1, 0, 100, 0, 20001, 77, 5, 3, EPF_F_FENCE), 0);
	assert_int_equal(epf_dev_put_group(&shared, 1, 0, 64, 0, 24000, 64, 6, 0), 0);
	assert_int_equal(epf_dev_signal_counted(&shared, 1, 6, 9, 1, 0), 0);
	assert_int_equal(epf_dev_signal(&shared, 0, 7, 11, 0), 0);
	assert_int_equal(epf_dev_put(&shared, 1, 0, 201, 0, 30001, 99, 0), 0);
	/* A word of memory as a signal: to a peer, and to this rank, which waits for it. */
	memset(j.mem[1] + 40000, 0, 8);
	memset(j.mem[0] + 40000, 0, 8);
	assert_int_equal(epf_dev_add(&d, 1, 0, 40000, UINT64_C(0x8000000000000007), 0), 0);
	assert_int_equal(epf_dev_add(&d, 0, 0, 40000, 5, 0), 0);
	assert_int_equal(epf_dev_add(&d, 0, 0, 40000, 4, 0), 0);
	assert_int_equal(
		epf_dev_wait_word(ctx, (const uint64_t *)(const void *)(j.mem[0] + 40000), 9), 0);
	assert_int_equal(epf_dev_flush(&d, 0), 0);
	assert_int_equal(epf_dev_flush(&shared, 0), 0);
	assert_int_equal(*(uint64_t *)(void *)(j.mem[0] + 40000), 9);
	assert_true(*(uint64_t *)(void *)(j.mem[1] + 40000) == UINT64_C(0x8000000000000007));
	assert_int_equal(epf_signal_value(j.ep[1], 5), 3);
	assert_return_code(epf_signal_wait(j.ep[1], 6, 9, 0), 0);
	assert_int_equal(epf_dev_wait_signal(ctx, 7, 11), 0);
	assert_memory_equal(j.mem[0], j.mem[1] + 4096, 8192);
	assert_memory_equal(j.mem[0] + 100, j.mem[1] + 20001, 77);
	assert_memory_equal(j.mem[0] + 64, j.mem[1] + 24000, 64);
	assert_memory_equal(j.mem[0] + 201, j.mem[1] + 30001, 99);
	assert_int_equal(j.mem[1][20000], 0xee);
	assert_int_equal(j.mem[1][20078], 0xee);
	assert_int_equal(epf_block_get(&d, 1, 0, 32768, 0, 4096, 4096, 0), 0);
	assert_int_equal(epf_dev_wait(&d, epf_dev_ticket(&d)), 0);
	assert_int_equal(epf_dev_test(&d, epf_dev_ticket(&d)), 1);
	assert_memory_equal(j.mem[0] + 32768, j.mem[0], 4096);
	epf_dev_close(&d);
	assert_int_equal(epf_gpu_check(j.gpu), 0);
	job_close(&j);
}

struct waiter {
	const struct epf_gpu_ctx *ctx;
	uint64_t least;
	int rc;
};

static void *wait_for_signal(void *arg)
{
	struct waiter *w = arg;

	w->rc = epf_dev_wait_signal(w->ctx, 9, w->least);
	return NULL;
}

/* Returns once the wait for `least` is reported. Reads are atomic: the next wait may be writing its report. */
static void await_report(struct epf_wakeup *wakeup, uint64_t least)
{
	const struct timespec nap = { 0, 1000000 };

	while (EPF_LOAD_ACQUIRE(&wakeup->kernel_condition) != EPF_WAKE_ON_SIGNAL ||
	       EPF_LOAD_RELAXED(&wakeup->kernel_least) != least)
		nanosleep(&nap, NULL);
	assert_int_equal(EPF_LOAD_RELAXED(&wakeup->kernel_index), 9);
}

/* A wait that lasts stands in the rank's wakeup until it is over; one that began later stands there after it. */
static void a_long_wait_is_told(void **state)
{
	const struct timespec nap = { 0, 5000000 };
	struct waiter w[2];
	struct epf_wakeup *wakeup;
	pthread_t thread[2];
	struct epf_dev d;
	struct job j;

	job_open(&j);
	wakeup = j.ep[0]->wakeup;
	epf_dev_open(&d, epf_gpu_context(j.gpu));
	assert_int_equal(epf_dev_signal(&d, 0, 9, 1, 0), 0);
	assert_int_equal(epf_dev_flush(&d, 0), 0);
	for (unsigned i = 0; i < 2; i++) {
		w[i] = (struct waiter){ epf_gpu_context(j.gpu), 2 + i, 1 };
		assert_int_equal(pthread_create(&thread[i], NULL, wait_for_signal, &w[i]), 0);
		await_report(wakeup, 2);
	}
	nanosleep(&nap, NULL); /* longer than the second wait needs before it may report itself */
	for (unsigned i = 0; i < 2; i++) {
		await_report(wakeup, 2 + i);
		if (i == 0)
			assert_int_equal(EPF_LOAD_RELAXED(&wakeup->kernel_seen), 1);
		assert_int_equal(epf_dev_signal(&d, 0, 9, 1, 0), 0);
		pthread_join(thread[i], NULL);
		assert_int_equal(w[i].rc, 0);
	}
	assert_int_equal(EPF_LOAD_ACQUIRE(&wakeup->kernel_condition), EPF_WAKE_ON_ANY);
	epf_dev_close(&d);
	job_close(&j);
}

static uint64_t sleeps(const struct job *j)
{
	uint64_t n;

	assert_return_code(epf_counter(j->ep[0], "sleeps", &n), 0);
	return n;
}

static void assert_awake(const struct job *j)
{
	const struct timespec nap = { 0, 50000000 }; /* more than the longest sleep */
	uint64_t before = sleeps(j);

	nanosleep(&nap, NULL);
	assert_int_equal(sleeps(j), before);
}

static void assert_falls_asleep(const struct job *j)
{
	const struct timespec nap = { 0, 1000000 };
	uint64_t before = sleeps(j);

	while (sleeps(j) == before)
		nanosleep(&nap, NULL);
}

/* Kernels cannot wake an engine: it sleeps only while none of them pushes. */
static void an_engine_of_kernels_stays_awake(void **state)
{
	struct job j;

	job_open(&j);
	assert_awake(&j);
	assert_return_code(epf_gpu_pushes(j.gpu, 0), 0);
	assert_falls_asleep(&j);
	assert_return_code(epf_gpu_pushes(j.gpu, 1), 0);
	assert_awake(&j);
	epf_gpu_close(j.gpu);
	assert_falls_asleep(&j);
	job_close(&j);
}

static void failures_become_sentences(void **state)
{
	struct epf_dev d;
	struct job j;

	job_open(&j);
	epf_dev_open(&d, epf_gpu_context(j.gpu));
	/* A region that nobody has. */
	assert_int_equal(epf_dev_put(&d, 1, 0, 0, 9, 0, 16, 0), 0);
	assert_int_equal(epf_dev_flush(&d, 0), EPF_GPU_FAILED);
	assert_int_equal(epf_gpu_check(j.gpu), -EIO);
	assert_non_null(strstr(epf_last_error(), "1 commands failed"));
	assert_int_equal(epf_dev_flush(&d, 0), 0);
	epf_abort(j.ep[0]);
	assert_int_equal(epf_dev_wait_signal(epf_gpu_context(j.gpu), 3, 1), EPF_GPU_ABORTED);
	assert_int_equal(epf_gpu_check(j.gpu), -ECANCELED);
	epf_dev_close(&d);
	job_close(&j);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(commands_arrive),
		cmocka_unit_test(a_long_wait_is_told),
		cmocka_unit_test(an_engine_of_kernels_stays_awake),
		cmocka_unit_test(failures_become_sentences),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
