/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks: their engines, their threads, and the calls they make. See ll_kit.h; inputs and checks: ll_kit_data.c. */
#include "tests/unit/kernels/ll_kit_impl.h"

#include "bootstrap/boot.h"
#include "fabric/client/epf.h"
#include "kernels/epf_ll.h"
#include "queues/epf_base.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

enum phase { OPEN, CLEAN, DISPATCH, COMBINE };

struct worker {
	struct ll_kit *k;
	uint32_t rank;
	enum phase phase;
	unsigned batch;
	unsigned halves;
	int rc;
	char why[512];
};

/* ---- what each rank's thread does ---- */

static int take_turn(void *arg)
{
	struct ll_kit_turns *turns = arg;

	__atomic_fetch_add(&turns->count, 1, __ATOMIC_RELAXED);
	return epf_progress(turns->ep);
}

static int do_open(struct worker *w)
{
	struct ll_kit *k = w->k;
	void *peers[LL_KIT_RANKS] = { NULL };
	struct epf_ll_options o;

	for (uint32_t r = 0; r < k->o.ranks; r++)
		if (k->o.direct == LL_KIT_ALL ||
		    (k->o.direct == LL_KIT_PAIRS &&
		     (r / 2 == w->rank / 2 || (w->rank == 0 && r == 2))))
			peers[r] = k->memory[r];
	epf_ll_options_init(&o);
	o.bytes = k->o.bytes;
	o.device = k->o.gpu ? 0 : EPF_LL_CPU;
	o.memory = k->memory[w->rank];
	o.first_signal = 3;
	o.timeout_ns = k->o.timeout_ns;
	o.blocks = k->o.blocks;
	o.peers = k->o.direct == LL_KIT_NONE ? NULL : peers;
	if (k->o.before) {
		k->turns[w->rank].ep = k->ep[w->rank];
		o.progress = take_turn;
		o.progress_arg = &k->turns[w->rank];
	}
	return epf_ll_open(k->ep[w->rank], &o, &k->ll[w->rank]);
}

static struct epf_ll_shape shape_of(const struct ll_kit_case *c)
{
	return (struct epf_ll_shape){ c->tokens_max, c->hidden, c->experts, c->topk };
}

static int do_dispatch(struct worker *w)
{
	struct batch *b = &w->k->batch[w->batch];
	const struct tensors *t = &b->t[w->rank];
	struct epf_ll_dispatch d = { .size = sizeof(d),
				     .shape = shape_of(&b->c),
				     .tokens = b->c.tokens[w->rank],
				     .flags = b->c.flags,
				     .x = t->x,
				     .topk_idx = t->topk,
				     .recv_x = t->recv,
				     .recv_scales = t->scales,
				     .recv_count = t->count,
				     .src_info = t->info,
				     .src_slot = t->slot,
				     .layout_range = t->range,
				     .recv_stats = b->c.stats ? t->stats : NULL,
				     .wait_stats = b->c.stats ? t->waits : NULL,
				     .src_row = b->c.sums ? t->row : NULL };

	return epf_ll_dispatch(w->k->ll[w->rank], &d, w->halves, NULL);
}

static int do_combine(struct worker *w)
{
	struct batch *b = &w->k->batch[w->batch];
	const struct tensors *t = &b->t[w->rank];
	struct epf_ll_combine c = { .size = sizeof(c),
				    .shape = shape_of(&b->c),
				    .tokens = b->c.tokens[w->rank],
				    .flags = (b->c.zero_copy ? EPF_LL_ZERO_COPY : 0u) |
					     (b->c.logfmt ? EPF_LL_LOGFMT : 0u) |
					     (b->c.sums ? EPF_LL_SUM_AT_SENDER : 0u) |
					     (b->c.sums && b->c.many ? EPF_LL_SUM_IF_MANY : 0u),
				    .x = t->y,
				    .src_info = t->info,
				    .src_slot = t->slot,
				    .layout_range = t->range,
				    .topk_idx = t->topk,
				    .topk_weights = t->weights,
				    .out = t->out,
				    .wait_stats = b->c.stats ? t->waits : NULL,
				    .src_row = b->c.sums ? t->row : NULL };
	void *next = NULL;
	int rc = 0;

	if ((w->halves & EPF_LL_SEND) && b->c.zero_copy) {
		rc = epf_ll_next_combine_buffer(w->k->ll[w->rank], &c.shape, &next);
		if (!rc)
			memcpy(next, t->y,
			       (size_t)b->c.experts * b->c.tokens_max * b->c.hidden * 2);
		c.x = next;
	}
	return rc ? rc : epf_ll_combine(w->k->ll[w->rank], &c, w->halves, NULL);
}

