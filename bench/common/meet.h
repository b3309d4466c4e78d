/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two programs on two hosts that find each other as perftest's do: one waits, the other names its host. Underneath is the
 * bootstrap, so a shared secret is needed as soon as it is not loopback. Used by ep-bench p2p and rawverbs.
 */
#ifndef EPF_BENCH_MEET_H
#define EPF_BENCH_MEET_H

#include <stddef.h>
#include <stdint.h>

struct epf_boot;

enum { BENCH_MEET_PORT = 18515, BENCH_MEET_CLIENT = 0, BENCH_MEET_SERVER = 1 };

/**
 * bench_meet() - wait for a client, or for the server at a host, at most timeout_ns; later waits have the same deadline.
 * @host: NULL to be the server. @port: TCP port, for both the same.
 *
 * Rank 0 of the two is the client. Return: 0 and *out, to be closed by the caller; or -errno after a complaint.
 */
int bench_meet(const char *host, uint64_t port, uint64_t timeout_ns, struct epf_boot **out);

/*
 * Gives `bytes` bytes at mine and gets as many of the other end. Return: 0, or -errno after a complaint (another release
 * among them: a length that is not ours).
 */
int bench_meet_swap(struct epf_boot *boot, const void *mine, void *theirs, size_t bytes);

#endif
