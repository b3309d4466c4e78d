/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two NICs of one kind that face each other, for the checks of what the engine assumes of a NIC (check.h) and for the unit tests of NICs.
 * Lane 0 of `a` is connected to lane 0 of `b`. Software NICs of tests run on a virtual clock, all others on the real one. `b` may be on
 * another host (far.h): checks therefore touch memory through rig_memory.h only. One thread.
 */
#ifndef EPF_TOOLS_PROVE_RIG_H
#define EPF_TOOLS_PROVE_RIG_H

#include "tools/prove/ends.h"
#include "tools/prove/rig_memory.h"
#include "tools/prove/rig_track.h"

/**
 * rig_start() - fill in a rig whose kind, user, copy, far, opts and timeouts are set: open both NICs, register their memory, connect lane 0.
 */
void rig_start(struct rig *rig);
/* Closes what is open and frees the rig, also one that could not be started. NULL is fine. */
void rig_close(struct rig *rig);

/* Creates lane la of a and lb of b and connects them. */
void rig_lanes(struct rig *rig, uint16_t la, uint16_t lb);
/* Destroys and connects lane 0 of both again. */
void rig_reconnect(struct rig *rig);

/* Posts receives for n arrivals: n on each device of a NIC, for a lane's arrivals all come to one. */
void rig_receives(struct rig_end *end, unsigned n);
/* One reap of an end, kept in its log; returns the number. */
unsigned rig_reap(struct rig_end *end);
/*
 * Reaps both ends, moving the clock to the next event while it lies at most span_ns ahead of now. On the real clock: until
 * all that was posted is complete and nothing comes for a moment, or nothing has come for span_ns (at least 300 ms).
 */
void rig_run(struct rig *rig, uint64_t span_ns);
/*
 * rig_run() until *n, the completions of an end, have reached want; a device of a busy machine gets ten times the patience for
 * them, and one that copies a GPU's memory sixty times. Returns whether they have.
 */
int rig_run_until(struct rig *rig, uint64_t span_ns, const unsigned *n, unsigned want);
/* rig_run() until nothing is outstanding at either end, with the same patience. */
void rig_finish(struct rig *rig);
/*
 * Whether something that was posted has not been reported, which only a device can do: soft-RoCE of Linux 6.1 says nothing at all of
 * some lists with an error when it meets the error before the acknowledgements of what stands before it (docs/reference/transports.md).
 */
int rig_silent(const struct rig *rig);
void rig_clear(struct rig *rig);

/* Number of completions in the log with this op, and with this status (-1: any). */
unsigned rig_count(const struct rig_end *end, int op, int status);
/* Whether work request id of lane 0 has completed; *status is its status (ordered NICs merge successes). */
int rig_sent(const struct rig *rig, const struct rig_end *end, uint32_t id, int *status);

/* Connects lane 0 again and expects that a can post as much as on the first day: no packet is lost. */
void rig_expect_whole(struct rig *rig);

/* A write from a's memory at src to b's at dst. */
struct epf_wr rig_write(const struct rig *rig, uint32_t id, uint64_t src, uint64_t dst,
			uint32_t len);
/* Makes a message of a write of a's memory: where that is GPU memory, the bytes are given along. */
void rig_message(const struct rig *rig, struct epf_wr *wr);
/* Ends a check of what has landed, at a NIC through which nothing arrives: not tried. */
void rig_needs_arrivals(const struct rig *rig);
/* Posts one work request on lane 0 of a and expects it to be taken. */
void rig_post(struct rig *rig, const struct epf_wr *wr);

#endif
