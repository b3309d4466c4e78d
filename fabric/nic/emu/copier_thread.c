/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The copier's thread (copier.h): takes turns over the rings of all NICs of the process (copy_jobs.c) and over the queues of the devices
 * (copy_queue.c). It starts when the first NIC meets GPU memory and ends with the last. Only this thread calls drivers; it never runs
 * under an engine core's step.
 */
#define EPF_LOG_COMP "emu"
#include "fabric/nic/emu/copier_priv.h"

#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/base/log.h"
#include "fabric/nic/emu/copy_queue.h"
#include "fabric/nic/emu/emu.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	SPIN_NS =
		500000, /* quiet time before the thread sleeps: to wake it takes as long as some hundred copies */
	SLEEP_NS = 100000000,
};

/*
 * The lock is held for moments only, never over a call of a driver: an engine's thread may join, and name its regions, while another
 * job's memory is being mapped. Who leaves, or unmaps a segment, waits until the thread has let go of it.
 */
static struct {
	pthread_mutex_t lock;
	pthread_cond_t let_go;
	pthread_t thread;
	unsigned users;
	bool stop;
	uint32_t asked;                  /* something of the following is to be looked at */
	struct epf_emu_copier *joining;  /* have come */
	struct epf_emu_copier *leaving;  /* wants to go; NULL: gone */
	const struct epf_emu_seg *unmap; /* is to be forgotten; NULL: it is */
	struct epf_emu_copier *copiers;  /* the thread's own, and: */
	uint64_t turns, dequeue_tsc,
		pump_tsc; /* that took jobs; cycles for that, and for the batches */
	struct epf_emu_copier_stages stages; /* for others to read */
	struct epf_wakeup wakeup;
} work = { .lock = PTHREAD_MUTEX_INITIALIZER, .let_go = PTHREAD_COND_INITIALIZER };

struct epf_copy_stall epf_emu_copier_stall;

/* Taken around the beginning and the end of the thread, and by those who wait for it; before work.lock. */
static pthread_mutex_t life = PTHREAD_MUTEX_INITIALIZER;

/* With the lock held: makes the thread look. */
static void ask(void)
{
	__atomic_store_n(&work.asked, 1, __ATOMIC_RELEASE);
	if (epf_wakeup_is_needed(&work.wakeup))
		epf_wakeup_wake(&work.wakeup);
}

/* For epf_emu_copier_stages(). */
static void tell_stages(void)
{
	struct epf_emu_copier_stages now = { .dequeue_tsc = work.dequeue_tsc,
					     .pump_tsc = work.pump_tsc,
					     .turns = work.turns };
	const uint64_t *from = (const uint64_t *)&now;
	uint64_t *to = (uint64_t *)&work.stages;

	epf_emu_queues_stages(&now);
	for (unsigned i = 0; i < sizeof(now) / sizeof(*to); i++)
		__atomic_store_n(&to[i], from[i], __ATOMIC_RELAXED);
}

/* One turn over all NICs and queues; *busy: copies are under way. Returns how much was done. */
static unsigned turn(bool *busy)
{
	uint64_t t0 = epf_tsc(), t1;
	unsigned taken = 0, done;

	for (struct epf_emu_copier *c = work.copiers; c; c = c->next)
		taken += epf_emu_take_adds(c);
	if (taken)
		epf_emu_queues_add();
	for (struct epf_emu_copier *c = work.copiers; c; c = c->next)
		taken += epf_emu_take_entries(c);
	t1 = epf_tsc();
	done = epf_emu_queues_pump(busy);
	work.turns += taken != 0;
	work.dequeue_tsc += taken ? t1 - t0 : 0;
	work.pump_tsc += taken || done || *busy ? epf_tsc() - t1 : 0;
	if (taken || done)
		tell_stages();
	return taken + done;
}

static bool has_jobs(void)
{
	for (const struct epf_emu_copier *c = work.copiers; c; c = c->next)
		if (__atomic_load_n(&c->entries_out, __ATOMIC_ACQUIRE) != c->entries_in ||
		    __atomic_load_n(&c->adds_out, __ATOMIC_ACQUIRE) != c->adds_in) /* C1 */
			return true;
	return __atomic_load_n(&work.asked, __ATOMIC_ACQUIRE);
}

/* Memory of this process has come: what copies to it need is there before the first one. */
static void prepare(const struct epf_copy_mem *mem)
{
	for (const struct epf_emu_copier *c = work.copiers; c; c = c->next)
		if (c->ops == mem->ops && (!epf_emu_queue_of(c, mem->device, false) ||
					   !epf_emu_queue_of(c, mem->device, true)))
			epf_warn_ratelimited("copies to GPU %d: %s", mem->device, epf_last_error());
}

