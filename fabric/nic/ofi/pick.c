/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which provider and domains an ofi NIC uses. Asks libfabric what this machine has, with what the NIC can live with as hints, and takes what the settings name;
 * without a provider's name only those for HPC fabrics, whose networks keep strangers out. Slow path.
 */
#include "fabric/nic/ofi/ofi.h"

#include "bootstrap/net.h"
#include "fabric/base/err.h"

#include <stdio.h>
#include <string.h>

/* The oldest release of the API that has all that is used here; a library says which it serves. */
#define API FI_VERSION(1, 9)

/* Taken without being named. Others (tcp, sockets, udp, net, and shm on one host) authenticate nobody, or do not leave the host. */
static const char *const trusted[] = { "cxi", "efa" };

static int is_provider(const char *name, const char *core)
{
	size_t n = strlen(core);

	return strncmp(name, core, n) == 0 && (name[n] == 0 || name[n] == ';');
}

static int is_trusted(const char *name)
{
	for (size_t i = 0; i < sizeof(trusted) / sizeof(trusted[0]); i++)
		if (is_provider(name, trusted[i]))
			return 1;
	return 0;
}

/* The hints; NULL: no memory. */
static struct fi_info *hints_make(const struct epf_ofi_lib *lib, const char *provider, int prov_key)
{
	struct fi_info *h = lib->dupinfo(NULL);

	if (!h)
		return NULL;
	h->caps = FI_MSG | FI_RMA | FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ |
		  FI_REMOTE_WRITE;
	h->mode = FI_CONTEXT | FI_CONTEXT2 | FI_RX_CQ_DATA;
	h->ep_attr->type = FI_EP_RDM;
	h->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
	h->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_ENDPOINT |
				  (prov_key ? FI_MR_PROV_KEY : 0);
	h->domain_attr->threading = FI_THREAD_DOMAIN;
	h->domain_attr->resource_mgmt = FI_RM_ENABLED;
	if (provider)
		h->fabric_attr->prov_name = strdup(provider);
	if (provider && !h->fabric_attr->prov_name) {
		lib->freeinfo(h);
		return NULL;
	}
	return h;
}

/*
 * What there is, in the order of preference; NULL: nothing. Keys that the NIC chooses come first: they have 32 bits, which a provider's own keys (cxi: 64) may
 * exceed.
 */
static struct fi_info *ask(const struct epf_ofi_lib *lib, const char *provider)
{
	struct fi_info *list = NULL;

	for (int prov_key = 0; prov_key < 2 && !list; prov_key++) {
		struct fi_info *h = hints_make(lib, provider, prov_key);

		if (!h || lib->getinfo(API, NULL, NULL, 0, h, &list))
			list = NULL;
		if (h)
			lib->freeinfo(h);
	}
	return list;
}

/* Names of the providers in a list, once each, with commas. */
static void names_of(const struct fi_info *list, char *buf, size_t size)
{
	size_t n = 0;

	buf[0] = 0;
	for (const struct fi_info *i = list; i; i = i->next) {
		const char *name = i->fabric_attr->prov_name;
		const struct fi_info *before = list;

		while (before != i && strcmp(before->fabric_attr->prov_name, name) != 0)
			before = before->next;
		if (before == i && n < size)
			n += (size_t)snprintf(buf + n, size - n, "%s%s", n ? ", " : "", name);
	}
}

static int none(const struct epf_ofi_lib *lib, const char *provider)
{
	struct fi_info *all = ask(lib, NULL);
	uint32_t version = lib->version();
	char names[256];

	names_of(all, names, sizeof(names));
	if (all)
		lib->freeinfo(all);
	return epf_fail(EPF_R_OFI_PROVIDER,
			"ofi: %s has nothing that fits here; libfabric %u.%u offers %s",
			provider ? provider : "no provider chosen by default (cxi, efa)",
			FI_MAJOR(version), FI_MINOR(version), names[0] ? names : "nothing");
}

/* nic-device as text for epf_net_if_match(), whose syntax it shares. */
static void spec_of(const struct epf_conf_list *devices, char *buf, size_t size)
{
	size_t n = 0;

	buf[0] = 0;
	for (size_t i = 0; i < devices->count && n < size; i++)
		n += (size_t)snprintf(buf + n, size - n, "%s%s", n ? "," : "", devices->item[i]);
}

