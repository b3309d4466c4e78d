/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of the verbs NIC, for nic.c and verbs_*.c only. Reliable connections: a lane is a queue pair, all of a NIC
 * share one protection domain, one queue of send completions, one of receive completions and one shared receive queue.
 *
 * A completion is found by its work request number: lane, a generation of that lane's number, and the position in the lane.
 * The lane keeps the ids of its positions, so that few work requests need ask for a completion: on an ordered lane each one
 * speaks for all before it. An arrival names only the queue pair; a hash table leads from there to the lane.
 *
 * One thread uses a NIC, but for lane_create and lane_connect, which set several lanes up at once, for reopen.c, and for the waker of `notify`.
 */
#ifndef EPF_FABRIC_NIC_VERBS_VERBS_H
#define EPF_FABRIC_NIC_VERBS_VERBS_H

#include "fabric/nic/nic.h"
#include "fabric/nic/rdma/common.h"
#include "fabric/nic/rdma/hw_counters.h"
#include "fabric/nic/rdma/notify.h"
#include "fabric/nic/rdma/receives.h"
#include "fabric/nic/verbs/opts.h"
#include "queues/epf_wakeup.h"

#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdint.h>

enum {
	EPF_VERBS_CHAIN = 64,  /* work requests built for one call of the provider */
	EPF_VERBS_POLL = 64,   /* completions of one call of the provider */
	EPF_VERBS_SPARE = 512, /* slots beyond the receives: those that the user still reads */
	EPF_VERBS_MAX_LANES = 65535,
	EPF_VERBS_MAX_DEPTH = 32768,
	EPF_VERBS_MSG_BYTES =
		1 << 20, /* longest transfer: what a failed lane repeats stays small */
	EPF_VERBS_NONE = 0xffff,
};

/* How far a fenced lane has come (epf_verbs_lane_drained). */
enum epf_verbs_drain {
	EPF_VERBS_OPEN,
	EPF_VERBS_FENCED,  /* queue pair in error; completions and arrivals still come out */
	EPF_VERBS_FLUSHED, /* all completions are out */
	EPF_VERBS_RESET,   /* queue pair reset: the device has let go of it */
	EPF_VERBS_DRAINED,
};

struct epf_verbs_lane {
	struct ibv_qp *qp;     /* NULL: this number is not in use */
	struct ibv_qp_ex *qpx; /* NULL: post by ibv_post_send */
	uint32_t *ids;         /* of position p: ids[p & mask] */
	uint8_t *bounce; /* slots for EPF_WR_INLINE that the queue pair cannot take; or NULL */
	struct ibv_mr *bounce_mr;
	uint32_t head, tail; /* positions: next to post, first not reported */
	uint32_t mask, depth;
	uint32_t quiet;        /* posted since a completion was asked for */
	uint32_t inline_bytes; /* the queue pair takes so many */
	uint32_t failed_at;    /* position of the first failure, while has_failed */
	uint32_t flushed;      /* every position before it is over, while has_failed */
	uint32_t psn;
	uint16_t generation;
	uint16_t next_report; /* lane behind this one in the list of epf_verbs.report */
	uint8_t link;         /* enum epf_lane_link */
	uint8_t has_failed;
	uint8_t status; /* of the first failure */
	uint8_t in_report;
	uint8_t gone;        /* LANE_DOWN is to be reported, with this status */
	uint8_t is_loop;     /* to the NIC itself: needs no link */
	uint8_t drain;       /* enum epf_verbs_drain */
	uint8_t is_owed;     /* on epf_verbs.owed_lanes */
	uint8_t has_let_go;  /* another thread was at work on it when it was to be fenced */
	uint32_t owed;       /* without shared receive queue: receives to be posted to it */
	uint64_t empty_mark; /* epf_verbs.empties when the lane came to this state of drain */
};

