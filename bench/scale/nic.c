/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The NIC of the simulated network: the table of operations that an engine core drives (fabric/nic/nic.h), with reliable connections as
 * RDMA devices have them. Posting and reaping take no virtual time; the network does (net.c).
 */
#include "bench/scale/net_priv.h"

#include "fabric/base/err.h"
#include "fabric/nic/fill.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH = 1 << 15 };

static struct sim_nic *of(const struct epf_nic *nic)
{
	return (struct sim_nic *)(uintptr_t)nic;
}

static void nic_close(struct epf_nic *nic)
{
	struct sim_nic *n = of(nic);

	if (!n)
		return;
	n->net->nics[n->id] = NULL;
	free(n->lanes);
	free(n->keys);
	free(n->cq);
	free(n->held);
	free(n);
}

static void nic_describe(const struct epf_nic *nic, struct epf_nic_caps *out)
{
	const struct sim_net *net = of(nic)->net;

	*out = (struct epf_nic_caps){ .name = "sim",
				      .ordered = !net->o.unordered,
				      .max_msg_bytes = 1u << 30,
				      .max_lanes = of(nic)->n_lanes,
				      .links = net->o.links,
				      .lane_depth = DEPTH,
				      .receives = net->o.receives,
				      .carries_events = 1 };
}

static int nic_address(const struct epf_nic *nic, void *buf, size_t size)
{
	if (size < sizeof(uint32_t))
		return epf_fail(EPF_R_NIC_ADDRESS, "simulated NIC: a buffer of %zu bytes", size);
	memcpy(buf, &of(nic)->id, sizeof(uint32_t));
	return sizeof(uint32_t);
}

static int nic_register(struct epf_nic *nic, void *addr, uint64_t len, unsigned access,
			struct epf_nic_mr *out)
{
	struct sim_nic *n = of(nic);

	if (n->n_keys == n->keys_room) {
		uint32_t room = n->keys_room ? 2 * n->keys_room : 16;
		struct sim_key *more = realloc(n->keys, room * sizeof(*more));

		if (!more)
			return epf_fail(EPF_R_NO_MEMORY, "simulated NIC: no memory");
		n->keys = more;
		n->keys_room = room;
	}
	n->keys[n->n_keys] = (struct sim_key){ (uint64_t)(uintptr_t)addr, len, access };
	*out = (struct epf_nic_mr){ .raddr = (uint64_t)(uintptr_t)addr,
				    .lkey = n->n_keys,
				    .rkey = n->n_keys };
	n->n_keys++;
	return 0;
}

static void nic_deregister(struct epf_nic *nic, struct epf_nic_mr *mr)
{
	if (mr && mr->rkey < of(nic)->n_keys)
		of(nic)->keys[mr->rkey].access = 0;
}

static int lane_create(struct epf_nic *nic, uint16_t lane, uint32_t depth, uint64_t *token)
{
	struct sim_nic *n = of(nic);
	struct sim_lane *l = lane < n->n_lanes ? &n->lanes[lane] : NULL;

	if (!l || l->used)
		return epf_fail(EPF_R_NIC_LANE, "simulated NIC: lane %u cannot be made", lane);
	l->id = lane;
	l->nic = n->id;
	l->depth = depth;
	l->link = (uint8_t)(lane % n->net->o.lanes % n->net->o.links);
	l->used = EPF_LANE_IDLE + 1;
	l->epoch = ++n->epoch;
	l->lost = 0;
	l->queued = 0;
	*token = (uint64_t)l->epoch << 32 | lane;
	return 0;
}

static int lane_connect(struct epf_nic *nic, uint16_t lane, const void *addr, size_t addr_len,
			uint64_t token)
{
	struct sim_nic *n = of(nic);
	struct sim_lane *l = &n->lanes[lane];

	if (lane >= n->n_lanes || l->used != EPF_LANE_IDLE + 1 || addr_len != sizeof(uint32_t))
		return epf_fail(EPF_R_NIC_LANE, "simulated NIC: lane %u is not idle", lane);
	if (!sim_port_of(n->net, n, l->link)->up)
		return -ENETDOWN;
	memcpy(&l->peer_nic, addr, sizeof(uint32_t));
	l->peer_lane = (uint16_t)token;
	l->peer_epoch = (uint32_t)(token >> 32);
	l->used = EPF_LANE_READY + 1;
	return 0;
}

