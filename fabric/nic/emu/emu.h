/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of the emulated NIC: one structure for the NIC, one small one per lane, one private slot per
 * packet from its pool. Included by nic.c and emu_*.c only; the shared layout is wire.h.
 * Nothing read from a segment is trusted: indices and lengths are checked where they are used, and what
 * must not change under us is kept in the slots, which no other process can see.
 */
#ifndef EPF_FABRIC_NIC_EMU_EMU_H
#define EPF_FABRIC_NIC_EMU_EMU_H

#include "fabric/base/clock.h"
#include "fabric/nic/emu/copier.h"
#include "fabric/nic/emu/opts.h"
#include "fabric/nic/emu/stages.h"
#include "fabric/nic/emu/wire.h"
#include "fabric/nic/nic.h"

#include <stdbool.h>
#include <sys/types.h>

enum {
	EPF_EMU_NO_LANE = 0xffff, /* end of a list of lanes */
	EPF_EMU_MESSAGES = 64,    /* most EPF_WC_RECV in one reap */
	EPF_EMU_SAVED = 32,       /* copies of messages kept for a second arrival event */
	EPF_EMU_HELD = 4096,      /* most packets and second events held by the faults */
	EPF_EMU_CHUNK = 16,       /* packets after which a long post pushes what it has */
	EPF_EMU_BUDGET = 96,      /* packets that one reap lands */
	EPF_EMU_QUOTA = 16,       /* packets that one lane lands before the next lane's turn */
	EPF_EMU_PACED = 256, /* packets that one post fills, halved by the pace; no pace: any */
};

/* A segment as this process sees it; shared by all its NICs (map.c). */
struct epf_emu_seg {
	struct epf_emu_segment *hdr;
	struct epf_emu_gpu_region *gpu;
	struct epf_emu_lane_words *lanes;
	unsigned char *packets;
	uint64_t nonce, bytes;
	uint32_t npackets, stride, mtu, nlanes, nic_number, ordered;
	uint64_t start_ticks; /* start time of the owner's process, see proc(5), stat field 22 */
	struct epf_emu_proc *proc; /* the owner's process; own segments: NULL */
	uint64_t offset;           /* in this process's memfd; own segments only */
	pid_t pid;
	int fd; /* own segments only */
	unsigned refs;
	bool own;
	struct epf_emu_seg *next; /* in its hash bucket */
};

/* epf_emu_slot.flags */
enum {
	EPF_EMU_WAITS = 1, /* in its lane's tx list, not pushed yet */
	EPF_EMU_FLIES = 2, /* the target has it */
	EPF_EMU_OUT = 4,   /* lead of a message that is outstanding */
	EPF_EMU_KNOWN = 8, /* its outcome is known (status), it waits for its turn in the lane */
	EPF_EMU_DONE = 16, /* in the list of completions to hand out */
	EPF_EMU_MUTE = 32, /* its lane is gone: hand out nothing */
	EPF_EMU_READ = 64, /* it returns bytes */
	EPF_EMU_HOME =
		128, /* it is back, and its bytes are being copied to GPU memory here, or from the peer's */
};

/* What only the owner knows of one of its packets. Links are index + 1, 0 the end. */
struct epf_emu_slot {
	uint64_t laddr;     /* READ: where this packet's bytes go */
	uint64_t posted_ns; /* lead */
	uint32_t link;      /* free list, tx list or list of completions */
	uint32_t out_next, out_prev;
	uint32_t lead;  /* index */
	uint32_t epoch; /* of the lane when it was posted */
	uint32_t id;
	uint32_t lkey, len; /* READ */
	uint16_t left;      /* lead: packets of the message not yet back */
	uint16_t wrs;       /* lead: work requests that it stands for, with numbers up to id */
	uint16_t good;      /* of them, those before the one that failed */
	uint16_t lane;
	uint8_t flags;
	uint8_t status;
	uint8_t form; /* READ: as in the packet */
};

/* epf_emu_lane.rx_state: on which list the lane's packets to be landed wait (DUE, CUT: on none). */
enum {
	EPF_EMU_RX_IDLE,
	EPF_EMU_RX_READY,
	EPF_EMU_RX_RNR,
	EPF_EMU_RX_DUE,
	EPF_EMU_RX_CUT,  /* until its link comes up */
	EPF_EMU_RX_COPY, /* until the copy of the packet at the head is done */
};

