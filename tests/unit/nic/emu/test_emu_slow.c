/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The emulated NIC on a machine that is too busy, on a virtual clock: a peer that is not run is not lost, one that is run and silent is; who
 * was not run himself finds the answers before he looks at his timeouts; a peer that stops, or ends, in the middle of marking its mail
 * keeps nobody else's mail back; what waited for the other end wakes it.
 */
#include "tests/unit/nic/nic_rig.h"

#include "fabric/nic/emu/emu.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MS 1000000ull

static const struct nic_kind *kind;

static struct rig *open_rig(void (*tune)(struct epf_emu_opts *))
{
	struct rig *rig = rig_open(kind, tune);

	rig_run(rig, MS);
	rig_clear(rig);
	return rig;
}

/* One reap of a; how many completions it has reported in all since the log was cleared. */
static unsigned look(struct rig *rig)
{
	rig_reap(&rig->a);
	return rig->a.n;
}

/* The peer's process rests for several retry timeouts: nothing fails, and its answer counts. */
static void test_peer_not_run(void **state)
{
	struct rig *rig = open_rig(NULL);
	struct epf_wr wr = rig_write(rig, 1, 0, 0, 3000);
	int status;

	rig_fill(rig->a.mem, 3000, 1);
	rig_post(rig, &wr);
	for (int i = 0; i < 50; i++) {
		rig->now_ns += rig->opts->retry_timeout_ns / 10;
		assert_int_equal(look(rig), 0);
	}
	rig_run(rig, MS);
	assert_true(rig_sent(rig, &rig->a, 1, &status));
	assert_int_equal(status, EPF_S_OK);
	assert_true(rig_matches(rig->b.mem, 3000, 1));
	/* The next one counts from its own post. */
	rig_clear(rig);
	wr.id = 2;
	rig_post(rig, &wr);
	rig->now_ns += rig->opts->retry_timeout_ns + 1;
	assert_int_equal(look(rig), 0);
	rig_run(rig, MS);
	assert_true(rig_sent(rig, &rig->a, 2, &status));
	assert_int_equal(status, EPF_S_OK);
	rig_close(rig);
}

/* Not forever: emu-stall-timeout ends it, with one look in all that time or with many. */
static void test_peer_never_run(void **state)
{
	for (int many = 0; many < 2; many++) {
		struct rig *rig = open_rig(NULL);
		struct epf_wr wr = rig_write(rig, 1, 0, 0, 100);
		uint64_t begin = rig->now_ns, end = begin + rig->opts->stall_timeout_ns;
		int status;

		rig_post(rig, &wr);
		rig->now_ns += rig->opts->retry_timeout_ns;
		assert_int_equal(look(rig), 0);
		while (many && rig->now_ns + 50 * MS < end) {
			rig->now_ns += 50 * MS;
			assert_int_equal(look(rig), 0);
		}
		rig->now_ns = end - 1;
		assert_int_equal(look(rig), 0);
		rig->now_ns = end;
		assert_int_equal(look(rig), 1);
		assert_true(rig_sent(rig, &rig->a, 1, &status));
		assert_int_equal(status, EPF_S_RETRY_EXCEEDED);
		rig_close(rig);
	}
}

static void tune_impatient(struct epf_emu_opts *opts)
{
	opts->stall_timeout_ns = 0;
}

/* No difference is made where none is wanted. */
static void test_no_difference(void **state)
{
	struct rig *rig = open_rig(tune_impatient);
	struct epf_wr wr = rig_write(rig, 1, 0, 0, 100);

	rig_post(rig, &wr);
	rig->now_ns += rig->opts->retry_timeout_ns - 1;
	assert_int_equal(look(rig), 0);
	rig->now_ns += 1;
	assert_int_equal(look(rig), 1);
	rig_close(rig);
}

/* A peer that is run and does not answer, because its link is cut, is found soon after the retry timeout. */
static void test_silent_peer(void **state)
{
	struct rig *rig = open_rig(NULL);
	struct epf_wr wr = rig_write(rig, 1, 0, 0, 100);
	uint64_t begin = rig->now_ns, retry = rig->opts->retry_timeout_ns;
	int status;

	assert_int_equal(rig->b.nic->ops->set_link(rig->b.nic, 0, 0), 0);
	rig_post(rig, &wr);
	while (!look(rig)) {
		rig_reap(&rig->b);
		rig->now_ns += MS;
		assert_true(rig->now_ns - begin < retry / 16 * 17);
	}
	assert_true(rig->now_ns - begin >= retry);
	assert_true(rig_sent(rig, &rig->a, 1, &status));
	assert_int_equal(status, EPF_S_RETRY_EXCEEDED);
	rig_close(rig);
}

