/* SPDX-License-Identifier: Apache-2.0 */
/* What tests of commands on the null NIC share (null_rig.h), in terms of cmocka. */
#ifndef EPF_TESTS_NULL_KIT_H
#define EPF_TESTS_NULL_KIT_H

#include "tests/unit/engine/null_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static inline void null_open(struct null_rig *rig)
{
	memset(rig, 0, sizeof(*rig));
	null_rig_open(rig, false);
}

static inline void null_push(struct null_rank *r, const struct epf_op *op, bool wide)
{
	struct epf_cmd two[2];

	assert_true(epf_ring_room(&r->ring, 2) >= 2);
	if (!wide) {
		epf_ring_push(&r->ring, epf_op_pack_narrow(op));
		return;
	}
	epf_op_pack_wide(op, two);
	assert_true(epf_ring_push_wide(&r->ring, two));
}

/* Steps until nothing is left to do, and inspects all that is staged meanwhile. */
static inline void null_drain(struct null_rig *rig)
{
	for (unsigned i = 0; i < 20; i++) {
		const char *wrong;

		epf_core_step(rig->core);
		wrong = null_rig_inspect(rig);
		if (wrong)
			fail_msg("%s", wrong);
	}
}

static inline uint32_t null_staged(const struct null_rig *rig)
{
	uint32_t n = 0;

	for (uint32_t l = 0; l < rig->core->n_lanes; l++)
		n += rig->core->lanes[l].head;
	return n;
}

/* Streams are open and the definitions of signals are known afterwards, so that each command costs its own entries only. */
static inline void null_warm_up(struct null_rig *rig, uint32_t peer)
{
	const struct epf_op put = { .op = EPF_OP_PUT, .rank = peer, .length = 16 };

	null_push(&rig->rank[0], &put, false);
	null_drain(rig);
}

/* The lane that carries what rank 0 sends to a peer. */
static inline struct epf_lane *null_lane(struct null_rig *rig, uint32_t peer)
{
	return &rig->core->lanes[rig->core->streams[rig->core->rings[0]->streams[peer]].lane];
}

#endif
