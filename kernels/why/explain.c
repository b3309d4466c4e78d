/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What follows from reports (epf_why.h): who was waited for, and why. Pure functions, also linked by tools, which make reports of statistics files.
 *
 * A rank that is late is the one that waits least itself. So where a rank that was waited for cannot tell lateness from a slow link, the report of the
 * rank that was missing can: a late rank finds the others' rows there, a rank behind a slow link waits like everybody else.
 */
#include "kernels/epf_why.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LEAST_SHARE 0.05 /* of the time of all calls: below it nothing is named */
#define LEAST_LOAD  1.5  /* rows as a multiple of the others' */
#define LEAST_ROWS  64u  /* of a rank: fewer say nothing about load */
#define MOST_LOAD   99.0 /* the others have none */

static const char *const calls[EPF_WHY_CALLS] = {
	[EPF_WHY_HT_LAYOUT] = "ht.layout",
	[EPF_WHY_HT_NOTIFY] = "ht.notify",
	[EPF_WHY_HT_DISPATCH] = "ht.dispatch",
	[EPF_WHY_HT_COMBINE] = "ht.combine",
	[EPF_WHY_LL_DISPATCH_SEND] = "ll.dispatch.send",
	[EPF_WHY_LL_DISPATCH_RECV] = "ll.dispatch.recv",
	[EPF_WHY_LL_COMBINE_SEND] = "ll.combine.send",
	[EPF_WHY_LL_COMBINE_RECV] = "ll.combine.recv",
};

const char *epf_why_call_name(uint32_t call)
{
	return call < EPF_WHY_CALLS ? calls[call] : "unknown";
}

const char *epf_why_kind_name(uint32_t kind)
{
	static const char *const names[] = { "late", "link", "load", "unknown" };

	return kind < sizeof(names) / sizeof(names[0]) ? names[kind] : "unknown";
}

uint64_t epf_why_report_bytes(uint32_t ranks)
{
	return sizeof(struct epf_why_report) +
	       (uint64_t)EPF_WHY_CALLS * ranks * sizeof(struct epf_why_peer);
}

void epf_why_since(struct epf_why_report *later, const struct epf_why_report *before)
{
	for (uint32_t c = 0; c < EPF_WHY_CALLS; c++) {
		later->call[c].calls -= before->call[c].calls;
		for (unsigned p = 0; p < EPF_WHY_PHASES; p++)
			later->call[c].ns[p] -= before->call[c].ns[p];
	}
	for (uint64_t i = 0; i < (uint64_t)EPF_WHY_CALLS * later->ranks; i++) {
		for (unsigned w = 0; w < EPF_WHY_REASONS; w++) {
			later->peer[i].wait[w].ns -= before->peer[i].wait[w].ns;
			later->peer[i].wait[w].times -= before->peer[i].wait[w].times;
		}
		later->peer[i].rows_to -= before->peer[i].rows_to;
		later->peer[i].rows_from -= before->peer[i].rows_from;
	}
}

/* ---- sums over reports ---- */

/* What all reports say of one rank. */
struct sums {
	struct epf_why_wait wait[EPF_WHY_REASONS];
	uint64_t by_call[EPF_WHY_REASONS][EPF_WHY_CALLS];
	uint64_t others_ns; /* time of the calls of the other ranks */
	double to;          /* rows it receives */
	double from;        /* rows it sends */
	const struct epf_why_report *own;
};

static const struct epf_why_peer *peer_of(const struct epf_why_report *r, uint32_t call,
					  uint32_t peer)
{
	return &r->peer[(uint64_t)call * r->ranks + peer];
}

static uint64_t phase_ns(const struct epf_why_report *r, unsigned phase)
{
	uint64_t ns = 0;

	for (uint32_t c = 0; c < EPF_WHY_CALLS; c++)
		ns += r->call[c].ns[phase];
	return ns;
}

