/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which RDMA devices a job uses, and opening them as one NIC (nic/rails/ports.h). Called when a verbs NIC is opened; slow path. The choice is placement's
 * (place/pick.h); it must never open more than that names.
 */
#include "fabric/nic/verbs/verbs.h"

#include "fabric/base/err.h"
#include "fabric/nic/rails/ports.h"
#include "fabric/place/pick.h"
#include "fabric/place/select.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Ports of the devices that the selection may mean. */
struct ports {
	struct epf_place_candidate *list;
	uint32_t count;
	struct ibv_device **devices; /* holds the names */
};

static int add_port(struct ports *p, const char *device, uint32_t port, bool is_active)
{
	struct epf_place_candidate *more = realloc(p->list, (p->count + 1) * sizeof(*p->list));

	if (!more)
		return epf_fail(EPF_R_NO_MEMORY, "verbs: a list of ports");
	p->list = more;
	p->list[p->count++] = (struct epf_place_candidate){ device, port, is_active };
	return 0;
}

/*
 * Of a device named without a port the ports that are active, or its first one: many NICs have a second port that nobody uses.
 * Those before `from` are of other devices.
 */
static void leave_unused(struct ports *p, uint32_t from)
{
	uint32_t kept = from;

	for (uint32_t i = from; i < p->count; i++)
		if (p->list[i].is_active)
			p->list[kept++] = p->list[i];
	if (kept == from && p->count > from)
		kept++;
	p->count = kept;
}

/* Ports of one device; one that cannot be opened or asked has none, and its turn to say so is when it is named. */
static int list_device(const struct epf_verbs_lib *lib, struct ibv_device *device, struct ports *p)
{
	struct ibv_context *ctx = lib->open_device(device);
	struct ibv_device_attr attr;
	int rc = 0;

	if (!ctx)
		return 0;
	if (lib->query_device(ctx, &attr))
		attr.phys_port_cnt = 0;
	for (unsigned port = 1; port <= attr.phys_port_cnt && !rc; port++) {
		struct ibv_port_attr state = { 0 };

		if (epf_verbs_query_port(lib, ctx, (uint8_t)port, &state))
			state.state = IBV_PORT_NOP;
		rc = add_port(p, device->name, port, state.state == IBV_PORT_ACTIVE);
	}
	lib->close_device(ctx);
	return rc;
}

static bool may_fit(struct epf_place_select *select, const char *name)
{
	for (uint32_t port = 1; port < 256; port++)
		if (epf_place_select_fits(select, name, port))
			return true;
	return false;
}

static bool names_ports(const struct epf_place_select *select)
{
	for (uint32_t i = 0; i < select->items; i++)
		if (select->item[i].port)
			return true;
	return false;
}

/* port: verbs-port. */
static int list_ports(const struct epf_verbs_lib *lib, const struct epf_conf_list *names, int port,
		      struct ports *p)
{
	struct epf_place_select select;
	int count = 0, rc = epf_place_select_parse(names, &select);

	if (rc)
		return rc;
	/* Without a list there is nothing to choose from; epf_verbs_open() says why. */
	p->devices = lib->get_device_list(&count);
	for (int i = 0; p->devices && i < count && !rc; i++) {
		uint32_t from = p->count;

		if (may_fit(&select, p->devices[i]->name))
			rc = list_device(lib, p->devices[i], p);
		if (!names_ports(&select) && port <= 0)
			leave_unused(p, from);
	}
	epf_place_select_destroy(&select);
	return rc;
}

/* How a port is opened; epf_rails_ports.arg. */
struct opening {
	const struct epf_verbs_lib *lib;
	struct epf_verbs_opts opts; /* without the list of devices, which is the caller's */
	uint64_t (*now)(void *);
	void *now_arg;
};

static int open_one(const void *arg, const struct epf_place_candidate *port, bool may_be_down,
		    struct epf_nic **out)
{
	const struct opening *o = arg;
	char text[80];
	char *item = text;
	struct epf_verbs_opts one = o->opts;

