/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the simulated network: messages, their payloads, and the completion queues that cores reap. See net_priv.h. */
#include "bench/scale/net_priv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { SLAB = 1 << 20, PAYLOAD = 64 };

static void *slab(struct sim_net *net)
{
	void *p = malloc(SLAB);

	if (!p || net->n_slabs == net->slabs_room) {
		size_t room = net->slabs_room ? 2 * net->slabs_room : 64;
		void **more = p ? realloc(net->slabs, room * sizeof(*more)) : NULL;

		if (!more)
			abort(); /* a simulation without memory has no result */
		net->slabs = more;
		net->slabs_room = room;
	}
	net->slabs[net->n_slabs++] = p;
	return p;
}

struct sim_msg *sim_msg_get(struct sim_net *net)
{
	struct sim_msg *m;

	if (!net->free_msg) {
		struct sim_msg *many = slab(net);

		for (size_t i = 0; i < SLAB / sizeof(*many); i++) {
			many[i].next = net->free_msg;
			net->free_msg = &many[i];
		}
	}
	m = net->free_msg;
	net->free_msg = m->next;
	memset(m, 0, sizeof(*m));
	return m;
}

void sim_msg_put(struct sim_net *net, struct sim_msg *m, unsigned state)
{
	m->state &= (uint8_t)~state;
	if (m->state & (SIM_MSG_OUT | SIM_MSG_FLIGHT))
		return;
	sim_payload_put(net, m->payload);
	m->next = net->free_msg;
	net->free_msg = m;
}

uint8_t *sim_payload_get(struct sim_net *net)
{
	uint8_t *p;

	if (!net->free_payload) {
		uint8_t *many = slab(net);

		for (size_t i = 0; i < SLAB / PAYLOAD; i++)
			sim_payload_put(net, many + i * PAYLOAD);
	}
	p = net->free_payload;
	memcpy(&net->free_payload, p, sizeof(net->free_payload));
	return p;
}

void sim_payload_put(struct sim_net *net, uint8_t *p)
{
	if (!p)
		return;
	memcpy(p, &net->free_payload, sizeof(net->free_payload));
	net->free_payload = p;
}

int sim_nic_complete(struct sim_nic *n, const struct epf_wc *wc, uint8_t *payload,
		     const struct sim_times *t)
{
	if (!n->cq || n->cq_head - n->cq_tail > n->cq_mask) {
		uint32_t room = n->cq ? 2 * (n->cq_mask + 1) : 256, have = n->cq_head - n->cq_tail;
		struct sim_wc *more = calloc(room, sizeof(*more));

		if (!more)
			abort();
		for (uint32_t i = 0; i < have; i++)
			more[i] = n->cq[(n->cq_tail + i) & n->cq_mask];
		free(n->cq);
		n->cq = more;
		n->cq_tail = 0;
		n->cq_head = have;
		n->cq_mask = room - 1;
	}
	n->cq[n->cq_head++ & n->cq_mask] = (struct sim_wc){ .wc = *wc,
							    .payload = payload,
							    .t = t ? *t : (struct sim_times){ 0 } };
	n->net->calls.wake(n->net->arg, n->node, n->job);
	return 0;
}
