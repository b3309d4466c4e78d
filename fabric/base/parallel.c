/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads for a loop (parallel.h). Turns are handed out by one counter, so a slow turn holds up only itself.
 */
#include "fabric/base/parallel.h"

#include "fabric/base/err.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>

struct loop {
	int (*fn)(void *arg, uint32_t i);
	void *arg;
	uint32_t n;
	uint32_t next;        /* atomic */
	bool stop;            /* atomic */
	pthread_mutex_t lock; /* of what follows */
	bool has_failed;
	uint32_t failed;
	int rc;
	struct epf_error error;
};

static void note_failure(struct loop *l, uint32_t i, int rc)
{
	__atomic_store_n(&l->stop, true, __ATOMIC_RELAXED);
	pthread_mutex_lock(&l->lock);
	if (!l->has_failed || i < l->failed) {
		l->has_failed = true;
		l->failed = i;
		l->rc = rc;
		epf_error_get(&l->error);
	}
	pthread_mutex_unlock(&l->lock);
}

static void *work(void *arg)
{
	struct loop *l = arg;

	while (!__atomic_load_n(&l->stop, __ATOMIC_RELAXED)) {
		uint32_t i = __atomic_fetch_add(&l->next, 1, __ATOMIC_RELAXED);
		int rc;

		if (i >= l->n)
			break;
		rc = l->fn(l->arg, i);
		if (rc)
			note_failure(l, i, rc);
	}
	return NULL;
}

int epf_parallel(unsigned threads, uint32_t n, int (*fn)(void *arg, uint32_t i), void *arg,
		 uint32_t *failed)
{
	struct loop l = { .fn = fn, .arg = arg, .n = n, .lock = PTHREAD_MUTEX_INITIALIZER };
	pthread_t thread[EPF_PARALLEL_MAX];
	unsigned started = 0;
	sigset_t all, before;

	if (threads > EPF_PARALLEL_MAX)
		threads = EPF_PARALLEL_MAX;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	while (started + 1 < threads && started + 1 < n &&
	       pthread_create(&thread[started], NULL, work, &l) == 0)
		started++;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	work(&l);
	while (started)
		pthread_join(thread[--started], NULL);
	pthread_mutex_destroy(&l.lock);
	if (!l.has_failed)
		return 0;
	epf_error_set(&l.error);
	if (failed)
		*failed = l.failed;
	return l.rc;
}
