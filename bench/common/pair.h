/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two threads, one on each of two CPUs, that start together: for the ring benchmarks. The second
 * ends on request. Header only, bench/ only.
 */
#ifndef EPF_BENCH_PAIR_H
#define EPF_BENCH_PAIR_H

#include "bench/common/bench.h"
#include "queues/epf_base.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

struct bench_pair {
	pthread_t thread;
	void (*other)(struct bench_pair *p, void *arg); /* runs on the second CPU */
	void *arg;
	atomic_int started;
	atomic_int stop;
	int crowded; /* one CPU for both: give it away when waiting */
};

static void *bench_pair_main(void *arg)
{
	struct bench_pair *p = arg;

	bench_pin(1);
	atomic_store(&p->started, 1);
	p->other(p, p->arg);
	return NULL;
}

/* Starts the second thread and returns when it runs; the caller is pinned to the first CPU. */
static inline int bench_pair_start(struct bench_pair *p,
				   void (*other)(struct bench_pair *p, void *arg), void *arg)
{
	int err;

	p->other = other;
	p->arg = arg;
	p->crowded = bench_cpus() < 2;
	atomic_init(&p->started, 0);
	atomic_init(&p->stop, 0);
	bench_pin(0);
	err = pthread_create(&p->thread, NULL, bench_pair_main, p);
	while (!err && !atomic_load(&p->started))
		sched_yield();
	return -err;
}

static inline void bench_pair_stop(struct bench_pair *p)
{
	atomic_store(&p->stop, 1);
	pthread_join(p->thread, NULL);
}

static inline int bench_pair_stopped(struct bench_pair *p)
{
	return atomic_load_explicit(&p->stop, memory_order_relaxed);
}

/* Found nothing to do. */
static inline void bench_pair_wait(const struct bench_pair *p)
{
	if (p->crowded)
		sched_yield();
	else
		EPF_CPU_PAUSE();
}

#endif
