/* SPDX-License-Identifier: Apache-2.0 */
/* See ll_kit.h. */
#include "tests/unit/ll_kit.h"

#include "bootstrap/boot.h"
#include "fabric/epf.h"
#include "kernels/epf_ll.h"
#include "tests/ref/ref.h"

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

enum { POISON = 0xa5, STATS_BEFORE = 1000 };

/* Memory of one rank and one case. */
struct tensors {
	uint16_t *x, *y, *out;
	int64_t *topk, *range, *waits;
	float *weights;
	uint8_t *recv;
	uint32_t *scales;
	int32_t *count, *info, *slot, *stats;
};

struct batch {
	struct ll_kit_case c;
	struct tensors t[LL_KIT_RANKS];
	struct ref_job ref;
	const int64_t *ref_topk[LL_KIT_RANKS];
	const float *ref_weights[LL_KIT_RANKS];
	const uint16_t *ref_x[LL_KIT_RANKS];
	int64_t *ref_own[LL_KIT_RANKS]; /* topk without what absent ranks would hold */
	int ref_tokens[LL_KIT_RANKS];
	uint16_t *row; /* scratch of expert_row */
};

enum phase { OPEN, CLEAN, DISPATCH, COMBINE };

struct ll_kit {
	struct ll_kit_options o;
	struct epf_boot_group *group;
	struct epf_boot *boot[LL_KIT_RANKS];
	struct epf *ep[LL_KIT_RANKS];
	void *memory[LL_KIT_RANKS];
	struct epf_ll *ll[LL_KIT_RANKS];
	struct batch batch[2];
	uint64_t hash;
};

struct worker {
	struct ll_kit *k;
	uint32_t rank;
	enum phase phase;
	unsigned batch;
	unsigned halves;
	int rc;
	char why[512];
};

uint64_t ll_kit_random(uint64_t *state)
{
	uint64_t x = *state += UINT64_C(0x9e3779b97f4a7c15);

	x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
	return x ^ (x >> 31);
}

static uint32_t local_experts(const struct ll_kit *k, const struct ll_kit_case *c)
{
	return c->experts / k->o.ranks;
}

static size_t places(const struct ll_kit *k, const struct ll_kit_case *c)
{
	return (size_t)k->o.ranks * c->tokens_max;
}

static bool is_absent(const struct ll_kit_case *c, uint32_t rank)
{
	return c->absent >> rank & 1;
}

/* ---- what each rank's thread does ---- */

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
				     .wait_stats = b->c.stats ? t->waits : NULL };

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
					     (b->c.logfmt ? EPF_LL_LOGFMT : 0u),
				    .x = t->y,
				    .src_info = t->info,
				    .src_slot = t->slot,
				    .layout_range = t->range,
				    .topk_idx = t->topk,
				    .topk_weights = t->weights,
				    .out = t->out,
				    .wait_stats = b->c.stats ? t->waits : NULL };
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
	const char *settings[16] = { "core-idle=pause",
				     "signals=64",
				     "ring-slots=256",
				     "gpu-ring-slots=256",
				     "gpu-shared-rings=1",
				     "gpu-backend=fake",
				     seed };
	int n = 7;
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

void ll_kit_clean(struct ll_kit *k, uint32_t absent)
{
	each(k, CLEAN, 0, 0, absent);
}

uint64_t ll_kit_hash(const struct ll_kit *k)
{
	return k->hash;
}

/* ---- inputs ---- */

static void *poisoned(size_t bytes)
{
	void *p = aligned_alloc(64, (bytes + 64 + 63) / 64 * 64);

	assert_non_null(p);
	memset(p, POISON, (bytes + 64 + 63) / 64 * 64);
	return p;
}

/* Mostly ordinary numbers of very different size; now and then zero, the smallest, the largest, infinity or a NaN. */
enum { OCTAVES = 24 };

static uint16_t channel(uint64_t *seed, uint32_t octaves)
{
	static const uint16_t odd[] = { 0, 0x8000, 1, 0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7fc1 };
	uint64_t v = ll_kit_random(seed);

	if ((v >> 32) % 4000 == 0)
		return odd[v % 8];
	/* sign, exponent from 112 on, 7 bits of mantissa */
	return (uint16_t)((v & 0x8000) | (112 + (v >> 16) % octaves) << 7 | (v & 0x7f));
}

