/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libibverbs whose device, "empty0", moves nothing: a post notes the numbers of the work requests that ask for a completion, a
 * poll gives them back, and nothing else happens. ep-bench empty puts it in libibverbs' place, so what is measured
 * is the code above. Functions beside post and poll say yes. It must never be found by anything but that benchmark.
 */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define PUBLIC __attribute__((visibility("default")))

enum { IDS = 65536, MAX_QPS = 4096 };

struct queue {
	struct ibv_cq cq;
	uint32_t head, tail;
	uint64_t ids[IDS];
};

struct pair {
	struct ibv_qp_ex ex;
	struct queue *to;
};

static struct ibv_device device = { .name = "empty0", .dev_name = "empty0" };

static void note(struct pair *p, uint64_t id)
{
	p->to->ids[p->to->head++ % IDS] = id;
}

static int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	struct queue *q = (struct queue *)(void *)cq;
	int done = 0;

	for (; done < n && q->tail != q->head; done++) {
		wc[done].wr_id = q->ids[q->tail++ % IDS];
		wc[done].status = IBV_WC_SUCCESS;
		wc[done].opcode = IBV_WC_RDMA_WRITE;
	}
	return done;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	for (; wr; wr = wr->next)
		if (wr->send_flags & IBV_SEND_SIGNALED)
			note((struct pair *)(void *)qp, wr->wr_id);
	return 0;
}

static int post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	return 0;
}

static int req_notify_cq(struct ibv_cq *cq, int solicited)
{
	return 0;
}

static void begin(struct ibv_qp_ex *ex)
{
	if (ex->wr_flags & IBV_SEND_SIGNALED)
		note((struct pair *)(void *)ex, ex->wr_id);
}

static void wr_start(struct ibv_qp_ex *ex)
{
}

static int wr_complete(struct ibv_qp_ex *ex)
{
	return 0;
}

static void wr_rdma_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t raddr)
{
	begin(ex);
}

static void wr_rdma_write_imm(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t raddr, __be32 imm)
{
	begin(ex);
}

static void wr_rdma_read(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t raddr)
{
	begin(ex);
}

static void wr_send(struct ibv_qp_ex *ex)
{
	begin(ex);
}

static void wr_set_sge(struct ibv_qp_ex *ex, uint32_t lkey, uint64_t addr, uint32_t length)
{
}

static void wr_set_inline_data(struct ibv_qp_ex *ex, void *addr, size_t length)
{
}

static struct ibv_qp *make_qp(struct ibv_pd *pd, struct ibv_cq *cq)
{
	static uint32_t number = 0x11;
	struct pair *p = calloc(1, sizeof(*p));

	if (!p)
		return NULL;
	p->ex.wr_start = wr_start;
	p->ex.wr_complete = wr_complete;
	p->ex.wr_rdma_write = wr_rdma_write;
	p->ex.wr_rdma_write_imm = wr_rdma_write_imm;
	p->ex.wr_rdma_read = wr_rdma_read;
	p->ex.wr_send = wr_send;
	p->ex.wr_set_sge = wr_set_sge;
	p->ex.wr_set_inline_data = wr_set_inline_data;
	p->ex.qp_base.context = pd->context;
	p->ex.qp_base.qp_num = number++ & 0xffffffu;
	p->to = (struct queue *)(void *)cq;
	return (struct ibv_qp *)(void *)p;
}

static struct ibv_qp *create_qp_ex(struct ibv_context *ctx, struct ibv_qp_init_attr_ex *attr)
{
	return make_qp(attr->pd, attr->send_cq);
}

static int query_port_long(struct ibv_context *ctx, uint8_t port, struct ibv_port_attr *attr,
			   size_t size)
{
	memset(attr, 0, size);
	attr->state = IBV_PORT_ACTIVE;
	attr->active_mtu = IBV_MTU_4096;
	attr->max_msg_sz = 1u << 31;
	attr->link_layer = IBV_LINK_LAYER_ETHERNET;
	return 0;
}

PUBLIC struct ibv_device **(ibv_get_device_list)(int *count)
{
	struct ibv_device **list = calloc(2, sizeof(*list));

	if (list) {
		list[0] = &device;
		if (count)
			*count = 1;
	}
	return list;
}

PUBLIC void ibv_free_device_list(struct ibv_device **list)
{
	free(list);
}

