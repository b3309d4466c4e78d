/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slow is not dead. A real NIC answers whether or not its process is run; the emulated one answers on its process's own thread, and on a
 * busy machine, or behind a SIGSTOP, that thread may rest longer than the retry timeout. So before a late request fails its peer is looked
 * at: it fails when the peer has handled all its mail twice since and still not answered (the link is cut), or after emu-stall-timeout.
 * Called by the reap, before the timeouts are looked at. It must never allocate, lock, log or make a system call.
 */
#include "fabric/nic/emu/emu.h"

enum {
	AGAIN_PART =
		128, /* a late request is looked at again after this part of the retry timeout */
	PULSES = 2,  /* the first may belong to a turn that had begun before */
};

/* Puts a request off; it is late again after a part of the retry timeout, or when the longest time is over. */
static void put_off(struct epf_emu *e, struct epf_emu_slot *s, struct epf_emu_stall *stall)
{
	uint64_t part = e->opts.retry_timeout_ns / AGAIN_PART;
	uint64_t due = e->now_ns + (part ? part : 1),
		 last = stall->since_ns + e->opts.stall_timeout_ns;

	s->posted_ns = (due < last ? due : last) - e->opts.retry_timeout_ns;
	stall->posted_ns = s->posted_ns;
}

/* The oldest request of a lane is late: is its peer silent, or not run? */
static void look_at_peer(struct epf_emu *e, struct epf_emu_lane *l, struct epf_emu_stall *stall)
{
	uint64_t pulse = __atomic_load_n(&l->peer->hdr->pulse, __ATOMIC_ACQUIRE); /* M6 */
	uint32_t oldest = l->out_head;
	struct epf_emu_slot *s = &e->slots[oldest - 1];

	if (!pulse || e->opts.stall_timeout_ns <= e->opts.retry_timeout_ns)
		return; /* a peer that does not tell */
	if (l->stall != oldest || stall->posted_ns != s->posted_ns) {
		l->stall = oldest;
		/* Longer silence than that nobody has heard: this process was not run itself. */
		stall->since_ns = e->now_ns - e->opts.retry_timeout_ns;
		stall->pulse = pulse;
	} else if (pulse - stall->pulse >= PULSES ||
		   e->now_ns - stall->since_ns >= e->opts.stall_timeout_ns) {
		l->stall = 0;
		return;
	}
	put_off(e, s, stall);
}

void epf_emu_forgive_stalls(struct epf_emu *e)
{
	uint64_t retry = e->opts.retry_timeout_ns;

	for (uint16_t lane = e->busy_head; lane != EPF_EMU_NO_LANE;) {
		struct epf_emu_lane *l = &e->lanes[lane];
		uint64_t since = e->slots[l->out_head - 1].posted_ns;

		/* As the timeouts count: on an ordered lane every completion is an answer to the rest. */
		if (e->opts.ordered && since < l->progress_ns)
			since = l->progress_ns;
		if (since + retry <= e->now_ns && !epf_emu_is_cut(e, lane))
			look_at_peer(e, l, &e->stalls[lane]);
		lane = l->busy_next;
	}
}
