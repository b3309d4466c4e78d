/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-bench copies: how long the software NIC's own copies take for a list as a call of an application makes it, without rings, engine and NIC:
 * the floor of what goes through them. Each GPU fetches its list from the next one, in a separate process, all at the same time.
 */
#include "bench/common/bench.h"
#include "bench/common/json.h"
#include "bench/p2p/gpu_ceiling.h"
#include "fabric/base/err.h"
#include "fabric/gpu/gpu.h"

#include <argp.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { O_ADDS = 256, O_LISTS, O_COPY, O_BACKEND, O_GPUS, O_JSON, GPUS_MAX = 16, NO_GPU = 77 };

struct opts {
	uint64_t bytes, copies, adds, lists, gpus;
	int kernel;
	const char *backend;
	bool json;
};

static const struct argp_option options[] = {
	{ "size", 's', "BYTES", 0, "bytes of a copy (7168)", 0 },
	{ "copies", 'n', "N", 0, "copies of a list (512)", 0 },
	{ "adds", O_ADDS, "N", 0, "additions behind them (0)", 0 },
	{ "lists", O_LISTS, "N", 0, "lists, one after the other; medians count (1000)", 0 },
	{ "gpus", O_GPUS, "N", 0, "GPUs that copy from each other in a circle (all, 2 on one)", 0 },
	{ "gpu-copy", O_COPY, "engine|kernel", 0, "who copies (engine)", 0 },
	{ "gpu-backend", O_BACKEND, "NAME", 0, "auto, cuda, hip, fake (auto)", 0 },
	{ "json", O_JSON, NULL, 0, "print one JSON object, see bench/README.md", 0 },
	{ 0 },
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
	static const char *const copy[] = { "engine", "kernel", NULL };
	static const char *const backend[] = { "auto", "cuda", "hip", "fake", NULL };
	struct opts *o = state->input;
	int rc = 0;

	switch (key) {
	case 's':
		rc = bench_uint("--size", arg, 1, GPU_CEILING_MAX, &o->bytes);
		break;
	case 'n':
		rc = bench_uint("--copies", arg, 0, 1 << 20, &o->copies);
		break;
	case O_ADDS:
		rc = bench_uint("--adds", arg, 0, 1 << 20, &o->adds);
		break;
	case O_LISTS:
		rc = bench_uint("--lists", arg, 1000, 1 << 20, &o->lists);
		break;
	case O_GPUS:
		rc = bench_uint("--gpus", arg, 1, GPUS_MAX, &o->gpus);
		break;
	case O_COPY:
		o->kernel = bench_word("--gpu-copy", arg, copy);
		rc = o->kernel < 0 ? o->kernel : 0;
		break;
	case O_BACKEND:
		rc = bench_word("--gpu-backend", arg, backend);
		o->backend = arg;
		break;
	case O_JSON:
		o->json = true;
		break;
	default:
		return ARGP_ERR_UNKNOWN;
	}
	if (rc < 0)
		exit(BENCH_USAGE);
	return 0;
}

/* Pipes of a child: it reports ready, waits for the start signal, and reports its times. */
struct child {
	pid_t pid;
	int up[2], down[2];
};

static void meet(void *arg)
{
	const struct child *c = arg;
	char go = 1;

	if (write(c->up[1], &go, 1) != 1 || read(c->down[0], &go, 1) != 1)
		_exit(BENCH_WRONG);
}

/* A GPU's process. Returns its exit code. */
static int copy_lists(const struct opts *o, struct child *c, unsigned number, int devices)
{
	struct gpu_lists what = { .gpu = o->backend,
				  .kernel = o->kernel,
				  .from = (int)((number + 1) % o->gpus) % devices,
				  .to = (int)number % devices,
				  .bytes = (uint32_t)o->bytes,
				  .copies = (uint32_t)o->copies,
				  .adds = (uint32_t)o->adds,
				  .lists = (uint32_t)o->lists,
				  .ready = meet,
				  .arg = c };
	double *us = calloc(o->lists, sizeof(*us));
	double out[2];

	if (!us)
		return BENCH_WRONG;
	if (gpu_lists(&what, us)) {
		bench_complain("%s", epf_last_error());
		free(us);
		return BENCH_WRONG;
	}
	out[0] = bench_median(us, (unsigned)o->lists); /* sorts */
	out[1] = bench_percentile(us, o->lists, 990);
	free(us);
	return write(c->up[1], out, sizeof(out)) == sizeof(out) ? BENCH_OK : BENCH_WRONG;
}

