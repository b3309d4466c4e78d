/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests of DeepEP's normal mode between nodes: each channel has a queue of few slots to each peer. Adds on ring `channel` advance its
 * tail, a 64-bit word, after the rows; adds on ring `channel` + CHANNELS return its head. Quiet covers every ring, used or not, and the
 * words are cleared between two barriers. One thread does it all, so it must never wait for a single peer.
 */
#include "tests/proc/shim_kernels.h"
#include "tools/shim/host.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { CHANNELS = 2, SLOTS = 8, CHUNK = 4, ROW = 512, TOKENS = 90, ROUNDS = 3, DEADLINE_S = 60 };

/* One channel, at the same heap address on every rank. Words and slots by peer. */
struct channel {
	uint64_t *head, *tail;
	uint8_t *from, *to;
};

struct queue {
	uint64_t sent, got;
};

static uint64_t word(const void *p)
{
	return (uintptr_t)p;
}

static uint64_t tokens(int round, int channel, int from, int to)
{
	return (uint64_t)(TOKENS + 7 * round + channel + 3 * from - to) *
	       ((round + from + to) % 4 != 3); /* some queues stay empty */
}

static uint8_t *slot(uint8_t *slots, int peer, uint64_t token)
{
	return slots + ((uint64_t)peer * SLOTS + token % SLOTS) * ROW;
}

static uint8_t byte(int round, int channel, int from, int to, uint64_t token, size_t i)
{
	return (uint8_t)(round * 41 + channel * 23 + from * 11 + to * 5 + (int)token * 3 + (int)i);
}

/* A chunk never wraps: SLOTS is a multiple of CHUNK, and only the last chunk is shorter. */
static uint64_t send(const struct channel *c, struct queue *q, int round, int channel, int me,
		     int to)
{
	uint64_t left = tokens(round, channel, me, to) - q->sent, n = left < CHUNK ? left : CHUNK;

	if (n == 0 || q->sent + n - __atomic_load_n(&c->head[to], __ATOMIC_ACQUIRE) > SLOTS)
		return 0;
	for (uint64_t t = q->sent; t < q->sent + n; t++)
		for (size_t i = 0; i < ROW; i++)
			slot(c->to, to, t)[i] = byte(round, channel, me, to, t, i);
	shim_put(to, channel, word(slot(c->from, me, q->sent)), word(slot(c->to, to, q->sent)),
		 (uint32_t)(n * ROW));
	shim_add(to, channel, word(&c->tail[me]), (uint32_t)n);
	shim_ring(to, channel);
	q->sent += n;
	return n;
}

static uint64_t receive(const struct channel *c, struct queue *q, int round, int channel, int me,
			int from)
{
	uint64_t tail = __atomic_load_n(&c->tail[from], __ATOMIC_ACQUIRE), n = tail - q->got;

	MUST(tail >= q->got && n <= SLOTS);
	for (uint64_t t = q->got; t < tail; t++)
		for (size_t i = 0; i < ROW; i++)
			MUST(slot(c->from, from, t)[i] == byte(round, channel, from, me, t, i));
	if (n == 0)
		return 0;
	q->got = tail;
	shim_add(from, CHANNELS + channel, word(&c->head[me]), (uint32_t)n);
	shim_ring(from, CHANNELS + channel);
	return n;
}

static void clear(const struct channel *c, int me, int world)
{
	for (int peer = 0; peer < world; peer++)
		for (int id = 0; peer != me && id < 2 * CHANNELS; id++)
			shim_quiet(peer, id);
	shim_device_sync(EPF_NV_WORLD);
	for (int channel = 0; channel < CHANNELS; channel++) {
		memset(c[channel].head, 0, 8 * (size_t)world);
		memset(c[channel].tail, 0, 8 * (size_t)world);
	}
	shim_device_sync(EPF_NV_WORLD);
}

static void round_of(const struct channel *c, struct queue *q, int round, int me, int world)
{
	struct timespec start, now;
	uint64_t left = 0;

	memset(q, 0, CHANNELS * (size_t)world * sizeof(*q));
	for (int i = 0; i < CHANNELS * world; i++)
		if (i % world != me)
			left += tokens(round, i / world, me, i % world) +
				tokens(round, i / world, i % world, me);
	clock_gettime(CLOCK_MONOTONIC, &start);
	while (left) {
		uint64_t before = left;

		for (int i = 0; i < CHANNELS * world; i++) {
			int peer = i % world, channel = i / world;

			if (peer == me)
				continue;
			left -= send(&c[channel], &q[i], round, channel, me, peer);
			left -= receive(&c[channel], &q[i], round, channel, me, peer);
		}
		clock_gettime(CLOCK_MONOTONIC, &now);
		MUST(now.tv_sec - start.tv_sec < DEADLINE_S);
		if (before == left)
			usleep(20);
	}
}

void deep_ep_normal(int me, int world)
{
	struct queue *q = calloc(CHANNELS * (size_t)world, sizeof(*q));
	struct channel c[CHANNELS];

	MUST(q != NULL);
	for (int i = 0; i < CHANNELS; i++) {
		c[i].head = nvshmem_align(128, 8 * (size_t)world);
		c[i].tail = nvshmem_align(128, 8 * (size_t)world);
		c[i].from = nvshmem_align(128, (size_t)world * SLOTS * ROW);
		c[i].to = nvshmem_align(128, (size_t)world * SLOTS * ROW);
		MUST(c[i].head && c[i].tail && c[i].from && c[i].to);
	}
	nvshmem_barrier_all();
	for (int round = 0; round < ROUNDS; round++) {
		clear(c, me, world);
		round_of(c, q, round, me, world);
	}
	nvshmem_barrier_all();
	for (int i = 0; i < CHANNELS; i++) {
		nvshmem_free(c[i].head);
		nvshmem_free(c[i].tail);
		nvshmem_free(c[i].from);
		nvshmem_free(c[i].to);
	}
	free(q);
}
