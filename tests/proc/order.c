/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank of the checking traffic in real time (order.h). The ranks run epochs until the whole job has reordered, duplicated and dropped,
 * and a signal had to wait. A rank that has finished keeps its engine running for the others.
 */
#include "tests/proc/order.h"

#include "fabric/base/clock.h"
#include "fabric/client/handle.h"
#include "fabric/engine/engine.h"
#include "fabric/engine/recovery.h"

#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
# define SLOWER 4
#else
# define SLOWER 1
#endif

enum { MOST_SETTINGS = 32, BREAK_EVERY = 150 };

#define STUCK_NS (UINT64_C(60000000000) * SLOWER) /* without any progress: longer is a hang */
#define DRAIN_NS UINT64_C(3000000)

struct rank_run {
	struct order_job *job;
	struct sim_rank sim;
	struct epf *ep;
	uint32_t rank;
	uint64_t rng;
	uint64_t progress_ns;
	uint64_t progress,
		next_break; /* by traffic, not time: a slow machine breaks no more lanes */
	unsigned idle;
};

void order_job_make(struct order_job *job, uint64_t seed, int threaded)
{
	uint64_t rng = sim_mix(seed ^ 0x6f72646572ull);

	memset(job, 0, sizeof(*job));
	job->seed = seed;
	job->ranks = sim_range(&rng, 3, 4);
	job->rings = sim_range(&rng, 1, SIM_RINGS);
	job->lanes = sim_range(&rng, 1, 3);
	job->threaded = threaded < 0 ? (int)(seed & 1) : threaded;
	job->errors = seed % 3 == 2;
	if (job->errors && job->lanes == 1)
		job->lanes = 2;
	job->goal = sim_range(&rng, 10, 30);
	sim_plan_make(&job->plan, seed, job->ranks, job->rings, sim_range(&rng, 8, 16));
}

static int fail(struct rank_run *run, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(run->job->page->text[run->rank], ORDER_TEXT, fmt, ap);
	va_end(ap);
	__atomic_store_n(&run->job->page->failed, 1, __ATOMIC_RELEASE);
	return -1;
}

struct settings {
	char text[MOST_SETTINGS][64];
	const char *list[MOST_SETTINGS + 1];
	unsigned n;
};

static void set(struct settings *s, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(s->text[s->n], sizeof(s->text[0]), fmt, ap);
	va_end(ap);
	s->list[s->n] = s->text[s->n];
	s->list[++s->n] = NULL;
}

static uint32_t one_of(uint64_t *rng, uint32_t a, uint32_t b, uint32_t c)
{
	uint32_t k = sim_range(rng, 0, 2);

	return k == 0 ? a : k == 1 ? b : c;
}

/* Equal on all ranks but for the rank number. */
static void make_settings(const struct order_job *job, uint32_t rank, struct settings *s)
{
	uint64_t rng = sim_mix(job->seed ^ 0x736574ull);

	s->n = 0;
	set(s, "progress=%s", job->threaded ? "thread" : "caller");
	set(s, "node=n%u", rank);
	set(s, "job=order-%llu", (unsigned long long)job->seed);
	if (job->port) {
		set(s, "rendezvous=127.0.0.1:%u", job->port);
		set(s, "rank=%u", rank);
		set(s, "world-size=%u", job->ranks);
	}
	set(s, "signals=%u", job->plan.signals);
	set(s, "lanes-per-peer=%u", job->lanes);
	set(s, "lane-depth=%u", one_of(&rng, 4, 16, 64));
	set(s, "lane-receives=%u", one_of(&rng, 4, 16, 128));
	set(s, "window=%u", one_of(&rng, 64, 128, 1024));
	set(s, "defer-limit=%u", one_of(&rng, 1, 4, 64));
	set(s, "ring-window=%u", job->plan.early_signals ? 4096 : one_of(&rng, 64, 64, 256));
	set(s, "core-batch=%u", one_of(&rng, 1, 8, 32));
	set(s, "rank-inflight-messages=%u", one_of(&rng, 3, 16, 4096));
	set(s, "streams-per-peer=32");
	set(s, "start-count=%u", one_of(&rng, 0, 65500, 0u - 100));
	set(s, "emu-order=unordered");
	set(s, "emu-seed=%llu", (unsigned long long)(sim_next(&rng) >> 2));
	set(s, "emu-mtu=%u", one_of(&rng, 256, 512, 4096));
	set(s, "emu-packets=%u", one_of(&rng, 64, 128, 512));
	set(s, "emu-delay=%uus", one_of(&rng, 0, 20, 100));
	set(s, "emu-reorder=0.%02u", sim_range(&rng, 5, 40));
	set(s, "emu-duplicate=0.%02u", sim_range(&rng, 5, 25));
	set(s, "emu-drop=0.%02u", sim_range(&rng, 3, 15));
	set(s, "emu-retransmit=%uus", sim_range(&rng, 20, 200));
}