/* How many devices there are, by a process that may load a driver; -1: none, and it has said why. */
static int count_devices(const struct opts *o)
{
	const struct epf_gpu_ops *ops;
	int status, n = 0;
	pid_t pid;

	if (o->backend && !strcmp(o->backend, "fake"))
		return 1;
	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		if (epf_gpu_backend(o->backend, &ops) || ops->count(&n) || n == 0) {
			printf("# skipped: %s\n", epf_last_error());
			fflush(stdout);
		}
		_exit(n);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status) ||
	    !WEXITSTATUS(status))
		return -1;
	return WEXITSTATUS(status);
}

static int start(const struct opts *o, struct child *c, unsigned number, int devices)
{
	if (pipe(c->up) || pipe(c->down))
		return -errno;
	fflush(NULL);
	c->pid = fork();
	if (c->pid == 0)
		_exit(copy_lists(o, c, number, devices));
	close(c->up[1]);
	close(c->down[0]);
	return c->pid < 0 ? -errno : 0;
}

static void print(const struct opts *o, double median, double p99, int devices)
{
	json_t *j;

	if (!o->json) {
		printf("# %llu GPUs (%d there), a list of %llu copies of %llu bytes by %s and %llu additions: slowest GPU\n"
		       "%.1f us, p99 %.1f\n",
		       (unsigned long long)o->gpus, devices, (unsigned long long)o->copies,
		       (unsigned long long)o->bytes, o->kernel ? "a kernel" : "copy engines",
		       (unsigned long long)o->adds, median, p99);
		return;
	}
	j = json_pack("{s:s, s:I, s:I, s:I, s:I, s:s, s:f, s:f}", "bench", "copies", "gpus",
		      (json_int_t)o->gpus, "bytes", (json_int_t)o->bytes, "copies",
		      (json_int_t)o->copies, "adds", (json_int_t)o->adds, "gpu_copy",
		      o->kernel ? "kernel" : "engine", "list_us", median, "list_p99_us", p99);
	bench_print_json(j);
}

int bench_copies(int argc, char **argv)
{
	static const struct argp argp = {
		options,
		parse,
		NULL,
		"How long the software NIC's own copies take for a list, without rings, engine and NIC.",
		NULL,
		NULL,
		NULL
	};
	struct opts o = { .bytes = 7168, .copies = 512, .lists = 1000, .backend = "auto" };
	struct child c[GPUS_MAX] = { 0 };
	double most[2] = { 0 };
	unsigned started = 0;
	int devices, rc = BENCH_OK, status;
	char go;

	argp_parse(&argp, argc, argv, 0, NULL, &o);
	devices = count_devices(&o);
	if (devices < 0)
		return NO_GPU;
	if (!o.gpus)
		o.gpus = devices > 1 ? (uint64_t)devices : 2;
	if (o.gpus > GPUS_MAX)
		o.gpus = GPUS_MAX;
	for (; started < o.gpus && start(&o, &c[started], started, devices) == 0; started++)
		;
	for (unsigned i = 0; i < started; i++)
		rc = read(c[i].up[0], &go, 1) == 1 ? rc : BENCH_WRONG;
	for (unsigned i = 0; i < started; i++)
		if (started < o.gpus || rc || write(c[i].down[1], &go, 1) != 1)
			kill(c[i].pid, SIGKILL);
	for (unsigned i = 0; i < started; i++) {
		double got[2] = { 0 };

		if (read(c[i].up[0], got, sizeof(got)) != sizeof(got))
			rc = BENCH_WRONG;
		most[0] = got[0] > most[0] ? got[0] : most[0];
		most[1] = got[1] > most[1] ? got[1] : most[1];
		if (waitpid(c[i].pid, &status, 0) != c[i].pid || status)
			rc = BENCH_WRONG;
	}
	if (rc || started < o.gpus) {
		bench_complain("a process that copies has failed");
		return BENCH_WRONG;
	}
	print(&o, most[0], most[1], devices);
	return BENCH_OK;
}
