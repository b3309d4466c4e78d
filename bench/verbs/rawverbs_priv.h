/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of rawverbs.h, for qp.c and loop.c only.
 */
#ifndef EPF_BENCH_RAWVERBS_IMPL_H
#define EPF_BENCH_RAWVERBS_IMPL_H

#include "bench/verbs/rawverbs.h"
#include "fabric/nic/rdma/lib.h"

#include <infiniband/verbs.h>

struct raw_qp {
	struct ibv_qp *qp;
	struct ibv_qp_ex *qpx;    /* NULL: lists */
	struct ibv_send_wr *wrs;  /* list mode: one list, ready to post */
	struct ibv_sge sge;       /* of all of them */
	uint64_t posted, reaped;  /* work requests */
	uint64_t since_signalled; /* since a completion was asked for */
};

struct rawverbs {
	const struct epf_verbs_lib *lib;
	struct rawverbs_opts o;
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	struct ibv_cq *cq;
	struct ibv_port_attr attr;
	union ibv_gid gid;
	uint8_t port, gid_index;
	uint32_t mtu;
	uint64_t base, peer_base;
	uint32_t peer_rkey;
	char name[RAWVERBS_DEVICE_MAX];
	char text[160];
	char error[192];
	struct raw_qp qp[RAWVERBS_QPS_MAX];
};

#endif
