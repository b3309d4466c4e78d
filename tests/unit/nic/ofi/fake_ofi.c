/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fake libfabric of fake_ofi.h. Only what nic/ofi calls is there. Test code: it asserts through cmocka.
 */
#include "tests/unit/nic/ofi/fake_ofi.h"

#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { EPS = 64, MRS = 1024, ENTRIES = 16384, RECVS = 4096 };

struct fake_ofi fake_ofi;

struct fake_mr {
	struct fid_mr mr;
	void *domain;
	uint8_t *base;
	size_t len;
	uint64_t access;
	bool is_enabled;
};

struct entry {
	struct fi_cq_data_entry e;
	int err;
};

struct fake_cq {
	struct fid_cq cq;
	struct entry entries[ENTRIES];
	unsigned head, tail;
	struct entry held[ENTRIES];
	unsigned n_held;
};

struct recv_slot {
	void *buf, *context;
	size_t len;
};

struct fake_ep {
	struct fid_ep ep;
	void *domain;
	struct fake_cq *cq;
	uint32_t id;
	struct recv_slot recvs[RECVS];
	unsigned recv_head, recv_tail;

	struct {
		uint8_t bytes[256];
		size_t len;
	} early[256];

	unsigned n_early;
};

struct fake_domain {
	struct fid_domain domain;
};

static struct fake_ep *eps[EPS];
static struct fake_mr *mrs[MRS];
static uint64_t next_key = 1;
static uint32_t next_id = 1;

static int fails(const char *call)
{
	return fake_ofi.fail_open && strcmp(fake_ofi.fail_open, call) == 0 ? -FI_EIO : 0;
}

static int no_op(struct fid *fid, struct fid *with, uint64_t flags)
{
	return 0;
}

static int free_fid(struct fid *fid)
{
	fake_ofi.live--;
	free(fid);
	return 0;
}

/* ---- completion queues ---- */

static void push(struct fake_cq *cq, struct entry e)
{
	assert_true(cq->tail - cq->head < ENTRIES);
	cq->entries[cq->tail++ % ENTRIES] = e;
}

/* Of an operation. */
static void complete(struct fake_cq *cq, struct entry e)
{
	if (fake_ofi.hold) {
		assert_true(cq->n_held < ENTRIES);
		cq->held[cq->n_held++] = e;
	} else {
		push(cq, e);
	}
}

static ssize_t cq_read(struct fid_cq *fid, void *buf, size_t count)
{
	struct fake_cq *cq = (struct fake_cq *)fid;
	struct fi_cq_data_entry *out = buf;
	size_t n = 0;

	if (fake_ofi.is_lost)
		return -FI_EIO;
	if (!fake_ofi.hold) {
		for (unsigned i = 0; i < cq->n_held; i++)
			push(cq, cq->held[i]);
		cq->n_held = 0;
	}
	for (; n < count && cq->head != cq->tail; cq->head++) {
		struct entry *e = &cq->entries[cq->head % ENTRIES];

		if (e->err)
			return n ? (ssize_t)n : -FI_EAVAIL;
		out[n++] = e->e;
	}
	return n ? (ssize_t)n : -FI_EAGAIN;
}

static ssize_t cq_readerr(struct fid_cq *fid, struct fi_cq_err_entry *out, uint64_t flags)
{
	struct fake_cq *cq = (struct fake_cq *)fid;
	struct entry *e = &cq->entries[cq->head % ENTRIES];

	if (cq->head == cq->tail || !e->err)
		return -FI_EAGAIN;
	*out = (struct fi_cq_err_entry){ .op_context = e->e.op_context,
					 .flags = e->e.flags,
					 .err = e->err };
	cq->head++;
	return 1;
}

static int no_control(struct fid *fid, int command, void *arg)
{
	return -FI_ENOSYS;
}

static int cq_open(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **out,
		   void *context)
{
	static struct fi_ops ops = { .close = free_fid, .control = no_control };
	static struct fi_ops_cq cq_ops = { .read = cq_read, .readerr = cq_readerr };
	struct fake_cq *cq;

	if (attr->wait_obj != FI_WAIT_NONE)
		return -FI_ENOSYS;
	cq = fails("cq") ? NULL : calloc(1, sizeof(*cq));
	if (!cq)
		return -FI_EIO;
	cq->cq.fid.ops = &ops;
	cq->cq.ops = &cq_ops;
	fake_ofi.live++;
	*out = &cq->cq;
	return 0;
}

