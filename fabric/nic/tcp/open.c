/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings of a TCP NIC, and opening and closing one of one link. Slow path.
 */
#include "fabric/nic/tcp/tcp.h"

#include "fabric/base/err.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

void epf_tcp_opts_defaults(struct epf_tcp_opts *opts)
{
	*opts = (struct epf_tcp_opts){ .timeout_ns = 2000000000u,
				       .rnr_timeout_ns = 2000000000u,
				       .stranger_timeout_ns = 5000000000u,
				       .strangers = 512 };
}

void epf_tcp_opts_from_conf(struct epf_tcp_opts *opts, const struct epf_conf *conf)
{
	epf_tcp_opts_defaults(opts);
	opts->ifname = conf->socket_ifname;
	opts->links = (uint32_t)conf->nic_count;
	opts->timeout_ns = conf->tcp_timeout_ns;
	opts->congestion = conf->tcp_congestion;
	opts->reset_after = conf->tcp_reset_after;
	opts->encrypts = conf->wire_encryption;
	opts->gpu = epf_copy_name(conf);
}

/* The environment holds the job's secret, which is the bootstrap's to read. */
static const char *no_env(const char *name, void *arg)
{
	return NULL;
}

void epf_tcp_close(struct epf_nic *nic)
{
	struct epf_tcp *t = epf_tcp_of(nic);

	if (!nic)
		return;
	for (uint32_t lane = 0; lane < t->lanes_end; lane++)
		epf_tcp_lane_destroy(nic, (uint16_t)lane);
	epf_tcp_gpu_close(t);
	epf_tcp_door_close(t->door);
	if (t->inner_fd >= 0)
		close(t->inner_fd);
	epf_auth_wipe(&t->auth);
	free(t->lanes);
	free(t->tries);
	free(t->regions);
	free(t);
}

int epf_tcp_open(const struct epf_tcp_opts *opts, uint64_t (*now)(void *), void *now_arg,
		 struct epf_nic **out)
{
	struct epf_tcp *t = aligned_alloc(64, (sizeof(*t) + 63) / 64 * 64);
	uint8_t random[EPF_AUTH_NONCE_BYTES];
	int rc;

	if (!t)
		return epf_fail(EPF_R_NO_MEMORY, "tcp: a NIC");
	memset(t, 0, sizeof(*t));
	t->nic.ops = epf_nic_find("tcp");
	t->opts = *opts;
	snprintf(t->ifname, sizeof(t->ifname), "%s", opts->ifname ? opts->ifname : "");
	t->opts.ifname = t->ifname;
	snprintf(t->congestion, sizeof(t->congestion), "%s",
		 opts->congestion ? opts->congestion : "");
	t->opts.congestion = t->congestion;
	t->now = now;
	t->now_arg = now_arg;
	t->wakeup = &t->own_wakeup;
	t->copier_of = t;
	t->ready_head = EPF_TCP_NO_LANE;
	t->lanes = calloc(EPF_TCP_MAX_LANES, sizeof(struct epf_tcp_lane *));
	t->tries = calloc(EPF_TCP_MAX_LANES, sizeof(*t->tries));
	t->inner_fd = epoll_create1(EPOLL_CLOEXEC);
	/* Until the job gives its key (set_job): the one that anybody can make. */
	rc = epf_auth_load(NULL, 0, NULL, no_env, NULL, &t->auth);
	if (!rc && (!t->lanes || !t->tries))
		rc = epf_fail(EPF_R_NO_MEMORY, "tcp: a NIC");
	if (!rc && t->inner_fd < 0)
		rc = epf_fail_sys(EPF_R_SYSTEM, errno, "tcp: epoll_create1");
	if (rc) {
		epf_tcp_close(&t->nic);
		return rc;
	}
	epf_auth_nonce(random);
	memcpy(t->id, random, EPF_TCP_ID);
	memcpy(&t->epoch, random + EPF_TCP_ID, sizeof(t->epoch));
	memcpy(&t->region_generation, random + EPF_TCP_ID + 4, sizeof(t->region_generation));
	*out = &t->nic;
	return 0;
}

void epf_tcp_share_wakeup(struct epf_nic *nic, const struct epf_nic *with)
{
	epf_tcp_of(nic)->wakeup = epf_tcp_of(with)->wakeup;
	epf_tcp_of(nic)->copier_of = epf_tcp_of(with);
}
