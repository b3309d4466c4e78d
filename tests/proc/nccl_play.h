/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plays NCCL against the net tables of the plug-in: rank processes that load it as NCCL does, exchange handles, connect, register, and move messages with
 * NCCL's order of calls (set-up on one thread, progress on another, as many requests as a proxy has steps). Every byte and every size is checked.
 */
#ifndef EPF_TESTS_PROC_NCCL_PLAY_H
#define EPF_TESTS_PROC_NCCL_PLAY_H

#include <stdbool.h>
#include <stdint.h>

enum {
	PLAY_RANKS = 8,
	PLAY_CHANNELS = 8,
	PLAY_PARTS = 8,
	PLAY_ERROR_SEEN = 10, /* exit status: a call failed as it should when a rank is killed */
};

struct play {
	const char *library;
	unsigned version; /* of the net table: 10, 11, 12 */
	unsigned ranks, channels, comms;
	bool all;          /* every rank to every other one; else to the next in a ring */
	unsigned parts;    /* receives in one request */
	unsigned messages; /* of each connection and part */
	uint32_t most_bytes;
	uint64_t seed;
	int killed;             /* this rank kills itself half way; -1: none */
	unsigned again;         /* times that everything is done after finalize; 0: once */
	const char *const *env; /* "NAME=value", NULL-terminated: for every rank */
};

/* Runs all ranks. status[r]: exit status, or 256 + signal. Returns 0, or -1 if a rank cannot be started. */
int play_run(const struct play *p, int status[PLAY_RANKS]);

#endif
