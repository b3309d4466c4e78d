/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lanes of the EFA NIC: SRD queue pairs from creation to destruction, and the address handles of their peers. Called through
 * epf_nic_ops by the engine's slow paths; never by a step.
 *
 * A queue pair is ready to send and to receive when it is made: SRD knows no connection, and a message to one that is not
 * ready might fail at the sender instead of waiting. What arrives before this end is connected is kept (recv_hot.c).
 */
#include "fabric/nic/efa/efa.h"

#include "fabric/base/err.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { PORT = 1 };

static struct epf_efa_lane *used_lane(const struct epf_nic *nic, uint16_t lane)
{
	const struct epf_efa *v = epf_efa_of(nic);

	return lane < v->max_lanes && v->lanes[lane].qp ? &v->lanes[lane] : NULL;
}

static int failed(const struct epf_efa *v, uint16_t lane, const char *call, int err)
{
	return epf_fail_sys(err == ENOMEM ? EPF_R_VERBS_PIN : EPF_R_VERBS_CALL, err,
			    "efa: %s: lane %u: %s", v->device, lane, call);
}

static uint32_t next_random(struct epf_efa *v)
{
	uint64_t random;

	pthread_mutex_lock(&v->setup);
	random = v->random = v->random * 6364136223846793005ull + 1442695040888963407ull;
	pthread_mutex_unlock(&v->setup);
	return (uint32_t)(random >> 33);
}

static int create_qp(struct epf_efa *v, struct epf_efa_lane *l, uint16_t lane)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = ibv_cq_ex_to_cq(v->send_cq),
		.recv_cq = ibv_cq_ex_to_cq(v->recv_cq),
		.cap = { .max_send_wr = l->depth,
			 .max_recv_wr = v->lane_receives,
			 .max_send_sge = 1,
			 .max_recv_sge = 1,
			 .max_inline_data = v->opts.inline_bytes },
		.qp_type = IBV_QPT_DRIVER,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = v->pd,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
				  IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_READ,
	};
	struct epf_efadv_qp_attr efa_attr = {
		.driver_qp_type = EPF_EFADV_QP_TYPE_SRD,
		.flags = v->qp_flags,
		.sl = (uint8_t)v->opts.service_level,
	};

	l->qp = v->lib->efa_create_qp_ex(v->ctx, &attr, &efa_attr, sizeof(efa_attr));
	if (!l->qp)
		return failed(v, lane, "efadv_create_qp_ex", errno);
	l->qpx = v->lib->verbs->qp_to_qp_ex(l->qp);
	if (!l->qpx)
		return failed(v, lane, "ibv_qp_to_qp_ex", EOPNOTSUPP);
	if (l->qp->qp_num >= EPF_EFA_QPNS)
		return epf_fail(EPF_R_EFA_UNFIT, "efa: %s: queue pair number %u has over 16 bits",
				v->device, l->qp->qp_num);
	l->inline_bytes = v->opts.inline_bytes;
	l->write_inline = v->qp_flags & EPF_EFADV_QP_INLINE_WRITE ? v->opts.inline_bytes : 0;
	return 0;
}

static int to_ready(struct epf_efa *v, const struct epf_efa_lane *l, uint16_t lane)
{
	const struct epf_verbs_lib *verbs = v->lib->verbs;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = PORT, .qkey = l->qkey };
	int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	int rc = verbs->modify_qp(l->qp, &attr,
				  IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);

	if (rc)
		return failed(v, lane, "ibv_modify_qp to INIT", rc);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR };
	rc = verbs->modify_qp(l->qp, &attr, IBV_QP_STATE);
	if (rc)
		return failed(v, lane, "ibv_modify_qp to RTR", rc);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS,
				     .sq_psn = next_random(v) & 0xffffff,
				     .rnr_retry = (uint8_t)v->opts.rnr_retries };
	if (v->efa_attr.device_caps & EPF_EFADV_CAP_RNR_RETRY)
		mask |= IBV_QP_RNR_RETRY;
	rc = verbs->modify_qp(l->qp, &attr, mask);
	return rc ? failed(v, lane, "ibv_modify_qp to RTS", rc) : 0;
}

