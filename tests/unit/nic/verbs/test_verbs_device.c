/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What can only be said of real RDMA devices: fences under traffic, numbers used again, a peer that is gone, waking a sleeper, a cut link.
 * Beside the conformance suite (test_nic*.c), whose cases with a virtual clock do not apply there.
 *
 * EPF_TEST_VERBS_DEVICES names one or two devices that reach each other ("rxe0,rxe1"); without it the test is skipped (77).
 * EPF_TEST_VERBS_LINK names the network interface of the first, which the link case takes down and up again (as root).
 */
#include "tests/unit/nic/nic_rig.h"

#include "queues/epf_wakeup.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define MS 1000000ull

enum { WRITES = 100, BYTES = 2000, HANG_MS = 30000 };

static const struct nic_kind *kind;

static int setup(void **state)
{
	*state = rig_open(kind, NULL);
	return 0;
}

static int teardown(void **state)
{
	rig_close(*state);
	return 0;
}

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* WRITES writes with immediate i, each to a separate place. */
static void post_stream(struct rig *rig)
{
	for (uint32_t i = 0; i < WRITES; i++) {
		struct epf_wr wr = rig_write(rig, i, i * BYTES, i * BYTES, BYTES);

		rig_fill(rig->a.mem + i * BYTES, BYTES, i + 1);
		wr.op = EPF_WR_WRITE_IMM;
		wr.imm = i;
		rig_post(rig, &wr);
	}
}

static void reap_until_drained(struct rig *rig, struct rig_end *end)
{
	uint64_t deadline = now_ns() + 20000 * MS;

	while (!end->nic->ops->lane_drained(end->nic, 0)) {
		if (now_ns() > deadline)
			fail_msg("a fenced lane does not drain");
		rig_reap(&rig->a);
		rig_reap(&rig->b);
		usleep(100);
	}
}

/* Arrivals are 0, 1, 2 ...; each one's bytes are there. Returns how many. */
static uint32_t check_prefix(struct rig *rig)
{
	uint32_t n = 0;

	for (unsigned i = 0; i < rig->b.n; i++) {
		if (rig->b.log[i].op != EPF_WC_RECV_IMM)
			continue;
		assert_int_equal(rig->b.log[i].imm, n);
		assert_true(rig_matches(rig->b.mem + n * BYTES, BYTES, n + 1));
		n++;
	}
	return n;
}

/* The target fences at some point of a stream: when it is drained nothing lands any more, and the sender hears of its end. */
static void test_fence_target(void **state)
{
	static unsigned char before[RIG_BYTES];
	struct rig *rig = *state;
	uint32_t arrived, sent = 0;
	int status;

	for (unsigned round = 0; round < 6; round++) {
		rig_clear(rig);
		memset(rig->b.mem, 0, RIG_BYTES);
		rig->b.nic->ops->post_receives(rig->b.nic, WRITES);
		post_stream(rig);
		while (rig_count(&rig->b, EPF_WC_RECV_IMM, -1) < round * 8)
			rig_reap(&rig->b);
		rig->b.nic->ops->lane_fence(rig->b.nic, 0);
		assert_int_equal(rig->b.nic->ops->lane_link(rig->b.nic, 0), EPF_LANE_ERROR);
		reap_until_drained(rig, &rig->b);
		arrived = check_prefix(rig);
		memcpy(before, rig->b.mem, RIG_BYTES);
		rig_run(rig, 3000 * MS); /* until the sender has given up */
		assert_memory_equal(before, rig->b.mem, RIG_BYTES);
		assert_int_equal(check_prefix(rig), arrived);
		for (sent = 0; sent < WRITES && rig_sent(rig, &rig->a, sent, &status); sent++)
			if (status != EPF_S_OK)
				break;
		/* What was reported as arrived has arrived. */
		assert_true(sent <= arrived);
		if (sent < WRITES) {
			assert_int_equal(status, EPF_S_RETRY_EXCEEDED);
			for (uint32_t i = sent + 1; i < WRITES; i++) {
				assert_true(rig_sent(rig, &rig->a, i, &status));
				assert_int_equal(status, EPF_S_FLUSHED);
			}
			assert_true(rig->a.nic->ops->lane_drained(rig->a.nic, 0));
		}
		rig_reconnect(rig);
	}
}

static void test_fence_sender(void **state)
{
	struct rig *rig = *state;
	uint32_t ok, flushed;

	for (unsigned round = 0; round < 6; round++) {
		rig_clear(rig);
		memset(rig->b.mem, 0, RIG_BYTES);
		rig->b.nic->ops->post_receives(rig->b.nic, WRITES);
		post_stream(rig);
		while (rig_count(&rig->b, EPF_WC_RECV_IMM, -1) < round * 8)
			rig_reap(&rig->b);
		rig->a.nic->ops->lane_fence(rig->a.nic, 0);
		reap_until_drained(rig, &rig->a);
		for (ok = 0; ok < WRITES; ok++) {
			int status = -1;

			assert_true(rig_sent(rig, &rig->a, ok, &status));
			if (status != EPF_S_OK)
				break;
		}
		flushed = rig_count(&rig->a, EPF_WC_SENT, EPF_S_FLUSHED);
		assert_int_equal(ok + flushed, WRITES);
		assert_int_equal(rig_count(&rig->a, EPF_WC_LANE_DOWN, -1), 0);
		rig_run(rig, 50 * MS);
		assert_true(ok <= check_prefix(rig));
		rig_reconnect(rig);
	}
}

