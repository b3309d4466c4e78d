/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The emulated NIC against broken peers, and in great number. A peer shares its wire segment with us, so it
 * can write anything there at any time: it may spoil its own lane, but must not crash us, write outside a
 * region, or disturb another peer's lane. Uses the inside of the NIC (fabric/nic/emu/emu.h) to play the broken one.
 */
#include "fabric/nic/emu/emu.h"
#include "tests/unit/nic/nic_rig.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MS 1000000ull

static uint64_t clock_ns = MS;

static uint64_t now(void *arg)
{
	(void)arg;
	return clock_ns;
}

struct end {
	struct epf_nic *nic;
	unsigned char *mem;
	struct epf_nic_mr mr;
};

enum { MEM = 1 << 16, GUARD = 4096 };

static struct end open_end(const struct epf_emu_opts *opts)
{
	struct end end = { 0 };

	assert_int_equal(epf_emu_open(opts, now, NULL, &end.nic), 0);
	end.mem = malloc(MEM);
	assert_non_null(end.mem);
	memset(end.mem, 0x33, MEM);
	assert_int_equal(end.nic->ops->region_register(end.nic, end.mem + GUARD, MEM - 2 * GUARD,
						       EPF_MR_REMOTE_WRITE | EPF_MR_REMOTE_READ,
						       &end.mr),
			 0);
	return end;
}

static void close_end(struct end *end)
{
	end->nic->ops->close(end->nic);
	free(end->mem);
}

static void connect(struct epf_nic *a, uint16_t la, struct epf_nic *b, uint16_t lb)
{
	unsigned char addr_a[EPF_NIC_ADDR_BYTES], addr_b[EPF_NIC_ADDR_BYTES];
	int na = a->ops->address(a, addr_a, sizeof(addr_a));
	int nb = b->ops->address(b, addr_b, sizeof(addr_b));
	uint64_t ta, tb;

	assert_int_equal(a->ops->lane_create(a, la, 64, &ta), 0);
	assert_int_equal(b->ops->lane_create(b, lb, 64, &tb), 0);
	assert_int_equal(a->ops->lane_connect(a, la, addr_b, (size_t)nb, tb), 0);
	assert_int_equal(b->ops->lane_connect(b, lb, addr_a, (size_t)na, ta), 0);
}

static void check_guards(const struct end *end)
{
	for (int i = 0; i < GUARD; i++) {
		assert_int_equal(end->mem[i], 0x33);
		assert_int_equal(end->mem[MEM - 1 - i], 0x33);
	}
}

static struct epf_wr random_wr(const struct end *from, const struct end *to, uint64_t r)
{
	struct epf_wr wr = {
		.laddr = from->mr.raddr + (r >> 3) % 20000,
		.raddr = to->mr.raddr + (r >> 13) % 20000,
		.lkey = from->mr.lkey,
		.rkey = to->mr.rkey,
		.len = (uint32_t)(r >> 23) % 3000,
		.op = (uint8_t)(1 + r % 4),
	};

	if (wr.op == EPF_WR_SEND)
		wr.len %= 129;
	return wr;
}

/* What a broken process may do to the memory that it shares: words near ones that matter, or noise. */
static void spoil(struct epf_emu *broken, struct epf_emu *other, uint64_t r)
{
	struct epf_emu_packet *p =
		epf_emu_pkt(broken->seg, (uint32_t)(r >> 8) % broken->seg->npackets);
	unsigned char *bytes = (unsigned char *)p;
	struct epf_emu_lane_words *theirs = &other->seg->lanes[0];
	uint64_t value = r >> 20;

	switch (r % 8) {
	case 0:
		p->next = (uint32_t)value % (broken->seg->npackets + 3);
		break;
	case 1:
		p->lead = (uint32_t)value % (broken->seg->npackets + 3);
		break;
	case 2:
		bytes[value % EPF_EMU_PACKET_HEADER] = (unsigned char)(r >> 40);
		break;
	case 3:
		p->len = (uint32_t)value;
		p->msg_len = (uint32_t)(value >> 8);
		break;
	case 4:
		p->remaining = (uint16_t)value;
		p->holds = (uint8_t)(value >> 16);
		p->landed = (uint8_t)(value >> 24) & 3;
		break;
	case 5:
		theirs->inbox =
			(theirs->inbox & ~0xffffffffull) | value % (broken->seg->npackets + 3);
		epf_emu_mark(other->seg->hdr, 0);
		break;
	case 6:
		theirs->returns = value % (other->seg->npackets + 3);
		epf_emu_mark(other->seg->hdr, 0);
		break;
	default:
		p = epf_emu_pkt(other->seg, (uint32_t)(r >> 8) % 8);
		p->next = (uint32_t)value % (other->seg->npackets + 3);
		p->status = (uint8_t)(r >> 50);
		break;
	}
}

