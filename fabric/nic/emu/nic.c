/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The emulated NIC: opening, closing, regions, counters, and its table of operations. It moves bytes
 * between processes of one machine over shared wire segments (wire.h) and between NICs of one process,
 * with the rules of a real one: keys and ranges are checked at the target, a send completes after the
 * remote write, immediates need a posted receive. Slow path; the data path is complete_hot.c and rx_hot.c.
 */
#include "fabric/nic/emu/copies.h"
#include "fabric/nic/emu/fault.h"
#include "fabric/nic/emu/peers.h"

#include "fabric/base/conf.h"
#include "fabric/base/err.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { MESSAGE_BYTES = 1 << 20, MAX_LANE_DEPTH = 32768 };

void epf_emu_opts_defaults(struct epf_emu_opts *opts)
{
	*opts = (struct epf_emu_opts){
		.ordered = 1,
		.mtu = 4096,
		.packets = 1024,
		.lanes = EPF_EMU_MAX_LANES,
		.links = 1,
		.lane_depth = MAX_LANE_DEPTH,
		.receives = 1 << 20,
		.seed = 1,
		.retransmit_ns = 200000,
		.retry_timeout_ns = 5000000000ull,
		.stall_timeout_ns = 30000000000ull,
		.rnr_timeout_ns = 2000000000ull,
		.gpu = "auto",
	};
}

void epf_emu_opts_from_conf(struct epf_emu_opts *opts, const struct epf_conf *conf)
{
	epf_emu_opts_defaults(opts);
	opts->ordered = conf->emu_order == EPF_CONF_ORDER_ORDERED;
	opts->mtu = (uint32_t)conf->emu_mtu_bytes;
	opts->packets = (uint32_t)conf->emu_packets;
	opts->links = (uint32_t)conf->emu_links;
	opts->seed = conf->emu_seed;
	opts->delay_ns = conf->emu_delay_ns;
	opts->retransmit_ns = conf->emu_retransmit_ns;
	opts->retry_timeout_ns = conf->emu_retry_timeout_ns;
	opts->stall_timeout_ns = conf->emu_stall_timeout_ns;
	opts->link_timeout_ns = conf->emu_link_timeout_ns;
	opts->rnr_timeout_ns = conf->emu_rnr_timeout_ns;
	opts->reorder = conf->emu_reorder;
	opts->duplicate = conf->emu_duplicate;
	opts->drop = conf->emu_drop;
	opts->error = conf->emu_error;
	opts->gpu = epf_copy_name(conf);
	opts->gpu_kernel = conf->emu_gpu_copy == EPF_CONF_GPU_COPY_KERNEL;
}

static int check_chance(const char *name, double value)
{
	if (value >= 0 && value <= 1)
		return 0;
	return epf_fail(EPF_R_NIC_OPTION, "emu: %s is %g, not a probability", name, value);
}

