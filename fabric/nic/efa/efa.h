/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of the EFA NIC, for nic.c and efa_*.c only. SRD: reliable, without order and without connections. A lane is a
 * queue pair all the same, used with one peer only, since a shared one could not be fenced for one peer. All of a NIC share one
 * protection domain, one queue of send completions and one of receive completions.
 *
 * Each work request has its completion (the provider refuses others), in any order: a lane's slots carry what belongs to
 * a work request, and a completion names lane, generation of the lane's number, and slot. There is no shared receive
 * queue: what post_receives() is given is spread evenly over the lanes (recv_hot.c). Where the device can, a write with
 * immediate consumes no receive; an arrival is reported all the same, and the receive that the core gives for it is not posted.
 *
 * One thread uses a NIC, but for reopen.c, and for the waker of `notify`.
 */
#ifndef EPF_FABRIC_NIC_EFA_EFA_H
#define EPF_FABRIC_NIC_EFA_EFA_H

#include "fabric/nic/efa/lib.h"
#include "fabric/nic/efa/opts.h"
#include "fabric/nic/nic.h"
#include "fabric/nic/rdma/common.h"
#include "fabric/nic/rdma/hw_counters.h"
#include "fabric/nic/rdma/notify.h"
#include "fabric/nic/rdma/receives.h"
#include "queues/epf_wakeup.h"

#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdint.h>

enum {
	EPF_EFA_SPARE = 512, /* receive slots beyond those posted: what the user still reads */
	EPF_EFA_CHAIN = 64,  /* receives of one call of the provider */
	EPF_EFA_MAX_LANES = 65535,
	EPF_EFA_MAX_DEPTH = 32768,
	EPF_EFA_MSG_BYTES = 1 << 20, /* longest transfer: what a failed lane repeats stays small */
	EPF_EFA_QPNS = 65536,        /* queue pair numbers: 16 bits in the device's work requests */
	EPF_EFA_NONE = 0xffff,
	EPF_EFA_ADDR_BYTES = 48,
	EPF_EFA_SMALL_INLINE = 32, /* more needs queue entries of twice the size */
};

/* How far a fenced lane has come (epf_efa_lane_drained). */
enum epf_efa_drain {
	EPF_EFA_OPEN,
	EPF_EFA_FENCED, /* queue pair in error; completions and arrivals still come out */
	EPF_EFA_QUIET,  /* all completions are out */
	EPF_EFA_RESET,  /* queue pair reset: the device has let go of it */
	EPF_EFA_DRAINED,
};

/* A peer's address handle, shared by the lanes to it. */
struct epf_efa_ah {
	struct ibv_ah *ah;
	struct epf_efa_ah *next;
	union ibv_gid gid;
	uint32_t users;
};

/* An arrival that came before its lane was connected. */
struct epf_efa_early {
	struct epf_rdma_slot *slot; /* of a message; or NULL */
	uint32_t imm, len, src_qpn;
	uint32_t unsolicited; /* it consumed no receive */
};

struct epf_efa_lane {
	struct ibv_qp *qp; /* NULL: this number is not in use */
	struct ibv_qp_ex *qpx;
	struct ibv_ah *ah; /* of the peer */
	struct epf_efa_ah
		*handle; /* that ah is; of a detached lane: to be destroyed with it, or NULL */
	uint32_t remote_qpn, remote_qkey, qkey;
	uint32_t sink_rkey; /* the peer's, for work requests without bytes */
	uint64_t sink_raddr;
	uint32_t *ids;   /* of slot s */
	uint16_t *free;  /* a stack of slots: the first n_free are free */
	uint8_t *busy;   /* slot s is posted */
	uint8_t *bounce; /* EPF_NIC_MSG_BYTES for each slot: payloads of EPF_WR_INLINE */
	struct ibv_mr *bounce_mr;
	uint32_t n_free, depth;
	uint32_t inline_bytes; /* messages */
	uint32_t write_inline; /* writes */
	uint32_t scan;         /* slots before it are reported, while abandoned */
	uint32_t receives;     /* posted on its queue pair */
	struct epf_efa_early *early;
	uint32_t n_early, early_out;
	uint64_t flush_by;   /* core's clock: what has no completion then is over */
	uint64_t empty_mark; /* epf_efa.empties when the lane came to this state of drain */
	uint16_t generation;
	uint16_t next_report; /* lane behind this one in the list of epf_efa.report */
	uint16_t next_hungry;
	uint8_t link; /* enum epf_lane_link */
	uint8_t has_failed;
	uint8_t status;    /* of the first failure */
	uint8_t must_stop; /* queue pair to error at the next report */
	uint8_t stopping;  /* it is there, by our condition */
	uint8_t abandoned; /* no completion will come for what is busy */
	uint8_t in_report, in_hungry;
	uint8_t gone;  /* LANE_DOWN is to be reported, with this status */
	uint8_t drain; /* enum epf_efa_drain */
};

