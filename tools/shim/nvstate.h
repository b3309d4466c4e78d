/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What NVSHMEM's host library hands to the device code that is compiled into a program: two structures in constant memory and what they
 * point to. These are declarations of our own, of the fields that the device code of DeepEP and of NVSHMEM 3.4.5 to 3.8.0 reads, at the
 * offsets those releases have; everything else is reserved and zero, as is what later releases have behind the end. Filled by nvstate.c, copied by host.c. Addresses are device addresses.
 * It must hold no field that has not been checked against a release (docs/reference/shim.md says how), and nothing here is used by the fabric.
 */
#ifndef EPF_TOOLS_SHIM_NVSTATE_H
#define EPF_TOOLS_SHIM_NVSTATE_H

#include <stddef.h>
#include <stdint.h>

/* The release a program was compiled with, as its start-up code passes it: three ints by value. */
struct epf_nv_version {
	int major, minor, patch;
};

/* Releases with one layout. */
enum epf_nv_layout {
	EPF_NV_NONE = 0,
	EPF_NV_3_4_5 = 1,
	EPF_NV_3_5_1 = 2,  /* a team has a field more, and synchronisation words more */
	EPF_NV_3_5_19 = 3, /* barriers take turns with two halves of those words */
	EPF_NV_3_5_21 = 4, /* the last two fields of a team have changed places */
	EPF_NV_3_6_5 = 5,  /* a team's synchronisation words are an even number */
	EPF_NV_3_7 = 6,    /* the state and a team have fields more: 3.7.0 to 3.7.2 */
	EPF_NV_3_8_0 = 7,  /* and more */
};

/* Values of fields. */
enum {
	EPF_NV_PROXY_FULL = 2,
	EPF_NV_JOB_PROXY =
		8, /* not every peer by loads and stores; barriers signal through the channel */
	EPF_NV_KEYS = 64,
	EPF_NV_FIXED_TEAMS = 6, /* teams that exist from the start: world, shared, node, ... */
	EPF_NV_TEAMS = 8,
	EPF_NV_WORLD = 0,
	EPF_NV_QP_RC = 3,
	EPF_NV_IBGDA = 1, /* a transport of device code, from 3.6.5 on */
};

/* At least a team's part of the synchronisation words in any release, see epf_nv_psync_words(). */
#define EPF_NV_MAX_PSYNC_WORDS (UINT64_C(20) * 27648 + 4096)

struct epf_nv_coll {
	int32_t version;
	int32_t barrier_dissem_kval;
	int32_t barrier_tg_dissem_kval;
	uint32_t reserved[125];
};

struct epf_nv_host_state {
	int32_t version;
	int32_t mype, npes;
	int32_t node_mype, node_npes;
	int32_t pe_dist;
	int32_t proxy;
	int32_t atomics_sync;
	int32_t job_connectivity;
	uint8_t proxy_ops_are_ordered;
	uint8_t atomics_complete_on_quiet;
	uint8_t reserved0[2];
	uint64_t heap_base, heap_size;
	uint64_t peer_heap_base_p2p;    /* array of npes addresses; 0: not mapped */
	uint64_t peer_heap_base_remote; /* array of npes addresses */
	uint8_t symmetric_heap_kind, enable_rail_opt;
	uint8_t reserved1[2];
	uint32_t atomics_le_min_size;
	uint64_t timeout;
	uint64_t test_wait_any_start;
	uint64_t team_pool; /* array of addresses of teams */
	uint64_t psync_pool;
	uint64_t sync_counter;
	struct epf_nv_coll coll;
	uint64_t channel_buf;
	uint64_t channel_g_buf, channel_g_coalescing_buf, channel_g_buf_head;
	uint64_t channel_g_buf_size, channel_g_buf_log_size;
	uint64_t channel_issue;
	uint64_t channel_complete, channel_complete_local;
	uint64_t channel_quiet_issue, channel_quiet_ack;
	uint64_t channel_cst_issue, channel_cst_ack;
	uint64_t channel_buf_size;
	uint32_t channel_buf_logsize;
	uint32_t reserved2;
	uint64_t exit_request, exit_code;
	uint8_t ibgda_is_initialized, is_initialized, is_bootstrapped;
	uint8_t reserved3[5];
};

/* A key: of all addresses below next_addr. */
struct epf_nv_key {
	uint32_t key; /* be32 */
	uint32_t reserved;
	uint64_t next_addr;
};

