/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-bench p2p --gpu: the transfers are between GPU memories, and kernels ask for them (kernels/bench/p2p.cuh). A rank's part, called by
 * rank.c: rank R has GPU R modulo their number. And what the parent needs, called by main.c: whether there is a GPU, and what bare
 * copies reach; both in separate processes, because ranks must not be forked from one that has met a driver.
 */
#include "bench/p2p/p2p.h"

#include "bench/common/bench.h"
#include "bench/p2p/gpu_ceiling.h"
#include "bench/ring/gpu.h"
#include "bench/ring/gpu_cmd.h"
#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/client/epf.h"
#include "fabric/gpu/copy.h"
#include "fabric/gpu/gpu.h"
#include "kernels/bench/p2p.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
	TRIPS_MAX = 100000,
	TRIPS = 5000,
	WARM_TRIPS = 200,
	FAKE_TRIPS = 20,
	NARROW_MAX = 1 << 20, /* longer or odd transfers are pushed by one lane of a warp */
	STREAM_MAX = 1000000, /* transfers of a size where nothing is asked for, and bytes: */
	FAKE_DIVISOR = 1000,
};

#define STREAM_BYTES (UINT64_C(8) << 30)
/* Sources, and as many bytes of targets behind them: more places than are under way, however far warps drift apart. */
#define SIDE_BYTES (UINT64_C(256) << 20)
#define FAKE_BYTES (UINT64_C(2) * P2P_SIZE_MAX)

struct p2p_gpu {
	struct epf_gpu_dev *dev;
	struct epf_gpu_props props;
	struct epf_gpu *gpu;
	void *module, *stream, *event;
	struct epf_gpu_mem words; /* struct p2p_bench_result, then samples */
	uint8_t *memory;          /* of the region */
	uint8_t *plain;           /* side bytes of ordinary memory */
	uint64_t side;            /* bytes of sources, and of targets */
	int device;
};

enum { SAMPLES_AT = 256, WORD_BYTES = 4096 }; /* WORD_BYTES: behind the targets */

static bool is_fake(const struct p2p_opts *o)
{
	return strcmp(o->gpu_backend, "fake") == 0;
}

/*
 * The rank's threads but the engine's keep off the engine's CPU (opts.c) and the one beside it, which may be the same core; and
 * off those of the other rank.
 */
static void keep_off(uint32_t rank)
{
	uint32_t half = bench_cpus() / 2;
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	if (bench_cpus() < P2P_GPU_CPUS)
		return;
	for (uint32_t i = rank * half + 2; i < rank * half + half; i++)
		CPU_SET((size_t)bench_cpu_number(i), &cpus);
	(void)sched_setaffinity(0, sizeof(cpus), &cpus);
}

/* There and back between two kernels. */
static bool is_pong(const struct p2p_opts *o)
{
	return o->op == P2P_PUT_SIGNAL || o->op == P2P_PUT_ADD;
}

int p2p_gpu_memory(struct p2p_rank *r)
{
	const uint64_t side = is_fake(r->o) && !r->o->pretend ? FAKE_BYTES : SIDE_BYTES;
	struct p2p_gpu *g = calloc(1, sizeof(*g));
	const struct epf_gpu_ops *ops;
	void *memory;
	int n = 1, err;

	r->gpu = g;
	if (r->rank < 2)
		keep_off(r->rank);
	if (r->o->pretend)
		epf_copy_fake_pretend((uint32_t)r->o->copy_ns, (uint32_t)r->o->submit_ns);
	if (g) {
		g->side = side;
		g->plain = malloc(side);
	}
	if (!g || !g->plain)
		return epf_fail(EPF_R_NO_MEMORY, "p2p --gpu: no memory");
	err = epf_gpu_backend(r->o->gpu_backend, &ops);
	if (!err)
		err = ops->count(&n);
	if (err)
		return err;
	g->device = (int)(r->rank % (uint32_t)n);
	err = ops->open(g->device, &g->dev);
	if (!err)
		err = ops->describe(g->dev, &g->props);
	if (!err)
		err = epf_gpu_alloc(r->ep, g->device, 2 * side + WORD_BYTES, &memory);
	if (!err)
		err = epf_region_register_gpu(r->ep, memory, 2 * side + WORD_BYTES,
					      EPF_REMOTE_WRITE | EPF_REMOTE_READ, &r->region);
	if (!err)
		g->memory = memory;
	if (!err && r->o->gpu_signals)
		err = epf_signals_place(r->ep, EPF_SIGNALS_GPU, g->device);
	return err;
}

