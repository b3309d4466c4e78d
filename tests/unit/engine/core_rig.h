/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two engine cores in one thread, as two daemons of a job have them: four ranks, two on each node, one ring, one region and a few
 * signals each, over two emulated NICs. The caller steps. Test code: it asserts through cmocka.
 */
#ifndef EPF_TESTS_CORE_RIG_H
#define EPF_TESTS_CORE_RIG_H

#include "fabric/base/conf.h"
#include "fabric/engine/engine.h"
#include "fabric/join/world.h"

#include <stdbool.h>

enum { CORE_NODES = 2, CORE_PER_NODE = 2, CORE_WORLD = 4, CORE_SIGNALS = 16, CORE_BYTES = 1 << 16 };

/*
 * How long anything is waited for, at most: so long that only what never happens is missed, also beside other work on two CPUs under a sanitizer.
 */
#define CORE_RIG_LONGEST_NS UINT64_C(60000000000)

struct core_rank {
	struct epf_core *core;
	uint32_t rank, local;
	struct epf_signal *signals;
	struct epf_wakeup wakeup;
	unsigned char *memory;
	struct epf_ring_shm *shm;
	struct epf_ring_producer ring;
	uint32_t ring_id;
};

struct core_rig {
	struct epf_conf conf;
	struct epf_nic *nic[CORE_NODES];
	unsigned devices;                                  /* of each node's NIC */
	struct epf_nic *device[CORE_NODES][EPF_NIC_LINKS]; /* where they are several: its parts */
	struct epf_stats *stats[CORE_NODES];
	struct epf_core *core[CORE_NODES];
	struct core_rank rank[CORE_WORLD];
};

/* settings: NULL-terminated "name=value" list, or NULL. Connected when it returns. */
struct core_rig *core_rig_open(const char *const *settings);
/* The same over NICs that open_nic makes, one for each node. */
struct core_rig *core_rig_open_over(const char *const *settings,
				    int (*open_nic)(const struct epf_conf *conf, uint32_t node,
						    struct epf_nic **out));
/* The same with NICs of several devices each (fabric/nic/nic.h: epf_nic_rails_open), none of which has another one's keys. */
struct core_rig *core_rig_open_devices(const char *const *settings, unsigned devices);
/* A node may have been closed before: core and nic NULL. */
void core_rig_close(struct core_rig *rig);

/* Opens a ring for a rank, a new one over the old. */
void core_rig_ring(struct core_rank *r);
/* Memory for signals, region and ring of a rank, filled with zeros and a pattern; and back. */
void core_rig_memory(struct core_rank *r);
void core_rig_forget(struct core_rank *r);

/* A step of one core, and what its run loop does behind it for the NIC; returns what the step handled. */
unsigned core_rig_step(struct core_rig *rig, uint32_t node);

/* Steps both cores until nothing happens any more, or until done(arg), at most CORE_RIG_LONGEST_NS; false: time is up. */
bool core_rig_run(struct core_rig *rig, bool (*done)(void *arg), void *arg);

/* Pushes a put of `bytes` at offset 0 of region 0 with a signal of 1. */
void core_rig_put(struct core_rank *r, uint32_t to, uint32_t bytes, uint32_t signal);

#endif