struct epf_nv_ibgda_state {
	int32_t version;
	uint32_t reserved0[6];
	uint32_t num_rc_per_pe;
	uint32_t rc_map_type;
	uint32_t num_requests_in_batch;
	uint64_t log2_cumem_granularity;
	int32_t num_devices_initialized;
	uint8_t nic_buf_on_gpumem, support_half_av_seg, may_skip_cst, use_async_postsend;
	struct epf_nv_key lkeys[EPF_NV_KEYS];
	struct epf_nv_key rkeys[EPF_NV_KEYS];
	uint8_t reserved1[6152];
	uint64_t cqs, dcis;
	uint64_t rcs; /* array of struct epf_nv_qp */
	uint64_t reserved2[2];
	uint64_t more_lkeys, more_rkeys; /* keys past the first EPF_NV_KEYS */
	uint8_t reserved3[72];
};

struct epf_nv_cq {
	int32_t version;
	int32_t qp_type;
	uint64_t dbrec;
	uint64_t cqe;
	uint64_t prod_idx;
	uint64_t cons_idx; /* written by kernels */
	uint64_t reserved[2];
	uint32_t cqn;
	uint32_t ncqes;
	uint32_t qpn;
	uint32_t reserved1;
};

struct epf_nv_qp {
	int32_t version;
	int32_t qp_type;
	uint32_t qpn;
	uint32_t dev_idx;
	uint32_t ibuf_nslots;
	uint32_t reserved0;
	uint64_t ibuf_buf;
	uint32_t ibuf_lkey, ibuf_rkey; /* be32 */
	uint16_t nwqes;
	uint16_t reserved1[3];
	uint64_t wqe;
	uint64_t dbrec;
	uint64_t bf; /* doorbell */
	uint64_t cq; /* address of a struct epf_nv_cq */
	uint64_t prod_idx;
	int32_t mvars_version;
	int32_t post_send_lock;
	uint64_t resv_head, ready_head, posted, cons_idx; /* written by kernels */
	uint64_t reserved2[7];
};

/* A team. Which of the last two fields is the map depends on the release; the other is for calls that are not served. */
struct epf_nv_team {
	int32_t version;
	int32_t my_pe, start, stride, size, team_idx;
	uint8_t reserved0[212];
	uint8_t are_gpus_p2p_connected;
	uint8_t reserved1[547];
	uint64_t pe_mapping[2]; /* [epf_nv_map()]: array of int, see epf_nv_fill_team() */
	uint8_t reserved2[16];
};

/*
 * From 3.6.5 on, the program's own part of NVSHMEM reads this to know which transport's structure it is asked for: EPF_NV_IBGDA, or none.
 * Shared with any other NVSHMEM of the process, so it is set around each such question only.
 */
extern __attribute__((visibility("default"))) int nvshmem_selected_device_transport;

/* The releases' sizes of the state and of a team, and which of a team's last two fields is the map. */
static inline uint32_t epf_nv_state_bytes(enum epf_nv_layout layout)
{
	return layout >= EPF_NV_3_8_0 ? 848 : layout >= EPF_NV_3_7 ? 816 : 776;
}

static inline uint32_t epf_nv_team_bytes(enum epf_nv_layout layout)
{
	return layout >= EPF_NV_3_8_0   ? 816
	       : layout >= EPF_NV_3_7   ? 808
	       : layout >= EPF_NV_3_5_1 ? 800
					: 792;
}

static inline unsigned epf_nv_map(enum epf_nv_layout layout)
{
	return layout == EPF_NV_3_5_1 || layout == EPF_NV_3_5_19;
}

