/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fills the structures of nvshmem's device code (nvstate.h). Called once, when a program starts its NVSHMEM, and when it makes a team. What it
 * chooses: one device, one key for the whole heap, the peer's number in the remote key, barriers by the proxy channel. It touches no device.
 */
#include "tools/shim/nvstate.h"

#include "tools/shim/channel.h"
#include "tools/shim/modules.h"

#include <stdio.h>
#include <string.h>

enum { GRANULARITY_LOG2 = 40, WORD_BYTES = 64 };

_Static_assert(EPF_WR_MAX_HEAP == UINT64_C(1) << GRANULARITY_LOG2, "one key covers the heap");

/* A structure's version and size, as NVSHMEM marks them. */
static int32_t marked(unsigned version, size_t bytes)
{
	return (int32_t)(version << 16 | (unsigned)bytes);
}

enum epf_nv_layout epf_nv_layout(struct epf_nv_version v, char *text, size_t size)
{
	/* Layouts have changed between patches: one that has not been looked at is not served. */
	static const struct {
		struct epf_nv_version version;
		enum epf_nv_layout layout;
	} known[] = {
		{ { 3, 4, 5 }, EPF_NV_3_4_5 },   { { 3, 5, 1 }, EPF_NV_3_5_1 },
		{ { 3, 5, 19 }, EPF_NV_3_5_19 }, { { 3, 5, 21 }, EPF_NV_3_5_21 },
		{ { 3, 6, 5 }, EPF_NV_3_6_5 },   { { 3, 7, 0 }, EPF_NV_3_7 },
		{ { 3, 7, 1 }, EPF_NV_3_7 },     { { 3, 7, 2 }, EPF_NV_3_7 },
		{ { 3, 8, 0 }, EPF_NV_3_8_0 },
	};

	for (unsigned i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (memcmp(&v, &known[i].version, sizeof(v)) == 0)
			return known[i].layout;
	if (text)
		snprintf(
			text, size,
			"the program was built with NVSHMEM %d.%d.%d, this shim serves " EPF_NV_SERVED
			": rebuild it with one of them",
			v.major, v.minor, v.patch);
	return EPF_NV_NONE;
}

uint64_t epf_nv_psync_words(enum epf_nv_layout layout, int32_t world)
{
	uint64_t words = (layout >= EPF_NV_3_5_19 ? 20 : 16) * UINT64_C(27648);

	words += layout >= EPF_NV_3_5_1 ? (uint64_t)world : 0;
	return layout >= EPF_NV_3_6_5 ? words + words % 2 : words;
}

static void fill_channel(const struct epf_nv_places *at, struct epf_nv_host_state *s)
{
	s->channel_buf = at->channel;
	s->channel_issue = at->device_words;
	s->channel_complete_local = at->device_words + WORD_BYTES;
	s->channel_g_buf_head = at->device_words + 2 * WORD_BYTES;
	s->exit_request = at->device_words + 3 * WORD_BYTES;
	s->exit_code = at->device_words + 4 * WORD_BYTES;
	s->timeout = at->device_words + 5 * WORD_BYTES;
	s->channel_complete = at->channel_words;
	s->channel_quiet_issue = at->channel_words + WORD_BYTES;
	s->channel_quiet_ack = at->channel_words + 2 * WORD_BYTES;
	s->channel_cst_issue = at->channel_words + 3 * WORD_BYTES;
	s->channel_cst_ack = at->channel_words + 4 * WORD_BYTES;
	s->channel_buf_size = EPF_CHANNEL_BYTES;
	s->channel_buf_logsize = EPF_CHANNEL_LOG2;
}

static struct epf_nv_key key(uint32_t value, uint64_t end)
{
	return (struct epf_nv_key){ .key = __builtin_bswap32(value), .next_addr = end };
}

void epf_nv_fill(const struct epf_nv_job *job, const struct epf_nv_places *at,
		 struct epf_nv_host_state *host, struct epf_nv_ibgda_state *ibgda)
{
	memset(host, 0, sizeof(*host));
	host->version = marked(1, epf_nv_state_bytes(job->layout));
	host->mype = job->rank;
	host->npes = job->world;
	host->node_mype = job->node_rank;
	host->node_npes = job->node_world;
	host->proxy = EPF_NV_PROXY_FULL;
	host->job_connectivity = EPF_NV_JOB_PROXY;
	host->heap_base = at->heap;
	host->heap_size = at->heap_bytes;
	host->peer_heap_base_p2p = at->p2p;
	host->peer_heap_base_remote = at->remote;
	host->atomics_le_min_size = 8;
	host->team_pool = at->teams;
	host->psync_pool = at->psync;
	host->sync_counter = at->sync_counter;
	host->coll.version = marked(2, sizeof(host->coll));
	host->coll.barrier_dissem_kval = 2;
	host->coll.barrier_tg_dissem_kval = 2;
	fill_channel(at, host);
	/* ibgda_is_initialized stays 0, and so does the transport that 3.6.5 and later keep behind it: NVSHMEM's own code asks the channel then; DeepEP's looks at neither. */
	host->is_initialized = 1;
	host->is_bootstrapped = 1;

