/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What follows from what (waits.h): facts that are causes by themselves (stopped processes, engines with no heartbeat, links that are
 * down), then for each wait what keeps the one that it waits for, then the order. Works on the model alone.
 */
#include "tools/waits/waits_priv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

const struct waits_rank *waits_rank(const struct waits *w, uint32_t job, uint32_t rank)
{
	for (uint32_t i = 0; rank != WAITS_NONE && i < w->n_ranks; i++)
		if (w->rank[i].job == job && w->rank[i].rank == rank)
			return &w->rank[i];
	return NULL;
}

/* A fact that is there already, or WAITS_NONE. rank WAITS_NONE: the instance's. */
static uint32_t find_fact(const struct waits *w, unsigned reason, uint32_t job, uint32_t instance,
			  uint32_t rank)
{
	for (uint32_t i = 0; i < w->n_entries; i++) {
		const struct waits_entry *e = &w->entry[i];

		if (e->who == WAITS_FACT && e->reason == reason && e->job == job &&
		    e->rank == rank && (rank != WAITS_NONE || e->instance == instance))
			return i;
	}
	return WAITS_NONE;
}

static uint32_t fact(struct waits *w, unsigned reason, uint32_t job, uint32_t instance,
		     uint32_t rank)
{
	uint32_t at = find_fact(w, reason, job, instance, rank);
	struct waits_entry *e;

	if (at != WAITS_NONE)
		return at;
	e = waits_push(w);
	if (!e)
		return WAITS_NONE;
	e->who = WAITS_FACT;
	e->reason = reason;
	e->is_cause = true;
	e->job = job;
	e->instance = instance;
	e->rank = rank;
	return w->n_entries - 1;
}

/* What an instance's engine suffers from; 0: nothing that is seen. */
static unsigned engine_fact(const struct waits *w, uint32_t instance)
{
	const struct waits_instance *in = &w->instance[instance];

	if (in->process == 'T' || in->process == 't')
		return WAITS_R_ENGINE_STOPPED;
	if (in->alive == EPF_STATS_DEAD)
		return WAITS_R_ENGINE_ENDED;
	return in->alive == EPF_STATS_STALE ? WAITS_R_ENGINE_STALE : 0;
}

static unsigned rank_fact(const struct waits_rank *rank)
{
	if (rank->process == 'T' || rank->process == 't')
		return WAITS_R_STOPPED;
	if (rank->process == 'Z' || rank->process == 'X')
		return WAITS_R_ENDED;
	return rank->state == EPF_STATS_PEER_DOWN ? WAITS_R_LOST : 0;
}

/* Facts of all ranks and engines, asked for or not: who is stopped will be waited for. */
static void note_facts(struct waits *w)
{
	for (uint32_t i = 0; i < w->n_ranks; i++) {
		const struct waits_rank *r = &w->rank[i];
		const struct waits_instance *in = &w->instance[r->instance];
		unsigned engine = engine_fact(w, r->instance), own = rank_fact(r);

		/* Embedded the two are one process, and its rank is what people know. */
		if (engine && r->pid == in->pid && engine == WAITS_R_ENGINE_STOPPED)
			fact(w, WAITS_R_STOPPED, r->job, r->instance, r->rank);
		else if (engine && r->pid == in->pid)
			fact(w, engine, r->job, r->instance, r->rank);
		else if (engine)
			fact(w, engine, r->job, r->instance, WAITS_NONE);
		else if (own)
			fact(w, own, r->job, r->instance, r->rank);
		if (in->links_up < in->links)
			fact(w, WAITS_R_LINK_DOWN, r->job, r->instance, WAITS_NONE);
	}
}