/* Lane number in an entry of epf_verbs.qps. */
static inline uint16_t epf_verbs_entry_lane(uint64_t entry)
{
	return (uint16_t)((uint32_t)entry - 1);
}

struct epf_verbs {
	struct epf_nic nic;
	const struct epf_verbs_lib *lib;
	struct ibv_context *ctx;
	struct ibv_cq *send_cq, *recv_cq;
	struct ibv_srq
		*srq; /* NULL: the device has none, and each lane a separate queue (recv_hot.c) */
	struct epf_verbs_lane *lanes; /* by number; memory comes with use */
	uint64_t *qps;                /* hash table: queue pair number << 32 | lane + 1; 0: free */
	uint32_t qps_mask, qps_used;
	uint32_t signal_interval;
	uint32_t max_msg_bytes;
	uint32_t max_lanes;
	uint32_t lanes_end;                /* one behind the highest number that was ever used */
	uint32_t outstanding, completions; /* posted and not reported, and the most of it */
	uint16_t report_head,
		report_tail; /* lanes with something to report that no completion says */
	uint8_t ordered;
	uint8_t dead; /* the device is gone: nothing more is asked of it */
	uint8_t spent; /* and its queues, which are memory of this process, have nothing more to tell */
	uint32_t posted_receives,
		wanted_receives;          /* with the device, and held back for want of slots */
	struct epf_rdma_slot *read_slots; /* named by the last reap */
	uint64_t empties;                 /* times the receive completions were seen to be none */
	struct epf_nic_counters counters;
	struct ibv_wc wcs[EPF_VERBS_POLL];
	struct ibv_send_wr wrs[EPF_VERBS_CHAIN];
	struct ibv_sge sges[EPF_VERBS_CHAIN];

	/* Slow path. */
	struct epf_verbs_opts opts;
	char device[64];
	uint8_t port;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_port_attr port_attr;
	struct ibv_device_attr dev_attr;
	union ibv_gid gid;
	uint32_t gid_index, gid_type, mtu; /* mtu: enum ibv_mtu */
	struct epf_rdma_receives receives;
	pthread_mutex_t
		setup; /* of qps, qps_used and random while lanes are created by several threads */
	uint32_t lane_receives, n_owed; /* without srq: of each lane; entries of owed_lanes */
	uint16_t *owed_lanes;           /* lanes with receives to be posted, max_lanes */
	uint32_t bad_lkey;              /* of memory that does not hold address 1 */
	struct epf_rdma_region *regions;
	uint64_t random;
	struct epf_hw_counters hw_counters;
	struct epf_verbs_opener *opener; /* reopen.c; NULL until a lane is opened again */
	struct epf_wakeup *wakeup;
	int shares_wakeup; /* with another NIC, which outlives this one */
	struct epf_rdma_notify notify;
	uint64_t (*now)(void *);
	void *now_arg;
};

static inline struct epf_verbs *epf_verbs_of(const struct epf_nic *nic)
{
	return (struct epf_verbs *)(uintptr_t)nic;
}

static inline uint64_t epf_verbs_wr_id(uint32_t lane, uint16_t generation, uint32_t position)
{
	return (uint64_t)lane << 48 | (uint64_t)generation << 32 | position;
}

/* Start of the search for a queue pair in epf_verbs.qps. */
static inline uint32_t epf_verbs_hash(uint32_t qpn)
{
	return qpn * 0x9e3779b1u >> 7;
}

/* post_hot.c, complete_hot.c */
int epf_verbs_post(struct epf_nic *nic, uint16_t lane, const struct epf_wr *wr, unsigned n);
int epf_verbs_reap(struct epf_nic *nic, struct epf_wc *wc, unsigned n);
void epf_verbs_post_receives(struct epf_nic *nic, unsigned n);
uint64_t epf_verbs_next_event(const struct epf_nic *nic);

