/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libFuzzer: compressed chunks (fabric/p2p/codec.h). Byte 0 chooses the form, byte 1 type and strategy, the rest is the input:
 *   0  any bytes as a compressed chunk, expanded to as many bytes as its head says, and to one more: never out of bounds, and memory is
 *      unchanged if it is refused
 *   1  any bytes as values: compressed and expanded they are the same, and never longer than they were with the head
 *   2  the same, with one byte of the compressed chunk changed, or the chunk cut: refused, or as long as it was
 * It aborts when a rule is broken.
 */
#include "fabric/p2p/codec.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct codec *codec;

static void must(bool rule)
{
	if (!rule)
		abort();
}

/* Expands a chunk into memory of exactly that size, so that AddressSanitizer sees each byte beyond. */
static void expand(const uint8_t *chunk, uint32_t chunk_bytes, uint32_t bytes)
{
	uint8_t *in = malloc(chunk_bytes ? chunk_bytes : 1), *out = malloc(bytes ? bytes : 1);
	int rc;

	must(in && out);
	memcpy(in, chunk, chunk_bytes);
	memset(out, 0x5a, bytes);
	rc = epf_p2p_decode(codec, in, chunk_bytes, out, bytes);
	must(rc == 0 || rc == -EBADMSG);
	for (uint32_t i = 0; rc && i < bytes; i++)
		must(out[i] == 0x5a);
	free(in);
	free(out);
}

static void any_bytes(const uint8_t *data, uint32_t size)
{
	struct codec_head head = { 0 };

	if (size >= sizeof(head))
		memcpy(&head, data, sizeof(head));
	head.bytes = head.bytes > 2 * CODEC_BYTES ? 2 * CODEC_BYTES : head.bytes;
	expand(data, size, head.bytes);
	expand(data, size, head.bytes + 1);
}

static void values(const uint8_t *data, uint32_t size, uint8_t how, uint32_t change)
{
	enum epf_p2p_float type = 1 + how % 3;
	uint8_t *chunk = malloc(size + sizeof(struct codec_head)), *back = malloc(size ? size : 1);
	uint32_t bytes;

	must(chunk && back);
	bytes = epf_p2p_encode(codec, how & 0x80 ? CODEC_FULL : CODEC_SPLIT, type, data, size,
			       chunk);
	must(bytes >= sizeof(struct codec_head) && bytes <= size + sizeof(struct codec_head));
	must(epf_p2p_decode(codec, chunk, bytes, back, size) == 0);
	must(!size || memcmp(back, data, size) == 0);
	if (change % 2)
		chunk[change / 2 % bytes] ^= (uint8_t)(1 + change % 255);
	else
		bytes -= change / 2 % bytes;
	if (change)
		expand(chunk, bytes, size);
	free(chunk);
	free(back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint32_t change = 0;

	if (size < 4 || size > CODEC_BYTES)
		return 0;
	if (!codec) { /* twice: what is freed is complete */
		must(epf_p2p_codec_exists() && epf_p2p_codec_new(&codec) == 0);
		epf_p2p_codec_free(codec);
		must(epf_p2p_codec_new(&codec) == 0);
	}
	switch (data[0] % 3) {
	case 0:
		any_bytes(data + 2, (uint32_t)size - 2);
		break;
	case 2:
		change = (uint32_t)(data[2] << 8 | data[3]) + 1;
		/* fallthrough */
	default:
		values(data + 4, (uint32_t)size - 4, data[1], change);
	}
	return 0;
}