static void choose(int64_t *topk, const struct ll_kit_case *c, uint64_t *seed)
{
	for (uint32_t i = 0; i < c->topk; i++) {
		bool again = true;

		while (again) {
			topk[i] = (int64_t)(ll_kit_random(seed) % c->experts);
			again = false;
			for (uint32_t j = 0; j < i; j++)
				again |= topk[j] == topk[i];
			/* More entries than experts are filled up with -1; so are some others. */
			if (i >= c->experts || ll_kit_random(seed) % 100 < c->unselected) {
				topk[i] = -1;
				again = false;
			}
		}
	}
}

static void make_inputs(struct ll_kit *k, struct batch *b, uint32_t r)
{
	const struct ll_kit_case *c = &b->c;
	uint64_t seed = c->seed * 1000 + r;
	struct tensors *t = &b->t[r];
	size_t rows = places(k, c) * local_experts(k, c);

	*t = (struct tensors){ .x = poisoned((size_t)c->tokens[r] * c->hidden * 2),
			       .y = poisoned(rows * c->hidden * 2),
			       .out = poisoned((size_t)c->tokens[r] * c->hidden * 2),
			       .topk = poisoned((size_t)c->tokens[r] * c->topk * 8),
			       .range = poisoned((size_t)local_experts(k, c) * k->o.ranks * 8),
			       .waits = poisoned((size_t)k->o.ranks * 8),
			       .weights = poisoned((size_t)c->tokens[r] * c->topk * 4),
			       .recv = poisoned(rows * c->hidden * 2),
			       .scales = poisoned(rows * (c->hidden / 128) * 4),
			       .count = poisoned((size_t)local_experts(k, c) * 4),
			       .info = poisoned(rows * 4),
			       .slot = poisoned(rows * 4),
			       .stats = poisoned((size_t)local_experts(k, c) * 4) };
	for (size_t i = 0; i < (size_t)c->tokens[r] * c->hidden; i++)
		t->x[i] = channel(&seed, OCTAVES);
	for (uint32_t i = 0; i < c->tokens[r]; i++)
		choose(t->topk + (size_t)i * c->topk, c, &seed);
	for (size_t i = 0; i < (size_t)c->tokens[r] * c->topk; i++)
		t->weights[i] = (float)(ll_kit_random(&seed) % 20000) / 7919.0f - 1.0f;
	for (uint32_t e = 0; e < local_experts(k, c); e++)
		t->stats[e] = STATS_BEFORE;
	for (uint32_t i = 0; i < k->o.ranks; i++)
		t->waits[i] = STATS_BEFORE;
}

static void free_inputs(struct ll_kit *k, struct batch *b)
{
	for (uint32_t r = 0; r < k->o.ranks; r++) {
		struct tensors *t = &b->t[r];
		void *all[] = { t->x,     t->y,       t->out,  t->topk,   t->range,
				t->waits, t->weights, t->recv, t->scales, t->count,
				t->info,  t->slot,    t->stats };

		for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
			free(all[i]);
		free(b->ref_own[r]);
	}
	free(b->row);
}

/* The same job for the reference, without absent ranks. */
static void make_ref(struct ll_kit *k, struct batch *b)
{
	static const int nodes[LL_KIT_RANKS];
	const struct ll_kit_case *c = &b->c;

	for (uint32_t r = 0; r < k->o.ranks; r++) {
		size_t n = (size_t)c->tokens[r] * c->topk;

		b->ref_own[r] = calloc(n + 1, sizeof(int64_t));
		assert_non_null(b->ref_own[r]);
		for (size_t i = 0; i < n; i++) {
			int64_t e = b->t[r].topk[i];
			bool lost = e >= 0 && is_absent(c, (uint32_t)e / local_experts(k, c));

			b->ref_own[r][i] = lost ? -1 : e;
		}
		b->ref_tokens[r] = is_absent(c, r) ? 0 : (int)c->tokens[r];
		b->ref_topk[r] = b->ref_own[r];
		b->ref_weights[r] = b->t[r].weights;
		b->ref_x[r] = b->t[r].x;
	}
	b->row = poisoned((size_t)c->hidden * 2);
	b->ref = (struct ref_job){ .ranks = (int)k->o.ranks,
				   .experts = (int)c->experts,
				   .topk = (int)c->topk,
				   .hidden = (int)c->hidden,
				   .node_of_rank = nodes,
				   .tokens = b->ref_tokens,
				   .topk_idx = b->ref_topk,
				   .weights = b->ref_weights,
				   .x = b->ref_x };
	if (c->topk <= c->experts && ref_job_error(&b->ref))
		fail_msg("%s", ref_job_error(&b->ref));
}

