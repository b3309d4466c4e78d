/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs one seed: opens the job, lets engines and ranks take turns on the virtual clock, breaks lanes and links, looks for a
 * job that is stuck, and drives on until the seed has shown what it must. See sim.h. Nothing here depends on real time.
 */
#include "tests/prop/sim.h"

#include "fabric/engine/recovery.h"
#include "fabric/nic/emu/emu.h"

#include <stdarg.h>
#include <string.h>

enum {
	STUCK_NS = 1000 * 1000 * 1000, /* virtual time without progress */
	STUCK_ROUNDS = 100000,         /* and rounds: a loop that only talks to itself */
	QUIET_ROUNDS = 4,
	MOST_EPOCHS = 40,
	DRAIN_NS = 20 * 1000 * 1000,
	LINK_DOWN_NS = 400000,
};

struct sim {
	const struct sim_case *c;
	struct sim_params p;
	struct sim_plan plan;
	struct job job;
	struct sim_rank rank[SIM_RANKS];
	uint64_t rng;
	uint64_t next_error_ns, next_link_ns, link_up_ns;
	uint32_t link_rank;
	uint32_t link_down;
	uint64_t progress_ns;
	uint64_t progress_round, round;
	unsigned quiet;
	struct sim_result *out;
};

static struct sim *current;

static enum sim_verdict verdict(struct sim *s, enum sim_verdict v, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(s->out->text, sizeof(s->out->text), fmt, ap);
	va_end(ap);
	return s->out->verdict = v;
}

static void setup_rank(struct job *job, uint32_t rank)
{
	struct sim *s = current;

	if (sim_rank_setup(&s->rank[rank], &s->plan, job->ep[rank], rank))
		verdict(s, SIM_ERROR, "rank %u: %s", rank, epf_last_error());
	for (uint32_t i = 0; i < s->p.rings; i++) {
		struct epf_ring_options o = { .size = sizeof(o),
					      .slots = s->p.slots[i],
					      .start = s->p.ring_start[i] };

		if (epf_ring_open(job->ep[rank], &o, &s->rank[rank].rings[i]))
			verdict(s, SIM_ERROR, "rank %u: %s", rank, epf_last_error());
	}
}

/* Every lane of the job is up and nothing is being recovered. */
static int all_lanes_up(const struct sim *s)
{
	for (uint32_t r = 0; r < s->p.ranks; r++) {
		const struct epf_core *core = s->job.ep[r]->core;

		if (core->recovering)
			return 0;
		for (uint32_t l = 0; l < core->n_lanes; l++)
			if (core->lanes[l].state != EPF_LANE_UP)
				return 0;
	}
	return 1;
}

/*
 * Breaks a lane as a failed completion would: what is under way on it is lost or not, and its late packets still travel.
 * Either when all lanes are up (the NIC's own errors are switched off while one is being recovered), or, wild, at any
 * time, also in the middle of a recovery, but never the last lane of a node: one must be left.
 */
static void break_lanes(struct sim *s)
{
	int up;

	if (!s->p.error_ns)
		return;
	up = s->p.wild || all_lanes_up(s);
	for (uint32_t r = 0; s->p.nic_error > 0 && r < s->p.ranks; r++) {
		struct epf_emu *e = epf_emu_of(s->job.ep[r]->nic);

		e->p_error = up ? (uint64_t)(s->p.nic_error * 18446744073709551616.0) : 0;
	}
	if (!up || s->job.clock_ns < s->next_error_ns)
		return;
	/* One with work under way if it can be found: the first one breaks whatever it holds. */
	for (unsigned tries = 0; tries < 6; tries++) {
		struct epf_core *core = s->job.ep[sim_range(&s->rng, 0, s->p.ranks - 1)]->core;
		struct epf_lane *lane = &core->lanes[sim_range(&s->rng, 0, core->n_lanes - 1)];

		if (lane->state != EPF_LANE_UP || (s->p.wild && lane->index + 1u == s->p.lanes))
			continue;
		if (lane->tail == lane->head && tries < 4)
			continue;
		epf_lane_error_cold(core, lane, EPF_S_RETRY_EXCEEDED);
		break;
	}
	s->next_error_ns = s->job.clock_ns + sim_range(&s->rng, 1, 2 * (uint32_t)s->p.error_ns);
}

