/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verbs NIC: choosing and opening a device, the queues all lanes share, receive slots, closing. Slow path, called by the
 * engine when it opens and closes a NIC; the _cold functions are called by complete_hot.c when the job grows or a provider fails.
 */
#define EPF_LOG_COMP "verbs"
#include "fabric/nic/verbs/verbs.h"

#include "fabric/base/err.h"
#include "fabric/base/log.h"
#include "fabric/nic/verbs/gid.h"
#include "fabric/place/select.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>

/* The kernel is asked with a 16-bit length: 65,535 bytes of 32-byte entries. */
enum { MAX_GIDS = 2000 };

static int check_opts(const struct epf_verbs_opts *o)
{
	int rc;

	if ((rc = epf_nic_check_range("verbs", "verbs-service-level", o->service_level, 0, 15)) ||
	    (rc = epf_nic_check_range("verbs", "verbs-traffic-class", o->traffic_class, 0, 255)) ||
	    (rc = epf_nic_check_range("verbs", "verbs-timeout", o->timeout, 1, 31)) ||
	    (rc = epf_nic_check_range("verbs", "verbs-retries", o->retries, 0, 7)) ||
	    (rc = epf_nic_check_range("verbs", "verbs-rnr-retries", o->rnr_retries, 0, 7)) ||
	    (rc = epf_nic_check_range("verbs", "verbs-rnr-timer", o->rnr_timer, 0, 31)) ||
	    (rc = epf_nic_check_range("verbs", "verbs-inline", o->inline_bytes, 0, 4096)) ||
	    (rc = epf_nic_check_range("verbs", "verbs-signal-interval", o->signal_interval, 1,
				      4096)) ||
	    (rc = epf_nic_check_range("verbs", "verbs-completions", o->completions, 16, 1 << 22)) ||
	    (rc = epf_nic_check_range("verbs", "verbs-receives", o->receives, 16, 1 << 20)))
		return rc;
	if (o->mtu && (o->mtu < 256 || o->mtu > 4096 || (o->mtu & (o->mtu - 1))))
		return epf_fail(EPF_R_NIC_OPTION,
				"verbs: verbs-mtu is %u, not 256, 512, 1024, 2048, 4096 or auto",
				o->mtu);
	return 0;
}

/* What is looked for, and what was found that cannot be used, for the error. */
struct search {
	struct epf_place_select select;
	unsigned devices, fitting;
	char last[128];
};

static const char *state_text(enum ibv_port_state state)
{
	return state == IBV_PORT_ACTIVE  ? "active"
	       : state == IBV_PORT_DOWN  ? "down"
	       : state == IBV_PORT_INIT  ? "initializing (is there a subnet manager?)"
	       : state == IBV_PORT_ARMED ? "armed"
					 : "unknown";
}

/* Looks for a port of an open device that fits and is active. 1: v->port and v->port_attr are it. */
static int pick_port(struct epf_verbs *v, const char *name, struct search *found)
{
	struct ibv_port_attr attr;

	for (unsigned port = 1; port <= v->dev_attr.phys_port_cnt; port++) {
		if ((v->opts.port > 0 && v->opts.port != (int)port) ||
		    !epf_place_select_fits(&found->select, name, port))
			continue;
		found->fitting++;
		if (epf_verbs_query_port(v->lib, v->ctx, (uint8_t)port, &attr)) {
			snprintf(found->last, sizeof(found->last), "%.60s:%u cannot be asked", name,
				 port);
			continue;
		}
		if (attr.state != IBV_PORT_ACTIVE && !v->opts.may_be_down) {
			snprintf(found->last, sizeof(found->last), "%.60s:%u is %s", name, port,
				 state_text(attr.state));
			continue;
		}
		v->port = (uint8_t)port;
		v->port_attr = attr;
		snprintf(v->device, sizeof(v->device), "%s", name);
		return 1;
	}
	return 0;
}

static int may_fit(struct search *found, const char *name)
{
	for (unsigned port = 1; port < 256; port++)
		if (epf_place_select_fits(&found->select, name, port))
			return 1;
	return 0;
}

