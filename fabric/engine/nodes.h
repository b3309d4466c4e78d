/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Remote engines and the lanes to them: control writes, work requests, notify
 * handles, nodes. A part of core.h, which says who may touch it.
 */
#ifndef EPF_FABRIC_ENGINE_NODES_H
#define EPF_FABRIC_ENGINE_NODES_H

#include "fabric/engine/wire.h"
#include "fabric/nic/nic.h"
#include "queues/epf_base.h"

#include <stdint.h>

/* A word that we write into a peer's control memory. At most one write is in flight, because an older one could land last. */
enum epf_word_state {
	EPF_WORD_CLEAN = 0,
	EPF_WORD_DIRTY = 1,
	EPF_WORD_INFLIGHT = 2,
	EPF_WORD_INFLIGHT_DIRTY = 3
};

/* Kinds of work requests, in epf_wr.core bits 63..60. */
enum epf_wr_kind {
	EPF_WRK_DATA = 0,   /* bits 31..0 sequence in ring, 47..32 ring */
	EPF_WRK_QUIET = 1,  /* a message that retires nothing */
	EPF_WRK_GRANT = 2,  /* control write: receive grants of a lane */
	EPF_WRK_ACK = 3,    /* control write: acknowledgement word (bits 31..0) */
	EPF_WRK_NOTIFY = 4, /* definition of notify number (bits 31..0) */
};

#define EPF_WRC_EVENT (UINT64_C(1) << 56) /* carries a count: has an event at the target */
#define EPF_WRC_DONE  (UINT64_C(1) << 57) /* completed, not yet reclaimed (unordered NICs) */

EPF_INLINE uint64_t epf_wr_core(unsigned kind, uint32_t ring, uint32_t low, uint64_t bits)
{
	return (uint64_t)kind << 60 | (uint64_t)ring << 32 | low | bits;
}

enum epf_lane_state {
	EPF_LANE_DOWN = 0,    /* not usable: never connected, or given up */
	EPF_LANE_UP = 1,      /* carries traffic */
	EPF_LANE_FENCED = 2,  /* in error, fenced; recovery is under way */
	EPF_LANE_OPENING = 3, /* recovered; a new queue pair waits for the peer's token */
};

/* A queue pair to a node. */
struct epf_lane {
	struct epf_wr *wrs;   /* ring of entries: grows to lane-depth (grow.h) */
	struct epf_msg *msgs; /* ring of payload slots, in the order of the entries that have one */
	uint32_t mask;        /* of the entries there are */
	uint32_t n_slots;     /* payload slots there are: 0 or a power of two */
	uint32_t slot_head;   /* taken and given back in all */
	uint32_t slot_tail;
	uint32_t head;    /* entries staged */
	uint32_t posted;  /* handed to the NIC */
	uint32_t tail;    /* oldest entry not reclaimed */
	uint32_t limit;   /* entries that data may use, of those there are */
	uint32_t events;  /* events posted in all */
	uint32_t granted; /* events the peer allows in all */
	uint32_t arrived; /* events that arrived here in all */
	uint32_t given;   /* events we allow the peer, as last written */
	uint16_t id;      /* index in core->lanes, the NIC's lane number */
	uint16_t node;
	uint8_t index;       /* which lane of its node */
	uint8_t state;       /* enum epf_lane_state */
	uint8_t dirty;       /* staged since the last flush */
	uint8_t grant_state; /* enum epf_word_state */
	uint8_t in_wait_list;
	uint8_t in_grant_list;
	uint8_t link;          /* of the own NIC: index % caps.links */
	uint16_t still;        /* ticks in which the oldest posted entry has not moved */
	uint32_t seen_tail;    /* at the last tick */
	uint32_t waiting_head; /* streams with deferred commands, round robin */
	uint32_t waiting_tail;
	uint32_t drain_head; /* while its node is draining: what was staged then */
	uint32_t errors;     /* times it was fenced: statistics */
	uint32_t replays;    /* of its requests: statistics */

	union {
		uint64_t word; /* the grant that is being written: at most one is in flight */
		/* Before: of its first queue pair, sent again if that could not be connected (reopen.c). */
		uint64_t token;
	};
};

