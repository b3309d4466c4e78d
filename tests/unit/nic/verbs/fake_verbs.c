/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The provider of fake_verbs.h: devices, memory, completion queues, and what a test lets it report. Test code: it asserts through cmocka.
 */
#include "tests/unit/nic/verbs/fake_verbs_impl.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cmocka.h>

struct fake_verbs fake;

static struct ibv_device devices[FAKE_DEVICES] = { { .name = "fake0" },
						   { .name = "fake1" },
						   { .name = "fake2" } };

unsigned fake_verbs_number_of(const struct ibv_context *ctx)
{
	return (unsigned)(ctx->device - devices);
}

int fake_verbs_fails(const char *call)
{
	if (!fake.fail || strcmp(fake.fail, call) != 0 || fake.fail_after-- > 0)
		return 0;
	errno = fake.fail_errno;
	fake.fail_after = 0;
	if (fake.fail_once)
		fake.fail = NULL;
	return 1;
}

static struct ibv_device **get_device_list(int *count)
{
	struct ibv_device **list;

	if (fake_verbs_fails("get_device_list"))
		return NULL;
	list = calloc(FAKE_DEVICES + 1, sizeof(*list));
	for (int i = 0; i < fake.n_devices; i++)
		list[i] = &devices[i];
	*count = fake.n_devices;
	fake.open_things++;
	return list;
}

static void free_device_list(struct ibv_device **list)
{
	fake.open_things--;
	free(list);
}

static int query_device(struct ibv_context *ctx, struct ibv_device_attr *attr)
{
	if (fake_verbs_fails("query_device"))
		return fake.fail_errno;
	*attr = fake.attr;
	return 0;
}

static int query_port_long(struct ibv_context *ctx, uint8_t port, struct ibv_port_attr *attr,
			   size_t size)
{
	if (fake_verbs_fails("query_port"))
		return fake.fail_errno;
	assert_int_equal(size, sizeof(*attr));
	assert_in_range(port, 1, 2);
	*attr = fake.port[port];
	if (port == 1 && fake.is_down[fake_verbs_number_of(ctx)])
		attr->state = IBV_PORT_DOWN;
	return 0;
}

static int query_port(struct ibv_context *ctx, uint8_t port, struct _compat_ibv_port_attr *attr)
{
	fail_msg("the long form is there");
	return 0;
}

static ssize_t query_gid_table(struct ibv_context *ctx, struct ibv_gid_entry *entries, size_t max,
			       uint32_t flags, size_t size)
{
	if (fake_verbs_fails("query_gid_table"))
		return -fake.fail_errno;
	assert_int_equal(size, sizeof(*entries));
	assert_true(max * 32 <= 65535);
	memcpy(entries, fake.gids, sizeof(*entries) * (size_t)fake.n_gids);
	return fake.n_gids;
}

static struct ibv_pd *alloc_pd(struct ibv_context *ctx)
{
	struct ibv_pd *pd;

	if (fake_verbs_fails("alloc_pd"))
		return NULL;
	pd = calloc(1, sizeof(*pd));
	pd->context = ctx;
	fake.open_things++;
	return pd;
}

static int dealloc_pd(struct ibv_pd *pd)
{
	fake.open_things--;
	free(pd);
	return 0;
}

static struct ibv_mr *reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
				   unsigned int access)
{
	static uint32_t keys = 100;
	struct ibv_mr *mr;

	fake.last_access = access;
	fake.last_addr = addr;
	if (fake_verbs_fails("reg_mr") ||
	    ((access & IBV_ACCESS_RELAXED_ORDERING) && fake_verbs_fails("reg_mr relaxed")))
		return NULL;
	mr = calloc(1, sizeof(*mr));
	mr->addr = addr;
	mr->length = length;
	mr->lkey = mr->rkey = ++keys;
	fake.open_things++;
	return mr;
}

