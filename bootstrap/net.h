/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Addresses and interfaces: reading "host:port", resolving, printing, and choosing which of this
 * machine's interfaces to use. Called by server, client and the tool; never opens a connection.
 */
#ifndef EPF_BOOTSTRAP_NET_H
#define EPF_BOOTSTRAP_NET_H

#include <net/if.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#define EPF_NET_HOST_MAX  256u /* bytes of a host name with its 0 */
#define EPF_NET_ADDRS_MAX 16u  /* addresses of one name that are looked at */

/* A socket address of either family. */
struct epf_net_addr {
	union {
		struct sockaddr sa;
		struct sockaddr_in v4;
		struct sockaddr_in6 v6;
		struct sockaddr_storage any;
	};

	socklen_t len;
};

/**
 * epf_net_split() - read "host:port", "1.2.3.4:port" or "[v6]:port" (also "[fe80::1%eth0]:port").
 * @host: EPF_NET_HOST_MAX bytes; without the brackets.
 *
 * An IPv6 address without brackets is refused: its port could not be separated from the address.
 */
int epf_net_split(const char *text, char host[EPF_NET_HOST_MAX], uint16_t *port);

/**
 * epf_net_resolve() - the addresses of a host, at most EPF_NET_ADDRS_MAX.
 * @count: set to how many, at least 1.
 *
 * Blocks as long as the system's resolver does, see getaddrinfo(3).
 */
int epf_net_resolve(const char *host, uint16_t port, struct epf_net_addr *out, size_t *count);

/* epf_net_is_loopback() - 127.0.0.0/8, ::1, and the first wrapped in IPv6. */
bool epf_net_is_loopback(const struct epf_net_addr *addr);

/* epf_net_is_local() - whether the address is one of this host's; opens and closes a socket. */
bool epf_net_is_local(const struct epf_net_addr *addr);

/* epf_net_is_literal() - whether the host is written as an address and not as a name. */
bool epf_net_is_literal(const char *host);

/* epf_net_any() - the address that stands for all addresses of a family. */
struct epf_net_addr epf_net_any(int family, uint16_t port);

/* epf_net_port(), epf_net_set_port() - the port in host byte order. */
uint16_t epf_net_port(const struct epf_net_addr *addr);
void epf_net_set_port(struct epf_net_addr *addr, uint16_t port);

/* epf_net_print() - "10.0.0.1:29555" or "[fe80::1%eth0]:29555". */
void epf_net_print(const struct epf_net_addr *addr, char *buf, size_t size);

/**
 * epf_net_if_match() - whether an interface name fits a choice in NCCL_SOCKET_IFNAME syntax.
 * @spec: names separated by commas, each a prefix; "=" in front: exact names; "^" in front: all
 *        but these; "^=" both. NULL or "" fits everything.
 */
bool epf_net_if_match(const char *spec, const char *ifname);

/**
 * epf_net_pick() - the address of the first usable interface.
 * @spec: a choice as above, or NULL: any, but container bridges ("docker", "virbr", "veth") and
 *        loopback only when there is nothing else.
 * @family: AF_INET, AF_INET6 or AF_UNSPEC (IPv4 first, routable IPv6 before link-local).
 * @ifname: set to its name, or NULL.
 *
 * Usable: up, running, with an address of that family.
 */
int epf_net_pick(const char *spec, int family, struct epf_net_addr *out, char ifname[IF_NAMESIZE]);

/* epf_net_tune() - no delay of small messages; a node that lost power is noticed after 25 s. */
void epf_net_tune(int fd);

#endif