	memset(ibgda, 0, sizeof(*ibgda));
	ibgda->version = marked(job->layout >= EPF_NV_3_5_1 ? 2 : 1, sizeof(*ibgda));
	ibgda->num_rc_per_pe = job->rings_per_pe;
	ibgda->num_requests_in_batch = 1;
	ibgda->log2_cumem_granularity = GRANULARITY_LOG2;
	ibgda->num_devices_initialized = 1;
	for (unsigned i = 0; i < EPF_NV_KEYS; i++) {
		ibgda->lkeys[i] = key(EPF_WR_LKEY, at->heap + at->heap_bytes);
		ibgda->rkeys[i] = key(EPF_WR_RKEY | i, at->heap_bytes);
	}
	ibgda->rcs = at->rcs;
	ibgda->cqs = at->cqs;
	ibgda->more_rkeys = at->more_rkeys;
}

void epf_nv_fill_ring(const struct epf_nv_ring_places *at, struct epf_nv_qp *qp,
		      struct epf_nv_cq *cq)
{
	*qp = (struct epf_nv_qp){ .version = marked(1, sizeof(*qp)),
				  .qp_type = EPF_NV_QP_RC,
				  .qpn = at->number,
				  .ibuf_nslots = 1,
				  .ibuf_buf = EPF_WR_OLD_ADDR,
				  .ibuf_lkey = __builtin_bswap32(EPF_WR_OLD_LKEY),
				  .nwqes = (uint16_t)at->depth,
				  .wqe = at->slots,
				  .dbrec = at->dbrec,
				  .bf = at->wakeup,
				  .cq = at->cq,
				  .mvars_version = marked(1, 96) };
	*cq = (struct epf_nv_cq){ .version = marked(1, sizeof(*cq)),
				  .qp_type = EPF_NV_QP_RC,
				  .dbrec = at->dbrec,
				  .cqe = at->cqe,
				  .cons_idx = at->cons_idx,
				  .cqn = at->number,
				  .ncqes = at->depth,
				  .qpn = at->number };
}

void epf_nv_fill_team(const struct epf_nv_job *job, int index, int start, int stride, int size,
		      uint64_t map_at, struct epf_nv_team *team, int32_t *map)
{
	memset(team, 0, sizeof(*team));
	team->version = marked(2, epf_nv_team_bytes(job->layout));
	team->my_pe = -1;
	team->start = start;
	team->stride = stride;
	team->size = size;
	team->team_idx = index;
	team->pe_mapping[epf_nv_map(job->layout)] = map_at;
	for (int r = 0; r < job->world; r++)
		map[size + r] = -1;
	for (int i = 0; i < size; i++) {
		int rank = start + i * stride;

		map[i] = rank;
		map[size + rank] = i;
		if (rank == job->rank)
			team->my_pe = i;
	}
}
