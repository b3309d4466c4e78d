/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libFuzzer: the connections of the TCP NIC. Byte 0 chooses the form:
 *   0  a peer that has proven itself: the input is a little program of bytes, trains with chosen descriptors, requests of this end, receives that are posted, regions that
 *      go and come back, and reaps
 *   1  any bytes in the handshake, to the end that accepts and to the end that dials
 *   2  an honest handshake of which the input changes one byte, or none: only then both ends are done
 * The NIC must stay inside what was exported (canaries around it, and AddressSanitizer), report each request once, and serve another lane afterwards.
 */
#include "fabric/base/log.h"
#include "fabric/nic/tcp/greet.h"
#include "fabric/nic/tcp/seal.h"
#include "fabric/nic/tcp/tcp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { BYTES = 8192, CANARY = 512, DEPTH = 16, MOST_OPS = 200, LANE = 0 };

enum op { RAW, TRAIN, POST, RECEIVES, REAP, REGION, HANG_UP, OPS };

struct input {
	const uint8_t *at;
	size_t left;
};

static struct epf_nic *nic;
static uint8_t memory[CANARY + BYTES + CANARY];
static struct epf_nic_mr mr;
static uint64_t clock_ns;

static void must(int rule)
{
	if (!rule)
		abort();
}

static uint64_t now(void *arg)
{
	return clock_ns += 1000;
}

static uint8_t byte(struct input *in)
{
	if (!in->left)
		return 0;
	in->left--;
	return *in->at++;
}

static uint32_t word(struct input *in)
{
	uint32_t a = byte(in), b = byte(in);

	return a | b << 8;
}

static void expose(void)
{
	must(nic->ops->region_register(nic, memory + CANARY, BYTES,
				       EPF_MR_REMOTE_WRITE | EPF_MR_REMOTE_READ, &mr) == 0);
}

/* ---- form 0 ---- */

struct peer {
	int fd;
	uint32_t posted, reported;
	int down;
};

