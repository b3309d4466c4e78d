/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of GPU memory and additions to it while another thread of the process loads a kernel behind one that runs: by the process's usual context, and by one of their own. Prints how many were made in a second; fails if none was in a context of its own.
 *
 *   late_load fake|cuda     77: no GPU
 */
#include "fabric/base/err.h"
#include "fabric/gpu/copy.h"
#include "fabric/gpu/gpu.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { PIECE = 65536, BYTES = 2 << 20, PINNED = 1 << 20, WORD = BYTES - 4096, SKIPPED = 77 };

#define LIMIT_NS UINT64_C(4000000000)

/* spin(flag, ns): sets flag[1], runs until flag[0] is not 0, or so long. late(): something else to load. */
static const char spin_ptx[] =
	".version 7.0\n.target sm_70\n.address_size 64\n"
	".visible .entry spin(.param .u64 p_flag, .param .u64 p_ns)\n{\n"
	"	.reg .pred %over, %again;\n	.reg .u64 %flag, %ns, %begin, %now, %v;\n"
	"	ld.param.u64 %flag, [p_flag];\n	ld.param.u64 %ns, [p_ns];\n"
	"	cvta.to.global.u64 %flag, %flag;\n	mov.u64 %begin, %globaltimer;\n"
	"	mov.u64 %v, 1;\n	st.volatile.global.u64 [%flag+8], %v;\n"
	"LOOP:\n	mov.u64 %now, %globaltimer;\n	sub.u64 %now, %now, %begin;\n"
	"	setp.gt.u64 %over, %now, %ns;\n	@%over ret;\n"
	"	ld.volatile.global.u64 %v, [%flag];\n	setp.eq.u64 %again, %v, 0;\n"
	"	@%again bra LOOP;\n	ret;\n}\n";
static const char late_ptx[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
			       ".visible .global .align 8 .b8 much[8388608];\n"
			       ".visible .entry late()\n{\n	.reg .u64 %at, %v;\n"
			       "	mov.u64 %at, much;\n	mov.u64 %v, 7;\n"
			       "	st.global.u64 [%at], %v;\n	ret;\n}\n";

/* The program: NULL gpu for the fake one, which needs no kernel to be held by. */
static struct {
	struct epf_gpu_dev *gpu;
	void *stream, *other, *spin;
	volatile uint64_t *flags; /* [0] ends the kernel, [1] it runs */
	uint64_t flags_dev;
	uint32_t has_loaded;
	pthread_t loader;
} program;

static void check(int rc, const char *what)
{
	if (!rc)
		return;
	fprintf(stderr, "late_load: %s: %s\n", what, epf_last_error());
	exit(1);
}

static void pause_ms(long ms)
{
	struct timespec t = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 };

	nanosleep(&t, NULL);
}

static void *pages(uint64_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	if (at == MAP_FAILED) {
		perror("late_load: mmap");
		exit(1);
	}
	return at;
}

static void open_program(const char *name)
{
	const struct epf_gpu_ops *ops;
	void *module;
	int n;

	if (strcmp(name, "fake") == 0)
		return;
	if (epf_gpu_backend(name, &ops) || ops->count(&n)) {
		printf("late_load: %s\n", epf_last_error());
		exit(SKIPPED);
	}
	check(ops->open(0, &program.gpu), "the device");
	check(ops->stream_create(program.gpu, &program.stream), "a stream");
	check(ops->stream_create(program.gpu, &program.other), "a stream");
	check(ops->module_load(program.gpu, spin_ptx, &module), "a module");
	check(ops->function(program.gpu, module, "spin", &program.spin), "its kernel");
	program.flags = pages(4096);
	check(ops->pin(program.gpu, (void *)(uintptr_t)program.flags, 4096, 0, &program.flags_dev),
	      "pinned memory");
}

static void *load(void *arg)
{
	const struct epf_gpu_ops *ops = program.gpu->ops;
	struct epf_gpu_launch how = { .grid = 1, .block = 1 };
	void *module, *late;

	(void)arg;
	check(ops->module_load(program.gpu, late_ptx, &module), "a late module");
	check(ops->function(program.gpu, module, "late", &late), "its kernel");
	check(ops->launch(program.gpu, program.other, late, &how), "its launch");
	__atomic_store_n(&program.has_loaded, 1, __ATOMIC_RELEASE);
	return NULL;
}