static struct ibv_mr *reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length,
				    uint64_t iova, int fd, int access)
{
	struct ibv_mr *mr;

	fake.dmabuf.offset = offset;
	fake.dmabuf.length = length;
	fake.dmabuf.iova = iova;
	fake.dmabuf.fd = fd;
	fake.dmabuf.access = access;
	fake.dmabuf.calls++;
	if (fake_verbs_fails("reg_dmabuf_mr") ||
	    ((access & IBV_ACCESS_RELAXED_ORDERING) && fake_verbs_fails("reg_dmabuf_mr relaxed")))
		return NULL;
	mr = calloc(1, sizeof(*mr));
	mr->lkey = mr->rkey = 0xd0 + (uint32_t)fake.dmabuf.calls;
	fake.open_things++;
	return mr;
}

static int dereg_mr(struct ibv_mr *mr)
{
	fake.open_things--;
	free(mr);
	return 0;
}

static struct ibv_comp_channel *create_comp_channel(struct ibv_context *ctx)
{
	struct ibv_comp_channel *channel;

	if (fake_verbs_fails("create_comp_channel"))
		return NULL;
	channel = calloc(1, sizeof(*channel));
	channel->fd = eventfd(0, EFD_CLOEXEC);
	fake.open_things++;
	return channel;
}

static int destroy_comp_channel(struct ibv_comp_channel *channel)
{
	close(channel->fd);
	fake.open_things--;
	free(channel);
	return 0;
}

static struct ibv_cq *create_cq(struct ibv_context *ctx, int entries, void *cq_context,
				struct ibv_comp_channel *channel, int vector)
{
	struct ibv_cq *cq;

	if (fake_verbs_fails("create_cq"))
		return NULL;
	assert_in_range(entries, 1, fake.attr.max_cqe);
	cq = calloc(1, sizeof(*cq));
	cq->context = ctx;
	cq->channel = channel;
	cq->cqe = entries;
	/* The first is for work requests. */
	if (fake_verbs_number_of(ctx)) {
		struct fake_queue *q = fake.more[fake_verbs_number_of(ctx) - 1];

		cq->cq_context = q[0].notified < 0 ? &q[0] : &q[1];
	} else {
		cq->cq_context = fake.sends.notified < 0 ? &fake.sends : &fake.recvs;
	}
	((struct fake_queue *)cq->cq_context)->notified = 0;
	fake.open_things++;
	return cq;
}

static int destroy_cq(struct ibv_cq *cq)
{
	fake.open_things--;
	free(cq);
	return 0;
}

static int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	struct fake_queue *q = cq->cq_context;
	int done = 0;

	if (fake_verbs_fails("poll_cq"))
		return -fake.fail_errno;
	while (done < n && q->tail != q->head)
		wc[done++] = q->wc[q->tail++ % FAKE_WCS];
	return done;
}

static int req_notify_cq(struct ibv_cq *cq, int solicited)
{
	((struct fake_queue *)cq->cq_context)->notified++;
	return fake_verbs_fails("req_notify_cq") ? fake.fail_errno : 0;
}

/* The test writes the channel's eventfd: an event for the receive completions. */
static int get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
{
	static struct ibv_cq other;
	uint64_t value;

	if (read(channel->fd, &value, sizeof(value)) != sizeof(value))
		return -1;
	*cq = &other;
	return 0;
}

static void ack_cq_events(struct ibv_cq *cq, unsigned int count)
{
	assert_int_equal(count, 1);
}

static struct ibv_srq *create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	struct ibv_srq *srq;

	if (fake_verbs_fails("create_srq"))
		return NULL;
	assert_in_range(attr->attr.max_wr, 1, (uint32_t)fake.attr.max_srq_wr);
	fake.srq_limit = attr->attr.max_wr;
	srq = calloc(1, sizeof(*srq));
	srq->context = pd->context;
	fake.open_things++;
	return srq;
}

static int destroy_srq(struct ibv_srq *srq)
{
	fake.open_things--;
	free(srq);
	return 0;
}

static int post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	fake.srq_posts++;
	for (; wr; wr = wr->next) {
		if (fake_verbs_fails("post_srq_recv")) {
			*bad = wr;
			return fake.fail_errno;
		}
		assert_true(fake.n_receives < fake.srq_limit && fake.n_receives < FAKE_WRS);
		assert_int_equal(wr->num_sge, 1);
		assert_int_equal(wr->sg_list->length, EPF_NIC_MSG_BYTES);
		for (unsigned i = 0; i < fake.n_receives; i++)
			assert_true(fake.receives[i] != wr->wr_id);
		fake.receives[fake.n_receives++] = wr->wr_id;
	}
	return 0;
}

