/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools/shim's declarations against a release of NVSHMEM, member by member: place and size. Not compiled by the build, which needs no NVSHMEM, but by hand for each new
 * release, with the include folder of its wheel and of CUDA:
 *
 *   g++ -std=c++17 -fsyntax-only -DLAYOUT=EPF_NV_3_7 -I. -I NVSHMEM/include -I CUDA/include -I CUDA/include/cccl tests/headers/nvshmem_layout.cc
 *
 * What no declaration says, the words between teams and what device code asks of the channel, has to be read: docs/reference/shim.md.
 */
#include "device_host/nvshmem_common.cuh"
#include "device_host/nvshmem_types.h"
#include "device_host_transport/nvshmem_common_ibgda.h"

#include <cstddef>

#define _Static_assert static_assert
#define inline constexpr inline
#include "tools/shim/nvstate.h"
#undef inline

#define SAME(ours, member, theirs, name)                                                  \
 static_assert(offsetof(struct ours, member) == offsetof(theirs, name) &&                 \
		       sizeof(((struct ours *)0)->member) == sizeof(((theirs *)0)->name), \
	       #ours ": " #member)
#define STATE(member, name) SAME(epf_nv_host_state, member, nvshmemi_device_host_state_t, name)
#define IBGDA(member, name) SAME(epf_nv_ibgda_state, member, nvshmemi_ibgda_device_state_t, name)
#define QP(member, name)    SAME(epf_nv_qp, member, nvshmemi_ibgda_device_qp_t, name)
#define CQ(member, name)    SAME(epf_nv_cq, member, nvshmemi_ibgda_device_cq_t, name)
#define TEAM(member, name)  SAME(epf_nv_team, member, nvshmemi_team_t, name)

static_assert(sizeof(nvshmemi_device_host_state_t) == epf_nv_state_bytes(LAYOUT), "state");
static_assert(sizeof(nvshmemi_team_t) == epf_nv_team_bytes(LAYOUT), "team");
static_assert(sizeof(struct epf_nv_ibgda_state) == sizeof(nvshmemi_ibgda_device_state_t), "ibgda");
static_assert(sizeof(struct epf_nv_qp) == sizeof(nvshmemi_ibgda_device_qp_t), "qp");
static_assert(sizeof(struct epf_nv_cq) == sizeof(nvshmemi_ibgda_device_cq_t), "cq");
static_assert(sizeof(struct epf_nv_key) == sizeof(nvshmemi_ibgda_device_key_t), "key");
static_assert(sizeof(struct epf_nv_version) == sizeof(nvshmemi_version_t), "version");

STATE(version, version);
STATE(mype, mype);
STATE(npes, npes);
STATE(node_mype, node_mype);
STATE(node_npes, node_npes);
STATE(pe_dist, pe_dist);
STATE(proxy, proxy);
STATE(atomics_sync, atomics_sync);
STATE(job_connectivity, job_connectivity);
STATE(proxy_ops_are_ordered, proxy_ops_are_ordered);
STATE(atomics_complete_on_quiet, atomics_complete_on_quiet);
STATE(heap_base, heap_base);
STATE(heap_size, heap_size);
STATE(peer_heap_base_p2p, peer_heap_base_p2p);
STATE(peer_heap_base_remote, peer_heap_base_remote);
STATE(symmetric_heap_kind, symmetric_heap_kind);
STATE(enable_rail_opt, enable_rail_opt);
STATE(atomics_le_min_size, atomics_le_min_size);
STATE(timeout, timeout);
STATE(test_wait_any_start, test_wait_any_start_idx_ptr);
STATE(team_pool, team_pool);
STATE(psync_pool, psync_pool);
STATE(sync_counter, sync_counter);
STATE(coll, gpu_coll_env_params_var);
SAME(epf_nv_coll, barrier_dissem_kval, gpu_coll_env_params_t, barrier_dissem_kval);
SAME(epf_nv_coll, barrier_tg_dissem_kval, gpu_coll_env_params_t, barrier_tg_dissem_kval);
STATE(channel_buf, proxy_channels_buf);
STATE(channel_g_buf, proxy_channel_g_buf);
STATE(channel_g_coalescing_buf, proxy_channel_g_coalescing_buf);
STATE(channel_g_buf_head, proxy_channel_g_buf_head_ptr);
STATE(channel_g_buf_size, proxy_channel_g_buf_size);
STATE(channel_g_buf_log_size, proxy_channel_g_buf_log_size);
STATE(channel_issue, proxy_channels_issue);
STATE(channel_complete, proxy_channels_complete);
STATE(channel_complete_local, proxy_channels_complete_local_ptr);
STATE(channel_quiet_issue, proxy_channels_quiet_issue);
STATE(channel_quiet_ack, proxy_channels_quiet_ack);
STATE(channel_cst_issue, proxy_channels_cst_issue);
STATE(channel_cst_ack, proxy_channels_cst_ack);
STATE(channel_buf_size, proxy_channel_buf_size);
STATE(channel_buf_logsize, proxy_channel_buf_logsize);
STATE(exit_request, global_exit_request_state);
STATE(exit_code, global_exit_code);
STATE(ibgda_is_initialized, ibgda_is_initialized);
STATE(is_initialized, nvshmemi_is_nvshmem_initialized);
STATE(is_bootstrapped, nvshmemi_is_nvshmem_bootstrapped);

IBGDA(version, version);
IBGDA(num_rc_per_pe, num_rc_per_pe);
IBGDA(rc_map_type, rc_map_type);
IBGDA(num_requests_in_batch, num_requests_in_batch);
IBGDA(log2_cumem_granularity, log2_cumem_granularity);
IBGDA(num_devices_initialized, num_devices_initialized);
IBGDA(nic_buf_on_gpumem, nic_buf_on_gpumem);
IBGDA(support_half_av_seg, support_half_av_seg);
IBGDA(may_skip_cst, may_skip_cst);
IBGDA(use_async_postsend, use_async_postsend);
IBGDA(lkeys, constmem.lkeys);
IBGDA(rkeys, constmem.rkeys);
IBGDA(cqs, globalmem.cqs);
IBGDA(dcis, globalmem.dcis);
IBGDA(rcs, globalmem.rcs);
IBGDA(more_lkeys, globalmem.lkeys);
IBGDA(more_rkeys, globalmem.rkeys);
SAME(epf_nv_key, key, nvshmemi_ibgda_device_key_t, key);
SAME(epf_nv_key, next_addr, nvshmemi_ibgda_device_key_t, next_addr);

QP(version, version);
QP(qp_type, qp_type);
QP(qpn, qpn);
QP(dev_idx, dev_idx);
QP(ibuf_nslots, ibuf.nslots);
QP(ibuf_buf, ibuf.buf);
QP(ibuf_lkey, ibuf.lkey);
QP(ibuf_rkey, ibuf.rkey);
QP(nwqes, tx_wq.nwqes);
QP(wqe, tx_wq.wqe);
QP(dbrec, tx_wq.dbrec);
QP(bf, tx_wq.bf);
QP(cq, tx_wq.cq);
QP(prod_idx, tx_wq.prod_idx);
QP(mvars_version, mvars.version);
QP(post_send_lock, mvars.post_send_lock);
QP(resv_head, mvars.tx_wq.resv_head);
QP(ready_head, mvars.tx_wq.ready_head);
QP(posted, mvars.tx_wq.prod_idx);
QP(cons_idx, mvars.tx_wq.cons_idx);
static_assert(EPF_NV_QP_RC == NVSHMEMI_IBGDA_DEVICE_QP_TYPE_RC, "RC");

CQ(version, version);
CQ(qp_type, qp_type);
CQ(dbrec, dbrec);
CQ(cqe, cqe);
CQ(prod_idx, prod_idx);
CQ(cons_idx, cons_idx);
CQ(cqn, cqn);
CQ(ncqes, ncqes);
CQ(qpn, qpn);

TEAM(version, version);
TEAM(my_pe, my_pe);
TEAM(start, start);
TEAM(stride, stride);
TEAM(size, size);
TEAM(team_idx, team_idx);
TEAM(are_gpus_p2p_connected, are_gpus_p2p_connected);
static_assert(offsetof(nvshmemi_team_t, pe_mapping) ==
		      offsetof(struct epf_nv_team, pe_mapping) + 8 * epf_nv_map(LAYOUT),
	      "map");

static_assert(SYNC_SIZE == 27648, "words");
static_assert((int)EPF_NV_PROXY_FULL == NVSHMEMI_PROXY_FULL &&
		      (int)EPF_NV_JOB_PROXY == NVSHMEMI_JOB_GPU_PROXY,
	      "values");

/* As struct epf_host_attr and struct epf_host_id, whose header declares functions that NVSHMEM's declare, too. */
static_assert(sizeof(nvshmemx_init_attr_t) == 144 && sizeof(nvshmemx_uniqueid_t) == 128 &&
		      offsetof(nvshmemx_init_attr_t, args.uid_args.id) == 32 &&
		      offsetof(nvshmemx_init_attr_t, args.uid_args.myrank) == 40 &&
		      offsetof(nvshmemx_init_attr_t, args.uid_args.nranks) == 44,
	      "start");
