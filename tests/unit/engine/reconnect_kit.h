/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What test_reconnect.c and test_reconnect_device.c share: two engines in one thread (core_rig.h) that are moved through the steps of a
 * reconnection, whose bytes go from one to the other here, as the ranks carry them; traffic of all kinds, and its loss. Header only.
 */
#ifndef EPF_TESTS_RECONNECT_KIT_H
#define EPF_TESTS_RECONNECT_KIT_H

#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/engine/limits.h"
#include "fabric/engine/recovery.h"
#include "fabric/nic/rails/rails.h"
#include "tests/unit/engine/core_rig.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define RECONNECT_KIT static __attribute__((unused))

enum { LOST = 4096 /* where puts aim that are lost */, BYTES = 512 };

static struct epf_blob given[CORE_WORLD];

RECONNECT_KIT void forget_given(void)
{
	for (uint32_t r = 0; r < CORE_WORLD; r++) {
		free((void *)(uintptr_t)given[r].data);
		given[r] = (struct epf_blob){ NULL, 0 };
	}
}

/* All engines do all steps; the last one's result of each. */
RECONNECT_KIT void reconnect(struct core_rig *rig, int rc[CORE_NODES])
{
	forget_given();
	for (unsigned step = 0; step < EPF_RECONNECT_STEPS; step++) {
		struct epf_blob next[CORE_WORLD] = { { NULL, 0 } };
		uint64_t until = epf_now_ns() + CORE_RIG_LONGEST_NS;

		for (uint32_t n = 0; n < CORE_NODES; n++) {
			struct epf_blob *mine = &next[n * CORE_PER_NODE];
			uint8_t *buf = NULL;

			do {
				if (epf_now_ns() > until)
					fail_msg("step %u of node %u's reconnection does not end",
						 step, n);
				for (uint32_t i = 0; i < CORE_NODES; i++)
					core_rig_step(rig, i);
				rc[n] = epf_world_reconnect(rig->core[n], step, "here",
							    step ? given : NULL, &buf, &mine->len);
			} while (rc[n] == -EAGAIN);
			mine->data = buf;
		}
		forget_given();
		memcpy(given, next, sizeof(next));
	}
	forget_given();
}

RECONNECT_KIT void reconnected(struct core_rig *rig)
{
	int rc[CORE_NODES];

	reconnect(rig, rc);
	for (uint32_t n = 0; n < CORE_NODES; n++) {
		if (rc[n])
			print_error("node %u: %s\n", n, epf_last_error());
		assert_int_equal(rc[n], 0);
	}
}

RECONNECT_KIT const struct epf_peer_word *word(const struct core_rig *rig, uint32_t node,
					       uint32_t rank)
{
	return &rig->core[node]->peers_page->peers[rank];
}

RECONNECT_KIT void set_links(struct core_rig *rig, int up)
{
	for (unsigned link = 0; link < 2; link++)
		assert_int_equal(rig->nic[0]->ops->set_link(rig->nic[0], link, up), 0);
}

RECONNECT_KIT bool both_lost(void *arg)
{
	const struct core_rig *rig = arg;

	return word(rig, 0, 2)->state == EPF_PEER_DOWN && word(rig, 1, 0)->state == EPF_PEER_DOWN;
}

RECONNECT_KIT bool node_0_lost(void *arg)
{
	return word(arg, 0, 2)->state == EPF_PEER_DOWN;
}

RECONNECT_KIT bool all_retired(void *arg)
{
	const struct core_rig *rig = arg;

	for (uint32_t i = 0; i < CORE_WORLD; i++)
		if (rig->rank[i].shm->done.retired != rig->rank[i].ring.pushed)
			return false;
	return true;
}

RECONNECT_KIT bool all_up(void *arg)
{
	const struct core_rig *rig = arg;

	for (uint32_t n = 0; n < CORE_NODES; n++)
		for (uint32_t l = 0; l < rig->core[n]->n_lanes; l++)
			if (rig->core[n]->lanes[l].state != EPF_LANE_UP)
				return false;
	return true;
}

RECONNECT_KIT uint64_t signal_of(const struct core_rank *r, uint32_t signal)
{
	return epf_signal_read(&r->signals[signal]);
}

