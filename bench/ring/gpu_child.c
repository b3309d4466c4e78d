/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process of ep-bench ring --gpu that owns the GPU: forked before any driver is loaded, it opens the device, makes contexts over the
 * shared rings or an engine, launches kernels and reports. One request at a time, from the mailbox; it ends with its parent.
 */
#include "bench/common/bench.h"
#include "bench/ring/gpu.h"
#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/gpu/context.h"
#include "fabric/gpu/fake.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	RESULTS = RING_BENCH_PRODUCERS,
	SAMPLES = 65536,
	PAYLOAD_BYTES = 8192 * 32,
	BUSY_GRID = 24,
	BUSY_BLOCK = 1024,
	SIGNALS = 512,
};

#define PEER_BYTES (UINT64_C(256) << 20)

struct child {
	struct ring_gpu_shared *s;
	const char *backend;
	int device;
	const char *const *settings;
	struct epf_gpu_dev *dev;
	struct epf_gpu_props props;
	int devices;
	void *module;
	void *stream;
	struct epf_gpu_mem results, samples, payload, halt;
	uint64_t words; /* device address of the shared words */
	struct epf_signal *signals;
	/* NVLink traffic. */
	struct epf_gpu_dev *peer;
	struct epf_gpu_mem peer_mem;
	void *busy_stream;
	bool busy;
	uint64_t busy_since;
	/* The engine, kept while requests ask for the same rings. */
	struct ring_gpu_engine *engine;
	struct ring_gpu_request engine_for;
};

static int open_device(struct child *c)
{
	const struct epf_gpu_ops *ops;
	const void *image;
	int rc = epf_gpu_backend(c->backend, &ops);

	if (!rc)
		rc = ops->count(&c->devices);
	if (!rc)
		rc = ops->open(c->device, &c->dev);
	if (!rc)
		rc = ops->describe(c->dev, &c->props);
	if (rc)
		return rc;
	image = ops == &epf_gpu_fake_ops ? (const void *)ring_gpu_fake_kernels : ring_gpu_image;
	if (!image)
		return epf_fail(EPF_R_GPU_UNSUPPORTED,
				"this ep-bench was built without nvcc: it has no kernels");
	rc = ops->module_load(c->dev, image, &c->module);
	if (!rc)
		rc = ops->stream_create(c->dev, &c->stream);
	if (!rc)
		rc = ops->mem_alloc(c->dev, RESULTS * sizeof(struct ring_bench_result), 0,
				    &c->results);
	if (!rc)
		rc = ops->mem_alloc(c->dev, SAMPLES * sizeof(uint64_t), 0, &c->samples);
	if (!rc)
		rc = ops->mem_alloc(c->dev, PAYLOAD_BYTES, 0, &c->payload);
	if (!rc)
		rc = ops->mem_alloc(c->dev, RING_GPU_PAGE, 0, &c->halt);
	if (!rc)
		rc = ops->pin(c->dev, c->s->words, RING_GPU_PAGE, 0, &c->words);
	return rc;
}

static int start_open(struct child *c, struct ring_gpu_reply *a)
{
	int rc = c->dev ? 0 : open_device(c);

	if (rc)
		return rc;
	snprintf(a->text, sizeof(a->text), "%s, %s %s, %u multiprocessors, NUMA node %d, PCI %s",
		 c->props.name, c->dev->ops->name, c->dev->index ? "(not device 0)" : "device 0",
		 c->props.multiprocessors, c->props.numa, c->props.pci);
	a->devices = (uint32_t)c->devices;
	a->multiprocessors = c->props.multiprocessors;
	a->warp = c->props.warp;
	return 0;
}

/* The arguments of a request with the addresses filled in. */
static struct ring_bench_args arguments(const struct child *c, const struct ring_gpu_request *r,
					uint64_t ctx)
{
	struct ring_bench_args a = r->args;

	a.ctx = ctx;
	a.results = c->results.addr;
	a.samples = c->samples.addr;
	a.payload = c->payload.addr;
	a.flag = c->words + RING_GPU_FLAG_AT;
	a.ack = c->words + RING_GPU_ACK_AT;
	a.stop = c->words + RING_GPU_STOP_AT;
	a.halt = c->halt.addr;
	a.peer = c->peer_mem.addr;
	a.peer_bytes = c->peer_mem.bytes;
	return a;
}

static uint32_t warps_of(const struct child *c, const struct ring_gpu_request *r)
{
	return r->grid * ((r->block + c->props.warp - 1) / c->props.warp);
}

