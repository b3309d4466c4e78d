/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the plan to a core's CPUs and memory (bind.h). A process may be confined to some CPUs: of the plan only what it may use
 * counts.
 */
#include "fabric/place/bind.h"

#include "fabric/base/conf.h"
#include "fabric/base/err.h"
#include "fabric/place/place_priv.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CPUS = 4096 };

static int no_memory(void)
{
	return epf_fail(EPF_R_NO_MEMORY, "cpu: no memory");
}

static int add_cpu(struct epf_conf_cpus *list, uint32_t cpu)
{
	uint32_t *grown = epf_place_grow(list->cpu, list->count, sizeof(*grown));

	if (!grown)
		return no_memory();
	list->cpu = grown;
	list->cpu[list->count++] = cpu;
	return 0;
}

/* The CPUs that this process may use; count 0 when that is not known. */
static int allowed_cpus(struct epf_conf_cpus *out)
{
	size_t size = CPU_ALLOC_SIZE(CPUS);
	cpu_set_t *set = CPU_ALLOC(CPUS);
	int rc = 0;

	if (!set)
		return no_memory();
	CPU_ZERO_S(size, set);
	if (!sched_getaffinity(0, size, set))
		for (uint32_t cpu = 0; cpu < CPUS && !rc; cpu++)
			if (CPU_ISSET_S(cpu, size, set))
				rc = add_cpu(out, cpu);
	CPU_FREE(set);
	return rc;
}

static int given(const struct epf_conf *conf, uint32_t core, uint32_t cores,
		 struct epf_conf_cpus *out)
{
	bool one_each = cores > 1 && conf->cpu.count >= cores;
	int rc = 0;

	for (uint32_t i = 0; i < conf->cpu.count && !rc; i++)
		if (!one_each || i == core)
			rc = add_cpu(out, conf->cpu.cpu[i]);
	return rc;
}

/* The rail of a core: its rank's first one, or the daemon's rails round-robin. NULL: none. */
static const struct epf_place_rail *rail_of(const struct epf_place_plan *plan, int64_t local,
					    uint32_t core, uint32_t cores, int64_t *cpu)
{
	uint32_t numbered = 0, want;

	if (local >= 0) {
		const struct epf_place_choice *c = &plan->choice[local % plan->choices];

		if (!c->own)
			return NULL;
		/* A dedicated CPU only where no other rank is sent there: not where GPUs share a rail, or ranks alternate. */
		if (c->gpu && c->gpu_index == local && plan->rail[c->rail[0]].users == 1)
			*cpu = c->cpu;
		return &plan->rail[c->rail[0]];
	}
	for (uint32_t r = 0; r < plan->rails; r++)
		numbered += plan->rail[r].number != EPF_PLACE_NONE;
	want = (uint32_t)((uint64_t)core * numbered / cores);
	for (uint32_t r = 0; r < plan->rails; r++)
		if (plan->rail[r].number == want) {
			*cpu = cores <= numbered ? plan->rail[r].cpu : -1;
			return &plan->rail[r];
		}
	return NULL;
}

static int take_near(const struct epf_place_opts *o, const struct epf_place_rail *rail,
		     struct epf_conf_cpus *out)
{
	const struct epf_place_cpus *near = epf_place_cpus_near(o->map, &rail->nic->spot);
	int rc = 0;

	for (uint32_t i = 0; i < o->cpus->count && !rc; i++)
		if (epf_place_cpus_has(near, o->cpus->cpu[i]))
			rc = add_cpu(out, o->cpus->cpu[i]);
	return rc;
}

static int take_rail(const struct epf_place_opts *o, const struct epf_place_rail *rail, int64_t cpu,
		     bool spins, struct epf_conf_cpus *out, struct epf_place_bind *bind)
{
	const struct epf_place_cpus *near = epf_place_cpus_near(o->map, &rail->nic->spot);
	int rc;

	if (!rail->nic->spot.depth) /* not on PCI: near to nothing */
		return 0;
	if (spins && cpu >= 0 && epf_place_cpus_has(near, (uint32_t)cpu))
		rc = add_cpu(out, (uint32_t)cpu);
	else
		rc = take_near(o, rail, out);
	if (rc)
		return rc;
	if (!out->count) {
		snprintf(bind->why, sizeof(bind->why),
			 "not bound: this process may use none of the CPUs near %s",
			 rail->nic->name);
		return 0;
	}
	bind->node = rail->node;
	snprintf(bind->why, sizeof(bind->why),
		 "%u CPUs from %u on, near %s:%u, memory of NUMA node %d", out->count, out->cpu[0],
		 rail->nic->name, rail->port->number, rail->node);
	return 0;
}

static int by_plan(const struct epf_conf *conf, const char *sysfs, int64_t local, uint32_t core,
		   uint32_t cores, struct epf_conf_cpus *out, struct epf_place_bind *bind)
{
	struct epf_conf_cpus allowed = { 0 };
	struct epf_place_map map = { 0 };
	struct epf_place_plan plan = { 0 };
	struct epf_place_opts o = { .map = &map, .select = &conf->nic_device, .cpus = &allowed };
	const struct epf_place_rail *rail = NULL;
	int64_t cpu = -1;
	int rc = allowed_cpus(&allowed);

	/* Where sysfs says nothing there is nothing to go by. */
	if (!rc && epf_place_read(sysfs, &map) == 0) {
		if (map.gpus && local >= 0)
			o.indices = (uint32_t)local + 1;
		rc = epf_place_choose(&o, &plan);
		if (rc == -ENODEV)
			rc = 0; /* devices that only their library knows */
		else if (!rc)
			rail = rail_of(&plan, local, core, cores, &cpu);
	}
	if (!rc && rail)
		rc = take_rail(&o, rail, cpu, conf->core_idle == EPF_CONF_IDLE_SPIN, out, bind);
	epf_place_plan_destroy(&plan);
	epf_place_map_destroy(&map);
	free(allowed.cpu);
	return rc;
}

int epf_place_bind(const struct epf_conf *conf, const char *sysfs, int64_t local, uint32_t core,
		   uint32_t cores, struct epf_place_bind *out)
{
	bool has_devices = conf->nic == EPF_CONF_NIC_VERBS || conf->nic == EPF_CONF_NIC_EFA;
	struct epf_place_bind bind = { .node = -1 };
	struct epf_conf_cpus list = { 0 };
	int rc = 0;

	if (conf->cpu.count)
		rc = given(conf, core, cores, &list);
	else if (has_devices && conf->core_bind == EPF_CONF_BIND_NEAR)
		rc = by_plan(conf, sysfs, local, core, cores, &list, &bind);
	if (rc) {
		free(list.cpu);
		return rc;
	}
	bind.cpu = list.cpu;
	bind.count = list.count;
	*out = bind;
	return 0;
}

void epf_place_bind_destroy(struct epf_place_bind *bind)
{
	if (!bind)
		return;
	free(bind->cpu);
	memset(bind, 0, sizeof(*bind));
	bind->node = -1;
}
