/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libFuzzer: an engine core against everything it does not control. The input is a little program: slots pushed into a ring, bytes
 * scribbled over the ring's memory, arrivals from a peer engine (messages of every kind, immediates), completions, ranks that go, come
 * back and are masked, and steps in between. The core must stay inside its tables and the memory of its ranks (AddressSanitizer
 * watches both), and at the end the honest rank beside it must still get its commands done.
 */
#include "fabric/base/conf.h"
#include "fabric/engine/data_path.h"
#include "fabric/engine/engine.h"
#include "fabric/engine/limits.h"
#include "fabric/engine/recovery.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { WORLD = 4, NODES = 2, SIGNALS = 16, BYTES = 8192, RING_LOG2 = 4, LANES = 2, MOST_OPS = 400 };

enum op { PUSH, SCRIBBLE, MESSAGE, IMMEDIATE, STEP, COMPLETE, GONE, BACK, MASK, OPS };

struct local {
	uint32_t index;
	struct epf_signal *signals;
	unsigned char *memory;
	struct epf_ring_shm *shm;
	struct epf_ring_producer ring;
	uint32_t ring_id;
};

struct world {
	struct epf_conf conf;
	struct epf_nic *nic;
	struct epf_stats *stats;
	struct epf_core *core;
	struct local rank[2]; /* 0 is the fuzzed one */
	uint64_t now_ns;
};

struct input {
	const uint8_t *at;
	size_t left;
};

static void must(int rule)
{
	if (!rule)
		abort();
}

static uint64_t now(void *arg)
{
	return ((struct world *)arg)->now_ns += 1000;
}

static void take(struct input *in, void *to, size_t n)
{
	size_t have = in->left < n ? in->left : n;

	memset(to, 0, n);
	memcpy(to, in->at, have);
	in->at += have;
	in->left -= have;
}

static unsigned take_byte(struct input *in)
{
	uint8_t b;

	take(in, &b, 1);
	return b;
}

static void open_ring(struct world *w, struct local *r)
{
	memset(r->shm, 0, epf_ring_bytes(RING_LOG2));
	epf_ring_format(r->shm, RING_LOG2, 0, 0);
	must(epf_core_add_ring(w->core, r->index, r->shm, RING_LOG2, 1, 0, &r->ring_id) == 0);
	epf_ring_producer_init(&r->ring, r->shm, 0);
}

static void make_memory(struct local *r)
{
	r->signals = aligned_alloc(128, SIGNALS * sizeof(*r->signals));
	r->memory = aligned_alloc(128, BYTES);
	r->shm = aligned_alloc(128, epf_ring_bytes(RING_LOG2));
	must(r->signals && r->memory && r->shm);
	memset(r->signals, 0, SIGNALS * sizeof(*r->signals));
	memset(r->memory, 0, BYTES);
}

static void forget(struct local *r)
{
	free(r->signals);
	free(r->memory);
	free(r->shm);
	r->signals = NULL;
	r->memory = NULL;
	r->shm = NULL;
}

static void add_rank(struct world *w, uint32_t rank)
{
	struct local *r = &w->rank[rank];
	uint32_t region;

	make_memory(r);
	must(epf_core_add_rank(w->core, rank, r->signals, SIGNALS, 4, NULL, &r->index) == 0);
	must(epf_core_add_region(w->core, r->index, r->memory, BYTES,
				 EPF_MR_REMOTE_WRITE | EPF_MR_REMOTE_READ, &region) == 0);
	open_ring(w, r);
}

static void connect_all(struct world *w)
{
	struct epf_region_remote region = { .raddr = 4096,
					    .bytes = BYTES,
					    .state = EPF_REGION_LIVE,
					    .access = EPF_MR_REMOTE_WRITE | EPF_MR_REMOTE_READ };
	uint64_t tokens[NODES * LANES];
	uint8_t addr[EPF_NIC_ADDR_BYTES];
	struct epf_node_info node = {
		.nic_addr = addr, .tokens = tokens, .receives = 64, .streams = 64
	};
	struct epf_peer_info peer = { .n_signals = SIGNALS, .n_regions = 1, .regions = &region };
	int len;

	must(epf_core_set_world(w->core, WORLD, NODES, 0, NULL, tokens) == 0);
	len = w->nic->ops->address(w->nic, addr, sizeof(addr));
	must(len >= 0);
	node.nic_addr_len = (size_t)len;
	for (uint32_t n = 0; n < NODES; n++) {
		node.rank = n * 2;
		must(epf_core_connect(w->core, n, &node) == 0);
	}
	for (uint32_t r = 0; r < WORLD; r++) {
		peer.node = peer.place = r / 2;
		must(epf_core_set_peer(w->core, r, &peer) == 0);
	}
}

