/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command: 16 bytes that a GPU kernel or a CPU thread stores into a ring with one aligned store,
 * and the wide form of two such slots. This file is the whole format: fields, limits, pack, unpack.
 *
 * Included as C, C++, CUDA and HIP; docs/abi.md shows the same layout byte by byte. No bit-fields, no
 * packed structs: shifts in named places only. Values are little-endian words, as on every host and GPU served.
 *
 * Narrow slot, four 32-bit words (lo = w0 | w1 << 32, hi = w2 | w3 << 32):
 *
 *   w0  [0] parity  [3:1] op  [15:4] rank  [31:16] signal
 *   w1  local offset / 16
 *   w2  [0] parity  [3:1] flags  [7:4] add - 1  [11:8] local region  [15:12] remote region  [31:16] length / 16 - 1
 *   w3  remote offset / 16
 *
 * The parity of lap 0 is 1, of lap 1 it is 0, and so on: zeroed memory is an empty ring and no slot is ever cleared.
 * It stands in both 64-bit halves, so a reader that needs two loads still cannot take half a command.
 *
 * Reuse of fields by the operations that have no local or remote memory, or no length:
 *   SIGNAL       w1 = value [31:0], w2[31:16] = value [47:32], w3 = count with EPF_F_COUNTED; the rest 0
 *   PUT_INLINE   w1 = value [31:0], signal = value [47:32], w2[31:16] = value [63:48], add - 1 = bytes - 1 (0..7),
 *                local region = low 4 bits of the remote byte offset
 *   FLUSH        everything but op and flags 0
 *
 * Wide form: slot A then slot B, each with its own parity bits.
 *   A.lo [0] parity [3:1] op = WIDE [7:4] operation [15:8] flags [39:16] rank [63:40] signal
 *   A.hi [0] parity [31:1] length - 1 (count of a counted signal)  [47:32] local region  [63:48] remote region
 *   B.lo [0] parity [48:1] remote byte offset  [63:49] high half of x
 *   B.hi [0] parity [48:1] local byte offset   [63:49] low half of x
 *   x (30 bits) is the add of a PUT_SIGNAL. Operations without local memory (SIGNAL, PUT_INLINE, ADD) carry a 64-bit
 *   value instead: value [62:0] in B.hi [63:1], value [63] in B.lo [63].
 */
#ifndef EPF_QUEUES_CMD_H
#define EPF_QUEUES_CMD_H

#include "queues/epf_base.h"

#include <stdint.h>

#if defined(__CUDACC__)
# define EPF_CMD_FN static __host__ __device__ __forceinline__
#elif defined(__HIP__) /* by attributes, so that it compiles without the HIP headers too */
# define EPF_CMD_FN static inline __attribute__((host, device, always_inline, unused))
#else
# define EPF_CMD_FN EPF_INLINE
#endif

/* Operations. The numbers are ABI. */
enum {
	EPF_OP_NOP = 0,        /* retired at once */
	EPF_OP_PUT = 1,        /* local memory to remote memory */
	EPF_OP_PUT_SIGNAL = 2, /* put, then add to a signal of the target */
	EPF_OP_SIGNAL =
		3,      /* add to a signal of the target, after everything earlier in the stream */
	EPF_OP_GET = 4, /* remote memory to local memory */
	EPF_OP_FLUSH =
		5, /* retired when every earlier command of the ring is visible at its target */
	EPF_OP_WIDE = 6,       /* two slots; the real operation stands in the wide field */
	EPF_OP_PUT_INLINE = 7, /* 1 to 8 bytes from the command itself */
	EPF_OP_ADD =
		8, /* wide only: add to an aligned 8-byte word of remote memory, after everything earlier */
	EPF_OP_COUNT = 9,
};

/* Flags. The numbers are ABI; the third bit means one thing per operation. */
enum {
	EPF_F_FENCE =
		1, /* PUT_SIGNAL: its signal covers everything earlier in the stream, not its own data only */
	EPF_F_BULK = 2, /* CLASS: throughput traffic; clear: latency traffic */
	EPF_F_COUNTED =
		4, /* PUT: counts towards the group named by signal. SIGNAL: visible after `count` puts of the group */
	EPF_F_ALL = 4, /* FLUSH: all rings of the rank, not only this one */
	EPF_F_MASK = 7,
};

