/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a kernel would write, for tests of the shim: images of work requests and of channel requests, made from the formats as written down
 * in docs/reference/shim.md and not from the parser's code. Included by test programs and fuzz targets; it must include nothing of tools/.
 */
#ifndef EPF_TESTS_SHIM_KIT_H
#define EPF_TESTS_SHIM_KIT_H

#include <stdint.h>
#include <string.h>

#define KIT_FN static inline __attribute__((unused))

/* Values the shim hands out, as docs/reference/shim.md has them. */
#define KIT_RKEY        0xef50a000u
#define KIT_LKEY        0xef50beefu
#define KIT_OLD_LKEY    0xef50beadu
#define KIT_OLD_ADDR    ((uint64_t)1 << 45)
#define KIT_REMOTE_BASE ((uint64_t)1 << 46)

/* Stores the bytes of a big-endian number, one by one. */
KIT_FN void kit_be(void *at, uint64_t value, unsigned bytes)
{
	for (unsigned i = 0; i < bytes; i++)
		((uint8_t *)at)[i] = (uint8_t)(value >> 8 * (bytes - 1 - i));
}

KIT_FN void kit_head(uint8_t wr[64], unsigned opmod, uint64_t index, unsigned opcode, uint32_t ring,
		     unsigned units, uint32_t pe, uint64_t remote)
{
	memset(wr, 0, 64);
	wr[0] = (uint8_t)opmod;
	kit_be(wr + 1, index & 0xffff, 2);
	wr[3] = (uint8_t)opcode;
	kit_be(wr + 4, ring, 3);
	wr[7] = (uint8_t)units;
	wr[11] = 8;
	kit_be(wr + 16, KIT_REMOTE_BASE + remote, 8);
	kit_be(wr + 24, KIT_RKEY | pe, 4);
}

KIT_FN void kit_put(uint8_t wr[64], uint64_t index, uint32_t ring, uint32_t pe, uint64_t remote,
		    uint64_t local_addr, uint32_t bytes)
{
	kit_head(wr, 0, index, 0x08, ring, 3, pe, remote);
	kit_be(wr + 32, bytes, 4);
	kit_be(wr + 36, KIT_LKEY, 4);
	kit_be(wr + 40, local_addr, 8);
}

KIT_FN void kit_inline(uint8_t wr[64], uint64_t index, uint32_t ring, uint32_t pe, uint64_t remote,
		       uint32_t value)
{
	kit_head(wr, 0, index, 0x08, ring, 3, pe, remote);
	kit_be(wr + 32, 0x80000004u, 4);
	memcpy(wr + 36, &value, 4);
}

KIT_FN void kit_add(uint8_t wr[64], uint64_t index, uint32_t ring, uint32_t pe, uint64_t remote,
		    uint32_t value)
{
	kit_head(wr, 0x08, index, 0x15, ring, 4, pe, remote);
	kit_be(wr + 32, value, 4);
	memset(wr + 40, 0x5a, 8); /* undefined */
	kit_be(wr + 48, 4, 4);
	kit_be(wr + 52, KIT_OLD_LKEY, 4);
	kit_be(wr + 56, KIT_OLD_ADDR, 8);
}

/* Words of memory that a request of the shape consists of. */
KIT_FN unsigned kit_words(const uint8_t wr[64])
{
	return wr[3] == 0x15 ? 0xf3ffu : wr[32] == 0x80 ? 0x03ffu : 0x0fffu;
}

KIT_FN uint64_t kit_wakeup(uint64_t produced, uint32_t ring)
{
	uint8_t b[8] = { 0 };
	uint64_t word;

	kit_be(b + 1, produced & 0xffff, 2);
	kit_be(b + 4, ring, 3);
	memcpy(&word, b, 8);
	return word;
}

/* Requests of the channel, without their laps. Return: words. */
KIT_FN unsigned kit_channel_amo(uint64_t w[6], unsigned op, unsigned amo, uint32_t pe,
				uint64_t offset, uint64_t value, unsigned bytes)
{
	w[0] = offset << 24 | (uint64_t)op << 16 | 1 << 8;
	w[1] = value << 32 | (uint64_t)pe << 16 | (uint64_t)amo << 8;
	w[2] = (value >> 32) << 32 | (uint64_t)bytes << 16;
	w[3] = w[4] = w[5] = 0;
	return op >= 100 ? 6 : 5;
}

KIT_FN unsigned kit_channel_put(uint64_t w[6], unsigned op, uint32_t pe, uint64_t offset,
				uint64_t local, uint64_t bytes)
{
	w[0] = offset << 24 | (uint64_t)op << 16 | 1 << 8;
	w[1] = local & ~(uint64_t)0xff;
	w[2] = bytes << 16 | (local & 0xff) << 8;
	w[3] = (uint64_t)pe << 16;
	return 4;
}

KIT_FN unsigned kit_channel_value(uint64_t w[6], unsigned op, uint32_t pe, uint64_t offset,
				  uint64_t value, unsigned bytes)
{
	w[0] = offset << 24 | (uint64_t)op << 16 | 1 << 8;
	w[1] = value << 32 | (uint64_t)pe << 16;
	w[2] = (value >> 32) << 32 | (uint64_t)bytes << 16;
	w[3] = 0;
	return op >= 100 ? 4 : 3;
}

#endif