struct awaited {
	const struct core_rank *r;
	uint32_t signal;
	uint64_t value;
};

RECONNECT_KIT bool has_signal(void *arg)
{
	const struct awaited *a = arg;

	return signal_of(a->r, a->signal) >= a->value;
}

RECONNECT_KIT void push(struct core_rank *r, const struct epf_op *op)
{
	assert_true(epf_ring_room(&r->ring, 2) >= 2);
	epf_ring_push(&r->ring, epf_op_pack_narrow(op));
}

/* A put with its signal in the immediate, once it has a notify handle. */
RECONNECT_KIT void notify(struct core_rank *r, uint32_t to, uint32_t offset, uint32_t signal)
{
	struct epf_op op = { .op = EPF_OP_PUT_SIGNAL,
			     .rank = to,
			     .length = BYTES,
			     .local_offset = offset,
			     .remote_offset = offset,
			     .signal = signal,
			     .add = 1 };

	push(r, &op);
}

/* A put of group 3 and its counted signal, and a flush behind. */
RECONNECT_KIT void counted(struct core_rank *r, uint32_t to)
{
	struct epf_op put = { .op = EPF_OP_PUT,
			      .rank = to,
			      .length = 64,
			      .signal = 3,
			      .flags = EPF_F_COUNTED },
		      signal = { .op = EPF_OP_SIGNAL,
				 .rank = to,
				 .signal = 3,
				 .value = 1,
				 .count = 1,
				 .flags = EPF_F_COUNTED },
		      flush = { .op = EPF_OP_FLUSH };

	push(r, &put);
	push(r, &signal);
	push(r, &flush);
}

/* Everybody puts to everybody in all ways; every byte and every signal is looked at. */
RECONNECT_KIT void all_to_all(struct core_rig *rig)
{
	static uint8_t pattern;

	for (uint32_t from = 0; from < CORE_WORLD; from++)
		for (uint32_t to = 0; to < CORE_WORLD; to++) {
			struct core_rank *a = &rig->rank[from], *b = &rig->rank[to];
			uint64_t before[3] = { signal_of(b, 0), signal_of(b, 1), signal_of(b, 3) };
			uint64_t failed = a->shm->done.failed;

			memset(a->memory, ++pattern, BYTES);
			for (unsigned i = 0; i < 3; i++) {
				notify(a, to, 0, 0);
				core_rig_put(a, to, BYTES, 1);
				counted(a, to);
				assert_true(core_rig_run(rig, all_retired, rig));
			}
			assert_true(core_rig_run(rig, NULL, NULL));
			assert_int_equal(a->shm->done.failed, failed);
			assert_int_equal(signal_of(b, 0), before[0] + 3);
			assert_int_equal(signal_of(b, 1), before[1] + 3);
			assert_int_equal(signal_of(b, 3), before[2] + 3);
			assert_int_equal(b->memory[0], pattern);
			assert_int_equal(b->memory[BYTES - 1], pattern);
		}
}

RECONNECT_KIT void check_clean(const struct core_rig *rig)
{
	for (uint32_t n = 0; n < CORE_NODES; n++) {
		assert_int_equal(epf_stat_get(rig->core[n]->stats, EPF_STAT_CORE_ARRIVALS_REFUSED),
				 0);
		assert_int_equal(rig->core[n]->load[0].bytes, 0);
		assert_int_equal(rig->core[n]->load[0].messages, 0);
	}
}

/* Commands both ways are under way when all links are cut. */
RECONNECT_KIT void lose(struct core_rig *rig, bool (*lost)(void *arg))
{
	for (unsigned i = 0; i < 8; i++) {
		notify(&rig->rank[0], 2, LOST, 2);
		notify(&rig->rank[3], 1, LOST, 2);
		counted(&rig->rank[1], 3);
	}
	for (unsigned i = 0; i < 3; i++)
		epf_core_step(rig->core[i & 1]);
	set_links(rig, 0);
	for (unsigned i = 0; i < 8; i++) {
		notify(&rig->rank[0], 2, LOST, 6);
		notify(&rig->rank[3], 1, LOST, 2);
	}
	assert_true(core_rig_run(rig, lost, rig));
}

#endif