static int get_async_event(struct ibv_context *ctx, struct ibv_async_event *event)
{
	assert_true(fcntl(ctx->async_fd, F_GETFL) & O_NONBLOCK);
	for (unsigned i = 0; i < fake.n_events; i++) {
		if (fake.event_device[i] != fake_verbs_number_of(ctx))
			continue;
		*event = fake.events[i];
		fake.n_events--;
		memmove(&fake.events[i], &fake.events[i + 1], (fake.n_events - i) * sizeof(*event));
		memmove(&fake.event_device[i], &fake.event_device[i + 1],
			(fake.n_events - i) * sizeof(fake.event_device[0]));
		fake.open_things++;
		return 0;
	}
	errno = EAGAIN;
	return -1;
}

static void ack_async_event(struct ibv_async_event *event)
{
	fake.open_things--;
}

static struct ibv_context *open_device(struct ibv_device *dev)
{
	struct verbs_context *context;

	if (fake_verbs_fails("open_device"))
		return NULL;
	fake.opened[dev - devices]++;
	context = calloc(1, sizeof(*context));
	context->sz = sizeof(*context);
	context->create_qp_ex = fake_verbs_create_qp_ex;
	context->query_port = query_port_long;
	context->context.abi_compat = __VERBS_ABI_IS_EXTENDED;
	context->context.device = dev;
	snprintf(dev->ibdev_path, sizeof(dev->ibdev_path), "%s", fake.sysfs);
	context->context.async_fd = eventfd(0, EFD_CLOEXEC);
	context->context.ops.poll_cq = poll_cq;
	context->context.ops.req_notify_cq = req_notify_cq;
	context->context.ops.post_srq_recv = post_srq_recv;
	context->context.ops.post_recv = fake_verbs_post_recv;
	context->context.ops.post_send = fake_verbs_post_send;
	fake.open_things++;
	return &context->context;
}

static int close_device(struct ibv_context *ctx)
{
	close(ctx->async_fd);
	fake.open_things--;
	free(verbs_get_ctx(ctx));
	return 0;
}

const struct epf_verbs_lib fake_lib = {
	.get_device_list = get_device_list,
	.free_device_list = free_device_list,
	.open_device = open_device,
	.close_device = close_device,
	.query_device = query_device,
	.query_port = query_port,
	.query_gid_table = query_gid_table,
	.alloc_pd = alloc_pd,
	.dealloc_pd = dealloc_pd,
	.reg_mr_iova2 = reg_mr_iova2,
	.reg_dmabuf_mr = reg_dmabuf_mr,
	.dereg_mr = dereg_mr,
	.create_comp_channel = create_comp_channel,
	.destroy_comp_channel = destroy_comp_channel,
	.create_cq = create_cq,
	.destroy_cq = destroy_cq,
	.get_cq_event = get_cq_event,
	.ack_cq_events = ack_cq_events,
	.create_srq = create_srq,
	.destroy_srq = destroy_srq,
	.create_qp = fake_verbs_create_qp,
	.modify_qp = fake_verbs_modify_qp,
	.destroy_qp = fake_verbs_destroy_qp,
	.qp_to_qp_ex = fake_verbs_qp_to_qp_ex,
	.get_async_event = get_async_event,
	.ack_async_event = ack_async_event,
};

