/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A log-linear histogram of unsigned 64-bit values: every power of two is split into 16 buckets of
 * equal width. It holds no pointer, so it lives inside a block of the statistics file as well as in
 * a benchmark's own memory. One writer at a time adds; readers work on a separate copy.
 *
 * Error bound: values below 32 are exact. Above, a bucket is at most 1/16 of its values wide, so a
 * quantile (the middle of a bucket) is off by at most 1/32 (3.2 %) of the true value, and the
 * minimum and maximum are bounds at most 1/16 (6.3 %) away from it.
 *
 * It must never allocate, call or wait: the engine adds to it in its loop.
 */
#ifndef EPF_QUEUES_HIST_H
#define EPF_QUEUES_HIST_H

#include "queues/epf_base.h"

#include <stdint.h>

#define EPF_HIST_SUB_BITS 4
#define EPF_HIST_SUB      (1u << EPF_HIST_SUB_BITS)
/* 0..15 have a bucket each; then 16 for every leading-bit position 4..63. */
#define EPF_HIST_BUCKETS ((64u - EPF_HIST_SUB_BITS + 1u) * EPF_HIST_SUB)
#define EPF_HIST_WORDS   (1u + EPF_HIST_BUCKETS)

struct epf_hist {
	uint64_t sum; /* of all values, modulo 2^64 */
	uint64_t bucket[EPF_HIST_BUCKETS];
};

EPF_STATIC_ASSERT(EPF_HIST_BUCKETS == 976, "part of the statistics file's layout");
EPF_STATIC_ASSERT(sizeof(struct epf_hist) == 8 * EPF_HIST_WORDS, "no padding");

/* The bucket of a value: always below EPF_HIST_BUCKETS. */
EPF_INLINE uint32_t epf_hist_index(uint64_t value)
{
	uint32_t top;

	if (value < EPF_HIST_SUB)
		return (uint32_t)value;
	top = 63u - (uint32_t)__builtin_clzll(value);
	return (top - EPF_HIST_SUB_BITS + 1) * EPF_HIST_SUB +
	       (uint32_t)((value >> (top - EPF_HIST_SUB_BITS)) & (EPF_HIST_SUB - 1));
}

/* The smallest value of a bucket; index must be below EPF_HIST_BUCKETS. */
EPF_INLINE uint64_t epf_hist_lower(uint32_t index)
{
	uint32_t group = index / EPF_HIST_SUB;

	if (group == 0)
		return index;
	return (uint64_t)(EPF_HIST_SUB + index % EPF_HIST_SUB) << (group - 1);
}

/* The largest value of a bucket; index must be below EPF_HIST_BUCKETS. */
EPF_INLINE uint64_t epf_hist_upper(uint32_t index)
{
	uint32_t group = index / EPF_HIST_SUB;
	uint64_t width = group ? (uint64_t)1 << (group - 1) : 1;

	return epf_hist_lower(index) + (width - 1);
}

/*
 * Add n times the same value. Hot path: two words touched. Other threads and processes may be
 * reading (each word arrives whole), but only one thread may ever add.
 */
EPF_INLINE void epf_hist_add_n(struct epf_hist *hist, uint64_t value, uint64_t n)
{
	uint64_t *bucket = &hist->bucket[epf_hist_index(value)];

	EPF_STORE_RELAXED(bucket, EPF_LOAD_RELAXED(bucket) + n);
	EPF_STORE_RELAXED(&hist->sum, EPF_LOAD_RELAXED(&hist->sum) + value * n);
}

/* Add one value; see epf_hist_add_n. */
EPF_INLINE void epf_hist_add(struct epf_hist *hist, uint64_t value)
{
	epf_hist_add_n(hist, value, 1);
}

/* Everything below is for a histogram that nobody is adding to: the reader's own copy. */

/* Values added, modulo 2^64. */
EPF_INLINE uint64_t epf_hist_count(const struct epf_hist *hist)
{
	uint64_t n = 0;
	uint32_t i;

	for (i = 0; i < EPF_HIST_BUCKETS; i++)
		n += hist->bucket[i];
	return n;
}

/* Add all of from to into, as if its values had been added there. */
EPF_INLINE void epf_hist_merge(struct epf_hist *into, const struct epf_hist *from)
{
	uint32_t i;

	into->sum += from->sum;
	for (i = 0; i < EPF_HIST_BUCKETS; i++)
		into->bucket[i] += from->bucket[i];
}

/* Take an earlier copy of the same histogram out of now: what was added between the two. */
EPF_INLINE void epf_hist_subtract(struct epf_hist *now, const struct epf_hist *earlier)
{
	uint32_t i;

	now->sum -= earlier->sum;
	for (i = 0; i < EPF_HIST_BUCKETS; i++)
		now->bucket[i] -= earlier->bucket[i];
}

/* A value not above the smallest one added (exact below 32); 0 where nothing was added. */
EPF_INLINE uint64_t epf_hist_min(const struct epf_hist *hist)
{
	uint32_t i;

	for (i = 0; i < EPF_HIST_BUCKETS; i++)
		if (hist->bucket[i])
			return epf_hist_lower(i);
	return 0;
}

/* A value not below the largest one added (exact below 32); 0 where nothing was added. */
EPF_INLINE uint64_t epf_hist_max(const struct epf_hist *hist)
{
	uint32_t i;

	for (i = EPF_HIST_BUCKETS; i > 0; i--)
		if (hist->bucket[i - 1])
			return epf_hist_upper(i - 1);
	return 0;
}

/*
 * The q-quantile, 0 <= q <= 1 (outside: the nearest end): the middle of the bucket that holds the
 * value of rank ceil(q * count), ranks from 1. 0 where nothing was added: ask epf_hist_count first.
 */
EPF_INLINE uint64_t epf_hist_quantile(const struct epf_hist *hist, double q)
{
	uint64_t count = epf_hist_count(hist), seen = 0, rank = 1;
	double want = q * (double)count;
	uint32_t i, last = 0;

	if (count == 0)
		return 0;
	if (want >= (double)count)
		rank = count;
	else if (want > 1.0)
		rank = (uint64_t)want + ((double)(uint64_t)want < want);
	if (rank > count)
		rank = count;
	for (i = 0; i < EPF_HIST_BUCKETS; i++) {
		if (hist->bucket[i] == 0)
			continue;
		last = i;
		if (hist->bucket[i] >= rank - seen)
			break;
		seen += hist->bucket[i];
	}
	return epf_hist_lower(last) + (epf_hist_upper(last) - epf_hist_lower(last)) / 2;
}

#endif
