/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plays NCCL against the net tables of the plug-in: rank processes that load it as NCCL does, exchange handles, connect, register, and move messages with
 * NCCL's order of calls (set-up on one thread, progress on another, as many requests as a proxy has steps). Every byte and every size is checked.
 */
#ifndef EPF_TESTS_PROC_NCCL_PLAY_H
#define EPF_TESTS_PROC_NCCL_PLAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	PLAY_RANKS = 8,
	PLAY_CHANNELS = 8,
	PLAY_PARTS = 8,
	PLAY_ERROR_SEEN = 10, /* exit status: a call failed as it should when a rank is killed */
};

struct play {
	const char *plugin;
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

/*
 * What test_nccl.c and test_gin.c share. Programs that load the plug-in use host memory. Built with PLAY_FAKE_GPU they have the plug-in inside, and memory of the fake GPU
 * (fabric/gpu/copy_fake.c): nobody but its driver may touch the address that NCCL's calls are given, and *seen is where the test looks.
 */
void *play_table(const char *library, const char *symbol);
int play_memory(size_t bytes, void **addr, uint8_t **seen);
void play_memory_free(void *addr, size_t bytes);
/* Of the device names in PLAY_DEVICES, if that is set, a rank uses one, in turn. */
void play_device(unsigned rank);
/* From now on registrations are of GPU memory that other processes cannot map (true), as NCCL's signals are. Nothing for host memory. */
void play_private(bool on);

/*
 * Another thread of this process loads a kernel (true): driver calls of the process return no more until it has ended (false), as they do while a kernel runs.
 * play_blocked(): how many calls wait for that. Nothing for host memory.
 */
void play_load(bool on);
unsigned play_blocked(void);

#ifdef PLAY_FAKE_GPU
# define PLAY_KIND EPF_NCCL_CUDA
#else
# define PLAY_KIND EPF_NCCL_HOST
#endif

/*
 * Runs all ranks. status[r]: exit status, or 256 + signal. *named (or NULL): warnings in NCCL's log that name the killed process. Returns 0, or -1 if a rank cannot be
 * started.
 */
int play_run(const struct play *p, int status[PLAY_RANKS], unsigned *named);

#endif
