/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of the provider of fake_efa.h, for fake_efa.c and fake_efa_*.c only.
 */
#ifndef EPF_TESTS_FAKE_EFA_IMPL_H
#define EPF_TESTS_FAKE_EFA_IMPL_H

#include "tests/unit/nic/efa/fake_efa.h"

struct fake_mr {
	struct ibv_mr mr;
	unsigned access;
	struct fake_mr *next;
};

struct fake_cqe {
	uint64_t wr_id;
	uint32_t vendor, len, imm, qpn, src_qpn;
	uint32_t serial; /* of the queue pair */
	enum ibv_wc_opcode opcode;
	int unsolicited;
};

struct fake_cq {
	struct ibv_cq_ex ex; /* first: a queue is its own extended one */
	struct epf_efadv_cq dv;
	struct fake_cqe *ring;
	uint32_t size, head, tail;
	struct fake_cqe at; /* the one that is looked at */
	int in_poll, wants_unsolicited;
	int is_armed;
	struct fake_channel *channel;
};

struct fake_channel {
	struct ibv_comp_channel channel;
	int wake_fd; /* the other end of the pipe */
};

struct fake_ah {
	struct ibv_ah ah;
	int device;
};

struct fake_rwr {
	uint64_t wr_id;
	struct ibv_sge sge;
};

/* A work request on its way. */
struct fake_flight {
	uint64_t due, seq, posted_ns;
	uint64_t wr_id, laddr, raddr;
	uint32_t lkey, rkey, len, imm, qkey, dest_qpn, qpn, serial;
	int op; /* enum ibv_wr_opcode */
	int device, has_place, has_addr, is_inline;
	int is_ack;    /* on its way back, with `status` */
	int is_orphan; /* the queue pair it came from has failed: no acknowledgement */
	unsigned status;
	unsigned char bytes[128];
};

struct fake_qp {
	struct ibv_qp_ex ex; /* first: a queue pair is its own extended one */
	int device;
	uint32_t serial, qkey, depth, in_flight, inline_bytes;
	uint16_t flags;
	uint8_t rnr_retry;
	struct fake_rwr *receives;
	uint32_t rq_size, rq_head, rq_tail;
	struct fake_flight *session; /* what is posted between start and complete */
	uint32_t n_session;
	int session_err;
	int is_gone; /* its adapter was pulled */
};

/* Until the end of the block nobody else is in the provider; may be taken again by the same thread. */
#define FAKE_LOCKED int fake_is_locked __attribute__((cleanup(fake_unlock), unused)) = fake_lock()

/* fake_efa.c */
int fake_lock(void);
void fake_unlock(int *is_locked);
/* A call that takes its time, before the lock is taken. */
void fake_setup(void);
extern struct fake_qp *fake_qps[FAKE_EFA_QPNS]; /* by number */
/* Memory of a thing that the provider makes; NULL when the call is to fail. */
void *fake_make(const char *call, size_t bytes);
void fake_unmake(void *at);
int fake_number_of(const struct ibv_context *ctx);
struct fake_qp *fake_qp_find(uint32_t qpn);
/* Whether a key of a device's domain allows this. */
int fake_mr_allows(const struct ibv_pd *pd, uint32_t key, uint64_t addr, uint64_t len,
		   unsigned access);
int fake_fails(const char *call);

/* fake_efa_wire.c */
void fake_wire_reset(void);
/* Everything that is due takes effect. */
void fake_wire_progress(void);
/* A work request is on its way. */
void fake_wire_send(struct fake_flight *f);
void fake_cq_set_ops(struct fake_cq *cq);
/* A queue pair has gone to error, or (gone) has been reset or destroyed. */
void fake_wire_qp_ended(struct fake_qp *qp, int gone);
int fake_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);

/* fake_efa_qp.c */
struct ibv_qp *fake_create_qp_ex(struct ibv_context *ctx, struct ibv_qp_init_attr_ex *attr,
				 struct epf_efadv_qp_attr *efa, uint32_t size);
struct ibv_qp_ex *fake_qp_to_qp_ex(struct ibv_qp *qp);
int fake_modify_qp(struct ibv_qp *base, struct ibv_qp_attr *attr, int mask);
int fake_destroy_qp(struct ibv_qp *base);

#endif