/* One storm: lane 0 of b belongs to the broken NIC a, lane 1 to c, whose traffic must stay whole. */
static void storm(const struct epf_emu_opts *opts, uint64_t seed)
{
	struct end a = open_end(opts), b = open_end(opts), c = open_end(opts);
	uint64_t random = seed * 2 + 1;
	uint32_t posted = 0, done = 0;
	struct epf_wc wc[16];

	connect(a.nic, 0, b.nic, 0);
	connect(c.nic, 0, b.nic, 1);
	for (int step = 0; step < 300 || done < posted; step++) {
		uint64_t r = rig_random(&random);
		struct epf_wr wr = random_wr(&a, &b, r);
		int n;

		assert_true(step < 20000);
		b.nic->ops->post_receives(b.nic, 4);
		a.nic->ops->post(a.nic, 0, &wr, 1);
		wr = random_wr(&b, &a, rig_random(&random));
		b.nic->ops->post(b.nic, 0, &wr, 1);
		wr = random_wr(&c, &b, rig_random(&random));
		wr.op = EPF_WR_WRITE_IMM;
		wr.imm = wr.id = posted;
		if (step < 300 && posted - done < 8)
			posted += (uint32_t)c.nic->ops->post(c.nic, 0, &wr, 1);
		for (int i = 0; i < 3; i++)
			spoil(epf_emu_of(a.nic), epf_emu_of(b.nic), rig_random(&random));
		clock_ns += r % 10000;
		a.nic->ops->post_receives(a.nic, 1);
		a.nic->ops->reap(a.nic, wc, 16);
		b.nic->ops->reap(b.nic, wc, 16);
		n = c.nic->ops->reap(c.nic, wc, 16);
		for (int i = 0; i < n; i++) {
			assert_int_equal(wc[i].status, EPF_S_OK);
			done = opts->ordered ? wc[i].id + 1 : done + 1;
		}
		if (r >> 58 == 0) {
			a.nic->ops->lane_destroy(a.nic, 0);
			b.nic->ops->lane_destroy(b.nic, 0);
			connect(a.nic, 0, b.nic, 0);
		}
	}
	check_guards(&a);
	check_guards(&b);
	check_guards(&c);
	close_end(&a);
	close_end(&b);
	close_end(&c);
}

static void test_broken_peer(void **state)
{
	struct epf_emu_opts opts;

	epf_emu_opts_defaults(&opts);
	opts.packets = 64;
	opts.mtu = 512;
	opts.lanes = 8;
	for (uint64_t seed = 1; seed <= 60; seed++) {
		opts.ordered = seed & 1;
		opts.delay_ns = seed & 2 ? 20000 : 0;
		opts.duplicate = opts.reorder = seed & 2 ? 0.2 : 0;
		opts.seed = seed;
		storm(&opts, seed);
	}
}

/* One packet from a to b, changed on its way; b must answer with this status and write nothing. */
static void expect_refused(struct epf_nic *a, struct end *b, const struct epf_wr *wr,
			   void (*change)(struct epf_emu_packet *), int want)
{
	struct epf_wc wc;
	struct epf_emu *e = epf_emu_of(a);
	uint32_t idx = e->free_head - 1;

	memset(b->mem, 0x33, MEM);
	assert_int_equal(a->ops->post(a, 0, wr, 1), 1);
	change(epf_emu_pkt(e->seg, idx));
	assert_int_equal(b->nic->ops->reap(b->nic, &wc, 1), 0);
	assert_int_equal(a->ops->reap(a, &wc, 1), 1);
	assert_int_equal(wc.status, want);
	for (int i = 0; i < MEM; i++)
		assert_int_equal(b->mem[i], 0x33);
}

static void old_token(struct epf_emu_packet *p)
{
	p->token -= 1ull << 32;
}

