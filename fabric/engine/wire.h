/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What engines say to each other: immediates, messages, control writes. Both ends of a job must agree on every bit of it; what
 * a core makes of it is in core.h and, at the receiver, arrive_hot.c and messages.c.
 */
#ifndef EPF_FABRIC_ENGINE_WIRE_H
#define EPF_FABRIC_ENGINE_WIRE_H

#include "fabric/nic/nic.h"
#include "queues/epf_base.h"

#include <stdint.h>

enum {
	EPF_MAX_LANES_PER_NODE = 8,
	EPF_MAX_STREAMS_PER_NODE = 8192, /* 13 bits of handle in an immediate */
	EPF_MAX_WINDOW = 32768,          /* half of the 16-bit count in an immediate */
	EPF_ACKS_PER_RANK = 8, /* flushes of one rank at a node that wait for an acknowledgement */
	EPF_MAX_ACKS = 64,     /* of all ranks */
};

/* Immediate data: count in the low 16 bits, handle in the next 13, kind in the top 3. */
enum { EPF_IMM_STREAM = 1, EPF_IMM_NOTIFY = 2 };

_Static_assert(EPF_MAX_STREAMS_PER_NODE == 1 << 13, "a handle has 13 bits of an immediate");
_Static_assert(EPF_MAX_WINDOW == 1 << 15, "a window is half of what 16 bits count");
_Static_assert(EPF_IMM_STREAM < 8 && EPF_IMM_NOTIFY < 8, "a kind has 3 bits of an immediate");

EPF_INLINE uint32_t epf_imm(unsigned kind, uint32_t handle, uint32_t count)
{
	return (uint32_t)kind << 29 | handle << 16 | (count & 0xffffu);
}

/* What a message (EPF_WR_SEND) says. */
enum epf_msg_kind {
	EPF_MSG_SIGNAL = 1, /* signal, rank, value: add; c = 1 + sending rank, 0: not said */
	EPF_MSG_ADD = 2,    /* rank, signal = region, a = offset, value: add to memory */
	EPF_MSG_FLUSH = 3,  /* acknowledge in word d when passed */
	EPF_MSG_NOTIFY =
		4, /* defines notify handle d: stream handle c, rank, signal, value = add; a = 1 + sending rank, 0: not said */
	EPF_MSG_REVOKE = 5,      /* rank, signal = region: stop using it */
	EPF_MSG_REVOKED = 6,     /* the answer: nothing of mine is in flight to it */
	EPF_MSG_LANE_FENCE = 7,  /* c = lane: fence it and say when drained */
	EPF_MSG_LANE_FENCED = 8, /* c = lane: fenced and drained here */
	EPF_MSG_STREAM_QUERY =
		9, /* c = handle, d = from, rank = question: which counts have arrived? */
	EPF_MSG_STREAM_STATE = 10, /* c = handle, d = from, bits in value, a, b, e */
	EPF_MSG_LANE_OPEN = 11,    /* c = lane, value = token of the sender's new queue pair */
	EPF_MSG_LANE_OPENED = 12,  /* c = lane: connected here, may be used */
	EPF_MSG_BYE =
		13, /* the sender's engine closes in order; b = 1 + lost rank because of which, e = why that was lost; 0: not said */
	EPF_MSG_RANK =
		14, /* rank: signal = state, c = epoch, d = cause; coming up: value = regions, a = signals; else b, e as in BYE */
	EPF_MSG_REGION =
		15, /* rank comes up: signal = region, value = epoch, a = raddr, b = bytes, c = rkey, d = access, e = regions */
	EPF_MSG_KEYS =
		16, /* with it where there are more keys: signal = region, c = epoch, d = regions, keys 1 to 7 in value, a, b, e */
	EPF_MSG_LOST =
		17, /* rank: would it end now, then because of b, e as in BYE; c = EPF_NONE. An engine that does not know it refuses it */
};

/* A message on the wire: 64 bytes, little-endian. */
struct epf_msg {
	uint8_t kind;
	uint8_t flags;
	uint16_t handle; /* stream it belongs to */
	uint32_t count;  /* its count in that stream */
	uint32_t rank;
	uint32_t signal;
	uint64_t value;
	uint64_t a;
	uint64_t b;
	uint64_t e;
	uint32_t c;
	uint32_t d;
	uint64_t reserved;
};

_Static_assert(sizeof(struct epf_msg) == 64, "a message is 64 bytes");
_Static_assert(sizeof(struct epf_msg) <= EPF_NIC_MSG_BYTES, "a message fits every NIC");

/* Control writes a peer's core writes into our memory by plain RDMA writes [R5]: cumulative, newest wins. */
struct epf_ctl {
	uint64_t grants
		[EPF_MAX_LANES_PER_NODE]; /* per lane: bits 31:0 events we may have posted in all; bit 32: written; 63:33 beats of its engine */
	uint64_t acks[]; /* flushes that were passed: epf_ack_word(), 0: not yet [A5] */
};

/* Returns the acknowledgement of the flush with this count in that stream. */
EPF_INLINE uint64_t epf_ack_word(uint32_t handle, uint32_t count)
{
	return (uint64_t)handle << 33 | UINT64_C(1) << 32 | count;
}

/* Returns how many such words an engine has for each node: the same at all engines of a job. */
EPF_INLINE uint32_t epf_acks_of(uint32_t world, uint32_t n_nodes)
{
	uint64_t acks = ((uint64_t)world + n_nodes - 1) / n_nodes * EPF_ACKS_PER_RANK;

	return acks < EPF_MAX_ACKS ? (uint32_t)acks : EPF_MAX_ACKS;
}

/* Returns the bytes of the control writes of a node. */
EPF_INLINE uint32_t epf_ctl_bytes(uint32_t n_acks)
{
	return (uint32_t)((sizeof(struct epf_ctl) + 8u * n_acks + 63) / 64 * 64);
}

#endif
