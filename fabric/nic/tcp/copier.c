/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The copier's thread (copier.h): dequeues jobs in order, batches copies for the queues of gpu/copy.h, and completes jobs in order. Only this thread calls the driver.
 */
#define EPF_LOG_COMP "tcp"
#include "fabric/nic/tcp/copier.h"

#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/base/log.h"
#include "fabric/gpu/copy_stall.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	BATCH = 64,  /* most copies of a submit: each is checked against the others for overlap */
	FLIGHTS = 8, /* submits of a queue under way; below EPF_COPY_FLIGHTS */
	SPIN_NS = 200000, /* idle time before the thread sleeps */
	SLEEP_NS = 100000000,
};

static const uint64_t QUIESCE_NS = 5000000000ull;

/* What a queue carries: copies in the two directions overlap. */
enum lane { TO_GPU, FROM_GPU, ADDS };

struct queue {
	struct queue *next;
	struct epf_copy_queue *q;
	int device;
	enum lane lane;
	uint64_t submitted, reached; /* values */
	uint64_t accepted;           /* newest value that the driver took, and will reach */
	uint64_t bad;                /* values up to this one failed */
	unsigned n;
	struct epf_copy_span spans[BATCH];
	struct epf_copy_add adds[BATCH];
};

_Static_assert((int)BATCH <= (int)EPF_COPY_ADDS && (int)BATCH <= (int)EPF_COPY_BATCH, "");
_Static_assert((int)FLIGHTS <= (int)EPF_COPY_FLIGHTS, "");

struct slot {
	struct epf_tcp_job job;
	struct queue *queue; /* that carries the job, in the submit `value`; NULL: none */
	uint64_t value;
	bool failed;
};

struct epf_tcp_copier {
	const struct epf_copy_ops *ops;
	struct epf_wakeup *core;
	struct slot *slots; /* [EPF_TCP_JOBS] */
	pthread_t thread;
	uint32_t stop;
	uint64_t pushed; /* written by the NIC [T1, release] */
	bool is_hung;    /* the NIC's own: jobs did not end in time */
	uint8_t pad0[128];
	uint64_t done; /* written by the thread [T2, release] */
	uint64_t taken;
	struct queue *queues;
	struct epf_tcp_spares spares;
	struct epf_copy_stall stall;
	struct epf_wakeup wakeup;
};

static struct slot *slot_of(const struct epf_tcp_copier *c, uint64_t number)
{
	return &c->slots[number % EPF_TCP_JOBS];
}

/* ---- queues ---- */

static struct queue *queue_of(struct epf_tcp_copier *c, int device, enum lane lane)
{
	struct queue *q;

	for (q = c->queues; q; q = q->next)
		if (q->device == device && q->lane == lane)
			return q;
	q = calloc(1, sizeof(*q));
	if (!q) {
		epf_fail(EPF_R_NO_MEMORY, "GPU copies: a queue");
		return NULL;
	}
	if (c->ops->queue_open(device, lane == ADDS ? EPF_COPY_ADDITIONS : EPF_COPY_ENGINES,
			       &q->q)) {
		free(q);
		return NULL;
	}
	q->device = device;
	q->lane = lane;
	q->next = c->queues;
	c->queues = q;
	return q;
}

static bool is_full(const struct queue *q)
{
	return q->submitted - q->reached >= FLIGHTS;
}

/* Submits the batch. */
static void submit(struct epf_tcp_copier *c, struct queue *q)
{
	int rc;

	if (!q->n)
		return;
	q->submitted++;
	epf_copy_stall_enters(&c->stall,
			      q->lane == ADDS ? "submitting additions" : "submitting copies");
	rc = q->lane == ADDS ? c->ops->add(q->q, q->adds, q->n, q->submitted)
			     : c->ops->submit(q->q, q->spans, q->n, q->submitted);
	epf_copy_stall_enters(&c->stall, NULL);
	if (rc) {
		epf_warn_ratelimited("a copy to or from GPU memory: %s", epf_last_error());
		q->bad = q->submitted;
	} else {
		q->accepted = q->submitted;
	}
	q->n = 0;
}