static int try_device(struct epf_verbs *v, struct ibv_device *device, struct search *found)
{
	const char *name = device->name;

	found->devices++;
	if (!may_fit(found, name))
		return 0;
	v->ctx = v->lib->open_device(device);
	if (!v->ctx) {
		found->fitting++;
		snprintf(found->last, sizeof(found->last), "%.60s cannot be opened: %s", name,
			 strerror(errno));
		return 0;
	}
	if (v->lib->query_device(v->ctx, &v->dev_attr)) {
		found->fitting++;
		snprintf(found->last, sizeof(found->last), "%.60s cannot be asked", name);
	} else if (pick_port(v, name, found)) {
		return 1;
	}
	v->lib->close_device(v->ctx);
	v->ctx = NULL;
	return 0;
}

static int search_devices(struct epf_verbs *v, struct search *found)
{
	struct ibv_device **list;
	int count = 0, hit = 0;

	list = v->lib->get_device_list(&count);
	if (!list && errno == ENOSYS)
		return epf_fail(
			EPF_R_VERBS_DEVICE,
			"verbs: this kernel has no RDMA (the modules ib_core and ib_uverbs)");
	if (!list)
		return epf_fail_sys(EPF_R_VERBS_DEVICE, errno, "verbs: ibv_get_device_list");
	for (int i = 0; i < count && !hit; i++)
		hit = try_device(v, list[i], found);
	v->lib->free_device_list(list);
	if (hit)
		return 0;
	if (!found->devices)
		return epf_fail(EPF_R_VERBS_DEVICE, "verbs: this machine has no RDMA device");
	if (!found->fitting)
		return epf_fail(EPF_R_VERBS_DEVICE,
				"verbs: none of %u devices fits nic-device and verbs-port",
				found->devices);
	return epf_fail(EPF_R_VERBS_DEVICE, "verbs: no port can be used: %s", found->last);
}

static int open_device(struct epf_verbs *v)
{
	struct search found = { 0 };
	int rc = epf_place_select_parse(&v->opts.devices, &found.select);

	if (rc)
		return rc;
	rc = search_devices(v, &found);
	epf_place_select_destroy(&found.select);
	return rc;
}

static int pick_gid(struct epf_verbs *v)
{
	struct ibv_gid_entry *table = calloc(MAX_GIDS, sizeof(*table));
	ssize_t n;
	int at;

	if (!table)
		return epf_fail(EPF_R_NO_MEMORY, "verbs: a table of GIDs");
	n = v->lib->query_gid_table(v->ctx, table, MAX_GIDS, 0, sizeof(*table));
	at = n < 0 ? (int)n : epf_verbs_pick_gid(table, (size_t)n, v->port, v->opts.gid_index);
	if (at >= 0) {
		v->gid = table[at].gid;
		v->gid_index = table[at].gid_index;
		v->gid_type = table[at].gid_type;
	}
	free(table);
	if (n < 0)
		return epf_fail_sys(EPF_R_VERBS_GID, (int)-n, "verbs: %s:%u: cannot read the GIDs",
				    v->device, v->port);
	if (at < 0 && v->opts.gid_index >= 0)
		return epf_fail(EPF_R_VERBS_GID, "verbs: %s:%u has no GID with index %d", v->device,
				v->port, v->opts.gid_index);
	if (at < 0)
		return epf_fail(EPF_R_VERBS_GID, "verbs: %s:%u has no GID", v->device, v->port);
	return 0;
}

static uint32_t least(uint64_t a, uint64_t b)
{
	return (uint32_t)(a < b ? a : b);
}

static bool has_srq(const struct ibv_device_attr *d)
{
	return d->max_srq > 0 && d->max_srq_wr > 0;
}

