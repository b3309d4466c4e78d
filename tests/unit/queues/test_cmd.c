/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command: every operation survives packing and unpacking in both forms, at every limit and one beyond; its bits
 * lie where the literal bytes below say (written out by hand from docs/abi.md, so a change of layout turns red); no bit
 * of a slot is without a meaning. Seeded: EPF_SEED=<n> replays a run.
 */
#include "queues/epf_cmd.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROUNDS = 20000, PATTERNS = 200000 };

static uint64_t seed = 1, rng;

static uint64_t next_random(void) /* splitmix64 */
{
	uint64_t z = rng += 0x9e3779b97f4a7c15ull;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return z ^ z >> 31;
}

/* A value from lo to hi, often one of the ends. */
static uint64_t between(uint64_t lo, uint64_t hi)
{
	uint64_t r = next_random();

	if (r % 8 == 0)
		return lo;
	if (r % 8 == 1)
		return hi;
	return hi - lo == UINT64_MAX ? next_random() : lo + next_random() % (hi - lo + 1);
}

static bool is_transfer(unsigned op)
{
	return op == EPF_OP_PUT || op == EPF_OP_PUT_SIGNAL || op == EPF_OP_GET;
}

/* Legal fields of an operation in the narrow form (wide = 0) or the wide one; the rest as unpack leaves it. */
static struct epf_op legal(unsigned op, bool wide)
{
	uint64_t reach = wide ? EPF_WIDE_REGION_BYTES : EPF_NARROW_REGION_BYTES;
	uint64_t step = wide ? 1 : EPF_CMD_GRANULE;
	struct epf_op o = { .op = (uint8_t)op, .flags = (uint8_t)between(0, EPF_F_MASK) };
	uint64_t signals = (wide ? EPF_WIDE_SIGNALS : EPF_NARROW_SIGNALS) - 1;

	if (op == EPF_OP_NOP)
		o.flags = 0;
	if (op == EPF_OP_NOP || op == EPF_OP_FLUSH)
		return o;
	o.rank = (uint32_t)between(0, (wide ? EPF_WIDE_RANKS : EPF_NARROW_RANKS) - 1);
	if (op == EPF_OP_SIGNAL) {
		o.signal = (uint32_t)between(0, signals);
		o.value = between(0, wide ? UINT64_MAX : EPF_NARROW_VALUE - 1);
		o.count = (uint32_t)between(0, wide ? 0x7fffffffu : UINT32_MAX);
		if (!(o.flags & EPF_F_COUNTED))
			o.count = 0;
		return o;
	}
	o.remote_region = (uint16_t)between(0, (wide ? EPF_WIDE_REGIONS : EPF_NARROW_REGIONS) - 1);
	o.remote_offset = between(0, reach - 1);
	if (!is_transfer(op)) {
		o.value = next_random();
		o.length = op == EPF_OP_ADD ? 8 : (uint32_t)between(1, 8);
		return o;
	}
	o.local_region = (uint16_t)between(0, (wide ? EPF_WIDE_REGIONS : EPF_NARROW_REGIONS) - 1);
	o.remote_offset = between(0, reach / step - 1) * step;
	o.local_offset = between(0, reach / step - 1) * step;
	o.length =
		(uint32_t)(between(1, (wide ? EPF_WIDE_LENGTH : EPF_NARROW_LENGTH) / step) * step);
	if (op != EPF_OP_GET)
		o.signal = (uint32_t)between(0, signals);
	if (op == EPF_OP_PUT_SIGNAL)
		o.add = wide ? (uint32_t)between(0, EPF_WIDE_ADD - 1)
			     : (uint32_t)between(1, EPF_NARROW_ADD);
	return o;
}

/* Equal in every field that means something for the operation. */
static void same(const struct epf_op *a, const struct epf_op *b)
{
	assert_int_equal(a->op, b->op);
	assert_int_equal(a->flags, b->flags);
	assert_int_equal(a->reserved, 0);
	assert_int_equal(b->reserved, 0);
	assert_int_equal(a->rank, b->rank);
	assert_int_equal(a->signal, b->signal);
	assert_int_equal(a->value, b->value);
	assert_int_equal(a->count, b->count);
	assert_int_equal(a->length, b->length);
	assert_int_equal(a->local_region, b->local_region);
	assert_int_equal(a->local_offset, b->local_offset);
	assert_int_equal(a->remote_region, b->remote_region);
	assert_int_equal(a->remote_offset, b->remote_offset);
	if (a->op == EPF_OP_PUT_SIGNAL)
		assert_int_equal(a->add, b->add);
}

