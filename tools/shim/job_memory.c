/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of a job of the shim (job.h): the heap, one block of pinned host memory (slots, doorbells, completion words, the channel) and one of
 * the device (what kernels write, and tables). A table is made in host memory and copied once. Nothing here is called while kernels run.
 */
#define EPF_LOG_COMP "shim"
#include "tools/shim/job.h"

#include "fabric/base/err.h"
#include "fabric/base/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, LINE = 64, DEVICE_WORDS_BYTES = 512 };

static uint64_t place(uint64_t *end, uint64_t bytes, uint64_t alignment)
{
	uint64_t at = (*end + alignment - 1) & ~(alignment - 1);

	*end = at + bytes;
	return at;
}

static uint32_t power_of_two(uint64_t v)
{
	uint32_t p = 128;

	while (p < v)
		p <<= 1;
	return p;
}

/* Twice the rings a program asks for: some releases of DeepEP number them without a modulo, see docs/reference/shim.md. */
static void lay_out(struct epf_job *j)
{
	struct epf_job_layout *a = &j->at;
	uint64_t world = (uint64_t)j->nv.world, end = 0, n;

	n = a->n_rings = (uint32_t)(world * j->nv.rings_per_pe * 2);
	a->depth = power_of_two(j->conf.shim_depth);
	a->slots = place(&end, n * a->depth * EPF_WR_BYTES, PAGE);
	a->wakeups = place(&end, n * 8, PAGE);
	a->cqes = place(&end, n * EPF_WR_CQE_BYTES, PAGE);
	a->channel = place(&end, EPF_CHANNEL_BYTES, PAGE);
	a->words = place(&end, sizeof(struct epf_channel_words), PAGE);
	place(&end, 0, PAGE);
	a->pinned_bytes = (end + PAGE - 1) & ~(uint64_t)(PAGE - 1);
	end = 0;
	a->rcs = place(&end, n * sizeof(struct epf_nv_qp), LINE);
	a->cqs = place(&end, n * sizeof(struct epf_nv_cq), LINE);
	a->cons_idx = place(&end, n * 8, LINE);
	a->device_words = place(&end, DEVICE_WORDS_BYTES, LINE);
	a->p2p = place(&end, world * 8, LINE);
	a->remote = place(&end, world * 8, LINE);
	a->teams = place(&end, EPF_NV_TEAMS * 8, LINE);
	a->team_at = place(&end, EPF_NV_TEAMS * sizeof(struct epf_nv_team), LINE);
	a->maps = place(&end, EPF_NV_TEAMS * world * 8, LINE);
	a->more_rkeys = place(&end, world * sizeof(struct epf_nv_key), LINE);
	a->device_bytes = end;
}

static int make_heap(struct epf_job *j)
{
	unsigned access = EPF_REMOTE_WRITE | EPF_REMOTE_READ;
	uint32_t region = 0;
	int rc;

	j->heap_bytes = j->conf.shim_heap & ~(uint64_t)(PAGE - 1);
	if (j->conf.shim_host_heap) {
		rc = epf_memory_alloc(j->ep, j->heap_bytes, &j->heap);
		if (!rc)
			rc = epf_region_register(j->ep, j->heap, j->heap_bytes, access, &region);
		if (!rc)
			rc = j->ops->pin(j->dev, j->heap, j->heap_bytes, 0, &j->heap_dev);
		j->is_heap_pinned = !rc;
	} else {
		rc = j->ops->mem_alloc(j->dev, j->heap_bytes, 0, &j->heap_mem);
		j->heap_dev = j->heap_mem.addr;
		if (!rc)
			rc = epf_region_register_gpu(j->ep, (void *)(uintptr_t)j->heap_dev,
						     j->heap_bytes, access, &region);
	}
	if (!rc && region != 0)
		rc = epf_fail(EPF_R_SHIM_CALL, "shim: the heap became region %u, not 0", region);
	return rc;
}

