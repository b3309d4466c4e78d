/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers for objects that users hold (p2p_priv.h): never used again, so a stale one finds nothing. Under the endpoint's lock. */
#include "fabric/p2p/p2p_priv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { INDEX_BITS = 24, FIRST_SIZE = 16 };

static uint32_t index_of(uint64_t number)
{
	return (uint32_t)(number & ((1u << INDEX_BITS) - 1));
}

static int grow(struct slots *t)
{
	uint32_t size = t->size ? t->size * 2 : FIRST_SIZE;
	void **object = realloc(t->object, size * sizeof(*object));
	uint64_t *number;

	if (!object)
		return epf_fail(EPF_R_NO_MEMORY, "a table of %u numbers", size);
	t->object = object;
	number = realloc(t->number, size * sizeof(*number));
	if (!number)
		return epf_fail(EPF_R_NO_MEMORY, "a table of %u numbers", size);
	t->number = number;
	/* The free ones are a list through number[]. */
	for (uint32_t i = t->size; i < size; i++) {
		t->object[i] = NULL;
		t->number[i] = i + 1;
	}
	if (t->size == 0)
		t->next_free = 0;
	else
		t->next_free = t->size;
	t->size = size;
	return 0;
}

int epf_p2p_slot_add(struct slots *t, void *object, uint64_t *number)
{
	uint32_t i;
	int rc;

	if (t->used >= t->max)
		return epf_fail(EPF_R_P2P_LIMIT, "an endpoint has at most %u %s", t->max, t->what);
	if (t->used == t->size) {
		rc = grow(t);
		if (rc)
			return rc;
	}
	i = t->next_free;
	t->next_free = (uint32_t)t->number[i];
	t->object[i] = object;
	t->number[i] = ++t->generation << INDEX_BITS | i;
	t->used++;
	*number = t->number[i];
	return 0;
}

void *epf_p2p_slot_get(const struct slots *t, uint64_t number)
{
	uint32_t i = index_of(number);

	return i < t->size && t->object[i] && t->number[i] == number ? t->object[i] : NULL;
}

void epf_p2p_slot_remove(struct slots *t, uint64_t number)
{
	uint32_t i = index_of(number);

	if (!epf_p2p_slot_get(t, number))
		return;
	t->object[i] = NULL;
	t->number[i] = t->next_free;
	t->next_free = i;
	t->used--;
}

void epf_p2p_slots_free(struct slots *t)
{
	free(t->object);
	free(t->number);
	memset(t, 0, sizeof(*t));
}