/* Unpacks as a core does: by the operation in the first slot, whatever the parity. */
static struct epf_op unpack(const struct epf_cmd c[2])
{
	struct epf_op o;

	memset(&o, 0xa5, sizeof(o)); /* every field must be written */
	if (epf_cmd_op(c[0]) == EPF_OP_WIDE)
		epf_op_unpack_wide(c[0], c[1], &o);
	else
		epf_op_unpack_narrow(c[0], &o);
	return o;
}

static void round_trip(const struct epf_op *o, bool wide)
{
	struct epf_cmd c[2] = { { 0, 0 }, { 0, 0 } };
	struct epf_op back;

	if (wide)
		epf_op_pack_wide(o, c);
	else
		c[0] = epf_op_pack_narrow(o);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal((c[i].lo | c[i].hi) & EPF_CMD_PARITY_BITS, 0);
		c[i] = epf_cmd_with_parity(c[i], next_random() & 1);
	}
	back = unpack(c);
	same(o, &back);
	assert_int_equal(back.slots, wide ? 2 : 1);
}

static void every_legal_command_survives(void **state)
{
	for (int i = 0; i < ROUNDS; i++) {
		unsigned op = (unsigned)(next_random() % EPF_OP_COUNT);
		struct epf_op o;

		if (op != EPF_OP_WIDE && op != EPF_OP_ADD) {
			o = legal(op, false);
			assert_true(epf_op_is_narrow(&o));
			round_trip(&o, false);
		}
		if (op != EPF_OP_WIDE && op != EPF_OP_FLUSH && op != EPF_OP_NOP) {
			o = legal(op, true);
			assert_true(epf_op_fits_wide(&o));
			round_trip(&o, true);
		}
	}
}

struct limit {
	const char *name;
	uint16_t at, bytes;           /* the field in struct epf_op */
	uint16_t ops;                 /* bit of each operation that has it */
	uint64_t narrow, beyond, max; /* largest narrow value, the next one, largest wide value */
};

#define FIELD(f)  #f, offsetof(struct epf_op, f), sizeof(((struct epf_op *)0)->f)
#define OP(x)     (1u << EPF_OP_##x)
#define TRANSFERS (OP(PUT) | OP(PUT_SIGNAL) | OP(GET))
#define REACH     EPF_NARROW_REGION_BYTES

static const struct limit limits[] = {
	{ FIELD(rank), TRANSFERS | OP(SIGNAL) | OP(PUT_INLINE), 4095, 4096, 16777215 },
	{ FIELD(signal), OP(PUT) | OP(PUT_SIGNAL) | OP(SIGNAL), 65535, 65536, 16777215 },
	{ FIELD(local_region), TRANSFERS, 15, 16, 65535 },
	{ FIELD(remote_region), TRANSFERS | OP(PUT_INLINE), 15, 16, 65535 },
	{ FIELD(local_offset), TRANSFERS, REACH - 16, REACH, 0xffffffffffff },
	{ FIELD(remote_offset), TRANSFERS, REACH - 16, REACH, 0xffffffffffff },
	{ FIELD(remote_offset), OP(PUT_INLINE), REACH - 1, REACH, 0xffffffffffff },
	{ FIELD(length), TRANSFERS, 1048576, 1048592, 2147483648 },
	{ FIELD(length), OP(PUT_INLINE), 8, 0, 8 },
	{ FIELD(add), OP(PUT_SIGNAL), 16, 17, 1073741823 },
	{ FIELD(add), OP(PUT_SIGNAL), 1, 0, 1073741823 },
	{ FIELD(value), OP(SIGNAL), 0xffffffffffff, 0x1000000000000, UINT64_MAX },
	{ FIELD(local_offset), TRANSFERS, 16, 15, 17 },
	{ FIELD(remote_offset), TRANSFERS, 16, 15, 17 },
	{ FIELD(length), TRANSFERS, 16, 15, 1 },
};

static void set_field(struct epf_op *o, const struct limit *l, uint64_t value)
{
	memcpy((char *)o + l->at, &value, l->bytes); /* little-endian, as the layouts are */
}

