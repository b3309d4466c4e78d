/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Additions to a word of GPU memory while a kernel of the program runs and adds to the same word: in the usual context, with a context of our own beside it, in that context
 * only; and with a kernel that fills the GPU. Prints how long one addition takes in each way, and what the driver's stream memory operations take in a context of our own
 * (an atomic one exists from CUDA 13.1 on). Fails if a sum is wrong, not for a time.
 *
 *   additions fake|cuda     77: no GPU
 *
 * A GPU's run: tests/gpu/run.sh --build BUILD --only '^(additions|late-load)$'
 */
#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/gpu/copy_driver_priv.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { BYTES = 2 << 20, ADDITIONS = 200, BURST = 16, SKIPPED = 77 };

static const uint64_t LIMIT_NS = 20000000000;

/*
 * contend(words, flags, ns): the first thread of each block adds 1 to words[0] again and again, and how often to words[1] at the end; sets flags[1]; the block runs until
 * flags[0] is not 0, or so long.
 */
static const char contend_ptx[] =
	".version 7.0\n.target sm_70\n.address_size 64\n"
	".visible .entry contend(.param .u64 p_words, .param .u64 p_flags, .param .u64 p_ns)\n{\n"
	"	.reg .pred %idle, %over, %stop;\n	.reg .u32 %me;\n"
	"	.reg .u64 %words, %flags, %ns, %begin, %now, %v, %one, %count;\n"
	"	ld.param.u64 %words, [p_words];\n	ld.param.u64 %flags, [p_flags];\n"
	"	ld.param.u64 %ns, [p_ns];\n	cvta.to.global.u64 %words, %words;\n"
	"	cvta.to.global.u64 %flags, %flags;\n	mov.u32 %me, %tid.x;\n"
	"	setp.ne.u32 %idle, %me, 0;\n	mov.u64 %begin, %globaltimer;\n"
	"	mov.u64 %one, 1;\n	mov.u64 %count, 0;\n"
	"	@!%idle st.volatile.global.u64 [%flags+8], %one;\n"
	"LOOP:\n	setp.ne.u32 %over, %me, %me;\n	@%idle bra MEET;\n"
	"	red.relaxed.sys.global.add.u64 [%words], %one;\n	add.u64 %count, %count, 1;\n"
	"	mov.u64 %now, %globaltimer;\n	sub.u64 %now, %now, %begin;\n"
	"	setp.gt.u64 %over, %now, %ns;\n	@%over bra MEET;\n"
	"	ld.volatile.global.u64 %v, [%flags];\n	setp.ne.u64 %over, %v, 0;\n"
	"MEET:\n	barrier.red.or.pred %stop, 0, %over;\n	@!%stop bra LOOP;\n"
	"	@%idle ret;\n	red.relaxed.sys.global.add.u64 [%words+8], %count;\n	ret;\n}\n";

/* The program: no gpu for the fake one, where a thread adds. */
static struct {
	struct epf_gpu_dev *gpu;
	void *stream, *contend;
	uint32_t multiprocessors;
	volatile uint64_t *flags; /* [0] ends the kernel, [1] it runs */
	uint64_t flags_dev;
	pthread_t thread;
	uint32_t stop;
	void *memory; /* two words */
	const struct epf_copy_ops *ops;
} program;

static void check(int rc, const char *what)
{
	if (!rc)
		return;
	fprintf(stderr, "additions: %s: %s\n", what, epf_last_error());
	exit(1);
}

static uint64_t word(unsigned i)
{
	return (uint64_t)(uintptr_t)program.memory + i * 8;
}

static void open_program(const char *name)
{
	const struct epf_gpu_ops *ops;
	struct epf_gpu_props props;
	void *module;
	int n;

	check(epf_copy_ops_find(name, &program.ops), name);
	if (strcmp(name, "fake") != 0) {
		if (epf_gpu_backend(name, &ops) || ops->count(&n)) {
			printf("additions: %s\n", epf_last_error());
			exit(SKIPPED);
		}
		check(ops->open(0, &program.gpu), "the device");
		check(ops->describe(program.gpu, &props), "the device");
		program.multiprocessors = props.multiprocessors;
		check(ops->stream_create(program.gpu, &program.stream), "a stream");
		check(ops->module_load(program.gpu, contend_ptx, &module), "a module");
		check(ops->function(program.gpu, module, "contend", &program.contend),
		      "its kernel");
		program.flags =
			mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		if (program.flags == MAP_FAILED)
			check(epf_fail(EPF_R_NO_MEMORY, "a page"), "the flags");
		check(ops->pin(program.gpu, (void *)(uintptr_t)program.flags, 4096, 0,
			       &program.flags_dev),
		      "the flags");
	}
	check(program.ops->load(), "the driver");
	check(program.ops->mem_alloc(0, BYTES, &program.memory), "GPU memory");
}

static void *contend(void *arg)
{
	uint64_t *words = epf_copy_fake_bytes(program.memory, 16);

	(void)arg;
	while (!__atomic_load_n(&program.stop, __ATOMIC_ACQUIRE)) {
		__atomic_fetch_add(&words[0], 1, __ATOMIC_RELAXED);
		words[1]++;
		sched_yield();
	}
	return NULL;
}

