/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What happens beside the data path: the device's asynchronous events (ports, queue pairs, the device itself), and waking a core
 * that sleeps. The watch runs on the core's thread about ten times a second; the waker (rdma/notify.h) is started when a core first wants to sleep.
 */
#include "fabric/nic/verbs/verbs.h"

#include "fabric/base/err.h"

enum { EVENTS_PER_WATCH = 64 };

/* The device does not answer any more: nothing that is under way will be completed. */
static void device_lost(struct epf_verbs *v)
{
	if (v->dead)
		return;
	v->dead = 1;
	v->counters.errors++;
	v->counters.link_up = 0;
	for (uint32_t lane = 0; lane < v->lanes_end; lane++) {
		struct epf_verbs_lane *l = &v->lanes[lane];

		if (!l->qp)
			continue;
		if (l->link == EPF_LANE_READY)
			epf_verbs_lane_gone(v, (uint16_t)lane, EPF_S_LINK_DOWN);
		else if (l->head != l->tail)
			epf_verbs_lane_abandon(v, (uint16_t)lane, EPF_S_FLUSHED);
	}
}

/* The port is down: what is under way on its lanes would only run into its retries, and each for itself. */
static void port_lost(struct epf_verbs *v)
{
	v->counters.link_up = 0;
	v->counters.errors++;
	for (uint32_t lane = 0; lane < v->lanes_end; lane++) {
		struct epf_verbs_lane *l = &v->lanes[lane];

		if (l->qp && !l->is_loop)
			epf_verbs_lane_gone(v, (uint16_t)lane, EPF_S_LINK_DOWN);
	}
}

static void qp_failed(struct epf_verbs *v, const struct ibv_qp *qp)
{
	for (uint32_t lane = 0; lane < v->lanes_end; lane++)
		if (v->lanes[lane].qp == qp) {
			epf_verbs_lane_gone(v, (uint16_t)lane, EPF_S_RETRY_EXCEEDED);
			return;
		}
}

static void handle(struct epf_verbs *v, const struct ibv_async_event *event)
{
	switch (event->event_type) {
	case IBV_EVENT_PORT_ERR:
		if (event->element.port_num == v->port)
			port_lost(v);
		break;
	case IBV_EVENT_PORT_ACTIVE:
		if (event->element.port_num == v->port)
			v->counters.link_up = !v->dead;
		break;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
		qp_failed(v, event->element.qp);
		break;
	case IBV_EVENT_DEVICE_FATAL:
	case IBV_EVENT_CQ_ERR:
	case IBV_EVENT_SRQ_ERR:
		device_lost(v);
		break;
	default: /* address changes, paths migrated, subnet management: nothing to do */
		break;
	}
}

void epf_verbs_events(struct epf_verbs *v)
{
	struct ibv_async_event event;

	for (int i = 0; i < EVENTS_PER_WATCH && v->lib->get_async_event(v->ctx, &event) == 0; i++) {
		handle(v, &event);
		v->lib->ack_async_event(&event);
	}
}

void epf_verbs_watch(struct epf_nic *nic)
{
	struct epf_verbs *v = epf_verbs_of(nic);

	epf_verbs_events(v);
	epf_hw_counters_sample(&v->hw_counters, &v->counters);
}

void epf_verbs_lost_lane_cold(struct epf_verbs *v, uint16_t lane, int err)
{
	v->counters.errors++;
	epf_verbs_lane_gone(v, lane, EPF_S_RETRY_EXCEEDED);
}

void epf_verbs_lost_receives_cold(struct epf_verbs *v, int err)
{
	/* A queue that cannot be polled has overrun or lost its device; a receive that is not accepted is tried again. */
	if (err)
		device_lost(v);
	else
		v->counters.errors++;
}

int epf_verbs_arm(struct epf_nic *nic)
{
	struct epf_verbs *v = epf_verbs_of(nic);
	struct epf_rdma_notify *n = &v->notify;

	if (v->dead)
		return 0;
	if (!n->lib) {
		n->lib = v->lib;
		n->channel = v->channel;
		n->send = v->send_cq;
		n->recv = v->recv_cq;
		n->wakeup = v->wakeup;
	}
	return epf_rdma_notify_arm(n, "verbs", "epf-verbs");
}