PUBLIC struct ibv_context *ibv_open_device(struct ibv_device *dev)
{
	struct verbs_context *context = calloc(1, sizeof(*context));

	if (!context)
		return NULL;
	context->sz = sizeof(*context);
	context->create_qp_ex = create_qp_ex;
	context->query_port = query_port_long;
	context->context.abi_compat = __VERBS_ABI_IS_EXTENDED;
	context->context.device = dev;
	context->context.async_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	context->context.ops.poll_cq = poll_cq;
	context->context.ops.req_notify_cq = req_notify_cq;
	context->context.ops.post_srq_recv = post_srq_recv;
	context->context.ops.post_send = post_send;
	return &context->context;
}

PUBLIC int ibv_close_device(struct ibv_context *ctx)
{
	close(ctx->async_fd);
	free((char *)ctx - offsetof(struct verbs_context, context));
	return 0;
}

PUBLIC int ibv_query_device(struct ibv_context *ctx, struct ibv_device_attr *attr)
{
	*attr = (struct ibv_device_attr){ .max_qp = MAX_QPS,
					  .max_qp_wr = 32768,
					  .max_cqe = IDS,
					  .max_srq = 1,
					  .max_srq_wr = IDS,
					  .max_mr = 65536,
					  .max_qp_rd_atom = 16,
					  .max_qp_init_rd_atom = 16,
					  .phys_port_cnt = 1 };
	return 0;
}

PUBLIC int(ibv_query_port)(struct ibv_context *ctx, uint8_t port,
			   struct _compat_ibv_port_attr *attr)
{
	return EOPNOTSUPP; /* the long form is there */
}

PUBLIC ssize_t _ibv_query_gid_table(struct ibv_context *ctx, struct ibv_gid_entry *entries,
				    size_t max, uint32_t flags, size_t size)
{
	if (!max)
		return 0;
	memset(entries, 0, sizeof(*entries));
	entries->port_num = 1;
	entries->gid_type = IBV_GID_TYPE_ROCE_V2;
	entries->gid.raw[0] = 0xfe;
	entries->gid.raw[1] = 0x80;
	entries->gid.raw[15] = 1;
	return 1;
}

PUBLIC struct ibv_pd *ibv_alloc_pd(struct ibv_context *ctx)
{
	struct ibv_pd *pd = calloc(1, sizeof(*pd));

	if (pd)
		pd->context = ctx;
	return pd;
}

PUBLIC int ibv_dealloc_pd(struct ibv_pd *pd)
{
	free(pd);
	return 0;
}

PUBLIC struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
				       unsigned int access)
{
	static uint32_t key = 1;
	struct ibv_mr *mr = calloc(1, sizeof(*mr));

	if (!mr)
		return NULL;
	mr->context = pd->context;
	mr->pd = pd;
	mr->addr = addr;
	mr->length = length;
	mr->lkey = mr->rkey = key++;
	return mr;
}

PUBLIC int ibv_dereg_mr(struct ibv_mr *mr)
{
	free(mr);
	return 0;
}

PUBLIC struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *ctx)
{
	struct ibv_comp_channel *channel = calloc(1, sizeof(*channel));

	if (!channel)
		return NULL;
	channel->context = ctx;
	channel->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	return channel;
}

PUBLIC int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
	close(channel->fd);
	free(channel);
	return 0;
}

PUBLIC struct ibv_cq *ibv_create_cq(struct ibv_context *ctx, int entries, void *cq_context,
				    struct ibv_comp_channel *channel, int vector)
{
	struct queue *q = calloc(1, sizeof(*q));

	if (!q)
		return NULL;
	q->cq.context = ctx;
	q->cq.channel = channel;
	q->cq.cq_context = cq_context;
	q->cq.cqe = entries;
	return &q->cq;
}

PUBLIC int ibv_destroy_cq(struct ibv_cq *cq)
{
	free(cq);
	return 0;
}

PUBLIC int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
{
	errno = EAGAIN;
	return -1;
}

PUBLIC void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int count)
{
}

PUBLIC struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	struct ibv_srq *srq = calloc(1, sizeof(*srq));

	if (srq)
		srq->context = pd->context;
	return srq;
}

PUBLIC int ibv_destroy_srq(struct ibv_srq *srq)
{
	free(srq);
	return 0;
}

PUBLIC struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	return make_qp(pd, attr->send_cq);
}

PUBLIC int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	return 0;
}

PUBLIC int ibv_destroy_qp(struct ibv_qp *qp)
{
	free(qp);
	return 0;
}

PUBLIC struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp)
{
	return (struct ibv_qp_ex *)(void *)qp;
}

PUBLIC int ibv_get_async_event(struct ibv_context *ctx, struct ibv_async_event *event)
{
	errno = EAGAIN;
	return -1;
}

PUBLIC void ibv_ack_async_event(struct ibv_async_event *event)
{
}
