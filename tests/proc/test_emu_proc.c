/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The software NIC between real processes: one killed, one stopped, sleeping ones; test_order.c has the traffic. Children share a small page for
 * addresses and barriers only; all payload goes through the NIC. A failed check of a child prints one line and ends it with status 1.
 */
#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/nic/emu/opts.h"
#include "fabric/nic/emu/peers.h"
#include "fabric/nic/nic.h"
#include "queues/epf_wakeup.h"

#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { MOST = 8, BYTES = 1 << 20 };

struct meeting {
	uint32_t arrived[16]; /* one counter per barrier */
	uint32_t flag;
	pid_t pid[MOST];

	struct {
		unsigned char addr[EPF_NIC_ADDR_BYTES];
		int len;
		uint64_t raddr;
		uint32_t rkey;
		uint64_t token[MOST]; /* [peer] */
	} rank[MOST];
};

struct child {
	struct meeting *meeting;
	int me, count;
	struct epf_nic *nic;
	unsigned char *mem;
	struct epf_nic_mr mr;
	uint64_t retry_ns;
	int ordered;
	unsigned late_us; /* rank 1 does nothing for so long before it serves the other survivor */
};

#define CHECK(condition)                                                                         \
 do {                                                                                            \
  if (!(condition)) {                                                                            \
   fprintf(stderr, "%s:%d: child %d: %s is false (%s)\n", __FILE__, __LINE__, c->me, #condition, \
	   epf_last_error());                                                                    \
   _exit(1);                                                                                     \
  }                                                                                              \
 } while (0)

static uint64_t now(void *arg)
{
	(void)arg;
	return epf_now_ns();
}

static void meet(struct child *c, int barrier, uint32_t count)
{
	__atomic_fetch_add(&c->meeting->arrived[barrier], 1, __ATOMIC_ACQ_REL);
	while (__atomic_load_n(&c->meeting->arrived[barrier], __ATOMIC_ACQUIRE) < count)
		sched_yield();
}

/* Opens a NIC and connects lane p to lane `me` of every other process p. */
static void wire_up(struct child *c)
{
	struct meeting *m = c->meeting;
	struct epf_emu_opts opts;

	epf_emu_opts_defaults(&opts);
	opts.ordered = c->ordered;
	if (c->retry_ns)
		opts.retry_timeout_ns = opts.stall_timeout_ns = c->retry_ns;
	c->mem = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(c->mem != MAP_FAILED);
	CHECK(epf_emu_open(&opts, now, NULL, &c->nic) == 0);
	CHECK(c->nic->ops->region_register(c->nic, c->mem, BYTES,
					   EPF_MR_REMOTE_WRITE | EPF_MR_REMOTE_READ, &c->mr) == 0);
	m->rank[c->me].len = c->nic->ops->address(c->nic, m->rank[c->me].addr, EPF_NIC_ADDR_BYTES);
	m->rank[c->me].raddr = c->mr.raddr;
	m->rank[c->me].rkey = c->mr.rkey;
	for (int p = 0; p < c->count; p++)
		CHECK(c->nic->ops->lane_create(c->nic, (uint16_t)p, 256,
					       &m->rank[c->me].token[p]) == 0);
	meet(c, 0, (uint32_t)c->count);
	for (int p = 0; p < c->count; p++)
		CHECK(c->nic->ops->lane_connect(c->nic, (uint16_t)p, m->rank[p].addr,
						(size_t)m->rank[p].len,
						m->rank[p].token[c->me]) == 0);
}

static struct epf_wr write_to(const struct child *c, int peer, uint64_t src, uint64_t dst,
			      uint32_t len)
{
	return (struct epf_wr){
		.laddr = (uint64_t)(uintptr_t)c->mem + src,
		.raddr = c->meeting->rank[peer].raddr + dst,
		.lkey = c->mr.lkey,
		.rkey = c->meeting->rank[peer].rkey,
		.len = len,
		.op = EPF_WR_WRITE,
	};
}