/* Puts a lane on the list of those with something to report. */
static inline void epf_verbs_report_lane(struct epf_verbs *v, uint16_t lane)
{
	struct epf_verbs_lane *l = &v->lanes[lane];

	if (l->in_report)
		return;
	l->in_report = 1;
	l->next_report = EPF_VERBS_NONE;
	if (v->report_head == EPF_VERBS_NONE)
		v->report_head = lane;
	else
		v->lanes[v->report_tail].next_report = lane;
	v->report_tail = lane;
}

/* recv_hot.c, recv.c: receives where the device has no shared receive queue. */
/* n receives more are to be posted to a lane; epf_verbs_recv_give() posts them. */
void epf_verbs_recv_owe(struct epf_verbs *v, uint16_t lane, uint32_t n);
/* A completion has come for a slot: 0 when it is of a queue pair that is gone, and is to be ignored. arrived: its lane gets another. */
int epf_verbs_recv_took(struct epf_verbs *v, struct epf_rdma_slot *slot, uint32_t qpn, int arrived);
/* Posts what is owed, as far as there are slots. */
void epf_verbs_recv_give(struct epf_verbs *v);
/* The first n receives, spread over the lanes there are. */
void epf_verbs_recv_begin_cold(struct epf_verbs *v, uint32_t n);
/* A lane has been made again: it gets its receives. */
void epf_verbs_recv_again(struct epf_verbs *v, uint16_t lane);
/* Receives that one lane can hold then. */
uint32_t epf_verbs_lane_receives(const struct epf_verbs *v);
/* A lane's queue pair is about to be destroyed: its slots are free again. */
void epf_verbs_recv_forget(struct epf_verbs *v, uint16_t lane);

/* epf_rdma_call_failed() for this NIC. */
static inline int epf_verbs_call_failed(const struct epf_verbs *v, const char *call,
					const char *what)
{
	return epf_rdma_call_failed("verbs", v->device, call, what);
}

/* ---- caps.c ---- */
void epf_verbs_describe(const struct epf_nic *nic, struct epf_nic_caps *out);

/* ---- open.c ---- */
/* Frees what a NIC without lanes and regions holds; an unfinished one too. */
void epf_verbs_destroy(struct epf_verbs *v);
/* Rings another one's wakeup from now on; before anybody waits. That NIC is closed after this one. */
void epf_verbs_share_wakeup(struct epf_nic *nic, const struct epf_nic *with);
int epf_verbs_address(const struct epf_nic *nic, void *buf, size_t size);

/* ---- reopen_end.c ---- */
/* Gives up what is under way for a lane. 1: another thread still works on its queue pair; with `wait` it is waited for. */
int epf_verbs_reopen_end(struct epf_verbs *v, uint16_t lane, int wait);

/* ---- lane_state.c ---- */
/* Moves the lane's queue pair to a state. Returns 0 or an errno. */
int epf_verbs_lane_to(struct epf_verbs *v, const struct epf_verbs_lane *l, enum ibv_qp_state state);
/* The lane of that number, NULL if there is none. */
struct epf_verbs_lane *epf_verbs_lane_used(const struct epf_nic *nic, uint16_t lane);
/* The queue pair to error without fencing the lane: its completions come out as they are, then LANE_DOWN with this status. */
void epf_verbs_lane_gone(struct epf_verbs *v, uint16_t lane, unsigned status);
/* What is outstanding on a lane is over, since no completion will say so. */
void epf_verbs_lane_abandon(struct epf_verbs *v, uint16_t lane, unsigned status);

/* ---- lane.c ---- */
int epf_verbs_lane_create(struct epf_nic *nic, uint16_t lane, uint32_t depth, uint64_t *token);
int epf_verbs_lane_connect(struct epf_nic *nic, uint16_t lane, const void *addr, size_t addr_len,
			   uint64_t token);
