/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ep-fabric nics --prove`: runs the checks of check.h over the NIC that is set, and reports each assumption as held, broken or not tried.
 * Used by tools/cli/nics_prove.c and by tests. Safe beside running jobs: it has its own memory (RIG_BYTES at each end, for single checks up to
 * 2 MiB more), its own lanes (PROVE_LANES at most), and changes nothing of the device.
 */
#ifndef EPF_TOOLS_PROVE_PROVE_H
#define EPF_TOOLS_PROVE_PROVE_H

#include "fabric/nic/nic.h"
#include "tools/prove/check.h"

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>

struct epf_boot;
struct epf_conf;

enum {
	PROVE_LANES = 32,
	PROVE_ROWS = 64,
	PROVE_TEXT = 480,
	PROVE_SECONDS = 120,
	PROVE_ROW_SECONDS = 30
};

enum prove_verdict { PROVE_HELD, PROVE_BROKEN, PROVE_NOT_TRIED };

struct prove_opts {
	const struct epf_conf *conf;
	const struct epf_conf *peer; /* settings of the other end on this host; NULL: conf */
	struct epf_boot *
		boot; /* the other end is on the host that is rank 1 there; NULL: it is on this one */
	FILE *progress;   /* a line for each check; NULL: none */
	const char *only; /* key of the only check to run; NULL: all. For tests */
	/* Puts another NIC in place of one that was just opened. For tests; NULL: none. */
	void (*wrap)(struct epf_nic **nic, int end);
};

struct prove_row {
	const struct check *check;
	enum prove_verdict verdict;
	char detail[PROVE_TEXT]; /* why it is not held; empty where it is */
	uint64_t ns;
};

struct prove_report {
	char nic[32], host[64], peer_host[64]; /* peer_host: empty on one host */
	char device[256], peer_device[256];    /* as nic-device; empty: not set */
	struct epf_nic_caps caps;              /* its name means nothing */
	unsigned n, held, broken, not_tried;
	uint64_t ns;
	struct prove_row rows[PROVE_ROWS];
};

/**
 * prove_run() - run all checks, one after the other, each over NICs that are opened for it.
 *
 * One thread, one run at a time. Takes PROVE_SECONDS at most: checks that have not been run by then are "not tried".
 * Return: 0 whatever the verdicts are; -errno with epf_last_error() set if the NIC cannot be opened or the other host is gone.
 */
int prove_run(const struct prove_opts *opts, struct prove_report *out);

/* prove_serve() - be the other end of prove_run() on another host, as rank 1 of @boot, until it is done. Return: as prove_run(). */
int prove_serve(const struct epf_conf *conf, struct epf_boot *boot);

/**
 * prove_conf_like() - the same settings but for one.
 * @out: to be destroyed; written on success only. Secrets are left out.
 *
 * Return: 0; -errno with epf_last_error() set.
 */
int prove_conf_like(const struct epf_conf *conf, const char *name, const char *value,
		    struct epf_conf *out);

/* The report. json: schema epf.prove/1; NULL without memory. */
void prove_text(const struct prove_report *report, FILE *out);
json_t *prove_json(const struct prove_report *report);

#endif