/* epf_emu_lane.flags */
enum {
	EPF_EMU_TX_STOP = 1,  /* a local error is on its way out: what is posted now is flushed */
	EPF_EMU_FENCED = 2,   /* nothing that arrives takes effect */
	EPF_EMU_RX_DEAD = 4,  /* the same, after an error on an ordered lane */
	EPF_EMU_IN_RET = 8,   /* on the list of lanes with packets to release */
	EPF_EMU_IN_WAKE = 16, /* on the list of lanes whose peer is to be woken */
	EPF_EMU_USED = 32,    /* lane_create was called */
	EPF_EMU_BROKEN = 64,  /* the peer broke the rules of the wire: its links are not followed */
	EPF_EMU_GONE = 128,   /* the peer is dead, EPF_WC_LANE_DOWN is still to be given */
};

/* Packet links are index + 1, 0 the end; lane links are lane numbers, EPF_EMU_NO_LANE the end. */
struct epf_emu_lane {
	struct epf_emu_seg *peer;
	uint64_t token;

	union {
		uint64_t peer_token; /* with a peer */
		/* without: its predecessor's, to be connected to again (lane_reopen); or NULL */
		struct epf_emu_seg *kept;
	};

	uint64_t rnr_since_ns; /* when the packet at the head began to wait for a receive */
	uint64_t progress_ns;  /* last completion, or first post on an idle lane */
	uint32_t out_head, out_tail, out_count, depth;
	uint32_t tx_head, tx_tail;
	uint32_t rx_head, rx_tail; /* packets of the peer, linked by their own next words */
	uint32_t ret_top, ret_bottom;
	uint32_t seq;
	uint32_t
		merge; /* last completion of this lane still to be handed out, if it may be merged */
	uint32_t done_count;
	uint32_t copy_head,
		copy_tail; /* copies begun for packets to be landed, in their order: index + 1 in epf_emu.copies */
	uint32_t copies; /* under way, those for own READs too */
	uint32_t
		ahead; /* last packet that was looked at for a copy ahead of its turn, index + 1; 0: the one at the head */
	uint32_t
		stall; /* slot + 1 of the request that is late while its peer is looked at, 0: none */
	uint16_t busy_next, busy_prev, work_next, ret_next, wake_next;
	uint8_t link; /* enum epf_lane_link */
	uint8_t rx_state;
	uint8_t flags;
	bool ahead_of_cpu; /* between the head and `ahead` lies a write by the CPU */
};

EPF_STATIC_ASSERT(sizeof(struct epf_emu_lane) <= 128, "a lane stays small");

/* What is kept of a lane whose oldest request is late (stall_hot.c). */
struct epf_emu_stall {
	uint64_t since_ns;  /* when the silence began */
	uint64_t posted_ns; /* of the request, as it was put off to */
	uint64_t pulse;     /* of the peer when the request became late */
};

struct epf_emu_region {
	uint64_t base, len;
	uint32_t key; /* 0: free */
	unsigned access;
	struct epf_copy_mem *mem; /* GPU memory; NULL: the CPU can use base */
};

/* What a copy is for: a packet to be landed, a READ's packet that is back, an addition of the core's. */
enum epf_emu_copy_kind { EPF_EMU_COPY_LAND = 1, EPF_EMU_COPY_HOME, EPF_EMU_COPY_ADD };

/* A copy under way; its index is the job's slot. */
struct epf_emu_copy {
	struct epf_emu_packet h; /* LAND: the header as it was checked */
	uint32_t idx;            /* of the packet */
	uint32_t next;           /* in its lane, or of the free ones: index + 1 */
	uint16_t lane;
	uint8_t kind;
	uint8_t done;
	uint8_t status;
	uint16_t good; /* LAND: writes of the packet that are in place when status is an error */
};

/* epf_emu.copier_state */
enum { EPF_EMU_COPIER_NONE, EPF_EMU_COPIER_WANTED, EPF_EMU_COPIER_READY, EPF_EMU_COPIER_FAILED };

struct epf_emu_held; /* fault.h */
struct epf_emu_proc; /* watch.c */

struct epf_emu_list {
	uint16_t head, tail;
};

