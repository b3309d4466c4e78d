/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two NICs on a virtual clock: see nic_rig.h. Test code: it asserts through cmocka. It must never look at
 * the inside of a NIC.
 */
#include "tests/unit/nic_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int open_emu(const struct epf_emu_opts *tune, uint64_t (*now)(void *), void *arg,
		    struct epf_nic **out)
{
	struct epf_emu_opts opts = *tune;

	opts.ordered = 1;
	return epf_emu_open(&opts, now, arg, out);
}

static int open_emu_unordered(const struct epf_emu_opts *tune, uint64_t (*now)(void *), void *arg,
			      struct epf_nic **out)
{
	struct epf_emu_opts opts = *tune;

	opts.ordered = 0;
	return epf_emu_open(&opts, now, arg, out);
}

static int open_null(const struct epf_emu_opts *tune, uint64_t (*now)(void *), void *arg,
		     struct epf_nic **out)
{
	return epf_nic_find("null")->open(NULL, now, arg, out);
}

static const struct nic_kind kinds[] = {
	{ "emu ordered", 1, 1, open_emu },
	{ "emu unordered", 0, 1, open_emu_unordered },
	{ "null", 1, 0, open_null },
};

const struct nic_kind *nic_rig_kinds(size_t *count)
{
	*count = sizeof(kinds) / sizeof(kinds[0]);
	return kinds;
}

static uint64_t rig_now(void *arg)
{
	return ((struct rig *)arg)->now_ns;
}

static void open_end(struct rig *rig, struct rig_end *end)
{
	end->mem = calloc(1, RIG_BYTES);
	assert_non_null(end->mem);
	assert_int_equal(rig->kind->open(&rig->opts, rig_now, rig, &end->nic), 0);
	assert_int_equal(end->nic->ops->region_register(end->nic, end->mem, RIG_BYTES,
							EPF_MR_REMOTE_WRITE | EPF_MR_REMOTE_READ,
							&end->mr),
			 0);
}

struct rig *rig_open(const struct nic_kind *kind, void (*tune)(struct epf_emu_opts *))
{
	struct rig *rig = calloc(1, sizeof(*rig));

	assert_non_null(rig);
	rig->kind = kind;
	rig->now_ns = 1000000;
	epf_emu_opts_defaults(&rig->opts);
	rig->opts.packets = 256;
	rig->opts.mtu = 1024;
	rig->opts.lanes = 512;
	if (tune)
		tune(&rig->opts);
	open_end(rig, &rig->a);
	open_end(rig, &rig->b);
	rig_lanes(rig, 0, 0);
	return rig;
}

void rig_close(struct rig *rig)
{
	rig->a.nic->ops->close(rig->a.nic);
	rig->b.nic->ops->close(rig->b.nic);
	free(rig->a.mem);
	free(rig->b.mem);
	free(rig);
}

void rig_lanes(struct rig *rig, uint16_t la, uint16_t lb)
{
	struct epf_nic *a = rig->a.nic, *b = rig->b.nic;
	unsigned char addr_a[EPF_NIC_ADDR_BYTES], addr_b[EPF_NIC_ADDR_BYTES];
	uint64_t ta, tb;
	int na = a->ops->address(a, addr_a, sizeof(addr_a));
	int nb = b->ops->address(b, addr_b, sizeof(addr_b));

	assert_true(na > 0 && nb > 0);
	assert_int_equal(a->ops->lane_create(a, la, 128, &ta), 0);
	assert_int_equal(b->ops->lane_create(b, lb, 128, &tb), 0);
	assert_int_equal(a->ops->lane_link(a, la), EPF_LANE_IDLE);
	assert_int_equal(a->ops->lane_connect(a, la, addr_b, (size_t)nb, tb), 0);
	assert_int_equal(b->ops->lane_connect(b, lb, addr_a, (size_t)na, ta), 0);
	assert_int_equal(a->ops->lane_link(a, la), EPF_LANE_READY);
}

void rig_reconnect(struct rig *rig)
{
	rig->a.nic->ops->lane_destroy(rig->a.nic, 0);
	rig->b.nic->ops->lane_destroy(rig->b.nic, 0);
	rig_lanes(rig, 0, 0);
}

