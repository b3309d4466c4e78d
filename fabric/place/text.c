/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reason of a choice in words, one line: how near, how many share, what is down, which CPU. Called by epf_place_choose().
 */
#include "fabric/place/place_priv.h"

#include <stdio.h>
#include <stdlib.h>

static void say_distance(FILE *f, const struct epf_place_choice *c, const struct epf_place_rail *r)
{
	const struct epf_place_spot *nic = &r->nic->spot;
	const struct epf_place_spot *gpu = c->gpu ? &c->gpu->spot : NULL;

	if (!gpu) {
		fputs("no GPU: rails alternate", f);
		return;
	}
	switch (c->near) {
	case EPF_PLACE_SWITCH:
		fprintf(f, "same PCIe switch as GPU %u, %s", c->gpu_index,
			epf_place_common(gpu, nic));
		break;
	case EPF_PLACE_ROOT:
		fprintf(f, "same root complex as GPU %u, %s", c->gpu_index,
			epf_place_common(gpu, nic));
		break;
	case EPF_PLACE_NODE:
		fprintf(f, "same NUMA node as GPU %u, %d", c->gpu_index, nic->node);
		break;
	case EPF_PLACE_FAR:
		fprintf(f, "on NUMA node %d, GPU %u on %d: none is nearer", nic->node, c->gpu_index,
			gpu->node);
		break;
	case EPF_PLACE_UNKNOWN:
		fprintf(f, "distance to GPU %u not known: rails alternate", c->gpu_index);
		break;
	}
}

/* A home that is not used now; EPF_PLACE_NONE: all are. */
static uint32_t idle_home(const struct epf_place_plan *plan, const struct epf_place_unit *unit)
{
	for (uint32_t r = 0; r < plan->rails; r++)
		if (unit->is_home[r] && !unit->is_own[r])
			return r;
	return EPF_PLACE_NONE;
}

static void say_state(FILE *f, const struct epf_place_plan *plan,
		      const struct epf_place_choice *choice, const struct epf_place_unit *unit)
{
	const struct epf_place_rail *own = &plan->rail[choice->rail[0]];
	uint32_t home = idle_home(plan, unit);
	const char *units = choice->gpu ? "GPUs" : "local indices";

	if (home == EPF_PLACE_NONE && unit->sharers > 1 && unit->shared > 1)
		fprintf(f, "; %u rails so near for %u %s", unit->shared, unit->sharers, units);
	if (own->users > 1)
		fprintf(f, "; used by %u %s", own->users, units);
	if (home != EPF_PLACE_NONE)
		fprintf(f, "; its rail %s:%u is down", plan->rail[home].nic->name,
			plan->rail[home].port->number);
	if (own->use == EPF_PLACE_DOWN)
		fputs("; it is down, and nothing else is left", f);
	else if (own->use != EPF_PLACE_USABLE)
		fprintf(f, "; it is %s, and nothing else is up",
			own->use == EPF_PLACE_SLOW ? "slow" : "of another link layer");
}

static void say_core(FILE *f, const struct epf_place_opts *opts,
		     const struct epf_place_choice *choice, const struct epf_place_spot *spot)
{
	const struct epf_place_node *node = epf_place_node_of(opts->map, choice->node);

	if (choice->cpu < 0)
		fputs("; no CPU to recommend", f);
	else if (!epf_place_cpus_has(epf_place_cpus_near(opts->map, spot), (uint32_t)choice->cpu))
		fprintf(f, "; CPU %lld is allowed, but not near", (long long)choice->cpu);
	else if (choice->node < 0)
		fprintf(f, "; CPU %lld, NUMA node not known", (long long)choice->cpu);
	else
		fprintf(f, "; CPU %lld of node %d", (long long)choice->cpu, choice->node);
	if (node && !node->has_memory)
		fputs(", which has no memory", f);
}

char *epf_place_why(const struct epf_place_opts *opts, const struct epf_place_plan *plan,
		    const struct epf_place_choice *choice, const struct epf_place_unit *unit)
{
	static const struct epf_place_spot nowhere = { .node = -1 };
	const struct epf_place_spot *spot = choice->gpu ? &choice->gpu->spot : &nowhere;
	char *text = NULL;
	size_t size;
	FILE *f = open_memstream(&text, &size);

	if (!f)
		return NULL;
	if (choice->own) {
		spot = &plan->rail[choice->rail[0]].nic->spot;
		say_distance(f, choice, &plan->rail[choice->rail[0]]);
		say_state(f, plan, choice, unit);
	} else {
		fputs(opts->map->nics ? "the RDMA devices have no port" : "no RDMA device", f);
	}
	say_core(f, opts, choice, spot);
	if (fclose(f)) {
		free(text);
		return NULL;
	}
	return text;
}
