/* SPDX-License-Identifier: Apache-2.0 */
/* What coder_run.c (chunks) and coder_open.c (memory, kernels, the first test) share. */
#ifndef EPF_FABRIC_GPU_CODER_PRIV_H
#define EPF_FABRIC_GPU_CODER_PRIV_H

#include "fabric/gpu/coder.h"
#include "fabric/gpu/gpu.h"
#include "fabric/gpu/nvcomp.h"

enum coder_kernel {
	CODER_MOVE,
	CODER_SPLIT,
	CODER_JOIN,
	CODER_SUM,
	CODER_CLOSE,
	CODER_VERDICT,
	CODER_KERNELS,
};

struct epf_coder {
	struct epf_gpu_dev *dev;
	const struct epf_nvcomp *lib;
	uint32_t version;
	void *stream, *event, *module;
	void *kernels[CODER_KERNELS];
	/* Of the device. packed: nvCOMP's parts, part_room bytes each, or the chunk that is expanded. */
	struct epf_gpu_mem control, values, planes, packed, temp;
	uint64_t part_room;
	size_t temp_bytes;
	struct epf_pack_control
		*on_device; /* the control block as the device knows it: for addresses only */
	/* Pinned pages of the host: the control block to send, and what the kernels report. */
	void *pages;
	uint64_t pages_addr, to_device_addr, result_addr;
	struct epf_pack_control *to_device;
	struct epf_pack_result *result;
};

/* The library's defaults: bytes by rANS; the expansion takes the type from the coded bytes. */
static const struct epf_nvcomp_compress epf_coder_compress_how = {
	EPF_NVCOMP_RANS, EPF_NVCOMP_CHAR, 0, 0, 0, { 0 }
};
static const struct epf_nvcomp_expand epf_coder_expand_how = {
	EPF_NVCOMP_BACKEND_DEFAULT, EPF_NVCOMP_BITS, 0, 0, 0, { 0 }
};

/* What kernels/pack was compiled to; NULL in builds without nvcc. */
extern const void *const epf_pack_cuda_image;
/* The same as C functions, for the fake GPU. */
extern const void *const epf_pack_fake_image;

#endif
