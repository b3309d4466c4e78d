/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Emulated NICs in several threads of one process, as the embedded engine uses them: each thread owns one,
 * all exchange checked records, and NICs are opened and closed meanwhile. Meant to be run under the thread
 * sanitizer as well. Faults found in a thread are counted and asserted by the main thread.
 */
#include "fabric/base/clock.h"
#include "fabric/nic/emu/opts.h"
#include "fabric/nic/nic.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { THREADS = 4, RECORDS = 500, SIZE = 3000, SLOTS = 8 };

struct party {
	struct epf_nic *nic;
	unsigned char *mem; /* THREADS * SLOTS records in, then one out */
	struct epf_nic_mr mr;
	unsigned char addr[EPF_NIC_ADDR_BYTES];
	int len;
	uint64_t token[THREADS];
	int faults;
	int ordered;
};

static struct party party[THREADS];
static pthread_barrier_t barrier;

static uint64_t now(void *arg)
{
	(void)arg;
	return epf_now_ns();
}

static void join_in(struct party *p, int me)
{
	struct epf_emu_opts opts;

	epf_emu_opts_defaults(&opts);
	opts.ordered = p->ordered;
	opts.packets = 128;
	p->mem = calloc(THREADS * SLOTS + 1, SIZE);
	p->faults += !p->mem || epf_emu_open(&opts, now, NULL, &p->nic);
	p->faults += p->nic->ops->region_register(p->nic, p->mem, (THREADS * SLOTS + 1) * SIZE,
						  EPF_MR_REMOTE_WRITE, &p->mr) != 0;
	p->len = p->nic->ops->address(p->nic, p->addr, sizeof(p->addr));
	for (uint16_t i = 0; i < THREADS; i++)
		p->faults += p->nic->ops->lane_create(p->nic, i, 64, &p->token[i]) != 0;
	p->nic->ops->post_receives(p->nic, THREADS * RECORDS);
	memset(p->mem + THREADS * SLOTS * SIZE, me + 1, SIZE);
	pthread_barrier_wait(&barrier);
	for (uint16_t i = 0; i < THREADS; i++)
		p->faults +=
			p->nic->ops->lane_connect(p->nic, i, party[i].addr, (size_t)party[i].len,
						  party[i].token[me]) != 0;
}

static void send_some(struct party *p, int me, uint32_t *sent, const uint32_t *done)
{
	for (uint16_t i = 0; i < THREADS; i++) {
		struct epf_wr wr = {
			.laddr = (uint64_t)(uintptr_t)p->mem + THREADS * SLOTS * SIZE,
			.raddr = party[i].mr.raddr +
				 (uint64_t)(me * SLOTS + (int)(sent[i] % SLOTS)) * SIZE,
			.lkey = p->mr.lkey,
			.rkey = party[i].mr.rkey,
			.len = SIZE,
			.imm = sent[i],
			.id = sent[i],
			.op = EPF_WR_WRITE_IMM,
		};
		int n;

		if (sent[i] == RECORDS || sent[i] - done[i] >= SLOTS)
			continue;
		n = p->nic->ops->post(p->nic, i, &wr, 1);
		p->faults += n < 0;
		sent[i] += n > 0;
	}
}

static void *run(void *arg)
{
	struct party *p = arg;
	int me = (int)(p - party);
	uint32_t sent[THREADS] = { 0 }, done[THREADS] = { 0 }, all = 0;
	uint64_t moved = epf_now_ns();
	struct epf_wc wc[16];

	join_in(p, me);
	while (all < 2 * THREADS * RECORDS && p->faults == 0) {
		int n;

		send_some(p, me, sent, done);
		n = p->nic->ops->reap(p->nic, wc, 16);
		for (int i = 0; i < n; i++) {
			uint16_t from = wc[i].lane;

			p->faults += wc[i].status != EPF_S_OK;
			if (wc[i].op == EPF_WC_SENT) {
				uint32_t more = p->ordered ? wc[i].id + 1 - done[from] : 1;

				done[from] += more;
				all += more;
				continue;
			}
			p->faults += p->mem[(from * SLOTS + (int)(wc[i].imm % SLOTS)) * SIZE + 7] !=
				     from + 1;
			all++;
		}
		if (n > 0)
			moved = epf_now_ns();
		else
			sched_yield();
		p->faults += epf_now_ns() > moved + 60000000000ull; /* longer is a hang */
	}
	pthread_barrier_wait(&barrier);
	p->nic->ops->close(p->nic);
	return NULL;
}

static void test_threads(void **state)
{
	pthread_t thread[THREADS];

	for (int round = 0; round < 4; round++) {
		memset(party, 0, sizeof(party));
		assert_int_equal(pthread_barrier_init(&barrier, NULL, THREADS), 0);
		for (int i = 0; i < THREADS; i++) {
			party[i].ordered = round & 1;
			assert_int_equal(pthread_create(&thread[i], NULL, run, &party[i]), 0);
		}
		for (int i = 0; i < THREADS; i++)
			pthread_join(thread[i], NULL);
		for (int i = 0; i < THREADS; i++) {
			assert_int_equal(party[i].faults, 0);
			free(party[i].mem);
		}
		pthread_barrier_destroy(&barrier);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_threads),
	};

	return cmocka_run_group_tests_name("emulated NICs in threads", tests, NULL, NULL);
}
