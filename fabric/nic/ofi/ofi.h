/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of the ofi NIC, for the files of this folder only. It uses one reliable datagram endpoint (FI_EP_RDM) for all its
 * lanes: providers limit endpoints, registrations may belong to one, peers find it by the address that the join exchanges, and a failed lane relies on the order
 * in which its arrivals and later messages come out of one endpoint (reap_hot.c). A lane is therefore bookkeeping: a pair of numbers with a generation at both
 * ends, which each notification carries.
 *
 * Every operation asks for FI_DELIVERY_COMPLETE: a completion then means that the target's memory has been written. No order between operations is assumed.
 * A write with immediate is a write with remote CQ data where the provider carries 8 bytes of it:
 *
 *     bits 0 to 15   lane number at the target
 *     bits 16 to 31  its generation there
 *     bits 32 to 63  immediate data
 *
 * Otherwise the write completes first and a message follows (wire.h). What is accepted from the core and not yet accepted by the provider (FI_EAGAIN: no
 * connection or no room) waits in a queue of its lane.
 *
 * One thread uses a NIC: the core's. The waker's thread (watch.c) touches only the epoll descriptor and the wakeup.
 */
#ifndef EPF_FABRIC_NIC_OFI_OFI_H
#define EPF_FABRIC_NIC_OFI_OFI_H

#include "fabric/nic/nic.h"
#include "fabric/nic/ofi/lib.h"
#include "fabric/nic/ofi/opts.h"
#include "fabric/nic/ofi/wire.h"
#include "fabric/nic/rdma/waker.h"
#include "queues/epf_wakeup.h"

#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>
#include <stdbool.h>

enum {
	EPF_OFI_MAX_LANES = 65535,
	EPF_OFI_MAX_DEPTH = 32768,
	EPF_OFI_MSG_BYTES = 1 << 20, /* longest transfer: what a failed lane repeats stays small */
	EPF_OFI_RECEIVES = 1 << 24,  /* that the core may give; fewer are posted at a time */
	EPF_OFI_MOST_POSTED = 4096,  /* receives posted, at most */
	EPF_OFI_BATCH = 32,          /* completions read from the provider at a time */
	EPF_OFI_READ = 512,          /* messages that one reap reports at most */
	EPF_OFI_HELD = 1024,       /* arrivals that wait for their lane to be connected, at most */
	EPF_OFI_RETRY_NS = 100000, /* a sleeping core looks again while something waits */
	EPF_OFI_NONE = 0xffff,
};

/* What an operation of the NIC is doing. */
enum epf_ofi_stage {
	EPF_OFI_FREE,
	EPF_OFI_QUEUED,   /* in its lane's queue */
	EPF_OFI_POSTED,   /* the provider has it */
	EPF_OFI_ORPHANED, /* the provider has it, and its outcome is reported or unwanted */
	EPF_OFI_DONE,     /* waits to be reported */
};

/* A work request. The provider keeps ctx until it has reported the operation, however long the lane is gone. */
struct epf_ofi_op {
	struct fi_context2 ctx; /* first: it is what completions name */
	struct epf_ofi_op *next;
	uint64_t laddr, raddr;
	void *desc;         /* of laddr */
	void *message_desc; /* of message */
	uint32_t rkey, len, imm, id;
	uint16_t lane, generation;
	uint8_t op;        /* enum epf_wr_op */
	uint8_t stage;     /* enum epf_ofi_stage */
	uint8_t status;    /* to be reported */
	uint8_t is_write;  /* of a WRITE_IMM: it is the write that is under way, not the message */
	uint8_t is_listed; /* it is in the list of those to be reported */
	uint8_t message[EPF_OFI_WIRE_BYTES] __attribute__((aligned(8)));
};

/* Operations in order; the first is next. */
struct epf_ofi_list {
	struct epf_ofi_op *first, *last;
};

