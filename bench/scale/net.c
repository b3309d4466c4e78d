/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What travels on the simulated network (simnet.h). A message goes: its lane's turn at the sending port, segment by segment; the delay; the queue
 * of the receiving port; memory or completion queue of the target; the delay back; completion. A message that meets a dead port or a lane that is not
 * connected any more is gone, and its sender gives up after `retry_ns`.
 */
#include "bench/scale/net_priv.h"

#include "fabric/base/err.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

double sim_chance(struct sim_net *net)
{
	uint64_t z = (net->rng += UINT64_C(0x9e3779b97f4a7c15)); /* splitmix64 */

	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

static void push(struct sim_net *net, struct sim_event e)
{
	if (sim_events_push(&net->events, e))
		abort();
}

struct sim_port *sim_port_of(struct sim_net *net, const struct sim_nic *nic, unsigned link)
{
	return &net->ports[(size_t)nic->node * net->o.links + link];
}

static uint32_t packets(const struct sim_net *net, uint32_t bytes)
{
	return bytes ? (bytes + net->o.mtu - 1) / net->o.mtu : 1;
}

unsigned sim_class_of(const struct sim_net *net, uint32_t nic)
{
	return !(net->o.first_jobs >> net->nics[nic]->job & 1u);
}

static void list_lane(struct sim_net *net, struct sim_port *port, struct sim_lane *lane)
{
	unsigned class = sim_class_of(net, lane->nic);

	lane->active = 1;
	lane->next_active = NULL;
	*(port->last[class] ? &port->last[class]->next_active : &port->first[class]) = lane;
	port->last[class] = lane;
}

static struct sim_lane *unlist_lane(struct sim_port *port)
{
	unsigned class = !port->first[0];
	struct sim_lane *lane = port->first[class];

	if (!lane)
		return NULL;
	port->first[class] = lane->next_active;
	if (!port->first[class])
		port->last[class] = NULL;
	lane->active = 0;
	return lane;
}

/* Sends the next segment of the port's next lane. */
static void port_next(struct sim_net *net, struct sim_port *port)
{
	struct sim_lane *lane = unlist_lane(port);
	struct sim_msg *m;
	uint32_t bytes, wire;
	uint64_t end;

	while (lane && !lane->next_tx) /* it was fenced meanwhile */
		lane = unlist_lane(port);
	port->busy = lane != NULL;
	if (!lane)
		return;
	m = lane->next_tx;
	bytes = m->left < net->o.segment ? m->left : net->o.segment;
	wire = bytes + packets(net, bytes) * net->o.header;
	m->left -= bytes;
	if (!m->t.sent)
		m->t.sent = net->now;
	end = net->now + (uint64_t)((double)wire / net->o.bytes_per_ns) + 1;
	port->stats.bytes_tx += wire;
	if (m->left == 0) {
		m->state |= SIM_MSG_LAST;
		lane->next_tx = m->next == lane->first_new ? NULL : m->next;
	}
	push(net, (struct sim_event){ .at = end + net->o.delay_ns,
				      .kind = SIM_EV_ARRIVE,
				      .p = m,
				      .a = wire,
				      .b = m->left == 0,
				      .c = port->epoch });
	if (lane->next_tx)
		list_lane(net, port, lane);
	push(net, (struct sim_event){
			  .at = end, .kind = SIM_EV_SENT, .a = (uint64_t)(port - net->ports) });
}

void sim_lane_send(struct sim_net *net, struct sim_nic *nic, struct sim_lane *lane)
{
	struct sim_port *port = sim_port_of(net, nic, lane->link);

	if (lane->active || !lane->next_tx)
		return;
	list_lane(net, port, lane);
	if (!port->busy)
		port_next(net, port);
}

/* When a segment that is at a port now has been taken; those of a class that goes first push the others back. */
static uint64_t take(struct sim_net *net, struct sim_port *port, unsigned class, uint64_t wire_ns)
{
	uint64_t *free_ns = port->rx_free_ns, at = free_ns[class] + wire_ns;

	/* It has been arriving while it was sent: it waits only where the port is behind. */
	at = at > net->now ? at : net->now;
	free_ns[class] = at;
	if (class == 0)
		free_ns[1] = free_ns[1] + wire_ns > at ? free_ns[1] + wire_ns : at;
	return at;
}

/* The sender of a message that is gone will give up. */
static void lose(struct sim_net *net, struct sim_msg *m)
{
	struct sim_nic *nic = net->nics[m->nic];
	struct sim_lane *lane = &nic->lanes[m->lane];

	if (lane->epoch == m->epoch && !lane->lost) {
		lane->lost = 1;
		push(net, (struct sim_event){ .at = net->now + net->o.retry_ns,
					      .kind = SIM_EV_LOST,
					      .a = m->nic,
					      .b = m->lane,
					      .c = m->epoch });
	}
	if (m->state & SIM_MSG_LAST)
		sim_msg_put(net, m, SIM_MSG_FLIGHT);
}

/* The lane a message goes to, if that is still connected to its sender. */
static struct sim_lane *target(struct sim_net *net, const struct sim_msg *m, struct sim_nic **nic)
{
	const struct sim_lane *from = &net->nics[m->nic]->lanes[m->lane];
	struct sim_lane *to;

	if (from->epoch != m->epoch || !net->nics[from->peer_nic])
		return NULL;
	*nic = net->nics[from->peer_nic];
	to = &(*nic)->lanes[from->peer_lane];
	return to->used == EPF_LANE_READY + 1 && to->epoch == from->peer_epoch ? to : NULL;
}

/* A segment is at the receiving port: the last one of a message decides when that is taken. */
static void arrive(struct sim_net *net, struct sim_event *e)
{
	struct sim_msg *m = e->p;
	struct sim_nic *from = net->nics[m->nic], *nic;
	struct sim_lane *to = target(net, m, &nic);
	struct sim_port *port, *source = sim_port_of(net, from, from->lanes[m->lane].link);
	uint64_t wire_ns = (uint64_t)((double)e->a / net->o.bytes_per_ns), at;

	if (!to || !source->up || source->epoch != e->c ||
	    !(port = sim_port_of(net, nic, to->link))->up) {
		if (e->b)
			lose(net, m);
		return;
	}
	at = take(net, port, sim_class_of(net, m->nic), wire_ns);
	port->stats.bytes_rx += e->a;
	if (at - net->now > port->stats.most_queued_ns)
		port->stats.most_queued_ns = at - net->now;
	if (!e->b)
		return;
	m->t.arrived = net->now;
	if (net->o.loss > 0 && sim_chance(net) < net->o.loss * packets(net, m->len)) {
		at += net->o.resend_ns;
		from->counters.retransmits++;
	}
	if (net->o.unordered && net->o.reorder > 0 && sim_chance(net) < net->o.reorder)
		at += (uint64_t)(sim_chance(net) * net->o.reorder_ns);
	if (!net->o.unordered && at < to->landed_ns)
		at = to->landed_ns;
	to->landed_ns = at;
	push(net, (struct sim_event){ .at = at, .kind = SIM_EV_LAND, .p = m });
}

/* Writes where there is memory. Returns the status of the write. */
static unsigned write_memory(struct sim_net *net, struct sim_nic *nic, const struct sim_msg *m)
{
	const struct sim_key *k = m->rkey < nic->n_keys ? &nic->keys[m->rkey] : NULL;

	if (m->op == EPF_WR_SEND || m->len == 0)
		return EPF_S_OK;
	if (!k || !(k->access & EPF_MR_REMOTE_WRITE) || m->raddr < k->addr ||
	    m->raddr + m->len > k->addr + k->len)
		return EPF_S_REMOTE_ACCESS;
	if (m->raddr >= SIM_VIRTUAL)
		net->calls.landed(net->arg, nic->node, nic->job, m->raddr, m->len);
	else if (m->payload || m->laddr < SIM_VIRTUAL)
		memcpy((void *)(uintptr_t)m->raddr,
		       m->payload ? m->payload : (const void *)(uintptr_t)m->laddr, m->len);
	return EPF_S_OK;
}

static void land(struct sim_net *net, struct sim_msg *m)
{
	struct sim_nic *nic;
	struct sim_lane *to = target(net, m, &nic);

	if (!to || !sim_port_of(net, nic, to->link)->up) {
		lose(net, m);
		return;
	}
	m->t.landed = net->now;
	m->status = (uint8_t)write_memory(net, nic, m);
	nic->counters.messages_rx++;
	nic->counters.bytes_rx += m->len;
	if (m->status == EPF_S_OK && m->op != EPF_WR_WRITE) {
		struct epf_wc wc = { .lane = to->id, .len = m->len, .imm = m->imm };
		uint8_t *payload = NULL;

		wc.op = m->op == EPF_WR_SEND ? EPF_WC_RECV : EPF_WC_RECV_IMM;
		if (m->op == EPF_WR_SEND) {
			payload = m->payload;
			m->payload = NULL;
		}
		to->queued++;
		sim_nic_complete(nic, &wc, payload, &m->t);
	}
	push(net,
	     (struct sim_event){ .at = net->now + net->o.delay_ns, .kind = SIM_EV_DONE, .p = m });
}

/* Gives completions to the core: of an ordered lane in order. */
static void done(struct sim_net *net, struct sim_msg *m)
{
	struct sim_nic *nic = net->nics[m->nic];
	struct sim_lane *lane = &nic->lanes[m->lane];
	unsigned status = m->status;

	if (lane->epoch != m->epoch || !(m->state & SIM_MSG_OUT) ||
	    lane->used != EPF_LANE_READY + 1) {
		sim_msg_put(net, m, SIM_MSG_FLIGHT);
		return;
	}
	if (status != EPF_S_OK) {
		sim_msg_put(net, m, SIM_MSG_FLIGHT);
		sim_lane_end(net, nic, lane, status);
		return;
	}
	m->state |= SIM_MSG_DONE;
	if (net->o.unordered) {
		struct epf_wc wc = { .id = m->id, .lane = lane->id, .op = EPF_WC_SENT };

		lane->queued++;
		sim_nic_complete(nic, &wc, NULL, NULL);
	}
	m->state &= (uint8_t)~SIM_MSG_FLIGHT;
	while (lane->first && lane->first->state & SIM_MSG_DONE) {
		struct sim_msg *f = lane->first;
		struct epf_wc wc = { .id = f->id, .lane = lane->id, .op = EPF_WC_SENT };

		lane->first = f->next;
		if (!lane->first)
			lane->last = NULL;
		lane->outstanding--;
		if (!net->o.unordered) {
			lane->queued++;
			sim_nic_complete(nic, &wc, NULL, NULL);
		}
		sim_msg_put(net, f, SIM_MSG_OUT);
	}
}

void sim_lane_end(struct sim_net *net, struct sim_nic *nic, struct sim_lane *lane, unsigned status)
{
	struct sim_msg *m = lane->first, *unsent = lane->next_tx ? lane->next_tx : lane->first_new;
	int untouched = 0;

	lane->used = EPF_LANE_ERROR + 1;
	lane->first = lane->last = lane->next_tx = lane->first_new = NULL;
	lane->outstanding = 0;
	while (m) {
		struct sim_msg *next = m->next;
		struct epf_wc wc = {
			.id = m->id, .lane = lane->id, .op = EPF_WC_SENT, .status = (uint8_t)status
		};

		untouched |= m == unsent;
		if (!net->o.unordered || !(m->state & SIM_MSG_DONE)) {
			lane->queued++;
			sim_nic_complete(nic, &wc, NULL, NULL);
			status = EPF_S_FLUSHED;
		}
		/* What no port has begun with has no event. One that was cut off in the middle stays: few do. */
		sim_msg_put(net, m, SIM_MSG_OUT | (untouched && !m->t.sent ? SIM_MSG_FLIGHT : 0));
		m = next;
	}
}

static void give_up(struct sim_net *net, const struct sim_event *e)
{
	struct sim_nic *nic = net->nics[e->a];
	struct sim_lane *lane = nic ? &nic->lanes[e->b] : NULL;

	if (!lane || lane->epoch != e->c || lane->used != EPF_LANE_READY + 1)
		return;
	nic->counters.errors++;
	sim_lane_end(net, nic, lane, EPF_S_RETRY_EXCEEDED);
}

int sim_net_run(struct sim_net *net)
{
	struct sim_event e;

	if (!sim_events_pop(&net->events, &e))
		return 0;
	net->now = e.at;
	switch ((enum sim_event_kind)e.kind) {
	case SIM_EV_SENT:
		port_next(net, &net->ports[e.a]);
		break;
	case SIM_EV_ARRIVE:
		arrive(net, &e);
		break;
	case SIM_EV_LAND:
		land(net, e.p);
		break;
	case SIM_EV_DONE:
		done(net, e.p);
		break;
	case SIM_EV_LOST:
		give_up(net, &e);
		break;
	case SIM_EV_TIMER:
		net->calls.timer(net->arg, e.a);
		break;
	}
	return 1;
}

void sim_net_at(struct sim_net *net, uint64_t at, uint64_t what)
{
	push(net, (struct sim_event){
			  .at = at < net->now ? net->now : at, .kind = SIM_EV_TIMER, .a = what });
}

void sim_net_port(struct sim_net *net, uint32_t node, uint32_t link, int up)
{
	struct sim_port *port = &net->ports[(size_t)node * net->o.links + link];

	port->up = up != 0;
	port->epoch += !up;
}

void sim_net_port_stats(const struct sim_net *net, uint32_t node, uint32_t link,
			struct sim_port_stats *out)
{
	*out = net->ports[(size_t)node * net->o.links + link].stats;
}

void sim_net_port_stats_clear(struct sim_net *net)
{
	for (size_t i = 0; i < (size_t)net->o.nodes * net->o.links; i++)
		memset(&net->ports[i].stats, 0, sizeof(net->ports[i].stats));
}

uint64_t sim_net_now(void *net)
{
	return ((struct sim_net *)net)->now;
}

int sim_net_create(const struct sim_net_options *o, const struct sim_net_calls *calls, void *arg,
		   struct sim_net **out)
{
	struct sim_net *net = calloc(1, sizeof(*net));

	if (!net)
		return epf_fail(EPF_R_NO_MEMORY, "simulated network: no memory");
	net->o = *o;
	net->calls = *calls;
	net->arg = arg;
	net->rng = o->seed;
	net->now = 1000000;
	net->nics = calloc((size_t)o->jobs * o->nodes, sizeof(*net->nics));
	net->ports = calloc((size_t)o->nodes * o->links, sizeof(*net->ports));
	if (!net->nics || !net->ports) {
		sim_net_destroy(net);
		return epf_fail(EPF_R_NO_MEMORY, "simulated network: no memory");
	}
	for (size_t i = 0; i < (size_t)o->nodes * o->links; i++)
		net->ports[i].up = 1;
	*out = net;
	return 0;
}

void sim_net_destroy(struct sim_net *net)
{
	if (!net)
		return;
	for (size_t i = 0; i < net->n_slabs; i++)
		free(net->slabs[i]);
	free(net->slabs);
	free(net->events.e);
	free(net->nics);
	free(net->ports);
	free(net);
}
