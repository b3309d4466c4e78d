/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL's one-sided interface: a group of ranks that register memory together and put, get and signal. A group is a job of the fabric: its ranks meet at the
 * rendezvous that rank 0's handle names. NCCL's proxy thread takes requests of kernels out of its queues and calls these; each becomes one or two commands in a
 * ring, without a lock or a copy. Called through the tables of gin_tables.c. Return 0 or -errno with epf_last_error().
 */
#ifndef EPF_TOOLS_NCCL_GIN_H
#define EPF_TOOLS_NCCL_GIN_H

#include "fabric/client/epf.h"
#include "tools/nccl/plug.h"

#include <stdbool.h>
#include <stdint.h>

struct epf_boot;

enum {
	EPF_GIN_RINGS = 1024, /* contexts of one group at a time */
	EPF_GIN_RANKS = 4096,
	EPF_GIN_SLOTS = 1024,   /* of a ring; a command takes at most two */
	EPF_GIN_WINDOWS = 4096, /* registrations that kernels name by number (gpi.h), at a time */
};

struct epf_group_listener {
	int fd; /* keeps the port of the rendezvous until the ranks meet */
	struct epf_nccl_handle handle;
};

/* What all ranks registered together. */
struct epf_group_mr {
	uint32_t region; /* this rank's */
	uint64_t bytes;  /* this rank's */
	uint32_t window; /* 1 more than its place in the group's; 0: none */
	bool is_gpu;
	uint32_t remote[]; /* [ranks] */
};

struct epf_group {
	struct epf *ep;
	struct epf_boot *boot;
	uint32_t ranks, rank;
	bool adds_to_gpus;    /* the NIC adds to words in GPU memory */
	pthread_mutex_t lock; /* of contexts coming and going */
	struct epf_ring *ring[EPF_GIN_RINGS];
	struct epf_gin_context *single; /* versions 11 and 12 name none: the group's own */
	struct epf_group_mr *window[EPF_GIN_WINDOWS]; /* atomic */
};

/* Some rings, one for each of NCCL's contexts; one thread at a time for one ring. */
struct epf_gin_context {
	struct epf_group *group;
	unsigned n;
	uint32_t ring[]; /* [n] numbers of the group's rings */
};

/* Whether every NIC that a group may get adds to words in GPU memory: emu and tcp do. */
bool epf_group_adds_to_gpus(void);

int epf_group_listen(void *handle, struct epf_group_listener **out);
void epf_group_close_listen(struct epf_group_listener *listener);

/* Collective over the ranks; waits for all, for at most bootstrap-timeout. The listener stays the caller's. */
int epf_group_connect(void *const *handles, int ranks, int rank,
		      struct epf_group_listener *listener, struct epf_group **out);
void epf_group_close(struct epf_group *group);

/* Collective, as NCCL calls them: returns when every rank's memory is known to every rank. */
int epf_group_register(struct epf_group *group, void *data, size_t bytes, int type,
		       struct epf_group_mr **out);
void epf_group_deregister(struct epf_group *group, struct epf_group_mr *mr);
/* Gives a registration a number by which this rank's kernels name it, from 1 on. */
int epf_group_number(struct epf_group *group, struct epf_group_mr *mr);

int epf_gin_context_open(struct epf_group *group, int contexts, struct epf_gin_context **out);
void epf_gin_context_close(struct epf_gin_context *context);

/* One transfer. Offsets are from the start of what was registered. */
struct epf_gin_put {
	uint64_t src, dst, bytes;
	const struct epf_group_mr *src_mr, *dst_mr;
	uint32_t rank;
	uint64_t signal;                      /* offset of an aligned word, with signal_mr */
	const struct epf_group_mr *signal_mr; /* NULL: no signal */
	uint64_t add;
};

/*
 * Operations. *request: never NULL. A put is over when its source may be reused; a get when its bytes are here; a flush when all puts and signals of the context are
 * visible at their targets. A signal is visible after everything put before it in the same context to the same rank, on every NIC.
 */
int epf_gin_put(struct epf_gin_context *context, int index, const struct epf_gin_put *put,
		void **request);
int epf_gin_get(struct epf_gin_context *context, int index, const struct epf_gin_put *get,
		void **request);
int epf_gin_flush(struct epf_gin_context *context, int index, uint32_t rank, void **request);
int epf_gin_test(struct epf_group *group, void *request, int *done);
/* Whether a command of a ring has failed since the last question: 0, or -errno with epf_last_error(). */
int epf_gin_ring_failed(struct epf_ring *ring);

#endif