/* A posted receive: memory for one message. */
struct epf_ofi_slot {
	struct fi_context2 ctx; /* first */
	struct epf_ofi_slot *next;
	uint8_t message[EPF_OFI_WIRE_BYTES] __attribute__((aligned(8)));
};

/* An arrival on a lane that is not connected yet. */
struct epf_ofi_held {
	struct epf_ofi_slot *slot; /* of a message; NULL */
	uint32_t imm, len;
	uint16_t lane, generation;
};

/* A peer's NIC in the address vector, shared by the lanes to it. */
struct epf_ofi_peer {
	struct epf_ofi_peer *next;
	fi_addr_t at;
	uint32_t users;
	struct epf_ofi_place place;
};

struct epf_ofi_lane {
	uint8_t is_used;
	uint8_t link; /* enum epf_lane_link */
	uint8_t has_failed;
	uint8_t gone; /* LANE_DOWN is to be reported, with this status */
	uint8_t is_waiting;
	uint8_t has_moved; /* something completed, or was posted on an idle lane, since the last watch */
	uint16_t generation, next_waiting;
	uint32_t nonce;
	uint32_t depth;
	uint32_t outstanding; /* accepted and not reported */
	uint32_t in_provider; /* the provider has so many of this generation */
	struct epf_ofi_list queue;
	struct epf_ofi_peer *peer;
	fi_addr_t to;
	struct epf_ofi_token remote;
	uint64_t moved_ns; /* core's clock: the last watch that found has_moved */
	uint64_t posted;   /* work requests ever, for opts.fail_after */
};

/* A registered region. */
struct epf_ofi_region {
	uint64_t base, len;
	uint32_t key; /* local: place in the table and generation; 0: free */
	uint32_t rkey;
	void *desc;
	struct fid_mr *mr;
};

struct epf_ofi {
	struct epf_nic nic;
	const struct epf_ofi_lib *lib;
	struct epf_ofi_opts opts; /* without strings */
	uint64_t (*now)(void *);
	void *now_arg;
	struct fid_ep *ep;
	struct fid_cq *cq;
	struct epf_ofi_lane *lanes; /* by number; memory comes with use */
	uint32_t lanes_end;         /* one above the highest number ever used */
	uint32_t max_in_provider, in_provider;
	uint8_t remote_data;                 /* notifications travel as remote CQ data */
	uint8_t local_mr;                    /* local memory has to be named by its registration */
	uint8_t is_virtual;                  /* remote addresses are virtual ones, not offsets */
	uint8_t consumes_receives;           /* remote CQ data consumes a receive */
	uint8_t is_lost;                     /* the completion queue cannot be read any more */
	uint8_t is_down;                     /* set_link */
	uint8_t is_held_ready;               /* a held arrival's lane has been connected */
	uint64_t cut_ns;                     /* when it went down */
	struct epf_ofi_list done;            /* to be reported */
	uint16_t waiting_head, waiting_tail; /* lanes whose queue waits for the provider */
	uint32_t n_gone;                     /* lanes with LANE_DOWN to report */

	struct epf_ofi_op *free_ops;
	struct epf_ofi_slot *free_slots;
	struct epf_ofi_slot *read_slots; /* named by the last reap */
	uint32_t given;                  /* receives that the core has given and not consumed */
	uint32_t posted, max_posted;
	struct epf_ofi_held *held;
	uint32_t n_held;
	void *slot_desc; /* filled if local_mr */
	struct epf_nic_counters counters;

	/* Slow path. */
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct epf_ofi_place place; /* own address */
	struct epf_ofi_chunk *chunks;
	uint32_t all_ops, wanted_ops; /* allocated; sum of the lanes' depths */
	struct epf_ofi_peer *peers;
	struct epf_ofi_region *regions;
	uint32_t n_regions;
	uint16_t region_generation;
	uint64_t random; /* state of keys and nonces */
	char name[80];   /* provider and domain, for messages */
	struct epf_wakeup own_wakeup, *wakeup;
	struct epf_verbs_waker waker;
	int wait_fd, once_fd; /* the queue's descriptor, and the epoll that reports it once; -1 */
};

