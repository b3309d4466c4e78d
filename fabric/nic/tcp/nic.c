/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The TCP NIC: settings, regions, counters, and its table of operations. Slow path; README.md says what is where.
 */
#include "fabric/nic/tcp/tcp.h"

#include "fabric/base/err.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { FIRST_REGIONS = 64, MOST_REGIONS = 65536 };

void epf_tcp_opts_defaults(struct epf_tcp_opts *opts)
{
	*opts = (struct epf_tcp_opts){ .links = 1,
				       .timeout_ns = 2000000000u,
				       .rnr_timeout_ns = 2000000000u,
				       .stranger_timeout_ns = 5000000000u,
				       .strangers = 512 };
}

void epf_tcp_opts_from_conf(struct epf_tcp_opts *opts, const struct epf_conf *conf)
{
	epf_tcp_opts_defaults(opts);
	opts->ifname = conf->socket_ifname;
	opts->timeout_ns = conf->tcp_timeout_ns;
	opts->reset_after = conf->tcp_reset_after;
}

/* The environment holds the job's secret, which is the bootstrap's to read. */
static const char *no_env(const char *name, void *arg)
{
	return NULL;
}

static void tcp_close(struct epf_nic *nic)
{
	struct epf_tcp *t = epf_tcp_of(nic);

	if (!nic)
		return;
	for (uint32_t lane = 0; lane < t->lanes_end; lane++)
		epf_tcp_lane_destroy(nic, (uint16_t)lane);
	epf_tcp_door_close(t->door);
	if (t->inner_fd >= 0)
		close(t->inner_fd);
	epf_auth_wipe(&t->auth);
	free(t->lanes);
	free(t->regions);
	free(t);
}

int epf_tcp_open(const struct epf_tcp_opts *opts, uint64_t (*now)(void *), void *now_arg,
		 struct epf_nic **out)
{
	struct epf_tcp *t = aligned_alloc(64, (sizeof(*t) + 63) / 64 * 64);
	uint8_t random[EPF_AUTH_NONCE_BYTES];
	int rc;

	if (!t)
		return epf_fail(EPF_R_NO_MEMORY, "tcp: a NIC");
	memset(t, 0, sizeof(*t));
	t->nic.ops = epf_nic_find("tcp");
	t->opts = *opts;
	t->now = now;
	t->now_arg = now_arg;
	t->wakeup = &t->own_wakeup;
	t->ready_head = EPF_TCP_NO_LANE;
	t->lanes = calloc(EPF_TCP_MAX_LANES, sizeof(struct epf_tcp_lane *));
	t->inner_fd = epoll_create1(EPOLL_CLOEXEC);
	/* Until the job gives its key (set_job): the one that anybody can make. */
	rc = epf_auth_load(NULL, 0, NULL, no_env, NULL, &t->auth);
	if (!rc && !t->lanes)
		rc = epf_fail(EPF_R_NO_MEMORY, "tcp: a NIC");
	if (!rc && t->inner_fd < 0)
		rc = epf_fail_sys(EPF_R_SYSTEM, errno, "tcp: epoll_create1");
	if (rc) {
		tcp_close(&t->nic);
		return rc;
	}
	epf_auth_nonce(random);
	memcpy(t->id, random, EPF_TCP_ID);
	memcpy(&t->epoch, random + EPF_TCP_ID, sizeof(t->epoch));
	memcpy(&t->region_generation, random + EPF_TCP_ID + 4, sizeof(t->region_generation));
	*out = &t->nic;
	return 0;
}

static int open_conf(const struct epf_conf *conf, uint64_t (*now)(void *), void *now_arg,
		     struct epf_nic **out)
{
	struct epf_tcp_opts opts;

	epf_tcp_opts_from_conf(&opts, conf);
	return epf_tcp_open(&opts, now, now_arg, out);
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
	if (i < t->nregions && mr->rkey && t->regions[i].key == mr->rkey)
		memset(&t->regions[i], 0, sizeof(t->regions[i]));
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

const struct epf_nic_ops epf_nic_tcp_ops = {
	.name = "tcp",
	.open = open_conf,
	.close = tcp_close,
	.describe = tcp_describe,
	.set_job = epf_tcp_set_job,
	.address = epf_tcp_address,
	.region_register = tcp_register,
	.region_deregister = tcp_deregister,
	.lane_create = epf_tcp_lane_create,
	.lane_connect = epf_tcp_lane_connect,
	.lane_fence = epf_tcp_lane_fence,
	.lane_drained = epf_tcp_lane_drained,
	.lane_destroy = epf_tcp_lane_destroy,
	.lane_reconnect = epf_tcp_lane_reconnect,
	.lane_link = epf_tcp_lane_link,
	.link_ready = tcp_link_ready,
	.post = epf_tcp_post,
	.reap = epf_tcp_reap,
	.post_receives = epf_tcp_post_receives,
	.next_event = epf_tcp_next_event,
	.wakeup = tcp_wakeup,
	.arm = tcp_arm,
	.counters = tcp_counters,
	.set_link = tcp_set_link,
	.watch = epf_tcp_watch,
};
