/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model's time of an engine beside real ones. The same program pushes the same low-latency commands three times:
 *
 *   alone  one engine of a job of R ranks, on the null NIC, over and over: its memory is in the caches, as with a core to itself; nothing arrives
 *   job    all R engines on the software NIC, stepped by this thread one after the other: it also moves the bytes, and caches hold 1/R of them
 *   model  the simulation (scale.h), with what a step, a command and a doorbell cost an engine alone in two jobs that differ in how many commands a lane gets; nothing for arrivals
 *
 * Compared is what the first engine has worked: the sum of the steps in which something was done, by the time-stamp counter. Steps of more than a millisecond,
 * in which the kernel ran somebody else, are left out; the same calls are played several times, and the least time of each counts. There is no verdict: the
 * caller reads ratios.
 */
#include "bench/scale/scale.h"

#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "kernels/epf_ll.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

enum {
	MANY_RANKS = 4,
	FEW_RANKS = 16,
	FEW_TOKENS = 4, /* two rows a peer: with fewer, doorbells ring for a signal alone */
	WARM_UP =
		12, /* calls in which groups open and lanes grow: at 16 ranks the last in the tenth */
	TIMES = 7, /* that an engine alone is played */
	JOB_TIMES = 3,
	IDLE_STEPS = 20000,
	QUIET_STEPS = 8,
	PHASES = 2,
	TICKS_LIMIT_HZ = 1000
};

/* What the first engine did in a call, or in several. */
struct work {
	double busy_ns; /* steps in which something was done */
	uint64_t steps, commands, doorbells, left_out;
};

static double ns_of(uint64_t ticks)
{
	return (double)ticks * 1e9 / (double)epf_tsc_hz();
}

/* One step. Returns how much it did. */
static unsigned timed_step(struct scale_core *c, struct work *w)
{
	uint64_t before = epf_stat_get(c->block, EPF_STAT_CORE_CMDS_DEQUEUED);
	uint64_t begun = epf_tsc();
	unsigned handled = epf_core_step(c->core);
	uint64_t ticks = epf_tsc() - begun;

	c->core->wakes = 0;
	if (!handled)
		return 0;
	w->commands += epf_stat_get(c->block, EPF_STAT_CORE_CMDS_DEQUEUED) - before;
	w->steps++;
	if (ticks < epf_tsc_hz() / TICKS_LIMIT_HZ)
		w->busy_ns += ns_of(ticks);
	else
		w->left_out++;
	return handled;
}

/* A phase of all engines in turn, until all ranks have ended it. */
static int run_job(struct scale *s, struct work *w)
{
	struct work others = { 0 };

	scale_begin(s, 0);
	while (s->running && !s->wrong)
		for (uint32_t i = 0; i < s->n_nodes; i++) {
			scale_poll(s, &s->cores[i]);
			timed_step(&s->cores[i], i ? &others : w);
		}
	return s->wrong ? epf_fail(EPF_R_WAIT_TIMEOUT, "%s", s->why) : 0;
}

/* A phase of the first engine, until it has sent everything. Nobody answers. */
static int run_alone(struct scale *s, struct work *w)
{
	uint64_t before = scale_doorbells(&s->cores[0]);
	unsigned quiet = 0;

	scale_begin(s, 0);
	while (quiet < QUIET_STEPS) {
		int did = scale_poll(s, &s->cores[0]);

		quiet = timed_step(&s->cores[0], w) || did ? 0 : quiet + 1;
	}
	w->doorbells += scale_doorbells(&s->cores[0]) - before;
	if (!s->wrong && epf_stat_get(s->cores[0].block, EPF_STAT_CORE_CMDS_DEFERRED))
		scale_wrong(s, "an engine without answers has used up its credit: fewer rounds");
	return s->wrong ? epf_fail(EPF_R_WAIT_TIMEOUT, "%s", s->why) : 0;
}

/* The model of all engines. */
static int run_model(struct scale *s, struct work *w)
{
	if (scale_run(s))
		return epf_fail(EPF_R_WAIT_TIMEOUT, "%s", s->why);
	w->busy_ns = (double)s->cores[0].busy_ns;
	w->commands = s->cores[0].ranks[0].commands;
	return 0;
}

/* What a step costs in which nothing is done: the least of several rounds. */
static double idle_step_ns(struct scale *s)
{
	double least = 0;

	for (unsigned round = 0; round < 5; round++) {
		uint64_t begun = epf_tsc();
		double ns;

		for (unsigned i = 0; i < IDLE_STEPS; i++)
			(void)epf_core_step(s->cores[0].core);
		ns = ns_of(epf_tsc() - begun) / IDLE_STEPS;
		least = !round || ns < least ? ns : least;
	}
	return least;
}

/* The kernel ran somebody else, or an interrupt came: of a call that is played again and again, the least counts. */
static int is_better(const struct work *a, const struct work *b)
{
	return a->left_out != b->left_out ? a->left_out < b->left_out : a->busy_ns < b->busy_ns;
}

/* The calls of a job, after those of the warm-up: calls[rounds][PHASES] keeps the best that was seen of each. *step_ns: NULL, or what an idle step costs. */
static int play(const struct scale_options *o, uint32_t rounds,
		int (*run)(struct scale *s, struct work *w), struct work *calls, double *step_ns)
{
	struct scale *s = scale_open(o);
	struct scale_ll *ll = s ? scale_ll_open(s, 0) : NULL;
	int rc = ll ? 0 : -ENOMEM;

	for (uint32_t i = 0; i < (WARM_UP + rounds) * PHASES && !rc; i++) {
		struct work w = { 0 };

		scale_ll_begin(ll, i / PHASES, i % PHASES);
		rc = run(s, &w);
		if (i >= WARM_UP * PHASES && (!calls[i - WARM_UP * PHASES].commands ||
					      is_better(&w, &calls[i - WARM_UP * PHASES])))
			calls[i - WARM_UP * PHASES] = w;
	}
	if (!rc && step_ns)
		*step_ns = idle_step_ns(s);
	scale_ll_close(ll);
	scale_close(s);
	return rc;
}

