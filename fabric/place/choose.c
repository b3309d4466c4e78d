/* SPDX-License-Identifier: Apache-2.0 */
/*
 * epf_place_choose(): from a machine's map and the user's settings to a plan. Called by whoever opens NICs with devices, and by `ep-fabric
 * nics`. The steps: which ports may be used at all (here), who gets which (deal.c), which CPU and node go with them
 * (core.c), and why, in words (text.c). Nothing here reads a file: the same map gives the same plan.
 */
#include "fabric/base/conf.h"
#include "fabric/base/err.h"
#include "fabric/place/place_priv.h"
#include "fabric/place/select.h"

#include <stdlib.h>
#include <string.h>

#define note(plan, ...) epf_place_note(&(plan)->note, &(plan)->notes, __VA_ARGS__)

/* ---- which ports may be used ---------------------------------------------------------------- */

static int list_rails(const struct epf_place_map *map, struct epf_place_plan *plan)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < map->nics; i++)
		n += map->nic[i].ports;
	if (!n)
		return 0;
	plan->rail = calloc(n, sizeof(*plan->rail));
	if (!plan->rail)
		return epf_place_no_memory();
	for (uint32_t i = 0; i < map->nics; i++)
		for (uint32_t p = 0; p < map->nic[i].ports; p++) {
			struct epf_place_rail *rail = &plan->rail[plan->rails++];

			rail->nic = &map->nic[i];
			rail->port = &map->nic[i].port[p];
			rail->use = rail->port->is_up ? EPF_PLACE_USABLE : EPF_PLACE_DOWN;
		}
	return 0;
}

static bool is_chosen(const struct epf_place_rail *rail)
{
	return rail->use != EPF_PLACE_NOT_CHOSEN;
}

/* A prefix that is also the whole name of one device: the user may have meant that one. */
static void note_prefix(const struct epf_place_select *select, struct epf_place_plan *plan,
			const struct epf_place_map *map, const char *name)
{
	const char *whole = NULL, *longer = NULL;

	for (uint32_t i = 0; i < map->nics; i++) {
		if (!strcmp(map->nic[i].name, name))
			whole = name;
		else if (!strncmp(map->nic[i].name, name, strlen(name)))
			longer = map->nic[i].name;
	}
	if (whole && longer)
		note(plan,
		     "nic-device: %s also means %s; '=' in front of the list makes names whole "
		     "(%s=%s)",
		     whole, longer, select->is_exclusion ? "^" : "", whole);
}

static int apply_selection(const struct epf_place_opts *opts, struct epf_place_select *select,
			   struct epf_place_plan *plan)
{
	uint32_t left = 0;

	for (uint32_t r = 0; r < plan->rails; r++) {
		struct epf_place_rail *rail = &plan->rail[r];

		if (!epf_place_select_fits(select, rail->nic->name, rail->port->number))
			rail->use = EPF_PLACE_NOT_CHOSEN;
		left += is_chosen(rail);
	}
	for (uint32_t i = 0; i < select->items; i++) {
		if (!select->item[i].used)
			note(plan, "nic-device: no device fits '%s'", select->item[i].name);
		else if (!select->is_exact)
			note_prefix(select, plan, opts->map, select->item[i].name);
	}
	if (plan->rails && !left)
		return epf_fail(EPF_R_PLACE_NO_MATCH,
				"nic-device leaves none of the %u ports of RDMA devices (%s:%u "
				"%s)",
				plan->rails, plan->rail[0].nic->name, plan->rail[0].port->number,
				plan->rails > 1 ? "and others" : "only");
	return 0;
}

/* The best rate of ports that are up, of one link layer or (NULL) of all. */
static uint64_t best_rate(const struct epf_place_plan *plan, const char *layer)
{
	uint64_t best = 0;

	for (uint32_t r = 0; r < plan->rails; r++) {
		const struct epf_place_port *port = plan->rail[r].port;

		if (is_chosen(&plan->rail[r]) && port->is_up && port->rate_mbps > best &&
		    (!layer || !strcmp(layer, port->link_layer)))
			best = port->rate_mbps;
	}
	return best;
}

/*
 * What a link layer could carry. A port that is down counts like the best of its kind that is up, so that a cut cable does not make
 * a node choose another network than its peers.
 */
