/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine core from inside: its rings, peers, lanes and streams (tables.h, nodes.h). Shared by all files of the engine.
 *
 * One thread at a time runs a core (owner.h). Everything here is private to that thread, except shared memory reached through
 * ring headers, signals and control writes, whose accesses are labelled (queues/README.md).
 * What is not for one peer is allocated before traffic starts; what a peer needs grows with use (grow.h).
 *
 *   rank    a local rank served by this core          node   a remote engine, reached by lanes
 *   peer    a remote rank, living on a node           lane   a queue pair to a node
 *   stream  ordered commands from one ring (or several groups) to one peer; bound to one lane at a time
 *
 * Counts. Every event of a stream (a write with immediate, a message) has a running 32-bit count. The receiver
 * keeps, per stream, `base` (all counts before it have arrived) and a bitmap of the window above it. A message takes
 * effect when base has passed it: so a signal covers everything earlier in its stream. On an ordered NIC plain
 * puts are no events: the lane itself keeps them before the message.
 */
#ifndef EPF_FABRIC_ENGINE_CORE_H
#define EPF_FABRIC_ENGINE_CORE_H

#include "fabric/base/usdt.h"
#include "fabric/engine/nodes.h"
#include "fabric/engine/tables.h"
#include "fabric/engine/wire.h"
#include "fabric/nic/nic.h"
#include "queues/epf_cmd.h"
#include "queues/epf_peers.h"
#include "queues/epf_queue.h"
#include "queues/epf_ring.h"
#include "queues/epf_signal.h"
#include "queues/epf_stats.h"
#include "queues/epf_wakeup.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * One command at a time, the last of a batch, is followed from its dequeue until the NIC has it (row queue_delay_ns), and until the NIC
 * completes it (nic_ns).
 */
struct epf_sample {
	uint8_t state;     /* enum epf_sample_state */
	uint32_t deferred; /* DEFERRED: its index */
	uint32_t lane; /* STAGED, POSTED: the lane, and how far that has to be posted, or done */
	uint32_t head;
	uint64_t tsc; /* when it was dequeued, or posted */
};

/* The newest command of one ring, from when it was seen until it is dequeued: row ring_wait_ns. */
struct epf_seen {
	uint64_t next_tsc; /* before that no batch is sampled */
	uint32_t ring;     /* index + 1; 0: none is watched */
	uint64_t tail;     /* where the ring is when the command has been dequeued */
	uint64_t tsc;
};

enum epf_sample_state {
	EPF_SAMPLE_NONE = 0,
	EPF_SAMPLE_DEFERRED = 1,
	EPF_SAMPLE_STAGED = 2,
	EPF_SAMPLE_POSTED = 3,
};

struct epf_core_limits {
	uint32_t batch;
	uint32_t reap_batch;
	uint32_t defer_limit;
	uint32_t max_deferred; /* pool size */
	uint32_t max_pending;
	uint32_t window;      /* arrival window per stream: power of two */
	uint32_t ring_window; /* power of two */
	uint32_t lane_depth;  /* power of two */
	uint32_t lane_receives;
	uint32_t lanes_per_node;
	uint32_t streams_per_node;
	uint64_t nic_inflight_bytes;
	uint32_t nic_inflight_messages;
	uint64_t rank_inflight_bytes;
	uint32_t rank_inflight_messages;
	uint64_t peer_timeout_ns;
	uint64_t peer_silence_ns; /* 0: an engine may be silent forever */
	uint32_t start_count;     /* first count of every stream: tests of wrap */
	uint32_t connect_threads; /* that set lanes up, where the NIC lets several do so; 0: one */
	uint8_t beats; /* 1: this engine has its own thread, so it can promise heartbeats */
};

enum { EPF_MAX_GPU_FLUSHES = 16, EPF_MAX_QUEUED_ARRIVALS = 256 };

/* An arrival that waits for additions to GPU memory, with the bytes of its message. */
struct epf_queued_arrival {
	struct epf_wc wc;
	unsigned char msg[EPF_NIC_MSG_BYTES];
};

/* Makes a NIC's writes to a GPU's memory visible to its kernels (device_region.c). */
struct epf_gpu_flush {
	void (*flush)(void *arg);
	void *arg;
};

/*
 * Additions to GPU memory that the NIC had no room for. At most two: an arrival that carries its own signal may let one that waited take
 * effect before it.
 */
enum { EPF_HOLD_ADDS = 2 };

/*
 * Nothing that arrived after an addition to GPU memory takes effect before the NIC has made it, so that what a later signal or acknowledgement
 * promises is there. More additions to the same region may follow, which a NIC makes in order, and those to other ranks, which no stream shares.
 * Anything else is queued, and from then on all arrivals are, in their order, while completions go on. With a full queue the NIC is left alone.
 */
