/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A core that sleeps on an ofi NIC is woken by the waker's thread when something arrives or completes, over libfabric's provider tcp. The other end runs on a thread
 * of its own. Nobody polls the sleeper's queue meanwhile, and its sleep is longer than the test may take: only the waker can end it.
 */
#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/nic/ofi/lib.h"
#include "fabric/nic/ofi/opts.h"
#include "queues/epf_wakeup.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { ROUNDS = 20 };

/* libfabric's own threads and locks are not instrumented. */
const char *__tsan_default_suppressions(void);

const char *__tsan_default_suppressions(void)
{
	return "called_from_lib:libfabric.so.1\n";
}

struct end {
	struct epf_nic *nic;
	uint8_t mem[4096];
	struct epf_nic_mr mr;
	uint8_t addr[EPF_NIC_ADDR_BYTES];
	int addr_len;
	uint64_t token;
};

static struct end a, b;
static unsigned rounds; /* that b has finished; by atomics */

static uint64_t now(void *arg)
{
	return epf_now_ns();
}

static void open_end(struct end *e)
{
	const struct epf_ofi_lib *lib;
	struct epf_ofi_opts opts;

	assert_int_equal(epf_ofi_lib(&lib), 0);
	epf_ofi_opts_defaults(&opts);
	opts.provider = "tcp";
	if (epf_ofi_open(lib, &opts, now, NULL, &e->nic))
		fail_msg("%s", epf_last_error());
	assert_int_equal(e->nic->ops->region_register(e->nic, e->mem, sizeof(e->mem),
						      EPF_MR_REMOTE_WRITE, &e->mr),
			 0);
	e->addr_len = e->nic->ops->address(e->nic, e->addr, sizeof(e->addr));
	assert_true(e->addr_len > 0);
	assert_int_equal(e->nic->ops->lane_create(e->nic, 0, 8, &e->token), 0);
	e->nic->ops->post_receives(e->nic, 8);
}

static void connect_end(const struct end *e, const struct end *to)
{
	assert_int_equal(
		e->nic->ops->lane_connect(e->nic, 0, to->addr, (size_t)to->addr_len, to->token), 0);
}

/* Sleeps as a core does, until an arrival is there. Returns how often it slept. */
static unsigned sleep_until_arrival(const struct end *e)
{
	struct epf_wakeup *wakeup = e->nic->ops->wakeup(e->nic);
	struct epf_wc wc[4];

	for (unsigned slept = 0;; slept++) {
		int n = e->nic->ops->reap(e->nic, wc, 4);

		for (int i = 0; i < n; i++)
			if (wc[i].op == EPF_WC_RECV_IMM)
				return slept;
		epf_wakeup_arm(wakeup);
		assert_int_equal(e->nic->ops->arm(e->nic), 0);
		n = e->nic->ops->reap(e->nic, wc, 4);
		for (int i = 0; i < n; i++)
			if (wc[i].op == EPF_WC_RECV_IMM) {
				epf_wakeup_disarm(wakeup);
				return slept;
			}
		epf_wakeup_sleep(wakeup, 600000000000u);
		epf_wakeup_disarm(wakeup);
	}
}

static void write_to(const struct end *e, const struct end *to, uint32_t id)
{
	struct epf_wr wr = { .laddr = (uint64_t)(uintptr_t)e->mem,
			     .raddr = to->mr.raddr + 2048,
			     .lkey = e->mr.lkey,
			     .rkey = to->mr.rkey,
			     .len = 64,
			     .imm = id,
			     .id = id,
			     .op = EPF_WR_WRITE_IMM };

	assert_int_equal(e->nic->ops->post(e->nic, 0, &wr, 1), 1);
}

static void *answer(void *arg)
{
	for (uint32_t i = 0; i < ROUNDS; i++) {
		sleep_until_arrival(&b);
		write_to(&b, &a, i);
		__atomic_add_fetch(&rounds, 1, __ATOMIC_RELEASE);
	}
	return NULL;
}

static void a_sleeper_is_woken(void **state)
{
	pthread_t thread;
	unsigned slept = 0;

	open_end(&a);
	open_end(&b);
	connect_end(&a, &b);
	connect_end(&b, &a);
	assert_int_equal(pthread_create(&thread, NULL, answer, NULL), 0);
	for (uint32_t i = 0; i < ROUNDS; i++) {
		write_to(&a, &b, i);
		slept += sleep_until_arrival(&a);
	}
	/* b may still wait for the completion of its last write, which a takes part in. */
	pthread_join(thread, NULL);
	printf("# slept %u times in %d round trips\n", slept, ROUNDS);
	assert_int_equal(__atomic_load_n(&rounds, __ATOMIC_ACQUIRE), ROUNDS);
	a.nic->ops->close(a.nic);
	b.nic->ops->close(b.nic);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_sleeper_is_woken),
	};

	return cmocka_run_group_tests_name("ofi_wake", tests, NULL, NULL);
}
