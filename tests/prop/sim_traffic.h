/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random traffic that checks itself, for the simulation (tests/prop) and for real processes and threads
 * (tests/proc). A plan is made from a seed and is the same on every rank: channels from one rank to another, each a
 * sequence of messages whose commands and bytes are a pure function of seed, channel and number.
 *
 * A receiver checks every byte of a message's buffer the moment its signal is there, poisons the buffer, waits a
 * while, looks whether the poison still stands and grants the buffer back by a signal: what lands late, twice or
 * early shows as wrong bytes. A sender poisons its source as soon as the commands are retired. Signals and adds are
 * checked against their exact sums.
 *
 * A sim_rank knows its own rank only and never blocks: it is polled by whoever drives it.
 */
#ifndef EPF_TESTS_SIM_TRAFFIC_H
#define EPF_TESTS_SIM_TRAFFIC_H

#include "fabric/client/epf.h"

#include <stddef.h>
#include <stdint.h>

enum {
	SIM_RANKS = 5,
	SIM_RINGS = 3,
	SIM_CHANS = 24,
	SIM_SLOTS = 3,
	SIM_STEPS = 20,
	SIM_SLOT_BYTES = 2048,
	SIM_GUARD = 32,      /* poisoned bytes around each buffer */
	SIM_RO_BYTES = 8192, /* of the region that peers only read */
	SIM_RX_REGION = 0,
	SIM_TX_REGION = 1,
	SIM_RO_REGION = 2,
};

enum sim_kind {
	SIM_STREAM, /* puts of all forms, then a signal or a put_signal with EPF_FENCE */
	SIM_SOLO,   /* one put_signal without EPF_FENCE */
	SIM_GROUP,  /* grouped puts by several rings, counted signals */
	SIM_ECHO,   /* puts, a flush, then a get of the same bytes */
	SIM_ADD,    /* adds to one word, then a signal */
	SIM_SUM,    /* signals of random 64-bit values */
	SIM_GET,    /* reads of constant bytes */
	SIM_KINDS,
};

struct sim_chan {
	uint8_t kind;
	uint8_t ring;  /* of the sender */
	uint8_t multi; /* GROUP, ECHO: uses all rings of the sender */
	uint8_t slots;
	uint32_t from, to;
	uint32_t slot_bytes; /* of each buffer */
	uint32_t rx_offset;  /* first buffer, in the receiver's region */
	uint32_t tx_offset;  /* first source, in the sender's region */
	uint32_t signal;     /* at the receiver */
	uint32_t credit;     /* at the sender: buffers granted back */
	uint32_t add;        /* SOLO: what each message adds */
};

struct sim_plan {
	uint64_t seed;
	uint32_t ranks, rings;
	uint32_t n_chans;
	uint32_t signals;      /* a rank needs at most */
	int early_signals;     /* counted signals may come before their puts */
	uint32_t wide_flushes; /* ECHO channels that flush all rings */
	uint32_t rx_bytes[SIM_RANKS], tx_bytes[SIM_RANKS];
	struct sim_chan chans[SIM_CHANS];
};

enum sim_op {
	SIM_OP_PUT,
	SIM_OP_PUT_GROUP,
	SIM_OP_PUT_SIGNAL,
	SIM_OP_INLINE,
	SIM_OP_ADD,
	SIM_OP_SIGNAL,
	SIM_OP_COUNTED,
	SIM_OP_FLUSH,
	SIM_OP_GET,
	SIM_OP_WAIT, /* no command: until what was pushed is retired */
};

struct sim_step {
	uint8_t op;
	uint8_t ring;
	uint8_t flags;
	uint32_t off, len; /* in the buffer */
	uint32_t count;
	uint64_t value;
};

struct sim_msg {
	uint64_t n;
	uint32_t shift;  /* of the source against the buffer: odd alignment */
	uint32_t remote; /* GET: offset in the read-only region */
	uint32_t n_steps;
	struct sim_step steps[SIM_STEPS];
};

/* sim_plan.c */

