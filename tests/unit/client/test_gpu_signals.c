/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signals that lie in GPU memory (epf_signals_place), on the fake GPU, whose copies and additions are made late and by different threads: a
 * kernel that sees its signal must see the data, and an addition must change this signal by this much and nothing else.
 */
#include "bootstrap/boot.h"
#include "fabric/client/epf.h"
#include "fabric/client/handle.h"
#include "fabric/gpu/copy.h"
#include "kernels/epf_device.cuh"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum {
	SIGNALS = 16,
	BYTES = 1 << 16,
	PIECE = 24 << 10,
	ROUNDS = 25,
	ADDS = 300,
	PAUSE_NS = 20000000,
	DATA = 1
};

struct job {
	struct epf_boot_group *group;
	struct epf_boot *boot[2];
	struct epf *ep[2];
	uint8_t *mem[2]; /* as kernels see it */
	struct epf_gpu *gpu[2];
};

static void job_open(struct job *j)
{
	const char *settings[] = { "signals=16", "gpu-backend=fake", "gpu-rings=2",
				   "gpu-timeout=60s", NULL };
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
		assert_return_code(epf_signals_place(j->ep[i], EPF_SIGNALS_GPU, 0), 0);
		assert_return_code(epf_gpu_alloc(j->ep[i], 0, BYTES, &mem), 0);
		assert_return_code(
			epf_region_register_gpu(j->ep[i], mem, BYTES, EPF_REMOTE_WRITE, &region),
			0);
		assert_int_equal(region, DATA);
		j->mem[i] = epf_copy_fake_bytes(mem, BYTES);
		assert_non_null(j->mem[i]);
		assert_return_code(epf_join_post(j->ep[i], j->boot[i]), 0);
	}
	for (int done[2] = { 0 }; !done[0] || !done[1];)
		for (uint32_t i = 0; i < 2; i++)
			if (!done[i] && epf_join_finish(j->ep[i]) != -EAGAIN)
				done[i] = 1;
	for (uint32_t i = 0; i < 2; i++) {
		assert_return_code(epf_gpu_open(j->ep[i], NULL, &j->gpu[i]), 0);
		/* A wait counts as long at once, so that every one is reported. */
		((struct epf_gpu_ctx *)epf_gpu_context(j->gpu[i]))->timer_khz = 0;
	}
}

static void job_close(struct job *j)
{
	for (uint32_t i = 0; i < 2; i++)
		epf_close(j->ep[i]);
	for (uint32_t i = 0; i < 2; i++)
		epf_boot_close(j->boot[i]);
	epf_boot_local_destroy(j->group);
}

static void fill(uint8_t *p, uint32_t round)
{
	for (uint32_t i = 0; i < 2 * PIECE; i++)
		p[i] = (uint8_t)(round * 31 + i * 7 + (i >> 8));
}

/* Fresh bytes in two puts; the second one's signal covers both. Rank 1's kernel looks at them as soon as it sees the signal. */
static void data_is_there_before_its_signal(void **state)
{
	struct epf_dev d;
	struct job j;

	job_open(&j);
	/* An addition that does not wait for the copies is seen long before them. */
	epf_copy_fake_pause(PAUSE_NS);
	epf_dev_open(&d, epf_gpu_context(j.gpu[0]));
	for (uint32_t round = 0; round < ROUNDS; round++) {
		fill(j.mem[0], round);
		epf_dev_fence();
		assert_int_equal(epf_dev_put(&d, 1, DATA, 0, DATA, 0, PIECE, 0), 0);
		assert_int_equal(epf_dev_put_signal(&d, 1, DATA, PIECE, DATA, PIECE, PIECE,
						    round % SIGNALS, 1, EPF_F_FENCE),
				 0);
		assert_int_equal(epf_dev_wait_signal(epf_gpu_context(j.gpu[1]), round % SIGNALS,
						     round / SIGNALS + 1),
				 0);
		assert_memory_equal(j.mem[1], j.mem[0], 2 * PIECE);
	}
	epf_copy_fake_pause(0);
	epf_dev_close(&d);
	job_close(&j);
}

