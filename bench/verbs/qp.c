/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening a device and connecting queue pairs for the bare post loop (rawverbs.h); the loop is loop.c. The library is
 * opened at run time, as the fabric's verbs NIC does.
 */
#include "bench/common/bench.h"
#include "bench/verbs/rawverbs_priv.h"
#include "fabric/base/err.h"
#include "fabric/nic/verbs/gid.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GIDS_MAX = 512, PSN = 0x5a17, HOPS = 64, READS = 1, RNR_TIMER = 12, RETRIES = 6 };

static int failed(const char *what, int err)
{
	bench_complain("%s: %s", what, strerror(err));
	return err > 0 ? -err : -EIO;
}

void rawverbs_defaults(struct rawverbs_opts *o)
{
	memset(o, 0, sizeof(*o));
	o->gid_index = UINT64_MAX;
	o->qps = 1;
	o->depth = 128;
	o->list = 1;
	o->moderation = 0;
	o->timeout = 14;
}

int rawverbs_check(const struct rawverbs_opts *o)
{
	if (o->list > o->depth) {
		bench_complain("-l is %llu, must not be above -t, which is %llu",
			       (unsigned long long)o->list, (unsigned long long)o->depth);
		return -EINVAL;
	}
	if (o->moderation && o->moderation % o->list) {
		bench_complain("-Q is %llu, must be a multiple of -l, which is %llu",
			       (unsigned long long)o->moderation, (unsigned long long)o->list);
		return -EINVAL;
	}
	if (o->moderation > o->depth) {
		bench_complain("-Q is %llu, must not be above -t, which is %llu",
			       (unsigned long long)o->moderation, (unsigned long long)o->depth);
		return -EINVAL;
	}
	if (o->qps > 1 && o->moderation && o->moderation != o->list) {
		bench_complain(
			"-Q is %llu, with more than one queue pair it must be that of -l, %llu",
			(unsigned long long)o->moderation, (unsigned long long)o->list);
		return -EINVAL;
	}
	if (o->mtu && (o->mtu < 256 || o->mtu & (o->mtu - 1))) {
		bench_complain("-m is %llu, must be 256, 512, 1024, 2048 or 4096",
			       (unsigned long long)o->mtu);
		return -EINVAL;
	}
	return 0;
}

/* An open device whose port can be used: 1, with r->port and r->attr set. */
static int pick_port(struct rawverbs *r)
{
	struct ibv_device_attr device;

	if (r->lib->query_device(r->ctx, &device))
		return 0;
	for (unsigned port = 1; port <= device.phys_port_cnt; port++) {
		if (r->o.port && r->o.port != port)
			continue;
		if (epf_verbs_query_port(r->lib, r->ctx, (uint8_t)port, &r->attr) ||
		    r->attr.state != IBV_PORT_ACTIVE)
			continue;
		r->port = (uint8_t)port;
		return 1;
	}
	return 0;
}

static int open_device(struct rawverbs *r)
{
	int count = 0, found = 0;
	struct ibv_device **list = r->lib->get_device_list(&count);

	if (!list) {
		int err = errno;

		bench_complain(
			"no RDMA devices here (ibv_get_device_list: %s): is the NIC's driver loaded?",
			strerror(err));
		return -err;
	}
	for (int i = 0; i < count && !found; i++) {
		if (*r->o.device && strcmp(r->o.device, list[i]->name) != 0)
			continue;
		r->ctx = r->lib->open_device(list[i]);
		found = r->ctx && pick_port(r);
		snprintf(r->name, sizeof(r->name), "%s", list[i]->name);
		if (r->ctx && !found) {
			r->lib->close_device(r->ctx);
			r->ctx = NULL;
		}
	}
	r->lib->free_device_list(list);
	if (found)
		return 0;
	bench_complain("no RDMA device %s with an active port: ep-fabric nics lists them",
		       *r->o.device ? r->o.device : "");
	return -ENODEV;
}