/* The fact that keeps a rank, its process before its engine; WAITS_NONE: none is seen. */
static uint32_t fact_of(const struct waits *w, const struct waits_rank *r, bool link)
{
	static const unsigned facts[] = { WAITS_R_STOPPED, WAITS_R_ENDED, WAITS_R_ENGINE_ENDED,
					  WAITS_R_ENGINE_STALE, WAITS_R_LOST };
	static const unsigned engine[] = { WAITS_R_ENGINE_STOPPED, WAITS_R_ENGINE_ENDED,
					   WAITS_R_ENGINE_STALE };
	uint32_t at = WAITS_NONE;

	for (unsigned i = 0; i < sizeof(facts) / sizeof(*facts) && at == WAITS_NONE; i++)
		at = find_fact(w, facts[i], r->job, r->instance, r->rank);
	for (unsigned i = 0; i < sizeof(engine) / sizeof(*engine) && at == WAITS_NONE; i++)
		at = find_fact(w, engine[i], r->job, r->instance, WAITS_NONE);
	if (at == WAITS_NONE && link)
		at = find_fact(w, WAITS_R_LINK_DOWN, r->job, r->instance, WAITS_NONE);
	return at;
}

/* The oldest wait of a rank of a kind; peer WAITS_NONE: for anybody. Not `self`. */
static uint32_t wait_of(const struct waits *w, enum waits_who who, uint32_t job, uint32_t rank,
			uint32_t ring, uint32_t peer, uint32_t self)
{
	uint32_t best = WAITS_NONE;

	for (uint32_t i = 0; i < w->n_entries; i++) {
		const struct waits_entry *e = &w->entry[i];

		if (i == self || e->who != who || e->job != job || e->rank != rank ||
		    (ring != WAITS_NONE && e->ring != ring) ||
		    (peer != WAITS_NONE && e->peer != peer))
			continue;
		if (best == WAITS_NONE || e->since_ns < w->entry[best].since_ns)
			best = i;
	}
	return best;
}

/*
 * The lowest rank of the node that serves a rank, as lanes of an instance name nodes: ranks of a node are neighbours, so it is the highest that is not above. WAITS_NONE: not known, as
 * where some lanes are not shown.
 */
static uint32_t node_of(const struct waits *w, uint32_t job, uint32_t instance, uint32_t rank)
{
	uint32_t node = WAITS_NONE;

	for (uint32_t i = 0; i < w->n_lanes; i++) {
		const struct waits_lane *l = &w->lane[i];

		if (l->job == job && l->instance == instance && l->peer <= rank &&
		    (l->peer == rank || !w->job[job].lanes_hidden) &&
		    (node == WAITS_NONE || l->peer > node))
			node = l->peer;
	}
	return node;
}

/* The worst lane from an instance to a node. */
static const struct waits_lane *worst_lane(const struct waits *w, uint32_t job, uint32_t instance,
					   uint32_t node)
{
	const struct waits_lane *worst = NULL;

	for (uint32_t i = 0; i < w->n_lanes; i++) {
		const struct waits_lane *l = &w->lane[i];

		if (l->job == job && l->instance == instance && l->peer == node &&
		    (!worst || l->path > worst->path))
			worst = l;
	}
	return worst;
}

const struct waits_lane *waits_lane(const struct waits *w, const struct waits_entry *e)
{
	return worst_lane(w, e->job, e->instance, e->rank);
}

/* What an instance's NIC knows of its connections to the node of a rank, where it is bad: a fact, named after the lowest rank of that node. */
static uint32_t path_fact(struct waits *w, uint32_t job, uint32_t instance, uint32_t rank)
{
	uint32_t node = rank == WAITS_NONE ? WAITS_NONE : node_of(w, job, instance, rank);
	const struct waits_lane *l;

	if (node == WAITS_NONE)
		return WAITS_NONE;
	l = worst_lane(w, job, instance, node);
	return l->path < EPF_STATS_PATH_LOSSY
		       ? WAITS_NONE
		       : fact(w, WAITS_R_PATH + l->path, job, instance, node);
}

