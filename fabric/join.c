/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libepf, part 2: joining a job. Each rank describes itself (NIC address, lanes, regions, control words), gets
 * everybody's description from the bootstrap, connects, and meets the others at a barrier before any traffic.
 * In embedded mode every rank process is an engine of its own: node index of the engine = rank; the node numbers
 * that people see (which ranks share a machine) come from the node names.
 */
#define EPF_LOG_COMP "join"
#include "bootstrap/rank_env.h"
#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/base/log.h"
#include "fabric/lib.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Opens the TCP bootstrap as configured; what is not configured comes from the launcher's variables. */
static int open_boot(struct epf *ep)
{
	const struct epf_conf *c = &ep->conf;
	struct epf_boot_opts o = { .size = sizeof(o) };
	struct epf_rank_info info = { 0 };
	int rc;

	if (c->rank < 0 || c->world_size < 0 || !c->rendezvous[0]) {
		rc = epf_rank_discover(&info);
		if (rc)
			return rc;
	}
	o.rank = c->rank >= 0 ? (uint32_t)c->rank : info.rank;
	o.world = c->world_size >= 0 ? (uint32_t)c->world_size : info.world;
	o.rendezvous = c->rendezvous[0] ? c->rendezvous : info.rendezvous;
	o.job = c->job[0] ? c->job : info.job;
	o.secret_file = c->secret_file[0] ? c->secret_file : NULL;
	o.ifname = c->socket_ifname[0] ? c->socket_ifname : NULL;
	o.timeout_ns = c->bootstrap_timeout_ns;
	o.is_root = o.rank == 0 && !getenv("EPF_BOOTSTRAP_SERVER");
	o.node = ep->node;
	rc = epf_boot_tcp_open(&o, &ep->boot);
	ep->own_boot = !rc;
	return rc;
}

static void set_node_name(struct epf *ep)
{
	if (ep->conf.node[0])
		snprintf(ep->node, sizeof(ep->node), "%s", ep->conf.node);
	else if (gethostname(ep->node, sizeof(ep->node) - 1))
		snprintf(ep->node, sizeof(ep->node), "localhost");
}

static void describe_regions(const struct epf *ep, struct epf_description *d)
{
	const struct epf_rank_state *r = &ep->core->ranks[0];

	for (uint32_t i = 0; i < d->n_regions; i++) {
		const struct epf_region_local *l = &r->regions[i];

		d->regions[i].raddr = l->mr.raddr;
		d->regions[i].rkey = l->mr.rkey;
		d->regions[i].access = (uint16_t)l->access;
		d->regions[i].bytes = l->state == EPF_REGION_LIVE && l->access ? l->bytes : 0;
	}
}

/* This rank's description as bytes. */
static int describe(struct epf *ep, uint8_t **buf, size_t *len)
{
	struct epf_core *core = ep->core;
	struct epf_description d = { .rank = ep->rank,
				     .n_signals = ep->n_signals,
				     .streams = core->limits.streams_per_node,
				     .receives = core->limits.lane_receives,
				     .depth = core->limits.lane_depth,
				     .lanes = core->limits.lanes_per_node,
				     .ordered = core->ordered,
				     .ctl_rkey = core->ctl_mr.rkey,
				     .ctl_raddr = core->ctl_mr.raddr,
				     .n_tokens = core->n_lanes,
				     .tokens = ep->tokens,
				     .n_regions = core->ranks[0].n_regions };
	int rc = ep->ops->address(ep->nic, d.nic_addr, sizeof(d.nic_addr));

	if (rc < 0)
		return rc;
	d.nic_addr_len = (size_t)rc;
	memcpy(d.node, ep->node, sizeof(d.node));
	snprintf(d.nic, sizeof(d.nic), "%s", ep->ops->name);
	d.regions = calloc(d.n_regions ? d.n_regions : 1, sizeof(*d.regions));
	if (!d.regions)
		return epf_fail(EPF_R_NO_MEMORY, "join: no memory");
	describe_regions(ep, &d);
	rc = epf_description_encode(&d, buf, len);
	free(d.regions);
	return rc;
}

