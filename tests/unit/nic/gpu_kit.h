/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPU memory (a fake one, that no CPU code may touch) under a NIC that copies it itself: what every such NIC must do, for the tests of the emulated one
 * and of TCP, beyond the conformance suite. Kinds are ordered.
 */
#ifndef EPF_TESTS_NIC_GPU_KIT_H
#define EPF_TESTS_NIC_GPU_KIT_H

#include "tests/unit/nic/nic_rig.h"

#include <stdbool.h>
#include <stdio.h>

#define MS 1000000ull

/* Posts all of them on lane 0 of a, in as few calls as the NIC takes them in. */
void gpu_post_all(struct rig *rig, const struct epf_wr *wr, unsigned n);
/* Runs until request `id` is reported; returns its status, or -1. */
int gpu_outcome(struct rig *rig, uint32_t id);

/* The later of two writes wins, however many are posted at once and however their copies are gathered. */
void gpu_later_writes_win(const struct nic_kind *kind);
/* One of many that are posted together is wrong: those before it are there, none behind it, and the lane is in error. */
void gpu_wrong_among_many(const struct nic_kind *kind);
/* A region's key stops working, at the target as at the source; its copies are over when it has gone, and the next one of the same memory works. */
void gpu_withdrawn(const struct nic_kind *kind);
/* What is logged goes to a temporary file, until stderr is put back by dup2(*before, STDERR_FILENO). */
FILE *gpu_catch_log(int *before);
bool gpu_was_logged(FILE *file, const char *text);
/* Copies that epf_copy_fake_hold(hold) stops are reported once by EPF-472 with `text`, and then that they go on. */
void gpu_stands_still(const struct nic_kind *kind, int hold, const char *text);

#endif
