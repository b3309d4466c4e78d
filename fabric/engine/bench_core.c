/* SPDX-License-Identifier: Apache-2.0 */
/* See bench_core.h. Slow path only; it drives the real step of step_hot.c. */
#include "fabric/engine/bench_core.h"

#include "fabric/base/clock.h"
#include "fabric/base/conf.h"
#include "fabric/base/err.h"
#include "fabric/engine/watch.h"

#include <stdlib.h>
#include <sys/mman.h>

enum { PAGE = 4096, WATCHED = 64 /* blocks of each kind */ };

struct epf_bench_core {
	struct epf_conf conf;
	struct epf_stats *stats;
	struct epf_stats_block *block;
	struct epf_stats_block *recorder;
	struct epf_nic *nic;
	struct epf_core *core;
	struct epf_signal *signals;
	uint8_t *rings; /* one behind the other, ring_bytes apart */
	size_t ring_bytes;
	uint32_t n_rings;
};

static uint64_t tsc_now(void *arg)
{
	(void)arg;
	return epf_tsc_to_ns(epf_tsc());
}

static int make_stats(struct epf_bench_core *bc, const struct epf_bench_core_options *bo)
{
	struct epf_stats_opts o = { .size = sizeof(o),
				    .instance = "bench",
				    .tsc_hz = epf_tsc_hz() };
	struct epf_stats_label labels[2] = { { NULL, 0 }, EPF_STATS_NO_LABEL };
	char reason[256] = "";

	o.dir = bo->stats_dir;
	o.blocks[EPF_STATS_CORE] = o.blocks[EPF_STATS_FLIGHT] = 1;
	if (bo->stats_dir) { /* the watch adds the recorder */
		o.blocks[EPF_STATS_JOB] = o.blocks[EPF_STATS_RANK] = 1;
		o.blocks[EPF_STATS_RING] = o.blocks[EPF_STATS_LANE] = o.blocks[EPF_STATS_PEER] =
			WATCHED;
	}
	if (epf_stats_create(&o, &bc->stats, reason, sizeof(reason)) ||
	    epf_stats_add_block(bc->stats, EPF_STATS_CORE, labels, 2, &bc->block) ||
	    (!bo->stats_dir &&
	     epf_stats_add_block(bc->stats, EPF_STATS_FLIGHT, labels, 1, &bc->recorder)))
		return epf_fail(EPF_R_NO_MEMORY, "bench core: %s", reason);
	return 0;
}

static int make_core(struct epf_bench_core *bc, const struct epf_bench_core_options *o)
{
	const struct epf_nic_ops *ops = epf_nic_find(o->nic);
	struct epf_core_config cfg = { .max_ranks = 1, .now = tsc_now, .stats = bc->block };
	int rc;

	if (!ops)
		return epf_fail(EPF_R_NIC_UNKNOWN, "nic: no back-end named %s", o->nic);
	if (o->lists)
		bc->conf.verbs_post = EPF_CONF_POST_LISTS;
	rc = ops->open(&bc->conf, tsc_now, NULL, &bc->nic);
	if (rc)
		return rc;
	cfg.nic = bc->nic;
	cfg.limits = (struct epf_core_limits){ .batch = o->batch,
					       .reap_batch = 64,
					       .defer_limit = 256,
					       .max_deferred = 4096,
					       .ring_window = 8192,
					       .window = 1024,
					       .lane_depth = o->lane_depth ? o->lane_depth : 64,
					       .lane_receives = 64,
					       .lanes_per_node =
						       o->lanes_per_peer ? o->lanes_per_peer : 1,
					       .streams_per_node = 1024,
					       .nic_inflight_bytes = UINT64_C(1) << 40,
					       .nic_inflight_messages = 1 << 20,
					       .rank_inflight_bytes = UINT64_C(1) << 40,
					       .rank_inflight_messages = 1 << 20,
					       .peer_timeout_ns = UINT64_C(10000000000) };
	rc = epf_core_create(&cfg, &bc->core);
	if (!rc && o->stats_dir)
		rc = epf_watch_open(bc->core, &(struct epf_watch_config){ .stats = bc->stats,
									  .most = WATCHED,
									  .job = "bench" });
	else if (!rc)
		epf_bench_core_recorder(bc, 1);
	return rc;
}