static void harvest(struct epf_tcp_copier *c, struct queue *q)
{
	uint64_t reached;

	if (q->reached == q->submitted)
		return;
	epf_copy_stall_enters(&c->stall, "asking what is done");
	reached = c->ops->reached(q->q);
	epf_copy_stall_enters(&c->stall, NULL);
	if (reached == UINT64_MAX) {
		epf_warn_ratelimited("copies to or from GPU memory failed on the device: %s",
				     epf_last_error());
		q->bad = reached = q->submitted;
	}
	/* The driver never reaches submits that it refused: they end with the last one that it accepted. */
	if (reached >= q->accepted)
		reached = q->submitted;
	if (reached > q->reached)
		q->reached = reached;
}

/* ---- jobs ---- */

/* Finds the driver's address of a region's memory; maps memory of another process first. */
static int find(struct epf_copy_mem *mem)
{
	int rc = 0;

	if (mem->state == 0) {
		mem->device = mem->ops->mem_device(&mem->handle);
		rc = mem->ops->mem_import(&mem->handle, mem->device, &mem->device_addr);
		__atomic_store_n(&mem->state, rc ? 2u : 1u, __ATOMIC_RELEASE); /* C5 */
	} else if (mem->state == 2) {
		rc = epf_fail(EPF_R_GPU_MEMORY, "GPU region: it could not be mapped before");
	}
	return rc;
}

static int address_of(const struct epf_tcp_spot *s, uint64_t *out)
{
	int rc = s->mem ? find(s->mem) : 0;

	*out = s->mem ? s->mem->device_addr + s->at : s->at;
	return rc;
}

static bool meets(const struct queue *q, uint64_t dst, uint64_t bytes)
{
	for (unsigned i = 0; i < q->n; i++)
		if (dst < q->spans[i].dst + q->spans[i].bytes && q->spans[i].dst < dst + bytes)
			return true;
	return false;
}

/* Adds a copy or an addition to a batch. Returns false if its queue is full. */
static bool take_copy(struct epf_tcp_copier *c, struct slot *s)
{
	const struct epf_tcp_job *job = &s->job;
	const struct epf_copy_mem *mem = job->dst.mem ? job->dst.mem : job->src.mem;
	enum lane lane = job->kind == EPF_TCP_JOB_ADD ? ADDS : job->dst.mem ? TO_GPU : FROM_GPU;
	uint64_t dst, src;
	struct queue *q;

	if (address_of(&job->dst, &dst) || address_of(&job->src, &src) ||
	    !(q = queue_of(c, mem->device, lane))) {
		epf_warn_ratelimited("a copy to or from GPU memory: %s", epf_last_error());
		s->failed = true;
		return true;
	}
	/* The copies of a batch are unordered, so they must not overlap. */
	if (q->n == BATCH || (lane == TO_GPU && meets(q, dst, job->bytes))) {
		if (is_full(q))
			return false;
		submit(c, q);
	}
	if (lane == ADDS)
		q->adds[q->n++] = (struct epf_copy_add){ dst, job->bytes };
	else
		q->spans[q->n++] = (struct epf_copy_span){ .dst = dst,
							   .src = src,
							   .bytes = job->bytes,
							   .host = !job->dst.mem || !job->src.mem };
	s->queue = q;
	s->value = q->submitted + 1;
	return true;
}

static void prepare(struct epf_tcp_copier *c, struct epf_copy_mem *mem)
{
	if (find(mem) || !queue_of(c, mem->device, TO_GPU) || !queue_of(c, mem->device, FROM_GPU) ||
	    !queue_of(c, mem->device, ADDS))
		epf_warn_ratelimited("copies to and from GPU memory: %s", epf_last_error());
}

static void forget(struct epf_copy_mem *mem)
{
	/* Unmapped here, so that the last user need not call the driver. */
	if (mem->reserved && mem->state == 1) {
		mem->ops->mem_unimport(&mem->handle, mem->device_addr);
		mem->state = 2;
	}
	epf_copy_mem_put(mem);
}

