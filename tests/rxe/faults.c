/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What goes wrong for one job must not reach another, over RDMA devices: a region withdrawn under traffic, a rank or a daemon killed, a daemon that
 * is stalled, a peer that falls silent, a wrong remote key. Each case: a job that is hit, the right error at the right ranks in time, and a job
 * beside it, on the same daemon and devices, that plays through all cases and must not notice; at the end another job.
 *
 *   rxe_faults [CASE...]      of the table at the end, all without a word. Output is for people; for jobs.sh a line "# case NAME: ..." of each
 *                             that has passed. The first that fails ends the program with 1.
 */
#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/client/handle.h"
#include "fabric/engine/core.h"
#include "fabric/engine/engine.h"
#include "tests/rxe/rig.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

/*
 * Daemons 0 and 1 are the pair of nodes that is hit, 2 is another one on the device of 1: the job beside has its ranks there. 3 and 4 have the
 * other pair of devices, which falls silent.
 */
static const char *const devices[] = { "rxe0", "rxe1", "rxe1", "rxe2", "rxe3" };
static const unsigned hit_nodes[RIG_WORLD] = { 0, 0, 1, 1 };
static const unsigned beside_nodes[RIG_WORLD] = { 0, 2, 0, 2 };
static const unsigned silent_nodes[RIG_WORLD] = { 3, 3, 4, 4 };

/*
 * Lanes that lose their peer fail after some 235 ms: longer than this machine's other work usually keeps the guest from running, or lanes fail for
 * nothing. A silent engine counts as down after 1.5 s.
 */
static const char *const settings[] = { "verbs-timeout=13", "verbs-retries=6", "peer-timeout=1s",
					"peer-silence=1500ms", NULL };

/* Counters of a report, of withdrawing(). */
enum { C_PUSHED = 6, C_REVOKED = 7 };

/*
 * Words of the page. Rank 0 is to use a wrong key; withdrawing() ends with this round; and of each rank, the region to which writes of its have come through, plus 1.
 */
enum { W_SPOIL = 4, W_LAST = 5, W_REACHED = 6 };

/* ---- a region withdrawn under traffic ---- */

enum { REGIONS = 8, REGION_BYTES = 65536, OWNER = 2, AFTERWARDS = 0x5c, BATCH = 48, AHEAD = 4 };

/*
 * Rank OWNER withdraws a region after the other while the others write to it without pause, and then uses its memory itself: nothing of theirs may land
 * any more. Writers go on to the next region on REVOKED; no lane fails, and rounds of checked bytes go on over the same lanes.
 */
struct writer {
	struct epf_ring *ring;
	uint32_t at; /* region written to: 2 + at */
	uint64_t pushed, revoked;
};

/* Says that writes to its region are there, or that no region is left. */
static void say_reached(struct job_rank *r, const struct writer *w)
{
	if (w->at == REGIONS || (w->ring && epf_ring_done(w->ring) > 0))
		job_set(&r->page->words[W_REACHED + r->me], w->at + 1);
}

/* A batch of writes that is not waited for. What has failed must have failed for the one reason. */
static void write_region(struct job_rank *r, struct writer *w)
{
	struct epf_ring_failure f;

	say_reached(r, w);
	if (w->at == REGIONS)
		return;
	if (!w->ring)
		JOB_CHECK(r, epf_ring_open(r->ep, NULL, &w->ring) == 0);
	for (uint64_t i = 0; i < BATCH; i++, w->pushed++)
		JOB_CHECK(r, epf_put(w->ring, OWNER, 0, 0, 2 + w->at,
				     (w->pushed * 2048 + r->me * 512) % REGION_BYTES, 512,
				     i & 1 ? EPF_BULK : 0) == 0);
	if (!epf_ring_error(w->ring, &f))
		return;
	JOB_CHECK(r, f.status == EPF_S_REVOKED && f.reason == EPF_R_CMD_REVOKED &&
			     f.rank == OWNER && f.index > 0);
	w->revoked += f.failed;
	w->at++;
	epf_ring_close(w->ring);
	w->ring = NULL;
}

/* Returns 1 if writes of all others to this region have come through. */
static int all_reached(const struct job_rank *r, uint32_t n)
{
	for (uint32_t p = 0; p < r->world; p++)
		if (p != OWNER && job_get(&r->page->words[W_REACHED + p]) < n + 1)
			return 0;
	return 1;
}