static uint64_t all_ns(const struct epf_why_report *r)
{
	return phase_ns(r, EPF_WHY_WAIT) + phase_ns(r, EPF_WHY_MOVE) + phase_ns(r, EPF_WHY_COPY);
}

static void add_report(struct sums *s, const struct epf_why_report *r, uint32_t rank)
{
	for (uint32_t c = 0; c < EPF_WHY_CALLS; c++) {
		const struct epf_why_peer *p = peer_of(r, c, rank);

		s->to += (double)p->rows_to;
		s->from += (double)p->rows_from;
		for (unsigned w = 0; w < EPF_WHY_REASONS && r->rank != rank; w++) {
			s->wait[w].ns += p->wait[w].ns;
			s->wait[w].times += p->wait[w].times;
			if (p->wait[w].most_ns > s->wait[w].most_ns)
				s->wait[w].most_ns = p->wait[w].most_ns;
			s->by_call[w][c] += p->wait[w].ns;
		}
	}
	if (r->rank == rank)
		s->own = r;
	else
		s->others_ns += all_ns(r);
}

/* Counts waits of one reason as of another. */
static void move_waits(struct sums *s, unsigned from, unsigned to)
{
	struct epf_why_wait *a = &s->wait[from], *b = &s->wait[to];

	b->ns += a->ns;
	b->times += a->times;
	if (a->most_ns > b->most_ns)
		b->most_ns = a->most_ns;
	for (uint32_t c = 0; c < EPF_WHY_CALLS; c++) {
		s->by_call[to][c] += s->by_call[from][c];
		s->by_call[from][c] = 0;
	}
	memset(a, 0, sizeof(*a));
}

/* What a rank has waited for others, for whatever reason. */
static uint64_t waited_ns(const struct epf_why_report *r)
{
	uint64_t ns = 0;

	for (uint64_t i = 0; i < (uint64_t)EPF_WHY_CALLS * r->ranks; i++)
		for (unsigned w = 0; w < EPF_WHY_REASONS; w++)
			ns += r->peer[i].wait[w].ns;
	return ns;
}

/* Moves what may be either to where the rank's own report, or else the rest of what is known, says that it belongs. */
static void decide(struct sums *s, const struct epf_why_report *const *reports, uint32_t n)
{
	uint64_t late = s->wait[EPF_WHY_LATE].ns, slow = s->wait[EPF_WHY_SLOW].ns, others = 0;
	uint64_t either = s->wait[EPF_WHY_EITHER].ns;
	bool is_late = late >= slow;

	for (uint32_t i = 0; i < n; i++)
		others += reports[i] != s->own ? waited_ns(reports[i]) : 0;
	if (s->own && n > 1)
		is_late = waited_ns(s->own) < others / (n - 1) / 2;
	else if (late + slow < either / 10)
		return;
	move_waits(s, EPF_WHY_EITHER, is_late ? EPF_WHY_LATE : EPF_WHY_SLOW);
}

/* Rows of one rank as a multiple of the mean of the others; 0: too few to say. */
static double load_of(double mine, double all, uint32_t ranks)
{
	double others = ranks > 1 ? (all - mine) / (ranks - 1) : 0;

	if (ranks < 2 || all < (double)LEAST_ROWS * ranks)
		return 0;
	return others > 0 && mine / others < MOST_LOAD ? mine / others : MOST_LOAD;
}

static void add_cause(struct sums *s, unsigned reason, uint32_t kind, uint32_t rank,
		      struct epf_why_cause *c)
{
	memset(c, 0, sizeof(*c));
	c->kind = kind;
	c->rank = rank;
	c->ns = s->wait[reason].ns;
	c->times = s->wait[reason].times;
	c->most_ns = s->wait[reason].most_ns;
	c->share = s->others_ns ? (double)c->ns / (double)s->others_ns : 0;
	for (uint32_t k = 0; k < EPF_WHY_CALLS; k++)
		if (s->by_call[reason][k] > s->by_call[reason][c->call])
			c->call = k;
}

