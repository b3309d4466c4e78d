/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See fair.h. Times are compared by their difference, so they may wrap. Called by the scheduler's thread between steps; it must never
 * wait or allocate.
 */
#include "fabric/engine/fair.h"

#include <stddef.h>

static int is_before(uint64_t a, uint64_t b)
{
	return (int64_t)(a - b) < 0;
}

void epf_fair_init(struct epf_fair *f, uint64_t quantum, int by_share, uint64_t cost_64k)
{
	*f = (struct epf_fair){ .quantum = quantum,
				.credit = by_share ? EPF_FAIR_CREDIT * quantum : 0,
				.cost_64k = by_share ? cost_64k : 0,
				.round = UINT32_MAX /* seat 0 comes next */ };
}

void epf_fair_add(struct epf_fair *f, uint32_t share)
{
	f->seat[f->n++] = (struct epf_fair_seat){ .time = f->time, .share = share };
}

void epf_fair_remove(struct epf_fair *f, uint32_t at)
{
	f->seat[at] = f->seat[--f->n];
}

/* The least time of a seat with work, or of this one. */
static uint64_t least_time(const struct epf_fair *f, uint32_t at)
{
	uint64_t least = f->seat[at].time;

	for (uint32_t i = 0; i < f->n; i++)
		if (f->seat[i].active && is_before(f->seat[i].time, least))
			least = f->seat[i].time;
	return least;
}

/* Returns how many seats are behind `at`. When it is at's turn they are idle: they are asked after each turn. */
static uint32_t seats_behind(const struct epf_fair *f, uint32_t at)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < f->n; i++)
		n += is_before(f->seat[i].time, f->seat[at].time) != 0;
	return n;
}

/* Returns the length of a turn while so many idle seats are behind. */
static uint64_t short_turn(const struct epf_fair *f, uint32_t idle)
{
	uint64_t parts = idle > EPF_FAIR_SHORT ? idle : EPF_FAIR_SHORT;
	uint64_t turn = (f->quantum * parts + EPF_FAIR_PARTS - 1) / EPF_FAIR_PARTS;

	return turn < f->quantum ? turn : f->quantum;
}

uint32_t epf_fair_next(struct epf_fair *f, uint32_t at)
{
	const struct epf_fair_seat *best = NULL, *s = f->seat;

	for (uint32_t i = 0; f->credit && i < f->n && at < f->n; i++)
		if (!s[i].looked && is_before(s[i].time, best ? best->time : s[at].time))
			best = &s[i];
	if (best)
		return (uint32_t)(best - s);
	f->round = f->round + 1 < f->n ? f->round + 1 : 0;
	return f->round;
}

int epf_fair_turn(struct epf_fair *f, uint32_t at, uint64_t *until)
{
	struct epf_fair_seat *s = &f->seat[at];
	uint32_t idle;

	if (!s->active && is_before(s->time, f->time - f->credit))
		s->time = f->time - f->credit;
	if (least_time(f, at) != s->time)
		return 0;
	idle = f->credit ? seats_behind(f, at) : 0;
	*until = s->time + (idle ? short_turn(f, idle) : f->quantum);
	return 1;
}

void epf_fair_step(struct epf_fair *f, uint32_t at, uint64_t used, uint64_t bytes, int worked)
{
	struct epf_fair_seat *s = &f->seat[at];
	uint64_t least;

	s->active = worked != 0;
	for (uint32_t i = 0; worked && i < f->n; i++)
		f->seat[i].looked = 0;
	s->looked = 1;
	if (!worked)
		return;
	used += (bytes >> 6) * f->cost_64k >> 10;
	/* A time in which the kernel ran others looks like the job's own: it is not made to pay all of it. */
	s->time +=
		(used < EPF_FAIR_DEBT * f->quantum ? used : EPF_FAIR_DEBT * f->quantum) / s->share;
	least = least_time(f, at);
	if (is_before(f->time, least))
		f->time = least;
}
