/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The peers page: what a rank knows of the other ranks of its job. One page of words for each job and engine, written by
 * the engine's thread (and when the job is set up), read by waits of clients. In service mode it is a memfd that clients can
 * map for reading only; the client must check magic, version and world before it uses the rest. Details of each rank follow the words; a page
 * of an earlier release ends before them.
 *
 * Ordering: P1 the engine stores a rank's words, `cause` and `epoch` before `state` (release); then `changes` (release).
 *           P2 a reader loads `changes` (acquire), and where it has moved, `state` (acquire), then the rest.
 */
#ifndef EPF_QUEUES_PEERS_H
#define EPF_QUEUES_PEERS_H

#include "queues/epf_base.h"

#include <stddef.h>
#include <stdint.h>

#define EPF_PEERS_MAGIC   UINT64_C(0x3152454550465045) /* "EPFPEER1" in memory order */
#define EPF_PEERS_VERSION 1u

/* State of a rank as its peers see it. Numbers are ABI. */
enum epf_peer_state_id {
	EPF_PEER_UNKNOWN = 0, /* not joined yet */
	EPF_PEER_UP = 1,
	EPF_PEER_DOWN = 2, /* lost: cause says how */
	EPF_PEER_LEFT = 3  /* closed in order */
};

/* One rank, 16 bytes. */
struct epf_peer_word {
	uint32_t state; /* enum epf_peer_state_id */
	uint32_t cause; /* reason number (docs/errors.md) of DOWN, else 0 */
	uint32_t epoch; /* how often this rank has rejoined: 0 the first time */
	uint32_t node;  /* number of the node it lives on: what people see */
};

EPF_STATIC_ASSERT(sizeof(struct epf_peer_word) == 16, "peer word layout is ABI");

/* More about one rank, 32 bytes. All hints for people: they decide nothing but which rank an error names. */
struct epf_peer_detail {
	uint64_t
		silent_ns; /* CLOCK_MONOTONIC of the last sign of life of its engine; 0: it is not silent */
	uint32_t order; /* its loss was the n-th that this engine noticed; 0: it is not lost */
	uint32_t
		root; /* 1 + the lost rank because of which it ends or has ended, as it says; 0: none */
	uint32_t root_cause; /* why that rank was lost: a reason number */
	uint32_t reserved0;
	uint64_t reserved1;
};

EPF_STATIC_ASSERT(sizeof(struct epf_peer_detail) == 32, "peer detail layout is ABI");

struct epf_peers_shm {
	uint64_t magic;
	uint32_t version;
	uint32_t world;
	uint32_t n_nodes;
	uint32_t reserved0;
	uint32_t lost;    /* ranks that went DOWN so far: only grows */
	uint32_t changes; /* words changed so far: only grows */
	uint64_t reserved1[12];
	struct epf_peer_word peers[]; /* [world], then struct epf_peer_detail [world] */
};

EPF_STATIC_ASSERT(sizeof(struct epf_peers_shm) == 128, "peers page header is 128 bytes");
EPF_STATIC_ASSERT(offsetof(struct epf_peers_shm, lost) == 24, "peers page layout is ABI");

/* Bytes of a page without details: of an earlier release. */
EPF_INLINE size_t epf_peers_bytes_least(uint32_t world)
{
	return sizeof(struct epf_peers_shm) + (size_t)world * sizeof(struct epf_peer_word);
}

EPF_INLINE size_t epf_peers_bytes(uint32_t world)
{
	return epf_peers_bytes_least(world) + (size_t)world * sizeof(struct epf_peer_detail);
}

/* The details of all ranks of a page that has epf_peers_bytes(world). */
EPF_INLINE struct epf_peer_detail *epf_peers_details(struct epf_peers_shm *shm, uint32_t world)
{
	return (struct epf_peer_detail *)(void *)(shm->peers + world);
}

/* Writes the header into zeroed memory: every rank UNKNOWN. */
EPF_INLINE void epf_peers_format(struct epf_peers_shm *shm, uint32_t world)
{
	shm->version = EPF_PEERS_VERSION;
	shm->world = world;
	EPF_STORE_RELEASE(&shm->magic, EPF_PEERS_MAGIC);
}

/* Engine: a rank is back, so that nobody ends because of it any more. */
EPF_INLINE void epf_peers_forgive(struct epf_peers_shm *shm, uint32_t rank)
{
	struct epf_peer_detail *details = epf_peers_details(shm, shm->world);

	EPF_STORE_RELAXED(&details[rank].order, 0u);
	EPF_STORE_RELAXED(&details[rank].root, 0u);
	for (uint32_t r = 0; r < shm->world; r++)
		if (EPF_LOAD_RELAXED(&details[r].root) == rank + 1)
			EPF_STORE_RELAXED(&details[r].root, 0u);
}

/* Engine: a rank's state has changed, in a page with details. [P1] */
EPF_INLINE void epf_peers_set(struct epf_peers_shm *shm, uint32_t rank, uint32_t state,
			      uint32_t cause, uint32_t epoch)
{
	struct epf_peer_word *w = &shm->peers[rank];
	uint32_t before = EPF_LOAD_RELAXED(&w->state);

	if (state == EPF_PEER_UP && before != EPF_PEER_UNKNOWN)
		epf_peers_forgive(shm, rank);
	if (state == EPF_PEER_DOWN && before != EPF_PEER_DOWN)
		EPF_STORE_RELAXED(&epf_peers_details(shm, shm->world)[rank].order, shm->lost + 1);
	EPF_STORE_RELAXED(&w->cause, cause);
	EPF_STORE_RELAXED(&w->epoch, epoch);
	EPF_STORE_RELEASE(&w->state, state);
	if (state == EPF_PEER_DOWN && before != EPF_PEER_DOWN)
		EPF_STORE_RELEASE(&shm->lost, shm->lost + 1);
	EPF_STORE_RELEASE(&shm->changes, shm->changes + 1);
}

#endif
