/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks of floating-point values, compressed and expanded (codec.h). No allocation but in epf_p2p_codec_new(). */
#include "fabric/p2p/codec.h"
#include "fabric/p2p/planes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

uint32_t epf_p2p_float_bytes(uint32_t type)
{
	switch (type) {
	case EPF_P2P_FP8:
		return 1;
	case EPF_P2P_BF16:
	case EPF_P2P_FP16:
		return 2;
	case EPF_P2P_FP32:
		return 4;
	default:
		return 0;
	}
}

#ifdef EPF_WITH_ZSTD
# include <zstd.h>

enum { CODEC_MATCH = 7, CODEC_HASH_LOG = 6 };

struct codec {
	ZSTD_CCtx *out;
	ZSTD_DCtx *in;
	uint8_t planes[CODEC_BYTES];
};

bool epf_p2p_codec_exists(void)
{
	return true;
}

int epf_p2p_codec_new(struct codec **out)
{
	struct codec *c = calloc(1, sizeof(*c));

	if (c) {
		c->out = ZSTD_createCCtx();
		c->in = ZSTD_createDCtx();
	}
	if (!c || !c->out || !c->in) {
		epf_p2p_codec_free(c);
		return -ENOMEM;
	}
	/*
	 * Exponents hardly repeat, so nearly all is gained by coding their entropy, which zstd's negative levels and lz4 leave out. Few and
	 * long matches triple the speed of level 1 and leave less (bench/compress). The checksum finds planes that were mixed up.
	 */
	(void)ZSTD_CCtx_setParameter(c->out, ZSTD_c_compressionLevel, 1);
	(void)ZSTD_CCtx_setParameter(c->out, ZSTD_c_minMatch, CODEC_MATCH);
	(void)ZSTD_CCtx_setParameter(c->out, ZSTD_c_hashLog, CODEC_HASH_LOG);
	(void)ZSTD_CCtx_setParameter(c->out, ZSTD_c_checksumFlag, 1);
	*out = c;
	return 0;
}

void epf_p2p_codec_free(struct codec *c)
{
	if (!c)
		return;
	ZSTD_freeCCtx(c->out);
	ZSTD_freeDCtx(c->in);
	free(c);
}

/* Appends a plane of n bytes at `to`, compressed if that makes it smaller. Returns its length as in the head. */
static uint32_t put_plane(struct codec *c, bool compress, const uint8_t *plane, uint32_t n,
			  uint8_t *to)
{
	size_t got = compress && n > 1 ? ZSTD_compress2(c->out, to, n - 1, plane, n) : 0;

	if (got && !ZSTD_isError(got))
		return (uint32_t)got;
	memcpy(to, plane, n);
	return n | CODEC_STORED;
}

uint32_t epf_p2p_encode(struct codec *c, enum codec_strategy strategy, enum epf_p2p_float type,
			const uint8_t *from, uint32_t bytes, uint8_t *to)
{
	uint32_t size = epf_p2p_float_bytes(type), n = bytes / size, tail = bytes % size;
	struct codec_head head = { .type = type, .bytes = bytes };
	uint8_t *at = to + sizeof(head);

	epf_p2p_planes_split(size, from, n, c->planes);
	for (uint32_t i = 0; i < size; i++) {
		head.plane[i] = put_plane(c, i == 0 || strategy == CODEC_FULL,
					  c->planes + (size_t)i * n, n, at);
		at += head.plane[i] & ~CODEC_STORED;
	}
	memcpy(at, from + bytes - tail, tail);
	memcpy(to, &head, sizeof(head));
	return (uint32_t)(at + tail - to);
}

/* Finds or expands the plane at `at`, which has `length` bytes as in the head. Returns false if it does not have n values. */
static bool take_plane(struct codec *c, const uint8_t *at, uint32_t length, uint32_t n,
		       uint8_t *scratch, const uint8_t **plane)
{
	*plane = at;
	if (length & CODEC_STORED)
		return (length & ~CODEC_STORED) == n;
	*plane = scratch;
	return ZSTD_decompressDCtx(c->in, scratch, n, at, length) == n;
}

int epf_p2p_decode(struct codec *c, const uint8_t *from, uint32_t from_bytes, uint8_t *to,
		   uint32_t bytes)
{
	const uint8_t *plane[CODEC_PLANES] = { NULL }, *at = from + sizeof(struct codec_head);
	struct codec_head head;
	uint32_t left, size, n, tail;

	if (from_bytes < sizeof(head))
		return -EBADMSG;
	memcpy(&head, from, sizeof(head));
	size = epf_p2p_float_bytes(head.type);
	if (!size || head.bytes != bytes || bytes > CODEC_BYTES)
		return -EBADMSG;
	n = bytes / size;
	tail = bytes % size;
	left = from_bytes - (uint32_t)sizeof(head);
	for (uint32_t i = 0; i < size; i++) {
		uint32_t length = head.plane[i] & ~CODEC_STORED;

		if (length > left ||
		    !take_plane(c, at, head.plane[i], n, c->planes + (size_t)i * n, &plane[i]))
			return -EBADMSG;
		at += length;
		left -= length;
	}
	if (left != tail)
		return -EBADMSG;
	epf_p2p_planes_merge(size, plane, n, to);
	memcpy(to + bytes - tail, at, tail);
	return 0;
}

#else /* without the library nothing is agreed, so nothing of this is called */

struct codec {
	char none;
};

bool epf_p2p_codec_exists(void)
{
	return false;
}

int epf_p2p_codec_new(struct codec **out)
{
	(void)out;
	return -ENOTSUP;
}

void epf_p2p_codec_free(struct codec *c)
{
	free(c);
}

uint32_t epf_p2p_encode(struct codec *c, enum codec_strategy strategy, enum epf_p2p_float type,
			const uint8_t *from, uint32_t bytes, uint8_t *to)
{
	(void)c, (void)strategy, (void)type, (void)from, (void)bytes, (void)to;
	return 0;
}

int epf_p2p_decode(struct codec *c, const uint8_t *from, uint32_t from_bytes, uint8_t *to,
		   uint32_t bytes)
{
	(void)c, (void)from, (void)from_bytes, (void)to, (void)bytes;
	return -EBADMSG;
}

#endif
