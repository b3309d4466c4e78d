/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For test_arrivals.c and test_control_messages.c: a core over the null NIC whose tables end one entry before their memory does, and messages that
 * arrive from its peer engine. What lies behind the end of a table looks valid, so that a check that is off by one lets it through.
 */
#ifndef EPF_TESTS_UNIT_ENGINE_ARRIVALS_KIT_H
#define EPF_TESTS_UNIT_ENGINE_ARRIVALS_KIT_H

#include "tests/unit/engine/null_rig.h"

#include "fabric/engine/lane_hot.h"
#include "tests/unit/engine/grow_all.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { REGIONS = NULL_REGIONS - 1, SIGNALS = NULL_SIGNALS - 1, HANDLE = 5, OTHER = 6 };

static inline struct epf_node *peer_node(struct null_rig *rig)
{
	return &rig->core->nodes[1];
}

static inline struct epf_rx_stream *rx(struct null_rig *rig, uint32_t handle)
{
	return &peer_node(rig)->rx[handle];
}

static inline uint64_t refused(const struct null_rig *rig)
{
	return null_rig_count(rig, EPF_STAT_CORE_ARRIVALS_REFUSED);
}

static inline uint64_t duplicates(const struct null_rig *rig)
{
	return null_rig_count(rig, EPF_STAT_CORE_DUPLICATES_DROPPED);
}

static inline void open_rig(struct null_rig *rig)
{
	memset(rig, 0, sizeof(*rig));
	null_rig_open(rig, false);
	for (uint32_t r = 0; r < NULL_LOCAL; r++) {
		struct epf_rank_state *rank = &rig->core->ranks[r];

		rank->n_signals = SIGNALS;
		rank->n_regions = REGIONS;
		rank->regions[REGIONS].access = EPF_MR_REMOTE_WRITE;
	}
	for (uint32_t r = 0; r < NULL_WORLD; r++)
		rig->core->peers[r].n_regions = REGIONS;
}

/* Hands over a message of `len` bytes on a lane of the peer's. */
static inline void arrive(struct null_rig *rig, const struct epf_msg *m, uint32_t len)
{
	struct epf_wc wc = { .op = EPF_WC_RECV, .lane = NULL_LANES, .len = len, .msg = m };

	epf_arrive(rig->core, &wc);
}

/* Sends the next message of stream HANDLE. Returns 1 if it was refused. */
static inline int send(struct null_rig *rig, struct epf_msg m)
{
	uint64_t before = refused(rig);

	m.handle = HANDLE;
	m.count = rx(rig, HANDLE)->base;
	arrive(rig, &m, sizeof(m));
	assert_in_range(refused(rig) - before, 0, 1);
	return refused(rig) != before;
}

static inline int send_imm(struct null_rig *rig, uint32_t imm)
{
	struct epf_wc wc = { .op = EPF_WC_RECV_IMM, .lane = NULL_LANES, .imm = imm };
	uint64_t before = refused(rig);

	epf_arrive(rig->core, &wc);
	return refused(rig) != before;
}

#endif