/* Hands a blob to the bootstrap: at once on TCP (blocking), posted on the in-process one. */
static int gather_post(struct epf *ep, const void *buf, size_t len)
{
	int rc = epf_boot_local_post(ep->boot, buf, len);

	if (rc == -EOPNOTSUPP)
		rc = epf_boot_allgather(ep->boot, buf, len, &ep->blobs);
	return rc;
}

static int gather_collect(struct epf *ep)
{
	return ep->blobs ? 0 : epf_boot_local_collect(ep->boot, &ep->blobs);
}

static void gather_free(struct epf *ep)
{
	epf_boot_free_blobs(ep->blobs);
	ep->blobs = NULL;
}

int epf_join_post(struct epf *ep, struct epf_boot *boot)
{
	uint8_t *buf;
	size_t len;
	int rc;

	if (ep->join_phase != EPF_JOIN_NONE)
		return epf_fail(EPF_R_JOIN_ORDER, "epf_join: this rank has joined already");
	set_node_name(ep);
	ep->boot = boot;
	if (!boot) {
		rc = open_boot(ep);
		if (rc)
			return rc;
	}
	ep->rank = epf_boot_rank(ep->boot);
	ep->world = epf_boot_world(ep->boot);
	ep->core->ranks[0].rank = ep->rank;
	ep->tokens =
		calloc((size_t)ep->world * ep->core->limits.lanes_per_node, sizeof(*ep->tokens));
	if (!ep->tokens)
		return epf_fail(EPF_R_NO_MEMORY, "join: no memory for %u ranks", ep->world);
	rc = epf_core_set_world(ep->core, ep->world, 0, ep->tokens);
	if (!rc)
		rc = describe(ep, &buf, &len);
	if (rc)
		return rc;
	rc = gather_post(ep, buf, len);
	free(buf);
	if (!rc)
		ep->join_phase = EPF_JOIN_GATHER;
	return rc;
}

/* Node numbers in order of the lowest rank of each name. */
static void number_place(struct epf *ep, const struct epf_description *all, uint32_t rank)
{
	for (uint32_t r = 0; r < rank; r++)
		if (strcmp(all[r].node, all[rank].node) == 0) {
			ep->places[rank] = ep->places[r];
			return;
		}
	ep->places[rank] = (uint16_t)ep->n_nodes++;
}

static int check_fit(const struct epf *ep, const struct epf_description *d, uint32_t rank)
{
	const struct epf_core *core = ep->core;

	if (d->rank != rank)
		return epf_fail(EPF_R_PEER_ANSWER, "rank %u: describes itself as rank %u", rank,
				d->rank);
	if (strcmp(d->nic, ep->ops->name) != 0 || !d->ordered != !core->ordered)
		return epf_fail(EPF_R_PEER_ANSWER, "rank %u: uses nic %s (%s), this rank %s (%s)",
				rank, d->nic, d->ordered ? "ordered" : "unordered", ep->ops->name,
				core->ordered ? "ordered" : "unordered");
	if (d->lanes != core->limits.lanes_per_node)
		return epf_fail(EPF_R_PEER_ANSWER, "rank %u: has %u lanes-per-peer, this rank %u",
				rank, d->lanes, core->limits.lanes_per_node);
	/* What a lane has under way may all be ahead of one event that is late. */
	if (!core->ordered && (d->depth > core->limits.window ||
			       d->depth * d->lanes > core->limits.max_pending / core->n_nodes))
		return epf_fail(
			EPF_R_PEER_ANSWER,
			"rank %u: has lane-depth %u, this rank (window %u, lane-depth %u, lane-receives "
			"%u) cannot hold as much",
			rank, d->depth, core->limits.window, core->limits.lane_depth,
			core->limits.lane_receives);
	if (d->n_tokens != ep->world * d->lanes)
		return epf_fail(EPF_R_PEER_ANSWER, "rank %u: describes %u lanes for %u ranks", rank,
				d->n_tokens, ep->world);
	return 0;
}

