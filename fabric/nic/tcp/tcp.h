/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of the TCP NIC, for the files of this folder only. A lane is a connection; both directions of it carry trains (wire.h). A work request is sent from
 * the memory that it names, and its payload is received into the memory that it is for; the receiver counts what has taken effect, and that count, in the
 * headers of its own trains, completes work requests here. Nothing is ever sent twice by this NIC: a broken connection is a failed lane.
 *
 * One thread uses a NIC, that of the core, but for the door (door.h). post() and reap() make system calls: no file here is a hot one, and what
 * tests/proc/test_seccomp.c promises does not hold for this NIC.
 */
#ifndef EPF_FABRIC_NIC_TCP_TCP_H
#define EPF_FABRIC_NIC_TCP_TCP_H

#include "fabric/nic/nic.h"
#include "fabric/nic/tcp/door.h"
#include "fabric/nic/tcp/opts.h"
#include "fabric/nic/tcp/seal.h"
#include "fabric/nic/tcp/staging.h"
#include "fabric/nic/tcp/wire.h"
#include "queues/epf_stats.h"
#include "queues/epf_wakeup.h"

#include <stdbool.h>
#include <sys/uio.h>

enum {
	EPF_TCP_MAX_LANES = 65535,
	EPF_TCP_MAX_DEPTH = 32768,
	EPF_TCP_RECEIVES = 1 << 24,
	EPF_TCP_STAGE = 16 << 10, /* bytes of a lane's staging memory */
	EPF_TCP_AHEAD = 2 << 10,  /* of it, what is read behind payload that goes to its place */
	EPF_TCP_MESSAGES = 256,   /* most EPF_WC_RECV in one reap */
	EPF_TCP_TRAIN_BYTES = 1 << 20, /* payload after which a train is closed */
	EPF_TCP_TX_BUDGET = 2 << 20,   /* bytes that one turn of a lane sends, and receives */
	EPF_TCP_RX_BUDGET = 1 << 20,
	EPF_TCP_EVENTS = 64,
	EPF_TCP_POST_NOW = 16, /* work requests that a post sends at once */
	EPF_TCP_ACK_AGE = 2,   /* reaps without arrivals that an acknowledgement waits */
	EPF_TCP_ACK_SHARE = 2, /* it does not for this part of a lane's depth, or so many bytes */
	EPF_TCP_ACK_BYTES = 256 << 10,
	/* A payload up to here is copied: its own entry in the list of sendmsg(2) costs more. */
	EPF_TCP_SHORT = 128,
	EPF_TCP_SHORT_BYTES = 8 << 10, /* of a train */
	EPF_TCP_NO_LANE = 0xffff,
	EPF_TCP_PIECES = 32, /* most places that one receive scatters to */
};

/* A READ of the peer's that is to be answered. */
struct epf_tcp_owed {
	uint64_t raddr;
	uint32_t rkey, len;
	uint32_t number; /* of the request */
};

/* Sending side of a lane. Numbers of work requests count from 0 when the lane is made, and wrap. */
struct epf_tcp_tx {
	struct epf_wr *wrs; /* [mask + 1], by number */
	uint8_t *inlines;   /* [mask + 1][EPF_NIC_MSG_BYTES] */
	uint32_t head;      /* next to be posted */
	uint32_t sent;      /* next to be put into a train */
	uint32_t
		acked; /* all before have taken effect at the peer, but READs without their bytes */
	uint32_t tail; /* all before are reported */
	uint32_t reads[EPF_TCP_READS]; /* numbers of READs sent and not answered */
	uint32_t reads_head, reads_tail;
	struct epf_tcp_owed owed[EPF_TCP_READS];
	uint32_t owed_head, owed_tail;
	uint8_t nak; /* status to be sent, 0: none; nothing follows it */
	uint8_t is_nak_sent;
	uint32_t nak_number;
	bool has_bad;     /* number head - 1 is wrong by itself: it fails when its turn has come */
	bool is_writable; /* the socket took all of the last train */
	/* The train that is being sent. */
	uint32_t n_iov, at_iov;
	struct iovec iov[EPF_TCP_TRAIN + 1];
	uint8_t front[EPF_TCP_FRONT_BYTES];
	uint8_t shorts[EPF_TCP_SHORT_BYTES]; /* short payloads of the train */
};

