/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of a rig's ends, wherever it is: see rig_memory.h. */
#include "tools/prove/rig_memory.h"
#include "fabric/gpu/copy.h"

#include <string.h>

void *rig_at(const struct rig_end *end, uint64_t off)
{
	return end->mem ? end->mem + off : (void *)(uintptr_t)(end->base + off);
}

void rig_get(const struct rig_end *end, uint64_t off, void *to, size_t len)
{
	if (end->far)
		end->far->load(end->far->arg, off, to, len);
	else if (end->mem)
		memcpy(to, end->mem + off, len);
	else
		REQUIRE_EQ(end->copy->copy(to, (const char *)end->gpu + off, len), 0);
}

static void store(struct rig_end *end, uint64_t off, const void *from, size_t len)
{
	if (end->far)
		end->far->store(end->far->arg, off, from, len);
	else if (end->mem)
		memcpy(end->mem + off, from, len);
	else
		REQUIRE_EQ(end->copy->copy((char *)end->gpu + off, from, len), 0);
}

static unsigned char copy[RIG_BYTES];

void rig_set(struct rig_end *end, uint64_t off, size_t len, unsigned char byte)
{
	memset(copy, byte, len);
	store(end, off, copy, len);
}

int rig_all(const struct rig_end *end, uint64_t off, size_t len, unsigned char byte)
{
	rig_get(end, off, copy, len);
	for (size_t i = 0; i < len; i++)
		if (copy[i] != byte)
			return 0;
	return 1;
}

void rig_put(struct rig_end *end, uint64_t off, size_t len, uint64_t seed)
{
	rig_fill(copy, len, seed);
	store(end, off, copy, len);
}

int rig_has(const struct rig_end *end, uint64_t off, size_t len, uint64_t seed)
{
	rig_get(end, off, copy, len);
	return rig_matches(copy, len, seed);
}

void rig_fill(unsigned char *at, size_t len, uint64_t seed)
{
	for (size_t i = 0; i < len; i++)
		at[i] = (unsigned char)((seed + i) * 0x9e3779b97f4a7c15ull >> 56);
}

int rig_matches(const unsigned char *at, size_t len, uint64_t seed)
{
	for (size_t i = 0; i < len; i++)
		if (at[i] != (unsigned char)((seed + i) * 0x9e3779b97f4a7c15ull >> 56))
			return 0;
	return 1;
}

uint64_t rig_random(uint64_t *state)
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return *state * 0x2545f4914f6cdd1dull;
}

void rig_inline(const struct rig *rig, struct epf_wr *wr)
{
	static unsigned char payload[EPF_NIC_MSG_BYTES];
	uint64_t off = wr->laddr - rig->a.base;

	wr->flags |= EPF_WR_INLINE;
	wr->laddr = (uint64_t)(uintptr_t)(rig->a.mem ? rig->a.mem + off : payload);
	if (!rig->a.mem)
		rig_get(&rig->a, off, payload,
			wr->len < sizeof(payload) ? wr->len : sizeof(payload));
}