static int connect_rank(struct epf *ep, const struct epf_description *d, uint32_t rank)
{
	struct epf_core *core = ep->core;
	size_t stride = (sizeof(struct epf_ctl) + 8u * d->streams + 63) / 64 * 64;
	struct epf_node_info node = { .nic_addr = d->nic_addr,
				      .nic_addr_len = d->nic_addr_len,
				      .tokens = d->tokens + (size_t)ep->rank * d->lanes,
				      .ctl_raddr = d->ctl_raddr + ep->rank * stride,
				      .ctl_rkey = d->ctl_rkey,
				      .receives = d->receives,
				      .streams = d->streams };
	struct epf_peer_info peer = { .place = ep->places[rank],
				      .n_signals = d->n_signals,
				      .n_regions = d->n_regions,
				      .regions = d->regions };
	int rc = epf_core_connect(core, rank, &node);

	return rc ? rc : epf_core_set_peer(core, rank, &peer);
}

static int connect_all(struct epf *ep)
{
	struct epf_description *all = calloc(ep->world, sizeof(*all));
	int rc = 0;

	ep->places = calloc(ep->world, sizeof(*ep->places));
	if (!all || !ep->places) {
		free(all);
		return epf_fail(EPF_R_NO_MEMORY, "join: no memory for %u ranks", ep->world);
	}
	for (uint32_t r = 0; r < ep->world && !rc; r++) {
		rc = epf_description_decode(ep->blobs[r].data, ep->blobs[r].len, &all[r]);
		if (!rc)
			rc = check_fit(ep, &all[r], r);
		if (!rc)
			number_place(ep, all, r);
	}
	ep->core->my_place = ep->places[ep->rank];
	for (uint32_t r = 0; r < ep->world && !rc; r++)
		rc = connect_rank(ep, &all[r], r);
	for (uint32_t r = 0; r < ep->world; r++)
		epf_description_free(&all[r]);
	free(all);
	return rc;
}

static void *core_thread(void *arg)
{
	struct epf *ep = arg;

	pthread_setname_np(pthread_self(), "epf-core");
	epf_core_run(ep->core, &ep->run);
	return NULL;
}

static int pin(const struct epf *ep, pthread_attr_t *attr)
{
	const struct epf_conf_cpus *cpus = &ep->conf.cpu;
	cpu_set_t *set = CPU_ALLOC(4096);
	int rc;

	if (!set)
		return epf_fail(EPF_R_NO_MEMORY, "cpu: no memory");
	CPU_ZERO_S(CPU_ALLOC_SIZE(4096), set);
	for (size_t i = 0; i < cpus->count; i++)
		CPU_SET_S(cpus->cpu[i], CPU_ALLOC_SIZE(4096), set);
	rc = cpus->count ? pthread_attr_setaffinity_np(attr, CPU_ALLOC_SIZE(4096), set) : 0;
	CPU_FREE(set);
	return rc ? epf_fail_sys(EPF_R_SYSTEM, rc, "cpu: cannot pin the engine core") : 0;
}

static int start_thread(struct epf *ep)
{
	pthread_attr_t attr;
	int rc;

	if (!ep->threaded)
		return 0;
	pthread_attr_init(&attr);
	rc = pin(ep, &attr);
	if (!rc) {
		rc = pthread_create(&ep->thread, &attr, core_thread, ep);
		if (rc)
			rc = epf_fail_sys(EPF_R_SYSTEM, rc, "join: cannot start the engine core");
	}
	pthread_attr_destroy(&attr);
	ep->started = !rc;
	/* From the first call on, requests must reach the thread. */
	while (ep->started && !EPF_LOAD_ACQUIRE(&ep->core->running))
		sched_yield();
	return rc;
}

int epf_join_finish(struct epf *ep)
{
	int rc;

	if (ep->join_phase == EPF_JOIN_NONE)
		return epf_fail(EPF_R_JOIN_ORDER, "epf_join_finish: before epf_join_post");
	if (ep->join_phase == EPF_JOIN_GATHER) {
		rc = gather_collect(ep);
		if (rc)
			return rc;
		rc = connect_all(ep);
		gather_free(ep);
		/* Nobody sends before everybody is connected. */
		if (!rc)
			rc = gather_post(ep, NULL, 0);
		if (rc)
			return rc;
		ep->join_phase = EPF_JOIN_BARRIER;
	}
	if (ep->join_phase == EPF_JOIN_BARRIER) {
		rc = gather_collect(ep);
		if (rc)
			return rc;
		gather_free(ep);
		rc = start_thread(ep);
		if (rc)
			return rc;
		ep->join_phase = EPF_JOIN_DONE;
		epf_info("rank %u of %u: joined, node %u of %u (%s), nic %s", ep->rank, ep->world,
			 ep->places[ep->rank], ep->n_nodes, ep->node, ep->ops->name);
	}
	return 0;
}

