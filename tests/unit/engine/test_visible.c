/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory order between a core's thread and a rank's: what was written before a signal (R4), an addition (R4) or a retirement (R3) is visible
 * to who has read the signal, the word or the completion counter. The data is plain memory that nothing else orders, so ThreadSanitizer reports a missing
 * release or acquire on every run, whatever the CPU does. The null NIC moves nothing: the core's thread writes the data, as a software
 * NIC does.
 */
#include "tests/unit/engine/null_rig.h"

#include "fabric/engine/lane_hot.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { TIMES = 300, HANDLE = 5 };

/* What the core's thread does for turn n, after it has written the data. */
struct play {
	struct null_rig rig;
	void (*turn)(struct play *p);
	uint64_t data; /* plain */
	uint64_t may;  /* turns that the other thread has asked for */
	uint64_t done; /* turns that the core's thread has ended */
};

static void arrive(struct play *p, struct epf_msg m)
{
	struct epf_wc wc = { .op = EPF_WC_RECV, .lane = NULL_LANES, .len = sizeof(m), .msg = &m };
	struct epf_core *core = p->rig.core;

	m.handle = HANDLE;
	m.count = core->nodes[1].rx[HANDLE].base;
	epf_arrive(core, &wc);
}

static void raise_signal(struct play *p)
{
	arrive(p, (struct epf_msg){ .kind = EPF_MSG_SIGNAL, .value = 1 });
}

static void add(struct play *p)
{
	arrive(p, (struct epf_msg){ .kind = EPF_MSG_ADD, .value = 1 });
}

/* The command is in the ring: it is dequeued and retires in this step, or in the next. */
static void retire(struct play *p)
{
	for (unsigned i = 0; i < 3; i++)
		epf_core_step(p->rig.core);
}

static void *run_core(void *arg)
{
	struct play *p = arg;

	for (uint64_t n = 1; n <= TIMES; n++) {
		while (EPF_LOAD_ACQUIRE(&p->may) < n)
			sched_yield();
		p->data = n;
		p->turn(p);
		EPF_STORE_RELEASE(&p->done, n);
	}
	return NULL;
}

static uint64_t signal_value(struct play *p)
{
	return epf_signal_read(&p->rig.rank[0].signals[0]);
}

static uint64_t word_value(struct play *p)
{
	return EPF_LOAD_ACQUIRE((uint64_t *)(void *)p->rig.rank[0].memory[0]);
}

static uint64_t retired(struct play *p)
{
	return epf_ring_retired(&p->rig.rank[0].ring);
}

/*
 * The data is there with the value that promises it. The next turn's is not written before this thread has asked for it, and the turn
 * has ended before its command is pushed: else the last steps of this turn could retire it. The wait for that end follows the look at
 * the data, so it orders nothing that this test is about.
 */
static void play(void (*turn)(struct play *p), uint64_t (*value)(struct play *p), bool pushes)
{
	static struct play p;
	pthread_t thread;
	uint64_t wrong = 0;

	memset(&p, 0, sizeof(p));
	null_rig_open(&p.rig, false);
	p.turn = turn;
	assert_int_equal(pthread_create(&thread, NULL, run_core, &p), 0);
	for (uint64_t n = 1; n <= TIMES; n++) {
		if (pushes)
			epf_ring_push(&p.rig.rank[0].ring, (struct epf_cmd){ 0, 0 }); /* NOP */
		EPF_STORE_RELEASE(&p.may, n); /* the data of the turn before has been read */
		while (value(&p) < n)
			sched_yield();
		wrong += p.data != n;
		while (EPF_LOAD_ACQUIRE(&p.done) < n)
			sched_yield();
	}
	pthread_join(thread, NULL);
	assert_int_equal(wrong, 0);
	null_rig_close(&p.rig);
}

static void a_signal_makes_data_visible(void **state)
{
	play(raise_signal, signal_value, false);
}

static void an_addition_makes_data_visible(void **state)
{
	play(add, word_value, false);
}

static void a_retirement_makes_data_visible(void **state)
{
	play(retire, retired, true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_signal_makes_data_visible),
		cmocka_unit_test(an_addition_makes_data_visible),
		cmocka_unit_test(a_retirement_makes_data_visible),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
