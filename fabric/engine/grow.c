/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of peers that follows use (grow.h): one reservation of address space, from which blocks are cut when something grows. Outgrown
 * blocks are used again. No function but epf_grow_reserve() and epf_grow_release() makes a system call.
 */
#include "fabric/engine/grow.h"

#include "fabric/base/err.h"
#include "fabric/engine/hash_hot.h"

#include <string.h>
#include <sys/mman.h>

static size_t aligned(size_t bytes)
{
	return (bytes + EPF_GROW_ALIGN - 1) / EPF_GROW_ALIGN * EPF_GROW_ALIGN;
}

uint64_t epf_grow_chain(uint64_t first, uint64_t factor, uint64_t most, uint64_t element)
{
	uint64_t bytes = 0, n = first < most ? first : most;

	for (; n < most; n = n * factor < most ? n * factor : most)
		bytes += aligned(n * element);
	return bytes + aligned(n * element);
}

int epf_grow_reserve(struct epf_core *core, uint32_t streams, uint32_t pending, uint64_t blocks)
{
	struct epf_grow *g = &core->grow;
	size_t notifies_at = aligned(streams * sizeof(struct epf_stream));
	size_t groups_at = notifies_at + aligned(streams * sizeof(struct epf_notify_out));
	size_t pending_at = groups_at + aligned(streams * sizeof(struct epf_group));
	size_t blocks_at = pending_at + aligned(pending * sizeof(struct epf_pending));
	size_t bytes = blocks_at + blocks;
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (at == MAP_FAILED)
		return epf_fail(EPF_R_NO_MEMORY, "engine: no address space for %zu bytes of peers",
				bytes);
	/* A huge page would take memory for peers that are not used. */
	madvise(at, bytes, MADV_NOHUGEPAGE);
	*g = (struct epf_grow){ .at = at, .reserved = bytes, .blocks = blocks_at };
	core->streams = at;
	core->notifies = (struct epf_notify_out *)(void *)(g->at + notifies_at);
	core->groups = (struct epf_group *)(void *)(g->at + groups_at);
	core->pending = (struct epf_pending *)(void *)(g->at + pending_at);
	return 0;
}

void epf_grow_release(struct epf_core *core)
{
	if (core->grow.at)
		munmap(core->grow.at, core->grow.reserved);
	core->grow.at = NULL;
}

uint64_t epf_grow_bytes(const struct epf_core *core)
{
	return core->grow.used + core->n_streams * sizeof(struct epf_stream) +
	       core->n_notifies * sizeof(struct epf_notify_out) +
	       core->n_groups * sizeof(struct epf_group) +
	       core->n_pending * sizeof(struct epf_pending);
}

static struct epf_grow_free *free_list(struct epf_grow *g, size_t bytes)
{
	for (unsigned i = 0; i < EPF_GROW_SIZES; i++) {
		if (!g->free[i].bytes)
			g->free[i].bytes = (uint32_t)bytes;
		if (g->free[i].bytes == bytes)
			return &g->free[i];
	}
	return NULL;
}

/* Cuts the block from the smallest one that was outgrown and is large enough. Returns NULL if there is none. */
static void *take_used(struct epf_grow *g, size_t bytes)
{
	struct epf_grow_free *from = NULL, *rest;
	uint8_t *block;

	for (unsigned i = 0; i < EPF_GROW_SIZES; i++)
		if (g->free[i].first && g->free[i].bytes >= bytes &&
		    (!from || g->free[i].bytes < from->bytes))
			from = &g->free[i];
	if (!from)
		return NULL;
	block = from->first;
	from->first = *(void **)from->first;
	rest = from->bytes > bytes ? free_list(g, from->bytes - bytes) : NULL;
	if (rest) {
		*(void **)(void *)(block + bytes) = rest->first;
		rest->first = block + bytes;
	}
	memset(block, 0, bytes);
	return block;
}

void *epf_grow_take(struct epf_core *core, size_t bytes)
{
	struct epf_grow *g = &core->grow;
	void *block;

	bytes = aligned(bytes);
	block = take_used(g, bytes);
	if (block)
		return block;
	if (bytes > g->reserved - g->blocks - g->used)
		return NULL;
	block = g->at + g->blocks + g->used;
	g->used += bytes;
	return block;
}

static void give(struct epf_core *core, void *block, size_t bytes)
{
	struct epf_grow_free *list = block ? free_list(&core->grow, aligned(bytes)) : NULL;

	if (!list)
		return;
	*(void **)block = list->first;
	list->first = block;
}