/* Inside, at and beyond each limit: narrow, then wide, then refused. */
static void one_limit(unsigned op, const struct limit *l)
{
	struct epf_op o = legal(op, false);

	if (op == EPF_OP_SIGNAL)
		o.flags = 0, o.count = 0;
	set_field(&o, l, l->narrow);
	assert_true(epf_op_is_narrow(&o));
	round_trip(&o, false);
	set_field(&o, l, l->beyond);
	assert_false(epf_op_is_narrow(&o));
	if (op == EPF_OP_PUT_INLINE && l->bytes == sizeof(o.length) && !l->beyond) {
		assert_false(epf_op_fits_wide(&o)); /* 0 bytes fit nowhere */
		set_field(&o, l, 8);
	}
	assert_true(epf_op_fits_wide(&o));
	round_trip(&o, true);
	set_field(&o, l, l->max);
	assert_true(epf_op_fits_wide(&o));
	round_trip(&o, true);
	if (l->max < 100 || l->max == (l->bytes == 8   ? UINT64_MAX
				       : l->bytes == 4 ? UINT32_MAX
						       : UINT16_MAX))
		return;
	set_field(&o, l, l->max + 1);
	assert_false(epf_op_is_narrow(&o));
	assert_false(epf_op_fits_wide(&o));
}

static void limits_are_where_they_are_said(void **state)
{
	for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++)
		for (unsigned op = 0; op < EPF_OP_COUNT; op++)
			for (int n = 0; n < 20 && (limits[i].ops & 1u << op); n++)
				one_limit(op, &limits[i]);
}

/* What neither form can say. */
static void nonsense_fits_neither(void **state)
{
	static const struct epf_op none[] = {
		{ .op = EPF_OP_WIDE, .length = 16 },
		{ .op = EPF_OP_COUNT, .length = 16 },
		{ .op = 15, .length = 16 },
		{ .op = 16, .length = 16 },
		{ .op = 255, .length = 16 },
		{ .op = EPF_OP_PUT, .length = 0 },
		{ .op = EPF_OP_PUT, .length = 16, .flags = EPF_F_MASK + 1 },
		{ .op = EPF_OP_PUT_INLINE, .length = 9 },
		{ .op = EPF_OP_PUT_INLINE, .length = 17 },
		{ .op = EPF_OP_ADD, .length = 7 },
		{ .op = EPF_OP_ADD, .length = 9 },
		{ .op = EPF_OP_FLUSH, .flags = EPF_F_MASK + 1 },
		{ .op = EPF_OP_NOP, .flags = 255 },
		{ .op = EPF_OP_SIGNAL, .flags = EPF_F_COUNTED, .rank = 4096, .count = 1u << 31 },
	};

	for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++) {
		assert_false(epf_op_is_narrow(&none[i]));
		assert_false(epf_op_fits_wide(&none[i]));
	}
}

struct golden {
	uint8_t bytes[32]; /* parity as in the first lap: 1 in each half */
	struct epf_op op;
};

