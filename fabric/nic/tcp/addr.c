/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The address of a TCP NIC, and where it listens. Slow path.
 *
 * Layout, little-endian: 0 u32 "EPTA"  4 u16 version  6 u16 count  8 id[16]  then of each address u16 family (4 or 6), u16 port, 16 bytes (IPv4: the
 * first four)  and at the end a u32, the sum of all bytes before each times its place: damage is noticed, and nothing more.
 */
#include "fabric/nic/tcp/tcp.h"

#include "fabric/base/err.h"

#include <errno.h>
#include <string.h>

enum { MAGIC = 0x41545045, VERSION = 1, HEADER = 24, ENTRY = 20 };

static void put(uint8_t *at, uint32_t value, unsigned bytes)
{
	for (unsigned i = 0; i < bytes; i++)
		at[i] = (uint8_t)(value >> (8 * i));
}

static uint32_t get(const uint8_t *at, unsigned bytes)
{
	uint32_t value = 0;

	for (unsigned i = 0; i < bytes; i++)
		value |= (uint32_t)at[i] << (8 * i);
	return value;
}

static uint32_t sum_of(const uint8_t *at, size_t n)
{
	uint32_t sum = 1;

	for (size_t i = 0; i < n; i++)
		sum = sum * 31 + at[i];
	return sum;
}

int epf_tcp_addr_encode(const struct epf_tcp_place *place, void *buf, size_t size)
{
	size_t n = HEADER + (size_t)place->count * ENTRY;
	uint8_t *at = buf;

	if (size < n + 4)
		return epf_fail(EPF_R_NIC_ADDRESS,
				"tcp: a buffer of %zu bytes is too small for an address", size);
	memset(at, 0, n);
	put(at, MAGIC, 4);
	put(at + 4, VERSION, 2);
	put(at + 6, place->count, 2);
	memcpy(at + 8, place->id, EPF_TCP_ID);
	for (uint32_t i = 0; i < place->count; i++) {
		const struct epf_net_addr *a = &place->addrs[i];
		uint8_t *e = at + HEADER + (size_t)i * ENTRY;

		put(e, a->sa.sa_family == AF_INET6 ? 6 : 4, 2);
		put(e + 2, epf_net_port(a), 2);
		if (a->sa.sa_family == AF_INET6)
			memcpy(e + 4, &a->v6.sin6_addr, 16);
		else
			memcpy(e + 4, &a->v4.sin_addr, 4);
	}
	put(at + n, sum_of(at, n), 4);
	return (int)n + 4;
}

int epf_tcp_addr_decode(const void *buf, size_t len, struct epf_tcp_place *out)
{
	const uint8_t *at = buf;
	uint32_t count;

	if (len < HEADER + 4 || get(at, 4) != MAGIC)
		return epf_fail(EPF_R_NIC_ADDRESS, "tcp: what a peer gives is no address");
	if (get(at + 4, 2) != VERSION)
		return epf_fail(EPF_R_NIC_ADDRESS,
				"tcp: a peer's address has version %u, this release has %d",
				get(at + 4, 2), VERSION);
	count = get(at + 6, 2);
	if (count < 1 || count > EPF_TCP_ADDRS || len != HEADER + (size_t)count * ENTRY + 4 ||
	    get(at + len - 4, 4) != sum_of(at, len - 4))
		return epf_fail(EPF_R_NIC_ADDRESS, "tcp: a damaged address");
	memset(out, 0, sizeof(*out));
	out->count = count;
	memcpy(out->id, at + 8, EPF_TCP_ID);
	for (uint32_t i = 0; i < count; i++) {
		const uint8_t *e = at + HEADER + (size_t)i * ENTRY;
		int is_v6 = get(e, 2) == 6;

		if (!is_v6 && get(e, 2) != 4)
			return epf_fail(EPF_R_NIC_ADDRESS, "tcp: an address of an unknown family");
		out->addrs[i] = epf_net_any(is_v6 ? AF_INET6 : AF_INET, (uint16_t)get(e + 2, 2));
		if (is_v6)
			memcpy(&out->addrs[i].v6.sin6_addr, e + 4, 16);
		else
			memcpy(&out->addrs[i].v4.sin_addr, e + 4, 4);
	}
	return 0;
}

static struct epf_net_addr loopback(void)
{
	struct epf_net_addr a = epf_net_any(AF_INET, 0);

	a.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return a;
}

/* Interfaces that the settings choose, of each family one address; without a choice the first that leaves this host. */
static int pick(struct epf_tcp *t)
{
	static const int families[] = { AF_INET, AF_INET6 };
	const char *spec = *t->ifname ? t->ifname : NULL;
	int rc = 0;

	for (unsigned i = 0; i < 2; i++) {
		struct epf_net_addr a;

		rc = epf_net_pick(spec, families[i], &a, NULL);
		if (rc || (i && t->n_listen && epf_net_is_loopback(&a)) ||
		    (a.sa.sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&a.v6.sin6_addr)))
			continue; /* a peer cannot know by which of its interfaces to reach that */
		epf_net_set_port(&a, 0);
		t->listen[t->n_listen++] = a;
	}
	return t->n_listen ? 0 : rc ? rc : epf_fail(EPF_R_BOOT_INTERFACE, "tcp: no address");
}

int epf_tcp_set_job(struct epf_nic *nic, const struct epf_nic_job *job)
{
	struct epf_tcp *t = epf_tcp_of(nic);
	struct epf_net_addr found[EPF_NET_ADDRS_MAX];
	size_t n = 0;
	int rc = 0;

	if (t->door)
		return epf_fail(EPF_R_NIC_LANE, "tcp: the job is set too late");
	t->n_listen = 0;
	memcpy(t->auth.master, job->key, sizeof(t->auth.master));
	t->auth.has_secret = job->is_secret;
	if (!job->is_secret)
		t->listen[t->n_listen++] = loopback();
	else if (job->route && !*t->ifname)
		rc = epf_net_resolve(job->route, 0, found, &n);
	else
		rc = pick(t);
	if (n)
		t->listen[t->n_listen++] = found[0];
	return rc;
}

/* Where the job has not said: loopback, which is all that may be used without a key. */
int epf_tcp_open_door(struct epf_tcp *t)
{
	if (t->door)
		return 0;
	if (!t->n_listen)
		t->listen[t->n_listen++] = loopback();
	return epf_tcp_door_open(&t->opts, &t->auth, t->id, t->listen, t->n_listen, t->inner_fd,
				 t->wakeup, &t->door);
}

int epf_tcp_address(const struct epf_nic *nic, void *buf, size_t size)
{
	struct epf_tcp *t = epf_tcp_of(nic);
	struct epf_tcp_place place = { 0 };
	int rc = epf_tcp_open_door(t);

	if (rc)
		return rc;
	memcpy(place.id, t->id, EPF_TCP_ID);
	place.count = t->n_listen;
	memcpy(place.addrs, t->listen, t->n_listen * sizeof(t->listen[0]));
	return epf_tcp_addr_encode(&place, buf, size);
}
