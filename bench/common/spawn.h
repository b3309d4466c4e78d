/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rank processes: starts R copies of this program, each with its rank, the rendezvous and a fresh
 * secret in the environment and a pipe to talk back, and ends all of them when one fails or the
 * deadline passes. Used by ep-bench moe, p2p and jobs. Never leaves a process behind.
 */
#ifndef EPF_BENCH_SPAWN_H
#define EPF_BENCH_SPAWN_H

#include <stddef.h>
#include <stdint.h>

struct epf_boot;

/* What a rank process writes into its pipe: this head, then `bytes` bytes. */
struct bench_message {
	uint32_t kind;
	uint32_t bytes;
	uint32_t a;
	uint32_t b;
};

enum {
	BENCH_MSG_PROGRESS = 1, /* a: round, b: phase; no bytes */
	BENCH_MSG_RESULT = 2,   /* the subcommand's result struct */
	BENCH_MSG_ERROR = 3,    /* a line of text without a 0 */
};

#define BENCH_MSG_MAX 65536u

enum { BENCH_OTHERS_MAX = 7 };

struct bench_spawn {
	uint32_t ranks;
	uint32_t second;     /* the last so many of them are of other jobs; 0: one job */
	uint32_t others;     /* so many, of the same size; 0: one. At most BENCH_OTHERS_MAX */
	int share;           /* descriptor that every rank inherits (EP_BENCH_SHARE_FD); 0: none */
	const char *command; /* hidden subcommand */
	int argc;            /* options for it: argv[1..argc-1] of the parent */
	char **argv;
	uint64_t timeout_ns;
	/* Called for every message but ERROR. rank: those of the other jobs count on from the first's. */
	void (*message)(void *arg, uint32_t rank, const struct bench_message *head,
			const void *bytes);
	void *arg;
};

/*
 * Runs all of it. Return: 0 when every rank gave a result and ended well; else -errno after one
 * line that names the rank and the cause.
 */
int bench_spawn_run(const struct bench_spawn *s);

/*
 * In a rank process: rank and number of ranks, and the bootstrap to join with (closed by the
 * caller; timeout_ns: of each of its waits). Errors are reported to the parent from then on, not to stderr. Return 0 or -errno.
 */
int bench_child_start(uint32_t *rank, uint32_t *ranks, uint64_t timeout_ns, struct epf_boot **boot);

/* 0, or the number of the other job, from 1 on. */
uint32_t bench_child_job(void);
/* The descriptor all ranks share, or -1. */
int bench_child_share(void);

/* Writes a message to the parent. */
void bench_child_send(uint32_t kind, uint32_t a, uint32_t b, const void *bytes, size_t n);

#endif