static int make_peers(struct epf_bench_core *bc, const struct epf_bench_core_options *o)
{
	uint32_t lanes = o->lanes_per_peer ? o->lanes_per_peer : 1;
	uint64_t *tokens = calloc((size_t)o->peers * lanes, sizeof(*tokens));
	uint8_t addr[EPF_NIC_ADDR_BYTES];
	struct epf_region_remote regions[EPF_NARROW_REGIONS];
	struct epf_node_info node = { .nic_addr = addr, .receives = 1 << 30, .streams = 1024 };
	struct epf_peer_info peer = { .n_signals = o->signals,
				      .n_regions = o->regions,
				      .regions = regions };
	int rc = tokens ? epf_core_set_world(bc->core, o->peers, o->peers, 0, NULL, tokens)
			: epf_fail(EPF_R_NO_MEMORY, "bench core: no memory");

	/* Every peer is this NIC itself: null discards, emu loops back. */
	if (!rc) {
		rc = bc->nic->ops->address(bc->nic, addr, sizeof(addr));
		node.nic_addr_len = rc < 0 ? 0 : (size_t)rc;
		rc = rc < 0 ? rc : 0;
	}
	for (uint32_t i = 0; i < o->regions; i++)
		regions[i] = (struct epf_region_remote){ .raddr = UINT64_C(1) << 40,
							 .bytes = o->region_bytes,
							 .rkey = i,
							 .state = EPF_REGION_LIVE,
							 .access = EPF_MR_REMOTE_WRITE |
								   EPF_MR_REMOTE_READ };
	for (uint32_t r = 0; r < o->peers && !rc; r++) {
		node.tokens = &tokens[r * lanes];
		node.rank = r;
		peer.node = r;
		rc = epf_core_connect(bc->core, r, &node);
		peer.place = r / 8;
		if (!rc)
			rc = epf_core_set_peer(bc->core, r, &peer);
	}
	free(tokens);
	return rc;
}

/* Maps, formats and adds the rings. */
static int make_rings(struct epf_bench_core *bc, const struct epf_bench_core_options *o)
{
	unsigned log2 = (unsigned)__builtin_ctz(o->ring_slots);
	int rc = 0;

	bc->n_rings = o->rings ? o->rings : 1;
	bc->ring_bytes = (epf_ring_bytes(log2) + PAGE - 1) / PAGE * PAGE;
	bc->rings = mmap(NULL, bc->ring_bytes * bc->n_rings, PROT_READ | PROT_WRITE,
			 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (bc->rings == MAP_FAILED) {
		bc->rings = NULL;
		return epf_fail(EPF_R_NO_MEMORY, "bench core: no memory");
	}
	for (uint32_t i = 0; i < bc->n_rings && !rc; i++) {
		struct epf_ring_shm *shm = epf_bench_core_ring(bc, i);
		uint32_t id;

		epf_ring_format(shm, log2, i, 0);
		rc = epf_core_add_ring(bc->core, 0, shm, log2, 1, 0, &id);
	}
	return rc;
}

int epf_bench_core_create(const struct epf_bench_core_options *o, struct epf_bench_core **out)
{
	struct epf_bench_core *bc = calloc(1, sizeof(*bc));
	uint32_t id;
	int rc;

	if (!bc || epf_conf_init(&bc->conf)) {
		free(bc);
		return epf_fail(EPF_R_NO_MEMORY, "bench core: no memory");
	}
	rc = make_stats(bc, o);
	if (!rc)
		rc = make_core(bc, o);
	bc->signals = aligned_alloc(128, (o->signals * sizeof(*bc->signals) + 255) & ~(size_t)127);
	if (!rc && !bc->signals)
		rc = epf_fail(EPF_R_NO_MEMORY, "bench core: no memory");
	if (!rc)
		rc = epf_core_add_rank(bc->core, 0, bc->signals, o->signals, EPF_NARROW_REGIONS,
				       NULL, &id);
	for (uint32_t i = 0; i < o->regions && !rc; i++)
		/* The null NIC never looks at memory: the address is a number. */
		rc = epf_core_add_region(bc->core, 0, (void *)(uintptr_t)(UINT64_C(1) << 40),
					 o->region_bytes, EPF_MR_REMOTE_WRITE, &id);
	if (!rc)
		rc = make_peers(bc, o);
	if (!rc)
		rc = make_rings(bc, o);
	if (rc) {
		epf_bench_core_destroy(bc);
		return rc;
	}
	*out = bc;
	return 0;
}

void epf_bench_core_destroy(struct epf_bench_core *bc)
{
	if (!bc)
		return;
	epf_core_destroy(bc->core);
	if (bc->nic)
		bc->nic->ops->close(bc->nic);
	epf_stats_destroy(bc->stats, 0);
	epf_conf_destroy(&bc->conf);
	if (bc->rings)
		munmap(bc->rings, bc->ring_bytes * bc->n_rings);
	free(bc->signals);
	free(bc);
}

struct epf_core *epf_bench_core_of(struct epf_bench_core *bc)
{
	return bc->core;
}

struct epf_ring_shm *epf_bench_core_ring(struct epf_bench_core *bc, uint32_t i)
{
	return (struct epf_ring_shm *)(void *)(bc->rings + bc->ring_bytes * i);
}

void epf_bench_core_recorder(struct epf_bench_core *bc, int on)
{
	bc->core->flight = on ? (struct epf_flight *)(void *)epf_stat_word(bc->recorder,
									   EPF_STAT_FLIGHT_WRITTEN)
			      : NULL;
}

void epf_bench_core_look(struct epf_bench_core *bc)
{
	epf_watch_look(bc->core);
	epf_stats_beat(bc->stats, epf_now_ns());
}

uint64_t epf_bench_core_counter(struct epf_bench_core *bc, uint32_t stat)
{
	return epf_stat_get(bc->block, stat);
}