int p2p_gpu_open(struct p2p_rank *r)
{
	const void *image = is_fake(r->o) ? (const void *)ring_gpu_fake_kernels : ring_gpu_image;
	struct p2p_gpu *g = r->gpu;
	const struct epf_gpu_ops *ops = g->dev->ops;
	struct epf_gpu_options opts;
	int err;

	epf_gpu_options_init(&opts);
	opts.backend = r->o->gpu_backend;
	opts.device = g->device;
	err = ops->module_load(g->dev, image, &g->module);
	if (!err)
		err = ops->stream_create(g->dev, &g->stream);
	if (!err)
		err = ops->event_create(g->dev, &g->event);
	if (!err)
		err = ops->mem_alloc(g->dev, SAMPLES_AT + TRIPS_MAX * sizeof(uint64_t), 0,
				     &g->words);
	if (!err)
		err = epf_gpu_open(r->ep, &opts, &g->gpu);
	return err;
}

void p2p_gpu_close(struct p2p_rank *r)
{
	struct p2p_gpu *g = r->gpu;

	if (!g)
		return;
	epf_gpu_close(g->gpu);
	if (g->words.addr)
		g->dev->ops->mem_free(g->dev, &g->words);
	if (g->event)
		g->dev->ops->event_destroy(g->dev, g->event);
	if (g->stream)
		g->dev->ops->stream_destroy(g->dev, g->stream);
	if (g->module)
		g->dev->ops->module_unload(g->dev, g->module);
	if (g->dev)
		g->dev->ops->close(g->dev);
	free(g->plain);
	free(g);
	r->gpu = NULL;
}

/* Waits for what is in the stream, off the CPU: spinning would disturb the engine. Late by some tens of microseconds. */
static int await(struct p2p_gpu *g)
{
	const struct epf_gpu_ops *ops = g->dev->ops;
	const struct timespec nap = { 0, 20000 };
	int err = ops->event_record(g->dev, g->stream, g->event), done = 0;

	while (!err && !done) {
		nanosleep(&nap, NULL);
		done = ops->event_query(g->dev, g->event);
		err = done < 0 ? done : 0;
	}
	return err ? err : ops->stream_sync(g->dev, g->stream);
}

/* Launches a kernel and waits for it; what a call in it reported is an error of this process. */
static int run(struct p2p_gpu *g, const char *name, struct p2p_bench_args *a, uint32_t grid,
	       struct p2p_bench_result *out)
{
	const struct epf_gpu_ops *ops = g->dev->ops;
	void *argv[] = { a };
	struct epf_gpu_launch l = { .grid = grid, .block = g->props.warp, .args = argv };
	void *function;
	int err = ops->function(g->dev, g->module, name, &function), failed;

	a->ctx = (uint64_t)(uintptr_t)epf_gpu_context(g->gpu);
	a->result = g->words.addr;
	a->samples = g->words.addr + SAMPLES_AT;
	if (!err)
		err = ops->fill(g->dev, g->words.addr, 0, SAMPLES_AT);
	if (!err)
		err = ops->launch(g->dev, g->stream, function, &l);
	if (!err)
		err = await(g);
	if (!err)
		err = ops->copy(g->dev, (uint64_t)(uintptr_t)out, g->words.addr, sizeof(*out));
	failed = epf_gpu_check(g->gpu);
	if (!err && out->rc && !failed)
		return epf_fail(EPF_R_GPU_CALL, "p2p --gpu: a call in a kernel ended with %lld",
				(long long)out->rc);
	return err ? err : failed;
}

