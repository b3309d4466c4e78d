/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks of the statistics file for a kind of object: as many as the file has; objects that wait come first.
 */
#include "fabric/engine/watch_priv.h"

#include "fabric/base/err.h"

#include <stdlib.h>
#include <string.h>

int watch_shelf_make(struct shelf *s, unsigned class_index, uint32_t most, uint32_t n)
{
	*s = (struct shelf){ .class_index = class_index,
			     .room = most < n ? most : n,
			     .n_objects = n };
	s->most = s->room;
	s->block = calloc(s->room + 1, sizeof(*s->block));
	s->owner = malloc((s->room + 1) * sizeof(*s->owner));
	s->waits = calloc(s->room + 1, 1);
	s->slot = malloc((n + 1) * sizeof(*s->slot));
	if (!s->block || !s->owner || !s->waits || !s->slot)
		return epf_fail(EPF_R_NO_MEMORY, "statistics: no memory for %u objects", n);
	memset(s->owner, 0xff, (s->room + 1) * sizeof(*s->owner));
	memset(s->slot, 0xff, (n + 1) * sizeof(*s->slot));
	return 0;
}

void watch_shelf_drop(struct epf_stats *stats, struct shelf *s, uint32_t slot)
{
	if (s->owner[slot] == EPF_NONE)
		return;
	epf_stats_remove_block(stats, s->block[slot]);
	s->slot[s->owner[slot]] = EPF_NONE;
	s->owner[slot] = EPF_NONE;
	s->block[slot] = NULL;
	s->waits[slot] = 0;
	s->shown--;
}

void watch_shelf_free(struct epf_stats *stats, struct shelf *s)
{
	for (uint32_t i = 0; s->owner && s->slot && i < s->room; i++)
		watch_shelf_drop(stats, s, i);
	free(s->block);
	free(s->owner);
	free(s->waits);
	free(s->slot);
	*s = (struct shelf){ 0 };
}

/* Returns a slot for a new object: a free one, or for a waiting object one whose owner does not wait; else EPF_NONE. */
static uint32_t shelf_place(struct epf_stats *stats, struct shelf *s, bool waits)
{
	uint32_t at;

	for (at = 0; s->shown < s->most && at < s->room; at++)
		if (s->owner[at] == EPF_NONE)
			return at;
	for (at = 0; waits && at < s->room; at++)
		if (s->owner[at] != EPF_NONE && !s->waits[at]) {
			watch_shelf_drop(stats, s, at);
			return at;
		}
	return EPF_NONE;
}

struct epf_stats_block *watch_shelf_get(struct epf_stats *stats, struct shelf *s, uint32_t object,
					bool waits, const struct epf_stats_label *labels,
					unsigned n_labels)
{
	uint32_t at = s->slot[object];

	if (at == EPF_NONE && (waits || s->shown < s->most)) {
		at = shelf_place(stats, s, waits);
		if (at == EPF_NONE)
			return NULL;
		if (epf_stats_add_block(stats, s->class_index, labels, n_labels, &s->block[at])) {
			s->most = s->shown; /* the file has no more blocks for now */
			return NULL;
		}
		s->owner[at] = object;
		s->slot[object] = at;
		s->shown++;
	}
	if (at == EPF_NONE)
		return NULL;
	s->waits[at] = waits;
	return s->block[at];
}