static int break_one(struct epf_core *core, void *arg)
{
	struct rank_run *run = arg;
	struct epf_lane *lane = &core->lanes[sim_range(&run->rng, 0, core->n_lanes - 1)];

	/* Never the last lane of a peer: one must be left. */
	if (lane->state == EPF_LANE_UP && lane->index + 1u < run->job->lanes)
		epf_lane_error_cold(core, lane, EPF_S_RETRY_EXCEEDED);
	return 0;
}

static void break_lanes(struct rank_run *run)
{
	if (!run->job->errors || run->progress < run->next_break)
		return;
	run->next_break = run->progress + 1 + sim_next(&run->rng) % BREAK_EVERY;
	epf_core_call(run->ep->core, break_one, run);
}

/* One turn: engine (where it has no thread), traffic, faults. */
static int turn(struct rank_run *run)
{
	struct order_page *page = run->job->page;
	int did = epf_progress(run->ep), rc = sim_rank_poll(&run->sim);
	uint64_t now = epf_now_ns();
	char waits[1000];

	if (rc < 0)
		return fail(run, "%s", run->sim.failure);
	run->progress += (uint64_t)rc;
	break_lanes(run);
	if (rc > 0 || sim_rank_is_done(&run->sim))
		run->progress_ns = now;
	if (now - run->progress_ns > STUCK_NS) {
		sim_rank_waits(&run->sim, waits, sizeof(waits));
		return fail(run, "stuck: rank %u:%s", run->rank, waits);
	}
	if (__atomic_load_n(&page->failed, __ATOMIC_ACQUIRE))
		return -1;
	if (did || rc)
		run->idle = 0;
	else if (++run->idle > 16)
		sched_yield();
	return 0;
}

static int all_at_least(const struct order_job *job, const uint32_t *word, uint32_t value)
{
	for (uint32_t r = 0; r < job->ranks; r++)
		if (__atomic_load_n(&word[r], __ATOMIC_ACQUIRE) < value)
			return 0;
	return 1;
}

static void publish(struct rank_run *run, uint32_t epoch)
{
	struct order_page *page = run->job->page;
	uint64_t *proof = page->proof[epoch][run->rank];
	struct epf_nic_counters n;

	run->ep->ops->counters(run->ep->nic, &n);
	proof[0] = n.packets_reordered;
	proof[1] = n.packets_duplicated;
	proof[2] = n.packets_dropped;
	epf_counter(run->ep, "signals_waited", &proof[3]);
	epf_counter(run->ep, "duplicates_dropped", &proof[4]);
	epf_counter(run->ep, "cmds_dequeued", &page->commands[run->rank]);
	epf_counter(run->ep, "replays", &page->replays[run->rank]);
	epf_counter(run->ep, "lane_errors", &page->lane_errors[run->rank]);
}

static int publish_call(struct epf_core *core, void *arg)
{
	struct rank_run *run = arg;

	(void)core;
	publish(run, (uint32_t)(run->sim.goal / run->job->goal) - 1);
	return 0;
}

