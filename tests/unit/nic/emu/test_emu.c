/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The emulated NIC's faults on a virtual clock: delay, reorder, duplicate, drop, completion errors, their
 * replay from a seed, fences with packets held back, and random traffic against a model over many seeds.
 * EPF_SEED=n runs the random traffic with that seed only; EPF_SEEDS=n with that many, over GPU memory with 8 of 100.
 */
#include "tests/unit/nic/nic_rig.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MS 1000000ull

static const struct nic_kind *ordered, *unordered;
static struct epf_emu_opts wanted; /* fault settings for the next rig */

static void tune(struct epf_emu_opts *opts)
{
	opts->seed = wanted.seed;
	opts->delay_ns = wanted.delay_ns;
	opts->reorder = wanted.reorder;
	opts->duplicate = wanted.duplicate;
	opts->drop = wanted.drop;
	opts->error = wanted.error;
	opts->retransmit_ns = 200000;
}

static struct rig *faulty(const struct nic_kind *kind, struct epf_emu_opts faults)
{
	struct rig *rig;

	wanted = faults;
	rig = rig_open(kind, tune);
	rig->b.nic->ops->post_receives(rig->b.nic, 4000);
	return rig;
}

static void post_imms(struct rig *rig, uint32_t n, uint32_t len)
{
	for (uint32_t i = 0; i < n; i++) {
		struct epf_wr wr = rig_write(rig, i, 0, i * 512, len);

		wr.op = EPF_WR_WRITE_IMM;
		wr.imm = i;
		while (rig->a.nic->ops->post(rig->a.nic, 0, &wr, 1) == 0)
			rig_run(rig, 10000);
	}
}

static struct epf_nic_counters counters_of(struct epf_nic *nic)
{
	struct epf_nic_counters counters;

	nic->ops->counters(nic, &counters);
	return counters;
}

/* More duplicates due at once than a reap takes: it gives as many as it was asked for, and none behind them. */
static void test_duplicates_in_small_reaps(void **state)
{
	struct rig *rig = faulty(unordered, (struct epf_emu_opts){ .seed = 5, .duplicate = 1.0 });
	unsigned arrived = 0, seen[40] = { 0 };

	post_imms(rig, 40, 8);
	/* All of them first, at one moment; then all second events are due. */
	for (unsigned i = 0; i < 10; i++)
		rig_reap(&rig->b);
	rig->now_ns +=
		60000; /* the second landing of each is due, of its second event the fewest */
	for (unsigned i = 0; i < 100 && rig->b.n < 40; i++)
		rig_reap(&rig->b);
	assert_true(rig->b.n >= 40);
	for (unsigned turn = 0; turn < 1000; turn++) {
		struct epf_wc wc[5];
		int n;

		memset(wc, 0xee, sizeof(wc));
		/* Everything is due by now. */
		rig->now_ns += 100 * MS;
		n = rig->b.nic->ops->reap(rig->b.nic, wc, 4);
		assert_in_range(n, 0, 4);
		for (size_t i = 0; i < sizeof(wc[4]); i++)
			assert_int_equal(((const unsigned char *)&wc[4])[i], 0xee);
		for (int i = 0; i < n; i++) {
			assert_true(wc[i].op == EPF_WC_RECV_IMM && wc[i].imm < 40);
			seen[wc[i].imm]++;
			arrived++;
		}
	}
	assert_true(arrived > 10);
	for (unsigned i = 0; i < 40; i++)
		assert_in_range(seen[i], 0, 1);
	rig_close(rig);
}

static void test_delay(void **state)
{
	struct rig *rig = faulty(ordered, (struct epf_emu_opts){ .seed = 3, .delay_ns = 10 * MS });
	uint64_t start = rig->now_ns, first = 0, last = 0;

	post_imms(rig, 60, 64);
	for (uint32_t seen = 0; seen < 60;) {
		uint64_t next;

		rig_reap(&rig->b);
		for (; seen < rig->b.n; seen++) {
			assert_int_equal(rig->b.log[seen].imm, seen);
			first = seen ? first : rig->now_ns;
			last = rig->now_ns;
		}
		next = rig->b.nic->ops->next_event(rig->b.nic);
		assert_true(seen == 60 || next != UINT64_MAX);
		if (seen < 60 && next > rig->now_ns)
			rig->now_ns = next;
	}
	/* Delays are real, bounded, and do not add up along the lane. */
	assert_true(first > start);
	assert_true(last - start > 5 * MS && last - start <= 10 * MS);
	rig_run(rig, MS);
	assert_true(rig_count(&rig->a, EPF_WC_SENT, EPF_S_OK) > 0);
	assert_int_equal(rig->a.log[rig->a.n - 1].id, 59);
	rig_close(rig);
}