static void *work(void *arg)
{
	struct worker *w = arg;
	uint64_t doorbells;

	/* Wakes the core, which a kernel cannot do: the core itself reads the NIC's counters. */
	(void)epf_counter(w->k->ep[w->rank], "nic_doorbells", &doorbells);
	if (w->k->o.before && (w->phase == DISPATCH || w->phase == COMBINE))
		w->k->o.before(w->k->o.before_arg, w->rank);
	switch (w->phase) {
	case OPEN:
		w->rc = do_open(w);
		break;
	case CLEAN:
		w->rc = epf_ll_clean(w->k->ll[w->rank], NULL);
		break;
	case DISPATCH:
		w->rc = do_dispatch(w);
		break;
	case COMBINE:
		w->rc = do_combine(w);
		break;
	}
	snprintf(w->why, sizeof(w->why), "%s", epf_ll_error());
	return NULL;
}

/* A phase on all ranks at once, but those of `absent`. */
static void each(struct ll_kit *k, enum phase phase, unsigned batch, unsigned halves,
		 uint32_t absent)
{
	struct worker w[LL_KIT_RANKS] = { 0 };
	pthread_t thread[LL_KIT_RANKS];

	for (uint32_t r = 0; r < k->o.ranks; r++) {
		w[r] = (struct worker){
			.k = k, .rank = r, .phase = phase, .batch = batch, .halves = halves
		};
		if (!(absent >> r & 1))
			assert_int_equal(pthread_create(&thread[r], NULL, work, &w[r]), 0);
	}
	for (uint32_t r = 0; r < k->o.ranks; r++)
		if (!(absent >> r & 1))
			pthread_join(thread[r], NULL);
	for (uint32_t r = 0; r < k->o.ranks; r++)
		if (w[r].rc)
			fail_msg("rank %u, phase %d: error %d: %s", r, (int)phase, w[r].rc,
				 w[r].why);
}

/* ---- the world ---- */

/*
 * The fake GPU's memory is such that a CPU faults there, which has shown by now that the host's side of opening did not touch it. From here on
 * CPU threads play its kernels, so it is opened to them.
 */
static void let_kernels_in(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[512];

	assert_non_null(maps);
	while (fgets(line, sizeof(line), maps)) {
		unsigned long from, to;
		char mode[8];

		if (sscanf(line, "%lx-%lx %7s", &from, &to, mode) == 3 &&
		    strcmp(mode, "---s") == 0 && strstr(line, "memfd"))
			assert_int_equal(mprotect((void *)from, to - from, PROT_READ | PROT_WRITE),
					 0);
	}
	fclose(maps);
}

struct ll_kit *ll_kit_open(const struct ll_kit_options *o)
{
	struct ll_kit *k = calloc(1, sizeof(*k));
	char seed[48];
	/* Cores sleep while the inputs are made and the outputs checked, which is most of the time: they would spin on CPUs that the test needs. */
	const char *settings[16] = { "core-idle=sleep",    "core-idle-after=500us",
				     "signals=192",        "ring-slots=256",
				     "gpu-ring-slots=256", "gpu-shared-rings=1",
				     "gpu-backend=fake",   seed };
	int n = 8;
	struct epf_options opts;

