/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lanes of the verbs NIC: queue pairs from creation to destruction, and what a failed one still has to report. Called through
 * epf_nic_ops by the engine's slow paths. Fencing asks the kernel, once for each failure; nothing here may be called by a step
 * that does not fail.
 */
#include "fabric/nic/verbs/verbs.h"

#include "fabric/base/err.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_READS = 16, HOPS = 64 };

static int failed(const struct epf_verbs *v, uint16_t lane, const char *call, int err)
{
	return epf_fail_sys(err == ENOMEM ? EPF_R_VERBS_PIN : EPF_R_VERBS_CALL, err,
			    "verbs: %s: lane %u: %s", v->device, lane, call);
}

static struct ibv_qp *create_qp_ex(struct epf_verbs *v, const struct ibv_qp_init_attr *base)
{
	struct verbs_context *ctx = verbs_get_ctx_op(v->ctx, create_qp_ex);
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = base->send_cq,
		.recv_cq = base->recv_cq,
		.srq = base->srq,
		.cap = base->cap,
		.qp_type = base->qp_type,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = v->pd,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
				  IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_READ,
	};

	return ctx ? ctx->create_qp_ex(v->ctx, &attr) : NULL;
}

/* A queue pair with as many inline bytes as asked for, or less. What was asked counts: not every provider reports what it grants. */
static int create_qp(struct epf_verbs *v, struct epf_verbs_lane *l, uint16_t lane, uint32_t depth)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = v->send_cq,
		.recv_cq = v->recv_cq,
		.srq = v->srq,
		.cap = { .max_send_wr = depth, .max_send_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};

	if (!v->srq)
		attr.cap.max_recv_wr = epf_verbs_lane_receives(v);
	attr.cap.max_recv_sge = !v->srq;

	for (uint32_t bytes = v->opts.inline_bytes;; bytes /= 2) {
		struct ibv_qp_init_attr again = attr;

		again.cap.max_inline_data = bytes;
		l->inline_bytes = bytes;
		l->qpx = NULL;
		if (!v->opts.lists) {
			l->qp = create_qp_ex(v, &again);
			l->qpx = l->qp ? v->lib->qp_to_qp_ex(l->qp) : NULL;
			if (l->qp && !l->qpx) { /* made, but not to be posted to that way */
				v->lib->destroy_qp(l->qp);
				l->qp = NULL;
			}
		}
		if (!l->qp)
			l->qp = v->lib->create_qp(v->pd, &again);
		if (l->qp)
			return 0;
		if (!bytes)
			return failed(v, lane, "ibv_create_qp", errno);
	}
}

/* Memory for inline payloads that the queue pair itself cannot take. */
static int create_bounce(struct epf_verbs *v, struct epf_verbs_lane *l, uint16_t lane)
{
	size_t bytes = ((size_t)l->mask + 1) * EPF_NIC_MSG_BYTES;

	if (l->inline_bytes >= EPF_NIC_MSG_BYTES)
		return 0;
	l->bounce = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
	if (!l->bounce)
		return epf_fail(EPF_R_NO_MEMORY, "verbs: lane %u", lane);
	l->bounce_mr = v->lib->reg_mr_iova2(v->pd, l->bounce, bytes, (uintptr_t)l->bounce,
					    IBV_ACCESS_LOCAL_WRITE);
	return l->bounce_mr ? 0 : failed(v, lane, "ibv_reg_mr", errno);
}

static int to_init(struct epf_verbs *v, struct epf_verbs_lane *l, uint16_t lane)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = v->port,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
	};
	int rc = v->lib->modify_qp(
		l->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);

	return rc ? failed(v, lane, "ibv_modify_qp to INIT", rc) : 0;
}

static uint32_t next_random(struct epf_verbs *v)
{
	uint64_t random;

	pthread_mutex_lock(&v->setup);
	random = v->random = v->random * 6364136223846793005ull + 1442695040888963407ull;
	pthread_mutex_unlock(&v->setup);
	return (uint32_t)(random >> 40);
}

void epf_verbs_lane_free(struct epf_verbs *v, struct epf_verbs_lane *l)
{
	uint16_t generation = l->generation;

	if (l->qp)
		v->lib->destroy_qp(l->qp);
	if (l->bounce_mr)
		v->lib->dereg_mr(l->bounce_mr);
	free(l->bounce);
	free(l->ids);
	memset(l, 0, sizeof(*l));
	l->generation = generation;
}