void fake_reset(void)
{
	memset(&fake, 0, sizeof(fake));
	fake.n_devices = 1;
	fake.has_ex = 1;
	fake.max_inline = 512;
	fake.next_qpn = 0x11;
	fake.sends.notified = -1;
	for (unsigned i = 0; i < FAKE_DEVICES - 1; i++)
		fake.more[i][0].notified = -1;
	fake.attr = (struct ibv_device_attr){
		.max_qp = 1000,
		.max_qp_wr = 4096,
		.max_cqe = 32767,
		.max_srq = 16,
		.max_srq_wr = 4000,
		.max_qp_rd_atom = 16,
		.max_qp_init_rd_atom = 128,
		.phys_port_cnt = 2,
	};
	for (int i = 1; i <= 2; i++)
		fake.port[i] = (struct ibv_port_attr){
			.state = i == 1 ? IBV_PORT_ACTIVE : IBV_PORT_DOWN,
			.active_mtu = IBV_MTU_2048,
			.max_msg_sz = 1u << 31,
			.link_layer = IBV_LINK_LAYER_ETHERNET,
		};
	fake.n_gids = 1;
	fake.gids[0] = (struct ibv_gid_entry){ .port_num = 1, .gid_type = IBV_GID_TYPE_ROCE_V2 };
	fake.gids[0].gid.raw[0] = 0xfe;
	fake.gids[0].gid.raw[1] = 0x80;
	fake.gids[0].gid.raw[15] = 7;
}

static uint64_t no_clock(void *arg)
{
	return 1;
}

struct epf_nic *fake_open(const struct epf_verbs_opts *opts)
{
	struct epf_verbs_opts defaults;
	struct epf_nic *nic = NULL;

	epf_verbs_opts_defaults(&defaults);
	assert_int_equal(epf_verbs_open(&fake_lib, opts ? opts : &defaults, no_clock, NULL, &nic),
			 0);
	return nic;
}

void fake_lane(struct epf_nic *nic, uint16_t lane, uint32_t depth)
{
	unsigned char addr[EPF_NIC_ADDR_BYTES];
	int n = nic->ops->address(nic, addr, sizeof(addr));
	uint64_t token;

	assert_int_equal(nic->ops->lane_create(nic, lane, depth, &token), 0);
	assert_int_equal(nic->ops->lane_connect(nic, lane, addr, (size_t)n, token), 0);
}

static void push(struct fake_queue *q, const struct ibv_wc *wc)
{
	q->wc[q->head++ % FAKE_WCS] = *wc;
}

void fake_complete(unsigned i, enum ibv_wc_status status)
{
	struct fake_queue *q = &fake.sends;

	assert_true(i < fake.n_wrs);
	if (fake.wrs[i].device)
		q = &fake.more[fake.wrs[i].device - 1][0];
	push(q, &(struct ibv_wc){
			.wr_id = fake.wrs[i].wr_id, .status = status, .qp_num = fake.wrs[i].qpn });
}

uint64_t fake_flush(uint32_t qpn, enum ibv_wc_status status, const struct ibv_wc *like)
{
	struct ibv_wc wc = like ? *like : (struct ibv_wc){ .opcode = IBV_WC_RECV, .qp_num = qpn };

	wc.status = status;
	for (unsigned i = 0; i < fake.n_qps; i++) {
		struct fake_rq *rq = &fake.rqs[i];

		if (!fake.qps[i] || fake.qps[i]->qp_num != qpn)
			continue;
		assert_true(rq->n > 0);
		wc.wr_id = rq->slots[0];
		memmove(rq->slots, rq->slots + 1, --rq->n * sizeof(*rq->slots));
		push(&fake.recvs, &wc);
	}
	return wc.wr_id;
}

void fake_arrive(uint32_t qpn, const void *bytes, uint32_t len, uint32_t imm)
{
	struct ibv_wc wc = { .status = IBV_WC_SUCCESS,
			     .opcode = bytes ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM,
			     .byte_len = len,
			     .imm_data = htonl(imm),
			     .qp_num = qpn };

	if (!fake.attr.max_srq) { /* the queue pair's own */
		fake_flush(qpn, IBV_WC_SUCCESS, &wc);
		return;
	}
	assert_true(fake.n_receives > 0);
	wc.wr_id = fake.receives[0];
	memmove(fake.receives, fake.receives + 1, --fake.n_receives * sizeof(*fake.receives));
	push(&fake.recvs, &wc);
}

uint32_t fake_qpn(unsigned i)
{
	assert_non_null(fake.qps[i]);
	return fake.qps[i]->qp_num;
}
