/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The provider of fake_efa.h: devices, memory, completion queues, address handles. Test code: it asserts
 * through cmocka.
 */
#include "tests/unit/nic/efa/fake_efa_impl.h"

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

struct fake_efa fake_efa;

struct fake_pd {
	struct ibv_pd pd;
	struct fake_mr *mrs;
};

static struct ibv_device devices[FAKE_EFA_DEVICES + 1];
struct fake_qp *fake_qps[FAKE_EFA_QPNS];

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

int fake_lock(void)
{
	return pthread_mutex_lock(&lock);
}

void fake_unlock(int *is_locked)
{
	pthread_mutex_unlock(&lock);
}

void fake_setup(void)
{
	if (fake_efa.setup_us)
		usleep(fake_efa.setup_us);
	FAKE_LOCKED;
	fake_efa.setup_by = pthread_self();
}

int fake_fails(const char *call)
{
	FAKE_LOCKED;

	if (!fake_efa.fail || strcmp(fake_efa.fail, call) != 0 || fake_efa.fail_after-- > 0)
		return 0;
	errno = fake_efa.fail_errno;
	fake_efa.fail_after = 0;
	return 1;
}

/* Memory of a thing that the provider makes; NULL when the call is to fail. */
void *fake_make(const char *call, size_t bytes)
{
	FAKE_LOCKED;
	void *at;

	if (fake_fails(call))
		return NULL;
	at = calloc(1, bytes);
	assert_non_null(at);
	fake_efa.open_things++;
	return at;
}

void fake_unmake(void *at)
{
	FAKE_LOCKED;

	fake_efa.open_things--;
	free(at);
}

static struct ibv_device **get_device_list(int *count)
{
	struct ibv_device **list =
		fake_make("get_device_list", (FAKE_EFA_DEVICES + 2) * sizeof(*list));

	if (!list)
		return NULL;
	*count = fake_efa.n_devices + 1;
	for (int i = 0; i < *count; i++) {
		list[i] = &devices[i];
		snprintf(devices[i].name, sizeof(devices[i].name), i ? "efa%d" : "other0", i - 1);
		snprintf(devices[i].ibdev_path, sizeof(devices[i].ibdev_path), "%s",
			 fake_efa.sysfs);
	}
	return list;
}

static void free_device_list(struct ibv_device **list)
{
	fake_unmake(list);
}

int fake_number_of(const struct ibv_context *ctx)
{
	return (int)(ctx->device - devices) - 1;
}

static int query_device(struct ibv_context *ctx, struct ibv_device_attr *attr)
{
	if (fake_fails("query_device"))
		return fake_efa.fail_errno;
	*attr = fake_efa.dev;
	return 0;
}

static int query_port_long(struct ibv_context *ctx, uint8_t port, struct ibv_port_attr *attr,
			   size_t size)
{
	assert_int_equal(port, 1);
	assert_int_equal(size, sizeof(*attr));
	if (fake_fails("query_port"))
		return fake_efa.fail_errno;
	*attr = fake_efa.port;
	if (fake_efa.down_device == fake_number_of(ctx) + 1)
		attr->state = IBV_PORT_DOWN;
	return 0;
}

static int query_port(struct ibv_context *ctx, uint8_t port, struct _compat_ibv_port_attr *attr)
{
	fail_msg("the long form is there");
	return 0;
}

static int query_gid(struct ibv_context *ctx, uint8_t port, int index, union ibv_gid *gid)
{
	assert_true(port == 1 && index == 0);
	if (fake_fails("query_gid"))
		return -1;
	memset(gid, 0, sizeof(*gid));
	gid->raw[0] = 0xfe;
	gid->raw[1] = 0x80;
	gid->raw[15] = (uint8_t)(fake_number_of(ctx) + 1);
	return 0;
}

static int efa_query_device(struct ibv_context *ctx, struct epf_efadv_device_attr *attr,
			    uint32_t size)
{
	assert_int_equal(size, sizeof(*attr));
	if (fake_number_of(ctx) < 0)
		return EOPNOTSUPP;
	if (fake_fails("efa_query_device"))
		return fake_efa.fail_errno;
	*attr = fake_efa.attr;
	return 0;
}

