/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine core from inside: its rings, peers, lanes and streams. Shared by the hot files (step_hot.c,
 * arrive_hot.c, flush_hot.c) and the slow ones (core.c, control.c, recover.c, lib.c).
 *
 * One thread runs a core. Everything here is private to that thread, except shared memory reached through
 * ring headers, signals and control writes, whose accesses are labelled (queues/README.md).
 * All memory is allocated by the slow files before traffic starts.
 *
 *   rank    a local rank served by this core          node   a remote engine, reached by lanes
 *   peer    a remote rank, living on a node           lane   a queue pair to a node
 *   stream  ordered commands from one ring (or one group) to one peer; bound to one lane at a time
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
#include "fabric/engine/wire.h"
#include "fabric/nic/nic.h"
#include "queues/epf_cmd.h"
#include "queues/epf_peers.h"
#include "queues/epf_queue.h"
#include "queues/epf_ring.h"
#include "queues/epf_signal.h"
#include "queues/epf_stats.h"
#include "queues/epf_wakeup.h"

#include <stddef.h>
#include <stdint.h>

#define EPF_HOT  __attribute__((hot))
#define EPF_COLD __attribute__((cold, noinline))

enum {
	EPF_MAX_RINGS = 4096,
	EPF_MAX_WORLD = 65536,  /* ranks: numbers of nodes and places are 16 bits here */
	EPF_MAX_REGIONS = 4096, /* of one rank: as the setting regions allows */
	EPF_MAX_BATCH = 256,
	EPF_TICKS_PER_TIMEOUT = 8, /* signs of life asked for per peer-timeout */
	EPF_COMMAND_COST = 64, /* bytes that a command without payload counts, of its ring's turn */
	EPF_LANE_RESERVE = 2,  /* work requests of a lane kept back for control writes */
	EPF_CMD_REASON_FIRST = 300, /* reasons of refused commands (err_keys.h): 300 .. 331 */
	EPF_CMD_REASONS = 32,
};

#define EPF_NONE 0xffffffffu

enum epf_region_state {
	EPF_REGION_FREE = 0,
	EPF_REGION_LIVE = 1,
	EPF_REGION_REVOKED =
		2, /* local: waiting for peers; remote: told, our own traffic to it not yet drained */
	EPF_REGION_DRAINING =
		3, /* remote: waits for the entries that were staged when the snapshot was dequeued */
	EPF_REGION_WITHDRAWN = 4, /* over: local: deregistered; remote: acknowledged */
};

struct epf_region_local {
	uint64_t addr;
	uint64_t bytes; /* 0 unless LIVE: the check needs one compare */
	uint32_t state;
	struct epf_nic_mr mr; /* keys[i]: for lanes of index i */
	unsigned access;
	uint32_t device; /* 1: GPU memory: no CPU may use addr */
};

struct epf_region_remote {
	uint64_t raddr;
	uint64_t bytes; /* 0 unless LIVE */

	union {
		uint32_t rkey;                 /* for lanes of index 0 */
		uint32_t rkeys[EPF_NIC_LINKS]; /* for lanes of index i */
	};

	uint16_t state;
	uint16_t access; /* EPF_MR_* */
};

/* What a sleeping rank may have to hear. The larger outdoes the smaller. */
enum epf_notify {
	EPF_NOTIFY_NONE = 0,
	EPF_NOTIFY_WORDS = 1, /* a signal or completion counter moved */
	EPF_NOTIFY_PEERS = 2, /* the peers page changed: it must hear, whatever it waits for */
};

enum epf_rank_life {
	EPF_RANK_LIVE = 0,
	EPF_RANK_GONE = 1,    /* peers are notified, its regions drain */
	EPF_RANK_DRAINED = 2, /* nothing of it is in use */
};