/* Lanes destroyed under traffic and made again: what is new works, and nothing of the old shows on it. */
static void test_epochs(void **state)
{
	struct rig *rig = *state;
	int status;

	for (unsigned round = 0; round < 20; round++) {
		struct epf_wr wr = rig_write(rig, 1000 + round, 0, 0, 64);

		rig->b.nic->ops->post_receives(rig->b.nic, WRITES);
		post_stream(rig);
		for (unsigned i = 0; i < round; i++)
			rig_reap(&rig->b);
		rig_reconnect(rig);
		rig_clear(rig);
		memset(rig->b.mem, 0, 64);
		rig_fill(rig->a.mem, 64, round);
		rig_post(rig, &wr);
		rig_run(rig, MS);
		assert_true(rig_sent(rig, &rig->a, 1000 + round, &status));
		assert_int_equal(status, EPF_S_OK);
		assert_int_equal(rig_count(&rig->a, EPF_WC_SENT, -1), 1);
		assert_int_equal(rig->b.n, 0);
		assert_true(rig_matches(rig->b.mem, 64, round));
	}
}

static void test_gone_peer(void **state)
{
	struct rig *rig = *state;
	struct epf_wr wr = rig_write(rig, 1, 0, 0, 64);
	uint64_t since = now_ns();
	int status;

	rig->b.nic->ops->lane_destroy(rig->b.nic, 0);
	rig_post(rig, &wr);
	rig_run(rig, HANG_MS * MS);
	assert_true(rig_sent(rig, &rig->a, 1, &status));
	assert_int_equal(status, EPF_S_RETRY_EXCEEDED);
	print_message("a lane whose peer is gone failed after %u ms\n",
		      (unsigned)((now_ns() - since) / MS));
}

/* A sleeper is woken by an arrival and by a completion; again and again. */
static void test_sleep(void **state)
{
	struct rig *rig = *state;
	struct epf_nic *a = rig->a.nic, *b = rig->b.nic;
	struct epf_wakeup *wakeup_a = a->ops->wakeup(a), *wakeup_b = b->ops->wakeup(b);
	struct epf_wr wr = rig_write(rig, 1, 0, 0, 64);

	wr.op = EPF_WR_WRITE_IMM;
	for (uint32_t round = 1; round <= 20; round++) {
		uint64_t since = now_ns();

		rig_clear(rig);
		b->ops->post_receives(b, 1);
		epf_wakeup_arm(wakeup_a);
		epf_wakeup_arm(wakeup_b);
		assert_int_equal(a->ops->arm(a), 0);
		assert_int_equal(b->ops->arm(b), 0);
		assert_int_equal(rig_reap(&rig->a) + rig_reap(&rig->b), 0);
		rig_post(rig, &wr);
		epf_wakeup_sleep(wakeup_b, HANG_MS * MS);
		assert_int_equal(wakeup_b->rung, round);
		assert_int_equal(rig_reap(&rig->b), 1);
		epf_wakeup_sleep(wakeup_a, HANG_MS * MS);
		assert_int_equal(wakeup_a->rung, round);
		assert_int_equal(rig_reap(&rig->a), 1);
		assert_true(now_ns() - since < HANG_MS * MS);
	}
}

static void run(const char *command, const char *link, const char *word)
{
	char line[200];

	snprintf(line, sizeof(line), command, link, word);
	if (system(line))
		fail_msg("%s", line);
}

/* The link goes down: the watch says so, work fails, and after it is up again new lanes work. */
static void test_link(void **state)
{
	const char *link = getenv("EPF_TEST_VERBS_LINK");
	const char *neighbours = getenv("EPF_TEST_VERBS_LINK_UP"); /* a command for afterwards */
	struct rig *rig = *state;
	struct epf_nic_counters counters;
	struct epf_wr wr = rig_write(rig, 1, 0, 0, 64);
	uint64_t since;
	int status;

	if (!link)
		skip();
	run("ip link set %s %s", link, "down");
	since = now_ns();
	rig_post(rig, &wr);
	rig_run(rig, HANG_MS * MS);
	assert_true(rig_sent(rig, &rig->a, 1, &status));
	assert_int_not_equal(status, EPF_S_OK);
	print_message("link down: status %d after %u ms\n", status,
		      (unsigned)((now_ns() - since) / MS));
	for (int i = 0; i < 100; i++) {
		rig->a.nic->ops->watch(rig->a.nic);
		rig->a.nic->ops->counters(rig->a.nic, &counters);
		if (!counters.link_up)
			break;
		usleep(10000);
	}
	assert_int_equal(counters.link_up, 0);
	run("ip link set %s %s", link, "up");
	if (neighbours)
		run("%s%s", neighbours, "");
	for (int i = 0; i < 300 && !counters.link_up; i++) {
		usleep(10000);
		rig->a.nic->ops->watch(rig->a.nic);
		rig->a.nic->ops->counters(rig->a.nic, &counters);
	}
	assert_int_equal(counters.link_up, 1);
	rig_reconnect(rig);
	rig_clear(rig);
	rig_fill(rig->a.mem, 64, 5);
	rig_post(rig, &wr);
	rig_run(rig, MS);
	assert_true(rig_sent(rig, &rig->a, 1, &status));
	assert_int_equal(status, EPF_S_OK);
	assert_true(rig_matches(rig->b.mem, 64, 5));
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_fence_target), CASE(test_fence_sender), CASE(test_epochs),
		CASE(test_gone_peer),    CASE(test_sleep),        CASE(test_link),
	};
	const char *devices = getenv("EPF_TEST_VERBS_DEVICES");
	size_t count;
	int failed = 0;

	if (!devices || !*devices) {
		printf("skipped: EPF_TEST_VERBS_DEVICES names no RDMA devices\n");
		return 77;
	}
	kind = nic_rig_kinds(&count);
	for (; count; count--, kind++)
		if (kind->real)
			failed += cmocka_run_group_tests_name(kind->name, tests, NULL, NULL);
	return failed != 0;
}