/* A link goes down for less than the retry timeout: everything must wait and go on. */
static void move_links(struct sim *s)
{
	struct epf *ep;

	if (!s->p.link_ns)
		return;
	if (s->link_down && s->job.clock_ns >= s->link_up_ns) {
		ep = s->job.ep[s->link_rank];
		ep->ops->set_link(ep->nic, 0, 1);
		s->link_down = 0;
	}
	if (s->link_down || s->job.clock_ns < s->next_link_ns)
		return;
	s->link_rank = sim_range(&s->rng, 0, s->p.ranks - 1);
	ep = s->job.ep[s->link_rank];
	ep->ops->set_link(ep->nic, 0, 0);
	s->link_down = 1;
	s->link_up_ns = s->job.clock_ns + sim_range(&s->rng, 1, LINK_DOWN_NS);
	s->next_link_ns = s->link_up_ns + sim_range(&s->rng, 1, 2 * (uint32_t)s->p.link_ns);
	s->out->seen.links++;
}

/* The next time anything can happen by itself. */
static uint64_t next_event(const struct sim *s)
{
	uint64_t next = UINT64_MAX;

	for (uint32_t r = 0; r < s->p.ranks; r++) {
		const struct epf_core *core = s->job.ep[r]->core;
		uint64_t e = core->ops->next_event(core->nic);

		next = e < next ? e : next;
		next = core->next_tick_ns < next ? core->next_tick_ns : next;
	}
	if (s->link_down && s->link_up_ns < next)
		next = s->link_up_ns;
	return next;
}

/* One round: every engine that is not left out makes a step, every rank its part, time goes on. */
static int round_of(struct sim *s)
{
	uint32_t first = sim_range(&s->rng, 0, s->p.ranks - 1);
	unsigned handled = 0, left_out = 0;
	int rc;

	s->round++;
	for (uint32_t i = 0; i < s->p.ranks; i++) {
		uint32_t r = (first + i) % s->p.ranks;
		struct epf_core *core = s->job.ep[r]->core;

		if (sim_range(&s->rng, 1, s->p.lazy) == 1) {
			left_out++;
			continue;
		}
		handled += epf_core_step(core);
		core->wakes = 0;
		s->out->seen.steps++;
	}
	for (uint32_t r = 0; r < s->p.ranks; r++) {
		rc = sim_rank_poll(&s->rank[r]);
		if (rc < 0)
			return -1;
		if (rc > 0) {
			s->progress_ns = s->job.clock_ns;
			s->progress_round = s->round;
			handled += (unsigned)rc;
		}
	}
	break_lanes(s);
	move_links(s);
	s->job.clock_ns += sim_range(&s->rng, 1, s->p.tick_ns);
	s->quiet = handled || left_out ? 0 : s->quiet + 1;
	if (s->quiet >= QUIET_ROUNDS) {
		uint64_t next = next_event(s);

		if (next != UINT64_MAX && next > s->job.clock_ns)
			s->job.clock_ns = next;
	}
	return 0;
}

/* What the engine of a rank holds, for a job that is stuck. */
static void say_engine(const struct epf_core *core, char *buf, size_t size)
{
	size_t at = 0;

#define SAY(...) at += at < size ? (size_t)snprintf(buf + at, size - at, __VA_ARGS__) : 0
	buf[0] = 0;
	for (uint32_t i = 0; i < core->n_rings; i++) {
		const struct epf_ring_state *ring = core->rings[i];

		if (ring->seq != ring->retired || ring->blocked != EPF_NONE || ring->flush_phase)
			SAY(" ring %u: retires %u of %u, deferred %u, blocked on %d, flush phase %u;",
			    i, ring->retired, ring->seq, ring->deferred, (int)ring->blocked,
			    ring->flush_phase);
	}
	for (uint32_t i = 0; i < core->n_streams; i++) {
		const struct epf_stream *t = &core->streams[i];

		if (t->deferred_count || t->held || t->waiting)
			SAY(" stream %u kind %u to %u on lane %u: deferred %u, waiting %u%s;", i,
			    t->kind, t->peer, t->lane, t->deferred_count, t->waiting,
			    t->held ? ", holds signals" : "");
	}
	for (uint32_t i = 0; i < core->n_lanes; i++) {
		const struct epf_lane *l = &core->lanes[i];

		if (l->tail != l->head || l->state != EPF_LANE_UP || l->waiting_head != EPF_NONE)
			SAY(" lane %u/%u state %u holds %u, %u posted, %d events may go, waiting %d%s;",
			    l->node, l->index, l->state, l->head - l->tail, l->posted - l->tail,
			    (int)(l->granted - l->events), (int)l->waiting_head,
			    l->in_wait_list ? " listed" : "");
		if (l->state != EPF_LANE_UP && core->nodes[l->node].recovery) {
			const struct epf_lane_recovery *rec =
				&core->nodes[l->node].recovery->lanes[l->index];

			SAY(" recovery %u phase %u tells %u%u%u%u peer %u%u%u drained %d;",
			    rec->generation, rec->phase, rec->tell_fence, rec->tell_fenced,
			    rec->tell_open, rec->tell_opened, rec->peer_fenced, rec->peer_open,
			    rec->peer_opened, core->ops->lane_drained(core->nic, l->id));
		}
	}
	SAY(" messages in flight %u, bytes %llu, recovering %u, lanes listed %u",
	    core->load[0].messages, (unsigned long long)core->load[0].bytes, core->recovering,
	    core->n_wait);
#undef SAY
}

