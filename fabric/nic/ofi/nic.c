/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ofi NIC: its settings, capabilities, and table of operations. Slow path; README.md says what is where.
 */
#define EPF_LOG_COMP "nic"
#include "fabric/nic/ofi/ofi.h"

#include "fabric/base/err.h"
#include "fabric/base/log.h"

#include <string.h>

void epf_ofi_opts_defaults(struct epf_ofi_opts *opts)
{
	*opts = (struct epf_ofi_opts){ .completions = 16384,
				       .timeout_ns = 10000000000u,
				       .remote_data = 1 };
}

void epf_ofi_opts_from_conf(struct epf_ofi_opts *opts, const struct epf_conf *conf)
{
	epf_ofi_opts_defaults(opts);
	opts->provider = conf->ofi_provider;
	opts->devices = conf->nic_device;
	opts->count = (uint32_t)conf->nic_count;
	opts->completions = (uint32_t)conf->verbs_completions;
	opts->timeout_ns = conf->ofi_timeout_ns;
	opts->remote_data = conf->ofi_remote_data;
	opts->fail_after = conf->ofi_fail_after;
}

/* Over these anybody who reaches the port is a peer. */
static int is_open_to_all(const char *provider)
{
	static const char *const names[] = { "tcp", "net", "sockets", "udp" };
	size_t n = strcspn(provider, ";");

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (strlen(names[i]) == n && strncmp(provider, names[i], n) == 0)
			return 1;
	return 0;
}

static int open_conf(const struct epf_conf *conf, uint64_t (*now)(void *), void *now_arg,
		     struct epf_nic **out)
{
	const struct epf_ofi_lib *lib;
	struct epf_ofi_opts opts;
	int rc = epf_nic_refuse_encryption(conf, "ofi");

	if (!rc)
		rc = epf_ofi_lib(&lib);
	if (rc)
		return rc;
	epf_ofi_opts_from_conf(&opts, conf);
	rc = epf_ofi_open(lib, &opts, now, now_arg, out);
	if (!rc && is_open_to_all(opts.provider))
		epf_note(
			"ofi: provider %s does not authenticate peers: use it in a network without strangers only",
			opts.provider);
	return rc;
}

static void ofi_describe(const struct epf_nic *nic, struct epf_nic_caps *out)
{
	const struct epf_ofi *v = epf_ofi_of(nic);
	size_t most = v->info->ep_attr->max_msg_size;

	*out = (struct epf_nic_caps){
		.name = "ofi",
		.max_msg_bytes = most < EPF_OFI_MSG_BYTES ? (uint32_t)most : EPF_OFI_MSG_BYTES,
		.max_lanes = EPF_OFI_MAX_LANES,
		.links = 1,
		.lane_depth = EPF_OFI_MAX_DEPTH,
		.receives = EPF_OFI_RECEIVES,
		.carries_events = 1,
	};
}

static int ofi_address(const struct epf_nic *nic, void *buf, size_t size)
{
	return epf_ofi_place_encode(&epf_ofi_of(nic)->place, buf, size);
}

static void ofi_counters(const struct epf_nic *nic, struct epf_nic_counters *out)
{
	const struct epf_ofi *v = epf_ofi_of(nic);

	*out = v->counters;
	out->link_up = !v->is_down && !v->is_lost;
}

/* Nothing is given to the provider any more; what it has goes on, since no provider can be told to wait. */
static int ofi_set_link(struct epf_nic *nic, unsigned link, int up)
{
	struct epf_ofi *v = epf_ofi_of(nic);

	if (link)
		return epf_fail(EPF_R_NIC_OPTION, "ofi: link %u, but the NIC has one", link);
	if (!up && !v->is_down)
		v->cut_ns = v->now(v->now_arg);
	v->is_down = !up;
	return 0;
}

static int ofi_link_ready(struct epf_nic *nic, uint16_t lane)
{
	const struct epf_ofi *v = epf_ofi_of(nic);

	return !v->is_down && !v->is_lost;
}

const struct epf_nic_ops epf_nic_ofi_ops = {
	.name = "ofi",
	.open = open_conf,
	.close = epf_ofi_close,
	.describe = ofi_describe,
	.address = ofi_address,
	.region_register = epf_ofi_register,
	.region_deregister = epf_ofi_deregister,
	.lane_create = epf_ofi_lane_create,
	.lane_connect = epf_ofi_lane_connect,
	.lane_fence = epf_ofi_lane_fence,
	.lane_drained = epf_ofi_lane_drained,
	.lane_destroy = epf_ofi_lane_destroy,
	.lane_link = epf_ofi_lane_link,
	.link_ready = ofi_link_ready,
	.post = epf_ofi_post,
	.reap = epf_ofi_reap,
	.post_receives = epf_ofi_post_receives,
	.next_event = epf_ofi_next_event,
	.wakeup = epf_ofi_wakeup,
	.arm = epf_ofi_arm,
	.counters = ofi_counters,
	.set_link = ofi_set_link,
	.watch = epf_ofi_watch,
};