/* A signal that rank `e->peer` has not raised: what keeps that rank? */
static uint32_t after_signal(struct waits *w, uint32_t at)
{
	struct waits_entry e = w->entry[at];
	const struct waits_rank *r = waits_rank(w, e.job, e.peer);
	uint32_t next;

	if (e.peer ==
	    WAITS_NONE) { /* nobody raised it yet: what the job suffers from, if that is one thing */
		uint32_t only = WAITS_NONE;

		for (uint32_t i = 0; i < w->n_entries; i++) {
			if (w->entry[i].who != WAITS_FACT || w->entry[i].job != e.job)
				continue;
			if (only != WAITS_NONE)
				return WAITS_NONE;
			only = i;
		}
		return only;
	}
	if (!r) {
		next = path_fact(w, e.job, e.instance, e.peer);
		return next != WAITS_NONE ? next
					  : fact(w, WAITS_R_UNSEEN, e.job, e.instance, e.peer);
	}
	next = fact_of(w, r, false);
	if (next == WAITS_NONE) /* its commands for this rank, then for anybody */
		next = wait_of(w, WAITS_RING, e.job, e.peer, WAITS_NONE, e.rank, at);
	if (next == WAITS_NONE)
		next = wait_of(w, WAITS_RING, e.job, e.peer, WAITS_NONE, WAITS_NONE, at);
	if (next == WAITS_NONE)
		next = wait_of(w, WAITS_RANK, e.job, e.peer, WAITS_NONE, WAITS_NONE, at);
	if (next == WAITS_NONE)
		next = fact_of(w, r, true);
	return next != WAITS_NONE ? next : fact(w, WAITS_R_BUSY, e.job, r->instance, e.peer);
}

/* Something on its way to rank `peer`: its engine, the links at both ends. A wait for a node names its lowest rank. */
static uint32_t after_path(struct waits *w, const struct waits_entry *e)
{
	const struct waits_rank *r = waits_rank(w, e->job, e->peer);
	uint32_t next = WAITS_NONE;

	if (engine_fact(w, e->instance))
		next = find_fact(w, engine_fact(w, e->instance), e->job, e->instance, WAITS_NONE);
	if (next == WAITS_NONE)
		next = find_fact(w, WAITS_R_LINK_DOWN, e->job, e->instance, WAITS_NONE);
	/* A rank that is stopped does not keep its daemon from receiving: only what is the engine's own counts. */
	for (unsigned reason = WAITS_R_ENGINE_STOPPED;
	     r && reason <= WAITS_R_LINK_DOWN && next == WAITS_NONE; reason++)
		next = find_fact(w, reason, r->job, r->instance, WAITS_NONE);
	if (r && next == WAITS_NONE && r->pid == w->instance[r->instance].pid)
		next = fact_of(w, r, true);
	return next != WAITS_NONE ? next : path_fact(w, e->job, e->instance, e->peer);
}

static uint32_t after(struct waits *w, uint32_t at)
{
	const struct waits_entry *e = &w->entry[at];

	switch (e->reason) {
	case EPF_STATS_WAIT_SIGNAL:
		return after_signal(w, at);
	case EPF_STATS_WAIT_RING:
		return wait_of(w, WAITS_RING, e->job, e->rank, e->ring, WAITS_NONE, at);
	case EPF_STATS_WAIT_PUTS:
		return WAITS_NONE;
	default:
		return after_path(w, e);
	}
}

/* Where a chain ends; *cycle: it does not, and this entry is on it. */
static uint32_t root_of(const struct waits *w, uint32_t at, bool *cycle)
{
	uint32_t steps = 0, i = at;

	*cycle = false;
	while (w->entry[i].follows != WAITS_NONE) {
		i = w->entry[i].follows;
		if (++steps > w->n_entries) {
			*cycle = true;
			break;
		}
	}
	return i;
}

