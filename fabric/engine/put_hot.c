/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A run of plain puts: from the ring to the lane in one pass, for what most commands of a job are. What does not change from one put to
 * the next (peer, stream, lane, regions, credit) is looked up when it changes, and counted once for all of them. Called by step_hot.c
 * before the ordinary way (take, check, stage), which goes on behind the run and knows every other command: whatever is not
 * plainly right here is left in the ring for it. So nothing is refused, deferred or failed in this file. Must never block,
 * allocate, lock, log or make a system call.
 */
#include "fabric/engine/stage_hot.h"

enum {
	PREFETCH_SLOTS = 16,
	PREFETCH_FIRST = 4, /* slots of a line */
	PREFETCH_WRS = 6,
	SET_ASIDE = 4,   /* of a stream, for those who ask why it waits, before the rest is left */
	LOOK_AHEAD = 64, /* slots looked at in one turn for commands that are not alike */
};

/* Bits of a narrow slot: which operation, what a plain put has not, and what makes two puts differ in more than offsets and length. */
#define OP_BITS     (UINT64_C(7) << 1)
#define OP_PUT      ((uint64_t)EPF_OP_PUT << 1)
#define NOT_PLAIN   ((uint64_t)EPF_F_COUNTED << 1 | UINT64_C(15) << 4)
#define RANK_BITS   (UINT64_C(0xfff) << 4)
#define BULK_BIT    ((uint64_t)EPF_F_BULK << 1)
#define REGION_BITS (UINT64_C(0xff) << 8)

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

/* The two parts of a slot that all puts of a stretch share, side by side. */
EPF_INLINE uint64_t key_of(struct epf_cmd c)
{
	return (c.lo & RANK_BITS) | (c.hi & (BULK_BIT | REGION_BITS)) << 16;
}

EPF_INLINE uint64_t room_below(uint64_t limit, uint64_t used)
{
	return used < limit ? limit - used : 0;
}

