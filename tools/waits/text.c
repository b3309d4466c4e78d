/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Words and sentences for the graph of waits (waits.h). One sentence an entry, made of its fields alone; whoever prints adds order and
 * colour. Names in it come from files and were checked there: printable ASCII.
 */
#include "tools/waits/waits.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *waits_reason_word(unsigned reason)
{
	static const char *const words[WAITS_REASONS] = {
		[EPF_STATS_WAIT_NONE] = "none",
		[EPF_STATS_WAIT_SIGNAL] = "signal-missing",
		[EPF_STATS_WAIT_RING] = "ring",
		[EPF_STATS_WAIT_FULL] = "ring-full",
		[EPF_STATS_WAIT_CREDIT] = "no-credit",
		[EPF_STATS_WAIT_QUEUE] = "send-queue-full",
		[EPF_STATS_WAIT_SENT] = "not-arrived",
		[EPF_STATS_WAIT_ACK] = "flush-not-acknowledged",
		[EPF_STATS_WAIT_LINK] = "link-down",
		[EPF_STATS_WAIT_SILENT] = "peer-silent",
		[EPF_STATS_WAIT_GAP] = "order-gap",
		[EPF_STATS_WAIT_TAKEN] = "not-taken",
		[EPF_STATS_WAIT_PUTS] = "puts-missing",
		[WAITS_R_STOPPED] = "process-stopped",
		[WAITS_R_ENDED] = "process-ended",
		[WAITS_R_ENGINE_STOPPED] = "engine-stopped",
		[WAITS_R_ENGINE_ENDED] = "engine-ended",
		[WAITS_R_ENGINE_STALE] = "engine-silent",
		[WAITS_R_LINK_DOWN] = "link-down",
		[WAITS_R_BUSY] = "busy",
		[WAITS_R_UNSEEN] = "elsewhere",
		[WAITS_R_CYCLE] = "cycle",
		[WAITS_R_LOST] = "lost",
		[WAITS_R_PATH_LOSSY] = "packets-lost",
		[WAITS_R_PATH_FULL] = "peer-buffer-full",
		[WAITS_R_PATH_SILENT] = "host-silent",
		[WAITS_R_PATH_NO_ANSWER] = "no-answer",
		[WAITS_R_PATH_REFUSED] = "refused",
		[WAITS_R_PATH_NO_ROUTE] = "no-route",
		[WAITS_R_PATH_UNCONNECTED] = "not-connected",
	};

	return reason < WAITS_REASONS && words[reason] ? words[reason] : "unknown";
}

const char *waits_who_word(enum waits_who who)
{
	static const char *const words[] = { "rank", "ring", "lane", "peer", "fact" };

	return words[who];
}

const char *waits_alive_word(enum epf_stats_alive alive)
{
	static const char *const words[] = {
		[EPF_STATS_UNKNOWN] = "unknown", [EPF_STATS_ALIVE] = "alive",
		[EPF_STATS_STALE] = "stale",     [EPF_STATS_DEAD] = "dead",
		[EPF_STATS_ENDED] = "ended",
	};

	return (unsigned)alive <= EPF_STATS_ENDED ? words[alive] : "unknown";
}

/* A text that grows to the end of its room. */
struct text {
	char *at;
	size_t left;
};

