/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A library with the names and the interface of nvCOMP's ANS coder, for tests without a GPU: it codes the fake GPU's memory, which is the host's, when it
 * is called. A part of at most 16 different bytes becomes half as long; what else does not shrink. It refuses what the real one refuses: wrong
 * alignment, missing temporary memory, reserved bytes that are set, coded bytes that make no sense.
 * Environment: STANDIN_VERSION, what it says it is; STANDIN_WRONG, it loses a bit.
 */
#include "tests/unit/gpu/nvcomp_standin.h"

#include "fabric/gpu/nvcomp.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define API __attribute__((visibility("default")))

enum {
	BAD_VALUE = 10,
	BAD_ALIGNMENT = 17,
	TOO_LARGE = 18,
	CUDA_ERROR = 1000,
	TEMP_BYTES = 4096,
	ALIGN = 16,
	MOST_DIFFERENT = 16,
	MAGIC_SHORT = 0x54524853,
	MAGIC_LONG = 0x474e4f4c,
};

struct coded {
	uint32_t magic, bytes;
	uint8_t different[MOST_DIFFERENT];
};

API struct nvcomp_standin nvcomp_standin;

API int nvcompGetProperties(struct epf_nvcomp_properties *out);
API const char *nvcompGetStatusString(int status);
API int nvcompBatchedANSCompressGetRequiredAlignments(struct epf_nvcomp_compress how,
						      struct epf_nvcomp_align *out);
API int nvcompBatchedANSCompressGetTempSize(size_t n, size_t most, struct epf_nvcomp_compress how,
					    size_t *temp, size_t total, void *stream);
API int nvcompBatchedANSCompressGetMaxOutputChunkSize(size_t most, struct epf_nvcomp_compress how,
						      size_t *out);
API int nvcompBatchedANSCompressAsync(const void *const *from, const size_t *from_bytes,
				      size_t most, size_t n, void *temp, size_t temp_bytes,
				      void *const *to, size_t *to_bytes,
				      struct epf_nvcomp_compress how, int *statuses, void *stream);
API int nvcompBatchedANSDecompressGetRequiredAlignments(struct epf_nvcomp_expand how,
							struct epf_nvcomp_align *out);
API int nvcompBatchedANSDecompressGetTempSize(size_t n, size_t most, struct epf_nvcomp_expand how,
					      size_t *temp, size_t total, void *stream);
API int nvcompBatchedANSDecompressAsync(const void *const *from, const size_t *from_bytes,
					const size_t *room, size_t *used, size_t n, void *temp,
					size_t temp_bytes, void *const *to,
					struct epf_nvcomp_expand how, int *statuses, void *stream);

static int is_zero(const char *reserved, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (reserved[i])
			return 0;
	return 1;
}

static int wrong_compress(const struct epf_nvcomp_compress *how)
{
	return how->type || how->data_type != EPF_NVCOMP_CHAR || how->sub_chunks || how->states ||
	       how->histogram || !is_zero(how->reserved, sizeof(how->reserved));
}

static int wrong_expand(const struct epf_nvcomp_expand *how)
{
	return how->backend || how->data_type != EPF_NVCOMP_BITS || how->sub_chunks ||
	       how->states || how->skip_validate || !is_zero(how->reserved, sizeof(how->reserved));
}

int nvcompGetProperties(struct epf_nvcomp_properties *out)
{
	const char *version = getenv("STANDIN_VERSION");

	out->version = version ? (uint32_t)strtoul(version, NULL, 10) : 6000;
	out->cudart = 13000;
	return 0;
}

const char *nvcompGetStatusString(int status)
{
	return status == CUDA_ERROR ? "the stand-in was told to fail" : "the stand-in refuses";
}

static int align(struct epf_nvcomp_align *out)
{
	*out = (struct epf_nvcomp_align){ ALIGN, ALIGN, 1 };
	return 0;
}

int nvcompBatchedANSCompressGetRequiredAlignments(struct epf_nvcomp_compress how,
						  struct epf_nvcomp_align *out)
{
	return wrong_compress(&how) ? BAD_VALUE : align(out);
}

int nvcompBatchedANSDecompressGetRequiredAlignments(struct epf_nvcomp_expand how,
						    struct epf_nvcomp_align *out)
{
	return wrong_expand(&how) ? BAD_VALUE : align(out);
}

int nvcompBatchedANSCompressGetTempSize(size_t n, size_t most, struct epf_nvcomp_compress how,
					size_t *temp, size_t total, void *stream)
{
	*temp = TEMP_BYTES;
	return wrong_compress(&how) || total < most || n * most < total || !stream ? BAD_VALUE : 0;
}

int nvcompBatchedANSDecompressGetTempSize(size_t n, size_t most, struct epf_nvcomp_expand how,
					  size_t *temp, size_t total, void *stream)
{
	*temp = TEMP_BYTES;
	return wrong_expand(&how) || total < most || n * most < total || !stream ? BAD_VALUE : 0;
}

int nvcompBatchedANSCompressGetMaxOutputChunkSize(size_t most, struct epf_nvcomp_compress how,
						  size_t *out)
{
	*out = most + sizeof(struct coded);
	return wrong_compress(&how) ? BAD_VALUE : 0;
}