static void test_reorder(void **state)
{
	struct rig *rig = faulty(unordered, (struct epf_emu_opts){ .seed = 5, .reorder = 0.3 });
	unsigned backwards = 0;

	post_imms(rig, 200, 64);
	rig_run(rig, 10 * MS);
	assert_int_equal(rig_count(&rig->b, EPF_WC_RECV_IMM, EPF_S_OK), 200);
	for (unsigned i = 1; i < rig->b.n; i++)
		backwards += rig->b.log[i].imm < rig->b.log[i - 1].imm;
	assert_in_range(backwards, 10, 150);
	assert_in_range(counters_of(rig->b.nic).packets_reordered, 30, 100);
	assert_int_equal(rig_count(&rig->a, EPF_WC_SENT, EPF_S_OK), 200);
	rig_close(rig);
}

static void test_drop(void **state)
{
	const struct nic_kind *kinds[] = { ordered, unordered };

	for (int k = 0; k < 2; k++) {
		struct rig *rig = faulty(kinds[k], (struct epf_emu_opts){ .seed = 5, .drop = 0.2 });
		struct epf_nic_counters c;

		post_imms(rig, 200, 64);
		rig_run(rig, 10 * MS);
		c = counters_of(rig->b.nic);
		assert_int_equal(rig_count(&rig->b, EPF_WC_RECV_IMM, EPF_S_OK), 200);
		assert_in_range(c.packets_dropped, 15, 80);
		assert_int_equal(c.packets_dropped, c.retransmits);
		for (unsigned i = 0; k == 0 && i < 200; i++)
			assert_int_equal(rig->b.log[i].imm, i);
		rig_close(rig);
	}
}

/* Second events come, at most 1 ms late; second data never comes once software has seen the event. */
static void test_duplicate(void **state)
{
	struct rig *rig = faulty(
		unordered, (struct epf_emu_opts){ .seed = 9, .duplicate = 0.3, .reorder = 0.2 });
	uint64_t first[100] = { 0 };
	unsigned seen = 0, second = 0;

	rig_fill(rig->a.mem, 3000, 1);
	for (uint32_t i = 0; i < 80; i++) {
		struct epf_wr wr = rig_write(rig, i, 0, i * 3000, 3000);

		wr.op = EPF_WR_WRITE_IMM;
		wr.imm = i;
		while (rig->a.nic->ops->post(rig->a.nic, 0, &wr, 1) == 0) {
			rig_reap(&rig->a);
			rig_reap(&rig->b);
			rig->now_ns += 1000;
		}
		rig_reap(&rig->b);
		rig->now_ns += 1000;
	}
	for (int quiet = 0; quiet < 3000;) {
		rig_reap(&rig->a);
		quiet = rig_reap(&rig->b) ? 0 : quiet + 1;
		for (; seen < rig->b.n; seen++) {
			uint32_t i = rig->b.log[seen].imm;

			if (first[i]) {
				second++;
				assert_true(rig->now_ns - first[i] <= 2 * MS);
				continue;
			}
			first[i] = rig->now_ns;
			assert_true(rig_matches(rig->b.mem + i * 3000, 3000, 1));
			memset(rig->b.mem + i * 3000, 0xa5, 3000);
		}
		rig->now_ns += 1000;
	}
	for (unsigned i = 0; i < 80 * 3000; i++)
		assert_int_equal(rig->b.mem[i], 0xa5);
	for (unsigned i = 0; i < 80; i++)
		assert_true(first[i]);
	assert_in_range(second, 10, 50);
	assert_true(counters_of(rig->b.nic).packets_duplicated > second);
	rig_close(rig);
}

/* A message may be reported twice as well, with its bytes. */
static void test_duplicate_send(void **state)
{
	struct rig *rig = faulty(unordered, (struct epf_emu_opts){ .seed = 9, .duplicate = 0.4 });
	unsigned times[60] = { 0 }, twice = 0;

	for (uint32_t i = 0; i < 60; i++) {
		struct epf_wr wr = rig_write(rig, i, 0, 0, 100);

		rig_fill(rig->a.mem, 100, i * 1000);
		wr.op = EPF_WR_SEND;
		rig_post(rig, &wr);
		rig_run(rig, 100000);
	}
	rig_run(rig, 5 * MS);
	for (unsigned k = 0; k < rig->b.n; k++) {
		unsigned i;

		for (i = 0; i < 60 && !rig_matches(rig->b.msg[k], 100, i * 1000); i++)
			;
		assert_true(i < 60);
		times[i]++;
	}
	for (unsigned i = 0; i < 60; i++) {
		assert_in_range(times[i], 1, 2);
		twice += times[i] == 2;
	}
	assert_in_range(twice, 5, 50);
	rig_close(rig);
}

