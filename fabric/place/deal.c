/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dealing rails out to units (GPUs; without GPUs local indices). Called by epf_place_choose(). Two passes:
 *
 * homes: every unit takes the nearest rails; units with the same nearest rails share them in order, so that unit i of every node
 *        has the same ones. A port that is down takes part: whether it is up changes nothing for others.
 * now:   a unit uses its homes that are up; where none is, the nearest one that is up, least used first.
 *
 * No unit gets more than its share, ceil(rails / units), so what lies near one GPU is left for those that have none near.
 */
#include "fabric/place/place_priv.h"

#include <stdlib.h>
#include <string.h>

/* Smaller is nearer: enum epf_place_near, then links. */
typedef uint64_t distance_t;

struct deal {
	struct epf_place_plan *plan;
	struct epf_place_unit *unit;
	uint32_t units;
	uint32_t share;       /* most homes of a unit */
	distance_t *distance; /* [unit][rail] */
	distance_t *best;     /* [unit]: to the nearest rail that has a number */
	uint8_t *is_taken;    /* [rail]: somebody's home */
	uint8_t *is_dealt;    /* [unit] */
	uint8_t *in_group;    /* [unit] */
	uint32_t *candidate;  /* rails nearest to a group */
};

static distance_t *row(const struct deal *d, uint32_t unit)
{
	return d->distance + (size_t)unit * d->plan->rails;
}

static void measure(struct deal *d)
{
	for (uint32_t u = 0; u < d->units; u++) {
		d->best[u] = UINT64_MAX;
		for (uint32_t r = 0; r < d->plan->rails; r++) {
			const struct epf_place_rail *rail = &d->plan->rail[r];
			enum epf_place_near near = EPF_PLACE_UNKNOWN;
			uint32_t hops = 0;

			if (d->unit[u].spot)
				near = epf_place_distance(d->unit[u].spot, &rail->nic->spot, &hops);
			row(d, u)[r] = (distance_t)near << 32 | hops;
			if (rail->number != EPF_PLACE_NONE && row(d, u)[r] < d->best[u])
				d->best[u] = row(d, u)[r];
		}
	}
}

/* Whether a rail is one of the nearest of a unit. */
static bool is_candidate(const struct deal *d, uint32_t unit, uint32_t r)
{
	return d->plan->rail[r].number != EPF_PLACE_NONE && row(d, unit)[r] == d->best[unit];
}

static uint32_t count_candidates(const struct deal *d, uint32_t unit)
{
	uint32_t n = 0;

	for (uint32_t r = 0; r < d->plan->rails; r++)
		n += is_candidate(d, unit, r);
	return n;
}

/* Who chooses next: the nearest, then who has the least choice. */
static uint32_t next_unit(const struct deal *d)
{
	uint32_t best = 0, best_count = 0;
	distance_t best_near = UINT64_MAX;
	bool found = false;

	for (uint32_t u = 0; u < d->units; u++) {
		distance_t near = d->best[u] >> 32;
		uint32_t count;

		if (d->is_dealt[u] || (found && near > best_near))
			continue;
		count = count_candidates(d, u);
		if (found && near == best_near && count >= best_count)
			continue;
		found = true;
		best = u;
		best_near = near;
		best_count = count;
	}
	return best;
}

/* The group of a unit: those whose nearest rails are the same. Returns their number. */
static uint32_t find_group(struct deal *d, uint32_t unit)
{
	uint32_t n = 0;

	for (uint32_t u = 0; u < d->units; u++) {
		bool same = !d->is_dealt[u];

		for (uint32_t r = 0; same && r < d->plan->rails; r++)
			same = is_candidate(d, unit, r) == is_candidate(d, u, r);
		d->in_group[u] = same;
		n += same;
	}
	return n;
}

/* Fills candidate with the unit's nearest rails: those that are nobody's yet, if there are such. */
static uint32_t find_candidates(struct deal *d, uint32_t unit)
{
	uint32_t all = 0, free_ones = 0;

	for (uint32_t r = 0; r < d->plan->rails; r++)
		if (is_candidate(d, unit, r) && !d->is_taken[r])
			d->candidate[free_ones++] = r;
	if (free_ones)
		return free_ones;
	for (uint32_t r = 0; r < d->plan->rails; r++)
		if (is_candidate(d, unit, r))
			d->candidate[all++] = r;
	return all;
}

