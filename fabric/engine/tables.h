/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tables of an engine core: local ranks and their regions, peers, streams, deferred commands, rings. A part of core.h, which says who may
 * touch it.
 */
#ifndef EPF_FABRIC_ENGINE_TABLES_H
#define EPF_FABRIC_ENGINE_TABLES_H

#include "fabric/engine/wire.h"
#include "fabric/nic/nic.h"
#include "queues/epf_cmd.h"
#include "queues/epf_ring.h"
#include "queues/epf_signal.h"
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
		2, /* local: waiting for peers; remote: withdrawn by the peer, our own traffic to it not yet drained */
	EPF_REGION_DRAINING =
		3, /* remote: waits for the entries that were staged at the snapshot */
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

/* What a sleeping rank is woken for; the larger value wins. */
enum epf_notify {
	EPF_NOTIFY_NONE = 0,
	EPF_NOTIFY_WORDS = 1, /* a signal or completion counter moved */
	EPF_NOTIFY_PEERS = 2, /* the peers page changed: wakes the rank whatever it waits for */
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
	uint32_t n_regions;    /* registered so far */
	uint32_t free_regions; /* of them: FREE, their numbers may be given out again */
	uint32_t max_regions;
	struct epf_wakeup *wakeup; /* a thread of the rank may sleep on it; NULL: none does */
	uint64_t inflight_bytes;
	uint32_t inflight_messages;
	uint32_t
		dirty_groups; /* list of streams of kind GROUP put to since the last flush, EPF_NONE ends */
	uint32_t covered; /* deferred commands that a flush of all rings waits for */
	uint8_t flushing; /* a ring of the rank has flush messages on their way: one flush at a time */
	uint8_t notify;  /* enum epf_notify: the wakeup may have to be rung */
	uint8_t life;    /* enum epf_rank_life */
	uint8_t telling; /* nodes have still to be notified of its state */
	uint8_t links; /* bit l: its streams use link l of this NIC while that is up; 0: any link */
	uint32_t pid;  /* its process, for people; 0: not known */
	uint8_t *usable;    /* [world] 1: it may send to that rank: UP and not masked by it */
	uint8_t *masked;    /* [world] */
	uint16_t *notified; /* [n_nodes] messages about its present state that were sent */
	uint32_t *carriers; /* [world] its newest stream of kind GROUP to that rank, or EPF_NONE */
	/* The region with additions to GPU memory under way, if adding_round is the core's. */
	const struct epf_region_local *adding_to;
	uint32_t adding_round;
};

/* Why a command was deferred with its stream. */
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
	uint32_t coming;  /* rejoining: messages about it that have arrived */
	uint32_t epoch;   /* of those messages */
	uint32_t expects; /* messages about it in all; 0: not known yet */
	uint32_t returns; /* how much of its epoch here is its node's coming back (reconnect.c) */
	uint32_t signals_applied; /* of those it sent: statistics */
	/* Commands for it that were deferred, by enum epf_stall, modulo 2^32: statistics. */
	uint32_t stalls[EPF_STALLS];
};

enum epf_stream_kind { EPF_STREAM_CONTROL = 0, EPF_STREAM_RING = 1, EPF_STREAM_GROUP = 2 };

enum { EPF_NO_ACK = 0xff };

/* Sending side of a stream. */
struct epf_stream {
	/* Since the watch last read it: EPF_SENT_COMMAND for each command staged, plus the payload of puts: one addition. */
	uint64_t sent;
	uint32_t count; /* events posted: count of the next one */
	uint32_t peer;  /* rank */
	uint16_t
		ring; /* RING: the ring; GROUP: the first ring that used it (errors are reported there) */
	uint16_t node;
	uint16_t lane;   /* the lane it is bound to, an index in core->lanes */
	uint16_t handle; /* on its node */
	uint16_t home;   /* the lane it was bound to first: it fails back to that one */
	uint8_t kind;
	uint8_t dirty;   /* posted since the last flush and on a dirty list */
	uint8_t waiting; /* on its lane's waiting list */
	uint8_t ack; /* acknowledgement word of the flush that is on its way; EPF_NO_ACK: none was sent */
	uint8_t blocks; /* its deferral queue is full: rings are blocked on it */
	uint8_t stall;  /* enum epf_stall: why its first deferred command was last refused */
	uint32_t deferred_head; /* deferred commands in order, EPF_NONE: none */
	uint32_t deferred_tail;
	uint32_t deferred_count;
	uint32_t next_waiting; /* list links: indices of streams */
	uint32_t next_dirty;   /* a ring's or rank's dirty list */
	uint32_t next_flush;   /* a ring's flush list */
	uint32_t next_carrier; /* GROUP: another one of (rank, peer): a ring of them */
	uint16_t rank;         /* local rank index */
	uint16_t groups;       /* GROUP: so many share it */
	uint32_t signals;      /* sent, since the watch last read it */
	uint32_t flush_count;  /* count of the flush message that is on its way */
	uint32_t held;         /* GROUP: counted signals that its groups hold */
	uint32_t
		ready; /* GROUP: list of groups whose next signal only lacks credit; EPF_NONE: empty */
};