/* Plays so many times and adds up, in w[PHASES]. */
static int play_times(const struct scale_options *o, uint32_t rounds, unsigned times,
		      int (*run)(struct scale *s, struct work *w), struct work *w, double *step_ns)
{
	struct work *calls = calloc((size_t)rounds * PHASES, sizeof(*calls));
	int rc = calls ? 0 : epf_fail(EPF_R_NO_MEMORY, "no memory for %u calls", rounds);

	for (unsigned i = 0; i < times && !rc; i++)
		rc = play(o, rounds, run, calls, step_ns);
	for (uint32_t i = 0; i < rounds * PHASES && !rc; i++) {
		w[i % PHASES].busy_ns += calls[i].busy_ns;
		w[i % PHASES].steps += calls[i].steps;
		w[i % PHASES].commands += calls[i].commands;
		w[i % PHASES].doorbells += calls[i].doorbells;
		w[i % PHASES].left_out += calls[i].left_out;
	}
	free(calls);
	return rc;
}

/* An engine for each rank, with memory as the kernels lay it out. */
static struct scale_options options_of(const struct scale_options *o, const char *nic,
				       uint32_t ranks)
{
	struct scale_options out = *o;

	out.ranks = ranks;
	out.per_node = out.near = 1;
	out.nic = nic;
	out.region_bytes = epf_ll_size_hint(o->tokens_max, o->hidden, ranks, SCALE_EXPERTS);
	return out;
}

/* Plays all three; `model` has the measured times. */
static int compare(const struct scale_options *model, uint32_t ranks, uint32_t rounds)
{
	struct scale_options null = options_of(model, "null", ranks),
			     emu = options_of(model, "emu", ranks),
			     sim = options_of(model, NULL, ranks);
	struct work alone[PHASES] = { 0 }, job[PHASES] = { 0 }, m[PHASES] = { 0 };
	double each = 1e3 * rounds;
	int rc = play_times(&null, rounds, TIMES, run_alone, alone, NULL);

	if (!rc)
		rc = play_times(&emu, rounds, JOB_TIMES, run_job, job, NULL);
	if (!rc)
		rc = play_times(&sim, rounds, 1, run_model, m, NULL);
	for (int i = 0; i < PHASES && !rc; i++) {
		double a = alone[i].busy_ns / each, j = job[i].busy_ns / each,
		       t = m[i].busy_ns / each;

		printf("%9u %9s %9.0f %9.1f %8.1f %10.1f %10.1f %10.1f %12.3f %11.3f %9llu\n",
		       ranks, i ? "combine" : "dispatch", (double)m[i].commands / rounds,
		       (double)alone[i].doorbells / rounds, (double)alone[i].steps / rounds, t, a,
		       j, t / a, t / j, (unsigned long long)(alone[i].left_out + job[i].left_out));
	}
	return rc;
}

/* What an engine alone works in a job: both phases, without what its steps cost by themselves. */
static int measure(const struct scale_options *options, uint32_t ranks, uint32_t tokens,
		   uint32_t rounds, struct work *sum, double *step_ns)
{
	struct scale_options o = options_of(options, "null", ranks);
	struct work w[PHASES] = { 0 };
	int rc;

	o.tokens = tokens;
	rc = play_times(&o, rounds, TIMES, run_alone, w, step_ns);
	for (int i = 0; i < PHASES && !rc; i++) {
		sum->busy_ns += w[i].busy_ns - *step_ns * (double)w[i].steps;
		sum->commands += w[i].commands;
		sum->doorbells += w[i].doorbells;
	}
	return rc;
}

/*
 * What a step, a command and a doorbell cost: an engine that posts many commands to each lane, and one that posts few, make two equations. Arrivals
 * cost nothing: an engine alone has none.
 */
static int set_times(struct scale_options *model, uint32_t rounds)
{
	struct work many = { 0 }, few = { 0 };
	double step_ns, det;
	int rc = measure(model, MANY_RANKS, model->tokens, rounds, &many, &step_ns);

	if (!rc)
		rc = measure(model, FEW_RANKS, FEW_TOKENS, rounds, &few, &step_ns);
	if (rc)
		return rc;
	det = (double)many.commands * (double)few.doorbells -
	      (double)few.commands * (double)many.doorbells;
	model->step_ns = step_ns;
	model->command_ns =
		(many.busy_ns * (double)few.doorbells - few.busy_ns * (double)many.doorbells) / det;
	model->doorbell_ns =
		(few.busy_ns * (double)many.commands - many.busy_ns * (double)few.commands) / det;
	model->arrival_ns = 0;
	return 0;
}

int scale_real(const struct scale_options *options, uint32_t most, uint32_t rounds)
{
	struct scale_options model = *options;
	int rc = set_times(&model, rounds);

	if (rc)
		return rc;
	printf("# measured of an engine alone: a step %.0f ns, a command %.1f ns, a doorbell %.1f ns; nothing arrives\n",
	       model.step_ns, model.command_ns, model.doorbell_ns);
	printf("#%8s %9s %9s %9s %8s %10s %10s %10s %12s %11s %9s\n", "ranks", "phase", "commands",
	       "doorbells", "steps", "model_us", "alone_us", "job_us", "model/alone", "model/job",
	       "left_out");
	for (uint32_t ranks = 8; ranks <= most && !rc; ranks *= 2)
		rc = compare(&model, ranks, rounds);
	return rc;
}