struct epf_emu {
	struct epf_nic nic;
	uint64_t (*now)(void *);
	void *now_arg;
	uint64_t now_ns; /* at the start of the last reap */
	struct epf_emu_seg *seg;
	struct epf_emu_slot *slots;
	struct epf_emu_lane *lanes;
	struct epf_emu_stall *stalls; /* one a lane */
	uint32_t free_head, free_count;
	uint32_t done_head, done_tail;
	uint32_t epoch;
	uint32_t receives;
	uint64_t pulse; /* as last stored in the segment */
	uint16_t busy_head, ret_head, wake_head;
	struct epf_emu_list work; /* lanes with packets to land now */
	struct epf_emu_list rnr;  /* lanes that wait for a receive */
	uint64_t next_scan_ns;    /* earliest retry timeout */
	uint64_t next_rnr_ns;     /* earliest receiver-not-ready timeout */
	struct epf_emu_region *regions;
	uint32_t nregions;
	uint16_t region_generation;
	uint32_t links_down;                     /* bit i: link i is cut here */
	uint64_t link_cut_ns[EPF_EMU_MAX_LINKS]; /* since when */
	uint32_t lanes_end;                      /* highest lane ever created + 1 */
	uint32_t watch_lane;                     /* where the next watch begins */
	uint32_t gone_lanes;                     /* with EPF_EMU_GONE */
	bool faulty;                             /* any fault is set */
	uint32_t max_msg_bytes;
	struct epf_emu_opts opts;
	uint64_t p_reorder, p_duplicate, p_drop, p_error; /* of 2^64 */
	struct epf_emu_held *held;                        /* binary heap by due time */
	uint32_t nheld, held_order;
	uint32_t saved_free; /* bitmap of saved[] */
	uint32_t messages_used;
	struct epf_nic_counters counters;
	struct epf_emu_stages *stages; /* NULL: nobody asked */
	struct epf_emu_copier *copier;
	struct epf_emu_copy *copies; /* [EPF_EMU_COPIES], where there is a copier */
	uint32_t copy_free;          /* index + 1 */
	uint32_t copies_count;       /* under way */
	uint32_t adds;               /* of them, additions */
	uint32_t
		home_head; /* packets of READs that wait for room to be copied, by their slots' link */
	uint8_t copier_state; /* enum above */
	bool copies_pushed;   /* since the copier was last rung */
	unsigned char messages[EPF_EMU_MESSAGES][EPF_NIC_MSG_BYTES];
	unsigned char saved[EPF_EMU_SAVED][EPF_NIC_MSG_BYTES];
};

/* Completions being handed out by one reap. */
struct epf_emu_out {
	struct epf_wc *wc;
	unsigned n, max;
};

static inline struct epf_emu *epf_emu_of(const struct epf_nic *nic)
{
	return (struct epf_emu *)(uintptr_t)nic;
}

/* Hot: a turn begins, and ends. */
static inline void epf_emu_turn_begin(const struct epf_emu *e)
{
	struct epf_emu_stages *s = e->stages;

	if (EPF_LIKELY(!s))
		return;
	s->at = s->turn++ % EPF_EMU_TIMED ? 0 : epf_tsc();
	s->before = s->found;
}

static inline void epf_emu_turn_end(const struct epf_emu *e)
{
	struct epf_emu_stages *s = e->stages;

	if (EPF_LIKELY(!s))
		return;
	for (unsigned i = 0; s->at && i < EPF_EMU_STAGES; i++) {
		if (s->found != s->before)
			s->tsc[i] += s->part[i] * EPF_EMU_TIMED;
		s->part[i] = 0;
	}
	s->at = 0;
}

/* Hot: a stage of the turn is over, and the next one begins. */
static inline void epf_emu_stage_end(const struct epf_emu *e, enum epf_emu_stage stage)
{
	struct epf_emu_stages *s = e->stages;

	if (EPF_UNLIKELY(s) && s->at) {
		uint64_t now = epf_tsc();

		s->part[stage] += now - s->at;
		s->at = now;
	}
}

/* Hot: n of something. */
static inline void epf_emu_count(const struct epf_emu *e, enum epf_emu_tally what, uint64_t n)
{
	struct epf_emu_stages *s = e->stages;

	if (EPF_UNLIKELY(s)) {
		s->tally[what] += n;
		s->found += n;
	}
}

/* Packet number idx (checked by the caller) of a segment, and its payload. */
static inline struct epf_emu_packet *epf_emu_pkt(const struct epf_emu_seg *seg, uint32_t idx)
{
	return (struct epf_emu_packet *)(void *)(seg->packets + (uint64_t)idx * seg->stride);
}

