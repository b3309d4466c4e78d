/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One engine core on the null NIC, and the inspection of what it stages: see null_rig.h.
 */
#include "tests/unit/engine/null_rig.h"

#include "fabric/engine/lane_hot.h"
#include "fabric/engine/limits.h"
#include "tests/unit/engine/grow_all.h"

#include <stdlib.h>
#include <string.h>

const struct null_region null_regions[NULL_REGIONS] = {
	[NULL_BOTH] = { NULL_BYTES, EPF_MR_REMOTE_WRITE | EPF_MR_REMOTE_READ },
	[NULL_READ_ONLY] = { NULL_BYTES, EPF_MR_REMOTE_READ },
	[NULL_WRITE_ONLY] = { NULL_BYTES, EPF_MR_REMOTE_WRITE },
	[NULL_ODD] = { NULL_ODD_BYTES, EPF_MR_REMOTE_WRITE | EPF_MR_REMOTE_READ },
	[NULL_PRIVATE] = { NULL_BYTES, 0 },
};

static void must(int rule)
{
	if (!rule)
		abort();
}

static uint64_t now(void *arg)
{
	return ((struct null_rig *)arg)->now_ns += 1000;
}

void null_rig_memory(struct null_rank *r)
{
	r->signals = aligned_alloc(128, NULL_SIGNALS * sizeof(*r->signals));
	r->shm = aligned_alloc(128, epf_ring_bytes(NULL_RING_LOG2));
	must(r->signals && r->shm);
	memset(r->signals, 0, NULL_SIGNALS * sizeof(*r->signals));
	for (uint32_t i = 0; i < NULL_REGIONS; i++) {
		r->memory[i] = calloc(1, null_regions[i].bytes);
		must(r->memory[i] != NULL);
	}
}

void null_rig_forget(struct null_rank *r)
{
	free(r->signals);
	free(r->shm);
	r->signals = NULL;
	r->shm = NULL;
	for (uint32_t i = 0; i < NULL_REGIONS; i++) {
		free(r->memory[i]);
		r->memory[i] = NULL;
	}
}

void null_rig_register(struct null_rig *rig, struct null_rank *r)
{
	uint32_t region;

	for (uint32_t i = 0; i < NULL_REGIONS; i++) {
		must(epf_core_add_region(rig->core, r->local, r->memory[i], null_regions[i].bytes,
					 null_regions[i].access, &region) == 0);
		must(region == i);
		r->lkeys[i] = rig->core->ranks[r->local].regions[i].mr.lkey;
	}
	memset(r->shm, 0, epf_ring_bytes(NULL_RING_LOG2));
	epf_ring_format(r->shm, NULL_RING_LOG2, 0, 0);
	epf_ring_reset(r->shm, rig->ring_start);
	must(epf_core_add_ring(rig->core, r->local, r->shm, NULL_RING_LOG2, 1, rig->ring_start,
			       &r->ring_id) == 0);
	epf_ring_producer_init(&r->ring, r->shm, rig->ring_start);
}

/* Far apart, so that what leaves one region does not reach another. */
uint64_t null_rig_raddr(uint32_t rank, uint32_t region)
{
	return (uint64_t)(rank + 1) << 40 | (uint64_t)(region + 1) << 20;
}

uint32_t null_rig_rkey(uint32_t rank, uint32_t region)
{
	return 0x1000 * (rank + 1) + region;
}

static void connect_all(struct null_rig *rig)
{
	struct epf_region_remote regions[NULL_REGIONS] = { 0 };
	uint64_t tokens[NULL_NODES * NULL_LANES];
	uint8_t addr[EPF_NIC_ADDR_BYTES];
	struct epf_node_info node = {
		.nic_addr = addr, .tokens = tokens, .receives = 64, .streams = NULL_STREAMS
	};
	struct epf_peer_info peer = { .n_signals = NULL_SIGNALS,
				      .n_regions = NULL_REGIONS,
				      .regions = regions };
	int len;

	must(epf_core_set_world(rig->core, NULL_WORLD, NULL_NODES, 0, NULL, tokens) == 0);
	len = rig->nic->ops->address(rig->nic, addr, sizeof(addr));
	must(len >= 0);
	node.nic_addr_len = (size_t)len;
	for (uint32_t n = 0; n < NULL_NODES; n++) {
		node.rank = n * NULL_LOCAL;
		must(epf_core_connect(rig->core, n, &node) == 0);
	}
	for (uint32_t r = 0; r < NULL_WORLD; r++) {
		for (uint32_t i = 0; i < NULL_REGIONS; i++) {
			unsigned access = null_regions[i].access;

			regions[i] = (struct epf_region_remote){
				.raddr = null_rig_raddr(r, i),
				.bytes = access ? null_regions[i].bytes : 0,
				.rkey = null_rig_rkey(r, i),
				.state = access ? EPF_REGION_LIVE : EPF_REGION_FREE,
				.access = (uint16_t)access
			};
		}
		peer.node = peer.place = r / NULL_LOCAL;
		must(epf_core_set_peer(rig->core, r, &peer) == 0);
	}
	grow_all(rig->core);
}

