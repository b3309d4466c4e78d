/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the placement plan to a list: names of devices and ports in, an ordered list of those to open out. The one reader of
 * nic-device for everybody who opens NICs with devices. Called when a NIC is opened; slow path. It opens no device and binds nothing.
 */
#ifndef EPF_FABRIC_PLACE_PICK_H
#define EPF_FABRIC_PLACE_PICK_H

#include "fabric/place/place.h"

/* A port that the device library lists. */
struct epf_place_candidate {
	const char *device; /* as ibv_get_device_name(3) has it */
	uint32_t port;      /* from 1 */
	bool is_active;
};

struct epf_place_pick_opts {
	const struct epf_conf_list *select; /* nic-device; NULL or empty: all */
	const struct epf_conf_cpus *cpus;   /* CPUs that may be recommended; NULL or empty: all */
	const char *sysfs;                  /* a tree; NULL: EPF_PLACE_SYSFS */
	uint32_t port;                      /* only this port of each device; 0: any */
	int64_t local; /* the rank's number on its node; -1: one NIC serves all ranks of the node */
};

struct epf_place_pick {
	uint32_t *order; /* indices into the candidates, first choice first */
	uint32_t count;
	uint32_t
		own; /* order[0..own) are those the plan gives it, the rest stand by, nearest first */
	int32_t node; /* memory node of the first; -1: not known */
	int64_t cpu;  /* for a core that spins; -1: none to recommend */
	struct epf_conf_cpus
		*near; /* the CPUs next to the first, online and allowed; count 0: not known */
	char *why;     /* one line, for people */
};

/**
 * epf_place_pick() - which of the candidates to open, in which order.
 * @list: @n candidates in the order of the device library.
 * @out: freed by epf_place_pick_destroy(); written on success only.
 *
 * For one rank: the ports that the plan gives to its local number, then the other usable ones, nearest first. For all ranks of a
 * node (local is -1): every port of the plan by its rail number, a port that is down too, so that equal nodes come to the
 * same list and entry k of each is on the same switch. A candidate that the tree does not know comes behind, in the library's order. Ports
 * that the plan sets aside (slow, other link layer) are in the list only when nothing else is.
 *
 * Return: 0, with count 0 when no candidate fits; -ENOMEM; -EINVAL for a malformed selection with epf_last_error() set.
 */
int epf_place_pick(const struct epf_place_pick_opts *opts, const struct epf_place_candidate *list,
		   uint32_t n, struct epf_place_pick *out);

/* epf_place_pick_destroy() - free what a pick holds. NULL and a zeroed one are fine. */
void epf_place_pick_destroy(struct epf_place_pick *pick);

/* epf_place_pick_log() - say why at level note, once for each different line of the process. Any thread. */
void epf_place_pick_log(const struct epf_place_pick *pick);

#endif