/* Completion errors: RETRY_EXCEEDED with and without the message having been delivered. */
static void test_error(void **state)
{
	const struct nic_kind *kinds[] = { ordered, unordered };

	for (int k = 0; k < 2; k++) {
		unsigned delivered = 0, lost = 0;
		struct rig *rig =
			faulty(kinds[k], (struct epf_emu_opts){ .seed = 21, .error = 0.05 });

		for (int round = 0; round < 60; round++) {
			uint32_t failed = UINT32_MAX, seen[30] = { 0 };

			rig_clear(rig);
			for (uint32_t i = 0; i < 30; i++) {
				struct epf_wr wr = rig_write(rig, i, 0, 0, 16);

				wr.op = EPF_WR_WRITE_IMM;
				wr.imm = i;
				rig->a.nic->ops->post(rig->a.nic, 0, &wr, 1);
			}
			rig_run(rig, MS);
			for (unsigned i = 0; i < rig->b.n; i++)
				seen[rig->b.log[i].imm]++;
			for (unsigned i = 0; i < rig->a.n; i++) {
				const struct epf_wc *wc = &rig->a.log[i];

				assert_true(wc->status == EPF_S_OK || wc->status == EPF_S_FLUSHED ||
					    wc->status == EPF_S_RETRY_EXCEEDED);
				if (wc->status == EPF_S_RETRY_EXCEEDED) {
					assert_int_equal(failed, UINT32_MAX);
					failed = wc->id;
				}
				if (wc->status == EPF_S_OK)
					assert_true(seen[wc->id]);
			}
			if (failed != UINT32_MAX) {
				delivered += seen[failed];
				lost += !seen[failed];
				assert_int_equal(rig->a.nic->ops->lane_link(rig->a.nic, 0),
						 EPF_LANE_ERROR);
				for (uint32_t i = failed + 1; k == 0 && !seen[failed] && i < 30;
				     i++)
					assert_int_equal(seen[i], 0);
			}
			rig_reconnect(rig);
		}
		assert_true(delivered > 5 && lost > 5);
		rig_close(rig);
	}
}

static void tune_patient(struct epf_emu_opts *opts)
{
	opts->rnr_timeout_ns = 10 * opts->retry_timeout_ns;
}

/* An ordered lane that makes progress does not time out, however long its queue takes. */
static void test_progress(void **state)
{
	struct rig *rig = rig_open(ordered, tune_patient);

	post_imms(rig, 5, 8);
	for (int i = 0; i < 5; i++) {
		rig_run(rig, rig->opts->retry_timeout_ns / 10 * 7);
		rig->b.nic->ops->post_receives(rig->b.nic, 1);
		rig_run(rig, MS);
		assert_int_equal(rig_count(&rig->a, EPF_WC_SENT, EPF_S_OK), i + 1);
	}
	rig_close(rig);
}

/* Late packets held back by the faults: a fence stops them, and only a fence does. */
static void run_fence(int expect_late)
{
	const struct nic_kind *kinds[] = { ordered, unordered };

	for (int k = 0; k < 2; k++) {
		struct rig *rig = faulty(
			kinds[k],
			(struct epf_emu_opts){ .seed = 2, .delay_ns = 5 * MS, .duplicate = 0.5 });
		unsigned before;

		rig_fill(rig->a.mem, 512, 1);
		post_imms(rig, 100, 512);
		rig_run(rig, MS);
		before = rig->b.n;
		assert_in_range(before, 0, 90);
		memset(rig->b.mem, 0, RIG_BYTES);
		rig->a.nic->ops->lane_fence(rig->a.nic, 0);
		rig->b.nic->ops->lane_fence(rig->b.nic, 0);
		rig_run(rig, 20 * MS);
		assert_int_equal(rig->b.n > before, expect_late);
		for (unsigned i = 0; !expect_late && i < RIG_BYTES; i++)
			assert_int_equal(rig->b.mem[i], 0);
		assert_int_equal(rig->a.nic->ops->lane_drained(rig->a.nic, 0), 1);
		rig_reconnect(rig);
		memset(rig->b.mem, 0, RIG_BYTES);
		before = rig->b.n;
		rig_run(rig, 20 * MS);
		assert_int_equal(rig->b.n, before);
		for (unsigned i = 0; i < RIG_BYTES; i++)
			assert_int_equal(rig->b.mem[i], 0);
		rig_expect_whole(rig);
		rig_close(rig);
	}
}