/*
 * Withdraws a region when every writer has reached it, not in a round of its number: on a busy machine a writer's first batch may still wait for the NIC then, and would be
 * refused as a whole. Returns the next region.
 */
static uint32_t withdraw(struct job_rank *r, uint8_t *const *mem, uint32_t n)
{
	uint64_t s = r->round;

	if (!all_reached(r, n))
		return n;
	if (n == REGIONS) {
		if (!job_get(&r->page->words[W_LAST]))
			job_set(&r->page->words[W_LAST], r->round + AHEAD);
		return n;
	}
	usleep((useconds_t)(job_random(&s) % 3000));
	JOB_CHECK(r, epf_region_withdraw(r->ep, n + 2, UINT64_C(20000000000)) == 0);
	memset(mem[n], AFTERWARDS, REGION_BYTES);
	return n + 1;
}

static void register_more(struct job_rank *r, uint8_t **mem)
{
	for (uint32_t i = 0, region; i < REGIONS; i++) {
		void *at;

		JOB_CHECK(r, epf_memory_alloc(r->ep, REGION_BYTES, &at) == 0);
		JOB_CHECK(r, epf_region_register(r->ep, at, REGION_BYTES, EPF_REMOTE_WRITE,
						 &region) == 0);
		JOB_CHECK(r, region == 2 + i);
		mem[i] = at;
	}
}

static void withdrawing(struct job_rank *r)
{
	struct writer w = { NULL, 0, 0, 0 };
	uint8_t *mem[REGIONS];
	uint32_t withdrawn = 0;
	uint64_t last;

	JOB_CHECK(r, job_rank_open(r) == 0);
	register_more(r, mem);
	JOB_CHECK(r, job_rank_join(r) == 0);
	while (!(last = job_get(&r->page->words[W_LAST])) || r->round < last) {
		if (r->me == OWNER)
			withdrawn = withdraw(r, mem, withdrawn);
		else
			write_region(r, &w);
		JOB_CHECK(r, job_rank_round(r, UINT64_C(20000000000)) == 0);
	}
	for (unsigned i = 0; i < REGIONS * REGION_BYTES && r->me == OWNER; i++)
		JOB_CHECK(r, mem[i / REGION_BYTES][i % REGION_BYTES] == AFTERWARDS);
	JOB_CHECK(r, r->me == OWNER || w.at == REGIONS);
	r->report->counter[C_PUSHED] = w.pushed;
	r->report->counter[C_REVOKED] = w.revoked;
	JOB_CHECK(r, epf_counter(r->ep, "lane_errors", &r->report->counter[JOB_LANE_ERRORS]) == 0);
	JOB_CHECK(r, job_rank_guard(r) == 0);
	JOB_CHECK(r, epf_barrier(r->ep) == 0);
	epf_close(r->ep);
	epf_boot_close(r->boot);
}

static void case_region(void)
{
	uint64_t pushed = 0, revoked = 0;

	rig_job(&rig.job, "hit", hit_nodes, withdrawing);
	RIG_CHECK(job_wait(&rig.job, 0, 120000) == 0);
	for (unsigned i = 0; i < RIG_WORLD; i++) {
		pushed += rig.job.page->rank[i].counter[C_PUSHED];
		revoked += rig.job.page->rank[i].counter[C_REVOKED];
		RIG_CHECK(rig.job.page->rank[i].counter[JOB_LANE_ERRORS] == 0);
	}
	rig_say("%d regions withdrawn under %llu writes, %llu of them refused, 0 lane errors",
		REGIONS, (unsigned long long)pushed, (unsigned long long)revoked);
}

/* ---- who is gone, or silent ---- */

/* Survivors on daemon 0 name who is lost, lose nobody else, and play on with each other. */
static void survivors(uint64_t since, unsigned lost, const char *const *words)
{
	for (unsigned i = 0; i < 2; i++)
		rig_told(&rig.job, i, since, lost, words);
	for (unsigned i = 0; i < 2; i++)
		RIG_CHECK(job_await(&rig.job.page->rank[i].counter[RIG_C_AFTER], 10, 20000) == 0);
}

static const char *const names_node1[] = { "rank 2 on node 1 is lost", "rank 3 on node 1 is lost",
					   "to rank 2", "to rank 3", NULL };