static void describe_unordered(const struct epf_nic *nic, struct epf_nic_caps *out)
{
	epf_nic_null_ops.describe(nic, out);
	out->ordered = 0;
}

static int reap_nothing(struct epf_nic *nic, struct epf_wc *wc, unsigned n)
{
	return 0;
}

int null_lanes_drain = 1;

static int is_drained(const struct epf_nic *nic, uint16_t lane)
{
	return null_lanes_drain;
}

/* Variants of the null NIC: its table with an operation or two replaced. */
static const struct epf_nic_ops *variant(const struct epf_nic *nic, bool unordered, bool holds)
{
	static struct epf_nic_ops table[2][2];
	struct epf_nic_ops *ops = &table[unordered][holds];

	*ops = *epf_nic_find("null");
	if (unordered)
		ops->describe = describe_unordered;
	if (holds) {
		ops->reap = reap_nothing;
		ops->lane_drained = is_drained;
	}
	return ops;
}

void null_rig_hold(struct null_rig *rig, bool holds)
{
	rig->core->ops = variant(rig->nic, !rig->core->ordered, holds);
}

void null_rig_open(struct null_rig *rig, bool unordered)
{
	struct epf_core_config cfg = { .max_ranks = NULL_LOCAL, .now = now, .now_arg = rig };
	struct epf_stats_opts o = { .size = sizeof(o), .instance = "null", .tsc_hz = 1000000000 };
	struct epf_stats_label labels[2] = { { NULL, 0 }, EPF_STATS_NO_LABEL };
	char why[256];

	must(epf_conf_init(&rig->conf) == 0);
	o.blocks[EPF_STATS_CORE] = 1;
	must(epf_stats_create(&o, &rig->stats, why, sizeof(why)) == 0);
	must(epf_stats_add_block(rig->stats, EPF_STATS_CORE, labels, 2, &cfg.stats) == 0);
	must(epf_nic_find("null")->open(&rig->conf, now, rig, &rig->nic) == 0);
	rig->nic->ops = variant(rig->nic, unordered, false);
	epf_limits_from_conf(&rig->conf, &cfg.limits);
	cfg.limits.lanes_per_node = NULL_LANES;
	cfg.limits.streams_per_node = NULL_STREAMS;
	cfg.limits.lane_depth = NULL_DEPTH;
	cfg.limits.lane_receives = NULL_DEPTH;
	cfg.limits.window = NULL_WINDOW;
	cfg.limits.ring_window = 64;
	cfg.limits.defer_limit = 8;
	cfg.limits.max_deferred = 64;
	cfg.nic = rig->nic;
	must(epf_core_create(&cfg, &rig->core) == 0);
	for (uint32_t rank = 0; rank < NULL_LOCAL; rank++) {
		struct null_rank *r = &rig->rank[rank];

		null_rig_memory(r);
		must(epf_core_add_rank(rig->core, rank, r->signals, NULL_SIGNALS, NULL_REGIONS,
				       NULL, &r->local) == 0);
		null_rig_register(rig, r);
	}
	connect_all(rig);
}

void null_rig_close(struct null_rig *rig)
{
	epf_core_destroy(rig->core);
	rig->nic->ops->close(rig->nic);
	epf_stats_destroy(rig->stats, 0);
	epf_conf_destroy(&rig->conf);
	for (uint32_t rank = 0; rank < NULL_LOCAL; rank++)
		null_rig_forget(&rig->rank[rank]);
}

uint64_t null_rig_count(const struct null_rig *rig, uint32_t stat)
{
	return epf_stat_get(rig->core->stats, stat);
}

static bool is_inside(uint64_t at, uint64_t len, uint64_t base, uint64_t bytes)
{
	return at >= base && len <= bytes && at - base <= bytes - len;
}

