/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The EFA NIC: settings, what it says of itself, and its table of operations. Elastic Fabric Adapters by
 * libibverbs and libefa, which are opened at run time (lib.h); SRD queue pairs. Slow path; the data path is
 * post_hot.c and recv_hot.c. A build without <infiniband/verbs.h> has absent.c in its place.
 */
#include "fabric/nic/efa/efa.h"

#include "fabric/base/err.h"

void epf_efa_opts_defaults(struct epf_efa_opts *opts)
{
	*opts = (struct epf_efa_opts){
		.local = -1,
		.rnr_retries = 6,
		.inline_bytes = EPF_EFA_SMALL_INLINE,
		.completions = 16384,
		.receives = 32767,
		.lane_receives = 512,
		.flush_wait_ns = 200000000,
		.unsolicited = 1,
	};
}

void epf_efa_opts_from_conf(struct epf_efa_opts *opts, const struct epf_conf *conf)
{
	epf_efa_opts_defaults(opts);
	opts->devices = conf->nic_device;
	opts->count = (uint32_t)conf->nic_count;
	opts->local = conf->local_rank;
	opts->service_level = (uint32_t)conf->verbs_service_level;
	opts->rnr_retries = (uint32_t)conf->verbs_rnr_retries;
	opts->inline_bytes = (uint32_t)conf->efa_inline;
	opts->completions = (uint32_t)conf->verbs_completions;
	opts->receives = (uint32_t)conf->verbs_receives;
	opts->lane_receives = (uint32_t)conf->lane_receives;
	opts->flush_wait_ns = conf->efa_flush_wait_ns;
	opts->unsolicited = conf->efa_unsolicited;
}

static int efa_open(const struct epf_conf *conf, uint64_t (*now)(void *), void *now_arg,
		    struct epf_nic **out)
{
	const struct epf_efa_lib *lib;
	struct epf_efa_opts opts;
	int rc = epf_nic_refuse_encryption(conf, "efa");

	if (!rc)
		rc = epf_efa_lib(&lib);
	if (rc)
		return rc;
	epf_efa_opts_from_conf(&opts, conf);
	return epf_efa_open_chosen(lib, &opts, now, now_arg, out);
}

int epf_efa_address(const struct epf_nic *nic, void *buf, size_t size)
{
	const struct epf_efa *v = epf_efa_of(nic);
	struct epf_efa_peer self = { .gid = v->gid,
				     .sink_raddr = (uintptr_t)v->sink,
				     .sink_rkey = v->sink_mr->rkey,
				     .unsolicited = v->recv_dv != NULL };

	if (size < EPF_EFA_ADDR_BYTES)
		return epf_fail(EPF_R_NIC_ADDRESS, "efa: a buffer of %zu bytes is too small", size);
	epf_efa_addr_encode(&self, buf);
	return EPF_EFA_ADDR_BYTES;
}

static void efa_close(struct epf_nic *nic)
{
	struct epf_efa *v = epf_efa_of(nic);

	if (!nic)
		return;
	epf_verbs_waker_stop(&v->notify.waker);
	epf_efa_reopen_close(v);
	for (uint32_t lane = 0; lane < v->lanes_end; lane++)
		epf_efa_lane_destroy(nic, (uint16_t)lane);
	epf_efa_drop_regions(v);
	epf_efa_destroy(v);
}

static int efa_is_removed(const struct epf_nic *nic)
{
	return epf_efa_of(nic)->dead;
}

static struct epf_wakeup *efa_wakeup(struct epf_nic *nic)
{
	return epf_efa_of(nic)->wakeup;
}

static void efa_counters(const struct epf_nic *nic, struct epf_nic_counters *out)
{
	*out = epf_efa_of(nic)->counters;
}

/* An EFA has no cable that anybody could pull. */
static int efa_set_link(struct epf_nic *nic, unsigned link, int up)
{
	return epf_fail(EPF_R_SVC_UNSUPPORTED, "efa: links of %s are not switched here",
			epf_efa_of(nic)->device);
}

const struct epf_nic_ops epf_nic_efa_ops = {
	.name = "efa",
	.open = efa_open,
	.close = efa_close,
	.describe = epf_efa_describe,
	.address = epf_efa_address,
	.region_register = epf_efa_register,
	.region_register_device = epf_efa_register_device,
	.region_deregister = epf_efa_deregister,
	.is_removed = efa_is_removed,
	.lane_create = epf_efa_lane_create,
	.lane_connect = epf_efa_lane_connect,
	.lane_fence = epf_efa_lane_fence,
	.lane_drained = epf_efa_lane_drained,
	.lane_destroy = epf_efa_lane_destroy,
	.lane_reopen = epf_efa_lane_reopen,
	.lane_reconnect = epf_efa_lane_reconnect,
	.lane_link = epf_efa_lane_link,
	.link_ready = epf_efa_link_ready,
	.post = epf_efa_post,
	.reap = epf_efa_reap,
	.post_receives = epf_efa_post_receives,
	.next_event = epf_efa_next_event,
	.wakeup = efa_wakeup,
	.arm = epf_efa_arm,
	.wake_peers = epf_efa_reopen_wake,
	.wake_pending = epf_efa_reopen_pending,
	.counters = efa_counters,
	.set_link = efa_set_link,
	.watch = epf_efa_watch,
};