/* Random numbers: SplitMix64 (Steele, Lea, Flood), a stream and a single mix. */
uint64_t sim_mix(uint64_t x);
uint64_t sim_next(uint64_t *state);
/* Uniform in [lo, hi]. */
uint32_t sim_range(uint64_t *state, uint32_t lo, uint32_t hi);

/* Makes the plan of a seed: what each rank allocates and every channel. */
void sim_plan_make(struct sim_plan *plan, uint64_t seed, uint32_t ranks, uint32_t rings,
		   uint32_t n_chans);
/* Message n of a channel: its commands. */
void sim_msg_make(const struct sim_plan *plan, uint32_t chan, uint64_t n, struct sim_msg *msg);
/* Its payload: bytes [off, off + len) of its buffer, to out. */
void sim_msg_bytes(const struct sim_plan *plan, uint32_t chan, uint64_t n, uint32_t off,
		   uint32_t len, uint8_t *out);
/* The whole buffer as it must look when the signal is there, poison where nothing was put. */
void sim_msg_image(const struct sim_plan *plan, uint32_t chan, const struct sim_msg *msg,
		   uint8_t *out);
/* Poison of region bytes [off, off + len). */
void sim_poison(uint8_t *region, uint32_t off, uint32_t len);
/* First offset in [off, off + len) whose poison is gone, or UINT32_MAX. */
uint32_t sim_poison_check(const uint8_t *region, uint32_t off, uint32_t len);
/* Constant bytes that rank `rank` lets its peers read. */
void sim_ro_bytes(const struct sim_plan *plan, uint32_t rank, uint32_t off, uint32_t len,
		  uint8_t *out);
const char *sim_kind_name(unsigned kind);

/* sim_rank.c */

struct sim_tx {
	struct sim_msg msg;
	uint64_t sent;                          /* messages whose commands are all pushed */
	uint64_t tickets[SIM_SLOTS][SIM_RINGS]; /* retired from these on */
	uint32_t at;                            /* next step */
	uint8_t open;                           /* msg is under way */
	uint8_t holds_group;                    /* a counted signal lacks puts not yet pushed */
	uint8_t busy[SIM_SLOTS];                /* source not retired */
};

struct sim_rx {
	uint64_t taken;   /* messages checked */
	uint64_t granted; /* of these: buffers released, in order */
	uint64_t sum;     /* ADD, SUM: expected so far */
	uint32_t held;    /* polls until the poison of the oldest one is looked at */
};

struct sim_rank {
	const struct sim_plan *plan;
	struct epf *ep;
	struct epf_ring *rings[SIM_RINGS];
	uint32_t rank;
	uint64_t rng;
	uint64_t goal; /* messages of each channel */
	uint32_t open_groups;
	uint64_t flushes[SIM_RINGS]; /* retired when the ring's newest flush is */
	uint8_t has_flushed[SIM_RINGS];
	uint32_t slow; /* 1 in this many polls takes a message that is there */
	uint8_t *rx, *tx, *ro, *scratch;
	struct sim_tx out[SIM_CHANS];
	struct sim_rx in[SIM_CHANS];
	uint32_t own[SIM_CHANS]; /* channels from or to this rank */
	uint32_t n_own;
	int wrong; /* failure says: wrong bytes or a wrong sum */
	char failure[400];
};

/* Allocates and registers the regions of the rank; before the join. 0, or -errno with epf_last_error(). */
int sim_rank_setup(struct sim_rank *r, const struct sim_plan *plan, struct epf *ep, uint32_t rank);
/* Frees what setup took; after epf_close. */
void sim_rank_free(struct sim_rank *r);
/* Does what can be done now without waiting. Progress made, or -1: r->failure says what is wrong. */
int sim_rank_poll(struct sim_rank *r);
/* 1 when all messages up to the goal were sent, checked and granted back. */
int sim_rank_is_done(const struct sim_rank *r);
/* At the end, when nothing travels any more: all memory and all signals. 0, or -1 with r->failure. */
int sim_rank_final(struct sim_rank *r);
/* Who waits for what, into buf: for a job that is stuck. */
void sim_rank_waits(const struct sim_rank *r, char *buf, size_t size);

#endif