static void lane_fence(struct epf_nic *nic, uint16_t lane)
{
	struct sim_nic *n = of(nic);

	if (n->lanes[lane].used == EPF_LANE_READY + 1)
		sim_lane_end(n->net, n, &n->lanes[lane], EPF_S_FLUSHED);
	else if (n->lanes[lane].used)
		n->lanes[lane].used = EPF_LANE_ERROR + 1;
}

static int lane_drained(const struct epf_nic *nic, uint16_t lane)
{
	const struct sim_lane *l = &of(nic)->lanes[lane];

	return l->used != EPF_LANE_READY + 1 && !l->queued;
}

static void lane_destroy(struct epf_nic *nic, uint16_t lane)
{
	struct sim_nic *n = of(nic);

	if (n->lanes[lane].used == EPF_LANE_READY + 1)
		sim_lane_end(n->net, n, &n->lanes[lane], EPF_S_FLUSHED);
	n->lanes[lane].used = 0;
	n->lanes[lane].epoch = ++n->epoch;
	n->lanes[lane].landed_ns = 0;
}

static enum epf_lane_link lane_link(const struct epf_nic *nic, uint16_t lane)
{
	unsigned used = of(nic)->lanes[lane].used;

	return used ? (enum epf_lane_link)(used - 1) : EPF_LANE_IDLE;
}

static int link_ready(struct epf_nic *nic, uint16_t lane)
{
	const struct sim_nic *n = of(nic);

	return sim_port_of(n->net, n, lane % n->net->o.lanes % n->net->o.links)->up;
}

static void append(struct sim_nic *n, struct sim_lane *l, const struct epf_wr *wr)
{
	struct sim_msg *m = sim_msg_get(n->net);

	m->t.posted = n->net->now;
	m->raddr = wr->raddr;
	m->laddr = wr->laddr;
	m->len = m->left = wr->len;
	m->rkey = wr->rkey;
	m->imm = wr->imm;
	m->id = wr->id;
	m->op = wr->op;
	m->nic = n->id;
	m->lane = l->id;
	m->epoch = l->epoch;
	m->state = SIM_MSG_OUT | SIM_MSG_FLIGHT;
	if (wr->len && (wr->flags & EPF_WR_INLINE)) {
		m->payload = sim_payload_get(n->net);
		memcpy(m->payload, (const void *)(uintptr_t)wr->laddr, wr->len);
	}
	*(l->last ? &l->last->next : &l->first) = m;
	l->last = m;
	if (!l->first_new)
		l->first_new = m;
	l->outstanding++;
	n->counters.messages_tx++;
	n->counters.bytes_tx += wr->len;
}

static int nic_post(struct epf_nic *nic, uint16_t lane, const struct epf_wr *wr, unsigned n)
{
	struct sim_nic *s = of(nic);
	struct sim_lane *l = &s->lanes[lane];
	unsigned i;

	if (l->used != EPF_LANE_READY + 1)
		return -ENOTCONN;
	if (n > l->depth - l->outstanding)
		n = l->depth - l->outstanding;
	for (i = 0; i < n; i++)
		append(s, l, &wr[i]);
	s->counters.doorbells++;
	if (!l->rung) {
		l->rung = 1;
		l->next_bell = NULL;
		*(s->last_bell ? &s->last_bell->next_bell : &s->bells) = l;
		s->last_bell = l;
	}
	return (int)n;
}

void sim_nic_ring(struct epf_nic *nic)
{
	struct sim_nic *s = of(nic);

	for (struct sim_lane *l = s->bells; l; l = l->next_bell) {
		l->rung = 0;
		for (struct sim_msg *m = l->first_new; m; m = m->next)
			m->t.posted = s->net->now;
		if (!l->next_tx)
			l->next_tx = l->first_new;
		l->first_new = NULL;
		if (l->used == EPF_LANE_READY + 1)
			sim_lane_send(s->net, s, l);
	}
	s->bells = s->last_bell = NULL;
}

