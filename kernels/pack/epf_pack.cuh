/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels of compressed chunks (queues/epf_pack.h): values to planes of bytes and back, copies of many pieces, checksums. One source for CUDA,
 * HIP and plain C, in which form the fake GPU runs it. The bytes of a plane are those of fabric/p2p/planes.h: a value is rotated left by one bit, so
 * that plane 0 is the exponent of bf16 and fp32. Nothing is interpreted: every bit survives.
 */
#ifndef EPF_KERNELS_PACK_CUH
#define EPF_KERNELS_PACK_CUH

#include "kernels/epf_arch.cuh"
#include "queues/epf_pack.h"

/* Where the bytes of a device address are. The fake GPU's users never see them. */
#ifndef EPF_PACK_AT
# define EPF_PACK_AT(addr, bytes) ((uint8_t *)(uintptr_t)(addr))
#endif

EPF_DEV_FN struct epf_pack_control *epf_pack_control_of(const struct epf_pack_job *j)
{
	return (struct epf_pack_control *)(uintptr_t)j->control;
}

EPF_DEV_FN struct epf_pack_result *epf_pack_result_of(const struct epf_pack_job *j)
{
	return (struct epf_pack_result *)(uintptr_t)j->result;
}

/* This thread's first item, and how many all threads take at a time. */
EPF_DEV_FN uint32_t epf_pack_first(const struct epf_pack_job *j)
{
	return epf_block_number() * j->threads + epf_thread_in_block();
}

EPF_DEV_FN uint32_t epf_pack_step(const struct epf_pack_job *j)
{
	return j->blocks * j->threads;
}

/* Copies by the threads of a block: 16 bytes at a time if both ends allow it. */
EPF_DEV_FN void epf_pack_copy(uint8_t *to, const uint8_t *from, uint32_t bytes, uint32_t threads)
{
	uint32_t at = epf_thread_in_block(), wide = 0;

	if ((((uintptr_t)to | (uintptr_t)from) & 15) == 0) {
		wide = bytes / 16;
		for (uint32_t i = at; i < wide; i += threads) {
			uint64_t a = ((const uint64_t *)(const void *)from)[2 * i];
			uint64_t b = ((const uint64_t *)(const void *)from)[2 * i + 1];

			((uint64_t *)(void *)to)[2 * i] = a;
			((uint64_t *)(void *)to)[2 * i + 1] = b;
		}
	}
	for (uint32_t i = wide * 16 + at; i < bytes; i += threads)
		to[i] = from[i];
}

/* Copies the spans [first, first + count), a segment a block and turn. */
EPF_DEV_FN void epf_pack_move(const struct epf_pack_job *j)
{
	const struct epf_pack_control *c = epf_pack_control_of(j);

	if (j->needs_ok && !c->ok)
		return;
	for (uint32_t w = epf_block_number(); w < j->count * j->segments; w += j->blocks) {
		const struct epf_pack_span *s = &c->spans[j->first + w / j->segments];
		uint64_t skip = (uint64_t)(w % j->segments) * EPF_PACK_SEGMENT, left;

		if (skip >= s->bytes)
			continue;
		left = s->bytes - skip;
		if (left > EPF_PACK_SEGMENT)
			left = EPF_PACK_SEGMENT;
		epf_pack_copy(EPF_PACK_AT(s->dst + skip, left), EPF_PACK_AT(s->src + skip, left),
			      (uint32_t)left, j->threads);
	}
}

/* A value, rotated left by one bit; a byte as it is. */
EPF_DEV_FN uint32_t epf_pack_load(const uint8_t *values, uint32_t size, uint32_t i)
{
	if (size == 4) {
		uint32_t v = ((const uint32_t *)(const void *)values)[i];

		return v << 1 | v >> 31;
	}
	if (size == 2) {
		uint32_t v = ((const uint16_t *)(const void *)values)[i];

		return (v << 1 | v >> 15) & 0xffff;
	}
	return values[i];
}

EPF_DEV_FN void epf_pack_store(uint8_t *values, uint32_t size, uint32_t i, uint32_t v)
{
	if (size == 4)
		((uint32_t *)(void *)values)[i] = v >> 1 | v << 31;
	else if (size == 2)
		((uint16_t *)(void *)values)[i] = (uint16_t)(v >> 1 | v << 15);
	else
		values[i] = (uint8_t)v;
}

/* Values to planes, four values a thread and turn. Plane 0 has the highest byte. */
EPF_DEV_FN void epf_pack_split(const struct epf_pack_job *j)
{
	const uint8_t *values = (const uint8_t *)(uintptr_t)j->values;
	uint8_t *planes = (uint8_t *)(uintptr_t)j->planes;

	for (uint32_t g = epf_pack_first(j); g < (j->n + 3) / 4; g += epf_pack_step(j)) {
		uint32_t word[4] = { 0, 0, 0, 0 };
		uint32_t have = j->n - 4 * g < 4 ? j->n - 4 * g : 4;

		for (uint32_t k = 0; k < have; k++) {
			uint32_t v = epf_pack_load(values, j->size, 4 * g + k);

			for (uint32_t p = 0; p < j->size; p++)
				word[p] |= (v >> 8 * (j->size - 1 - p) & 0xff) << 8 * k;
		}
		/* A plane has room for whole words: its stride is whole parts. */
		for (uint32_t p = 0; p < j->size; p++)
			((uint32_t *)(void *)(planes + (uint64_t)p * j->stride))[g] = word[p];
	}
}

