/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notify handles: how the signal of a PUT_SIGNAL rides in the immediate of its own write. An immediate has no room for a
 * signal number and a value, so the sender defines a handle once, by a message with full-width fields (stream, rank,
 * signal, add), and names the handle from then on. It does so only after the definition's completion: by
 * the contract of RECV events in nic/nic.h the definition's arrival is then reaped before any write that names it, also on an
 * unordered NIC. Until then, and when handles run out, the signal travels as a separate message.
 *
 * Called by stage_hot.c, arrive_hot.c and on reclaim. Must never block, allocate, lock, log or make a system call.
 */
#include "fabric/engine/data_path.h"
#include "fabric/engine/hash_hot.h"
#include "fabric/engine/lane_hot.h"

/* Makes a handle and stages its definition. Without handles or credit it does nothing, and the next PUT_SIGNAL tries again. */
static void define(struct epf_core *core, struct epf_stream *s, uint32_t signal, uint32_t add,
		   uint32_t hash)
{
	struct epf_node *node = &core->nodes[s->node];
	uint32_t again = core->notify_free;
	uint32_t index = again != EPF_NONE ? again : core->n_notifies;
	struct epf_notify_out *n = &core->notifies[index];
	struct epf_msg m = { .kind = EPF_MSG_NOTIFY,
			     .rank = s->peer,
			     .signal = signal,
			     .value = add,
			     .a = core->ranks[s->rank].rank + 1,
			     .c = s->handle,
			     .d = node->n_notifies };

	if (node->n_notifies >= node->max_handles || index >= core->max_streams ||
	    (node->n_notifies == node->notifies_room && !epf_notifies_grow_cold(core, node)) ||
	    !epf_stage_message(core, s, &m, epf_wr_core(EPF_WRK_NOTIFY, 0, index, 0)))
		return;
	if (again != EPF_NONE)
		core->notify_free = n->next;
	else
		core->n_notifies++;
	*n = (struct epf_notify_out){ .stream = stream_index(core, s),
				      .signal = signal,
				      .add = add,
				      .handle = node->n_notifies,
				      .next = core->notify_table[hash] };
	node->notify_streams[node->n_notifies++] = s->handle;
	core->notify_table[hash] = index;
	if (EPF_UNLIKELY(core->n_notifies > core->group_mask))
		epf_hash_grow_cold(core);
}

uint32_t epf_notify_handle(struct epf_core *core, struct epf_stream *s, uint32_t signal,
			   uint32_t add)
{
	uint32_t stream = stream_index(core, s), hash = notify_hash(core, stream, signal, add);

	for (uint32_t i = core->notify_table[hash]; i != EPF_NONE; i = core->notifies[i].next) {
		const struct epf_notify_out *n = &core->notifies[i];

		if (n->stream == stream && n->signal == signal && n->add == add)
			return n->ready ? n->handle : EPF_NONE;
	}
	define(core, s, signal, add, hash);
	return EPF_NONE;
}

/* A definition has arrived: it is valid from now on, whatever else of its stream is missing. */
int epf_notify_defined(struct epf_core *core, struct epf_node *node, const struct epf_msg *m)
{
	struct epf_notify_in *n;

	/* What an add may be is in epf_cmd.h; a wider one would be another number here. */
	if (m->d >= node->rx_streams || m->c >= node->rx_streams || m->value >= EPF_WIDE_ADD)
		return 0;
	if (m->d >= node->n_notify_in && !epf_notify_in_grow_cold(core, node, m->d))
		return 0;
	n = &node->notify_in[m->d];
	n->rank = m->rank;
	n->signal = m->signal;
	n->add = (uint32_t)m->value;
	n->from = (uint32_t)m->a;
	n->stream = (uint16_t)m->c;
	n->defined = 1;
	return 1;
}