/* Runs body in count processes, which must exit with 0; those in `killed` must die by a signal. */
static void run_children(struct child *proto, int count, void (*body)(struct child *),
			 unsigned killed)
{
	struct meeting *meeting = mmap(NULL, sizeof(*meeting), PROT_READ | PROT_WRITE,
				       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t pid[MOST];
	int status;

	assert_true(meeting != MAP_FAILED);
	fflush(NULL);
	for (int i = 0; i < count; i++) {
		pid[i] = fork();
		assert_true(pid[i] >= 0);
		if (pid[i] == 0) {
			struct child c = *proto;

			prctl(PR_SET_PDEATHSIG, SIGKILL);
			c.meeting = meeting;
			c.me = i;
			c.count = count;
			meeting->pid[i] = getpid();
			body(&c);
			c.nic->ops->close(c.nic);
			_exit(0);
		}
	}
	for (int i = 0; i < count; i++) {
		assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
		if (killed >> i & 1)
			assert_true(WIFSIGNALED(status));
		else
			assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	}
	munmap(meeting, sizeof(*meeting));
}

/* What a survivor has seen. */
struct seen {
	uint64_t posted, done; /* to the other survivor */
	bool dead;             /* rank 2 */
};

/* Reaps once; returns how many completions there were. Those of the survivor must be good, and those of rank 2 until it is dead. */
static int reap_survivor(struct child *c, struct seen *seen)
{
	struct epf_wc wc[32];
	int n = c->nic->ops->reap(c->nic, wc, 32);

	for (int i = 0; i < n; i++) {
		if (wc[i].lane == 2 && wc[i].status == EPF_S_RETRY_EXCEEDED)
			seen->dead = true;
		CHECK(wc[i].status == EPF_S_OK || (wc[i].lane == 2 && seen->dead));
		/* An ordered NIC completes all up to this one, a NIC without order this one. */
		if (wc[i].lane != 2)
			seen->done = c->ordered ? wc[i].id : seen->done + 1;
	}
	return n;
}

/* Ends the lane of rank 2. */
static void let_go(struct child *c, struct seen *seen)
{
	c->nic->ops->lane_fence(c->nic, 2);
	while (!c->nic->ops->lane_drained(c->nic, 2))
		reap_survivor(c, seen);
	c->nic->ops->lane_destroy(c->nic, 2);
}

/* Rank 2: writes to both others until it kills itself. */
static void die_under_traffic(struct child *c)
{
	struct epf_wc wc[32];

	for (uint32_t round = 0;; round++) {
		struct epf_wr wr = write_to(c, (int)(round & 1), 0, 8192, 7168);
		int n;

		c->nic->ops->post(c->nic, (uint16_t)(round & 1), &wr, 1);
		if (round == 500)
			kill(getpid(), SIGKILL);
		n = c->nic->ops->reap(c->nic, wc, 32);
		for (int i = 0; i < n; i++)
			CHECK(wc[i].status == EPF_S_OK);
		if (n == 0)
			sched_yield();
	}
}

/*
 * All packets are in the pool again, those that the dead process held, too: all of them can be posted at once. A packet comes back when the other
 * survivor has dequeued it, whenever that process gets a CPU: both serve each other until both have theirs, and nobody reaps from there on.
 */
static void pool_is_whole(struct child *c, struct seen *seen, uint64_t deadline)
{
	if (c->me == 1)
		usleep(c->late_us);
	while (seen->done < seen->posted) {
		CHECK(epf_now_ns() < deadline);
		reap_survivor(c, seen);
	}
	__atomic_fetch_add(&c->meeting->arrived[3], 1, __ATOMIC_ACQ_REL);
	while (__atomic_load_n(&c->meeting->arrived[3], __ATOMIC_ACQUIRE) < 2)
		reap_survivor(c, seen);
	for (int i = 0; i < 8; i++) {
		struct epf_wr wr = write_to(c, !c->me, 0, 0, BYTES / 2);

		CHECK(c->nic->ops->post(c->nic, (uint16_t)!c->me, &wr, 1) == 1);
	}
}

static void address_is_no_longer_valid(struct child *c)
{
	uint64_t token;

	CHECK(c->nic->ops->lane_create(c->nic, 2, 16, &token) == 0);
	CHECK(c->nic->ops->lane_connect(c->nic, 2, c->meeting->rank[2].addr,
					(size_t)c->meeting->rank[2].len,
					c->meeting->rank[2].token[c->me]) == -ESRCH);
	CHECK(epf_last_reason() == EPF_R_NIC_PEER_GONE);
}

/*
 * Rank 2 is killed under traffic: ranks 0 and 1 get an error for it and go on with each other. The NIC's watch notifies them, not a timeout, which
 * a living rank on a busy machine might miss, too.
 */
static void killed(struct child *c)
{
	struct epf_nic_counters counters;
	struct seen seen = { 0 };
	bool let_gone = false;
	uint64_t deadline;

	c->retry_ns = 600000000000;
	wire_up(c);
	meet(c, 1, 3);
	if (c->me == 2)
		die_under_traffic(c);
	deadline = epf_now_ns() + 120000000000ull; /* longer is a hang */
	for (uint32_t round = 0; !seen.dead || seen.done < 100; round++) {
		struct epf_wr wr = write_to(c, 2, 0, 4096, 7168);
		int n;

		CHECK(epf_now_ns() < deadline);
		if (round % 64 == 0)
			c->nic->ops->watch(c->nic);
		wr.id = round;
		if (!seen.dead) {
			c->nic->ops->post(c->nic, 2, &wr, 1);
		} else {
			wr = write_to(c, !c->me, 0, 4096, 7168);
			wr.id = (uint32_t)seen.posted + 1;
			n = c->nic->ops->post(c->nic, (uint16_t)!c->me, &wr, 1);
			CHECK(n >= 0);
			seen.posted += (uint64_t)n;
		}
		n = reap_survivor(c, &seen);
		if (seen.dead && !let_gone) {
			let_go(c, &seen);
			let_gone = true;
		}
		if (n == 0)
			sched_yield();
	}
	c->nic->ops->counters(c->nic, &counters);
	CHECK(counters.errors == 1);
	pool_is_whole(c, &seen, deadline);
	address_is_no_longer_valid(c);
}

static void test_killed(void **state)
{
	run_children(&(struct child){ .ordered = 1 }, 3, killed, 1u << 2);
	run_children(&(struct child){ .ordered = 0 }, 3, killed, 1u << 2);
	/* A survivor that gets no CPU for longer than the other one needs for all. */
	run_children(&(struct child){ .ordered = 1, .late_us = 400000 }, 3, killed, 1u << 2);
}

/* Rank 1 is stopped longer than both timeouts; when it continues, it does not disturb rank 0. */
static void stopped(struct child *c)
{
	struct epf_wr wr = write_to(c, 1, 0, 0, 7168);
	struct epf_wc wc[32];
	int n, failed = 0;
	uint64_t ticks;
	char state;

	c->retry_ns = 200000000;
	wire_up(c);
	meet(c, 1, 2);
	if (c->me == 1) {
		raise(SIGSTOP);
		while (!__atomic_load_n(&c->meeting->flag, __ATOMIC_ACQUIRE))
			c->nic->ops->reap(c->nic, wc, 32);
		CHECK(c->mem[0] == 0 || c->mem[0] == 7);
		return;
	}
	while (epf_emu_proc_stat(c->meeting->pid[1], &state, &ticks) || state != 'T')
		usleep(1000);
	memset(c->mem, 7, 7168);
	for (uint32_t i = 0; i < 8; i++) {
		wr = write_to(c, 1, 0, 0, 7168);
		wr.id = i;
		CHECK(c->nic->ops->post(c->nic, 1, &wr, 1) == 1);
	}
	while (failed < 8) {
		n = c->nic->ops->reap(c->nic, wc, 32);
		for (int i = 0; i < n; i++)
			failed += wc[i].status == EPF_S_RETRY_EXCEEDED ||
				  wc[i].status == EPF_S_FLUSHED;
		usleep(1000);
	}
	kill(c->meeting->pid[1], SIGCONT);
	for (int i = 0; i < 100; i++) {
		CHECK(c->nic->ops->reap(c->nic, wc, 32) == 0);
		usleep(1000);
	}
	__atomic_store_n(&c->meeting->flag, 1, __ATOMIC_RELEASE);
}

static void test_stopped(void **state)
{
	run_children(&(struct child){ .ordered = 1 }, 2, stopped, 0);
}

/* Ping-pong between processes that sleep on their wakeups. */
static void sleeping(struct child *c)
{
	enum { ROUNDS = 2000 };
	struct epf_wakeup *wakeup;
	struct epf_wc wc[8];
	uint64_t moved;
	int balls = c->me == 0;

	wire_up(c);
	c->nic->ops->post_receives(c->nic, ROUNDS + 1);
	wakeup = c->nic->ops->wakeup(c->nic);
	meet(c, 1, 2);
	moved = epf_now_ns();
	for (int got = 0; got < ROUNDS;) {
		struct epf_wr wr = write_to(c, !c->me, 0, 0, 0);
		int n;

		wr.op = EPF_WR_WRITE_IMM;
		for (; balls; balls--)
			CHECK(c->nic->ops->post(c->nic, (uint16_t)!c->me, &wr, 1) == 1);
		epf_wakeup_arm(wakeup);
		n = c->nic->ops->reap(c->nic, wc, 8);
		if (c->nic->ops->wake_pending(c->nic))
			c->nic->ops->wake_peers(c->nic);
		if (n == 0) {
			CHECK(epf_now_ns() - moved < 60000000000ull); /* longer is a hang */
			epf_wakeup_sleep(wakeup, 5000000000ull);
		}
		epf_wakeup_disarm(wakeup);
		for (int i = 0; i < n; i++)
			if (wc[i].op == EPF_WC_RECV_IMM) {
				got++;
				balls++;
				moved = epf_now_ns();
			}
	}
	if (balls && c->me == 1) {
		struct epf_wr wr = write_to(c, 0, 0, 0, 0);

		wr.op = EPF_WR_WRITE_IMM;
		CHECK(c->nic->ops->post(c->nic, 0, &wr, 1) == 1);
		c->nic->ops->wake_peers(c->nic);
	}
	meet(c, 2, 2);
}

static void test_sleeping(void **state)
{
	run_children(&(struct child){ .ordered = 1 }, 2, sleeping, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {

		cmocka_unit_test(test_killed),
		cmocka_unit_test(test_stopped),
		cmocka_unit_test(test_sleeping),
	};

	return cmocka_run_group_tests_name("emu between processes", tests, NULL, NULL);
}
