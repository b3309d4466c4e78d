/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a coder needs of nvCOMP, NVIDIA's library of compressors on the GPU: its batched ANS coder, opened at run time, with the few types and numbers
 * that go with it, declared here so that building needs nothing of it. Source: the headers nvcomp.h, nvcomp/ans.h and nvcomp/shared_types.h of
 * nvCOMP 6.0. tests/gpu/compile.sh compares every number and layout below with them where EPF_NVCOMP_INCLUDE names their folder.
 */
#ifndef EPF_FABRIC_GPU_NVCOMP_H
#define EPF_FABRIC_GPU_NVCOMP_H

#include <stddef.h>
#include <stdint.h>

enum {
	EPF_NVCOMP_MAJOR = 6, /* interface and coded bytes may differ in another one */
	/* Results; 0 is success. */
	EPF_NVCOMP_CANNOT_EXPAND = 12,
	/* Types of data. */
	EPF_NVCOMP_CHAR = 0,    /* bytes */
	EPF_NVCOMP_BITS = 0xff, /* expanding: as the coded bytes say */
	/* Back-ends of the expansion. */
	EPF_NVCOMP_BACKEND_DEFAULT = 0,
	EPF_NVCOMP_RANS = 0,
};

/* Both are 64 bytes, passed by value; what is reserved must be 0. */
struct epf_nvcomp_compress {
	int type;
	int data_type;
	uint8_t sub_chunks, states, histogram;
	char reserved[53];
};

struct epf_nvcomp_expand {
	int backend;
	int data_type;
	uint8_t sub_chunks, states, skip_validate;
	char reserved[53];
};

struct epf_nvcomp_align {
	size_t input, output, temp;
};

struct epf_nvcomp_properties {
	uint32_t version; /* major * 1000 + minor * 100 + patch */
	uint32_t cudart;
};

/* The functions, in the order of the table in nvcomp.c. Pointers to arrays are the device's. stream: the driver's. */
struct epf_nvcomp {
	int (*properties)(struct epf_nvcomp_properties *out);
	const char *(*status_text)(int status);
	int (*compress_align)(struct epf_nvcomp_compress how, struct epf_nvcomp_align *out);
	int (*compress_temp)(size_t n, size_t most, struct epf_nvcomp_compress how, size_t *temp,
			     size_t total, void *stream);
	int (*compress_most)(size_t most, struct epf_nvcomp_compress how, size_t *out);
	int (*compress)(const void *const *from, const size_t *from_bytes, size_t most, size_t n,
			void *temp, size_t temp_bytes, void *const *to, size_t *to_bytes,
			struct epf_nvcomp_compress how, int *statuses, void *stream);
	int (*expand_align)(struct epf_nvcomp_expand how, struct epf_nvcomp_align *out);
	int (*expand_temp)(size_t n, size_t most, struct epf_nvcomp_expand how, size_t *temp,
			   size_t total, void *stream);
	int (*expand)(const void *const *from, const size_t *from_bytes, const size_t *room,
		      size_t *used, size_t n, void *temp, size_t temp_bytes, void *const *to,
		      struct epf_nvcomp_expand how, int *statuses, void *stream);
};

/* Opens the library once a process. *version: as in its properties. -ENOENT with the reason: it is absent or of another major release. */
int epf_nvcomp(const struct epf_nvcomp **out, uint32_t *version);

#endif