	snprintf(text, sizeof(text), "=%s:%u", port->device, port->port);
	one.devices = (struct epf_conf_list){ .item = &item, .count = 1 };
	one.port = (int)port->port;
	one.may_be_down = may_be_down;
	return epf_verbs_open(o->lib, &one, o->now, o->now_arg, out);
}

/* Those `n` of the list as one NIC. */
static int open_these(const struct epf_verbs_lib *lib, const struct epf_verbs_opts *opts,
		      const struct ports *p, const uint32_t *order, uint32_t n,
		      uint64_t (*now)(void *), void *now_arg, struct epf_nic **out)
{
	struct opening *o = malloc(sizeof(*o));
	struct epf_rails_ports how = { open_one, epf_verbs_share_wakeup, o };
	uint32_t active = 0;
	int rc;

	if (!o)
		return epf_fail(EPF_R_NO_MEMORY, "verbs: %u ports", n);
	*o = (struct opening){ lib, *opts, now, now_arg };
	memset(&o->opts.devices, 0, sizeof(o->opts.devices));
	for (uint32_t i = 0; i < n; i++)
		active += p->list[order[i]].is_active;
	rc = n > 1 && !active ? epf_fail(EPF_R_VERBS_DEVICE,
					 "verbs: no port can be used: all %u are down", n)
			      : epf_rails_ports_open(&how, p->list, order, n, out);
	if (rc)
		free(o);
	return rc;
}

/* How many of the list: what nic-count says, else all that are named, or one. */
static int how_many(const struct epf_verbs_opts *opts, const struct epf_place_pick *pick,
		    uint32_t *n)
{
	uint32_t want = opts->count ? opts->count : opts->devices.count ? pick->own : 1;

	if (want > pick->count)
		return epf_fail(EPF_R_VERBS_DEVICE,
				"verbs: nic-count is %u, and only %u ports fit nic-device and "
				"verbs-port",
				want, pick->count);
	if (want > EPF_NIC_LINKS)
		return epf_fail(EPF_R_NIC_LIMIT,
				"verbs: nic-device leaves %u ports, and a job uses %d at most: set "
				"nic-count, or name fewer",
				want, EPF_NIC_LINKS);
	*n = want;
	return 0;
}

static int open_picked(const struct epf_verbs_lib *lib, const struct epf_verbs_opts *opts,
		       const struct ports *p, const struct epf_place_pick *pick,
		       uint64_t (*now)(void *), void *now_arg, struct epf_nic **out)
{
	uint32_t n = 0, first = 0;
	int rc = how_many(opts, pick, &n);

	if (rc)
		return rc;
	if (n > 1)
		return open_these(lib, opts, p, pick->order, n, now, now_arg, out);
	/* One: the first that can carry anything; if there is none, opening the first one says why. */
	for (uint32_t i = pick->count; i-- > 0;)
		if (p->list[pick->order[i]].is_active)
			first = i;
	return open_these(lib, opts, p, &pick->order[first], 1, now, now_arg, out);
}

int epf_verbs_open_chosen(const struct epf_verbs_lib *lib, const struct epf_verbs_opts *opts,
			  uint64_t (*now)(void *), void *now_arg, struct epf_nic **out)
{
	struct epf_place_pick_opts how = { .select = &opts->devices,
					   .port = opts->port > 0 ? (uint32_t)opts->port : 0,
					   .local = opts->local };
	struct epf_place_pick pick = { 0 };
	struct ports p = { 0 };
	int rc = list_ports(lib, &opts->devices, opts->port, &p);

	if (!rc)
		rc = epf_place_pick(&how, p.list, p.count, &pick);
	if (!rc && pick.count) {
		epf_place_pick_log(&pick);
		rc = open_picked(lib, opts, &p, &pick, now, now_arg, out);
	} else if (!rc) { /* it says what is missing */
		rc = epf_verbs_open(lib, opts, now, now_arg, out);
	}
	epf_place_pick_destroy(&pick);
	if (p.devices)
		lib->free_device_list(p.devices);
	free(p.list);
	return rc;
}
