/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two engines in one thread over EFA adapters that reorder (fake_efa.h): the order promised to users on a NIC that has none, with and
 * without unsolicited arrivals, and what is left of it when queue pairs fail in the middle. Seeds are printed; EPF_TEST_SEED
 * chooses one.
 */
#include "fabric/base/clock.h"
#include "fabric/engine/limits.h"
#include "tests/unit/engine/core_rig.h"
#include "tests/unit/nic/efa/fake_efa.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SEEDS = 6, MESSAGES = 1200, WINDOW = 16, PART = CORE_BYTES / CORE_WORLD };

static int unsolicited;

static int open_nic(const struct epf_conf *conf, uint32_t node, struct epf_nic **out)
{
	struct epf_efa_opts opts;

	epf_efa_opts_from_conf(&opts, conf);
	opts.devices =
		(struct epf_conf_list){ .item = &(char *){ node ? "efa1" : "efa0" }, .count = 1 };
	opts.unsolicited = unsolicited;
	opts.flush_wait_ns = 5000000;
	return epf_efa_open(&fake_efa_lib, &opts, epf_limits_now, NULL, out);
}

static struct core_rig *open_rig(uint64_t seed)
{
	static const char *const settings[] = { "lane-depth=64", "lane-receives=64", "window=256",
						NULL };

	fake_efa_reset();
	fake_efa.n_devices = 2;
	fake_efa.now = epf_limits_now;
	fake_efa.seed = seed;
	fake_efa.delay_ns = 40000;
	return core_rig_open_over(settings, open_nic);
}

/* A pair of ranks on different nodes: message k fills slot k modulo WINDOW of its part with k, then adds 1 to a signal. */
struct pair {
	struct core_rank *from, *to;
	uint32_t sent, seen;
};

static uint32_t length_of(uint32_t k)
{
	static const uint32_t lengths[] = { 8, 640, 64, 900, 16 };

	return lengths[k % 5];
}

static unsigned char *slot_of(struct core_rank *r, uint32_t from, uint32_t k)
{
	return r->memory + from * PART + k % WINDOW * (PART / WINDOW);
}

static void send_one(struct pair *p)
{
	uint32_t k = p->sent++, at = (uint32_t)(slot_of(p->from, p->to->rank, k) - p->from->memory);
	struct epf_op op = { .op = EPF_OP_PUT_SIGNAL,
			     .rank = p->to->rank,
			     .length = length_of(k),
			     .local_offset = at,
			     .remote_offset =
				     (uint64_t)(slot_of(p->to, p->from->rank, k) - p->to->memory),
			     .signal = p->from->rank,
			     .add = 1,
			     .flags = EPF_F_FENCE };
	struct epf_cmd wide[2];

	memset(p->from->memory + at, (int)(k & 0xff), length_of(k));
	assert_true(epf_ring_room(&p->from->ring, 2) >= 2);
	epf_op_pack_wide(&op, wide);
	epf_ring_push(&p->from->ring, wide[0]);
	epf_ring_push(&p->from->ring, wide[1]);
}

/* What the signal has counted is there, whole; 1 when it has counted more than before. */
static int look(struct pair *p)
{
	uint64_t count = epf_signal_read(&p->to->signals[p->from->rank]);

	assert_in_range(count, p->seen, p->sent);
	if (count == p->seen)
		return 0;
	for (; p->seen < count; p->seen++) {
		const unsigned char *at = slot_of(p->to, p->from->rank, p->seen);

		for (uint32_t i = 0; i < length_of(p->seen); i++)
			assert_int_equal(at[i], p->seen & 0xff);
	}
	return 1;
}

static uint64_t stat(const struct core_rig *rig, uint32_t id)
{
	return epf_stat_get(rig->core[0]->stats, id) + epf_stat_get(rig->core[1]->stats, id);
}

static bool all_up(const struct core_rig *rig)
{
	for (uint32_t n = 0; n < CORE_NODES; n++)
		for (uint32_t l = 0; l < rig->core[n]->n_lanes; l++)
			if (rig->core[n]->lanes[l].state != EPF_LANE_UP)
				return false;
	return true;
}

/*
 * All messages of both directions; every `often` of them something fails, but not before the lane that failed last is back: with none left the
 * node would be lost. A request that fails on the wire is not a failed lane yet: until an engine has seen it, all lanes look well. Nothing is to be
 * wrong at any step.
 */
static void run(struct core_rig *rig, uint64_t seed, uint32_t often)
{
	struct pair pairs[] = { { .from = &rig->rank[0], .to = &rig->rank[2] },
				{ .from = &rig->rank[3], .to = &rig->rank[1] } };
	uint64_t last = epf_now_ns(), seen_errors = stat(rig, EPF_STAT_CORE_LANE_ERRORS);
	bool is_seen = true; /* what was broken last */
	uint32_t broken = 0;

	for (unsigned i = 0; i < CORE_WORLD; i++)
		memset(rig->rank[i].signals, 0, CORE_SIGNALS * sizeof(*rig->rank[i].signals));
	while (pairs[0].seen < MESSAGES || pairs[1].seen < MESSAGES) {
		for (unsigned i = 0; i < 2; i++) {
			struct pair *p = &pairs[i];

			if (p->sent < MESSAGES && p->sent - p->seen < WINDOW)
				send_one(p);
			core_rig_step(rig, i);
			/* Between the steps: what the one has done, before the other does more. */
			if (look(&pairs[0]) | look(&pairs[1]))
				last = epf_now_ns();
		}
		is_seen |= stat(rig, EPF_STAT_CORE_LANE_ERRORS) > seen_errors;
		if (often && pairs[0].seen / often > broken && is_seen && all_up(rig)) {
			broken = pairs[0].seen / often;
			seen_errors = stat(rig, EPF_STAT_CORE_LANE_ERRORS);
			is_seen = false;
			fake_efa.break_next = 1 + (int)((broken ^ seed) & 1);
		}
		if (epf_now_ns() - last > CORE_RIG_LONGEST_NS)
			fail_msg("seed %llu: is stalled at %u and %u", (unsigned long long)seed,
				 pairs[0].seen, pairs[1].seen);
	}
	assert_true(core_rig_run(rig, NULL, NULL));
	look(&pairs[0]);
	look(&pairs[1]);
}