/* A local rank. */
struct epf_rank_state {
	uint32_t rank;
	uint32_t n_signals;
	struct epf_signal *signals; /* unless signal_region says otherwise */
	uint32_t
		signal_region; /* the region of GPU memory that holds them, from its first byte; EPF_NONE: host memory */
	struct epf_region_local *regions;
	uint32_t n_regions; /* registered so far */
	uint32_t max_regions;
	struct epf_wakeup *wakeup; /* a thread of the rank may sleep on it; NULL: none does */
	uint64_t inflight_bytes;
	uint32_t inflight_messages;
	uint32_t
		dirty_groups; /* list of group streams put to since the last flush, EPF_NONE ends */
	uint32_t covered;     /* deferred commands that a flush of all rings waits for */
	uint8_t flushing; /* a ring of the rank has flush messages on their way: one flush at a time */
	uint8_t notify;  /* enum epf_notify: the wakeup may have to be rung */
	uint8_t life;    /* enum epf_rank_life */
	uint8_t telling; /* nodes have still to be notified of its state */
	uint8_t links; /* bit l: its streams go by link l of the own NIC while that is up; 0: by any */
	uint32_t pid;    /* its process, for people; 0: not known */
	uint8_t *usable; /* [world] 1: it may send to that rank: UP and not masked by it */
	uint8_t *masked; /* [world] */
	uint16_t *told;  /* [n_nodes] messages of the present news that were sent */
	/* Where additions to GPU memory of it are under way, in the core's round of that number. */
	const struct epf_region_local *adding_to;
	uint32_t adding_round;
};

/* Why a command was set aside with its stream. */
enum epf_stall {
	EPF_STALL_CREDIT = 0, /* no receive at the peer, or too much in flight */
	EPF_STALL_QUEUE = 1,  /* the lane's send queue is full */
	EPF_STALL_LANE = 2,   /* the lane is not up */
	EPF_STALLS = 3
};

/* A remote (or own, or other local) rank. Its state for others is in the peers page. */
struct epf_peer {
	struct epf_region_remote *regions;
	uint32_t n_regions;
	uint32_t n_signals;
	uint32_t node;  /* index in core->nodes */
	uint16_t place; /* node number of the job, for counting what crosses nodes */
	uint8_t up;
	uint8_t reserved;
	uint32_t local;   /* index in core->ranks if it lives here, else EPF_NONE */
	uint32_t coming;  /* comes back: messages of its news that have arrived */
	uint32_t epoch;   /* of that news */
	uint32_t expects; /* messages of it in all; 0: not known yet */
	uint32_t returns; /* how much of its epoch here is its node's coming back (reconnect.c) */
	uint32_t signals_applied; /* of those it sent, for people */
	/* Commands for it that were set aside, by enum epf_stall, modulo 2^32: for people. */
	uint32_t stalls[EPF_STALLS];
};

enum epf_stream_kind { EPF_STREAM_CONTROL = 0, EPF_STREAM_RING = 1, EPF_STREAM_GROUP = 2 };

/* Sending side of a stream. */
struct epf_stream {
	/* Since the watch looked: EPF_SENT_COMMAND for each command staged, and payload of puts: one addition. */
	uint64_t sent;
	uint32_t count; /* events posted: count of the next one */
	uint32_t peer;  /* rank */
	uint16_t
		ring; /* RING: the ring; GROUP: the first ring that used it (errors are reported there) */
	uint16_t node;
	uint16_t lane;   /* the lane it is bound to, an index in core->lanes */
	uint16_t handle; /* on its node */
	uint16_t
		home; /* the lane it was bound to first: where it goes back to when that is well again */
	uint8_t kind;
	uint8_t dirty;   /* posted since the last flush and on a dirty list */
	uint8_t waiting; /* on its lane's waiting list */
	uint8_t flush;   /* flush message sent, acknowledgement missing */
	uint8_t blocks;  /* its deferral queue is full: rings are blocked on it */
	uint8_t stall;   /* enum epf_stall: why its first deferred command was last refused */
	uint32_t deferred_head; /* deferred commands in order, EPF_NONE: none */
	uint32_t deferred_tail;
	uint32_t deferred_count;
	uint32_t next_waiting; /* list links: indices of streams */
	uint32_t next_dirty;   /* a ring's or rank's dirty list */
	uint32_t next_flush;   /* a ring's flush list */
	uint32_t next_hash;    /* GROUP: chain of the group table */
	uint32_t signal;       /* GROUP: the group's signal */
	uint32_t rank;         /* local rank index */
	uint32_t signals;      /* sent, since the watch looked */
	uint32_t flush_count;  /* count of the flush message that is on its way */
	uint32_t signals_head; /* GROUP: counted signals that wait for their puts, in order */
	uint32_t signals_tail;
	uint64_t group_posted; /* GROUP: puts posted */
	uint64_t group_target; /* GROUP: sum of the counts of signals sent */
};

/* An engine stages less than 2^26 commands and 2^38 bytes between two looks of the watch, a tenth of a second apart. */
#define EPF_SENT_COMMAND (UINT64_C(1) << 38)