/* From here on a kernel runs, and a thread is in the call that loads another one. */
static void begin_load(void)
{
	uint64_t limit = LIMIT_NS;
	void *args[2] = { &program.flags_dev, &limit };
	struct epf_gpu_launch how = { .grid = 1, .block = 1, .args = args };

	if (!program.gpu) {
		epf_copy_fake_hold(5);
		return;
	}
	program.flags[0] = program.flags[1] = 0;
	program.has_loaded = 0;
	check(program.gpu->ops->launch(program.gpu, program.stream, program.spin, &how), "spin");
	for (int i = 0; i < 2000 && !program.flags[1]; i++)
		pause_ms(1);
	check(pthread_create(&program.loader, NULL, load, NULL), "a thread");
	pause_ms(200);
}

static void end_load(void)
{
	if (!program.gpu) {
		epf_copy_fake_hold(0);
		return;
	}
	program.flags[0] = 1;
	pthread_join(program.loader, NULL);
	check(program.gpu->ops->stream_sync(program.gpu, program.stream), "spin");
	check(program.gpu->ops->stream_sync(program.gpu, program.other), "late");
}

struct copier {
	const struct epf_copy_ops *ops;
	struct epf_copy_queue *q, *additions;
	uint8_t *gpu, *host;
	uint64_t value;
	uint32_t stop, copies, adds; /* the latter two: made so far */
};

static void wait_for(struct copier *c, struct epf_copy_queue *q)
{
	while (c->ops->reached(q) < c->value)
		sched_yield();
}

static void one_of_each(struct copier *c)
{
	struct epf_copy_span to = { (uint64_t)(uintptr_t)c->gpu, (uint64_t)(uintptr_t)c->host,
				    PIECE, 1 };
	struct epf_copy_add add = { (uint64_t)(uintptr_t)c->gpu + WORD, 1 };

	check(c->ops->submit(c->q, &to, 1, ++c->value), "a copy");
	wait_for(c, c->q);
	__atomic_fetch_add(&c->copies, 1, __ATOMIC_RELEASE);
	check(c->ops->add(c->additions, &add, 1, ++c->value), "an addition");
	wait_for(c, c->additions);
	__atomic_fetch_add(&c->adds, 1, __ATOMIC_RELEASE);
}

static void *copy(void *arg)
{
	struct copier *c = arg;

	while (!__atomic_load_n(&c->stop, __ATOMIC_ACQUIRE))
		one_of_each(c);
	return NULL;
}

/* Returns whether copies and additions went on. */
static bool goes_on(const char *gpu, const char *where)
{
	struct copier c = { .host = pages(PINNED) };
	uint32_t copies, adds;
	uint64_t sum = 0;
	pthread_t thread;
	char name[32];
	void *memory;

	snprintf(name, sizeof(name), "%s%s", gpu, where);
	check(epf_copy_ops_find(name, &c.ops), name);
	check(c.ops->load(), "the driver");
	check(c.ops->mem_alloc(0, BYTES, &memory), "GPU memory");
	c.gpu = memory;
	check(c.ops->host_register(c.host, PINNED), "pinned memory");
	check(c.ops->queue_open(0, EPF_COPY_ENGINES, &c.q), "a queue");
	check(c.ops->queue_open(0, EPF_COPY_ADDITIONS, &c.additions), "a queue of additions");
	one_of_each(&c);
	c.copies = c.adds = 0;
	begin_load();
	check(pthread_create(&thread, NULL, copy, &c), "a thread");
	pause_ms(program.gpu ? 1000 : 200);
	copies = __atomic_load_n(&c.copies, __ATOMIC_ACQUIRE);
	adds = __atomic_load_n(&c.adds, __ATOMIC_ACQUIRE);
	printf("late_load %s: %u copies, %u additions while %s\n", name, copies, adds,
	       !program.gpu || !__atomic_load_n(&program.has_loaded, __ATOMIC_ACQUIRE)
		       ? "a kernel is loaded"
		       : "a kernel runs; its driver loads another one at once");
	__atomic_store_n(&c.stop, 1, __ATOMIC_RELEASE);
	end_load();
	pthread_join(thread, NULL);
	check(c.ops->copy(&sum, c.gpu + WORD, sizeof(sum)), "the sum");
	if (sum != c.adds + 1) {
		fprintf(stderr, "late_load: %llu after %u additions\n", (unsigned long long)sum,
			c.adds + 1);
		exit(1);
	}
	c.ops->queue_close(c.q);
	c.ops->queue_close(c.additions);
	c.ops->host_unregister(c.host);
	c.ops->mem_free(memory);
	return copies && adds;
}

int main(int argc, char **argv)
{
	if (argc != 2) {
		fprintf(stderr, "usage: late_load fake|cuda\n");
		return 2;
	}
	open_program(argv[1]);
	(void)goes_on(argv[1], "");
	return !goes_on(argv[1], "/own");
}