/* Deals n candidates to the units of the group, in order: several each, or one for several. */
static void deal_group(struct deal *d, uint32_t members, uint32_t n)
{
	uint32_t m = 0;

	for (uint32_t u = 0; u < d->units; u++) {
		uint64_t begin = (uint64_t)m * n / members;
		uint64_t end = ((uint64_t)m + 1) * n / members;

		if (!d->in_group[u])
			continue;
		if (end == begin)
			end = begin + 1;
		if (end - begin > d->share)
			end = begin + d->share;
		for (uint64_t c = begin; c < end; c++) {
			d->unit[u].is_home[d->candidate[c]] = 1;
			d->is_taken[d->candidate[c]] = 1;
		}
		d->unit[u].sharers = members;
		d->unit[u].shared = n;
		d->is_dealt[u] = 1;
		m++;
	}
}

/* Better in this order: what it is good for, distance, users; first come, first served. */
static bool is_better(const struct deal *d, uint32_t unit, uint32_t a, uint32_t b)
{
	static const uint8_t tier[] = {
		[EPF_PLACE_USABLE] = 0, [EPF_PLACE_SLOW] = 1, [EPF_PLACE_OTHER_LINK] = 1
	};
	const struct epf_place_rail *p = &d->plan->rail[a], *q = &d->plan->rail[b];

	if (tier[p->use] != tier[q->use])
		return tier[p->use] < tier[q->use];
	if (row(d, unit)[a] != row(d, unit)[b])
		return row(d, unit)[a] < row(d, unit)[b];
	return p->users < q->users;
}

static bool can_stand_in(const struct epf_place_rail *rail)
{
	return rail->port->is_up && rail->use != EPF_PLACE_NOT_CHOSEN;
}

static void own_home(struct deal *d, uint32_t u, bool down_too)
{
	for (uint32_t r = 0; r < d->plan->rails; r++) {
		struct epf_place_rail *rail = &d->plan->rail[r];

		if (d->unit[u].is_home[r] && (down_too || rail->use == EPF_PLACE_USABLE)) {
			d->unit[u].is_own[r] = 1;
			rail->users++;
		}
	}
}

/* Chooses for units whose homes are all down: another rail that is up, and with none left the homes as they are. */
static void stand_in(struct deal *d, uint32_t u)
{
	uint32_t best = EPF_PLACE_NONE;

	for (uint32_t r = 0; r < d->plan->rails; r++)
		if (can_stand_in(&d->plan->rail[r]) &&
		    (best == EPF_PLACE_NONE || is_better(d, u, r, best)))
			best = r;
	if (best == EPF_PLACE_NONE) {
		own_home(d, u, true);
		return;
	}
	d->unit[u].is_own[best] = 1;
	d->plan->rail[best].users++;
}

static bool has_own(const struct deal *d, uint32_t u)
{
	return memchr(d->unit[u].is_own, 1, d->plan->rails) != NULL;
}

static void run(struct deal *d, uint32_t numbered)
{
	measure(d);
	d->share = (numbered + d->units - 1) / d->units;
	for (uint32_t left = d->units; left;) {
		uint32_t unit = next_unit(d), members = find_group(d, unit);

		deal_group(d, members, find_candidates(d, unit));
		left -= members;
	}
	for (uint32_t u = 0; u < d->units; u++)
		own_home(d, u, false);
	for (uint32_t u = 0; u < d->units; u++)
		if (!has_own(d, u))
			stand_in(d, u);
}

int epf_place_deal(struct epf_place_plan *plan, struct epf_place_unit *unit, uint32_t units)
{
	struct deal d = { .plan = plan, .unit = unit, .units = units };
	uint32_t numbered = 0;
	int rc = 0;

	for (uint32_t r = 0; r < plan->rails; r++)
		numbered += plan->rail[r].number != EPF_PLACE_NONE;
	if (!numbered || !units)
		return 0;
	d.distance = calloc(units, plan->rails * sizeof(*d.distance));
	d.best = calloc(units, sizeof(*d.best));
	d.is_taken = calloc(plan->rails, 1);
	d.is_dealt = calloc(units, 1);
	d.in_group = calloc(units, 1);
	d.candidate = calloc(plan->rails, sizeof(*d.candidate));
	if (d.distance && d.best && d.is_taken && d.is_dealt && d.in_group && d.candidate)
		run(&d, numbered);
	else
		rc = epf_place_no_memory();
	free(d.distance);
	free(d.best);
	free(d.is_taken);
	free(d.is_dealt);
	free(d.in_group);
	free(d.candidate);
	return rc;
}