enum epf_adds {
	EPF_ADDS_NONE = 0,
	EPF_ADDS_UNDER_WAY =
		1,         /* the NIC makes additions; arrivals that may follow them take effect */
	EPF_ADDS_HOLD = 2, /* the same, and arrivals are queued */
};

struct epf_gpu_add {
	struct epf_nic_mr mr;
	uint64_t offset, value;
};

struct epf_core;

/*
 * What the data path asks of the control plane; set when the core is created, so that no file of the data path depends on one of the control
 * plane. All run on the core's thread.
 */
struct epf_control_ops {
	/* A control message has arrived (messages.c). */
	void (*message)(struct epf_core *core, struct epf_node *node, struct epf_lane *lane,
			const struct epf_msg *m);
	/* A lane has failed (recover.c). status: enum epf_status. */
	void (*lane_failed)(struct epf_core *core, struct epf_lane *lane, unsigned status);
	/* Called every 64 steps and while cold_work is set (tick.c). Returns how much was done. */
	unsigned (*tick)(struct epf_core *core);
};

struct epf_core {
	struct epf_nic *nic;
	const struct epf_nic_ops *ops;
	const struct epf_control_ops *control;
	struct epf_nic_caps caps;
	uint8_t ordered;
	uint8_t counts_puts; /* puts are events: unordered NIC */
	uint8_t reserved1;
	uint8_t cold_work;           /* the control plane has something to do */
	struct epf_ring_poll *polls; /* [EPF_MAX_RINGS] by ring */
	uint64_t *retired;    /* bits: rings that have retired something since the last publish */
	struct epf_cmd never; /* an empty slot: polls of closed rings read it */
	uint32_t n_rings;
	uint32_t next_ring;  /* where the next step begins */
	uint32_t steps;      /* all steps */
	uint32_t timed_step; /* the next one in which the clock is read (policy_hot.h) */
	uint64_t tick_ns;    /* nanoseconds of a tick of the time-stamp counter, times 2^32 */
	struct epf_sample sample;
	uint32_t unreaped; /* commands dequeued since the NIC was polled */
	uint32_t served;   /* of the NIC, at the last poll */
	uint64_t began;    /* time-stamp of the first step since then */
	uint32_t n_ranks;
	uint32_t max_ranks;
	uint32_t max_streams;
	uint32_t world;
	uint32_t n_nodes;
	uint32_t self; /* own number among the nodes */
	uint32_t n_lanes;
	uint32_t rx_mask; /* window - 1 */
	struct epf_ring_state **rings;
	struct epf_rank_state *ranks;
	struct epf_peer *peers;
	struct epf_node *nodes;
	struct epf_lane *lanes;
	struct epf_stream *streams;
	uint32_t n_streams;
	struct epf_group *groups; /* max_streams of them */
	uint32_t n_groups;
	uint32_t *group_table; /* hash heads of groups */
	uint32_t group_mask;
	uint32_t hash_most;              /* heads that both tables may grow to */
	uint32_t *notify_table;          /* hash heads of notify handles, as many as groups */
	struct epf_notify_out *notifies; /* max_streams of them */
	uint32_t n_notifies;
	uint32_t notify_free; /* entries below that nobody uses, EPF_NONE ends */
	struct epf_deferred *deferred;
	uint32_t deferred_unused;
	uint32_t n_deferred;
	struct epf_pending *pending;
	uint32_t pending_free;
	uint32_t n_pending; /* entries that were ever used */
	uint32_t *dirty_lanes;
	uint32_t n_dirty;
	uint32_t *wait_lanes; /* lanes with waiting streams */
	uint32_t n_wait;
	uint32_t ack_nodes;    /* nodes with acknowledgements to write, EPF_NONE ends */
	uint32_t *grant_lanes; /* lanes with a grant to write */
	uint32_t n_grants;
	uint32_t words_dirty;                     /* 1: control writes wait to be written */
	uint32_t flushing;                        /* rings in a flush */
	struct epf_link_load load[EPF_NIC_LINKS]; /* by lane.link */
	uint32_t wakes; /* ranks whose wakeups must be rung by the run loop */
	uint16_t my_place;
	uint16_t reserved;
	struct epf_core_limits limits;
	struct epf_ctl *ctl_memory;
	size_t ctl_stride;
	uint32_t n_acks; /* acknowledgement words of a node */
	struct epf_nic_mr ctl_mr;
	uint64_t (*now)(void *arg);
	void *now_arg;
	uint64_t next_tick_ns; /* next time the cold timer is due */
	uint64_t next_beat_ns; /* next time heartbeats are sent */
	uint64_t beats; /* ticks so far, in the upper bits of grant words; 0: none are promised */
	uint8_t unpromised; /* before the first tick: nodes do not know yet that this engine sends heartbeats */
	struct epf_grow grow;        /* memory of peers that follows use */
	uint64_t grow_most;          /* so much it may become: part of peer_memory_bytes */
	uint64_t peer_memory_bytes;  /* engine memory proportional to peers, as it may become */
	uint64_t peer_memory_most;   /* its limit, 0: none; set by the owner of the core */
	uint64_t peer_memory_wanted; /* not 0: so much was refused because of that limit */
	struct epf_stats_block *stats;
	struct epf_flight *flight;          /* the recorder; NULL: none */
	struct epf_watch *watch;            /* NULL: no watch */
	struct epf_lanes_batch *connecting; /* lanes.c; NULL: lanes are connected one by one */
	struct epf_wakeup *wakeup;          /* the core sleeps on it */
	struct epf_wakeup own_wakeup;
	struct epf_wakeup
		recall; /* armed by the core's thread while it waits for a waiter to give it the core */
	uint64_t asleep_until; /* when the sleep of the core's thread ends by itself */
	uint64_t
		busy_until; /* until then this CPU is not lent, as others compute on it (between.h); belongs to whoever has the core */
	uint32_t owner;     /* enum epf_owner: who may step the core (owner.h) */
	uint32_t
		drive_wish; /* 1: a waiter wants to step the core: its thread sleeps as soon as it is idle */
	bool is_blind; /* its NIC could not be asked to ring before the last sleep */
	bool stays_awake; /* kernels push commands, which cannot wake it: core-idle=sleep pauses instead */
	struct epf_queue *calls; /* requests of other threads, run between steps */
	int running;             /* a thread is in epf_core_run */
	int stop;
	uint64_t recover_seen_ns; /* time of the last epf_recover_step, 0: nothing was to recover */
	uint32_t recovering;      /* lanes under recovery */
	uint8_t is_opening; /* a lane was opened or connected in this round: the others wait for the next */
	uint32_t
		recover_poll; /* 1: some of them have something to do and do not only wait for peers or time */
	struct epf_outage outages[EPF_NIC_LINKS]; /* by link */
	uint64_t reopen_ns; /* when the next lane is reopened; UINT64_MAX: none waits */
	uint64_t
		self_lost_ns; /* no lane to this node itself is left: when it counts as lost; 0: there is one */
	uint32_t
		telling; /* local ranks of whose state nodes have still to be notified, and telling_loss */
	uint8_t telling_loss; /* nodes have still to be notified for which loss the rank would end (losses.c) */
	struct epf_peers_shm *peers_page; /* state of every rank, for waits */
	uint8_t own_peers_page;
	uint64_t refusals
		[EPF_CMD_REASONS]; /* commands refused, by reason - 300; read by any thread */
	uint32_t
		recheck; /* regions were withdrawn or described again: deferred commands are checked again */
	struct epf_revoke *revokes; /* withdrawals of own regions under way */
	uint32_t
		links_untold; /* bit l: link l has a new device whose keys not everybody knows yet (reconnect.c) */
	struct epf_reconnect *reconnect; /* lost nodes are being reconnected; else NULL */
	struct epf_seen seen;
	/* Additions to GPU memory (gpu_add.c, gpu_hold.c). */
	uint8_t adds;         /* enum epf_adds */
	uint8_t adds_refused; /* so many of hold_adds the NIC had no room for yet */
	uint8_t adds_resume; /* 1: a stream stopped behind one with more that is in order: hold_node .. hold_lane */
	uint32_t adding_round; /* counts the times that additions were under way */
	uint32_t
		held_at; /* held_n > 0: entries [held_at, held_n) of wcs, an error first, are still to be handled */
	uint32_t held_n;
	uint32_t first_queued_arrival, n_queued_arrivals;
	uint32_t hold_node;
	uint32_t hold_handle;
	uint16_t hold_lane;
	struct epf_gpu_add hold_adds[EPF_HOLD_ADDS];
	uint64_t hold_tsc; /* since when */
	struct epf_gpu_flush gpu_flushes[EPF_MAX_GPU_FLUSHES];
	uint32_t n_gpu_flushes; /* 0: all writes to GPU memory are promised to be seen in order */
	uint32_t gpu_flushed;   /* the step in which they were called last */
	uint32_t gpu_reads;     /* 1: gets have completed since then */
	uint32_t received;      /* arrivals of this step */
	struct epf_wc wcs[EPF_MAX_BATCH];
	struct epf_queued_arrival queued_arrivals[EPF_MAX_QUEUED_ARRIVALS]; /* a ring */
};

/* step_hot.c: one step. Returns how much was done; 0: idle. Never blocks, allocates, locks, logs or makes a system call. */
unsigned epf_core_step(struct epf_core *core);

#endif
