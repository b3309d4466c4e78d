/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The machine: every location keeps all values that were ever stored, in one order (coherence). A thread has a view, the oldest value of each location that it may
 * still read; a load picks any value from there on, a store goes anywhere behind. A release store carries the thread's view, and an acquire load that reads it takes
 * the view over; an atomic change reads the value right before its own and hands on what that one carried. Fences order the relaxed accesses around them;
 * sequentially consistent fences share one more view, and sequentially consistent accesses one value for each location. Plain accesses of two threads, of which
 * one is a store, must be ordered (vector clocks). These are C11's rules as RC11 repairs them (Lahav et al., PLDI 2017), run step by step.
 *
 * What it cannot see: load buffering, where a load takes effect after a later relaxed store of the same thread and so can read another thread's answer
 * to that store: RC11 forbids it, CPUs do not. Where plain memory is involved, as in every program here that a test relies on, the clocks still report the missing
 * order. The machine ignores dependencies, which CPUs respect, and does not order sequentially consistent accesses with fences: both may only report too much.
 * Compilers are trusted to keep to C11.
 */
#include "tests/model/machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct machine m;

void model_wrong(const char *file, int line, const char *what)
{
	const char *name = strrchr(file, '/');

	if (!m.is_on && !m.is_ending) {
		fprintf(stderr, "model: %s:%d: %s\n", file, line, what);
		abort();
	}
	snprintf(m.wrong, sizeof(m.wrong), "%s:%d: %s", name ? name + 1 : file, line, what);
	if (m.is_ending) /* no thread runs */
		return;
	m.thread[m.running].next = OVER;
	swapcontext(&m.thread[m.running].context, &m.scheduler);
}

/* ---- views ---- */

static bool is_newer(unsigned l, uint8_t a, uint8_t b)
{
	return m.location[l].value[a].at > m.location[l].value[b].at;
}

static void join(struct view *to, const struct view *from)
{
	for (unsigned l = 0; l < m.n_locations; l++)
		if (is_newer(l, from->oldest[l], to->oldest[l]))
			to->oldest[l] = from->oldest[l];
	for (unsigned t = 0; t < MODEL_THREADS; t++)
		if (from->clock[t] > to->clock[t])
			to->clock[t] = from->clock[t];
}

static unsigned find(const void *p, size_t size)
{
	struct location *l;

	for (unsigned i = 0; i < m.n_locations; i++)
		if (m.location[i].p == p) {
			if (m.location[i].size != size)
				model_wrong(__FILE__, __LINE__, "accesses of two sizes");
			return i;
		}
	if (m.n_locations == LOCATIONS) {
		fprintf(stderr, "model: more than %d locations\n", LOCATIONS);
		abort();
	}
	l = &m.location[m.n_locations];
	memset(l, 0, sizeof(*l));
	l->p = p;
	l->size = size;
	l->n = 1;
	memcpy(&l->value[0].word, p, size);
	return m.n_locations++;
}

/* ---- steps ---- */

static struct thread *self(void)
{
	return &m.thread[m.running];
}

static void step(enum kind kind, unsigned at)
{
	struct thread *t = self();

	t->next = kind;
	t->at = at;
	swapcontext(&t->context, &m.scheduler);
	t->view.clock[m.running]++;
}

bool model_names(const struct model_order *o, const struct model_site *s)
{
	const char *expression = s->expression + strspn(s->expression, "(");

	return strstr(s->file, o->file) && strcmp(s->operation, o->operation) == 0 &&
	       strncmp(expression, o->expression, strlen(o->expression)) == 0;
}

static int order_of(int order, const struct model_site *site)
{
	unsigned i = 0;
	bool is_relaxed = false;

	if (order == __ATOMIC_RELAXED)
		return order;
	while (i < m.n_sites && m.site[i] != site)
		i++;
	if (i == m.n_sites && i < SITES)
		m.site[m.n_sites++] = site;
	for (size_t o = 0; o < m.n_relaxed; o++)
		is_relaxed |= model_names(&m.relaxed[o], site);
	if (!is_relaxed)
		return order;
	m.is_met = true;
	/* What such a fence is for is more than acquire and release. */
	return strcmp(site->operation, "fence") == 0 && order == __ATOMIC_SEQ_CST
		       ? __ATOMIC_ACQ_REL
		       : __ATOMIC_RELAXED;
}

static bool acquires(int order)
{
	return order == __ATOMIC_ACQUIRE || order == __ATOMIC_ACQ_REL || order == __ATOMIC_SEQ_CST;
}

static bool releases(int order)
{
	return order == __ATOMIC_RELEASE || order == __ATOMIC_ACQ_REL || order == __ATOMIC_SEQ_CST;
}