static inline unsigned char *epf_emu_payload(struct epf_emu_packet *pkt)
{
	return (unsigned char *)pkt + EPF_EMU_PACKET_HEADER;
}

/* The region a key names if it covers [addr, addr + len) with this access; NULL otherwise. */
static inline const struct epf_emu_region *
epf_emu_covers(const struct epf_emu *e, uint32_t key, uint64_t addr, uint64_t len, unsigned access)
{
	uint32_t idx = key & 0xffff;
	const struct epf_emu_region *r;

	if (idx >= e->nregions)
		return NULL;
	r = &e->regions[idx];
	if (r->key != key || key == 0 || (r->access & access) != access)
		return NULL;
	if (addr < r->base || len > r->len || addr - r->base > r->len - len)
		return NULL;
	return r;
}

/* Lists of lanes, singly linked through work_next. */
static inline void epf_emu_list_add(struct epf_emu *e, struct epf_emu_list *list, uint16_t lane)
{
	e->lanes[lane].work_next = EPF_EMU_NO_LANE;
	if (list->head == EPF_EMU_NO_LANE)
		list->head = lane;
	else
		e->lanes[list->tail].work_next = lane;
	list->tail = lane;
}

static inline uint16_t epf_emu_list_take(struct epf_emu *e, struct epf_emu_list *list)
{
	uint16_t lane = list->head;

	if (lane != EPF_EMU_NO_LANE)
		list->head = e->lanes[lane].work_next;
	return lane;
}

/* Remembers that a lane's peer may sleep: wake_peers() rings it. */
static inline void epf_emu_note_wake(struct epf_emu *e, uint16_t lane)
{
	struct epf_emu_lane *l = &e->lanes[lane];

	if ((l->flags & EPF_EMU_IN_WAKE) || !epf_wakeup_is_needed(&l->peer->hdr->wakeup))
		return;
	l->flags |= EPF_EMU_IN_WAKE;
	l->wake_next = e->wake_head;
	e->wake_head = lane;
}

/* True when the lane's link is cut at this end: nothing of it is sent, landed or answered. A lane to the NIC itself needs no link. */
static inline bool epf_emu_is_cut(const struct epf_emu *e, uint32_t lane)
{
	return e->links_down && (e->links_down >> lane % e->opts.links & 1) &&
	       e->lanes[lane].peer != e->seg;
}

/* True when nothing that arrives on the lane may take effect. */
static inline bool epf_emu_is_stopped(const struct epf_emu_lane *l)
{
	return l->flags & (EPF_EMU_FENCED | EPF_EMU_RX_DEAD);
}

/* Makes a lane with packets to land be looked at, unless it waits for something. */
static inline void epf_emu_make_ready(struct epf_emu *e, uint16_t lane)
{
	struct epf_emu_lane *l = &e->lanes[lane];

	if (l->rx_state != EPF_EMU_RX_IDLE || l->rx_head == 0)
		return;
	l->rx_state = EPF_EMU_RX_READY;
	epf_emu_list_add(e, &e->work, lane);
}

/* map.c: segments of this process and of others. Slow. Return 0 or -errno with an error line. */
int epf_emu_seg_create(const struct epf_emu_opts *opts, struct epf_emu_seg **out);
int epf_emu_seg_attach(const void *addr, size_t len, struct epf_emu_seg **out);
/* 1: the segment is the one of this address. No lock. */
int epf_emu_seg_is_at(const struct epf_emu_seg *seg, const void *addr, size_t len);
int epf_emu_seg_address(const struct epf_emu_seg *seg, void *buf, size_t size);
/* Ends one use; the last one unmaps. Accepts NULL. */
void epf_emu_seg_put(struct epf_emu_seg *seg);

/* tx_hot.c: the sending side. */
int epf_emu_post(struct epf_nic *nic, uint16_t lane, const struct epf_wr *wr, unsigned n);
/* Pushes what waits on a lane, if link and peer allow. */
void epf_emu_push(struct epf_emu *e, uint16_t lane);