/* The near end of a transfer: memory of the rank whose ring the command came from. */
static bool is_local_legal(const struct null_rig *rig, const struct epf_wr *wr)
{
	uint32_t ring = (uint32_t)(wr->core >> 32) & 0xffffu;
	const struct null_rank *r = &rig->rank[rig->core->rings[ring]->rank];

	for (uint32_t i = 0; i < NULL_REGIONS; i++)
		if (r->memory[i] && r->lkeys[i] == wr->lkey &&
		    is_inside(wr->laddr, wr->len, (uint64_t)(uintptr_t)r->memory[i],
			      null_regions[i].bytes))
			return true;
	return false;
}

/* The far end: a region that some rank of the lane's node has exported with this key and this right. */
static bool is_remote_legal(const struct epf_core *core, const struct epf_lane *lane,
			    const struct epf_wr *wr, unsigned right)
{
	for (uint32_t rank = 0; rank < core->world; rank++) {
		const struct epf_peer *peer = &core->peers[rank];

		for (uint32_t i = 0; peer->node == lane->node && i < peer->n_regions; i++) {
			const struct epf_region_remote *r = &peer->regions[i];

			if ((r->access & right) && r->rkeys[lane->index] == wr->rkey &&
			    is_inside(wr->raddr, wr->len, r->raddr, r->bytes))
				return true;
		}
	}
	return false;
}

static const char *inspect_message(const struct epf_core *core, const struct epf_lane *lane,
				   const struct epf_msg *m)
{
	const struct epf_peer *peer;

	if (m->rank >= core->world || core->peers[m->rank].node != lane->node)
		return "message to a rank that is not there";
	peer = &core->peers[m->rank];
	if (m->kind == EPF_MSG_SIGNAL)
		return m->signal < peer->n_signals ? NULL : "no such signal";
	if (m->kind != EPF_MSG_ADD)
		return "a command became a message of another kind";
	if (m->signal >= peer->n_regions)
		return "addition to no region";
	if (!(peer->regions[m->signal].access & EPF_MR_REMOTE_WRITE))
		return "addition without the right to write";
	return m->a % 8 == 0 && is_inside(m->a, 8, 0, peer->regions[m->signal].bytes)
		       ? NULL
		       : "addition outside its region";
}

static const char *inspect_transfer(const struct null_rig *rig, const struct epf_lane *lane,
				    const struct epf_wr *wr)
{
	unsigned right = wr->op == EPF_WR_READ ? EPF_MR_REMOTE_READ : EPF_MR_REMOTE_WRITE;

	if (wr->flags & EPF_WR_INLINE) {
		if (!is_inside(wr->laddr, wr->len, (uint64_t)(uintptr_t)lane->msgs,
			       lane->n_slots * sizeof(*lane->msgs)))
			return "inline bytes from elsewhere";
	} else if (!is_local_legal(rig, wr)) {
		return "its own end lies outside its regions";
	}
	return is_remote_legal(rig->core, lane, wr, right)
		       ? NULL
		       : "the peer's end lies outside its regions, or lacks the right";
}

static const char *inspect_entry(const struct null_rig *rig, const struct epf_lane *lane,
				 uint32_t at)
{
	const struct epf_wr *wr = &lane->wrs[at & lane->mask];
	uint64_t ctl_bytes = sizeof(struct epf_ctl) + 8u * NULL_STREAMS;

	if (wr->core >> 60 == EPF_WRK_DATA)
		return wr->op == EPF_WR_SEND ? inspect_message(rig->core, lane, entry_message(wr))
					     : inspect_transfer(rig, lane, wr);
	if (wr->op != EPF_WR_SEND &&
	    !is_inside(wr->raddr, wr->len, rig->core->nodes[lane->node].ctl_raddr, ctl_bytes))
		return "a control write outside the control memory";
	return NULL;
}

const char *null_rig_inspect(struct null_rig *rig)
{
	const char *wrong = NULL;

	for (uint32_t l = 0; l < rig->core->n_lanes; l++) {
		const struct epf_lane *lane = &rig->core->lanes[l];
		const struct epf_lane *first = &rig->core->lanes[l / NULL_LANES * NULL_LANES];
		bool is_moved = false;

		for (uint32_t i = 0; i < NULL_LANES; i++)
			is_moved |= first[i].replays != rig->replays[first[i].id];
		if (lane->head - rig->seen[l] > lane->mask + 1)
			rig->seen[l] = lane->head - lane->mask - 1;
		for (; rig->seen[l] != lane->head; rig->seen[l]++)
			if (!is_moved && !wrong)
				wrong = inspect_entry(rig, lane, rig->seen[l]);
	}
	for (uint32_t l = 0; l < rig->core->n_lanes; l++)
		rig->replays[l] = rig->core->lanes[l].replays;
	return wrong;
}