/* Collects results of all warps, and round trips where there were some. The first twentieth of the samples is warm-up. */
static int collect(struct child *c, const struct ring_gpu_request *r, uint32_t samples,
		   struct ring_gpu_reply *a)
{
	uint32_t n = warps_of(c, r);
	struct ring_bench_result *res = calloc(n, sizeof(*res));
	double *sorted = calloc(samples + 1, sizeof(*sorted));
	uint64_t *v = calloc(samples + 1, sizeof(*v));
	double cycles = 0, turns = 0;
	int rc = res && v && sorted ? 0 : epf_fail(EPF_R_NO_MEMORY, "ring --gpu: results");

	if (!rc)
		rc = c->dev->ops->copy(c->dev, (uintptr_t)res, c->results.addr, n * sizeof(*res));
	if (!rc && samples)
		rc = c->dev->ops->copy(c->dev, (uintptr_t)v, c->samples.addr, samples * sizeof(*v));
	for (uint32_t i = 0; i < n && !rc; i++) {
		if (res[i].rc < a->code)
			a->code = (int)res[i].rc;
		a->pushed += res[i].pushed;
		a->on_shared += (uint32_t)res[i].shared;
		cycles += (double)res[i].inside;
		turns += (double)res[i].pushed / (r->args.lanes ? r->args.lanes : 1);
	}
	if (!rc && turns > 0)
		a->inside_cycles = cycles / turns;
	if (!rc && samples > 20) {
		double ns = res[0].cycles ? (double)res[0].ns / (double)res[0].cycles : 1;
		uint32_t skip = samples / 20;

		for (uint32_t i = skip; i < samples; i++)
			sorted[i - skip] = (double)v[i] * ns;
		a->median_ns = bench_median(sorted, samples - skip);
		a->p99_ns = bench_percentile(sorted, samples - skip, 990);
		a->issue_ns = (double)res[0].inside / samples * ns;
	}
	free(res);
	free(v);
	free(sorted);
	return rc;
}

/*
 * Waits for a kernel asleep: a driver's own wait spins, on a virtual CPU that may be half of the core on which commands are dequeued. While it
 * spun, rates by sum jumped between two values, one half of the other; since then they do so less often. Costs a nap at the end.
 */
static int wait_asleep(struct child *c)
{
	const struct epf_gpu_ops *ops = c->dev->ops;
	struct timespec nap = { 0, 100000 };
	void *event;
	int rc = ops->event_create(c->dev, &event);

	if (rc)
		return rc;
	rc = ops->event_record(c->dev, c->stream, event);
	while (!rc && (rc = ops->event_query(c->dev, event)) == 0)
		nanosleep(&nap, NULL);
	ops->event_destroy(c->dev, event);
	return rc < 0 ? rc : 0;
}

/* Results are poisoned first: a kernel that did not run cannot look like one that did. */
static int run(struct child *c, const struct ring_gpu_request *r, const char *name,
	       struct ring_bench_args *args, struct ring_gpu_reply *a)
{
	const struct epf_gpu_ops *ops = c->dev->ops;
	void *argv[] = { args };
	struct epf_gpu_launch l = { .grid = r->grid, .block = r->block, .args = argv };
	void *function;
	uint64_t start;
	int rc = ops->function(c->dev, c->module, name, &function);

	if (warps_of(c, r) > RESULTS)
		return epf_fail(EPF_R_GPU_UNSUPPORTED, "ring --gpu: %u warps", warps_of(c, r));
	if (!rc)
		rc = ops->fill(c->dev, c->results.addr, 0xa5, c->results.bytes);
	if (!rc)
		rc = ops->fill(c->dev, c->samples.addr, 0xa5, c->samples.bytes);
	start = epf_now_ns();
	if (!rc)
		rc = ops->launch(c->dev, c->stream, function, &l);
	if (!rc && r->op == RING_GPU_PUSH) /* not what wall_ns is looked at for */
		rc = wait_asleep(c);
	if (!rc)
		rc = ops->stream_sync(c->dev, c->stream);
	a->wall_ns = epf_now_ns() - start;
	return rc;
}

/* The sentence of a raw context, without an engine's help. */
static void say_failure(struct epf_gpu_context *context, struct ring_gpu_reply *a)
{
	struct epf_gpu_status s;

	if (epf_gpu_context_failure(context, &s))
		snprintf(a->text, sizeof(a->text),
			 "code %d at what %u number %u: block %u thread %u wanted %llu, saw %llu",
			 s.code, s.what, s.number, s.block, s.thread, (unsigned long long)s.want,
			 (unsigned long long)s.seen);
}

