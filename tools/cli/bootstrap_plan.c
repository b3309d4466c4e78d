/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ep-fabric bootstrap dry-run`: what each rank and node would exchange with the rendezvous server,
 * in bytes on TCP, computed from the wire format. Called by bootstrap.c. It must never open
 * a connection or print a secret.
 */
#include "bootstrap/boot.h"
#include "bootstrap/rank_env.h"
#include "bootstrap/wire.h"
#include "fabric/base/err.h"
#include "tools/cli/bootstrap_priv.h"

#include <argp.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct plan {
	uint32_t world;
	uint32_t nodes; /* 0: not known */
	char rendezvous[EPF_BOOT_ADDRESS_MAX];
	char job[EPF_BOOT_NAME_MAX + 1];
	bool simulated;            /* by --ranks, not from the environment */
	struct epf_rank_info mine; /* when not simulated */
	const char *secret;        /* where it comes from */
	size_t blob_bytes;
};

struct cost {
	uint64_t join_sent, join_received;
	uint64_t gather_sent, gather_received;
	uint64_t barrier_sent, barrier_received;
};

/* The bytes of a stream that goes out in parts. */
static uint64_t in_parts(uint64_t bytes)
{
	uint64_t parts = (bytes + EPF_WIRE_PART_BYTES - 1) / EPF_WIRE_PART_BYTES;

	return bytes + (parts ? parts : 1) * (EPF_WIRE_OVERHEAD + EPF_WIRE_PART_HEAD);
}

/* The same for every rank but for the length of its node's name. */
static struct cost cost_of(const struct plan *p, const char *node)
{
	uint64_t pad = (p->blob_bytes + 15) / 16 * 16,
		 table = ((uint64_t)p->world * 4 + 15) / 16 * 16;

	return (struct cost){
		.join_sent = EPF_WIRE_OVERHEAD + EPF_AUTH_NONCE_BYTES + EPF_WIRE_OVERHEAD + 20 +
			     strlen(p->job) + strlen(node) + EPF_WIRE_OVERHEAD,
		.join_received = EPF_WIRE_OVERHEAD + EPF_AUTH_NONCE_BYTES + EPF_WIRE_OVERHEAD + 8,
		.gather_sent = in_parts(p->blob_bytes),
		.gather_received = in_parts(table + p->world * pad),
		.barrier_sent = EPF_WIRE_OVERHEAD + 8,
		.barrier_received = EPF_WIRE_OVERHEAD + 8,
	};
}

/* Consecutive ranks share a node; where the division leaves a rest, the first nodes have one more. */
static uint32_t node_of(const struct plan *p, uint32_t rank)
{
	uint32_t each = p->world / p->nodes, more = p->world % p->nodes;

	if (rank < more * (each + 1))
		return rank / (each + 1);
	return more + (rank - more * (each + 1)) / each;
}

static void node_name(const struct plan *p, uint32_t rank, char name[EPF_BOOT_NAME_MAX + 1])
{
	if (!p->simulated && rank == p->mine.rank)
		snprintf(name, EPF_BOOT_NAME_MAX + 1, "%s", p->mine.node);
	else if (p->nodes)
		snprintf(name, EPF_BOOT_NAME_MAX + 1, "node%u", node_of(p, rank));
	else
		name[0] = 0;
}

static const char *secret_origin(const struct bootstrap_request *req)
{
	if (*req->conf.secret)
		return "EPF_SECRET";
	if (*req->conf.secret_file)
		return epf_conf_origin(&req->conf, EPF_CONF_ID_secret_file);
	return getenv("EPF_SECRET_FD") ? "EPF_SECRET_FD" : NULL;
}

static int make_plan(const struct bootstrap_request *req, struct plan *p)
{
	*p = (struct plan){ .world = req->world,
			    .nodes = req->nodes,
			    .blob_bytes = req->blob_bytes };
	p->simulated = req->world != 0;
	p->secret = secret_origin(req);
	if (!p->simulated) {
		int rc = epf_rank_discover(&p->mine);

		if (rc)
			return rc;
		p->world = p->mine.world;
		if (!p->nodes && p->mine.local_world != EPF_RANK_UNKNOWN && p->mine.local_world)
			p->nodes = (p->world + p->mine.local_world - 1) / p->mine.local_world;
		snprintf(p->job, sizeof(p->job), "%s", p->mine.job);
		snprintf(p->rendezvous, sizeof(p->rendezvous), "%s", p->mine.rendezvous);
	}
	if (p->world > EPF_BOOT_WORLD_MAX)
		return epf_fail(EPF_R_BOOT_LIMIT, "a world of %u ranks is above %u", p->world,
				EPF_BOOT_WORLD_MAX);
	if (p->nodes > p->world)
		return epf_fail(EPF_R_BOOT_OPTION, "--nodes is %u, but there are only %u ranks",
				p->nodes, p->world);
	if ((uint64_t)p->world * p->blob_bytes > EPF_BOOT_GATHER_MAX)
		return epf_fail(EPF_R_BOOT_LIMIT,
				"%u ranks with %zu bytes each exceed %u bytes in one allgather",
				p->world, p->blob_bytes, EPF_BOOT_GATHER_MAX);
	if (*req->conf.rendezvous)
		snprintf(p->rendezvous, sizeof(p->rendezvous), "%s", req->conf.rendezvous);
	else if (p->simulated)
		snprintf(p->rendezvous, sizeof(p->rendezvous), "127.0.0.1:29555");
	return 0;
}

static void add(struct cost *sum, const struct cost *c)
{
	sum->join_sent += c->join_sent;
	sum->join_received += c->join_received;
	sum->gather_sent += c->gather_sent;
	sum->gather_received += c->gather_received;
	sum->barrier_sent += c->barrier_sent;
	sum->barrier_received += c->barrier_received;
}

static json_t *cost_json(const struct cost *c)
{
	return json_pack("{s:I,s:I,s:I,s:I,s:I,s:I}", "join_sent_bytes", (json_int_t)c->join_sent,
			 "join_received_bytes", (json_int_t)c->join_received,
			 "allgather_sent_bytes", (json_int_t)c->gather_sent,
			 "allgather_received_bytes", (json_int_t)c->gather_received,
			 "barrier_sent_bytes", (json_int_t)c->barrier_sent,
			 "barrier_received_bytes", (json_int_t)c->barrier_received);
}

static json_t *with_cost(json_t *row, const struct cost *c)
{
	json_t *cost = cost_json(c);

	json_object_update(row, cost);
	json_decref(cost);
	return row;
}

static void cost_text(const struct cost *c)
{
	printf("%9" PRIu64 " %9" PRIu64 " %12" PRIu64 " %12" PRIu64 " %9" PRIu64 " %9" PRIu64 "\n",
	       c->join_sent, c->join_received, c->gather_sent, c->gather_received, c->barrier_sent,
	       c->barrier_received);
}

static json_t *plan_json(const struct plan *p)
{
	json_t *ranks = json_array(), *nodes = json_array();
	struct cost total = { 0 }, of_node = { 0 };
	char name[EPF_BOOT_NAME_MAX + 1];
	uint32_t on_node = 0;

	for (uint32_t r = 0; r < p->world; r++) {
		struct cost c;
		json_t *row;

		node_name(p, r, name);
		c = cost_of(p, name);
		row = json_pack("{s:i,s:o,s:b}", "rank", (int)r, "node",
				p->nodes ? json_integer(node_of(p, r)) : json_null(),
				"hosts_server", r == 0);
		json_array_append_new(ranks, with_cost(row, &c));
		add(&total, &c);
		add(&of_node, &c);
		on_node++;
		if (!p->nodes || (r + 1 < p->world && node_of(p, r + 1) == node_of(p, r)))
			continue;
		row = json_pack("{s:i,s:i}", "node", (int)node_of(p, r), "ranks", (int)on_node);
		json_array_append_new(nodes, with_cost(row, &of_node));
		of_node = (struct cost){ 0 };
		on_node = 0;
	}
	return json_pack("{s:s,s:i,s:o,s:s,s:o,s:o,s:I,s:o,s:o,s:o}", "schema",
			 "epf.bootstrap_plan/1", "world", (int)p->world, "node_count",
			 p->nodes ? json_integer(p->nodes) : json_null(), "rendezvous",
			 p->rendezvous, "job", bootstrap_json_text(p->job), "secret_origin",
			 p->secret ? json_string(p->secret) : json_null(), "blob_bytes",
			 (json_int_t)p->blob_bytes, "total", cost_json(&total), "ranks", ranks,
			 "nodes", nodes);
}

static void plan_head(const struct plan *p)
{
	printf("rendezvous %s, job '%s', %u ranks", p->rendezvous, p->job, p->world);
	if (p->nodes)
		printf(" on %u nodes", p->nodes);
	printf("\nsecret: %s%s\n",
	       p->secret ? "from " : "none, so only a loopback rendezvous is accepted",
	       p->secret ? p->secret : "");
	if (!p->simulated)
		printf("this process is rank %u (%s)\n", p->mine.rank,
		       p->mine.origin[EPF_RANK_F_RANK]);
	printf("Rank 0 hosts the server; every rank, also rank 0, opens one TCP connection to it:\n"
	       "  joining    HELLO > CHALLENGE < JOIN > WELCOME < ... LEAVE >\n"
	       "  allgather  PART > (%zu bytes of data each), PART < (%zu bytes of data in all)\n"
	       "  barrier    BARRIER > RELEASE <\n\n",
	       p->blob_bytes, p->blob_bytes * p->world);
}

static void plan_text(const struct plan *p)
{
	struct cost total = { 0 }, of_node = { 0 };
	char name[EPF_BOOT_NAME_MAX + 1];
	uint32_t on_node = 0;

	plan_head(p);
	printf("bytes on TCP      joining             allgather                 barrier\n"
	       "                sent  received         sent     received      sent  received\n");
	for (uint32_t r = 0; r < p->world; r++) {
		struct cost c;

		node_name(p, r, name);
		c = cost_of(p, name);
		printf("rank %-5u", r);
		cost_text(&c);
		add(&total, &c);
		add(&of_node, &c);
		on_node++;
		if (!p->nodes || (r + 1 < p->world && node_of(p, r + 1) == node_of(p, r)))
			continue;
		printf("node %-5u", node_of(p, r));
		cost_text(&of_node);
		of_node = (struct cost){ 0 };
		on_node = 0;
	}
	printf("all       ");
	cost_text(&total);
}

int bootstrap_dry_run(int argc, char **argv)
{
	static const struct argp_option options[] = {
		{ "ranks", OPT_RANKS, "N", 0, "Assume N ranks. Default: from the environment", 0 },
		{ "nodes", OPT_NODES, "N", 0, "Suppose so many nodes", 0 },
		{ "blob-bytes", OPT_BLOB_BYTES, "B", 0,
		  "Assume that each rank contributes this many bytes to an allgather. Default: 4096",
		  0 },
		{ "json", 'j', NULL, 0, "Print one JSON object, schema epf.bootstrap_plan/1", 0 },
		{ 0 },
	};
	struct bootstrap_request req = { .blob_bytes = 4096 };
	struct plan plan;
	int status;

	if (bootstrap_read_request(
		    &req, options,
		    "Print what each rank and node would exchange with the rendezvous server, "
		    "without opening a connection.",
		    true, argc, argv))
		return EXIT_FAILURE;
	if (make_plan(&req, &plan)) {
		status = bootstrap_complain("dry-run");
	} else if (req.json) {
		status = bootstrap_print_json("dry-run", plan_json(&plan));
	} else {
		plan_text(&plan);
		status = bootstrap_end_output("dry-run");
	}
	epf_conf_destroy(&req.conf);
	return status;
}
