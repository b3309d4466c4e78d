/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options of the TCP NIC, for the NIC itself and for tests that open one without a configuration.
 */
#ifndef EPF_FABRIC_NIC_TCP_OPTS_H
#define EPF_FABRIC_NIC_TCP_OPTS_H

#include "fabric/base/conf.h"
#include "fabric/nic/nic.h"
#include "fabric/nic/tcp/wire.h"

#include <stdbool.h>

struct epf_tcp_opts {
	const char
		*ifname; /* interfaces, as socket-ifname; NULL or "": what the job says (set_job) */
	uint32_t links;  /* of the job: above 1 each dials by its own interface */
	uint64_t timeout_ns; /* silence of a peer's host, and each attempt to connect */
	uint64_t rnr_timeout_ns;
	uint64_t stranger_timeout_ns; /* for a connection to prove itself */
	uint32_t strangers;           /* connections that have not proven themselves */
	const char *congestion;       /* tcp-congestion; NULL or "": the system's */
	bool encrypts;                /* wire-encryption */
	const char *gpu;              /* copies of GPU memory, as epf_copy_ops_find(); NULL: none */
	uint64_t
		reset_after; /* for tests: a lane resets its connection after so many work requests, 0: never */
};

/* Mode of the handshake. */
static inline uint16_t epf_tcp_opts_mode(const struct epf_tcp_opts *opts)
{
	return opts->encrypts ? EPF_TCP_MODE_SEALED : EPF_TCP_MODE_PLAIN;
}

void epf_tcp_opts_defaults(struct epf_tcp_opts *opts);
void epf_tcp_opts_from_conf(struct epf_tcp_opts *opts, const struct epf_conf *conf);

/* Opens what opts choose: a NIC of one link, or of as many as interfaces fit; opts.links: at most, 0: all. As epf_tcp_open(). */
int epf_tcp_open_chosen(const struct epf_tcp_opts *opts, uint64_t (*now)(void *), void *now_arg,
			struct epf_nic **out);

/* Opens a TCP NIC of one link. now: the core's clock. Return: 0 and *out, or -errno with epf_last_error() set. */
int epf_tcp_open(const struct epf_tcp_opts *opts, uint64_t (*now)(void *), void *now_arg,
		 struct epf_nic **out);

#endif