static int raw_context(struct child *c, const struct ring_gpu_request *r,
		       struct epf_gpu_context **out)
{
	uint32_t n = r->n_shared + r->n_private;
	struct epf_gpu_ring_from *from = calloc(n, sizeof(*from));
	struct epf_gpu_parts parts = { .rings = from,
				       .n_shared = r->n_shared,
				       .n_private = r->n_private,
				       .world = 1,
				       .signals = c->signals,
				       .n_signals = SIGNALS,
				       .timeout_ns = r->timeout_ns };
	int rc;

	if (!from)
		return epf_fail(EPF_R_NO_MEMORY, "ring --gpu: rings");
	for (uint32_t i = 0; i < n; i++)
		from[i].shm = ring_gpu_ring(
			c->s, i < r->n_shared ? i : RING_GPU_SHARED + i - r->n_shared);
	rc = epf_gpu_context_create(c->dev, &parts, out);
	free(from);
	return rc;
}

struct later {
	struct epf_gpu_context *context;
	uint64_t after_ns;
};

static void *abort_later(void *arg)
{
	const struct later *l = arg;
	struct timespec t = { (time_t)(l->after_ns / 1000000000u),
			      (long)(l->after_ns % 1000000000u) };

	nanosleep(&t, NULL);
	epf_gpu_context_abort(l->context, -ECANCELED);
	return NULL;
}

/* PUSH, FLAG and HANG: kernels over rings and words that the parent looks after. */
static int run_raw(struct child *c, const struct ring_gpu_request *r, struct ring_gpu_reply *a)
{
	static const char *const names[] = { [RING_GPU_PUSH] = "ring_bench_push_kernel",
					     [RING_GPU_FLAG] = "ring_bench_flag_kernel",
					     [RING_GPU_HANG] = "ring_bench_hang_kernel" };
	struct epf_gpu_context *context = NULL;
	struct ring_bench_args args;
	struct later later;
	pthread_t thread;
	bool aborting = false;
	int rc = raw_context(c, r, &context);

	if (rc)
		return rc;
	args = arguments(c, r, epf_gpu_context_addr(context));
	if (r->abort_after_ns) {
		later = (struct later){ context, r->abort_after_ns };
		aborting = !pthread_create(&thread, NULL, abort_later, &later);
	}
	rc = run(c, r, names[r->op], &args, a);
	if (aborting)
		pthread_join(thread, NULL);
	if (!rc)
		rc = collect(c, r, r->op == RING_GPU_FLAG ? (uint32_t)r->args.count : 0, a);
	if (!rc)
		say_failure(context, a);
	epf_gpu_context_destroy(context);
	return rc;
}

static int same_rings(const struct ring_gpu_request *x, const struct ring_gpu_request *y)
{
	return x->n_shared == y->n_shared && x->n_private == y->n_private &&
	       x->shared_log2 == y->shared_log2 && x->private_log2 == y->private_log2;
}

/* RATE and ROUND: through the engine. */
static int run_engine(struct child *c, const struct ring_gpu_request *r, struct ring_gpu_reply *a)
{
	struct ring_bench_args args;
	struct ring_gpu_counts before;
	int rc = 0;

	if (c->engine && !same_rings(&c->engine_for, r)) {
		ring_gpu_engine_close(c->engine);
		c->engine = NULL;
	}
	if (!c->engine)
		rc = ring_gpu_engine_open(c->backend, c->device, c->settings, r, &c->engine);
	if (rc)
		return rc;
	c->engine_for = *r;
	args = arguments(c, r, ring_gpu_engine_ctx(c->engine));
	before = ring_gpu_engine_counts(c->engine);
	rc = run(c, r,
		 r->op == RING_GPU_RATE ? "ring_bench_push_kernel" : "ring_bench_round_kernel",
		 &args, a);
	if (!rc)
		rc = collect(c, r, r->op == RING_GPU_ROUND ? (uint32_t)r->args.count : 0, a);
	if (rc)
		return rc;
	a->engine = ring_gpu_engine_counts(c->engine);
	a->engine.dequeued -= before.dequeued;
	a->engine.refused -= before.refused;
	a->engine.bytes -= before.bytes;
	if (ring_gpu_engine_check(c->engine)) {
		snprintf(a->text, sizeof(a->text), "%s", epf_last_error());
		/* What comes after a failure begins again, or fails at once where the daemon is gone. */
		ring_gpu_engine_close(c->engine);
		c->engine = NULL;
	}
	return 0;
}

