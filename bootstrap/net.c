/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Addresses and interface choice; see net.h. Everything is by the system's own functions
 * (getaddrinfo, getnameinfo, getifaddrs), so IPv6 scopes and /etc/hosts work as everywhere.
 */
#include "bootstrap/net.h"

#include "fabric/base/err.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int bad_address(const char *text, const char *why)
{
	return epf_fail(EPF_R_BOOT_ADDRESS, "address '%s' %s", text, why);
}

static int read_port(const char *text, const char *digits, uint16_t *port)
{
	unsigned long v = 0;
	size_t n = strlen(digits);

	if (!n || n > 5 || strspn(digits, "0123456789") != n)
		return bad_address(text, "has no port number after the last ':'");
	v = strtoul(digits, NULL, 10);
	if (v > 65535)
		return bad_address(text, "has a port above 65535");
	*port = (uint16_t)v;
	return 0;
}

int epf_net_split(const char *text, char host[EPF_NET_HOST_MAX], uint16_t *port)
{
	const char *colon = text ? strrchr(text, ':') : NULL;
	const char *from = text, *to = colon;
	uint16_t p = 0;
	int rc;

	if (!text || !*text)
		return epf_fail(EPF_R_BOOT_ADDRESS, "the rendezvous address is not set");
	if (!colon)
		return bad_address(text, "has no ':' and port");
	if (*text == '[') {
		from = text + 1;
		to = strchr(text, ']');
		if (!to || to + 1 != colon)
			return bad_address(text, "has no ']' in front of ':' and port");
	} else if (memchr(text, ':', (size_t)(colon - text))) {
		return bad_address(text, "is IPv6 without brackets");
	}
	if (to == from)
		return bad_address(text, "has no host");
	if ((size_t)(to - from) >= EPF_NET_HOST_MAX)
		return bad_address(text, "has a host longer than 255 bytes");
	rc = read_port(text, colon + 1, &p);
	if (rc)
		return rc;
	memcpy(host, from, (size_t)(to - from));
	host[to - from] = 0;
	*port = p;
	return 0;
}

int epf_net_resolve(const char *host, uint16_t port, struct epf_net_addr *out, size_t *count)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_family = AF_UNSPEC }, *list;
	size_t n = 0;
	int rc = getaddrinfo(host, NULL, &hints, &list);

	if (rc)
		return epf_fail(EPF_R_BOOT_ADDRESS, "host '%s' cannot be resolved (%s)", host,
				rc == EAI_SYSTEM ? strerror(errno) : gai_strerror(rc));
	for (struct addrinfo *a = list; a && n < EPF_NET_ADDRS_MAX; a = a->ai_next) {
		if (a->ai_family != AF_INET && a->ai_family != AF_INET6)
			continue;
		memset(&out[n], 0, sizeof(out[n]));
		memcpy(&out[n].any, a->ai_addr, a->ai_addrlen);
		out[n].len = a->ai_addrlen;
		epf_net_set_port(&out[n], port);
		n++;
	}
	freeaddrinfo(list);
	if (!n)
		return epf_fail(EPF_R_BOOT_ADDRESS, "host '%s' has no IPv4 or IPv6 address", host);
	*count = n;
	return 0;
}

bool epf_net_is_loopback(const struct epf_net_addr *addr)
{
	const uint8_t *b = addr->v6.sin6_addr.s6_addr;

	if (addr->sa.sa_family == AF_INET)
		return ntohl(addr->v4.sin_addr.s_addr) >> 24 == 127;
	if (addr->sa.sa_family != AF_INET6)
		return false;
	if (IN6_IS_ADDR_V4MAPPED(&addr->v6.sin6_addr))
		return b[12] == 127;
	return IN6_IS_ADDR_LOOPBACK(&addr->v6.sin6_addr);
}