/* Memory of operations or of receives, and its registration. */
struct epf_ofi_chunk {
	struct epf_ofi_chunk *next;
	struct fid_mr *mr;
	uint32_t count;
	struct epf_ofi_op *ops;     /* or NULL */
	struct epf_ofi_slot *slots; /* or NULL */
};

static inline struct epf_ofi *epf_ofi_of(const struct epf_nic *nic)
{
	return (struct epf_ofi *)(uintptr_t)nic;
}

static inline struct epf_ofi_lane *epf_ofi_lane_at(const struct epf_ofi *v, uint32_t lane)
{
	return lane < v->lanes_end && v->lanes[lane].is_used ? &v->lanes[lane] : NULL;
}

static inline void epf_ofi_append(struct epf_ofi_list *list, struct epf_ofi_op *op)
{
	op->next = NULL;
	if (list->last)
		list->last->next = op;
	else
		list->first = op;
	list->last = op;
}

static inline struct epf_ofi_op *epf_ofi_take(struct epf_ofi_list *list)
{
	struct epf_ofi_op *op = list->first;

	if (op) {
		list->first = op->next;
		if (!op->next)
			list->last = NULL;
	}
	return op;
}

/* The next reap posts what is in the lane's queue. */
static inline void epf_ofi_make_waiting(struct epf_ofi *v, uint16_t lane)
{
	struct epf_ofi_lane *l = &v->lanes[lane];

	if (l->is_waiting)
		return;
	l->is_waiting = 1;
	l->next_waiting = EPF_OFI_NONE;
	if (v->waiting_head == EPF_OFI_NONE)
		v->waiting_head = lane;
	else
		v->lanes[v->waiting_tail].next_waiting = lane;
	v->waiting_tail = lane;
}

/* Returns the region of a local key that covers [addr, addr + len), or NULL. */
static inline const struct epf_ofi_region *epf_ofi_covering(const struct epf_ofi *v, uint32_t key,
							    uint64_t addr, uint64_t len)
{
	uint32_t at = key & 0xffff;
	const struct epf_ofi_region *r;

	if (at >= v->n_regions)
		return NULL;
	r = &v->regions[at];
	return key && r->key == key && addr >= r->base && len <= r->len &&
			       addr - r->base <= r->len - len
		       ? r
		       : NULL;
}

/* An operation that nobody waits for is free again. */
static inline void epf_ofi_op_free(struct epf_ofi *v, struct epf_ofi_op *op)
{
	op->stage = EPF_OFI_FREE;
	op->next = v->free_ops;
	v->free_ops = op;
}

/* The operation will be reported with this status. */
static inline void epf_ofi_report(struct epf_ofi *v, struct epf_ofi_op *op, unsigned status)
{
	op->status = (uint8_t)status;
	op->is_listed = 1;
	epf_ofi_append(&v->done, op);
}

/* The operation is over, and will be reported with this status. */
static inline void epf_ofi_finish(struct epf_ofi *v, struct epf_ofi_op *op, unsigned status)
{
	op->stage = EPF_OFI_DONE;
	epf_ofi_report(v, op, status);
}

/* ---- post_hot.c ---- */
int epf_ofi_post(struct epf_nic *nic, uint16_t lane, const struct epf_wr *wr, unsigned n);
/* Posts the waiting lanes' queues as far as the provider accepts them. */
void epf_ofi_push_waiting(struct epf_ofi *v);

/* ---- reap_hot.c ---- */
int epf_ofi_reap(struct epf_nic *nic, struct epf_wc *wc, unsigned n);
uint64_t epf_ofi_next_event(const struct epf_nic *nic);
void epf_ofi_post_receives(struct epf_nic *nic, unsigned n);
/* Posts receives, as many as the core has given and the endpoints hold. */
void epf_ofi_refill(struct epf_ofi *v);