/* What the device allows of what the settings ask for. */
static void set_limits(struct epf_verbs *v)
{
	const struct ibv_device_attr *d = &v->dev_attr;
	struct epf_verbs_opts *o = &v->opts;
	uint32_t mtu = 1;

	while (mtu < 5 && (128u << mtu) < o->mtu)
		mtu++;
	v->mtu = o->mtu ? least(mtu, v->port_attr.active_mtu) : v->port_attr.active_mtu;
	v->ordered = o->ordered != 0;
	v->signal_interval = v->ordered ? o->signal_interval : 1;
	v->completions = least(o->completions, (uint64_t)d->max_cqe);
	o->receives = least(o->receives, (uint64_t)d->max_cqe);
	if (has_srq(d))
		o->receives = least(o->receives, (uint64_t)d->max_srq_wr);
	v->max_lanes = least(EPF_VERBS_MAX_LANES, (uint64_t)d->max_qp);
	v->max_msg_bytes = EPF_VERBS_MSG_BYTES;
	if (v->port_attr.max_msg_sz && v->port_attr.max_msg_sz < v->max_msg_bytes)
		v->max_msg_bytes = v->port_attr.max_msg_sz;
	v->counters.link_up = v->port_attr.state == IBV_PORT_ACTIVE;
}

static void *alloc_sparse(size_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (at == MAP_FAILED)
		return NULL;
	return at;
}

/* The shared receive queue; a device that has none, or says so only now, gets a receive queue for each lane. */
static int create_srq(struct epf_verbs *v)
{
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = v->opts.receives, .max_sge = 1 } };

	errno = EOPNOTSUPP;
	if (has_srq(&v->dev_attr))
		v->srq = v->lib->create_srq(v->pd, &attr);
	if (v->srq)
		return 0;
	if (errno != EOPNOTSUPP && errno != ENOSYS)
		return epf_verbs_call_failed(v, "ibv_create_srq", "verbs-receives");
	v->owed_lanes = alloc_sparse(v->max_lanes * sizeof(*v->owed_lanes));
	if (!v->owed_lanes)
		return epf_fail(EPF_R_NO_MEMORY, "verbs: lanes");
	epf_info("%s has no shared receive queue: each lane has its own, of %u", v->device,
		 epf_verbs_lane_receives(v));
	return 0;
}

static int create_queues(struct epf_verbs *v)
{
	int rc = epf_rdma_set_nonblocking("verbs", v->ctx->async_fd);

	if (rc)
		return rc;
	v->pd = v->lib->alloc_pd(v->ctx);
	if (!v->pd)
		return epf_verbs_call_failed(v, "ibv_alloc_pd", "a protection domain");
	v->channel = v->lib->create_comp_channel(v->ctx);
	if (!v->channel)
		return epf_verbs_call_failed(v, "ibv_create_comp_channel", "a completion channel");
	rc = epf_rdma_set_nonblocking("verbs", v->channel->fd);
	if (rc)
		return rc;
	v->send_cq = v->lib->create_cq(v->ctx, (int)v->completions, NULL, v->channel, 0);
	if (!v->send_cq)
		return epf_verbs_call_failed(v, "ibv_create_cq", "verbs-completions");
	v->recv_cq = v->lib->create_cq(v->ctx, (int)v->opts.receives, NULL, v->channel, 0);
	if (!v->recv_cq)
		return epf_verbs_call_failed(v, "ibv_create_cq", "verbs-receives");
	return create_srq(v);
}

static void prepare_chain(struct epf_verbs *v)
{
	for (int i = 0; i < EPF_VERBS_CHAIN; i++) {
		v->wrs[i].sg_list = &v->sges[i];
		v->wrs[i].num_sge = 1;
		v->wrs[i].next = i + 1 < EPF_VERBS_CHAIN ? &v->wrs[i + 1] : NULL;
	}
	v->report_head = v->report_tail = EPF_VERBS_NONE;
}

