/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stand-in for DeepEP's module: the shim looks for its file name; it is linked against the stand-in for NVSHMEM's host library and calls it
 * as a compiled DeepEP does. deep_ep_play() is one rank: start, traffic as in dispatch, barriers, teams, end. Run by shim_rank.c.
 */
#include "tests/proc/shim_kernels.h"
#include "tools/shim/host.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROWS = 8, ROW_BYTES = 7168, ROUNDS = 12, RINGS = 4 };

static bool asks_for_transport;

static void states(void **host, void **ibgda)
{
	*host = shim_host_state;
	*ibgda = asks_for_transport && nvshmem_selected_device_transport != EPF_NV_IBGDA
			 ? NULL
			 : shim_ibgda_state;
}

static void share_id(int rank, const char *file, struct epf_host_id *id)
{
	char temporary[4200];
	FILE *f = NULL;

	if (rank == 0) {
		MUST(nvshmemx_get_uniqueid(id) == 0);
		snprintf(temporary, sizeof(temporary), "%s.new", file);
		f = fopen(temporary, "w");
		MUST(f && fwrite(id, 128, 1, f) == 1 && fclose(f) == 0 &&
		     rename(temporary, file) == 0);
		return;
	}
	for (int i = 0; !f && i < 60000; i++, usleep(1000))
		f = fopen(file, "r");
	MUST(f && fread(id, 128, 1, f) == 1 && fclose(f) == 0);
}

static uint8_t pattern(int round, int from, int to, int row, size_t i)
{
	return (uint8_t)(round * 37 + from * 11 + to * 5 + row * 3 + (int)(i % 251));
}

/* Two sets of buffers in the heap: rows, counts (adjacent 32-bit words) and inline words by rank; and a source. */
struct buffers {
	uint8_t *rows[2];
	uint32_t *counts[2];
	uint32_t *marks[2];
	uint8_t *source;
};

static uint8_t *row_at(const struct buffers *b, int set, int from, int row)
{
	return b->rows[set] + ((size_t)from * ROWS + (size_t)row) * ROW_BYTES;
}

static uint64_t word(const void *p)
{
	return (uintptr_t)p;
}

/* Sends rows to every rank, then an add that may become visible only after them, as low-latency dispatch does. */
static void send_round(const struct buffers *b, int round, int rank, int world)
{
	int set = round & 1;

	for (int to = 0; to < world; to++) {
		int ring = round % RINGS, rows = 1 + (round + rank + to) % ROWS;

		if (round % 3 == 2)
			shim_ring_ahead(to, ring, (unsigned)rows + 2);
		for (int r = 0; r < rows; r++) {
			uint8_t *from = b->source + ((size_t)to * ROWS + (size_t)r) * ROW_BYTES;

			for (size_t i = 0; i < ROW_BYTES; i++)
				from[i] = pattern(round, rank, to, r, i);
			shim_put(to, ring, word(row_at(b, set, rank, r)), word(from), ROW_BYTES);
		}
		shim_inline(to, ring, word(&b->marks[set][rank]), (uint32_t)(round << 8 | rank));
		shim_add(to, ring, word(&b->counts[set][rank]), (uint32_t)(-rows - 1));
		shim_ring(to, ring);
	}
}

static void receive_round(const struct buffers *b, int round, int rank, int world)
{
	int set = round & 1;

	for (int from = 0; from < world; from++) {
		uint32_t *count = &b->counts[set][from];
		int rows;

		for (int i = 0; __atomic_load_n(count, __ATOMIC_ACQUIRE) == 0; i++) {
			MUST(i < 600000);
			usleep(100);
		}
		rows = (int)(-*count - 1);
		MUST(rows == 1 + (round + from + rank) % ROWS);
		MUST(b->marks[set][from] == (uint32_t)(round << 8 | from));
		for (int r = 0; r < rows; r++)
			for (size_t i = 0; i < ROW_BYTES; i++)
				MUST(row_at(b, set, from, r)[i] ==
				     pattern(round, from, rank, r, i));
	}
}

static void traffic(const struct buffers *b, int rank, int world)
{
	for (int round = 0; round < ROUNDS; round++) {
		send_round(b, round, rank, world);
		receive_round(b, round, rank, world);
		for (int to = 0; to < world; to++)
			shim_quiet(to, round % RINGS);
		/* All rows are read: clears the set for the round after the next. */
		memset(b->counts[round & 1], 0, (size_t)world * 4);
		shim_device_quiet();
		shim_device_sync(EPF_NV_WORLD);
	}
}

/* After quiet and sync the others' puts are visible without a flag. */
static void barriers(const struct buffers *b, int rank, int world)
{
	for (int round = 1; round < 40; round++) {
		*(uint64_t *)(void *)b->source = (uint64_t)round;
		for (int to = 0; to < world; to++) {
			shim_put(to, 1, word(b->rows[0]) + 8 * (uint64_t)rank, word(b->source), 8);
			shim_ring(to, 1);
		}
		for (int to = 0; to < world; to++)
			shim_quiet(to, 1);
		shim_device_quiet();
		shim_device_sync(EPF_NV_WORLD);
		for (int from = 0; from < world; from++)
			MUST(((uint64_t *)(void *)b->rows[0])[from] == (uint64_t)round);
		nvshmem_barrier_all();
	}
}