static struct ibv_pd *alloc_pd(struct ibv_context *ctx)
{
	struct fake_pd *pd = fake_make("alloc_pd", sizeof(*pd));

	if (!pd)
		return NULL;
	pd->pd.context = ctx;
	return &pd->pd;
}

static int dealloc_pd(struct ibv_pd *pd)
{
	assert_null(((struct fake_pd *)(void *)pd)->mrs);
	fake_unmake(pd);
	return 0;
}

static struct ibv_mr *reg_mr(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
			     unsigned int access)
{
	FAKE_LOCKED;
	static uint32_t keys = 1000;
	struct fake_pd *domain = (struct fake_pd *)(void *)pd;
	struct fake_mr *mr = fake_make("reg_mr", sizeof(*mr));

	assert_int_equal(iova, (uintptr_t)addr);
	if (!mr)
		return NULL;
	mr->mr =
		(struct ibv_mr){ .context = pd->context, .pd = pd, .addr = addr, .length = length };
	mr->mr.lkey = mr->mr.rkey = ++keys; /* never used again */
	mr->access = access;
	mr->next = domain->mrs;
	domain->mrs = mr;
	return &mr->mr;
}

/* A dma-buf: the test's own memory stands for the GPU's. */
static struct ibv_mr *reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length,
				    uint64_t iova, int fd, int access)
{
	assert_int_equal(fd, 42);
	assert_int_equal(offset, 0x3000);
	if (fake_fails("reg_dmabuf_mr"))
		return NULL;
	return reg_mr(pd, (void *)(uintptr_t)iova, length, iova, (unsigned)access);
}

static int dereg_mr(struct ibv_mr *mr)
{
	FAKE_LOCKED;
	struct fake_mr **at = &((struct fake_pd *)(void *)mr->pd)->mrs;

	while (&(*at)->mr != mr)
		at = &(*at)->next;
	*at = (*at)->next;
	fake_unmake(mr);
	return 0;
}

int fake_mr_allows(const struct ibv_pd *pd, uint32_t key, uint64_t addr, uint64_t len,
		   unsigned access)
{
	for (const struct fake_mr *m = ((const struct fake_pd *)(const void *)pd)->mrs; m;
	     m = m->next) {
		uint64_t base = (uintptr_t)m->mr.addr;

		if (m->mr.lkey == key)
			return (m->access & access) == access && addr >= base &&
			       addr - base <= m->mr.length && len <= m->mr.length - (addr - base);
	}
	return 0;
}

static struct ibv_comp_channel *create_comp_channel(struct ibv_context *ctx)
{
	struct fake_channel *c = fake_make("create_comp_channel", sizeof(*c));
	int fds[2];

	if (!c)
		return NULL;
	assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
	c->channel.context = ctx;
	c->channel.fd = fds[0];
	c->wake_fd = fds[1];
	return &c->channel;
}

static int destroy_comp_channel(struct ibv_comp_channel *channel)
{
	struct fake_channel *c = (struct fake_channel *)(void *)channel;

	close(c->channel.fd);
	close(c->wake_fd);
	fake_unmake(c);
	return 0;
}

static int get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **context)
{
	return read(channel->fd, cq, sizeof(*cq)) == sizeof(*cq) ? 0 : -1;
}

static void ack_cq_events(struct ibv_cq *cq, unsigned int count)
{
	assert_int_equal(count, 1);
}

static int req_notify_cq(struct ibv_cq *cq, int solicited)
{
	if (fake_fails("req_notify_cq"))
		return fake_efa.fail_errno;
	((struct fake_cq *)(void *)cq)->is_armed = 1;
	return 0;
}

static struct ibv_cq_ex *create_cq(struct ibv_context *ctx, struct ibv_cq_init_attr_ex *attr,
				   struct epf_efadv_cq_attr *efa_attr, uint32_t size)
{
	struct fake_cq *cq;

