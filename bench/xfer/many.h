/* SPDX-License-Identifier: Apache-2.0 */
/* What a connection costs: many endpoints connect to one target. */
#ifndef EPF_BENCH_XFER_MANY_H
#define EPF_BENCH_XFER_MANY_H

#include "fabric/p2p/epf_p2p.h"

#include <stdbool.h>
#include <stdint.h>

/* What a process has and has used, by /proc/self. */
struct xfer_cost {
	uint64_t rss_kib, threads, files, cpu_ns, clock_ns;
};

void xfer_cost_now(struct xfer_cost *out);

struct xfer_many {
	int (*open)(const void *arg, const char *name, struct epf_p2p **ep);
	const void *arg;
	uint64_t connections, bytes, stride; /* each writes its own block once */
	int value;                           /* xfer_fill()'s */
	bool json;
};

/*
 * Connects endpoints of this process, one after another, to the target behind a socket, which has sent its hello; each writes its block. Prints how long
 * that takes, and what the target's process has and uses for each while all are idle. Returns 0, or -errno after a complaint; *wrong: bytes that arrived wrong.
 */
int xfer_many(const struct xfer_many *m, int fd, uint64_t *wrong);

#endif