EPF_INLINE uint64_t lesser(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* How much the limits of what is in flight, and the lane, admit. */
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

/* Looks up what the puts of a key share; 0: something about them needs the ordinary way. */
EPF_INLINE int begin(const struct epf_core *core, const struct epf_ring_state *ring,
		     const struct epf_rank_state *rank, struct epf_cmd c, struct stretch *t)
{
	uint32_t to = (uint32_t)(c.lo & RANK_BITS) >> 4;
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
	t->key = key_of(c);
	t->laddr = local->addr;
	t->lbytes = local->bytes; /* 0 unless it is live: no put fits */
	t->lkey = local->mr.keys[t->lane->index].lkey;
	t->raddr = remote->raddr;
	t->rbytes = remote->bytes;
	t->rkey = remote->rkeys[t->lane->index];
	t->same_node = peer->place == core->my_place;
	find_credit(core, rank, (c.hi & BULK_BIT) != 0, t);
	return 1;
}

/* Counts what a stretch has staged. */
EPF_INLINE void end(struct epf_core *core, struct epf_rank_state *rank, const struct stretch *t)
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
EPF_INLINE void stage(struct stretch *t, struct epf_cmd c, uint32_t bytes, uint64_t wr_core)
{
	struct epf_lane *lane = t->lane;
	struct epf_wr *wr = &lane->wrs[lane->head & lane->mask];

	__builtin_prefetch(&lane->wrs[(lane->head + PREFETCH_WRS) & lane->mask], 1);
	wr->laddr = t->laddr + ((c.lo >> 32) << 4);
	wr->raddr = t->raddr + ((c.hi >> 32) << 4);
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

/*
 * With a put at the head of the ring that must wait, and others of its stream set aside: are all commands that can be seen behind it like
 * it, as many as would be set aside? Then to set them aside lets nobody pass, and only costs. Slots are looked at once, some a turn; until all have
 * been, the answer is yes.
 */
static int is_alike(const struct epf_core *core, struct epf_ring_state *ring, uint64_t key)
{
	const struct epf_ring_consumer *c = &ring->consumer;
	uint64_t end = c->tail + core->limits.defer_limit, at = c->tail;

	if (end > c->tail + c->mask + 1)
		end = c->tail + c->mask + 1;
	if (ring->alike_key == key && ring->alike > at && ring->alike <= end)
		at = ring->alike;
	if (end > at + LOOK_AHEAD)
		end = at + LOOK_AHEAD;
	for (; at < end; at++) {
		struct epf_cmd slot;

		if (!epf_ring_peek(c, at, &slot))
			break;
		if ((slot.lo & OP_BITS) != OP_PUT || (slot.hi & NOT_PLAIN) || key_of(slot) != key)
			return 0;
	}
	ring->alike_key = key;
	ring->alike = at;
	return 1;
}

/* The first put of a ring's turn cannot be staged: because others of its stream are set aside, and then is it to be left in the ring? */
static uint32_t is_to_leave(const struct epf_core *core, struct epf_ring_state *ring,
			    struct epf_cmd c)
{
	uint32_t to = (uint32_t)(c.lo & RANK_BITS) >> 4;
	uint32_t index = to < core->world ? ring->streams[to] : EPF_NONE;

	if (index == EPF_NONE || core->streams[index].deferred_head == EPF_NONE ||
	    !core->ranks[ring->rank].usable[to] || !is_alike(core, ring, key_of(c)))
		return 0;
	if (core->streams[index].deferred_count < SET_ASIDE)
		return EPF_PUT_CREDIT;
	ring->left = 1;
	return EPF_PUT_LEAVE;
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

	out->empty = 0;
	out->full = 0;
	out->lane = EPF_NONE;
	ring->left = 0;
	if (EPF_UNLIKELY(core->counts_puts))
		return 0;
	deficit = deficit > quantum ? quantum : deficit;
	for (unsigned i = PREFETCH_FIRST; i < PREFETCH_SLOTS; i += PREFETCH_FIRST)
		__builtin_prefetch(&c->slots[(tail + i) & c->mask]);
	while (n < budget && deficit > 0) {
		struct epf_cmd slot;
		uint64_t to, from;
		uint32_t bytes;

		if (!epf_ring_peek(c, tail, &slot)) {
			out->empty = 1;
			break;
		}
		if ((slot.lo & OP_BITS) != OP_PUT || (slot.hi & NOT_PLAIN))
			break;
		if (EPF_UNLIKELY(key_of(slot) != t.key)) {
			end(core, rank, &t);
			if (!begin(core, ring, rank, slot, &t)) {
				if (!n)
					out->full = is_to_leave(core, ring, slot);
				break;
			}
		}
		bytes = (((uint32_t)(slot.hi >> 16) & 0xffffu) + 1u) << 4;
		from = (slot.lo >> 32) << 4;
		to = (slot.hi >> 32) << 4;
		if (EPF_UNLIKELY(from + bytes > t.lbytes || to + bytes > t.rbytes) ||
		    EPF_UNLIKELY(bytes > max_bytes))
			break;
		if (EPF_UNLIKELY(t.n == t.most || t.bytes + bytes > t.bytes_most)) {
			out->full = EPF_PUT_CREDIT;
			break;
		}
		__builtin_prefetch(&c->slots[(tail + PREFETCH_SLOTS) & c->mask]);
		ring->pend[seq & ring->pend_mask] = 1;
		stage(&t, slot, bytes, wr_core | seq);
		deficit -= (int64_t)bytes + EPF_COMMAND_COST;
		seq++;
		tail++;
		n++;
	}
	end(core, rank, &t);
	if (!n)
		return 0;
	if (t.n)
		out->lane = t.lane->id;
	ring->seq = seq;
	ring->last_step = core->steps;
	ring->deficit = deficit;
	c->tail = tail;
	epf_ring_release(c);
	return n;
}