/* ---- registrations ---- */

static int mr_close(struct fid *fid)
{
	for (unsigned i = 0; i < MRS; i++)
		if (mrs[i] && &mrs[i]->mr.fid == fid)
			mrs[i] = NULL;
	return free_fid(fid);
}

static int mr_bind(struct fid *fid, struct fid *with, uint64_t flags)
{
	assert_true(fake_ofi.mr_mode & FI_MR_ENDPOINT);
	fake_ofi.bound++;
	return 0;
}

static int mr_control(struct fid *fid, int command, void *arg)
{
	assert_int_equal(command, FI_ENABLE);
	((struct fake_mr *)fid)->is_enabled = true;
	return 0;
}

static struct fake_mr *find(const void *domain, uint64_t key)
{
	for (unsigned i = 0; i < MRS; i++)
		if (mrs[i] && mrs[i]->domain == domain && mrs[i]->mr.key == key)
			return mrs[i];
	return NULL;
}

static int mr_reg(struct fid *fid, const void *buf, size_t len, uint64_t access, uint64_t offset,
		  uint64_t key, uint64_t flags, struct fid_mr **out, void *context)
{
	static struct fi_ops ops = { .close = mr_close, .bind = mr_bind, .control = mr_control };
	struct fake_mr *m;
	unsigned i = 0;

	if (fake_ofi.wide_keys)
		key = 1ull << 40 | next_key++;
	if (find(fid, key))
		return -FI_ENOKEY;
	if (fails("mr"))
		return -FI_EIO;
	while (i < MRS && mrs[i])
		i++;
	assert_true(i < MRS);
	m = calloc(1, sizeof(*m));
	assert_non_null(m);
	m->mr.fid.ops = &ops;
	m->mr.key = key;
	m->mr.mem_desc = m;
	m->domain = fid;
	m->base = (uint8_t *)(uintptr_t)buf;
	m->len = len;
	m->access = access;
	m->is_enabled = !(fake_ofi.mr_mode & FI_MR_ENDPOINT);
	mrs[i] = m;
	fake_ofi.live++;
	*out = &m->mr;
	return 0;
}

/* Local memory has to be registered where the provider says so. */
static void check_local(const void *desc, const struct iovec *iov, uint64_t access)
{
	const struct fake_mr *m = desc;

	if (!(fake_ofi.mr_mode & FI_MR_LOCAL) || !iov->iov_len)
		return;
	assert_non_null(m);
	assert_true(m->is_enabled && (m->access & access));
	assert_true((uint8_t *)iov->iov_base >= m->base &&
		    (uint8_t *)iov->iov_base + iov->iov_len <= m->base + m->len);
}

/* ---- endpoints ---- */

static struct fake_ep *ep_of(fi_addr_t addr)
{
	for (unsigned i = 0; i < EPS; i++)
		if (eps[i] && eps[i]->id == addr)
			return eps[i];
	return NULL;
}

static int post(void)
{
	int rc = fake_ofi.fail_post;

	if (fake_ofi.again) {
		fake_ofi.again -= fake_ofi.again > 0;
		return -FI_EAGAIN;
	}
	fake_ofi.fail_post = 0;
	fake_ofi.posts++;
	return -rc;
}

static void deliver(struct fake_ep *to, const void *bytes, size_t len)
{
	struct recv_slot *r = &to->recvs[to->recv_head % RECVS];

	assert_true(r->len >= len);
	to->recv_head++;
	memcpy(r->buf, bytes, len);
	push(to->cq,
	     (struct entry){
		     .e = { .op_context = r->context, .flags = FI_RECV | FI_MSG, .len = len } });
}

static void arrive(struct fake_ep *to, const void *bytes, size_t len)
{
	if (to->recv_head != to->recv_tail) {
		deliver(to, bytes, len);
		return;
	}
	assert_true(to->n_early < 256 && len <= 256);
	memcpy(to->early[to->n_early].bytes, bytes, len);
	to->early[to->n_early++].len = len;
}

