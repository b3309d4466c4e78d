/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All ranks of a job inside one process; see fabric/join/world.h. One thread: every wait of any rank moves all
 * engines by one step.
 */
#include "bench/common/world.h"

#include "bench/common/bench.h"
#include "bootstrap/boot.h"
#include "fabric/base/clock.h"
#include "fabric/base/err.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SETTINGS_MAX 32

void bench_nodes(uint32_t ranks, uint32_t nodes, uint32_t *node_of)
{
	uint32_t size = ranks / nodes;
	uint32_t larger = ranks % nodes; /* the first ones have one rank more */
	uint32_t r = 0;

	for (uint32_t n = 0; n < nodes; n++)
		for (uint32_t i = 0; i < size + (n < larger); i++)
			node_of[r++] = n;
}

int bench_world_progress(void *arg)
{
	struct bench_world *w = arg;
	int done = 0;

	for (uint32_t r = 0; r < w->ranks; r++)
		if (w->ep[r])
			done += epf_progress(w->ep[r]);
	return done;
}

/*
 * Real time, but given by the caller: closing then does not wait for peers of this thread, which
 * cannot answer while it waits.
 */
static uint64_t now(void *arg)
{
	return epf_now_ns();
}

static int open_rank(struct bench_world *w, uint32_t rank, uint32_t node,
		     const char *const *settings)
{
	const char *list[SETTINGS_MAX];
	struct epf_options opts;
	char node_text[32];
	size_t n = 0;
	int err;

	snprintf(node_text, sizeof(node_text), "node=%u", node);
	while (settings && settings[n])
		n++;
	if (n > SETTINGS_MAX - 3)
		return -E2BIG;
	n = bench_settings_of(settings, node, list);
	list[n++] = "progress=caller";
	list[n++] = node_text;
	list[n] = NULL;
	epf_options_init(&opts);
	opts.settings = list;
	opts.progress = bench_world_progress;
	opts.progress_arg = w;
	opts.now = now;
	err = epf_boot_local_open(w->group, rank, &w->boot[rank]);
	return err ? err : epf_open(&opts, &w->ep[rank]);
}

int bench_world_open(struct bench_world *w, uint32_t ranks, const uint32_t *node_of,
		     const char *const *settings)
{
	int err;

	memset(w, 0, sizeof(*w));
	w->boot = calloc(ranks, sizeof(struct epf_boot *));
	w->ep = calloc(ranks, sizeof(struct epf *));
	if (!w->boot || !w->ep) {
		bench_world_close(w);
		return -ENOMEM;
	}
	err = epf_boot_local_create(ranks, &w->group);
	for (uint32_t r = 0; r < ranks && !err; r++) {
		err = open_rank(w, r, node_of[r], settings);
		w->ranks = r + 1;
	}
	if (err)
		bench_world_close(w);
	return err;
}

/* One half of joining needs all ranks to have done the half before: so many turns, and no more. */
#define JOIN_TURNS 8

int bench_world_join(struct bench_world *w)
{
	int err = 0;

	for (uint32_t r = 0; r < w->ranks && !err; r++)
		err = epf_join_post(w->ep[r], w->boot[r]);
	for (int turn = 0; turn < JOIN_TURNS && !err; turn++) {
		uint32_t waiting = 0;

		for (uint32_t r = 0; r < w->ranks && !err; r++) {
			err = epf_join_finish(w->ep[r]);
			waiting += err == -EAGAIN;
			err = err == -EAGAIN ? 0 : err;
		}
		if (!waiting)
			return err;
	}
	return err ? err
		   : epf_fail(EPF_R_WAIT_TIMEOUT, "%u ranks in one process do not join", w->ranks);
}

void bench_world_close(struct bench_world *w)
{
	for (uint32_t r = 0; r < w->ranks; r++) {
		struct epf *ep = w->ep[r];

		w->ep[r] = NULL; /* progress must not meet a rank that is being closed */
		epf_close(ep);
	}
	for (uint32_t r = 0; r < w->ranks; r++)
		epf_boot_close(w->boot[r]);
	epf_boot_local_destroy(w->group);
	free(w->boot);
	free(w->ep);
	memset(w, 0, sizeof(*w));
}
