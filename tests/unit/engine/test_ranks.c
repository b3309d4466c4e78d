/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several ranks on one engine, which go and come back while it lives: who learns what, what happens to their commands, rings
 * and regions, and that the others notice nothing. Two engines in one thread (core_rig.h).
 */
#include "fabric/base/err.h"
#include "fabric/engine/control_plane.h"
#include "tests/unit/engine/core_rig.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t signal_of(const struct core_rank *r, uint32_t signal)
{
	return epf_signal_read(&r->signals[signal]);
}

static const struct epf_peer_word *word(const struct core_rig *rig, uint32_t node, uint32_t rank)
{
	return &rig->core[node]->peers_page->peers[rank];
}

static uint64_t stat(const struct core_rig *rig, uint32_t node, uint32_t id)
{
	return epf_stat_get(rig->core[node]->stats, id);
}

/* Every rank puts its pattern to every rank, itself too. */
static void all_to_all(struct core_rig *rig, const bool *skip)
{
	for (uint32_t from = 0; from < CORE_WORLD; from++)
		for (uint32_t to = 0; to < CORE_WORLD; to++)
			if (!skip || (!skip[from] && !skip[to])) {
				uint64_t before = signal_of(&rig->rank[to], from);

				memset(rig->rank[from].memory, (int)(0x10 + from * 8 + to), 4096);
				core_rig_put(&rig->rank[from], to, 4096, from);
				assert_true(core_rig_run(rig, NULL, NULL));
				assert_int_equal(signal_of(&rig->rank[to], from), before + 1);
				assert_int_equal(rig->rank[to].memory[0], 0x10 + from * 8 + to);
				assert_int_equal(rig->rank[to].memory[4095], 0x10 + from * 8 + to);
			}
}

static void ranks_share_an_engine(void **state)
{
	struct core_rig *rig = core_rig_open(NULL);

	for (uint32_t n = 0; n < CORE_NODES; n++) {
		assert_int_equal(rig->core[n]->n_lanes, CORE_NODES * 2);
		assert_int_equal(rig->core[n]->peers_page->n_nodes, 2);
		for (uint32_t r = 0; r < CORE_WORLD; r++) {
			assert_int_equal(word(rig, n, r)->state, EPF_PEER_UP);
			assert_int_equal(word(rig, n, r)->node, r / 2);
		}
	}
	all_to_all(rig, NULL);
	core_rig_close(rig);
}

static bool is_drained(void *arg)
{
	struct core_rank *r = arg;

	return epf_core_rank_drained(r->core, r->local) == 1;
}

static void a_rank_that_dies_is_told_to_all(void **state)
{
	static const bool gone[CORE_WORLD] = { [1] = true };
	struct core_rig *rig = core_rig_open(NULL);
	struct core_rank *victim = &rig->rank[1];

	all_to_all(rig, NULL);
	epf_core_rank_gone(victim->core, victim->local, EPF_R_RANK_DIED);
	assert_true(core_rig_run(rig, is_drained, victim));
	assert_true(core_rig_run(rig, NULL, NULL));
	for (uint32_t n = 0; n < CORE_NODES; n++) {
		assert_int_equal(word(rig, n, 1)->state, EPF_PEER_DOWN);
		assert_int_equal(word(rig, n, 1)->cause, EPF_R_RANK_DIED);
		assert_int_equal(rig->core[n]->peers_page->lost, 1);
		assert_int_equal(stat(rig, n, EPF_STAT_CORE_LANE_ERRORS), 0);
		assert_int_equal(stat(rig, n, EPF_STAT_CORE_ARRIVALS_REFUSED), 0);
	}
	/* Nothing of it may be touched any more: what is freed here would be found by AddressSanitizer. */
	core_rig_forget(victim);
	/* Commands to it end at once as failed, here and on the other node. */
	for (uint32_t from = 0; from < CORE_WORLD; from += 2) {
		struct core_rank *r = &rig->rank[from];

		core_rig_put(r, 1, 64, 0);
		assert_true(core_rig_run(rig, NULL, NULL));
		assert_int_equal(r->shm->done.failed, 1);
		assert_int_equal(r->shm->done.error_status, EPF_S_PEER_DOWN);
		assert_int_equal(r->shm->done.retired, r->ring.pushed);
	}
	all_to_all(rig, gone);
	core_rig_close(rig);
}