static int has_proved(const struct order_job *job, uint32_t epoch)
{
	uint64_t errors = 0;

	for (unsigned p = 0; p < ORDER_PROOFS; p++) {
		uint64_t sum = 0;

		for (uint32_t r = 0; r < job->ranks; r++)
			sum += job->page->proof[epoch][r][p];
		if (!sum)
			return 0;
	}
	for (uint32_t r = 0; r < job->ranks; r++)
		errors += job->page->proof[epoch][r][3];
	return errors != 0;
}

void order_proof(const struct order_job *job, uint64_t sum[ORDER_PROOFS])
{
	uint32_t last = job->page->done[0] ? job->page->done[0] - 1 : 0;

	for (unsigned p = 0; p < ORDER_PROOFS; p++)
		for (uint32_t r = 0; r < job->ranks; r++)
			sum[p] += job->page->proof[last][r][p];
}

static int run_epochs(struct rank_run *run)
{
	struct order_page *page = run->job->page;

	for (uint32_t epoch = 0; epoch < ORDER_EPOCHS; epoch++) {
		run->sim.goal = (uint64_t)(epoch + 1) * run->job->goal;
		run->progress_ns = epf_now_ns();
		while (!sim_rank_is_done(&run->sim))
			if (turn(run))
				return -1;
		/* On the core's thread, so that its counters do not change. */
		epf_core_call(run->ep->core, publish_call, run);
		__atomic_store_n(&page->done[run->rank], epoch + 1, __ATOMIC_RELEASE);
		while (!all_at_least(run->job, page->done, epoch + 1))
			if (turn(run))
				return -1;
		if (has_proved(run->job, epoch))
			return 0;
	}
	return fail(run, "rank %u: %u epochs proved nothing", run->rank, ORDER_EPOCHS);
}

static int run_to_end(struct rank_run *run)
{
	struct order_page *page = run->job->page;
	uint64_t refused = 0, end;
	int rc = run_epochs(run);

	if (rc)
		return rc;
	run->job->errors = 0;
	/* Packets still in flight must change nothing. */
	for (end = epf_now_ns() + DRAIN_NS * SLOWER; epf_now_ns() < end;)
		if (turn(run))
			return -1;
	if (sim_rank_final(&run->sim))
		return fail(run, "%s", run->sim.failure);
	epf_counter(run->ep, "arrivals_refused", &refused);
	if (refused)
		return fail(run, "rank %u refused %llu arrivals of good peers", run->rank,
			    (unsigned long long)refused);
	__atomic_store_n(&page->ended[run->rank], 1, __ATOMIC_RELEASE);
	while (!all_at_least(run->job, page->ended, 1))
		if (turn(run))
			return -1;
	return 0;
}

int order_run_rank(struct order_job *shared, uint32_t rank, struct epf_boot *boot)
{
	struct order_job job = *shared;
	struct rank_run run = { .job = &job, .rank = rank, .rng = sim_mix(job.seed * 31 + rank) };
	struct settings settings;
	struct epf_options o;
	int rc;

	make_settings(&job, rank, &settings);
	epf_options_init(&o);
	o.settings = settings.list;
	if (epf_open(&o, &run.ep))
		return fail(&run, "rank %u: open: %s", rank, epf_last_error());
	rc = sim_rank_setup(&run.sim, &job.plan, run.ep, rank);
	for (uint32_t i = 0; i < job.rings && !rc; i++) {
		struct epf_ring_options ro = { .size = sizeof(ro),
					       .slots = i ? 16 : 64,
					       .start = i == 1 ? UINT64_MAX - 150 : 0 };

		rc = epf_ring_open(run.ep, &ro, &run.sim.rings[i]);
	}
	if (!rc)
		rc = epf_join(run.ep, boot);
	if (rc)
		fail(&run, "rank %u: join: %s", rank, epf_last_error());
	else
		rc = run_to_end(&run);
	epf_close(run.ep);
	sim_rank_free(&run.sim);
	return rc;
}
