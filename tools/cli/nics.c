/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ep-fabric nics`: opens each kind of NIC as configured here, prints what it says of itself, and closes it; then which RDMA device
 * serves which GPU (nics_place.c). Called by the main program of ep-fabric. It must know no NIC by name: a new row in the
 * table of NICs shows up by itself.
 */
#include "fabric/base/clock.h"
#include "fabric/base/conf_cli.h"
#include "fabric/base/err.h"
#include "fabric/nic/nic.h"
#include "tools/cli/nics_priv.h"
#include "tools/cli/tools.h"

#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define EXIT_USAGE 2

enum {
	KEY_SYSFS = 256,
	KEY_RANKS,
	KEY_PLAN,
	KEY_NODES,
	KEY_PER_NODE,
	KEY_DEVICES,
	KEY_PROVE,
	KEY_WAIT,
	KEY_PORT,
	KEY_SAVE,
	KEY_PEER,
	PORT_MAX = 65535,
	RANKS_MAX = 4096
};

#define GROUPS                                                                    \
 (EPF_CONF_GROUP_BIT(NIC) | EPF_CONF_GROUP_BIT(EMU) | EPF_CONF_GROUP_BIT(VERBS) | \
  EPF_CONF_GROUP_BIT(EFA) | EPF_CONF_GROUP_BIT(TCP) | EPF_CONF_GROUP_BIT(OFI))

struct request {
	struct epf_conf conf;
	struct epf_conf_cli cli;
	json_t *list;      /* NULL: text */
	const char *sysfs; /* NULL: the machine's */
	uint32_t ranks;
	struct epf_nics_plan_opts plan;
	struct epf_nics_prove_opts prove;
	const char *peer_device; /* NULL: not given */
	bool is_plan, is_prove;
	bool json;
	unsigned int failed;
};

static void parse_count(struct argp_state *state, const char *option, const char *arg, int most,
			uint32_t *out)
{
	char *end;
	unsigned long n = strtoul(arg, &end, 10);

	if (*arg < '0' || *arg > '9' || *end || n < 1 || n > (unsigned long)most)
		argp_failure(state, EXIT_USAGE, 0, "--%s is '%s': write a number from 1 to %d",
			     option, arg, most);
	*out = (uint32_t)n;
}

/* What belongs to a plan means nothing without one, and the job must be one that can be. */
static void check_plan(struct argp_state *state, struct request *req)
{
	if (!req->is_plan && (req->plan.nodes || req->plan.ranks_per_node || req->plan.devices))
		argp_failure(state, EXIT_USAGE, 0,
			     "--nodes, --ranks-per-node and --devices belong to --plan");
	if (req->is_plan && req->ranks)
		argp_failure(state, EXIT_USAGE, 0,
			     "--ranks belongs to the placement: a plan takes --ranks-per-node");
	if (!req->plan.nodes)
		req->plan.nodes = 256;
	if (!req->plan.ranks_per_node)
		req->plan.ranks_per_node = 8;
	if (req->plan.nodes > RANKS_MAX / req->plan.ranks_per_node)
		argp_failure(state, EXIT_USAGE, 0,
			     "%u nodes of %u ranks: a job has at most %d ranks", req->plan.nodes,
			     req->plan.ranks_per_node, RANKS_MAX);
}

static void check_prove(struct argp_state *state, const struct request *req)
{
	const struct epf_nics_prove_opts *p = &req->prove;

	if (!req->is_prove && (p->wait || p->port || p->save || req->peer_device))
		argp_failure(state, EXIT_USAGE, 0,
			     "--wait, --port, --save and --peer-device belong to --prove");
	if (req->is_prove && (req->is_plan || req->sysfs || req->ranks))
		argp_failure(state, EXIT_USAGE, 0,
			     "--prove runs alone: leave out --plan, --sysfs and --ranks");
	if (p->host && (p->wait || req->peer_device))
		argp_failure(state, EXIT_USAGE, 0,
			     "--prove=HOST excludes --wait and --peer-device");
	if (p->wait && (p->save || req->json || req->peer_device))
		argp_failure(
			state, EXIT_USAGE, 0,
			"--wait reports nothing: give --save, --json or --peer-device on the other host");
}

/* 1: one of the options of --prove. */
static int parse_prove(int key, char *arg, struct argp_state *state, struct request *req)
{
	switch (key) {
	case KEY_PROVE:
		req->is_prove = true;
		req->prove.host = arg;
		return 1;
	case KEY_WAIT:
		req->prove.wait = true;
		return 1;
	case KEY_PORT:
		parse_count(state, "port", arg, PORT_MAX, &req->prove.port);
		return 1;
	case KEY_SAVE:
		req->prove.save = arg;
		return 1;
	case KEY_PEER:
		req->peer_device = arg;
		return 1;
	default:
		return 0;
	}
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct request *req = state->input;

	if (parse_prove(key, arg, state, req))
		return 0;
	switch (key) {
	case ARGP_KEY_INIT:
		state->child_inputs[0] = &req->conf;
		return 0;
	case 'j':
		req->json = true;
		return 0;
	case KEY_SYSFS:
		req->sysfs = arg;
		return 0;
	case KEY_RANKS:
		parse_count(state, "ranks", arg, RANKS_MAX, &req->ranks);
		return 0;
	case KEY_PLAN:
		req->is_plan = true;
		return 0;
	case KEY_NODES:
		parse_count(state, "nodes", arg, RANKS_MAX, &req->plan.nodes);
		return 0;
	case KEY_PER_NODE:
		parse_count(state, "ranks-per-node", arg, RANKS_MAX, &req->plan.ranks_per_node);
		return 0;
	case KEY_DEVICES:
		parse_count(state, "devices", arg, RANKS_MAX, &req->plan.devices);
		return 0;
	case ARGP_KEY_END:
		check_plan(state, req);
		check_prove(state, req);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static uint64_t now(void *arg)
{
	return epf_now_ns();
}

static json_t *json_caps(const char *name, bool chosen, const struct epf_nic_caps *c)
{
	return json_pack("{s:s, s:b, s:b, s:I, s:I, s:I, s:I, s:I, s:b}", "name", name, "is_chosen",
			 (int)chosen, "is_ordered", c->ordered, "max_message_bytes",
			 (json_int_t)c->max_msg_bytes, "max_lanes", (json_int_t)c->max_lanes,
			 "links", (json_int_t)c->links, "lane_depth", (json_int_t)c->lane_depth,
			 "receives", (json_int_t)c->receives, "carries_events", c->carries_events);
}

static void print_caps(const char *name, bool chosen, const struct epf_nic_caps *c)
{
	printf("%c%-6s %-9s %13" PRIu32 " %6" PRIu32 " %6" PRIu32 " %10" PRIu32 " %10" PRIu32
	       "  %s\n",
	       chosen ? '*' : ' ', name, c->ordered ? "ordered" : "unordered", c->max_msg_bytes,
	       c->max_lanes, c->links, c->lane_depth, c->receives,
	       c->carries_events ? "yes" : "no");
}

/* A kind that this machine has no device for is no failure of the command unless it is the one that is set. */
static void show_failure(struct request *req, const char *name, bool chosen)
{
	if (req->list)
		json_array_append_new(req->list,
				      json_pack("{s:s, s:b, s:s}", "name", name, "is_chosen",
						(int)chosen, "error", epf_last_error()));
	else if (!chosen)
		printf(" %-6s cannot be opened here: %s\n", name, epf_last_error());
	if (chosen) {
		req->failed++;
		fprintf(stderr, "ep-fabric nics: %s: %s\n", name, epf_last_error());
	}
}

static void show(struct request *req, const char *name)
{
	const struct epf_nic_ops *ops = epf_nic_find(name);
	bool chosen = !strcmp(name, epf_conf_nic(&req->conf));
	struct epf_nic_caps caps;
	struct epf_nic *nic;

	if (ops->open(&req->conf, now, NULL, &nic)) {
		show_failure(req, name, chosen);
		return;
	}
	ops = nic->ops;
	ops->describe(nic, &caps);
	if (req->list)
		json_array_append_new(req->list, json_caps(name, chosen, &caps));
	else
		print_caps(name, chosen, &caps);
	ops->close(nic);
}

/* Placement, which does not depend on whether the NICs could be opened. */
static void show_placement(struct request *req, json_t *top)
{
	if (epf_nics_place(&req->conf, req->sysfs, req->ranks, top)) {
		req->failed++;
		fprintf(stderr, "ep-fabric nics: %s\n", epf_last_error());
	}
}

static void show_all(struct request *req)
{
	if (req->json)
		req->list = json_array();
	else
		printf("#nic    order     message_bytes  lanes  links lane_depth   receives  arrivals\n");
	for (const char *const *name = epf_nic_names(); *name; name++)
		show(req, *name);
	if (req->json) {
		json_t *top = json_pack("{s:s, s:o}", "schema", "epf.nics/1", "nics", req->list);

		if (top)
			show_placement(req, top);
		if (!top || json_dumpf(top, stdout, JSON_INDENT(1)) || putchar('\n') == EOF)
			req->failed++;
		json_decref(top);
	} else {
		show_placement(req, NULL);
	}
	if (fflush(stdout) || ferror(stdout)) {
		fprintf(stderr, "ep-fabric nics: cannot write: %s\n", strerror(errno));
		req->failed++;
	}
}

/* What fails here has been printed. */
static int prove(struct request *req)
{
	if (!req->prove.port)
		req->prove.port = EPF_NICS_PROVE_PORT;
	req->prove.json = req->json;
	req->prove.peer_device = req->peer_device;
	return epf_nics_prove(&req->conf, &req->prove);
}

int epf_tool_nics(int argc, char **argv)
{
	static const struct argp_option options[] = {
		{ "json", 'j', NULL, 0, "Print one JSON object, schema epf.nics/1", 0 },
		{ "sysfs", KEY_SYSFS, "DIR", 0,
		  "Read devices from this tree instead of /sys: one recorded on another machine",
		  0 },
		{ "ranks", KEY_RANKS, "N", 0,
		  "Show the placement of N local ranks. Not given: one for each GPU", 0 },
		{ "plan", KEY_PLAN, NULL, 0,
		  "Open nothing; print the queue pairs and the memory that a job needs on a node and "
		  "each of its NICs, with daemons and without (with --json: schema epf.nics-plan/1)",
		  0 },
		{ "nodes", KEY_NODES, "N", 0, "Nodes of the job to plan. Not given: 256", 0 },
		{ "ranks-per-node", KEY_PER_NODE, "N", 0, "Ranks of each. Not given: 8", 0 },
		{ "devices", KEY_DEVICES, "N", 0,
		  "RDMA devices of each. Not given: those of this machine, or of --sysfs, at least 1",
		  0 },
		{ "prove", KEY_PROVE, "HOST", OPTION_ARG_OPTIONAL,
		  "Check what the engine assumes of the NIC that is set, in at most two minutes, and report each "
		  "assumption as held, broken or not tried (with --json: schema epf.prove/1). Without HOST both ends "
		  "are here; with it the other end is there, where --prove --wait runs",
		  0 },
		{ "wait", KEY_WAIT, NULL, 0, "Be the other end for a host that names this one", 0 },
		{ "port", KEY_PORT, "N", 0, "TCP port where the two hosts meet. Not given: 18519",
		  0 },
		{ "peer-device", KEY_PEER, "LIST", 0,
		  "nic-device of the other end on this host. Not given: the same device", 0 },
		{ "save", KEY_SAVE, "FILE", 0, "Write the JSON of --prove to FILE, too", 0 },
		{ 0 },
	};
	struct request req = { 0 };
	struct argp_child children[] = { { &req.cli.argp, 0, NULL, 0 }, { 0 } };
	struct argp argp = {
		.options = options,
		.parser = parse,
		.children = children,
		.doc = "Open each kind of NIC with the settings given here, and print what it can "
		       "do: order of delivery, longest transfer, lanes, links, work requests a lane holds, "
		       "receives, and whether arrivals are reported. * marks the one that is set. Then "
		       "print the RDMA devices and GPUs of the machine, which device and port serves "
		       "which local rank, the CPU and memory node that go with it, and why.",
	};

	argp_err_exit_status = EXIT_USAGE;
	if (epf_conf_init(&req.conf)) {
		fprintf(stderr, "ep-fabric nics: out of memory\n");
		return EXIT_FAILURE;
	}
	epf_conf_cli_init(&req.cli, GROUPS, true);
	argp_parse(&argp, argc, argv, 0, NULL, &req);
	if (epf_conf_load(&req.conf, NULL)) {
		req.failed++;
		fprintf(stderr, "ep-fabric nics: %s\n", epf_last_error());
	} else if (req.is_prove) {
		req.failed += prove(&req) != 0;
	} else if (!req.is_plan) {
		show_all(&req);
	} else if (epf_nics_plan(&req.conf, req.sysfs, &req.plan, req.json)) {
		req.failed++;
		fprintf(stderr, "ep-fabric nics: %s\n", epf_last_error());
	}
	epf_conf_destroy(&req.conf);
	return req.failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