struct picked {
	const struct fi_info *info[EPF_NIC_LINKS];
	uint32_t n, all;
};

static void note(struct picked *p, const struct fi_info *info)
{
	for (uint32_t i = 0; i < p->n; i++)
		if (strcmp(p->info[i]->domain_attr->name, info->domain_attr->name) == 0)
			return;
	p->all++;
	if (p->n < EPF_NIC_LINKS)
		p->info[p->n++] = info;
}

/* Domains of the first provider in the list that may be used; each by its first entry. */
static void pick(const struct fi_info *list, const char *provider, const char *spec,
		 struct picked *p)
{
	const char *taken = NULL;

	for (const struct fi_info *i = list; i; i = i->next) {
		const char *name = i->fabric_attr->prov_name;

		if (!provider && !is_trusted(name))
			continue;
		if (taken && strcmp(taken, name) != 0)
			continue;
		if (spec[0] && !epf_net_if_match(spec, i->domain_attr->name))
			continue;
		taken = name;
		note(p, i);
	}
	/* Of a socket's provider loopback is the last choice. */
	for (uint32_t i = 0; !spec[0] && i + 1 < p->n; i++)
		if (strcmp(p->info[i]->domain_attr->name, "lo") == 0) {
			memmove(&p->info[i], &p->info[i + 1], (p->n - i - 1) * sizeof(p->info[0]));
			p->n--;
		}
}

static int open_picked(const struct epf_ofi_lib *lib, const struct epf_ofi_opts *opts,
		       const struct picked *p, uint64_t (*now)(void *), void *now_arg,
		       struct epf_nic **out)
{
	struct epf_nic *child[EPF_NIC_LINKS] = { NULL };
	int rc = 0;

	for (uint32_t i = 0; i < p->n && !rc; i++) {
		struct fi_info *info = lib->dupinfo(p->info[i]);

		if (!info) {
			rc = epf_fail(EPF_R_NO_MEMORY, "ofi: a NIC");
			break;
		}
		rc = epf_ofi_open_one(lib, opts, info, now, now_arg, &child[i]);
		if (rc)
			lib->freeinfo(info);
		else
			epf_ofi_of(child[i])->wakeup = epf_ofi_of(child[0])->wakeup;
	}
	if (!rc && p->n > 1)
		rc = epf_nic_rails_open(child, p->n, out);
	else if (!rc)
		*out = child[0];
	for (uint32_t i = p->n; rc && i-- > 0;)
		if (child[i])
			child[i]->ops->close(child[i]);
	return rc;
}

static int choose(const struct epf_ofi_opts *opts, const struct fi_info *list, const char *provider,
		  struct picked *p)
{
	uint32_t most = opts->count;
	char spec[512];

	spec_of(&opts->devices, spec, sizeof(spec));
	pick(list, provider, spec, p);
	if (!p->n && spec[0])
		return epf_fail(EPF_R_OFI_PROVIDER, "ofi: no domain fits nic-device '%s'", spec);
	if (!most && !spec[0])
		most = 1;
	if (most && p->n > most)
		p->n = most;
	else if (p->all > EPF_NIC_LINKS)
		return epf_fail(EPF_R_NIC_LIMIT,
				"ofi: nic-device '%s' names %u domains, and a job uses %d at most: "
				"set nic-count, or name fewer",
				spec, p->all, EPF_NIC_LINKS);
	return 0;
}

int epf_ofi_open(const struct epf_ofi_lib *lib, const struct epf_ofi_opts *opts,
		 uint64_t (*now)(void *), void *now_arg, struct epf_nic **out)
{
	const char *provider = opts->provider && opts->provider[0] ? opts->provider : NULL;
	struct fi_info *list = ask(lib, provider);
	struct picked p = { .n = 0 };
	int rc = list ? choose(opts, list, provider, &p) : 0;

	if (!rc && !p.n)
		rc = none(lib, provider);
	if (!rc)
		rc = open_picked(lib, opts, &p, now, now_arg, out);
	if (list)
		lib->freeinfo(list);
	return rc;
}
