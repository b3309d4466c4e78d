/* SPDX-License-Identifier: Apache-2.0 */
/*
 * epf_place_read(): a machine's map from a sysfs tree, live or recorded: its NUMA nodes and CPUs here, its devices in
 * devices.c. Called by whoever places NICs. Every tree gives a map; only a root that is no folder is an error.
 */
#include "fabric/base/err.h"
#include "fabric/place/place_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NODES "devices/system/node"
#define CPUS  "devices/system/cpu"

/* PCI addresses by number: domains may differ in length. What has none comes last. */
static int by_spot(const struct epf_place_spot *a, const struct epf_place_spot *b)
{
	const char *p = epf_place_pci(a), *q = epf_place_pci(b);

	if (!a->depth || !b->depth)
		return !a->depth - !b->depth;
	if (strlen(p) != strlen(q))
		return strlen(p) < strlen(q) ? -1 : 1;
	return strcasecmp(p, q);
}

static int by_nic(const void *a, const void *b)
{
	const struct epf_place_nic *p = a, *q = b;
	int order = by_spot(&p->spot, &q->spot);

	return order ? order : strverscmp(p->name, q->name);
}

static int by_gpu(const void *a, const void *b)
{
	const struct epf_place_gpu *p = a, *q = b;

	return by_spot(&p->spot, &q->spot);
}

/* The number at the end of "node12"; false for "node" and "nodelist". */
static bool number_behind(const char *name, const char *prefix, uint32_t *out)
{
	uint64_t value;

	if (epf_place_number(name + strlen(prefix), 10, EPF_PLACE_CPU_LIMIT - 1, &value))
		return false;
	*out = (uint32_t)value;
	return true;
}

/* Nodes without memory exist; where nobody says, all have some. */
static int mark_memory(struct epf_place_map *map)
{
	char folder[PATH_MAX], text[EPF_PLACE_TEXT_BYTES];
	struct epf_place_cpus list = { 0 };
	bool known = !epf_place_join(folder, "%s/" NODES, map->root) &&
		     !epf_place_text(folder, "has_memory", text);
	int rc = known ? epf_place_cpus_parse(text, &list) : -EINVAL;

	if (rc == -ENOMEM)
		return rc;
	if (known && rc)
		epf_place_nonsense(map, NODES, "has_memory", text, "ignored");
	for (uint32_t i = 0; i < map->nodes; i++)
		map->node[i].has_memory = rc || epf_place_cpus_has(&list, map->node[i].number);
	free(list.range);
	return 0;
}

static int read_nodes(struct epf_place_map *map)
{
	struct epf_place_names names;
	int rc = epf_place_names(map, NODES, "node", &names);

	if (rc)
		return rc;
	for (uint32_t i = 0; !rc && i < names.count; i++) {
		struct epf_place_node *grown;
		char folder[PATH_MAX];
		uint32_t number;

		if (!number_behind(names.name[i], "node", &number) ||
		    epf_place_join(folder, "%s/" NODES "/%s", map->root, names.name[i]))
			continue;
		grown = epf_place_grow(map->node, map->nodes, sizeof(*grown));
		if (!grown) {
			rc = epf_place_no_memory();
			break;
		}
		map->node = grown;
		grown += map->nodes++;
		memset(grown, 0, sizeof(*grown));
		grown->number = number;
		rc = epf_place_read_cpus(map, names.name[i], folder, "cpulist", &grown->cpus);
	}
	epf_place_names_free(&names);
	return rc ? rc : mark_memory(map);
}

/* Takes a CPU whose list of threads begins with a lower number as the second of its core. */
static int add_sibling(struct epf_place_map *map, const char *name, uint32_t cpu)
{
	char folder[PATH_MAX], text[EPF_PLACE_TEXT_BYTES];
	struct epf_place_cpus list = { 0 };
	uint32_t *grown;
	int rc;

	if (epf_place_join(folder, "%s/" CPUS "/%s/topology", map->root, name) ||
	    epf_place_text(folder, "thread_siblings_list", text))
		return 0; /* offline, or a kernel that does not say */
	rc = epf_place_cpus_parse(text, &list);
	if (rc == -EINVAL)
		epf_place_nonsense(map, name, "thread_siblings_list", text, "ignored");
	if (!rc && list.count && list.range[0].first < cpu) {
		grown = epf_place_grow(map->sibling, map->siblings, sizeof(*grown));
		if (grown) {
			map->sibling = grown;
			grown[map->siblings++] = cpu;
		} else {
			rc = epf_place_no_memory();
		}
	}
	free(list.range);
	return rc == -EINVAL ? 0 : rc;
}

/* Names come sorted with numbers in order, so the siblings are ascending. */
static int read_cpus(struct epf_place_map *map)
{
	struct epf_place_names names;
	char folder[PATH_MAX];
	int rc;

	if (epf_place_join(folder, "%s/" CPUS, map->root))
		return 0;
	rc = epf_place_read_cpus(map, CPUS, folder, "online", &map->online);
	if (!rc)
		rc = epf_place_names(map, CPUS, "cpu", &names);
	if (rc)
		return rc;
	for (uint32_t i = 0; !rc && i < names.count; i++) {
		uint32_t cpu;

		if (number_behind(names.name[i], "cpu", &cpu))
			rc = add_sibling(map, names.name[i], cpu);
	}
	epf_place_names_free(&names);
	return rc;
}

int epf_place_read(const char *root, struct epf_place_map *out)
{
	struct epf_place_map map = { 0 };
	struct stat st;
	int rc;

	if (!root)
		root = EPF_PLACE_SYSFS;
	map.root = realpath(root, NULL);
	if (!map.root || stat(map.root, &st)) {
		rc = epf_fail_sys(EPF_R_PLACE_TREE, errno, "%s", root);
		goto err_free;
	}
	if (!S_ISDIR(st.st_mode) || faccessat(AT_FDCWD, map.root, R_OK | X_OK, AT_EACCESS)) {
		rc = epf_fail_sys(EPF_R_PLACE_TREE, S_ISDIR(st.st_mode) ? errno : ENOTDIR, "%s",
				  root);
		goto err_free;
	}
	rc = read_nodes(&map);
	if (!rc)
		rc = read_cpus(&map);
	if (!rc)
		rc = epf_place_read_nics(&map);
	if (!rc)
		rc = epf_place_read_gpus(&map);
	if (rc)
		goto err_free;
	if (map.nics)
		qsort(map.nic, map.nics, sizeof(*map.nic), by_nic);
	if (map.gpus)
		qsort(map.gpu, map.gpus, sizeof(*map.gpu), by_gpu);
	*out = map;
	return 0;

err_free:
	epf_place_map_destroy(&map);
	return rc;
}