void epf_verbs_destroy(struct epf_verbs *v)
{
	epf_verbs_reopen_close(v);
	epf_hw_counters_close(&v->hw_counters);
	if (v->srq)
		v->lib->destroy_srq(v->srq);
	if (v->recv_cq)
		v->lib->destroy_cq(v->recv_cq);
	if (v->send_cq)
		v->lib->destroy_cq(v->send_cq);
	if (v->channel)
		v->lib->destroy_comp_channel(v->channel);
	epf_rdma_slots_free(&v->receives);
	if (v->pd)
		v->lib->dealloc_pd(v->pd);
	if (v->ctx)
		v->lib->close_device(v->ctx);
	if (v->lanes)
		munmap(v->lanes, v->max_lanes * sizeof(*v->lanes));
	if (v->owed_lanes)
		munmap(v->owed_lanes, v->max_lanes * sizeof(*v->owed_lanes));
	pthread_mutex_destroy(&v->setup);
	if (!v->shares_wakeup)
		free(v->wakeup);
	free(v->qps);
	free(v);
}

int epf_verbs_open(const struct epf_verbs_lib *lib, const struct epf_verbs_opts *opts,
		   uint64_t (*now)(void *), void *now_arg, struct epf_nic **out)
{
	struct epf_verbs *v;
	int rc = check_opts(opts);

	if (rc)
		return rc;
	v = aligned_alloc(64, (sizeof(*v) + 63) / 64 * 64);
	if (!v)
		return epf_fail(EPF_R_NO_MEMORY, "verbs: a NIC");
	memset(v, 0, sizeof(*v));
	v->nic.ops = epf_nic_find("verbs");
	v->lib = lib;
	v->opts = *opts;
	v->now = now;
	v->now_arg = now_arg;
	v->notify.waker.stop_fd = -1;
	prepare_chain(v);
	pthread_mutex_init(&v->setup, NULL);
	v->wakeup = aligned_alloc(128, sizeof(*v->wakeup));
	if (!v->wakeup || getrandom(&v->random, sizeof(v->random), 0) != sizeof(v->random)) {
		epf_verbs_destroy(v);
		return epf_fail(EPF_R_NO_MEMORY, "verbs: a NIC");
	}
	memset(v->wakeup, 0, sizeof(*v->wakeup));
	rc = epf_verbs_reopen_init(v);
	if (!rc)
		rc = open_device(v);
	if (!rc)
		rc = pick_gid(v);
	if (!rc) {
		set_limits(v);
		v->lanes = alloc_sparse(v->max_lanes * sizeof(*v->lanes));
		rc = v->lanes ? create_queues(v) : epf_fail(EPF_R_NO_MEMORY, "verbs: lanes");
	}
	if (!rc) {
		v->receives.lib = v->lib;
		v->receives.pd = v->pd;
		v->receives.kind = "verbs";
		v->receives.device = v->device;
		rc = epf_rdma_more_slots_cold(&v->receives, EPF_RDMA_MIN_SLOTS);
	}
	if (rc) {
		epf_verbs_destroy(v);
		return rc;
	}
	v->bad_lkey = v->receives.chunks[0].mr->lkey;
	epf_verbs_counters_open(v);
	memset(&v->opts.devices, 0, sizeof(v->opts.devices)); /* the caller's */
	*out = &v->nic;
	return 0;
}

void epf_verbs_share_wakeup(struct epf_nic *nic, const struct epf_nic *with)
{
	struct epf_verbs *v = epf_verbs_of(nic);

	if (!v->shares_wakeup)
		free(v->wakeup);
	v->wakeup = epf_verbs_of(with)->wakeup;
	v->shares_wakeup = 1;
}

int epf_verbs_address(const struct epf_nic *nic, void *buf, size_t size)
{
	const struct epf_verbs *v = epf_verbs_of(nic);
	struct epf_verbs_peer self = { .link_layer = v->port_attr.link_layer,
				       .mtu = (uint8_t)v->mtu,
				       .port = v->port,
				       .gid_type = (uint8_t)v->gid_type,
				       .lid = v->port_attr.lid,
				       .gid = v->gid };

	if (size < EPF_VERBS_ADDR_BYTES)
		return epf_fail(EPF_R_NIC_ADDRESS, "verbs: a buffer of %zu bytes is too small",
				size);
	if (self.link_layer == IBV_LINK_LAYER_UNSPECIFIED)
		self.link_layer = IBV_LINK_LAYER_INFINIBAND;
	epf_verbs_addr_encode(&self, buf);
	return EPF_VERBS_ADDR_BYTES;
}
