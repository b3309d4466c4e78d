/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `ep-fabric doctor` asks about the network that nic=tcp and the rendezvous use: the interface, the way to the rendezvous and who answers there, buffers, and how many
 * segments TCP had to send again. Called through the table at the end. It opens one connection to the rendezvous, says nothing on it, and closes it.
 */
#include "bootstrap/net.h"
#include "fabric/base/err.h"
#include "tools/doctor/doctor.h"

#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MTU_LEAST = 1280, BUFFER_LEAST = 1 << 20, RESENT_PERCENT = 1, SEGMENTS_LEAST = 10000 };

static bool wants_tcp(const struct doctor *d)
{
	return d->conf.nic == EPF_CONF_NIC_TCP || *d->conf.rendezvous;
}

/* The interface with this address: its name, or "" . */
static void name_of(const struct epf_net_addr *addr, char name[IF_NAMESIZE])
{
	bool is_v6 = addr->sa.sa_family == AF_INET6;
	struct ifaddrs *list = NULL;

	name[0] = '\0';
	if (getifaddrs(&list))
		return;
	for (const struct ifaddrs *i = list; i; i = i->ifa_next) {
		struct sockaddr_storage at;

		if (!i->ifa_addr || i->ifa_addr->sa_family != addr->sa.sa_family)
			continue;
		memcpy(&at, i->ifa_addr,
		       is_v6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in));
		if (is_v6 ? !memcmp(&((struct sockaddr_in6 *)&at)->sin6_addr, &addr->v6.sin6_addr,
				    sizeof(addr->v6.sin6_addr))
			  : ((struct sockaddr_in *)&at)->sin_addr.s_addr ==
				    addr->v4.sin_addr.s_addr)
			snprintf(name, IF_NAMESIZE, "%s", i->ifa_name);
	}
	freeifaddrs(list);
}

static void check_mtu(struct doctor *d, const char *name, const char *address)
{
	char text[DOCTOR_TEXT], fix[DOCTOR_LINE];
	long mtu;

	if (doctor_text(d->sysfs, text, "class/net/%s/mtu", name))
		return;
	mtu = strtol(text, NULL, 10);
	snprintf(fix, sizeof(fix), "ip link set %s mtu 1500, or 9000 where every switch allows it",
		 name);
	if (mtu < MTU_LEAST)
		doctor_say(d, DOCTOR_WARN, fix,
			   "%s has an MTU of %ld: IPv6 needs %d, and small packets cost CPU", name,
			   mtu, MTU_LEAST);
	else
		doctor_say(d, DOCTOR_OK, NULL, "%s, %s, MTU %ld", name, address, mtu);
}

static void check_interface(struct doctor *d)
{
	const char *spec = *d->conf.socket_ifname ? d->conf.socket_ifname : NULL;
	char name[IF_NAMESIZE] = "", text[EPF_NET_HOST_MAX + 16];
	struct epf_net_addr at;

	if (d->is_recorded || !wants_tcp(d)) {
		doctor_say(d, DOCTOR_SKIP, NULL, "%s",
			   d->is_recorded ? "interfaces belong to a live machine"
					  : "neither nic tcp nor a rendezvous is set");
		return;
	}
	if (epf_net_pick(spec, AF_UNSPEC, &at, name)) {
		doctor_say(d, DOCTOR_FAIL,
			   "ip -br addr shows the interfaces; set socket-ifname to one that is UP",
			   "%s", epf_last_error());
		return;
	}
	epf_net_print(&at, text, sizeof(text));
	text[strcspn(text, text[0] == '[' ? "]" : ":")] = '\0'; /* without the port */
	if (epf_net_is_loopback(&at))
		doctor_say(d, DOCTOR_WARN, "ip link set INTERFACE up; set socket-ifname",
			   "only loopback is up: no other host can reach this one");
	else
		check_mtu(d, name, text[0] == '[' ? text + 1 : text);
}

/* Connects within the time that a NIC takes: 0, or -errno; *way: the own address. */
static int knock(const struct doctor *d, const struct epf_net_addr *to, struct epf_net_addr *way)
{
	int fd = socket(to->sa.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), rc;
	socklen_t len = sizeof(rc);
	struct pollfd p = { .fd = fd, .events = POLLOUT };

	if (fd < 0)
		return -errno;
	rc = connect(fd, &to->sa, to->len) ? errno : 0;
	way->len = sizeof(way->any);
	if (getsockname(fd, &way->sa, &way->len))
		way->len = 0;
	if (rc == EINPROGRESS && poll(&p, 1, (int)(d->conf.tcp_timeout_ns / 1000000u)) <= 0)
		rc = ETIMEDOUT;
	else if (rc == EINPROGRESS && getsockopt(fd, SOL_SOCKET, SO_ERROR, &rc, &len))
		rc = errno;
	close(fd);
	return -rc;
}

