/* SPDX-License-Identifier: Apache-2.0 */
/* Compressed chunks (fabric/p2p/codec.h): every bit survives, values shrink, and damaged chunks are refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "fabric/p2p/codec.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct codec *codec;
static uint8_t from[CODEC_BYTES + 16], to[CODEC_BYTES + 16], chunk[CODEC_ROOM + 2];
static uint64_t seed = 88172645463325252ull;

static uint32_t any(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return (uint32_t)(seed >> 16);
}

/* Compresses and expands `bytes` bytes at from + shift. Returns the length of the chunk. */
static uint32_t there_and_back(enum codec_strategy strategy, enum epf_p2p_float type,
			       uint32_t shift, uint32_t bytes)
{
	uint32_t n = epf_p2p_encode(codec, strategy, type, from + shift, bytes, chunk);

	assert_true(n <= bytes + sizeof(struct codec_head));
	memset(to, 0x5a, sizeof(to));
	assert_int_equal(epf_p2p_decode(codec, chunk, n, to + shift, bytes), 0);
	assert_memory_equal(to + shift, from + shift, bytes);
	if (shift)
		assert_int_equal(to[shift - 1], 0x5a);
	assert_int_equal(to[shift + bytes], 0x5a);
	return n;
}

static void test_any_bytes(void **state)
{
	(void)state;
	for (enum epf_p2p_float type = EPF_P2P_BF16; type <= EPF_P2P_FP8; type++)
		for (enum codec_strategy s = CODEC_SPLIT; s <= CODEC_FULL; s++) {
			for (uint32_t i = 0; i < sizeof(from); i++) /* NaNs and infinities too */
				from[i] = (uint8_t)any();
			for (uint32_t bytes = 0; bytes < 70; bytes++)
				there_and_back(s, type, bytes % 7, bytes);
			there_and_back(s, type, 3, CODEC_BYTES - 5);
			there_and_back(s, type, 0, CODEC_BYTES);
			memset(from, 0xff, sizeof(from));
			there_and_back(s, type, 1, CODEC_BYTES - 1);
		}
}

/* Every pattern of 16 bits, and their like in 32. */
static void test_every_value(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < 65536; i++)
		memcpy(from + 2 * i, &(uint16_t){ (uint16_t)i }, 2);
	there_and_back(CODEC_FULL, EPF_P2P_BF16, 0, 131072);
	there_and_back(CODEC_FULL, EPF_P2P_FP16, 0, 131072);
	for (uint32_t i = 0; i < 65536; i++)
		memcpy(from + 4 * i, &(uint32_t){ i << 16 | (i * 40503 & 0xffff) }, 4);
	there_and_back(CODEC_FULL, EPF_P2P_FP32, 0, CODEC_BYTES);
}

/* Values between 1 and 2 with random mantissas and signs: the exponents vanish, the rest stays. */
static void test_shrinks(void **state)
{
	static const struct {
		enum epf_p2p_float type;
		uint32_t size, mantissa, one, most;
	} t[] = {
		{ EPF_P2P_BF16, 2, 7, 0x3f80, CODEC_BYTES / 2 + CODEC_BYTES / 64 },
		{ EPF_P2P_FP16, 2, 10, 0x3c00, CODEC_BYTES * 11 / 16 + CODEC_BYTES / 64 },
		{ EPF_P2P_FP32, 4, 23, 0x3f800000, CODEC_BYTES * 3 / 4 + CODEC_BYTES / 64 },
	};

	(void)state;
	for (unsigned k = 0; k < 3; k++) {
		for (uint32_t i = 0; i < CODEC_BYTES / t[k].size; i++) {
			uint32_t v = t[k].one | (any() & ((1u << t[k].mantissa) - 1)) |
				     (any() & 1) << (8 * t[k].size - 1);

			memcpy(from + (size_t)i * t[k].size, &v, t[k].size);
		}
		assert_true(there_and_back(CODEC_SPLIT, t[k].type, 0, CODEC_BYTES) < t[k].most);
	}
	/* Values of bf16 kept as fp32: full compresses their empty halves, split does not. */
	for (uint32_t i = 0; i < CODEC_BYTES / 4; i++)
		memcpy(from + 4 * i, &(uint32_t){ 0x3f800000 | (any() & 0x7f) << 16 }, 4);
	assert_true(there_and_back(CODEC_FULL, EPF_P2P_FP32, 0, CODEC_BYTES) < CODEC_BYTES / 3);
	assert_true(there_and_back(CODEC_SPLIT, EPF_P2P_FP32, 0, CODEC_BYTES) > CODEC_BYTES / 2);
}

static void refused(uint32_t n, uint32_t bytes)
{
	memset(to, 0x5a, sizeof(to));
	assert_int_equal(epf_p2p_decode(codec, chunk, n, to, bytes), -EBADMSG);
	for (uint32_t i = 0; i < sizeof(to); i++)
		if (to[i] != 0x5a)
			fail_msg("byte %u was written by a chunk that was refused", i);
}

static void test_damaged(void **state)
{
	enum { BYTES = 4099 };
	struct codec_head head, bad;
	uint32_t n;

	(void)state;
	memset(from, 0x3f, sizeof(from));
	n = there_and_back(CODEC_SPLIT, EPF_P2P_BF16, 0, BYTES);
	memcpy(&head, chunk, sizeof(head));
	refused(n, BYTES + 1);
	refused(n, BYTES - 1);
	refused(n - 1, BYTES);
	refused(n + 1, BYTES);
	refused(sizeof(head) - 1, BYTES);
	refused(sizeof(head), BYTES);
	refused(0, 0);
	for (unsigned what = 0; what < 8; what++) {
		bad = head;
		if (what < 2)
			bad.type = what ? 99 : EPF_P2P_FP32;
		else if (what < 4)
			bad.plane[what - 2] += 1;
		else if (what < 6)
			bad.plane[what - 4] ^= CODEC_STORED;
		else
			bad.plane[what - 6] = 0xffffffff;
		memcpy(chunk, &bad, sizeof(bad));
		refused(n, BYTES);
	}
	memcpy(chunk, &head, sizeof(head));
	chunk[sizeof(head) + head.plane[0] - 1] ^= 1; /* the checksum of the exponents */
	refused(n, BYTES);
	bad = (struct codec_head){ .type = EPF_P2P_BF16,
				   .bytes = CODEC_BYTES + 2,
				   .plane = { (CODEC_BYTES / 2 + 1) | CODEC_STORED,
					      (CODEC_BYTES / 2 + 1) | CODEC_STORED } };
	memcpy(chunk, &bad, sizeof(bad));
	refused(CODEC_ROOM + 2, CODEC_BYTES + 2); /* right but for its length */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_any_bytes),
		cmocka_unit_test(test_every_value),
		cmocka_unit_test(test_shrinks),
		cmocka_unit_test(test_damaged),
	};
	int rc;

	if (!epf_p2p_codec_exists())
		return 77; /* a build without libzstd */
	if (epf_p2p_codec_new(&codec))
		return 1;
	rc = cmocka_run_group_tests(tests, NULL, NULL);
	epf_p2p_codec_free(codec);
	return rc;
}
