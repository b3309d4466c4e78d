/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What can only be said of real RDMA devices of one's own: a link that is cut, which others would feel, too. Beside the conformance
 * suite (test_nic*.c).
 *
 * EPF_TEST_VERBS_DEVICES names one or two devices that reach each other ("rxe0,rxe1"); without it the test is skipped (77).
 * EPF_TEST_VERBS_LINK names the network interface of the first, which the link case takes down and up again (as root).
 */
#include "tests/unit/nic/nic_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define MS 1000000ull

enum { HANG_MS = 30000 };

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
		CASE(test_link),
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
