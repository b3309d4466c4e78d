/* SPDX-License-Identifier: Apache-2.0 */
/* See values.h. The values repeat after TABLE bytes, which no block of a compressor spans. */
#include "bench/xfer/values.h"

#include <math.h>
#include <string.h>

enum { TABLE = 1 << 20 };

static uint8_t table[TABLE];

static double uniform(uint64_t *seed)
{
	*seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
	return (double)((*seed >> 11) + 1) / 9007199254740993.0;
}

static void make_table(void)
{
	uint64_t seed = 7;

	if (table[1])
		return;
	for (uint32_t i = 0; i < TABLE; i += 2) {
		double a = uniform(&seed), b = uniform(&seed);
		float f = (float)(0.02 * sqrt(-2 * log(a)) * cos(6.283185307 * b));
		uint32_t bits;

		memcpy(&bits, &f, sizeof(bits));
		memcpy(table + i, (const uint8_t *)&bits + 2, 2);
	}
}

/* The target's values differ from the initiator's in the last bit of each mantissa. */
static uint8_t at(uint64_t place, int which, bool are_values)
{
	if (!are_values)
		return which == 1 ? 0x11 : 0x22;
	return table[place % TABLE] ^ (which == 1 && !(place & 1) ? 1 : 0);
}

void xfer_fill(uint8_t *memory, uint64_t bytes, int which, bool are_values)
{
	make_table();
	for (uint64_t i = 0; i < bytes; i++)
		memory[i] = at(i, which, are_values);
}

uint64_t xfer_wrong(const uint8_t *memory, uint64_t from, uint64_t bytes, int which,
		    bool are_values)
{
	uint64_t wrong = 0;

	make_table();
	for (uint64_t i = from; i < from + bytes; i++)
		wrong += memory[i] != at(i, which, are_values);
	return wrong;
}