static enum sim_verdict stuck(struct sim *s)
{
	char *text = s->out->text, waits[800], engine[1200];
	size_t size = sizeof(s->out->text), at;

	at = (size_t)snprintf(text, size,
			      "stuck after %llu us:", (unsigned long long)(s->job.clock_ns / 1000));
	for (uint32_t r = 0; r < s->p.ranks && at < size; r++) {
		sim_rank_waits(&s->rank[r], waits, sizeof(waits));
		say_engine(s->job.ep[r]->core, engine, sizeof(engine));
		at += (size_t)snprintf(text + at, size - at, " rank %u:%s engine:%s", r, waits,
				       engine);
	}
	return s->out->verdict = SIM_STUCK;
}

static int is_lost(const struct sim *s)
{
	for (uint32_t r = 0; r < s->p.ranks; r++)
		if (s->job.ep[r]->core->peers_page->lost)
			return 1;
	return 0;
}

/* No lane has sent more events than the peer allows. */
static int credits_hold(struct sim *s)
{
	for (uint32_t r = 0; r < s->p.ranks; r++) {
		const struct epf_core *core = s->job.ep[r]->core;

		for (uint32_t l = 0; l < core->n_lanes; l++)
			if ((int32_t)(core->lanes[l].granted - core->lanes[l].events) < 0) {
				verdict(s, SIM_ERROR,
					"rank %u: lane %u to rank %u is beyond its credit", r,
					core->lanes[l].index, core->lanes[l].node);
				return 0;
			}
	}
	return 1;
}

static enum sim_verdict run_until_done(struct sim *s)
{
	unsigned done = 0;

	s->progress_ns = s->job.clock_ns;
	s->progress_round = s->round;
	while (done < s->p.ranks) {
		if (round_of(s))
			goto failed;
		if ((s->round & 7) == 0 && !credits_hold(s))
			return s->out->verdict;
		for (done = 0; done < s->p.ranks && sim_rank_is_done(&s->rank[done]); done++)
			;
		if (s->job.clock_ns - s->progress_ns > STUCK_NS ||
		    s->round - s->progress_round > STUCK_ROUNDS)
			return stuck(s);
	}
	return SIM_OK;
failed:
	for (uint32_t r = 0; r < s->p.ranks; r++)
		if (s->rank[r].failure[0])
			verdict(s, s->rank[r].wrong ? SIM_WRONG : SIM_ERROR, "%s",
				s->rank[r].failure);
	if (s->out->verdict == SIM_ERROR && is_lost(s) && s->p.nic_error > 0)
		s->out->verdict = SIM_LOST;
	return s->out->verdict;
}

static void look(struct sim *s)
{
	struct sim_totals *t = &s->out->seen;
	uint64_t steps = t->steps, links = t->links;

	memset(t, 0, sizeof(*t));
	t->seeds = 1;
	t->steps = steps;
	t->links = links;
	t->wraps = (uint64_t)s->p.wraps;
	for (uint32_t r = 0; r < s->p.ranks; r++) {
		struct epf *ep = s->job.ep[r];
		struct epf_nic_counters n;
		uint64_t v[6] = { 0 };

		ep->ops->counters(ep->nic, &n);
		epf_counter(ep, "signals_waited", &v[0]);
		epf_counter(ep, "duplicates_dropped", &v[1]);
		epf_counter(ep, "lane_errors", &v[2]);
		epf_counter(ep, "replays", &v[3]);
		epf_counter(ep, "cmds_dequeued", &v[4]);
		epf_counter(ep, "signals_applied", &v[5]);
		t->reordered += n.packets_reordered;
		t->duplicated += n.packets_duplicated;
		t->dropped += n.packets_dropped;
		t->nic_errors += n.errors;
		t->waited += v[0];
		t->duplicates_dropped += v[1];
		t->lane_errors += v[2];
		t->replays += v[3];
		t->commands += v[4];
		t->signals += v[5];
	}
}