/* complete_hot.c: completions. */
/* The outcome of a message is known: completes it, on an ordered NIC when all before it are. */
void epf_emu_settle(struct epf_emu *e, uint16_t lane, uint32_t idx, uint8_t status);
/* Collects the packets that were returned to a lane number. */
void epf_emu_take_returns(struct epf_emu *e, uint32_t lane);
/* Lane to error: all that is outstanding completes as EPF_S_FLUSHED. */
void epf_emu_fail_lane(struct epf_emu *e, uint16_t lane);
/* The lane's peer is dead: to error, the oldest outstanding request as EPF_S_RETRY_EXCEEDED, the rest as EPF_S_FLUSHED. */
void epf_emu_lose_lane(struct epf_emu *e, uint16_t lane);
/* A packet has returned, a READ's with its bytes: settles its message if it was the last one. */
void epf_emu_returned(struct epf_emu *e, uint32_t lane, uint32_t idx, uint8_t status);
/* Puts a packet back into the pool if nothing refers to it any more. */
void epf_emu_free_packet(struct epf_emu *e, uint32_t idx);
/* Hands out completions of own work requests while out has fewer than max. */
void epf_emu_emit(struct epf_emu *e, struct epf_emu_out *out, unsigned max);
/* Fails the lanes whose oldest request has waited too long. */
void epf_emu_scan_timeouts(struct epf_emu *e);

/* reap_hot.c */
int epf_emu_reap(struct epf_nic *nic, struct epf_wc *wc, unsigned n);
void epf_emu_post_receives(struct epf_nic *nic, unsigned n);
uint64_t epf_emu_next_event(const struct epf_nic *nic);
int epf_emu_wake_pending(const struct epf_nic *nic);

/* stall_hot.c: puts off the timeouts of requests whose peer is not being run. */
void epf_emu_forgive_stalls(struct epf_emu *e);

/* packet_hot.c */
/* What is wrong with a packet's header, EPF_S_OK if nothing is; *region is what it aims at (NULL: no memory). */
uint8_t epf_emu_check_packet(const struct epf_emu *e, const struct epf_emu_lane *l,
			     const struct epf_emu_packet *h, const struct epf_emu_region **region);

/* rx_hot.c: the target side. */
/* ahead_hot.c: with the head waiting for its copy, starts the copies of packets behind it. Returns true if there may be more. */
bool epf_emu_look_ahead(struct epf_emu *e, uint16_t lane);

/* True when the bytes of a checked packet are moved by the copier, at this end. */
static inline bool epf_emu_needs_copier(const struct epf_emu_packet *h,
					const struct epf_emu_region *region)
{
	return h->form == EPF_EMU_REFS || (region && h->op != EPF_WR_READ && region->mem);
}

/* Lands packets of a lane in order until it must wait, is empty or has had its share; returns how many. */
unsigned epf_emu_serve_lane(struct epf_emu *e, uint16_t lane, struct epf_emu_out *out);
/* The packet at the head of a lane waits for a receive. */
void epf_emu_wait_receive(struct epf_emu *e, uint16_t lane);
/* Takes a lane's inbox. */
void epf_emu_take_inbox(struct epf_emu *e, uint16_t lane);

/* Appends one packet of the peer to those to be landed. */
static inline void epf_emu_rx_append(struct epf_emu_lane *l, uint32_t idx)
{
	epf_emu_pkt(l->peer, idx)->next = 0;
	if (l->rx_tail)
		epf_emu_pkt(l->peer, l->rx_tail - 1)->next = idx + 1;
	else
		l->rx_head = idx + 1;
	l->rx_tail = idx + 1;
}

/* Releases everything that a fenced lane holds, without effects or events. */
void epf_emu_rx_flush(struct epf_emu *e, uint16_t lane);
/* Pushes the packets to be released. */
void epf_emu_flush_returns(struct epf_emu *e);

/* lane.c */
int epf_emu_lane_create(struct epf_nic *nic, uint16_t lane, uint32_t depth, uint64_t *token);
int epf_emu_lane_connect(struct epf_nic *nic, uint16_t lane, const void *addr, size_t addr_len,
			 uint64_t token);
int epf_emu_lane_reopen(struct epf_nic *nic, uint16_t lane, uint32_t depth, uint64_t *token);
int epf_emu_lane_reconnect(struct epf_nic *nic, uint16_t lane, const void *addr, size_t addr_len,
			   uint64_t token);
void epf_emu_lane_fence(struct epf_nic *nic, uint16_t lane);
int epf_emu_lane_drained(const struct epf_nic *nic, uint16_t lane);
void epf_emu_lane_destroy(struct epf_nic *nic, uint16_t lane);
enum epf_lane_link epf_emu_lane_link(const struct epf_nic *nic, uint16_t lane);
void epf_emu_wake_peers(struct epf_nic *nic);

#endif
