/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queue pairs of the provider of fake_verbs.h: making them, their states, and what is posted on them, which it notes. Test code: it asserts
 * through cmocka.
 */
#include "tests/unit/nic/verbs/fake_verbs_impl.h"

#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* A queue pair with the extended operations beside it. */
struct fake_qp {
	struct ibv_qp_ex ex; /* first: a queue pair is its own extended one */
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	unsigned first; /* in fake.wrs, of the batch that is being built */
	uint32_t inline_bytes;
};

/* Queue pairs may be set up by several threads at once, as with a real provider. */
static pthread_mutex_t setup_lock = PTHREAD_MUTEX_INITIALIZER;

/* Takes the time of a call that asks the kernel; returns with the lock. */
static void begin_setup(void)
{
	pthread_mutex_lock(&setup_lock);
	__atomic_store_n(&fake.setup_by, pthread_self(), __ATOMIC_RELAXED);
	if (!fake.setup_us)
		return;
	if (++fake.in_setup > fake.most_in_setup)
		fake.most_in_setup = fake.in_setup;
	pthread_mutex_unlock(&setup_lock);
	usleep(fake.setup_us);
	pthread_mutex_lock(&setup_lock);
	for (unsigned ms = 0; ms < 20000 && fake.most_in_setup < fake.setup_gather; ms++) {
		pthread_mutex_unlock(&setup_lock);
		usleep(1000);
		pthread_mutex_lock(&setup_lock);
	}
	fake.in_setup--;
}

static unsigned index_of(const struct ibv_qp *qp)
{
	for (unsigned i = 0; i < fake.n_qps; i++)
		if (fake.qps[i] == qp)
			return i;
	fail_msg("an unknown queue pair");
	return 0;
}

int fake_verbs_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct fake_rq *rq = &fake.rqs[index_of(qp)];

	for (; wr; wr = wr->next) {
		if (fake_verbs_fails("post_recv")) {
			*bad = wr;
			return fake.fail_errno;
		}
		assert_true(rq->n < rq->most);
		assert_int_equal(wr->sg_list->length, EPF_NIC_MSG_BYTES);
		/* No slot is posted twice, wherever. */
		for (unsigned q = 0; q < fake.n_qps; q++)
			for (unsigned i = 0; i < fake.rqs[q].n; i++)
				assert_true(fake.rqs[q].slots[i] != wr->wr_id);
		rq->slots[rq->n++] = wr->wr_id;
	}
	return 0;
}

/* One work request as a list has it, or as the extended operations built it. */
static void note(struct fake_qp *qp, const struct ibv_send_wr *wr, const void *inlined)
{
	struct fake_wr *w = &fake.wrs[fake.n_wrs++];
	const struct ibv_sge *sge = wr->num_sge ? wr->sg_list : NULL;

	assert_true(fake.n_wrs < FAKE_WRS);
	*w = (struct fake_wr){ .wr_id = wr->wr_id,
			       .raddr = wr->wr.rdma.remote_addr,
			       .rkey = wr->wr.rdma.rkey,
			       .device = fake_verbs_number_of(qp->ex.qp_base.context),
			       .imm = ntohl(wr->imm_data),
			       .qpn = qp->ex.qp_base.qp_num,
			       .op = (int)wr->opcode,
			       .is_signaled = !!(wr->send_flags & IBV_SEND_SIGNALED),
			       .is_inline = !!(wr->send_flags & IBV_SEND_INLINE) };
	if (!sge)
		return;
	w->laddr = sge->addr;
	w->lkey = sge->lkey;
	w->len = sge->length;
	if (!w->is_inline)
		return;
	assert_true(w->len <= qp->inline_bytes);
	memcpy(w->bytes, inlined ? inlined : (const void *)(uintptr_t)sge->addr, w->len);
}

int fake_verbs_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	fake.posts++;
	for (; wr; wr = wr->next) {
		if (fake_verbs_fails("post_send")) {
			*bad = wr;
			return fake.fail_errno;
		}
		note((struct fake_qp *)(void *)qp, wr, NULL);
	}
	return 0;
}

static struct fake_qp *of(struct ibv_qp_ex *ex)
{
	return (struct fake_qp *)(void *)ex;
}

static void wr_start(struct ibv_qp_ex *ex)
{
	of(ex)->first = fake.n_wrs;
	fake.posts++;
}

static int wr_complete(struct ibv_qp_ex *ex)
{
	if (!fake_verbs_fails("wr_complete"))
		return 0;
	fake.n_wrs = of(ex)->first;
	return fake.fail_errno;
}