/* Receiving side of a stream: base, bitmap of what has arrived above it, messages that wait. */
struct epf_rx_stream {
	uint32_t base;
	uint32_t pending;  /* first waiting message, EPF_NONE: none */
	uint32_t ahead;    /* bits set in the bitmap */
	uint8_t ack_state; /* enum epf_word_state of its acknowledgement word */
	uint8_t reserved;
	uint16_t next_ack; /* list of acknowledgements to write */
	uint64_t ack;      /* value to write */
	uint64_t bits[];   /* window / 64 words, bit = count modulo window */
};

/* A deferred command: no credit for it yet. */
struct epf_deferred {
	struct epf_op op;
	uint32_t next;
	uint32_t seq;  /* in ring */
	uint32_t done; /* bytes already staged of a long transfer */
	uint16_t ring;
	uint8_t covered; /* a flush of all rings waits until it is staged */
	uint8_t stalled; /* counted as a stall of its peer */
};

/* A message that arrived before what it covers. */
struct epf_pending {
	struct epf_msg msg;
	uint32_t next;
	uint32_t reserved;
};

enum epf_flush_phase {
	EPF_FLUSH_NONE = 0,
	EPF_FLUSH_WAITING_TURN = 1, /* one flush of a rank at a time */
	EPF_FLUSH_COVERING = 2, /* all rings: until what they held when its turn came is dequeued */
	EPF_FLUSH_DRAINING = 3, /* until what was deferred before it is staged */
	EPF_FLUSH_SENDING = 4,  /* a message on every stream posted to since the last one */
	EPF_FLUSH_WAITING = 5   /* for their acknowledgements */
};

/* A ring as the core sees it. */
struct epf_ring_state {
	struct epf_ring_consumer consumer;
	uint32_t *streams; /* per peer rank: stream index, EPF_NONE until first used */
	uint16_t *pend;    /* per command in the window: work requests missing until retired */
	uint32_t pend_mask;
	uint32_t seq;       /* commands dequeued */
	uint32_t retired;   /* commands retired (low 32 bits) */
	uint32_t published; /* low 32 bits of done.retired */
	uint64_t retired64;
	uint32_t deferred; /* commands of the ring that are deferred */
	uint32_t dirty;    /* streams posted to since the last flush; EPF_NONE ends */
	uint32_t rank;     /* local rank index */
	uint32_t
		blocked; /* stream whose deferral queue is full: nothing is dequeued until it drains; EPF_NONE */
	uint16_t id; /* index in core->rings */
	uint8_t live;
	uint8_t spare;       /* closed and drained: the place may be used again by the same rank */
	uint8_t flush_phase; /* enum epf_flush_phase */
	uint8_t flush_all;
	uint8_t weight;
	uint8_t mixed;   /* turns in which it is not looked for rows of puts (step_hot.c) */
	uint8_t missed;  /* 1: the last look found none at its head */
	uint8_t left;    /* what is in it was left there: it is alike, up to `alike` (put_hot.c) */
	uint8_t covered; /* nothing before a flush of all rings is left in it */
	uint32_t flush_seq;    /* sequence of the FLUSH command */
	uint32_t flush_failed; /* a lost rank the flush should have covered; EPF_NONE */
	uint32_t flush_list;   /* streams of the flush, EPF_NONE ends */
	uint32_t flush_sent;   /* first stream of the list whose flush message is not sent yet */
	int64_t deficit;    /* deficit round robin, bytes: one command may overdraw it by 2 GiB */
	uint32_t last_step; /* when something was dequeued last */
	uint64_t *retired_word; /* in core->retired, with this ring's bit in it */
	uint64_t retired_bit;
	uint64_t
		alike; /* up to here plain puts of one key follow each other, if the ring's tail is below: */
	uint64_t alike_key;
	uint64_t cover; /* covered when the consumer's tail is here */
	struct epf_done *done;
	uint64_t failed;
};

/* What one link of the NIC carries. */
struct epf_link_load {
	uint64_t bytes; /* in flight, as nic-inflight-bytes counts them */
	uint32_t messages;
};

/* A link that was lost: from the failure of its first lane until all of its lanes are in use again. */
struct epf_outage {
	uint32_t lanes;   /* of it that are being recovered */
	uint8_t is_moved; /* it was counted as a failover */
};

/* Where a ring's next command will be and what says that it is there: rings' polls lie side by side. */
struct epf_ring_poll {
	const struct epf_cmd *slot;
	uint64_t parity;
};