void epf_verbs_lane_fence(struct epf_nic *nic, uint16_t lane);
int epf_verbs_lane_drained(const struct epf_nic *nic, uint16_t lane);
void epf_verbs_lane_destroy(struct epf_nic *nic, uint16_t lane);
int epf_verbs_link_ready(struct epf_nic *nic, uint16_t lane);
/* Parts of these. By any thread, on a lane that is not in use: a queue pair that is ready to be connected; what it holds is the caller's, also after a failure. */
int epf_verbs_lane_make(struct epf_verbs *v, struct epf_verbs_lane *l, uint16_t lane,
			uint32_t depth);
/* By any thread: connects one that is not in use. is_up: whether the own port is. */
int epf_verbs_lane_join(struct epf_verbs *v, struct epf_verbs_lane *l, uint16_t lane,
			const void *addr, size_t addr_len, uint64_t token,
			int (*is_up)(struct epf_verbs *v));
/* By any thread: frees what a lane holds; its generation stays, so that late completions of it are known. */
void epf_verbs_lane_free(struct epf_verbs *v, struct epf_verbs_lane *l);
/* By the NIC's thread, without a system call: a lane in v->lanes gets known to arrivals; and is forgotten, with what it holds in *out. */
int epf_verbs_lane_install(struct epf_verbs *v, uint16_t lane);
void epf_verbs_lane_detach(struct epf_verbs *v, uint16_t lane, struct epf_verbs_lane *out);
/* By any thread: whether the device says that the port is up. Makes a system call. */
int epf_verbs_ask_port(const struct epf_verbs *v);

/* qps.c */
/* Makes a lane's queue pair known to arrivals; -ENOMEM. No memory is needed for as many as there were. */
int epf_verbs_qp_enter(struct epf_verbs *v, uint16_t lane);
void epf_verbs_qp_forget(struct epf_verbs *v, uint16_t lane);

/* reopen.c */
int epf_verbs_reopen_init(struct epf_verbs *v);
int epf_verbs_lane_reopen(struct epf_nic *nic, uint16_t lane, uint32_t depth, uint64_t *token);
int epf_verbs_lane_reconnect(struct epf_nic *nic, uint16_t lane, const void *addr, size_t addr_len,
			     uint64_t token);
int epf_verbs_reopen_pending(const struct epf_nic *nic);
void epf_verbs_reopen_wake(struct epf_nic *nic);
void epf_verbs_reopen_close(struct epf_verbs *v);
enum epf_lane_link epf_verbs_lane_link(const struct epf_nic *nic, uint16_t lane);

/* ---- watch.c ---- */
/* A provider's call failed between two steps: err is its errno value. */
void epf_verbs_lost_lane_cold(struct epf_verbs *v, uint16_t lane, int err);
void epf_verbs_lost_receives_cold(struct epf_verbs *v, int err);
/* Takes in what the device has to tell. Makes a system call. */
void epf_verbs_events(struct epf_verbs *v);
void epf_verbs_watch(struct epf_nic *nic);
int epf_verbs_arm(struct epf_nic *nic);

/* counters.c */
void epf_verbs_counters_open(struct epf_verbs *v);

/* addr.c: the address; its layout stands there. */
enum { EPF_VERBS_ADDR_BYTES = 40 };

struct epf_verbs_peer {
	uint8_t link_layer, mtu, port, gid_type;
	uint16_t lid;
	union ibv_gid gid;
};

void epf_verbs_addr_encode(const struct epf_verbs_peer *peer, uint8_t *buf);
/* Returns 0, or -EINVAL with epf_last_error() set. */
int epf_verbs_addr_decode(const void *buf, size_t len, struct epf_verbs_peer *out);

/* A lane's token: the queue pair number, the first packet number, and a mark. */
static inline uint64_t epf_verbs_token(uint32_t qpn, uint32_t psn)
{
	return 0xe5ull << 56 | (uint64_t)psn << 32 | qpn;
}

static inline int epf_verbs_token_is_good(uint64_t token)
{
	return token >> 56 == 0xe5 && !(token & 0xff000000u) && (token & 0xffffffu);
}

#endif
