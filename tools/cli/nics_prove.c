/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ep-fabric nics --prove`: checks what the engine assumes of the NIC that is set (tools/prove/prove.h), on this host or towards another, where
 * `--prove --wait` is the other end. The two meet as a job of two ranks, so each has to prove the job's secret. Called by nics.c.
 */
#include "bootstrap/boot.h"
#include "fabric/base/conf.h"
#include "fabric/base/err.h"
#include "tools/cli/nics_priv.h"
#include "tools/prove/prove.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MINUTE 60000000000ull

enum { ASKING = 0, WAITING = 1, WAIT_MINUTES = 10 };

static bool has_secret(const struct epf_conf *conf)
{
	const char *fd = getenv("EPF_SECRET_FD");

	return *conf->secret_file || *conf->secret || (fd && *fd);
}

static int meet(const struct epf_conf *conf, const struct epf_nics_prove_opts *o,
		struct epf_boot **out)
{
	const char *host = o->host;
	char at[EPF_BOOT_ADDRESS_MAX];
	struct epf_boot_opts b = { .size = sizeof(b),
				   .rank = host ? ASKING : WAITING,
				   .world = 2,
				   .rendezvous = at,
				   .job = "ep-fabric nics --prove",
				   .secret = *conf->secret ? conf->secret : NULL,
				   .secret_len = strlen(conf->secret),
				   .secret_file = *conf->secret_file ? conf->secret_file : NULL,
				   .ifname = *conf->socket_ifname ? conf->socket_ifname : NULL,
				   .timeout_ns = WAIT_MINUTES * MINUTE,
				   .is_root = !host };
	int n;

	if (!host)
		host = !has_secret(conf)                    ? "127.0.0.1"
		       : access("/proc/net/if_inet6", F_OK) ? "0.0.0.0"
							    : "::";
	/* A bare IPv6 address contains colons. */
	n = snprintf(at, sizeof(at), strchr(host, ':') && *host != '[' ? "[%s]:%u" : "%s:%u", host,
		     (unsigned)o->port);
	if (n < 0 || (size_t)n >= sizeof(at))
		return epf_fail(EPF_R_BOOT_ADDRESS, "%.60s... is too long for a host", host);
	return epf_boot_tcp_open(&b, out);
}

static int save(const struct prove_report *report, const char *path)
{
	json_t *json = prove_json(report);
	int rc = json ? json_dump_file(json, path, JSON_INDENT(1)) : -1;

	json_decref(json);
	if (rc)
		fprintf(stderr, "ep-fabric nics: %s cannot be written: %s\n", path,
			strerror(errno));
	return rc ? -EIO : 0;
}

static int print(const struct prove_report *report, const struct epf_nics_prove_opts *o)
{
	json_t *json;
	int rc = 0;

	if (o->json) {
		json = prove_json(report);
		if (!json || json_dumpf(json, stdout, JSON_INDENT(1)) || putchar('\n') == EOF)
			rc = -EIO;
		json_decref(json);
		if (rc)
			fprintf(stderr, "ep-fabric nics: the report cannot be written: %s\n",
				strerror(errno));
	} else {
		prove_text(report, stdout);
		if (o->save)
			printf("To send it to us, attach %s to an issue. It names hosts and devices, and no secret.\n",
			       o->save);
		else
			printf("To send it to us, run it again with --save=prove.json, and attach the file to an issue.\n");
	}
	return rc;
}

static int run(const struct epf_conf *conf, const struct epf_conf *peer, struct epf_boot *boot,
	       const struct epf_nics_prove_opts *o)
{
	struct prove_opts p = { .conf = conf, .peer = peer, .boot = boot, .progress = stderr };
	struct prove_report *report = malloc(sizeof(*report));
	int rc;

	if (!report) {
		fprintf(stderr, "ep-fabric nics: no memory\n");
		return -ENOMEM;
	}
	rc = prove_run(&p, report);
	if (rc)
		fprintf(stderr, "ep-fabric nics: %s\n", epf_last_error());
	if (!rc)
		rc = print(report, o);
	if (!rc && o->save)
		rc = save(report, o->save);
	if (!rc && report->broken)
		rc = -EPROTO;
	free(report);
	return rc;
}

/* On this host: the other end may have a device of its own. */
static int run_here(const struct epf_conf *conf, const struct epf_nics_prove_opts *o)
{
	struct epf_conf peer;
	int rc;

	if (!o->peer_device)
		return run(conf, NULL, NULL, o);
	rc = prove_conf_like(conf, "nic-device", o->peer_device, &peer);
	if (rc) {
		fprintf(stderr, "ep-fabric nics: %s\n", epf_last_error());
		return rc;
	}
	rc = run(conf, &peer, NULL, o);
	epf_conf_destroy(&peer);
	return rc;
}

int epf_nics_prove(const struct epf_conf *conf, const struct epf_nics_prove_opts *o)
{
	struct epf_boot *boot = NULL;
	int rc;

	/* Each line as it comes, also into a file. */
	setvbuf(stderr, NULL, _IONBF, 0);
	if (!o->host && !o->wait)
		return run_here(conf, o);
	if (o->wait)
		fprintf(stderr,
			"waiting at port %u; on the other host: ep-fabric nics --prove=HOST\n",
			(unsigned)o->port);
	rc = meet(conf, o, &boot);
	if (!rc && !o->wait)
		rc = run(conf, NULL, boot, o);
	else if (!rc)
		rc = prove_serve(conf, boot);
	if (rc && (o->wait || !boot))
		fprintf(stderr, "ep-fabric nics: %s\n", epf_last_error());
	epf_boot_close(boot);
	return rc;
}