/* Limits of the narrow form. Beyond them the wide form; beyond that an error that names the limit. */
#define EPF_CMD_BYTES           16u
#define EPF_CMD_GRANULE         16u
#define EPF_NARROW_RANKS        4096u
#define EPF_NARROW_SIGNALS      65536u
#define EPF_NARROW_REGIONS      16u
#define EPF_NARROW_LENGTH       (1u << 20)          /* bytes */
#define EPF_NARROW_REGION_BYTES (UINT64_C(1) << 36) /* reach of an offset: 64 GiB */
#define EPF_NARROW_ADD          16u                 /* PUT_SIGNAL adds 1..16 */
#define EPF_NARROW_VALUE        (UINT64_C(1) << 48) /* SIGNAL values below this */
#define EPF_WIDE_RANKS          (1u << 24)
#define EPF_WIDE_SIGNALS        (1u << 24)
#define EPF_WIDE_REGIONS        65536u
#define EPF_WIDE_LENGTH         (UINT64_C(1) << 31) /* bytes */
#define EPF_WIDE_REGION_BYTES   (UINT64_C(1) << 48)
#define EPF_WIDE_ADD            (1u << 30)

/* A slot as it lies in memory. */
struct epf_cmd {
	uint64_t lo;
	uint64_t hi;
};

EPF_STATIC_ASSERT(sizeof(struct epf_cmd) == EPF_CMD_BYTES, "a command is 16 bytes");

/*
 * A command with its fields apart: what unpack gives and pack takes. Offsets and lengths in bytes.
 * add: PUT_SIGNAL only. value: SIGNAL, PUT_INLINE and ADD. count: counted SIGNAL.
 */
struct epf_op {
	uint64_t local_offset;
	uint64_t remote_offset;
	uint64_t value;
	uint32_t length;
	uint32_t rank;
	uint32_t signal;
	uint32_t add;
	uint32_t count;
	uint16_t local_region;
	uint16_t remote_region;
	uint8_t op;
	uint8_t flags;
	uint8_t reserved; /* 1: bits that must be zero were not */
	uint8_t slots;    /* 1 or 2 */
};

#define EPF_CMD_PARITY_BITS UINT64_C(1)

/* Parity of a slot in the lap of ring index `index` (a count of slots since the start) of a ring of 2^log2 slots. */
EPF_CMD_FN uint64_t epf_cmd_parity(uint64_t index, unsigned log2)
{
	return ~(index >> log2) & 1u;
}

/* The slot with the given parity in both halves; the packed form comes with parity 0. */
EPF_CMD_FN struct epf_cmd epf_cmd_with_parity(struct epf_cmd c, uint64_t parity)
{
	c.lo |= parity;
	c.hi |= parity;
	return c;
}

EPF_CMD_FN unsigned epf_cmd_op(struct epf_cmd c)
{
	return (unsigned)(c.lo >> 1) & 7u;
}

/* Packs a narrow data transfer: PUT, PUT_SIGNAL (add 1..16), GET. Offsets and length are multiples of 16. */
EPF_CMD_FN struct epf_cmd epf_cmd_transfer(unsigned op, unsigned flags, uint32_t rank,
					   uint32_t signal, uint32_t add, uint32_t lregion,
					   uint64_t loffset, uint32_t rregion, uint64_t roffset,
					   uint32_t length)
{
	struct epf_cmd c;

	c.lo = (uint64_t)op << 1 | (uint64_t)rank << 4 | (uint64_t)signal << 16 |
	       (loffset >> 4) << 32;
	c.hi = (uint64_t)flags << 1 | (uint64_t)((add - 1u) & 15u) << 4 | (uint64_t)lregion << 8 |
	       (uint64_t)rregion << 12 | (uint64_t)((length >> 4) - 1u) << 16 |
	       (roffset >> 4) << 32;
	return c;
}

