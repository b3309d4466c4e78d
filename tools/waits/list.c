/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/waits/waits_priv.h"

#include <stdlib.h>
#include <string.h>

void *waits_grow(struct waits *w, void **list, uint32_t *n, uint32_t *room, size_t size)
{
	if (*n == *room) {
		uint32_t more = *room ? 2 * *room : 16;
		void *bigger = realloc(*list, more * size);

		if (!bigger) {
			w->no_memory = true;
			return NULL;
		}
		*list = bigger;
		*room = more;
	}
	return memset((char *)*list + (size_t)(*n)++ * size, 0, size);
}

struct waits_entry *waits_push(struct waits *w)
{
	void *list = w->entry;
	struct waits_entry *e = waits_grow(w, &list, &w->n_entries, &w->room[3], sizeof(*e));

	w->entry = list;
	if (e)
		e->rank = e->peer = e->stream = e->lane = e->ring = e->follows = WAITS_NONE;
	return e;
}
