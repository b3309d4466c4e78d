/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Low latency on CPU ranks, for tests: a world of ranks in this process, each with its own engine on the emulated NIC and, while a phase runs,
 * a thread; inputs from a seed; and every output byte compared with the reference (tests/ref). All buffers are poisoned before each call.
 */
#ifndef EPF_TESTS_LL_KIT_H
#define EPF_TESTS_LL_KIT_H

#include <stdbool.h>
#include <stdint.h>

enum { LL_KIT_RANKS = 9 };

/* Who reaches whom by plain stores. */
enum ll_kit_direct {
	LL_KIT_NONE, /* nobody but a rank itself */
	LL_KIT_PAIRS, /* ranks 0 and 1, 2 and 3; rank 0 also gave a pointer to rank 2, which must not be used */
	LL_KIT_ALL,
};

struct ll_kit_options {
	uint32_t ranks;
	enum ll_kit_direct direct;
	bool gpu;       /* on a device of the fake back-end; stores reach nobody then */
	bool unordered; /* with delays, reordering, duplicates and losses */
	bool late; /* with unordered: packets come up to 20 ms apart and more, longer than a thread sleeps */
	uint32_t blocks;
	uint64_t bytes; /* of communication memory */
	uint64_t timeout_ns;
	uint64_t seed;
	void (*before)(
		void *arg,
		uint32_t rank); /* NULL, or called by each rank in front of its part of a call */
	void *before_arg;
};

/* One call of dispatch and one of combine, of all ranks. */
struct ll_kit_case {
	uint32_t experts;
	uint32_t topk;
	uint32_t hidden;
	uint32_t tokens_max;
	uint32_t tokens[LL_KIT_RANKS];
	uint32_t flags;      /* EPF_LL_FP8 ... */
	uint32_t unselected; /* of 100 entries so many are -1 */
	uint64_t seed;
	bool zero_copy;
	bool logfmt; /* combine's rows */
	bool sums;   /* combine's rows are summed by their sender */
	bool many;   /* with sums: where there are many */
	bool twice;  /* some entries name an expert that one before them names */
	bool halves; /* SEND and RECV apart */
	bool stats;
	uint32_t absent; /* a bit a rank that makes no call */
	uint32_t lost;   /* one that makes no combine */
};

struct ll_kit;
struct epf_ll;
struct epf;

struct ll_kit *ll_kit_open(const struct ll_kit_options *o);
void ll_kit_close(struct ll_kit *k);
struct epf_ll *ll_kit_ll(const struct ll_kit *k, uint32_t rank);
struct epf *ll_kit_ep(const struct ll_kit *k, uint32_t rank);

/* How often a rank has looked in vain for what its kernels wait for; counted with `before` only. */
uint64_t ll_kit_turns(const struct ll_kit *k, uint32_t rank);

/* Ends a rank: nobody hears of it any more. */
void ll_kit_kill(struct ll_kit *k, uint32_t rank);

/* Collective epf_ll_clean(), of all ranks but those of `absent`. */
void ll_kit_clean(struct ll_kit *k, uint32_t absent);

/*
 * Runs n cases (1 or 2) and checks them: one after the other, or, two with `halves`, overlapped: both are sent before the first is received.
 * Ranks that are absent, and masked at those that are not, count as having no tokens and no experts.
 */
void ll_kit_run(struct ll_kit *k, const struct ll_kit_case *c, unsigned n);

/* A hash of all outputs of the last case, for comparing runs. */
uint64_t ll_kit_hash(const struct ll_kit *k);

/* splitmix64's step. */
uint64_t ll_kit_random(uint64_t *state);

#endif
