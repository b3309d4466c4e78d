/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The proxy channel: by it NVSHMEM's own device code, compiled into a program, asks a host thread for what its barriers need. Words of 8
 * bytes in a ring of host memory; each word says in byte 0 in which lap it was written, so none needs an index, and a request is there
 * when all its words are. Called by the one thread that serves the rank; channel_hot.c must never believe a word twice.
 *
 *   word 0   [0] lap (1 in the first)  [15:8] group, 1  [23:16] operation  [63:24] offset in the peer's heap
 *   put      1 [63:8] local address [63:8]   2 [15:8] local address [7:0] [63:16] bytes   3 [31:16] rank
 *   value    1 [31:16] rank [63:32] value, low   2 [31:16] bytes [63:32] value, high
 *   atomic   1 [15:8] what [31:16] rank [63:32] value, low   2 [31:16] bytes [63:32] value, high   3, 4 for operations that fetch
 *   fence    nothing more
 *
 * An operation of 100 and more (NVSHMEM 3.5) is the same with a queue named: in a word more, but for a put, where it stands in word 3. A fence
 * names up to 5 queues here: word 0 [63:32] has their number, and each has a word.
 */
#ifndef EPF_TOOLS_SHIM_CHANNEL_H
#define EPF_TOOLS_SHIM_CHANNEL_H

#include "tools/shim/wr.h"

enum {
	EPF_CHANNEL_LOG2 = 22, /* the size that device code is compiled for */
	EPF_CHANNEL_BYTES = 1 << EPF_CHANNEL_LOG2,
	EPF_CHANNEL_MAX_WORDS = 6, /* of a request */
};

enum epf_channel_kind {
	EPF_CHANNEL_FENCE = 1, /* later requests after earlier ones */
	EPF_CHANNEL_PUT = 2,   /* heap to a peer's heap */
	EPF_CHANNEL_SET = 3,   /* writes 1 to 8 bytes */
	EPF_CHANNEL_ADD = 4,   /* adds to 8 bytes */
};

enum epf_channel_refusal {
	EPF_CHANNEL_OK = 0,
	EPF_CHANNEL_FLAG,      /* byte 0 of a word is neither lap */
	EPF_CHANNEL_OPERATION, /* not served: reads, atomics that fetch, and-or-xor */
	EPF_CHANNEL_GROUP,     /* a group of more than one thread */
	EPF_CHANNEL_PEER,      /* no rank */
	EPF_CHANNEL_LENGTH,    /* bytes that the operation cannot have */
	EPF_CHANNEL_REMOTE,    /* not inside the peer's heap, or not aligned for an add */
	EPF_CHANNEL_LOCAL,     /* not inside the own heap */
	EPF_CHANNEL_REFUSALS
};

/* A request, checked. */
struct epf_channel_req {
	uint64_t remote_offset;
	uint64_t local_offset; /* PUT */
	uint64_t value;        /* SET, ADD */
	uint64_t bytes;        /* PUT: 1..2^31, SET: 1..8, ADD: 8 */
	uint32_t pe;
	uint32_t kind; /* enum epf_channel_kind */
};

struct epf_channel {
	const uint64_t *words; /* EPF_CHANNEL_BYTES, zeroed before kernels know it */
	uint64_t processed;    /* bytes handled since the start */
	uint32_t refusal;      /* enum epf_channel_refusal; not 0: given up at `processed` */
	uint32_t early;        /* counts: requests seen before they were all there */
};

/**
 * epf_channel_take() - the next request. Hot.
 *
 * Return: 1 with *out filled, 0 when nothing is there, or not all of it, or the channel was given up (channel->refusal says why).
 * What kernels wrote to host memory before it is visible after a return of 1 (acquire).
 */
int epf_channel_take(struct epf_channel *channel, const struct epf_wr_space *space,
		     struct epf_channel_req *out);

/* epf_channel_op() - the fabric command of a request; FENCE gives a NOP: order is the caller's business. Hot. */
void epf_channel_op(const struct epf_channel_req *req, const struct epf_wr_space *space,
		    struct epf_op *out);

/* The words of a refusal. Never NULL. */
const char *epf_channel_refusal_text(uint32_t refusal);

#endif
