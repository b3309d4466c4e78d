/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What compression gains (gain.h). The windows of a connection: compressed, which only warms up; plain and compressed, GAIN_TRIALS times; then the better of both
 * for GAIN_ROUNDS windows, and from there on a plain one, or after a time off all of these again. Before a change of ways all chunks end, so that
 * a window times one way only.
 */
#include "fabric/p2p/gain.h"

/* What compression must win by, so that noise does not switch it on: it costs CPU time. */
static const double margin = 1.05;
/*
 * A rate is the best of its windows, each of which counts so much of the one after it: other work on the machine disturbs windows, and
 * makes none better.
 */
static const double ageing = 0.75;

static void enter(struct gain *g, enum gain_way way, uint32_t rounds, bool is_warm)
{
	g->way = way;
	g->rounds = rounds;
	g->is_warm = is_warm;
	g->begun = g->ended = 0;
	g->bytes = g->busy_ns = 0;
}

static void decide(struct gain *g)
{
	g->is_on = g->packed > g->plain * margin;
	if (g->is_on) {
		g->off = GAIN_ROUNDS;
		enter(g, GAIN_PACKED, GAIN_ROUNDS, true);
	} else {
		enter(g, GAIN_FREE, g->off, false);
		g->off = g->off * 2 < GAIN_OFF_MOST ? g->off * 2 : GAIN_OFF_MOST;
	}
}

/* The next window, once all chunks of the last one have ended. */
static void advance(struct gain *g)
{
	switch (g->way) {
	case GAIN_WAIT:
		g->off = GAIN_ROUNDS;
		enter(g, GAIN_PACKED, 1, false);
		break;
	case GAIN_FREE:
		g->trials = 0;
		enter(g, GAIN_PACKED, 1, false);
		break;
	case GAIN_PLAIN:
		g->trials++;
		if (g->is_on)
			decide(g);
		else
			enter(g, GAIN_PACKED, 1, true);
		break;
	case GAIN_PACKED:
		if (!g->is_on && g->trials >= GAIN_TRIALS)
			decide(g);
		else
			enter(g, GAIN_PLAIN, 1, true);
		break;
	}
}

/* Notes the rate of the window so far and begins another one of the same way. */
static void measure(struct gain *g, uint64_t now_ns)
{
	double *rate = g->way == GAIN_PACKED ? &g->packed : &g->plain;

	if (g->under_way) {
		g->busy_ns += now_ns - g->since_ns;
		g->since_ns = now_ns;
	}
	if (g->is_warm && g->busy_ns) {
		double now = (double)g->bytes / (double)g->busy_ns;

		*rate = now > *rate * ageing ? now : *rate * ageing;
	}
	g->bytes = g->busy_ns = 0;
	g->ended = 0;
}

enum gain_way epf_p2p_gain_begin(struct gain *g, uint64_t now_ns)
{
	if (g->way == GAIN_WAIT)
		advance(g);
	if (g->begun == g->rounds * GAIN_WINDOW) {
		if (g->under_way)
			return GAIN_WAIT;
		advance(g);
	}
	g->begun++;
	if (g->way == GAIN_FREE && !g->forced)
		return GAIN_FREE;
	if (g->under_way++ == 0)
		g->since_ns = now_ns;
	return g->forced ? g->forced : g->way;
}

static void leave(struct gain *g, uint64_t now_ns)
{
	g->under_way--;
	if (!g->under_way)
		g->busy_ns += now_ns - g->since_ns;
}

void epf_p2p_gain_abort(struct gain *g, uint64_t now_ns)
{
	g->begun--;
	leave(g, now_ns);
}

void epf_p2p_gain_end(struct gain *g, uint64_t now_ns, uint64_t bytes)
{
	g->ended++;
	g->bytes += bytes;
	leave(g, now_ns);
	if (g->ended >= GAIN_WINDOW)
		measure(g, now_ns);
}