static struct p2p_bench_args arguments(const struct p2p_rank *r, uint64_t bytes, uint64_t count)
{
	uint64_t stride = (bytes + 15) & ~15ull;
	bool narrow = bytes % 16 == 0 && bytes <= NARROW_MAX;

	return (struct p2p_bench_args){ .to = r->gpu->side,
					.bytes = bytes,
					.stride = stride,
					.places = r->gpu->side / stride,
					.count = count,
					.seen = r->signals,
					.word = (uint64_t)(uintptr_t)r->gpu->memory +
						2 * r->gpu->side,
					.word_at = 2 * r->gpu->side,
					.peer = r->peer,
					.region = r->region,
					.op = (uint32_t)r->o->op,
					.lanes = narrow ? r->gpu->props.warp : 1,
					.warps = (uint32_t)r->o->warps,
					.first = r->rank == 0 };
}

/* Trips of both ranks; rank 0's samples are in r->sample, in us. */
static int trips(struct p2p_rank *r, uint64_t bytes, uint64_t n, struct p2p_row *row)
{
	struct p2p_gpu *g = r->gpu;
	struct p2p_bench_args a = arguments(r, bytes, n);
	struct p2p_bench_result res = { 0 };
	uint64_t *cycles;
	double us;
	int err = run(g, "p2p_bench_trips_kernel", &a, 1, &res);

	if (is_pong(r->o))
		r->signals += n;
	if (err || r->rank != 0 || !row)
		return err;
	cycles = calloc(n, sizeof(*cycles));
	if (!cycles)
		return epf_fail(EPF_R_NO_MEMORY, "p2p --gpu: samples");
	err = g->dev->ops->copy(g->dev, (uint64_t)(uintptr_t)cycles, a.samples,
				n * sizeof(*cycles));
	us = res.cycles ? (double)res.ns / (double)res.cycles / 1e3 : 0;
	for (uint64_t i = 0; i < n; i++)
		r->sample[i] = (double)cycles[i] * us / (is_pong(r->o) ? 2 : 1);
	free(cycles);
	row->bytes = bytes;
	row->iterations = n;
	p2p_statistics(r->sample, n, row);
	return err;
}

static int latency(struct p2p_rank *r, uint64_t bytes, struct p2p_row *row)
{
	uint64_t trips_default = is_fake(r->o) ? FAKE_TRIPS : TRIPS;
	uint64_t n = r->o->iterations ? r->o->iterations : trips_default;
	uint64_t warm = WARM_TRIPS;
	int err;

	if (r->rank == 1 && !is_pong(r->o))
		return 0;
	/* A trip of "kernels" that share CPUs takes 40 ms. */
	if (is_fake(r->o))
		warm = n < FAKE_TRIPS ? n : FAKE_TRIPS;
	err = trips(r, bytes, warm, NULL);
	return err ? err : trips(r, bytes, n < TRIPS_MAX ? n : TRIPS_MAX, row);
}

static uint64_t stream_count(const struct p2p_opts *o, uint64_t bytes)
{
	uint64_t n = STREAM_BYTES / bytes < STREAM_MAX ? STREAM_BYTES / bytes : STREAM_MAX;

	if (o->iterations)
		return o->iterations;
	return is_fake(o) && !o->pretend ? n / FAKE_DIVISOR + 1 : n;
}

const char *const p2p_stage_name[P2P_STAGES] = { "take",     "check",  "stage", "post",
						 "complete", "arrive", "busy" };

static uint64_t counter(const struct p2p_rank *r, const char *name)
{
	uint64_t v = 0;

	return epf_counter(r->ep, name, &v) ? 0 : v;
}

/* Adds (sign -1: takes off) the engine's counters as they are now, in ns and in times. */
static void stages(const struct p2p_rank *r, struct p2p_row *row, double sign)
{
	static const char *const name[P2P_STAGES] = { "dequeue_tsc", "check_tsc", "stage_tsc",
						      "flush_tsc",   "reap_tsc",  "arrive_tsc",
						      "busy_tsc" };

	for (unsigned i = 0; i < P2P_STAGES; i++)
		row->stage_ns[i] += sign * (double)epf_tsc_to_ns(counter(r, name[i]));
	row->stalls +=
		sign * (double)(counter(r, "queue_full_stalls") + counter(r, "credit_stalls"));
}