static void a_rank_that_leaves_is_not_lost(void **state)
{
	struct core_rig *rig = core_rig_open(NULL);
	struct core_rank *leaver = &rig->rank[2];

	epf_core_rank_gone(leaver->core, leaver->local, 0);
	assert_true(core_rig_run(rig, is_drained, leaver));
	assert_true(core_rig_run(rig, NULL, NULL));
	for (uint32_t n = 0; n < CORE_NODES; n++) {
		assert_int_equal(word(rig, n, 2)->state, EPF_PEER_LEFT);
		assert_int_equal(rig->core[n]->peers_page->lost, 0);
	}
	core_rig_close(rig);
}

/* Under traffic: what the others exchange stays right, the dead one's ring and deferred commands end. */
static void a_rank_dies_under_traffic(void **state)
{
	static const char *const tight[] = { "lane-depth=16", "defer-limit=8", "emu-packets=64",
					     NULL };
	struct core_rig *rig = core_rig_open(tight);
	struct core_rank *victim = &rig->rank[3];

	for (int i = 0; i < 60; i++) {
		core_rig_put(victim, (uint32_t)i % 4, 16384, 3);
		core_rig_put(&rig->rank[0], 3, 16384, 0);
		core_rig_put(&rig->rank[0], 2, 16384, 0);
		core_rig_put(&rig->rank[2], 1, 16384, 2);
	}
	for (int i = 0; i < 3; i++)
		for (uint32_t n = 0; n < CORE_NODES; n++)
			epf_core_step(rig->core[n]);
	epf_core_rank_gone(victim->core, victim->local, EPF_R_RANK_DIED);
	assert_true(core_rig_run(rig, is_drained, victim));
	core_rig_forget(victim);
	assert_true(core_rig_run(rig, NULL, NULL));
	assert_int_equal(rig->rank[0].shm->done.retired, 120);
	assert_int_equal(rig->rank[2].shm->done.retired, 60);
	assert_int_equal(signal_of(&rig->rank[2], 0), 60);
	assert_int_equal(signal_of(&rig->rank[1], 2), 60);
	assert_true(rig->rank[0].shm->done.failed > 0);
	assert_int_equal(rig->rank[2].shm->done.failed, 0);
	for (uint32_t n = 0; n < CORE_NODES; n++)
		assert_int_equal(stat(rig, n, EPF_STAT_CORE_LANE_ERRORS), 0);
	core_rig_close(rig);
}

/* It comes back with other memory, more regions and a new ring, and is reached by everybody. */
static void a_rank_comes_back(void **state)
{
	struct core_rig *rig = core_rig_open(NULL);
	struct core_rank *r = &rig->rank[1];
	unsigned char *second = aligned_alloc(4096, 8192);
	uint32_t region;

	assert_non_null(second);
	for (uint32_t epoch = 1; epoch <= 3; epoch++) {
		all_to_all(rig, NULL);
		assert_int_equal(
			epf_core_rank_back(r->core, r->local, r->signals, CORE_SIGNALS, &r->wakeup),
			-EEXIST);
		epf_core_rank_gone(r->core, r->local, EPF_R_RANK_DIED);
		assert_int_equal(
			epf_core_rank_back(r->core, r->local, r->signals, CORE_SIGNALS, &r->wakeup),
			-EAGAIN);
		assert_true(core_rig_run(rig, is_drained, r));
		core_rig_forget(r);
		core_rig_memory(r);
		assert_int_equal(
			epf_core_rank_back(r->core, r->local, r->signals, CORE_SIGNALS, &r->wakeup),
			0);
		assert_int_equal(epf_core_add_region(r->core, r->local, r->memory, CORE_BYTES,
						     EPF_MR_REMOTE_WRITE | EPF_MR_REMOTE_READ,
						     &region),
				 0);
		assert_int_equal(region, 0);
		assert_int_equal(epf_core_add_region(r->core, r->local, second, 8192,
						     EPF_MR_REMOTE_WRITE, &region),
				 0);
		core_rig_ring(r);
		assert_int_equal(r->core->n_rings, CORE_PER_NODE); /* the old place again */
		assert_int_equal(epf_core_rank_announce(r->core, r->local), 0);
		assert_true(core_rig_run(rig, NULL, NULL));
		for (uint32_t n = 0; n < CORE_NODES; n++) {
			assert_int_equal(word(rig, n, 1)->state, EPF_PEER_UP);
			assert_int_equal(word(rig, n, 1)->epoch, epoch);
			assert_int_equal(rig->core[n]->peers[1].n_regions, 2);
		}
	}
	all_to_all(rig, NULL);
	core_rig_close(rig);
	free(second);
}

