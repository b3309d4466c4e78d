/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank of a job as a program, for svc_containers.sh: svc_client RANK WORLD RENDEZVOUS. EPF_SERVICE names its daemon. Plays ROUNDS
 * rounds of svc_job.h with every other rank. Exit status 0 only if every byte was right.
 */
#include "tests/proc/svc_job.h"

#include <stdlib.h>

enum { ROUNDS = 500 };

static void play(struct job_rank *r)
{
	job_rank_enter(r);
	while (r->round < ROUNDS)
		JOB_CHECK(r, job_rank_round(r, job_wait_ns()) == 0);
	JOB_CHECK(r, job_rank_guard(r) == 0);
	JOB_CHECK(r, epf_barrier(r->ep) == 0);
	printf("rank %u of %u: %s, %u nodes, %d rounds right\n", r->me, r->world, epf_mode(r->ep),
	       epf_nodes(r->ep), ROUNDS);
	job_rank_leave(r);
}

int main(int argc, char **argv)
{
	struct job_plan plan = { .name = "containers", .body = play };
	struct job job;

	if (argc != 4) {
		fprintf(stderr, "usage: svc_client RANK WORLD RENDEZVOUS\n");
		return 1;
	}
	plan.local = 1u << strtoul(argv[1], NULL, 10);
	plan.world = (uint32_t)strtoul(argv[2], NULL, 10);
	plan.rendezvous = argv[3];
	return job_fork(&job, &plan) || job_wait(&job, 0, job_ms(JOB_WAIT_MS));
}