#define EPF_NV_AT(type, field, at) \
 _Static_assert(offsetof(struct type, field) == (at), #type "." #field)
#define EPF_NV_SIZE(type, size) _Static_assert(sizeof(struct type) == (size), #type)

EPF_NV_SIZE(epf_nv_version, 12);
EPF_NV_SIZE(epf_nv_coll, 512);
EPF_NV_SIZE(epf_nv_host_state, 776);
EPF_NV_AT(epf_nv_host_state, mype, 4);
EPF_NV_AT(epf_nv_host_state, npes, 8);
EPF_NV_AT(epf_nv_host_state, node_mype, 12);
EPF_NV_AT(epf_nv_host_state, node_npes, 16);
EPF_NV_AT(epf_nv_host_state, pe_dist, 20);
EPF_NV_AT(epf_nv_host_state, proxy, 24);
EPF_NV_AT(epf_nv_host_state, atomics_sync, 28);
EPF_NV_AT(epf_nv_host_state, job_connectivity, 32);
EPF_NV_AT(epf_nv_host_state, proxy_ops_are_ordered, 36);
EPF_NV_AT(epf_nv_host_state, atomics_complete_on_quiet, 37);
EPF_NV_AT(epf_nv_host_state, heap_base, 40);
EPF_NV_AT(epf_nv_host_state, heap_size, 48);
EPF_NV_AT(epf_nv_host_state, peer_heap_base_p2p, 56);
EPF_NV_AT(epf_nv_host_state, peer_heap_base_remote, 64);
EPF_NV_AT(epf_nv_host_state, symmetric_heap_kind, 72);
EPF_NV_AT(epf_nv_host_state, atomics_le_min_size, 76);
EPF_NV_AT(epf_nv_host_state, timeout, 80);
EPF_NV_AT(epf_nv_host_state, test_wait_any_start, 88);
EPF_NV_AT(epf_nv_host_state, team_pool, 96);
EPF_NV_AT(epf_nv_host_state, psync_pool, 104);
EPF_NV_AT(epf_nv_host_state, sync_counter, 112);
EPF_NV_AT(epf_nv_host_state, coll, 120);
EPF_NV_AT(epf_nv_coll, barrier_dissem_kval, 4);
EPF_NV_AT(epf_nv_coll, barrier_tg_dissem_kval, 8);
EPF_NV_AT(epf_nv_host_state, channel_buf, 632);
EPF_NV_AT(epf_nv_host_state, channel_g_buf, 640);
EPF_NV_AT(epf_nv_host_state, channel_g_buf_head, 656);
EPF_NV_AT(epf_nv_host_state, channel_g_buf_size, 664);
EPF_NV_AT(epf_nv_host_state, channel_issue, 680);
EPF_NV_AT(epf_nv_host_state, channel_complete, 688);
EPF_NV_AT(epf_nv_host_state, channel_complete_local, 696);
EPF_NV_AT(epf_nv_host_state, channel_quiet_issue, 704);
EPF_NV_AT(epf_nv_host_state, channel_quiet_ack, 712);
EPF_NV_AT(epf_nv_host_state, channel_cst_issue, 720);
EPF_NV_AT(epf_nv_host_state, channel_cst_ack, 728);
EPF_NV_AT(epf_nv_host_state, channel_buf_size, 736);
EPF_NV_AT(epf_nv_host_state, channel_buf_logsize, 744);
EPF_NV_AT(epf_nv_host_state, exit_request, 752);
EPF_NV_AT(epf_nv_host_state, exit_code, 760);
EPF_NV_AT(epf_nv_host_state, ibgda_is_initialized, 768);
EPF_NV_AT(epf_nv_host_state, is_initialized, 769);
EPF_NV_AT(epf_nv_host_state, is_bootstrapped, 770);
EPF_NV_SIZE(epf_nv_key, 16);
EPF_NV_AT(epf_nv_key, next_addr, 8);
EPF_NV_SIZE(epf_nv_ibgda_state, 8384);
EPF_NV_AT(epf_nv_ibgda_state, num_rc_per_pe, 28);
EPF_NV_AT(epf_nv_ibgda_state, rc_map_type, 32);
EPF_NV_AT(epf_nv_ibgda_state, num_requests_in_batch, 36);
EPF_NV_AT(epf_nv_ibgda_state, log2_cumem_granularity, 40);
EPF_NV_AT(epf_nv_ibgda_state, num_devices_initialized, 48);
EPF_NV_AT(epf_nv_ibgda_state, use_async_postsend, 55);
EPF_NV_AT(epf_nv_ibgda_state, lkeys, 56);
EPF_NV_AT(epf_nv_ibgda_state, rkeys, 1080);
EPF_NV_AT(epf_nv_ibgda_state, cqs, 8256);
EPF_NV_AT(epf_nv_ibgda_state, dcis, 8264);
EPF_NV_AT(epf_nv_ibgda_state, rcs, 8272);
EPF_NV_AT(epf_nv_ibgda_state, more_lkeys, 8296);
EPF_NV_AT(epf_nv_ibgda_state, more_rkeys, 8304);
EPF_NV_SIZE(epf_nv_cq, 72);
EPF_NV_AT(epf_nv_cq, qp_type, 4);
EPF_NV_AT(epf_nv_cq, cqe, 16);
EPF_NV_AT(epf_nv_cq, prod_idx, 24);
EPF_NV_AT(epf_nv_cq, cons_idx, 32);
EPF_NV_AT(epf_nv_cq, cqn, 56);
EPF_NV_AT(epf_nv_cq, ncqes, 60);
EPF_NV_AT(epf_nv_cq, qpn, 64);
EPF_NV_SIZE(epf_nv_qp, 184);
EPF_NV_AT(epf_nv_qp, qp_type, 4);
EPF_NV_AT(epf_nv_qp, qpn, 8);
EPF_NV_AT(epf_nv_qp, dev_idx, 12);
EPF_NV_AT(epf_nv_qp, ibuf_nslots, 16);
EPF_NV_AT(epf_nv_qp, ibuf_buf, 24);
EPF_NV_AT(epf_nv_qp, ibuf_lkey, 32);
EPF_NV_AT(epf_nv_qp, nwqes, 40);
EPF_NV_AT(epf_nv_qp, wqe, 48);
EPF_NV_AT(epf_nv_qp, dbrec, 56);
EPF_NV_AT(epf_nv_qp, bf, 64);
EPF_NV_AT(epf_nv_qp, cq, 72);
EPF_NV_AT(epf_nv_qp, prod_idx, 80);
EPF_NV_AT(epf_nv_qp, mvars_version, 88);
EPF_NV_AT(epf_nv_qp, post_send_lock, 92);
EPF_NV_AT(epf_nv_qp, resv_head, 96);
EPF_NV_AT(epf_nv_qp, ready_head, 104);
EPF_NV_AT(epf_nv_qp, posted, 112);
EPF_NV_SIZE(epf_nv_team, 816);
EPF_NV_AT(epf_nv_team, my_pe, 4);
EPF_NV_AT(epf_nv_team, start, 8);
EPF_NV_AT(epf_nv_team, stride, 12);
EPF_NV_AT(epf_nv_team, size, 16);
EPF_NV_AT(epf_nv_team, team_idx, 20);
EPF_NV_AT(epf_nv_team, are_gpus_p2p_connected, 236);
EPF_NV_AT(epf_nv_team, pe_mapping, 784);

/**
 * epf_nv_layout() - the layout of a release.
 * @text: set to a sentence that names both the release and what is served, when it is not served; NULL: not wanted.
 *
 * Return: EPF_NV_NONE for a release that is not served.
 */
enum epf_nv_layout epf_nv_layout(struct epf_nv_version v, char *text, size_t size);

/**
 * epf_nv_psync_words() - 8-byte words between the synchronisation words of two teams, as device code counts them.
 * @world: ranks, at most 4,096.
 *
 * For parameters of collectives that are 0, which is what epf_nv_fill() hands out.
 */
uint64_t epf_nv_psync_words(enum epf_nv_layout layout, int32_t world);

/* Where things are, for epf_nv_fill(): device addresses. */
struct epf_nv_places {
	uint64_t heap, heap_bytes;
	uint64_t p2p, remote;         /* arrays of npes addresses */
	uint64_t teams;               /* array of EPF_NV_TEAMS addresses */
	uint64_t psync, sync_counter; /* in the heap */
	uint64_t channel;             /* EPF_CHANNEL_BYTES */
	uint64_t
		channel_words; /* pinned: complete, quiet issue, quiet ack, cst issue, cst ack, 64 bytes apart */
	uint64_t
		device_words; /* of the device: issue, complete (local), g head, exit request, exit code, timeout: 64 bytes apart */
	uint64_t rcs, cqs;
	uint64_t more_rkeys; /* keys of ranks past EPF_NV_KEYS, or 0 */
};

struct epf_nv_job {
	int32_t rank, world, node_rank, node_world;
	uint32_t rings_per_pe;
	enum epf_nv_layout layout;
};

/* Fills both structures for a rank. */
void epf_nv_fill(const struct epf_nv_job *job, const struct epf_nv_places *at,
		 struct epf_nv_host_state *host, struct epf_nv_ibgda_state *ibgda);

/* One ring's pair. index: its place in the arrays; ring memory as device addresses; cqs: address of the array of completion queues. */
struct epf_nv_ring_places {
	uint64_t slots, wakeup, cqe, dbrec, cq, cons_idx;
	uint32_t number, depth;
};

void epf_nv_fill_ring(const struct epf_nv_ring_places *at, struct epf_nv_qp *qp,
		      struct epf_nv_cq *cq);

/**
 * epf_nv_fill_team() - a team of ranks start, start + stride, ...
 * @map: size + world ints are written there, first the rank of each member, then the member of each rank (-1: none).
 * @map_at: its device address.
 */
void epf_nv_fill_team(const struct epf_nv_job *job, int index, int start, int stride, int size,
		      uint64_t map_at, struct epf_nv_team *team, int32_t *map);

#endif
