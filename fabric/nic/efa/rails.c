/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which adapters a job uses, and opening them as one NIC (nic/rails/ports.h). Called when an EFA NIC is opened; slow path. The choice is placement's
 * (place/pick.h); it must never open more than that names.
 */
#include "fabric/nic/efa/efa.h"

#include "fabric/base/err.h"
#include "fabric/nic/rails/ports.h"
#include "fabric/place/pick.h"
#include "fabric/place/select.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PORT = 1 };

/* The adapters among the RDMA devices that the selection means. */
struct adapters {
	struct epf_place_candidate *list;
	uint32_t count;
	struct ibv_device **devices; /* holds the names */
};

/* 1: it is an EFA, and *candidate says of it what placement asks. One that cannot be opened has its turn to say so when it is named. */
static int look_at(const struct epf_efa_lib *lib, struct ibv_device *device,
		   struct epf_place_candidate *candidate)
{
	struct ibv_context *ctx = lib->verbs->open_device(device);
	struct epf_efadv_device_attr attr;
	struct ibv_port_attr port = { 0 };
	int is_efa;

	if (!ctx)
		return 0;
	is_efa = !lib->efa_query_device(ctx, &attr, sizeof(attr));
	if (is_efa && epf_verbs_query_port(lib->verbs, ctx, PORT, &port))
		port.state = IBV_PORT_NOP;
	lib->verbs->close_device(ctx);
	*candidate =
		(struct epf_place_candidate){ device->name, PORT, port.state == IBV_PORT_ACTIVE };
	return is_efa;
}

static int list_adapters(const struct epf_efa_lib *lib, const struct epf_conf_list *names,
			 struct adapters *a)
{
	struct epf_place_select select;
	int count = 0, rc = epf_place_select_parse(names, &select);

	if (rc)
		return rc;
	/* Without a list there is nothing to choose from; epf_efa_open() says why. */
	a->devices = lib->verbs->get_device_list(&count);
	a->list = calloc((size_t)count + 1, sizeof(*a->list));
	if (!a->list)
		rc = epf_fail(EPF_R_NO_MEMORY, "efa: a list of adapters");
	for (int i = 0; a->devices && i < count && !rc; i++)
		if (epf_place_select_fits(&select, a->devices[i]->name, PORT))
			a->count += (uint32_t)look_at(lib, a->devices[i], &a->list[a->count]);
	epf_place_select_destroy(&select);
	return rc;
}

/* How an adapter is opened; epf_rails_ports.arg. */
struct opening {
	const struct epf_efa_lib *lib;
	struct epf_efa_opts opts; /* without the list of devices, which is the caller's */
	uint64_t (*now)(void *);
	void *now_arg;
};

static int open_one(const void *arg, const struct epf_place_candidate *adapter, bool may_be_down,
		    struct epf_nic **out)
{
	const struct opening *o = arg;
	char text[80];
	char *item = text;
	struct epf_efa_opts one = o->opts;

	snprintf(text, sizeof(text), "=%s", adapter->device);
	one.devices = (struct epf_conf_list){ .item = &item, .count = 1 };
	one.may_be_down = may_be_down;
	return epf_efa_open(o->lib, &one, o->now, o->now_arg, out);
}

/* Those `n` of the list as one NIC. */
static int open_these(const struct epf_efa_lib *lib, const struct epf_efa_opts *opts,
		      const struct adapters *a, const uint32_t *order, uint32_t n,
		      uint64_t (*now)(void *), void *now_arg, struct epf_nic **out)
{
	struct opening *o = malloc(sizeof(*o));
	struct epf_rails_ports how = { open_one, epf_efa_share_wakeup, o };
	uint32_t active = 0;
	int rc;

	if (!o)
		return epf_fail(EPF_R_NO_MEMORY, "efa: %u adapters", n);
	*o = (struct opening){ lib, *opts, now, now_arg };
	memset(&o->opts.devices, 0, sizeof(o->opts.devices));
	for (uint32_t i = 0; i < n; i++)
		active += a->list[order[i]].is_active;
	rc = n > 1 && !active
		     ? epf_fail(EPF_R_EFA_UNFIT, "efa: no adapter can be used: all %u are down", n)
		     : epf_rails_ports_open(&how, a->list, order, n, out);
	if (rc)
		free(o);
	return rc;
}

static int open_picked(const struct epf_efa_lib *lib, const struct epf_efa_opts *opts,
		       const struct adapters *a, const struct epf_place_pick *pick,
		       uint64_t (*now)(void *), void *now_arg, struct epf_nic **out)
{
	uint32_t n = opts->count ? opts->count : opts->devices.count ? pick->own : 1, first = 0;

	if (n > pick->count)
		return epf_fail(EPF_R_EFA_DEVICE,
				"efa: nic-count is %u, and only %u adapters fit nic-device", n,
				pick->count);
	if (n > EPF_NIC_LINKS)
		return epf_fail(
			EPF_R_NIC_LIMIT,
			"efa: nic-device leaves %u adapters, and a job uses %d at most: set "
			"nic-count, or name fewer",
			n, EPF_NIC_LINKS);
	if (n > 1)
		return open_these(lib, opts, a, pick->order, n, now, now_arg, out);
	/* One: the first that can carry anything; if there is none, opening the first one says why. */
	for (uint32_t i = pick->count; i-- > 0;)
		if (a->list[pick->order[i]].is_active)
			first = i;
	return open_these(lib, opts, a, &pick->order[first], 1, now, now_arg, out);
}

int epf_efa_open_chosen(const struct epf_efa_lib *lib, const struct epf_efa_opts *opts,
			uint64_t (*now)(void *), void *now_arg, struct epf_nic **out)
{
	struct epf_place_pick_opts how = { .select = &opts->devices, .local = opts->local };
	struct epf_place_pick pick = { 0 };
	struct adapters a = { 0 };
	int rc = list_adapters(lib, &opts->devices, &a);

	if (!rc)
		rc = epf_place_pick(&how, a.list, a.count, &pick);
	if (!rc && pick.count) {
		epf_place_pick_log(&pick);
		rc = open_picked(lib, opts, &a, &pick, now, now_arg, out);
	} else if (!rc) { /* it says what is missing */
		rc = epf_efa_open(lib, opts, now, now_arg, out);
	}
	epf_place_pick_destroy(&pick);
	if (a.devices)
		lib->verbs->free_device_list(a.devices);
	free(a.list);
	return rc;
}
