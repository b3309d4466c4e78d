/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which RDMA NIC a machine has, for nic=auto. Called by a rank and by a daemon, once for a job.
 */
#include "fabric/place/place.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The kernel's driver of a device is named by a link. */
static int is_efa(const struct epf_place_map *map, const struct epf_place_nic *nic)
{
	char path[4400], driver[256];
	const char *name;
	ssize_t n;

	snprintf(path, sizeof(path), "%s/class/infiniband/%s/device/driver", map->root, nic->name);
	n = readlink(path, driver, sizeof(driver) - 1);
	if (n <= 0)
		return 0;
	driver[n] = 0;
	name = strrchr(driver, '/');
	return strcmp(name ? name + 1 : driver, "efa") == 0;
}

const char *epf_place_rdma(const struct epf_place_map *map)
{
	const char *found = NULL;

	for (uint32_t i = 0; i < map->nics; i++)
		for (uint32_t p = 0; p < map->nic[i].ports; p++) {
			if (!map->nic[i].port[p].is_up)
				continue;
			if (is_efa(map, &map->nic[i]))
				return "efa";
			found = "verbs";
		}
	return found;
}
