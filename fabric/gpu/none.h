/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Answers of a GPU back-end that cannot do something: every table is filled up with these (gpu.h: no entry is NULL). Used by the
 * gpu_*.c files only. They record the reason and return its number, nothing else.
 */
#ifndef EPF_FABRIC_GPU_NONE_H
#define EPF_FABRIC_GPU_NONE_H

#include "fabric/gpu/gpu.h"

int epf_gpu_no_fd(struct epf_gpu_dev *dev, const struct epf_gpu_mem *mem, int *fd);
int epf_gpu_no_import_fd(struct epf_gpu_dev *dev, int fd, uint64_t bytes, struct epf_gpu_mem *out);
int epf_gpu_no_mapped(struct epf_gpu_dev *dev, uint64_t addr, int *fd, uint64_t *bytes,
		      uint64_t *offset);
int epf_gpu_no_dmabuf(struct epf_gpu_dev *dev, uint64_t addr, uint64_t bytes, int *fd,
		      uint64_t *offset);
int epf_gpu_no_flush(struct epf_gpu_dev *dev);
int epf_gpu_no_enter(struct epf_gpu_dev *dev);
void epf_gpu_no_leave(struct epf_gpu_dev *dev);
int epf_gpu_no_module(struct epf_gpu_dev *dev, const void *image, void **module);
void epf_gpu_no_unload(struct epf_gpu_dev *dev, void *module);
int epf_gpu_no_function(struct epf_gpu_dev *dev, void *module, const char *name, void **function);
int epf_gpu_no_launch(struct epf_gpu_dev *dev, void *stream, void *function,
		      const struct epf_gpu_launch *launch);

#endif