static void rest(void)
{
	nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
}

/* The device is busy: it begins to work when the test says so. */
static void wait_while(int *held)
{
	if (!__atomic_load_n(held, __ATOMIC_ACQUIRE))
		return;
	__atomic_fetch_add(&nvcomp_standin.held, 1, __ATOMIC_ACQ_REL);
	while (__atomic_load_n(held, __ATOMIC_ACQUIRE))
		rest();
}

static void stick(void)
{
	int one = 1;

	if (__atomic_compare_exchange_n(&nvcomp_standin.stick, &one, 2, false, __ATOMIC_ACQ_REL,
					__ATOMIC_RELAXED))
		for (;;)
			rest();
}

static size_t code(const uint8_t *from, size_t bytes, uint8_t *to)
{
	struct coded c = { .magic = MAGIC_SHORT, .bytes = (uint32_t)bytes };
	uint8_t *at = to + sizeof(c), place[256];
	unsigned n = 0;

	memset(place, 0xff, sizeof(place));
	for (size_t i = 0; i < bytes && n <= MOST_DIFFERENT; i++) {
		if (place[from[i]] != 0xff)
			continue;
		if (n < MOST_DIFFERENT)
			c.different[n] = from[i];
		place[from[i]] = (uint8_t)n++;
	}
	if (n > MOST_DIFFERENT) {
		c.magic = MAGIC_LONG;
		memcpy(at, from, bytes);
		at += bytes;
	} else {
		memset(at, 0, (bytes + 1) / 2);
		for (size_t i = 0; i < bytes; i++)
			at[i / 2] |= (uint8_t)(place[from[i]] << (i % 2 ? 4 : 0));
		at += (bytes + 1) / 2;
		if (getenv("STANDIN_WRONG"))
			c.different[0] ^= 1;
	}
	memcpy(to, &c, sizeof(c));
	if (__atomic_load_n(&nvcomp_standin.damage, __ATOMIC_ACQUIRE))
		to[3] ^= 0x40;
	return (size_t)(at - to);
}

static int decode(const uint8_t *from, size_t bytes, uint8_t *to, size_t room, size_t *used)
{
	const uint8_t *at = from + sizeof(struct coded);
	struct coded c;

	*used = 0;
	if (bytes < sizeof(c))
		return EPF_NVCOMP_CANNOT_EXPAND;
	memcpy(&c, from, sizeof(c));
	bytes -= sizeof(c);
	if (c.bytes > room ||
	    (c.magic == MAGIC_LONG ? bytes != c.bytes
				   : c.magic != MAGIC_SHORT || bytes != (c.bytes + 1) / 2))
		return EPF_NVCOMP_CANNOT_EXPAND;
	for (size_t i = 0; i < c.bytes; i++)
		to[i] = c.magic == MAGIC_LONG ? at[i]
					      : c.different[at[i / 2] >> (i % 2 ? 4 : 0) & 15];
	*used = c.bytes;
	return 0;
}

int nvcompBatchedANSCompressAsync(const void *const *from, const size_t *from_bytes, size_t most,
				  size_t n, void *temp, size_t temp_bytes, void *const *to,
				  size_t *to_bytes, struct epf_nvcomp_compress how, int *statuses,
				  void *stream)
{
	if (wrong_compress(&how) || !temp || temp_bytes < TEMP_BYTES || !stream || !n)
		return BAD_VALUE;
	if (__atomic_load_n(&nvcomp_standin.fail, __ATOMIC_ACQUIRE))
		return CUDA_ERROR;
	wait_while(&nvcomp_standin.hang);
	stick();
	for (size_t i = 0; i < n; i++) {
		if (from_bytes[i] > most)
			return TOO_LARGE;
		if ((uintptr_t)to[i] % ALIGN || (uintptr_t)from[i] % ALIGN)
			return BAD_ALIGNMENT;
		to_bytes[i] = code(from[i], from_bytes[i], to[i]);
		statuses[i] = 0;
	}
	__atomic_fetch_add(&nvcomp_standin.compressed, (int)n, __ATOMIC_ACQ_REL);
	return 0;
}

int nvcompBatchedANSDecompressAsync(const void *const *from, const size_t *from_bytes,
				    const size_t *room, size_t *used, size_t n, void *temp,
				    size_t temp_bytes, void *const *to,
				    struct epf_nvcomp_expand how, int *statuses, void *stream)
{
	if (wrong_expand(&how) || !temp || temp_bytes < TEMP_BYTES || !stream || !n)
		return BAD_VALUE;
	wait_while(&nvcomp_standin.hold);
	for (size_t i = 0; i < n; i++) {
		if (!from_bytes[i] || from_bytes[i] > 2 * room[i])
			abort(); /* the library does not say what it does then */
		if ((uintptr_t)from[i] % ALIGN || (uintptr_t)to[i] % ALIGN)
			return BAD_ALIGNMENT;
		statuses[i] = decode(from[i], from_bytes[i], to[i], room[i], &used[i]);
	}
	__atomic_fetch_add(&nvcomp_standin.expanded, (int)n, __ATOMIC_ACQ_REL);
	return 0;
}
