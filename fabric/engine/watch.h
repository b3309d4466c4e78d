/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The watch: what an engine core reports of its ranks, rings, lanes and peers in the statistics file, above all what waits for what and
 * since when. It looks ten times a second, between two steps and on the core's thread, at what the core keeps anyway; a step is not
 * touched. `ep-fabric why` reads it. Called by the run loops (loop.c, scheduler.c) and by who owns a core. It must never change the
 * core, block, or log.
 *
 * Something waits when it has work and nothing of it moved between two looks: so what is shown is at most two looks late, and its age
 * counts from the last look at which it moved. There are as many blocks as the file has (stats-blocks); what waits comes first,
 * and the block of class job says how many of each kind have none.
 */
#ifndef EPF_FABRIC_ENGINE_WATCH_H
#define EPF_FABRIC_ENGINE_WATCH_H

#include "fabric/engine/core.h"
#include "fabric/engine/engine.h"

#define EPF_WATCH_LOOK_NS (UINT64_C(100) * 1000 * 1000)

struct epf_watch_config {
	struct epf_stats *stats; /* outlives the core */
	uint32_t number;         /* label `core` of the core's block */
	uint32_t most;           /* blocks of rings, lanes, peers and ranks, each */
	const char *job;         /* read when the world is known; outlives the core */
	const uint64_t *id;      /* of this run of the job, read at each look; NULL, 0: not known */
};

/**
 * epf_watch_open() - begins to watch @core and gives it a flight recorder, before epf_core_set_world().
 *
 * Return: 0; -ENOMEM with epf_last_error(). A file without room for a recorder or the job is no error: they are left out.
 */
int epf_watch_open(struct epf_core *core, const struct epf_watch_config *cfg);

/* The world is known: memory for its peers and lanes, counted with the core's. 0, or -ENOMEM. Does nothing without a watch. */
int epf_watch_world(struct epf_core *core);

/* Frees the core's blocks. Does nothing without a watch. */
void epf_watch_close(struct epf_core *core);

/* Samples the core if a sample is due. On the core's thread, between two steps. */
void epf_watch_look(struct epf_core *core);

/* Samples at @now_ns (CLOCK_MONOTONIC), due or not: for tests. */
void epf_watch_look_at(struct epf_core *core, uint64_t now_ns);

/* Copies a NIC's counters and links into its block of class nic. */
void epf_watch_nic(const struct epf_core *core, struct epf_stats_block *block);

#endif