static void begin(struct ibv_qp_ex *ex, enum ibv_wr_opcode op, uint32_t rkey, uint64_t raddr,
		  uint32_t imm)
{
	struct fake_qp *qp = of(ex);

	qp->wr = (struct ibv_send_wr){ .wr_id = ex->wr_id,
				       .opcode = op,
				       .send_flags = ex->wr_flags,
				       .imm_data = imm,
				       .wr.rdma = { .remote_addr = raddr, .rkey = rkey } };
}

static void wr_rdma_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t raddr)
{
	begin(ex, IBV_WR_RDMA_WRITE, rkey, raddr, 0);
}

static void wr_rdma_write_imm(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t raddr, __be32 imm)
{
	begin(ex, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, raddr, imm);
}

static void wr_rdma_read(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t raddr)
{
	begin(ex, IBV_WR_RDMA_READ, rkey, raddr, 0);
}

static void wr_send(struct ibv_qp_ex *ex)
{
	begin(ex, IBV_WR_SEND, 0, 0, 0);
}

static void wr_set_sge(struct ibv_qp_ex *ex, uint32_t lkey, uint64_t addr, uint32_t length)
{
	struct fake_qp *qp = of(ex);

	assert_false(qp->wr.send_flags & IBV_SEND_INLINE);
	qp->sge = (struct ibv_sge){ .addr = addr, .length = length, .lkey = lkey };
	qp->wr.sg_list = &qp->sge;
	qp->wr.num_sge = length != 0;
	note(qp, &qp->wr, NULL);
}

static void wr_set_inline_data(struct ibv_qp_ex *ex, void *addr, size_t length)
{
	struct fake_qp *qp = of(ex);

	assert_true(qp->wr.send_flags & IBV_SEND_INLINE); /* soft-RoCE wants to see it */
	qp->sge = (struct ibv_sge){ .length = (uint32_t)length };
	qp->wr.sg_list = &qp->sge;
	qp->wr.num_sge = length != 0;
	note(qp, &qp->wr, addr);
}

static struct ibv_qp *make_qp(struct ibv_pd *pd, const struct ibv_qp_cap *cap)
{
	struct fake_qp *qp;

	begin_setup();
	if (fake_verbs_fails("create_qp")) {
		pthread_mutex_unlock(&setup_lock);
		return NULL;
	}
	if (cap->max_inline_data > fake.max_inline) {
		pthread_mutex_unlock(&setup_lock);
		errno = EINVAL;
		return NULL;
	}
	assert_in_range(cap->max_send_wr, 1, (uint32_t)fake.attr.max_qp_wr);
	qp = calloc(1, sizeof(*qp));
	qp->ex = (struct ibv_qp_ex){
		.wr_start = wr_start,
		.wr_complete = wr_complete,
		.wr_rdma_write = wr_rdma_write,
		.wr_rdma_write_imm = wr_rdma_write_imm,
		.wr_rdma_read = wr_rdma_read,
		.wr_send = wr_send,
		.wr_set_sge = wr_set_sge,
		.wr_set_inline_data = wr_set_inline_data,
	};
	qp->inline_bytes = cap->max_inline_data;
	qp->ex.qp_base.context = pd->context;
	qp->ex.qp_base.qp_num = fake.next_qpn++ & 0xffffff;
	assert_true(fake.n_qps < FAKE_QPS);
	fake.rqs[fake.n_qps] = (struct fake_rq){ .most = cap->max_recv_wr };
	fake.qps[fake.n_qps++] = &qp->ex.qp_base;
	fake.open_things++;
	pthread_mutex_unlock(&setup_lock);
	return &qp->ex.qp_base;
}

struct ibv_qp *fake_verbs_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	return make_qp(pd, &attr->cap);
}

struct ibv_qp *fake_verbs_create_qp_ex(struct ibv_context *ctx, struct ibv_qp_init_attr_ex *attr)
{
	assert_true(attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS);
	if (!fake.has_ex) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	return make_qp(attr->pd, &attr->cap);
}

struct ibv_qp_ex *fake_verbs_qp_to_qp_ex(struct ibv_qp *qp)
{
	return (struct ibv_qp_ex *)(void *)qp;
}

int fake_verbs_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	int rc = 0;

	begin_setup();
	if (fake_verbs_fails("modify_qp")) {
		rc = fake.fail_errno;
	} else {
		assert_true(fake.n_modifies < FAKE_MODIFIES);
		fake.modifies[fake.n_modifies++] =
			(struct fake_modify){ .qpn = qp->qp_num, .mask = mask, .attr = *attr };
	}
	pthread_mutex_unlock(&setup_lock);
	return rc;
}

int fake_verbs_destroy_qp(struct ibv_qp *qp)
{
	for (unsigned i = 0; i < fake.n_qps; i++)
		if (fake.qps[i] == qp) {
			fake.qps[i] = NULL;
			fake.rqs[i].n = 0;
		}
	fake.open_things--;
	free(qp);
	return 0;
}