/* A get, once all else is quiet: bytes of another node's memory. */
static void get_back(struct core_rig *rig)
{
	struct core_rank *r = &rig->rank[0];
	struct epf_op op = { .op = EPF_OP_GET,
			     .rank = 2,
			     .length = 4096,
			     .remote_offset = CORE_BYTES - 4096,
			     .local_offset = 0 };
	struct epf_cmd wide[2];

	memset(rig->rank[2].memory + CORE_BYTES - 4096, 0x77, 4096);
	epf_op_pack_wide(&op, wide);
	epf_ring_push(&r->ring, wide[0]);
	epf_ring_push(&r->ring, wide[1]);
	for (uint64_t end = epf_now_ns() + CORE_RIG_LONGEST_NS;
	     r->memory[4095] != 0x77 && epf_now_ns() < end;) {
		epf_core_step(rig->core[0]);
		epf_core_step(rig->core[1]);
	}
	for (uint32_t i = 0; i < 4096; i++)
		assert_int_equal(r->memory[i], 0x77);
}

/* Two adapters a node: traffic on both, then on one, then the jobs end well. */
static int open_two(const struct epf_conf *conf, uint32_t node, struct epf_nic **out)
{
	struct epf_efa_opts opts;
	char *names[2] = { (char *)(node ? "efa2" : "efa0"), (char *)(node ? "efa3" : "efa1") };

	epf_efa_opts_from_conf(&opts, conf);
	opts.devices = (struct epf_conf_list){ .item = names, .count = 2 };
	opts.count = 2;
	opts.flush_wait_ns = 5000000;
	return epf_efa_open_chosen(&fake_efa_lib, &opts, epf_limits_now, NULL, out);
}

static uint64_t first_seed(void)
{
	const char *text = getenv("EPF_TEST_SEED");

	return text ? strtoull(text, NULL, 0) : 1;
}

static void order_is_kept(void **state)
{
	for (uint64_t seed = first_seed(), end = seed + SEEDS; seed < end; seed++) {
		struct core_rig *rig;

		unsolicited = (int)(seed & 1);
		rig = open_rig(seed);
		run(rig, seed, 0);
		get_back(rig);
		assert_int_equal(stat(rig, EPF_STAT_CORE_LANE_ERRORS), 0);
		assert_int_equal(stat(rig, EPF_STAT_CORE_ARRIVALS_REFUSED), 0);
		assert_int_equal(fake_efa.rnrs, 0); /* grants are never more than receives */
		assert_true(fake_efa.overtaken > MESSAGES / 10);
		assert_int_equal(!!fake_efa.unsolicited, unsolicited);
		core_rig_close(rig);
		assert_int_equal(fake_efa.open_things, 0);
	}
}

/* Work requests fail, before or after they have taken effect: each message takes effect once all the same. */
static void failures_are_repaired(void **state)
{
	uint64_t replayed = 0, errors = 0;

	for (uint64_t seed = first_seed(), end = seed + SEEDS; seed < end; seed++) {
		struct core_rig *rig;

		unsolicited = (int)(seed & 1);
		rig = open_rig(seed);
		fake_efa.no_flush = seed % 3 == 0;
		run(rig, seed, MESSAGES / 12);
		errors += stat(rig, EPF_STAT_CORE_LANE_ERRORS);
		replayed += stat(rig, EPF_STAT_CORE_REPLAYS);
		assert_int_equal(stat(rig, EPF_STAT_CORE_ARRIVALS_REFUSED), 0);
		core_rig_close(rig);
		assert_int_equal(fake_efa.open_things, 0);
	}
	printf("# %llu lanes failed, %llu work requests replayed\n", (unsigned long long)errors,
	       (unsigned long long)replayed);
	assert_true(errors >= SEEDS && replayed > 0);
}

static void two_adapters(void **state)
{
	static const char *const settings[] = { "lane-depth=64", "lane-receives=64", "window=256",
						"lanes-per-peer=4", NULL };

	for (uint64_t seed = first_seed(), end = seed + SEEDS; seed < end; seed++) {
		struct core_rig *rig;

		fake_efa_reset();
		fake_efa.n_devices = 4;
		fake_efa.now = epf_limits_now;
		fake_efa.seed = seed;
		fake_efa.delay_ns = 40000;
		rig = core_rig_open_over(settings, open_two);
		run(rig, seed, 0);
		get_back(rig);
		assert_int_equal(stat(rig, EPF_STAT_CORE_LANE_ERRORS), 0);
		run(rig, seed, MESSAGES / 12);
		assert_int_equal(stat(rig, EPF_STAT_CORE_ARRIVALS_REFUSED), 0);
		core_rig_close(rig);
		assert_int_equal(fake_efa.open_things, 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(order_is_kept),
		cmocka_unit_test(failures_are_repaired),
		cmocka_unit_test(two_adapters),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
