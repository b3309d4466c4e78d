/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The placement part of `ep-fabric nics`: devices, GPUs, who uses what and why, as text or JSON. Called by nics.c. It reads a
 * sysfs tree and opens no device, so it works on a tree recorded elsewhere.
 */
#include "fabric/base/conf.h"
#include "fabric/base/err.h"
#include "fabric/place/place.h"
#include "tools/cli/nics_priv.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { RAILS_WIDTH = 256 };

/* ---- text ----------------------------------------------------------------------------------- */

/* A number, "-" for none. */
static const char *or_dash(int64_t value, char *buf, size_t size)
{
	snprintf(buf, size, value < 0 ? "-" : "%" PRId64, value);
	return buf;
}

static int64_t number_or_none(uint32_t number)
{
	return number == EPF_PLACE_NONE ? -1 : (int64_t)number;
}

static void print_devices(const struct epf_place_map *map, const struct epf_place_plan *plan)
{
	char rail[24], node[24], cpu[24], name[128];

	printf("\n# RDMA devices below %s: %" PRIu32 "\n", map->root, map->nics);
	if (!map->nics)
		return;
	printf("#rail device:port        pci           node state    link         Gbit_s  cpu  use\n");
	for (uint32_t r = 0; r < plan->rails; r++) {
		const struct epf_place_rail *p = &plan->rail[r];

		snprintf(name, sizeof(name), "%s:%" PRIu32, p->nic->name, p->port->number);
		printf("%5s %-18s %-13s %4s %-8s %-10s %8.1f %4s  %s\n",
		       or_dash(number_or_none(p->number), rail, sizeof(rail)), name,
		       epf_place_pci(&p->nic->spot), or_dash(p->node, node, sizeof(node)),
		       p->port->state, p->port->link_layer, (double)p->port->rate_mbps / 1000,
		       or_dash(p->cpu, cpu, sizeof(cpu)), epf_place_use_name(p->use));
	}
}

static void print_gpus(const struct epf_place_map *map)
{
	char node[24];

	printf("\n# GPUs: %" PRIu32 "\n", map->gpus);
	if (map->gpus)
		printf("#gpu pci           node vendor device\n");
	for (uint32_t g = 0; g < map->gpus; g++) {
		const struct epf_place_gpu *p = &map->gpu[g];

		printf("%4" PRIu32 " %-13s %4s 0x%04" PRIx32 " 0x%04" PRIx32 "\n", g,
		       epf_place_pci(&p->spot), or_dash(p->spot.node, node, sizeof(node)),
		       p->vendor, p->device);
	}
}

/* "mlx5_0:1,mlx5_1:1"; a list that is too long for a line ends in dots (JSON has it whole). */
static const char *rail_names(const struct epf_place_plan *plan, const struct epf_place_choice *c,
			      char *buf, size_t size)
{
	size_t at = 0;

	snprintf(buf, size, "-");
	for (uint32_t i = 0; i < c->own; i++) {
		const struct epf_place_rail *r = &plan->rail[c->rail[i]];
		int n = snprintf(buf + at, size - at, "%s%s:%" PRIu32, i ? "," : "", r->nic->name,
				 r->port->number);

		if (n < 0 || (size_t)n >= size - at - 4) {
			snprintf(buf + at, size - at, "...");
			break;
		}
		at += (size_t)n;
	}
	return buf;
}

static void print_choices(const struct epf_place_plan *plan)
{
	char gpu[24], node[24], cpu[24], rails[RAILS_WIDTH];
	int width = 18;

	for (uint32_t i = 0; i < plan->choices; i++) {
		int n = (int)strlen(rail_names(plan, &plan->choice[i], rails, sizeof(rails)));

		width = n > width ? n : width;
	}
	printf("\n# Placement\n#index gpu %-*s  cpu node reason\n", width, "device:port");
	for (uint32_t i = 0; i < plan->choices; i++) {
		const struct epf_place_choice *c = &plan->choice[i];

		printf("%6" PRIu32 " %3s %-*s %4s %4s %s\n", i,
		       or_dash(number_or_none(c->gpu_index), gpu, sizeof(gpu)), width,
		       rail_names(plan, c, rails, sizeof(rails)), or_dash(c->cpu, cpu, sizeof(cpu)),
		       or_dash(c->node, node, sizeof(node)), c->why);
	}
}

static void print_all(const struct epf_place_map *map, const struct epf_place_plan *plan,
		      bool is_decided)
{
	print_devices(map, plan);
	print_gpus(map);
	if (is_decided)
		print_choices(plan);
	for (uint32_t i = 0; i < map->notes; i++)
		printf("# note: %s\n", map->note[i]);
	for (uint32_t i = 0; i < plan->notes; i++)
		printf("# note: %s\n", plan->note[i]);
}

/* ---- JSON: absent is null ------------------------------------------------------------------- */

