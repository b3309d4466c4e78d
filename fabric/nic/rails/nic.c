/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several NICs as one (nic/nic.h: epf_nic_rails_open): lanes are dealt to the children by their number, regions are registered
 * with each, and the address is the list of theirs. Called by NICs whose settings name several devices. Slow path; the data path
 * is data_hot.c, the list of addresses address.c. It must never know what kind of NIC its children are.
 */
#include "fabric/nic/rails/rails.h"

#include "fabric/base/err.h"
#include "fabric/nic/fill.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int rails_set_job(struct epf_nic *nic, const struct epf_nic_job *job)
{
	struct epf_rails *r = epf_rails_of(nic);
	int rc = 0;

	for (uint32_t i = 0; i < r->n && !rc; i++)
		rc = r->ops->set_job(r->child[i], job);
	return rc;
}

static void free_region(struct epf_rails *r, struct epf_rails_region *region)
{
	for (uint32_t i = r->n; i-- > 0;)
		r->ops->region_deregister(r->child[i], &region->child[i]);
	*region->link = region->next;
	if (region->next)
		region->next->link = region->link;
	free(region);
}

/* Memory to register, of one of three kinds. */
struct memory {
	void *addr; /* host memory */
	uint64_t len;
	const struct epf_device_mem *device;
	struct epf_copy_mem *copied;
};

static int register_one(const struct epf_rails *r, uint32_t i, const struct memory *m,
			unsigned access, struct epf_nic_mr *out)
{
	if (m->device)
		return r->ops->region_register_device(r->child[i], m->device, access, out);
	if (m->copied)
		return r->ops->region_register_gpu(r->child[i], m->copied, access, out);
	return r->ops->region_register(r->child[i], m->addr, m->len, access, out);
}

/* Registers memory with each child, since each device has its own keys. */
static int register_each(struct epf_rails *r, const struct memory *m, unsigned access,
			 struct epf_nic_mr *out)
{
	struct epf_rails_region *region = calloc(1, sizeof(*region));
	struct epf_nic_mr mr = { .priv = region };
	int rc = 0;

	if (!region)
		return epf_fail(EPF_R_NO_MEMORY, "NIC: a region");
	for (uint32_t i = 0; i < r->n && !rc; i++) {
		rc = register_one(r, i, m, access, &region->child[i]);
		if (!rc && region->child[i].raddr != region->child[0].raddr)
			rc = epf_fail(EPF_R_NIC_REGION,
				      "NIC: devices disagree on a region's address");
		mr.keys[i] = region->child[i].keys[0];
	}
	region->addr = m->addr;
	region->len = m->len;
	region->access = access;
	region->next = r->regions;
	region->link = &r->regions;
	if (region->next)
		region->next->link = &region->next;
	r->regions = region;
	if (rc) { /* those not registered are empty, which a NIC accepts */
		free_region(r, region);
		return rc;
	}
	mr.raddr = region->child[0].raddr;
	*out = mr;
	return 0;
}

static int rails_register(struct epf_nic *nic, void *addr, uint64_t len, unsigned access,
			  struct epf_nic_mr *out)
{
	struct memory m = { .addr = addr, .len = len };

	return register_each(epf_rails_of(nic), &m, access, out);
}

static int rails_register_device(struct epf_nic *nic, const struct epf_device_mem *mem,
				 unsigned access, struct epf_nic_mr *out)
{
	struct memory m = { .device = mem };

	return register_each(epf_rails_of(nic), &m, access, out);
}

static int rails_register_gpu(struct epf_nic *nic, struct epf_copy_mem *mem, unsigned access,
			      struct epf_nic_mr *out)
{
	struct memory m = { .copied = mem };

	return register_each(epf_rails_of(nic), &m, access, out);
}

/* One child makes all additions, so they stay in order. */
static int rails_add(struct epf_nic *nic, const struct epf_nic_mr *mr, uint64_t offset,
		     uint64_t value)
{
	struct epf_rails *r = epf_rails_of(nic);
	const struct epf_rails_region *region = mr->priv;

	return r->ops->add(r->child[0], &region->child[0], offset, value);
}

static int rails_add_pending(struct epf_nic *nic)
{
	struct epf_rails *r = epf_rails_of(nic);

	return r->ops->add_pending(r->child[0]);
}