/*
 * One command at a time, the last of a batch, is followed from its taking until a NIC has it (row queue_delay_ns), and on until the NIC
 * says that it is done (nic_ns).
 */
struct epf_sample {
	uint8_t state;     /* enum epf_sample_state */
	uint32_t deferred; /* DEFERRED: its index */
	uint32_t lane; /* STAGED, POSTED: the lane, and how far that has to be posted, or done */
	uint32_t head;
	uint64_t tsc; /* when it was dequeued, or posted */
};

/* Beside it the newest command of one ring, from when it was seen until it is dequeued: row ring_wait_ns. */
struct epf_seen {
	uint64_t next_tsc; /* before that no batch is looked at */
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
	uint8_t beats; /* 1: this engine has a thread of its own, so it can promise signs of life */
};

enum { EPF_MAX_GPU_FLUSHES = 16, EPF_MAX_QUEUED_ARRIVALS = 256 };

/* An arrival that waits for additions to GPU memory, with its message's bytes. */
struct epf_queued_arrival {
	struct epf_wc wc;
	unsigned char msg[EPF_NIC_MSG_BYTES];
};

/* What makes a NIC's writes to a GPU's memory visible to its kernels (device_region.c). */
struct epf_gpu_flush {
	void (*flush)(void *arg);
	void *arg;
};

/*
 * Additions to GPU memory that the NIC had no room for. At most two: an arrival that carries its own signal may let one that waited take
 * effect before it.
 */
enum { EPF_HOLD_ADDS = 2 };

struct epf_gpu_add {
	struct epf_nic_mr mr;
	uint64_t offset, value;
};