int epf_verbs_lane_make(struct epf_verbs *v, struct epf_verbs_lane *l, uint16_t lane,
			uint32_t depth)
{
	int rc = 0;

	for (l->mask = 1; l->mask < depth; l->mask <<= 1)
		;
	l->mask--;
	l->depth = depth;
	l->generation++;
	l->psn = next_random(v);
	l->ids = calloc((size_t)l->mask + 1, sizeof(*l->ids));
	if (!l->ids)
		rc = epf_fail(EPF_R_NO_MEMORY, "verbs: lane %u", lane);
	if (!rc)
		rc = create_qp(v, l, lane, depth);
	if (!rc)
		rc = create_bounce(v, l, lane);
	return rc ? rc : to_init(v, l, lane);
}

int epf_verbs_lane_install(struct epf_verbs *v, uint16_t lane)
{
	int rc = epf_verbs_qp_enter(v, lane);

	if (!rc)
		epf_verbs_recv_again(v, lane);
	return rc;
}

int epf_verbs_lane_create(struct epf_nic *nic, uint16_t lane, uint32_t depth, uint64_t *token)
{
	struct epf_verbs *v = epf_verbs_of(nic);
	struct epf_verbs_lane *l;
	struct epf_nic_caps caps;
	int rc = 0;

	epf_verbs_describe(nic, &caps);
	if (lane >= caps.max_lanes)
		return epf_fail(EPF_R_NIC_LIMIT, "verbs: lane %u, but %s allows lanes 0 to %u",
				lane, v->device, caps.max_lanes - 1);
	if (depth == 0 || depth > caps.lane_depth)
		return epf_fail(
			EPF_R_NIC_LIMIT,
			"verbs: lane-depth %u is not in 1 to %u, the least of what %s holds "
			"and verbs-completions",
			depth, caps.lane_depth, v->device);
	if (v->dead)
		return epf_fail(EPF_R_VERBS_DEVICE, "verbs: %s was removed", v->device);
	l = &v->lanes[lane];
	if (l->qp)
		return epf_fail(EPF_R_NIC_LANE, "verbs: lane %u exists already", lane);
	rc = epf_verbs_lane_make(v, l, lane, depth);
	if (!rc)
		rc = epf_verbs_lane_install(v, lane);
	if (rc) {
		epf_verbs_lane_free(v, l);
		return rc;
	}
	*token = epf_verbs_token(l->qp->qp_num, l->psn);
	return 0;
}

static void fill_route(const struct epf_verbs *v, const struct epf_verbs_peer *peer,
		       struct ibv_ah_attr *ah)
{
	*ah = (struct ibv_ah_attr){
		.dlid = peer->lid,
		.sl = (uint8_t)v->opts.service_level,
		.port_num = v->port,
		.is_global = peer->link_layer == IBV_LINK_LAYER_ETHERNET || peer->lid == 0 ||
			     peer->gid.global.subnet_prefix != v->gid.global.subnet_prefix,
		.grh = { .dgid = peer->gid,
			 .sgid_index = (uint8_t)v->gid_index,
			 .hop_limit = HOPS,
			 .traffic_class = (uint8_t)v->opts.traffic_class },
	};
}

static uint8_t reads(int device_limit)
{
	return (uint8_t)(device_limit < MAX_READS ? device_limit : MAX_READS);
}

static int to_ready(struct epf_verbs *v, const struct epf_verbs_lane *l, uint16_t lane,
		    const struct epf_verbs_peer *peer, uint64_t token)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = peer->mtu < v->mtu ? peer->mtu : v->mtu,
		.dest_qp_num = token & 0xffffffu,
		.rq_psn = token >> 32 & 0xffffffu,
		.max_dest_rd_atomic = reads(v->dev_attr.max_qp_rd_atom),
		.min_rnr_timer = (uint8_t)v->opts.rnr_timer,
	};
	int rc;

	fill_route(v, peer, &attr.ah_attr);
	rc = v->lib->modify_qp(l->qp, &attr,
			       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				       IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
				       IBV_QP_MIN_RNR_TIMER);
	if (rc)
		return failed(v, lane, "ibv_modify_qp to RTR (is the peer's GID reachable?)", rc);
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS,
		.timeout = (uint8_t)v->opts.timeout,
		.retry_cnt = (uint8_t)v->opts.retries,
		.rnr_retry = (uint8_t)v->opts.rnr_retries,
		.sq_psn = l->psn,
		.max_rd_atomic = reads(v->dev_attr.max_qp_init_rd_atom),
	};
	rc = v->lib->modify_qp(l->qp, &attr,
			       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				       IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
	return rc ? failed(v, lane, "ibv_modify_qp to RTS", rc) : 0;
}

