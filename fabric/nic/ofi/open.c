/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening and closing an ofi NIC on one domain: fabric, domain, address vector, one completion queue for everything, and the endpoint. Slow path.
 */
#include "fabric/nic/ofi/ofi.h"

#include "fabric/base/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* With a descriptor to sleep on where the provider has one. */
static int open_queue(struct epf_ofi *v)
{
	struct fi_cq_attr attr = { .size = v->opts.completions,
				   .format = FI_CQ_FORMAT_DATA,
				   .wait_obj = FI_WAIT_FD };
	int rc = fi_cq_open(v->domain, &attr, &v->cq, NULL);

	if (!rc && fi_control(&v->cq->fid, FI_GETWAIT, &v->wait_fd) == 0)
		return 0;
	if (!rc)
		fi_close(&v->cq->fid);
	v->wait_fd = -1;
	v->cq = NULL;
	attr.wait_obj = FI_WAIT_NONE;
	rc = fi_cq_open(v->domain, &attr, &v->cq, NULL);
	return rc ? epf_ofi_call_failed(v, "fi_cq_open", rc) : 0;
}

static int open_endpoint(struct epf_ofi *v)
{
	size_t len = EPF_OFI_NAME_BYTES;
	int rc = fi_endpoint(v->domain, v->info, &v->ep, NULL);

	if (rc)
		return epf_ofi_call_failed(v, "fi_endpoint", rc);
	rc = fi_ep_bind(v->ep, &v->av->fid, 0);
	if (!rc)
		rc = fi_ep_bind(v->ep, &v->cq->fid, FI_TRANSMIT | FI_RECV);
	if (rc)
		return epf_ofi_call_failed(v, "fi_ep_bind", rc);
	rc = fi_enable(v->ep);
	if (rc)
		return epf_ofi_call_failed(v, "fi_enable", rc);
	rc = fi_getname(&v->ep->fid, v->place.name, &len);
	if (rc)
		return epf_ofi_call_failed(v, "fi_getname", rc);
	v->place.len = (uint32_t)len;
	return 0;
}

static int open_domain(struct epf_ofi *v)
{
	struct fi_av_attr av = { .type = v->info->domain_attr->av_type };
	int rc = v->lib->fabric(v->info->fabric_attr, &v->fabric, NULL);

	if (rc)
		return epf_ofi_call_failed(v, "fi_fabric", rc);
	rc = fi_domain(v->fabric, v->info, &v->domain, NULL);
	if (rc)
		return epf_ofi_call_failed(v, "fi_domain", rc);
	rc = fi_av_open(v->domain, &av, &v->av, NULL);
	return rc ? epf_ofi_call_failed(v, "fi_av_open", rc) : open_queue(v);
}

/* What the provider requires and offers. */
static void take_info(struct epf_ofi *v)
{
	const struct fi_info *info = v->info;
	int modes = info->domain_attr->mr_mode;
	const char *provider = info->fabric_attr->prov_name;
	size_t in_provider = info->tx_attr->size ? info->tx_attr->size : 256;
	size_t posted = info->rx_attr->size ? info->rx_attr->size : 256;

	v->local_mr = (modes & FI_MR_LOCAL) != 0;
	v->is_virtual = (modes & FI_MR_VIRT_ADDR) != 0;
	v->consumes_receives = (info->mode & FI_RX_CQ_DATA) != 0;
	/* cxi carries remote CQ data only with keys of 64 bits (FI_MR_PROV_KEY), whatever it says. */
	v->remote_data = v->opts.remote_data && info->domain_attr->cq_data_size >= 8 &&
			 strncmp(provider, "cxi", 3) != 0;
	v->max_in_provider = in_provider < v->opts.completions / 2 ? (uint32_t)in_provider
								   : v->opts.completions / 2;
	v->max_posted = posted < EPF_OFI_MOST_POSTED ? (uint32_t)posted : EPF_OFI_MOST_POSTED;
	v->place.kind = epf_ofi_kind_of(provider, info->addr_format);
	snprintf(v->name, sizeof(v->name), "%s %s", provider, info->domain_attr->name);
}

static int start(struct epf_ofi *v)
{
	int rc = open_domain(v);

	if (!rc)
		rc = open_endpoint(v);
	if (!rc)
		rc = epf_ofi_more_slots(v, v->max_posted + EPF_OFI_READ + EPF_OFI_HELD);
	return rc;
}

int epf_ofi_open_one(const struct epf_ofi_lib *lib, const struct epf_ofi_opts *opts,
		     struct fi_info *info, uint64_t (*now)(void *), void *now_arg,
		     struct epf_nic **out)
{
	struct epf_ofi *v = aligned_alloc(64, (sizeof(*v) + 63) / 64 * 64);
	int rc;

	if (!v)
		return epf_fail(EPF_R_NO_MEMORY, "ofi: a NIC");
	memset(v, 0, sizeof(*v));
	v->nic.ops = epf_nic_find("ofi");
	v->lib = lib;
	v->opts = *opts;
	v->opts.provider = NULL;
	v->opts.devices = (struct epf_conf_list){ .count = 0 };
	v->now = now;
	v->now_arg = now_arg;
	v->waiting_head = v->waiting_tail = EPF_OFI_NONE;
	v->wakeup = &v->own_wakeup;
	v->waker.stop_fd = v->wait_fd = v->once_fd = -1;
	v->info = info;
	take_info(v);
	v->lanes = calloc(EPF_OFI_MAX_LANES, sizeof(*v->lanes));
	v->held = calloc(EPF_OFI_HELD, sizeof(*v->held));
	rc = v->lanes && v->held ? start(v) : epf_fail(EPF_R_NO_MEMORY, "ofi: a NIC");
	if (rc) {
		v->info = NULL; /* the caller's */
		epf_ofi_close(&v->nic);
		return rc;
	}
	*out = &v->nic;
	return 0;
}

static void close_fid(struct fid *fid)
{
	if (fid)
		fi_close(fid);
}

void epf_ofi_close(struct epf_nic *nic)
{
	struct epf_ofi *v = epf_ofi_of(nic);

	if (!nic)
		return;
	epf_verbs_waker_stop(&v->waker);
	if (v->once_fd >= 0)
		close(v->once_fd);
	/* The endpoint first: after that nobody writes to any memory. */
	close_fid(v->ep ? &v->ep->fid : NULL);
	for (uint32_t i = 0; i < v->n_regions; i++)
		if (v->regions[i].mr)
			fi_close(&v->regions[i].mr->fid);
	epf_ofi_memory_free(v);
	close_fid(v->cq ? &v->cq->fid : NULL);
	close_fid(v->av ? &v->av->fid : NULL);
	close_fid(v->domain ? &v->domain->fid : NULL);
	close_fid(v->fabric ? &v->fabric->fid : NULL);
	if (v->info)
		v->lib->freeinfo(v->info);
	while (v->peers) {
		struct epf_ofi_peer *p = v->peers;

		v->peers = p->next;
		free(p);
	}
	free(v->regions);
	free(v->held);
	free(v->lanes);
	free(v);
}