/* Ranks that wait for each other: one fact, named after the lowest rank of them, from which all of them follow. */
static void cut_cycle(struct waits *w, uint32_t on)
{
	uint32_t i = on, lowest = on, new;

	do {
		i = w->entry[i].follows;
		if (w->entry[i].rank < w->entry[lowest].rank)
			lowest = i;
	} while (i != on);
	new = fact(w, WAITS_R_CYCLE, w->entry[lowest].job, w->entry[lowest].instance,
		   w->entry[lowest].rank);
	if (new != WAITS_NONE)
		w->entry[new].peer = w->entry[lowest].peer;
	w->entry[lowest].follows = new;
}

static void count(struct waits *w)
{
	bool cycle;

	for (uint32_t i = 0; i < w->n_entries; i++) {
		uint32_t on = root_of(w, i, &cycle);

		if (cycle) /* after so many steps it is on the ring itself */
			cut_cycle(w, on);
	}
	for (uint32_t i = 0; i < w->n_entries; i++) {
		struct waits_entry *e = &w->entry[i], *root = &w->entry[root_of(w, i, &cycle)];

		if (e->job != WAITS_NONE)
			w->job[e->job].entries += e->who != WAITS_FACT;
		if (root == e) {
			e->is_cause = true;
			if (e->job != WAITS_NONE)
				w->job[e->job].causes++;
			continue;
		}
		root->consequences += e->who != WAITS_FACT;
		if (root->who == WAITS_FACT && (!root->since_ns || e->since_ns < root->since_ns)) {
			root->since_ns = e->since_ns;
			root->age_ns = e->age_ns;
		}
	}
}

/* The end of an instance that nobody asked for is shown where somebody waits for it, and nowhere else. */
static void drop_ends(struct waits *w)
{
	for (uint32_t i = w->n_entries; i-- > 0;) {
		const struct waits_entry *e = &w->entry[i];
		uint32_t last = w->n_entries - 1;

		if (!w->instance[e->instance].left_out || e->consequences)
			continue;
		w->job[e->job].causes--;
		w->entry[i] = w->entry[last];
		for (uint32_t k = 0; k < last; k++)
			if (w->entry[k].follows == last)
				w->entry[k].follows = i;
		w->n_entries--;
	}
}

static const struct waits *sorted; /* qsort(3) passes nothing along; one thread at a time */

static int compare(const void *a, const void *b)
{
	uint32_t ia = *(const uint32_t *)a, ib = *(const uint32_t *)b;
	const struct waits_entry *x = &sorted->entry[ia], *y = &sorted->entry[ib];

	if (x->is_cause != y->is_cause)
		return x->is_cause ? -1 : 1;
	if (x->consequences != y->consequences)
		return x->consequences > y->consequences ? -1 : 1;
	/* A fact says more than a wait without a cause. */
	if ((x->who == WAITS_FACT) != (y->who == WAITS_FACT))
		return x->who == WAITS_FACT ? -1 : 1;
	if (x->who != y->who)
		return x->who < y->who ? -1 : 1;
	if (x->age_ns != y->age_ns)
		return x->age_ns > y->age_ns ? -1 : 1;
	return ia < ib ? -1 : 1;
}

void waits_conclude(struct waits *w)
{
	uint32_t waits = w->n_entries, *order;

	note_facts(w);
	for (uint32_t i = 0; i < waits; i++) {
		uint32_t next = w->entry[i].job == WAITS_NONE ? WAITS_NONE : after(w, i);

		w->entry[i].follows = next == i ? WAITS_NONE : next;
	}
	count(w);
	drop_ends(w);
	order = realloc(w->order, (w->n_entries + 1) * sizeof(*order));
	if (!order) {
		w->no_memory = true;
		w->n_entries = 0;
		return;
	}
	w->order = order;
	for (uint32_t i = 0; i < w->n_entries; i++)
		order[i] = i;
	sorted = w;
	qsort(order, w->n_entries, sizeof(*order), compare);
}
