/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whose turn it is among the jobs that share a thread (scheduler.c): arithmetic on time used, nothing else. Each job's time runs as it uses the
 * thread and the wire behind it, slower with a larger share; nobody goes on who is ahead of another one that has work. A job that had nothing to do keeps what it is
 * behind, up to a credit: a round of a decode-like job is served at once when it begins, and over a long time nobody gets more than its share.
 * It must never read a clock: time comes in as arguments, so tests make their own.
 */
#ifndef EPF_FABRIC_ENGINE_FAIR_H
#define EPF_FABRIC_ENGINE_FAIR_H

#include <stdint.h>

enum {
	EPF_FAIR_SEATS = 60,
	EPF_FAIR_CREDIT = 4, /* turns that who was idle may be behind */
	EPF_FAIR_DEBT = 8,   /* turns that one step may cost */
	/*
	 * While an idle seat is behind, a turn is SHORT of PARTS, 1.6 us of 50: one step of a busy engine, so that a round that begins, or whose next part arrives,
	 * waits for one step. Asking costs an idle step, 30 to 50 ns, of each such seat; with more of them turns are longer.
	 */
	EPF_FAIR_PARTS = 128,
	EPF_FAIR_SHORT = 4,
	/*
	 * What a job sends counts as so long, in ns for 64 KiB: a port of 200 Gbit/s. Without it a job that fills the wire with long puts, which take the
	 * thread hardly any time, would go before one that sends many short ones now and then.
	 */
	EPF_FAIR_64K_NS = 2621,
};

struct epf_fair_seat {
	uint64_t
		time; /* used, divided by the share; from a beginning that all seats have in common */
	uint32_t share;
	uint16_t active; /* it had work when it was last looked at */
	uint16_t looked; /* visited since any seat last worked */
};

/* Units of time are the caller's, all the same. One thread. */
struct epf_fair {
	uint64_t quantum; /* turn of share 1 */
	uint64_t credit;
	uint64_t cost_64k; /* of 64 KiB sent */
	uint64_t time;     /* the least of those with work; does not go back */
	uint32_t n;
	uint32_t round; /* whose turn it was in order */
	struct epf_fair_seat seat[EPF_FAIR_SEATS];
};

/* quantum: above 0. by_share: false: no fairness; turns in order, each to its end, without credit. cost_64k: time that 64 KiB sent count as. */
void epf_fair_init(struct epf_fair *f, uint64_t quantum, int by_share, uint64_t cost_64k);

/* A new last seat; there is room. share: 1 or more. */
void epf_fair_add(struct epf_fair *f, uint32_t share);
/* The last seat moves to where `at` was. */
void epf_fair_remove(struct epf_fair *f, uint32_t at);

/*
 * Whether seat `at` may go on, and until which seat time (seat[at].time) before the others are looked at again. 0: not its turn.
 * Others are asked soon when one of them is behind and was idle, since it may have work by now.
 */
int epf_fair_turn(struct epf_fair *f, uint32_t at, uint64_t *until);

/*
 * Returns the seat that comes next after a turn of seat `at`: among the seats that have used less than `at` and have not been visited since any seat last worked, the one that has used
 * least; if there is none, the next in order. So a seat that is behind waits for one turn of another seat, not for one turn of each.
 */
uint32_t epf_fair_next(struct epf_fair *f, uint32_t at);

/* A step of seat `at` took `used` and sent so many bytes; worked: it had something to do. Who had nothing to do does not pay for having been asked. */
void epf_fair_step(struct epf_fair *f, uint32_t at, uint64_t used, uint64_t bytes, int worked);

#endif