static void test_fence(void **state)
{
	run_fence(0);
#ifdef EPF_TEST_HOOKS
	epf_hook_no_fence = 1;
	run_fence(1);
	epf_hook_no_fence = 0;
#endif
}

/* One run of random traffic; returns a digest of everything reaped, with its time. */
enum { OPS = 300, CELL = 800 };

static uint64_t fold(uint64_t digest, uint64_t value)
{
	return (digest ^ value) * 0x100000001b3ull;
}

static uint64_t digest_of(const struct rig *rig)
{
	uint64_t digest = 0xcbf29ce484222325ull;
	const struct rig_end *ends[] = { &rig->a, &rig->b };

	for (int e = 0; e < 2; e++)
		for (unsigned i = 0; i < ends[e]->n; i++) {
			const struct epf_wc *wc = &ends[e]->log[i];

			digest = fold(digest, wc->op);
			digest = fold(digest, (uint64_t)wc->id << 32 | wc->imm);
			digest = fold(digest, (uint64_t)wc->len << 8 | wc->status);
		}
	return fold(digest, rig->now_ns);
}

/* What happened to each work request, against what must have happened. */
static void check_outcome(const struct rig *rig, const struct epf_wr *wr, uint64_t faults)
{
	unsigned events[OPS] = { 0 }, sent[OPS] = { 0 };

	for (unsigned i = 0; i < rig->b.n; i++) {
		const struct epf_wc *wc = &rig->b.log[i];
		uint32_t id = wc->imm;

		if (wc->op == EPF_WC_RECV)
			memcpy(&id, rig->b.msg[i], sizeof(id));
		assert_true(id < OPS);
		assert_int_equal(wc->len, wr[id].len);
		assert_int_equal(wc->op == EPF_WC_RECV, wr[id].op == EPF_WR_SEND);
		events[id]++;
	}
	for (uint32_t id = 0; id < OPS; id++) {
		int expects = wr[id].op == EPF_WR_WRITE_IMM || wr[id].op == EPF_WR_SEND,
		    status = -1;

		assert_in_range(events[id], expects,
				expects * (faults && !rig->kind->ordered ? 2 : 1));
		assert_true(rig_sent(rig, &rig->a, id, &status));
		assert_int_equal(status, EPF_S_OK);
		if (wr[id].op == EPF_WR_READ)
			assert_true(
				rig_matches(rig->a.mem + (id % 320) * CELL, wr[id].len, id + 5));
		else if (wr[id].op != EPF_WR_SEND)
			assert_true(
				rig_matches(rig->b.mem + (id % 320) * CELL, wr[id].len, id + 9));
	}
	for (unsigned i = 0; i < rig->a.n; i++)
		if (!rig->kind->ordered)
			assert_int_equal(sent[rig->a.log[i].id]++, 0);
}

static uint64_t traffic(const struct nic_kind *kind, uint64_t seed, uint64_t faults,
			struct epf_nic_counters *sum)
{
	uint64_t random = seed * 2 + 1, digest;
	struct epf_wr wr[OPS];
	struct epf_nic_counters c;
	struct rig *rig = faulty(kind, faults ? (struct epf_emu_opts){ .seed = faults,
								       .delay_ns = 20000,
								       .reorder = 0.2,
								       .duplicate = 0.1,
								       .drop = 0.05 }
					      : (struct epf_emu_opts){ .seed = seed });