static void long_packet(struct epf_emu_packet *p)
{
	p->len = p->msg_len = 3000; /* the region has room, the packet has not */
}

static void past_message(struct epf_emu_packet *p)
{
	p->offset = p->msg_len - 1;
}

static void no_operation(struct epf_emu_packet *p)
{
	p->op = EPF_WR_WRITE - 1;
}

static void unknown_operation(struct epf_emu_packet *p)
{
	p->op = EPF_WR_READ + 1;
}

static void test_crafted(void **state)
{
	void (*changes[])(struct epf_emu_packet *) = { old_token, long_packet, past_message,
						       no_operation, unknown_operation };
	const int want[] = { EPF_S_FLUSHED, EPF_S_REMOTE_ACCESS, EPF_S_REMOTE_ACCESS,
			     EPF_S_REMOTE_ACCESS, EPF_S_REMOTE_ACCESS };
	struct epf_emu_opts opts;

	epf_emu_opts_defaults(&opts);
	opts.packets = 64;
	opts.mtu = 512;
	for (unsigned i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
		struct end a = open_end(&opts), b = open_end(&opts);
		struct epf_wr wr = random_wr(&a, &b, 0);

		connect(a.nic, 0, b.nic, 0);
		wr.op = EPF_WR_WRITE;
		wr.len = 100;
		expect_refused(a.nic, &b, &wr, changes[i], want[i]);
		close_end(&a);
		close_end(&b);
	}
}

/* A chain that a slow sender pushes after the lane was made again is let go. */
static void test_stale_chain(void **state)
{
	struct epf_emu_opts opts;
	struct end a, b;
	struct epf_wr wr;
	struct epf_wc wc[8];
	uint64_t *inbox, word;

	epf_emu_opts_defaults(&opts);
	opts.packets = 64;
	a = open_end(&opts);
	b = open_end(&opts);
	connect(a.nic, 0, b.nic, 0);
	wr = random_wr(&a, &b, 0);
	wr.op = EPF_WR_WRITE;
	wr.len = 100;
	assert_int_equal(a.nic->ops->post(a.nic, 0, &wr, 1), 1);
	inbox = &epf_emu_of(b.nic)->seg->lanes[0].inbox;
	word = *inbox;
	assert_true(word != 0);
	*inbox = 0;
	b.nic->ops->lane_destroy(b.nic, 0);
	a.nic->ops->lane_destroy(a.nic, 0);
	connect(a.nic, 0, b.nic, 0);
	*inbox = word;
	epf_emu_mark(epf_emu_of(b.nic)->seg->hdr, 0);
	assert_int_equal(b.nic->ops->reap(b.nic, wc, 8), 0);
	assert_int_equal(a.nic->ops->reap(a.nic, wc, 8), 0);
	for (int i = 0; i < MEM; i++)
		assert_int_equal(b.mem[i], 0x33);
	/* And one that is found under a new chain does not get into it. */
	*inbox = word;
	assert_int_equal(a.nic->ops->post(a.nic, 0, &wr, 1), 1);
	b.nic->ops->reap(b.nic, wc, 8);
	assert_int_equal(a.nic->ops->reap(a.nic, wc, 8), 1);
	assert_int_equal(wc[0].status, EPF_S_OK);
	assert_int_equal(epf_emu_of(a.nic)->free_count, 64);
	assert_int_equal(epf_emu_of(b.nic)->counters.errors, 0);
	close_end(&a);
	close_end(&b);
}

static void test_options(void **state)
{
	struct epf_emu_opts good, opts;
	struct epf_nic *nic = NULL;

	epf_emu_opts_defaults(&good);
#define REFUSED(field, value)                                      \
 do {                                                              \
  opts = good;                                                     \
  opts.field = (value);                                            \
  assert_int_equal(epf_emu_open(&opts, now, NULL, &nic), -EINVAL); \
  assert_null(nic);                                                \
 } while (0)
	REFUSED(mtu, 255);
	REFUSED(mtu, 300);
	REFUSED(mtu, 65600);
	REFUSED(packets, 15);
	REFUSED(packets, (1 << 20) + 1);
	REFUSED(lanes, 0);
	REFUSED(lanes, 4097);
	REFUSED(lane_depth, 0);
	REFUSED(drop, 1.5);
	REFUSED(drop, -0.1);
	REFUSED(error, 2);
	REFUSED(retry_timeout_ns, 0);
}

