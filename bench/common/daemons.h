/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-fabric daemons for the service forms of ep-bench: N of them in a private directory, named node0 .. node(N-1), with a
 * fresh secret. A separate keeper process starts and ends them, so that nothing is left behind even when ep-bench is killed:
 * it sees its pipe end, ends the daemons and removes the directory. Must be started while this process has one thread.
 */
#ifndef EPF_BENCH_DAEMONS_H
#define EPF_BENCH_DAEMONS_H

#include "bench/common/keeper.h"

#include <stddef.h>
#include <stdint.h>

/* In the environment of ranks that are to use the daemons: the directory, and the daemons' process numbers with commas. */
#define BENCH_DAEMONS_ENV      "EP_BENCH_DAEMONS"
#define BENCH_DAEMONS_PIDS_ENV "EP_BENCH_DAEMON_PIDS"

struct bench_daemons;

/*
 * Starts all and returns when all serve; BENCH_DAEMONS_ENV is set in this process until bench_daemons_stop(). Return: 0, or
 * -errno after one line of complaint that names the daemon and what it said.
 */
int bench_daemons_start(const struct bench_daemons_options *o, struct bench_daemons **out);

/* Complains of each daemon's first warnings and errors. For after a failure. */
void bench_daemons_complain(const struct bench_daemons *d);

/*
 * Ends all (SIGTERM; SIGKILL for who is still there after 10 s), removes their files. Return: 0 when every daemon was there until
 * now and ended well, else -EIO after a complaint. Accepts NULL.
 */
int bench_daemons_stop(struct bench_daemons *d);

/* Runs ranks while daemons serve: start, bench_spawn_run(), complain if that failed, stop. Returns 0, or the first error. */
struct bench_spawn;
int bench_daemons_run(const struct bench_daemons_options *o, const struct bench_spawn *s);

/* In any process with BENCH_DAEMONS_ENV: "service=" and the path of node n's socket. Return: 0, -ENOENT when there are no daemons. */
int bench_daemons_setting(uint32_t node, char *out, size_t bytes);
/* Memory of node n's daemon without that of its ranks, 0 when unknown. */
uint64_t bench_daemons_held(uint32_t node);

#endif