static void say_way(struct doctor *d, const char *to, int rc, const char *name)
{
	char fix[DOCTOR_LINE];

	switch (rc) {
	case 0:
		doctor_say(d, DOCTOR_OK, NULL, "%s answers, by interface %s", to, name);
		break;
	case -ECONNREFUSED:
		doctor_say(
			d, DOCTOR_WARN,
			"start rank 0; if it runs: nft list ruleset there, and the same port in rendezvous",
			"%s refuses: its host is reached by %s, but nothing listens there yet, or a firewall rejects",
			to, name);
		break;
	case -ETIMEDOUT:
		snprintf(
			fix, sizeof(fix),
			"ping that host; let TCP pass between the hosts of a job at ports above 1023 (nft list ruleset); is %.15s the right interface?",
			*name ? name : "this");
		doctor_say(
			d, DOCTOR_FAIL, fix,
			"%s does not answer within tcp-timeout, by %s: a firewall drops, the address is wrong, or the host is down",
			to, *name ? name : "no interface");
		break;
	case -ENETUNREACH:
	case -EHOSTUNREACH:
		doctor_say(
			d, DOCTOR_FAIL,
			"ip route get ADDRESS shows the way; ip -br link whether its interface is UP",
			"there is no way to %s: %s", to, strerror(-rc));
		break;
	case -EACCES:
	case -EPERM:
		doctor_say(d, DOCTOR_FAIL, "nft list ruleset; ip route get ADDRESS",
			   "this host may not send to %s: a firewall or a route here forbids it",
			   to);
		break;
	default:
		doctor_say(d, DOCTOR_FAIL, "ip route get ADDRESS", "%s: %s", to, strerror(-rc));
	}
}

static void check_way(struct doctor *d)
{
	const char *spec = d->conf.socket_ifname;
	struct epf_net_addr at[EPF_NET_ADDRS_MAX], way = { .len = 0 };
	char host[EPF_NET_HOST_MAX], name[IF_NAMESIZE] = "", to[EPF_NET_HOST_MAX + 16];
	uint16_t port;
	size_t n = 0;
	int rc = -1;

	if (d->is_recorded || !*d->conf.rendezvous) {
		doctor_say(d, DOCTOR_SKIP, NULL, "no rendezvous is set: --rendezvous HOST:PORT");
		return;
	}
	if (epf_net_split(d->conf.rendezvous, host, &port) || epf_net_resolve(host, port, at, &n)) {
		doctor_say(d, DOCTOR_FAIL, "getent hosts NAME; put the hosts into /etc/hosts", "%s",
			   epf_last_error());
		return;
	}
	/* As a rank does: the first address that answers. */
	for (size_t i = 0; i < n && rc; i++) {
		rc = knock(d, &at[i], &way);
		epf_net_print(&at[i], to, sizeof(to));
	}
	if (way.len)
		name_of(&way, name);
	say_way(d, to, rc, name);
	if (*spec && *name && !epf_net_if_match(spec, name) && !epf_net_is_loopback(&way))
		doctor_say(
			d, DOCTOR_WARN, "name the interface that leads to the other hosts, or none",
			"the way to the rendezvous is %s, and socket-ifname is %s: payload takes another way, which must reach all hosts too",
			name, spec);
}

/* The last of three numbers: the most that the kernel gives a connection. */
static uint64_t most_of(const struct doctor *d, const char *path)
{
	char text[DOCTOR_TEXT];
	uint64_t least, usual, most;

	return !doctor_text(d->procfs, text, "%s", path) &&
			       sscanf(text, "%" SCNu64 " %" SCNu64 " %" SCNu64, &least, &usual,
				      &most) == 3
		       ? most
		       : 0;
}

static void check_buffers(struct doctor *d)
{
	uint64_t rx = most_of(d, "sys/net/ipv4/tcp_rmem"), tx = most_of(d, "sys/net/ipv4/tcp_wmem");

	if (!rx || !tx)
		doctor_say(d, DOCTOR_SKIP, NULL, "the kernel does not say how large they may grow");
	else if (rx < BUFFER_LEAST || tx < BUFFER_LEAST)
		doctor_say(
			d, DOCTOR_WARN,
			"sysctl -w net.ipv4.tcp_rmem='4096 131072 16777216' net.ipv4.tcp_wmem='4096 65536 16777216'",
			"at most %" PRIu64 " KiB to receive and %" PRIu64
			" KiB to send: a connection moves no more than that in a round trip",
			rx >> 10, tx >> 10);
	else
		doctor_say(d, DOCTOR_OK, NULL,
			   "up to %" PRIu64 " KiB to receive and %" PRIu64 " KiB to send", rx >> 10,
			   tx >> 10);
}