/* ---- checks ---- */

static bool is_poison(const void *p, size_t bytes)
{
	const uint8_t *u = p;

	return !bytes || (u[0] == POISON && memcmp(u, u + 1, bytes - 1) == 0);
}

static enum ref_format format_of(const struct ll_kit_case *c)
{
	if (!(c->flags & EPF_LL_FP8))
		return REF_BF16;
	return c->flags & EPF_LL_ROUND_SCALE ? REF_FP8_POW2 : REF_FP8;
}

/* Scales of one place against the row's; transposed, as floats or as packed exponents. */
static void check_scales(const struct ll_kit *k, const struct batch *b, uint32_t rank,
			 uint32_t expert, size_t place, const uint8_t *payload)
{
	const struct ll_kit_case *c = &b->c;
	uint32_t blocks = c->hidden / 128;
	size_t n = places(k, c);

	for (uint32_t i = 0; i < blocks; i++) {
		uint32_t want, got;

		memcpy(&want, payload + c->hidden + 4 * i, 4);
		if (c->flags & EPF_LL_UE8M0) {
			got = b->t[rank]
				      .scales[((size_t)expert * (blocks / 4) + i / 4) * n + place];
			assert_int_equal(got >> (8 * (i % 4)) & 0xff, want >> 23);
		} else {
			got = b->t[rank].scales[((size_t)expert * blocks + i) * n + place];
			assert_int_equal(got, want);
		}
	}
}

static void check_expert(struct ll_kit *k, struct batch *b, uint32_t rank, uint32_t expert)
{
	const struct ll_kit_case *c = &b->c;
	const struct tensors *t = &b->t[rank];
	size_t n = places(k, c), at = expert * n;
	size_t row_bytes = (size_t)c->hidden * (c->flags & EPF_LL_FP8 ? 1 : 2);
	struct ref_entry *list = calloc(n + 1, sizeof(*list));
	uint8_t *payload = poisoned(ref_row_bytes((int)c->hidden, format_of(c)));
	int counts[LL_KIT_RANKS];
	long rows = ref_ll_list(&b->ref, (int)rank, (int)expert, list, (long)n, counts);
	uint32_t begin = 0;

	assert_in_range(rows, 0, (long)n);
	assert_int_equal(t->count[expert], rows);
	assert_int_equal(t->stats[expert], c->stats ? STATS_BEFORE + rows : STATS_BEFORE);
	for (uint32_t r = 0; r < k->o.ranks; begin += (uint32_t)counts[r], r++)
		assert_int_equal(t->range[expert * k->o.ranks + r],
				 (int64_t)((uint64_t)begin << 32 | (uint32_t)counts[r]));
	for (long i = 0; i < rows; i++) {
		size_t place = at + (size_t)i;

		assert_int_equal(t->info[place], list[i].token);
		assert_int_equal(t->slot[place], list[i].token * (int)c->topk + list[i].k);
		assert_int_equal(
			ref_payload(&b->ref, list[i].src, list[i].token, format_of(c), payload), 0);
		if (memcmp(t->recv + place * row_bytes, payload, row_bytes) != 0)
			fail_msg("rank %u, local expert %u, row %ld: wrong bytes", rank, expert, i);
		if (c->flags & EPF_LL_FP8)
			check_scales(k, b, rank, expert, (size_t)i, payload);
	}
	assert_true(is_poison(t->recv + (at + (size_t)rows) * row_bytes,
			      (n - (size_t)rows) * row_bytes));
	assert_true(is_poison(t->info + at + rows, (n - (size_t)rows) * 4));
	assert_true(is_poison(t->slot + at + rows, (n - (size_t)rows) * 4));
	free(payload);
	free(list);
}

/* An expert's output: a function of who, what and the seed. For LogFMT blocks of 1 to 20 octaves: more than 16 stay BF16. */
static const uint16_t *expert_row(void *arg, int expert, int src, int token)
{
	struct batch *b = arg;
	uint64_t seed =
		b->c.seed ^ ((uint64_t)expert << 40 | (uint64_t)src << 20 | (uint64_t)token);
	uint32_t narrow = (uint32_t)(expert + token);

	for (uint32_t i = 0; i < b->c.hidden; i++)
		b->row[i] = channel(&seed, b->c.logfmt ? 1u + (narrow + i / 128u) % 20u : OCTAVES);
	return b->row;
}

