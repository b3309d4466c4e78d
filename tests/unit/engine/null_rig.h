/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One engine core with two local ranks on the null NIC. The caller speaks for everybody else: it pushes commands, and hands the core arrivals
 * of a peer engine. null_rig_inspect() is a second opinion on what the core stages: it derives from the regions themselves, not from
 * the engine's checks, whether each transfer lies inside them and is allowed. For unit tests and tests/fuzz/fuzz_core.c: no cmocka here;
 * set-up that fails aborts.
 */
#ifndef EPF_TESTS_NULL_RIG_H
#define EPF_TESTS_NULL_RIG_H

#include "fabric/base/conf.h"
#include "fabric/engine/data_path.h"
#include "fabric/engine/engine.h"

#include <stdbool.h>
#include <stdint.h>

enum {
	NULL_WORLD = 4, /* ranks 0 and 1 here, 2 and 3 on the peer engine */
	NULL_LOCAL = 2,
	NULL_NODES = 2,
	NULL_SIGNALS = 16,
	NULL_LANES = 2, /* to each node; the peer's are NULL_LANES and NULL_LANES + 1 */
	NULL_STREAMS = 64,
	NULL_WINDOW = 64,
	NULL_DEPTH = 16,
	NULL_RING_LOG2 = 4,
	NULL_REGIONS = 5, /* of each rank; see null_regions */
	NULL_BYTES = 1024,
	NULL_ODD_BYTES = 516, /* ends in the middle of a word */
};

/* The regions of every rank, local and remote. */
struct null_region {
	uint32_t bytes;
	unsigned access; /* EPF_MR_*; 0: not exported */
};

enum { NULL_BOTH, NULL_READ_ONLY, NULL_WRITE_ONLY, NULL_ODD, NULL_PRIVATE };

extern const struct null_region null_regions[NULL_REGIONS];

struct null_rank {
	uint32_t local;
	struct epf_signal *signals;
	unsigned char *memory[NULL_REGIONS]; /* NULL: this rank has gone */
	uint32_t lkeys[NULL_REGIONS];
	struct epf_ring_shm *shm;
	struct epf_ring_producer ring;
	uint32_t ring_id;
};

struct null_rig {
	struct epf_conf conf;
	struct epf_nic *nic;
	struct epf_stats *stats;
	struct epf_core *core;
	struct null_rank rank[NULL_LOCAL];
	uint64_t now_ns;
	uint64_t ring_start; /* set by the caller: first value of all counters of a ring */
	uint32_t seen[NULL_NODES * NULL_LANES];    /* by lane: entries inspected */
	uint32_t replays[NULL_NODES * NULL_LANES]; /* and moved at that time */
};

/* *rig is zeroed by the caller, but for ring_start. unordered: puts raise events, as on an unordered NIC. Connected when it returns. */
void null_rig_open(struct null_rig *rig, bool unordered);
void null_rig_close(struct null_rig *rig);

/* Memory of a local rank, zeroed, with nothing behind its ends; its regions and its ring. And back. */
void null_rig_memory(struct null_rank *r);
void null_rig_register(struct null_rig *rig, struct null_rank *r);
void null_rig_forget(struct null_rank *r);

/* While it holds them, the NIC completes nothing that it was given; a failed lane counts as drained, unless null_lanes_drain is 0. */
void null_rig_hold(struct null_rig *rig, bool holds);
extern int null_lanes_drain;

/* Where the peer engine says that its rank's region begins, and its key. */
uint64_t null_rig_raddr(uint32_t rank, uint32_t region);
uint32_t null_rig_rkey(uint32_t rank, uint32_t region);

/* Returns the value of a counter of class core: EPF_STAT_CORE_*. */
uint64_t null_rig_count(const struct null_rig *rig, uint32_t stat);

/*
 * Inspects what was staged since the last call, except entries that a recovery moved: what they name may have been withdrawn
 * since. Call it after every step. Returns NULL, or what is wrong with the first entry that is not allowed.
 */
const char *null_rig_inspect(struct null_rig *rig);

#endif