/* Whether a list of names, apart by blanks, has this one. */
static bool has_name(const char *list, const char *name)
{
	size_t len = strlen(name);

	for (; *list; list += strcspn(list, " \n")) {
		list += strspn(list, " \n");
		if (!strncmp(list, name, len) && strcspn(list, " \n") == len)
			return true;
	}
	return false;
}

/* tcp-congestion: nic tcp does not open with a name that the kernel has not. */
static void check_chosen_congestion(struct doctor *d, const char *system)
{
	const char *name = d->conf.tcp_congestion;
	char list[DOCTOR_TEXT];

	if (!doctor_text(d->procfs, list, "sys/net/ipv4/tcp_available_congestion_control") &&
	    !has_name(list, name))
		doctor_say(
			d, DOCTOR_FAIL,
			"load its module (modprobe tcp_NAME), or set tcp-congestion to a name of /proc/sys/net/ipv4/tcp_available_congestion_control",
			"tcp-congestion is %s, which the kernel has not", name);
	else
		doctor_say(d, DOCTOR_OK, NULL, "%s (tcp-congestion; the system: %s)", name, system);
}

/* BBR sends no faster than it has seen the link be, which for messages with pauses between them is less than it can be. */
static void check_congestion(struct doctor *d)
{
	char text[DOCTOR_TEXT];

	if (doctor_text(d->procfs, text, "sys/net/ipv4/tcp_congestion_control")) {
		doctor_say(d, DOCTOR_SKIP, NULL, "the kernel does not say");
		return;
	}
	text[strcspn(text, "\n")] = 0;
	if (d->conf.tcp_congestion[0])
		check_chosen_congestion(d, text);
	else if (!strncmp(text, "bbr", 3))
		doctor_say(
			d, DOCTOR_WARN,
			"within a data centre: tcp-congestion=cubic, or sysctl -w net.ipv4.tcp_congestion_control=cubic, at all hosts",
			"%s holds back what it sends to the rate that it has seen: transfers of 64 KiB and more between two hosts took twice as long as with cubic",
			text);
	else
		doctor_say(d, DOCTOR_OK, NULL, "%s", text);
}

/* A number of /proc/net/snmp, whose first line of a protocol names the columns of the second. */
static bool snmp(const char *text, const char *name, uint64_t *out)
{
	const char *names = strstr(text, "Tcp: "), *values;
	unsigned column = 0;

	if (!names || !(values = strstr(names + 5, "Tcp: ")))
		return false;
	for (names += 5, values += 5; *names && *values; column++) {
		size_t n = strcspn(names, " \n"), v = strcspn(values, " \n");

		if (n == strlen(name) && !strncmp(names, name, n)) {
			*out = strtoull(values, NULL, 10);
			return true;
		}
		if (names[n] != ' ' || values[v] != ' ')
			return false;
		names += n + 1;
		values += v + 1;
	}
	return false;
}

static void check_loss(struct doctor *d)
{
	char text[DOCTOR_TEXT];
	uint64_t sent, again;

	if (doctor_text(d->procfs, text, "net/snmp") || !snmp(text, "OutSegs", &sent) ||
	    !snmp(text, "RetransSegs", &again) || sent < SEGMENTS_LEAST)
		doctor_say(d, DOCTOR_SKIP, NULL, "TCP has sent too little here to say");
	else if (again * 100 > sent * RESENT_PERCENT)
		doctor_say(
			d, DOCTOR_WARN,
			"ip -s link (errors, dropped), cables and switch ports; a wrong MTU on the way; too many senders at once",
			"%.1f %% of TCP's segments were sent again since this host's network began: packets get lost",
			100.0 * (double)again / (double)sent);
	else
		doctor_say(d, DOCTOR_OK, NULL, "%.2f %% of TCP's segments were sent again",
			   100.0 * (double)again / (double)sent);
}

const struct doctor_check doctor_network_checks[] = {
	{ "interface", "an interface that nic tcp can use is up", check_interface },
	{ "rendezvous", "the rendezvous that is set answers, by the interface that is meant",
	  check_way },
	{ "buffers", "TCP's buffers can grow", check_buffers },
	{ "congestion", "TCP's congestion control suits messages", check_congestion },
	{ "loss", "how many segments TCP had to send again", check_loss },
	{ 0 },
};
