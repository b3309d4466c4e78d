/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The usual side of an adder: a thread, because each call in the program's context may wait for a load there. It is given one batch at a time. It never calls the
 * driver with its lock held, so that the copier's thread, which gives it batches, waits for no load.
 */
#define EPF_LOG_COMP "gpu"
#include "fabric/gpu/adder_usual.h"

#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/base/log.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

enum {
	SPIN_NS = 50000, /* after a batch, before the thread sleeps */
	CHECK_S = 1,     /* so long after a launch, a batch that is not done may have failed */
};

struct epf_adder_usual {
	const struct epf_adder_ops *ops;
	const struct epf_adder_side *own;
	int device;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	uint32_t stop;
	/* The thread's, until `claim` is published [release]. */
	struct epf_adder_side *side;
	uint64_t claim;
	/* A batch is given when `given` is its number, and the thread has launched it when `launched` is [both release]. */
	struct epf_adder_batch batch;
	uint64_t given, launched;
	uint32_t is_off; /* the side takes no more batches */
	uint64_t lost;   /* number of the batch that it failed with, or may have */
};

static void launch(struct epf_adder_usual *u)
{
	int rc = u->ops->launch(u->side, &u->batch);

	if (rc) {
		epf_note(
			"additions to GPU memory go to a context of their own only, about 2 ms each beside a kernel that waits: %s",
			epf_last_error());
		__atomic_store_n(&u->is_off, 1, __ATOMIC_RELEASE);
	}
	__atomic_store_n(&u->launched, u->batch.number, __ATOMIC_RELEASE);
}

static bool has_batch(const struct epf_adder_usual *u)
{
	return __atomic_load_n(&u->given, __ATOMIC_ACQUIRE) != u->launched ||
	       __atomic_load_n(&u->stop, __ATOMIC_ACQUIRE);
}

static bool is_made(const struct epf_adder_usual *u)
{
	return u->ops->done(u->side) >= u->launched || u->ops->done(u->own) >= u->launched;
}

/* Sleeps until there is a batch; while the last one is not made, for CHECK_S. Returns true if there is one. */
static bool sleep_for_batch(struct epf_adder_usual *u)
{
	bool is_idle = is_made(u);
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += CHECK_S;
	pthread_mutex_lock(&u->lock);
	while (!has_batch(u))
		if (is_idle)
			pthread_cond_wait(&u->changed, &u->lock);
		else if (pthread_cond_timedwait(&u->changed, &u->lock, &until))
			break;
	pthread_mutex_unlock(&u->lock);
	return has_batch(u);
}

static bool wait_for_batch(struct epf_adder_usual *u)
{
	uint64_t end = epf_now_ns() + SPIN_NS;

	while (!has_batch(u))
		if (epf_now_ns() > end)
			return sleep_for_batch(u);
		else
			sched_yield();
	return true;
}

/* A batch of the program's context that failed after its claim is made by nobody: says so. */
static void check(struct epf_adder_usual *u)
{
	if (is_made(u) || !u->ops->check(u->side))
		return;
	epf_err("additions to GPU memory failed: %s", epf_last_error());
	__atomic_store_n(&u->is_off, 1, __ATOMIC_RELEASE);
	__atomic_store_n(&u->lost, u->launched, __ATOMIC_RELEASE);
}

static void *run(void *arg)
{
	struct epf_adder_usual *u = arg;

	if (u->ops->open(u->device, false, &u->side)) {
		epf_note(
			"additions to GPU memory go to a context of their own only, about 2 ms each beside a kernel that waits: %s",
			epf_last_error());
		return NULL;
	}
	__atomic_store_n(&u->claim, u->ops->claim(u->side), __ATOMIC_RELEASE);
	while (!__atomic_load_n(&u->stop, __ATOMIC_ACQUIRE)) {
		if (!wait_for_batch(u))
			check(u);
		else if (__atomic_load_n(&u->given, __ATOMIC_ACQUIRE) != u->launched)
			launch(u);
	}
	return NULL;
}

struct epf_adder_usual *epf_adder_usual_start(const struct epf_adder_ops *ops, int device,
					      const struct epf_adder_side *own)
{
	struct epf_adder_usual *u = calloc(1, sizeof(*u));
	pthread_condattr_t attr;

	if (!u)
		return NULL;
	*u = (struct epf_adder_usual){ .ops = ops, .own = own, .device = device };
	pthread_mutex_init(&u->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&u->changed, &attr);
	pthread_condattr_destroy(&attr);
	if (pthread_create(&u->thread, NULL, run, u) == 0)
		return u;
	pthread_cond_destroy(&u->changed);
	pthread_mutex_destroy(&u->lock);
	free(u);
	return NULL;
}

static void wake(struct epf_adder_usual *u)
{
	pthread_mutex_lock(&u->lock);
	pthread_cond_signal(&u->changed);
	pthread_mutex_unlock(&u->lock);
}

void epf_adder_usual_stop(struct epf_adder_usual *u)
{
	if (!u)
		return;
	__atomic_store_n(&u->stop, 1, __ATOMIC_RELEASE);
	wake(u);
	pthread_join(u->thread, NULL);
}

void epf_adder_usual_free(struct epf_adder_usual *u)
{
	if (!u)
		return;
	u->ops->close(u->side);
	pthread_cond_destroy(&u->changed);
	pthread_mutex_destroy(&u->lock);
	free(u);
}

uint64_t epf_adder_usual_claim(const struct epf_adder_usual *u)
{
	return u ? __atomic_load_n(&u->claim, __ATOMIC_ACQUIRE) : 0;
}

bool epf_adder_usual_give(struct epf_adder_usual *u, const struct epf_adder_batch *batch)
{
	if (__atomic_load_n(&u->is_off, __ATOMIC_ACQUIRE) ||
	    __atomic_load_n(&u->launched, __ATOMIC_ACQUIRE) != u->given)
		return false;
	u->batch = *batch;
	__atomic_store_n(&u->given, batch->number, __ATOMIC_RELEASE);
	wake(u);
	return true;
}

uint64_t epf_adder_usual_done(const struct epf_adder_usual *u)
{
	return epf_adder_usual_claim(u) ? u->ops->done(u->side) : 0;
}

int epf_adder_usual_lost(const struct epf_adder_usual *u, uint64_t number)
{
	if (__atomic_load_n(&u->lost, __ATOMIC_ACQUIRE) != number)
		return 0;
	return epf_fail(EPF_R_GPU_CALL, "GPU additions: the program's CUDA context has failed");
}
