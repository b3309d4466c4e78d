/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the host and the kernels of kernels/pack share: the arguments of one chunk of floating-point values that a GPU compresses or expands
 * (fabric/gpu/coder.h). Plain structs of fixed sizes; the same layout for every compiler.
 */
#ifndef EPF_QUEUES_PACK_H
#define EPF_QUEUES_PACK_H

#include <stdint.h>

enum {
	EPF_PACK_PART = 64 * 1024, /* bytes of a plane that are compressed as one piece */
	EPF_PACK_PARTS =
		36, /* most parts of a chunk of 2 MiB: 32, and one for each plane that ends in the middle of one */
	EPF_PACK_PIECES = 128,        /* most blocks of a chunk */
	EPF_PACK_ALIGN = 16,          /* parts begin at multiples of it */
	EPF_PACK_SEGMENT = 16 * 1024, /* bytes that a block of threads copies at a time */
	EPF_PACK_THREADS = 256,
};

#define EPF_PACK_STORED (1u << 31) /* in the length of a part: not compressed */

/* One copy. */
struct epf_pack_span {
	uint64_t dst, src, bytes;
};

/* In memory of the device, filled by one copy from the host for each chunk. */
struct epf_pack_control {
	uint64_t sum;    /* of the values; 0 at first */
	uint64_t want;   /* expanding: what it must be */
	uint32_t ok;     /* expanding: the chunk is undamaged */
	uint8_t tail[4]; /* expanding: bytes behind the last whole value */
	struct epf_pack_span spans[EPF_PACK_PIECES + EPF_PACK_PARTS];
	/* nvCOMP's arrays, an element for each part that it codes. room: at the call the bytes of `to`; used: what it wrote. */
	uint64_t from[EPF_PACK_PARTS], from_bytes[EPF_PACK_PARTS];
	uint64_t to[EPF_PACK_PARTS], room[EPF_PACK_PARTS], used[EPF_PACK_PARTS];
	int32_t status[EPF_PACK_PARTS];
};

/* In pinned memory of the host, written by the kernels. */
struct epf_pack_result {
	uint64_t sum;
	uint32_t ok;
	uint8_t tail[4];
	uint32_t length[EPF_PACK_PARTS]; /* compressing: of each part, with EPF_PACK_STORED */
};

/* The argument of every kernel, by value. Addresses are the device's. */
struct epf_pack_job {
	uint64_t control, result;
	uint64_t values, planes, out;     /* out: where a compressed chunk goes */
	uint32_t blocks, threads;         /* of the launch */
	uint32_t bytes, size, n;          /* of the chunk; of a value; whole values */
	uint32_t stride;                  /* from one plane to the next: whole parts */
	uint32_t parts, per_plane, coded; /* coded: parts that nvCOMP was given */
	uint32_t first, count, segments;  /* spans to copy, and segments of the longest */
	uint32_t needs_ok, reserved;
};

#endif
