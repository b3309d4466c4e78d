/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of a rig's ends, wherever it is. Included by rig.h. */
#ifndef EPF_TOOLS_PROVE_RIG_MEMORY_H
#define EPF_TOOLS_PROVE_RIG_MEMORY_H

#include "tools/prove/ends.h"

/* Gives the bytes of a write of a's memory along. */
void rig_inline(const struct rig *rig, struct epf_wr *wr);
/* An address inside an end's memory, for region_register of host memory. */
void *rig_at(const struct rig_end *end, uint64_t off);
/* All bytes become `byte`; every byte is. */
void rig_set(struct rig_end *end, uint64_t off, size_t len, unsigned char byte);
int rig_all(const struct rig_end *end, uint64_t off, size_t len, unsigned char byte);
/* Bytes that a seed gives; whether they are there. */
void rig_put(struct rig_end *end, uint64_t off, size_t len, uint64_t seed);
int rig_has(const struct rig_end *end, uint64_t off, size_t len, uint64_t seed);

/* Copies bytes out of the memory. */
void rig_get(const struct rig_end *end, uint64_t off, void *to, size_t len);

/* The same as rig_put() and rig_has() in memory of this process. */
void rig_fill(unsigned char *at, size_t len, uint64_t seed);
int rig_matches(const unsigned char *at, size_t len, uint64_t seed);

/* A small generator for tests (xorshift64*). */
uint64_t rig_random(uint64_t *state);

#endif
