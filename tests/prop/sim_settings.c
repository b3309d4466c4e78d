/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The settings of a seed: limits so small that every one of them is met, faults, counters that start near a wrap. A pure
 * function of the case; see sim.h.
 */
#include "tests/prop/sim.h"

#include <stdarg.h>
#include <string.h>

static void set(struct sim_params *p, const char *fmt, ...)
{
	va_list ap;

	if (p->n == SIM_SETTINGS)
		return;
	va_start(ap, fmt);
	vsnprintf(p->text[p->n], sizeof(p->text[0]), fmt, ap);
	va_end(ap);
	p->settings[p->n] = p->text[p->n];
	p->settings[++p->n] = NULL;
}

static uint32_t pick(uint64_t *rng, const uint32_t *of, uint32_t n)
{
	return of[sim_range(rng, 0, n - 1)];
}

#define PICK(rng, ...) \
 pick(rng, (const uint32_t[]){ __VA_ARGS__ }, sizeof((const uint32_t[]){ __VA_ARGS__ }) / 4)

void sim_params_shape(struct sim_params *p, const struct sim_case *c)
{
	uint64_t rng = sim_mix(c->seed ^ 0x7368617065ull);

	memset(p, 0, sizeof(*p));
	p->ranks = sim_range(&rng, 2, SIM_RANKS);
	p->rings = sim_range(&rng, 1, SIM_RINGS);
	p->chans = sim_range(&rng, 6, 18);
	p->goal = sim_range(&rng, 8, 20);
}

static void set_limits(struct sim_params *p, uint64_t *rng, int early_signals)
{
	uint32_t depth = PICK(rng, 4, 4, 8, 16, 64);

	set(p, "lanes-per-peer=%u", p->lanes);
	set(p, "lane-depth=%u", depth);
	set(p, "lane-receives=%u", PICK(rng, 4, 5, 8, 16, 64));
	set(p, "window=%u", PICK(rng, 64, 64, 128, 1024));
	set(p, "defer-limit=%u", PICK(rng, 1, 2, 8, 64));
	/* A counted signal holds its place in the ring until its puts have come, behind whatever is pushed between. */
	set(p, "ring-window=%u", early_signals ? 4096 : PICK(rng, 64, 64, 256));
	set(p, "core-batch=%u", PICK(rng, 1, 3, 32));
	set(p, "nic-inflight-messages=%u", PICK(rng, 3, 4, 16, 8192));
	set(p, "rank-inflight-messages=%u", PICK(rng, 3, 8, 4096));
	set(p, "nic-inflight-bytes=%u", PICK(rng, 65536, 1 << 20));
	set(p, "streams-per-peer=32");
	set(p, "emu-mtu=%u", PICK(rng, 256, 256, 512, 4096));
	set(p, "emu-packets=%u", PICK(rng, 32, 64, 128, 256));
}

static void set_counters(struct sim_params *p, uint64_t *rng)
{
	uint32_t near = sim_range(rng, 1, 60), start = 0;

	p->wraps = 1;
	switch (sim_range(rng, 0, 4)) {
	case 0: /* 32 bits: streams, lanes, rings */
		start = 0u - near;
		break;
	case 1: /* 16 bits: the count in an immediate */
		start = 65536 - near;
		break;
	case 2: /* the sign of a difference */
		start = 0x80000000u - near;
		break;
	case 3:
		start = (uint32_t)sim_next(rng);
		break;
	default:
		p->wraps = 0;
		break;
	}
	set(p, "start-count=%u", start);
	for (uint32_t i = 0; i < SIM_RINGS; i++) {
		static const uint64_t wraps[] = { 0, 0, UINT64_C(1) << 32, UINT64_C(1) << 16,
						  UINT64_C(1) << 63 };

		p->slots[i] = PICK(rng, 16, 16, 64);
		p->ring_start[i] = sim_range(rng, 0, 3)
					   ? wraps[sim_range(rng, 0, 4)] - sim_range(rng, 1, 200)
					   : 0;
	}
}

static void set_faults(struct sim_params *p, const struct sim_case *c, uint64_t *rng)
{
	uint32_t delay = PICK(rng, 0, 2000, 20000, 60000);

	if (c->want_slow)
		delay = 100000;
	set(p, "emu-order=%s", c->ordered ? "ordered" : "unordered");
	set(p, "emu-seed=%llu", (unsigned long long)(sim_next(rng) >> 2));
	set(p, "emu-delay=%uns", delay);
	set(p, "emu-reorder=0.%02u", sim_range(rng, 5, 60));
	set(p, "emu-duplicate=0.%02u", sim_range(rng, 3, 30));
	set(p, "emu-drop=0.%02u", sim_range(rng, 2, 20));
	set(p, "emu-retransmit=%uns", sim_range(rng, 5000, 200000));
	if (p->lanes > 1 && (c->want_errors || sim_range(rng, 0, 1)))
		p->error_ns = PICK(rng, 30000, 100000, 400000);
	p->wild = (int)sim_range(rng, 0, 1);
	/* The NIC's own errors may hit two lanes at once, so they are rare and have three. */
	if (p->lanes > 2 && p->error_ns && !p->wild)
		p->nic_error = 0.01;
	set(p, "emu-error=%s", p->nic_error > 0 ? "0.01" : "0");
	if (sim_range(rng, 0, 2) == 0)
		p->link_ns = PICK(rng, 50000, 500000);
}

void sim_params_make(struct sim_params *p, const struct sim_case *c, uint32_t signals,
		     int early_signals)
{
	uint64_t rng = sim_mix(c->seed ^ 0x73657474696e6773ull);

	sim_params_shape(p, c);
	p->lanes = c->want_errors || c->want_slow ? sim_range(&rng, 2, 3) : sim_range(&rng, 1, 3);
	p->tick_ns = PICK(&rng, 200, 1000, 5000);
	p->lazy = PICK(&rng, 2, 4, 16, 1000);
	set(p, "signals=%u", signals);
	set_limits(p, &rng, early_signals);
	set_counters(p, &rng);
	set_faults(p, c, &rng);
}