/* Planes to values, and the bytes behind the last one. */
EPF_DEV_FN void epf_pack_join(const struct epf_pack_job *j)
{
	const struct epf_pack_control *c = epf_pack_control_of(j);
	const uint8_t *planes = (const uint8_t *)(uintptr_t)j->planes;
	uint8_t *values = (uint8_t *)(uintptr_t)j->values;
	uint32_t whole = j->n * j->size;

	for (uint32_t i = epf_pack_first(j); i < j->n; i += epf_pack_step(j)) {
		uint32_t v = 0;

		for (uint32_t p = 0; p < j->size; p++)
			v = v << 8 | planes[(uint64_t)p * j->stride + i];
		epf_pack_store(values, j->size, i, v);
	}
	if (epf_pack_first(j) == 0)
		for (uint32_t i = whole; i < j->bytes; i++)
			values[i] = c->tail[i - whole];
}

/* Adds the checksum of the values to the control block: each word times an odd number of its own, so that places count. */
EPF_DEV_FN void epf_pack_sum(const struct epf_pack_job *j)
{
	const uint8_t *values = (const uint8_t *)(uintptr_t)j->values;
	epf_lanes all = epf_lanes_where(1);
	uint64_t sum = 0;

	for (uint32_t i = epf_pack_first(j); i < (j->bytes + 3) / 4; i += epf_pack_step(j)) {
		uint32_t word = 0;

		if (4 * i + 4 <= j->bytes)
			word = ((const uint32_t *)(const void *)values)[i];
		else
			for (uint32_t k = 4 * i; k < j->bytes; k++)
				word |= (uint32_t)values[k] << 8 * (k - 4 * i);
		sum += ((uint64_t)word + 0x9e3779b9u) *
		       ((2 * (uint64_t)i + 1) * 0x9e3779b97f4a7c15ull);
	}
	/* One addition for each warp: additions to one word wait for each other. */
	for (uint32_t d = epf_lanes_count(all) / 2; d; d /= 2)
		sum += epf_lanes_get(all, sum, epf_lane() ^ d);
	if (epf_lane() == 0)
		(void)epf_add_gpu(&epf_pack_control_of(j)->sum, sum);
}

EPF_DEV_FN uint32_t epf_pack_raw(const struct epf_pack_job *j, uint32_t part)
{
	uint32_t at = part % j->per_plane * EPF_PACK_PART;

	return j->n - at < EPF_PACK_PART ? j->n - at : EPF_PACK_PART;
}

/* The length of a part in the chunk: compressed only where that is shorter. */
EPF_DEV_FN uint32_t epf_pack_length(const struct epf_pack_job *j, uint32_t part)
{
	const struct epf_pack_control *c = epf_pack_control_of(j);
	uint32_t raw = epf_pack_raw(j, part);

	if (part < j->coded && c->status[part] == 0 && c->used[part] && c->used[part] < raw)
		return (uint32_t)c->used[part];
	return raw | EPF_PACK_STORED;
}

/* Puts the parts of a compressed chunk one behind the other, a segment a block and turn, and reports their lengths. */
EPF_DEV_FN void epf_pack_close(const struct epf_pack_job *j)
{
	enum { SEGMENTS = EPF_PACK_PART / EPF_PACK_SEGMENT };
	const struct epf_pack_control *c = epf_pack_control_of(j);
	struct epf_pack_result *r = epf_pack_result_of(j);
	const uint8_t *values = (const uint8_t *)(uintptr_t)j->values;

	for (uint32_t w = epf_block_number(); w < j->parts * SEGMENTS; w += j->blocks) {
		uint32_t part = w / SEGMENTS, skip = w % SEGMENTS * EPF_PACK_SEGMENT;
		uint32_t length = epf_pack_length(j, part), bytes = length & ~EPF_PACK_STORED;
		uint64_t from = length & EPF_PACK_STORED
					? j->planes + (uint64_t)(part / j->per_plane) * j->stride +
						  part % j->per_plane * EPF_PACK_PART
					: c->to[part];
		uint64_t to = j->out;

		for (uint32_t p = 0; p < part; p++)
			to += ((epf_pack_length(j, p) & ~EPF_PACK_STORED) + EPF_PACK_ALIGN - 1) /
			      EPF_PACK_ALIGN * EPF_PACK_ALIGN;
		if (skip < bytes)
			epf_pack_copy((uint8_t *)(uintptr_t)(to + skip),
				      (const uint8_t *)(uintptr_t)(from + skip),
				      bytes - skip < EPF_PACK_SEGMENT ? bytes - skip
								      : EPF_PACK_SEGMENT,
				      j->threads);
		if (skip == 0 && epf_thread_in_block() == 0)
			r->length[part] = length;
	}
	if (epf_pack_first(j) == 0) {
		r->sum = c->sum;
		for (uint32_t i = j->n * j->size; i < j->bytes; i++)
			r->tail[i - j->n * j->size] = values[i];
	}
}

/* One thread: whether all parts expanded to their lengths, and to the values that were compressed. */
EPF_DEV_FN void epf_pack_verdict(const struct epf_pack_job *j)
{
	struct epf_pack_control *c = epf_pack_control_of(j);
	uint32_t ok = c->sum == c->want;

	for (uint32_t i = 0; i < j->coded; i++)
		ok &= c->status[i] == 0 && c->used[i] == c->room[i];
	c->ok = ok;
	epf_pack_result_of(j)->ok = ok;
}

#endif
