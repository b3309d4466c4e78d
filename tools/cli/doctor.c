/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ep-fabric doctor`: looks at what a node needs, in the order in which a missing thing hides the next, and prints for each: ok, or what is
 * wrong and the command that fixes it. Called by the main program of ep-fabric. The checks are in doctor_*.c; it must change nothing.
 */
#include "tools/doctor/doctor.h"
#include "fabric/base/conf_cli.h"
#include "fabric/base/err.h"
#include "tools/cli/tools.h"

#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXIT_USAGE 2

enum { KEY_SYSFS = 0x10000, KEY_PROCFS, KEY_STRICT, KEY_CHECKS };

struct request {
	struct doctor d;
	bool json;
	bool strict;
	bool list_only;
};

static const struct doctor_check *const tables[] = {
	doctor_rdma_checks,    doctor_pci_checks,    doctor_host_checks,
	doctor_network_checks, doctor_fabric_checks, doctor_backend_checks,
};

#define TABLES (sizeof(tables) / sizeof(tables[0]))

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct request *req = state->input;

	switch (key) {
	case ARGP_KEY_INIT:
		state->child_inputs[0] = &req->d.conf;
		return 0;
	case 'j':
		req->json = true;
		return 0;
	case KEY_SYSFS:
		req->d.sysfs = arg;
		req->d.is_recorded = true;
		return 0;
	case KEY_PROCFS:
		req->d.procfs = arg;
		req->d.is_recorded = true;
		return 0;
	case KEY_STRICT:
		req->strict = true;
		return 0;
	case KEY_CHECKS:
		req->list_only = true;
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static void list_checks(void)
{
	for (size_t t = 0; t < TABLES; t++)
		for (const struct doctor_check *c = tables[t]; c->name; c++)
			printf("%-12s %s\n", c->name, c->doc);
}

static void examine(struct doctor *d)
{
	d->needs_rdma = d->conf.nic == EPF_CONF_NIC_VERBS || d->conf.nic == EPF_CONF_NIC_EFA;
	d->check = "machine";
	if (epf_place_read(d->sysfs, &d->map)) {
		doctor_say(d, DOCTOR_FAIL, "mount sysfs, or give --sysfs a directory", "%s",
			   epf_last_error());
		memset(&d->map, 0, sizeof(d->map));
	}
	d->wants_rdma = d->needs_rdma || d->map.nics;
	for (size_t t = 0; t < TABLES; t++)
		for (const struct doctor_check *c = tables[t]; c->name; c++) {
			d->check = c->name;
			c->run(d);
		}
	epf_place_map_destroy(&d->map);
}

static int report(struct request *req)
{
	struct doctor *d = &req->d;
	bool healthy = !d->count[DOCTOR_FAIL] && !(req->strict && d->count[DOCTOR_WARN]);
	int rc = 0;

	if (req->json) {
		json_t *top = json_pack(
			"{s:s, s:b, s:i, s:i, s:i, s:i, s:O}", "schema", "epf.doctor/1", "healthy",
			(int)healthy, "ok", (int)d->count[DOCTOR_OK], "skipped",
			(int)d->count[DOCTOR_SKIP], "warnings", (int)d->count[DOCTOR_WARN],
			"failures", (int)d->count[DOCTOR_FAIL], "findings", d->list);

		rc = !top || json_dumpf(top, stdout, JSON_INDENT(1)) || putchar('\n') == EOF;
		json_decref(top);
	} else {
		printf("%u ok, %u skipped, %u warnings, %u failures\n", d->count[DOCTOR_OK],
		       d->count[DOCTOR_SKIP], d->count[DOCTOR_WARN], d->count[DOCTOR_FAIL]);
	}
	if (rc || fflush(stdout) || ferror(stdout)) {
		fprintf(stderr, "ep-fabric doctor: cannot write: %s\n", strerror(errno));
		return EXIT_FAILURE;
	}
	return healthy ? EXIT_SUCCESS : EXIT_FAILURE;
}

int epf_tool_doctor(int argc, char **argv)
{
	static const struct argp_option options[] = {
		{ "json", 'j', NULL, 0, "Print one JSON object, schema epf.doctor/1", 0 },
		{ "strict", KEY_STRICT, NULL, 0, "Warnings fail too", 0 },
		{ "list", KEY_CHECKS, NULL, 0, "Print the checks and stop", 0 },
		{ "sysfs", KEY_SYSFS, "DIR", 0,
		  "Examine this recorded tree instead of /sys; checks that need a live machine are skipped",
		  0 },
		{ "procfs", KEY_PROCFS, "DIR", 0, "Examine this recorded tree instead of /proc",
		  0 },
		{ 0 },
	};
	static const struct argp_child children[] = { { &epf_conf_argp, 0, NULL, 0 }, { 0 } };
	static const struct argp argp = {
		.options = options,
		.parser = parse,
		.children = children,
		.doc = "Look at what this node needs to serve jobs with the settings given here, and print for each: "
		       "ok; or what is wrong, what it costs, and the command that fixes it. Changes nothing. "
		       "Exit status: 0 nothing failed, 1 something did, 2 wrong usage.",
	};
	struct request req = { .d = { .sysfs = "/sys", .procfs = "/proc" } };
	int rc = EXIT_FAILURE;

	argp_err_exit_status = EXIT_USAGE;
	if (epf_conf_init(&req.d.conf)) {
		fprintf(stderr, "ep-fabric doctor: out of memory\n");
		return EXIT_FAILURE;
	}
	argp_parse(&argp, argc, argv, 0, NULL, &req);
	if (req.list_only) {
		list_checks();
		epf_conf_destroy(&req.d.conf);
		return EXIT_SUCCESS;
	}
	req.d.list = req.json ? json_array() : NULL;
	if (epf_conf_load(&req.d.conf, NULL)) {
		/* Nothing else can be judged by settings that are wrong. */
		req.d.check = "settings";
		doctor_say(&req.d, DOCTOR_FAIL, NULL, "%s", epf_last_error());
		rc = report(&req);
	} else if (req.json && !req.d.list) {
		fprintf(stderr, "ep-fabric doctor: out of memory\n");
	} else {
		examine(&req.d);
		rc = report(&req);
	}
	json_decref(req.d.list);
	epf_conf_destroy(&req.d.conf);
	return rc;
}