static int stream(struct p2p_rank *r, uint64_t bytes, uint64_t n, struct p2p_row *row)
{
	struct p2p_bench_args a = arguments(r, bytes, n);
	struct p2p_bench_result res = { 0 };
	uint64_t start = epf_now_ns();
	int err = run(r->gpu, "p2p_bench_stream_kernel", &a, (uint32_t)r->o->warps, &res);

	if (err || !row)
		return err;
	row->bytes = bytes;
	row->iterations = n;
	row->rate_mpps = (double)n / ((double)(epf_now_ns() - start) / 1e3);
	row->average_mb_s = row->rate_mpps * 1e6 * (double)bytes / 1048576.0;
	row->peak_mb_s = NAN; /* one kernel, one rate */
	return 0;
}

/* The first tenth is a separate kernel: it maps memory, and fills what was cold. */
static int bandwidth(struct p2p_rank *r, uint64_t bytes, struct p2p_row *row)
{
	uint64_t n = stream_count(r->o, bytes), warm = n / 10 + 1;
	bool sends = r->rank == 0 || r->o->both, takes = r->rank == 1 || r->o->both;
	int err = sends ? stream(r, bytes, warm, NULL) : 0;

	if (!err)
		err = bench_check(epf_barrier(r->ep));
	stages(r, row, -1);
	p2p_stages_add(&row->stages, -1);
	if (!err && sends)
		err = stream(r, bytes, n, row);
	if (!err)
		err = bench_check(epf_barrier(r->ep));
	stages(r, row, 1);
	p2p_stages_add(&row->stages, 1);
	for (unsigned i = 0; i < P2P_STAGES; i++)
		row->stage_ns[i] /= (double)n;
	row->stalls /= (double)n;
	row->bytes = bytes;
	if (takes && r->o->op == P2P_PUT_SIGNAL)
		r->signals += n + warm;
	return err;
}

static uint8_t byte_of(uint64_t i, uint8_t salt)
{
	return (uint8_t)(i * 31 + (i >> 8) * 7 + (i >> 16) + salt);
}

static int fill(struct p2p_rank *r, uint64_t used, uint8_t salt)
{
	struct p2p_gpu *g = r->gpu;
	int err;

	for (uint64_t i = 0; i < used; i++)
		g->plain[i] = byte_of(i, salt);
	err = epf_gpu_copy(r->ep, g->memory, g->plain, used);
	for (uint64_t i = 0; i < used; i++)
		g->plain[i] = (uint8_t)~byte_of(i, salt);
	return err ? err : epf_gpu_copy(r->ep, g->memory + g->side, g->plain, used);
}

/* All places that were written, every byte; and the signals, each once. */
static int check(struct p2p_rank *r, const struct p2p_bench_args *a, uint64_t written, uint8_t salt)
{
	bool pong = r->o->test == P2P_LAT && is_pong(r->o);
	bool i_am_target = r->o->op == P2P_GET ? r->rank == 0 : r->rank == 1;
	uint64_t n = written < a->places ? written : a->places;
	uint64_t word = 0;
	int err;

	if (r->o->pretend)
		return 0;
	if (!i_am_target && !pong && !(r->o->both && r->o->test == P2P_BW))
		return 0;
	err = epf_gpu_copy(r->ep, r->gpu->plain, r->gpu->memory + r->gpu->side, n * a->stride);
	for (uint64_t p = 0; p < n && !err; p++)
		for (uint64_t i = p * a->stride; i < p * a->stride + a->bytes; i++)
			r->wrong += r->gpu->plain[i] != byte_of(i, salt);
	if (r->o->op == P2P_PUT_SIGNAL && epf_signal_value(r->ep, 0) != r->signals)
		r->wrong++;
	if (r->o->op == P2P_PUT_ADD && !err) {
		err = epf_gpu_copy(r->ep, &word, r->gpu->memory + 2 * r->gpu->side, sizeof(word));
		r->wrong += word != r->signals;
	}
	return err;
}

