/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the high-throughput calls on the host: the object, and what a launch is. Included by kernels/ht/ht_*.c only. */
#ifndef EPF_KERNELS_HT_HT_H
#define EPF_KERNELS_HT_HT_H

#include "kernels/epf_ht.h"
#include "kernels/epf_why.h"
#include "kernels/ht/job.h"
#include "kernels/ll/ll.h"

_Static_assert(HT_SEGMENTS == EPF_HT_SEGMENTS_MAX && HT_HOST == EPF_HT_HOST_WORDS &&
		       HT_SIGNALS == EPF_HT_SIGNALS_PER_RANK && HT_RANKS_MAX == EPF_HT_RANKS_MAX &&
		       HT_PARTS == EPF_HT_FOLD_PARTS && HT_LOCAL_MAX == EPF_HT_LOCAL_MAX &&
		       HT_NODE_MAX == EPF_HT_NODE_MAX,
	       "what kernels and callers know of each other");

/* Kernels, as entry points of a device. */
enum ht_kernel {
	HT_K_LAYOUT,
	HT_K_NOTIFY,
	HT_K_READY,
	HT_K_DISPATCH,
	HT_K_COUNTED, /* a dispatch that exchanges the counts itself */
	HT_K_COMBINE,
	HT_K_TALLY,
	HT_K_NUMBER,
	HT_K_GROUPS,
	HT_K_SPREAD,
	HT_K_FOLD,
	HT_KERNELS,
};

/* Communication memory that ranks of other nodes write. */
struct ht_area {
	void *at; /* NULL: none */
	uint64_t bytes;
	uint32_t region;
};

/* Memory of this rank that the ranks of its node map, or are to map. */
struct ht_segment {
	void *base; /* NULL: other ranks have a segment of this number, this one has not */
	uint64_t bytes;
};

struct epf_ht {
	struct epf_ll *ll;
	struct epf_ht_options opts;
	void *words;           /* struct ht_state, then struct ht_peer [ranks]: device memory */
	struct ht_peer *peers; /* the same peers, as they began */
	uint64_t window_bytes;
	void *segments_at; /* uint64 [ranks][HT_SEGMENTS]: device memory; NULL: none is mapped */
	uint32_t mapped;
	uint32_t wanted;
	struct ht_segment segments[HT_SEGMENTS]; /* mapped */
	struct ht_segment asked[HT_SEGMENTS];    /* wanted: used, and not mapped yet */
	/* Nodes. */
	uint32_t nodes;
	uint32_t node;
	uint32_t node_max;
	struct ht_area counts; /* region of counts; with several nodes only */
	struct ht_area net;    /* region of rows */
	uint32_t put_bytes;    /* of a command between nodes, at most */
	int spread_due;        /* a grouped dispatch was launched, and no spread since */
	uint64_t tickets;      /* notifications that wrote to host memory */
	struct ht_job due; /* the exchange of counts that the next dispatch makes; blocks 0: none */
	uint32_t part_rows;    /* of a combine within a node, at least */
	uint32_t chunk_tokens; /* whose routing a block looks at, at least, where several can */
	void *scratch;         /* of these blocks: device memory */
	uint32_t
		tally_every; /* of so many calls one is counted, the first ones aside; a power of two */
	uint32_t threads;
	uint32_t warp;   /* threads that run together */
	uint32_t blocks; /* at most, of a launch */
	struct epf_gpu_module *code;
	void *kernel[HT_KERNELS];
	void *between; /* event of epf_ht_order() */
	void **events; /* of epf_ht_event() */
	uint32_t n_events;
};

/* Where rows, and what travels with them, lie in a window. */
struct ht_layout ht_layout_of(const struct epf_ht_row *row, uint32_t rows);

/* How a row crosses between nodes: with the indices it has at so many ranks, or as a sum, without. */
struct ht_record ht_record_of(const struct epf_ht_row *row, uint32_t heads);

struct ht_plan ht_plan_of(const struct epf_ht *ht, uint32_t tokens);

/* ---- ht_call.c ---- */

/*
 * What all calls check: the size of a structure, which is what the caller was compiled with, the bytes of a row, and an argument's address. Each returns 0 or
 * -EINVAL.
 */
int ht_check_size(const char *what, size_t size, size_t known);
int ht_check_row(uint32_t bytes);
int ht_given(const void *p, const char *name, uint32_t align);

/* What all jobs have of the object. */
struct ht_job ht_job_begin(const struct epf_ht *ht);

/* Parts of a combine: small enough that adding begins early, large enough that they cost little. */
uint32_t ht_parts_of(const struct epf_ht *ht, uint32_t room);

int ht_launch(struct epf_ht *ht, enum ht_kernel kernel, struct ht_job *j, void *stream);

/* ---- ht_pool.c ---- */

/* Finds the segment of epf_ht_pool_alloc() that holds an address. Returns 1 with *out, or 0. */
int ht_pool_find(const void *at, struct ht_segment *out);

/* A segment that others map stays allocated until it is let go, whenever its owner frees it. */
void ht_pool_hold(void *base);
void ht_pool_let_go(void *base);

/* ---- ht_segments.c ---- */

/* Returns 1 + the number of the segment that holds `out`, with its offset, or 0; one that is not mapped will be asked for. */
uint32_t ht_segment_of(struct epf_ht *ht, const void *out, uint64_t *offset);

void ht_segments_end(struct epf_ht *ht);

/* ---- ht_nodes.c ---- */

/* Whether the kernels' tables have room for so many ranks, the largest node of so many. Returns 0, or -EINVAL with epf_ll_error(). */
int ht_check_ranks(uint32_t ranks, uint32_t node_max);

/* Finds the nodes: fills in what is of the topology in ht, peers and nodes [ranks], members [ranks]. Collective. */
int ht_find_nodes(struct epf_ht *ht, struct ht_node *nodes, uint32_t *members);

/* Communication memory of at least so many bytes, at all ranks; a smaller one goes first. Collective. */
int ht_area_make(struct epf_ht *ht, struct ht_area *area, uint64_t bytes);
void ht_area_end(struct epf_ht *ht, struct ht_area *area);

/* Runs the blocks of a kernel one after another on the calling thread. */
void ht_cpu_run(struct epf_ht *ht, enum ht_kernel kernel, const struct ht_job *job);

/* The kernels as bytes: a fat binary for CUDA, a bundle for HIP, NULL in builds without their compilers; C functions for the fake back-end. */
extern const void *const ht_cuda_image;
extern const void *const ht_hip_image;
extern const void *const ht_fake_image;

#endif
