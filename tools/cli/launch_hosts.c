/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of hosts, as `ep-fabric launch` reads them: whose host it is, and whether it is this one.
 */
#include "bootstrap/net.h"
#include "tools/cli/launch_priv.h"

#include <ifaddrs.h>
#include <string.h>
#include <unistd.h>

const char *launch_name(const char *host)
{
	const char *at = strrchr(host, '@');

	return at ? at + 1 : host;
}

static bool is_own_address(const struct epf_net_addr *a, const struct ifaddrs *list)
{
	for (const struct ifaddrs *i = list; i; i = i->ifa_next) {
		if (!i->ifa_addr || i->ifa_addr->sa_family != a->sa.sa_family)
			continue;
		if (a->sa.sa_family == AF_INET &&
		    !memcmp(&((const struct sockaddr_in *)(const void *)i->ifa_addr)->sin_addr,
			    &a->v4.sin_addr, sizeof(a->v4.sin_addr)))
			return true;
		if (a->sa.sa_family == AF_INET6 &&
		    !memcmp(&((const struct sockaddr_in6 *)(const void *)i->ifa_addr)->sin6_addr,
			    &a->v6.sin6_addr, sizeof(a->v6.sin6_addr)))
			return true;
	}
	return false;
}

bool launch_is_here(const char *host)
{
	const char *name = launch_name(host);
	struct epf_net_addr at[EPF_NET_ADDRS_MAX];
	struct ifaddrs *list;
	char own[256] = "";
	size_t count;
	bool here;

	/* Another user on this host needs the remote shell. */
	if (name != host)
		return false;
	(void)gethostname(own, sizeof(own) - 1);
	if (!strcmp(name, own) || !strcmp(name, "localhost"))
		return true;
	if (epf_net_resolve(name, 0, at, &count) || getifaddrs(&list))
		return false;
	here = is_own_address(&at[0], list);
	freeifaddrs(list);
	return here;
}
