/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list of ports to open (pick.h): the plan of choose.c, matched with what the device library lists. Called by NICs
 * with devices. A machine whose sysfs cannot be read gets the library's own order and a line that says so.
 */
#define EPF_LOG_COMP "place"
#include "fabric/place/pick.h"

#include "fabric/base/conf.h"
#include "fabric/base/err.h"
#include "fabric/base/log.h"
#include "fabric/place/place_priv.h"
#include "fabric/place/select.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct picking {
	const struct epf_place_pick_opts *opts;
	const struct epf_place_candidate *list;
	uint32_t n;
	struct epf_place_select select;
	struct epf_place_map map;
	struct epf_place_plan plan;
	const struct epf_place_choice *choice; /* of the local rank; NULL: all ranks, or no plan */
	bool has_map, has_plan;
	uint8_t *is_taken; /* [n] */
	struct epf_place_pick pick;
};

static bool fits(struct picking *p, uint32_t i)
{
	return (!p->opts->port || p->opts->port == p->list[i].port) &&
	       epf_place_select_fits(&p->select, p->list[i].device, p->list[i].port);
}

static void take(struct picking *p, uint32_t i)
{
	if (p->is_taken[i])
		return;
	p->is_taken[i] = 1;
	p->pick.order[p->pick.count++] = i;
}

/* The candidate of a rail, if it is one that fits. */
static void take_rail(struct picking *p, uint32_t r)
{
	const struct epf_place_rail *rail = &p->plan.rail[r];

	for (uint32_t i = 0; i < p->n; i++)
		if (p->list[i].port == rail->port->number &&
		    !strcmp(p->list[i].device, rail->nic->name) && fits(p, i))
			take(p, i);
}

static bool is_known(const struct picking *p, uint32_t i)
{
	for (uint32_t r = 0; r < p->map.nics; r++)
		if (!strcmp(p->map.nic[r].name, p->list[i].device))
			return true;
	return false;
}

/* Map and plan, as far as there are; only -ENOMEM is an error. */
static int make_plan(struct picking *p)
{
	struct epf_place_opts o = { .map = &p->map,
				    .select = p->opts->select,
				    .cpus = p->opts->cpus };
	int64_t local = p->opts->local;
	int rc = epf_place_read(p->opts->sysfs, &p->map);

	if (rc)
		return rc == -ENOMEM ? rc : 0;
	p->has_map = true;
	/* Without GPUs an index is a rail, and ranks take turns: how many ranks there are is not known here. */
	if (p->map.gpus && local >= 0)
		o.indices = (uint32_t)local + 1;
	/* A selection that leaves nothing of the tree may still fit devices that only the library knows. */
	rc = epf_place_choose(&o, &p->plan);
	p->has_plan = !rc;
	if (p->has_plan && local >= 0)
		p->choice = &p->plan.choice[local % p->plan.choices];
	return rc == -ENOMEM ? rc : 0;
}

static void take_planned(struct picking *p)
{
	const struct epf_place_choice *c = p->choice;

	if (!p->has_plan)
		return;
	if (!c) {
		for (uint32_t r = 0; r < p->plan.rails; r++)
			if (p->plan.rail[r].number != EPF_PLACE_NONE)
				take_rail(p, r);
		p->pick.own = p->pick.count;
		return;
	}
	for (uint32_t r = 0; r < c->rails; r++) {
		take_rail(p, c->rail[r]);
		if (r + 1 == c->own)
			p->pick.own = p->pick.count;
	}
}

static void take_others(struct picking *p)
{
	for (uint32_t i = 0; i < p->n; i++)
		if (!is_known(p, i) && fits(p, i))
			take(p, i);
	for (uint32_t i = 0; i < p->n && !p->pick.count; i++)
		for (uint32_t k = i; k < p->n; k++)
			if (fits(p, k))
				take(p, k);
	if (!p->pick.own)
		p->pick.own = p->pick.count;
}

/* The rail of the first entry; NULL: the tree does not know it. */
static const struct epf_place_rail *first_rail(const struct picking *p)
{
	const struct epf_place_candidate *c;

	if (!p->has_plan || !p->pick.count)
		return NULL;
	c = &p->list[p->pick.order[0]];
	for (uint32_t r = 0; r < p->plan.rails; r++)
		if (p->plan.rail[r].port->number == c->port &&
		    !strcmp(p->plan.rail[r].nic->name, c->device))
			return &p->plan.rail[r];
	return NULL;
}

static bool is_allowed(const struct picking *p, uint32_t cpu)
{
	const struct epf_conf_cpus *cpus = p->opts->cpus;

	if (p->map.online.count && !epf_place_cpus_has(&p->map.online, cpu))
		return false;
	for (uint32_t i = 0; cpus && i < cpus->count; i++)
		if (cpus->cpu[i] == cpu)
			return true;
	return !cpus || !cpus->count;
}

