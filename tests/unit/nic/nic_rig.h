/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two NICs of one kind facing each other on a virtual clock, for the tests of epf_nic_ops. A kind of NIC
 * is one row of functions: to put another NIC under the conformance suite, add a row to nic_kinds.c.
 *
 * Devices run on the real clock: they are there when EPF_TEST_VERBS_DEVICES names one or two RDMA devices that reach each
 * other ("rxe0,rxe1"). EPF_TEST_NIC limits the kinds to those whose name begins with it ("verbs"). The EFA kinds run over fake
 * adapters (fake_efa.h) on the virtual clock; EPF_TEST_SEED chooses another order for them.
 * Used by test_nic*.c, emu/test_emu*.c and tcp/test_tcp_gpu*.c only.
 */
#ifndef EPF_TESTS_NIC_RIG_H
#define EPF_TESTS_NIC_RIG_H

#include "fabric/nic/emu/opts.h"
#include "fabric/nic/nic.h"

#include <stddef.h>
#include <stdint.h>

/* How a sender learns that the target refused its request. */
enum nic_refusal {
	NIC_REFUSAL_NAMED,  /* EPF_S_REMOTE_ACCESS */
	NIC_REFUSAL_LOST,   /* its connection is lost: EPF_S_RETRY_EXCEEDED */
	NIC_REFUSAL_SILENT, /* not at all, before the NIC's limit of time */
};

struct nic_kind {
	const char *name;
	int ordered;
	int carries;     /* 0: takes work and completes it, nothing arrives */
	int real;        /* 1: on the real clock */
	int device;      /* 1: runs by itself, not as part of a reap */
	int eager;       /* 1: a lane takes writes from when it is made, connected or not */
	int unsolicited; /* 1: a write with immediate needs no receive */
	int gpu;         /* bit 0: a's memory is GPU memory (a fake one), bit 1: b's is */
	/* end: 0 for the rig's a, 1 for b */
	int (*open)(const struct epf_emu_opts *tune, int end, uint64_t (*now)(void *), void *arg,
		    struct epf_nic **out);
	enum nic_refusal refusal;
	int instant;    /* 1: carries out a request when it is posted */
	int lengthless; /* 1: EPF_WC_RECV_IMM has no length */
};

/* All kinds that this machine can run; *count of them. */
const struct nic_kind *nic_rig_kinds(size_t *count);

enum { RIG_BYTES = 1 << 18, RIG_LOG = 8192 };

/* One end. */
struct rig_end {
	struct epf_nic *nic;
	unsigned char *mem; /* RIG_BYTES, registered for remote write and read */
	uint64_t base;      /* mem as work requests name it */
	void *gpu;          /* GPU memory: its address, which no CPU may touch */
	int copies;         /* 1: GPU memory at one of the ends */
	struct epf_nic_mr mr;
	struct epf_wc log[RIG_LOG]; /* everything reaped since rig_clear() */
	unsigned char msg[RIG_LOG][EPF_NIC_MSG_BYTES];
	unsigned n;
};

struct rig {
	const struct nic_kind *kind;
	struct epf_emu_opts opts;
	uint64_t now_ns;
	struct rig_end a, b; /* lane 0 of a is connected to lane 0 of b */
};

/* Opens a rig; tune may change the options before (NULL: defaults and a small pool). */
struct rig *rig_open(const struct nic_kind *kind, void (*tune)(struct epf_emu_opts *));
void rig_close(struct rig *rig);

/* Creates lane la of a and lb of b and connects them. */
void rig_lanes(struct rig *rig, uint16_t la, uint16_t lb);
/* Destroys and connects lane 0 of both again. */
void rig_reconnect(struct rig *rig);

/* One reap of an end, kept in its log; returns the number. */
unsigned rig_reap(struct rig_end *end);
/*
 * Reaps both ends, moving the clock to the next event while it lies at most span_ns ahead of now. On the real clock: until
 * all that was posted is complete and nothing comes for a moment, or nothing has come for span_ns (at least 300 ms).
 */
void rig_run(struct rig *rig, uint64_t span_ns);
/*
 * rig_run() until *n, the completions of an end, have reached want; a device of a busy machine gets ten times the patience for
 * them. Returns whether they have.
 */
int rig_run_until(struct rig *rig, uint64_t span_ns, const unsigned *n, unsigned want);
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
/* Gives the bytes of a write of a's memory along. */
void rig_inline(const struct rig *rig, struct epf_wr *wr);
/* Posts one work request on lane 0 of a and expects it to be taken. */
void rig_post(struct rig *rig, const struct epf_wr *wr);

/* Fills bytes from a seed; compares with the same. */
void rig_fill(unsigned char *at, size_t len, uint64_t seed);
int rig_matches(const unsigned char *at, size_t len, uint64_t seed);

/* A small generator for tests (xorshift64*). */
uint64_t rig_random(uint64_t *state);

#endif