void rig_expect_whole(struct rig *rig)
{
	struct epf_nic_caps caps;
	struct epf_wr wr;
	int status;

	rig_reconnect(rig);
	rig_run(rig, 1000000);
	rig_clear(rig);
	rig->a.nic->ops->describe(rig->a.nic, &caps);
	for (uint32_t i = 0; i < 8; i++) {
		wr = rig_write(rig, i, 0, 0, caps.max_msg_bytes);
		rig_post(rig, &wr); /* an eighth of the pool each */
	}
	rig_run(rig, 1000000000);
	assert_true(rig_sent(rig, &rig->a, 7, &status));
	assert_int_equal(status, EPF_S_OK);
}

unsigned rig_reap(struct rig_end *end)
{
	struct epf_wc wc[16];
	int n = end->nic->ops->reap(end->nic, wc, 16);

	assert_in_range(n, 0, 16);
	for (int i = 0; i < n; i++) {
		assert_true(end->n < RIG_LOG);
		if (wc[i].op == EPF_WC_RECV)
			memcpy(end->msg[end->n], wc[i].msg, wc[i].len);
		end->log[end->n++] = wc[i];
	}
	return (unsigned)n;
}

void rig_run(struct rig *rig, uint64_t span_ns)
{
	uint64_t end_ns = rig->now_ns + span_ns;

	for (;;) {
		uint64_t na, nb, next;
		unsigned n = rig_reap(&rig->a);

		n += rig_reap(&rig->b);
		if (n)
			continue;
		na = rig->a.nic->ops->next_event(rig->a.nic);
		nb = rig->b.nic->ops->next_event(rig->b.nic);
		next = na < nb ? na : nb;
		if (next > end_ns)
			break;
		if (next > rig->now_ns)
			rig->now_ns = next;
	}
	rig->now_ns = end_ns;
}

void rig_clear(struct rig *rig)
{
	rig->a.n = rig->b.n = 0;
}

unsigned rig_count(const struct rig_end *end, int op, int status)
{
	unsigned n = 0;

	for (unsigned i = 0; i < end->n; i++)
		n += end->log[i].op == op && (status < 0 || end->log[i].status == status);
	return n;
}

int rig_sent(const struct rig *rig, const struct rig_end *end, uint32_t id, int *status)
{
	for (unsigned i = 0; i < end->n; i++) {
		const struct epf_wc *wc = &end->log[i];

		if (wc->op != EPF_WC_SENT || wc->lane != 0)
			continue;
		if (wc->id != id && !(rig->kind->ordered && wc->id > id && wc->status == EPF_S_OK))
			continue;
		*status = wc->status;
		return 1;
	}
	return 0;
}

struct epf_wr rig_write(const struct rig *rig, uint32_t id, uint64_t src, uint64_t dst,
			uint32_t len)
{
	return (struct epf_wr){
		.laddr = (uint64_t)(uintptr_t)rig->a.mem + src,
		.raddr = rig->b.mr.raddr + dst,
		.lkey = rig->a.mr.lkey,
		.rkey = rig->b.mr.rkey,
		.len = len,
		.id = id,
		.op = EPF_WR_WRITE,
	};
}

void rig_post(struct rig *rig, const struct epf_wr *wr)
{
	assert_int_equal(rig->a.nic->ops->post(rig->a.nic, 0, wr, 1), 1);
}

void rig_fill(unsigned char *at, size_t len, uint64_t seed)
{
	for (size_t i = 0; i < len; i++)
		at[i] = (unsigned char)((seed + i) * 0x9e3779b97f4a7c15ull >> 56);
}

int rig_matches(const unsigned char *at, size_t len, uint64_t seed)
{
	for (size_t i = 0; i < len; i++)
		if (at[i] != (unsigned char)((seed + i) * 0x9e3779b97f4a7c15ull >> 56))
			return 0;
	return 1;
}

uint64_t rig_random(uint64_t *state)
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return *state * 0x2545f4914f6cdd1dull;
}
