/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fake libfabric of fake_ofi.h: what there is, registrations, domains. Only what nic/ofi calls is there. Test code: it asserts through cmocka.
 */
#include "tests/unit/nic/ofi/fake_ofi_impl.h"

#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MRS = 1024 };

struct fake_ofi fake_ofi;

struct fake_domain {
	struct fid_domain domain;
};

static struct fake_mr *mrs[MRS];
static uint64_t next_key = 1;

int fake_ofi_fails(const char *call)
{
	return fake_ofi.fail_open && strcmp(fake_ofi.fail_open, call) == 0 ? -FI_EIO : 0;
}

static int no_op(struct fid *fid, struct fid *with, uint64_t flags)
{
	return 0;
}

int fake_ofi_free(struct fid *fid)
{
	fake_ofi.live--;
	free(fid);
	return 0;
}

/* ---- registrations ---- */

static int mr_close(struct fid *fid)
{
	for (unsigned i = 0; i < MRS; i++)
		if (mrs[i] && &mrs[i]->mr.fid == fid)
			mrs[i] = NULL;
	return fake_ofi_free(fid);
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

struct fake_mr *fake_ofi_find(const void *domain, uint64_t key)
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
	if (fake_ofi_find(fid, key))
		return -FI_ENOKEY;
	if (fake_ofi_fails("mr"))
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

void fake_ofi_check_local(const void *desc, const struct iovec *iov, uint64_t access)
{
	const struct fake_mr *m = desc;

	if (!(fake_ofi.mr_mode & FI_MR_LOCAL) || !iov->iov_len)
		return;
	assert_non_null(m);
	assert_true(m->is_enabled && (m->access & access));
	assert_true((uint8_t *)iov->iov_base >= m->base &&
		    (uint8_t *)iov->iov_base + iov->iov_len <= m->base + m->len);
}

/* ---- address vectors, domains, fabrics ---- */

static int av_insert(struct fid_av *av, const void *addr, size_t count, fi_addr_t *out,
		     uint64_t flags, void *context)
{
	uint32_t id;

	if (fake_ofi_fails("av"))
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
	static struct fi_ops ops = { .close = fake_ofi_free };
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
	static struct fi_ops ops = { .close = fake_ofi_free, .bind = no_op };
	static struct fi_ops_domain domain_ops = { .av_open = av_open,
						   .cq_open = fake_ofi_cq_open,
						   .endpoint = fake_ofi_endpoint };
	static struct fi_ops_mr mr_ops = { .reg = mr_reg };
	struct fake_domain *d = fake_ofi_fails("domain") ? NULL : calloc(1, sizeof(*d));

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
	static struct fi_ops ops = { .close = fake_ofi_free };
	static struct fi_ops_fabric fabric_ops = { .domain = domain_open };
	struct fid_fabric *f = fake_ofi_fails("fabric") ? NULL : calloc(1, sizeof(*f));

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