static void rails_deregister(struct epf_nic *nic, struct epf_nic_mr *mr)
{
	if (!mr)
		return;
	if (mr->priv)
		free_region(epf_rails_of(nic), mr->priv);
	memset(mr, 0, sizeof(*mr));
}

static void rails_region_keys(const struct epf_nic *nic, struct epf_nic_mr *mr)
{
	const struct epf_rails_region *region = mr->priv;

	for (uint32_t i = 0; region && i < epf_rails_of(nic)->n; i++)
		mr->keys[i] = region->child[i].keys[0];
}

/* All regions on a child that takes the place of one; what was registered goes with it where that fails. */
static int register_fresh(struct epf_rails *r, struct epf_nic *fresh)
{
	for (struct epf_rails_region *g = r->regions; g; g = g->next) {
		int rc = g->addr ? r->ops->region_register(fresh, g->addr, g->len, g->access,
							   &g->fresh)
				 : epf_fail(EPF_R_GPU_REGION,
					    "NIC: GPU memory cannot be registered again");

		if (!rc && g->fresh.raddr != g->child[0].raddr)
			rc = epf_fail(EPF_R_NIC_REGION,
				      "NIC: devices disagree on a region's address");
		if (rc)
			return rc;
	}
	return 0;
}

/* A NIC that returns must be able to do what was promised when the job began. */
static int is_alike(const struct epf_rails *r, const struct epf_nic *fresh)
{
	struct epf_nic_caps c;

	r->ops->describe(fresh, &c);
	return fresh->ops == r->child[0]->ops && c.links == 1 && !c.ordered == !r->caps.ordered &&
	       c.max_msg_bytes >= r->caps.max_msg_bytes && c.max_lanes >= r->caps.max_lanes &&
	       c.lane_depth >= r->caps.lane_depth && c.receives >= r->caps.receives / r->n;
}

static int revive_child(struct epf_rails *r, uint32_t i)
{
	struct epf_nic *fresh = NULL, *old = r->child[i];
	int rc;

	if (r->again.open(r->again.arg, i, &fresh))
		return 0;
	rc = is_alike(r, fresh)
		     ? register_fresh(r, fresh)
		     : epf_fail(EPF_R_NIC_OPTION, "%s: device %u came back unlike what it was",
				r->own.name, i);
	if (rc) {
		r->ops->close(fresh);
		return rc;
	}
	for (struct epf_rails_region *g = r->regions; g; g = g->next)
		g->child[i] = g->fresh;
	r->child[i] = fresh;
	r->owed[i] = 0;
	r->ops->post_receives(fresh, r->receives[i]);
	if (old != r->wakeup_owner)
		r->ops->close(old);
	return 1;
}

static int rails_revive(struct epf_nic *nic, uint32_t *links)
{
	struct epf_rails *r = epf_rails_of(nic);
	uint32_t fresh = 0;
	int rc = 0;

	for (uint32_t i = 0; r->again.open && i < r->n && rc >= 0; i++) {
		if (!(*links >> i & 1) || !r->ops->is_removed(r->child[i]))
			continue;
		rc = revive_child(r, i);
		fresh |= (uint32_t)(rc > 0) << i;
	}
	*links = fresh;
	return rc < 0 && !fresh ? rc : 0;
}

void epf_nic_rails_revivable(struct epf_nic *nic, const struct epf_rails_again *again)
{
	epf_rails_of(nic)->again = *again;
}

static void rails_describe(const struct epf_nic *nic, struct epf_nic_caps *out)
{
	*out = epf_rails_of(nic)->caps;
}

static struct epf_nic *child_of(const struct epf_nic *nic, uint16_t lane)
{
	const struct epf_rails *r = epf_rails_of(nic);

	return r->child[lane % r->n];
}

static int rails_lane_create(struct epf_nic *nic, uint16_t lane, uint32_t depth, uint64_t *token)
{
	return epf_rails_of(nic)->ops->lane_create(child_of(nic, lane), lane, depth, token);
}

