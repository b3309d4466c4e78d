/* SPDX-License-Identifier: Apache-2.0 */
/* What engine.c (the job of two), engine_numbers.c (numbers of its regions) and engine_ring.c (its transfers) share. */
#ifndef EPF_FABRIC_P2P_ENGINE_PRIV_H
#define EPF_FABRIC_P2P_ENGINE_PRIV_H

#include "bootstrap/boot.h"
#include "fabric/client/epf.h"
#include "fabric/p2p/p2p_priv.h"

enum { RING_SLOTS = 4096, REGIONS = 4096 };

/* What has come of the other end's bootstrap. */
struct inbox {
	struct inbox *next;
	size_t bytes;
	uint8_t data[];
};

/*
 * The engine binds the stream of a ring to one lane, so a connection has a ring for each lane: its transfers then use all NICs. Urgent
 * transfers have one more, behind these, because a ring's commands go in order.
 */
struct path_ring {
	struct epf_ring *ring;
	uint64_t failures;     /* commands failed so far */
	uint64_t first_failed; /* the first that no transfer has reported yet */
	int failed_status;
	uint64_t looked;      /* end of the commands that were inspected */
	uint64_t last_failed; /* end of those that may have failed */
};

/* A number on its way to be used again (engine_numbers.c). The connection's thread only. */
struct number {
	struct number *next;
	uint32_t phase, region;
	uint32_t slot; /* of the export that it is withdrawn from */
	uint64_t generation;
	uint64_t until[P2P_RINGS + 1]; /* commands of each ring that must be retired */
};

struct engine_path {
	struct epf_boot *boot;
	struct epf *ep;
	struct path_ring rings[P2P_RINGS + 1];
	unsigned n_rings, next_ring; /* next_ring: for the next chunk; under ring_lock */
	bool has_urgent;             /* rings[n_rings] is that of urgent transfers */
	uint8_t key[EPF_AUTH_KEY_BYTES];
	char nic[32];
	pthread_t thread;
	pthread_mutex_t lock; /* of the lists */
	pthread_cond_t changed;
	struct inbox *inbox;
	struct engine_job *jobs;
	bool is_leaving;
	bool is_joined; /* atomic to readers, as is_closed */
	bool is_closed;
	bool is_closing;        /* under ring_lock, as withdrawing */
	unsigned withdrawing;   /* calls that wait for the peer: the engine is closed after them */
	pthread_cond_t settled; /* with ring_lock: withdrawing is 0, or is_closed */
	bool has_failed;
	struct epf_error failed;
	int err;
	pthread_mutex_t ring_lock; /* one producer at a time; never held over a wait for the peer */
	pthread_mutex_t step_lock; /* ep is not closed while a wait steps it; behind ring_lock */
	struct number *numbers;    /* to be used again; its own thread only (engine_numbers.c) */
	bool (*numbers_poll)(struct conn *c); /* moves them on: true if one is settled */
	uint32_t tags
		[REGIONS]; /* of the peer's regions, one for each use of a number; under ring_lock */
	uint64_t retired;  /* commands retired when last sampled; endpoint's thread only */
};

static inline unsigned epf_p2p_all_rings(const struct engine_path *e)
{
	return e->n_rings + e->has_urgent;
}

/* engine_ring.c. ring_lock held. */
/* Pushes the blocks of a chunk into the next ring: *at, where *first is its first command. */
int epf_p2p_engine_push_at(struct epf_p2p_xfer *x, const struct vector *v,
			   const struct epf_p2p_block *b, uint32_t n, uint64_t skip, uint64_t bytes,
			   unsigned *at, uint64_t *first);
/* Returns 0, or the error of a failed command, once a ring has retired all commands of a ticket. */
int epf_p2p_engine_outcome(struct path_ring *r, const struct ticket *t);

#endif
