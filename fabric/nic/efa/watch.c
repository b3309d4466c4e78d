/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What happens beside the data path: the device's asynchronous events, its own counters, and waking a core that sleeps. The
 * watch runs on the core's thread about ten times a second; the waker (rdma/notify.h) is started when a core first wants to sleep.
 *
 * SRD has no connection that could break: that a peer has gone is seen by work requests that fail, not here.
 */
#include "fabric/nic/efa/efa.h"

#include "fabric/base/err.h"

#include <errno.h>

enum { EVENTS_PER_WATCH = 64, PORT = 1 };

static void qp_failed(struct epf_efa *v, const struct ibv_qp *qp)
{
	for (uint32_t lane = 0; lane < v->lanes_end; lane++)
		if (v->lanes[lane].qp == qp) {
			epf_efa_lane_gone_cold(v, (uint16_t)lane, EPF_S_RETRY_EXCEEDED);
			return;
		}
}

static void handle(struct epf_efa *v, const struct ibv_async_event *event)
{
	switch (event->event_type) {
	case IBV_EVENT_PORT_ERR:
		epf_efa_port_lost(v);
		break;
	case IBV_EVENT_PORT_ACTIVE:
		v->counters.link_up = !v->dead;
		break;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
		qp_failed(v, event->element.qp);
		break;
	case IBV_EVENT_DEVICE_FATAL:
	case IBV_EVENT_CQ_ERR:
		epf_efa_device_lost_cold(v);
		break;
	default: /* nothing to do */
		break;
	}
}

/* The driver's counters in sysfs, for all users of the device together; what it does not have stays 0. */
static const struct epf_hw_counter files[] = {

#define F(name, field)                           \
 {                                               \
  name, offsetof(struct epf_nic_counters, field) \
 }
	F("rx_drops", packets_dropped),           F("retrans_pkts", retransmits),
	F("retrans_timeout_events", retransmits), F("unresponsive_remote_events", errors),
	F("impaired_remote_conn_events", errors),
#undef F
};

_Static_assert(sizeof(files) / sizeof(files[0]) <= EPF_HW_COUNTERS_MAX,
	       "one descriptor for each file");

void epf_efa_counters_open(struct epf_efa *v)
{
	epf_hw_counters_open(&v->hw_counters, files, sizeof(files) / sizeof(files[0]),
			     v->ctx->device->ibdev_path, PORT);
}

void epf_efa_watch(struct epf_nic *nic)
{
	struct epf_efa *v = epf_efa_of(nic);
	const struct epf_verbs_lib *verbs = v->lib->verbs;
	struct ibv_async_event event;

	for (int i = 0; i < EVENTS_PER_WATCH && verbs->get_async_event(v->ctx, &event) == 0; i++) {
		handle(v, &event);
		verbs->ack_async_event(&event);
	}
	epf_hw_counters_sample(&v->hw_counters, &v->counters);
}

int epf_efa_arm(struct epf_nic *nic)
{
	struct epf_efa *v = epf_efa_of(nic);
	struct epf_rdma_notify *n = &v->notify;

	/* Without a channel the sleeper looks by itself before long. */
	if (!v->channel)
		return -EOPNOTSUPP;
	if (v->dead)
		return 0;
	if (!n->lib) {
		n->lib = v->lib->verbs;
		n->channel = v->channel;
		n->send = ibv_cq_ex_to_cq(v->send_cq);
		n->recv = ibv_cq_ex_to_cq(v->recv_cq);
		n->wakeup = v->wakeup;
	}
	return epf_rdma_notify_arm(n, "efa", "epf-efa");
}
