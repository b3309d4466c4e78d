/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shows that the simulation can see: the engine is broken on purpose in one way at a time, and wrong bytes or a wrong sum
 * must turn up within 20 seeds; the same seeds pass unbroken. A job that only hangs does not count. Built with
 * -Dtest_hooks=true only.
 */
#include "tests/prop/sim.h"

#include "fabric/engine/lane_hot.h"
#include "fabric/nic/emu/opts.h"

#include <stdbool.h>

enum { SEEDS = 20, FIRST_SEED = 1 };

static const struct {
	const char *name;
	enum epf_hook hook;
	int want_errors; /* the fault shows only where lanes fail */
} hooks[] = {
	{ "signal applied on arrival", EPF_HOOK_SIGNAL_ON_ARRIVAL, 0 },
	{ "duplicates kept", EPF_HOOK_KEEP_DUPLICATES, 0 },
	{ "covering count ignored", EPF_HOOK_IGNORE_COVER, 0 },
	{ "bitmap replaced by a counter", EPF_HOOK_COUNT_ONLY, 0 },
	{ "replay without fence", EPF_HOOK_NO_FENCE, 1 },
	{ "all replayed, duplicates kept", EPF_HOOK_REPLAY_KEEP, 1 },
};

static void set_hook(enum epf_hook hook)
{
	epf_hook = hook;
	epf_hook_no_fence = hook == EPF_HOOK_NO_FENCE;
}

int main(void)
{
	bool has_run[2][SEEDS] = { 0 }; /* the seeds that have run without a hook */
	int failures = 0;

	for (unsigned h = 0; h < sizeof(hooks) / sizeof(hooks[0]); h++) {
		unsigned found = 0, hung = 0;
		struct sim_result out;

		for (uint64_t seed = FIRST_SEED; seed < FIRST_SEED + SEEDS; seed++) {
			bool *ran = &has_run[hooks[h].want_errors][seed - FIRST_SEED];
			struct sim_case c = { .seed = seed,
					      .want_errors = hooks[h].want_errors,
					      .want_slow = hooks[h].want_errors };

			set_hook(EPF_HOOK_NONE);
			if (!*ran && sim_run(&c, &out) != SIM_OK && out.verdict != SIM_LOST) {
				printf("FAILED: seed %llu without a hook: %s [%s]\n",
				       (unsigned long long)seed, out.text, out.settings);
				failures++;
			}
			*ran = true;
			if (found)
				continue;
			set_hook(hooks[h].hook);
			if (sim_run(&c, &out) == SIM_WRONG) {
				found = (unsigned)(seed - FIRST_SEED) + 1;
				printf("# %s: found at seed %llu, the %u. tried: %.160s\n",
				       hooks[h].name, (unsigned long long)seed, found, out.text);
			}
			hung += out.verdict == SIM_STUCK;
		}
		set_hook(EPF_HOOK_NONE);
		if (!found) {
			printf("FAILED: %s: no wrong bytes within %d seeds (%u hung)\n",
			       hooks[h].name, SEEDS, hung);
			failures++;
		}
	}
	return failures != 0;
}