/* Packs a narrow SIGNAL, value < 2^48. count is 0, or above 0 together with EPF_F_COUNTED in flags. */
EPF_CMD_FN struct epf_cmd epf_cmd_signal(unsigned flags, uint32_t rank, uint32_t signal,
					 uint64_t value, uint32_t count)
{
	struct epf_cmd c;

	c.lo = (uint64_t)EPF_OP_SIGNAL << 1 | (uint64_t)rank << 4 | (uint64_t)signal << 16 |
	       value << 32;
	c.hi = (uint64_t)flags << 1 | ((value >> 32) & 0xffffu) << 16 | (uint64_t)count << 32;
	return c;
}

/* Packs a narrow PUT_INLINE of 1..8 bytes to any byte offset. */
EPF_CMD_FN struct epf_cmd epf_cmd_inline(unsigned flags, uint32_t rank, uint32_t rregion,
					 uint64_t roffset, uint64_t value, uint32_t bytes)
{
	struct epf_cmd c;

	c.lo = (uint64_t)EPF_OP_PUT_INLINE << 1 | (uint64_t)rank << 4 |
	       ((value >> 32) & 0xffffu) << 16 | value << 32;
	c.hi = (uint64_t)flags << 1 | (uint64_t)((bytes - 1u) & 15u) << 4 | (roffset & 15u) << 8 |
	       (uint64_t)rregion << 12 | (value >> 48) << 16 | (roffset >> 4) << 32;
	return c;
}

EPF_CMD_FN struct epf_cmd epf_cmd_flush(unsigned flags)
{
	struct epf_cmd c;

	c.lo = (uint64_t)EPF_OP_FLUSH << 1;
	c.hi = (uint64_t)flags << 1;
	return c;
}

/* True for operations that carry a 64-bit value and name no local memory. */
EPF_CMD_FN int epf_op_has_value(unsigned op)
{
	return op == EPF_OP_SIGNAL || op == EPF_OP_PUT_INLINE || op == EPF_OP_ADD;
}

/* True if the narrow form can say it; limits above. */
EPF_CMD_FN int epf_op_is_narrow(const struct epf_op *o)
{
	if (o->rank >= EPF_NARROW_RANKS || o->signal >= EPF_NARROW_SIGNALS || o->flags > EPF_F_MASK)
		return 0;
	if (o->op == EPF_OP_SIGNAL)
		return o->value < EPF_NARROW_VALUE;
	if (o->op == EPF_OP_PUT_INLINE)
		return o->remote_region < EPF_NARROW_REGIONS &&
		       o->remote_offset < EPF_NARROW_REGION_BYTES && o->length >= 1 &&
		       o->length <= 8;
	if (o->op == EPF_OP_PUT || o->op == EPF_OP_PUT_SIGNAL || o->op == EPF_OP_GET)
		return o->local_region < EPF_NARROW_REGIONS &&
		       o->remote_region < EPF_NARROW_REGIONS && o->length >= EPF_CMD_GRANULE &&
		       o->length <= EPF_NARROW_LENGTH &&
		       !((o->local_offset | o->remote_offset | o->length) &
			 (EPF_CMD_GRANULE - 1u)) &&
		       o->local_offset < EPF_NARROW_REGION_BYTES &&
		       o->remote_offset < EPF_NARROW_REGION_BYTES &&
		       (o->op != EPF_OP_PUT_SIGNAL || (o->add >= 1 && o->add <= EPF_NARROW_ADD));
	return o->op == EPF_OP_FLUSH || o->op == EPF_OP_NOP;
}

/* Packs the narrow form of an operation for which epf_op_is_narrow holds. */
EPF_CMD_FN struct epf_cmd epf_op_pack_narrow(const struct epf_op *o)
{
	switch (o->op) {
	case EPF_OP_SIGNAL:
		return epf_cmd_signal(o->flags, o->rank, o->signal, o->value, o->count);
	case EPF_OP_PUT_INLINE:
		return epf_cmd_inline(o->flags, o->rank, o->remote_region, o->remote_offset,
				      o->value, o->length);
	case EPF_OP_FLUSH:
		return epf_cmd_flush(o->flags);
	case EPF_OP_NOP: {
		struct epf_cmd nop = { 0, 0 };
		return nop;
	}
	default:
		return epf_cmd_transfer(o->op, o->flags, o->rank, o->signal,
					o->op == EPF_OP_PUT_SIGNAL ? o->add : 1, o->local_region,
					o->local_offset, o->remote_region, o->remote_offset,
					o->length);
	}
}

