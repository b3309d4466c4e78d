/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where an engine core runs and where its memory comes from, by the placement plan: on the CPUs next to the RDMA device that it uses,
 * and from their NUMA node. Called when an engine is made, embedded or in the daemon; the binding itself is the caller's. The
 * setting cpu overrules it, core-bind switches it off.
 */
#ifndef EPF_FABRIC_PLACE_BIND_H
#define EPF_FABRIC_PLACE_BIND_H

#include "fabric/place/place.h"

struct epf_conf;

struct epf_place_bind {
	uint32_t *cpu;  /* that the core may run on */
	uint32_t count; /* 0: anywhere */
	int32_t node;   /* for its memory; -1: anywhere */
	char why[192];  /* one line, for people; "" when there is nothing to say */
};

/**
 * epf_place_bind() - CPUs and memory node of one engine core.
 * @sysfs: a tree; NULL: EPF_PLACE_SYSFS.
 * @local: number of the rank on its node whose engine it is; -1: the daemon's.
 * @core: number of the core among the @cores of the daemon; they use the rails round-robin.
 * @out: freed by epf_place_bind_destroy(); written on success only.
 *
 * With cpu set: those CPUs, one each where a daemon has enough for that. Else with core-bind=near and a NIC of devices: of the CPUs this process
 * may use, the recommended one for a core that spins (it takes it whole), all those near the device for one that sleeps. Where
 * nothing is known, or nothing near is allowed, the core is free and the line says why.
 *
 * Return: 0; -ENOMEM; or another negative errno with epf_last_error() set when nic-device is malformed.
 */
int epf_place_bind(const struct epf_conf *conf, const char *sysfs, int64_t local, uint32_t core,
		   uint32_t cores, struct epf_place_bind *out);

void epf_place_bind_destroy(struct epf_place_bind *bind);

#endif
