/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Start and end of a job of the shim (job.h), its barrier, its heap's allocations and its teams. Allocations are the same at every rank because
 * every rank makes the same calls in the same order: nothing is exchanged for them. It must not be called by two threads at once.
 */
#define EPF_LOG_COMP "shim"
#include "tools/shim/job.h"

#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/base/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { SECRET_BYTES = 32 };

#ifdef EPF_TEST_HOOKS
/* fabric/engine/lane_hot.h: the mistake to make, so that a test on a GPU can fail (tests/gpu/shim.sh). No release has this. */
extern int epf_hook;
#endif

static const char *backend_name(enum epf_conf_gpu gpu)
{
	switch (gpu) {
	case EPF_CONF_GPU_FAKE:
		return "fake";
	case EPF_CONF_GPU_NONE:
		return "none";
	case EPF_CONF_GPU_HIP:
		return "hip";
	default:
		return "cuda";
	}
}

static int meet(struct epf_job *j, const struct epf_job_start *how)
{
	struct epf_boot_opts o = { .size = sizeof(o),
				   .rank = (uint32_t)how->rank,
				   .world = (uint32_t)how->world,
				   .rendezvous = how->rendezvous,
				   .job = "shim",
				   .secret = how->secret,
				   .secret_len = SECRET_BYTES,
				   .timeout_ns = j->conf.bootstrap_timeout_ns,
				   .is_root = how->is_root };
	int rc = epf_boot_tcp_open(&o, &j->boot);

	return rc ? rc : epf_join(j->ep, j->boot);
}

static int open_all(struct epf_job *j)
{
	struct epf_options o;
	int rc = epf_conf_init(&j->conf);

#ifdef EPF_TEST_HOOKS
	epf_hook = getenv("SHIM_TEST_HOOK") ? (int)strtol(getenv("SHIM_TEST_HOOK"), NULL, 10) : 0;
#endif
	if (!rc)
		rc = epf_conf_load(&j->conf, NULL);
	if (!rc)
		rc = epf_gpu_backend(backend_name(j->conf.gpu_backend), &j->ops);
	if (!rc)
		rc = j->ops->open((int)j->conf.gpu_device, &j->dev);
	if (rc)
		return rc;
	epf_options_init(&o);
	return epf_open(&o, &j->ep);
}

static int serve(struct epf_job *j)
{
	struct epf_serve_opts o = {
		.ep = j->ep,
		.space = { .heap_base = j->heap_dev,
			   .heap_bytes = j->heap_bytes,
			   .pes = (uint32_t)j->nv.world },
		.rings = j->rings,
		.wakeups = (const uint64_t *)(const void *)(j->pinned + j->at.wakeups),
		.n_rings = j->at.n_rings,
		.fabric_rings = (uint32_t)j->conf.shim_fabric_rings,
		.channel = (const uint64_t *)(const void *)(j->pinned + j->at.channel),
		.words = (struct epf_channel_words *)(void *)(j->pinned + j->at.words),
		.is_spinning = j->conf.core_idle == EPF_CONF_IDLE_SPIN,
	};

	return epf_serve_start(&o, &j->serve);
}

static void node_of(struct epf_job *j)
{
	uint32_t mine = epf_node_of(j->ep, (uint32_t)j->nv.rank);

	for (int r = 0; r < j->nv.world; r++) {
		if (epf_node_of(j->ep, (uint32_t)r) != mine)
			continue;
		j->nv.node_rank += r < j->nv.rank;
		j->nv.node_world++;
	}
}

static void destroy(struct epf_job *j)
{
	epf_serve_stop(j->serve);
	if (j->is_heap_pinned)
		j->ops->unpin(j->dev, j->heap);
	epf_close(j->ep);
	epf_boot_close(j->boot);
	if (j->ops)
		epf_job_memory_end(j);
	if (j->dev)
		j->ops->close(j->dev);
	epf_conf_destroy(&j->conf);
	free(j);
}

/*
 * One put and one addition to every peer while no kernel waits for any: lanes are connected then, peers' memory is mapped, and the software
 * NIC's kernels are on the device. The driver may let such a call wait for the kernels that run, and these would wait for the put. To mapped
 * peers too: DeepEP's normal mode and barriers go by the fabric even where NVLink reaches.
 */