/*
 * A group of counted puts: (local rank, peer, signal). It only counts. Its commands travel in one of the streams of kind GROUP that its rank has to
 * that peer, as many as there are lanes: a stream for each group would cost both ends four times the memory, and a flush a message each.
 */
struct epf_group {
	uint32_t next_hash; /* chain of the group table */
	uint32_t signal;
	uint32_t stream;       /* index */
	uint32_t spare;        /* puts posted that no signal sent has counted */
	uint32_t signals_head; /* counted signals that wait for their puts, in order */
	uint32_t signals_tail;
	uint32_t next_ready; /* EPF_NONE: not in the stream's list; its own index: the last there */
};

/* An engine stages less than 2^26 commands and 2^38 bytes in the tenth of a second between two readings of the watch. */
#define EPF_SENT_COMMAND (UINT64_C(1) << 38)

/* Receiving side of a stream: base, bitmap of arrivals above it, messages that wait. */
struct epf_rx_stream {
	uint32_t base;
	uint32_t pending; /* first waiting message, EPF_NONE: none */
	uint32_t ahead;   /* bits set in the bitmap */
	uint32_t reserved;
	/* window / 64 words, bit = count modulo window; NULL while nothing is ahead. All zero when it is returned. */
	uint64_t *bits;
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
	uint32_t group; /* of its last counted command: an index in core->groups */
	uint16_t id;    /* index in core->rings */
	uint8_t live;
	uint8_t spare;       /* closed and drained: the place may be used again by the same rank */
	uint8_t flush_phase; /* enum epf_flush_phase */
	uint8_t flush_all;
	uint8_t weight;
	uint8_t mixed;  /* turns in which no run of plain puts is looked for (policy_hot.h) */
	uint8_t missed; /* 1: the last look found none at its head */
	uint8_t left; /* its commands were left in it: they are alike, up to `alike` (policy_hot.h) */
	uint8_t covered;       /* nothing before a flush of all rings is left in it */
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

/* Load of one link of the NIC. */
struct epf_link_load {
	uint64_t bytes; /* in flight, as nic-inflight-bytes counts them */
	uint32_t messages;
};

/* An outage of a link lasts from the failure of its first lane until all its lanes are in use again. */
struct epf_outage {
	uint32_t lanes;   /* lanes being recovered */
	uint8_t is_moved; /* it was counted as a failover */
};

/* The slot of a ring's next command and the parity that marks it full. Side by side for all rings: a step polls them all. */
struct epf_ring_poll {
	const struct epf_cmd *slot;
	uint64_t parity;
};

/* First sizes, the factors by which they grow, and where they end. */
enum {
	EPF_GROW_WRS = 1,        /* entries of a lane: one control write */
	EPF_GROW_SLOTS = 4,      /* payload slots of a lane */
	EPF_GROW_LANE = 4,       /* factor of both */
	EPF_GROW_LANE_SURE = 64, /* entries that every lane may have, up to lane-depth */
	EPF_GROW_SHARE =
		20480, /* bytes a peer rank, of all together, below which lanes may have more */
	EPF_GROW_SHARE_LEAST = 65536, /* and of jobs of few ranks */
	EPF_GROW_STREAMS = 4,         /* tables of a node by handle; they double */
	EPF_GROW_HASH = 64,           /* heads of the hash tables; they double */
	EPF_GROW_WINDOWS = 16,        /* arrival windows added at a time */
	EPF_GROW_ALIGN = 16,
	EPF_GROW_SIZES = 64, /* different sizes of blocks */
};

/* Blocks that were outgrown wait for another user of their size. */
struct epf_grow_free {
	uint32_t bytes;
	void *first; /* its first word links to the next one */
};

struct epf_grow {
	uint8_t *
		at; /* the reservation: streams, notify handles, groups, waiting messages, then blocks */
	size_t reserved; /* bytes */
	size_t blocks;   /* where blocks begin */
	size_t used;     /* of the blocks' part */
	struct epf_grow_free free[EPF_GROW_SIZES];
	void *windows; /* unused arrival windows, all zero but for the link */
};

#endif