static int make_pinned(struct epf_job *j)
{
	void *at = mmap(NULL, j->at.pinned_bytes, PROT_READ | PROT_WRITE,
			MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int rc;

	if (at == MAP_FAILED)
		return epf_fail_sys(EPF_R_NO_MEMORY, errno,
				    "shim: %llu bytes of work-request rings",
				    (unsigned long long)j->at.pinned_bytes);
	rc = j->ops->pin(j->dev, at, j->at.pinned_bytes, 0, &j->pinned_dev);
	if (rc) {
		munmap(at, j->at.pinned_bytes);
		return rc;
	}
	j->pinned = at;
	return 0;
}

static int make_rings(struct epf_job *j, uint8_t *image)
{
	const struct epf_job_layout *a = &j->at;
	uint32_t seed = (uint32_t)((uintptr_t)j->pinned >> 12) * 2654435761u;

	j->rings = calloc(a->n_rings, sizeof(*j->rings));
	if (!j->rings)
		return epf_fail(EPF_R_NO_MEMORY, "shim: %u work-request rings", a->n_rings);
	for (uint64_t i = 0; i < a->n_rings; i++) {
		uint64_t slots = a->slots + i * a->depth * EPF_WR_BYTES;
		struct epf_nv_ring_places at = {
			.slots = j->pinned_dev + slots,
			.wakeup = j->pinned_dev + a->wakeups + i * 8,
			.cqe = j->pinned_dev + a->cqes + i * EPF_WR_CQE_BYTES,
			.dbrec = j->device.addr + a->device_words + DEVICE_WORDS_BYTES - LINE,
			.cq = j->device.addr + a->cqs + i * sizeof(struct epf_nv_cq),
			.cons_idx = j->device.addr + a->cons_idx + i * 8,
			.number = (uint32_t)i,
			.depth = a->depth,
		};
		struct epf_nv_qp qp;
		struct epf_nv_cq cq;

		if (epf_wr_ring_init(&j->rings[i], j->pinned + slots, a->depth,
				     (uint64_t *)(void *)(j->pinned + a->wakeups + i * 8),
				     j->pinned + a->cqes + i * EPF_WR_CQE_BYTES, (uint32_t)i,
				     seed + (uint32_t)i))
			return epf_fail(EPF_R_SHIM_LIMIT, "shim: %u rings of %u slots", a->n_rings,
					a->depth);
		epf_nv_fill_ring(&at, &qp, &cq);
		memcpy(image + a->rcs + i * sizeof(qp), &qp, sizeof(qp));
		memcpy(image + a->cqs + i * sizeof(cq), &cq, sizeof(cq));
	}
	return 0;
}

/* Heaps of the ranks of this node, mapped so that kernels load and store. A peer that cannot be mapped is reached by the fabric. */
static int map_peers(struct epf_job *j, uint64_t *p2p)
{
	struct epf_gpu_ipc mine = { .base_bytes = 0 }, *all;
	uint32_t world = (uint32_t)j->nv.world, me = (uint32_t)j->nv.rank;
	int rc;

	p2p[me] = j->heap_dev;
	if (j->conf.shim_no_p2p || j->conf.shim_host_heap)
		return 0;
	all = calloc(world, sizeof(*all));
	j->peers = calloc(world, sizeof(*j->peers));
	if (!all || !j->peers) {
		free(all);
		return epf_fail(EPF_R_NO_MEMORY, "shim: %u peers", world);
	}
	if (j->ops->mem_export_ipc(j->dev, j->heap_dev, &mine))
		memset(&mine, 0, sizeof(mine));
	rc = epf_allgather(j->ep, &mine, sizeof(mine), all);
	for (uint32_t r = 0; !rc && r < world; r++) {
		if (r == me || all[r].base_bytes == 0 ||
		    epf_node_of(j->ep, r) != epf_node_of(j->ep, me))
			continue;
		if (j->ops->mem_import_ipc(j->dev, &all[r], &j->peers[r])) {
			epf_note("rank %u is not mapped, it is reached by the fabric: %s", r,
				 epf_last_error());
			continue;
		}
		p2p[r] = j->peers[r].addr;
		j->peers_mapped++;
	}
	free(all);
	return rc;
}

static int fill_device(struct epf_job *j, uint8_t *image)
{
	uint64_t *remote = (uint64_t *)(void *)(image + j->at.remote);
	struct epf_nv_key *keys = (struct epf_nv_key *)(void *)(image + j->at.more_rkeys);
	int rc;

	for (int r = 0; r < j->nv.world; r++) {
		remote[r] = EPF_WR_REMOTE_BASE;
		if (r >= EPF_NV_KEYS)
			keys[r - EPF_NV_KEYS] = (struct epf_nv_key){
				.key = __builtin_bswap32(EPF_WR_RKEY | (uint32_t)r),
				.next_addr = j->heap_bytes
			};
	}
	rc = map_peers(j, (uint64_t *)(void *)(image + j->at.p2p));
	if (!rc)
		rc = make_rings(j, image);
	if (!rc)
		rc = j->ops->copy(j->dev, j->device.addr, (uintptr_t)image, j->at.device_bytes);
	return rc;
}

/* The teams that exist from the start. Those of a node and of GPUs are not asked for by DeepEP: they hold the own rank only. */
static int first_teams(struct epf_job *j)
{
	int rc = epf_job_write_team(j, EPF_NV_WORLD, 0, 1, j->nv.world);

	for (int t = 1; !rc && t < EPF_NV_FIXED_TEAMS; t++)
		rc = epf_job_write_team(j, t, j->nv.rank, 1, 1);
	return rc;
}

int epf_job_memory(struct epf_job *j)
{
	uint8_t *image;
	int rc;

	lay_out(j);
	rc = make_heap(j);
	if (!rc)
		rc = make_pinned(j);
	if (!rc)
		rc = j->ops->mem_alloc(j->dev, j->at.device_bytes, 0, &j->device);
	if (!rc)
		rc = epf_exchange(j->ep);
	if (rc)
		return rc;
	image = calloc(1, j->at.device_bytes);
	rc = image ? fill_device(j, image) : epf_fail(EPF_R_NO_MEMORY, "shim: tables");
	free(image);
	return rc ? rc : first_teams(j);
}

int epf_job_write_team(struct epf_job *j, int index, int start, int stride, int size)
{
	uint64_t team_at =
		j->device.addr + j->at.team_at + (uint64_t)index * sizeof(struct epf_nv_team);
	uint64_t map_at = j->device.addr + j->at.maps + (uint64_t)index * (uint64_t)j->nv.world * 8;
	uint64_t psync_bytes = epf_nv_psync_words(j->nv.layout, j->nv.world) * 8;
	uint64_t psync = j->heap_dev + (uint64_t)index * psync_bytes;
	uint64_t counter =
		j->heap_dev + EPF_NV_TEAMS * EPF_NV_MAX_PSYNC_WORDS * 8 + (uint64_t)index * 16;
	const uint64_t ones[2] = { 1, 1 };
	struct epf_nv_team team;
	int32_t *map = calloc((size_t)j->nv.world, 8);
	int rc;

	if (!map)
		return epf_fail(EPF_R_NO_MEMORY, "shim: a team");
	epf_nv_fill_team(&j->nv, index, start, stride, size, map_at, &team, map);
	rc = j->ops->copy(j->dev, map_at, (uintptr_t)map, (uint64_t)j->nv.world * 8);
	free(map);
	if (!rc)
		rc = j->ops->copy(j->dev, team_at, (uintptr_t)&team, sizeof(team));
	if (!rc)
		rc = j->ops->copy(j->dev, j->device.addr + j->at.teams + (uint64_t)index * 8,
				  (uintptr_t)&team_at, 8);
	if (!rc)
		rc = j->ops->fill(j->dev, psync, 0, psync_bytes);
	if (!rc)
		rc = j->ops->copy(j->dev, counter, (uintptr_t)ones, sizeof(ones));
	if (!rc)
		j->is_team[index] = true;
	return rc;
}

int nvshmem_selected_device_transport;

/* Where a program has its two structures. The shim's lock is held. */
static int find_states(void (*device_states)(void **, void **), void **host_at, void **ibgda_at)
{
	int before = nvshmem_selected_device_transport;

	nvshmem_selected_device_transport = EPF_NV_IBGDA;
	device_states(host_at, ibgda_at);
	nvshmem_selected_device_transport = before;
	if (*host_at && *ibgda_at)
		return 0;
	return epf_fail(EPF_R_SHIM_CALL,
			"shim: the program does not say where its device state is");
}

int epf_job_tell(struct epf_job *j, void (*device_states)(void **, void **))
{
	void *host_at = NULL, *ibgda_at = NULL;
	struct epf_nv_host_state host;
	struct epf_nv_ibgda_state ibgda;
	struct epf_nv_places at = {
		.heap = j->heap_dev,
		.heap_bytes = j->heap_bytes,
		.p2p = j->device.addr + j->at.p2p,
		.remote = j->device.addr + j->at.remote,
		.teams = j->device.addr + j->at.teams,
		.psync = j->heap_dev,
		.sync_counter = j->heap_dev + EPF_NV_TEAMS * EPF_NV_MAX_PSYNC_WORDS * 8,
		.channel = j->pinned_dev + j->at.channel,
		.channel_words = j->pinned_dev + j->at.words,
		.device_words = j->device.addr + j->at.device_words,
		.rcs = j->device.addr + j->at.rcs,
		.cqs = j->device.addr + j->at.cqs,
		.more_rkeys = j->device.addr + j->at.more_rkeys,
	};
	int rc;

	if (!device_states)
		return 0;
	rc = find_states(device_states, &host_at, &ibgda_at);
	if (rc)
		return rc;
	epf_nv_fill(&j->nv, &at, &host, &ibgda);
	rc = j->ops->copy(j->dev, (uintptr_t)host_at, (uintptr_t)&host, sizeof(host));
	return rc ? rc
		  : j->ops->copy(j->dev, (uintptr_t)ibgda_at, (uintptr_t)&ibgda, sizeof(ibgda));
}

/* The heap's region goes with epf_close(), which comes before. */
void epf_job_memory_end(struct epf_job *j)
{
	for (int r = 0; j->peers && r < j->nv.world; r++)
		j->ops->mem_free(j->dev, &j->peers[r]);
	free(j->peers);
	free(j->rings);
	if (j->pinned) {
		j->ops->unpin(j->dev, j->pinned);
		munmap(j->pinned, j->at.pinned_bytes);
	}
	if (j->device.addr)
		j->ops->mem_free(j->dev, &j->device);
	if (j->heap_mem.addr)
		j->ops->mem_free(j->dev, &j->heap_mem);
}

_Static_assert(EPF_NV_TEAMS *EPF_NV_MAX_PSYNC_WORDS * 8 + EPF_NV_TEAMS * 16 <= EPF_JOB_OWN_BYTES,
	       "the own part of the heap holds every team's words");