/* This process was not run itself: what has been answered meanwhile is no failure, however late it is. */
static void test_not_run_itself(void **state)
{
	struct rig *rig = open_rig(tune_impatient);
	struct epf_wr wr = rig_write(rig, 1, 0, 0, 3000);
	int status;

	rig_post(rig, &wr);
	rig_reap(&rig->b);
	rig->now_ns += 10 * rig->opts->retry_timeout_ns;
	assert_true(look(rig) > 0);
	assert_true(rig_sent(rig, &rig->a, 1, &status));
	assert_int_equal(status, EPF_S_OK);
	rig_close(rig);
}

/* Neither was run, for longer than emu-stall-timeout: a machine that was suspended. */
static void test_neither_run(void **state)
{
	struct rig *rig = open_rig(NULL);
	struct epf_wr wr = rig_write(rig, 1, 0, 0, 3000);
	int status;

	rig_post(rig, &wr);
	rig->now_ns += 100 * rig->opts->stall_timeout_ns;
	assert_int_equal(look(rig), 0);
	rig_run(rig, MS);
	assert_true(rig_sent(rig, &rig->a, 1, &status));
	assert_int_equal(status, EPF_S_OK);
	rig_close(rig);
}

/* Somebody stopped between marking a lane and marking its word: the others' mail is found all the same. */
static void test_half_a_mark(void **state)
{
	struct rig *rig = open_rig(NULL);
	struct epf_emu_segment *hdr = epf_emu_of(rig->b.nic)->seg->hdr;
	struct epf_wr wr = rig_write(rig, 1, 0, 0, 100);
	int status;

	__atomic_fetch_or(&hdr->mail[0], 1ull << 7, __ATOMIC_SEQ_CST);
	rig_fill(rig->a.mem, 100, 3);
	rig_post(rig, &wr);
	rig_run(rig, MS);
	assert_true(rig_sent(rig, &rig->a, 1, &status));
	assert_int_equal(status, EPF_S_OK);
	assert_true(rig_matches(rig->b.mem, 100, 3));
	rig_close(rig);
}

/* What waited until the other end was connected wakes its sleeper when it goes out. */
static void test_late_connect(void **state)
{
	struct rig *rig = open_rig(NULL);
	struct epf_nic *a = rig->a.nic, *b = rig->b.nic;
	unsigned char addr_a[EPF_NIC_ADDR_BYTES], addr_b[EPF_NIC_ADDR_BYTES];
	struct epf_wr wr = rig_write(rig, 9, 0, 0, 100);
	size_t na = (size_t)a->ops->address(a, addr_a, sizeof(addr_a));
	size_t nb = (size_t)b->ops->address(b, addr_b, sizeof(addr_b));
	uint64_t ta, tb;

	assert_int_equal(a->ops->lane_create(a, 1, 16, &ta), 0);
	assert_int_equal(b->ops->lane_create(b, 1, 16, &tb), 0);
	assert_int_equal(a->ops->lane_connect(a, 1, addr_b, nb, tb), 0);
	assert_int_equal(a->ops->post(a, 1, &wr, 1), 1);
	/* It has waited longer than a retry lasts, because the other end is late. */
	rig->now_ns += 2 * rig->opts->retry_timeout_ns;
	assert_int_equal(look(rig), 0);
	assert_int_equal(b->ops->lane_connect(b, 1, addr_a, na, ta), 0);
	epf_wakeup_arm(b->ops->wakeup(b));
	assert_int_equal(look(rig), 0);
	assert_true(a->ops->wake_pending(a));
	a->ops->wake_peers(a);
	assert_int_equal(epf_wakeup_is_needed(b->ops->wakeup(b)), 0);
	rig_run(rig, MS);
	assert_int_equal(rig_count(&rig->a, EPF_WC_SENT, EPF_S_OK), 1);
	rig_close(rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_peer_not_run),   cmocka_unit_test(test_peer_never_run),
		cmocka_unit_test(test_no_difference),  cmocka_unit_test(test_silent_peer),
		cmocka_unit_test(test_not_run_itself), cmocka_unit_test(test_half_a_mark),
		cmocka_unit_test(test_late_connect),   cmocka_unit_test(test_neither_run),
	};
	size_t count, ran = 0;
	const struct nic_kind *kinds = nic_rig_kinds(&count);
	int failed = 0;

	for (size_t i = 0; i < count; i++) {
		/* The copier of GPU memory has a thread and the real clock: late there is late. */
		if (strncmp(kinds[i].name, "emu", 3) != 0 || kinds[i].gpu)
			continue;
		kind = &kinds[i];
		ran++;
		failed += cmocka_run_group_tests_name(kind->name, tests, NULL, NULL);
	}
	return ran ? failed : 77;
}
