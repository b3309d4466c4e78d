/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The copier's thread (emu_copier.h): takes jobs from the rings of all NICs of the process in turn, gathers them to batches, one
 * queue a device, and hands back what is done. Made when the first NIC meets GPU memory, ends with the last. All drivers are called
 * on this thread and never under an engine core's step. It must never submit two copies to the same bytes in one batch.
 */
#define EPF_LOG_COMP "emu"
#include "fabric/emu_copier.h"

#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/base/log.h"
#include "fabric/emu.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

enum {
	TURN_JOBS = 256, /* of one NIC before the next one's turn */
	GRAIN = 512,     /* bytes that one bit of the map of destinations stands for */
	MAP_BITS = 1 << 15,
	MAP_SPAN_MAX = 1 << 16, /* longer copies are compared with all others */
	SPIN_NS = 50000,        /* quiet time before the thread sleeps */
	SLEEP_NS = 100000000,
};

struct owner {
	struct epf_emu_copier *copier;
	uint32_t slot;
};

struct flight {
	uint64_t value;
	unsigned n;
	struct owner owners[EPF_COPY_BATCH];
};

/* Copies and adds on one device, in order. */
struct queue {
	struct queue *next;
	const struct epf_copy_ops *ops;
	struct epf_copy_queue *q;
	int device, kernel;
	uint64_t value;
	unsigned first, count; /* flights under way */
	struct flight flights[EPF_COPY_FLIGHTS];
	unsigned batch; /* most in one submit */
	unsigned n; /* of the batch being gathered, whose owners are in the flight after the last */
	uint64_t low, high; /* its destinations lie in [low, high) */
	struct epf_copy_span spans[EPF_COPY_BATCH];
	uint64_t map[MAP_BITS / 64]; /* grains of its destinations, hashed */
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
	struct epf_emu_copier *copiers;  /* the thread's own */
	struct queue *queues;            /* the thread's own */
	struct epf_bell bell;
} work = { .lock = PTHREAD_MUTEX_INITIALIZER, .let_go = PTHREAD_COND_INITIALIZER };

/* Taken around the beginning and the end of the thread, and by those who wait for it; before work.lock. */
static pthread_mutex_t life = PTHREAD_MUTEX_INITIALIZER;

/* With the lock held: makes the thread look. */
static void ask(void)
{
	__atomic_store_n(&work.asked, 1, __ATOMIC_RELEASE);
	if (epf_bell_must_ring(&work.bell))
		epf_bell_ring(&work.bell);
}

static void finish(struct owner owner, uint32_t status)
{
	struct epf_emu_copier *c = owner.copier;

	c->outcomes[c->outcomes_out & (EPF_EMU_COPIES - 1)] =
		(struct epf_emu_outcome){ owner.slot, status };
	__atomic_store_n(&c->outcomes_out, c->outcomes_out + 1, __ATOMIC_RELEASE); /* C2 */
}

static void ring_nic(const struct epf_emu_copier *c)
{
	if (epf_bell_must_ring(c->nic_bell))
		epf_bell_ring(c->nic_bell);
}

/* The queue of a device; NULL with a reason. */
static struct queue *queue_of(const struct epf_emu_copier *c, int device)
{
	struct queue *q;

	for (q = work.queues; q; q = q->next)
		if (q->ops == c->ops && q->device == device && q->kernel == c->kernel)
			return q;
	q = calloc(1, sizeof(*q));
	if (!q) {
		epf_fail(EPF_R_NO_MEMORY, "GPU copies: no memory");
		return NULL;
	}
	q->ops = c->ops;
	q->device = device;
	q->kernel = c->kernel;
	if (c->ops->queue_open(device, c->kernel, &q->q)) {
		free(q);
		return NULL;
	}
	q->batch = c->ops->queue_batch(q->q);
	q->next = work.queues;
	work.queues = q;
	return q;
}

static struct flight *open_flight(struct queue *q)
{
	return &q->flights[(q->first + q->count) % EPF_COPY_FLIGHTS];
}

/* What was submitted as the flight after the last is under way, or has failed. */
static void launched(struct queue *q, int rc)
{
	struct flight *f = open_flight(q);

	if (!rc) {
		f->value = q->value;
		q->count++;
		return;
	}
	epf_err("copies to GPU memory fail: %s", epf_last_error());
	for (unsigned i = 0; i < f->n; i++) {
		finish(f->owners[i], EPF_S_REMOTE_ACCESS);
		ring_nic(f->owners[i].copier);
	}
}

static void submit(struct queue *q)
{
	if (!q->n)
		return;
	open_flight(q)->n = q->n;
	launched(q, q->ops->submit(q->q, q->spans, q->n, ++q->value));
	q->n = 0;
}

