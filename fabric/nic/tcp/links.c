/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which interfaces a TCP NIC uses, and opening it: each interface that the setting socket-ifname chooses is a NIC with a door of its own, and several are one NIC with as many links
 * (nic/nic.h: epf_nic_rails_open). Without a choice there is one link, on the way to the rendezvous. Slow path.
 */
#include "fabric/nic/tcp/tcp.h"

#include "fabric/base/err.h"

#include <errno.h>
#include <ifaddrs.h>
#include <stdio.h>
#include <string.h>

struct links {
	char name[EPF_NIC_LINKS][IF_NAMESIZE + 1]; /* "=eth0" */
	uint32_t n, all;                           /* kept, and found */
};

static int is_fit(const struct ifaddrs *i, const char *spec)
{
	const struct sockaddr *a = i->ifa_addr;
	struct sockaddr_in6 v6;

	if (!a || !(i->ifa_flags & IFF_UP) || !(i->ifa_flags & IFF_RUNNING) ||
	    (i->ifa_flags & IFF_LOOPBACK) || !epf_net_if_match(spec, i->ifa_name))
		return 0;
	if (a->sa_family != AF_INET6)
		return a->sa_family == AF_INET;
	memcpy(&v6, a, sizeof(v6));
	return !IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr);
}

static void note(struct links *l, const char *name)
{
	char text[IF_NAMESIZE + 1];

	snprintf(text, sizeof(text), "=%.*s", IF_NAMESIZE - 1, name);
	for (uint32_t i = 0; i < l->n; i++)
		if (strcmp(l->name[i], text) == 0)
			return;
	l->all++;
	if (l->n < EPF_NIC_LINKS)
		memcpy(l->name[l->n++], text, sizeof(text));
}

/* Interfaces that fit the choice, in the order of their numbers. None: loopback may be meant, or the address says what is wrong. */
static int find(const char *spec, struct links *l)
{
	struct ifaddrs *list;

	if (getifaddrs(&list))
		return epf_fail_sys(EPF_R_BOOT_INTERFACE, errno, "tcp: the list of interfaces");
	for (const struct ifaddrs *i = list; i; i = i->ifa_next)
		if (is_fit(i, spec))
			note(l, i->ifa_name);
	freeifaddrs(list);
	return 0;
}

static int open_links(const struct epf_tcp_opts *opts, const struct links *l,
		      uint64_t (*now)(void *), void *now_arg, struct epf_nic **out)
{
	struct epf_nic *child[EPF_NIC_LINKS] = { NULL };
	struct epf_tcp_opts one = *opts;
	int rc = 0;

	one.links = l->n;
	for (uint32_t i = 0; i < l->n && !rc; i++) {
		one.ifname = l->name[i];
		rc = epf_tcp_open(&one, now, now_arg, &child[i]);
		if (!rc)
			epf_tcp_share_wakeup(child[i], child[0]);
	}
	if (!rc)
		rc = epf_nic_rails_open(child, l->n, out);
	for (uint32_t i = l->n; rc && i-- > 0;)
		if (child[i])
			child[i]->ops->close(child[i]);
	return rc;
}

int epf_tcp_open_chosen(const struct epf_tcp_opts *opts, uint64_t (*now)(void *), void *now_arg,
			struct epf_nic **out)
{
	struct links l = { .n = 0 };
	int rc = opts->ifname && *opts->ifname ? find(opts->ifname, &l) : 0;

	if (rc)
		return rc;
	if (opts->links && l.n > opts->links)
		l.n = opts->links;
	else if (l.all > l.n)
		return epf_fail(
			EPF_R_NIC_LIMIT,
			"tcp: socket-ifname '%s' leaves %u interfaces, and a job uses %d at "
			"most: set nic-count, or name fewer",
			opts->ifname, l.all, EPF_NIC_LINKS);
	return l.n > 1 ? open_links(opts, &l, now, now_arg, out)
		       : epf_tcp_open(opts, now, now_arg, out);
}
