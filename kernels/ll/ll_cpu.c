/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The low-latency kernels as plain C: a launch runs the blocks of the grid, of one thread each, one after another on the calling thread. Its rings
 * are those of the fake back-end, which kernels of a real GPU would have. For CPU tensors and for tests; the file is compiled without
 * contraction of float operations.
 */
#include "fabric/gpu/fake.h"
#include "kernels/ll/epf_ll_combine.cuh"
#include "kernels/ll/epf_ll_dispatch.cuh"
#include "kernels/ll/epf_ll_meet.cuh"
#include "kernels/ll/ll.h"
#include "kernels/ll/ll_image.h"

#include <string.h>

static void (*const kernels[LL_KERNELS])(const struct ll_job *job) = {
	[LL_K_DISPATCH] = ll_dispatch,         [LL_K_COMBINE] = ll_combine,
	[LL_K_COMBINE_SUMS] = ll_combine_sums, [LL_K_MASK_SET] = ll_mask_set,
	[LL_K_MASK_GET] = ll_mask_get,         [LL_K_RESET] = ll_reset,
};

enum { REST_AFTER = 1000, REST_NS = 50000 };

/* Whose kernel this thread runs. */
static _Thread_local struct epf_ll *running;
static _Thread_local uint32_t idle; /* turns of waits since the engine had work */

bool ll_cpu_rest(uint32_t *turns)
{
	const struct timespec nap = { .tv_nsec = REST_NS };

	if (*turns < REST_AFTER) {
		++*turns;
		(void)sched_yield();
		return false;
	}
	nanosleep(&nap, NULL);
	return true;
}

/* A turn of a wait: the engine may have no thread but this one. */
static void relax(void)
{
	int did = running->opts.progress ? running->opts.progress(running->opts.progress_arg)
					 : epf_progress(running->ep);

	if (did)
		idle = 0;
	else
		(void)ll_cpu_rest(&idle);
}

static int cpu_open(struct epf_ll *ll)
{
	ll->threads = 1;
	ll->blocks = ll->opts.blocks ? ll->opts.blocks : 1;
	return 0;
}

static void cpu_close(struct epf_ll *ll)
{
}

static int cpu_alloc(struct epf_ll *ll, uint64_t bytes, void **addr)
{
	int err = epf_memory_alloc(ll->ep, bytes, addr);

	return err ? ll_fail_fabric(err, "low-latency memory") : 0;
}

static void cpu_free(struct epf_ll *ll, void *addr)
{
	epf_memory_free(ll->ep, addr);
}

static int cpu_expose(struct epf_ll *ll, void *addr, uint64_t bytes, uint32_t *region)
{
	int err = epf_region_register(ll->ep, addr, bytes, EPF_REMOTE_WRITE, region);

	return err ? ll_fail_fabric(err, "low-latency memory") : 0;
}

static int cpu_copy(struct epf_ll *ll, void *dst, const void *src, uint64_t bytes)
{
	memcpy(dst, src, bytes);
	return 0;
}

static int cpu_launch(struct epf_ll *ll, enum ll_kernel kernel, const struct ll_job *job,
		      void *stream)
{
	int err;

	running = ll;
	idle = 0;
	epf_host_relax = relax;
	for (uint32_t b = 0; b < job->blocks; b++) {
		epf_host_block = b;
		kernels[kernel](job);
	}
	epf_host_relax = NULL;
	/* Kernels cannot wake a core that sleeps; a command of the host does. */
	err = job->halves & EPF_LL_SEND ? epf_flush_post(ll->ring, 0) : 0;
	return err ? ll_fail_fabric(err, "low-latency kernel") : 0;
}

static int cpu_sync(struct epf_ll *ll, void *stream)
{
	return 0;
}

/* ---- the same as a module of the fake back-end, which plays a GPU ---- */

static void run_grid(const struct epf_gpu_launch *l, enum ll_kernel kernel)
{
	for (uint32_t b = 0; b < l->grid; b++) {
		epf_host_block = b;
		kernels[kernel](l->args[0]);
	}
}

#define FAKE(name, kernel)                               \
 static void fake_##name(const struct epf_gpu_launch *l) \
 {                                                       \
  run_grid(l, kernel);                                   \
 }

FAKE(dispatch, LL_K_DISPATCH)
FAKE(combine, LL_K_COMBINE)
FAKE(combine_sums, LL_K_COMBINE_SUMS)
FAKE(mask_set, LL_K_MASK_SET)
FAKE(mask_get, LL_K_MASK_GET)
FAKE(reset, LL_K_RESET)

static const struct epf_gpu_fake_kernel fake[] = {
	{ "_ZN9ep_fabric8dispatchE6ll_job", fake_dispatch },
	{ "_ZN9ep_fabric7combineE6ll_job", fake_combine },
	{ "_ZN9ep_fabric12combine_sumsE6ll_job", fake_combine_sums },
	{ "_ZN9ep_fabric8mask_setE6ll_job", fake_mask_set },
	{ "_ZN9ep_fabric8mask_getE6ll_job", fake_mask_get },
	{ "_ZN9ep_fabric5resetE6ll_job", fake_reset },
	{ NULL, NULL },
};

const void *const ll_fake_image = fake;

const struct ll_device ll_cpu = {
	.backend = "fake",
	.open = cpu_open,
	.close = cpu_close,
	.alloc = cpu_alloc,
	.free = cpu_free,
	.expose = cpu_expose,
	.copy = cpu_copy,
	.launch = cpu_launch,
	.sync = cpu_sync,
};