/* What others ask of the thread. */
static void serve_requests(void)
{
	struct epf_emu_copier **at = &work.copiers, *c;
	const struct epf_emu_seg *unmap;

	__atomic_store_n(&work.asked, 0, __ATOMIC_RELAXED);
	pthread_mutex_lock(&work.lock);
	while ((c = work.joining)) {
		work.joining = c->next;
		c->next = work.copiers;
		work.copiers = c;
	}
	while (work.leaving && *at && *at != work.leaving)
		at = &(*at)->next;
	if (work.leaving && *at)
		*at = work.leaving->next;
	work.leaving = NULL;
	unmap = work.unmap;
	pthread_mutex_unlock(&work.lock);
	epf_copy_stall_enters(&epf_emu_copier_stall, "mapping memory");
	if (unmap)
		epf_emu_import_drop(unmap);
	if (epf_emu_import_owns(prepare))
		__atomic_store_n(&work.asked, 1, __ATOMIC_RELAXED);
	epf_copy_stall_enters(&epf_emu_copier_stall, NULL);
	pthread_mutex_lock(&work.lock);
	if (unmap) /* not one that was asked for meanwhile */
		work.unmap = NULL;
	pthread_cond_broadcast(&work.let_go);
	pthread_mutex_unlock(&work.lock);
}

static bool is_stopped(void)
{
	return __atomic_load_n(&work.stop, __ATOMIC_ACQUIRE);
}

static void *run(void *arg)
{
	uint64_t quiet_since = 0;
	bool busy = false;

	(void)arg;
	(void)pthread_setname_np(pthread_self(), "epf-copier");
	while (!is_stopped()) {
		unsigned done;

		if (!epf_copy_stall_is_timed(&epf_emu_copier_stall) && (busy || has_jobs()))
			epf_copy_stall_moved(&epf_emu_copier_stall, true);
		done = turn(&busy);
		if (epf_copy_stall_is_timed(&epf_emu_copier_stall) && (done || !busy))
			epf_copy_stall_moved(&epf_emu_copier_stall, busy);

		if (__atomic_load_n(&work.asked, __ATOMIC_ACQUIRE))
			serve_requests();
		if (done || busy) {
			quiet_since = 0;
			if (!done)
				sched_yield();
			continue;
		}
		if (!quiet_since)
			quiet_since = epf_now_ns();
		if (epf_now_ns() - quiet_since < SPIN_NS) {
			sched_yield();
			continue;
		}
		quiet_since = 0;
		epf_emu_import_sweep();
		epf_wakeup_arm(&work.wakeup);
		if (!has_jobs() && !is_stopped())
			epf_wakeup_sleep(&work.wakeup, SLEEP_NS);
		epf_wakeup_disarm(&work.wakeup);
	}
	serve_requests();
	epf_dbg("GPU copies: %llu ms in taking jobs, %llu ms in their batches",
		(unsigned long long)(epf_tsc_to_ns(work.dequeue_tsc) / 1000000),
		(unsigned long long)(epf_tsc_to_ns(work.pump_tsc) / 1000000));
	/* Nobody waits any more: a later thread must not be blamed for it. */
	if (epf_copy_stall_is_timed(&epf_emu_copier_stall))
		epf_copy_stall_moved(&epf_emu_copier_stall, false);
	return NULL;
}

void epf_emu_copier_watch(void)
{
	epf_copy_stall_watch(&epf_emu_copier_stall);
}

static void free_copier(struct epf_emu_copier *c)
{
	free(c->entries);
	free(c->undone);
	free(c->outcomes);
	free(c->adds);
	free(c);
}

/* Who made the thread may be an engine's core with a CPU to itself: the copier runs wherever the process's first thread may. */
static void free_from_cpu(pthread_t thread)
{
	cpu_set_t cpus;

	if (sched_getaffinity(getpid(), sizeof(cpus), &cpus) == 0)
		(void)pthread_setaffinity_np(thread, sizeof(cpus), &cpus);
}

/* Zeroed memory that begins at a line (and its neighbour): what two threads share lies in as few as it seems to. */
static void *lines(size_t bytes)
{
	void *at = aligned_alloc(128, (bytes + 127) & ~(size_t)127);

	return at ? memset(at, 0, bytes) : NULL;
}