/* The seed has shown what it must: on an ordered NIC nothing overtakes or comes twice. */
static int has_proved(struct sim *s)
{
	const struct sim_totals *t = &s->out->seen;

	look(s);
	if (s->p.error_ns && !t->lane_errors)
		return 0;
	return s->c->ordered ? t->dropped > 0
			     : t->reordered && t->duplicated && t->dropped && t->waited &&
				       t->duplicates_dropped;
}

static enum sim_verdict run_job(struct sim *s)
{
	uint64_t refused = 0, end;

	for (uint32_t epoch = 1; epoch == 1 || !has_proved(s); epoch++) {
		if (epoch > MOST_EPOCHS)
			return verdict(
				s, SIM_ERROR,
				"proved nothing: reordered %llu, duplicated %llu, dropped %llu, signals "
				"waited %llu, duplicates dropped %llu, lanes failed %llu",
				(unsigned long long)s->out->seen.reordered,
				(unsigned long long)s->out->seen.duplicated,
				(unsigned long long)s->out->seen.dropped,
				(unsigned long long)s->out->seen.waited,
				(unsigned long long)s->out->seen.duplicates_dropped,
				(unsigned long long)s->out->seen.lane_errors);
		for (uint32_t r = 0; r < s->p.ranks; r++)
			s->rank[r].goal = (uint64_t)epoch * s->p.goal;
		if (run_until_done(s))
			return s->out->verdict;
	}
	/* What still travels must change nothing. */
	end = s->job.clock_ns + DRAIN_NS;
	s->p.error_ns = 0;
	while (s->job.clock_ns < end)
		if (round_of(s))
			break;
	for (uint32_t r = 0; r < s->p.ranks; r++)
		if (s->rank[r].failure[0] || sim_rank_final(&s->rank[r]))
			return verdict(s, s->rank[r].wrong ? SIM_WRONG : SIM_ERROR, "%s",
				       s->rank[r].failure);
	for (uint32_t r = 0; r < s->p.ranks; r++) {
		struct epf_nic_counters n;

		/* Where nothing comes twice, no message finds its peer without a receive: the credits see to that. */
		s->job.ep[r]->ops->counters(s->job.ep[r]->nic, &n);
		if (s->c->ordered && n.rnr_events)
			return verdict(s, SIM_ERROR, "rank %u had no receive %llu times", r,
				       (unsigned long long)n.rnr_events);
		epf_counter(s->job.ep[r], "arrivals_refused", &refused);
		if (refused)
			return verdict(s, SIM_ERROR, "rank %u refused %llu arrivals of good peers",
				       r, (unsigned long long)refused);
	}
	return SIM_OK;
}

static void say_settings(struct sim *s)
{
	char *text = s->out->settings;
	size_t size = sizeof(s->out->settings);
	size_t at = (size_t)snprintf(
		text, size, "ranks %u rings %u channels %u errors %llu wild %d links %llu",
		s->p.ranks, s->p.rings, s->p.chans, (unsigned long long)s->p.error_ns, s->p.wild,
		(unsigned long long)s->p.link_ns);

	for (unsigned i = 0; i < s->p.n && at < size; i++)
		at += (size_t)snprintf(text + at, size - at, " %s", s->p.settings[i]);
}

enum sim_verdict sim_run(const struct sim_case *c, struct sim_result *out)
{
	static struct sim s;

	memset(&s, 0, sizeof(s));
	memset(out, 0, sizeof(*out));
	current = &s;
	s.c = c;
	s.out = out;
	s.rng = sim_mix(c->seed ^ 0x73696dull);
	sim_params_shape(&s.p, c);
	sim_plan_make(&s.plan, c->seed, s.p.ranks, s.p.rings, s.p.chans);
	sim_params_make(&s.p, c, s.plan.signals, s.plan.early_signals);
	say_settings(&s);
	if (job_open(&s.job, s.p.ranks, s.p.ranks, s.p.settings, s.p.tick_ns, setup_rank))
		verdict(&s, SIM_ERROR, "the job did not open: %s", epf_last_error());
	if (out->verdict == SIM_OK)
		out->verdict = run_job(&s);
	look(&s);
	job_close(&s.job);
	for (uint32_t r = 0; r < s.p.ranks; r++)
		sim_rank_free(&s.rank[r]);
	return out->verdict;
}