/* clang-format off */
static const struct golden golden[] = {
	{ { 0x13, 0x00, 0x07, 0x00, 0x01, 0x00, 0x00, 0x00, 0x09, 0xf0, 0x00, 0x00, 0xff, 0xff, 0xff, 0xff },
	  { .op = EPF_OP_PUT, .flags = EPF_F_COUNTED, .rank = 1, .signal = 7, .local_offset = 0x10,
	    .remote_region = 15, .remote_offset = 0xffffffff0, .length = 16, .slots = 1 } },
	{ { 0xc5, 0xab, 0x34, 0x12, 0x78, 0x56, 0x34, 0x12, 0x47, 0x69, 0xff, 0x00, 0xa9, 0xcb, 0xed, 0x0f },
	  { .op = EPF_OP_PUT_SIGNAL, .flags = EPF_F_FENCE | EPF_F_BULK, .rank = 0xabc, .signal = 0x1234, .add = 5,
	    .local_region = 9, .local_offset = 0x123456780, .remote_region = 6, .remote_offset = 0xfedcba90,
	    .length = 4096, .slots = 1 } },
	{ { 0xf9, 0xff, 0x00, 0x00, 0x20, 0x00, 0x00, 0x00, 0x01, 0x23, 0xff, 0xff, 0x00, 0x01, 0x00, 0x00 },
	  { .op = EPF_OP_GET, .rank = 0xfff, .local_region = 3, .local_offset = 0x200, .remote_region = 2,
	    .remote_offset = 0x1000, .length = 1 << 20, .slots = 1 } },
	{ { 0x37, 0x12, 0xff, 0xff, 0x10, 0x32, 0x54, 0x76, 0x09, 0x00, 0x98, 0xba, 0xef, 0xcd, 0xab, 0x89 },
	  { .op = EPF_OP_SIGNAL, .flags = EPF_F_COUNTED, .rank = 0x123, .signal = 0xffff, .value = 0xba9876543210,
	    .count = 0x89abcdef, .slots = 1 } },
	{ { 0x2f, 0x00, 0x55, 0x66, 0x11, 0x22, 0x33, 0x44, 0x65, 0x53, 0x77, 0x88, 0x12, 0x00, 0x00, 0x00 },
	  { .op = EPF_OP_PUT_INLINE, .flags = EPF_F_BULK, .rank = 2, .remote_region = 5, .remote_offset = 0x123,
	    .value = 0x8877665544332211, .length = 7, .slots = 1 } },
	{ { 0x0b, 0, 0, 0, 0, 0, 0, 0, 0x09, 0, 0, 0, 0, 0, 0, 0 },
	  { .op = EPF_OP_FLUSH, .flags = EPF_F_ALL, .slots = 1 } },
	{ { 0x01, 0, 0, 0, 0, 0, 0, 0, 0x01, 0, 0, 0, 0, 0, 0, 0 }, { .op = EPF_OP_NOP, .slots = 1 } },
	{ { 0x2d, 0x01, 0x56, 0x34, 0x12, 0xef, 0xcd, 0xab, 0xff, 0xff, 0xff, 0xff, 0x22, 0x11, 0x44, 0x33,
	    0x23, 0x44, 0x66, 0x88, 0xaa, 0xcc, 0xa8, 0xaa, 0xef, 0x10, 0x33, 0x55, 0x77, 0x99, 0xab, 0xaa },
	  { .op = EPF_OP_PUT_SIGNAL, .flags = EPF_F_FENCE, .rank = 0x123456, .signal = 0xabcdef, .add = 0x2aaa5555,
	    .local_region = 0x1122, .local_offset = 0xccbbaa998877, .remote_region = 0x3344,
	    .remote_offset = 0x665544332211, .length = 1u << 31, .slots = 2 } },
	{ { 0x8d, 0x00, 0x05, 0x00, 0x00, 0x00, 0x00, 0x00, 0x0f, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00,
	    0x11, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x80, 0x03, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00 },
	  { .op = EPF_OP_ADD, .rank = 5, .remote_region = 1, .remote_offset = 8, .value = 0x8000000000000001,
	    .length = 8, .slots = 2 } },
	{ { 0x3d, 0x04, 0x01, 0x00, 0x00, 0x02, 0x00, 0x00, 0x07, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
	    0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff },
	  { .op = EPF_OP_SIGNAL, .flags = EPF_F_COUNTED, .rank = 1, .signal = 2, .value = UINT64_MAX >> 1,
	    .count = 3, .slots = 2 } },
};

/* clang-format on */

static void bytes_are_as_documented(void **state)
{
	for (size_t i = 0; i < sizeof(golden) / sizeof(golden[0]); i++) {
		const struct golden *g = &golden[i];
		struct epf_cmd c[2], from[2];
		struct epf_op back;

		if (g->op.slots == 2)
			epf_op_pack_wide(&g->op, c);
		else
			c[0] = epf_op_pack_narrow(&g->op);
		for (unsigned s = 0; s < g->op.slots; s++)
			c[s] = epf_cmd_with_parity(c[s], epf_cmd_parity(s, 4));
		assert_memory_equal(c, g->bytes, g->op.slots * sizeof(c[0]));
		memcpy(from, g->bytes, sizeof(from));
		back = unpack(from);
		same(&g->op, &back);
	}
}