static int set_near(struct picking *p, const struct epf_place_rail *rail)
{
	const struct epf_place_cpus *near = epf_place_cpus_near(&p->map, &rail->nic->spot);
	struct epf_conf_cpus *out = p->pick.near;

	for (uint32_t i = 0; i < near->count; i++)
		for (uint32_t cpu = near->range[i].first; cpu <= near->range[i].last; cpu++) {
			uint32_t *grown;

			if (!is_allowed(p, cpu))
				continue;
			grown = epf_place_grow(out->cpu, out->count, sizeof(*grown));
			if (!grown)
				return epf_place_no_memory();
			out->cpu = grown;
			out->cpu[out->count++] = cpu;
		}
	return 0;
}

static void say_ports(const struct picking *p, FILE *f)
{
	const struct epf_place_pick *k = &p->pick;

	for (uint32_t i = 0; i < k->count; i++) {
		const struct epf_place_candidate *c = &p->list[k->order[i]];

		fprintf(f, "%s%s:%u%s",
			i == 0        ? ""
			: i == k->own ? "; standing by "
				      : ", ",
			c->device, c->port, c->is_active ? "" : " (down)");
	}
	if (!k->count)
		fputs("none", f);
}

static int set_why(struct picking *p, const struct epf_place_rail *rail)
{
	size_t size;
	FILE *f = open_memstream(&p->pick.why, &size);

	if (!f)
		return epf_place_no_memory();
	fputs("ports: ", f);
	say_ports(p, f);
	if (!p->has_map)
		fputs("; sysfs cannot be read: in the library's order", f);
	else if (!rail)
		fputs("; sysfs does not know them: in the library's order", f);
	else if (p->choice)
		fprintf(f, "; local rank %lld: %s", (long long)p->opts->local, p->choice->why);
	else
		fprintf(f, "; all ranks of the node, rails in order; the first on NUMA node %d",
			rail->node);
	return fclose(f) ? epf_place_no_memory() : 0;
}

static int pick_all(struct picking *p)
{
	const struct epf_place_rail *rail;
	int rc;

	p->pick.order = calloc(p->n + 1, sizeof(*p->pick.order));
	p->pick.near = calloc(1, sizeof(*p->pick.near));
	p->is_taken = calloc(p->n + 1, 1);
	if (!p->pick.order || !p->pick.near || !p->is_taken)
		return epf_place_no_memory();
	rc = make_plan(p);
	if (rc)
		return rc;
	take_planned(p);
	take_others(p);
	rail = first_rail(p);
	p->pick.node = rail ? rail->node : -1;
	p->pick.cpu = rail ? rail->cpu : -1;
	if (rail && p->choice)
		p->pick.cpu = p->choice->cpu;
	rc = rail ? set_near(p, rail) : 0;
	return rc ? rc : set_why(p, rail);
}

int epf_place_pick(const struct epf_place_pick_opts *opts, const struct epf_place_candidate *list,
		   uint32_t n, struct epf_place_pick *out)
{
	struct picking p = { .opts = opts, .list = list, .n = n };
	int rc = epf_place_select_parse(opts->select, &p.select);

	if (rc)
		return rc;
	rc = pick_all(&p);
	epf_place_plan_destroy(&p.plan);
	epf_place_map_destroy(&p.map);
	epf_place_select_destroy(&p.select);
	free(p.is_taken);
	if (rc) {
		epf_place_pick_destroy(&p.pick);
		return rc;
	}
	*out = p.pick;
	return 0;
}

void epf_place_pick_destroy(struct epf_place_pick *pick)
{
	if (!pick)
		return;
	if (pick->near)
		free(pick->near->cpu);
	free(pick->near);
	free(pick->order);
	free(pick->why);
	memset(pick, 0, sizeof(*pick));
}

void epf_place_pick_log(const struct epf_place_pick *pick)
{
	static uint64_t said[64]; /* hashes of lines; when full, the oldest place is used again */
	static uint32_t next;
	uint64_t hash = UINT64_C(0xcbf29ce484222325);

	for (const char *c = pick->why; *c; c++)
		hash = (hash ^ (unsigned char)*c) * UINT64_C(0x100000001b3);
	for (uint32_t i = 0; i < 64; i++)
		if (__atomic_load_n(&said[i], __ATOMIC_RELAXED) == hash)
			return;
	__atomic_store_n(&said[__atomic_fetch_add(&next, 1, __ATOMIC_RELAXED) % 64], hash,
			 __ATOMIC_RELAXED);
	epf_note("%s", pick->why);
}
