/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The choice of choose_nic.h: the software NIC within a host; between hosts RDMA where a port is active, else TCP. Every rank chooses alike as long as the hosts are alike; if not, the join
 * names two that differ.
 */
#define EPF_LOG_COMP "epf"
#include "fabric/client/choose_nic.h"

#include "bootstrap/net.h"
#include "bootstrap/rank_env.h"
#include "fabric/base/err.h"
#include "fabric/base/log.h"

#include <string.h>

static int is_loopback(const char *rendezvous)
{
	struct epf_net_addr at[EPF_NET_ADDRS_MAX];
	char host[EPF_NET_HOST_MAX];
	uint16_t port;
	size_t n = 0;

	if (epf_net_split(rendezvous, host, &port))
		return 1; /* the join says what is wrong with it */
	if (strcmp(host, "localhost") == 0)
		return 1;
	/* A name may lead to loopback here alone, as /etc/hosts often makes a host's own do. */
	return epf_net_is_literal(host) && epf_net_resolve(host, port, at, &n) == 0 &&
	       epf_net_is_loopback(&at[0]);
}

int epf_spans_hosts(const char *rendezvous, uint32_t world, uint32_t local_world)
{
	if (!rendezvous[0] || world == 1 || is_loopback(rendezvous))
		return 0;
	return !local_world || local_world < world;
}

int epf_job_spans_hosts(const struct epf_conf *conf)
{
	struct epf_rank_info info = { .local_world = EPF_RANK_UNKNOWN };
	uint32_t world, local;

	if (epf_rank_discover(&info)) /* not a rank of a launcher's: what is configured counts */
		info = (struct epf_rank_info){ .world = EPF_RANK_UNKNOWN,
					       .local_world = EPF_RANK_UNKNOWN };
	world = conf->world_size >= 0 ? (uint32_t)conf->world_size : info.world;
	local = info.local_world == EPF_RANK_UNKNOWN ? 0 : info.local_world;
	return epf_spans_hosts(conf->rendezvous[0] ? conf->rendezvous : info.rendezvous, world,
			       local);
}

int epf_choose_nic(struct epf_conf *conf)
{
	struct epf_place_map map = { 0 };
	const char *nic = NULL;

	if (conf->nic != EPF_CONF_NIC_AUTO)
		return 0;
	if (!epf_job_spans_hosts(conf))
		return epf_conf_set(conf, "nic", "emu", EPF_CONF_PROGRAM);
	if (!conf->wire_encryption && epf_place_read(NULL, &map) == 0)
		nic = epf_place_rdma(&map);
	epf_place_map_destroy(&map);
	nic = nic ? nic : "tcp";
	epf_info("nic auto: %s, since the job is on several hosts%s", nic,
		 conf->wire_encryption     ? " and its wire is to be encrypted"
		 : strcmp(nic, "tcp") == 0 ? " without an active RDMA port here"
					   : "");
	return epf_conf_set(conf, "nic", nic, EPF_CONF_PROGRAM);
}