	assert_int_equal(size, sizeof(*efa_attr));
	assert_in_range(attr->cqe, 1, (uint32_t)fake_efa.dev.max_cqe);
	assert_int_equal(attr->wc_flags & ~(uint64_t)IBV_WC_STANDARD_FLAGS, 0);
	/* Two threads use it: one polls, one makes and destroys the queue pairs of lanes that come back. */
	assert_false(attr->flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED);
	if (attr->channel && !fake_efa.has_notify) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	cq = fake_make("efa_create_cq", sizeof(*cq));
	if (!cq)
		return NULL;
	cq->size = attr->cqe;
	cq->ring = calloc(cq->size, sizeof(*cq->ring));
	assert_non_null(cq->ring);
	cq->channel = (struct fake_channel *)(void *)attr->channel;
	cq->wants_unsolicited = !!(efa_attr->wc_flags & EPF_EFADV_WC_WITH_IS_UNSOLICITED);
	assert_true(!cq->wants_unsolicited ||
		    (fake_efa.attr.device_caps & EPF_EFADV_CAP_UNSOLICITED_WRITE_RECV));
	cq->ex.context = ctx;
	fake_cq_set_ops(cq);
	return &cq->ex;
}

static struct epf_efadv_cq *cq_of_ex(struct ibv_cq_ex *ex)
{
	return fake_fails("efa_cq_of") ? NULL : &((struct fake_cq *)(void *)ex)->dv;
}

static int destroy_cq(struct ibv_cq *base)
{
	struct fake_cq *cq = (struct fake_cq *)(void *)base;
	FAKE_LOCKED; /* another NIC's thread may be making or destroying queue pairs */

	for (unsigned i = 0; i < FAKE_EFA_QPNS; i++)
		assert_true(!fake_qps[i] || (fake_qps[i]->ex.qp_base.send_cq != base &&
					     fake_qps[i]->ex.qp_base.recv_cq != base));
	free(cq->ring);
	fake_unmake(cq);
	return 0;
}

static struct ibv_ah *create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	struct fake_ah *ah;

	fake_setup();
	ah = fake_make("create_ah", sizeof(*ah));
	if (!ah)
		return NULL;
	assert_true(attr->is_global && attr->port_num == 1);
	ah->ah = (struct ibv_ah){ .context = pd->context, .pd = pd };
	ah->device = attr->grh.dgid.raw[15] - 1;
	__atomic_add_fetch(&fake_efa.ahs, 1, __ATOMIC_RELEASE);
	return &ah->ah;
}

static int destroy_ah(struct ibv_ah *ah)
{
	fake_unmake(ah);
	return 0;
}

struct fake_qp *fake_qp_find(uint32_t qpn)
{
	return qpn < FAKE_EFA_QPNS ? fake_qps[qpn] : NULL;
}

struct ibv_qp *fake_efa_qp(uint32_t qpn)
{
	struct fake_qp *qp = fake_qp_find(qpn);

	return qp ? &qp->ex.qp_base : NULL;
}

void fake_efa_pull(int device)
{
	FAKE_LOCKED;

	fake_efa.gone_device = device + 1;
	for (unsigned i = 0; i < FAKE_EFA_QPNS; i++)
		if (fake_qps[i] && fake_qps[i]->device == device)
			fake_qps[i]->is_gone = 1;
	fake_efa.event_device = device;
	fake_efa.events[fake_efa.n_events++] =
		(struct ibv_async_event){ .event_type = IBV_EVENT_DEVICE_FATAL };
}

static int get_async_event(struct ibv_context *ctx, struct ibv_async_event *event)
{
	FAKE_LOCKED;

	assert_true(fcntl(ctx->async_fd, F_GETFL) & O_NONBLOCK);
	if (!fake_efa.n_events || fake_efa.event_device != fake_number_of(ctx)) {
		errno = EAGAIN;
		return -1;
	}
	*event = fake_efa.events[0];
	memmove(fake_efa.events, fake_efa.events + 1, --fake_efa.n_events * sizeof(*event));
	fake_efa.open_things++;
	return 0;
}

static void ack_async_event(struct ibv_async_event *event)
{
	FAKE_LOCKED;

	fake_efa.open_things--;
}