/* ---- lane_state.c ---- */
/* The operation is over with this status if it is the first of its lane to fail, else flushed; the lane fails. */
void epf_ofi_fail_cold(struct epf_ofi *v, struct epf_ofi_op *op, unsigned status);
/* Lane to error: its queue is flushed; what the provider has is reported when that is over. */
void epf_ofi_lane_stop(struct epf_ofi *v, uint16_t lane);
/* The lane is lost: everything outstanding is reported now, and LANE_DOWN with this status. */
void epf_ofi_lane_lose(struct epf_ofi *v, uint16_t lane, unsigned status);
/* Reads an error from the completion queue and handles it. */
void epf_ofi_take_error_cold(struct epf_ofi *v);
/* An arrival on a lane that is not connected yet; 0: there is no room, and it is dropped. */
void epf_ofi_hold_cold(struct epf_ofi *v, const struct epf_ofi_held *h);
/* An arrival that names no lane, or from a stranger. */
void epf_ofi_refuse_cold(struct epf_ofi *v, struct epf_ofi_slot *slot);
/* Returns the status for an error code of libfabric, positive. */
unsigned epf_ofi_status_of_cold(int err);
/* opts.fail_after: fails the lane when its time has come. */
void epf_ofi_test_failure_cold(struct epf_ofi *v, uint16_t lane);
/* The completion queue cannot be read any more: all lanes are lost. */
void epf_ofi_queue_lost_cold(struct epf_ofi *v, int err);

/* ---- lane.c ---- */
int epf_ofi_lane_create(struct epf_nic *nic, uint16_t lane, uint32_t depth, uint64_t *token);
int epf_ofi_lane_connect(struct epf_nic *nic, uint16_t lane, const void *addr, size_t addr_len,
			 uint64_t token);
void epf_ofi_lane_fence(struct epf_nic *nic, uint16_t lane);
int epf_ofi_lane_drained(const struct epf_nic *nic, uint16_t lane);
void epf_ofi_lane_destroy(struct epf_nic *nic, uint16_t lane);
enum epf_lane_link epf_ofi_lane_link(const struct epf_nic *nic, uint16_t lane);

/* ---- call.c ---- */
/* Registers memory with a free key. 0 and *out, or a negative error code of libfabric. */
int epf_ofi_mr_make(struct epf_ofi *v, void *addr, uint64_t len, uint64_t access,
		    struct fid_mr **out);
/* Returns 64 unpredictable bits. */
uint64_t epf_ofi_random(struct epf_ofi *v);
/* Returns -errno with epf_last_error() set for what a call of libfabric returned. */
int epf_ofi_call_failed(const struct epf_ofi *v, const char *call, int rc);

/* ---- memory.c ---- */
/* Makes sure that there are operations for all lanes, or receives; registered if need be. 0 or -errno. */
int epf_ofi_more_ops(struct epf_ofi *v, uint32_t n);
int epf_ofi_more_slots(struct epf_ofi *v, uint32_t n);
void epf_ofi_memory_free(struct epf_ofi *v);

/* ---- region.c ---- */
int epf_ofi_register(struct epf_nic *nic, void *addr, uint64_t len, unsigned access,
		     struct epf_nic_mr *out);
void epf_ofi_deregister(struct epf_nic *nic, struct epf_nic_mr *mr);

/* ---- open.c ---- */
/* Opens one domain. info belongs to the NIC if this succeeds. */
int epf_ofi_open_one(const struct epf_ofi_lib *lib, const struct epf_ofi_opts *opts,
		     struct fi_info *info, uint64_t (*now)(void *), void *now_arg,
		     struct epf_nic **out);
void epf_ofi_close(struct epf_nic *nic);

/* ---- watch.c ---- */
void epf_ofi_watch(struct epf_nic *nic);
int epf_ofi_arm(struct epf_nic *nic);
struct epf_wakeup *epf_ofi_wakeup(struct epf_nic *nic);

#endif
