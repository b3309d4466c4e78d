/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of the cuda GPU back-end, shared by the cuda_*.c files only. Most functions are entries of struct epf_gpu_ops: gpu.h
 * documents them.
 */
#ifndef EPF_FABRIC_GPU_CUDA_PRIV_H
#define EPF_FABRIC_GPU_CUDA_PRIV_H

#include "fabric/gpu/cuda_lib.h"
#include "fabric/gpu/gpu.h"

struct cuda_dev {
	struct epf_gpu_dev dev;
	const struct epf_cuda_lib *lib;
	const struct epf_cuda_batch *batch;
	void *context; /* the primary one, or (is_own) one that was made with the device */
	bool is_own;
	void *own; /* a stream for blocking copies: the default one would wait for kernels of the user */
	int device;
};

/* 0 for result 0, else a reason that names the call. */
int epf_cuda_result(const struct cuda_dev *d, int rc, const char *call);
/* Makes the device's context current; each success needs one epf_cuda_leave(). */
int epf_cuda_enter(const struct cuda_dev *d);
void epf_cuda_leave(const struct cuda_dev *d);
/* Returns the value of a device attribute, 0 for one that the driver does not know. */
int epf_cuda_attribute(const struct cuda_dev *d, int which);

void epf_cuda_mem_free(struct epf_gpu_dev *dev, struct epf_gpu_mem *mem);
int epf_cuda_mem_alloc(struct epf_gpu_dev *dev, uint64_t bytes, unsigned flags,
		       struct epf_gpu_mem *out);
int epf_cuda_mem_export_fd(struct epf_gpu_dev *dev, const struct epf_gpu_mem *mem, int *fd);
int epf_cuda_mem_import_fd(struct epf_gpu_dev *dev, int fd, uint64_t bytes,
			   struct epf_gpu_mem *out);
int epf_cuda_mem_export_ipc(struct epf_gpu_dev *dev, uint64_t addr, struct epf_gpu_ipc *out);
int epf_cuda_mem_export_mapped(struct epf_gpu_dev *dev, uint64_t addr, int *fd, uint64_t *bytes,
			       uint64_t *offset);
int epf_cuda_mem_import_ipc(struct epf_gpu_dev *dev, const struct epf_gpu_ipc *ipc,
			    struct epf_gpu_mem *out);
int epf_cuda_mem_dmabuf(struct epf_gpu_dev *dev, uint64_t addr, uint64_t bytes, int *fd,
			uint64_t *offset);
int epf_cuda_mem_place(struct epf_gpu_dev *dev, uint64_t addr, struct epf_gpu_place *out);

int epf_cuda_copy(struct epf_gpu_dev *dev, uint64_t dst, uint64_t src, uint64_t bytes);
int epf_cuda_fill(struct epf_gpu_dev *dev, uint64_t dst, uint8_t value, uint64_t bytes);
int epf_cuda_stream_create(struct epf_gpu_dev *dev, void **stream);
void epf_cuda_stream_destroy(struct epf_gpu_dev *dev, void *stream);
int epf_cuda_stream_sync(struct epf_gpu_dev *dev, void *stream);
int epf_cuda_copy_async(struct epf_gpu_dev *dev, void *stream, uint64_t dst, uint64_t src,
			uint64_t bytes);
int epf_cuda_copy_batch(struct epf_gpu_dev *dev, void *stream, const struct epf_gpu_copy *copies,
			unsigned n);
int epf_cuda_event_create(struct epf_gpu_dev *dev, void **event);
void epf_cuda_event_destroy(struct epf_gpu_dev *dev, void *event);
int epf_cuda_event_record(struct epf_gpu_dev *dev, void *stream, void *event);
int epf_cuda_event_query(struct epf_gpu_dev *dev, void *event);
int epf_cuda_stream_wait(struct epf_gpu_dev *dev, void *stream, void *event);
int epf_cuda_module_load(struct epf_gpu_dev *dev, const void *image, void **module);
void epf_cuda_module_unload(struct epf_gpu_dev *dev, void *module);
int epf_cuda_function(struct epf_gpu_dev *dev, void *module, const char *name, void **function);
int epf_cuda_launch(struct epf_gpu_dev *dev, void *stream, void *function,
		    const struct epf_gpu_launch *launch);

#endif
