/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A machine that is stalled, seen by another one: run by jobs.sh in both guests of two.sh at once. Each has a daemon and two of a job's
 * four ranks. The second guest is stopped by its monitor in the middle of the job and goes on later; in the first one the ranks left must be
 * notified which node is silent, and a job beside must not notice.
 *
 *   rxe_two 1|2     which guest this is
 *
 * Between guest 1 and two.sh: the file $RXE_OUT/want says "stop" or "cont", $RXE_OUT/did what was done last. The guests themselves talk over the
 * cable only. Output is for people, "# result:" lines for jobs.sh. Exit status 0 or 1.
 */
#include "fabric/base/clock.h"
#include "tests/rxe/rig.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The daemon of the cross job, and of guest 1 another one on the same device for the job beside. */
static const char *const devices[] = { "rxe4", "rxe4" };
static const unsigned beside_nodes[RIG_WORLD] = { 0, 1, 0, 1 };

/*
 * One guest may be kept waiting by this machine's other work while the other one runs, so NICs give up late (after 3.7 s), and it is the missing signs of
 * life that tell of a silent node.
 */
static const char *const settings[] = { "verbs-timeout=17", "verbs-retries=6", "peer-timeout=1s",
					"peer-silence=2s", NULL };

enum {
	BOOT_S = 90,
	BEGIN_MS = 100000,
	HOST_MS = 60000,
	NEXT_ROUNDS = 20,
	STOPPED_MS = 900,
	ALARM_S = 300
};

static const char *const names_node1[] = { "rank 2 on node 1 is lost", "rank 3 on node 1 is lost",
					   "to rank 2", "to rank 3", NULL };
static const char *const names_node0[] = { "rank 0 on node 0 is lost", "rank 1 on node 0 is lost",
					   "to rank 0", "to rank 1", NULL };

static unsigned guest;

/* Asks the machine around this guest for something, and waits until it is done. */
static void host(const char *what)
{
	const char *out = getenv("RXE_OUT");
	uint64_t since = epf_now_ns();
	char path[512], line[32] = "";
	size_t len = strlen(what);
	FILE *f;

	RIG_CHECK(out != NULL);
	rig_shell("echo %s >%s/want.new && mv %s/want.new %s/want", what, out, out, out);
	snprintf(path, sizeof(path), "%s/did", out);
	while (strncmp(line, what, len) != 0) {
		f = fopen(path, "re");
		if (!f || !fgets(line, sizeof(line), f))
			line[0] = 0;
		if (f)
			fclose(f);
		if (epf_now_ns() - since > HOST_MS * UINT64_C(1000000))
			rig_die("nobody did %s in %d ms", what, HOST_MS);
		usleep(10000);
	}
}

/* A job of both guests, of which the first has ranks 0 and 1 and the rendezvous. */
static void cross_job(const char *name, const char *rendezvous, void (*body)(struct job_rank *r))
{
	struct job_plan plan = { .name = name,
				 .settings = rig_patience,
				 .world = RIG_WORLD,
				 .tag = (uint64_t)name[0],
				 .body = body,
				 .boot_timeout_ns = BOOT_S * UINT64_C(1000000000),
				 .alarm_s = ALARM_S,
				 .local = guest == 1 ? 3 : 12,
				 .listen = guest == 1 ? rendezvous : NULL,
				 .rendezvous = guest == 1 ? NULL : rendezvous };

	for (unsigned i = 0; i < RIG_WORLD; i++)
		plan.client[i] = daemons_client(&rig.daemons, 0);
	job_end(&rig.job);
	RIG_CHECK(job_fork(&rig.job, &plan) == 0);
}

/* The ends of two machines have no page in common: so many rounds, not until somebody says. */
static void some_rounds(struct job_rank *r)
{
	JOB_CHECK(r, job_rank_open(r) == 0);
	JOB_CHECK(r, job_rank_join(r) == 0);
	while (r->round < NEXT_ROUNDS)
		JOB_CHECK(r, job_rank_round(r, UINT64_C(30000000000)) == 0);
	JOB_CHECK(r, job_rank_guard(r) == 0);
	JOB_CHECK(r, epf_barrier(r->ep) == 0);
	epf_close(r->ep);
	epf_boot_close(r->boot);
}

static void next_job(void)
{
	cross_job("next", "10.9.0.1:29556", some_rounds);
	RIG_CHECK(job_wait(&rig.job, 0, BEGIN_MS) == 0);
	job_end(&rig.job);
	printf("# result: the next job of both guests: %d rounds, 0 wrong\n", NEXT_ROUNDS);
}

/* The guest that looks on. */
static void first(void)
{
	uint64_t since, worst = 0;

	rig_start(2, devices, settings);
	rig_job(&rig.beside, "beside", beside_nodes, job_play);
	cross_job("cross", "10.9.0.1:29555", rig_until_told);
	RIG_CHECK(job_reach(&rig.job, 5, BEGIN_MS) == 0);
	job_set(&rig.job.page->words[RIG_MASK], 1);
	since = epf_now_ns();
	host("stop");
	for (unsigned i = 0; i < 2; i++) {
		rig_told(&rig.job, i, since, 12, names_node1);
		RIG_CHECK(job_await(&rig.job.page->rank[i].counter[RIG_C_AFTER], 10, 20000) == 0);
		if (rig.job.page->rank[i].notified_ns - since > worst)
			worst = rig.job.page->rank[i].notified_ns - since;
	}
	rig_beside_goes_on();
	usleep(STOPPED_MS * 1000);
	host("cont");
	rig_end_told(&rig.job, 0);
	rig_beside_goes_on();
	printf("# result: told within %.0f ms that node 1 is silent\n", (double)worst / 1e6);
	next_job();
	rig_beside_goes_on();
	rig_beside_ends();
	rig_stop();
}

/* The one that is stopped, and notices only when it goes on: for it no time has passed. */
static void second(void)
{
	rig_start(1, devices, settings);
	cross_job("cross", "10.9.0.1:29555", rig_until_told);
	RIG_CHECK(job_reach(&rig.job, 5, BEGIN_MS) == 0);
	for (unsigned i = 2; i < RIG_WORLD; i++) {
		RIG_CHECK(job_await(&rig.job.page->rank[i].notified_ns, 1, BEGIN_MS) == 0);
		rig_told(&rig.job, i, rig.job.page->rank[i].notified_ns, 3, names_node0);
	}
	rig_end_told(&rig.job, 0);
	printf("# result: notified of node 0 when it went on\n");
	next_job();
	rig_stop();
}

int main(int argc, char **argv)
{
	guest = argc == 2 ? (unsigned)atoi(argv[1]) : 0;
	if (guest != 1 && guest != 2) {
		fprintf(stderr, "rxe_two: 1 or 2: see the head of tests/rxe/two.c\n");
		return 2;
	}
	if (guest == 1)
		first();
	else
		second();
	return 0;
}
