/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is where in the control region, which both ranks of a link register first, so that it is region 0. A connection has one slot number at each end.
 * The receiver describes each posted receive in the sender's memory and then adds to the sender's bell; the sender puts the bytes where the description says
 * and then adds size + 1 to a word of the receiver. The engine makes an addition visible only after everything before it in the stream (fabric/client/epf.h),
 * so a word that is not 0 says that the bytes are there, on NICs that reorder as well.
 */
#ifndef EPF_TOOLS_NCCL_LAYOUT_H
#define EPF_TOOLS_NCCL_LAYOUT_H

#include "tools/nccl/abi.h"

#include <stdint.h>

enum {
	EPF_LINK_SLOTS = 512, /* connections of one direction between two processes */
	EPF_NET_PARTS = 8,    /* most receives in one request (maxRecvs) */
	EPF_NET_POSTED = EPF_NCCL_REQUESTS,
};

/* One receive, as its receiver describes it. Little-endian, like every word here. */
struct epf_net_part {
	uint64_t offset; /* in the receiver's region */
	uint64_t bytes;
	uint32_t region;
	uint32_t tag;
	uint32_t parts; /* of this request, the same in each of them */
	uint32_t reserved;
};

_Static_assert(sizeof(struct epf_net_part) == 32, "a posted receive");

enum {
	EPF_NET_REQUEST_BYTES = EPF_NET_PARTS * (int)sizeof(struct epf_net_part),
	EPF_NET_FIFO_BYTES = EPF_NET_POSTED * EPF_NET_REQUEST_BYTES,
	EPF_NET_WORDS_BYTES = EPF_NET_POSTED * EPF_NET_PARTS * 8,
	EPF_NET_BELL_BYTES = 64,

	EPF_NET_FIFO = 0, /* sender: what the receiver has posted */
	EPF_NET_MIRROR =
		EPF_NET_FIFO +
		EPF_LINK_SLOTS * EPF_NET_FIFO_BYTES, /* receiver: the same, as it is sent */
	EPF_NET_WORDS =
		EPF_NET_MIRROR + EPF_LINK_SLOTS * EPF_NET_FIFO_BYTES, /* receiver: what has come */
	EPF_NET_BELLS = EPF_NET_WORDS +
			EPF_LINK_SLOTS * EPF_NET_WORDS_BYTES, /* sender: how many were posted */
	EPF_NET_CONTROL_BYTES = EPF_NET_BELLS + EPF_LINK_SLOTS * EPF_NET_BELL_BYTES,
};

static inline uint64_t epf_net_request_at(int area, uint32_t slot, uint64_t n)
{
	return (uint64_t)area + (uint64_t)slot * EPF_NET_FIFO_BYTES +
	       n % EPF_NET_POSTED * EPF_NET_REQUEST_BYTES;
}

static inline uint64_t epf_net_word_at(uint32_t slot, uint64_t n, unsigned part)
{
	return EPF_NET_WORDS + (uint64_t)slot * EPF_NET_WORDS_BYTES +
	       (n % EPF_NET_POSTED * EPF_NET_PARTS + part) * 8;
}

static inline uint64_t epf_net_bell_at(uint32_t slot)
{
	return EPF_NET_BELLS + (uint64_t)slot * EPF_NET_BELL_BYTES;
}

#endif