	assert_non_null(k);
	k->o = *o;
	snprintf(seed, sizeof(seed), "emu-seed=%llu", (unsigned long long)(o->seed % 1000000));
	if (o->unordered) {
		settings[n++] = "emu-order=unordered";
		settings[n++] = "emu-reorder=0.3";
		settings[n++] = "emu-duplicate=0.05";
		settings[n++] = "emu-drop=0.02";
		settings[n++] = o->late ? "emu-delay=20ms" : "emu-delay=50us";
	}
	epf_options_init(&opts);
	opts.settings = settings;
	assert_return_code(epf_boot_local_create(o->ranks, &k->group), 0);
	for (uint32_t r = 0; r < o->ranks; r++) {
		assert_return_code(epf_boot_local_open(k->group, r, &k->boot[r]), 0);
		if (epf_open(&opts, &k->ep[r]))
			fail_msg("epf_open: %s", epf_last_error());
		if (!o->gpu) {
			assert_return_code(epf_memory_alloc(k->ep[r], o->bytes, &k->memory[r]), 0);
			memset(k->memory[r], POISON, o->bytes);
		}
		assert_return_code(epf_join_post(k->ep[r], k->boot[r]), 0);
	}
	for (uint32_t done = 0, left = o->ranks; left;)
		for (uint32_t r = 0; r < o->ranks; r++)
			if (!(done >> r & 1) && epf_join_finish(k->ep[r]) != -EAGAIN) {
				done |= 1u << r;
				left--;
			}
	each(k, OPEN, 0, 0, 0);
	if (o->gpu)
		let_kernels_in();
	return k;
}

void ll_kit_close(struct ll_kit *k)
{
	for (uint32_t r = 0; r < k->o.ranks; r++)
		epf_ll_close(k->ll[r]);
	for (uint32_t r = 0; r < k->o.ranks; r++)
		epf_close(k->ep[r]);
	for (uint32_t r = 0; r < k->o.ranks; r++)
		epf_boot_close(k->boot[r]);
	epf_boot_local_destroy(k->group);
	free(k);
}

void ll_kit_kill(struct ll_kit *k, uint32_t rank)
{
	epf_ll_close(k->ll[rank]);
	epf_close(k->ep[rank]);
	k->ll[rank] = NULL;
	k->ep[rank] = NULL;
}

struct epf_ll *ll_kit_ll(const struct ll_kit *k, uint32_t rank)
{
	return k->ll[rank];
}

struct epf *ll_kit_ep(const struct ll_kit *k, uint32_t rank)
{
	return k->ep[rank];
}

uint64_t ll_kit_turns(const struct ll_kit *k, uint32_t rank)
{
	return EPF_LOAD_RELAXED(&k->turns[rank].count);
}

void ll_kit_clean(struct ll_kit *k, uint32_t absent)
{
	each(k, CLEAN, 0, 0, absent);
}

uint64_t ll_kit_hash(const struct ll_kit *k)
{
	return k->hash;
}

void ll_kit_run(struct ll_kit *k, const struct ll_kit_case *c, unsigned n)
{
	static const enum phase phases[] = { DISPATCH, COMBINE };

	bool halves = c[0].halves;

	k->hash = UINT64_C(0xcbf29ce484222325);
	for (unsigned i = 0; i < n; i++) {
		memset(&k->batch[i], 0, sizeof(k->batch[i]));
		k->batch[i].c = c[i];
		ll_kit_make(k, &k->batch[i]);
	}
	for (int p = 0; p < 2; p++) {
		for (unsigned i = 0; i < n; i++)
			each(k, phases[p], i, halves ? EPF_LL_SEND : EPF_LL_BOTH,
			     c[i].absent | (p ? c[i].lost : 0));
		for (unsigned i = 0; i < n && halves; i++)
			each(k, phases[p], i, EPF_LL_RECV, c[i].absent | (p ? c[i].lost : 0));
		for (unsigned i = 0; i < n; i++)
			p ? ll_kit_check_combined(k, &k->batch[i])
			  : ll_kit_check_received(k, &k->batch[i]);
	}
	for (unsigned i = 0; i < n; i++)
		ll_kit_free(k, &k->batch[i]);
}
