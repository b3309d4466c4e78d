/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The whole engine on a virtual clock: one seed makes a job of 2 to 5 ranks in this thread, with random limits, faults
 * and traffic (sim_traffic.h), and runs it to its end. Everything follows from the seed and the case. Used by
 * tests/prop/sim and tests/prop/test_hooks.
 */
#ifndef EPF_TESTS_SIM_H
#define EPF_TESTS_SIM_H

#include "tests/prop/sim_traffic.h"
#include "tests/unit/client/job.h"

enum sim_verdict {
	SIM_OK = 0,
	SIM_WRONG = 1, /* wrong bytes or a wrong sum */
	SIM_STUCK = 2, /* no progress within the bound of virtual time */
	SIM_ERROR = 3, /* could not be set up, a command failed, a rank was lost */
	SIM_LOST =
		4, /* all lanes to a rank failed at once: the rank is lost by design; says nothing */
};

/* What a caller wants beside what the seed says. */
struct sim_case {
	uint64_t seed;
	int ordered;     /* 1: an ordered NIC: nothing overtakes */
	int want_errors; /* 1: lanes fail, whatever the seed says */
	int want_slow;   /* 1: long delays, many lanes: late packets */
};

struct sim_totals {
	uint64_t seeds, lost, steps;
	uint64_t reordered, duplicated, dropped, waited, duplicates_dropped;
	uint64_t lane_errors, nic_errors, replays, links, wraps;
	uint64_t commands, signals;
};

struct sim_result {
	enum sim_verdict verdict;
	char text[6000]; /* what is wrong */
	char settings[1200];
	struct sim_totals seen; /* of this seed */
};

enum sim_verdict sim_run(const struct sim_case *c, struct sim_result *out);

/* sim_settings.c: the settings of a seed as "name=value" strings. */
enum { SIM_SETTINGS = 40 };

struct sim_params {
	uint32_t ranks, rings, chans, goal, slots[SIM_RINGS];
	uint64_t ring_start[SIM_RINGS];
	uint32_t lanes;
	uint64_t error_ns; /* mean time between failures of a lane; 0: none */
	int wild;          /* they fail at any time, all but the last lane of a node */
	double nic_error;  /* chance of an error completion from the NIC itself */
	uint64_t link_ns;  /* mean time between a link going down; 0: never */
	uint32_t tick_ns;  /* longest time between two rounds */
	uint32_t lazy;     /* one in so many steps of a rank is left out */
	int wraps;         /* counters start near a wrap */
	char text[SIM_SETTINGS][48];
	const char *settings[SIM_SETTINGS + 1];
	unsigned n;
};

void sim_params_make(struct sim_params *p, const struct sim_case *c, uint32_t signals,
		     int early_signals);
/* Ranks and rings of a seed, before its plan is made. */
void sim_params_shape(struct sim_params *p, const struct sim_case *c);

#endif