static void raw(struct peer *p, struct input *in)
{
	uint8_t buf[64];
	size_t n = byte(in) % sizeof(buf);

	for (size_t i = 0; i < n; i++)
		buf[i] = byte(in);
	(void)!send(p->fd, buf, n, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static struct epf_tcp_desc desc(struct input *in)
{
	static const uint8_t kinds[] = { EPF_TCP_WRITE, EPF_TCP_WRITE_IMM, EPF_TCP_SEND,
					 EPF_TCP_READ,  EPF_TCP_BYTES,     EPF_TCP_NAK };
	uint8_t how = byte(in);
	struct epf_tcp_desc d = { .kind = kinds[how % 6],
				  .raddr = mr.raddr + word(in) % (BYTES + 16),
				  .rkey = how & 64 ? mr.rkey ^ 1u << 17 : mr.rkey,
				  .imm = word(in) };

	d.len = d.kind == EPF_TCP_SEND ? byte(in) % 129u : word(in) % 600u;
	if (d.kind == EPF_TCP_NAK) {
		d.status = how & 128 ? EPF_S_RNR_EXCEEDED : EPF_S_REMOTE_ACCESS;
		d.imm %= DEPTH;
	}
	return d;
}

/* A train as a peer would send it, but for what the input changes; now and then without the end of its payload. */
static void train(struct peer *p, struct input *in)
{
	struct epf_tcp_head h = { .count = byte(in) % 5u, .ack = byte(in) % (DEPTH * 2u) };
	uint8_t buf[EPF_TCP_HEAD_BYTES + 5 * EPF_TCP_DESC_BYTES + 5 * 600];
	size_t at = EPF_TCP_HEAD_BYTES, cut;

	for (uint32_t i = 0; i < h.count; i++, at += EPF_TCP_DESC_BYTES) {
		struct epf_tcp_desc d = desc(in);

		epf_tcp_desc_encode(&d, buf + at);
		h.bytes += epf_tcp_payload(&d);
	}
	epf_tcp_head_encode(&h, buf);
	memset(buf + at, 0x77, h.bytes);
	at += h.bytes;
	cut = byte(in);
	if (cut & 128)
		at -= cut < at ? cut : at;
	(void)!send(p->fd, buf, at, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void post(struct peer *p, struct input *in)
{
	static const uint8_t inlined[16];
	uint8_t how = byte(in);
	struct epf_wr wr = { .laddr = mr.raddr + word(in) % BYTES,
			     .raddr = mr.raddr,
			     .lkey = how & 64 ? 1 : mr.lkey,
			     .rkey = mr.rkey,
			     .len = byte(in),
			     .id = p->posted,
			     .op = (uint8_t)(1 + how % 4) };
	int n;

	if (how & 32) {
		wr.flags = EPF_WR_INLINE;
		wr.laddr = (uint64_t)(uintptr_t)inlined;
		wr.len %= 16;
	}
	n = nic->ops->post(nic, LANE, &wr, 1);
	must(n == 0 || n == 1 || n == -ENOTCONN);
	p->posted += n == 1;
}

/* Each request is reported once, in order; nothing after the lane is down. */
static void reap(struct peer *p)
{
	struct epf_wc wc[4];
	int n = nic->ops->reap(nic, wc, 4);

	must(n >= 0 && n <= 4);
	for (int i = 0; i < n; i++) {
		if (wc[i].lane != LANE)
			continue;
		if (wc[i].op == EPF_WC_SENT) {
			must(!p->down && wc[i].id >= p->reported && wc[i].id < p->posted);
			must(wc[i].status == EPF_S_OK || wc[i].id == p->reported);
			p->reported = wc[i].id + 1;
		} else if (wc[i].op == EPF_WC_LANE_DOWN) {
			must(!p->down && p->reported == p->posted);
			p->down = 1;
		} else if (wc[i].op == EPF_WC_RECV) {
			must(wc[i].len <= EPF_NIC_MSG_BYTES);
			memcpy((uint8_t[EPF_NIC_MSG_BYTES]){ 0 }, wc[i].msg, wc[i].len);
		}
	}
}

static void change_region(void)
{
	if (mr.rkey)
		nic->ops->region_deregister(nic, &mr);
	else
		expose();
}

static void run_program(struct peer *p, struct input *in)
{
	uint8_t buf[4096];

	for (int i = 0; i < MOST_OPS && in->left; i++) {
		switch ((enum op)(byte(in) % OPS)) {
		case RAW:
			raw(p, in);
			break;
		case TRAIN:
			train(p, in);
			break;
		case POST:
			post(p, in);
			break;
		case RECEIVES:
			nic->ops->post_receives(nic, byte(in) % 4);
			break;
		case REGION:
			change_region();
			break;
		case HANG_UP:
			if (byte(in) < 16)
				shutdown(p->fd, SHUT_WR);
			clock_ns += (uint64_t)byte(in) << 24;
			break;
		default:
			reap(p);
			(void)!recv(p->fd, buf, sizeof(buf), MSG_DONTWAIT);
			break;
		}
	}
}

static void another_lane_works(void)
{
	struct epf_wr wr = { .laddr = mr.raddr,
			     .raddr = mr.raddr + 64,
			     .lkey = mr.lkey,
			     .rkey = mr.rkey,
			     .len = 64,
			     .op = EPF_WR_WRITE };
	struct epf_wc wc[4];

	must(nic->ops->post(nic, 1, &wr, 1) == 1);
	must(nic->ops->reap(nic, wc, 4) == 1 && wc[0].lane == 1 && wc[0].status == EPF_S_OK);
}

static void trains(struct input *in)
{
	struct peer p = { .fd = -1 };
	struct epf_tcp_lane *l;
	uint64_t token;
	int fds[2];

	must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
	must(nic->ops->lane_create(nic, LANE, DEPTH, &token) == 0);
	l = epf_tcp_lane_at(epf_tcp_of(nic), LANE);
	l->link = EPF_LANE_READY;
	epf_tcp_attach(epf_tcp_of(nic), l, fds[0], NULL);
	epf_tcp_of(nic)->receives = 4;
	p.fd = fds[1];
	run_program(&p, in);
	if (!mr.rkey)
		expose();
	/* The peer goes: what is outstanding is reported, and that is all. */
	close(p.fd);
	nic->ops->post_receives(nic, 1000);
	for (int i = 0; i < 1000 && (p.reported != p.posted || i < 300); i++)
		reap(&p);
	if (l->link == EPF_LANE_READY)
		nic->ops->lane_fence(nic, LANE);
	for (int i = 0; i < 100 && !nic->ops->lane_drained(nic, LANE); i++)
		reap(&p);
	must(nic->ops->lane_drained(nic, LANE) && p.reported == p.posted);
	nic->ops->lane_destroy(nic, LANE);
	another_lane_works();
	for (int i = 0; i < CANARY; i++)
		must(memory[i] == 0xcc && memory[CANARY + BYTES + i] == 0xcc);
}

/* ---- forms 1 and 2 ---- */

static const uint8_t id_d[EPF_TCP_ID] = { 1 }, id_a[EPF_TCP_ID] = { 2 };

static void begin(struct epf_tcp_greet *d, struct epf_tcp_greet *a)
{
	static struct epf_auth auth;
	struct epf_tcp_claim claim = { .to_token = 5, .from_token = 6 };

	if (!auth.has_secret)
		must(!epf_auth_load("the secret of the fuzzer", 24, NULL, NULL, NULL, &auth));
	memcpy(claim.to, id_a, sizeof(id_a));
	memcpy(claim.from, id_d, sizeof(id_d));
	epf_tcp_greet_dial(d, &auth, id_d, &claim, 0);
	epf_tcp_greet_accept(a, &auth, id_a, 0);
}

static void feed(struct epf_tcp_greet *g, struct input in)
{
	int rc = 0;

	while (!rc && g->state != EPF_TCP_GREET_DONE && in.left) {
		must(g->want <= sizeof(g->in));
		for (g->have = 0; g->have < g->want; g->have++)
			g->in[g->have] = byte(&in);
		rc = epf_tcp_greet_step(g);
	}
	must(g->state != EPF_TCP_GREET_DONE); /* nobody guesses a proof */
}

static void any_bytes(struct input *in)
{
	struct epf_tcp_greet d, a;

	begin(&d, &a);
	feed(&d, *in);
	feed(&a, *in);
}

static int pass(struct epf_tcp_greet *from, struct epf_tcp_greet *to, uint32_t *at, uint8_t change)
{
	uint32_t n = (uint32_t)from->out_len - from->sent;

	must(n == to->want);
	memcpy(to->in, from->out + from->sent, n);
	from->sent = from->out_len;
	if (*at < n)
		to->in[*at] ^= change;
	*at -= *at < n ? *at + 1000000 : n;
	return epf_tcp_greet_step(to);
}

static void one_byte(struct input *in)
{
	uint32_t at = word(in) % (2 * EPF_TCP_HELLO_BYTES + EPF_TCP_PROOF_BYTES + EPF_TCP_PROOF);
	uint8_t change = byte(in);
	struct epf_tcp_seal_keys keys[2];
	struct epf_tcp_greet d, a;
	int rc;

	begin(&d, &a);
	rc = pass(&d, &a, &at, change);
	rc = rc ? rc : pass(&a, &d, &at, change);
	rc = rc ? rc : pass(&d, &a, &at, change);
	rc = rc ? rc : pass(&a, &d, &at, change);
	must(!rc == !change);
	must(change || (d.state == EPF_TCP_GREET_DONE && a.state == EPF_TCP_GREET_DONE &&
			a.claim.to_token == 5 && a.claim.from_token == 6));
	if (rc)
		return;
	epf_tcp_greet_keys(&d, true, &keys[0]);
	epf_tcp_greet_keys(&a, false, &keys[1]);
	must(!memcmp(keys[0].send, keys[1].receive, sizeof(keys[0].send)) &&
	     !memcmp(keys[1].send, keys[0].receive, sizeof(keys[0].send)) &&
	     memcmp(keys[0].send, keys[0].receive, sizeof(keys[0].send)));
}

static void set_up(void)
{
	struct epf_tcp_opts opts;
	uint8_t addr[EPF_NIC_ADDR_BYTES];
	uint64_t token = 0;
	int n;

	epf_log_configure("error");
	epf_tcp_opts_defaults(&opts);
	must(epf_tcp_open(&opts, now, NULL, &nic) == 0);
	memset(memory, 0xcc, sizeof(memory));
	expose();
	n = nic->ops->address(nic, addr, sizeof(addr));
	must(n > 0 && nic->ops->lane_create(nic, 1, DEPTH, &token) == 0);
	must(nic->ops->lane_connect(nic, 1, addr, (size_t)n, token) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, size };

	if (!size)
		return 0;
	if (!nic)
		set_up();
	switch (byte(&in) % 3) {
	case 0:
		trains(&in);
		break;
	case 1:
		any_bytes(&in);
		break;
	default:
		one_byte(&in);
		break;
	}
	return 0;
}