struct epf_core {
	struct epf_nic *nic;
	const struct epf_nic_ops *ops;
	struct epf_nic_caps caps;
	uint8_t ordered;
	uint8_t counts_puts; /* puts are events: unordered NIC */
	uint8_t reserved1;
	uint8_t cold_work;           /* something for epf_core_cold() */
	struct epf_ring_poll *polls; /* [EPF_MAX_RINGS] by ring */
	uint64_t *retired;    /* bits: rings that have retired something since the last publish */
	struct epf_cmd never; /* an empty slot: what polls of closed rings look at */
	uint32_t n_rings;
	uint32_t next_ring;  /* where the next step begins */
	uint32_t steps;      /* all steps; the timer is looked at now and then */
	uint32_t timed_step; /* the next one in which the clock is read (step_hot.c) */
	uint64_t tick_ns;    /* nanoseconds of a tick of the time-stamp counter, times 2^32 */
	struct epf_sample sample;
	uint32_t unreaped; /* commands dequeued since the NIC was looked at */
	uint64_t began;    /* time-stamp of the first step since then */
	uint32_t n_ranks;
	uint32_t max_ranks;
	uint32_t max_streams;
	uint32_t world;
	uint32_t n_nodes;
	uint32_t self; /* own number among the nodes */
	uint32_t n_lanes;
	uint32_t rx_stride;
	uint32_t rx_mask; /* window - 1 */
	struct epf_ring_state **rings;
	struct epf_rank_state *ranks;
	struct epf_peer *peers;
	struct epf_node *nodes;
	struct epf_lane *lanes;
	struct epf_stream *streams;
	uint32_t n_streams;
	uint32_t *group_table; /* hash heads of group streams */
	uint32_t group_mask;
	uint32_t *notify_table;          /* hash heads of notify handles, as many as groups */
	struct epf_notify_out *notifies; /* max_streams of them */
	uint32_t n_notifies;
	uint32_t notify_free; /* entries below that nobody uses, EPF_NONE ends */
	struct epf_deferred *deferred;
	uint32_t deferred_unused;
	uint32_t n_deferred;
	struct epf_pending *pending;
	uint32_t pending_free;
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
	struct epf_nic_mr ctl_mr;
	uint64_t (*now)(void *arg);
	void *now_arg;
	uint64_t next_tick_ns; /* next time the cold timer is due */
	uint64_t next_beat_ns; /* next time nodes are asked for a sign of life */
	uint64_t beats; /* ticks so far, in the upper bits of grant words; 0: none are promised */
	uint8_t young; /* there are nodes that were not told so yet, and the first tick is to come */
	uint64_t peer_memory_bytes; /* engine memory proportional to peers */
	uint64_t
		peer_memory_most; /* no more of it than this, 0: no limit; the owner of the core sets it */
	uint64_t peer_memory_wanted; /* not 0: that limit was in the way of so much */
	struct epf_stats_block *stats;
	struct epf_flight *flight;          /* the recorder; NULL: none */
	struct epf_watch *watch;            /* NULL: nobody watches */
	struct epf_lanes_batch *connecting; /* lanes.c; NULL: lanes are connected one by one */
	struct epf_wr *lane_wrs;            /* memory of all lanes */
	struct epf_msg *lane_msgs;
	struct epf_wakeup *wakeup; /* what the core sleeps on */
	struct epf_wakeup own_wakeup;
	struct epf_queue *calls; /* requests of other threads, run between steps */
	int running;             /* a thread is in epf_core_run */
	int stop;
	uint64_t recover_seen_ns; /* when epf_recover_step looked last, 0: nothing was to recover */
	uint32_t recovering;      /* lanes under recovery */
	uint8_t is_opening; /* a lane was opened or connected in this round: the others wait for the next */
	uint32_t
		recover_poll; /* some of them have something to do, and do not only wait for peers or time */
	struct epf_outage outages[EPF_NIC_LINKS]; /* by link */
	uint64_t
		reopen_ns; /* when the next lane is to be opened again; UINT64_MAX: none waits for that */
	uint64_t
		self_lost_ns; /* no lane to the own node is left: when that counts as lost; 0: it has one */
	uint32_t
		telling; /* local ranks whose news nodes have still to be notified, and telling_loss */
	uint8_t telling_loss; /* nodes have still to be notified which loss the rank would end for (losses.c) */
	struct epf_peers_shm *peers_page; /* state of every rank, for waits */
	uint8_t own_peers_page;
	uint64_t
		refusals[EPF_CMD_REASONS]; /* commands refused, by reason - 300; any thread reads */
	uint32_t recheck; /* a region was withdrawn: deferred commands are checked once more */
	struct epf_revoke *revokes; /* withdrawals of own regions under way */
	uint32_t
		links_untold; /* bit l: link l has a new device whose keys not everybody knows yet (reconnect.c) */
	struct epf_reconnect *reconnect; /* lost nodes are being reconnected; else NULL */
	struct epf_seen seen;
	/*
	 * An addition to GPU memory is under way at the NIC: nothing that arrived after it takes effect before it is done, so that
	 * what a later signal or acknowledgement promises is there. Only more additions to the same region may follow it (adding), which a NIC
	 * makes in order, and those to other ranks, which no stream shares. hold: something else has come; from then on all arrivals are queued, in their order, while completions
	 * go on. Where there is no room for more, the NIC is left alone.
	 */
	uint32_t adding_round; /* so often there were some under way */
	uint8_t hold;
	uint8_t adding;
	uint8_t hold_retry;  /* the NIC had no room yet for so many of hold_adds */
	uint8_t hold_resume; /* its stream has more that is in order */
	uint32_t
		held_at; /* held_n: entries [held_at, held_n) of wcs, an error first, are still to be handled */
	uint32_t held_n;
	uint32_t first_queued_arrival, n_queued_arrivals;
	uint32_t hold_node; /* with hold_resume */
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

/* Hot helpers shared by the hot files. */
/* stage_hot.c: n checked commands of a ring, the first with number first_seq: each is staged, deferred, failed or begun. */
void epf_stage_batch(struct epf_core *core, struct epf_ring_state *ring, const struct epf_op *ops,
		     unsigned n, uint32_t first_seq);
/* The stream that a command goes to, EPF_NONE while there is none. */
uint32_t epf_stage_stream(const struct epf_core *core, const struct epf_ring_state *ring,
			  const struct epf_op *op);
unsigned epf_stage_waiting(struct epf_core *core);

/* What the next put lacks. */
enum epf_put_full {
	EPF_PUT_CREDIT = 1, /* room in its lane, or credit */
	/* The same; and some others of its stream are set aside already, and all that can be seen behind it in the ring would have to join them. */
	EPF_PUT_LEAVE = 2,
};

/* What there is to say of a row of plain puts. */
struct epf_put_run {
	uint32_t lane;  /* of the last one; EPF_NONE: not known */
	uint32_t empty; /* 1: it ended because nothing more was there */
	uint32_t full;  /* enum epf_put_full: why it ended otherwise */
};

/*
 * put_hot.c: plain puts at the head of the ring, at most `budget` and for the bytes of its turn (quantum: what each step brings), from the
 * ring to their lanes. Stops before the first command that is none, or that cannot be staged now. Returns how many.
 */
unsigned epf_put_run(struct epf_core *core, struct epf_ring_state *ring, unsigned budget,
		     int64_t quantum, struct epf_put_run *out);
int epf_stage_message(struct epf_core *core, struct epf_stream *s, struct epf_msg *m,
		      uint64_t wr_core);
/* The ready notify handle for (stream, signal, add), or EPF_NONE (then it is being defined, if it can be). */
uint32_t epf_notify_handle(struct epf_core *core, struct epf_stream *s, uint32_t signal,
			   uint32_t add);
/* Takes in a definition from a peer; 0 when it is malformed. */
int epf_notify_defined(struct epf_core *core, struct epf_node *node, const struct epf_msg *m);
void epf_arrive(struct epf_core *core, const struct epf_wc *wc);
/* Goes on with the stream in which an addition to GPU memory was applied. */
void epf_arrive_resume(struct epf_core *core);
/* Posts the grant word of a lane that is not used yet: its completion proves the way to the peer. 0: the NIC has no room. */
int epf_probe_post(struct epf_core *core, struct epf_lane *lane);
/* Writes a lane's grant word though one may be under way, for what posting does to the device. Ordered NICs only. 0: no room. */
int epf_nudge(struct epf_core *core, struct epf_lane *lane);
void epf_reclaim_word(struct epf_core *core, struct epf_lane *lane, const struct epf_wr *wr);
void epf_grant_mark(struct epf_core *core, struct epf_lane *lane);
void epf_ack_mark(struct epf_core *core, struct epf_node *node, uint32_t handle, uint32_t count);
unsigned epf_words_step(struct epf_core *core);
unsigned epf_flush_step(struct epf_core *core);
void epf_flush_begin(struct epf_core *core, struct epf_ring_state *ring, uint32_t seq,
		     unsigned all);

/* Cold functions the hot files may call: slow paths of the same thread. */
EPF_COLD void epf_fail_cold(struct epf_core *core, struct epf_ring_state *ring, uint32_t seq,
			    uint32_t rank, unsigned status, unsigned reason);
/* The command check has refused a command. */
EPF_COLD void epf_refuse_cold(struct epf_core *core, struct epf_ring_state *ring, uint32_t seq,
			      uint32_t rank, unsigned reason);
EPF_COLD void epf_lane_error_cold(struct epf_core *core, struct epf_lane *lane, unsigned status);
/* Fails a deferred command whose region was withdrawn meanwhile; 1 if it did. */
EPF_COLD int epf_recheck_cold(struct epf_core *core, struct epf_deferred *p);
EPF_COLD void epf_control_cold(struct epf_core *core, struct epf_node *node, struct epf_lane *lane,
			       const struct epf_msg *m);
EPF_COLD uint32_t epf_stream_open_cold(struct epf_core *core, unsigned kind,
				       struct epf_ring_state *ring, uint32_t rank, uint32_t signal,
				       uint32_t hash);
EPF_COLD unsigned epf_core_tick_cold(struct epf_core *core);
/* Begins an addition to a word of GPU memory of the local rank of that index: core->adding, or core->hold where the NIC has no room for it. */
EPF_COLD void epf_gpu_add_cold(struct epf_core *core, uint32_t local,
			       const struct epf_region_local *region, uint64_t offset,
			       uint64_t value);
/* core->adding, and this has arrived: 0, it may take effect; 1, core->hold: it is queued. */
EPF_COLD int epf_adding_stops_cold(struct epf_core *core, const struct epf_wc *wc);
/* What is next waits for additions to GPU memory: core->hold from now on. */
EPF_COLD void epf_hold_cold(struct epf_core *core);
/* 1: the additions are done, arrivals take effect again. */
EPF_COLD int epf_hold_over_cold(struct epf_core *core);
/* Calls the flushes of all GPUs that need one; device_region.c. */
EPF_COLD void epf_gpu_flush_cold(struct epf_core *core);

/*
 * Before anything is applied or published that says of data in GPU memory that it is there. Once a step is enough: a step reaps once,
 * and what it reaped had landed by then.
 */
EPF_INLINE void epf_gpu_visible(struct epf_core *core)
{
	if (EPF_UNLIKELY(core->n_gpu_flushes) && core->gpu_flushed != core->steps)
		epf_gpu_flush_cold(core);
}

EPF_INLINE struct epf_rx_stream *epf_rx(const struct epf_core *core, const struct epf_node *node,
					uint32_t handle)
{
	return (struct epf_rx_stream *)(void *)(node->rx + (size_t)handle * core->rx_stride);
}

#endif