/* Picks a value to read; for a change one that no other change has taken. */
static uint8_t pick(unsigned l, int order, bool change)
{
	struct location *at = &m.location[l];
	struct thread *t = self();
	uint8_t oldest = t->view.oldest[l], some[VALUES];
	unsigned n = 0;

	if (order == __ATOMIC_SEQ_CST && is_newer(l, at->sc, oldest))
		oldest = at->sc;
	for (unsigned i = at->value[oldest].at; i < at->n; i++)
		if (!change || !at->value[at->order[i]].is_changed)
			some[n++] = at->order[i];
	return some[n - 1 - model_choose(n)];
}

static void note_read(struct thread *t, unsigned l, uint8_t v)
{
	unsigned r = 0;

	while (r < t->n_reads && t->reads[r] != l)
		r++;
	if (r == READS) {
		fprintf(stderr, "model: a loop reads more than %d locations\n", READS);
		abort();
	}
	t->reads[r] = (uint8_t)l;
	t->newest[r] = v;
	if (r == t->n_reads)
		t->n_reads++;
}

static void take_over(unsigned l, uint8_t v, int order)
{
	struct location *at = &m.location[l];
	struct thread *t = self();

	t->view.oldest[l] = v;
	join(&t->pending, &at->value[v].carried);
	if (acquires(order))
		join(&t->view, &at->value[v].carried);
	if (order == __ATOMIC_SEQ_CST && is_newer(l, v, at->sc))
		at->sc = v;
	note_read(t, l, v);
}

/* Puts a value behind the one at `place`. */
static uint8_t put_behind(unsigned l, unsigned place, uint64_t word, int order)
{
	struct location *at = &m.location[l];
	struct thread *t = self();
	uint8_t v = (uint8_t)at->n;

	if (at->n == VALUES) {
		fprintf(stderr, "model: more than %d values of a location\n", VALUES);
		abort();
	}
	at->n++;
	for (unsigned i = v; i > place + 1; i--) {
		at->order[i] = at->order[i - 1];
		at->value[at->order[i]].at = (uint8_t)i;
	}
	at->order[place + 1] = v;
	/* For plain loads of a word by the only thread that stores it. */
	memcpy((void *)(uintptr_t)at->p, &word, at->size);
	memset(&at->value[v], 0, sizeof(at->value[v]));
	at->value[v].word = word;
	at->value[v].at = (uint8_t)(place + 1);
	t->view.oldest[l] = v;
	at->value[v].carried = releases(order) ? t->view : t->released;
	at->value[v].carried.oldest[l] = v;
	if (order == __ATOMIC_SEQ_CST && is_newer(l, v, at->sc))
		at->sc = v;
	return v;
}

static uint64_t cut(uint64_t word, size_t size)
{
	return size == 8 ? word : word & ((UINT64_C(1) << 8 * size) - 1);
}

uint64_t model_load(const void *p, size_t size, int order, const struct model_site *site)
{
	uint64_t word = 0;
	unsigned l;
	uint8_t v;

	if (!m.is_on) {
		memcpy(&word, p, size);
		return word;
	}
	order = order_of(order, site);
	l = find(p, size);
	step(LOAD, l);
	v = pick(l, order, false);
	take_over(l, v, order);
	return m.location[l].value[v].word;
}

void model_store(void *p, size_t size, uint64_t value, int order, const struct model_site *site)
{
	unsigned l, n = 0, places[VALUES];
	struct location *at;

	if (!m.is_on) {
		memcpy(p, &value, size);
		return;
	}
	order = order_of(order, site);
	l = find(p, size);
	step(STORE, l);
	at = &m.location[l];
	for (unsigned i = at->value[self()->view.oldest[l]].at; i < at->n; i++)
		if (!at->value[at->order[i]].is_changed)
			places[n++] = i;
	put_behind(l, places[n - 1 - model_choose(n)], cut(value, size), order);
}

static void change(unsigned l, uint8_t v, uint64_t word, int order)
{
	struct location *at = &m.location[l];
	struct view handed_on = at->value[v].carried;
	uint8_t now;

	take_over(l, v, order);
	now = put_behind(l, at->value[v].at, cut(word, at->size), order);
	at->value[v].is_changed = true;
	join(&at->value[now].carried, &handed_on);
}

uint64_t model_change(void *p, size_t size, uint64_t value, int order,
		      const struct model_site *site)
{
	uint64_t before = 0;
	char what = site->operation[0];
	unsigned l = 0;
	uint8_t v = 0;

	if (m.is_on) {
		order = order_of(order, site);
		l = find(p, size);
		step(CHANGE, l);
		v = pick(l, order, true);
		before = m.location[l].value[v].word;
	} else {
		memcpy(&before, p, size);
	}
	value = what == 'a' ? before + value : what == 'o' ? before | value : value;
	if (m.is_on)
		change(l, v, value, order);
	else
		memcpy(p, &value, size);
	return before;
}

