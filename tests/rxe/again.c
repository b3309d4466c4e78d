/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All links between two nodes go down, every rank gets an error, the links come back, and the ranks of the same job call epf_reconnect and go on: two
 * daemons with two RDMA devices each, four ranks, every byte checked.
 *
 *   rxe_again [CYCLES]     3 without a word
 *
 * In every other cycle reconnecting is first tried in vain, while the links are still down. Output is for people, "# result:" lines for jobs.sh. Exit
 * status 0 or 1.
 */
#include "fabric/base/clock.h"
#include "tests/rxe/rig.h"

#include <errno.h>
#include <stdlib.h>

static const char *const devices[] = { "rxe0,rxe2", "rxe1,rxe3" };
static const unsigned nodes[RIG_WORLD] = { 0, 0, 1, 1 };

enum { WAIT_MS = 60000, TOGETHER = 20, AFTERWARDS = 30 };

/* Words of the page: cycles whose links are up again; ranks that have been notified, in all cycles together. */
enum { W_MENDED = 8, W_TOLD = 9 };

/* A counter of a report: the slowest epf_reconnect that succeeded, in ns. */
enum { C_RECONNECT_NS = 4 };

static uint64_t cycles = 3;

/* Nothing of the broken round is under way any more; then everybody begins it again with everybody. */
static void begin_anew(struct job_rank *r)
{
	struct epf_ring_failure f;
	int rc = epf_flush(r->ring, EPF_ALL_RINGS, WAIT_MS * UINT64_C(1000000));

	JOB_CHECK(r, rc == 0 || rc == -EIO);
	(void)epf_ring_error(r->ring, &f);
	JOB_CHECK(r, epf_barrier(r->ep) == 0);
	for (uint32_t p = 0; p < r->world; p++)
		job_rank_renew(r, p);
	JOB_CHECK(r, epf_barrier(r->ep) == 0);
}

static void come_back(struct job_rank *r, uint64_t cycle)
{
	uint64_t begun;
	int rc;

	do
		rc = job_rank_round(r, WAIT_MS * UINT64_C(1000000));
	while (!rc);
	JOB_CHECK(r, rc == -ECONNRESET || rc == -EIO);
	job_rank_told(r, rc);
	if (cycle & 1)
		JOB_CHECK(r, epf_reconnect(r->ep) == -ENETUNREACH);
	__atomic_add_fetch(&r->page->words[W_TOLD], 1, __ATOMIC_ACQ_REL);
	JOB_CHECK(r, job_await(&r->page->words[W_MENDED], cycle, WAIT_MS) == 0);
	begun = epf_now_ns();
	/* A port is up some moments before its address is. */
	while ((rc = epf_reconnect(r->ep)) == -ENETUNREACH &&
	       epf_now_ns() - begun < WAIT_MS * UINT64_C(1000000))
		;
	JOB_CHECK(r, rc == 0);
	if (epf_now_ns() - begun > r->report->counter[C_RECONNECT_NS])
		job_set(&r->report->counter[C_RECONNECT_NS], epf_now_ns() - begun);
	for (uint32_t p = 0; p < r->world; p++) {
		JOB_CHECK(r, epf_peer_state(r->ep, p) == 1);
		/* A node whose ports are all down may have lost itself too: its ranks reach each other through a port. */
		JOB_CHECK(r, p / 2 == r->me / 2 || epf_peer_epoch(r->ep, p) >= cycle);
	}
	begin_anew(r);
}

static void until_the_end(struct job_rank *r)
{
	JOB_CHECK(r, job_rank_open(r) == 0);
	JOB_CHECK(r, job_rank_join(r) == 0);
	for (uint64_t cycle = 1; cycle <= cycles; cycle++)
		come_back(r, cycle);
	for (unsigned i = 0; i < AFTERWARDS; i++)
		JOB_CHECK(r, job_rank_round(r, WAIT_MS * UINT64_C(1000000)) == 0);
	JOB_CHECK(r, job_rank_guard(r) == 0);
	JOB_CHECK(r, epf_barrier(r->ep) == 0);
	epf_close(r->ep);
	epf_boot_close(r->boot);
}

int main(int argc, char **argv)
{
	uint64_t slowest = 0;

	if (argc > 1)
		cycles = strtoull(argv[1], NULL, 10);
	rig_start(2, devices, NULL);
	rig_job(&rig.job, "again", nodes, until_the_end);
	for (uint64_t cycle = 1; cycle <= cycles; cycle++) {
		RIG_CHECK(job_reach(&rig.job, job_get(&rig.job.page->rank[0].rounds) + TOGETHER,
				    WAIT_MS) == 0);
		rig_link('A', false);
		rig_link('B', false);
		RIG_CHECK(job_await(&rig.job.page->words[W_TOLD], cycle * RIG_WORLD, WAIT_MS) == 0);
		printf("cycle %llu: rank 0 got: %s\n", (unsigned long long)cycle,
		       rig.job.page->rank[0].text);
		rig_link('A', true);
		rig_link('B', true);
		job_set(&rig.job.page->words[W_MENDED], cycle);
	}
	RIG_CHECK(job_wait(&rig.job, 0, 2 * WAIT_MS) == 0);
	for (unsigned i = 0; i < RIG_WORLD; i++)
		if (rig.job.page->rank[i].counter[C_RECONNECT_NS] > slowest)
			slowest = rig.job.page->rank[i].counter[C_RECONNECT_NS];
	printf("# result: all links down and up %llu times, the same ranks went on: %llu rounds, 0 wrong, reconnected within %.0f ms\n",
	       (unsigned long long)cycles, (unsigned long long)rig.job.page->rank[0].rounds,
	       (double)slowest / 1e6);
	job_end(&rig.job);
	rig_stop();
	return 0;
}
