/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CPU code in place of kernels (shim_kernels.h). Offsets are those of the NVSHMEM releases, repeated here and not taken from tools/shim.
 */
#include "tests/proc/shim_kernels.h"

#include "tests/unit/tools/shim/shim_kit.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { DEADLINE_S = 60 };

uint8_t shim_host_state[776];
uint8_t shim_ibgda_state[8384];
size_t shim_map_at = 784;
uint64_t shim_psync_words = 442368, shim_psync_turn;

void shim_must(int rule, const char *text, int line)
{
	if (rule)
		return;
	fprintf(stderr, "line %d: %s is false\n", line, text);
	_exit(1);
}

static uint64_t u64(const void *p, size_t at)
{
	uint64_t v;

	memcpy(&v, (const uint8_t *)p + at, 8);
	return v;
}

static uint32_t u32(const void *p, size_t at)
{
	uint32_t v;

	memcpy(&v, (const uint8_t *)p + at, 4);
	return v;
}

static void *at(uint64_t address)
{
	return (void *)(uintptr_t)address;
}

static int world(void)
{
	return (int)u32(shim_host_state, 8);
}

static uint8_t *ring_of(int pe, int id)
{
	uint32_t per_pe = u32(shim_ibgda_state, 28) * u32(shim_ibgda_state, 48);

	return (uint8_t *)at(u64(shim_ibgda_state, 8272)) +
	       ((uint32_t)pe * per_pe + (uint32_t)id % per_pe) * 184;
}

/* Returns the number of the next request, from the counter that kernels use. */
static uint64_t next(uint8_t *qp)
{
	uint64_t n = u64(qp, 96) + 1;

	memcpy(qp + 96, &n, 8);
	return n - 1;
}

/* Stores a request in pieces of 16 bytes, back to front: a CPU may see a GPU's stores in any order. */
static void store(uint8_t *qp, uint64_t index, const uint8_t wr[64])
{
	uint16_t depth;
	uint64_t *slot;

	memcpy(&depth, qp + 40, 2);
	slot = (uint64_t *)at(u64(qp, 48) + (index & (depth - 1u)) * 64);
	for (int i = (wr[3] == 0x15 ? 7 : wr[32] == 0x80 ? 4 : 5); i >= 0; i--)
		__atomic_store_n(&slot[i], u64(wr, (size_t)i * 8), __ATOMIC_RELAXED);
}

void shim_put(int pe, int id, uint64_t to, uint64_t from, uint32_t bytes)
{
	uint8_t wr[64], *qp = ring_of(pe, id);
	uint64_t index = next(qp);

	kit_put(wr, index, u32(qp, 8), (uint32_t)pe, to - u64(shim_host_state, 40), from, bytes);
	memcpy(wr + 24, shim_ibgda_state + 1080 + 16 * pe, 4); /* the keys from the shim */
	memcpy(wr + 36, shim_ibgda_state + 56, 4);
	kit_be(wr + 16,
	       u64(at(u64(shim_host_state, 64)), (size_t)pe * 8) + to - u64(shim_host_state, 40),
	       8);
	store(qp, index, wr);
}

void shim_inline(int pe, int id, uint64_t to, uint32_t value)
{
	uint8_t wr[64], *qp = ring_of(pe, id);
	uint64_t index = next(qp);

	kit_inline(wr, index, u32(qp, 8), (uint32_t)pe, to - u64(shim_host_state, 40), value);
	store(qp, index, wr);
}

void shim_add(int pe, int id, uint64_t to, uint32_t value)
{
	uint8_t wr[64], *qp = ring_of(pe, id);
	uint64_t index = next(qp);

	kit_add(wr, index, u32(qp, 8), (uint32_t)pe, to - u64(shim_host_state, 40), value);
	kit_be(wr + 56, u64(qp, 24), 8);
	memcpy(wr + 52, qp + 32, 4);
	store(qp, index, wr);
}

void shim_ring_ahead(int pe, int id, unsigned more)
{
	uint8_t *qp = ring_of(pe, id);

	__atomic_store_n((uint64_t *)at(u64(qp, 64)), kit_wakeup(u64(qp, 96) + more, u32(qp, 8)),
			 __ATOMIC_RELEASE);
}

void shim_ring(int pe, int id)
{
	shim_ring_ahead(pe, id, 0);
}

static void late(const struct timespec *start, const char *what)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	if (now.tv_sec - start->tv_sec < DEADLINE_S) {
		usleep(20);
		return;
	}
	fprintf(stderr, "%s: not within %d s\n", what, DEADLINE_S);
	_exit(1);
}

void shim_quiet(int pe, int id)
{
	uint8_t *qp = ring_of(pe, id), *cqe = at(u64(at(u64(qp, 72)), 16));
	uint16_t last = (uint16_t)u64(qp, 96);
	struct timespec start;

	clock_gettime(CLOCK_MONOTONIC, &start);
	for (;;) {
		uint16_t word = __atomic_load_n((uint16_t *)(void *)(cqe + 60), __ATOMIC_ACQUIRE);

		if ((uint16_t)(__builtin_bswap16(word) + 1) == last)
			return;
		late(&start, "a completion");
	}
}

static void channel(const uint64_t *words, unsigned n)
{
	uint64_t *issue = at(u64(shim_host_state, 680)), *ring = at(u64(shim_host_state, 632));

	for (unsigned i = 0; i < n; i++) {
		uint64_t where = *issue + 8 * (uint64_t)i;

		__atomic_store_n(&ring[where % (1 << 22) / 8], words[i] | !(where >> 22 & 1),
				 __ATOMIC_RELEASE);
	}
	*issue += 8 * (uint64_t)n;
}

static void wait_word(const uint64_t *word, uint64_t least, const char *what)
{
	struct timespec start;

	clock_gettime(CLOCK_MONOTONIC, &start);
	while (__atomic_load_n(word, __ATOMIC_ACQUIRE) < least)
		late(&start, what);
}

void shim_device_quiet(void)
{
	uint64_t issue = *(uint64_t *)at(u64(shim_host_state, 680));

	__atomic_store_n((uint64_t *)at(u64(shim_host_state, 704)), issue, __ATOMIC_RELEASE);
	wait_word(at(u64(shim_host_state, 712)), issue, "a quiet");
}

const uint64_t *shim_device_psync(int team)
{
	const uint8_t *t = at(u64(at(u64(shim_host_state, 96)), (size_t)team * 8));

	return at(u64(shim_host_state, 104) + u32(t, 20) * shim_psync_words * 8);
}

/* Dissemination barrier with radix 2, as in NVSHMEM's device code. */
void shim_device_sync(int team)
{
	const uint8_t *t = at(u64(at(u64(shim_host_state, 96)), (size_t)team * 8));
	const int32_t *map = at(u64(t, shim_map_at));
	int me = (int)u32(t, 4), size = (int)u32(t, 16);
	uint64_t *counter = (uint64_t *)at(u64(shim_host_state, 112)) + 2 * u32(t, 20);
	uint64_t psync = (uintptr_t)shim_device_psync(team) + *counter % 2 * shim_psync_turn * 8;

	MUST(world() >= size);
	for (int shift = 1; shift < size; shift *= 2) {
		uint64_t w[6];
		int from = (me - shift + size) % size;
		unsigned n = kit_channel_amo(w, 7, 8, (uint32_t)map[(me + shift) % size],
					     psync + 8 * u32(shim_host_state, 4) -
						     u64(shim_host_state, 40),
					     *counter, 8);

		channel(w, n);
		wait_word((uint64_t *)at(psync) + map[from], *counter, "a barrier");
	}
	++*counter;
}
