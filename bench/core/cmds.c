/* SPDX-License-Identifier: Apache-2.0 */
/* See cmds.h: random commands of a fixed seed, and what they add up to. Nothing here runs while something is measured. */
#include "bench/core/cmds.h"

#include <errno.h>
#include <stdlib.h>

static uint64_t draw(uint64_t *state)
{
	uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15)); /* splitmix64, Steele et al. 2014 */

	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return z ^ z >> 31;
}

/* One valid command: seven in eight move memory, as dispatch and combine do. */
static struct epf_cmd good(uint64_t *state, struct core_tally *t)
{
	uint64_t r = draw(state);
	uint32_t rank = (uint32_t)r % CORE_PEERS;
	uint32_t length = (uint32_t)(((r >> 8) % 512 + 1) * 16);
	uint64_t room = CORE_REGION_BYTES - length;
	uint64_t from = draw(state) % room & ~15ull;
	uint64_t to = draw(state) % room & ~15ull;
	uint32_t lregion = (uint32_t)(r >> 32) % CORE_REGIONS;
	uint32_t rregion = (uint32_t)(r >> 40) % CORE_REGIONS;
	uint32_t signal = (uint32_t)(r >> 20) % CORE_SIGNALS;

	switch (r >> 61) {
	case 0:
		return epf_cmd_signal(0, rank, signal, 1, 0);
	case 1:
	case 2:
		t->bytes += length;
		return epf_cmd_transfer(EPF_OP_PUT_SIGNAL, 0, rank, signal, 1, lregion, from,
					rregion, to, length);
	case 3:
		t->gets += length;
		return epf_cmd_transfer(EPF_OP_GET, 0, rank, 0, 1, lregion, from, rregion, to,
					length);
	default:
		t->bytes += length;
		return epf_cmd_transfer(EPF_OP_PUT, 0, rank, 0, 1, lregion, from, rregion, to,
					length);
	}
}

/* One command that must be refused: rank, region or range outside what there is. */
static struct epf_cmd bad(uint64_t *state)
{
	uint64_t r = draw(state);
	uint32_t rank = (uint32_t)r % CORE_PEERS;

	switch (r >> 62) {
	case 0:
		return epf_cmd_transfer(EPF_OP_PUT, 0, CORE_PEERS + rank, 0, 1, 0, 0, 0, 0, 64);
	case 1:
		return epf_cmd_transfer(EPF_OP_PUT, 0, rank, 0, 1, CORE_REGIONS, 0, 0, 0, 64);
	case 2:
		return epf_cmd_transfer(EPF_OP_PUT, 0, rank, 0, 1, 0, 0, CORE_REGIONS, 0, 64);
	default:
		return epf_cmd_transfer(EPF_OP_PUT, 0, rank, 0, 1, 0, 0, 0, CORE_REGION_BYTES - 16,
					64);
	}
}

int core_table_make(struct epf_cmd **table, struct core_tally **sums)
{
	uint64_t seed = 1;
	struct core_tally t = { 0 };

	*table = calloc(CORE_TABLE, sizeof(**table));
	*sums = calloc(CORE_TABLE + 1, sizeof(**sums));
	if (!*table || !*sums)
		return -ENOMEM;
	for (uint32_t i = 0; i < CORE_TABLE; i++) {
		(*sums)[i] = t;
		t.commands++;
		if (i % CORE_BAD_EVERY == CORE_BAD_EVERY / 2) {
			(*table)[i] = bad(&seed);
			t.bad++;
		} else {
			(*table)[i] = good(&seed, &t);
		}
	}
	(*sums)[CORE_TABLE] = t;
	return 0;
}