static int alloc_lane(struct epf_efa *v, struct epf_efa_lane *l, uint16_t lane, uint32_t depth)
{
	size_t bytes = (size_t)depth * EPF_NIC_MSG_BYTES;

	l->depth = l->n_free = depth;
	l->ids = calloc(depth, sizeof(*l->ids));
	l->free = calloc(depth, sizeof(*l->free));
	l->busy = calloc(depth, sizeof(*l->busy));
	l->early = calloc(v->lane_receives, sizeof(*l->early));
	l->bounce = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
	if (!l->ids || !l->free || !l->busy || !l->early || !l->bounce)
		return epf_fail(EPF_R_NO_MEMORY, "efa: lane %u", lane);
	for (uint32_t i = 0; i < depth; i++)
		l->free[i] = (uint16_t)(depth - 1 - i);
	l->bounce_mr = v->lib->verbs->reg_mr_iova2(v->pd, l->bounce, bytes, (uintptr_t)l->bounce,
						   IBV_ACCESS_LOCAL_WRITE);
	return l->bounce_mr ? 0 : failed(v, lane, "ibv_reg_mr", errno);
}

void epf_efa_lane_free(struct epf_efa *v, struct epf_efa_lane *l)
{
	uint16_t generation = l->generation;

	if (l->qp)
		v->lib->verbs->destroy_qp(l->qp);
	if (l->bounce_mr)
		v->lib->verbs->dereg_mr(l->bounce_mr);
	if (l->handle)
		epf_efa_ah_free(v, l->handle);
	free(l->bounce);
	free(l->early);
	free(l->busy);
	free(l->free);
	free(l->ids);
	memset(l, 0, sizeof(*l));
	l->generation = generation;
}

int epf_efa_lane_make(struct epf_efa *v, struct epf_efa_lane *l, uint16_t lane, uint32_t depth)
{
	int rc;

	l->generation++;
	l->qkey = next_random(v); /* 31 bits: those with the highest bit are the kernel's */
	rc = alloc_lane(v, l, lane, depth);
	if (!rc)
		rc = create_qp(v, l, lane);
	return rc ? rc : to_ready(v, l, lane);
}

static int check_create(struct epf_efa *v, uint16_t lane, uint32_t depth)
{
	struct epf_nic_caps caps;

	epf_efa_describe(&v->nic, &caps);
	if (lane >= caps.max_lanes)
		return epf_fail(EPF_R_NIC_LIMIT, "efa: lane %u, but %s allows lanes 0 to %u", lane,
				v->device, caps.max_lanes - 1);
	if (depth == 0 || depth > caps.lane_depth)
		return epf_fail(EPF_R_NIC_LIMIT,
				"efa: lane-depth %u is not in 1 to %u, the least of what %s holds "
				"and verbs-completions",
				depth, caps.lane_depth, v->device);
	if (v->dead)
		return epf_fail(EPF_R_EFA_DEVICE, "efa: %s was removed", v->device);
	if (v->lanes[lane].qp)
		return epf_fail(EPF_R_NIC_LANE, "efa: lane %u exists already", lane);
	return 0;
}

void epf_efa_lane_install(struct epf_efa *v, uint16_t lane)
{
	v->lane_of[v->lanes[lane].qp->qp_num] = lane;
	v->lanes_used++;
	if (v->lanes_used > v->most_lanes)
		v->most_lanes = v->lanes_used;
	if (lane + 1u > v->lanes_end)
		v->lanes_end = lane + 1u;
	/* The one before may have left entries until it was destroyed. */
	v->stale_sends = v->stale_recvs = 1;
	epf_efa_all_hungry_cold(v);
	epf_efa_feed(v);
}

int epf_efa_lane_create(struct epf_nic *nic, uint16_t lane, uint32_t depth, uint64_t *token)
{
	struct epf_efa *v = epf_efa_of(nic);
	struct epf_efa_lane *l;
	int rc = check_create(v, lane, depth);

	if (rc)
		return rc;
	l = &v->lanes[lane];
	rc = epf_efa_lane_make(v, l, lane, depth);
	if (rc) {
		epf_efa_lane_free(v, l);
		return rc;
	}
	epf_efa_lane_install(v, lane);
	*token = epf_efa_token(l->qp->qp_num, l->qkey);
	return 0;
}

