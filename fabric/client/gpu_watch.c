/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The watch of a GPU context: a thread that tells waiting kernels which ranks are gone (epf_gpu_context_lose). The engine knows at once and writes it to the
 * peers page, but a kernel cannot read that page: a daemon gives it out for reading only, which GPUs cannot map, and hundreds of multiprocessors would
 * poll one word of it. The thread looks every 10 ms, as often as a CPU wait that sleeps, with an engine in this process and with a daemon.
 */
#include "fabric/base/err.h"
#include "fabric/client/handle.h"
#include "fabric/gpu/context.h"

#include <signal.h>
#include <stdlib.h>

#define LOOK_NS UINT64_C(10000000)

struct epf_gpu_watch {
	struct epf *ep;
	struct epf_gpu_context *context;
	pthread_t thread;
	struct epf_wakeup wakeup; /* close() wakes the thread */
	bool stop;
	/* The thread's: what it said last. */
	uint32_t seen; /* peers->changes + mask_changes */
	bool alone;    /* the daemon is gone */
	uint32_t gone[];
};

/* Says what has changed since the last look. [P2] */
static void look(struct epf_gpu_watch *w)
{
	const struct epf *ep = w->ep;
	const struct epf_peers_shm *peers = ep->peers;
	bool alone = ep->be->check(w->ep) != 0, stop = alone;
	uint32_t seen = EPF_LOAD_ACQUIRE(&peers->changes) + EPF_LOAD_ACQUIRE(&ep->mask_changes),
		 lost = 0;

	if (EPF_LIKELY(seen == w->seen && alone == w->alone))
		return;
	for (uint32_t r = 0; r < ep->world; r++) {
		uint32_t state = EPF_LOAD_ACQUIRE(&peers->peers[r].state), bit = 1u << r % 32;

		w->gone[r / 32] &= ~bit;
		if (r == ep->rank || (state != EPF_PEER_DOWN && state != EPF_PEER_LEFT))
			continue;
		w->gone[r / 32] |= bit;
		lost += state == EPF_PEER_DOWN;
		stop |= state == EPF_PEER_DOWN && !EPF_LOAD_RELAXED(&ep->masked[r]);
	}
	epf_gpu_context_lose(w->context, w->gone, lost, stop);
	w->seen = seen;
	w->alone = alone;
}

static void *watch(void *arg)
{
	struct epf_gpu_watch *w = arg;

	pthread_setname_np(pthread_self(), "epf-gpu-watch");
	while (!EPF_LOAD_ACQUIRE(&w->stop)) {
		look(w);
		epf_wakeup_arm(&w->wakeup);
		if (!EPF_LOAD_ACQUIRE(&w->stop))
			epf_wakeup_sleep(&w->wakeup, LOOK_NS);
		epf_wakeup_disarm(&w->wakeup);
	}
	return NULL;
}

int epf_gpu_watch_open(struct epf *ep, struct epf_gpu_context *context, struct epf_gpu_watch **out)
{
	struct epf_gpu_watch *w =
		calloc(1, sizeof(*w) + ((size_t)ep->world + 31) / 32 * sizeof(uint32_t));
	sigset_t all, before;
	int rc;

	if (!w)
		return epf_fail(EPF_R_NO_MEMORY, "epf_gpu_open: no memory");
	w->ep = ep;
	w->context = context;
	/* The program's signals are for its own threads. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = pthread_create(&w->thread, NULL, watch, w);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (rc) {
		free(w);
		return epf_fail_sys(EPF_R_SYSTEM, rc,
				    "epf_gpu_open: cannot start the watch of lost ranks");
	}
	*out = w;
	return 0;
}

void epf_gpu_watch_close(struct epf_gpu_watch *w)
{
	if (!w)
		return;
	EPF_STORE_RELEASE(&w->stop, true);
	if (epf_wakeup_is_needed(&w->wakeup))
		epf_wakeup_wake(&w->wakeup);
	pthread_join(w->thread, NULL);
	free(w);
}