static const char *const names_node0[] = { "rank 0 on node 0 is lost", "rank 1 on node 0 is lost",
					   "to rank 0", "to rank 1", NULL };
static const char *const names_daemon1[] = { "node1", NULL };
static const char *const names_rank3[] = { "rank 3", NULL };

static void result_told(const char *what, uint64_t since, unsigned first, unsigned last)
{
	uint64_t worst = 0;

	for (unsigned i = first; i <= last; i++)
		if (rig.job.page->rank[i].notified_ns > since + worst)
			worst = rig.job.page->rank[i].notified_ns - since;
	rig_say("%s: all told within %.0f ms", what, (double)worst / 1e6);
}

static uint64_t begin_fault(void)
{
	job_set(&rig.job.page->words[RIG_MASK], 1);
	return epf_now_ns();
}

static void case_rank(void)
{
	uint64_t since;

	rig_job(&rig.job, "hit", hit_nodes, rig_until_told);
	since = begin_fault();
	kill(rig.job.pid[3], SIGKILL);
	waitpid(rig.job.pid[3], NULL, 0);
	rig.job.pid[3] = 0;
	survivors(since, 8, names_rank3);
	rig_told(&rig.job, 2, since, 8, names_rank3);
	result_told("rank 3 killed", since, 0, 2);
	rig_end_told(&rig.job, 8);
}

static void case_daemon(void)
{
	uint64_t since;

	rig_job(&rig.job, "hit", hit_nodes, rig_until_told);
	since = begin_fault();
	daemons_kill(&rig.daemons, 1);
	survivors(since, 12, names_node1);
	for (unsigned i = 2; i < RIG_WORLD; i++)
		rig_told(&rig.job, i, since, 0, names_daemon1);
	result_told("daemon of node 1 killed", since, 0, 3);
	rig_end_told(&rig.job, 0);
	RIG_CHECK(daemons_restart(&rig.daemons, 1) == 0);
}

/* Stopped processes, as under a debugger or on a machine that hangs above its network NIC: the NIC goes on acknowledging. */
static void case_frozen(void)
{
	uint64_t since;

	rig_job(&rig.job, "hit", hit_nodes, rig_until_told);
	since = begin_fault();
	kill(rig.daemons.pid[1], SIGSTOP);
	kill(rig.job.pid[2], SIGSTOP);
	kill(rig.job.pid[3], SIGSTOP);
	survivors(since, 12, names_node1);
	result_told("node 1 stopped", since, 0, 1);
	kill(rig.daemons.pid[1], SIGCONT);
	kill(rig.job.pid[2], SIGCONT);
	kill(rig.job.pid[3], SIGCONT);
	for (unsigned i = 2; i < RIG_WORLD; i++)
		RIG_CHECK(job_await(&rig.job.page->rank[i].notified_ns, 1, 20000) == 0);
	printf("rank 2, thawed: %s\n", rig.job.page->rank[2].text);
	rig_end_told(&rig.job, 0);
}

/* What a machine that is frozen, or gone behind a switch that still has its link up, looks like: nothing comes back. */
static void case_silent(void)
{
	uint64_t since;

	rig_job(&rig.job, "silent", silent_nodes, rig_until_told);
	since = begin_fault();
	for (unsigned i = 2; i < 4; i++)
		rig_shell("tc qdisc replace dev veth%u root netem loss 100%%", i);
	survivors(since, 12, names_node1);
	for (unsigned i = 2; i < RIG_WORLD; i++)
		rig_told(&rig.job, i, since, 3, names_node0);
	result_told("silence", since, 0, 3);
	rig_end_told(&rig.job, 0);
	for (unsigned i = 2; i < 4; i++)
		rig_shell("tc qdisc del dev veth%u root", i);
	rig_next_job(silent_nodes);
}

/* ---- a wrong remote key ---- */

/*
 * Commands hold no keys, so only a broken or hostile engine can use a wrong one: here rank 0's own, inside its process, whose copy of rank 1's
 * keys is spoiled. All four ranks have separate engines, on the devices that the job beside uses.
 */
static int spoil_keys(struct epf_core *core, void *arg)
{
	struct epf_region_remote *region = &core->peers[1].regions[1];

	(void)arg;
	for (unsigned i = 0; i < sizeof(region->rkeys) / sizeof(region->rkeys[0]); i++)
		region->rkeys[i] ^= 0x00ffff00u;
	return 0;
}