static struct ibv_context *open_device(struct ibv_device *dev)
{
	struct verbs_context *c;

	if (fake_efa.gone_device && dev == &devices[fake_efa.gone_device]) {
		errno = ENODEV;
		return NULL;
	}
	c = fake_make("open_device", sizeof(*c));
	if (!c)
		return NULL;
	c->sz = sizeof(*c);
	c->query_port = query_port_long;
	c->context.abi_compat = __VERBS_ABI_IS_EXTENDED;
	c->context.device = dev;
	c->context.async_fd = eventfd(0, EFD_CLOEXEC);
	c->context.ops.req_notify_cq = req_notify_cq;
	c->context.ops.post_recv = fake_post_recv;
	return &c->context;
}

static int close_device(struct ibv_context *ctx)
{
	close(ctx->async_fd);
	fake_unmake((char *)ctx - offsetof(struct verbs_context, context));
	return 0;
}

static const struct epf_verbs_lib verbs_lib = {
	.get_device_list = get_device_list,
	.free_device_list = free_device_list,
	.open_device = open_device,
	.close_device = close_device,
	.query_device = query_device,
	.query_port = query_port,
	.alloc_pd = alloc_pd,
	.dealloc_pd = dealloc_pd,
	.reg_mr_iova2 = reg_mr,
	.reg_dmabuf_mr = reg_dmabuf_mr,
	.dereg_mr = dereg_mr,
	.create_comp_channel = create_comp_channel,
	.destroy_comp_channel = destroy_comp_channel,
	.destroy_cq = destroy_cq,
	.get_cq_event = get_cq_event,
	.ack_cq_events = ack_cq_events,
	.modify_qp = fake_modify_qp,
	.destroy_qp = fake_destroy_qp,
	.qp_to_qp_ex = fake_qp_to_qp_ex,
	.get_async_event = get_async_event,
	.ack_async_event = ack_async_event,
};

const struct epf_efa_lib fake_efa_lib = {
	.verbs = &verbs_lib,
	.query_gid = query_gid,
	.create_ah = create_ah,
	.destroy_ah = destroy_ah,
	.efa_query_device = efa_query_device,
	.efa_create_qp_ex = fake_create_qp_ex,
	.efa_create_cq = create_cq,
	.efa_cq_of = cq_of_ex,
};

static uint64_t no_clock(void *arg)
{
	return 1;
}

void fake_efa_reset(void)
{
	fake_wire_reset();
	memset(&fake_efa, 0, sizeof(fake_efa));
	fake_efa.n_devices = 1;
	fake_efa.has_notify = 1;
	fake_efa.seed = 1;
	fake_efa.rnr_timeout_ns = 1000000000;
	fake_efa.retry_timeout_ns = 1000000000;
	fake_efa.now = no_clock;
	fake_efa.break_status = EPF_EFA_UNRESPONSIVE_REMOTE;
	fake_efa.attr = (struct epf_efadv_device_attr){
		.max_sq_wr = 4096,
		.max_rq_wr = 32768,
		.max_sq_sge = 2,
		.max_rq_sge = 3,
		.inline_buf_size = 32,
		.inline_buf_size_ex = 80,
		.device_caps = EPF_EFADV_CAP_RDMA_READ | EPF_EFADV_CAP_RDMA_WRITE |
			       EPF_EFADV_CAP_RNR_RETRY | EPF_EFADV_CAP_UNSOLICITED_WRITE_RECV,
		.max_rdma_size = 1 << 30,
	};
	fake_efa.dev = (struct ibv_device_attr){ .max_qp = 1000, .max_cqe = 32768 };
	fake_efa.port = (struct ibv_port_attr){ .state = IBV_PORT_ACTIVE };
}

struct epf_nic *fake_efa_open(const struct epf_efa_opts *opts)
{
	struct epf_efa_opts defaults;
	struct epf_nic *nic = NULL;

	epf_efa_opts_defaults(&defaults);
	assert_int_equal(epf_efa_open(&fake_efa_lib, opts ? opts : &defaults, fake_efa.now,
				      fake_efa.now_arg, &nic),
			 0);
	return nic;
}