static void masks_are_each_ranks_own(void **state)
{
	struct core_rig *rig = core_rig_open(NULL);
	struct core_rank *a = &rig->rank[0], *b = &rig->rank[1];

	epf_core_mask_peer(a->core, a->local, 2, 1);
	core_rig_put(a, 2, 64, 5);
	core_rig_put(b, 2, 64, 6);
	assert_true(core_rig_run(rig, NULL, NULL));
	assert_int_equal(a->shm->done.failed, 1);
	assert_int_equal(b->shm->done.failed, 0);
	assert_int_equal(signal_of(&rig->rank[2], 5), 0);
	assert_int_equal(signal_of(&rig->rank[2], 6), 1);
	epf_core_mask_peer(a->core, a->local, 2, 0);
	core_rig_put(a, 2, 64, 5);
	assert_true(core_rig_run(rig, NULL, NULL));
	assert_int_equal(signal_of(&rig->rank[2], 5), 1);
	core_rig_close(rig);
}

static bool is_acknowledged(const struct epf_core *core)
{
	for (uint32_t i = 0; i < core->n_streams; i++) {
		const struct epf_stream *s = &core->streams[i];

		if (s->flush_count && s->ack != EPF_NO_ACK &&
		    core->nodes[s->node].ctl->acks[s->ack])
			return true;
	}
	return false;
}

/* A peer that has acknowledged a flush and is not there any more when the flush is looked at again has not failed it; one that goes first has. */
static void a_peer_may_leave_after_its_acknowledgement(void **state)
{
	struct core_rig *rig = core_rig_open(NULL);
	struct core_rank *a = &rig->rank[0];
	struct epf_op flush = { .op = EPF_OP_FLUSH };

	for (int acknowledged = 1; acknowledged >= 0; acknowledged--) {
		core_rig_put(a, 2, 4096, 0);
		epf_ring_push(&a->ring, epf_op_pack_narrow(&flush));
		for (int i = 0;
		     i < 1000000 && a->core->rings[a->ring_id]->flush_phase != EPF_FLUSH_WAITING;
		     i++)
			core_rig_step(rig, 0);
		/* A step looks at flushes before it takes what has arrived. */
		for (int i = 0; i < 1000000 && acknowledged && !is_acknowledged(a->core); i++)
			core_rig_step(rig, !(i & 1));
		assert_int_equal(a->core->flushing, 1);
		assert_int_equal(a->shm->done.failed, 0);
		epf_core_mask_peer(a->core, a->local, 2, 1);
		assert_true(core_rig_run(rig, NULL, NULL));
		assert_int_equal(a->shm->done.retired, a->ring.pushed);
		assert_int_equal(a->shm->done.failed, !acknowledged);
		epf_core_mask_peer(a->core, a->local, 2, 0);
	}
	core_rig_close(rig);
}

