/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A GPU that is none: device memory is host memory behind addresses that no CPU code may touch (a load or store there is a SIGSEGV),
 * and copies are made later, by another thread, in random order within a batch. With the setting gpu-backend=fake whole jobs with "GPU"
 * regions run where there is no GPU: the tests of everything around GPU memory but the GPU. It must never make a copy before submit()
 * has returned to somebody who then looks at the memory: what waits must really wait.
 */
#include "fabric/gpu/adder.h"
#include "fabric/gpu/copy_fake_priv.h"

#include "fabric/base/clock.h"
#include "fabric/base/err.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct batch {
	struct batch *next;
	uint64_t value;
	uint64_t *claim, *done; /* of a side of an adder: as its kernel takes them */
	unsigned n, n_adds;     /* one of them is 0 */
	struct epf_copy_add adds[EPF_COPY_ADDS];
	struct epf_copy_span spans[];
};

struct epf_copy_queue {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct batch *head, *tail;
	uint64_t reached, random;
	bool is_own; /* of a context of its own: waits for no load */
	enum epf_copy_kind kind;
	struct epf_adder
		*adder; /* additions in a context of their own: nothing else of it is used */
	/* Held while a batch is copied: once a batch was reported as failed, its caller may unmap the memory. */
	pthread_mutex_t copying;
	uint64_t pushed; /* newest value; under lock */
	uint64_t
		failed_until; /* values of which the caller was told that they failed; under copying */
	bool stop;
	/* Copies that are not made: when batches would be complete. */
	struct epf_copy_span spans[EPF_COPY_BATCH];
	uint64_t over_ns[EPF_COPY_FLIGHTS], values[EPF_COPY_FLIGHTS], free_ns;
	uint32_t first, last;
};

/* epf_copy_fake_pretend(). */
static struct {
	bool on;
	uint32_t copy_ns, submit_ns;
} pretend;

static int fake_load(void)
{
	return 0;
}

static int fake_device(const struct epf_copy_handle *h)
{
	(void)h;
	return 0;
}

static uint64_t next_random(uint64_t *state)
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return *state * 0x2545f4914f6cdd1dull;
}

static int fake_register(void *addr, uint64_t bytes)
{
	(void)addr;
	(void)bytes;
	epf_copy_fake_wait(HELD_BY_LOAD);
	return 0;
}

static int fake_register_own(void *addr, uint64_t bytes)
{
	(void)addr;
	(void)bytes;
	return 0;
}

static void fake_unregister_own(void *addr)
{
	(void)addr;
	epf_copy_fake_wait(4);
}

static void fake_unregister(void *addr)
{
	(void)addr;
	epf_copy_fake_wait(4);
	epf_copy_fake_wait(HELD_BY_LOAD);
}

static uint32_t copy_pause_ns;

void epf_copy_fake_pause(uint32_t ns)
{
	__atomic_store_n(&copy_pause_ns, ns, __ATOMIC_RELEASE);
}

/* A kernel of another context waits for its turn. */
static const long TURN_NS = 2300000;

/* Of all numbered batches, so that a check that fails is the last that touches memory. */
static pthread_mutex_t numbered = PTHREAD_MUTEX_INITIALIZER;

static void make_additions(const struct batch *b)
{
	for (unsigned i = 0; i < b->n_adds; i++) {
		uint64_t *word = (uint64_t *)(void *)epf_copy_fake_real(b->adds[i].dst, 8);

		if (word)
			__atomic_fetch_add(word, b->adds[i].add, __ATOMIC_RELEASE);
	}
}