bool model_compare(void *p, size_t size, uint64_t *expected, uint64_t value, int order,
		   const struct model_site *site)
{
	unsigned l = find(p, size);
	uint64_t word;
	uint8_t v;

	order = order_of(order, site);
	step(CHANGE, l);
	v = pick(l, order, true);
	word = m.location[l].value[v].word;
	if (word != *expected) {
		take_over(l, v, __ATOMIC_RELAXED);
		*expected = word;
		return false;
	}
	change(l, v, value, order);
	return true;
}

void model_fence(int order, const struct model_site *site)
{
	struct thread *t = self();

	if (!m.is_on)
		return;
	order = order_of(order, site);
	step(order == __ATOMIC_SEQ_CST ? FENCE_SC : FENCE, 0);
	if (acquires(order))
		join(&t->view, &t->pending);
	if (order == __ATOMIC_SEQ_CST) {
		join(&t->view, &m.fences);
		m.fences = t->view;
	}
	if (releases(order))
		t->released = t->view;
}

uint64_t model_plain(const void *p, size_t size, uint64_t value, bool write, const char *file,
		     int line)
{
	struct location *at;
	struct thread *t;
	unsigned l;

	if (!m.is_on) {
		uint64_t word = 0;

		memcpy(&word, p, size);
		if (write)
			memcpy((void *)(uintptr_t)p, &value, size);
		return word;
	}
	l = find(p, size);
	step(write ? STORE : LOAD, l);
	at = &m.location[l];
	t = self();
	for (unsigned i = 0; i < m.n_threads; i++)
		if (i != m.running && (at->written[i] > t->view.clock[i] ||
				       (write && at->read[i] > t->view.clock[i])))
			model_wrong(
				file, line,
				write ? "a plain store is not ordered behind another thread's access"
				      : "a plain load is not ordered behind another thread's store");
	if (write) {
		at->written[m.running] = t->view.clock[m.running];
		put_behind(l, at->n - 1, cut(value, size), __ATOMIC_RELAXED);
		return value;
	}
	at->read[m.running] = t->view.clock[m.running];
	t->view.oldest[l] = at->order[at->n - 1];
	return at->value[at->order[at->n - 1]].word;
}

void model_spin(void)
{
	struct thread *t = self();
	uint8_t newer[READS];
	unsigned n = 0, l;

	step(SPIN, 0);
	for (unsigned r = 0; r < t->n_reads; r++)
		if (m.location[t->reads[r]].value[t->newest[r]].at + 1u < m.location[t->reads[r]].n)
			newer[n++] = (uint8_t)r;
	/* One of the newer values has arrived; of the others nothing is known. */
	n = newer[model_choose(n)];
	l = t->reads[n];
	n = m.location[l].order[m.location[l].value[t->newest[n]].at + 1];
	if (is_newer(l, (uint8_t)n, t->view.oldest[l]))
		t->view.oldest[l] = (uint8_t)n;
	t->n_reads = 0;
}

void model_sleep_while(const uint32_t *word)
{
	unsigned l = find(word, sizeof(*word));
	struct location *at = &m.location[l];

	step(SLEEP, l);
	self()->view.oldest[l] = at->order[at->n - 1];
}

/* ---- what may run ---- */

bool model_can_run(unsigned i)
{
	const struct thread *t = &m.thread[i];

	if (t->next == SPIN) {
		for (unsigned r = 0; r < t->n_reads; r++) {
			const struct location *at = &m.location[t->reads[r]];

			if (at->value[t->newest[r]].at + 1u < at->n)
				return true;
		}
		return false;
	}
	if (t->next == SLEEP) {
		const struct location *at = &m.location[t->at];

		return at->value[at->order[at->n - 1]].word == 0;
	}
	return t->next != OVER;
}

static bool stores(const struct thread *t)
{
	return t->next == STORE || t->next == CHANGE;
}

static bool reads(const struct thread *t, unsigned l)
{
	if (t->next == SPIN)
		for (unsigned r = 0; r < t->n_reads; r++)
			if (t->reads[r] == l)
				return true;
	return (t->next == LOAD || t->next == SLEEP || stores(t)) && t->at == l;
}

/* Whether the next steps of two threads may be swapped. */
bool model_is_independent(const struct thread *a, const struct thread *b)
{
	if (a->next == FENCE_SC && b->next == FENCE_SC)
		return false;
	return !(stores(a) && reads(b, a->at)) && !(stores(b) && reads(a, b->at));
}

void model_resume(unsigned i)
{
	m.running = i;
	swapcontext(&m.scheduler, &m.thread[i].context);
}

/* The memory as the last values leave it. */
void model_settle(void)
{
	for (unsigned l = 0; l < m.n_locations; l++) {
		struct location *at = &m.location[l];

		memcpy((void *)(uintptr_t)at->p, &at->value[at->order[at->n - 1]].word, at->size);
	}
}