static int check_opts(const struct epf_emu_opts *o)
{
	const uint64_t hour = 3600000000000ull;
	int rc;

	if ((rc = epf_nic_check_range("emu", "emu-mtu", o->mtu, EPF_EMU_MIN_MTU,
				      EPF_EMU_MAX_MTU)) ||
	    (rc = epf_nic_check_range("emu", "emu-packets", o->packets, 16, EPF_EMU_MAX_PACKETS)) ||
	    (rc = epf_nic_check_range("emu", "lanes", o->lanes, 1, EPF_EMU_MAX_LANES)) ||
	    (rc = epf_nic_check_range("emu", "emu-links", o->links, 1, EPF_EMU_MAX_LINKS)) ||
	    (rc = epf_nic_check_range("emu", "lane-depth", o->lane_depth, 1, MAX_LANE_DEPTH)) ||
	    (rc = epf_nic_check_range("emu", "receives", o->receives, 1, UINT32_MAX)) ||
	    (rc = epf_nic_check_range("emu", "emu-delay", o->delay_ns, 0, hour)) ||
	    (rc = epf_nic_check_range("emu", "emu-retransmit", o->retransmit_ns, 0, hour)) ||
	    (rc = epf_nic_check_range("emu", "emu-retry-timeout", o->retry_timeout_ns, 1, hour)) ||
	    (rc = epf_nic_check_range("emu", "emu-stall-timeout", o->stall_timeout_ns, 0, hour)) ||
	    (rc = epf_nic_check_range("emu", "emu-link-timeout", o->link_timeout_ns, 0, hour)) ||
	    (rc = epf_nic_check_range("emu", "emu-rnr-timeout", o->rnr_timeout_ns, 1, hour)) ||
	    (rc = check_chance("emu-reorder", o->reorder)) ||
	    (rc = check_chance("emu-duplicate", o->duplicate)) ||
	    (rc = check_chance("emu-drop", o->drop)) || (rc = check_chance("emu-error", o->error)))
		return rc;
	if (o->mtu % 64)
		return epf_fail(EPF_R_NIC_OPTION, "emu: emu-mtu is %u, not a multiple of 64",
				o->mtu);
	return 0;
}

/* A probability as a threshold for a 64-bit random number; 0 stays 'never'. */
static uint64_t threshold(double p)
{
	return p >= 1 ? UINT64_MAX : (uint64_t)(p * 18446744073709551616.0);
}

static void set_faults(struct epf_emu *e)
{
	const struct epf_emu_opts *o = &e->opts;

	e->p_reorder = threshold(o->reorder);
	e->p_duplicate = threshold(o->duplicate);
	e->p_drop = threshold(o->drop);
	e->p_error = threshold(o->error);
	e->faulty = o->delay_ns || e->p_drop || e->p_error ||
		    (!o->ordered && (e->p_reorder || e->p_duplicate));
	e->saved_free = UINT32_MAX;
}

/* The pool starts as a list in which the packets of low index come first. */
static void fill_pool(struct epf_emu *e)
{
	for (uint32_t i = 0; i < e->opts.packets; i++)
		e->slots[i].link = i + 1 < e->opts.packets ? i + 2 : 0;
	e->free_head = 1;
	e->free_count = e->opts.packets;
}

/* A message may take an eighth of the pool, so that several lanes make progress. */
static uint32_t message_limit(const struct epf_emu_opts *o)
{
	uint64_t limit = (uint64_t)o->mtu * (o->packets / 8);

	return limit < MESSAGE_BYTES ? (uint32_t)limit : MESSAGE_BYTES;
}

/*
 * Zeroed memory of which only what is used costs anything: most NICs use few of their lanes. (calloc would
 * touch all of it where it gives out memory again, and a huge page would make the first use of each dear.)
 */
static void *alloc_sparse(size_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (at == MAP_FAILED)
		return NULL;
	madvise(at, bytes, MADV_NOHUGEPAGE);
	return at;
}

static void free_sparse(void *at, size_t bytes)
{
	if (at)
		munmap(at, bytes);
}

static size_t lanes_bytes(const struct epf_emu *e)
{
	return e->opts.lanes * sizeof(*e->lanes);
}

static size_t stalls_bytes(const struct epf_emu *e)
{
	return e->opts.lanes * sizeof(*e->stalls);
}

static size_t held_bytes(const struct epf_emu *e)
{
	return (EPF_EMU_HELD + (size_t)e->opts.lanes) * sizeof(*e->held);
}

static void destroy(struct epf_emu *e)
{
	epf_emu_copier_detach(e);
	epf_emu_seg_put(e->seg);
	free_sparse(e->held, held_bytes(e));
	free(e->regions);
	free_sparse(e->lanes, lanes_bytes(e));
	free_sparse(e->stalls, stalls_bytes(e));
	free(e->slots);
	free(e);
}

/* Of a benchmark's process, which opens its NICs on one thread. */
static struct epf_emu_stages *stages;