int epf_verbs_ask_port(const struct epf_verbs *v)
{
	struct ibv_port_attr attr;

	return !epf_verbs_query_port(v->lib, v->ctx, v->port, &attr) &&
	       attr.state == IBV_PORT_ACTIVE;
}

/* What the events said last; where that is down, the port itself, which may be quicker. */
static int port_is_up(struct epf_verbs *v)
{
	if (!v->dead && !v->counters.link_up)
		v->counters.link_up = (uint32_t)epf_verbs_ask_port(v);
	return v->counters.link_up != 0;
}

/* What is known of the peer before anything is asked of the device: 0 and *peer, and whether the lane leads to this very port. */
static int check_peer(const struct epf_verbs *v, uint16_t lane, const void *addr, size_t addr_len,
		      uint64_t token, struct epf_verbs_peer *peer)
{
	int rc = epf_verbs_addr_decode(addr, addr_len, peer);

	if (rc)
		return rc;
	if (!epf_verbs_token_is_good(token))
		return epf_fail(EPF_R_NIC_ADDRESS, "verbs: lane %u got an impossible token", lane);
	if ((peer->link_layer == IBV_LINK_LAYER_ETHERNET) !=
	    (v->port_attr.link_layer == IBV_LINK_LAYER_ETHERNET))
		return epf_fail(EPF_R_NIC_PEER_MODE,
				"verbs: %s:%u and its peer are of two kinds, InfiniBand and "
				"Ethernet; choose by nic-device",
				v->device, v->port);
	if (peer->gid_type != v->gid_type)
		return epf_fail(EPF_R_NIC_PEER_MODE,
				"verbs: %s:%u and its peer differ in RoCE version; choose by "
				"gid-index",
				v->device, v->port);
	return 0;
}

int epf_verbs_lane_join(struct epf_verbs *v, struct epf_verbs_lane *l, uint16_t lane,
			const void *addr, size_t addr_len, uint64_t token,
			int (*is_up)(struct epf_verbs *v))
{
	struct epf_verbs_peer peer;
	int rc = check_peer(v, lane, addr, addr_len, token, &peer);

	if (rc)
		return rc;
	l->is_loop = peer.lid == v->port_attr.lid && !memcmp(&peer.gid, &v->gid, sizeof(v->gid));
	if (!l->is_loop && !is_up(v))
		return epf_fail(EPF_R_NIC_LINK, "verbs: %s:%u is down", v->device, v->port);
	rc = to_ready(v, l, lane, &peer, token);
	/* As it was before, so that it can be tried again. */
	if (rc && !epf_verbs_lane_to(v, l, IBV_QPS_RESET))
		to_init(v, l, lane);
	return rc;
}

int epf_verbs_lane_connect(struct epf_nic *nic, uint16_t lane, const void *addr, size_t addr_len,
			   uint64_t token)
{
	struct epf_verbs *v = epf_verbs_of(nic);
	struct epf_verbs_lane *l = epf_verbs_lane_used(nic, lane);
	int rc;

	if (!l || l->link != EPF_LANE_IDLE)
		return epf_fail(EPF_R_NIC_LANE, "verbs: lane %u is not idle", lane);
	rc = epf_verbs_lane_join(v, l, lane, addr, addr_len, token, port_is_up);
	if (!rc)
		l->link = EPF_LANE_READY;
	return rc;
}