/* Dequeues jobs while queues have room; returns how many. */
static unsigned take(struct epf_tcp_copier *c)
{
	uint64_t pushed = __atomic_load_n(&c->pushed, __ATOMIC_ACQUIRE); /* T1 */
	unsigned n = 0;

	for (; c->taken < pushed; c->taken++, n++) {
		struct slot *s = slot_of(c, c->taken + 1);

		s->queue = NULL;
		s->failed = false;
		if (s->job.kind == EPF_TCP_JOB_COPY || s->job.kind == EPF_TCP_JOB_ADD) {
			if (!take_copy(c, s))
				break;
		} else if (s->job.kind == EPF_TCP_JOB_PIN) {
			epf_copy_stall_enters(&c->stall, "pinning memory");
			if (epf_tcp_pin(&c->spares, s->job.pinned, s->job.bytes))
				s->failed = true;
		} else if (s->job.kind == EPF_TCP_JOB_PREPARE) {
			epf_copy_stall_enters(&c->stall, "mapping memory");
			prepare(c, s->job.dst.mem);
		}
		epf_copy_stall_enters(&c->stall, NULL);
	}
	return n;
}

/* Completes jobs, in order. Returns 1 if there were any. */
static unsigned finish(struct epf_tcp_copier *c)
{
	uint64_t done = c->done;

	for (; done < c->taken; done++) {
		struct slot *s = slot_of(c, done + 1);

		if (s->queue && s->value > s->queue->reached)
			break;
		if (s->queue && s->value <= s->queue->bad)
			s->failed = true;
		if (s->failed && s->job.pinned && !s->job.pinned->failed)
			__atomic_store_n(&s->job.pinned->failed, done + 1, __ATOMIC_RELAXED);
		if (s->job.kind == EPF_TCP_JOB_UNPIN) {
			epf_tcp_pinned_release(&c->spares, s->job.pinned);
			free(s->job.pinned);
		} else if (s->job.kind == EPF_TCP_JOB_PREPARE) {
			epf_copy_mem_put(s->job.dst.mem);
		} else if (s->job.kind == EPF_TCP_JOB_FORGET) {
			forget(s->job.dst.mem);
		}
	}
	if (done == c->done)
		return 0;
	__atomic_store_n(&c->done, done, __ATOMIC_RELEASE); /* T2 */
	if (epf_wakeup_is_needed(c->core))
		epf_wakeup_wake(c->core);
	return 1;
}

/* ---- the thread ---- */

static unsigned turn(struct epf_tcp_copier *c)
{
	unsigned n = take(c);

	for (struct queue *q = c->queues; q; q = q->next) {
		if (!is_full(q))
			submit(c, q);
		harvest(c, q);
	}
	return n + finish(c);
}

static bool has_jobs(const struct epf_tcp_copier *c)
{
	return __atomic_load_n(&c->pushed, __ATOMIC_ACQUIRE) != c->taken; /* T1 */
}

static bool is_stopped(const struct epf_tcp_copier *c)
{
	return __atomic_load_n(&c->stop, __ATOMIC_ACQUIRE);
}

static void *run(void *arg)
{
	struct epf_tcp_copier *c = arg;
	uint64_t quiet_since = 0;

	(void)pthread_setname_np(pthread_self(), "epf-tcp-copier");
	while (!is_stopped(c)) {
		bool is_busy = c->done != c->taken || has_jobs(c);
		unsigned moved;

		if (is_busy && !epf_copy_stall_is_timed(&c->stall))
			epf_copy_stall_moved(&c->stall, true);
		moved = turn(c);
		if (epf_copy_stall_is_timed(&c->stall) && (moved || c->done == c->taken))
			epf_copy_stall_moved(&c->stall, c->done != c->taken);
		if (moved) {
			quiet_since = 0;
			continue;
		}
		if (!quiet_since)
			quiet_since = epf_now_ns();
		/* Copies under way signal nothing when they are complete: poll. */
		if (c->done != c->taken || epf_now_ns() - quiet_since < SPIN_NS) {
			sched_yield();
			continue;
		}
		epf_wakeup_arm(&c->wakeup);
		if (!has_jobs(c) && !is_stopped(c))
			epf_wakeup_sleep(&c->wakeup, SLEEP_NS);
		epf_wakeup_disarm(&c->wakeup);
	}
	return NULL;
}

