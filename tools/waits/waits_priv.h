/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of this folder share: read.c calls graph.c, which calls list.c; what reads statistics files does it through block.c. */
#ifndef EPF_TOOLS_WAITS_WAITS_PRIV_H
#define EPF_TOOLS_WAITS_WAITS_PRIV_H

#include "tools/waits/waits.h"

#include <stddef.h>

/* list.c: room for one more element; returns its address, zeroed, or NULL with w->no_memory set. */
void *waits_grow(struct waits *w, void **list, uint32_t *n, uint32_t *room, size_t size);
/* A new entry, zeroed, WAITS_NONE where that is unknown; NULL without memory. */
struct waits_entry *waits_push(struct waits *w);

/* block.c: a block that is being read. */
struct waits_block {
	const struct epf_stats_reader *r;
	const struct epf_stats_entry *e;
	const struct epf_stats_class *cls;
	unsigned block;
};

/* Block `number` of a file, which must be below its block_count. */
struct waits_block waits_block(const struct epf_stats_reader *r, unsigned number);
/* Whether the class has the row and its value is known; otherwise *v is zeros. */
bool waits_value(const struct waits_block *at, const char *row, struct epf_stats_value *v);
uint64_t waits_number(const struct waits_block *at, const char *row, uint64_t otherwise);
/* Never NULL. */
const char *waits_label(const struct waits_block *at, const char *name);
/* A label that is a number below `end`; otherwise `end`. */
uint32_t waits_label_below(const struct waits_block *at, const char *name, uint32_t end);
/* graph.c: causes, what follows from what, the order. */
void waits_conclude(struct waits *w);

#endif