/* The same as it arrives. */
static const uint16_t *arrived_row(void *arg, int expert, int src, int token)
{
	struct batch *b = arg;

	(void)expert_row(arg, expert, src, token);
	if (b->c.logfmt)
		assert_true(ref_logfmt(b->row, (int)b->c.hidden) >= 0);
	return b->row;
}

/* The experts' turn: rows that were not received stay poison. */
static void compute(struct ll_kit *k, struct batch *b)
{
	size_t n = places(k, &b->c), row = (size_t)b->c.hidden;
	struct ref_entry *list = calloc(n + 1, sizeof(*list));

	for (uint32_t r = 0; r < k->o.ranks; r++)
		for (uint32_t e = 0; e < local_experts(k, &b->c); e++) {
			long rows = ref_ll_list(&b->ref, (int)r, (int)e, list, (long)n, NULL);

			for (long i = 0; i < rows; i++)
				memcpy(b->t[r].y + (e * n + (size_t)i) * row,
				       expert_row(b, (int)(r * local_experts(k, &b->c) + e),
						  list[i].src, list[i].token),
				       row * 2);
		}
	free(list);
}

static void hash(struct ll_kit *k, const void *p, size_t bytes)
{
	const uint8_t *u = p;

	for (size_t i = 0; i < bytes; i++)
		k->hash = (k->hash ^ u[i]) * UINT64_C(0x100000001b3);
}

static void check_received(struct ll_kit *k, struct batch *b)
{
	for (uint32_t r = 0; r < k->o.ranks; r++) {
		if (is_absent(&b->c, r))
			continue;
		for (uint32_t e = 0; e < local_experts(k, &b->c); e++)
			check_expert(k, b, r, e);
		hash(k, b->t[r].recv, places(k, &b->c) * local_experts(k, &b->c) * b->c.hidden * 2);
		for (uint32_t i = 0; i < k->o.ranks; i++)
			assert_in_range(b->t[r].waits[i], STATS_BEFORE,
					b->c.stats ? INT64_MAX : STATS_BEFORE);
	}
}

static void check_combined(struct ll_kit *k, struct batch *b)
{
	size_t bytes = (size_t)b->c.hidden * 2;
	uint16_t *want = poisoned(bytes);

	for (uint32_t r = 0; r < k->o.ranks; r++) {
		uint32_t tokens = b->c.tokens[r];

		if (is_absent(&b->c, r))
			continue;
		for (uint32_t t = 0; t < tokens; t++) {
			assert_int_equal(
				ref_ll_combine(&b->ref, (int)r, (int)t, arrived_row, b, want), 0);
			if (memcmp(want, b->t[r].out + (size_t)t * b->c.hidden, bytes) != 0)
				fail_msg("rank %u, token %u: wrong sum", r, t);
		}
		assert_true(is_poison(b->t[r].out + (size_t)tokens * b->c.hidden, 64));
		hash(k, b->t[r].out, tokens * bytes);
	}
	free(want);
}

void ll_kit_run(struct ll_kit *k, const struct ll_kit_case *c, unsigned n)
{
	static const enum phase phases[] = { DISPATCH, COMBINE };

	bool halves = c[0].halves;

	k->hash = UINT64_C(0xcbf29ce484222325);
	for (unsigned i = 0; i < n; i++) {
		memset(&k->batch[i], 0, sizeof(k->batch[i]));
		k->batch[i].c = c[i];
		for (uint32_t r = 0; r < k->o.ranks; r++)
			make_inputs(k, &k->batch[i], r);
		make_ref(k, &k->batch[i]);
		compute(k, &k->batch[i]);
	}
	for (int p = 0; p < 2; p++) {
		for (unsigned i = 0; i < n; i++)
			each(k, phases[p], i, halves ? EPF_LL_SEND : EPF_LL_BOTH, c[i].absent);
		for (unsigned i = 0; i < n && halves; i++)
			each(k, phases[p], i, EPF_LL_RECV, c[i].absent);
		for (unsigned i = 0; i < n; i++)
			p ? check_combined(k, &k->batch[i]) : check_received(k, &k->batch[i]);
	}
	for (unsigned i = 0; i < n; i++)
		free_inputs(k, &k->batch[i]);
}
