/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Results of ep-bench moe: adding up those of the processes, and how much of them is wrong. Used
 * by the report and by the unit test. Prints nothing.
 */
#include "bench/moe/moe.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const char *const moe_phase_name[MOE_PHASES] = { "dispatch", "combine" };

const char *const moe_fault_name[MOE_FAULT_COUNT] = {
#define F(name) [MOE_F_##name] = #name,
	MOE_FAULTS(F)
#undef F
};

void moe_fault_add(struct moe_fault_sum *sum, int fault, uint64_t value)
{
	sum->known = 1;
	if (fault != MOE_F_failover_max_ns)
		sum->count += value;
	else if (value > sum->count)
		sum->count = value;
}

void moe_result_add(struct moe_result *sum, const struct moe_result *one, uint32_t rounds)
{
	for (uint32_t n = 0; n < rounds; n++)
		for (int p = 0; p < MOE_PHASES; p++) {
			struct moe_phase *s = &sum->phase[n][p];
			const struct moe_phase *o = &one->phase[n][p];

			s->ns = o->ns > s->ns ? o->ns : s->ns;
			s->kernel_ns += o->kernel_ns;
			s->cpu_ns += o->cpu_ns;
			s->bytes_remote_node += o->bytes_remote_node;
			s->bytes_same_node += o->bytes_same_node;
			s->commands += o->commands;
			s->doorbells += o->doorbells;
			s->wrong += o->wrong;
			s->expected_remote_node += o->expected_remote_node;
		}
	for (int f = 0; f < MOE_FAULT_COUNT; f++) {
		if (one->fault[f].known)
			moe_fault_add(&sum->fault[f], f, one->fault[f].count);
	}
	sum->peak_bytes += one->peak_bytes;
	sum->received_rows += one->received_rows;
	if (one->bytes_per_peer > sum->bytes_per_peer)
		sum->bytes_per_peer = one->bytes_per_peer;
	if (!sum->first_wrong[0])
		memcpy(sum->first_wrong, one->first_wrong, sizeof(sum->first_wrong));
}

uint64_t moe_phase_wrong(const struct moe_opts *o, const struct moe_result *r, int p, char *note,
			 size_t note_bytes)
{
	uint64_t wrong = 0;

	for (uint32_t i = 0; i < o->rounds; i++) {
		const struct moe_phase *ph = &r->phase[i][p];

		wrong += ph->wrong;
		if (ph->bytes_remote_node == ph->expected_remote_node)
			continue;
		wrong++;
		if (!note[0])
			snprintf(note, note_bytes,
				 "round %u, %s: %" PRIu64
				 " bytes crossed between nodes, the reference says %" PRIu64,
				 i, moe_phase_name[p], ph->bytes_remote_node,
				 ph->expected_remote_node);
	}
	return wrong;
}
