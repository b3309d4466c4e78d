/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which CPU and memory node go with a rail: those of its NIC, one physical core each as far as there are. Called by epf_place_choose().
 * It recommends and binds nothing.
 */
#include "fabric/base/conf.h"
#include "fabric/place/place_priv.h"

#include <stdlib.h>

static int by_number(const void *a, const void *b)
{
	uint32_t p = *(const uint32_t *)a, q = *(const uint32_t *)b;

	return p < q ? -1 : p > q;
}

static bool has_number(const uint32_t *list, uint32_t count, uint32_t number)
{
	return count && bsearch(&number, list, count, sizeof(number), by_number);
}

static bool may_use(const struct epf_place_opts *opts, uint32_t cpu, bool siblings)
{
	const struct epf_place_map *map = opts->map;

	if (opts->cpus && opts->cpus->count && !has_number(opts->cpus->cpu, opts->cpus->count, cpu))
		return false;
	if (map->online.count && !epf_place_cpus_has(&map->online, cpu))
		return false;
	return siblings || !has_number(map->sibling, map->siblings, cpu);
}

/* The nth that may be used, or how many there are when nth is UINT32_MAX. */
static int64_t walk(const struct epf_place_opts *opts, const struct epf_place_cpus *near,
		    bool siblings, uint32_t nth)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < near->count; i++)
		for (uint32_t cpu = near->range[i].first; cpu <= near->range[i].last; cpu++)
			if (may_use(opts, cpu, siblings) && n++ == nth)
				return cpu;
	return nth == UINT32_MAX ? (int64_t)n : -1;
}

int64_t epf_place_core(const struct epf_place_opts *opts, const struct epf_place_cpus *near,
		       uint32_t take)
{
	for (int siblings = 0; siblings < 2; siblings++) {
		uint32_t n = (uint32_t)walk(opts, near, siblings, UINT32_MAX);

		/* The first one is left to interrupts and the rest of the system while there are others. */
		if (n)
			return walk(opts, near, siblings, n == 1 ? 0 : 1 + take % (n - 1));
	}
	return -1;
}

const struct epf_place_cpus *epf_place_cpus_near(const struct epf_place_map *map,
						 const struct epf_place_spot *spot)
{
	const struct epf_place_node *node = epf_place_node_of(map, spot->node);

	if (spot->cpus.count)
		return &spot->cpus;
	return node && node->cpus.count ? &node->cpus : &map->online;
}

void epf_place_cores(const struct epf_place_opts *opts, struct epf_place_plan *plan)
{
	for (uint32_t r = 0; r < plan->rails; r++) {
		struct epf_place_rail *rail = &plan->rail[r];
		uint32_t take = 0;

		rail->node = rail->nic->spot.node;
		rail->cpu = -1;
		if (rail->use == EPF_PLACE_NOT_CHOSEN)
			continue;
		for (uint32_t e = 0; e < r; e++)
			take += plan->rail[e].number != EPF_PLACE_NONE &&
				plan->rail[e].node == rail->node;
		rail->cpu = epf_place_core(opts, epf_place_cpus_near(opts->map, &rail->nic->spot),
					   take);
		if (rail->cpu < 0)
			rail->cpu = epf_place_core(opts, &opts->map->online, take);
	}
}