struct epf_efa {
	struct epf_nic nic;
	const struct epf_efa_lib *lib;
	struct ibv_context *ctx;
	struct ibv_cq_ex *send_cq, *recv_cq;
	struct epf_efadv_cq *recv_dv; /* NULL: no arrival is unsolicited */
	struct epf_efa_lane *lanes;   /* by number; memory comes with use */
	uint16_t *lane_of;            /* by queue pair number: lane, or EPF_EFA_NONE */
	uint32_t max_msg_bytes, max_lanes, lane_depth, lane_receives;
	uint32_t lanes_used, most_lanes,
		lanes_end;                 /* now, ever, one above the highest number ever */
	uint32_t outstanding, completions; /* posted and not reported, and the most of it */
	uint16_t report_head, report_tail; /* lanes with something to report or to wait for */
	uint16_t hungry_head, hungry_tail; /* lanes with fewer receives than `level` */
	uint32_t reports;                  /* lanes in the list */
	uint8_t dead;                      /* the device is gone: nothing more is asked of it */
	uint8_t spent; /* and its queues, which are memory of this process, have nothing more to tell */
	uint8_t stale_sends, stale_recvs; /* the queues may hold entries of destroyed queue pairs */

	/* Receives. */
	uint32_t pool;    /* given by the core and not posted */
	uint32_t posted;  /* with the device, over all lanes */
	uint32_t surplus; /* arrivals that consumed none: so many of the core's are not posted */
	uint32_t most_receives;           /* the most that the core has given at a time */
	uint32_t level;                   /* what each lane should hold */
	struct epf_rdma_slot *read_slots; /* named by the last reap */
	uint64_t empties;                 /* times both queues were seen to be empty */
	struct epf_nic_counters counters;
	uint64_t (*now)(void *);
	void *now_arg;

	/* Slow path. */
	struct epf_efa_opts opts;
	char device[64];
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel; /* NULL: the device cannot notify */
	struct ibv_port_attr port_attr;
	struct ibv_device_attr dev_attr;
	struct epf_efadv_device_attr efa_attr;
	uint16_t qp_flags; /* EPF_EFADV_QP_* of every lane */
	union ibv_gid gid;
	uint8_t *sink; /* where work requests without bytes of peers point to */
	struct ibv_mr *sink_mr;
	struct epf_efa_ah *ahs;        /* the core's thread's */
	struct epf_efa_opener *opener; /* reopen.c */
	pthread_mutex_t setup;         /* of random while lanes are made by two threads */
	struct epf_rdma_receives receives;
	struct epf_rdma_region *regions;
	uint64_t random;
	struct epf_hw_counters hw_counters;
	struct epf_wakeup *wakeup;
	int shares_wakeup; /* with another NIC, which outlives this one */
	struct epf_rdma_notify notify;
};

static inline struct epf_efa *epf_efa_of(const struct epf_nic *nic)
{
	return (struct epf_efa *)(uintptr_t)nic;
}

/* The number of a work request; never 0, which is what the provider says of an unsolicited arrival. */
static inline uint64_t epf_efa_wr_id(uint32_t lane, uint16_t generation, uint32_t slot)
{
	return (uint64_t)lane << 48 | (uint64_t)generation << 32 | (slot + 1);
}

/*
 * HOT. The next entry of a completion queue: 0 and it is looked at; ENOENT: there is none; EINVAL: one of a queue pair that is no more
 * has been dequeued; else the queue is broken. *open: a session is open, to be closed by ibv_end_poll(3) at the end.
 *
 * Entries of a destroyed queue pair are met one by one (*stale, until the queue has been seen empty): releases of the provider before
 * 58 take the books of another queue pair for those of the missing one when such an entry comes within a session.
 */
static inline int epf_efa_poll(struct ibv_cq_ex *cq, int *open, uint8_t *stale)
{
	struct ibv_poll_cq_attr attr = { 0 };
	int rc;

	if (__builtin_expect(*stale && *open, 0)) {
		ibv_end_poll(cq);
		*open = 0;
	}
	rc = *open ? ibv_next_poll(cq) : ibv_start_poll(cq, &attr);
	*open |= rc == 0;
	if (rc == ENOENT)
		*stale = 0;
	return rc;
}

