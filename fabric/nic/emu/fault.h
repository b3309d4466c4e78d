/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Faults of the emulated NIC: what happens to a packet is a pure function of the seed and of who sent it
 * as which message, so a seed replays whatever the scheduling. Decided at the target when a packet is
 * dequeued from an inbox; what must wait is held in a heap by due time. Called by rx_hot.c and lane.c
 * only. It must never allocate, lock, log or make a system call.
 */
#ifndef EPF_FABRIC_NIC_EMU_FAULT_H
#define EPF_FABRIC_NIC_EMU_FAULT_H

#include "fabric/nic/emu/emu.h"

/* epf_emu_packet.fate of a lead packet */
enum {
	EPF_EMU_FATE_LOST = 1,    /* the message is not delivered; its sender gets RETRY_EXCEEDED */
	EPF_EMU_FATE_UNKNOWN = 2, /* it is delivered; its sender gets the same status */
	EPF_EMU_FATE_LAST = 4,  /* with UNKNOWN on an ordered lane: nothing after it is delivered */
	EPF_EMU_FATE_TWICE = 8, /* its arrival event is raised a second time */
};

enum { EPF_EMU_HOLD_PACKET = 1, EPF_EMU_HOLD_LANE, EPF_EMU_HOLD_EVENT, EPF_EMU_HOLD_MESSAGE };

/* Something that waits for a time. */
struct epf_emu_held {
	uint64_t due_ns;
	uint32_t order; /* ties are broken by age */
	uint32_t epoch; /* of the lane */
	uint32_t value; /* PACKET: index; EVENT: immediate; MESSAGE: index in saved[] */
	uint32_t len;   /* EVENT, MESSAGE */
	uint16_t lane;
	uint8_t kind;
};

/*
 * Decides the fate of packet idx of a lane, just dequeued from the inbox. Ordered mode: sets its due_ns.
 * Returns true when the packet is now held, false when it is to be landed at once (or in its turn).
 */
bool epf_emu_fault_arrive(struct epf_emu *e, uint16_t lane, uint32_t idx, struct epf_emu_packet *p);

/* A packet with holds > 1 has landed: holds it for its second landing. False: no room, do not. */
bool epf_emu_fault_again(struct epf_emu *e, uint16_t lane, uint32_t idx,
			 const struct epf_emu_packet *p);

/* The event of a message with FATE_TWICE has been raised: holds a second one, at most 1 ms later. */
void epf_emu_fault_second_event(struct epf_emu *e, uint16_t lane, const struct epf_emu_packet *p,
				const struct epf_wc *wc);

/* Holds a lane until due_ns (at most one hold a lane). False: no room. */
bool epf_emu_fault_hold_lane(struct epf_emu *e, uint16_t lane, uint64_t due_ns);

/* Removes and returns the first held thing that is due; false when none is. */
bool epf_emu_fault_pop(struct epf_emu *e, struct epf_emu_held *out);

/* Removes all that a lane holds; its packets go to the lane's list of packets to land. */
void epf_emu_fault_release(struct epf_emu *e, uint16_t lane);

#endif
