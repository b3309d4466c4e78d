/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slow-path interface of the engine core, for libepf, the daemon, benchmarks and simulations. None of these may be
 * called while another thread steps the core; use epf_core_call() to run them on the core's thread.
 */
#ifndef EPF_FABRIC_ENGINE_ENGINE_H
#define EPF_FABRIC_ENGINE_ENGINE_H

#include "fabric/engine/core.h"
#include "fabric/gpu/device_mem.h"
#include "queues/epf_peers.h"
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

/*
 * Adds a local rank; signals and wakeup stay the caller's. *local: its index, the lowest free one. May be called until the world is
 * connected, and after it for a rank of this node that was lost (epf_core_rank_back).
 */
int epf_core_add_rank(struct epf_core *core, uint32_t rank, struct epf_signal *signals,
		      uint32_t n_signals, uint32_t max_regions, struct epf_wakeup *wakeup,
		      uint32_t *local);
/* Registers memory of local rank index `local`. Regions are numbered in order; a number that epf_core_free_region() released goes first. */
int epf_core_add_region(struct epf_core *core, uint32_t local, void *addr, uint64_t bytes,
			unsigned access, uint32_t *region);
/* The same for GPU memory; the NIC holds a reference until the region is withdrawn. */
int epf_core_add_gpu_region(struct epf_core *core, uint32_t local, struct epf_copy_mem *mem,
			    unsigned access, uint32_t *region);
/* The same for GPU memory (gpu/device_mem.h). Returns -EOPNOTSUPP if the NIC takes none, or nothing makes its writes visible. */
int epf_core_add_device_region(struct epf_core *core, uint32_t local,
			       const struct epf_device_mem *mem, unsigned access, uint32_t *region);
/* Adds a formatted ring of 2^log2 slots; shm stays the caller's. start: first value of all counters. */
int epf_core_add_ring(struct epf_core *core, uint32_t local, struct epf_ring_shm *shm,
		      unsigned log2, unsigned weight, uint64_t start, uint32_t *id);
/* Stops dequeuing from a ring. Its memory may be unmapped, and its number used again, once epf_core_ring_drained() returns 1. */
void epf_core_close_ring(struct epf_core *core, uint32_t id);
/* Returns 1 if the engine does not touch the ring's memory any more. */
int epf_core_ring_drained(struct epf_core *core, uint32_t id);

/*
 * A local rank has gone. cause 0: it left in order; else the reason number that its peers read (EPF_R_RANK_DIED). Its rings are
 * closed and their deferred commands failed, its regions withdrawn, every node notified. Other ranks continue.
 */
void epf_core_rank_gone(struct epf_core *core, uint32_t local, uint32_t cause);
/* Returns 1 if nothing of a rank that has gone is in use, here or by peers: its rings, signals and regions may be unmapped. */
int epf_core_rank_drained(struct epf_core *core, uint32_t local);
/*
 * A drained local rank rejoins: new signals and wakeup under the same index, no regions, no rings. Then regions and rings are added,
 * then epf_core_rank_announce() notifies every node: from then on peers reach it, with its epoch one higher.
 */
int epf_core_rank_back(struct epf_core *core, uint32_t local, struct epf_signal *signals,
		       uint32_t n_signals, struct epf_wakeup *wakeup);
int epf_core_rank_announce(struct epf_core *core, uint32_t local);

/*
 * Makes peers, nodes and lanes for a job of `world` ranks on `n_nodes` engines, of which this is number `self`.
 * peers: the peers page (queues/epf_peers.h), formatted for `world`; it stays the caller's; NULL: the core makes its own.
 * tokens[n_nodes * lanes-per-peer] receives what each node needs to connect its lanes to ours.
 */
int epf_core_set_world(struct epf_core *core, uint32_t world, uint32_t n_nodes, uint32_t self,
		       struct epf_peers_shm *peers, uint64_t *tokens);

/* Description of a remote engine. */
struct epf_node_info {
	const void *nic_addr;
	size_t nic_addr_len;
	const uint64_t *tokens;    /* of its lanes to us, lanes-per-peer of them */
	uint64_t ctl_raddr;        /* its control writes for us */
	const uint32_t *ctl_rkeys; /* keys of those, `keys` of them */
	uint32_t keys;             /* that its regions have: 1 to EPF_NIC_LINKS; 0: one */
	uint32_t receives;         /* events it grants per lane at the start */
	uint32_t streams;          /* streams it accepts from us */
	uint32_t rank;             /* the lowest rank on it: names the node in messages */
};

/* Description of a remote rank. */
struct epf_peer_info {
	uint32_t node;  /* its engine */
	uint32_t place; /* its node number: statistics count by it what crosses nodes */
	uint32_t n_signals;
	uint32_t n_regions;
	uint32_t keys; /* rkeys of each region that are set; 0: one */
	const struct epf_region_remote *regions;
};