static int touch_peers(struct epf_job *j)
{
	uint64_t at = EPF_JOB_OWN_BYTES - 64;
	struct epf_ring_failure bad;
	struct epf_ring *ring;
	int rc = epf_ring_open(j->ep, NULL, &ring);

	if (rc)
		return rc;
	for (uint32_t r = 0; !rc && r < (uint32_t)j->nv.world; r++) {
		if (r == (uint32_t)j->nv.rank)
			continue;
		rc = epf_put(ring, r, 0, at, 0, at, 32, 0);
		if (!rc)
			rc = epf_add(ring, r, 0, at + 32, 0, 0);
	}
	if (!rc)
		rc = epf_flush(ring, 0, j->conf.wait_timeout_ns);
	if (!rc && epf_ring_error(ring, &bad))
		rc = epf_fail(EPF_R_SHIM_COMMAND, "the first command to rank %u: %s", bad.rank,
			      epf_last_error());
	epf_ring_close(ring);
	return rc;
}

static int begin(struct epf_job *j, const struct epf_job_start *how)
{
	char text[240];
	int rc;

	j->nv.layout = epf_nv_layout(how->version, text, sizeof(text));
	if (j->nv.layout == EPF_NV_NONE)
		return epf_fail(EPF_R_SHIM_VERSION, "shim: %s", text);
	if (how->world < 1 || how->world > EPF_WR_MAX_PES || how->rank < 0 ||
	    how->rank >= how->world)
		return epf_fail(EPF_R_SHIM_CALL, "shim: rank %d of %d (at most %d)", how->rank,
				how->world, EPF_WR_MAX_PES);
	j->nv.rank = how->rank;
	j->nv.world = how->world;
	j->nv.rings_per_pe = (uint32_t)j->conf.shim_rings;
	rc = meet(j, how);
	if (rc)
		return rc;
	node_of(j);
	rc = epf_job_memory(j);
	if (!rc)
		rc = epf_job_tell(j, how->device_states);
	if (!rc)
		rc = touch_peers(j);
	if (!rc)
		rc = serve(j);
	return rc ? rc : epf_barrier(j->ep);
}

int epf_job_start(const struct epf_job_start *how, struct epf_job **out)
{
	struct epf_job *j = calloc(1, sizeof(*j));
	struct epf_error why;
	int rc;

	if (!j)
		return epf_fail(EPF_R_NO_MEMORY, "shim: a job");
	rc = open_all(j);
	if (!rc)
		rc = begin(j, how);
	if (rc) {
		epf_error_get(&why);
		destroy(j);
		epf_error_set(&why);
		return rc;
	}
	epf_note(
		"rank %d of %d: NVSHMEM %d.%d.%d, heap of %llu MiB in %s memory, %u rings of %u slots, %u peers mapped, fabric %s",
		how->rank, how->world, how->version.major, how->version.minor, how->version.patch,
		(unsigned long long)(j->heap_bytes >> 20), j->heap ? "host" : "GPU", j->at.n_rings,
		j->at.depth, j->peers_mapped, epf_mode(j->ep));
	*out = j;
	return 0;
}

int epf_job_barrier(struct epf_job *j)
{
	int rc = epf_serve_drain(j->serve, j->conf.wait_timeout_ns);

	return rc ? rc : epf_barrier(j->ep);
}

void epf_job_end(struct epf_job *j)
{
	struct epf_serve_stats n;

	if (!j)
		return;
	if (epf_job_barrier(j))
		epf_warn("the last barrier: %s", epf_last_error());
	epf_serve_stats(j->serve, &n);
	epf_note(
		"rank %d: %llu puts of %llu bytes, %llu inline puts, %llu adds, %llu channel requests, %llu early doorbells, %llu refusals",
		j->nv.rank, (unsigned long long)n.puts, (unsigned long long)n.put_bytes,
		(unsigned long long)n.inlines, (unsigned long long)n.adds,
		(unsigned long long)n.channel_requests, (unsigned long long)n.early,
		(unsigned long long)n.refusals);
	epf_note(
		"rank %d: the serving thread looked %llu times at rings that had something, %.2f us each; %llu flushes, %.1f us each",
		j->nv.rank, (unsigned long long)n.passes,
		n.passes ? (double)epf_tsc_to_ns(n.pass_tsc) / 1e3 / (double)n.passes : 0.0,
		(unsigned long long)n.flushes,
		n.flushes ? (double)epf_tsc_to_ns(n.flush_tsc) / 1e3 / (double)n.flushes : 0.0);
	destroy(j);
}

