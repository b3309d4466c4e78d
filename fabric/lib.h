/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of libepf: struct epf and struct epf_ring, shared by lib.c (open, close, memory), join.c (the job), command.c
 * (commands) and wait.c (waits). Between client and engine there is shared memory (rings, done words, signals) for
 * everything that is frequent, and the calls of engine.h for the rest: the seam a daemon will cut.
 */
#ifndef EPF_FABRIC_LIB_H
#define EPF_FABRIC_LIB_H

#include "bootstrap/boot.h"
#include "fabric/base/conf.h"
#include "fabric/engine.h"
#include "fabric/epf.h"

#include <pthread.h>
#include <stdbool.h>

enum epf_join_phase {
	EPF_JOIN_NONE = 0,
	EPF_JOIN_GATHER = 1,
	EPF_JOIN_BARRIER = 2,
	EPF_JOIN_DONE = 3
};

struct epf_mapping { /* memory given out by epf_memory_alloc */
	struct epf_mapping *next;
	void *addr;
	uint64_t bytes;
};

struct epf {
	struct epf_conf conf;
	struct epf_options opts;
	const struct epf_nic_ops *ops;
	struct epf_nic *nic;
	struct epf_core *core;
	struct epf_stats *stats;
	struct epf_stats_block *block;     /* class core: written by the core's thread */
	struct epf_stats_block *nic_block; /* class nic: the same */
	struct epf_signal *signals;
	struct epf_bell *bell; /* this rank's threads sleep on it; behind the signals */
	uint64_t signal_bytes;
	uint32_t n_signals;
	struct epf_boot *boot;
	bool own_boot;
	enum epf_join_phase join_phase;
	struct epf_blob *blobs;
	uint64_t *tokens;
	uint32_t rank;
	uint32_t world;
	uint32_t n_nodes;
	uint16_t *places;      /* node number of each rank */
	uint32_t lost_ignored; /* lost ranks that are masked */
	char node[64];
	struct epf_ring *rings;
	struct epf_mapping *mappings;
	struct epf_run_options run;
	pthread_t thread;
	bool aborted;  /* epf_abort was called: every wait ends */
	bool threaded; /* progress=thread */
	bool started;
};

struct epf_ring {
	struct epf *ep;
	struct epf_ring *next;
	struct epf_ring_producer producer;
	struct epf_ring_shm *shm;
	size_t bytes;
	uint32_t id;
	uint64_t failures_seen;
};

/* describe.c: what a rank says of itself when it joins: byte-exact, versioned, little-endian. */
#define EPF_DESCRIBE_VERSION 1u

struct epf_description {
	uint32_t rank;
	uint32_t n_signals;
	uint32_t streams;
	uint32_t receives;
	uint32_t depth; /* of its lanes */
	uint32_t lanes;
	uint32_t ordered;
	uint32_t ctl_rkey;
	uint64_t ctl_raddr;
	char node[64];
	char nic[16];
	size_t nic_addr_len;
	uint8_t nic_addr[EPF_NIC_ADDR_BYTES];
	uint32_t n_tokens;
	uint64_t *tokens; /* malloced by decode */
	uint32_t n_regions;
	struct epf_region_remote *regions; /* malloced by decode */
};

/* Encodes into a malloced buffer. */
int epf_description_encode(const struct epf_description *d, uint8_t **out, size_t *len);
/* Decodes; every length is checked. -EPROTO with a reason. Free with epf_description_free. */
int epf_description_decode(const uint8_t *buf, size_t len, struct epf_description *d);
void epf_description_free(struct epf_description *d);

/* wait.c: runs `ready` until it is true: 0, -ETIMEDOUT (deadline), -ECONNRESET (a rank is lost). */
int epf_wait(struct epf *ep, bool (*ready)(const void *arg), const void *arg, uint64_t timeout_ns,
	     const char *what, uint64_t number);
/* Lets the engine work when no thread of its own does; returns what it did. */
unsigned epf_progress_once(struct epf *ep);

/* Wakes the core if it sleeps: after a push. */
static inline void epf_kick(struct epf *ep)
{
	if (ep->started && epf_bell_must_ring(ep->core->bell))
		epf_bell_ring(ep->core->bell);
}

#endif