/* What the kernel of additions does (copy_driver_add.c). */
static void make_numbered(struct epf_copy_queue *q, const struct batch *b)
{
	struct timespec turn = { .tv_nsec = TURN_NS };

	if (q->is_own)
		nanosleep(&turn, NULL);
	else
		epf_copy_fake_wait_aside(HELD_BY_FULL_GPU);
	pthread_mutex_lock(&numbered);
	if (epf_copy_fake_holds() != 3 && b->value > q->failed_until &&
	    (!b->claim || *b->claim < b->value)) {
		if (b->claim)
			*b->claim = b->value;
		make_additions(b);
		__atomic_store_n(b->done, b->value, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&numbered);
}

/* Makes the copies of a batch in random order. */
static void perform(struct epf_copy_queue *q, struct batch *b)
{
	struct timespec pause = { .tv_nsec = (long)(next_random(&q->random) % 30000) };

	if (b->n)
		pause.tv_nsec += __atomic_load_n(&copy_pause_ns, __ATOMIC_ACQUIRE);
	nanosleep(&pause, NULL);
	epf_copy_fake_wait(2);
	if (b->done) {
		make_numbered(q, b);
		return;
	}
	pthread_mutex_lock(&q->copying);
	/* Like a failed device, which touches nothing any more. */
	if ((q->failed_until && b->value <= q->failed_until) || epf_copy_fake_holds() == 3)
		b->n = b->n_adds = 0;
	make_additions(b);
	for (unsigned left = b->n; left; left--) {
		unsigned i = (unsigned)(next_random(&q->random) % left);
		struct epf_copy_span s = b->spans[i];

		b->spans[i] = b->spans[left - 1];
		(void)epf_copy_fake_copy((void *)(uintptr_t)s.dst, (const void *)(uintptr_t)s.src,
					 s.bytes);
	}
	pthread_mutex_unlock(&q->copying);
	__atomic_store_n(&q->reached, b->value, __ATOMIC_RELEASE); /* C4 */
}

static void *run(void *arg)
{
	struct epf_copy_queue *q = arg;

	pthread_mutex_lock(&q->lock);
	for (;;) {
		struct batch *b = q->head;

		if (!b && q->stop)
			break;
		if (!b) {
			pthread_cond_wait(&q->changed, &q->lock);
			continue;
		}
		q->head = b->next;
		pthread_mutex_unlock(&q->lock);
		perform(q, b);
		free(b);
		pthread_mutex_lock(&q->lock);
	}
	pthread_mutex_unlock(&q->lock);
	return NULL;
}

static int open_queue(int device, bool is_own, struct epf_copy_queue **out)
{
	struct epf_copy_queue *q = calloc(1, sizeof(*q));

	if (!q)
		return epf_fail(EPF_R_NO_MEMORY, "fake GPU: a queue");
	q->is_own = is_own;
	pthread_mutex_init(&q->lock, NULL);
	pthread_mutex_init(&q->copying, NULL);
	pthread_cond_init(&q->changed, NULL);
	q->random = 88172645463325252ull + (unsigned)device;
	if (pthread_create(&q->thread, NULL, run, q)) {
		free(q);
		return epf_fail(EPF_R_NO_MEMORY, "fake GPU: a thread");
	}
	*out = q;
	return 0;
}

static unsigned fake_queue_batch(const struct epf_copy_queue *q)
{
	(void)q;
	return EPF_COPY_BATCH;
}

static void fake_queue_close(struct epf_copy_queue *q)
{
	if (!q)
		return;
	epf_adder_close(q->adder);
	pthread_mutex_lock(&q->lock);
	q->stop = true;
	pthread_cond_signal(&q->changed);
	pthread_mutex_unlock(&q->lock);
	pthread_join(q->thread, NULL);
	pthread_mutex_destroy(&q->lock);
	pthread_mutex_destroy(&q->copying);
	pthread_cond_destroy(&q->changed);
	free(q);
}

static int push(struct epf_copy_queue *q, struct batch *b)
{
	epf_copy_fake_wait(1);
	if (!q->is_own && !b->done)
		epf_copy_fake_wait(HELD_BY_LOAD);
	pthread_mutex_lock(&q->lock);
	b->next = NULL;
	q->pushed = b->value;
	if (q->head)
		q->tail->next = b;
	else
		q->head = b;
	q->tail = b;
	pthread_cond_signal(&q->changed);
	pthread_mutex_unlock(&q->lock);
	return 0;
}

static int fake_queue_open(int device, enum epf_copy_kind kind, struct epf_copy_queue **out)
{
	int rc;

	epf_copy_fake_wait(4);
	epf_copy_fake_wait(HELD_BY_LOAD);
	rc = open_queue(device, false, out);
	if (!rc)
		(*out)->kind = kind;
	return rc;
}

/* ---- the sides of an adder ---- */

struct epf_adder_side {
	struct epf_copy_queue *q;
	uint64_t claim, done;
	uint64_t *claimed_at; /* the word of claims of the last launch, or NULL */
};

static void side_close(struct epf_adder_side *s)
{
	if (s)
		fake_queue_close(s->q);
	free(s);
}

static int side_open(int device, bool is_own, struct epf_adder_side **out)
{
	struct epf_adder_side *s;
	int rc;

	if (!is_own)
		epf_copy_fake_wait_aside(HELD_BY_LOAD);
	if (!is_own && epf_copy_fake_holds() == NO_USUAL_ADDITIONS)
		return epf_fail(EPF_R_GPU_UNSUPPORTED, "fake GPU: no additions there");
	s = calloc(1, sizeof(*s));
	if (!s)
		return epf_fail(EPF_R_NO_MEMORY, "fake GPU: additions");
	rc = open_queue(device, is_own, &s->q);
	if (rc)
		free(s);
	else
		*out = s;
	return rc;
}

static uint64_t side_claim(const struct epf_adder_side *s)
{
	return (uint64_t)(uintptr_t)&s->claim;
}

static int side_launch(struct epf_adder_side *s, const struct epf_adder_batch *from)
{
	struct batch *b = malloc(sizeof(*b));

	if (!s->q->is_own)
		epf_copy_fake_wait_aside(HELD_BY_LOAD);
	if (!b)
		return epf_fail(EPF_R_NO_MEMORY, "fake GPU: additions");
	*b = (struct batch){ .value = from->number,
			     .claim = (uint64_t *)(uintptr_t)from->claim,
			     .done = &s->done,
			     .n_adds = from->n };
	memcpy(b->adds, from->adds, from->n * sizeof(*from->adds));
	s->claimed_at = b->claim;
	return push(s->q, b);
}

static uint64_t side_done(const struct epf_adder_side *s)
{
	return __atomic_load_n(&s->done, __ATOMIC_ACQUIRE);
}

static int side_check(struct epf_adder_side *s)
{
	if (epf_copy_fake_holds() != 3)
		return 0;
	pthread_mutex_lock(&numbered);
	s->q->failed_until = UINT64_MAX;
	if (s->claimed_at)
		*s->claimed_at = UINT64_MAX;
	pthread_mutex_unlock(&numbered);
	return epf_fail(EPF_R_GPU_MEMORY, "fake GPU: an addition failed");
}

static bool side_is_usual(uint64_t addr)
{
	(void)addr;
	return true;
}

static const struct epf_adder_ops fake_adder = { .open = side_open,
						 .close = side_close,
						 .claim = side_claim,
						 .launch = side_launch,
						 .done = side_done,
						 .check = side_check,
						 .is_usual = side_is_usual };

static int fake_queue_open_own(int device, enum epf_copy_kind kind, struct epf_copy_queue **out)
{
	struct epf_copy_queue *q;
	int rc;

	epf_copy_fake_wait(4);
	rc = open_queue(device, true, &q);
	if (!rc && kind == EPF_COPY_ADDITIONS) {
		rc = epf_adder_open(&fake_adder, device, &q->adder);
		if (rc)
			fake_queue_close(q);
	}
	if (rc)
		return rc;
	q->kind = kind;
	*out = q;
	return 0;
}

void epf_copy_fake_pretend(uint32_t copy_ns, uint32_t submit_ns)
{
	pretend.on = true;
	pretend.copy_ns = copy_ns;
	pretend.submit_ns = submit_ns;
}

/* The CPU's part of a submit, and when the device would be through. */
static int pretend_submit(struct epf_copy_queue *q, const struct epf_copy_span *spans, unsigned n,
			  uint64_t value)
{
	uint64_t now = epf_now_ns(), end = now + pretend.submit_ns;
	uint32_t at = q->last++ % EPF_COPY_FLIGHTS;

	if (n)
		memcpy(q->spans, spans, n * sizeof(*spans));
	while (epf_now_ns() < end)
		;
	q->free_ns = (q->free_ns < end ? end : q->free_ns) + (uint64_t)n * pretend.copy_ns;
	q->over_ns[at] = q->free_ns;
	q->values[at] = value;
	return 0;
}

static uint64_t pretend_reached(struct epf_copy_queue *q)
{
	uint64_t now = epf_now_ns();

	while (q->first != q->last && q->over_ns[q->first % EPF_COPY_FLIGHTS] <= now)
		q->reached = q->values[q->first++ % EPF_COPY_FLIGHTS];
	return q->reached;
}

static int fake_submit(struct epf_copy_queue *q, const struct epf_copy_span *spans, unsigned n,
		       uint64_t value)
{
	struct batch *b;

	if (q->kind == EPF_COPY_ADDITIONS)
		return epf_fail(EPF_R_GPU_UNSUPPORTED, "fake GPU: this queue only adds");
	if (pretend.on)
		return pretend_submit(q, spans, n, value);
	b = malloc(sizeof(*b) + n * sizeof(*spans));
	if (!b)
		return epf_fail(EPF_R_NO_MEMORY, "fake GPU: a batch");
	*b = (struct batch){ .value = value, .n = n };
	memcpy(b->spans, spans, n * sizeof(*spans));
	return push(q, b);
}

static int fake_add(struct epf_copy_queue *q, const struct epf_copy_add *adds, unsigned n,
		    uint64_t value)
{
	struct batch *b;

	if (q->kind != EPF_COPY_ADDITIONS)
		return epf_fail(EPF_R_GPU_UNSUPPORTED, "fake GPU: this queue only copies");
	if (pretend.on)
		return pretend_submit(q, NULL, 0, value);
	if (q->adder)
		return epf_adder_add(q->adder, adds, n, value);
	b = malloc(sizeof(*b));
	if (!b)
		return epf_fail(EPF_R_NO_MEMORY, "fake GPU: an addition");
	*b = (struct batch){ .value = value, .n_adds = n };
	memcpy(b->adds, adds, n * sizeof(*adds));
	return push(q, b);
}

static uint64_t fake_reached(struct epf_copy_queue *q)
{
	struct timespec pause = { .tv_nsec = 1000000 };
	uint64_t newest;

	if (pretend.on)
		return pretend_reached(q);
	if (q->adder)
		return epf_adder_reached(q->adder);
	if (!q->is_own)
		epf_copy_fake_wait(HELD_BY_LOAD);
	if (epf_copy_fake_holds() == 3) {
		pthread_mutex_lock(&q->lock);
		newest = q->pushed;
		pthread_mutex_unlock(&q->lock);
		pthread_mutex_lock(&q->copying);
		q->failed_until = newest;
		pthread_mutex_unlock(&q->copying);
		(void)epf_fail(EPF_R_GPU_MEMORY, "fake GPU: a copy failed");
		return UINT64_MAX;
	}
	/* A real one is being asked most of the time while copies do not end. */
	if (epf_copy_fake_holds() == 2)
		nanosleep(&pause, NULL);
	return __atomic_load_n(&q->reached, __ATOMIC_ACQUIRE); /* C4 */
}

#define EITHER                                                                                    \
 .load = fake_load, .mem_alloc = epf_copy_fake_alloc, .mem_free = epf_copy_fake_free,             \
 .mem_export = epf_copy_fake_export, .mem_place = epf_copy_fake_place, .mem_device = fake_device, \
 .mem_unimport = epf_copy_fake_unimport, .mem_for_kernels = epf_copy_fake_for_kernels,            \
 .copy = epf_copy_fake_copy, .queue_batch = fake_queue_batch, .queue_close = fake_queue_close,    \
 .submit = fake_submit, .add = fake_add, .reached = fake_reached

const struct epf_copy_ops epf_copy_fake = {
	.name = "fake",
	EITHER,
	.mem_import = epf_copy_fake_import,
	.host_register = fake_register,
	.host_unregister = fake_unregister,
	.queue_open = fake_queue_open,
};

const struct epf_copy_ops epf_copy_fake_own = {
	.name = "fake, own context",
	EITHER,
	.mem_import = epf_copy_fake_import_own,
	.host_register = fake_register_own,
	.host_unregister = fake_unregister_own,
	.queue_open = fake_queue_open_own,
};
