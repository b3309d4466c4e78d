/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hot half of fabric/protocol/channel.h: takes requests out of the channel's words, checked. A word is loaded once into a copy, and only the copy is
 * looked at. Nothing here allocates, locks, logs or enters the kernel.
 */
#include "tools/shim/channel.h"

/* Operations and atomics by the numbers of the device code. */
enum { OP_PUT = 1, OP_VALUE = 2, OP_FENCE = 6, OP_ATOMIC = 7, OP_QUEUE = 100 };

enum { AMO_SET = 3, AMO_ADD = 4, AMO_SIGNAL = 8, AMO_SIGNAL_SET = 9, AMO_SIGNAL_ADD = 10 };

#define MAX_PUT (UINT64_C(1) << 31)

/* Words of the request that this one begins, 0 for an operation that is not served; more than any may have for a fence of too many queues. */
static unsigned words_of(uint64_t first)
{
	unsigned op = (unsigned)(first >> 16) & 0xff, queue = op > OP_QUEUE;
	uint64_t queues = first >> 32;

	switch (queue ? op - OP_QUEUE : op) {
	case OP_PUT:
		return 4;
	case OP_VALUE:
		return 3 + queue;
	case OP_FENCE:
		if (!queue)
			return 1;
		return queues < EPF_CHANNEL_MAX_WORDS ? 1 + (unsigned)queues
						      : EPF_CHANNEL_MAX_WORDS + 1;
	case OP_ATOMIC:
		return 5 + queue;
	default:
		return 0;
	}
}

/* Word `i` of the request: 1 there, 0 not yet, -1 neither lap's. */
static int load(const struct epf_channel *channel, unsigned i, uint64_t *out)
{
	uint64_t at = channel->processed + i * sizeof(uint64_t);
	unsigned lap = !(at >> EPF_CHANNEL_LOG2 & 1);
	uint64_t word = EPF_LOAD_ACQUIRE(&channel->words[(at & (EPF_CHANNEL_BYTES - 1)) / 8]);

	if ((word & 0xff) > 1)
		return -1;
	*out = word;
	return (word & 0xff) == lap;
}

static uint32_t check_atomic(const uint64_t *w, struct epf_channel_req *r)
{
	switch (w[1] >> 8 & 0xff) {
	case AMO_SET:
	case AMO_SIGNAL:
	case AMO_SIGNAL_SET:
		r->kind = EPF_CHANNEL_SET;
		return r->bytes == 4 || r->bytes == 8 ? EPF_CHANNEL_OK : EPF_CHANNEL_LENGTH;
	case AMO_ADD:
	case AMO_SIGNAL_ADD:
		r->kind = EPF_CHANNEL_ADD;
		if (r->bytes != 8)
			return EPF_CHANNEL_LENGTH;
		return r->remote_offset % 8 == 0 ? EPF_CHANNEL_OK : EPF_CHANNEL_REMOTE;
	default:
		return EPF_CHANNEL_OPERATION;
	}
}

static uint32_t check_value(const uint64_t *w, unsigned op, struct epf_channel_req *r)
{
	r->kind = EPF_CHANNEL_SET;
	r->pe = (uint32_t)(w[1] >> 16) & 0xffff;
	r->bytes = w[2] >> 16 & 0xffff;
	if (r->bytes != 1 && r->bytes != 2 && r->bytes != 4 && r->bytes != 8)
		return EPF_CHANNEL_LENGTH;
	r->value = w[1] >> 32 | (w[2] >> 32) << 32;
	if (r->bytes < 8)
		r->value &= (UINT64_C(1) << r->bytes * 8) - 1;
	return op == OP_ATOMIC ? check_atomic(w, r) : EPF_CHANNEL_OK;
}

static uint32_t check_put(const struct epf_wr_space *space, const uint64_t *w,
			  struct epf_channel_req *r)
{
	r->kind = EPF_CHANNEL_PUT;
	r->local_offset = ((w[1] & ~UINT64_C(0xff)) | (w[2] >> 8 & 0xff)) - space->heap_base;
	r->bytes = w[2] >> 16;
	r->pe = (uint32_t)(w[3] >> 16) & 0xffff;
	if (r->bytes == 0 || r->bytes > MAX_PUT)
		return EPF_CHANNEL_LENGTH;
	return r->local_offset < space->heap_bytes &&
			       r->bytes <= space->heap_bytes - r->local_offset
		       ? EPF_CHANNEL_OK
		       : EPF_CHANNEL_LOCAL;
}

static uint32_t check(const struct epf_wr_space *space, const uint64_t *w,
		      struct epf_channel_req *r)
{
	unsigned op = (unsigned)(w[0] >> 16) & 0xff;
	uint32_t bad;

	op = op > OP_QUEUE ? op - OP_QUEUE : op;
	*r = (struct epf_channel_req){ .kind = EPF_CHANNEL_FENCE, .remote_offset = w[0] >> 24 };
	if (op == OP_FENCE)
		return EPF_CHANNEL_OK;
	if ((w[0] >> 8 & 0xff) != 1)
		return EPF_CHANNEL_GROUP;
	bad = op == OP_PUT ? check_put(space, w, r) : check_value(w, op, r);
	if (bad)
		return bad;
	if (r->pe >= space->pes)
		return EPF_CHANNEL_PEER;
	return r->remote_offset < space->heap_bytes &&
			       r->bytes <= space->heap_bytes - r->remote_offset
		       ? EPF_CHANNEL_OK
		       : EPF_CHANNEL_REMOTE;
}

int epf_channel_take(struct epf_channel *channel, const struct epf_wr_space *space,
		     struct epf_channel_req *out)
{
	uint64_t w[EPF_CHANNEL_MAX_WORDS];
	struct epf_channel_req req;
	unsigned n = 1;

	if (channel->refusal)
		return 0;
	for (unsigned i = 0; i < n; i++) {
		int there = load(channel, i, &w[i]);

		if (there < 0)
			channel->refusal = EPF_CHANNEL_FLAG;
		channel->early += i > 0 && there == 0;
		if (there != 1)
			return 0;
		if (i > 0)
			continue;
		n = words_of(w[0]);
		if (!n || n > EPF_CHANNEL_MAX_WORDS) {
			channel->refusal = n ? EPF_CHANNEL_LENGTH : EPF_CHANNEL_OPERATION;
			return 0;
		}
	}
	channel->refusal = check(space, w, &req);
	if (channel->refusal)
		return 0;
	channel->processed += n * sizeof(uint64_t);
	*out = req;
	return 1;
}

void epf_channel_op(const struct epf_channel_req *req, const struct epf_wr_space *space,
		    struct epf_op *out)
{
	*out = (struct epf_op){ .op = EPF_OP_NOP, .add = 1 };
	if (req->kind == EPF_CHANNEL_FENCE)
		return;
	out->op = req->kind == EPF_CHANNEL_PUT   ? EPF_OP_PUT
		  : req->kind == EPF_CHANNEL_SET ? EPF_OP_PUT_INLINE
						 : EPF_OP_ADD;
	out->rank = req->pe;
	out->remote_region = space->region;
	out->remote_offset = req->remote_offset;
	out->length = (uint32_t)req->bytes;
	out->value = req->value;
	if (req->kind == EPF_CHANNEL_PUT) {
		out->local_region = space->region;
		out->local_offset = req->local_offset;
	}
}