	for (int i = 0; i < 8; i++)
		rig_random(&random);
	for (uint32_t id = 0; id < OPS; id++) {
		uint64_t r = rig_random(&random), cell = (uint64_t)(id % 320) * CELL;
		uint32_t len = (uint32_t)(r >> 8) % (CELL + 1);

		wr[id] = rig_write(rig, id, cell, cell, len);
		wr[id].op = (uint8_t)(1 + r % 4);
		wr[id].imm = id;
		rig_fill(rig->a.mem + cell, len, id + 9);
		if (wr[id].op == EPF_WR_SEND) {
			wr[id].len = 4 + (len & 63);
			memcpy(rig->a.mem + cell, &id, sizeof(id));
			rig_message(rig, &wr[id]);
		} else if (wr[id].op == EPF_WR_READ) {
			rig_fill(rig->b.mem + cell, len, id + 5);
		}
		if (r >> 60 == 0 && wr[id].op != EPF_WR_READ && wr[id].op != EPF_WR_SEND)
			rig_inline(rig, &wr[id]);
		else if (r >> 60 == 0 && wr[id].op == EPF_WR_SEND)
			wr[id].flags = EPF_WR_INLINE;
		while (rig->a.nic->ops->post(rig->a.nic, 0, &wr[id], 1) == 0)
			rig_run(rig, 5000);
		if (r >> 40 & 1)
			rig_reap(r >> 41 & 1 ? &rig->a : &rig->b);
		rig->now_ns += r >> 50 & 1023;
	}
	rig_run(rig, 20 * MS);
	check_outcome(rig, wr, faults);
	c = counters_of(rig->b.nic);
	sum->packets_reordered += c.packets_reordered;
	sum->packets_duplicated += c.packets_duplicated;
	sum->packets_dropped += c.packets_dropped;
	digest = digest_of(rig);
	rig_close(rig);
	return digest;
}

static uint64_t running; /* seed of the random traffic that runs now, 0: none */

/* The same traffic: the fault seed alone decides what happens. */
static void test_replay(void **state)
{
	struct epf_nic_counters sum = { 0 };
	uint64_t one = traffic(unordered, 7, 70, &sum);

	assert_true(traffic(unordered, 7, 71, &sum) != one);
	assert_true(traffic(unordered, 7, 70, &sum) == one);
	one = traffic(ordered, 7, 70, &sum);
	assert_true(traffic(ordered, 7, 71, &sum) != one);
	assert_true(traffic(ordered, 7, 70, &sum) == one);
}

enum { SEEDS = 100, GPU_SEEDS = 8 };

/* seeds: of SEEDS; of EPF_SEEDS as large a part. */
static void random_traffic(uint64_t seeds)
{
	const char *one = getenv("EPF_SEED"), *many = getenv("EPF_SEEDS");
	uint64_t first = one ? strtoull(one, NULL, 0) : 1;
	uint64_t all = many ? strtoull(many, NULL, 0) : SEEDS;
	uint64_t last = one ? first : (all * seeds + SEEDS - 1) / SEEDS;

	for (uint64_t seed = first; seed <= last; seed++)
		for (int way = 0; way < 4; way++) {
			struct epf_nic_counters sum = { 0 };

			running = seed;
			traffic(way & 1 ? ordered : unordered, seed, way >> 1 ? seed : 0, &sum);
			if (way == 2)
				assert_true(sum.packets_reordered && sum.packets_duplicated &&
					    sum.packets_dropped);
			running = 0;
		}
}

static void test_random_traffic(void **state)
{
	random_traffic(SEEDS);
}

/* The same with GPU memory (a fake one) at one end or both: every byte goes by the copier. */
static void test_random_gpu(void **state)
{
	const struct nic_kind *host[2] = { ordered, unordered };

	for (int gpu = 1; gpu <= 3; gpu++) {
		struct nic_kind kinds[2] = { *ordered, *unordered };

		kinds[0].gpu = kinds[1].gpu = gpu;
		ordered = &kinds[0];
		unordered = &kinds[1];
		random_traffic(GPU_SEEDS);
		ordered = host[0];
		unordered = host[1];
	}
}

/* cmocka leaves a failed test in its middle: say which seed replays it. */
static int print_seed(void **state)
{
	if (running)
		printf("# replay with EPF_SEED=%" PRIu64 "\n", running);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_duplicates_in_small_reaps),
		cmocka_unit_test(test_delay),
		cmocka_unit_test(test_reorder),
		cmocka_unit_test(test_drop),
		cmocka_unit_test(test_duplicate),
		cmocka_unit_test(test_duplicate_send),
		cmocka_unit_test(test_error),
		cmocka_unit_test(test_progress),
		cmocka_unit_test(test_fence),
		cmocka_unit_test(test_replay),
		cmocka_unit_test_teardown(test_random_traffic, print_seed),
		cmocka_unit_test_teardown(test_random_gpu, print_seed),
	};
	size_t count;

	ordered = nic_rig_kinds(&count);
	unordered = ordered + 1;
	return cmocka_run_group_tests_name("emulated NIC", tests, NULL, NULL);
}