/* ---- for the NIC ---- */

/* The creating thread may be an engine core pinned to one CPU: the copier gets the CPUs of the process's first thread instead. */
static void free_from_cpu(pthread_t thread)
{
	cpu_set_t cpus;

	if (sched_getaffinity(getpid(), sizeof(cpus), &cpus) == 0)
		(void)pthread_setaffinity_np(thread, sizeof(cpus), &cpus);
}

int epf_tcp_copier_open(const struct epf_copy_ops *ops, struct epf_wakeup *wakeup,
			struct epf_tcp_copier **out)
{
	struct epf_tcp_copier *c = aligned_alloc(128, (sizeof(*c) + 127) / 128 * 128);
	int rc = ops->load();

	if (rc) {
		free(c);
		return rc;
	}
	if (c) {
		memset(c, 0, sizeof(*c));
		c->slots = calloc(EPF_TCP_JOBS, sizeof(*c->slots));
	}
	if (!c || !c->slots) {
		free(c);
		return epf_fail(EPF_R_NO_MEMORY, "tcp: GPU copies");
	}
	c->ops = ops;
	c->spares.ops = ops;
	c->core = wakeup;
	if (pthread_create(&c->thread, NULL, run, c)) {
		free(c->slots);
		free(c);
		return epf_fail(EPF_R_NO_MEMORY, "tcp: no thread for GPU copies");
	}
	free_from_cpu(c->thread);
	*out = c;
	return 0;
}

void epf_tcp_copier_close(struct epf_tcp_copier *c)
{
	struct queue *next;

	if (!c)
		return;
	if (!epf_tcp_copier_quiesce(c)) {
		epf_warn("the GPU does not finish its copies; their memory is kept");
		return; /* the GPU may still write there */
	}
	__atomic_store_n(&c->stop, 1u, __ATOMIC_RELEASE);
	epf_wakeup_wake(&c->wakeup);
	pthread_join(c->thread, NULL);
	for (struct queue *q = c->queues; q; q = next) {
		next = q->next;
		c->ops->queue_close(q->q);
		free(q);
	}
	epf_tcp_spares_drop(&c->spares);
	free(c->slots);
	free(c);
}

const struct epf_copy_ops *epf_tcp_copier_ops(const struct epf_tcp_copier *c)
{
	return c->ops;
}

uint32_t epf_tcp_copier_room(const struct epf_tcp_copier *c)
{
	return EPF_TCP_JOBS - (uint32_t)(c->pushed - epf_tcp_copier_done(c));
}

uint64_t epf_tcp_copier_push(struct epf_tcp_copier *c, const struct epf_tcp_job *job)
{
	uint64_t number = c->pushed + 1;

	slot_of(c, number)->job = *job;
	__atomic_store_n(&c->pushed, number, __ATOMIC_RELEASE); /* T1 */
	return number;
}

void epf_tcp_copier_kick(struct epf_tcp_copier *c)
{
	if (epf_wakeup_is_needed(&c->wakeup))
		epf_wakeup_wake(&c->wakeup);
}

uint64_t epf_tcp_copier_done(const struct epf_tcp_copier *c)
{
	return __atomic_load_n(&c->done, __ATOMIC_ACQUIRE); /* T2 */
}

void epf_tcp_copier_watch(struct epf_tcp_copier *c)
{
	epf_copy_stall_watch(&c->stall);
}

bool epf_tcp_copier_quiesce(struct epf_tcp_copier *c)
{
	uint64_t deadline = epf_now_ns() + QUIESCE_NS;

	while (epf_tcp_copier_done(c) != c->pushed) {
		if (c->is_hung || epf_now_ns() > deadline) {
			c->is_hung = true;
			return false;
		}
		epf_tcp_copier_kick(c);
		sched_yield();
	}
	c->is_hung = false;
	return true;
}
