/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The whole path of ep-bench ring --gpu, in the process that owns the GPU: a rank alone in its job, an engine thread on the null NIC, and a GPU
 * context through the public API. Called by gpu_child.c.
 */
#include "bench/common/bench.h"
#include "bench/ring/gpu.h"
#include "bootstrap/boot.h"
#include "fabric/client/epf.h"

#include <stdio.h>
#include <stdlib.h>

#define REGION_BYTES (UINT64_C(1) << 20)

enum { SETTINGS_MAX = 32 };

struct ring_gpu_engine {
	struct epf_boot_group *group;
	struct epf_boot *boot;
	struct epf *ep;
	struct epf_gpu *gpu;
};

static int join_alone(struct ring_gpu_engine *e)
{
	void *memory;
	uint32_t region;
	int rc = epf_memory_alloc(e->ep, REGION_BYTES, &memory);

	if (!rc)
		rc = epf_region_register(e->ep, memory, REGION_BYTES,
					 EPF_REMOTE_READ | EPF_REMOTE_WRITE, &region);
	if (!rc)
		rc = epf_boot_local_create(1, &e->group);
	if (!rc)
		rc = epf_boot_local_open(e->group, 0, &e->boot);
	if (!rc)
		rc = epf_join(e->ep, e->boot);
	return rc;
}

int ring_gpu_engine_open(const char *backend, int device, const char *const *settings,
			 const struct ring_gpu_request *r, struct ring_gpu_engine **out)
{
	const char *list[SETTINGS_MAX] = { "nic=null", "core-idle=spin", "progress=thread" };
	struct ring_gpu_engine *e = calloc(1, sizeof(*e));
	struct epf_gpu_options go;
	struct epf_options opts;
	char cpu[32];
	int n = 3;
	int rc;

	if (!e)
		return -1;
	snprintf(cpu, sizeof(cpu), "cpu=%d", bench_cpu_number(ring_gpu_cpu(1)));
	if (bench_cpus() > 2)
		list[n++] = cpu;
	for (const char *const *s = settings; s && *s && n < SETTINGS_MAX - 1; s++)
		list[n++] = *s;
	epf_options_init(&opts);
	opts.settings = list;
	rc = epf_open(&opts, &e->ep);
	if (!rc)
		rc = join_alone(e);
	epf_gpu_options_init(&go);
	go.backend = backend;
	go.device = device;
	go.private_rings = r->n_private ? r->n_private : EPF_GPU_NO_PRIVATE;
	go.shared_rings = r->n_shared;
	go.ring_slots = 1u << r->private_log2;
	go.shared_slots = 1u << r->shared_log2;
	go.timeout_ns = r->timeout_ns;
	if (!rc)
		rc = epf_gpu_open(e->ep, &go, &e->gpu);
	if (rc) {
		ring_gpu_engine_close(e);
		return rc;
	}
	*out = e;
	return 0;
}

void ring_gpu_engine_close(struct ring_gpu_engine *e)
{
	if (!e)
		return;
	epf_gpu_close(e->gpu);
	epf_close(e->ep);
	epf_boot_close(e->boot);
	epf_boot_local_destroy(e->group);
	free(e);
}

uint64_t ring_gpu_engine_ctx(const struct ring_gpu_engine *e)
{
	return (uint64_t)(uintptr_t)epf_gpu_context(e->gpu);
}

struct ring_gpu_counts ring_gpu_engine_counts(const struct ring_gpu_engine *e)
{
	struct ring_gpu_counts c = { 0 };

	(void)epf_counter(e->ep, "cmds_dequeued", &c.dequeued);
	(void)epf_counter(e->ep, "cmds_refused", &c.refused);
	(void)epf_counter(e->ep, "put_bytes_same_node", &c.bytes);
	return c;
}

int ring_gpu_engine_check(struct ring_gpu_engine *e)
{
	return epf_gpu_check(e->gpu);
}
