/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a compiled DeepEP does with its NVSHMEM, played by CPU code: it finds everything by byte offsets in the two structures it was handed, as
 * device code does, writes work requests and channel requests, and polls. Called by shim_deep_ep.c.
 */
#ifndef EPF_TESTS_SHIM_KERNELS_H
#define EPF_TESTS_SHIM_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(default)

/* The program's constant memory. */
extern uint8_t shim_host_state[776];
extern uint8_t shim_ibgda_state[8384];
/* What differs between releases, of the one that is played: where a team's map stands, 8-byte words between the synchronisation words of two
 * teams, and how far apart the halves are that barriers take turns with (0: one half only). */
extern size_t shim_map_at;
extern uint64_t shim_psync_words, shim_psync_turn;

/* Ends the process with a line when the rule does not hold. */
#define MUST(rule) shim_must((rule) != 0, #rule, __LINE__)
void shim_must(int rule, const char *text, int line);

/* A ring: of rank `pe`, number `id`. */
void shim_put(int pe, int id, uint64_t to, uint64_t from, uint32_t bytes);
void shim_inline(int pe, int id, uint64_t to, uint32_t value);
void shim_add(int pe, int id, uint64_t to, uint32_t value);
/* Rings the wakeup; before it nothing written to the ring counts. */
void shim_ring(int pe, int id);
/* Rings it for `more` requests that are still to be written: a doorbell that overtakes them. */
void shim_ring_ahead(int pe, int id, unsigned more);
/* Waits until everything rung of the ring is done. */
void shim_quiet(int pe, int id);

/* NVSHMEM's own device calls: waits for its own requests; meets the ranks of a team by the proxy channel. */
void shim_device_quiet(void);
void shim_device_sync(int team);
/* A team's synchronisation words; barriers use 55296 of them in each half. */
const uint64_t *shim_device_psync(int team);

/* The two modules: deep_ep_play() is one rank of a job. Exit statuses of shim_rank.c. */
int deep_ep_play(int rank, int world, const char *id_file, const char *version);
/* A part of it: queues between ranks, as DeepEP's normal mode has them (shim_normal.c). Between start and end. */
void deep_ep_normal(int me, int world);
int torch_play(void);

#pragma GCC visibility pop

#endif