static bool test_and_set(struct queue *q, uint64_t grain)
{
	uint32_t at = (uint32_t)(grain * 0x9e3779b97f4a7c15ull >> 49);
	uint64_t bit = 1ull << (at & 63), *word = &q->map[at >> 6];
	bool was = *word & bit;

	*word |= bit;
	return was;
}

/* True when bytes of [dst, dst + bytes) are a destination of the batch already; notes them. */
static bool overlaps(struct queue *q, uint64_t dst, uint64_t bytes)
{
	uint64_t end = dst + bytes;
	bool doubt = false;

	if (q->n == 0) {
		q->low = dst;
		q->high = end;
		memset(q->map, 0, sizeof(q->map));
	}
	if (bytes > MAP_SPAN_MAX)
		memset(q->map, 0xff, sizeof(q->map));
	else
		for (uint64_t g = dst / GRAIN; g <= (end - 1) / GRAIN; g++)
			doubt |= test_and_set(q, g);
	doubt |= bytes > MAP_SPAN_MAX;
	if (dst >= q->high || end <= q->low)
		doubt = false;
	if (dst < q->low)
		q->low = dst;
	if (end > q->high)
		q->high = end;
	for (unsigned i = 0; doubt && i < q->n; i++)
		if (dst < q->spans[i].dst + q->spans[i].bytes && q->spans[i].dst < end)
			return true;
	return false;
}

/* Where a job's bytes are, and which device copies them. */
static int resolve(const struct epf_emu_copier *c, const struct epf_emu_job *j,
		   struct epf_copy_span *span, int *device)
{
	int rc = 0;

	*device = -1;
	span->dst = j->dst;
	span->src = j->src;
	span->bytes = j->bytes;
	span->host = !j->dst_mem || !j->src_key;
	if (j->dst_mem) {
		rc = epf_emu_import_own(j->dst_mem);
		if (rc)
			return rc;
		span->dst += j->dst_mem->device_addr;
		*device = j->dst_mem->device;
	}
	if (j->op == EPF_EMU_JOB_ADD)
		return 0;
	if (j->src_key)
		rc = epf_emu_import_peer(c->ops, j->peer, j->src_key, j->src, j->bytes, &span->src,
					 device);
	else
		epf_emu_import_host(c->ops, j->peer);
	return rc;
}

/* Takes one job into a batch; false: the queue is full, try again later. */
static bool take(struct epf_emu_copier *c, const struct epf_emu_job *j)
{
	struct owner owner = { c, j->slot };
	struct epf_copy_span span;
	struct queue *q = NULL;
	int device;

	if (resolve(c, j, &span, &device) || !(q = queue_of(c, device < 0 ? 0 : device))) {
		if (epf_last_reason() ==
		    EPF_R_NIC_PEER_GONE) /* its outcome tells who needs to know */
			epf_dbg("a copy: %s", epf_last_error());
		else
			epf_warn_ratelimited("a copy to or from GPU memory: %s", epf_last_error());
		finish(owner, EPF_S_REMOTE_ACCESS);
		ring_nic(c);
		return true;
	}
	if (q->count == EPF_COPY_FLIGHTS)
		return false;
	if (j->op == EPF_EMU_JOB_ADD) {
		submit(q);
		if (q->count == EPF_COPY_FLIGHTS)
			return false;
		open_flight(q)->n = 1;
		open_flight(q)->owners[0] = owner;
		launched(q, q->ops->add(q->q, span.dst, j->src, ++q->value));
		return true;
	}
	if (q->n == q->batch || overlaps(q, span.dst, span.bytes)) {
		submit(q);
		if (q->count == EPF_COPY_FLIGHTS)
			return false;
		(void)overlaps(q, span.dst, span.bytes);
	}
	open_flight(q)->owners[q->n] = owner;
	q->spans[q->n++] = span;
	return true;
}

/* Hands back what is complete; returns how many batches. */
static unsigned harvest(struct queue *q)
{
	uint64_t reached = q->count ? q->ops->reached(q->q) : 0;
	unsigned batches = 0;

	while (q->count && reached >= q->flights[q->first].value) {
		struct flight *f = &q->flights[q->first];

		for (unsigned i = 0; i < f->n; i++)
			finish(f->owners[i],
			       reached == UINT64_MAX ? EPF_S_REMOTE_ACCESS : EPF_S_OK);
		for (unsigned i = 0; i < f->n; i++)
			if (i == 0 || f->owners[i].copier != f->owners[i - 1].copier)
				ring_nic(f->owners[i].copier);
		q->first = (q->first + 1) % EPF_COPY_FLIGHTS;
		q->count--;
		batches++;
	}
	return batches;
}

