/* SPDX-License-Identifier: Apache-2.0 */
/* What copy_fake_memory.c offers copy_fake.c. All but epf_copy_fake_real() are entries of struct epf_copy_ops: copy.h documents them. */
#ifndef EPF_FABRIC_GPU_COPY_FAKE_PRIV_H
#define EPF_FABRIC_GPU_COPY_FAKE_PRIV_H

#include "fabric/gpu/copy.h"

/* Where the bytes of an address are: the alias of fake memory, or the address itself. NULL: the range leaves its piece. */
uint8_t *epf_copy_fake_real(uint64_t addr, uint64_t bytes);
int epf_copy_fake_alloc(int device, uint64_t bytes, void **addr);
void epf_copy_fake_free(void *addr);
int epf_copy_fake_export(const void *addr, uint64_t bytes, struct epf_copy_handle *out);
int epf_copy_fake_place(const void *addr, uint64_t bytes, int *device);
int epf_copy_fake_import(const struct epf_copy_handle *h, int device, uint64_t *addr);
void epf_copy_fake_unimport(const struct epf_copy_handle *h, uint64_t addr);
uint64_t epf_copy_fake_for_kernels(const void *addr, uint64_t bytes);
int epf_copy_fake_copy(void *dst, const void *src, uint64_t bytes);

#endif
