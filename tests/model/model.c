/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Searches all executions of a program on the machine of machine.c, depth first: which thread takes the next step and which value a step picks are the branches, and each
 * leaf is a new run from the start. Sleep sets leave out executions that differ only in the order of independent steps. A loop that waits goes on when
 * there is something newer to read, because every store becomes visible in the end.
 */
#include "tests/model/machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char stacks[MODEL_THREADS][STACK] __attribute__((aligned(64)));

/* ---- the search ---- */

unsigned model_choose(unsigned n)
{
	if (n < 2)
		return 0;
	if (m.depth == m.length) {
		if (m.length == DEPTH) {
			fprintf(stderr, "model: an execution has more than %d branches\n", DEPTH);
			abort();
		}
		m.path[m.length++] = (struct branch){ (uint16_t)n, 0 };
	}
	return m.path[m.depth++].taken;
}

/* Return: false when every branch has been taken. */
static bool next_path(void)
{
	while (m.length && m.path[m.length - 1].taken + 1u == m.path[m.length - 1].n)
		m.length--;
	if (!m.length)
		return false;
	m.path[m.length - 1].taken++;
	return true;
}

/* ---- the scheduler ---- */

static void run_thread(void)
{
	m.thread[m.running].body();
	m.thread[m.running].next = OVER;
	swapcontext(&m.thread[m.running].context, &m.scheduler);
}

static void begin_execution(void)
{
	m.n_locations = 0;
	memset(&m.fences, 0, sizeof(m.fences));
	m.depth = 0;
	m.sleeping = 0;
	m.wrong[0] = 0;
	memset(m.program->memory, 0, m.program->bytes);
	m.program->begin();
	for (m.n_threads = 0; m.n_threads < MODEL_THREADS && m.program->thread[m.n_threads];
	     m.n_threads++) {
		struct thread *t = &m.thread[m.n_threads];

		memset(t, 0, sizeof(*t));
		t->body = m.program->thread[m.n_threads];
		getcontext(&t->context);
		t->context.uc_stack.ss_sp = stacks[m.n_threads];
		t->context.uc_stack.ss_size = STACK;
		makecontext(&t->context, run_thread, 0);
	}
}

/* Return: false if the execution is like one that was run before. */
static bool run_execution(void)
{
	begin_execution();
	m.is_on = true;
	for (unsigned i = 0; i < m.n_threads; i++)
		model_resume(i); /* to its first step */
	while (!m.wrong[0]) {
		unsigned able[MODEL_THREADS], n = 0, stuck = 0, over = 0, taken;

		for (unsigned i = 0; i < m.n_threads; i++) {
			over += m.thread[i].next == OVER;
			if (model_can_run(i) && !(m.sleeping >> i & 1))
				able[n++] = i;
			else
				stuck += m.thread[i].next != OVER && !model_can_run(i);
		}
		if (over == m.n_threads)
			break;
		if (!n && over + stuck == m.n_threads) {
			snprintf(m.wrong, sizeof(m.wrong), "a thread waits for ever");
			break;
		}
		if (!n) {
			m.is_on = false;
			return false;
		}
		taken = model_choose(n);
		for (unsigned i = 0; i < taken; i++)
			m.sleeping |= 1u << able[i];
		for (unsigned i = 0; i < m.n_threads; i++)
			if ((m.sleeping >> i & 1) &&
			    !model_is_independent(&m.thread[i], &m.thread[able[taken]]))
				m.sleeping &= ~(1u << i);
		model_resume(able[taken]);
	}
	m.is_on = false;
	if (!m.wrong[0]) {
		model_settle();
		if (m.program->end) {
			m.is_ending = true;
			m.program->end();
			m.is_ending = false;
		}
	}
	return true;
}

/* Return: true if an execution went wrong; m.wrong says how. */
static bool explore(const struct model_program *p, const struct model_order *relaxed,
		    size_t n_relaxed)
{
	m.program = p;
	m.relaxed = relaxed;
	m.n_relaxed = n_relaxed;
	m.is_met = false;
	m.length = 0;
	m.executions = m.pruned = 0;
	do {
		if (run_execution())
			m.executions++;
		else
			m.pruned++;
		if (m.wrong[0])
			return true;
	} while (next_path());
	return false;
}

int model_check(const struct model_program *p, const struct model_order *orders, size_t n)
{
	int failures = 0;

	m.n_sites = 0;
	if (explore(p, NULL, 0)) {
		printf("not ok - %s: execution %llu: %s\n", p->name,
		       (unsigned long long)m.executions, m.wrong);
		return 1;
	}
	printf("ok - %s: all %llu executions are right (%llu more are like others)\n", p->name,
	       (unsigned long long)m.executions, (unsigned long long)m.pruned);
	for (unsigned i = 0; i < m.n_sites; i++) {
		bool named = false;

		for (size_t o = 0; o < n; o++)
			named |= model_names(&orders[o], m.site[i]);
		if (!named) {
			printf("not ok - %s: no row names the %s of %s, %s:%d\n", p->name,
			       m.site[i]->operation, m.site[i]->expression, m.site[i]->file,
			       m.site[i]->line);
			failures++;
		}
	}
	for (size_t o = 0, together; o < n; o += together) {
		bool wrong;

		for (together = 1;
		     o + together < n && strcmp(orders[o].label, orders[o + together].label) == 0;)
			together++;
		wrong = explore(p, &orders[o], together);
		if (!m.is_met)
			printf("not ok - %s: without %s: the program does not use it\n", p->name,
			       orders[o].label);
		else if (wrong)
			printf("%s - %s: without %s, execution %llu: %s\n",
			       orders[o].spare ? "not ok" : "ok", p->name, orders[o].label,
			       (unsigned long long)m.executions, m.wrong);
		else
			printf("%s - %s: without %s all %llu executions are right%s%s\n",
			       orders[o].spare ? "ok" : "not ok", p->name, orders[o].label,
			       (unsigned long long)m.executions, orders[o].spare ? ": " : "",
			       orders[o].spare ? orders[o].spare : "");
		failures += !m.is_met || wrong == (orders[o].spare != NULL);
	}
	return failures;
}
