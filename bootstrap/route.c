/* SPDX-License-Identifier: Apache-2.0 */
/*
 * By which address the other ranks reach this rank's host (boot.h: epf_boot_route): the one that its own way to the rendezvous uses. Called once, when a job is
 * joined. It never sends anything.
 */
#include "bootstrap/client_priv.h"

#include <netdb.h>
#include <string.h>

static bool is_any(const struct epf_net_addr *addr)
{
	return addr->sa.sa_family == AF_INET6 ? IN6_IS_ADDR_UNSPECIFIED(&addr->v6.sin6_addr)
					      : addr->v4.sin_addr.s_addr == htonl(INADDR_ANY);
}

/*
 * The host of the server is connected to it over loopback. It is reached by the rendezvous' own address, but not where its name leads to loopback only here, as
 * /etc/hosts often makes a host's own name do.
 */
static bool of_server(const struct tcp_boot *t, struct epf_net_addr *out)
{
	struct epf_net_addr at[EPF_NET_ADDRS_MAX];
	char host[EPF_NET_HOST_MAX];
	uint16_t port;
	size_t n = 0;

	if (epf_net_split(t->where, host, &port) || epf_net_resolve(host, port, at, &n))
		return false;
	/* Listening everywhere: the ranks of other hosts know it by the address at which they came. */
	if (n && is_any(&at[0]))
		return epf_boot_server_reached(t->server, out) == 0;
	for (size_t i = 0; i < n; i++)
		if (epf_net_is_local(&at[i]) &&
		    (!epf_net_is_loopback(&at[i]) || epf_net_is_literal(host) ||
		     strcmp(host, "localhost") == 0)) {
			*out = at[i];
			return true;
		}
	return false;
}

int tcp_route(struct epf_boot *b, char *host, size_t size, bool *is_secret)
{
	const struct tcp_boot *t = (const struct tcp_boot *)b;
	struct epf_net_addr at = { .len = sizeof(at.any) };
	bool known = t->server ? of_server(t, &at) : getsockname(t->fd, &at.sa, &at.len) == 0;

	*is_secret = t->auth.has_secret;
	if (!known || getnameinfo(&at.sa, at.len, host, (socklen_t)size, NULL, 0, NI_NUMERICHOST))
		host[0] = 0;
	return 0;
}