/* Zeroes the words; from here on a kernel adds to the first one. is_full: it leaves no room for another one. */
static void begin(bool is_full)
{
	static const uint64_t none[2];
	uint64_t words = word(0), limit = LIMIT_NS;
	void *args[3] = { &words, &program.flags_dev, &limit };
	struct epf_gpu_launch how = { .grid = is_full ? program.multiprocessors * 2 : 1,
				      .block = is_full ? 1024 : 1,
				      .args = args };

	check(program.ops->copy(program.memory, none, sizeof(none)), "zeroes");
	if (!program.gpu) {
		program.stop = 0;
		check(pthread_create(&program.thread, NULL, contend, NULL), "a thread");
		epf_copy_fake_hold(is_full ? 6 : 0);
		return;
	}
	program.flags[0] = program.flags[1] = 0;
	check(program.gpu->ops->launch(program.gpu, program.stream, program.contend, &how),
	      "contend");
	while (!program.flags[1])
		sched_yield();
}

/* Ends the kernel; fails if it and `adds` are not the sum. */
static void end(uint64_t adds, void (*settle)(void *arg), void *arg)
{
	uint64_t sum[2];

	if (program.gpu) {
		program.flags[0] = 1;
		check(program.gpu->ops->stream_sync(program.gpu, program.stream), "contend");
	} else {
		__atomic_store_n(&program.stop, 1, __ATOMIC_RELEASE);
		pthread_join(program.thread, NULL);
		epf_copy_fake_hold(0);
	}
	settle(arg);
	check(program.ops->copy(sum, program.memory, sizeof(sum)), "the sum");
	if (sum[0] == sum[1] + adds)
		return;
	fprintf(stderr, "additions: the sum is wrong: %llu, not %llu of the kernel and %llu\n",
		(unsigned long long)sum[0], (unsigned long long)sum[1], (unsigned long long)adds);
	exit(1);
}

static int earlier(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static void print(const char *how, uint64_t *ns, double burst_us)
{
	qsort(ns, ADDITIONS, sizeof(*ns), earlier);
	printf("additions %-44s median %8.1f us, 95%% %8.1f us, longest %8.1f us", how,
	       (double)ns[ADDITIONS / 2] / 1e3, (double)ns[ADDITIONS * 95 / 100] / 1e3,
	       (double)ns[ADDITIONS - 1] / 1e3);
	if (burst_us > 0)
		printf("; in calls of 64, %d under way: %.2f us each", BURST, burst_us);
	printf("\n");
}

/* One way to add. */
struct way {
	void *arg;
	int (*add)(void *arg, const struct epf_copy_add *adds, unsigned n, uint64_t value);
	uint64_t (*reached)(void *arg);
	void (*close)(void *arg);
};

static void reach(const struct way *w, uint64_t value)
{
	uint64_t reached;

	do {
		reached = w->reached(w->arg);
		if (reached == UINT64_MAX)
			check(-1, "additions failed");
	} while (reached < value);
}

/* BURST calls of 64 additions, with no wait among them: microseconds of one. */
static double burst(const struct way *w, uint64_t *value)
{
	struct epf_copy_add adds[EPF_COPY_ADDS];
	uint64_t t = epf_now_ns();

	for (unsigned i = 0; i < EPF_COPY_ADDS; i++)
		adds[i] = (struct epf_copy_add){ word(0), 1 };
	for (unsigned i = 0; i < BURST; i++)
		check(w->add(w->arg, adds, EPF_COPY_ADDS, ++*value), "a burst");
	reach(w, *value);
	return (double)(epf_now_ns() - t) / 1e3 / (BURST * EPF_COPY_ADDS);
}

static void measure(const char *how, const struct way *w, bool is_full)
{
	struct epf_copy_add add = { word(0), 1 };
	uint64_t ns[ADDITIONS], value = 0;
	double us;

	check(w->add(w->arg, &add, 1, ++value), "a first addition");
	reach(w, value);
	if (program.gpu)
		nanosleep(&(struct timespec){ .tv_nsec = 300000000 },
			  NULL); /* both contexts are open */
	begin(is_full);
	for (unsigned i = 0; i < ADDITIONS; i++) {
		uint64_t t = epf_now_ns();

		check(w->add(w->arg, &add, 1, ++value), "an addition");
		reach(w, value);
		ns[i] = epf_now_ns() - t;
	}
	us = burst(w, &value);
	end(ADDITIONS + BURST * EPF_COPY_ADDS, w->close, w->arg);
	print(how, ns, us);
}

/* ---- ways ---- */

struct queue {
	const struct epf_copy_ops *ops;
	struct epf_copy_queue *q;
};

static int queue_add(void *arg, const struct epf_copy_add *adds, unsigned n, uint64_t value)
{
	struct queue *q = arg;

	return q->ops->add(q->q, adds, n, value);
}

static uint64_t queue_reached(void *arg)
{
	struct queue *q = arg;

	return q->ops->reached(q->q);
}

static void queue_close(void *arg)
{
	struct queue *q = arg;

	q->ops->queue_close(q->q);
}

static void by_queue(const char *how, const char *name, bool is_full)
{
	struct queue q;
	struct way way = { &q, queue_add, queue_reached, queue_close };

	check(epf_copy_ops_find(name, &q.ops), name);
	check(q.ops->queue_open(0, EPF_COPY_ADDITIONS, &q.q), "a queue of additions");
	measure(how, &way, is_full);
}

static bool never(uint64_t addr)
{
	(void)addr;
	return false;
}

static int adder_add(void *arg, const struct epf_copy_add *adds, unsigned n, uint64_t value)
{
	return epf_adder_add(arg, adds, n, value);
}

static uint64_t adder_reached(void *arg)
{
	return epf_adder_reached(arg);
}

static void adder_close(void *arg)
{
	epf_adder_close(arg);
}

/* In a context of our own only, as it was before both were used. */
static void by_own_only(void)
{
	struct epf_adder_ops ops = epf_copy_driver_adder;
	struct epf_adder *a;
	struct way way = { NULL, adder_add, adder_reached, adder_close };

	ops.is_usual = never;
	check(epf_adder_open(&ops, 0, &a), "an adder");
	way.arg = a;
	measure("own context only", &way, false);
}

/* ---- stream memory operations, which are no kernels ---- */

enum { ATTR_ATOMIC_REDUCTION = 148, OP_ATOMIC_REDUCTION = 8, REDUCTION_ADD = 0, REDUCTION_U64 = 1 };

union operation {
	struct {
		int operation;
		unsigned flags;
		int reduction, type;
		uint64_t address, value, alias;
	} atomic;

	uint64_t pad[6];
};

static struct {
	struct epf_gpu_dev *dev;
	void *stream;
	int (*write)(void *stream, uint64_t addr, uint64_t value, unsigned flags);
	int (*batch)(void *stream, unsigned n, union operation *operations, unsigned flags);
	int (*attribute)(int *value, int attribute, int device);
} memops;

static int open_memops(void)
{
	void *lib = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);

	if (!lib)
		return -1;
	*(void **)&memops.write = dlsym(lib, "cuStreamWriteValue64_v2");
	*(void **)&memops.batch = dlsym(lib, "cuStreamBatchMemOp_v2");
	*(void **)&memops.attribute = dlsym(lib, "cuDeviceGetAttribute");
	if (!memops.write || !memops.batch || !memops.attribute)
		return -1;
	check(epf_copy_driver_get_own(0, &memops.dev), "a context of our own");
	check(memops.dev->ops->stream_create(memops.dev, &memops.stream), "a stream");
	return 0;
}