/* Receiving side. */
struct epf_tcp_rx {
	uint8_t *stage; /* [EPF_TCP_STAGE] bytes [at, end) are received and not looked at */
	uint32_t at, end;
	struct epf_tcp_desc descs[EPF_TCP_TRAIN];
	uint32_t ends[EPF_TCP_TRAIN]; /* where the payload of each ends in the train's */
	uint32_t count;               /* of the train, 0: none is open */
	uint32_t done;                /* descriptors that have taken effect */
	uint32_t bytes;               /* payload that has been received of the train */
	uint32_t current;             /* all descriptors before have theirs */
	uint8_t slots
		[EPF_TCP_TRAIN]; /* place of a message in `messages`, of a READ in epf_tcp_tx.reads */
	uint32_t taken;          /* requests that have taken effect */
	uint32_t told;           /* of them, those acknowledged */
	uint32_t told_bytes;     /* payload since */
	uint8_t ack_age;
	bool is_dead; /* nothing that arrives takes effect any more */
	bool is_readable;
	bool has_hung_up; /* the end of the stream is in sight: read on until it is there */
	bool waits;       /* for a posted receive */
	uint64_t waits_since_ns;
	uint8_t messages[EPF_TCP_TRAIN_SENDS][EPF_NIC_MSG_BYTES];
};

struct epf_tcp_lane {
	struct epf_tcp_tx tx;
	struct epf_tcp_rx rx;
	int fd;                       /* -1: not connected */
	struct epf_tcp_seal *seal;    /* of the connection; NULL: it is not encrypted */
	struct epf_tcp_lane_gpu *gpu; /* NULL: the NIC has no GPU memory */
	int parked; /* a peer's connection that came before lane_connect; -1: none */
	struct epf_tcp_seal *parked_seal;
	uint64_t parked_token;
	uint8_t parked_peer[EPF_TCP_ID];
	uint64_t token, peer_token;
	uint8_t peer[EPF_TCP_ID];
	bool is_loop; /* the other end is a lane of this NIC */
	uint32_t depth, mask;
	uint64_t since_ns; /* when a post found no connection; 0: none has */
	uint16_t number;
	uint16_t ready_next;
	uint8_t link;    /* enum epf_lane_link */
	uint8_t status;  /* in error: of the first request that is not reported */
	bool has_failed; /* that one still has to be reported */
	bool is_gone;    /* LANE_DOWN has to be reported, with gone_status */
	bool is_ready;   /* in the list of lanes to be looked at */
	bool dials;      /* this end dials, and waits for the outcome */
	uint8_t gone_status;
	int dial_rc; /* dialing failed */
	char why[160];
	uint32_t retransmits;     /* of the connection, when it was last looked at */
	uint64_t lossy_until_ns;  /* packets were sent again less than a second before */
	struct epf_nic_path path; /* while there is a connection */
	uint64_t posted;          /* work requests ever; for opts.reset_after */
};

struct epf_tcp_tries {
	uint64_t retransmits; /* of its earlier connections */
	uint8_t path;         /* enum epf_stats_path; UNKNOWN: it has had no difficulty */
};

struct epf_tcp_region {
	uint64_t base, len;
	uint32_t key; /* 0: free */
	unsigned access;
	struct epf_copy_mem *mem; /* of GPU memory; NULL: of host memory */
};

struct epf_tcp {
	struct epf_nic nic;
	uint64_t (*now)(void *);
	void *now_arg;
	struct epf_tcp_opts opts;
	char ifname[256];    /* opts.ifname */
	char congestion[16]; /* opts.congestion */
	struct epf_auth auth;
	uint8_t id[EPF_TCP_ID];
	struct epf_net_addr listen[EPF_TCP_LISTEN_MAX];
	uint32_t n_listen;
	int inner_fd;              /* epoll of the lanes' sockets */
	struct epf_tcp_door *door; /* NULL until the address is asked for */
	struct epf_wakeup *wakeup;
	struct epf_wakeup own_wakeup;
	struct epf_tcp_lane **lanes; /* by number */
	/* What came of connecting, by lane number: a lane that cannot be connected is made again and again. */
	struct epf_tcp_tries *tries;
	uint32_t lanes_end;
	uint32_t epoch;
	struct epf_tcp_region *regions;
	uint32_t nregions;
	uint16_t region_generation;
	uint32_t receives;
	uint16_t ready_head, ready_tail;
	uint32_t n_waits; /* lanes that wait for a receive */
	uint32_t watch_lane;
	bool is_down; /* set_link */
	uint64_t cut_ns;
	uint32_t messages_used;
	struct epf_tcp_copier *copier; /* NULL until there is GPU memory */
	struct epf_tcp *copier_of;     /* owner of the copier: this NIC, or that of another link */
	struct epf_tcp_pinned *adds;   /* failures of additions, which need no memory */
	uint64_t copies_done;          /* last completed job at the last reap */
	uint64_t last_add;             /* number of the last addition's job */
	struct epf_nic_counters counters;
	uint8_t messages[EPF_TCP_MESSAGES][EPF_NIC_MSG_BYTES];
};