static ssize_t recvmsg_(struct fid_ep *fid, const struct fi_msg *msg, uint64_t flags)
{
	struct fake_ep *ep = (struct fake_ep *)fid;

	if (ep->recv_tail - ep->recv_head == fake_ofi.rx_size)
		return -FI_EAGAIN;
	check_local(msg->desc[0], msg->msg_iov, FI_RECV);
	ep->recvs[ep->recv_tail++ % RECVS] = (struct recv_slot){ .buf = msg->msg_iov->iov_base,
								 .len = msg->msg_iov->iov_len,
								 .context = msg->context };
	if (ep->n_early) {
		deliver(ep, ep->early[0].bytes, ep->early[0].len);
		memmove(&ep->early[0], &ep->early[1], --ep->n_early * sizeof(ep->early[0]));
	}
	return 0;
}

static ssize_t sendmsg_(struct fid_ep *fid, const struct fi_msg *msg, uint64_t flags)
{
	struct fake_ep *ep = (struct fake_ep *)fid, *to = ep_of(msg->addr);
	struct entry e = { .e = { .op_context = msg->context, .flags = FI_SEND | FI_MSG },
			   .err = fake_ofi.fail };
	ssize_t rc = post();

	if (rc)
		return rc;
	assert_true((flags & (FI_DELIVERY_COMPLETE | FI_COMPLETION)) ==
		    (FI_DELIVERY_COMPLETE | FI_COMPLETION));
	check_local(msg->desc[0], msg->msg_iov, FI_SEND);
	fake_ofi.messages++;
	fake_ofi.fail = 0;
	if (!to)
		e.err = e.err ? e.err : FI_EHOSTUNREACH;
	if (!e.err)
		arrive(to, msg->msg_iov->iov_base, msg->msg_iov->iov_len);
	complete(ep->cq, e);
	return 0;
}

/* The place that a peer's request names, or NULL. */
static uint8_t *place_of(const struct fake_ep *to, const struct fi_rma_iov *iov, uint64_t access)
{
	const struct fake_mr *m = to ? find(to->domain, iov->key) : NULL;
	uint64_t base, at;

	if (!m || !m->is_enabled || !(m->access & access))
		return NULL;
	base = fake_ofi.mr_mode & FI_MR_VIRT_ADDR ? (uint64_t)(uintptr_t)m->base : 0;
	at = iov->addr - base;
	return iov->addr >= base && iov->len <= m->len && at <= m->len - iov->len ? m->base + at
										  : NULL;
}

static ssize_t rma(struct fid_ep *fid, const struct fi_msg_rma *msg, uint64_t flags, bool is_read)
{
	struct fake_ep *ep = (struct fake_ep *)fid, *to = ep_of(msg->addr);
	uint64_t access = is_read ? FI_REMOTE_READ : FI_REMOTE_WRITE;
	uint8_t *at = place_of(to, msg->rma_iov, access);
	struct entry e = { .e = { .op_context = msg->context, .flags = FI_RMA },
			   .err = fake_ofi.fail };
	ssize_t rc = post();

	if (rc)
		return rc;
	assert_true(flags & FI_DELIVERY_COMPLETE);
	check_local(msg->desc[0], msg->msg_iov, is_read ? FI_READ : FI_WRITE);
	fake_ofi.fail = 0;
	if (!e.err && !at)
		e.err = FI_EACCES;
	if (!e.err && is_read)
		memcpy(msg->msg_iov->iov_base, at, msg->rma_iov->len);
	if (!e.err && !is_read)
		memcpy(at, msg->msg_iov->iov_base, msg->rma_iov->len);
	if (!e.err && flags & FI_REMOTE_CQ_DATA) {
		struct entry arrival = { .e = { .flags = FI_RMA | FI_REMOTE_WRITE |
							 FI_REMOTE_CQ_DATA,
						.len = msg->rma_iov->len,
						.data = msg->data } };

		assert_true(fake_ofi.cq_data_size >= 8);
		fake_ofi.data_writes++;
		if (fake_ofi.mode & FI_RX_CQ_DATA) {
			assert_true(to->recv_head != to->recv_tail);
			arrival.e.op_context = to->recvs[to->recv_head++ % RECVS].context;
		}
		push(to->cq, arrival);
	}
	complete(ep->cq, e);
	return 0;
}

