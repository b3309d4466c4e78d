/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verbs NIC: settings, memory regions, counters, and its table of operations. RDMA devices by libibverbs, which is opened at run time
 * (nic/rdma/lib.h); reliable connections over InfiniBand or RoCE. Slow path; the data path is complete_hot.c. A build
 * without <infiniband/verbs.h> has absent.c in its place.
 */
#include "fabric/nic/verbs/verbs.h"

#include "fabric/base/err.h"
#include "fabric/nic/verbs/region.h"

#include <errno.h>
#include <string.h>

void epf_verbs_opts_defaults(struct epf_verbs_opts *opts)
{
	*opts = (struct epf_verbs_opts){
		.local = -1,
		.port = -1,
		.gid_index = -1,
		.timeout = 14,
		.retries = 6,
		.rnr_retries = 6,
		.rnr_timer = 16,
		.inline_bytes = EPF_NIC_MSG_BYTES,
		.signal_interval = 32,
		.completions = 16384,
		.receives = 32767,
		.lane_receives = 512,
		.ordered = 1,
		.relaxed_ordering = 1,
	};
}

void epf_verbs_opts_from_conf(struct epf_verbs_opts *opts, const struct epf_conf *conf)
{
	epf_verbs_opts_defaults(opts);
	opts->devices = conf->nic_device;
	opts->count = (uint32_t)conf->nic_count;
	opts->local = conf->local_rank;
	opts->port = (int)conf->verbs_port;
	opts->gid_index = (int)conf->gid_index;
	opts->service_level = (uint32_t)conf->verbs_service_level;
	opts->traffic_class = (uint32_t)conf->verbs_traffic_class;
	if (conf->verbs_priority_class >= 0 && conf->job_weight > 1)
		opts->traffic_class = (uint32_t)conf->verbs_priority_class;
	opts->mtu = conf->verbs_mtu < 0 ? 0 : (uint32_t)conf->verbs_mtu;
	opts->timeout = (uint32_t)conf->verbs_timeout;
	opts->retries = (uint32_t)conf->verbs_retries;
	opts->rnr_retries = (uint32_t)conf->verbs_rnr_retries;
	opts->inline_bytes = (uint32_t)conf->verbs_inline;
	opts->signal_interval = (uint32_t)conf->verbs_signal_interval;
	opts->completions = (uint32_t)conf->verbs_completions;
	opts->receives = (uint32_t)conf->verbs_receives;
	opts->lane_receives = (uint32_t)conf->lane_receives;
	opts->ordered = conf->verbs_order == EPF_CONF_ORDER_ORDERED;
	opts->lists = conf->verbs_post == EPF_CONF_POST_LISTS;
	opts->relaxed_ordering = conf->verbs_relaxed_ordering;
}

static int verbs_open(const struct epf_conf *conf, uint64_t (*now)(void *), void *now_arg,
		      struct epf_nic **out)
{
	const struct epf_verbs_lib *lib;
	struct epf_verbs_opts opts;
	int rc = epf_nic_refuse_encryption(conf, "verbs");

	if (!rc)
		rc = epf_verbs_lib(&lib);
	if (rc)
		return rc;
	epf_verbs_opts_from_conf(&opts, conf);
	return epf_verbs_open_chosen(lib, &opts, now, now_arg, out);
}

static int verbs_register(struct epf_nic *nic, void *addr, uint64_t len, unsigned access,
			  struct epf_nic_mr *out)
{
	struct epf_verbs *v = epf_verbs_of(nic);
	uint64_t base = (uint64_t)(uintptr_t)addr;
	struct ibv_mr *mr;
	unsigned flags = 0;
	int rc;