static void add(struct text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void add(struct text *t, const char *fmt, ...)
{
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(t->at, t->left, fmt, ap);
	va_end(ap);
	if (n < 0)
		return;
	if ((size_t)n >= t->left)
		n = t->left ? (int)t->left - 1 : 0;
	t->at += n;
	t->left -= (size_t)n;
}

static const struct waits_rank *rank_of(const struct waits *w, const struct waits_entry *e)
{
	for (uint32_t i = 0; i < w->n_ranks; i++)
		if (w->rank[i].job == e->job && w->rank[i].rank == e->rank)
			return &w->rank[i];
	return NULL;
}

static void add_age(struct text *t, const struct waits_entry *e)
{
	if (e->age_ns)
		add(t, " for %.1f s", (double)e->age_ns / 1e9);
}

/* "rank 3 (process 4711, instance node1)" */
static void add_rank(struct text *t, const struct waits *w, const struct waits_entry *e)
{
	const struct waits_rank *r = rank_of(w, e);

	add(t, "rank %" PRIu32, e->rank);
	if (r && r->pid)
		add(t, " (process %" PRIu64 ", instance %s)", r->pid,
		    w->instance[r->instance].name);
}

static void add_engine(struct text *t, const struct waits *w, const struct waits_entry *e)
{
	const struct waits_instance *in = &w->instance[e->instance];

	add(t, "the engine %s (process %" PRIu64 ")", in->name, in->pid);
}

static void add_last_seen(struct text *t, const struct waits *w, const struct waits_entry *e)
{
	const struct waits_rank *r = rank_of(w, e);

	if (r && r->active_ns && r->active_ns < w->now_ns)
		add(t, ", it last pushed a command or began a wait %.1f s ago",
		    (double)(w->now_ns - r->active_ns) / 1e9);
}

/* What a NIC knows of a connection, and what to look at. */
static void add_path(struct text *t, const struct waits *w, const struct waits_entry *e)
{
	const struct waits_lane *l = waits_lane(w, e);

	switch (e->reason) {
	case WAITS_R_PATH_LOSSY:
		add(t,
		    "packets to the node of rank %" PRIu32 " get lost, %" PRIu64
		    " segments were sent again, round trip %.1f ms: congestion, a bad cable or a wrong MTU, see ip -s link",
		    e->rank, l->retransmits, (double)l->rtt_us / 1e3);
		break;
	case WAITS_R_PATH_FULL:
		add(t,
		    "the node of rank %" PRIu32
		    " does not read: its receive buffer is full and %" PRIu64
		    " bytes wait here; its process is stopped or gets no CPU: run ep-fabric why there",
		    e->rank, l->unsent_bytes);
		break;
	case WAITS_R_PATH_SILENT:
		add(t,
		    "the host of rank %" PRIu32
		    " acknowledges nothing: a cable, a switch, a firewall that drops, or the host is down; connections fail after tcp-timeout",
		    e->rank);
		break;
	case WAITS_R_PATH_NO_ANSWER:
		add(t,
		    "the host of rank %" PRIu32
		    " does not answer connections: a firewall drops them, its address is that of a wrong interface (socket-ifname there), or it is down",
		    e->rank);
		break;
	case WAITS_R_PATH_REFUSED:
		add(t,
		    "the host of rank %" PRIu32
		    " refuses connections: its process has ended, or a firewall there rejects them (nft list ruleset)",
		    e->rank);
		break;
	case WAITS_R_PATH_NO_ROUTE:
		add(t,
		    "this host has no way to the host of rank %" PRIu32
		    ": its interface is down or the wrong one, see ip route get and socket-ifname at both ends",
		    e->rank);
		break;
	default:
		add(t,
		    "the node of rank %" PRIu32
		    " is not connected: it has to connect to this one, run ep-fabric why there",
		    e->rank);
	}
}

static void add_fact(struct text *t, const struct waits *w, const struct waits_entry *e)
{
	const struct waits_instance *in = &w->instance[e->instance];
	const struct waits_rank *r = rank_of(w, e);

	switch (e->reason) {
	case WAITS_R_STOPPED:
		add_rank(t, w, e);
		add(t, " is stopped by a signal or a debugger");
		add_last_seen(t, w, e);
		if (r && r->pid)
			add(t, ": kill -CONT %" PRIu64 " lets it go on", r->pid);
		break;
	case WAITS_R_ENDED:
		add_rank(t, w, e);
		add(t, " has ended without leaving the job");
		break;
	case WAITS_R_LOST:
		add_rank(t, w, e);
		add(t, " is lost");
		break;
	case WAITS_R_ENGINE_STOPPED:
		add_engine(t, w, e);
		add(t,
		    " is stopped by a signal or a debugger: kill -CONT %" PRIu64 " lets it go on",
		    in->pid);
		break;
	case WAITS_R_ENGINE_ENDED:
		add_engine(t, w, e);
		add(t, " has ended without closing");
		break;
	case WAITS_R_ENGINE_STALE:
		add_engine(t, w, e);
		add(t, " runs and gives no sign of life");
		break;
	case WAITS_R_LINK_DOWN:
		add(t, "%" PRIu32 " of %" PRIu32 " links of instance %s are down",
		    in->links - in->links_up, in->links, in->name);
		break;
	case WAITS_R_BUSY:
		add_rank(t, w, e);
		add(t, " waits for nothing of the fabric: it computes, or hangs in its own code");
		add_last_seen(t, w, e);
		break;
	case WAITS_R_UNSEEN:
		add(t, "rank %" PRIu32 " is not served by any instance seen here: ask on its node",
		    e->rank);
		break;
	case WAITS_R_CYCLE:
		add(t, "rank %" PRIu32 " and rank %" PRIu32 " wait for each other in a circle",
		    e->rank, e->peer);
		break;
	default:
		if (e->reason >= WAITS_R_PATH_LOSSY && e->reason < WAITS_REASONS)
			add_path(t, w, e);
		else
			add(t, "%s", waits_reason_word(e->reason));
	}
}

static const char *what_is_missing(unsigned reason)
{
	switch (reason) {
	case EPF_STATS_WAIT_CREDIT:
		return "no credit to send to";
	case EPF_STATS_WAIT_QUEUE:
		return "the send queue is full towards";
	case EPF_STATS_WAIT_SENT:
		return "what was sent is not reported as arrived at";
	case EPF_STATS_WAIT_ACK:
		return "a flush is not acknowledged by";
	case EPF_STATS_WAIT_LINK:
		return "the link or the lane is down to";
	case EPF_STATS_WAIT_SILENT:
		return "no sign of life from the engine of";
	case EPF_STATS_WAIT_GAP:
		return "an arrival is missing, later ones are there, from";
	case EPF_STATS_WAIT_PUTS:
		return "a counted signal lacks puts of its group to";
	default:
		return "something is missing of";
	}
}

static void add_where(struct text *t, const struct waits_entry *e)
{
	if (e->peer != WAITS_NONE)
		add(t, "%s rank %" PRIu32, e->who == WAITS_LANE ? " the node of" : "", e->peer);
	else
		add(t, " a rank that is not known yet");
	if (e->stream != WAITS_NONE)
		add(t, ", stream %" PRIu32, e->stream);
	if (e->lane != WAITS_NONE && e->who != WAITS_LANE)
		add(t, ", lane %" PRIu32, e->lane);
}

const char *waits_nobody(uint32_t left_out, char *text, size_t bytes)
{
	if (left_out)
		snprintf(text, bytes, "no instance is alive, %" PRIu32 " %s exited: see --dead",
			 left_out, left_out == 1 ? "has" : "have");
	else
		snprintf(text, bytes, "no instances");
	return text;
}

static void add_rank_wait(struct text *t, const struct waits_entry *e)
{
	if (e->reason == EPF_STATS_WAIT_RING) {
		add(t, "%srank %" PRIu32 " waits for its ring %" PRIu64,
		    e->kernel ? "a kernel of " : "", e->rank, e->signal);
		add_age(t, e);
		add(t, ": %" PRIu64 " commands are retired, it wants %" PRIu64, e->value, e->least);
		return;
	}
	if (e->reason == EPF_STATS_WAIT_SIGNAL && e->signal == EPF_STATS_NO_SIGNAL) {
		add(t, "a kernel of rank %" PRIu32 " waits for kernels of", e->rank);
		add_where(t, e);
		add_age(t, e);
		add(t, ": they have made %" PRIu64 " steps, it wants %" PRIu64, e->value, e->least);
		return;
	}
	add(t, "%srank %" PRIu32 " waits for signal %" PRIu64, e->kernel ? "a kernel of " : "",
	    e->rank, e->signal);
	if (e->peer != WAITS_NONE)
		add(t, " of rank %" PRIu32, e->peer);
	add_age(t, e);
	add(t, ": it is %" PRIu64 ", wanted %" PRIu64, e->value, e->least);
	if (e->peer == WAITS_NONE)
		add(t, "; nobody has raised it yet, so who should is not known");
}

static void add_ring_wait(struct text *t, const struct waits_entry *e)
{
	add(t, "ring %" PRIu32 " of rank %" PRIu32 " is stalled", e->ring, e->rank);
	add_age(t, e);
	if (e->reason == EPF_STATS_WAIT_FULL || e->reason == EPF_STATS_WAIT_TAKEN) {
		add(t, ": its engine does not take what is in it");
	} else {
		add(t, ": %s", what_is_missing(e->reason));
		add_where(t, e);
	}
	if (e->deferred)
		add(t, "; %" PRIu64 " commands deferred", e->deferred);
	if (e->occupancy && e->occupancy != WAITS_NONE)
		add(t, "; %" PRIu32 " of %" PRIu32 " slots full", e->occupancy, e->slots);
}

const char *waits_sentence(const struct waits *w, const struct waits_entry *e, char *text,
			   size_t bytes)
{
	struct text t = { text, bytes };

	switch (e->who) {
	case WAITS_FACT:
		add_fact(&t, w, e);
		break;
	case WAITS_RANK:
		add_rank_wait(&t, e);
		break;
	case WAITS_RING:
		add_ring_wait(&t, e);
		break;
	case WAITS_LANE:
		add(&t, "lane %" PRIu32 " of instance %s is stalled", e->lane,
		    w->instance[e->instance].name);
		add_age(&t, e);
		add(&t, ": %s", what_is_missing(e->reason));
		add_where(&t, e);
		add(&t, "; %" PRIu64 " requests in flight", e->deferred);
		break;
	case WAITS_PEER:
		add(&t, "instance %s: ", w->instance[e->instance].name);
		if (e->reason != EPF_STATS_WAIT_GAP)
			add(&t, "%" PRIu64 " commands are deferred", e->deferred);
		else
			add(&t, "arrivals wait");
		add_age(&t, e);
		add(&t, ": %s", what_is_missing(e->reason));
		add_where(&t, e);
		break;
	}
	return text;
}