static ssize_t writemsg_(struct fid_ep *fid, const struct fi_msg_rma *msg, uint64_t flags)
{
	return rma(fid, msg, flags, false);
}

static ssize_t readmsg_(struct fid_ep *fid, const struct fi_msg_rma *msg, uint64_t flags)
{
	return rma(fid, msg, flags, true);
}

static int ep_bind(struct fid *fid, struct fid *with, uint64_t flags)
{
	if (flags)
		((struct fake_ep *)fid)->cq = (struct fake_cq *)with;
	return 0;
}

static int ep_control(struct fid *fid, int command, void *arg)
{
	return command == FI_ENABLE ? fails("enable") : -FI_ENOSYS;
}

static int ep_close(struct fid *fid)
{
	for (unsigned i = 0; i < EPS; i++)
		if (eps[i] && &eps[i]->ep.fid == fid)
			eps[i] = NULL;
	return free_fid(fid);
}

static int getname_(fid_t fid, void *name, size_t *len)
{
	memcpy(name, &((struct fake_ep *)fid)->id, 4);
	*len = 4;
	return 0;
}

static int endpoint(struct fid_domain *domain, struct fi_info *info, struct fid_ep **out,
		    void *context)
{
	static struct fi_ops ops = { .close = ep_close, .bind = ep_bind, .control = ep_control };
	static struct fi_ops_cm cm = { .getname = getname_ };
	static struct fi_ops_msg msg = { .recvmsg = recvmsg_, .sendmsg = sendmsg_ };
	static struct fi_ops_rma rma_ops = { .readmsg = readmsg_, .writemsg = writemsg_ };
	struct fake_ep *ep = fails("endpoint") ? NULL : calloc(1, sizeof(*ep));
	unsigned i = 0;

	if (!ep)
		return -FI_EIO;
	while (i < EPS && eps[i])
		i++;
	assert_true(i < EPS);
	ep->ep.fid.ops = &ops;
	ep->ep.cm = &cm;
	ep->ep.msg = &msg;
	ep->ep.rma = &rma_ops;
	ep->domain = domain;
	ep->id = next_id++;
	eps[i] = ep;
	fake_ofi.live++;
	*out = &ep->ep;
	return 0;
}

/* ---- address vectors, domains, fabrics ---- */

static int av_insert(struct fid_av *av, const void *addr, size_t count, fi_addr_t *out,
		     uint64_t flags, void *context)
{
	uint32_t id;

	if (fails("av"))
		return 0;
	memcpy(&id, addr, 4);
	*out = id;
	return 1;
}

static int av_remove(struct fid_av *av, fi_addr_t *addr, size_t count, uint64_t flags)
{
	return 0;
}

static int av_open(struct fid_domain *domain, struct fi_av_attr *attr, struct fid_av **out,
		   void *context)
{
	static struct fi_ops ops = { .close = free_fid };
	static struct fi_ops_av av_ops = { .insert = av_insert, .remove = av_remove };
	struct fid_av *av = calloc(1, sizeof(*av));

	assert_non_null(av);
	av->fid.ops = &ops;
	av->ops = &av_ops;
	fake_ofi.live++;
	*out = av;
	return 0;
}

static int domain_open(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **out,
		       void *context)
{
	static struct fi_ops ops = { .close = free_fid, .bind = no_op };
	static struct fi_ops_domain domain_ops = { .av_open = av_open,
						   .cq_open = cq_open,
						   .endpoint = endpoint };
	static struct fi_ops_mr mr_ops = { .reg = mr_reg };
	struct fake_domain *d = fails("domain") ? NULL : calloc(1, sizeof(*d));

	if (!d)
		return -FI_EIO;
	d->domain.fid.ops = &ops;
	d->domain.ops = &domain_ops;
	d->domain.mr = &mr_ops;
	fake_ofi.live++;
	*out = &d->domain;
	return 0;
}

static int fake_fabric(struct fi_fabric_attr *attr, struct fid_fabric **out, void *context)
{
	static struct fi_ops ops = { .close = free_fid };
	static struct fi_ops_fabric fabric_ops = { .domain = domain_open };
	struct fid_fabric *f = fails("fabric") ? NULL : calloc(1, sizeof(*f));

	if (!f)
		return -FI_EIO;
	f->fid.ops = &ops;
	f->ops = &fabric_ops;
	fake_ofi.live++;
	*out = f;
	return 0;
}