static json_t *json_number(int64_t value)
{
	return value < 0 ? json_null() : json_integer(value);
}

static json_t *json_pci(const struct epf_place_spot *spot)
{
	return spot->depth ? json_string(epf_place_pci(spot)) : json_null();
}

static json_t *json_rail(const struct epf_place_rail *r)
{
	const struct epf_place_port *p = r->port;

	return json_pack("{s:s, s:I, s:o, s:o, s:s, s:s, s:o, s:o, s:o, s:s, s:I}", "device",
			 r->nic->name, "port", (json_int_t)p->number, "pci",
			 json_pci(&r->nic->spot), "rail", json_number(number_or_none(r->number)),
			 "state", p->state, "link_layer", p->link_layer, "rate_mbit_s",
			 p->rate_mbps ? json_integer((json_int_t)p->rate_mbps) : json_null(),
			 "node", json_number(r->node), "cpu", json_number(r->cpu), "use",
			 epf_place_use_name(r->use), "users", (json_int_t)r->users);
}

static json_t *json_gpu(const struct epf_place_gpu *g, uint32_t index)
{
	return json_pack("{s:I, s:o, s:o, s:I, s:I}", "gpu", (json_int_t)index, "pci",
			 json_pci(&g->spot), "node", json_number(g->spot.node), "vendor",
			 (json_int_t)g->vendor, "device", (json_int_t)g->device);
}

static json_t *json_rail_names(const struct epf_place_plan *plan, const uint32_t *rail,
			       uint32_t count)
{
	json_t *list = json_array();

	for (uint32_t i = 0; i < count; i++) {
		const struct epf_place_rail *r = &plan->rail[rail[i]];

		json_array_append_new(list, json_pack("{s:s, s:I}", "device", r->nic->name, "port",
						      (json_int_t)r->port->number));
	}
	return list;
}

static json_t *json_choice(const struct epf_place_plan *plan, uint32_t index)
{
	const struct epf_place_choice *c = &plan->choice[index];

	return json_pack("{s:I, s:o, s:o, s:o, s:s, s:o, s:o, s:s}", "index", (json_int_t)index,
			 "gpu", json_number(number_or_none(c->gpu_index)), "rails",
			 json_rail_names(plan, c->rail, c->own), "spares",
			 json_rail_names(plan, c->rail + c->own, c->rails - c->own), "distance",
			 epf_place_near_name(c->near), "node", json_number(c->node), "cpu",
			 json_number(c->cpu), "reason", c->why);
}

static void add_notes(json_t *list, char *const *note, uint32_t notes)
{
	for (uint32_t i = 0; i < notes; i++)
		json_array_append_new(list, json_string(note[i]));
}

static int fill_json(const struct epf_place_map *map, const struct epf_place_plan *plan,
		     bool is_decided, json_t *top)
{
	json_t *devices = json_array(), *gpus = json_array(), *choices = json_array();
	json_t *notes = json_array();

	for (uint32_t r = 0; r < plan->rails; r++)
		json_array_append_new(devices, json_rail(&plan->rail[r]));
	for (uint32_t g = 0; g < map->gpus; g++)
		json_array_append_new(gpus, json_gpu(&map->gpu[g], g));
	for (uint32_t i = 0; is_decided && i < plan->choices; i++)
		json_array_append_new(choices, json_choice(plan, i));
	add_notes(notes, map->note, map->notes);
	add_notes(notes, plan->note, plan->notes);
	if (json_object_set_new(top, "sysfs", json_string(map->root)) |
	    json_object_set_new(top, "devices", devices) | json_object_set_new(top, "gpus", gpus) |
	    json_object_set_new(top, "choices", choices) | json_object_set_new(top, "notes", notes))
		return epf_fail(EPF_R_NO_MEMORY, "JSON");
	return 0;
}

int epf_nics_place(const struct epf_conf *conf, const char *sysfs, uint32_t indices, json_t *top)
{
	struct epf_place_map map;
	struct epf_place_plan plan;
	struct epf_place_opts opts = {
		.map = &map,
		.select = &conf->nic_device,
		.cpus = &conf->cpu,
		.indices = indices,
	};
	bool has_plan = false;
	int rc = epf_place_read(sysfs, &map);

	if (rc)
		return rc;
	rc = epf_place_choose(&opts, &plan);
	if (rc && opts.select) {
		/* A user who is sent here for the list of devices must find them. */
		opts.select = NULL;
		has_plan = !epf_place_choose(&opts, &plan);
	}
	if (has_plan || !rc) {
		if (top)
			rc = fill_json(&map, &plan, !rc, top) ? -ENOMEM : rc;
		else
			print_all(&map, &plan, !rc);
		epf_place_plan_destroy(&plan);
	}
	epf_place_map_destroy(&map);
	return rc;
}