void *epf_job_align(struct epf_job *j, uint64_t alignment, uint64_t bytes)
{
	uint64_t at;
	uint32_t i;

	if (!bytes || !alignment || (alignment & (alignment - 1)) ||
	    alignment > EPF_JOB_MAX_ALIGNMENT) {
		epf_fail(EPF_R_SHIM_CALL, "nvshmem_align: %llu bytes aligned to %llu",
			 (unsigned long long)bytes, (unsigned long long)alignment);
		return NULL;
	}
	alignment = alignment < 512 ? 512 : alignment;
	at = (EPF_JOB_OWN_BYTES + alignment - 1) & ~(alignment - 1);
	for (i = 0; i < j->n_pieces; i++) {
		if (j->pieces[i].at >= at && j->pieces[i].at - at >= bytes)
			break;
		at = (j->pieces[i].at + j->pieces[i].bytes + alignment - 1) & ~(alignment - 1);
	}
	if (at > j->heap_bytes || bytes > j->heap_bytes - at) {
		epf_fail(EPF_R_SHIM_HEAP,
			 "nvshmem_align: %llu bytes, the heap of %llu MiB has no such gap",
			 (unsigned long long)bytes, (unsigned long long)(j->heap_bytes >> 20));
		return NULL;
	}
	if (j->n_pieces == EPF_JOB_PIECES) {
		epf_fail(EPF_R_SHIM_LIMIT, "nvshmem_align: %d allocations at once", EPF_JOB_PIECES);
		return NULL;
	}
	memmove(&j->pieces[i + 1], &j->pieces[i], (j->n_pieces - i) * sizeof(j->pieces[0]));
	j->pieces[i] = (struct epf_job_piece){ at, bytes };
	j->n_pieces++;
	return (void *)(uintptr_t)(j->heap_dev + at);
}

void epf_job_free(struct epf_job *j, void *addr)
{
	for (uint32_t i = 0; i < j->n_pieces; i++) {
		if (j->heap_dev + j->pieces[i].at != (uintptr_t)addr)
			continue;
		j->n_pieces--;
		memmove(&j->pieces[i], &j->pieces[i + 1], (j->n_pieces - i) * sizeof(j->pieces[0]));
		return;
	}
	if (addr)
		epf_warn("nvshmem_free: %p was not allocated here", addr);
}

int epf_job_team(struct epf_job *j, int start, int stride, int size, int *index)
{
	int t = EPF_NV_FIXED_TEAMS, rc;

	if (start < 0 || stride < 1 || size < 1 ||
	    (int64_t)start + (int64_t)(size - 1) * stride >= j->nv.world)
		return epf_fail(EPF_R_SHIM_CALL, "team of %d ranks from %d by %d, of %d", size,
				start, stride, j->nv.world);
	while (t < EPF_NV_TEAMS && j->is_team[t])
		t++;
	if (t == EPF_NV_TEAMS)
		return epf_fail(EPF_R_SHIM_LIMIT, "teams: %d at once",
				EPF_NV_TEAMS - EPF_NV_FIXED_TEAMS);
	/* Nobody may signal a member before it has reset its words. */
	rc = epf_job_write_team(j, t, start, stride, size);
	if (!rc)
		rc = epf_barrier(j->ep);
	if (rc)
		return rc;
	*index = j->nv.rank >= start && (j->nv.rank - start) % stride == 0 &&
				 (j->nv.rank - start) / stride < size
			 ? t
			 : -1;
	return 0;
}

void epf_job_team_end(struct epf_job *j, int index)
{
	if (index >= EPF_NV_FIXED_TEAMS && index < EPF_NV_TEAMS)
		j->is_team[index] = false;
}