static void spoiling(struct job_rank *r)
{
	JOB_CHECK(r, job_rank_open(r) == 0);
	JOB_CHECK(r, job_rank_join(r) == 0);
	if (r->me == 0) {
		while (!job_get(&r->page->words[W_SPOIL]))
			JOB_CHECK(r, job_rank_round(r, UINT64_C(30000000000)) == 0);
		epf_core_call(r->ep->core, spoil_keys, NULL);
		JOB_CHECK(r, epf_put(r->ring, 1, 0, 0, 1, 0, 256, 0) == 0);
	}
	rig_play_until_told(r);
	JOB_CHECK(r, job_rank_guard(r) == 0);
	epf_close(r->ep);
	epf_boot_close(r->boot);
}

static void case_rkey(void)
{
	static const char *const own[2][9] = {
		{ "nic=verbs", "nic-device=rxe0", "verbs-timeout=13", "verbs-retries=6", "node=a",
		  "peer-timeout=1s", NULL },
		{ "nic=verbs", "nic-device=rxe1", "verbs-timeout=13", "verbs-retries=6", "node=b",
		  "peer-timeout=1s", NULL },
	};
	static const char *const first[] = { "rank 1", NULL }, *const second[] = { "rank 0", NULL };
	struct job_plan plan = { .name = "hit",
				 .world = RIG_WORLD,
				 .body = spoiling,
				 .boot_timeout_ns = UINT64_C(60000000000),
				 .alarm_s = 570 };
	char want[48];
	uint64_t since;

	for (unsigned i = 0; i < RIG_WORLD; i++)
		plan.client[i] = own[i & 1];
	RIG_CHECK(job_fork(&rig.job, &plan) == 0);
	RIG_CHECK(job_reach(&rig.job, 5, 60000) == 0);
	since = begin_fault();
	job_set(&rig.job.page->words[W_SPOIL], 1);
	rig_told(&rig.job, 0, since, 2, first);
	rig_told(&rig.job, 1, since, 1, second);
	for (unsigned i = 0; i < 2; i++)
		RIG_CHECK(job_await(&rig.job.page->rank[i].counter[RIG_C_AFTER], 10, 20000) == 0);
	/* The status of the command that named the key, nothing else; a flush since has reported it. */
	printf("rank 0%s\n", rig.job.page->rank[0].failure);
	snprintf(want, sizeof(want), "to rank 1: status %d", EPF_S_REMOTE_ACCESS);
	RIG_CHECK(strstr(rig.job.page->rank[0].failure, want) != NULL);
	RIG_CHECK(!job_get(&rig.job.page->rank[2].notified_ns) &&
		  !job_get(&rig.job.page->rank[3].notified_ns));
	result_told("wrong key", since, 0, 1);
	for (unsigned i = 2; i < RIG_WORLD; i++)
		kill(rig.job.pid[i], SIGKILL);
	rig_end_told(&rig.job, 12);
}

/* clang-format off */
static const struct {
	const char *name;
	void (*run)(void);
} cases[] = {
	{ "region", case_region },
	{ "rank", case_rank },
	{ "daemon", case_daemon },
	{ "frozen", case_frozen },
	{ "silent", case_silent },
	{ "rkey", case_rkey },
};

/* clang-format on */

static void run(unsigned i)
{
	uint64_t begun = epf_now_ns();

	if (strcmp(cases[i].name, "rkey") == 0 && !rig_is_verbs())
		return; /* the software NIC has its own test of that */
	rig.said[0] = 0;
	cases[i].run();
	job_end(&rig.job);
	rig_beside_goes_on();
	printf("# case %s: %.1f s; %s\n", cases[i].name, (double)(epf_now_ns() - begun) / 1e9,
	       rig.said);
}

int main(int argc, char **argv)
{
	enum { CASES = sizeof(cases) / sizeof(cases[0]) };

	rig_start(5, devices, settings);
	rig_job(&rig.beside, "beside", beside_nodes, job_play);
	for (unsigned i = 0; i < CASES && argc == 1; i++)
		run(i);
	for (int a = 1; a < argc; a++)
		for (unsigned i = 0; i < CASES; i++)
			if (strcmp(argv[a], cases[i].name) == 0)
				run(i);
	rig_beside_ends();
	rig_next_job(hit_nodes);
	rig_stop();
	return 0;
}