int epf_join(struct epf *ep, struct epf_boot *boot)
{
	uint64_t deadline = epf_now_ns() + ep->conf.bootstrap_timeout_ns;
	int rc = epf_join_post(ep, boot);

	while (!rc && (rc = epf_join_finish(ep)) == -EAGAIN) {
		if (epf_now_ns() > deadline)
			return epf_fail(EPF_R_WAIT_TIMEOUT, "epf_join: not all ranks came");
		usleep(100);
		rc = 0;
	}
	return rc;
}

struct exchange_args {
	struct epf *ep;
	uint32_t rank;
	const struct epf_description *d;
};

static int update_peer(struct epf_core *core, void *arg)
{
	const struct exchange_args *a = arg;
	struct epf_peer_info peer = { .place = a->ep->places[a->rank],
				      .n_signals = a->d->n_signals,
				      .n_regions = a->d->n_regions,
				      .regions = a->d->regions };

	return epf_core_set_peer(core, a->rank, &peer);
}

int epf_exchange(struct epf *ep)
{
	struct epf_blob *blobs = NULL;
	uint8_t *buf;
	size_t len;
	int rc;

	if (ep->join_phase != EPF_JOIN_DONE)
		return epf_fail(EPF_R_NOT_JOINED, "epf_exchange: not joined");
	rc = describe(ep, &buf, &len);
	if (rc)
		return rc;
	rc = epf_boot_allgather(ep->boot, buf, len, &blobs);
	free(buf);
	for (uint32_t r = 0; r < ep->world && !rc; r++) {
		struct epf_description d;
		struct exchange_args a = { .ep = ep, .rank = r, .d = &d };

		rc = epf_description_decode(blobs[r].data, blobs[r].len, &d);
		if (rc)
			break;
		rc = epf_core_call(ep->core, update_peer, &a);
		epf_description_free(&d);
	}
	epf_boot_free_blobs(blobs);
	/* Nobody names a new region before everybody knows it. */
	return rc ? rc : epf_boot_barrier(ep->boot);
}

int epf_allgather(struct epf *ep, const void *mine, size_t bytes, void *all)
{
	struct epf_blob *blobs;
	int rc;

	if (ep->join_phase != EPF_JOIN_DONE)
		return epf_fail(EPF_R_NOT_JOINED, "epf_allgather: not joined");
	rc = epf_boot_allgather(ep->boot, mine, bytes, &blobs);
	if (rc)
		return rc;
	for (uint32_t r = 0; r < ep->world && !rc; r++) {
		if (blobs[r].len != bytes)
			rc = epf_fail(EPF_R_PEER_ANSWER,
				      "epf_allgather: rank %u gave %zu bytes, this rank %zu", r,
				      blobs[r].len, bytes);
		else
			memcpy((uint8_t *)all + r * bytes, blobs[r].data, bytes);
	}
	epf_boot_free_blobs(blobs);
	return rc;
}

int epf_barrier(struct epf *ep)
{
	if (ep->join_phase != EPF_JOIN_DONE)
		return epf_fail(EPF_R_NOT_JOINED, "epf_barrier: not joined");
	return epf_boot_barrier(ep->boot);
}

uint32_t epf_rank(const struct epf *ep)
{
	return ep->rank;
}

uint32_t epf_world(const struct epf *ep)
{
	return ep->world;
}

uint32_t epf_node_of(const struct epf *ep, uint32_t rank)
{
	return ep->places && rank < ep->world ? ep->places[rank] : UINT32_MAX;
}

uint32_t epf_nodes(const struct epf *ep)
{
	return ep->n_nodes;
}