/* Packs the wide form into two slots. The caller has checked the wide limits (epf_op_fits_wide). */
EPF_CMD_FN void epf_op_pack_wide(const struct epf_op *o, struct epf_cmd out[2])
{
	uint32_t len = o->op == EPF_OP_SIGNAL ? o->count : o->length - 1u;
	uint32_t add = o->op == EPF_OP_PUT_SIGNAL ? o->add : 0;

	out[0].lo = (uint64_t)EPF_OP_WIDE << 1 | (uint64_t)o->op << 4 | (uint64_t)o->flags << 8 |
		    (uint64_t)o->rank << 16 | (uint64_t)o->signal << 40;
	out[0].hi = (uint64_t)(len & 0x7fffffffu) << 1 | (uint64_t)o->local_region << 32 |
		    (uint64_t)o->remote_region << 48;
	if (epf_op_has_value(o->op)) {
		out[1].lo = o->remote_offset << 1 | (o->value >> 63) << 63;
		out[1].hi = o->value << 1;
	} else {
		out[1].lo = o->remote_offset << 1 | (uint64_t)(add >> 15) << 49;
		out[1].hi = o->local_offset << 1 | (uint64_t)(add & 0x7fffu) << 49;
	}
}

/* True if the wide form can say it. */
EPF_CMD_FN int epf_op_fits_wide(const struct epf_op *o)
{
	if (o->rank >= EPF_WIDE_RANKS || o->signal >= EPF_WIDE_SIGNALS || o->flags > EPF_F_MASK)
		return 0;
	if (o->op == EPF_OP_SIGNAL)
		return o->count <= 0x7fffffffu;
	if (o->op == EPF_OP_FLUSH || o->op == EPF_OP_NOP || o->op == EPF_OP_WIDE ||
	    o->op >= EPF_OP_COUNT)
		return 0;
	if (o->op == EPF_OP_PUT_INLINE || o->op == EPF_OP_ADD)
		return o->length >= (o->op == EPF_OP_ADD ? 8u : 1u) && o->length <= 8 &&
		       o->remote_offset < EPF_WIDE_REGION_BYTES;
	return o->length >= 1 && o->length <= EPF_WIDE_LENGTH &&
	       o->local_offset < EPF_WIDE_REGION_BYTES &&
	       o->remote_offset < EPF_WIDE_REGION_BYTES &&
	       (o->op != EPF_OP_PUT_SIGNAL || o->add < EPF_WIDE_ADD);
}

EPF_CMD_FN int epf_op_is_put(unsigned op)
{
	return op == EPF_OP_PUT || op == EPF_OP_PUT_SIGNAL;
}

/* The fields of a narrow slot as a transfer has them. */
EPF_CMD_FN void epf_op_unpack_transfer(struct epf_cmd c, struct epf_op *o)
{
	uint32_t add = (uint32_t)(c.hi >> 4) & 15u;

	o->op = (uint8_t)(c.lo >> 1 & 7u);
	o->flags = (uint8_t)(c.hi >> 1 & 7u);
	o->rank = (uint32_t)(c.lo >> 4) & 0xfffu;
	o->signal = (uint32_t)(c.lo >> 16) & 0xffffu;
	o->local_region = (uint16_t)((uint32_t)(c.hi >> 8) & 15u);
	o->remote_region = (uint16_t)(c.hi >> 12 & 15u);
	o->local_offset = (c.lo >> 32) << 4;
	o->remote_offset = (c.hi >> 32) << 4;
	o->length = (((uint32_t)(c.hi >> 16) & 0xffffu) + 1u) << 4;
	o->add = add + 1u;
	o->value = 0;
	o->count = 0;
	o->slots = 1;
	o->reserved = o->op == EPF_OP_PUT && add != 0;
}