/* Connects a lane to the one with its index at a node, which has this token. Returns what lane_connect returns. */
int epf_core_connect_lane(struct epf_core *core, const struct epf_node *node,
			  const struct epf_lane *lane, uint64_t token);
/* Keeps where a node's NIC and control memory are, and their keys. Returns 0, or a negative errno with epf_last_error(). */
int epf_core_node_place(struct epf_core *core, struct epf_node *node,
			const struct epf_node_info *info);
/* Connects a lane that was opened again, without a system call. Returns what lane_reconnect returns. */
int epf_core_reconnect_lane(struct epf_core *core, const struct epf_node *node,
			    const struct epf_lane *lane, uint64_t token);
int epf_core_connect(struct epf_core *core, uint32_t node, const struct epf_node_info *info);
int epf_core_set_peer(struct epf_core *core, uint32_t rank, const struct epf_peer_info *info);

/* Local rank `local` stops using a rank, or uses it again: masked, its commands to it retire as failed. */
void epf_core_mask_peer(struct epf_core *core, uint32_t local, uint32_t rank, int masked);

/* Begins the withdrawal of a region of a local rank; epf_core_revoke_done() returns when it is over. */
int epf_core_revoke_begin(struct epf_core *core, uint32_t local, uint32_t region);
/* Returns 1 if all peers have acknowledged and the region is deregistered, 0 if not yet (*missing: a rank that has not). */
int epf_core_revoke_done(struct epf_core *core, uint32_t local, uint32_t region, uint32_t *missing);
/*
 * Lets the number of a withdrawn region be given out again. After the join. The caller answers for it that no command of any rank names the former region:
 * each rank's core has forgotten it, with all its commands to it retired, and no exchange is under way that began before. -ENOENT: not withdrawn.
 */
int epf_core_free_region(struct epf_core *core, uint32_t local, uint32_t region);
/* Forgets a region that rank has withdrawn: the next exchange may bring another one of that number. -ENOENT: its withdrawal is under way. */
int epf_core_forget_region(struct epf_core *core, uint32_t rank, uint32_t region);

/* Declares a node lost: everything to it fails, its ranks are DOWN. status: enum epf_status. */
void epf_node_down(struct epf_core *core, struct epf_node *node, unsigned status);

/*
 * Notifies every node that this engine closes in order. Returns how many could not be reached for now (no credit, no lane): call it again until 0.
 * A node that closes without it counts as lost.
 */
int epf_core_say_bye(struct epf_core *core);
/* Returns 1 if everything staged or posted to nodes that are up has completed. */
int epf_core_is_quiet(const struct epf_core *core);

enum { EPF_WATCH_NS = 100 * 1000 * 1000 }; /* how often a run loop calls the NIC's watch */

/* What the core does when there is nothing to do. */
enum epf_idle { EPF_IDLE_SPIN = 0, EPF_IDLE_PAUSE = 1, EPF_IDLE_SLEEP = 2 };

struct epf_run_options {
	enum epf_idle idle;
	uint64_t idle_after_ns; /* quiet time before it sleeps */
	void (*beat)(
		void *arg); /* NULL, or called about twice a second: the heartbeat of the statistics */
	void *beat_arg;
};

/* For run loops other than epf_core_run (scheduler.c): runs requests of other threads, between two steps. Returns how many. */
unsigned epf_core_run_calls(struct epf_core *core);
/* Returns 1 if a ring holds a command or another thread has made a request. To be asked after arming a wakeup. */
int epf_core_has_work(const struct epf_core *core);

/* Steps the core until epf_core_stop(). Runs on a separate thread. */
void epf_core_run(struct epf_core *core, const struct epf_run_options *opts);
void epf_core_stop(struct epf_core *core);
/* After a step outside epf_core_run: wakes ranks and peers that sleep. Returns how many ranks it has woken. */
unsigned epf_core_wake(struct epf_core *core);
/* Sleeps on the core's wakeup until rung, the next NIC event or max_ns; lends the CPU instead if something is due now. For progress=caller. */
void epf_core_sleep(struct epf_core *core, uint64_t max_ns);

/* For epf_core_call(): whether (bool *) the core's thread stays awake although its idle policy is sleep: somebody pushes commands who cannot wake it. Returns 0. */
int epf_core_stay_awake(struct epf_core *core, void *on);

/*
 * Runs fn(core, arg) on the core's thread between two steps and waits for its result. Any thread. When no thread runs
 * the core (progress=caller, before the start), runs it at once. Below 0, the function's last error is the caller's.
 */
int epf_core_call(struct epf_core *core, int (*fn)(struct epf_core *core, void *arg), void *arg);

#endif