static int rails_lane_connect(struct epf_nic *nic, uint16_t lane, const void *addr, size_t addr_len,
			      uint64_t token)
{
	const void *part = NULL;
	size_t len = 0;
	int rc = epf_nic_address_part(addr, addr_len, lane, &part, &len);

	if (rc < 0)
		return rc;
	return epf_rails_of(nic)->ops->lane_connect(child_of(nic, lane), lane, part, len, token);
}

static void rails_lane_fence(struct epf_nic *nic, uint16_t lane)
{
	epf_rails_of(nic)->ops->lane_fence(child_of(nic, lane), lane);
}

static int rails_lane_drained(const struct epf_nic *nic, uint16_t lane)
{
	return epf_rails_of(nic)->ops->lane_drained(child_of(nic, lane), lane);
}

static void rails_lane_destroy(struct epf_nic *nic, uint16_t lane)
{
	epf_rails_of(nic)->ops->lane_destroy(child_of(nic, lane), lane);
}

static int rails_lane_reopen(struct epf_nic *nic, uint16_t lane, uint32_t depth, uint64_t *token)
{
	return epf_rails_of(nic)->ops->lane_reopen(child_of(nic, lane), lane, depth, token);
}

static int rails_lane_reconnect(struct epf_nic *nic, uint16_t lane, const void *addr,
				size_t addr_len, uint64_t token)
{
	const void *part = NULL;
	size_t len = 0;
	int rc = epf_nic_address_part(addr, addr_len, lane, &part, &len);

	if (rc < 0)
		return rc;
	return epf_rails_of(nic)->ops->lane_reconnect(child_of(nic, lane), lane, part, len, token);
}

static enum epf_lane_link rails_lane_link(const struct epf_nic *nic, uint16_t lane)
{
	return epf_rails_of(nic)->ops->lane_link(child_of(nic, lane), lane);
}

static int rails_lane_path(const struct epf_nic *nic, uint16_t lane, struct epf_nic_path *out)
{
	return epf_rails_of(nic)->ops->lane_path(child_of(nic, lane), lane, out);
}

static int rails_link_ready(struct epf_nic *nic, uint16_t lane)
{
	return epf_rails_of(nic)->ops->link_ready(child_of(nic, lane), lane);
}

static struct epf_wakeup *rails_wakeup(struct epf_nic *nic)
{
	struct epf_rails *r = epf_rails_of(nic);

	return r->ops->wakeup(r->wakeup_owner);
}

static int rails_arm(struct epf_nic *nic)
{
	struct epf_rails *r = epf_rails_of(nic);
	int rc = 0;

	for (uint32_t i = 0; i < r->n; i++) {
		int failed = r->ops->arm(r->child[i]);

		rc = rc ? rc : failed;
	}
	return rc;
}

static void rails_wake_peers(struct epf_nic *nic)
{
	struct epf_rails *r = epf_rails_of(nic);

	for (uint32_t i = 0; i < r->n; i++)
		r->ops->wake_peers(r->child[i]);
}

static void rails_watch(struct epf_nic *nic)
{
	struct epf_rails *r = epf_rails_of(nic);

	for (uint32_t i = 0; i < r->n; i++)
		r->ops->watch(r->child[i]);
}

static void rails_counters(const struct epf_nic *nic, struct epf_nic_counters *out)
{
	const struct epf_rails *r = epf_rails_of(nic);
	struct epf_nic_counters sum = { 0 }, c;

	for (uint32_t i = 0; i < r->n; i++) {
		r->ops->counters(r->child[i], &c);
		sum.bytes_tx += c.bytes_tx;
		sum.bytes_rx += c.bytes_rx;
		sum.messages_tx += c.messages_tx;
		sum.messages_rx += c.messages_rx;
		sum.packets_dropped += c.packets_dropped;
		sum.packets_duplicated += c.packets_duplicated;
		sum.packets_reordered += c.packets_reordered;
		sum.retransmits += c.retransmits;
		sum.rnr_events += c.rnr_events;
		sum.errors += c.errors;
		sum.doorbells += c.doorbells;
		sum.strangers += c.strangers;
		sum.link_up += c.link_up;
	}
	*out = sum;
}

static int rails_set_link(struct epf_nic *nic, unsigned link, int up)
{
	struct epf_rails *r = epf_rails_of(nic);

	if (link >= r->n)
		return epf_fail(EPF_R_NIC_OPTION, "%s: link %u, but the NIC has %u", r->own.name,
				link, r->n);
	return r->ops->set_link(r->child[link], 0, up);
}