/* Completions being handed out by one reap. */
struct epf_tcp_out {
	struct epf_wc *wc;
	unsigned n, max;
};

static inline struct epf_tcp *epf_tcp_of(const struct epf_nic *nic)
{
	return (struct epf_tcp *)(uintptr_t)nic;
}

static inline struct epf_tcp_lane *epf_tcp_lane_at(const struct epf_tcp *t, uint32_t lane)
{
	return lane < t->lanes_end ? t->lanes[lane] : NULL;
}

static inline bool epf_tcp_out_is_full(const struct epf_tcp_out *out)
{
	return out->n == out->max;
}

/* True while bytes of a train have not been given to the socket. */
static inline bool epf_tcp_is_sending(const struct epf_tcp_lane *l)
{
	return l->tx.at_iov < l->tx.n_iov || (l->seal && epf_tcp_seal_is_sending(l->seal));
}

/* 1: the key names a region that covers [addr, addr + len) with this access. */
static inline int epf_tcp_covers(const struct epf_tcp *t, uint32_t key, uint64_t addr, uint64_t len,
				 unsigned access)
{
	uint32_t at = key & 0xffff;
	const struct epf_tcp_region *r;

	if (at >= t->nregions)
		return 0;
	r = &t->regions[at];
	return key && r->key == key && (r->access & access) == access && addr >= r->base &&
	       len <= r->len && addr - r->base <= r->len - len;
}

/* Returns where an address of a region is, which the caller has found covered. */
static inline struct epf_tcp_spot epf_tcp_spot_in(const struct epf_tcp_region *r, uint64_t addr)
{
	return (struct epf_tcp_spot){ r->mem, r->mem ? addr - r->base : addr };
}

/* Finds where a range of a region is. Returns false if key, range or right is wrong. */
static inline bool epf_tcp_find_spot(const struct epf_tcp *t, uint32_t key, uint64_t addr,
				     uint32_t len, unsigned access, struct epf_tcp_spot *out)
{
	if (!epf_tcp_covers(t, key, addr, len, access))
		return false;
	*out = epf_tcp_spot_in(&t->regions[key & 0xffff], addr);
	return true;
}

/* Returns 1 if the payload of an entered work request comes from GPU memory. */
static inline int epf_tcp_is_from_gpu(const struct epf_wr *wr)
{
	return wr->reserved;
}

/* True while received trains wait for copies to GPU memory. */
static inline bool epf_tcp_is_holding(const struct epf_tcp_lane *l)
{
	return l->gpu && l->gpu->held_first != l->gpu->held_last;
}

/* The lane is looked at by the next reap. */
static inline void epf_tcp_make_ready(struct epf_tcp *t, struct epf_tcp_lane *l)
{
	if (l->is_ready)
		return;
	l->is_ready = true;
	l->ready_next = EPF_TCP_NO_LANE;
	if (t->ready_head == EPF_TCP_NO_LANE)
		t->ready_head = l->number;
	else
		t->lanes[t->ready_tail]->ready_next = l->number;
	t->ready_tail = l->number;
}

static inline bool epf_tcp_owes_ack(const struct epf_tcp_lane *l)
{
	return l->rx.taken != l->rx.told;
}

/* Requests that are complete at the peer, READs with their bytes. */
static inline uint32_t epf_tcp_complete(const struct epf_tcp_lane *l)
{
	const struct epf_tcp_tx *tx = &l->tx;
	uint32_t first;

	if (tx->reads_head == tx->reads_tail)
		return tx->acked;
	first = tx->reads[tx->reads_tail % EPF_TCP_READS];
	return (int32_t)(first - tx->acked) < 0 ? first : tx->acked;
}

/* ---- tx.c ---- */
int epf_tcp_post(struct epf_nic *nic, uint16_t lane, const struct epf_wr *wr, unsigned n);
/* Sends what there is to send, as far as the socket takes it. */
void epf_tcp_send(struct epf_tcp *t, struct epf_tcp_lane *l);