/* The causes of one rank, at most two. Who has more rows than others is waited for because of them. */
static uint32_t causes_of(struct sums *s, uint32_t rank, double received, double sent,
			  struct epf_why_cause *out)
{
	static const uint32_t kinds[EPF_WHY_REASONS] = { [EPF_WHY_LATE] = EPF_WHY_IS_LATE,
							 [EPF_WHY_SLOW] = EPF_WHY_IS_LINK,
							 [EPF_WHY_EITHER] = EPF_WHY_IS_UNKNOWN };
	bool loaded = received >= LEAST_LOAD || sent >= LEAST_LOAD;
	uint32_t n = 0;

	if (loaded) {
		move_waits(s, EPF_WHY_SLOW, EPF_WHY_LATE);
		move_waits(s, EPF_WHY_EITHER, EPF_WHY_LATE);
		add_cause(s, EPF_WHY_LATE, EPF_WHY_IS_LOAD, rank, &out[n++]);
	}
	for (unsigned w = 0; w < EPF_WHY_REASONS && !loaded; w++) {
		add_cause(s, w, kinds[w], rank, &out[n]);
		n += out[n].share >= LEAST_SHARE && n < 2;
	}
	for (uint32_t i = 0; i < n; i++) {
		out[i].received = received;
		out[i].sent = sent;
	}
	return n;
}

static int compare(const void *a, const void *b)
{
	const struct epf_why_cause *x = a, *y = b;

	if (x->ns != y->ns)
		return x->ns < y->ns ? 1 : -1;
	return x->rank < y->rank ? -1 : x->rank > y->rank;
}

/* All causes, sorted: at most two a rank. *out: to be freed; NULL: none, or no memory. */
static uint32_t find_causes(const struct epf_why_report *const *reports, uint32_t n,
			    struct epf_why_cause **out)
{
	uint32_t ranks = n ? reports[0]->ranks : 0, found = 0;
	struct sums *s = calloc(ranks + 1u, sizeof(*s));
	struct epf_why_cause *c = calloc(3u * ranks + 1u, sizeof(*c));
	double to = 0, from = 0;

	*out = NULL;
	for (uint32_t i = 1; i < n; i++)
		if (reports[i]->ranks != ranks)
			ranks = 0;
	for (uint32_t r = 0; r < ranks && s && c; r++) {
		for (uint32_t i = 0; i < n; i++)
			add_report(&s[r], reports[i], r);
		to += s[r].to;
		from += s[r].from;
	}
	for (uint32_t r = 0; r < ranks && s && c; r++) {
		decide(&s[r], reports, n);
		found += causes_of(&s[r], r, load_of(s[r].to, to, ranks),
				   load_of(s[r].from, from, ranks), &c[found]);
	}
	free(s);
	if (!found) {
		free(c);
		return 0;
	}
	qsort(c, found, sizeof(*c), compare);
	*out = c;
	return found;
}

uint32_t epf_why_explain(const struct epf_why_report *const *reports, uint32_t n,
			 struct epf_why_cause *out, uint32_t most)
{
	struct epf_why_cause *all;
	uint32_t found = find_causes(reports, n, &all);

	if (found)
		memcpy(out, all, (found < most ? found : most) * sizeof(*out));
	free(all);
	return found;
}

/* ---- text ---- */

struct text {
	char *at;
	size_t bytes;
	size_t used;
};

