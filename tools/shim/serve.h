/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread that serves a rank's kernels: takes work requests out of their rings and requests out of the proxy channel, pushes them as
 * commands to the fabric, and answers when the fabric says that they are visible at their targets. Started and stopped by host.c; it owns
 * the rings and never waits for a kernel. When something must be refused it says so once, in the log, and serves that ring no more.
 */
#ifndef EPF_TOOLS_SHIM_SERVE_H
#define EPF_TOOLS_SHIM_SERVE_H

#include "fabric/client/epf.h"
#include "tools/shim/channel.h"

#include <stdbool.h>

/* Words of the channel in pinned memory, 64 bytes apart. */
struct epf_channel_words {
	uint64_t complete; /* ours: bytes processed */
	uint64_t pad0[7];
	uint64_t quiet_issue; /* the kernels': bytes that must be over... */
	uint64_t pad1[7];
	uint64_t quiet_ack; /* ...and are */
	uint64_t pad2[7];
	uint64_t cst_issue;
	uint64_t pad3[7];
	uint64_t cst_ack;
	uint64_t pad4[7];
};

struct epf_serve_opts {
	struct epf *ep; /* joined; its rings are opened here, everything else stays the caller's */
	struct epf_wr_space space;
	struct epf_wr_ring *rings; /* ready, the caller's; the thread's until the stop */
	const uint64_t *wakeups;   /* the rings' doorbells, one behind the other */
	uint32_t n_rings;
	uint32_t fabric_rings;   /* work-request rings are dealt to so many rings of the fabric */
	const uint64_t *channel; /* EPF_CHANNEL_BYTES, zeroed */
	struct epf_channel_words *words; /* zeroed */
	bool is_spinning;                /* never sleep: kernels cannot wake a thread */
};

/* What was served; every number only grows. */
struct epf_serve_stats {
	uint64_t puts, inlines, adds; /* work requests */
	uint64_t put_bytes;
	uint64_t channel_requests;
	uint64_t flushes;
	uint64_t early;            /* requests whose doorbell came first */
	uint64_t refusals;         /* rings given up */
	uint64_t passes, pass_tsc; /* looks at all rings that found requests, and cycles in them */
	uint64_t flush_tsc;        /* cycles from posting a flush until it was seen to be over */
};

struct epf_serve;

/* epf_serve_start() - opens the fabric's rings and starts the thread. 0 or -errno (epf_last_error()). */
int epf_serve_start(const struct epf_serve_opts *opts, struct epf_serve **out);

/**
 * epf_serve_drain() - waits until everything rung and asked before the call is visible at its targets.
 *
 * One caller at a time, not the thread. -ETIMEDOUT past @timeout_ns; -EIO when the serving has failed (the log says why).
 */
int epf_serve_drain(struct epf_serve *serve, uint64_t timeout_ns);

/* A copy of the counters, any time from any thread. */
void epf_serve_stats(const struct epf_serve *serve, struct epf_serve_stats *out);

/* Ends the thread and closes the fabric's rings; what was not drained may be lost. NULL is fine. */
void epf_serve_stop(struct epf_serve *serve);

#endif
