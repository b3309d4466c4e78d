/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fast path for consecutive plain puts: moves them from the ring to their lane in one pass. What does not change from one put to
 * the next (peer, stream, lane, regions, credit) is looked up when it changes, and counted once for all of them. Called by step_hot.c
 * before the general path (dequeue, check, stage), which continues behind the run and knows every command: whatever is not
 * plainly right stays in the ring for it. So nothing is refused, deferred or failed in this file. Must never block,
 * allocate, lock, log or make a system call.
 */
#include "fabric/engine/data_path.h"
#include "fabric/engine/lane_hot.h"
#include "fabric/engine/plain_hot.h"
#include "fabric/engine/policy_hot.h"

/* Where the puts of a stretch go. All of them have its key; another key begins another stretch. */
struct stretch {
	uint64_t key;
	struct epf_stream *stream;
	struct epf_lane *lane;
	uint64_t laddr, lbytes, raddr, rbytes;
	uint32_t lkey, rkey;
	uint32_t index;      /* of the stream */
	uint32_t most;       /* puts that the lane and the limits of messages still admit */
	uint64_t bytes_most; /* bytes that may still be in flight, below the limits */
	uint32_t n;          /* puts staged */
	uint64_t bytes;      /* of them */
	uint8_t same_node;
};

EPF_INLINE uint64_t room_below(uint64_t limit, uint64_t used)
{
	return used < limit ? limit - used : 0;
}

