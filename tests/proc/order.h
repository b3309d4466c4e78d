/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank of the checking traffic (tests/prop/sim_traffic.h) in real time: settings, loop, and the page in which the ranks of a job
 * publish their progress. Used by test_order.c.
 */
#ifndef EPF_TESTS_ORDER_H
#define EPF_TESTS_ORDER_H

#include "bootstrap/boot.h"
#include "tests/prop/sim_traffic.h"

#include <stdint.h>

enum { ORDER_EPOCHS = 24, ORDER_PROOFS = 5, ORDER_TEXT = 1500 };

/* Shared by the ranks; a word is written by one rank only. */
struct order_page {
	uint32_t done[SIM_RANKS];  /* epochs finished */
	uint32_t ended[SIM_RANKS]; /* last check passed */
	uint32_t failed;
	uint64_t proof[ORDER_EPOCHS][SIM_RANKS][ORDER_PROOFS];
	uint64_t commands[SIM_RANKS], replays[SIM_RANKS], lane_errors[SIM_RANKS];
	char text[SIM_RANKS][ORDER_TEXT];
};

struct order_job {
	uint64_t seed;
	uint32_t ranks, rings, lanes;
	int threaded;  /* progress=thread */
	int errors;    /* lanes fail now and then, all but the last of a peer */
	uint32_t goal; /* messages of a channel in an epoch */
	uint16_t port; /* of the rendezvous; 0: boot is given */
	struct sim_plan plan;
	struct order_page *page;
};

/* Derives the job from a seed. threaded < 0: the seed decides. */
void order_job_make(struct order_job *job, uint64_t seed, int threaded);

/* Runs a rank to its end. boot: NULL for TCP. Returns 0, or -1 with the reason in page->text[rank]. */
int order_run_rank(struct order_job *job, uint32_t rank, struct epf_boot *boot);

/* Sums over all ranks: reordered, duplicated, dropped, signals waited, duplicates dropped. */
void order_proof(const struct order_job *job, uint64_t sum[ORDER_PROOFS]);

#endif
