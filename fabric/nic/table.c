/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of NICs, and the functions that stand in where a NIC has no operation of a kind: no entry of
 * a table that epf_nic_find() returns is NULL. Slow path; called by the engine when it opens a NIC. It
 * must never know anything about one NIC in particular.
 */
#include "fabric/nic/nic.h"

#include "fabric/base/conf.h"
#include "fabric/base/err.h"
#include "fabric/nic/fill.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

static const struct epf_nic_ops *const sources[] = {
	&epf_nic_emu_ops, &epf_nic_null_ops, &epf_nic_verbs_ops,
	&epf_nic_efa_ops, &epf_nic_tcp_ops,  &epf_nic_ofi_ops,
};

enum { COUNT = sizeof(sources) / sizeof(sources[0]) };

static struct epf_nic_ops filled[COUNT];
static const char *names[COUNT + 1];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static int no_open(const struct epf_conf *conf, uint64_t (*now)(void *), void *now_arg,
		   struct epf_nic **out)
{
	return -EOPNOTSUPP;
}

static void no_nic(struct epf_nic *nic)
{
}

static void no_describe(const struct epf_nic *nic, struct epf_nic_caps *out)
{
	memset(out, 0, sizeof(*out));
	out->name = "";
}

static int no_address(const struct epf_nic *nic, void *buf, size_t size)
{
	return -EOPNOTSUPP;
}

static int no_job(struct epf_nic *nic, const struct epf_nic_job *job)
{
	return 0;
}

static int no_register(struct epf_nic *nic, void *addr, uint64_t len, unsigned access,
		       struct epf_nic_mr *out)
{
	return -EOPNOTSUPP;
}

static int no_register_gpu(struct epf_nic *nic, struct epf_copy_mem *mem, unsigned access,
			   struct epf_nic_mr *out)
{
	return epf_fail(EPF_R_GPU_MEMORY, "this NIC cannot register GPU memory");
}

static int no_add(struct epf_nic *nic, const struct epf_nic_mr *mr, uint64_t offset, uint64_t value)
{
	return -EOPNOTSUPP;
}

static int no_add_pending(struct epf_nic *nic)
{
	return 0;
}

static int no_register_device(struct epf_nic *nic, const struct epf_device_mem *mem,
			      unsigned access, struct epf_nic_mr *out)
{
	return epf_fail(EPF_R_GPU_REGION, "NIC: %s takes no GPU memory this way", nic->ops->name);
}

static void no_deregister(struct epf_nic *nic, struct epf_nic_mr *mr)
{
}

static int no_create(struct epf_nic *nic, uint16_t lane, uint32_t depth, uint64_t *token)
{
	return -EOPNOTSUPP;
}

static int no_connect(struct epf_nic *nic, uint16_t lane, const void *addr, size_t addr_len,
		      uint64_t token)
{
	return -EOPNOTSUPP;
}

static void no_lane(struct epf_nic *nic, uint16_t lane)
{
}

static int always_drained(const struct epf_nic *nic, uint16_t lane)
{
	return 1;
}

static enum epf_lane_link always_idle(const struct epf_nic *nic, uint16_t lane)
{
	return EPF_LANE_IDLE;
}

static int always_ready(struct epf_nic *nic, uint16_t lane)
{
	return 1;
}

static int no_post(struct epf_nic *nic, uint16_t lane, const struct epf_wr *wr, unsigned n)
{
	return -EOPNOTSUPP;
}

static int no_reap(struct epf_nic *nic, struct epf_wc *wc, unsigned n)
{
	return 0;
}

static void no_receives(struct epf_nic *nic, unsigned n)
{
}

static uint64_t no_event(const struct epf_nic *nic)
{
	return UINT64_MAX;
}

static struct epf_wakeup *no_wakeup(struct epf_nic *nic)
{
	return NULL;
}

static int no_arm(struct epf_nic *nic)
{
	return 0;
}

static int no_pending(const struct epf_nic *nic)
{
	return 0;
}

static void no_counters(const struct epf_nic *nic, struct epf_nic_counters *out)
{
	memset(out, 0, sizeof(*out));
}

static int never_removed(const struct epf_nic *nic)
{
	return 0;
}

static int no_revival(struct epf_nic *nic, uint32_t *links)
{
	*links = 0;
	return 0;
}

static void same_keys(const struct epf_nic *nic, struct epf_nic_mr *mr)
{
}