static void add(struct text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void add(struct text *t, const char *fmt, ...)
{
	size_t left = t->used < t->bytes ? t->bytes - t->used : 0;
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(left ? t->at + t->used : NULL, left, fmt, ap);
	va_end(ap);
	t->used += n > 0 ? (size_t)n : 0;
}

static double ms(uint64_t ns)
{
	return (double)ns / 1e6;
}

static double percent(uint64_t part, uint64_t all)
{
	return all ? 100.0 * (double)part / (double)all : 0;
}

static void add_waits(struct text *t, const struct epf_why_cause *c)
{
	add(t,
	    ": others waited %.1f ms for it, %.0f %% of the time of their calls, in %" PRIu64
	    " waits, %.1f ms at most, mostly in %s",
	    ms(c->ns), 100 * c->share, c->times, ms(c->most_ns), epf_why_call_name(c->call));
}

static void add_cause_line(struct text *t, uint32_t number, const struct epf_why_cause *c)
{
	add(t, "%u. rank %u ", number, c->rank);
	switch (c->kind) {
	case EPF_WHY_IS_LATE:
		add(t, "begins its calls late");
		break;
	case EPF_WHY_IS_LINK:
		add(t,
		    "begins in time, and its rows arrive late: its link, or what moves its rows, is slow");
		break;
	case EPF_WHY_IS_LOAD:
		if (c->received >= c->sent)
			add(t, "receives %.1f times the rows of the others", c->received);
		else
			add(t, "sends %.1f times the rows of the others", c->sent);
		break;
	default:
		add(t,
		    "is waited for: it begins late or its link is slow, which the reports of all ranks can tell");
	}
	if (c->share >= LEAST_SHARE)
		add_waits(t, c);
	add(t, "\n");
}

static void add_head(struct text *t, const struct epf_why_report *const *reports, uint32_t n)
{
	uint64_t ns[EPF_WHY_PHASES] = { 0 }, all = 0;

	for (uint32_t i = 0; i < n; i++)
		for (unsigned p = 0; p < EPF_WHY_PHASES; p++) {
			ns[p] += phase_ns(reports[i], p);
			all += phase_ns(reports[i], p);
		}
	if (n == 1)
		add(t, "rank %u of %u", reports[0]->rank, reports[0]->ranks);
	else
		add(t, "%u of %u ranks", n, reports[0]->ranks);
	if (!all)
		add(t, ": no calls were counted\n");
	else
		add(t,
		    ": %.1f ms in calls: %.0f %% waiting for ranks, %.0f %% moving rows, %.0f %% copying\n",
		    ms(all), percent(ns[EPF_WHY_WAIT], all), percent(ns[EPF_WHY_MOVE], all),
		    percent(ns[EPF_WHY_COPY], all));
}

static void add_calls(struct text *t, const struct epf_why_report *const *reports, uint32_t n)
{
	for (uint32_t c = 0; c < EPF_WHY_CALLS; c++) {
		struct epf_why_calls sum = { 0 };

		for (uint32_t i = 0; i < n; i++) {
			sum.calls += reports[i]->call[c].calls;
			for (unsigned p = 0; p < EPF_WHY_PHASES; p++)
				sum.ns[p] += reports[i]->call[c].ns[p];
		}
		if (!sum.calls)
			continue;
		add(t, "%-16s %8" PRIu64 " calls, us each: wait %.1f, move %.1f, copy %.1f\n",
		    calls[c], sum.calls, (double)sum.ns[EPF_WHY_WAIT] / 1e3 / (double)sum.calls,
		    (double)sum.ns[EPF_WHY_MOVE] / 1e3 / (double)sum.calls,
		    (double)sum.ns[EPF_WHY_COPY] / 1e3 / (double)sum.calls);
	}
}

size_t epf_why_text(const struct epf_why_report *const *reports, uint32_t n, char *text,
		    size_t bytes)
{
	struct text t = { text, bytes, 0 };
	struct epf_why_cause *causes;
	uint32_t found = find_causes(reports, n, &causes);

	if (bytes)
		*text = 0;
	if (n) {
		add_head(&t, reports, n);
		for (uint32_t i = 0; i < found; i++)
			add_cause_line(&t, i + 1, &causes[i]);
		if (!found)
			add(&t, "no rank stands out\n");
		add_calls(&t, reports, n);
	}
	free(causes);
	return t.used;
}