static uint64_t layer_weight(const struct epf_place_plan *plan, const char *layer)
{
	uint64_t best = best_rate(plan, layer), weight = 0;

	if (!best)
		best = best_rate(plan, NULL);
	if (!best)
		best = 1;
	for (uint32_t r = 0; r < plan->rails; r++) {
		const struct epf_place_port *port = plan->rail[r].port;

		if (is_chosen(&plan->rail[r]) && !strcmp(layer, port->link_layer))
			weight += port->is_up && port->rate_mbps ? port->rate_mbps : best;
	}
	return weight;
}

/* Leaves out what is not of the machine's main network. */
static void judge(struct epf_place_plan *plan)
{
	const char *main_layer = NULL;
	uint64_t main_weight = 0, best;

	for (uint32_t r = 0; r < plan->rails; r++) {
		const char *layer = plan->rail[r].port->link_layer;
		uint64_t weight = is_chosen(&plan->rail[r]) ? layer_weight(plan, layer) : 0;

		if (weight > main_weight) {
			main_weight = weight;
			main_layer = layer;
		}
	}
	if (!main_layer)
		return;
	best = best_rate(plan, main_layer);
	for (uint32_t r = 0; r < plan->rails; r++) {
		struct epf_place_rail *rail = &plan->rail[r];
		uint64_t rate = rail->port->rate_mbps;

		if (is_chosen(rail) && strcmp(rail->port->link_layer, main_layer) != 0)
			rail->use = EPF_PLACE_OTHER_LINK;
		else if (rail->use == EPF_PLACE_USABLE && rate && rate < best / 2)
			rail->use = EPF_PLACE_SLOW;
	}
}

static uint32_t number_rails(struct epf_place_plan *plan)
{
	uint32_t n = 0;

	for (uint32_t r = 0; r < plan->rails; r++) {
		struct epf_place_rail *rail = &plan->rail[r];
		bool counts = rail->use == EPF_PLACE_USABLE || rail->use == EPF_PLACE_DOWN;

		rail->number = counts ? n++ : EPF_PLACE_NONE;
	}
	return n;
}

/* ---- units ---------------------------------------------------------------------------------- */

static void free_units(struct epf_place_unit *unit, uint32_t units)
{
	for (uint32_t u = 0; unit && u < units; u++) {
		free(unit[u].is_home);
		free(unit[u].is_own);
	}
	free(unit);
}

static struct epf_place_unit *make_units(const struct epf_place_map *map, uint32_t units,
					 uint32_t rails)
{
	struct epf_place_unit *unit = calloc(units, sizeof(*unit));

	for (uint32_t u = 0; unit && u < units; u++) {
		unit[u].spot = u < map->gpus ? &map->gpu[u].spot : NULL;
		unit[u].is_home = calloc(rails + 1, 1);
		unit[u].is_own = calloc(rails + 1, 1);
		if (!unit[u].is_home || !unit[u].is_own) {
			free_units(unit, units);
			return NULL;
		}
	}
	return unit;
}

/* ---- choices -------------------------------------------------------------------------------- */

static uint64_t distance_to(const struct epf_place_choice *choice,
			    const struct epf_place_rail *rail)
{
	uint32_t hops;
	enum epf_place_near near;

	if (!choice->gpu)
		return EPF_PLACE_UNKNOWN;
	near = epf_place_distance(&choice->gpu->spot, &rail->nic->spot, &hops);
	return (uint64_t)near << 32 | hops;
}

/* Appends the others that are usable, nearest first; among equals those that follow the own one, so that not all take the same. */
static void add_spares(const struct epf_place_plan *plan, const struct epf_place_unit *unit,
		       struct epf_place_choice *choice)
{
	for (uint32_t step = 1; step <= plan->rails; step++) {
		uint32_t r = (choice->rail[0] + step) % plan->rails, at = choice->rails;
		uint64_t distance = distance_to(choice, &plan->rail[r]);

		if (unit->is_own[r] || plan->rail[r].use != EPF_PLACE_USABLE)
			continue;
		for (; at > choice->own &&
		       distance_to(choice, &plan->rail[choice->rail[at - 1]]) > distance;
		     at--)
			choice->rail[at] = choice->rail[at - 1];
		choice->rail[at] = r;
		choice->rails++;
	}
}

/* How many earlier indices have the same GPU: they take turns with its rails. */
static uint32_t turn_of(const struct epf_place_plan *plan, const struct epf_place_choice *choice)
{
	uint32_t turn = 0;

	for (const struct epf_place_choice *c = plan->choice; choice->gpu && c < choice; c++)
		turn += c->gpu == choice->gpu;
	return turn;
}