/* True if no rank has signalled the team. */
static int is_quiet(int team)
{
	const uint64_t *half = shim_device_psync(team);

	for (int i = 0; i < 55296; i++)
		if (half[i] || half[shim_psync_turn + (uint64_t)i])
			return 0;
	return 1;
}

static void teams(int rank, int world)
{
	int32_t team = 99, other = 99;

	MUST(nvshmem_team_split_strided(EPF_NV_WORLD, 0, 2, (world + 1) / 2, NULL, 0, &team) == 0);
	MUST((rank % 2 == 0) == (team >= EPF_NV_FIXED_TEAMS));
	MUST(nvshmem_team_split_strided(EPF_NV_WORLD, 0, 1, world + 1, NULL, 0, &other) == 1 &&
	     other == -1);
	/* Twice: a team in the slot of a destroyed one must not find its signals. */
	for (int turn = 0; turn < 2; turn++) {
		MUST(team < 0 || is_quiet(team));
		nvshmem_barrier_all();
		for (int i = 0; team >= 0 && i < 10; i++)
			shim_device_sync(team);
		nvshmem_team_destroy(team);
		nvshmem_barrier_all();
		if (turn == 0)
			MUST(nvshmem_team_split_strided(EPF_NV_WORLD, 0, 2, (world + 1) / 2, NULL,
							0, &team) == 0);
	}
}

static void heap(const struct buffers *b, int world)
{
	uint64_t base, end;

	memcpy(&base, shim_host_state + 40, 8);
	memcpy(&end, shim_host_state + 48, 8);
	end += base;
	MUST(word(b->source) >= base &&
	     word(b->source) + (uint64_t)world * ROWS * ROW_BYTES <= end);
	MUST(word(b->rows[1]) % 4096 == 0);
	memcpy(&end, shim_host_state + 112, 8);
	for (int i = 0; i < EPF_NV_FIXED_TEAMS; i++) /* otherwise the first barrier does not wait */
		MUST(((const uint64_t *)(uintptr_t)end)[2 * i] == 1);
	MUST(nvshmem_align(128, (size_t)1 << 40) == NULL); /* too much: an error, not an abort */
	MUST(nvshmem_align(48, 64) == NULL);
}

/* Layout in the device code of the release. */
static void play_release(struct epf_nv_version v, uint64_t world)
{
	bool is_new = v.minor >= 6 || (v.minor == 5 && v.patch >= 19);

	shim_map_at = v.minor == 5 && v.patch < 21 ? 792 : 784;
	shim_psync_words = (is_new ? 20 : 16) * UINT64_C(27648) + (v.minor >= 5 ? world : 0);
	if (v.minor >= 6) /* an even number, so that each team's part is aligned */
		shim_psync_words = (shim_psync_words + 1) / 2 * 2;
	shim_psync_turn = is_new ? 2 * UINT64_C(27648) : 0;
	asks_for_transport = v.minor >= 6;
}

int deep_ep_play(int rank, int world, const char *id_file, const char *version)
{
	struct epf_nv_version v = { 0 };
	struct epf_host_attr attr;
	struct epf_host_id id;
	struct buffers b;
	int provided = -1;

	memset(&attr, 0x5a, sizeof(attr));
	MUST(sscanf(version, "%d.%d.%d", &v.major, &v.minor, &v.patch) == 3);
	play_release(v, (uint64_t)world);
	MUST(nvshmemid_init_status() == 0);
	share_id(rank, id_file, &id);
	MUST(nvshmemx_set_attr_uniqueid_args(rank, world, &id, &attr) == 0);
	if (nvshmemid_hostlib_init_attr(2, &provided, 8, &attr, v, states) != 0)
		return 3; /* the shim has printed why */
	MUST(provided == 2 && nvshmemid_init_status() == 2 && nvshmem_my_pe() == rank);
	for (int set = 0; set < 2; set++) {
		b.rows[set] = nvshmem_align(4096, (size_t)world * ROWS * ROW_BYTES);
		b.counts[set] = nvshmem_align(128, (size_t)world * 4);
		b.marks[set] = nvshmem_align(128, (size_t)world * 4);
		MUST(b.rows[set] && b.counts[set] && b.marks[set]);
		memset(b.counts[set], 0, (size_t)world * 4);
	}
	b.source = nvshmem_align(128, (size_t)world * ROWS * ROW_BYTES);
	MUST(b.source);
	heap(&b, world);
	nvshmem_barrier_all();
	traffic(&b, rank, world);
	nvshmem_barrier_all();
	barriers(&b, rank, world);
	deep_ep_normal(rank, world);
	teams(rank, world);
	nvshmem_free(b.source);
	MUST(nvshmem_align(128, (size_t)world * ROWS * ROW_BYTES) == b.source);
	MUST(nvshmem_selected_device_transport == 0); /* of the process, not ours */
	nvshmemid_hostlib_finalize(shim_host_state, shim_ibgda_state);
	MUST(nvshmemid_init_status() == 0);
	return 0;
}
