/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looking ahead on a lane of the software NIC: while the packet at its head waits for a copy, the copies of packets behind it start, so
 * that many run at a time. Effects still happen in the lane's order (rx_hot.c). Hot path: no allocation, lock, log or system call.
 */
#include "fabric/nic/emu/copies.h"
#include "fabric/nic/emu/fault.h"

#include <string.h>

/* Packets of a lane, and writes in them, inspected in one go. */
enum { AHEAD = 128, AHEAD_WRITES = 512 };

/* True when a checked packet's bytes, which the copier moves, or some of them, go to host memory here. */
static bool goes_to_host(const struct epf_emu *e, const struct epf_emu_packet *h,
			 const struct epf_emu_packet *p, const struct epf_emu_region *region)
{
	const unsigned char *payload = (const unsigned char *)p + EPF_EMU_PACKET_HEADER;

	if (h->form != EPF_EMU_REFS)
		return !region->mem;
	for (uint32_t k = 0; k < h->offset; k++) {
		struct epf_emu_ref ref;

		memcpy(&ref, payload + k * sizeof(ref), sizeof(ref));
		if ((ref.dst_key & 0xffff) >= e->nregions || !e->regions[ref.dst_key & 0xffff].mem)
			return true;
	}
	return false;
}

/* Begins the copy of a packet behind the head, if it needs one. False: what comes after it must wait for its turn. */
static bool look_ahead_at(struct epf_emu *e, uint16_t lane, uint32_t idx, unsigned *writes)
{
	struct epf_emu_lane *l = &e->lanes[lane];
	struct epf_emu_packet *p = epf_emu_pkt(l->peer, idx);
	struct epf_emu_packet h = *p;
	const struct epf_emu_region *region;
	const struct epf_emu_packet *lp;

	if (h.lead >= l->peer->npackets || h.token != l->token)
		return false;
	if (e->faulty && e->opts.ordered && h.due_ns > e->now_ns)
		return false;
	lp = epf_emu_pkt(l->peer, h.lead);
	if (h.landed || lp->status != EPF_S_OK || (e->faulty && (lp->fate & EPF_EMU_FATE_LOST)) ||
	    epf_emu_check_packet(e, l, &h, &region) != EPF_S_OK)
		return false;
	if (epf_emu_needs_copier(&h, region)) {
		if (l->ahead_of_cpu && goes_to_host(e, &h, p, region))
			return false;
		*writes += h.form == EPF_EMU_REFS ? h.offset : 1;
		return epf_emu_copy_land(e, lane, idx, &h, p, region) == EPF_EMU_MOVE_LATER;
	}
	/*
	 * Of two writes to the same bytes the later one must win, whichever way they go: behind a write by the CPU, as control writes are, no
	 * copy to host memory is begun before its turn.
	 */
	l->ahead_of_cpu |= region && h.op != EPF_WR_READ && e->opts.ordered;
	return true;
}

bool epf_emu_look_ahead(struct epf_emu *e, uint16_t lane)
{
	struct epf_emu_lane *l = &e->lanes[lane];
	uint32_t at = l->ahead ? l->ahead : l->rx_head;

	if (!l->ahead)
		l->ahead_of_cpu = false;
	for (unsigned n = 0, writes = 0; n < AHEAD && writes < AHEAD_WRITES; n++) {
		if (!at || at > l->peer->npackets || epf_emu_copy_is_bad(e, l))
			return false;
		at = epf_emu_pkt(l->peer, at - 1)->next;
		if (!at || at > l->peer->npackets || !look_ahead_at(e, lane, at - 1, &writes))
			return false;
		l->ahead = at;
	}
	return true;
}
