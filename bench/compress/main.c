/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chooses the library of compressed transfers (fabric/p2p/codec.h): the plane of exponents of normally distributed values, chunk by chunk, by
 * zstd and by lz4, one thread; then whole chunks by the codec. Prints bytes of values per second of CPU time, and what is left of them.
 */
#include "fabric/p2p/codec.h"
#include "fabric/p2p/planes.h"

#include <lz4.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <zstd.h>

enum { CHUNKS = 64, ROUNDS = 5, ROOM = 2 * CODEC_BYTES };

static uint8_t values[CHUNKS][CODEC_BYTES], back[CODEC_BYTES], packed[CHUNKS][ROOM];
static uint8_t planes[CHUNKS][CODEC_BYTES];
static uint32_t lengths[CHUNKS];
static ZSTD_CCtx *cctx;
static ZSTD_DCtx *dctx;

struct way {
	const char *name;
	int level;
	uint32_t (*pack)(int level, const uint8_t *from, uint32_t n, uint8_t *to);
	void (*unpack)(const uint8_t *from, uint32_t bytes, uint8_t *to, uint32_t n);
};

static uint32_t zstd_pack(int level, const uint8_t *from, uint32_t n, uint8_t *to)
{
	return (uint32_t)ZSTD_compressCCtx(cctx, to, ROOM, from, n, level);
}

static void zstd_unpack(const uint8_t *from, uint32_t bytes, uint8_t *to, uint32_t n)
{
	ZSTD_decompressDCtx(dctx, to, n, from, bytes);
}

/* As the codec does it: long matches in a small table. */
static uint32_t long_pack(int match, const uint8_t *from, uint32_t n, uint8_t *to)
{
	(void)ZSTD_CCtx_setParameter(cctx, ZSTD_c_compressionLevel, 1);
	(void)ZSTD_CCtx_setParameter(cctx, ZSTD_c_minMatch, match);
	(void)ZSTD_CCtx_setParameter(cctx, ZSTD_c_hashLog, 6);
	return (uint32_t)ZSTD_compress2(cctx, to, ROOM, from, n);
}

static uint32_t lz4_pack(int level, const uint8_t *from, uint32_t n, uint8_t *to)
{
	return (uint32_t)LZ4_compress_fast((const char *)from, (char *)to, (int)n, ROOM, level);
}

static void lz4_unpack(const uint8_t *from, uint32_t bytes, uint8_t *to, uint32_t n)
{
	LZ4_decompress_safe((const char *)from, (char *)to, (int)bytes, (int)n);
}

static const struct way ways[] = {
	{ "zstd", 1, zstd_pack, zstd_unpack },  { "zstd", 3, zstd_pack, zstd_unpack },
	{ "zstd", -5, zstd_pack, zstd_unpack }, { "zstd", -50, zstd_pack, zstd_unpack },
	{ "long", 7, long_pack, zstd_unpack },  { "lz4", 1, lz4_pack, lz4_unpack },
};

static const struct {
	enum epf_p2p_float type;
	const char *name;
} types[] = { { EPF_P2P_BF16, "bf16" }, { EPF_P2P_FP16, "fp16" }, { EPF_P2P_FP32, "fp32" } };

/* A normal value of one of many rows, whose deviations differ as those of weights do (0.005 to 0.05). */
static float normal(uint32_t row)
{
	double a = (rand() + 1.0) / (RAND_MAX + 2.0), b = rand() / (double)RAND_MAX;

	return (float)(sqrt(-2 * log(a)) * cos(6.283185307 * b) *
		       (0.005 + 0.045 * (row % 64) / 64));
}

static void fill(enum epf_p2p_float type)
{
	uint32_t size = epf_p2p_float_bytes(type), n = CODEC_BYTES / size;

	for (uint32_t i = 0; i < CHUNKS * n; i++) {
		uint8_t *to = values[i / n] + (size_t)(i % n) * size;
		float f = normal(i / 4096);
		uint32_t bits;

		memcpy(&bits, &f, sizeof(bits));
		if (type == EPF_P2P_BF16)
			bits >>= 16;
		else if (type == EPF_P2P_FP16) /* these values are normal there too, or become 0 */
			bits = (bits >> 23 & 0xff) < 113
				       ? 0
				       : (bits >> 16 & 0x8000) | ((bits >> 23 & 0xff) - 112) << 10 |
						 (bits >> 13 & 0x3ff);
		memcpy(to, &bits, size);
	}
}

