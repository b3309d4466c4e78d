/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments: memory of outputs that the ranks of a node map, so that rows are written where they stay. A segment has the same number at all ranks. What is
 * used and not mapped yet is asked for with the next exchange of counts; until then rows arrive in the window.
 */
#include "kernels/ht/ht.h"

#include <errno.h>
#include <string.h>

static int holds(const struct ht_segment *s, const void *at)
{
	return s->base && (uintptr_t)at - (uintptr_t)s->base < s->bytes;
}

void epf_ht_want(struct epf_ht *ht, const void *at)
{
	struct ht_segment s;

	if (ht->node_max == 1 || ht->mapped + ht->wanted == HT_SEGMENTS || !ht_pool_find(at, &s))
		return;
	for (uint32_t i = 0; i < ht->wanted; i++)
		if (ht->asked[i].base == s.base)
			return;
	ht->asked[ht->wanted++] = s;
}

uint32_t epf_ht_wanted(const struct epf_ht *ht, uint32_t i, void **base, uint64_t *bytes)
{
	if (i < ht->wanted) {
		*base = ht->asked[i].base;
		*bytes = ht->asked[i].bytes;
	}
	return ht->wanted;
}

uint32_t ht_segment_of(struct epf_ht *ht, const void *out, uint64_t *offset)
{
	for (uint32_t i = 0; i < ht->mapped; i++) {
		if (!holds(&ht->segments[i], out))
			continue;
		*offset = (uintptr_t)out - (uintptr_t)ht->segments[i].base;
		return i + 1u;
	}
	epf_ht_want(ht, out);
	*offset = 0;
	return 0;
}

static int make_table(struct epf_ht *ht)
{
	uint64_t bytes = (uint64_t)ht->ll->ranks * HT_SEGMENTS * sizeof(uint64_t);

	return ht->segments_at ? 0 : ht->ll->dev->alloc(ht->ll, bytes, &ht->segments_at);
}

int epf_ht_map(struct epf_ht *ht, void *base, uint64_t bytes, void *const *peers)
{
	struct epf_ll *ll = ht->ll;
	uint32_t n = ht->mapped;
	int err;

	if (n == HT_SEGMENTS)
		return ll_fail(-ENOSPC, "%u segments are mapped: no more are possible", n);
	if (base && (!ht->wanted || ht->asked[0].base != base))
		return ll_fail(-EINVAL, "segment %p was not asked for, or is not the next one",
			       base);
	err = make_table(ht);
	for (uint32_t r = 0; r < ll->ranks && !err; r++) {
		uint64_t at = (uintptr_t)peers[r];

		if (r != ll->rank && ht->peers[r].node == ht->node)
			err = ll->dev->copy(
				ll, (uint64_t *)ht->segments_at + (uint64_t)r * HT_SEGMENTS + n,
				&at, sizeof(at));
	}
	if (err)
		return err;
	if (base) {
		ht_pool_hold(base);
		memmove(ht->asked, ht->asked + 1, --ht->wanted * sizeof(ht->asked[0]));
	}
	ht->segments[n] = (struct ht_segment){ base, base ? bytes : 0 };
	ht->mapped++;
	return 0;
}

void ht_segments_end(struct epf_ht *ht)
{
	for (uint32_t i = 0; i < ht->mapped; i++)
		if (ht->segments[i].base)
			ht_pool_let_go(ht->segments[i].base);
	if (ht->segments_at)
		ht->ll->dev->free(ht->ll, ht->segments_at);
}