static int fill_choice(const struct epf_place_opts *opts, const struct epf_place_plan *plan,
		       const struct epf_place_unit *unit, uint32_t index)
{
	struct epf_place_choice *choice = &plan->choice[index];
	uint32_t turn = turn_of(plan, choice), n = 0;

	choice->rail = calloc(plan->rails + 1, sizeof(*choice->rail));
	if (!choice->rail)
		return epf_place_no_memory();
	for (uint32_t r = 0; r < plan->rails; r++)
		choice->own += unit->is_own[r];
	for (uint32_t r = 0; r < plan->rails; r++)
		if (unit->is_own[r])
			choice->rail[(n++ + choice->own - turn % choice->own) % choice->own] = r;
	choice->rails = choice->own;
	if (choice->own) {
		const struct epf_place_rail *rail = &plan->rail[choice->rail[0]];

		add_spares(plan, unit, choice);
		choice->near = (enum epf_place_near)(distance_to(choice, rail) >> 32);
		choice->node = rail->node;
		choice->cpu = rail->cpu;
	} else {
		static const struct epf_place_spot nowhere = { .node = -1 };
		const struct epf_place_spot *spot = choice->gpu ? &choice->gpu->spot : &nowhere;

		choice->near = EPF_PLACE_UNKNOWN;
		choice->node = spot->node;
		choice->cpu = epf_place_core(opts, epf_place_cpus_near(opts->map, spot), index);
	}
	choice->why = epf_place_why(opts, plan, choice, unit);
	return choice->why ? 0 : epf_place_no_memory();
}

/* The GPU of an index: as the user says, else in order. */
static int find_gpu(const struct epf_place_opts *opts, uint32_t index,
		    struct epf_place_choice *choice)
{
	const struct epf_place_map *map = opts->map;
	const char *pci = opts->gpu_pci ? opts->gpu_pci[index] : NULL;

	choice->gpu_index = EPF_PLACE_NONE;
	if (!pci && map->gpus)
		choice->gpu_index = index % map->gpus;
	for (uint32_t g = 0; pci && g < map->gpus; g++)
		if (!strcasecmp(pci, epf_place_pci(&map->gpu[g].spot)))
			choice->gpu_index = g;
	if (pci && choice->gpu_index == EPF_PLACE_NONE)
		return epf_fail(EPF_R_PLACE_GPU, "local index %u: '%s' is none of the %u GPUs",
				index, pci, map->gpus);
	if (choice->gpu_index != EPF_PLACE_NONE)
		choice->gpu = &map->gpu[choice->gpu_index];
	return 0;
}

static int choose(const struct epf_place_opts *opts, struct epf_place_plan *plan, uint32_t numbered)
{
	uint32_t gpus = opts->map->gpus, indices = opts->indices, units;
	struct epf_place_unit *unit;
	int rc = 0;

	if (!indices)
		indices = gpus ? gpus : numbered ? numbered : 1;
	units = gpus ? gpus : indices;
	unit = make_units(opts->map, units, plan->rails);
	plan->choice = calloc(indices, sizeof(*plan->choice));
	if (!unit || !plan->choice)
		rc = epf_place_no_memory();
	if (!rc)
		rc = epf_place_deal(plan, unit, units);
	for (uint32_t i = 0; !rc && i < indices; i++) {
		plan->choices = i + 1;
		rc = find_gpu(opts, i, &plan->choice[i]);
		if (!rc)
			rc = fill_choice(opts, plan, &unit[gpus ? plan->choice[i].gpu_index : i],
					 i);
	}
	free_units(unit, units);
	return rc;
}

int epf_place_choose(const struct epf_place_opts *opts, struct epf_place_plan *out)
{
	struct epf_place_plan plan = { 0 };
	struct epf_place_select select;
	int rc = epf_place_select_parse(opts->select, &select);

	if (rc)
		return rc;
	rc = list_rails(opts->map, &plan);
	if (!rc)
		rc = apply_selection(opts, &select, &plan);
	if (!rc) {
		uint32_t numbered;

		if (!select.items || select.is_exclusion)
			judge(&plan);
		numbered = number_rails(&plan);
		epf_place_cores(opts, &plan);
		rc = choose(opts, &plan, numbered);
	}
	epf_place_select_destroy(&select);
	if (rc) {
		epf_place_plan_destroy(&plan);
		return rc;
	}
	*out = plan;
	return 0;
}