/* CPU time: the figures hold beside other work, too. */
static uint64_t cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static double gb_per_s(uint64_t ns)
{
	return (double)CHUNKS * CODEC_BYTES / (double)ns;
}

static void one_way(const char *type, const struct way *w, uint32_t size)
{
	uint32_t n = CODEC_BYTES / size;
	uint64_t in = UINT64_MAX, out = UINT64_MAX, left = 0;

	for (int round = 0; round < ROUNDS; round++) {
		uint64_t t0 = cpu_ns(), t1;

		for (int i = 0; i < CHUNKS; i++) {
			epf_p2p_planes_split(size, values[i], n, planes[i]);
			lengths[i] = w->pack(w->level, planes[i], n, packed[i]);
		}
		t1 = cpu_ns();
		in = t1 - t0 < in ? t1 - t0 : in;
		for (int i = 0; i < CHUNKS; i++) {
			const uint8_t *p[CODEC_PLANES];

			w->unpack(packed[i], lengths[i], planes[i], n);
			for (uint32_t k = 0; k < size; k++)
				p[k] = planes[i] + (size_t)k * n;
			epf_p2p_planes_merge(size, p, n, back);
			if (memcmp(back, values[i], CODEC_BYTES) != 0)
				exit(1);
		}
		t0 = cpu_ns();
		out = t0 - t1 < out ? t0 - t1 : out;
	}
	for (int i = 0; i < CHUNKS; i++)
		left += lengths[i] + (size - 1) * n;
	printf("%-5s exponents by %-4s %3d  left %.3f  compress %6.2f GB/s  expand %6.2f GB/s\n",
	       type, w->name, w->level, (double)left / ((double)CHUNKS * CODEC_BYTES), gb_per_s(in),
	       gb_per_s(out));
}

static void codec(const char *name, enum epf_p2p_float type, enum codec_strategy strategy)
{
	uint64_t in = UINT64_MAX, out = UINT64_MAX, left = 0;
	struct codec *c;

	if (epf_p2p_codec_new(&c))
		exit(1);
	for (int round = 0; round < ROUNDS; round++) {
		uint64_t t0 = cpu_ns(), t1;

		left = 0;
		for (int i = 0; i < CHUNKS; i++)
			left += lengths[i] = epf_p2p_encode(c, strategy, type, values[i],
							    CODEC_BYTES, packed[i]);
		t1 = cpu_ns();
		in = t1 - t0 < in ? t1 - t0 : in;
		for (int i = 0; i < CHUNKS; i++)
			if (epf_p2p_decode(c, packed[i], lengths[i], back, CODEC_BYTES) ||
			    memcmp(back, values[i], CODEC_BYTES) != 0)
				exit(1);
		t0 = cpu_ns();
		out = t0 - t1 < out ? t0 - t1 : out;
	}
	printf("%-5s codec, %-15s left %.3f  compress %6.2f GB/s  expand %6.2f GB/s\n", name,
	       strategy == CODEC_FULL ? "full" : "split",
	       (double)left / ((double)CHUNKS * CODEC_BYTES), gb_per_s(in), gb_per_s(out));
	epf_p2p_codec_free(c);
}

int main(void)
{
	cctx = ZSTD_createCCtx();
	dctx = ZSTD_createDCtx();
	for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
		fill(types[t].type);
		for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++)
			one_way(types[t].name, &ways[i], epf_p2p_float_bytes(types[t].type));
		codec(types[t].name, types[t].type, CODEC_SPLIT);
		codec(types[t].name, types[t].type, CODEC_FULL);
	}
	ZSTD_freeCCtx(cctx);
	ZSTD_freeDCtx(dctx);
	return 0;
}