/* A flush is under way when its rank dies: it ends, and another rank's flush goes through. */
static void a_flush_of_a_dead_rank_ends(void **state)
{
	struct core_rig *rig = core_rig_open(NULL);
	struct core_rank *victim = &rig->rank[0], *other = &rig->rank[1];
	struct epf_op flush = { .op = EPF_OP_FLUSH, .flags = EPF_F_ALL };

	core_rig_put(victim, 2, 4096, 0);
	epf_ring_push(&victim->ring, epf_op_pack_narrow(&flush));
	epf_core_step(victim->core);
	epf_core_rank_gone(victim->core, victim->local, EPF_R_RANK_DIED);
	core_rig_put(other, 3, 4096, 0);
	epf_ring_push(&other->ring, epf_op_pack_narrow(&flush));
	assert_true(core_rig_run(rig, is_drained, victim));
	assert_true(core_rig_run(rig, NULL, NULL));
	assert_int_equal(other->shm->done.retired, 2);
	assert_int_equal(other->shm->done.failed, 0);
	assert_int_equal(rig->core[0]->flushing, 0);
	core_rig_close(rig);
}

/* A message that no honest engine sends changes nothing. */
static void strange_news_is_refused(void **state)
{
	struct core_rig *rig = core_rig_open(NULL);
	struct epf_core *core = rig->core[0];
	const struct epf_msg strange[] = {
		{ .kind = EPF_MSG_RANK, .rank = 99, .signal = EPF_PEER_DOWN },
		{ .kind = EPF_MSG_RANK, .rank = 0, .signal = EPF_PEER_DOWN }, /* not on that node */
		{ .kind = EPF_MSG_RANK, .rank = 2, .signal = 77 },
		{ .kind = EPF_MSG_RANK,
		  .rank = 2,
		  .signal = EPF_PEER_UP,
		  .c = 1,
		  .value = 1u << 30 },
		{ .kind = EPF_MSG_REGION, .rank = 2, .signal = 5, .value = 1, .e = 2 },
		{ .kind = EPF_MSG_REGION, .rank = 2, .value = 1, .e = 1, .a = ~0ull, .b = 4096 },
		{ .kind = EPF_MSG_REGION, .rank = 2, .value = 1, .e = 1, .b = 4096, .d = 0xff },
	};

	for (size_t i = 0; i < sizeof(strange) / sizeof(strange[0]); i++) {
		uint64_t before = stat(rig, 0, EPF_STAT_CORE_ARRIVALS_REFUSED);

		epf_control_cold(core, &core->nodes[1], &core->lanes[2], &strange[i]);
		assert_int_equal(stat(rig, 0, EPF_STAT_CORE_ARRIVALS_REFUSED), before + 1);
	}
	all_to_all(rig, NULL);
	core_rig_close(rig);
}

/* An engine takes no more memory for its peers than it may have, and says how much it would have been. */
static void memory_for_peers_is_bounded(void **state)
{
	struct epf_region_remote regions[64] = { { .bytes = 0 } };
	struct epf_peer_info info = { .node = 1, .place = 1, .n_regions = 64, .regions = regions };
	struct core_rig *rig = core_rig_open(NULL);
	struct epf_core *core = rig->core[0];
	uint64_t bytes = core->peer_memory_bytes;

	core->peer_memory_most = bytes + sizeof(regions) - 1;
	assert_int_equal(epf_core_set_peer(core, 2, &info), -ENOMEM);
	assert_int_equal(core->peer_memory_wanted, bytes + sizeof(regions));
	assert_int_equal(core->peer_memory_bytes, bytes);
	core->peer_memory_most++;
	assert_int_equal(epf_core_set_peer(core, 2, &info), 0);
	/* Without the one it had before. */
	assert_int_equal(core->peer_memory_bytes, bytes + sizeof(regions) - sizeof(regions[0]));
	core_rig_close(rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ranks_share_an_engine),
		cmocka_unit_test(a_rank_that_dies_is_told_to_all),
		cmocka_unit_test(a_rank_that_leaves_is_not_lost),
		cmocka_unit_test(a_rank_dies_under_traffic),
		cmocka_unit_test(a_rank_comes_back),
		cmocka_unit_test(masks_are_each_ranks_own),
		cmocka_unit_test(a_peer_may_leave_after_its_acknowledgement),
		cmocka_unit_test(a_flush_of_a_dead_rank_ends),
		cmocka_unit_test(strange_news_is_refused),
		cmocka_unit_test(memory_for_peers_is_bounded),
	};

	return cmocka_run_group_tests_name("ranks", tests, NULL, NULL);
}
