/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What copy_driver_memory.c and copy_driver_add.c offer copy_driver.c. Functions without a comment are entries of struct epf_copy_ops: copy.h documents them.
 */
#ifndef EPF_FABRIC_GPU_COPY_DRIVER_PRIV_H
#define EPF_FABRIC_GPU_COPY_DRIVER_PRIV_H

#include "fabric/gpu/adder.h"
#include "fabric/gpu/copy.h"
#include "fabric/gpu/gpu.h"

/* The kernel of additions, and a launch of it; done: as the kernel takes it. */
int epf_copy_driver_add_load(struct epf_gpu_dev *dev, void **module, void **function);
int epf_copy_driver_add_launch(struct epf_gpu_dev *dev, void *stream, void *function,
			       struct epf_adder_batch *b, uint64_t done);
/* False for memory that another process named and a context of our own has mapped: kernels of the usual one are not given it. */
bool epf_copy_driver_is_usual(uint64_t addr);
extern const struct epf_adder_ops epf_copy_driver_adder;

int epf_copy_driver_load(void);
/* A device by its number, with the process's usual context, or (own) with one of its own. */
int epf_copy_driver_get(int index, struct epf_gpu_dev **out);
int epf_copy_driver_get_own(int index, struct epf_gpu_dev **out);
int epf_copy_driver_mem_alloc(int device, uint64_t bytes, void **addr);
void epf_copy_driver_mem_free(void *addr);
int epf_copy_driver_mem_export(const void *addr, uint64_t bytes, struct epf_copy_handle *out);
int epf_copy_driver_mem_place(const void *addr, uint64_t bytes, int *device);
int epf_copy_driver_mem_device(const struct epf_copy_handle *h);
int epf_copy_driver_mem_import(const struct epf_copy_handle *h, int device, uint64_t *addr);
void epf_copy_driver_mem_unimport(const struct epf_copy_handle *h, uint64_t addr);
uint64_t epf_copy_driver_mem_for_kernels(const void *addr, uint64_t bytes);
int epf_copy_driver_copy(void *dst, const void *src, uint64_t bytes);
int epf_copy_driver_register(void *addr, uint64_t bytes);
void epf_copy_driver_unregister(void *addr);
int epf_copy_driver_mem_import_own(const struct epf_copy_handle *h, int device, uint64_t *addr);
int epf_copy_driver_register_own(void *addr, uint64_t bytes);
void epf_copy_driver_unregister_own(void *addr);

#endif