/* Two NICs of different modes are not connected. */
static void test_modes(void **state)
{
	unsigned char addr[EPF_NIC_ADDR_BYTES];
	struct epf_emu_opts opts;
	struct epf_nic *a, *b;
	uint64_t ta, tb;
	int n;

	epf_emu_opts_defaults(&opts);
	assert_int_equal(epf_emu_open(&opts, now, NULL, &a), 0);
	opts.ordered = 0;
	assert_int_equal(epf_emu_open(&opts, now, NULL, &b), 0);
	assert_int_equal(a->ops->lane_create(a, 0, 8, &ta), 0);
	assert_int_equal(b->ops->lane_create(b, 0, 8, &tb), 0);
	n = b->ops->address(b, addr, sizeof(addr));
	assert_int_equal(a->ops->lane_connect(a, 0, addr, (size_t)n, tb), -EPROTO);
	b->ops->close(b);
	/* A closed NIC's address is refused. */
	assert_int_equal(a->ops->lane_connect(a, 0, addr, (size_t)n, tb), -ESRCH);
	a->ops->close(a);
}

static long resident_kib(void)
{
	char line[128];
	long kib = 0;
	FILE *file = fopen("/proc/self/status", "r");

	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "VmRSS: %ld", &kib) == 1)
			break;
	if (file)
		fclose(file);
	return kib;
}

/* count NICs in one process, each connected to `peers` others; every lane carries one write. */
static long many(unsigned count, unsigned peers)
{
	struct end *end = calloc(count, sizeof(*end));
	struct epf_emu_opts opts;
	long before = resident_kib(), used;
	struct epf_wc wc[64];
	unsigned done = 0;

	epf_emu_opts_defaults(&opts);
	opts.packets = 32;
	opts.mtu = 256;
	for (unsigned i = 0; i < count; i++) {
		assert_int_equal(epf_emu_open(&opts, now, NULL, &end[i].nic), 0);
		end[i].mem = calloc(1, 4096);
		assert_int_equal(end[i].nic->ops->region_register(end[i].nic, end[i].mem, 4096,
								  EPF_MR_REMOTE_WRITE, &end[i].mr),
				 0);
	}
	for (unsigned i = 0; i < count; i++)
		for (unsigned k = 1; k <= peers; k++)
			connect(end[i].nic, (uint16_t)k, end[(i + k) % count].nic,
				(uint16_t)(2048 + k));
	for (unsigned k = 1; k <= peers; k++) {
		for (unsigned i = 0; i < count; i++) {
			struct end *to = &end[(i + k) % count];
			struct epf_wr wr = random_wr(&end[i], to, 0);

			wr.op = EPF_WR_WRITE;
			wr.len = 8;
			assert_int_equal(end[i].nic->ops->post(end[i].nic, (uint16_t)k, &wr, 1), 1);
		}
		for (unsigned i = 0; i < 2 * count; i++)
			done += (unsigned)end[i % count].nic->ops->reap(end[i % count].nic, wc, 64);
	}
	assert_int_equal(done, count * peers);
	used = resident_kib() - before;
	for (unsigned i = 0; i < count; i++) {
		end[i].nic->ops->close(end[i].nic);
		free(end[i].mem);
	}
	free(end);
	return used;
}

static void test_many(void **state)
{
	long kib;

	kib = many(1024, 16);
	printf("# emu: 1,024 NICs of 32 lanes in one process: %.1f KiB a NIC\n",
	       (double)kib / 1024);
#ifndef __SANITIZE_ADDRESS__
	assert_true(kib < 1024 * 256);
#endif
	many(64, 63);
	kib = many(256, 255);
	printf("# emu: 256 NICs, all to all: %.1f KiB a NIC, %.0f bytes a lane\n",
	       (double)kib / 256, (double)kib * 1024 / (256.0 * 255 * 2));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_broken_peer), cmocka_unit_test(test_crafted),
		cmocka_unit_test(test_stale_chain), cmocka_unit_test(test_options),
		cmocka_unit_test(test_modes),       cmocka_unit_test(test_many),
	};

	return cmocka_run_group_tests_name("emulated NIC, abuse", tests, NULL, NULL);
}
