/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The TCP NIC: regions, counters, and its table of operations. Slow path; README.md says what is where.
 */
#include "fabric/nic/tcp/tcp.h"

#include "fabric/base/err.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_REGIONS = 64, MOST_REGIONS = 65536 };

static int open_conf(const struct epf_conf *conf, uint64_t (*now)(void *), void *now_arg,
		     struct epf_nic **out)
{
	struct epf_tcp_opts opts;

	epf_tcp_opts_from_conf(&opts, conf);
	return epf_tcp_open_chosen(&opts, now, now_arg, out);
}

static void tcp_describe(const struct epf_nic *nic, struct epf_nic_caps *out)
{
	*out = (struct epf_nic_caps){
		.name = "tcp",
		.ordered = 1,
		.max_msg_bytes = EPF_TCP_MSG_MAX,
		.max_lanes = EPF_TCP_MAX_LANES,
		.links = 1,
		.lane_depth = EPF_TCP_MAX_DEPTH,
		.receives = EPF_TCP_RECEIVES,
		.carries_events = 1,
	};
}

/* A free place in the table of regions; grows it when there is none. */
static int free_region(struct epf_tcp *t, uint32_t *out)
{
	struct epf_tcp_region *more;
	uint32_t i, count;

	for (i = 0; i < t->nregions && t->regions[i].key; i++)
		;
	if (i == t->nregions) {
		count = i ? 2 * i : FIRST_REGIONS;
		if (count > MOST_REGIONS)
			return epf_fail(EPF_R_NIC_LIMIT, "tcp: a NIC has %d regions", MOST_REGIONS);
		more = realloc(t->regions, count * sizeof(*more));
		if (!more)
			return epf_fail(EPF_R_NO_MEMORY, "tcp: a table of %u regions", count);
		memset(more + i, 0, (count - i) * sizeof(*more));
		t->regions = more;
		t->nregions = count;
	}
	*out = i;
	return 0;
}

static int tcp_register(struct epf_nic *nic, void *addr, uint64_t len, unsigned access,
			struct epf_nic_mr *out)
{
	struct epf_tcp *t = epf_tcp_of(nic);
	uint64_t base = (uint64_t)(uintptr_t)addr;
	uint32_t i = 0;
	int rc;

	if (!base || len == 0 || base + len < base)
		return epf_fail(EPF_R_NIC_REGION, "tcp: a region of %llu bytes at %p",
				(unsigned long long)len, addr);
	if (access & ~(unsigned)(EPF_MR_REMOTE_WRITE | EPF_MR_REMOTE_READ))
		return epf_fail(EPF_R_NIC_REGION, "tcp: unknown access bits in %#x", access);
	rc = free_region(t, &i);
	if (rc)
		return rc;
	if (++t->region_generation == 0)
		t->region_generation = 1;
	t->regions[i] = (struct epf_tcp_region){ .base = base,
						 .len = len,
						 .key = (uint32_t)t->region_generation << 16 | i,
						 .access = access };
	*out = (struct epf_nic_mr){ .raddr = base,
				    .lkey = t->regions[i].key,
				    .rkey = t->regions[i].key };
	return 0;
}

static void tcp_deregister(struct epf_nic *nic, struct epf_nic_mr *mr)
{
	struct epf_tcp *t = epf_tcp_of(nic);
	uint32_t i;

	if (!mr)
		return;
	i = mr->rkey & 0xffff;
	if (i < t->nregions && mr->rkey && t->regions[i].key == mr->rkey) {
		struct epf_copy_mem *mem = t->regions[i].mem;

		memset(&t->regions[i], 0, sizeof(t->regions[i]));
		if (mem)
			epf_tcp_gpu_forget(t, mem);
	}
	memset(mr, 0, sizeof(*mr));
}

static struct epf_wakeup *tcp_wakeup(struct epf_nic *nic)
{
	return epf_tcp_of(nic)->wakeup;
}

static int tcp_arm(struct epf_nic *nic)
{
	const struct epf_tcp *t = epf_tcp_of(nic);

	return t->door ? epf_tcp_door_arm(t->door) : 0;
}

static void tcp_counters(const struct epf_nic *nic, struct epf_nic_counters *out)
{
	const struct epf_tcp *t = epf_tcp_of(nic);

	struct epf_tcp_door_counts c = { 0 };

	if (t->door)
		epf_tcp_door_counts(t->door, &c);
	*out = t->counters;
	out->strangers = c.refused + c.silent + c.evicted;
	out->link_up = !t->is_down;
}

/* As a pulled cable: nothing is sent and nothing is read; the kernel goes on. */
static int tcp_set_link(struct epf_nic *nic, unsigned link, int up)
{
	struct epf_tcp *t = epf_tcp_of(nic);

	if (link)
		return epf_fail(EPF_R_NIC_OPTION, "tcp: link %u, but the NIC has one", link);
	if (!up && !t->is_down)
		t->cut_ns = t->now(t->now_arg);
	t->is_down = !up;
	for (uint32_t i = 0; up && i < t->lanes_end; i++)
		if (t->lanes[i])
			epf_tcp_make_ready(t, t->lanes[i]);
	return 0;
}

static int tcp_link_ready(struct epf_nic *nic, uint16_t lane)
{
	return !epf_tcp_of(nic)->is_down;
}

static int is_cpu(void)
{
	return 1;
}

const struct epf_nic_ops epf_nic_tcp_ops = {
	.name = "tcp",
	.is_cpu = is_cpu,
	.open = open_conf,
	.close = epf_tcp_close,
	.describe = tcp_describe,
	.set_job = epf_tcp_set_job,
	.address = epf_tcp_address,
	.region_register = tcp_register,
	.region_register_gpu = epf_tcp_register_gpu,
	.region_deregister = tcp_deregister,
	.lane_create = epf_tcp_lane_create,
	.lane_connect = epf_tcp_lane_connect,
	.lane_fence = epf_tcp_lane_fence,
	.lane_drained = epf_tcp_lane_drained,
	.lane_destroy = epf_tcp_lane_destroy,
	.lane_reconnect = epf_tcp_lane_reconnect,
	.lane_link = epf_tcp_lane_link,
	.lane_path = epf_tcp_lane_path,
	.link_ready = tcp_link_ready,
	.post = epf_tcp_post,
	.reap = epf_tcp_reap,
	.post_receives = epf_tcp_post_receives,
	.next_event = epf_tcp_next_event,
	.wakeup = tcp_wakeup,
	.arm = tcp_arm,
	.add = epf_tcp_add,
	.add_pending = epf_tcp_add_pending,
	.counters = tcp_counters,
	.set_link = tcp_set_link,
	.watch = epf_tcp_watch,
};