void epf_verbs_lane_fence(struct epf_nic *nic, uint16_t lane)
{
	struct epf_verbs *v = epf_verbs_of(nic);
	struct epf_verbs_lane *l = epf_verbs_lane_used(nic, lane);

	if (epf_verbs_reopen_end(v, lane, 0)) {
		v->lanes[lane].link =
			EPF_LANE_ERROR; /* fenced when the other thread has let go of it */
		return;
	}
	if (!l || l->drain != EPF_VERBS_OPEN)
		return;
	l->link = EPF_LANE_ERROR;
	l->gone = 0;
	l->drain = EPF_VERBS_FENCED;
	/* Where the device does not answer any more, nothing will come of it either. */
	if (v->dead || epf_verbs_lane_to(v, l, IBV_QPS_ERR))
		epf_verbs_lane_abandon(v, lane, EPF_S_FLUSHED);
	/* If it is the port, the others on it need not wait for their own retries, and who asks why shall know. */
	epf_verbs_events(v);
}

/*
 * In error a queue pair takes nothing more, but a packet that the device has in hand may still land, and its arrival come out a
 * moment later; reset means that the device has let go of it, but some providers then throw away arrivals that were not
 * polled. So: error, take what comes until there is none, reset, look once more.
 */
static void drain_on(struct epf_verbs *v, struct epf_verbs_lane *l)
{
	switch (l->drain) {
	case EPF_VERBS_FENCED:
		l->drain = EPF_VERBS_FLUSHED;
		break;
	case EPF_VERBS_FLUSHED:
		if (v->empties == l->empty_mark)
			return;
		/* Refused by a broken device only, which lands nothing. */
		epf_verbs_lane_to(v, l, IBV_QPS_RESET);
		l->drain = EPF_VERBS_RESET;
		break;
	case EPF_VERBS_RESET:
		if (v->empties != l->empty_mark)
			l->drain = EPF_VERBS_DRAINED;
		return;
	default:
		return;
	}
	l->empty_mark = v->empties;
}

int epf_verbs_lane_drained(const struct epf_nic *nic, uint16_t lane)
{
	struct epf_verbs *v = epf_verbs_of(nic);
	struct epf_verbs_lane *l = epf_verbs_lane_used(nic, lane);

	if (!l)
		return 1;
	if (epf_verbs_reopen_end(v, lane, 0))
		return 0;
	if (l->link == EPF_LANE_ERROR && l->drain == EPF_VERBS_OPEN && l->has_let_go)
		epf_verbs_lane_fence(&v->nic, lane);
	if (l->link == EPF_LANE_READY || l->tail != l->head || l->in_report)
		return 0;
	if (v->dead)
		return v->spent;
	drain_on(v, l);
	return l->drain == EPF_VERBS_OPEN || l->drain == EPF_VERBS_DRAINED;
}

/* Takes a lane off the list of reports. */
static void unreport(struct epf_verbs *v, uint16_t lane)
{
	uint16_t at = v->report_head, last = EPF_VERBS_NONE;

	while (at != EPF_VERBS_NONE && at != lane) {
		last = at;
		at = v->lanes[at].next_report;
	}
	if (at == EPF_VERBS_NONE)
		return;
	if (last == EPF_VERBS_NONE)
		v->report_head = v->lanes[lane].next_report;
	else
		v->lanes[last].next_report = v->lanes[lane].next_report;
	if (v->report_tail == lane)
		v->report_tail = last;
}

void epf_verbs_lane_detach(struct epf_verbs *v, uint16_t lane, struct epf_verbs_lane *out)
{
	struct epf_verbs_lane *l = &v->lanes[lane];

	v->outstanding -= l->head - l->tail;
	unreport(v, lane);
	epf_verbs_recv_forget(v, lane);
	epf_verbs_qp_forget(v, lane);
	*out = *l;
	*l = (struct epf_verbs_lane){ .generation = out->generation };
}

void epf_verbs_lane_destroy(struct epf_nic *nic, uint16_t lane)
{
	struct epf_verbs *v = epf_verbs_of(nic);
	struct epf_verbs_lane old;

	epf_verbs_reopen_end(v, lane, 1);
	if (!epf_verbs_lane_used(nic, lane))
		return;
	epf_verbs_lane_detach(v, lane, &old);
	epf_verbs_lane_free(v, &old);
}

int epf_verbs_link_ready(struct epf_nic *nic, uint16_t lane)
{
	return port_is_up(epf_verbs_of(nic));
}

enum epf_lane_link epf_verbs_lane_link(const struct epf_nic *nic, uint16_t lane)
{
	struct epf_verbs_lane *l = epf_verbs_lane_used(nic, lane);

	return l ? (enum epf_lane_link)l->link : EPF_LANE_IDLE;
}
