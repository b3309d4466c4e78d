/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ep-fabric nics --plan`: how many queue pairs a job of any size needs on each NIC of a node, and what memory, once with a daemon on
 * each node and once with an engine in every rank. By the planner that the engine itself uses (fabric/engine/lanes_plan.h), so it needs
 * neither the nodes nor the NICs. Called by nics.c.
 */
#include "fabric/base/conf.h"
#include "fabric/base/err.h"
#include "fabric/engine/lanes_plan.h"
#include "fabric/place/place.h"
#include "tools/cli/nics_priv.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/*
 * What devices typically take; each has its own figures, and none can be asked for them before a queue pair exists. A work request: a
 * header of 16 bytes, 16 for the remote address, 4 + 128 of inline payload, in blocks of 64. A completion entry is 64 bytes. An entry of
 * the shared receive queue: a header and one address, 16 each. What a queue pair keeps on the device itself: about 512.
 */
enum {
	WQE_HEAD = 16 + 16 + 4,
	WQE_BLOCK = 64,
	CQE_BYTES = 64,
	SRQE_BYTES = 32,
	CONTEXT_BYTES = 512,
	SLOT_BYTES = EPF_NIC_MSG_BYTES + 64, /* ours, for each receive */
	ENTRY_BYTES = 4,                     /* ours, for each work request of a queue pair */
	LANES_MAX = 65535,
	ADDR_BYTES = 40, /* of one device in a peer's address */
};

enum { MODES = 2 };

static const char *const modes[MODES] = { "service", "embedded" };

/* One mode of running the job, seen from one node. */
struct mode_plan {
	uint32_t engines; /* of the node */
	uint32_t devices; /* of an engine */
	uint32_t lanes_per_peer;
	int rc;
	char error[256];
	struct epf_lanes_plan engine;
	/* Of one NIC. */
	uint64_t queue_pairs, wqe_bytes, cq_bytes, srq_bytes, context_bytes;
	/* Of the node. */
	uint64_t join_bytes, engine_bytes, receive_bytes, nic_bytes;
	uint64_t exchange_bytes; /* that each rank gets at the join: lanes of all engines */
};

static uint64_t blocks(uint64_t bytes, uint64_t block)
{
	return (bytes + block - 1) / block;
}

/* The work queue of a queue pair is a power of two of blocks on most devices. */
static uint64_t send_queue_bytes(const struct epf_conf *conf, uint64_t depth)
{
	uint64_t want = depth * blocks(WQE_HEAD + conf->verbs_inline, WQE_BLOCK) * WQE_BLOCK,
		 bytes = 1;

	while (bytes < want)
		bytes <<= 1;
	return bytes;
}

static uint32_t pow2(uint64_t x)
{
	uint32_t p = 1;

	while (p < x)
		p <<= 1;
	return p;
}

static struct epf_lanes_ask ask_for(const struct epf_conf *conf, const struct epf_nics_plan_opts *o,
				    const struct mode_plan *m, bool is_service)
{
	uint32_t nodes = is_service ? o->nodes : o->nodes * o->ranks_per_node;

	return (struct epf_lanes_ask){
		.world = o->nodes * o->ranks_per_node,
		.n_nodes = nodes,
		.lanes_per_node = m->lanes_per_peer,
		.streams_per_peer = (uint32_t)conf->streams_per_peer,
		.window = (uint32_t)conf->window,
		.lane_depth = pow2(conf->lane_depth),
		.lane_receives = (uint32_t)conf->lane_receives,
		.max_lanes = LANES_MAX,
		.receives = (uint32_t)conf->verbs_receives * m->devices,
		.addr_bytes = ADDR_BYTES * m->devices,
		.carries_events = 1,
		.nic = "verbs",
	};
}

static void fill_mode(const struct epf_conf *conf, const struct epf_nics_plan_opts *o,
		      bool is_service, struct mode_plan *m)
{
	uint32_t per_engine = (uint32_t)blocks(o->devices, o->ranks_per_node);
	struct epf_lanes_ask ask;

	memset(m, 0, sizeof(*m));
	m->engines = is_service ? 1 : o->ranks_per_node;
	m->devices = is_service ? o->devices : per_engine;
	if (m->devices > EPF_NIC_LINKS)
		m->devices = EPF_NIC_LINKS;
	/* Each device of an engine carries as many lanes to a peer as the others. */
	m->lanes_per_peer = epf_lanes_per_peer((uint32_t)conf->lanes_per_peer, m->devices);
	ask = ask_for(conf, o, m, is_service);
	m->rc = epf_lanes_plan(&ask, &m->engine);
	if (m->rc) {
		snprintf(m->error, sizeof(m->error), "%s", epf_last_error());
		return;
	}
	m->queue_pairs = blocks((uint64_t)m->engines * m->engine.lanes, o->devices);
	if (m->devices * m->engines < o->devices) /* some devices are not used at all */
		m->queue_pairs = m->engine.lanes / m->devices;
	m->wqe_bytes = m->queue_pairs * send_queue_bytes(conf, ask.lane_depth);
	/* An engine has its completion queues and its shared receive queue on each of its devices. */
	m->cq_bytes = blocks((uint64_t)m->engines * m->devices, o->devices) *
		      (conf->verbs_completions + conf->verbs_receives) * CQE_BYTES;
	m->srq_bytes = blocks((uint64_t)m->engines * m->devices, o->devices) *
		       conf->verbs_receives * SRQE_BYTES;
	m->context_bytes = m->queue_pairs * CONTEXT_BYTES;
	m->join_bytes = m->engines * m->engine.join_bytes;
	m->engine_bytes = m->engines * m->engine.all_bytes;
	m->receive_bytes =
		(uint64_t)m->engines * (m->engine.receives * (uint64_t)SLOT_BYTES +
					m->engine.lanes * (uint64_t)ask.lane_depth * ENTRY_BYTES);
	m->nic_bytes = m->wqe_bytes + m->cq_bytes + m->srq_bytes + m->context_bytes;
	m->exchange_bytes = ask.n_nodes * m->engine.description_bytes;
}

/* ---- text ------------------------------------------------------------------------------------ */

static void row(const char *what, const struct mode_plan *m, uint64_t service, uint64_t embedded)
{
	uint64_t value[MODES] = { service, embedded };

	printf("%-46s", what);
	for (int i = 0; i < MODES; i++) {
		if (m[i].rc)
			printf(" %12s", "-");
		else
			printf(" %12" PRIu64, value[i]);
	}
	putchar('\n');
}

#define ROW(what, field)     row(what, m, m[0].field, m[1].field)
#define ROW_KIB(what, field) row(what, m, blocks(m[0].field, 1024), blocks(m[1].field, 1024))

static void print_plan(const struct epf_nics_plan_opts *o, const struct mode_plan *m)
{
	printf("# Plan: %u ranks on %u nodes of %u, %u RDMA devices a node. Memory in KiB.\n",
	       o->nodes * o->ranks_per_node, o->nodes, o->ranks_per_node, o->devices);
	printf("#%-45s %12s %12s\n", "", modes[0], modes[1]);
	ROW("engines on a node", engines);
	ROW("devices of an engine", devices);
	ROW("lanes to a peer", lanes_per_peer);
	ROW("queue pairs of an engine", engine.lanes);
	ROW("queue pairs on a NIC", queue_pairs);
	ROW("receives of a lane", engine.lane_receives);
	ROW("streams to a peer", engine.streams_per_node);
	puts("# on one NIC, as devices typically have it");
	ROW_KIB("send queues", wqe_bytes);
	ROW_KIB("completion queues", cq_bytes);
	ROW_KIB("shared receive queues", srq_bytes);
	ROW_KIB("contexts of queue pairs", context_bytes);
	ROW_KIB("sum", nic_bytes);
	puts("# of one engine, the most that it grows to");
	ROW_KIB("lanes and their entries", engine.lanes_bytes);
	ROW_KIB("streams, groups, notify handles", engine.streams_bytes);
	ROW_KIB("arrival windows", engine.windows_bytes);
	ROW_KIB("messages that wait", engine.pending_bytes);
	ROW_KIB("ranks", engine.peers_bytes);
	ROW_KIB("nodes", engine.nodes_bytes);
	ROW_KIB("control writes", engine.words_bytes);
	ROW_KIB("sum", engine.all_bytes);
	ROW_KIB("at the join", engine.join_bytes);
	puts("# of one node");
	ROW_KIB("engines at the join", join_bytes);
	ROW_KIB("engines, the most that they grow to", engine_bytes);
	ROW_KIB("receives and work request numbers", receive_bytes);
	puts("# at the join");
	ROW_KIB("lanes in the descriptions that a rank gets", exchange_bytes);
	for (int i = 0; i < MODES; i++)
		if (m[i].rc)
			printf("# %s: not possible: %s\n", modes[i], m[i].error);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *json_mode(const struct mode_plan *m)
{
	const struct epf_lanes_plan *e = &m->engine;

	if (m->rc)
		return json_pack("{s:s}", "error", m->error);
	return json_pack(
		"{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}",
		"engines_per_node", (json_int_t)m->engines, "devices_per_engine",
		(json_int_t)m->devices, "lanes_per_peer", (json_int_t)m->lanes_per_peer,
		"queue_pairs_per_engine", (json_int_t)e->lanes, "queue_pairs_per_nic",
		(json_int_t)m->queue_pairs, "lane_receives", (json_int_t)e->lane_receives,
		"streams_per_peer_node", (json_int_t)e->streams_per_node, "nic_send_queue_bytes",
		(json_int_t)m->wqe_bytes, "nic_completion_queue_bytes", (json_int_t)m->cq_bytes,
		"nic_receive_queue_bytes", (json_int_t)m->srq_bytes, "nic_context_bytes",
		(json_int_t)m->context_bytes, "nic_bytes", (json_int_t)m->nic_bytes,
		"engine_lanes_bytes", (json_int_t)e->lanes_bytes, "engine_streams_bytes",
		(json_int_t)e->streams_bytes, "engine_windows_bytes", (json_int_t)e->windows_bytes,
		"engine_pending_bytes", (json_int_t)e->pending_bytes, "engine_other_bytes",
		(json_int_t)(e->peers_bytes + e->nodes_bytes + e->words_bytes), "engine_join_bytes",
		(json_int_t)e->join_bytes, "node_join_bytes", (json_int_t)m->join_bytes,
		"node_engine_bytes", (json_int_t)m->engine_bytes, "node_receive_bytes",
		(json_int_t)m->receive_bytes, "join_lane_bytes", (json_int_t)m->exchange_bytes);
}

static int print_json(const struct epf_nics_plan_opts *o, const struct mode_plan *m)
{
	json_t *top = json_pack(
		"{s:s, s:I, s:I, s:I, s:I, s:o, s:o}", "schema", "epf.nics-plan/1", "ranks",
		(json_int_t)o->nodes * o->ranks_per_node, "nodes", (json_int_t)o->nodes,
		"ranks_per_node", (json_int_t)o->ranks_per_node, "devices_per_node",
		(json_int_t)o->devices, modes[0], json_mode(&m[0]), modes[1], json_mode(&m[1]));
	int rc = 0;

	if (!top || json_dumpf(top, stdout, JSON_INDENT(1)) || putchar('\n') == EOF)
		rc = epf_fail(EPF_R_NO_MEMORY, "JSON");
	json_decref(top);
	return rc;
}

/* Usable devices of a tree, at least 1. */
static int count_devices(const struct epf_conf *conf, const char *sysfs, uint32_t *out)
{
	struct epf_place_map map;
	struct epf_place_plan plan;
	struct epf_place_opts opts = { .map = &map, .select = &conf->nic_device };
	uint32_t n = 0;
	int rc = epf_place_read(sysfs, &map);

	if (rc)
		return rc;
	rc = epf_place_choose(&opts, &plan);
	if (!rc) {
		for (uint32_t r = 0; r < plan.rails; r++)
			n += plan.rail[r].number != EPF_PLACE_NONE;
		epf_place_plan_destroy(&plan);
		*out = n ? n : 1;
	}
	epf_place_map_destroy(&map);
	return rc;
}

int epf_nics_plan(const struct epf_conf *conf, const char *sysfs,
		  const struct epf_nics_plan_opts *opts, bool json)
{
	struct epf_nics_plan_opts o = *opts;
	struct mode_plan m[MODES];
	int rc = o.devices ? 0 : count_devices(conf, sysfs, &o.devices);

	if (rc)
		return rc;
	for (int i = 0; i < MODES; i++)
		fill_mode(conf, &o, i == 0, &m[i]);
	if (json)
		return print_json(&o, m);
	print_plan(&o, m);
	/* With a daemon is how large jobs are run: if that cannot be, the answer is no. */
	return m[0].rc;
}