/* addr.c: the address; its layout stands there. */
struct epf_efa_peer {
	union ibv_gid gid;
	uint64_t sink_raddr;
	uint32_t sink_rkey;
	uint8_t unsolicited; /* its lanes take writes with immediate without a receive */
};

/* ---- post_hot.c ---- */
int epf_efa_post(struct epf_nic *nic, uint16_t lane, const struct epf_wr *wr, unsigned n);
int epf_efa_reap(struct epf_nic *nic, struct epf_wc *wc, unsigned n);
uint64_t epf_efa_next_event(const struct epf_nic *nic);

/* Puts a lane on the list of those with something to report. */
static inline void epf_efa_report_lane(struct epf_efa *v, uint16_t lane)
{
	struct epf_efa_lane *l = &v->lanes[lane];

	if (l->in_report)
		return;
	l->in_report = 1;
	l->next_report = EPF_EFA_NONE;
	if (v->report_head == EPF_EFA_NONE)
		v->report_head = lane;
	else
		v->lanes[v->report_tail].next_report = lane;
	v->report_tail = lane;
	v->reports++;
}

/* recv_hot.c */
struct epf_efa_out {
	struct epf_wc *wc;
	unsigned n, max;
};

void epf_efa_post_receives(struct epf_nic *nic, unsigned n);
/* Posts what is in the pool, as far as lanes want it. */
void epf_efa_feed(struct epf_efa *v);

static inline void epf_efa_make_hungry(struct epf_efa *v, uint16_t lane)
{
	struct epf_efa_lane *l = &v->lanes[lane];

	if (l->in_hungry || !l->qp || l->link == EPF_LANE_ERROR)
		return;
	l->in_hungry = 1;
	l->next_hungry = EPF_EFA_NONE;
	if (v->hungry_head == EPF_EFA_NONE)
		v->hungry_head = lane;
	else
		v->lanes[v->hungry_tail].next_hungry = lane;
	v->hungry_tail = lane;
}

/* Receive completions, as far as there is room; 1 when there were no more, or the queue is broken. */
int epf_efa_take_arrivals(struct epf_efa *v, struct epf_efa_out *out);
/* Arrivals of a lane that came before it was connected; 1 when there are no more. */
int epf_efa_give_early(struct epf_efa *v, uint16_t lane, struct epf_efa_out *out);
/* An arrival that nobody hears of, so that nobody gives a receive for it. */
void epf_efa_drop(struct epf_efa *v, const struct epf_efa_early *e);
/* Slots of the last reap are free again. */
void epf_efa_free_read(struct epf_efa *v);

/* epf_rdma_call_failed() for this NIC. */
static inline int epf_efa_call_failed(const struct epf_efa *v, const char *call, const char *what)
{
	return epf_rdma_call_failed("efa", v->device, call, what);
}

/* ---- open.c ---- */
/* Frees what a NIC without lanes and regions holds; an unfinished one too. */
void epf_efa_destroy(struct epf_efa *v);
int epf_efa_address(const struct epf_nic *nic, void *buf, size_t size);

/* ---- caps.c ---- */
void epf_efa_describe(const struct epf_nic *nic, struct epf_nic_caps *out);

/* region.c */
int epf_efa_register(struct epf_nic *nic, void *addr, uint64_t len, unsigned access,
		     struct epf_nic_mr *out);
int epf_efa_register_device(struct epf_nic *nic, const struct epf_device_mem *mem, unsigned access,
			    struct epf_nic_mr *out);
/* The same with modules looked for in another tree than /sys. */
int epf_efa_register_gpu(struct epf_nic *nic, const struct epf_device_mem *mem, unsigned access,
			 const char *sysfs, struct epf_nic_mr *out);
void epf_efa_deregister(struct epf_nic *nic, struct epf_nic_mr *mr);
void epf_efa_drop_regions(struct epf_efa *v);

/* lane.c */
int epf_efa_lane_create(struct epf_nic *nic, uint16_t lane, uint32_t depth, uint64_t *token);
int epf_efa_lane_connect(struct epf_nic *nic, uint16_t lane, const void *addr, size_t addr_len,
			 uint64_t token);