int epf_efa_ah_make(struct epf_efa *v, const union ibv_gid *gid, struct epf_efa_ah **out)
{
	struct ibv_ah_attr attr = { .port_num = PORT, .is_global = 1, .grh = { .dgid = *gid } };
	struct epf_efa_ah *a = calloc(1, sizeof(*a));

	if (!a)
		return epf_fail(EPF_R_NO_MEMORY, "efa: an address handle");
	a->gid = *gid;
	a->ah = v->lib->create_ah(v->pd, &attr);
	if (!a->ah) {
		int err = errno;

		free(a);
		return epf_fail_sys(EPF_R_VERBS_CALL, err,
				    "efa: %s: ibv_create_ah (is the peer in the same subnet, "
				    "and does its security group allow all traffic?)",
				    v->device);
	}
	*out = a;
	return 0;
}

void epf_efa_ah_free(struct epf_efa *v, struct epf_efa_ah *a)
{
	v->lib->destroy_ah(a->ah);
	free(a);
}

struct epf_efa_ah *epf_efa_ah_find(const struct epf_efa *v, const union ibv_gid *gid)
{
	struct epf_efa_ah *a = v->ahs;

	while (a && memcmp(a->gid.raw, gid->raw, sizeof(gid->raw)) != 0)
		a = a->next;
	return a;
}

/* One lane less uses a handle; 1: nobody does any more, and it is off the list. */
static int drop_ah(struct epf_efa *v, struct epf_efa_ah *a)
{
	struct epf_efa_ah **at = &v->ahs;

	if (--a->users)
		return 0;
	while (*at != a)
		at = &(*at)->next;
	*at = a->next;
	return 1;
}

int epf_efa_ask_port(const struct epf_efa *v)
{
	struct ibv_port_attr attr;

	return !epf_verbs_query_port(v->lib->verbs, v->ctx, PORT, &attr) &&
	       attr.state == IBV_PORT_ACTIVE;
}

/* What the events said last; where that is down, the port itself, which may be quicker. */
static int port_is_up(struct epf_efa *v)
{
	if (!v->dead && !v->counters.link_up)
		v->counters.link_up = (uint32_t)epf_efa_ask_port(v);
	return v->counters.link_up != 0;
}

int epf_efa_check_peer(const struct epf_efa *v, uint16_t lane, const void *addr, size_t addr_len,
		       uint64_t token, struct epf_efa_peer *peer)
{
	int rc = epf_efa_addr_decode(addr, addr_len, peer);

	if (rc)
		return rc;
	if (!epf_efa_token_is_good(token))
		return epf_fail(EPF_R_NIC_ADDRESS, "efa: lane %u got an impossible token", lane);
	/* A device that sends such arrivals to a queue pair of the other kind upsets it. */
	if (peer->unsolicited != (v->recv_dv != NULL))
		return epf_fail(EPF_R_NIC_PEER_MODE,
				"efa: %s %s unsolicited arrivals and its peer %s; use the same "
				"driver and rdma-core on both, or set efa-unsolicited=no on both",
				v->device, v->recv_dv ? "has" : "lacks",
				peer->unsolicited ? "has them" : "does not");
	return 0;
}

void epf_efa_lane_connected(struct epf_efa *v, uint16_t lane, const struct epf_efa_peer *peer,
			    uint64_t token, struct epf_efa_ah *handle)
{
	struct epf_efa_lane *l = &v->lanes[lane];

	if (!handle->users++) {
		handle->next = v->ahs;
		v->ahs = handle;
	}
	l->handle = handle;
	l->ah = handle->ah;
	l->remote_qpn = token & 0xffffffu;
	l->remote_qkey = token >> 24 & 0x7fffffffu;
	l->sink_raddr = peer->sink_raddr;
	l->sink_rkey = peer->sink_rkey;
	l->link = EPF_LANE_READY;
	if (l->n_early)
		epf_efa_report_lane(v, lane);
}

int epf_efa_lane_connect(struct epf_nic *nic, uint16_t lane, const void *addr, size_t addr_len,
			 uint64_t token)
{
	struct epf_efa *v = epf_efa_of(nic);
	struct epf_efa_lane *l = used_lane(nic, lane);
	struct epf_efa_ah *handle;
	struct epf_efa_peer peer;
	int rc;

	if (!l || l->link != EPF_LANE_IDLE)
		return epf_fail(EPF_R_NIC_LANE, "efa: lane %u is not idle", lane);
	rc = epf_efa_check_peer(v, lane, addr, addr_len, token, &peer);
	if (rc)
		return rc;
	if (!port_is_up(v))
		return epf_fail_sys(EPF_R_EFA_DEVICE, ENETDOWN, "efa: %s", v->device);
	handle = epf_efa_ah_find(v, &peer.gid);
	if (!handle && (rc = epf_efa_ah_make(v, &peer.gid, &handle)))
		return rc;
	epf_efa_lane_connected(v, lane, &peer, token, handle);
	if (!l->n_early) { /* none will come to a lane that is connected */
		free(l->early);
		l->early = NULL;
	}
	return 0;
}

