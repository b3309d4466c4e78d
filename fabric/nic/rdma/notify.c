/* SPDX-License-Identifier: Apache-2.0 */
/* See notify.h. */
#include "fabric/nic/rdma/notify.h"

#include "fabric/base/err.h"

static void drain_channel(void *arg)
{
	struct epf_rdma_notify *n = arg;
	struct ibv_cq *cq;
	void *context;
	int rung = 0;

	while (n->lib->get_cq_event(n->channel, &cq, &context) == 0) {
		n->lib->ack_cq_events(cq, 1);
		__atomic_and_fetch(&n->armed, cq == n->send ? ~1u : ~2u, __ATOMIC_RELEASE);
		rung = 1;
	}
	if (rung && epf_wakeup_is_needed(n->wakeup))
		epf_wakeup_wake(n->wakeup);
}

int epf_rdma_notify_arm(struct epf_rdma_notify *n, const char *nic, const char *thread)
{
	uint32_t armed;
	int rc = 0;

	if (!n->waker.runs)
		rc = epf_verbs_waker_start(&n->waker, thread, n->channel->fd, drain_channel, n);
	if (rc)
		return rc;
	armed = __atomic_fetch_or(&n->armed, 3u, __ATOMIC_ACQ_REL);
	if (!(armed & 1))
		rc = ibv_req_notify_cq(n->send, 0);
	if (!rc && !(armed & 2))
		rc = ibv_req_notify_cq(n->recv, 0);
	return rc ? epf_fail_sys(EPF_R_VERBS_CALL, rc, "%s: ibv_req_notify_cq", nic) : 0;
}