enum epf_node_state_id {
	EPF_NODE_UNKNOWN = 0,
	EPF_NODE_UP = 1,
	EPF_NODE_DOWN = 2,
	EPF_NODE_LEFT = 3
};

/* A notify handle as its sender keeps it (notify_hot.c). */
struct epf_notify_out {
	uint32_t stream; /* index */
	uint32_t signal;
	uint32_t add;
	uint32_t next;   /* in its hash chain */
	uint16_t handle; /* on its node */
	uint8_t ready;   /* its definition has arrived */
	uint8_t reserved;
};

/* What a notify handle stands for at the receiver. */
struct epf_notify_in {
	uint32_t rank;
	uint32_t signal;
	uint32_t add;
	uint32_t from;   /* 1 + sending rank, 0: not said */
	uint16_t stream; /* handle */
	uint16_t defined;
};

/* An acknowledgement that we write. */
struct epf_ack {
	uint64_t value;
	uint16_t next; /* list of those to write */
	uint8_t state; /* enum epf_word_state */
};

struct epf_recovery; /* recover.c */
struct epf_watch;    /* watch_priv.h */

/* A remote engine: the process of a rank, or the daemon of a node. */
struct epf_node {
	uint8_t state;
	uint8_t n_lanes;
	uint16_t first_lane;  /* lanes are consecutive in core->lanes */
	uint16_t n_handles;   /* sending streams opened to it */
	uint16_t max_handles; /* streams it accepts */
	uint16_t ack_head;    /* list of acknowledgements to write; 0xffff: none */
	uint16_t rx_streams;  /* receiving streams that the peer may use */
	uint16_t n_rx;        /* those there are: grows with use, as the following two */
	uint16_t n_notify_in; /* notify handles of the peer */
	uint16_t handles_room, notifies_room; /* of the tables below */
	uint16_t next_lane;                   /* for binding streams round robin */
	uint8_t in_ack_list;
	uint8_t is_back;  /* reconnected, but not all engines know yet (reconnect.c) */
	uint8_t said_bye; /* it was notified that this engine closes */
	uint8_t draining; /* waits for a snapshot of lane heads (withdrawal of its regions) */
	uint16_t nic_addr_len;
	uint32_t revoked;                /* regions of its ranks in state REVOKED or DRAINING */
	uint8_t *nic_addr;               /* for opening new lanes */
	uint32_t *handles;               /* handle to stream index */
	uint16_t *notify_streams;        /* stream handle of each notify handle we defined */
	struct epf_notify_in *notify_in; /* n_notify_in of them */
	uint16_t n_notifies;             /* notify handles we defined */
	uint16_t n_groups;               /* groups whose puts go there */
	struct epf_rx_stream *rx;        /* n_rx of them */
	struct epf_ack *acks; /* acknowledgements we write, by word; NULL until it flushes */
	uint64_t acks_busy;   /* bits: words that an own flush waits for */
	uint64_t
		acks_left; /* of them, those that nobody waits for any more: free once they are written */
	struct epf_ctl *ctl;               /* control writes it writes, in our memory */
	uint32_t receives;                 /* it posts for each lane */
	uint64_t ctl_raddr;                /* control writes we write, in its memory */
	uint32_t ctl_rkeys[EPF_NIC_LINKS]; /* for lanes of index i */
	uint8_t keys;                      /* keys its regions have: 1, or its NIC's devices */
	uint32_t next_ack_node;            /* list of nodes with acknowledgements to write */
	uint32_t rank;                     /* lowest rank on it: names the node in messages */
	uint64_t beats_seen;   /* sum of the heartbeats in its words; 0: it has promised none */
	uint32_t silent_ticks; /* since its last heartbeat */
	uint8_t heard;         /* something arrived from it since the last tick */
	uint8_t promised;      /* it knows that this engine sends heartbeats */
	uint8_t told_loss;     /* it knows for which loss the rank here would end */
	uint8_t shown_silent;  /* the peers page says that it is silent */
	struct epf_recovery *recovery; /* NULL until a lane fails */
};

#endif
