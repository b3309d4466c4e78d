/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The high-throughput kernels as plain C: a launch runs the blocks of the grid, of one thread each, one after another on the calling thread. For CPU
 * tensors, and as a module of the fake back-end. Compiled without contraction of float operations.
 */
#include "fabric/gpu/fake.h"
#include "kernels/ht/epf_ht_fold.cuh"
#include "kernels/ht/ht.h"

enum { WAKE_EVERY = 4096 };

static void (*const kernels[HT_KERNELS])(const struct ht_job *job) = {
	[HT_K_LAYOUT] = ht_layout,
	[HT_K_NOTIFY] = ht_notify,
	[HT_K_READY] = ht_ready,
	[HT_K_DISPATCH] = ht_dispatch,
	[HT_K_COUNTED] = ht_counted_dispatch,
	[HT_K_COMBINE] = ht_combine,
	[HT_K_TALLY] = ht_tally,
	[HT_K_NUMBER] = ht_number,
	[HT_K_GROUPS] = ht_groups,
	[HT_K_SPREAD] = ht_spread,
	[HT_K_FOLD] = ht_fold,
};

/* Whose kernel this thread runs. */
static _Thread_local struct epf_ht *running;
static _Thread_local uint32_t idle;    /* turns of waits since the engine had work */
static _Thread_local uint32_t unwoken; /* and since it was woken */

/* A turn of a wait: the engine may have no thread but this one, or one that sleeps, which a command of the host wakes. */
static void relax(void)
{
	if (epf_progress(running->ll->ep)) {
		idle = 0;
		return;
	}
	if (running->nodes > 1 && unwoken++ >= WAKE_EVERY) {
		(void)epf_flush_post(running->ll->ring, 0);
		unwoken = 0;
	}
	unwoken += ll_cpu_rest(&idle) ? WAKE_EVERY / 32 : 0; /* a nap is as long as many turns */
}

void ht_cpu_run(struct epf_ht *ht, enum ht_kernel kernel, const struct ht_job *job)
{
	running = ht;
	idle = 0;
	unwoken = WAKE_EVERY;
	epf_host_relax = relax;
	for (uint32_t b = 0; b < job->blocks; b++) {
		epf_host_block = b;
		kernels[kernel](job);
	}
	epf_host_relax = NULL;
	/* Kernels cannot wake a core that sleeps; a command of the host does. */
	if (ht->nodes > 1)
		(void)epf_flush_post(ht->ll->ring, 0);
}

static void run_grid(const struct epf_gpu_launch *l, enum ht_kernel kernel)
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

FAKE(layout, HT_K_LAYOUT)
FAKE(notify, HT_K_NOTIFY)
FAKE(ready, HT_K_READY)
FAKE(dispatch, HT_K_DISPATCH)
FAKE(counted_dispatch, HT_K_COUNTED)
FAKE(combine, HT_K_COMBINE)
FAKE(tally, HT_K_TALLY)
FAKE(number, HT_K_NUMBER)
FAKE(groups, HT_K_GROUPS)
FAKE(spread, HT_K_SPREAD)
FAKE(fold, HT_K_FOLD)

static const struct epf_gpu_fake_kernel fake[] = {
	{ "_ZN9ep_fabric2ht6layoutE6ht_job", fake_layout },
	{ "_ZN9ep_fabric2ht6notifyE6ht_job", fake_notify },
	{ "_ZN9ep_fabric2ht13cached_notifyE6ht_job", fake_ready },
	{ "_ZN9ep_fabric2ht8dispatchE6ht_job", fake_dispatch },
	{ "_ZN9ep_fabric2ht16counted_dispatchE6ht_job", fake_counted_dispatch },
	{ "_ZN9ep_fabric2ht7combineE6ht_job", fake_combine },
	{ "_ZN9ep_fabric2ht5tallyE6ht_job", fake_tally },
	{ "_ZN9ep_fabric2ht6numberE6ht_job", fake_number },
	{ "_ZN9ep_fabric2ht6groupsE6ht_job", fake_groups },
	{ "_ZN9ep_fabric2ht6spreadE6ht_job", fake_spread },
	{ "_ZN9ep_fabric2ht4foldE6ht_job", fake_fold },
	{ NULL, NULL },
};

const void *const ht_fake_image = fake;
