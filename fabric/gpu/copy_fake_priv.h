/* SPDX-License-Identifier: Apache-2.0 */
/* What copy_fake_memory.c and copy_fake_hold.c offer copy_fake.c. All but the first three are entries of struct epf_copy_ops: copy.h documents them. */
#ifndef EPF_FABRIC_GPU_COPY_FAKE_PRIV_H
#define EPF_FABRIC_GPU_COPY_FAKE_PRIV_H

#include "fabric/gpu/copy.h"

/* see epf_copy_fake_hold() */
enum { HELD_BY_LOAD = 5, HELD_BY_FULL_GPU = 6, NO_USUAL_ADDITIONS = 7 };

/* copy_fake_hold.c. What epf_copy_fake_hold() has said. */
int epf_copy_fake_holds(void);
/* Waits while epf_copy_fake_hold() says so, or until epf_copy_fake_let() lets one call go. */
void epf_copy_fake_wait(int what);
/* The same, not counted by epf_copy_fake_held(): of a thread that is there to wait. */
void epf_copy_fake_wait_aside(int what);

/* Where the bytes of an address are: the alias of fake memory, or the address itself. NULL: the range leaves its piece. */
uint8_t *epf_copy_fake_real(uint64_t addr, uint64_t bytes);
int epf_copy_fake_alloc(int device, uint64_t bytes, void **addr);
void epf_copy_fake_free(void *addr);
int epf_copy_fake_export(const void *addr, uint64_t bytes, struct epf_copy_handle *out);
int epf_copy_fake_place(const void *addr, uint64_t bytes, int *device);
int epf_copy_fake_import(const struct epf_copy_handle *h, int device, uint64_t *addr);
int epf_copy_fake_import_own(const struct epf_copy_handle *h, int device, uint64_t *addr);
void epf_copy_fake_unimport(const struct epf_copy_handle *h, uint64_t addr);
uint64_t epf_copy_fake_for_kernels(const void *addr, uint64_t bytes);
int epf_copy_fake_copy(void *dst, const void *src, uint64_t bytes);

#endif