static int pick_gid(struct rawverbs *r)
{
	struct ibv_gid_entry *table = calloc(GIDS_MAX, sizeof(*table));
	ssize_t n = table ? r->lib->query_gid_table(r->ctx, table, GIDS_MAX, 0, sizeof(*table))
			  : -ENOMEM;
	int at = n < 0 ? (int)n
		       : epf_verbs_pick_gid(table, (size_t)n, r->port,
					    r->o.gid_index > 255 ? -1 : (int)r->o.gid_index);

	if (at >= 0) {
		r->gid = table[at].gid;
		r->gid_index = (uint8_t)table[at].gid_index;
	}
	free(table);
	if (at >= 0)
		return 0;
	bench_complain("%s:%u has no GID%s", r->name, r->port,
		       r->o.gid_index > 255 ? "" : " of that index (-x)");
	return at;
}

static struct ibv_qp *create_ex(struct rawverbs *r, const struct ibv_qp_init_attr *base)
{
	struct verbs_context *ctx = verbs_get_ctx_op(r->ctx, create_qp_ex);
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = base->send_cq,
		.recv_cq = base->recv_cq,
		.cap = base->cap,
		.qp_type = base->qp_type,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = r->pd,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE,
	};

	return ctx ? ctx->create_qp_ex(r->ctx, &attr) : NULL;
}

static int create_qp(struct rawverbs *r, struct raw_qp *q)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = r->cq,
		.recv_cq = r->cq,
		.cap = { .max_send_wr = (uint32_t)r->o.depth,
			 .max_send_sge = 1,
			 .max_recv_wr = 1,
			 .max_recv_sge = 1,
			 .max_inline_data = (uint32_t)r->o.inline_bytes },
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT,
				    .port_num = r->port,
				    .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
	int rc;

	q->qp = r->o.lists ? NULL : create_ex(r, &attr);
	q->qpx = q->qp ? r->lib->qp_to_qp_ex(q->qp) : NULL;
	if (!q->qp)
		q->qp = r->lib->create_qp(r->pd, &attr);
	if (!q->qp)
		return failed("ibv_create_qp", errno);
	rc = r->lib->modify_qp(
		q->qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	return rc ? failed("ibv_modify_qp to INIT", rc) : 0;
}

static int create_queues(struct rawverbs *r, void *memory, uint64_t bytes)
{
	int entries = (int)(r->o.depth * r->o.qps);
	int rc = 0;

	r->pd = r->lib->alloc_pd(r->ctx);
	if (!r->pd)
		return failed("ibv_alloc_pd", errno);
	r->mr = r->lib->reg_mr_iova2(r->pd, memory, bytes, (uintptr_t)memory,
				     IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
					     IBV_ACCESS_RELAXED_ORDERING);
	if (!r->mr)
		return failed("ibv_reg_mr (ulimit -l is the usual limit)", errno);
	r->base = (uintptr_t)memory;
	r->cq = r->lib->create_cq(r->ctx, entries, NULL, NULL, 0);
	if (!r->cq)
		return failed("ibv_create_cq", errno);
	for (uint64_t i = 0; i < r->o.qps && !rc; i++)
		rc = create_qp(r, &r->qp[i]);
	return rc;
}

/* The device, without queues. */
static int begin(const struct rawverbs_opts *o, struct rawverbs **out)
{
	struct rawverbs *r = aligned_alloc(64, (sizeof(*r) + 63) / 64 * 64);
	int rc;

	if (!r)
		return failed("the post loop", ENOMEM);
	memset(r, 0, sizeof(*r));
	r->o = *o;
	if (!r->o.moderation)
		r->o.moderation = r->o.list;
	rc = epf_verbs_lib(&r->lib);
	if (rc)
		bench_complain("%s", epf_last_error());
	if (!rc)
		rc = open_device(r);
	if (!rc)
		rc = pick_gid(r);
	if (rc)
		rawverbs_close(r);
	else
		*out = r;
	return rc;
}

int rawverbs_probe(const struct rawverbs_opts *o)
{
	struct rawverbs *r = NULL;
	int rc = begin(o, &r);

	if (!rc)
		rawverbs_close(r);
	return rc;
}

int rawverbs_open(const struct rawverbs_opts *o, void *memory, uint64_t bytes,
		  struct rawverbs **out)
{
	struct rawverbs *r = NULL;
	int rc = begin(o, &r);

	if (rc)
		return rc;
	rc = create_queues(r, memory, bytes);
	if (rc) {
		rawverbs_close(r);
		return rc;
	}
	r->mtu = 128u << r->attr.active_mtu;
	if (r->o.mtu && r->o.mtu < r->mtu)
		r->mtu = (uint32_t)r->o.mtu;
	snprintf(r->text, sizeof(r->text), "%s:%u, %s, GID %u, MTU %u", r->name, r->port,
		 r->attr.link_layer == IBV_LINK_LAYER_ETHERNET ? "Ethernet" : "InfiniBand",
		 r->gid_index, r->mtu);
	*out = r;
	return 0;
}

