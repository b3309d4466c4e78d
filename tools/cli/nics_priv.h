/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of `ep-fabric nics` share.
 */
#ifndef EPF_TOOLS_CLI_NICS_H
#define EPF_TOOLS_CLI_NICS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct epf_conf;

/**
 * epf_nics_place() - print, or put into a JSON object, the machine's RDMA devices and which serves which local index.
 * @sysfs: a tree; NULL: the machine's.
 * @indices: local indices; 0: one for each GPU.
 * @top: gets "sysfs", "devices", "gpus", "choices" and "notes"; NULL: text to standard output.
 *
 * Return: 0; minus errno with epf_last_error() set. When only the selection (nic-device) is at fault, devices and GPUs are there
 * all the same, and no choices.
 */
int epf_nics_place(const struct epf_conf *conf, const char *sysfs, uint32_t indices, json_t *top);

/* A job to plan for. */
struct epf_nics_plan_opts {
	uint32_t nodes;
	uint32_t ranks_per_node;
	uint32_t devices; /* RDMA devices of a node; 0: those of the tree, at least 1 */
};

/**
 * epf_nics_plan() - print how many queue pairs and what memory a job needs, with daemons and without.
 * @sysfs: a tree to count devices in; NULL: the machine's.
 * @json: one object, schema epf.nics-plan/1, in place of the table.
 *
 * Return: 0; minus errno with epf_last_error() set when the job cannot be run with daemons, or the tree cannot be read.
 */
int epf_nics_plan(const struct epf_conf *conf, const char *sysfs,
		  const struct epf_nics_plan_opts *opts, bool json);

enum { EPF_NICS_PROVE_PORT = 18519 };

/* What to prove, and how to report it. */
struct epf_nics_prove_opts {
	const char *host;        /* of the other end; NULL: this one */
	bool wait;               /* be the other end of a host that names this one */
	uint32_t port;           /* where the two meet */
	const char *peer_device; /* nic-device of the other end on this host; NULL: the same */
	const char *save;        /* file for the JSON; NULL: none */
	bool json;               /* print that in place of the text */
};

/**
 * epf_nics_prove() - check what the engine assumes of the NIC that is set, with progress to standard error and a report to standard output.
 *
 * Return: 0 if nothing is broken; -EPROTO if something is; another -errno, which was printed.
 */
int epf_nics_prove(const struct epf_conf *conf, const struct epf_nics_prove_opts *opts);

#endif
