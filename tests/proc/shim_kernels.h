/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CPU code that uses NVSHMEM as DeepEP's kernels do: it finds everything by byte offsets in the two state structures, writes work requests
 * and channel requests, and polls. Called by shim_deep_ep.c.
 */
#ifndef EPF_TESTS_SHIM_KERNELS_H
#define EPF_TESTS_SHIM_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(default)

/* The program's constant memory. */
extern uint8_t shim_host_state[776];
extern uint8_t shim_ibgda_state[8384];
/* Differences between releases: the offset of a team's map, the 8-byte words between the synchronisation words of two teams, and the
 * distance of the two halves that barriers alternate between (0: one half only). */
extern size_t shim_map_at;
extern uint64_t shim_psync_words, shim_psync_turn;

/* If the rule is false, prints a line and ends the process. */
#define MUST(rule) shim_must((rule) != 0, #rule, __LINE__)
void shim_must(int rule, const char *text, int line);

/* Requests to rank `pe` on its ring `id`. */
void shim_put(int pe, int id, uint64_t to, uint64_t from, uint32_t bytes);
void shim_inline(int pe, int id, uint64_t to, uint32_t value);
void shim_add(int pe, int id, uint64_t to, uint32_t value);
/* Rings the doorbell for what was written to the ring. */
void shim_ring(int pe, int id);
/* Rings it for `more` requests not yet written: a doorbell that overtakes them. */
void shim_ring_ahead(int pe, int id, unsigned more);
/* Waits until all requests with a doorbell are complete. */
void shim_quiet(int pe, int id);

/* NVSHMEM's device calls: quiet, and the barrier of a team over the proxy channel. */
void shim_device_quiet(void);
void shim_device_sync(int team);
/* A team's synchronisation words; barriers use 55296 of them in each half. */
const uint64_t *shim_device_psync(int team);

/* The two modules; they return exit statuses of shim_rank.c. deep_ep_play() is one rank of a job. */
int deep_ep_play(int rank, int world, const char *id_file, const char *version);
/* Part of it, between start and end: queues between ranks as in DeepEP's normal mode (shim_normal.c). */
void deep_ep_normal(int me, int world);
int torch_play(void);

#pragma GCC visibility pop

#endif