int p2p_gpu_size(struct p2p_rank *r, uint64_t bytes, unsigned number)
{
	bool lat = r->o->test == P2P_LAT;
	uint64_t written = lat ? 1 : stream_count(r->o, bytes);
	struct p2p_bench_args a = arguments(r, bytes, 0);
	struct p2p_row row = { 0 };
	uint8_t salt = (uint8_t)(number * 77 + 5);
	int err = bench_check(fill(r, (written < a.places ? written : a.places) * a.stride, salt));

	if (!err)
		err = bench_check(epf_barrier(r->ep));
	if (!err)
		err = bench_check(lat ? latency(r, bytes, &row) : bandwidth(r, bytes, &row));
	if (!err)
		err = bench_check(epf_barrier(r->ep));
	if (!err)
		err = bench_check(check(r, &a, written, salt));
	if (!err && (r->rank == 0 || !lat))
		r->row(r->row_arg, &row, sizeof(row));
	return err;
}

/* Runs fn in a separate process; what it writes to the pipe is *out. Returns its exit code. */
static int in_child(int (*fn)(const struct p2p_opts *o, uint64_t arg, int fd),
		    const struct p2p_opts *o, uint64_t arg, void *out, size_t bytes)
{
	int fd[2], status = 1;
	pid_t pid;

	if (pipe(fd))
		return BENCH_WRONG;
	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		close(fd[0]);
		_exit(fn(o, arg, fd[1]));
	}
	close(fd[1]);
	if (pid < 0 || read(fd[0], out, bytes) < 0)
		bytes = 0;
	close(fd[0]);
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		return BENCH_WRONG;
	return WIFEXITED(status) ? WEXITSTATUS(status) : BENCH_WRONG;
}

static int probe(const struct p2p_opts *o, uint64_t unused, int fd)
{
	const struct epf_gpu_ops *ops;
	struct epf_gpu_props props = { 0 };
	struct epf_gpu_dev *dev;
	int n = 0, err = epf_gpu_backend(o->gpu_backend, &ops);

	(void)unused;
	if (!err)
		err = ops->count(&n);
	if (!err)
		err = ops->open(0, &dev);
	if (!err)
		err = ops->describe(dev, &props);
	if (!err && !is_fake(o) && !ring_gpu_image)
		err = epf_fail(EPF_R_GPU_UNSUPPORTED,
			       "this ep-bench was built without nvcc: it has no kernels");
	if (err) {
		printf("# skipped: %s\n", epf_last_error());
		fflush(stdout);
		return BENCH_NO_GPU;
	}
	snprintf(props.name + strlen(props.name), sizeof(props.name) - strlen(props.name), " x %d",
		 n);
	return write(fd, props.name, sizeof(props.name)) == sizeof(props.name) ? 0 : BENCH_WRONG;
}

int p2p_gpu_probe(const struct p2p_opts *o, char name[P2P_GPU_NAME])
{
	return in_child(probe, o, 0, name, P2P_GPU_NAME);
}

static int ceiling(const struct p2p_opts *o, uint64_t bytes, int fd)
{
	const struct epf_gpu_ops *ops;
	struct gpu_ceiling c;
	int n = 1, err = epf_gpu_backend(o->gpu_backend, &ops);

	if (o->pretend)
		epf_copy_fake_pretend((uint32_t)o->copy_ns, (uint32_t)o->submit_ns);
	if (!err)
		err = ops->count(&n);
	if (!err)
		err = gpu_ceiling(o->gpu_backend, o->gpu_kernel, 0, n > 1, (uint32_t)bytes, &c);
	if (bench_check(err))
		return BENCH_WRONG;
	return write(fd, &c, sizeof(c)) == sizeof(c) ? 0 : BENCH_WRONG;
}

double p2p_gpu_ceiling(const struct p2p_opts *o, uint64_t bytes)
{
	struct gpu_ceiling c = { 0 };

	if (bytes > GPU_CEILING_MAX || in_child(ceiling, o, bytes, &c, sizeof(c)))
		return 0;
	return c.per_second;
}
