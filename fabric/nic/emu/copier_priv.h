/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the copier share: copier_thread.c calls copy_jobs.c, which calls import.c and copy_queue.c. All of it runs on the
 * copier's thread unless it says otherwise.
 */
#ifndef EPF_FABRIC_NIC_EMU_COPIER_PRIV_H
#define EPF_FABRIC_NIC_EMU_COPIER_PRIV_H

#include "fabric/gpu/copy_stall.h"
#include "fabric/nic/emu/copier.h"

/* copy_jobs.c: take the additions that a NIC has pushed [C1], or its copies up to the first driver call [C1, C6]. Return how many. */
unsigned epf_emu_take_adds(struct epf_emu_copier *c);
unsigned epf_emu_take_entries(struct epf_emu_copier *c);

/*
 * import.c: where memory is. For the copier's thread only, but add_own and remove_own. Return 0 or -errno with a reason.
 * own: a region of this process. peer: the region `key` of a segment, mapped here for copies by `device` (-1: the
 * one that holds it; kernels: that are kernels') if it is not yet; *out says where, and stays true while generation() is the same and the segment's table holds the key. host: the
 * packets of a segment are made quick to copy from, once. drop: forgets a segment; NULL: everything, of all segments.
 */
int epf_emu_import_own(struct epf_copy_mem *mem);
int epf_emu_import_peer(const struct epf_copy_ops *ops, struct epf_emu_seg *seg, uint32_t key,
			int device, bool kernels, struct epf_emu_window *out);
void epf_emu_import_host(const struct epf_copy_ops *ops, struct epf_emu_seg *seg);
void epf_emu_import_drop(const struct epf_emu_seg *seg);
/* Changes whenever something is unmapped. */
uint32_t epf_emu_import_generation(void);
/* Unmaps what its owner has withdrawn meanwhile, unless a copy still reads it. */
void epf_emu_import_sweep(void);
/* Maps new regions of this process and reports each; unmaps those that have gone. Returns whether copies still read some of these: then it is to be called again. */
bool epf_emu_import_owns(void (*ready)(const struct epf_copy_mem *mem));
/* Any thread; no driver is called. */
int epf_emu_import_add_own(uint64_t nonce, uint32_t key, struct epf_copy_mem *mem);
void epf_emu_import_remove_own(uint64_t nonce, uint32_t key);
/* True while a region that was removed may still be read by a copy. */
bool epf_emu_import_is_read(uint64_t nonce, uint32_t key);
/* The thread's (gpu/copy_stall.h). */
extern struct epf_copy_stall epf_emu_copier_stall;

#endif