/* The helpers that device code calls give the same slots. */
static void short_forms_agree(void **state)
{
	for (int i = 0; i < 10000; i++) {
		struct epf_op o = legal(EPF_OP_PUT_SIGNAL, false);
		struct epf_cmd a = epf_op_pack_narrow(&o), b;

		b = epf_cmd_transfer(o.op, o.flags, o.rank, o.signal, o.add, o.local_region,
				     o.local_offset, o.remote_region, o.remote_offset, o.length);
		assert_memory_equal(&a, &b, sizeof(a));
		o = legal(EPF_OP_SIGNAL, false);
		a = epf_op_pack_narrow(&o);
		b = epf_cmd_signal(o.flags, o.rank, o.signal, o.value, o.count);
		assert_memory_equal(&a, &b, sizeof(a));
		o = legal(EPF_OP_PUT_INLINE, false);
		a = epf_op_pack_narrow(&o);
		b = epf_cmd_inline(o.flags, o.rank, o.remote_region, o.remote_offset, o.value,
				   o.length);
		assert_memory_equal(&a, &b, sizeof(a));
	}
}

/* Sparse, dense and random words, so that every field is sometimes zero and sometimes full. */
static uint64_t random_word(void)
{
	uint64_t a = next_random(), b = next_random();

	switch (next_random() % 4) {
	case 0:
		return a & b & next_random();
	case 1:
		return a | b | next_random();
	case 2:
		return a & 0xffff0000ffff000full;
	default:
		return a;
	}
}

/*
 * Any 128 (256) bits unpack to fields inside the limits, and what has neither reserved bits nor an unknown operation
 * packs to the same bits again: so no bit is ignored.
 */
static void every_pattern_means_something(void **state)
{
	unsigned good[2] = { 0 };

	for (int i = 0; i < PATTERNS; i++) {
		struct epf_cmd c[2] = { { random_word(), random_word() },
					{ random_word(), random_word() } },
			       again[2];
		struct epf_op o;
		bool wide;

		if (i % 2)
			c[0].lo &= ~UINT64_C(0xf800); /* reserved bits of the wide form */
		o = unpack(c);
		wide = o.slots == 2;

		assert_true(o.rank < (wide ? EPF_WIDE_RANKS : EPF_NARROW_RANKS));
		assert_true(o.signal < (wide ? EPF_WIDE_SIGNALS : EPF_NARROW_SIGNALS));
		assert_true(o.flags <= EPF_F_MASK && o.length <= EPF_WIDE_LENGTH);
		assert_true(o.local_offset < EPF_WIDE_REGION_BYTES &&
			    o.remote_offset < EPF_WIDE_REGION_BYTES);
		if (o.reserved || o.op == EPF_OP_WIDE || o.op >= EPF_OP_COUNT)
			continue;
		if (wide)
			epf_op_pack_wide(&o, again);
		else
			again[0] = epf_op_pack_narrow(&o);
		good[wide]++;
		for (unsigned s = 0; s < o.slots; s++) {
			assert_int_equal(again[s].lo, c[s].lo & ~EPF_CMD_PARITY_BITS);
			assert_int_equal(again[s].hi, c[s].hi & ~EPF_CMD_PARITY_BITS);
		}
	}
	printf("# of %d patterns %u narrow and %u wide ones are commands\n", PATTERNS, good[0],
	       good[1]);
	assert_true(good[0] > PATTERNS / 10 && good[1] > PATTERNS / 2000);
}

struct reserved {
	unsigned op;
	uint64_t lo, hi; /* bits that must be zero */
};

static const struct reserved must_be_zero[] = {
	{ EPF_OP_NOP, ~UINT64_C(0xf), ~UINT64_C(1) },
	{ EPF_OP_PUT, 0, 0xf0 },
	{ EPF_OP_PUT_SIGNAL, 0, 0 },
	{ EPF_OP_SIGNAL, 0, UINT64_C(0xffffffff0000fff0) }, /* no count without its flag */
	{ EPF_OP_GET, 0xffff0000, 0xf0 },
	{ EPF_OP_FLUSH, ~UINT64_C(0xf), ~UINT64_C(0xf) },
	{ EPF_OP_PUT_INLINE, 0, 0x80 },
};

