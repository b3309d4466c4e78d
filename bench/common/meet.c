/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The server and the client of meet.h: a job of two ranks, whose rendezvous is the server's.
 */
#include "bench/common/meet.h"

#include "bench/common/bench.h"
#include "bootstrap/boot.h"
#include "fabric/base/err.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool has(const char *name)
{
	const char *text = getenv(name);

	return text && *text;
}

int bench_meet(const char *host, uint64_t port, uint64_t timeout_ns, struct epf_boot **out)
{
	bool secret = has("EPF_SECRET") || has("EPF_SECRET_FILE") || has("EPF_SECRET_FD");
	char at[EPF_BOOT_ADDRESS_MAX];
	struct epf_boot_opts o = { .size = sizeof(o),
				   .rank = host ? BENCH_MEET_CLIENT : BENCH_MEET_SERVER,
				   .world = 2,
				   .rendezvous = at,
				   .job = "ep-bench",
				   .timeout_ns = timeout_ns,
				   .is_root = !host };
	int rc;

	if (!host)
		host = !secret                              ? "127.0.0.1"
		       : access("/proc/net/if_inet6", F_OK) ? "0.0.0.0"
							    : "::";
	/* A bare IPv6 address contains colons. */
	rc = snprintf(at, sizeof(at), strchr(host, ':') && *host != '[' ? "[%s]:%u" : "%s:%u", host,
		      (unsigned)port);
	if (rc < 0 || (size_t)rc >= sizeof(at)) {
		bench_complain("%.60s... is too long for a host", host);
		return -EINVAL;
	}
	rc = epf_boot_tcp_open(&o, out);
	if (rc)
		bench_complain("%s", epf_last_error());
	return rc;
}

int bench_meet_swap(struct epf_boot *boot, const void *mine, void *theirs, size_t bytes)
{
	uint32_t other = 1 - epf_boot_rank(boot);
	struct epf_blob *all = NULL;
	int rc = epf_boot_allgather(boot, mine, bytes, &all);

	if (rc) {
		bench_complain("%s", epf_last_error());
		return rc;
	}
	if (all[other].len == bytes) {
		memcpy(theirs, all[other].data, bytes);
	} else {
		bench_complain(
			"the other end is of another release, or runs another command of ep-bench");
		rc = -EPROTO;
	}
	epf_boot_free_blobs(all);
	return rc;
}