/* Replaces an array of n elements by one with room for `more`. Returns it, NULL if there is no room. */
static void *widen(struct epf_core *core, void *old, size_t n, size_t more, size_t element)
{
	void *block = epf_grow_take(core, more * element);

	if (!block)
		return NULL;
	if (n)
		memcpy(block, old, n * element);
	give(core, old, n * element);
	return block;
}

/* Returns the next size of a table that has to hold `least`: it doubles. */
static uint32_t next_size(uint32_t now, uint32_t least, uint32_t most)
{
	uint32_t n = now ? now : EPF_GROW_STREAMS;

	while (n < least)
		n *= 2;
	return n < most ? n : most;
}

/* ---- lanes ----------------------------------------------------------------------------------- */

/*
 * A lane gets more than EPF_GROW_LANE_SURE entries only while all peers together take less than their share: where traffic is goes more
 * of it, and the sum stays what it should be. Beyond it commands wait for a completion.
 */
static int may_deepen(const struct epf_core *core, uint32_t more)
{
	uint64_t share = (uint64_t)core->world * EPF_GROW_SHARE;
	uint64_t bytes = core->peer_memory_bytes - core->grow_most + epf_grow_bytes(core) +
			 more * sizeof(struct epf_wr);

	return more <= EPF_GROW_LANE_SURE ||
	       bytes <= (share > EPF_GROW_SHARE_LEAST ? share : EPF_GROW_SHARE_LEAST);
}

int epf_lane_grow_cold(struct epf_core *core, struct epf_lane *lane)
{
	uint32_t depth = core->limits.lane_depth, size = lane->wrs ? lane->mask + 1 : 0;
	uint32_t more = size ? size * EPF_GROW_LANE : EPF_GROW_WRS;
	struct epf_wr *wrs;

	if (size >= depth)
		return 0;
	more = more < depth ? more : depth;
	if (!may_deepen(core, more))
		return 0;
	wrs = epf_grow_take(core, more * sizeof(*wrs));
	if (!wrs)
		return 0;
	for (uint32_t at = lane->tail; at != lane->head; at++)
		wrs[at & (more - 1)] = lane->wrs[at & lane->mask];
	give(core, lane->wrs, size * sizeof(*wrs));
	lane->wrs = wrs;
	lane->mask = more - 1;
	lane->limit = more > EPF_LANE_RESERVE ? more - EPF_LANE_RESERVE : 0;
	return 1;
}

int epf_slots_grow_cold(struct epf_core *core, struct epf_lane *lane)
{
	uint32_t depth = core->limits.lane_depth, size = lane->n_slots;
	uint32_t more = size ? size * EPF_GROW_LANE : EPF_GROW_SLOTS, slot = lane->slot_tail;
	struct epf_msg *msgs;

	if (size >= depth)
		return 0;
	more = more < depth ? more : depth;
	msgs = epf_grow_take(core, more * sizeof(*msgs));
	if (!msgs)
		return 0;
	/* The entries that have one, in the order in which they took it. */
	for (uint32_t at = lane->tail; at != lane->head; at++) {
		struct epf_wr *wr = &lane->wrs[at & lane->mask];
		struct epf_msg *old = &lane->msgs[slot & (size - 1)],
			       *copy = &msgs[slot & (more - 1)];

		if (!(wr->flags & EPF_WR_SLOT))
			continue;
		*copy = *old;
		wr->laddr += (uint64_t)(uintptr_t)copy - (uint64_t)(uintptr_t)old;
		slot++;
	}
	give(core, lane->msgs, size * sizeof(*msgs));
	lane->msgs = msgs;
	lane->n_slots = more;
	return 1;
}

/* ---- streams --------------------------------------------------------------------------------- */

int epf_rx_grow_cold(struct epf_core *core, struct epf_node *node, uint32_t handle)
{
	uint32_t n = next_size(node->n_rx, handle + 1, node->rx_streams);
	struct epf_rx_stream *rx;

	if (handle >= node->rx_streams)
		return 0;
	rx = widen(core, node->rx, node->n_rx, n, sizeof(*rx));
	if (!rx)
		return 0;
	node->rx = rx;
	for (; node->n_rx < n; node->n_rx++) {
		rx[node->n_rx].base = core->limits.start_count;
		rx[node->n_rx].pending = EPF_NONE;
	}
	return 1;
}

int epf_notify_in_grow_cold(struct epf_core *core, struct epf_node *node, uint32_t number)
{
	uint32_t n = next_size(node->n_notify_in, number + 1, node->rx_streams);
	struct epf_notify_in *in;

	if (number >= node->rx_streams)
		return 0;
	in = widen(core, node->notify_in, node->n_notify_in, n, sizeof(*in));
	if (!in)
		return 0;
	node->notify_in = in;
	node->n_notify_in = (uint16_t)n;
	return 1;
}

