/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The null NIC: takes every work request and completes it at the next reap, moves nothing and raises no
 * event. For measuring the engine's loop alone. Slow path and table of operations; the data path is
 * data_hot.c. It must never look at the memory that a work request names.
 */
#include "fabric/nic/null/null.h"

#include "fabric/base/err.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int null_open(const struct epf_conf *conf, uint64_t (*now)(void *), void *now_arg,
		     struct epf_nic **out)
{
	struct epf_null *n = aligned_alloc(64, (sizeof(*n) + 63) / 64 * 64);

	if (!n)
		return epf_fail(EPF_R_NO_MEMORY, "null: a NIC");
	memset(n, 0, sizeof(*n));
	n->nic.ops = epf_nic_find("null");
	*out = &n->nic;
	return 0;
}

static void null_close(struct epf_nic *nic)
{
	free(nic);
}

static void null_describe(const struct epf_nic *nic, struct epf_nic_caps *out)
{
	*out = (struct epf_nic_caps){
		.name = "null",
		.ordered = 1,
		.max_msg_bytes = 1u << 30,
		.max_lanes = EPF_NULL_LANES,
		.links = 1,
		.lane_depth = EPF_NULL_DEPTH,
		.receives = 1u << 30,
	};
}

static int null_address(const struct epf_nic *nic, void *buf, size_t size)
{
	if (size < 4)
		return epf_fail(EPF_R_NIC_ADDRESS, "null: a buffer of %zu bytes is too small",
				size);
	memcpy(buf, "null", 4);
	return 4;
}

static int null_register(struct epf_nic *nic, void *addr, uint64_t len, unsigned access,
			 struct epf_nic_mr *out)
{
	struct epf_null *n = (struct epf_null *)nic;

	if (!addr || len == 0 || (uint64_t)(uintptr_t)addr + len < len)
		return epf_fail(EPF_R_NIC_REGION, "null: a region of %llu bytes at %p",
				(unsigned long long)len, addr);
	if (access & ~(unsigned)(EPF_MR_REMOTE_WRITE | EPF_MR_REMOTE_READ))
		return epf_fail(EPF_R_NIC_REGION, "null: unknown access bits in %#x", access);
	n->keys++;
	*out = (struct epf_nic_mr){
		.raddr = (uint64_t)(uintptr_t)addr,
		.lkey = n->keys,
		.rkey = n->keys,
	};
	return 0;
}

static void null_deregister(struct epf_nic *nic, struct epf_nic_mr *mr)
{
	if (mr)
		memset(mr, 0, sizeof(*mr));
}

static struct epf_null_lane *used_lane(const struct epf_nic *nic, uint16_t lane)
{
	struct epf_null *n = (struct epf_null *)(uintptr_t)nic;

	return lane < EPF_NULL_LANES && n->lanes[lane].used ? &n->lanes[lane] : NULL;
}

static int null_create(struct epf_nic *nic, uint16_t lane, uint32_t depth, uint64_t *token)
{
	struct epf_null *n = (struct epf_null *)nic;

	if (lane >= EPF_NULL_LANES)
		return epf_fail(EPF_R_NIC_LIMIT, "null: lane %u, but this NIC has lanes 0 to %d",
				lane, EPF_NULL_LANES - 1);
	if (depth == 0 || depth > EPF_NULL_DEPTH)
		return epf_fail(EPF_R_NIC_LIMIT, "null: lane depth %u is not in 1 to %d", depth,
				EPF_NULL_DEPTH);
	if (n->lanes[lane].used)
		return epf_fail(EPF_R_NIC_LANE, "null: lane %u exists already", lane);
	n->lanes[lane] = (struct epf_null_lane){ .used = 1, .depth = depth };
	*token = (uint64_t)++n->epoch << 32 | lane;
	return 0;
}

static int null_connect(struct epf_nic *nic, uint16_t lane, const void *addr, size_t addr_len,
			uint64_t token)
{
	struct epf_null_lane *l = used_lane(nic, lane);

	if (!l || l->link != EPF_LANE_IDLE)
		return epf_fail(EPF_R_NIC_LANE, "null: lane %u is not idle", lane);
	if (addr_len != 4 || memcmp(addr, "null", 4) != 0 || token >> 32 == 0)
		return epf_fail(EPF_R_NIC_ADDRESS, "null: not the address of a null NIC");
	l->link = EPF_LANE_READY;
	return 0;
}

static void null_fence(struct epf_nic *nic, uint16_t lane)
{
	struct epf_null_lane *l = used_lane(nic, lane);

	if (l)
		l->link = EPF_LANE_ERROR;
}

static int null_drained(const struct epf_nic *nic, uint16_t lane)
{
	struct epf_null_lane *l = used_lane(nic, lane);

	return !l || (l->link != EPF_LANE_READY && l->outstanding == 0);
}

static void null_destroy(struct epf_nic *nic, uint16_t lane)
{
	struct epf_null *n = (struct epf_null *)nic;

	/* The reap may still have it on its list: it finds the lane unused there. */
	if (used_lane(nic, lane)) {
		n->lanes[lane].used = 0;
		n->lanes[lane].outstanding = 0;
	}
}

static enum epf_lane_link null_link(const struct epf_nic *nic, uint16_t lane)
{
	struct epf_null_lane *l = used_lane(nic, lane);

	return l ? (enum epf_lane_link)l->link : EPF_LANE_IDLE;
}

static void null_counters(const struct epf_nic *nic, struct epf_nic_counters *out)
{
	*out = ((const struct epf_null *)nic)->counters;
	out->link_up = 1;
}

static int is_cpu(void)
{
	return 1;
}

const struct epf_nic_ops epf_nic_null_ops = {
	.name = "null",
	.is_cpu = is_cpu,
	.open = null_open,
	.close = null_close,
	.describe = null_describe,
	.address = null_address,
	.region_register = null_register,
	.region_deregister = null_deregister,
	.lane_create = null_create,
	.lane_connect = null_connect,
	.lane_fence = null_fence,
	.lane_drained = null_drained,
	.lane_destroy = null_destroy,
	.lane_link = null_link,
	.post = epf_null_post,
	.reap = epf_null_reap,
	.next_event = epf_null_next_event,
	.counters = null_counters,
};
