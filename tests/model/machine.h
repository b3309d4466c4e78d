/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The machine of machine.c, as model.c drives it: threads stop before each step, and model.c picks which of them goes on and which branch a step takes.
 */
#ifndef EPF_TESTS_MODEL_MACHINE_H
#define EPF_TESTS_MODEL_MACHINE_H

#include "tests/model/model.h"

#include <ucontext.h>

enum { LOCATIONS = 40, VALUES = 24, STACK = 128 * 1024, DEPTH = 4096, SITES = 64, READS = 16 };

enum kind { START, LOAD, STORE, CHANGE, FENCE, FENCE_SC, SPIN, SLEEP, OVER };

struct view {
	uint8_t oldest[LOCATIONS]; /* a value's number */
	uint16_t clock[MODEL_THREADS];
};

struct value {
	uint64_t word;
	struct view carried;
	uint8_t at;      /* its place in the order */
	bool is_changed; /* an atomic change follows right behind it */
};

struct location {
	const void *p;
	size_t size;
	unsigned n;
	uint8_t order[VALUES]; /* values by place */
	struct value value[VALUES];
	uint8_t sc; /* the newest value that a sequentially consistent access knows */
	/* Plain accesses: clocks of the last by each thread. */
	uint16_t read[MODEL_THREADS], written[MODEL_THREADS];
};

struct thread {
	ucontext_t context;
	void (*body)(void);
	struct view view, pending, released; /* pending: what an acquire fence takes over */
	enum kind next;
	unsigned at;                         /* location of the next step */
	uint8_t reads[READS], newest[READS]; /* since the last model_spin(): location, value read */
	unsigned n_reads;
};

struct branch {
	uint16_t n, taken;
};

struct machine {
	const struct model_program *program;
	struct location location[LOCATIONS];
	unsigned n_locations;
	struct thread thread[MODEL_THREADS];
	unsigned n_threads, running, sleeping; /* sleeping: a set of threads */
	struct view fences;
	ucontext_t scheduler;
	struct branch path[DEPTH];
	unsigned depth, length;
	bool is_on, is_ending;
	char wrong[256];
	const struct model_order *relaxed; /* the orderings that are left out */
	size_t n_relaxed;
	bool is_met; /* it was used */
	const struct model_site *site[SITES];
	unsigned n_sites;
	uint64_t executions, pruned;
};

extern struct machine m;

/* Returns a number below n: the branch that this execution takes here. */
unsigned model_choose(unsigned n);
/* Whether a row means this use of a builtin. */
bool model_names(const struct model_order *o, const struct model_site *s);
/* Runs a thread up to its next step. */
void model_resume(unsigned thread);
/* Whether the thread's next step can be taken now. */
bool model_can_run(unsigned thread);
/* Whether the next steps of two threads may be swapped without a difference. */
bool model_is_independent(const struct thread *a, const struct thread *b);
/* Leaves in memory what the machine's last values are. */
void model_settle(void);

#endif