static void rails_close(struct epf_nic *nic)
{
	struct epf_rails *r = epf_rails_of(nic);

	if (!nic)
		return;
	while (r->regions)
		free_region(r, r->regions);
	/* The first one last: the others may share what it has. */
	for (uint32_t i = r->n; i-- > 0;)
		if (r->child[i] != r->wakeup_owner)
			r->ops->close(r->child[i]);
	r->ops->close(r->wakeup_owner);
	if (r->again.free)
		r->again.free(r->again.arg);
	free(r);
}

static const struct epf_nic_ops rails_ops = {
	.close = rails_close,
	.describe = rails_describe,
	.set_job = rails_set_job,
	.address = epf_rails_address,
	.region_register = rails_register,
	.region_register_device = rails_register_device,
	.region_register_gpu = rails_register_gpu,
	.add = rails_add,
	.add_pending = rails_add_pending,
	.region_deregister = rails_deregister,
	.revive = rails_revive,
	.region_keys = rails_region_keys,
	.lane_create = rails_lane_create,
	.lane_connect = rails_lane_connect,
	.lane_fence = rails_lane_fence,
	.lane_drained = rails_lane_drained,
	.lane_destroy = rails_lane_destroy,
	.lane_reopen = rails_lane_reopen,
	.lane_reconnect = rails_lane_reconnect,
	.lane_link = rails_lane_link,
	.lane_path = rails_lane_path,
	.link_ready = rails_link_ready,
	.post = epf_rails_post,
	.reap = epf_rails_reap,
	.post_receives = epf_rails_post_receives,
	.next_event = epf_rails_next_event,
	.wakeup = rails_wakeup,
	.arm = rails_arm,
	.wake_peers = rails_wake_peers,
	.wake_pending = epf_rails_wake_pending,
	.counters = rails_counters,
	.set_link = rails_set_link,
	.watch = rails_watch,
};

static uint32_t least(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

/* The least of what the children have; receives are posted evenly, so the one with the fewest counts for all. */
static int join_caps(struct epf_rails *r)
{
	struct epf_nic_caps *sum = &r->caps, c;

	r->ops->describe(r->child[0], sum);
	for (uint32_t i = 0; i < r->n; i++) {
		r->ops->describe(r->child[i], &c);
		if (r->child[i]->ops != r->ops || c.links != 1 || !c.ordered != !sum->ordered ||
		    !c.carries_events != !sum->carries_events)
			return epf_fail(EPF_R_NIC_OPTION,
					"%s: devices that are too unlike for one job", c.name);
		sum->max_msg_bytes = least(sum->max_msg_bytes, c.max_msg_bytes);
		sum->max_lanes = least(sum->max_lanes, c.max_lanes);
		sum->lane_depth = least(sum->lane_depth, c.lane_depth);
		sum->receives = least(sum->receives, c.receives);
		if (i)
			sum->memory_bytes += c.memory_bytes;
	}
	sum->receives = sum->receives > UINT32_MAX / r->n ? UINT32_MAX : sum->receives * r->n;
	sum->links = sum->keys = r->n;
	return 0;
}

int epf_nic_rails_open(struct epf_nic *const *children, unsigned n, struct epf_nic **out)
{
	struct epf_rails *r;
	int rc;

	if (n < 1 || n > EPF_NIC_LINKS)
		return epf_fail(EPF_R_NIC_LIMIT, "NIC: %u devices as one, not 1 to %d", n,
				EPF_NIC_LINKS);
	r = calloc(1, sizeof(*r));
	if (!r)
		return epf_fail(EPF_R_NO_MEMORY, "NIC: %u devices as one", n);
	r->n = n;
	memcpy(r->child, children, n * sizeof(r->child[0]));
	r->wakeup_owner = children[0];
	r->ops = children[0]->ops;
	r->own = rails_ops;
	if (n == 1)
		r->own.post = epf_rails_post_one;
	r->own.name = r->ops->name;
	epf_nic_ops_fill(&r->own);
	r->nic.ops = &r->own;
	rc = join_caps(r);
	if (rc) {
		free(r);
		return rc;
	}
	*out = &r->nic;
	return 0;
}