EPF_INLINE uint64_t lesser(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Computes how much the limits of what is in flight, and the lane, admit. */
EPF_INLINE void find_credit(const struct epf_core *core, const struct epf_rank_state *rank,
			    unsigned bulk, struct stretch *t)
{
	const struct epf_core_limits *limits = &core->limits;
	const struct epf_link_load *load = &core->load[t->lane->link];
	const struct epf_lane *lane = t->lane;
	uint32_t limit = bulk ? lane->limit - (lane->limit >> 2) : lane->limit;
	uint64_t most = room_below(limit, lane->head - lane->tail);

	most = lesser(most, room_below(limits->nic_inflight_messages, load->messages));
	most = lesser(most, room_below(limits->rank_inflight_messages, rank->inflight_messages));
	t->most = (uint32_t)most;
	t->bytes_most = lesser(room_below(limits->nic_inflight_bytes, load->bytes),
			       room_below(limits->rank_inflight_bytes, rank->inflight_bytes));
}

/* Looks up what the puts of a key share. Returns 0 if they need the general path. */
EPF_INLINE int stretch_begin(const struct epf_core *core, const struct epf_ring_state *ring,
			     const struct epf_rank_state *rank, struct epf_cmd c, struct stretch *t)
{
	uint32_t to = plain_rank(c);
	uint32_t from = (uint32_t)(c.hi >> 8) & 15u, at = (uint32_t)(c.hi >> 12) & 15u;
	const struct epf_region_remote *remote;
	const struct epf_region_local *local;
	const struct epf_peer *peer;

	t->n = 0;
	t->bytes = 0;
	if (EPF_UNLIKELY(to >= core->world) || EPF_UNLIKELY(!rank->usable[to]))
		return 0;
	peer = &core->peers[to];
	t->index = ring->streams[to];
	if (EPF_UNLIKELY(from >= rank->n_regions || at >= peer->n_regions || t->index == EPF_NONE))
		return 0;
	t->stream = &core->streams[t->index];
	t->lane = &core->lanes[t->stream->lane];
	remote = &peer->regions[at];
	local = &rank->regions[from];
	if (EPF_UNLIKELY(t->stream->deferred_head != EPF_NONE || t->lane->state != EPF_LANE_UP ||
			 !(remote->access & EPF_MR_REMOTE_WRITE)))
		return 0;
	t->key = plain_key(c);
	t->laddr = local->addr;
	t->lbytes = local->bytes; /* 0 unless it is live: no put fits */
	t->lkey = local->mr.keys[t->lane->index].lkey;
	t->raddr = remote->raddr;
	t->rbytes = remote->bytes;
	t->rkey = remote->rkeys[t->lane->index];
	t->same_node = peer->place == core->my_place;
	find_credit(core, rank, (c.hi & PLAIN_BULK_BIT) != 0, t);
	return 1;
}

/* Counts what a stretch has staged. */
EPF_INLINE void stretch_end(struct epf_core *core, struct epf_rank_state *rank,
			    const struct stretch *t)
{
	struct epf_link_load *load;

	if (!t->n)
		return;
	load = &core->load[t->lane->link];
	t->stream->sent += t->bytes + t->n * EPF_SENT_COMMAND;
	load->bytes += t->bytes;
	load->messages += t->n;
	rank->inflight_bytes += t->bytes;
	rank->inflight_messages += t->n;
	lane_mark_dirty(core, t->lane);
	stream_mark_dirty(core, t->stream, t->index);
	if (t->same_node)
		EPF_COUNT(core, PUT_BYTES_SAME_NODE, t->bytes);
	else
		EPF_COUNT(core, PUT_BYTES_REMOTE_NODE, t->bytes);
}

/* Stages a put whose stretch admits it. */
EPF_INLINE void stretch_add(struct stretch *t, struct epf_cmd c, uint32_t bytes, uint64_t wr_core)
{
	struct epf_lane *lane = t->lane;
	struct epf_wr *wr = &lane->wrs[lane->head & lane->mask];

	wr->laddr = t->laddr + plain_from(c);
	wr->raddr = t->raddr + plain_to(c);
	wr->lkey = t->lkey;
	wr->rkey = t->rkey;
	wr->len = bytes;
	wr->imm = 0;
	wr->id = lane->head++;
	wr->op = EPF_WR_WRITE;
	wr->flags = 0;
	wr->core = wr_core;
	t->n++;
	t->bytes += bytes;
}

EPF_HOT unsigned epf_put_run(struct epf_core *core, struct epf_ring_state *ring, unsigned budget,
			     int64_t quantum, struct epf_put_run *out)
{
	struct epf_rank_state *rank = &core->ranks[ring->rank];
	struct epf_ring_consumer *c = &ring->consumer;
	int64_t deficit = ring->deficit + quantum * (core->steps - ring->last_step);
	struct stretch t = { .key = UINT64_MAX };
	uint32_t max_bytes = core->caps.max_msg_bytes, seq = ring->seq;
	uint64_t wr_core = epf_wr_core(EPF_WRK_DATA, ring->id, 0, 0);
	uint64_t tail = c->tail;
	unsigned n = 0;

	out->empty = out->full = 0;
	out->lane = EPF_NONE;
	ring->left = 0;
	if (EPF_UNLIKELY(core->counts_puts))
		return 0;
	deficit = deficit > quantum ? quantum : deficit;
	prefetch_slots(c, tail);
	while (n < budget && deficit > 0) {
		struct epf_cmd slot;
		uint32_t bytes;

		if (!epf_ring_peek(c, tail, &slot)) {
			out->empty = 1;
			break;
		}
		if (!plain_is_put(slot) || plain_has_more(slot))
			break;
		if (EPF_UNLIKELY(plain_key(slot) != t.key)) {
			stretch_end(core, rank, &t);
			if (!stretch_begin(core, ring, rank, slot, &t)) {
				if (!n)
					out->full = leaves_put(core, ring, slot);
				break;
			}
		}
		bytes = plain_bytes(slot);
		if (EPF_UNLIKELY(plain_from(slot) + bytes > t.lbytes ||
				 plain_to(slot) + bytes > t.rbytes) ||
		    EPF_UNLIKELY(bytes > max_bytes))
			break;
		if (EPF_UNLIKELY(t.n == t.most || t.bytes + bytes > t.bytes_most)) {
			out->full = EPF_PUT_CREDIT;
			break;
		}
		__builtin_prefetch(&c->slots[(tail + PREFETCH_SLOTS) & c->mask]);
		ring->pend[seq & ring->pend_mask] = 1;
		stretch_add(&t, slot, bytes, wr_core | seq);
		deficit -= (int64_t)bytes + EPF_COMMAND_COST;
		seq++;
		tail++;
		n++;
	}
	stretch_end(core, rank, &t);
	if (!n)
		return 0;
	if (t.n)
		out->lane = t.lane->id;
	ring_dequeued(core, ring, tail, seq, deficit);
	return n;
}