bool epf_net_is_local(const struct epf_net_addr *addr)
{
	struct epf_net_addr at = *addr;
	int fd = socket(at.sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	bool ok;

	epf_net_set_port(&at, 0);
	ok = fd >= 0 && bind(fd, &at.sa, at.len) == 0;
	if (fd >= 0)
		close(fd);
	return ok;
}

bool epf_net_is_literal(const char *host)
{
	struct addrinfo hints = { .ai_flags = AI_NUMERICHOST }, *list;

	if (getaddrinfo(host, NULL, &hints, &list))
		return false;
	freeaddrinfo(list);
	return true;
}

struct epf_net_addr epf_net_any(int family, uint16_t port)
{
	struct epf_net_addr a = { 0 };

	if (family == AF_INET6) {
		a.v6.sin6_family = AF_INET6;
		a.v6.sin6_addr = in6addr_any;
		a.len = sizeof(a.v6);
	} else {
		a.v4.sin_family = AF_INET;
		a.len = sizeof(a.v4);
	}
	epf_net_set_port(&a, port);
	return a;
}

uint16_t epf_net_port(const struct epf_net_addr *addr)
{
	return ntohs(addr->sa.sa_family == AF_INET6 ? addr->v6.sin6_port : addr->v4.sin_port);
}

void epf_net_set_port(struct epf_net_addr *addr, uint16_t port)
{
	if (addr->sa.sa_family == AF_INET6)
		addr->v6.sin6_port = htons(port);
	else
		addr->v4.sin_port = htons(port);
}

void epf_net_print(const struct epf_net_addr *addr, char *buf, size_t size)
{
	struct epf_net_addr a = *addr;
	char host[NI_MAXHOST] = "?";
	uint16_t port = epf_net_port(addr);

	/* An IPv4 client of an IPv6 socket is shown as what it is. */
	if (a.sa.sa_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&a.v6.sin6_addr)) {
		struct epf_net_addr v4 = epf_net_any(AF_INET, port);

		memcpy(&v4.v4.sin_addr, addr->v6.sin6_addr.s6_addr + 12, 4);
		a = v4;
	}
	getnameinfo(&a.sa, a.len, host, sizeof(host), NULL, 0, NI_NUMERICHOST);
	snprintf(buf, size, a.sa.sa_family == AF_INET6 ? "[%s]:%u" : "%s:%u", host, port);
}

bool epf_net_if_match(const char *spec, const char *ifname)
{
	bool exact, except, hit = false;

	if (!spec || !*spec)
		return true;
	except = *spec == '^';
	spec += except;
	exact = *spec == '=';
	spec += exact;
	while (*spec) {
		size_t n = strcspn(spec, ",");

		if (n && strncmp(spec, ifname, n) == 0 && (!exact || ifname[n] == 0))
			hit = true;
		spec += n;
		spec += *spec == ',';
	}
	return hit != except;
}

/* Smaller is better; negative: not to be used. */
static int badness(const struct ifaddrs *i, const char *spec, int family)
{
	int bad = 0;

	if (!i->ifa_addr || !(i->ifa_flags & IFF_UP) || !(i->ifa_flags & IFF_RUNNING))
		return -1;
	if (i->ifa_addr->sa_family != AF_INET && i->ifa_addr->sa_family != AF_INET6)
		return -1;
	if (family != AF_UNSPEC && i->ifa_addr->sa_family != family)
		return -1;
	if (!epf_net_if_match(spec, i->ifa_name))
		return -1;
	if (i->ifa_flags & IFF_LOOPBACK)
		bad += 8;
	if (epf_net_if_match("docker,virbr,veth", i->ifa_name))
		bad += 4;
	if (i->ifa_addr->sa_family == AF_INET6) {
		struct sockaddr_in6 v6;

		memcpy(&v6, i->ifa_addr, sizeof(v6));
		bad += IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr) ? 2 : 1;
	}
	return bad;
}

int epf_net_pick(const char *spec, int family, struct epf_net_addr *out, char ifname[IF_NAMESIZE])
{
	struct ifaddrs *list, *best = NULL;
	int least = 0;

	if (getifaddrs(&list))
		return epf_fail_sys(EPF_R_BOOT_INTERFACE, errno, "the list of network interfaces");
	for (struct ifaddrs *i = list; i; i = i->ifa_next) {
		int bad = badness(i, spec, family);

		if (bad >= 0 && (!best || bad < least)) {
			best = i;
			least = bad;
		}
	}
	if (best) {
		bool v6 = best->ifa_addr->sa_family == AF_INET6;

		memset(out, 0, sizeof(*out));
		out->len = v6 ? sizeof(out->v6) : sizeof(out->v4);
		memcpy(&out->any, best->ifa_addr, out->len);
		if (ifname)
			snprintf(ifname, IF_NAMESIZE, "%s", best->ifa_name);
	}
	freeifaddrs(list);
	if (!best)
		return epf_fail(EPF_R_BOOT_INTERFACE,
				"no running interface fits '%s' with an %s address",
				spec ? spec : "",
				family == AF_INET    ? "IPv4"
				: family == AF_INET6 ? "IPv6"
						     : "IP");
	return 0;
}

void epf_net_tune(int fd)
{
	/* See tcp(7); an option that the kernel lacks costs only its benefit. */
	int on = 1, idle_s = 10, interval_s = 5, probes = 3, user_ms = 25000;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof(interval_s));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
	setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user_ms, sizeof(user_ms));
}