void rawverbs_address(const struct rawverbs *r, struct rawverbs_address *out)
{
	memset(out, 0, sizeof(*out));
	memcpy(out->gid, r->gid.raw, sizeof(out->gid));
	out->address = r->base;
	out->rkey = r->mr->rkey;
	out->psn = PSN;
	out->qps = (uint32_t)r->o.qps;
	out->mtu = r->mtu;
	out->lid = r->attr.lid;
	out->link_layer = r->attr.link_layer;
	for (uint64_t i = 0; i < r->o.qps; i++)
		out->qpn[i] = r->qp[i].qp->qp_num;
}

static int mtu_code(uint32_t bytes)
{
	int code = IBV_MTU_256;

	while (code < IBV_MTU_4096 && (128u << code) < bytes)
		code++;
	return code;
}

static int connect_qp(struct rawverbs *r, struct raw_qp *q, const struct rawverbs_address *peer,
		      uint32_t qpn)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = (enum ibv_mtu)mtu_code(peer->mtu < r->mtu ? peer->mtu : r->mtu),
		.dest_qp_num = qpn,
		.rq_psn = peer->psn,
		.max_dest_rd_atomic = READS,
		.min_rnr_timer = RNR_TIMER,
		.ah_attr = { .dlid = (uint16_t)peer->lid,
			     .sl = (uint8_t)r->o.service_level,
			     .port_num = r->port,
			     .is_global =
				     peer->link_layer == IBV_LINK_LAYER_ETHERNET || peer->lid == 0,
			     .grh = { .sgid_index = r->gid_index, .hop_limit = HOPS } },
	};
	int rc;

	memcpy(attr.ah_attr.grh.dgid.raw, peer->gid, sizeof(peer->gid));
	rc = r->lib->modify_qp(q->qp, &attr,
			       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				       IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
				       IBV_QP_MIN_RNR_TIMER);
	if (rc)
		return failed("ibv_modify_qp to RTR (is the peer's GID reachable?)", rc);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS,
				     .timeout = (uint8_t)r->o.timeout,
				     .retry_cnt = RETRIES,
				     .rnr_retry = RETRIES,
				     .sq_psn = PSN,
				     .max_rd_atomic = READS };
	rc = r->lib->modify_qp(q->qp, &attr,
			       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				       IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
	return rc ? failed("ibv_modify_qp to RTS", rc) : 0;
}

int rawverbs_connect(struct rawverbs *r, const struct rawverbs_address *peer)
{
	int rc = 0;

	if (peer->qps != r->o.qps) {
		bench_complain(
			"the other end has %u queue pairs, this one %llu: give both the same -q",
			peer->qps, (unsigned long long)r->o.qps);
		return -EINVAL;
	}
	if (peer->link_layer != r->attr.link_layer) {
		bench_complain(
			"the two ends are of two kinds, InfiniBand and Ethernet: choose by -d");
		return -EINVAL;
	}
	for (uint64_t i = 0; i < r->o.qps && !rc; i++)
		rc = connect_qp(r, &r->qp[i], peer, peer->qpn[i]);
	r->peer_base = peer->address;
	r->peer_rkey = peer->rkey;
	return rc;
}

void rawverbs_close(struct rawverbs *r)
{
	if (!r)
		return;
	for (unsigned i = 0; i < RAWVERBS_QPS_MAX; i++) {
		if (r->qp[i].qp)
			r->lib->destroy_qp(r->qp[i].qp);
		free(r->qp[i].wrs);
	}
	if (r->cq)
		r->lib->destroy_cq(r->cq);
	if (r->mr)
		r->lib->dereg_mr(r->mr);
	if (r->pd)
		r->lib->dealloc_pd(r->pd);
	if (r->ctx)
		r->lib->close_device(r->ctx);
	free(r);
}

const char *rawverbs_error(const struct rawverbs *r)
{
	return r->error;
}

const char *rawverbs_text(const struct rawverbs *r)
{
	return r->text;
}

bool rawverbs_has_wr(const struct rawverbs *r)
{
	return r->qp[0].qpx != NULL;
}