int epf_acks_grow_cold(struct epf_core *core, struct epf_node *node)
{
	node->acks = epf_grow_take(core, core->n_acks * sizeof(*node->acks));
	return node->acks != NULL;
}

int epf_handles_grow_cold(struct epf_core *core, struct epf_node *node)
{
	uint32_t n = next_size(node->handles_room, node->handles_room + 1u, node->max_handles);
	uint32_t *handles;

	if (node->handles_room >= node->max_handles)
		return 0;
	handles = widen(core, node->handles, node->handles_room, n, sizeof(*handles));
	if (!handles)
		return 0;
	node->handles = handles;
	node->handles_room = (uint16_t)n;
	return 1;
}

int epf_notifies_grow_cold(struct epf_core *core, struct epf_node *node)
{
	uint32_t n = next_size(node->notifies_room, node->notifies_room + 1u, node->max_handles);
	uint16_t *streams;

	if (node->notifies_room >= node->max_handles)
		return 0;
	streams = widen(core, node->notify_streams, node->notifies_room, n, sizeof(*streams));
	if (!streams)
		return 0;
	node->notify_streams = streams;
	node->notifies_room = (uint16_t)n;
	return 1;
}

/* Enters all groups and all notify handles into their chains. */
static void rehash(struct epf_core *core, const uint32_t *old_notifies, uint32_t heads)
{
	for (uint32_t i = 0; i < core->n_groups; i++) {
		struct epf_group *g = &core->groups[i];
		const struct epf_stream *s = &core->streams[g->stream];
		uint32_t *head = &core->group_table[group_hash(core, s->rank, s->peer, g->signal)];

		g->next_hash = *head;
		*head = i;
	}
	/* Handles that are free again are in no chain. */
	for (uint32_t h = 0; h < heads; h++) {
		uint32_t i = old_notifies[h];

		while (i != EPF_NONE) {
			struct epf_notify_out *n = &core->notifies[i];
			uint32_t next = n->next;
			uint32_t *head = &core->notify_table[notify_hash(core, n->stream, n->signal,
									 n->add)];

			n->next = *head;
			*head = i;
			i = next;
		}
	}
}

int epf_hash_grow_cold(struct epf_core *core)
{
	uint32_t heads = core->group_table ? core->group_mask + 1 : 0;
	uint32_t more = heads ? 2 * heads : EPF_GROW_HASH;
	uint32_t *groups, *notifies, *old = core->notify_table;

	if (heads >= core->hash_most)
		return 0;
	groups = epf_grow_take(core, more * sizeof(*groups));
	notifies = groups ? epf_grow_take(core, more * sizeof(*notifies)) : NULL;
	if (!notifies)
		return 0;
	memset(groups, 0xff, more * sizeof(*groups));
	memset(notifies, 0xff, more * sizeof(*notifies));
	give(core, core->group_table, heads * sizeof(*groups));
	core->group_table = groups;
	core->notify_table = notifies;
	core->group_mask = more - 1;
	rehash(core, old, heads);
	give(core, old, heads * sizeof(*notifies));
	return 1;
}

int epf_windows_grow_cold(struct epf_core *core)
{
	size_t bytes = core->limits.window / 8;
	uint8_t *block = epf_grow_take(core, EPF_GROW_WINDOWS * bytes);

	for (unsigned i = 0; block && i < EPF_GROW_WINDOWS; i++, block += bytes) {
		*(void **)(void *)block = core->grow.windows;
		core->grow.windows = block;
	}
	return block != NULL;
}

/* ---- nodes ----------------------------------------------------------------------------------- */

int epf_node_address_keep(struct epf_core *core, struct epf_node *node, const void *addr,
			  size_t len)
{
	if (len > EPF_NIC_ADDR_BYTES)
		return epf_fail(EPF_R_PEER_ANSWER, "rank %u: an address of %zu bytes", node->rank,
				len);
	if (aligned(len) != aligned(node->nic_addr_len)) {
		give(core, node->nic_addr, node->nic_addr_len);
		node->nic_addr = epf_grow_take(core, len);
		if (!node->nic_addr)
			return epf_fail(EPF_R_NO_MEMORY, "engine: no memory for an address");
	}
	memcpy(node->nic_addr, addr, len);
	node->nic_addr_len = (uint16_t)len;
	return 0;
}
