/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages: signals, additions, and what engines say to each other. A message takes an entry of its stream's lane and a receive at the peer. Must
 * never block, allocate, lock, log or make a system call.
 */
#include "fabric/engine/admit_hot.h"

/* Stages a message on a stream; the caller has been admitted. */
static void message_entry(struct epf_core *core, struct epf_stream *s, struct epf_lane *lane,
			  const struct epf_msg *m, uint64_t wr_core)
{
	struct epf_msg *slot = lane_slot(lane);
	struct epf_wr *wr = lane_entry(core, lane);

	*slot = *m;
	slot->handle = s->handle;
	slot->count = s->count++;
	wr->laddr = (uint64_t)(uintptr_t)slot;
	wr->raddr = 0;
	wr->lkey = 0;
	wr->rkey = 0;
	wr->len = sizeof(*slot);
	wr->imm = 0;
	wr->op = EPF_WR_SEND;
	wr->flags = EPF_WR_INLINE | EPF_WR_SLOT;
	wr->core = wr_core | EPF_WRC_EVENT;
	lane->events++;
	if (wr_core >> 60 == EPF_WRK_DATA) {
		core->load[lane->link].messages++;
		core->ranks[s->rank].inflight_messages++;
		s->sent += EPF_SENT_COMMAND;
		s->signals += m->kind == EPF_MSG_SIGNAL;
	}
}

int epf_stage_message(struct epf_core *core, struct epf_stream *s, struct epf_msg *m,
		      uint64_t wr_core)
{
	struct epf_lane *lane = &core->lanes[s->lane];
	unsigned counts = wr_core >> 60 == EPF_WRK_DATA;

	/*
	 * The engine's own messages pass the limits of what is in flight: work that a dead lane holds counts there, and
	 * only they can free it.
	 */
	if (counts ? !admit(core, &core->ranks[s->rank], lane, 0, 1, 0)
		   : !admit_lane(core, lane, 0, 1))
		return 0;
	message_entry(core, s, lane, m, wr_core);
	return 1;
}
