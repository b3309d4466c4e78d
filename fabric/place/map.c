/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The small parts of placement: growing lists, notes, CPU lists, numbers, distances, freeing. Called by the other place_*.c files.
 * Nothing here reads a file.
 */
#include "fabric/place/place_priv.h"

#include "fabric/base/err.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int epf_place_no_memory(void)
{
	return epf_fail(EPF_R_NO_MEMORY, "the map of RDMA devices");
}

void *epf_place_grow(void *array, uint32_t count, size_t size)
{
	/* Sizes 1, 2, 4 ...: a power of two is full. */
	if (count & (count - 1))
		return array;
	if (count > UINT32_MAX / 2)
		return NULL;
	return reallocarray(array, count ? (size_t)count * 2 : 1, size);
}

void epf_place_note(char ***note, uint32_t *notes, const char *fmt, ...)
{
	char **list;
	char *text;
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vasprintf(&text, fmt, ap);
	va_end(ap);
	if (n < 0)
		return;
	for (char *c = text; *c; c++)
		if (iscntrl((unsigned char)*c))
			*c = '?';
	list = epf_place_grow(*note, *notes, sizeof(*list));
	if (!list) {
		free(text);
		return;
	}
	*note = list;
	list[(*notes)++] = text;
}

int epf_place_number(const char *text, int base, uint64_t max, uint64_t *out)
{
	unsigned long long value;
	char *end;

	if (!isxdigit((unsigned char)text[0]))
		return -EINVAL;
	errno = 0;
	value = strtoull(text, &end, base);
	if (errno || end == text || *end || value > max)
		return -EINVAL;
	*out = value;
	return 0;
}

/* One number in front of *text, which moves behind it. */
static int list_number(const char **text, uint32_t *out)
{
	uint64_t value = 0;

	if (!isdigit((unsigned char)**text))
		return -EINVAL;
	for (; isdigit((unsigned char)**text); ++*text) {
		value = value * 10 + (uint64_t)(**text - '0');
		if (value >= EPF_PLACE_CPU_LIMIT)
			return -EINVAL;
	}
	*out = (uint32_t)value;
	return 0;
}

static int list_range(const char **text, struct epf_place_range *out)
{
	if (list_number(text, &out->first))
		return -EINVAL;
	out->last = out->first;
	if (**text != '-')
		return 0;
	++*text;
	return list_number(text, &out->last) || out->last < out->first ? -EINVAL : 0;
}

int epf_place_cpus_parse(const char *text, struct epf_place_cpus *out)
{
	struct epf_place_cpus cpus = { 0 };

	while (*text) {
		struct epf_place_range range, *grown;

		if (list_range(&text, &range) || (*text && *text != ','))
			goto err_bad;
		if (*text && !*++text)
			goto err_bad;
		grown = epf_place_grow(cpus.range, cpus.count, sizeof(range));
		if (!grown) {
			free(cpus.range);
			return epf_place_no_memory();
		}
		cpus.range = grown;
		cpus.range[cpus.count++] = range;
	}
	*out = cpus;
	return 0;

err_bad:
	free(cpus.range);
	return -EINVAL;
}

bool epf_place_cpus_has(const struct epf_place_cpus *cpus, uint32_t cpu)
{
	for (uint32_t i = 0; i < cpus->count; i++)
		if (cpu >= cpus->range[i].first && cpu <= cpus->range[i].last)
			return true;
	return false;
}

/* Entries that both paths begin with. */
static uint32_t common_depth(const struct epf_place_spot *a, const struct epf_place_spot *b)
{
	uint32_t n = 0;

	while (n < a->depth && n < b->depth && !strcmp(a->path[n], b->path[n]))
		n++;
	return n;
}

enum epf_place_near epf_place_distance(const struct epf_place_spot *a,
				       const struct epf_place_spot *b, uint32_t *hops)
{
	uint32_t common = common_depth(a, b);

	*hops = 0;
	if (common > 1) {
		*hops = a->depth - common + b->depth - common;
		return EPF_PLACE_SWITCH;
	}
	if (common == 1)
		return EPF_PLACE_ROOT;
	if (a->node < 0 || b->node < 0)
		return EPF_PLACE_UNKNOWN;
	return a->node == b->node ? EPF_PLACE_NODE : EPF_PLACE_FAR;
}

const char *epf_place_common(const struct epf_place_spot *a, const struct epf_place_spot *b)
{
	uint32_t common = common_depth(a, b);

	return common ? a->path[common - 1] : NULL;
}

const struct epf_place_node *epf_place_node_of(const struct epf_place_map *map, int32_t node)
{
	for (uint32_t i = 0; i < map->nodes; i++)
		if (node >= 0 && map->node[i].number == (uint32_t)node)
			return &map->node[i];
	return NULL;
}

const char *epf_place_near_name(enum epf_place_near near)
{
	static const char *const names[] = { "switch", "root", "node", "far", "unknown" };

	return names[near];
}

const char *epf_place_use_name(enum epf_place_use use)
{
	static const char *const names[] = { "usable", "down", "slow", "other link layer",
					     "not selected" };

	return names[use];
}

const char *epf_place_pci(const struct epf_place_spot *spot)
{
	return spot->depth ? spot->path[spot->depth - 1] : "-";
}

static void free_texts(char **text, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		free(text[i]);
	free(text);
}

static void free_spot(struct epf_place_spot *spot)
{
	free_texts(spot->path, spot->depth);
	free(spot->cpus.range);
}

void epf_place_map_destroy(struct epf_place_map *map)
{
	if (!map)
		return;
	for (uint32_t i = 0; i < map->nics; i++) {
		struct epf_place_nic *nic = &map->nic[i];

		for (uint32_t p = 0; p < nic->ports; p++) {
			free(nic->port[p].state);
			free(nic->port[p].link_layer);
		}
		free(nic->port);
		free(nic->name);
		free_spot(&nic->spot);
	}
	for (uint32_t i = 0; i < map->gpus; i++)
		free_spot(&map->gpu[i].spot);
	for (uint32_t i = 0; i < map->nodes; i++)
		free(map->node[i].cpus.range);
	free(map->nic);
	free(map->gpu);
	free(map->node);
	free(map->sibling);
	free(map->online.range);
	free(map->root);
	free_texts(map->note, map->notes);
	memset(map, 0, sizeof(*map));
}

void epf_place_plan_destroy(struct epf_place_plan *plan)
{
	if (!plan)
		return;
	for (uint32_t i = 0; i < plan->choices; i++) {
		free(plan->choice[i].rail);
		free(plan->choice[i].why);
	}
	free(plan->choice);
	free(plan->rail);
	free_texts(plan->note, plan->notes);
	memset(plan, 0, sizeof(*plan));
}
