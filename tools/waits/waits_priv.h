/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of this folder share: read.c calls graph.c, which calls list.c. */
#ifndef EPF_TOOLS_WAITS_WAITS_PRIV_H
#define EPF_TOOLS_WAITS_WAITS_PRIV_H

#include "tools/waits/waits.h"

#include <stddef.h>

/* list.c: room for one more element; returns its address, zeroed, or NULL with w->no_memory set. */
void *waits_grow(struct waits *w, void **list, uint32_t *n, uint32_t *room, size_t size);
/* A new entry, zeroed, WAITS_NONE where that is unknown; NULL without memory. */
struct waits_entry *waits_push(struct waits *w);
/* graph.c: causes, what follows from what, the order. */
void waits_conclude(struct waits *w);

#endif