void epf_emu_stages_want(struct epf_emu_stages *into)
{
	stages = into;
}

int epf_emu_open(const struct epf_emu_opts *opts, uint64_t (*now)(void *), void *now_arg,
		 struct epf_nic **out)
{
	struct epf_emu *e;
	int rc = check_opts(opts);

	if (rc)
		return rc;
	e = calloc(1, sizeof(*e));
	if (!e)
		return epf_fail(EPF_R_NO_MEMORY, "emu: a NIC");
	e->nic.ops = epf_nic_find("emu");
	e->now = now;
	e->now_arg = now_arg;
	e->stages = stages;
	e->opts = *opts;
	e->opts.ordered = !!opts->ordered;
	if (!e->opts.link_timeout_ns)
		e->opts.link_timeout_ns = e->opts.retry_timeout_ns;
	e->max_msg_bytes = message_limit(opts);
	e->busy_head = e->ret_head = e->wake_head = EPF_EMU_NO_LANE;
	e->work.head = e->rnr.head = EPF_EMU_NO_LANE;
	e->next_scan_ns = e->next_rnr_ns = UINT64_MAX;
	e->pulse = 1;
	set_faults(e);
	e->slots = calloc(opts->packets, sizeof(*e->slots));
	e->lanes = alloc_sparse(lanes_bytes(e));
	e->stalls = alloc_sparse(stalls_bytes(e));
	if (e->faulty)
		e->held = alloc_sparse(held_bytes(e));
	if (!e->slots || !e->lanes || !e->stalls || (e->faulty && !e->held)) {
		destroy(e);
		return epf_fail(EPF_R_NO_MEMORY, "emu: a NIC with %u packets", opts->packets);
	}
	rc = epf_emu_seg_create(&e->opts, &e->seg);
	if (rc) {
		destroy(e);
		return rc;
	}
	fill_pool(e);
	e->now_ns = now(now_arg);
	*out = &e->nic;
	return 0;
}

static int emu_open(const struct epf_conf *conf, uint64_t (*now)(void *), void *now_arg,
		    struct epf_nic **out)
{
	struct epf_emu_opts opts;

	epf_emu_opts_from_conf(&opts, conf);
	return epf_emu_open(&opts, now, now_arg, out);
}

static void emu_close(struct epf_nic *nic)
{
	struct epf_emu *e = epf_emu_of(nic);

	if (!nic)
		return;
	for (uint32_t lane = 0; lane < e->opts.lanes; lane++)
		epf_emu_lane_destroy(nic, (uint16_t)lane);
	for (uint32_t i = 0; i < e->nregions; i++) {
		struct epf_nic_mr mr = { .rkey = e->regions[i].key };

		if (e->regions[i].mem)
			nic->ops->region_deregister(nic, &mr);
	}
	__atomic_store_n(&e->seg->hdr->alive, 0, __ATOMIC_RELEASE);
	destroy(e);
}

static void emu_describe(const struct epf_nic *nic, struct epf_nic_caps *out)
{
	const struct epf_emu *e = epf_emu_of(nic);

	*out = (struct epf_nic_caps){
		.name = "emu",
		.ordered = e->opts.ordered,
		.max_msg_bytes = e->max_msg_bytes,
		.max_lanes = e->opts.lanes,
		.links = e->opts.links,
		.lane_depth = e->opts.lane_depth,
		.receives = e->opts.receives,
		.carries_events = 1,
		.memory_bytes = e->seg->bytes,
	};
}

static int emu_address(const struct epf_nic *nic, void *buf, size_t size)
{
	return epf_emu_seg_address(epf_emu_of(nic)->seg, buf, size);
}

static int emu_register(struct epf_nic *nic, void *addr, uint64_t len, unsigned access,
			struct epf_nic_mr *out)
{
	return epf_emu_region_add(epf_emu_of(nic), (uint64_t)(uintptr_t)addr, len, access, out);
}