void epf_efa_lane_destroy(struct epf_nic *nic, uint16_t lane);
int epf_efa_link_ready(struct epf_nic *nic, uint16_t lane);
enum epf_lane_link epf_efa_lane_link(const struct epf_nic *nic, uint16_t lane);
/* Parts of these. By any thread, on a lane that is not in use: a queue pair that can send and receive; what it holds is the caller's, also after a failure. */
int epf_efa_lane_make(struct epf_efa *v, struct epf_efa_lane *l, uint16_t lane, uint32_t depth);
/* By any thread: frees what a lane that is not in use holds; its generation stays, so that late completions of it are known. */
void epf_efa_lane_free(struct epf_efa *v, struct epf_efa_lane *l);
/* By any thread: an address handle that nobody uses yet. And its end. */
int epf_efa_ah_make(struct epf_efa *v, const union ibv_gid *gid, struct epf_efa_ah **out);
void epf_efa_ah_free(struct epf_efa *v, struct epf_efa_ah *a);
/* By the NIC's thread, without a system call: a lane in v->lanes gets known to arrivals and its share of the receives; and is forgotten, with what it holds in *out. */
void epf_efa_lane_install(struct epf_efa *v, uint16_t lane);
void epf_efa_lane_detach(struct epf_efa *v, uint16_t lane, struct epf_efa_lane *out);
/* What is known of a peer before anything is asked of the device: 0 and *peer. */
int epf_efa_check_peer(const struct epf_efa *v, uint16_t lane, const void *addr, size_t addr_len,
		       uint64_t token, struct epf_efa_peer *peer);
/* The handle of a peer that other lanes use already; NULL: there is none. */
struct epf_efa_ah *epf_efa_ah_find(const struct epf_efa *v, const union ibv_gid *gid);
/* The lane is connected by this handle, which may be a new one. */
void epf_efa_lane_connected(struct epf_efa *v, uint16_t lane, const struct epf_efa_peer *peer,
			    uint64_t token, struct epf_efa_ah *handle);
/* By any thread: whether the device says that the port is up. Makes a system call. */
int epf_efa_ask_port(const struct epf_efa *v);

/* ---- reopen_end.c ---- */
/* Gives up what is under way for a lane. */
void epf_efa_reopen_end(struct epf_efa *v, uint16_t lane);

/* ---- reopen.c ---- */
int epf_efa_reopen_init(struct epf_efa *v);
int epf_efa_lane_reopen(struct epf_nic *nic, uint16_t lane, uint32_t depth, uint64_t *token);
int epf_efa_lane_reconnect(struct epf_nic *nic, uint16_t lane, const void *addr, size_t addr_len,
			   uint64_t token);
int epf_efa_reopen_pending(const struct epf_nic *nic);
void epf_efa_reopen_wake(struct epf_nic *nic);
void epf_efa_reopen_close(struct epf_efa *v);

/* fence.c */
void epf_efa_lane_fence(struct epf_nic *nic, uint16_t lane);
int epf_efa_lane_drained(const struct epf_nic *nic, uint16_t lane);

/* ---- lane_state.c ---- */
/* Moves the lane's queue pair to a state. Returns 0 or an errno. */
int epf_efa_lane_to(struct epf_efa *v, struct epf_efa_lane *l, enum ibv_qp_state state);
/* Queue pair to error; what is outstanding comes as completions, or is given up with this status. */
void epf_efa_lane_stop(struct epf_efa *v, uint16_t lane, unsigned status);
/* The queue pair to error without fencing the lane: its completions come out as they are, then LANE_DOWN with this status. */
void epf_efa_lane_gone_cold(struct epf_efa *v, uint16_t lane, unsigned status);
/* The queue pair to error, since a work request failed; SRD itself would go on. */
void epf_efa_stop_lane_cold(struct epf_efa *v, uint16_t lane);
/* A provider's call failed between two steps. */
void epf_efa_device_lost_cold(struct epf_efa *v);
/* Every lane wants receives: what each should hold has risen. */
void epf_efa_all_hungry_cold(struct epf_efa *v);
/* The port is down: so are its lanes. */
void epf_efa_port_lost(struct epf_efa *v);

/* watch.c */
void epf_efa_watch(struct epf_nic *nic);
int epf_efa_arm(struct epf_nic *nic);
void epf_efa_counters_open(struct epf_efa *v);

/* addr.c */
void epf_efa_addr_encode(const struct epf_efa_peer *peer, uint8_t *buf);
/* Returns 0, or -EINVAL with epf_last_error() set. */
int epf_efa_addr_decode(const void *buf, size_t len, struct epf_efa_peer *out);

/* A lane's token: the queue pair number, its key of 31 bits (whoever has both may send to it), and a mark. */
static inline uint64_t epf_efa_token(uint32_t qpn, uint32_t qkey)
{
	return 0xefull << 56 | (uint64_t)qkey << 24 | qpn;
}

static inline int epf_efa_token_is_good(uint64_t token)
{
	return token >> 55 == 0x1deu && (token & 0xffffffu) < EPF_EFA_QPNS;
}

#endif
