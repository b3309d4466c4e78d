/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of the hip GPU back-end, shared by hip.c (devices, memory) and hip_run.c (copies, streams, kernels) only. Most functions
 * are entries of struct epf_gpu_ops: gpu.h documents them.
 */
#ifndef EPF_FABRIC_GPU_HIP_PRIV_H
#define EPF_FABRIC_GPU_HIP_PRIV_H

#include "fabric/gpu/gpu.h"
#include "fabric/gpu/hip_lib.h"

struct hip_dev {
	struct epf_gpu_dev dev;
	const struct epf_hip_lib *lib;
	const struct epf_hip_extra *extra;
	void *own; /* a stream for blocking copies: the default one would wait for kernels of the user */
};

static inline void *epf_hip_pointer(uint64_t addr)
{
	return (void *)(uintptr_t)addr;
}

/* Returns 0 for result 0, else a reason that names the call. */
int epf_hip_result(const struct hip_dev *d, int rc, const char *call);
/* Makes the device current; *before is what epf_hip_leave() restores. */
int epf_hip_enter(const struct hip_dev *d, int *before);
void epf_hip_leave(const struct hip_dev *d, int before);

int epf_hip_stream_create(struct epf_gpu_dev *dev, void **stream);
void epf_hip_stream_destroy(struct epf_gpu_dev *dev, void *stream);
int epf_hip_stream_sync(struct epf_gpu_dev *dev, void *stream);
int epf_hip_copy_async(struct epf_gpu_dev *dev, void *stream, uint64_t dst, uint64_t src,
		       uint64_t bytes);
int epf_hip_copy(struct epf_gpu_dev *dev, uint64_t dst, uint64_t src, uint64_t bytes);
int epf_hip_copy_batch(struct epf_gpu_dev *dev, void *stream, const struct epf_gpu_copy *c,
		       unsigned n);
int epf_hip_event_create(struct epf_gpu_dev *dev, void **event);
void epf_hip_event_destroy(struct epf_gpu_dev *dev, void *event);
int epf_hip_event_record(struct epf_gpu_dev *dev, void *stream, void *event);
int epf_hip_event_query(struct epf_gpu_dev *dev, void *event);
int epf_hip_stream_wait(struct epf_gpu_dev *dev, void *stream, void *event);
int epf_hip_module_load(struct epf_gpu_dev *dev, const void *image, void **module);
void epf_hip_module_unload(struct epf_gpu_dev *dev, void *module);
int epf_hip_function(struct epf_gpu_dev *dev, void *module, const char *name, void **function);
int epf_hip_launch(struct epf_gpu_dev *dev, void *stream, void *function,
		   const struct epf_gpu_launch *l);

#endif