/* ---- rx.c ---- */
/* Receives and lets take effect what there is, within a budget; events go to out. */
void epf_tcp_receive(struct epf_tcp *t, struct epf_tcp_lane *l, struct epf_tcp_out *out);

/* 1: something that arrived before can take effect now. */
int epf_tcp_can_advance(const struct epf_tcp *t, const struct epf_tcp_lane *l);

/* ---- effect.c ---- */
/* A message or a write with immediate that has landed on a lane: 0, or -EAGAIN: there is no receive, or no room in out. */
int epf_tcp_arrive(struct epf_tcp *t, struct epf_tcp_lane *l, int is_send, uint32_t imm,
		   uint32_t len, const void *msg, struct epf_tcp_out *out);
/* Carries out what is posted on a lane whose other end is a lane of this NIC. */
void epf_tcp_loop(struct epf_tcp *t, struct epf_tcp_lane *l, struct epf_tcp_out *out);

/* ---- reap.c ---- */
int epf_tcp_reap(struct epf_nic *nic, struct epf_wc *wc, unsigned n);
uint64_t epf_tcp_next_event(const struct epf_nic *nic);
void epf_tcp_post_receives(struct epf_nic *nic, unsigned n);

/* ---- lane_state.c ---- */
/* Lane to error: request number `at` fails with this status, those before it are complete, those after it are flushed. */
void epf_tcp_fail(struct epf_tcp *t, struct epf_tcp_lane *l, uint32_t at, unsigned status);
/* A lane between lanes of this NIC: its other end looks at it. */
void epf_tcp_tell_other(struct epf_tcp *t, const struct epf_tcp_lane *l);
/* The connection is gone: to error as by a NIC whose peer is dead. why: for the log, NULL: it is no news. */
void epf_tcp_lose(struct epf_tcp *t, struct epf_tcp_lane *l, unsigned status, const char *why);
/* The peer breaks the rules of the wire: counted, said, and the lane is lost. */
void epf_tcp_broken(struct epf_tcp *t, struct epf_tcp_lane *l, const char *what);
/* The lane has a connection. fd and seal (or NULL) are the lane's. */
void epf_tcp_attach(struct epf_tcp *t, struct epf_tcp_lane *l, int fd, struct epf_tcp_seal *seal);
/* Closes a connection that came early, if there is one. */
void epf_tcp_unpark(struct epf_tcp_lane *l);
/* Takes what the door has given. */
void epf_tcp_take_given(struct epf_tcp *t);
void epf_tcp_close_fd(struct epf_tcp_lane *l);
/* Frees a lane that is on no list. */
void epf_tcp_lane_free(struct epf_tcp_lane *l);

/* ---- lane.c ---- */
int epf_tcp_lane_create(struct epf_nic *nic, uint16_t lane, uint32_t depth, uint64_t *token);
int epf_tcp_lane_connect(struct epf_nic *nic, uint16_t lane, const void *addr, size_t addr_len,
			 uint64_t token);
int epf_tcp_lane_reconnect(struct epf_nic *nic, uint16_t lane, const void *addr, size_t addr_len,
			   uint64_t token);
void epf_tcp_lane_fence(struct epf_nic *nic, uint16_t lane);
int epf_tcp_lane_drained(const struct epf_nic *nic, uint16_t lane);
void epf_tcp_lane_destroy(struct epf_nic *nic, uint16_t lane);
enum epf_lane_link epf_tcp_lane_link(const struct epf_nic *nic, uint16_t lane);

/* ---- open.c ---- */
void epf_tcp_close(struct epf_nic *nic);
/* From now on uses the wakeup and the copier of `with`, which the same core uses and which is closed after this NIC. Before anybody waits. */
void epf_tcp_share_wakeup(struct epf_nic *nic, const struct epf_nic *with);

/* ---- watch.c ---- */
void epf_tcp_watch(struct epf_nic *nic);
int epf_tcp_lane_path(const struct epf_nic *nic, uint16_t lane, struct epf_nic_path *out);

/* ---- addr.c ---- */
int epf_tcp_addr_encode(const struct epf_tcp_place *place, void *buf, size_t size);
/* 0, or -EINVAL with epf_last_error() set. */
int epf_tcp_addr_decode(const void *buf, size_t len, struct epf_tcp_place *out);
/* Opens the door if it is not open yet. Slow. */
int epf_tcp_open_door(struct epf_tcp *t);
int epf_tcp_set_job(struct epf_nic *nic, const struct epf_nic_job *job);
int epf_tcp_address(const struct epf_nic *nic, void *buf, size_t size);

#endif
