/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signs of life of an engine whose NIC still answers for it: who beats must go on, who never beat is not held to it, and time in which we
 * stalled ourselves does not count. Two engines in one thread (core_rig.h), of which only one is stepped; the NIC's own time limits are
 * far away, so nothing but the beats can tell.
 */
#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "tests/unit/engine/core_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#include <cmocka.h>

/* A tick is an eighth of peer-timeout, 5 ms here; silence is over after 20 of them and two more. */
#define PATIENT "peer-timeout=40ms", "emu-retry-timeout=1h", "emu-rnr-timeout=1h"

enum { TICK_MS = 5, SILENCE_MS = 100 };

static const struct epf_peer_word *other(const struct core_rig *rig)
{
	return &rig->core[0]->peers_page->peers[2];
}

/* When the engine of node 1 was last going to be stepped: it has beaten since, or not a tick before. */
static uint64_t other_ns;

/* Steps the engines for so long, once at least; only: of one node alone. */
static void step_for(struct core_rig *rig, unsigned ms, bool only)
{
	uint64_t until = epf_now_ns() + ms * UINT64_C(1000000);

	do {
		epf_core_step(rig->core[0]);
		if (only)
			continue;
		other_ns = epf_now_ns();
		epf_core_step(rig->core[1]);
	} while (epf_now_ns() < until);
}

static void an_engine_that_stops_is_lost(void **state)
{
	static const char *const settings[] = { PATIENT, "peer-silence=100ms", NULL };
	struct core_rig *rig = core_rig_open(settings);
	uint64_t begun;

	step_for(rig, 3 * SILENCE_MS, false);
	assert_int_equal(other(rig)->state, EPF_PEER_UP);
	begun = epf_now_ns();
	while (other(rig)->state == EPF_PEER_UP && epf_now_ns() - begun < CORE_RIG_LONGEST_NS)
		step_for(rig, 1, true);
	assert_int_equal(other(rig)->state, EPF_PEER_DOWN);
	assert_int_equal(other(rig)->cause, EPF_R_NODE_LOST);
	assert_true(epf_now_ns() - other_ns >= (SILENCE_MS - TICK_MS) * UINT64_C(1000000));
	/* Ranks here are not lost with it. */
	assert_int_equal(rig->core[0]->peers_page->peers[1].state, EPF_PEER_UP);
	core_rig_close(rig);
}

/* The first tick is 100 ms away when the peer stops; it has sent something, so it is known to be connected, and to beat. */
static void an_engine_that_stops_at_once_is_lost(void **state)
{
	static const char *const settings[] = { "peer-timeout=800ms", "emu-retry-timeout=1h",
						"emu-rnr-timeout=1h", "peer-silence=100ms", NULL };
	struct core_rig *rig = core_rig_open(settings);
	uint64_t begun = epf_now_ns();

	core_rig_put(&rig->rank[0], 2, 64, 0);
	core_rig_put(&rig->rank[2], 0, 64, 0);
	do
		step_for(rig, 40, false);
	while (!EPF_LOAD_ACQUIRE(&rig->rank[0].signals[0].value) &&
	       epf_now_ns() - begun < CORE_RIG_LONGEST_NS);
	assert_int_equal(EPF_LOAD_ACQUIRE(&rig->rank[0].signals[0].value), 1);
	begun = epf_now_ns();
	while (other(rig)->state == EPF_PEER_UP && epf_now_ns() - begun < CORE_RIG_LONGEST_NS)
		step_for(rig, 1, true);
	assert_int_equal(other(rig)->state, EPF_PEER_DOWN);
	core_rig_close(rig);
}

static void silence_may_be_allowed(void **state)
{
	static const char *const settings[] = { PATIENT, "peer-silence=0", NULL };
	struct core_rig *rig = core_rig_open(settings);

	step_for(rig, SILENCE_MS, false);
	step_for(rig, 3 * SILENCE_MS, true);
	assert_int_equal(other(rig)->state, EPF_PEER_UP);
	core_rig_close(rig);
}

/* Engines that their programs drive promise nothing: a program may compute for as long as it likes. */
static void who_never_beat_is_not_held_to_it(void **state)
{
	static const char *const settings[] = { PATIENT, "peer-silence=100ms", "progress=caller",
						NULL };
	struct core_rig *rig = core_rig_open(settings);

	step_for(rig, SILENCE_MS, false);
	step_for(rig, 3 * SILENCE_MS, true);
	assert_int_equal(other(rig)->state, EPF_PEER_UP);
	core_rig_close(rig);
}

static void our_own_standstill_does_not_count(void **state)
{
	static const char *const settings[] = { PATIENT, "peer-silence=100ms", NULL };
	struct core_rig *rig = core_rig_open(settings);

	step_for(rig, SILENCE_MS, false);
	usleep(5 * SILENCE_MS * 1000); /* both stall, as on a machine that was suspended */
	step_for(rig, 4 * TICK_MS, true);
	assert_int_equal(other(rig)->state, EPF_PEER_UP);
	step_for(rig, SILENCE_MS, false);
	assert_int_equal(other(rig)->state, EPF_PEER_UP);
	core_rig_close(rig);
}

/* A tick comes with one of every 64 steps; an engine that slept between them while one is due would tick too rarely, and its deadlines would be late. */
static void a_due_tick_is_not_slept_through(void **state)
{
	static const char *const settings[] = { PATIENT, "peer-silence=100ms", NULL };
	struct core_rig *rig = core_rig_open(settings);
	struct epf_core *core = rig->core[0];
	uint64_t sleeps;

	step_for(rig, SILENCE_MS, false);
	sleeps = epf_stat_get(core->stats, EPF_STAT_CORE_SLEEPS);
	core->next_tick_ns = epf_now_ns() - 1;
	for (int i = 0; i < 32; i++)
		epf_core_sleep(core, 1000);
	assert_int_equal(epf_stat_get(core->stats, EPF_STAT_CORE_SLEEPS), sleeps);
	/* With nothing due it sleeps, once leftover work is done. */
	for (uint64_t begun = epf_now_ns();
	     epf_stat_get(core->stats, EPF_STAT_CORE_SLEEPS) == sleeps &&
	     epf_now_ns() - begun < CORE_RIG_LONGEST_NS;) {
		step_for(rig, 1, false);
		core->next_tick_ns = epf_now_ns() + UINT64_C(3600000000000);
		epf_core_sleep(core, 1000);
	}
	assert_true(epf_stat_get(core->stats, EPF_STAT_CORE_SLEEPS) > sleeps);
	core_rig_close(rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_engine_that_stops_is_lost),
		cmocka_unit_test(an_engine_that_stops_at_once_is_lost),
		cmocka_unit_test(a_due_tick_is_not_slept_through),
		cmocka_unit_test(silence_may_be_allowed),
		cmocka_unit_test(who_never_beat_is_not_held_to_it),
		cmocka_unit_test(our_own_standstill_does_not_count),
	};

	return cmocka_run_group_tests_name("silence", tests, NULL, NULL);
}
