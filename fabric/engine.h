/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slow-path interface of the engine core: what lib.c, benchmarks and simulations call to set one up. None of these may be
 * called while another thread steps the core; use epf_core_call() to run them on the core's thread.
 */
#ifndef EPF_FABRIC_ENGINE_H
#define EPF_FABRIC_ENGINE_H

#include "fabric/core.h"
#include "queues/epf_queue.h"

struct epf_core_config {
	struct epf_nic *nic; /* stays the caller's; must outlive the core */
	struct epf_core_limits limits;
	struct epf_stats_block *stats; /* of class core */
	uint64_t (*now)(void *arg);    /* ns */
	void *now_arg;
	uint32_t max_ranks; /* local ranks */
};

int epf_core_create(const struct epf_core_config *cfg, struct epf_core **out);
void epf_core_destroy(struct epf_core *core);

/* Adds a local rank; signals and bell stay the caller's. Its index is the number of ranks before. */
int epf_core_add_rank(struct epf_core *core, uint32_t rank, struct epf_signal *signals,
		      uint32_t n_signals, uint32_t max_regions, struct epf_bell *bell);
/* Registers memory of local rank index `local`. Numbers are given in order. */
int epf_core_add_region(struct epf_core *core, uint32_t local, void *addr, uint64_t bytes,
			unsigned access, uint32_t *region);
/* Adds a formatted ring of 2^log2 slots; shm stays the caller's. start: first value of all counters. */
int epf_core_add_ring(struct epf_core *core, uint32_t local, struct epf_ring_shm *shm,
		      unsigned log2, unsigned weight, uint64_t start, uint32_t *id);
/* Stops taking from a ring whose commands are all retired. */
void epf_core_close_ring(struct epf_core *core, uint32_t id);

/*
 * Makes peers, nodes and lanes for a job of `world` ranks, each an engine of its own. place: the node number of
 * this engine. tokens[world * lanes-per-peer] receives what each peer needs to connect its lanes to ours.
 */
int epf_core_set_world(struct epf_core *core, uint32_t world, uint32_t place, uint64_t *tokens);

/* What a remote engine says of itself. */
struct epf_node_info {
	const void *nic_addr;
	size_t nic_addr_len;
	const uint64_t *tokens; /* of its lanes towards us, lanes-per-peer of them */
	uint64_t ctl_raddr;     /* its control words for us */
	uint32_t ctl_rkey;
	uint32_t receives; /* events it grants per lane at the start */
	uint32_t streams;  /* streams it accepts from us */
};

/* What a remote rank says of itself. */
struct epf_peer_info {
	uint32_t place; /* its node number */
	uint32_t n_signals;
	uint32_t n_regions;
	const struct epf_region_remote *regions;
};

int epf_core_connect(struct epf_core *core, uint32_t node, const struct epf_node_info *info);
int epf_core_set_peer(struct epf_core *core, uint32_t rank, const struct epf_peer_info *info);

/* Stops using a rank: commands to it retire as failed, nobody waits for it. */
void epf_core_mask_peer(struct epf_core *core, uint32_t rank);

/* Begins the withdrawal of a region of local rank 0; epf_core_revoke_done says when. */
int epf_core_revoke_begin(struct epf_core *core, uint32_t local, uint32_t region);
/* 1: all peers have acknowledged and the region is deregistered; 0: not yet (*missing: a rank that has not). */
int epf_core_revoke_done(struct epf_core *core, uint32_t local, uint32_t region, uint32_t *missing);

/* Declares a node lost: everything to it fails, its ranks are DOWN. status: enum epf_status. */
void epf_node_down(struct epf_core *core, struct epf_node *node, unsigned status);

/* Tells every node that this engine closes in order. */
void epf_core_say_bye(struct epf_core *core);
/* 1: nothing staged or posted is without its completion. */
int epf_core_is_quiet(const struct epf_core *core);

/* What the core does when there is nothing to do. */
enum epf_idle { EPF_IDLE_SPIN = 0, EPF_IDLE_PAUSE = 1, EPF_IDLE_SLEEP = 2 };

struct epf_run_options {
	enum epf_idle idle;
	uint64_t idle_after_ns; /* quiet time before it sleeps */
	void (*beat)(
		void *arg); /* NULL, or called about twice a second: the statistics' sign of life */
	void *beat_arg;
};

/* Steps the core until epf_core_stop(). Runs on a thread of its own. */
void epf_core_run(struct epf_core *core, const struct epf_run_options *opts);
void epf_core_stop(struct epf_core *core);
/* After a step outside epf_core_run: rings the bells of ranks and peers that sleep. */
void epf_core_wake(struct epf_core *core);
/* Sleeps on the core's bell until rung, the next NIC event or max_ns. For progress=caller. */
void epf_core_sleep(struct epf_core *core, uint64_t max_ns);

/*
 * Runs fn(core, arg) on the core's thread between two steps and waits for its result. Any thread. When no thread runs
 * the core (progress=caller, before the start), runs it at once.
 */
int epf_core_call(struct epf_core *core, int (*fn)(struct epf_core *core, void *arg), void *arg);

#endif