	if (!addr || len == 0 || base + len < base)
		return epf_fail(EPF_R_NIC_REGION, "verbs: a region of %llu bytes at %p",
				(unsigned long long)len, addr);
	rc = epf_rdma_access_flags("verbs", access, &flags);
	if (rc)
		return rc;
	/* An arrival is reported after all that came before it on its lane is visible, relaxed ordering or not. */
	mr = epf_verbs_register_host(v, addr, len, flags);
	if (!mr)
		return epf_fail_sys(errno == ENOMEM ? EPF_R_VERBS_PIN : EPF_R_NIC_REGION, errno,
				    "verbs: %s: a region of %llu bytes at %p", v->device,
				    (unsigned long long)len, addr);
	return epf_rdma_region_keep("verbs", v->lib, &v->regions, mr, base, out);
}

static int verbs_register_device(struct epf_nic *nic, const struct epf_device_mem *mem,
				 unsigned access, struct epf_nic_mr *out)
{
	struct epf_verbs *v = epf_verbs_of(nic);
	struct ibv_mr *mr = NULL;
	unsigned flags = 0;
	int rc = epf_rdma_access_flags("verbs", access, &flags);

	if (rc)
		return rc;
	rc = epf_verbs_register_gpu(v, mem, flags, "/sys", &mr);
	return rc ? rc : epf_rdma_region_keep("verbs", v->lib, &v->regions, mr, mem->addr, out);
}

static void verbs_deregister(struct epf_nic *nic, struct epf_nic_mr *mr)
{
	if (!mr)
		return;
	if (mr->priv)
		epf_rdma_region_drop(epf_verbs_of(nic)->lib, mr->priv);
	memset(mr, 0, sizeof(*mr));
}

static void verbs_close(struct epf_nic *nic)
{
	struct epf_verbs *v = epf_verbs_of(nic);

	if (!nic)
		return;
	epf_verbs_waker_stop(&v->notify.waker);
	epf_verbs_reopen_close(v);
	for (uint32_t lane = 0; lane < v->lanes_end; lane++)
		epf_verbs_lane_destroy(nic, (uint16_t)lane);
	while (v->regions)
		epf_rdma_region_drop(v->lib, v->regions);
	epf_verbs_destroy(v);
}

static int verbs_is_removed(const struct epf_nic *nic)
{
	return epf_verbs_of(nic)->dead;
}

static struct epf_wakeup *verbs_wakeup(struct epf_nic *nic)
{
	return epf_verbs_of(nic)->wakeup;
}

static void verbs_counters(const struct epf_nic *nic, struct epf_nic_counters *out)
{
	*out = epf_verbs_of(nic)->counters;
}

/* Cables are pulled where they are. */
static int verbs_set_link(struct epf_nic *nic, unsigned link, int up)
{
	return epf_fail(EPF_R_SVC_UNSUPPORTED,
			"verbs: links of %s are not switched here: use ip link, or the switch",
			epf_verbs_of(nic)->device);
}

const struct epf_nic_ops epf_nic_verbs_ops = {
	.name = "verbs",
	.open = verbs_open,
	.close = verbs_close,
	.describe = epf_verbs_describe,
	.address = epf_verbs_address,
	.region_register = verbs_register,
	.region_register_device = verbs_register_device,
	.region_deregister = verbs_deregister,
	.is_removed = verbs_is_removed,
	.lane_create = epf_verbs_lane_create,
	.lane_connect = epf_verbs_lane_connect,
	.lane_fence = epf_verbs_lane_fence,
	.lane_drained = epf_verbs_lane_drained,
	.lane_destroy = epf_verbs_lane_destroy,
	.lane_reopen = epf_verbs_lane_reopen,
	.lane_reconnect = epf_verbs_lane_reconnect,
	.lane_link = epf_verbs_lane_link,
	.link_ready = epf_verbs_link_ready,
	.post = epf_verbs_post,
	.reap = epf_verbs_reap,
	.post_receives = epf_verbs_post_receives,
	.next_event = epf_verbs_next_event,
	.wakeup = verbs_wakeup,
	.arm = epf_verbs_arm,
	.wake_peers = epf_verbs_reopen_wake,
	.wake_pending = epf_verbs_reopen_pending,
	.counters = verbs_counters,
	.set_link = verbs_set_link,
	.watch = epf_verbs_watch,
};