/* On the spot, for NICs whose slow path is quick enough, or that never fail. */
static int reopen_now(struct epf_nic *nic, uint16_t lane, uint32_t depth, uint64_t *token)
{
	if (!nic->ops->link_ready(nic, lane))
		return -ENETDOWN;
	nic->ops->lane_destroy(nic, lane);
	return nic->ops->lane_create(nic, lane, depth, token);
}

static int reconnect_now(struct epf_nic *nic, uint16_t lane, const void *addr, size_t addr_len,
			 uint64_t token)
{
	return nic->ops->lane_connect(nic, lane, addr, addr_len, token);
}

static int no_path(const struct epf_nic *nic, uint16_t lane, struct epf_nic_path *out)
{
	return 0;
}

static int no_link(struct epf_nic *nic, unsigned link, int up)
{
	return -EOPNOTSUPP;
}

static int is_device(void)
{
	return 0;
}

void epf_nic_ops_fill(struct epf_nic_ops *ops)
{
	static const struct epf_nic_ops none = {
		.name = "",
		.is_cpu = is_device,
		.open = no_open,
		.close = no_nic,
		.describe = no_describe,
		.set_job = no_job,
		.address = no_address,
		.region_register = no_register,
		.region_register_device = no_register_device,
		.region_deregister = no_deregister,
		.is_removed = never_removed,
		.revive = no_revival,
		.region_keys = same_keys,
		.lane_create = no_create,
		.lane_connect = no_connect,
		.lane_fence = no_lane,
		.lane_drained = always_drained,
		.lane_destroy = no_lane,
		.lane_reopen = reopen_now,
		.lane_reconnect = reconnect_now,
		.lane_link = always_idle,
		.lane_path = no_path,
		.link_ready = always_ready,
		.post = no_post,
		.reap = no_reap,
		.post_receives = no_receives,
		.next_event = no_event,
		.wakeup = no_wakeup,
		.arm = no_arm,
		.region_register_gpu = no_register_gpu,
		.add = no_add,
		.add_pending = no_add_pending,
		.wake_peers = no_nic,
		.wake_pending = no_pending,
		.counters = no_counters,
		.set_link = no_link,
		.watch = no_nic,
	};

#define FILL(field)         \
 do {                       \
  if (!ops->field)          \
   ops->field = none.field; \
 } while (0)
	FILL(name);
	FILL(is_cpu);
	FILL(open);
	FILL(close);
	FILL(describe);
	FILL(set_job);
	FILL(address);
	FILL(region_register);
	FILL(region_register_device);
	FILL(region_deregister);
	FILL(is_removed);
	FILL(revive);
	FILL(region_keys);
	FILL(lane_create);
	FILL(lane_connect);
	FILL(lane_fence);
	FILL(lane_drained);
	FILL(lane_destroy);
	FILL(lane_reopen);
	FILL(lane_reconnect);
	FILL(lane_link);
	FILL(lane_path);
	FILL(link_ready);
	FILL(post);
	FILL(reap);
	FILL(post_receives);
	FILL(next_event);
	FILL(wakeup);
	FILL(arm);
	FILL(region_register_gpu);
	FILL(add);
	FILL(add_pending);
	FILL(wake_peers);
	FILL(wake_pending);
	FILL(counters);
	FILL(set_link);
	FILL(watch);
#undef FILL
}

static void fill_all(void)
{
	for (int i = 0; i < COUNT; i++) {
		filled[i] = *sources[i];
		epf_nic_ops_fill(&filled[i]);
		names[i] = filled[i].name;
	}
}

const struct epf_nic_ops *epf_nic_find(const char *name)
{
	pthread_once(&once, fill_all);
	for (int i = 0; name && i < COUNT; i++)
		if (strcmp(name, names[i]) == 0)
			return &filled[i];
	return NULL;
}

const char *const *epf_nic_names(void)
{
	pthread_once(&once, fill_all);
	return names;
}

int epf_nic_refuse_encryption(const struct epf_conf *conf, const char *nic)
{
	if (!conf->wire_encryption)
		return 0;
	return epf_fail(EPF_R_NIC_OPTION,
			"%s: wire-encryption is yes, and this NIC cannot encrypt: set nic to tcp",
			nic);
}

int epf_nic_check_range(const char *nic, const char *name, uint64_t value, uint64_t min,
			uint64_t max)
{
	if (value >= min && value <= max)
		return 0;
	return epf_fail(EPF_R_NIC_OPTION, "%s: %s is %llu, not in %llu to %llu", nic, name,
			(unsigned long long)value, (unsigned long long)min,
			(unsigned long long)max);
}
