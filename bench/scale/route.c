/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranks a token goes to (scale.h): a pure function of the seed and of round, rank and token. */
#include "bench/scale/scale.h"

uint64_t scale_mix(uint64_t seed, uint64_t a, uint64_t b, uint64_t c)
{
	uint64_t z = seed + a * UINT64_C(0x9e3779b97f4a7c15) + b * UINT64_C(0xd1342543de82ef95) +
		     c * UINT64_C(0x2545f4914f6cdd1d);

	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return z ^ z >> 31;
}

void scale_route(const struct scale *s, uint32_t round, uint32_t rank, uint32_t token,
		 uint32_t to[SCALE_TOPK])
{
	uint64_t seed = scale_mix(s->o.seed, round, rank, token), n = 0;
	uint32_t experts = SCALE_EXPERTS, in_group = SCALE_EXPERTS / SCALE_GROUPS;
	uint32_t copies = s->o.ranks > experts ? s->o.ranks / experts : 1;
	uint32_t taken[SCALE_TOPK], group[SCALE_LIMIT];

	if (s->o.route) {
		s->o.route(s->o.route_arg, rank, token, to);
		return;
	}
	for (uint32_t g = 0; g < SCALE_LIMIT;) {
		uint32_t draw = scale_mix(seed, n++, 1, 0) % SCALE_GROUPS, i = 0;

		while (i < g && group[i] != draw)
			i++;
		if (i == g)
			group[g++] = draw;
	}
	for (uint32_t k = 0; k < SCALE_TOPK;) {
		uint64_t h = scale_mix(seed, n++, 2, 0);
		uint32_t e = group[h % SCALE_LIMIT] * in_group + (uint32_t)(h >> 8) % in_group,
			 i = 0;

		while (i < k && taken[i] != e)
			i++;
		if (i < k)
			continue;
		taken[k] = e;
		/* Above 256 ranks an expert has a copy for every 256 of them, and each token takes any. */
		to[k++] = s->o.ranks <= experts ? e / (experts / s->o.ranks)
						: e * copies + (uint32_t)(h >> 40) % copies;
	}
}