/* Payloads that a reap has given out are valid until the next one. */
static void release_held(struct sim_nic *n)
{
	while (n->n_held)
		sim_payload_put(n->net, n->held[--n->n_held]);
}

static void hold(struct sim_nic *n, uint8_t *payload)
{
	if (n->n_held == n->held_room) {
		uint32_t room = n->held_room ? 2 * n->held_room : 64;
		uint8_t **more = realloc(n->held, room * sizeof(*more));

		if (!more)
			abort();
		n->held = more;
		n->held_room = room;
	}
	n->held[n->n_held++] = payload;
}

static int nic_reap(struct epf_nic *nic, struct epf_wc *wc, unsigned n)
{
	struct sim_nic *s = of(nic);
	unsigned got = 0;

	release_held(s);
	for (; got < n && s->cq_tail != s->cq_head; got++) {
		struct sim_wc *q = &s->cq[s->cq_tail++ & s->cq_mask];
		struct sim_lane *l = &s->lanes[q->wc.lane];

		wc[got] = q->wc;
		wc[got].msg = q->payload;
		if (l->queued)
			l->queued--;
		s->arrivals += q->wc.op != EPF_WC_SENT;
		if (!q->payload)
			continue;
		s->net->calls.reaped(s->net->arg, s->node, s->job, q->payload, &q->t);
		hold(s, q->payload);
	}
	return (int)got;
}

static uint64_t nic_next_event(const struct epf_nic *nic)
{
	return of(nic)->cq_head != of(nic)->cq_tail ? 0 : SIM_NEVER;
}

static void nic_counters(const struct epf_nic *nic, struct epf_nic_counters *out)
{
	const struct sim_nic *n = of(nic);

	*out = n->counters;
	for (unsigned l = 0; l < n->net->o.links; l++)
		out->link_up += sim_port_of(n->net, n, l)->up;
}

static int nic_set_link(struct epf_nic *nic, unsigned link, int up)
{
	if (link >= of(nic)->net->o.links)
		return -EINVAL;
	sim_net_port(of(nic)->net, of(nic)->node, link, up);
	return 0;
}

uint32_t sim_nic_arrivals(struct epf_nic *nic)
{
	uint32_t n = of(nic)->arrivals;

	of(nic)->arrivals = 0;
	return n;
}

static void ops_make(struct epf_nic_ops *ops)
{
	*ops = (struct epf_nic_ops){
		.name = "sim",
		.close = nic_close,
		.describe = nic_describe,
		.address = nic_address,
		.region_register = nic_register,
		.region_deregister = nic_deregister,
		.lane_create = lane_create,
		.lane_connect = lane_connect,
		.lane_fence = lane_fence,
		.lane_drained = lane_drained,
		.lane_destroy = lane_destroy,
		.lane_link = lane_link,
		.link_ready = link_ready,
		.post = nic_post,
		.reap = nic_reap,
		.next_event = nic_next_event,
		.counters = nic_counters,
		.set_link = nic_set_link,
	};
	epf_nic_ops_fill(ops);
}

int sim_nic_open(struct sim_net *net, uint32_t node, uint32_t job, struct epf_nic **out)
{
	struct sim_nic *n = calloc(1, sizeof(*n));

	if (!n)
		return epf_fail(EPF_R_NO_MEMORY, "simulated NIC: no memory");
	if (!net->ops.name)
		ops_make(&net->ops);
	n->nic.ops = &net->ops;
	n->net = net;
	n->node = node;
	n->job = job;
	n->id = job * net->o.nodes + node;
	n->n_lanes = net->o.nodes * net->o.lanes;
	n->lanes = calloc(n->n_lanes, sizeof(*n->lanes));
	if (!n->lanes) {
		free(n);
		return epf_fail(EPF_R_NO_MEMORY, "simulated NIC: no memory");
	}
	net->nics[n->id] = n;
	*out = &n->nic;
	return 0;
}