/* Takes a lane off the list of reports. */
static void unreport(struct epf_efa *v, uint16_t lane)
{
	uint16_t at = v->report_head, last = EPF_EFA_NONE;

	while (at != EPF_EFA_NONE && at != lane) {
		last = at;
		at = v->lanes[at].next_report;
	}
	if (at == EPF_EFA_NONE)
		return;
	if (last == EPF_EFA_NONE)
		v->report_head = v->lanes[lane].next_report;
	else
		v->lanes[last].next_report = v->lanes[lane].next_report;
	if (v->report_tail == lane)
		v->report_tail = last;
	v->reports--;
}

/* Takes a lane off the list of those that want receives. */
static void unlist_hungry(struct epf_efa *v, uint16_t lane)
{
	uint16_t at = v->hungry_head, last = EPF_EFA_NONE;

	while (at != EPF_EFA_NONE && at != lane) {
		last = at;
		at = v->lanes[at].next_hungry;
	}
	if (at == EPF_EFA_NONE)
		return;
	if (last == EPF_EFA_NONE)
		v->hungry_head = v->lanes[lane].next_hungry;
	else
		v->lanes[last].next_hungry = v->lanes[lane].next_hungry;
	if (v->hungry_tail == lane)
		v->hungry_tail = last;
}

/* Receives that a queue pair held when it was destroyed: no completion brings them back. */
static void take_back_receives(struct epf_efa *v, uint16_t lane)
{
	struct epf_efa_lane *l = &v->lanes[lane];

	for (uint32_t c = 0; c < v->receives.n_chunks && l->receives; c++)
		for (uint32_t i = 0; i < v->receives.chunks[c].count && l->receives; i++) {
			struct epf_rdma_slot *slot = &v->receives.chunks[c].slots[i];

			if (slot->lane != lane)
				continue;
			slot->lane = EPF_EFA_NONE;
			slot->next = v->receives.free;
			v->receives.free = slot;
			l->receives--;
			v->posted--;
			v->pool++;
		}
}

void epf_efa_lane_detach(struct epf_efa *v, uint16_t lane, struct epf_efa_lane *out)
{
	struct epf_efa_lane *l = &v->lanes[lane];

	v->outstanding -= l->depth - l->n_free;
	unreport(v, lane);
	unlist_hungry(v, lane);
	while (l->early_out < l->n_early)
		epf_efa_drop(v, &l->early[l->early_out++]);
	if (l->qp)
		v->lane_of[l->qp->qp_num] = EPF_EFA_NONE;
	v->stale_sends = v->stale_recvs = 1;
	take_back_receives(v, lane);
	if (l->handle && !drop_ah(v, l->handle))
		l->handle = NULL;
	v->lanes_used--;
	*out = *l;
	*l = (struct epf_efa_lane){ .generation = out->generation };
}

void epf_efa_lane_destroy(struct epf_nic *nic, uint16_t lane)
{
	struct epf_efa *v = epf_efa_of(nic);
	struct epf_efa_lane *l = used_lane(nic, lane), old;

	epf_efa_reopen_end(v, lane);
	if (!l)
		return;
	/* It may be in use, so it ends before its receives are another lane's. */
	v->lane_of[l->qp->qp_num] = EPF_EFA_NONE;
	v->lib->verbs->destroy_qp(l->qp);
	l->qp = NULL;
	epf_efa_lane_detach(v, lane, &old);
	epf_efa_lane_free(v, &old);
}

int epf_efa_link_ready(struct epf_nic *nic, uint16_t lane)
{
	return port_is_up(epf_efa_of(nic));
}

enum epf_lane_link epf_efa_lane_link(const struct epf_nic *nic, uint16_t lane)
{
	struct epf_efa_lane *l = used_lane(nic, lane);

	return l ? (enum epf_lane_link)l->link : EPF_LANE_IDLE;
}