/* Unpacks a narrow slot (any op but WIDE). Every bit pattern gives some result; bad ones set `reserved` or op. */
EPF_CMD_FN void epf_op_unpack_narrow(struct epf_cmd c, struct epf_op *o)
{
	uint32_t len16 = (uint32_t)(c.hi >> 16) & 0xffffu;
	uint32_t add = (uint32_t)(c.hi >> 4) & 15u;
	uint32_t lregion = (uint32_t)(c.hi >> 8) & 15u;

	epf_op_unpack_transfer(c, o);
	if (epf_op_is_put(o->op))
		return;
	switch (o->op) {
	case EPF_OP_GET:
		o->reserved = add != 0 || o->signal != 0;
		break;
	case EPF_OP_SIGNAL:
		o->value = c.lo >> 32 | (uint64_t)len16 << 32;
		o->count = (uint32_t)(c.hi >> 32);
		o->reserved =
			(c.hi >> 4 & 0xfffu) != 0 || (!(o->flags & EPF_F_COUNTED) && o->count != 0);
		o->remote_offset = 0;
		o->local_offset = 0;
		o->length = 0;
		break;
	case EPF_OP_PUT_INLINE:
		o->value = c.lo >> 32 | (uint64_t)o->signal << 32 | (uint64_t)len16 << 48;
		o->length = add + 1u;
		o->remote_offset |= lregion;
		o->local_offset = 0;
		o->local_region = 0;
		o->signal = 0;
		o->reserved = add > 7u;
		break;
	default: /* FLUSH, NOP: nothing but op and flags (NOP: not even those) */
		o->reserved =
			c.lo >> 4 != 0 || c.hi >> 4 != 0 || (o->op == EPF_OP_NOP && o->flags != 0);
		o->length = 0;
		break;
	}
}

/* Unpacks a wide command from its two slots. Every pattern gives some result; a bad operation is left in op as it is. */
EPF_CMD_FN void epf_op_unpack_wide(struct epf_cmd a, struct epf_cmd b, struct epf_op *o)
{
	uint32_t len = (uint32_t)(a.hi >> 1) & 0x7fffffffu;
	unsigned flags = (unsigned)(a.lo >> 8) & 0xffu;

	o->op = (uint8_t)(a.lo >> 4 & 15u);
	o->flags = (uint8_t)(flags & EPF_F_MASK);
	o->rank = (uint32_t)(a.lo >> 16) & 0xffffffu;
	o->signal = (uint32_t)(a.lo >> 40);
	o->local_region = (uint16_t)(a.hi >> 32);
	o->remote_region = (uint16_t)(a.hi >> 48);
	o->remote_offset = b.lo >> 1 & (EPF_WIDE_REGION_BYTES - 1u);
	o->slots = 2;
	o->reserved = flags > EPF_F_MASK || o->op == EPF_OP_NOP || o->op == EPF_OP_FLUSH;
	o->add = 1;
	o->count = 0;
	if (epf_op_has_value(o->op)) {
		o->value = b.hi >> 1 | b.lo >> 63 << 63;
		o->local_offset = 0;
		o->length = o->op == EPF_OP_SIGNAL ? 0 : len + 1u;
		o->count = o->op == EPF_OP_SIGNAL ? len : 0;
		o->reserved |= (b.lo >> 49 & 0x3fffu) != 0 || o->local_region != 0;
		if (o->op == EPF_OP_SIGNAL)
			o->reserved |= o->remote_region != 0 || o->remote_offset != 0 ||
				       (!(flags & EPF_F_COUNTED) && len != 0);
		else
			o->reserved |= o->signal != 0;
		return;
	}
	o->value = 0;
	o->local_offset = b.hi >> 1 & (EPF_WIDE_REGION_BYTES - 1u);
	o->length = len + 1u;
	o->add = (uint32_t)(b.lo >> 49) << 15 | (uint32_t)(b.hi >> 49);
	o->reserved |= (o->op != EPF_OP_PUT_SIGNAL && o->add != 0) ||
		       (o->op == EPF_OP_GET && o->signal != 0);
}

#endif