static void reserved_bits_are_seen(void **state)
{
	for (size_t i = 0; i < sizeof(must_be_zero) / sizeof(must_be_zero[0]); i++) {
		const struct reserved *r = &must_be_zero[i];

		for (unsigned bit = 0; bit < 128; bit++) {
			uint64_t lo = bit < 64 ? UINT64_C(1) << bit : 0;
			uint64_t hi = bit < 64 ? 0 : UINT64_C(1) << (bit - 64);
			struct epf_cmd c[2] = { { (uint64_t)r->op << 1 | lo, hi }, { 0, 0 } };

			if (lo & 0xe)
				continue; /* another operation */
			assert_int_equal(unpack(c).reserved, ((lo & r->lo) | (hi & r->hi)) != 0);
		}
	}
}

/* The wide form: one bit at a time in a command that is otherwise legal. */
static void reserved_bits_of_the_wide_form_are_seen(void **state)
{
	static const struct epf_op ops[] = {
		{ .op = EPF_OP_PUT, .length = 1 }, { .op = EPF_OP_SIGNAL },
		{ .op = EPF_OP_GET, .length = 1 }, { .op = EPF_OP_PUT_INLINE, .length = 1 },
		{ .op = EPF_OP_ADD, .length = 1 }, { .op = EPF_OP_PUT_SIGNAL, .length = 1 },
		{ .op = EPF_OP_NOP, .length = 1 }, { .op = EPF_OP_FLUSH, .length = 1 },
	};
	/* Reserved of A.lo, A.hi, B.lo, B.hi for the same operations. */
	static const uint64_t zero[][4] = {
		{ 0xf800, 0, 0xfffeull << 48, 0xfffeull << 48 },
		{ 0xf800, 0xffffffffull << 32 | 0xfffffffe, 0x7ffffffffffffffeull, 0 },
		{ 0xffffff000000f800, 0, 0xfffeull << 48, 0xfffeull << 48 },
		{ 0xffffff000000f800, 0xffffull << 32, 0x7ffeull << 48, 0 },
		{ 0xffffff000000f800, 0xffffull << 32, 0x7ffeull << 48, 0 },
		{ 0xf800, 0, 0, 0 },
		{ UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX },
		{ UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX },
	};

	for (unsigned i = 0; i < sizeof(ops) / sizeof(ops[0]); i++)
		for (unsigned bit = 0; bit < 256; bit++) {
			uint64_t flip = UINT64_C(1) << (bit & 63);
			struct epf_cmd c[2];
			uint64_t *w = (uint64_t *)(void *)c + (bit >> 6);

			if (bit < 8 && bit > 0)
				continue; /* another operation */
			epf_op_pack_wide(&ops[i], c);
			*w ^= flip;
			assert_int_equal(unpack(c).reserved, (zero[i][bit >> 6] & flip) != 0);
		}
}

static void parity_stands_in_both_halves(void **state)
{
	struct epf_cmd c = epf_cmd_with_parity((struct epf_cmd){ 0, 0 }, 1);

	assert_int_equal(c.lo, 1);
	assert_int_equal(c.hi, 1);
	for (unsigned log2 = 4; log2 <= 20; log2++) {
		uint64_t size = UINT64_C(1) << log2;

		/* Zeroed memory is an empty ring: the first lap is 1. */
		assert_int_equal(epf_cmd_parity(0, log2), 1);
		assert_int_equal(epf_cmd_parity(size - 1, log2), 1);
		assert_int_equal(epf_cmd_parity(size, log2), 0);
		assert_int_equal(epf_cmd_parity(2 * size, log2), 1);
		/* It goes on changing over the wrap of the counter itself. */
		assert_int_equal(epf_cmd_parity(0 - size, log2), 0);
		assert_int_equal(epf_cmd_parity(UINT64_MAX, log2), 0);
	}
}

static int print_seed(void **state)
{
	rng = seed;
	printf("# EPF_SEED=%" PRIu64 "\n", seed);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_legal_command_survives),
		cmocka_unit_test(limits_are_where_they_are_said),
		cmocka_unit_test(nonsense_fits_neither),
		cmocka_unit_test(bytes_are_as_documented),
		cmocka_unit_test(short_forms_agree),
		cmocka_unit_test(every_pattern_means_something),
		cmocka_unit_test(reserved_bits_are_seen),
		cmocka_unit_test(reserved_bits_of_the_wide_form_are_seen),
		cmocka_unit_test(parity_stands_in_both_halves),
	};

	if (getenv("EPF_SEED"))
		seed = strtoull(getenv("EPF_SEED"), NULL, 0);
	return cmocka_run_group_tests(tests, print_seed, NULL);
}