int epf_emu_copier_open(const struct epf_copy_ops *ops, int kernel, struct epf_wakeup *nic_wakeup,
			struct epf_emu_copier **out)
{
	struct epf_emu_copier *c = lines(sizeof(*c));
	int rc = 0;

	if (c) {
		c->entries = lines(EPF_EMU_ENTRIES * sizeof(*c->entries));
		c->undone = calloc(EPF_EMU_COPIES, sizeof(*c->undone));
		c->outcomes = lines(EPF_EMU_COPIES * sizeof(*c->outcomes));
		c->adds = calloc(EPF_EMU_COPIES, sizeof(*c->adds));
	}
	if (!c || !c->entries || !c->undone || !c->outcomes || !c->adds) {
		if (c)
			free_copier(c);
		return epf_fail(EPF_R_NO_MEMORY, "GPU copies: no memory");
	}
	c->ops = ops;
	c->kernel = kernel;
	c->nic_wakeup = nic_wakeup;
	c->entries_end = EPF_EMU_ENTRIES;
	pthread_mutex_lock(&life);
	if (work.users == 0) {
		work.stop = false;
		if (pthread_create(&work.thread, NULL, run, NULL))
			rc = epf_fail(EPF_R_NO_MEMORY, "GPU copies: no thread");
		else
			free_from_cpu(work.thread);
	}
	if (!rc) {
		__atomic_fetch_add(&work.users, 1, __ATOMIC_RELEASE);
		pthread_mutex_lock(&work.lock);
		c->next = work.joining;
		work.joining = c;
		ask();
		pthread_mutex_unlock(&work.lock);
	}
	pthread_mutex_unlock(&life);
	if (rc)
		free_copier(c);
	else
		*out = c;
	return rc;
}

/* After the last one has left. */
static void end_thread(void)
{
	__atomic_store_n(&work.stop, true, __ATOMIC_RELEASE);
	epf_emu_copier_ring();
	pthread_join(work.thread, NULL);
	epf_emu_import_drop(NULL);
	epf_emu_queues_close();
}

void epf_emu_copier_close(struct epf_emu_copier *copier)
{
	if (!copier)
		return;
	pthread_mutex_lock(&life);
	pthread_mutex_lock(&work.lock);
	work.leaving = copier;
	ask();
	while (work.leaving)
		pthread_cond_wait(&work.let_go, &work.lock);
	pthread_mutex_unlock(&work.lock);
	free_copier(copier);
	if (work.users == 1)
		end_thread();
	/* Not before: who sees no users frees segments that the thread's end still reads. */
	__atomic_fetch_sub(&work.users, 1, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&life);
}

int epf_emu_copier_own(uint64_t nonce, uint32_t key, struct epf_copy_mem *mem)
{
	int rc;

	rc = epf_emu_import_add_own(nonce, key, mem);
	pthread_mutex_lock(&work.lock);
	ask();
	pthread_mutex_unlock(&work.lock);
	return rc;
}

void epf_emu_copier_disown(uint64_t nonce, uint32_t key)
{
	epf_emu_import_remove_own(nonce, key);
	pthread_mutex_lock(&work.lock);
	ask();
	pthread_mutex_unlock(&work.lock);
}

bool epf_emu_copier_may_read(uint64_t nonce, uint32_t key)
{
	return __atomic_load_n(&work.users, __ATOMIC_ACQUIRE) > 1 &&
	       epf_emu_import_is_read(nonce, key);
}

void epf_emu_copier_forget(const struct epf_emu_seg *seg)
{
	if (__atomic_load_n(&work.users, __ATOMIC_ACQUIRE) == 0)
		return;
	pthread_mutex_lock(&life);
	pthread_mutex_lock(&work.lock);
	work.unmap = work.users ? seg : NULL;
	ask();
	while (work.unmap)
		pthread_cond_wait(&work.let_go, &work.lock);
	pthread_mutex_unlock(&work.lock);
	pthread_mutex_unlock(&life);
}

void epf_emu_copier_stages(struct epf_emu_copier_stages *out)
{
	const uint64_t *from = (const uint64_t *)&work.stages;
	uint64_t *to = (uint64_t *)out;

	for (unsigned i = 0; i < sizeof(*out) / sizeof(*to); i++)
		to[i] = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
}

bool epf_emu_copier_sleeps(void)
{
	return epf_wakeup_is_needed(&work.wakeup);
}

void epf_emu_copier_ring(void)
{
	epf_wakeup_wake(&work.wakeup);
}