/* Returns the driver's result. */
static int one_memop(bool is_atomic)
{
	union operation op = { .atomic = { OP_ATOMIC_REDUCTION, 0, REDUCTION_ADD, REDUCTION_U64,
					   word(0), 1, 0 } };
	int rc;

	check(memops.dev->ops->enter(memops.dev), "a context");
	rc = is_atomic ? memops.batch(memops.stream, 1, &op, 0)
		       : memops.write(memops.stream, word(2), 1, 0);
	memops.dev->ops->leave(memops.dev);
	if (!rc)
		check(memops.dev->ops->stream_sync(memops.dev, memops.stream), "an operation");
	return rc;
}

static void nothing(void *arg)
{
	(void)arg;
}

static void by_memop(const char *how, bool is_atomic)
{
	uint64_t ns[ADDITIONS];
	int rc = 0;

	begin(false);
	for (unsigned i = 0; i < ADDITIONS && !rc; i++) {
		uint64_t t = epf_now_ns();

		rc = one_memop(is_atomic);
		ns[i] = epf_now_ns() - t;
	}
	end(is_atomic && !rc ? ADDITIONS : 0, nothing, NULL);
	if (rc)
		printf("additions %-44s the driver says %d\n", how, rc);
	else
		print(how, ns, 0);
}

static void by_memops(void)
{
	int has = 0, rc;

	if (open_memops()) {
		printf("additions: the driver has no stream memory operations\n");
		return;
	}
	by_memop("own context, stream write, no addition", false);
	rc = memops.attribute(&has, ATTR_ATOMIC_REDUCTION, 0);
	if (!rc && has)
		by_memop("own context, atomic stream operation", true);
	else
		printf("additions: the driver has no atomic stream operation (result %d, attribute %d)\n",
		       rc, has);
}

int main(int argc, char **argv)
{
	char own[16];

	if (argc != 2) {
		fprintf(stderr, "usage: additions fake|cuda\n");
		return 2;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	open_program(argv[1]);
	snprintf(own, sizeof(own), "%s/own", argv[1]);
	by_queue("usual context", argv[1], false);
	by_queue("usual context, own one if late", own, false);
	by_queue("the same, a kernel fills the GPU", own, true);
	if (program.gpu) {
		by_own_only();
		by_memops();
	}
	printf("additions: all sums are right\n");
	return 0;
}