/* One turn over all NICs and queues; *busy: copies are under way. Returns how much was done. */
static unsigned turn(bool *busy)
{
	unsigned done = 0;

	for (struct epf_emu_copier *c = work.copiers; c; c = c->next) {
		uint32_t out = __atomic_load_n(&c->jobs_out, __ATOMIC_ACQUIRE); /* C1 */

		for (unsigned n = 0; c->jobs_in != out && n < TURN_JOBS; n++, c->jobs_in++, done++)
			if (!take(c, &c->jobs[c->jobs_in & (EPF_EMU_COPIES - 1)]))
				break;
	}
	*busy = false;
	for (struct queue *q = work.queues; q; q = q->next) {
		done += harvest(q);
		/* With batches under way the next one may grow: fewer, longer calls. */
		if (q->count < 2 || (q->n == q->batch && q->count < EPF_COPY_FLIGHTS))
			submit(q);
		*busy |= q->count || q->n;
	}
	return done;
}

static bool has_jobs(void)
{
	for (const struct epf_emu_copier *c = work.copiers; c; c = c->next)
		if (__atomic_load_n(&c->jobs_out, __ATOMIC_ACQUIRE) != c->jobs_in) /* C1 */
			return true;
	return __atomic_load_n(&work.asked, __ATOMIC_ACQUIRE);
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
	if (unmap)
		epf_emu_import_drop(unmap);
	epf_emu_import_owns();
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
	while (!is_stopped()) {
		unsigned done = turn(&busy);

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
		if (epf_now_ns() - quiet_since < SPIN_NS)
			continue;
		quiet_since = 0;
		epf_emu_import_sweep();
		epf_bell_arm(&work.bell);
		if (!has_jobs() && !is_stopped())
			epf_bell_sleep(&work.bell, SLEEP_NS);
		epf_bell_disarm(&work.bell);
	}
	serve_requests();
	return NULL;
}

static void free_copier(struct epf_emu_copier *c)
{
	free(c->jobs);
	free(c->outcomes);
	free(c);
}

int epf_emu_copier_open(const struct epf_copy_ops *ops, int kernel, struct epf_bell *nic_bell,
			struct epf_emu_copier **out)
{
	struct epf_emu_copier *c = calloc(1, sizeof(*c));
	int rc = 0;

	if (c) {
		c->jobs = calloc(EPF_EMU_COPIES, sizeof(*c->jobs));
		c->outcomes = calloc(EPF_EMU_COPIES, sizeof(*c->outcomes));
	}
	if (!c || !c->jobs || !c->outcomes) {
		if (c)
			free_copier(c);
		return epf_fail(EPF_R_NO_MEMORY, "GPU copies: no memory");
	}
	c->ops = ops;
	c->kernel = kernel;
	c->nic_bell = nic_bell;
	pthread_mutex_lock(&life);
	if (work.users == 0) {
		work.stop = false;
		if (pthread_create(&work.thread, NULL, run, NULL))
			rc = epf_fail(EPF_R_NO_MEMORY, "GPU copies: no thread");
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
	struct queue *q;

	__atomic_store_n(&work.stop, true, __ATOMIC_RELEASE);
	epf_emu_copier_ring();
	pthread_join(work.thread, NULL);
	epf_emu_import_drop(NULL);
	while ((q = work.queues)) {
		work.queues = q->next;
		q->ops->queue_close(q->q);
		free(q);
	}
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
	if (__atomic_sub_fetch(&work.users, 1, __ATOMIC_RELEASE) == 0)
		end_thread();
	pthread_mutex_unlock(&life);
}

int epf_emu_copier_own(uint64_t nonce, uint32_t key, struct epf_copy_mem *mem)
{
	int rc;

	pthread_mutex_lock(&work.lock);
	rc = epf_emu_import_add_own(nonce, key, mem);
	ask();
	pthread_mutex_unlock(&work.lock);
	return rc;
}

void epf_emu_copier_disown(uint64_t nonce, uint32_t key)
{
	pthread_mutex_lock(&work.lock);
	epf_emu_import_remove_own(nonce, key);
	ask();
	pthread_mutex_unlock(&work.lock);
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

void epf_emu_copier_lock(void)
{
	pthread_mutex_lock(&work.lock);
}

void epf_emu_copier_unlock(void)
{
	pthread_mutex_unlock(&work.lock);
}

bool epf_emu_copier_sleeps(void)
{
	return epf_bell_must_ring(&work.bell);
}

void epf_emu_copier_ring(void)
{
	epf_bell_ring(&work.bell);
}