static void emu_deregister(struct epf_nic *nic, struct epf_nic_mr *mr)
{
	struct epf_emu *e = epf_emu_of(nic);
	uint32_t i;

	if (!mr)
		return;
	i = mr->rkey & 0xffff;
	if (i < e->nregions && mr->rkey && e->regions[i].key == mr->rkey) {
		if (e->regions[i].mem)
			epf_emu_deregister_gpu(e, i);
		memset(&e->regions[i], 0, sizeof(e->regions[i]));
	}
	memset(mr, 0, sizeof(*mr));
}

static struct epf_wakeup *emu_wakeup(struct epf_nic *nic)
{
	return &epf_emu_of(nic)->seg->hdr->wakeup;
}

static void emu_counters(const struct epf_nic *nic, struct epf_nic_counters *out)
{
	const struct epf_emu *e = epf_emu_of(nic);

	*out = e->counters;
	out->link_up = e->opts.links - (uint32_t)__builtin_popcount(e->links_down);
}

static int emu_set_link(struct epf_nic *nic, unsigned link, int up)
{
	struct epf_emu *e = epf_emu_of(nic);

	if (link >= e->opts.links)
		return epf_fail(EPF_R_NIC_OPTION, "emu: link %u, but emu-links is %u", link,
				e->opts.links);
	if (!up) {
		if (e->links_down >> link & 1)
			return 0;
		e->links_down |= 1u << link;
		e->link_cut_ns[link] = e->now(e->now_arg);
		if (e->next_scan_ns > e->link_cut_ns[link] + e->opts.link_timeout_ns)
			e->next_scan_ns = e->link_cut_ns[link] + e->opts.link_timeout_ns;
		return 0;
	}
	e->links_down &= ~(1u << link);
	/* What waited at this end goes on: what was dequeued to be landed, and, with the next reap, mail and posts. */
	for (uint32_t lane = link; lane < e->lanes_end; lane += e->opts.links) {
		struct epf_emu_lane *l = &e->lanes[lane];

		if (l->rx_state == EPF_EMU_RX_CUT) {
			l->rx_state = EPF_EMU_RX_IDLE;
			epf_emu_make_ready(e, (uint16_t)lane);
		}
		if (l->flags & EPF_EMU_USED)
			epf_emu_mark(e->seg->hdr, lane);
	}
	return 0;
}

static int emu_link_ready(struct epf_nic *nic, uint16_t lane)
{
	const struct epf_emu *e = epf_emu_of(nic);

	return !(e->links_down >> lane % e->opts.links & 1);
}

static int is_cpu(void)
{
	return 1;
}

const struct epf_nic_ops epf_nic_emu_ops = {
	.name = "emu",
	.is_cpu = is_cpu,
	.open = emu_open,
	.close = emu_close,
	.describe = emu_describe,
	.address = emu_address,
	.region_register = emu_register,
	.region_register_gpu = epf_emu_register_gpu,
	.region_deregister = emu_deregister,
	.lane_create = epf_emu_lane_create,
	.lane_connect = epf_emu_lane_connect,
	.lane_fence = epf_emu_lane_fence,
	.lane_drained = epf_emu_lane_drained,
	.lane_destroy = epf_emu_lane_destroy,
	.lane_reopen = epf_emu_lane_reopen,
	.lane_reconnect = epf_emu_lane_reconnect,
	.lane_link = epf_emu_lane_link,
	.link_ready = emu_link_ready,
	.post = epf_emu_post,
	.reap = epf_emu_reap,
	.post_receives = epf_emu_post_receives,
	.next_event = epf_emu_next_event,
	.wakeup = emu_wakeup,
	.wake_peers = epf_emu_wake_peers,
	.wake_pending = epf_emu_wake_pending,
	.add = epf_emu_add,
	.add_pending = epf_emu_add_pending,
	.counters = emu_counters,
	.set_link = emu_set_link,
	.watch = epf_emu_watch,
};
