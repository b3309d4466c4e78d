/* SPDX-License-Identifier: Apache-2.0 */
/* A rank that makes the calls of NCCL's proxy thread, whatever the version of the table: see test_gin.c. */
#ifndef EPF_TESTS_GIN_CALLS_H
#define EPF_TESTS_GIN_CALLS_H

#include "tests/proc/nccl_play.h"
#include "tools/nccl/abi_gin.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

enum { RANKS = 8, CONTEXTS = 4, PUTS = 3, HANG_S = 120, ERROR_SEEN = 10, REFUSED = 11 };

/* In the place of a version: GIN 14, where kernels write requests themselves (gpi_kernel.c). */
enum { GPI = 15 };

struct board { /* what NCCL's bootstrap carries */
	uint8_t handle[RANKS][EPF_NCCL_HANDLE_BYTES];
	uint32_t arrived[8];
	uint32_t is_dead; /* the killed rank's process has ended */
	uint32_t flushed[RANKS][RANKS];
};

struct game {
	unsigned version, ranks, contexts, messages;
	uint32_t bytes; /* of one put */
	int killed;
	int newer;    /* GPI: than the kernels that are known */
	bool like_v2; /* GPI: a module is loaded as DeepEP V2's is */
	bool refused; /* GPI: bad requests follow */
	bool loads; /* each rank loads a kernel from before the first put until its last signal has come */
	const char *const *env;
};

struct rank {
	const struct game *g;
	struct board *board;
	unsigned me;
	void *table, *context, *coll, *ctx;
	void *memory[3]; /* window, source, signals, as NCCL names them */
	uint8_t *window, *source;
	uint64_t *signals;
	void *window_mr, *source_mr, *signals_mr;
	struct epf_gpi_channel *channel; /* GPI: what kernels have of the contexts */
	uintptr_t window_number, source_number;
	bool refused; /* GPI: there are no contexts for these kernels */
	time_t last;
};

#define V11(r) ((const struct epf_nccl_gin_v11 *)(r)->table)
#define V12(r) ((const struct epf_nccl_gin_v12 *)(r)->table)
#define V13(r) ((const struct epf_nccl_gin_v13 *)(r)->table)
#define V14(r) ((const struct epf_nccl_rma_v14 *)(r)->table)
#define G14(r) ((const struct epf_nccl_gin_v14 *)(r)->table)

extern const char *plugin;
extern uint64_t seed;

/* Plays a game (gin_play.c): asserts that all ranks, but one that is killed, end with that status. */
void run(struct game g, int expected);

time_t now_s(void);
/* Prints why, and ends the process with 1. */
void quit(const struct rank *r, const char *why);
/* A short pause; without progress for HANG_S it ends the process. */
void pause_for(time_t *last, const struct rank *r, bool moved);
/* Waits until all ranks have come to that place. */
void meet(struct rank *r, unsigned where);
bool has_get(const struct rank *r);
/* What has been added to this rank's signal of a context of rank `from`. */
uint64_t signal_value(const struct rank *r, unsigned from, unsigned c);
/* The calls of NCCL, through the table of the version that is played. */
int open_group(struct rank *r);
int open_contexts(struct rank *r);
int reg(struct rank *r, void *data, size_t bytes, void **mr);
int put(struct rank *r, int c, uint64_t src, size_t bytes, uint64_t dst, unsigned to, void **q);
int put_signal(struct rank *r, int c, uint64_t src, size_t bytes, uint64_t dst, unsigned to,
	       uint64_t at, uint64_t add, void **q);
int get(struct rank *r, int c, uint64_t remote, size_t bytes, uint64_t local, unsigned to,
	void **q);
int flush(struct rank *r, int c, unsigned to, void **q);
int test(struct rank *r, void *request, int *done);

/* The same as a kernel does it with GIN 14, and NCCL's progress thread beside it. */
int gpi_open(struct rank *r);
void gpi_stop(struct rank *r);
int gpi_put(struct rank *r, int c, uint64_t src, size_t bytes, uint64_t dst, unsigned to,
	    unsigned signal, uint64_t add, void **q);
int gpi_get(struct rank *r, int c, uint64_t remote, size_t bytes, uint64_t local, unsigned to,
	    void **q);
int gpi_flush(struct rank *r, int c, unsigned to, void **q);
int gpi_test(struct rank *r, void *request, int *done);
uint64_t gpi_signal(const struct rank *r, unsigned c, unsigned signal);
/* Values, additions to a window at `at`, resets: to the next rank. */
int gpi_values(struct rank *r, uint64_t at);
/* Requests that no kernel of NCCL's makes: returns 0 if each was refused, and nothing else was harmed. */
int gpi_refusals(struct rank *r);

#endif