static int busy_begin(struct child *c, const struct ring_gpu_request *r)
{
	const struct epf_gpu_ops *ops = c->dev->ops;
	struct ring_bench_args args;
	void *argv[] = { &args };
	struct epf_gpu_launch l = { .grid = BUSY_GRID, .block = BUSY_BLOCK, .args = argv };
	void *function;
	int rc = 0;

	if (c->devices < 2)
		return epf_fail(EPF_R_GPU_ABSENT, "NVLink traffic needs two GPUs, there is %d",
				c->devices);
	if (!c->peer) {
		rc = ops->open(c->dev->index ? 0 : 1, &c->peer);
		if (!rc)
			rc = ops->mem_alloc(c->peer, PEER_BYTES, 0, &c->peer_mem);
		if (!rc)
			rc = ops->peer_enable(c->dev, c->peer);
		if (!rc)
			rc = ops->stream_create(c->dev, &c->busy_stream);
	}
	if (!rc)
		rc = ops->function(c->dev, c->module, "ring_bench_busy_kernel", &function);
	if (!rc)
		rc = ops->fill(c->dev, c->halt.addr, 0, c->halt.bytes);
	if (rc)
		return rc;
	EPF_STORE_RELEASE((uint64_t *)(void *)(c->s->words + RING_GPU_STOP_AT), 0);
	args = arguments(c, r, 0);
	rc = ops->launch(c->dev, c->busy_stream, function, &l);
	c->busy = !rc;
	c->busy_since = epf_now_ns();
	return rc;
}

/* a->pushed: bytes written a second. */
static int busy_end(struct child *c, struct ring_gpu_reply *a)
{
	uint64_t words[2] = { 0 };
	double s;
	int rc;

	EPF_STORE_RELEASE((uint64_t *)(void *)(c->s->words + RING_GPU_STOP_AT), 1);
	if (!c->busy)
		return 0;
	c->busy = false;
	rc = c->dev->ops->stream_sync(c->dev, c->busy_stream);
	s = (double)(epf_now_ns() - c->busy_since) / 1e9;
	if (!rc)
		rc = c->dev->ops->copy(c->dev, (uintptr_t)words, c->halt.addr, sizeof(words));
	a->pushed = (uint64_t)((double)words[1] / s);
	return rc;
}

static int serve_one(struct child *c, const struct ring_gpu_request *r, struct ring_gpu_reply *a)
{
	int rc = start_open(c, a);

	if (rc || r->op == RING_GPU_OPEN)
		return rc;
	a->text[0] = 0;
	switch (r->op) {
	case RING_GPU_RATE:
	case RING_GPU_ROUND:
		return run_engine(c, r, a);
	case RING_GPU_BUSY:
		return r->on ? busy_begin(c, r) : busy_end(c, a);
	default:
		return run_raw(c, r, a);
	}
}

static void serve(struct child *c)
{
	uint32_t seen = 0;

	for (;;) {
		struct timespec nap = { 0, 100000 };
		struct ring_gpu_reply a = { 0 };
		struct ring_gpu_request r;

		if (EPF_LOAD_ACQUIRE(&c->s->asked) == seen) {
			nanosleep(&nap, NULL);
			continue;
		}
		seen++;
		r = c->s->request;
		if (r.op == RING_GPU_QUIT)
			break;
		a.rc = serve_one(c, &r, &a);
		if (a.rc)
			snprintf(a.text, sizeof(a.text), "%s", epf_last_error());
		c->s->reply = a;
		EPF_STORE_RELEASE(&c->s->done, seen);
	}
	ring_gpu_engine_close(c->engine);
}

pid_t ring_gpu_fork(struct ring_gpu_shared *s, const char *backend, int device,
		    const char *const *settings)
{
	struct child c = { .s = s, .backend = backend, .device = device, .settings = settings };
	pid_t parent = getpid();
	pid_t pid;

	s->asked = 0;
	s->done = 0;
	fflush(NULL);
	pid = fork();
	if (pid)
		return pid < 0 ? -errno : pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(1);
	c.signals = aligned_alloc(RING_GPU_PAGE, SIGNALS * sizeof(struct epf_signal));
	if (c.signals)
		memset(c.signals, 0, SIGNALS * sizeof(struct epf_signal));
	bench_pin(0);
	serve(&c);
	_exit(0);
}