static void make(struct world *w)
{
	struct epf_core_config cfg = { .max_ranks = 2, .now = now, .now_arg = w };
	struct epf_stats_opts o = { .size = sizeof(o), .instance = "fuzz", .tsc_hz = 1000000000 };
	struct epf_stats_label labels[2] = { { NULL, 0 }, EPF_STATS_NO_LABEL };
	char why[256];

	must(epf_conf_init(&w->conf) == 0);
	o.blocks[EPF_STATS_CORE] = 1;
	must(epf_stats_create(&o, &w->stats, why, sizeof(why)) == 0);
	must(epf_stats_add_block(w->stats, EPF_STATS_CORE, labels, 2, &cfg.stats) == 0);
	must(epf_nic_find("null")->open(&w->conf, now, w, &w->nic) == 0);
	epf_limits_from_conf(&w->conf, &cfg.limits);
	cfg.limits.lanes_per_node = LANES;
	cfg.limits.streams_per_node = 64;
	cfg.limits.lane_depth = 16;
	cfg.limits.lane_receives = 16;
	cfg.limits.window = 64;
	cfg.limits.ring_window = 64;
	cfg.limits.defer_limit = 8;
	cfg.limits.max_deferred = 64;
	cfg.nic = w->nic;
	must(epf_core_create(&cfg, &w->core) == 0);
	for (uint32_t rank = 0; rank < 2; rank++)
		add_rank(w, rank);
	connect_all(w);
}

static void unmake(struct world *w)
{
	epf_core_destroy(w->core);
	w->nic->ops->close(w->nic);
	epf_stats_destroy(w->stats, 0);
	epf_conf_destroy(&w->conf);
	forget(&w->rank[0]);
	forget(&w->rank[1]);
}

static void push(struct local *r, struct input *in)
{
	struct epf_cmd c;

	take(in, &c, sizeof(c));
	c.lo &= ~UINT64_C(1);
	c.hi &= ~UINT64_C(1);
	if (r->shm && epf_ring_room(&r->ring, 1))
		epf_ring_push(&r->ring, c);
}

/* What another process of the client could do to the ring's memory at any moment. */
static void scribble(struct local *r, struct input *in)
{
	uint16_t offset;
	uint64_t value;

	take(in, &offset, sizeof(offset));
	take(in, &value, sizeof(value));
	if (r->shm)
		memcpy((uint8_t *)r->shm + offset % (epf_ring_bytes(RING_LOG2) - 7), &value, 8);
}

static void message(struct world *w, struct input *in)
{
	struct epf_msg m;
	struct epf_wc wc = { .op = EPF_WC_RECV, .msg = &m };

	wc.lane = (uint16_t)(LANES + take_byte(in) % LANES);
	wc.len = take_byte(in) == 255 ? 63 : sizeof(m);
	take(in, &m, sizeof(m));
	epf_arrive(w->core, &wc);
}

static void immediate(struct world *w, struct input *in)
{
	struct epf_wc wc = { .op = EPF_WC_RECV_IMM, .len = 64 };

	wc.lane = (uint16_t)(LANES + take_byte(in) % LANES);
	take(in, &wc.imm, sizeof(wc.imm));
	epf_arrive(w->core, &wc);
}

/* A lane of the other node fails. */
static void fail_lane(struct world *w, struct input *in)
{
	struct epf_lane *lane = &w->core->lanes[LANES + take_byte(in) % LANES];

	epf_lane_error_cold(w->core, lane, EPF_S_RETRY_EXCEEDED);
}

static void back(struct world *w)
{
	struct local *r = &w->rank[0];
	uint32_t region;

	if (w->core->ranks[r->index].life == EPF_RANK_LIVE ||
	    !epf_core_rank_drained(w->core, r->index))
		return;
	forget(r);
	make_memory(r);
	must(epf_core_rank_back(w->core, r->index, r->signals, SIGNALS, NULL) == 0);
	must(epf_core_add_region(w->core, r->index, r->memory, BYTES, EPF_MR_REMOTE_WRITE,
				 &region) == 0);
	open_ring(w, r);
	must(epf_core_rank_announce(w->core, r->index) == 0);
}

static void one(struct world *w, struct input *in)
{
	unsigned n;

	switch (take_byte(in) % OPS) {
	case PUSH:
		push(&w->rank[0], in);
		break;
	case SCRIBBLE:
		scribble(&w->rank[0], in);
		break;
	case MESSAGE:
		message(w, in);
		break;
	case IMMEDIATE:
		immediate(w, in);
		break;
	case STEP:
		for (n = take_byte(in) % 70; n; n--)
			epf_core_step(w->core);
		break;
	case COMPLETE:
		fail_lane(w, in);
		break;
	case GONE:
		epf_core_rank_gone(w->core, w->rank[0].index, take_byte(in) & 1);
		break;
	case BACK:
		back(w);
		break;
	case MASK:
		n = take_byte(in);
		epf_core_mask_peer(w->core, w->rank[0].index, n % WORLD, (int)(n >> 7));
		break;
	}
}

/* The honest rank's commands to itself are done, whatever the other one did. */
static void honest(struct world *w)
{
	struct local *r = &w->rank[1];
	struct epf_op op = { .op = EPF_OP_PUT, .rank = 1, .length = 64 };

	if (!w->core->ranks[r->index].usable[1])
		return; /* the other engine may have said that this rank is lost: it has that right */
	for (int i = 0; i < 8; i++)
		epf_ring_push(&r->ring, epf_op_pack_narrow(&op));
	for (int i = 0; i < 2000 && r->shm->done.retired < 8; i++)
		epf_core_step(w->core);
	must(r->shm->done.retired == 8);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, size };
	struct world w = { 0 };

	make(&w);
	for (unsigned i = 0; in.left && i < MOST_OPS; i++)
		one(&w, &in);
	honest(&w);
	unmake(&w);
	return 0;
}
