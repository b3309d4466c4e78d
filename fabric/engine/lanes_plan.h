/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Computes the lanes, streams, receives and memory that an engine needs for a job: a pure function of the settings, the NIC's
 * capabilities and the size of the job. core_world.c allocates by it, and `ep-fabric nics --plan` prints it for hypothetical jobs.
 * It must never query the machine.
 */
#ifndef EPF_FABRIC_ENGINE_LANES_PLAN_H
#define EPF_FABRIC_ENGINE_LANES_PLAN_H

#include "fabric/nic/nic.h"

#include <stddef.h>
#include <stdint.h>

/* What is asked. Numbers of settings are as the engine keeps them: powers of two where it needs them. */
struct epf_lanes_ask {
	uint32_t world; /* ranks of the job */
	uint32_t
		n_nodes; /* engines of the job: nodes with a daemon, ranks where each has its own */
	uint32_t lanes_per_node;   /* lanes-per-peer */
	uint32_t streams_per_peer; /* of a pair of ranks */
	uint32_t window;
	uint32_t lane_depth;
	uint32_t lane_receives;
	uint32_t max_lanes, receives; /* of the NIC, as struct epf_nic_caps has them */
	uint32_t nic_lane_receives;   /* its lane_receives; 0: no limit */
	uint32_t addr_bytes;          /* of a peer's NIC address */
	int carries_events;
	const char *nic; /* its name, for errors */
};

/* What it comes to, for one engine. */
struct epf_lanes_plan {
	uint32_t lanes;             /* queue pairs: lanes_per_node to each of n_nodes */
	uint32_t lane_receives;     /* of a lane: lowered where lanes share what the NIC has */
	uint32_t receives;          /* of all lanes */
	uint32_t streams_per_node;  /* of a pair of engines */
	uint32_t streams_wanted;    /* of them, before the limit of an immediate's handle */
	uint32_t streams;           /* of all nodes */
	uint32_t group_slots;       /* that the tables of groups and notify handles may have */
	uint32_t max_pending;       /* messages that wait for what they cover */
	uint32_t n_acks;            /* acknowledgement words of a node */
	uint32_t ctl_stride;        /* bytes of the control writes of a node */
	uint64_t description_bytes; /* that the engine's lanes take in the exchange of the join */
	/* Memory that the engine takes for it at the join, and the most that it grows to, bytes (grow.h). */
	uint64_t join_bytes, all_bytes;
	/* Parts of all_bytes. */
	uint64_t peers_bytes, nodes_bytes, lanes_bytes, streams_bytes, windows_bytes, words_bytes,
		pending_bytes;
	uint64_t grow_bytes; /* what follows use: part of both, as far as it is there at the join */
	uint64_t
		blocks_bytes; /* of grow_bytes, without streams, notify handles, groups and waiting messages */
};

/* Lanes to a peer when lanes-per-peer asks for so many and the NIC has so many links: each link carries as many as the others. */
uint32_t epf_lanes_per_peer(uint32_t asked, uint32_t links);

/**
 * epf_lanes_plan() - what an engine needs.
 * @out: written on success only.
 *
 * Return: 0; -ERANGE for more ranks than the engine counts, -ENOSPC for more lanes than the NIC has or fewer than 4 receives for
 * each, with epf_last_error() set.
 */
int epf_lanes_plan(const struct epf_lanes_ask *ask, struct epf_lanes_plan *out);

/* Returns the smallest power of two that is at least x; x <= 2^31. */
static inline uint32_t epf_pow2_at_least(uint32_t x)
{
	uint32_t p = 1;

	while (p < x)
		p <<= 1;
	return p;
}

#endif