/* ---- what there is ---- */

static struct fi_info *info_new(const char *provider, const char *domain)
{
	struct fi_info *i = calloc(1, sizeof(*i));

	assert_non_null(i);
	i->ep_attr = calloc(1, sizeof(*i->ep_attr));
	i->tx_attr = calloc(1, sizeof(*i->tx_attr));
	i->rx_attr = calloc(1, sizeof(*i->rx_attr));
	i->domain_attr = calloc(1, sizeof(*i->domain_attr));
	i->fabric_attr = calloc(1, sizeof(*i->fabric_attr));
	i->fabric_attr->prov_name = provider ? strdup(provider) : NULL;
	i->domain_attr->name = domain ? strdup(domain) : NULL;
	i->mode = fake_ofi.mode;
	i->ep_attr->max_msg_size = SIZE_MAX;
	i->domain_attr->mr_mode = fake_ofi.mr_mode;
	i->domain_attr->cq_data_size = fake_ofi.cq_data_size;
	i->tx_attr->size = fake_ofi.tx_size;
	i->rx_attr->size = fake_ofi.rx_size;
	return i;
}

static struct fi_info *fake_dupinfo(const struct fi_info *info)
{
	return info ? info_new(info->fabric_attr->prov_name, info->domain_attr->name)
		    : info_new(NULL, NULL);
}

static void fake_freeinfo(struct fi_info *info)
{
	while (info) {
		struct fi_info *next = info->next;

		free(info->fabric_attr->prov_name);
		free(info->domain_attr->name);
		free(info->fabric_attr);
		free(info->domain_attr);
		free(info->rx_attr);
		free(info->tx_attr);
		free(info->ep_attr);
		free(info);
		info = next;
	}
}

static int fake_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
			const struct fi_info *hints, struct fi_info **out)
{
	const char *name = hints->fabric_attr->prov_name;
	struct fi_info *first = NULL, **at = &first;
	int asked = hints->domain_attr->mr_mode;

	assert_int_equal(hints->ep_attr->type, FI_EP_RDM);
	assert_true(hints->caps & FI_RMA && hints->caps & FI_MSG);
	fake_ofi.prov_key_asked += (asked & FI_MR_PROV_KEY) != 0;
	if ((fake_ofi.mr_mode & ~asked) || (fake_ofi.mode & ~hints->mode))
		return -FI_ENODATA;
	for (unsigned i = 0; i < FAKE_OFI_INFOS && fake_ofi.infos[i].provider; i++) {
		const char *provider = fake_ofi.infos[i].provider;

		if (name && (strncmp(provider, name, strlen(name)) != 0 ||
			     (provider[strlen(name)] && provider[strlen(name)] != ';')))
			continue;
		*at = info_new(provider, fake_ofi.infos[i].domain);
		at = &(*at)->next;
	}
	*out = first;
	return first ? 0 : -FI_ENODATA;
}

static const char *fake_strerror(int err)
{
	return "a made-up reason";
}

static uint32_t fake_version(void)
{
	return FI_VERSION(1, 99);
}

const struct epf_ofi_lib fake_ofi_lib = {
	.getinfo = fake_getinfo,
	.freeinfo = fake_freeinfo,
	.dupinfo = fake_dupinfo,
	.fabric = fake_fabric,
	.strerror = fake_strerror,
	.version = fake_version,
};

void fake_ofi_reset(void)
{
	fake_ofi = (struct fake_ofi){
		.infos = { { "fake", "fake0" } }, .cq_data_size = 8, .tx_size = 256, .rx_size = 256
	};
}

void fake_ofi_message(const void *name, const void *bytes, size_t len)
{
	uint32_t id;

	memcpy(&id, name, 4);
	arrive(ep_of(id), bytes, len);
}

void fake_ofi_data(const void *name, uint64_t data)
{
	uint32_t id;

	memcpy(&id, name, 4);
	push(ep_of(id)->cq,
	     (struct entry){ .e = { .flags = FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA,
				    .data = data } });
}