/* Every byte of the memory that the signals lie in. */
static void additions_change_their_signal_only(void **state)
{
	struct epf_signal want[SIGNALS], *at;
	struct epf_dev d;
	struct job j;

	memset(want, 0, sizeof(want));
	job_open(&j);
	at = (struct epf_signal *)epf_copy_fake_bytes(j.ep[1]->gpu_signals, sizeof(want));
	assert_non_null(at);
	epf_dev_open(&d, epf_gpu_context(j.gpu[0]));
	for (uint32_t i = 0; i < ADDS; i++) {
		uint32_t signal = i * 5 % SIGNALS, add = 1 + i % 1000;

		want[signal].value += add;
		assert_int_equal(epf_dev_signal(&d, 1, signal, add, 0), 0);
	}
	for (uint32_t i = 0; i < SIGNALS; i++)
		assert_int_equal(epf_dev_wait_signal(epf_gpu_context(j.gpu[1]), i, want[i].value),
				 0);
	assert_memory_equal(at, want, sizeof(want));
	epf_dev_close(&d);
	job_close(&j);
}

struct watcher {
	struct job *j;
	uint64_t sum;
	int rc;
};

/* Reads reports of waits as the engine's watch does (fabric/engine/watch_wait.c), and signals what a report names. */
static void *watch(void *arg)
{
	struct watcher *w = arg;
	struct epf_wakeup *wakeup = w->j->ep[1]->wakeup;
	struct epf_dev d;

	epf_dev_open(&d, epf_gpu_context(w->j->gpu[0]));
	for (uint32_t round = 0; round < ROUNDS && !w->rc;) {
		w->sum += EPF_LOAD_RELAXED(&wakeup->kernel_index) +
			  EPF_LOAD_RELAXED(&wakeup->kernel_least) +
			  EPF_LOAD_RELAXED(&wakeup->kernel_seen);
		if (EPF_LOAD_ACQUIRE(&wakeup->kernel_condition) != EPF_WAKE_ON_SIGNAL ||
		    EPF_LOAD_RELAXED(&wakeup->kernel_index) != round % SIGNALS ||
		    EPF_LOAD_RELAXED(&wakeup->kernel_least) != round / SIGNALS + 1)
			continue;
		w->rc = epf_dev_signal(&d, 1, round % SIGNALS, 1, 0);
		round++;
	}
	epf_dev_close(&d);
	return NULL;
}

/* ThreadSanitizer sees a store that is not atomic: what the watcher reads first is not ordered with the next report. */
static void reports_of_waits_are_read_at_any_time(void **state)
{
	struct watcher w = { 0 };
	pthread_t thread;
	struct job j;

	job_open(&j);
	w.j = &j;
	assert_int_equal(pthread_create(&thread, NULL, watch, &w), 0);
	for (uint32_t round = 0; round < ROUNDS; round++)
		assert_int_equal(epf_dev_wait_signal(epf_gpu_context(j.gpu[1]), round % SIGNALS,
						     round / SIGNALS + 1),
				 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(w.rc, 0);
	job_close(&j);
}

static void *reconnect(void *ep)
{
	return (void *)(intptr_t)epf_reconnect(ep);
}

/*
 * Copies that fail at the target: whoever waits at the sender is told that memory was not reached, not that a process has ended. Once they work again, the ranks
 * reach each other again.
 */
static void copies_that_fail_are_no_lost_process(void **state)
{
	pthread_t thread;
	struct epf_dev d;
	struct job j;
	void *rc;

	job_open(&j);
	epf_copy_fake_hold(3);
	epf_dev_open(&d, epf_gpu_context(j.gpu[0]));
	assert_int_equal(epf_dev_put(&d, 1, DATA, 0, DATA, 0, PIECE, 0), 0);
	assert_true(epf_dev_flush(&d, 0) < 0);
	epf_dev_close(&d);
	epf_copy_fake_hold(0);
	assert_int_equal(epf_gpu_check(j.gpu[0]), -ECONNRESET);
	assert_non_null(strstr(epf_last_error(), "rank 1"));
	assert_non_null(strstr(epf_last_error(), "[EPF-414]"));
	assert_int_equal(epf_peer_state(j.ep[0], 1), -ECONNRESET);
	assert_int_equal(pthread_create(&thread, NULL, reconnect, j.ep[1]), 0);
	assert_return_code(epf_reconnect(j.ep[0]), 0);
	assert_int_equal(pthread_join(thread, &rc), 0);
	assert_int_equal((intptr_t)rc, 0);
	assert_int_equal(epf_peer_state(j.ep[0], 1), 1);
	assert_int_equal(epf_peer_state(j.ep[1], 0), 1);
	job_close(&j);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(data_is_there_before_its_signal),
		cmocka_unit_test(additions_change_their_signal_only),
		cmocka_unit_test(reports_of_waits_are_read_at_any_time),
		cmocka_unit_test(copies_that_fail_are_no_lost_process),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
