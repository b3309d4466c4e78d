/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks and daemons killed while kernels push transfers of GPU memory over the software NIC. A surviving kernel ends with a status by its
 * deadline; waiting for the device returns; every survivor gets an error that names the lost rank; the next job is served. A daemon stays awake for
 * kernels, with the default core-idle, until their rank is killed.
 *
 *   test_gpu_kill [--gpu fake|cuda] [--devices M] [--copy engine|kernel]
 *
 * Rank 0 pushes, rank 1 waits for a signal that never comes. Without arguments: the fake GPU. With --gpu cuda and no GPU, or in a build
 * without kernels: exit status 77 with the reason.
 */
#include "bench/ring/gpu.h"
#include "fabric/base/clock.h"
#include "fabric/gpu/gpu.h"
#include "kernels/bench/p2p.h"
#include "tests/proc/svc_job.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#define SECOND UINT64_C(1000000000)

enum {
	GPU = 2, /* region; 0 and 1 are svc_job.h's */
	REGION_BYTES = 32 << 20,
	BYTES = 7168,
	WARPS = 8,
	DEADLINE_S = 8, /* of every wait in a kernel */
	/* Of those that must pass: a "kernel" of the fake GPU occupies all CPUs for so long, which is 200 times what it takes. */
	FAKE_DEADLINE_MS = 2000,
	TOLD_S = 30, /* every survivor has its error by then, on any machine */
	ALARM_S = 170,
};

enum { W_KILLED_NS = 1 }; /* of the page */

static char stats_dir[] = "/tmp/epf-test-gpu-XXXXXX";

static struct {
	const char *gpu, *copy;
	uint32_t devices;
	struct daemons daemons;
} cfg = { .gpu = "fake", .copy = "engine", .devices = 1 };

enum victim { NOBODY, RANK_0, RANK_1, DAEMON_0, DAEMON_1 };

struct scene {
	const char *what;
	enum victim victim;
	bool service;
	bool awake;              /* body_awake(), both ranks with one daemon */
	const char *notified[2]; /* part of the error text at each rank; NULL: the rank is killed */
};

static bool is_fake(void)
{
	return strcmp(cfg.gpu, "fake") == 0;
}

/* Launches kernels for a rank. */
struct pusher {
	struct job_rank *r;
	struct epf_gpu_dev *dev;
	struct epf_gpu_props props;
	struct epf_gpu *gpu;
	struct epf_gpu_mem words;
	void *function, *stream;
};

static uint64_t deadline_ns(const struct scene *scene)
{
	if (is_fake() && scene->victim == DAEMON_0)
		return (uint64_t)job_ms(FAKE_DEADLINE_MS) * 1000000;
	return DEADLINE_S * SECOND;
}

static void pusher_open(struct pusher *p)
{
	const void *image = is_fake() ? (const void *)ring_gpu_fake_kernels : ring_gpu_image;
	struct job_rank *r = p->r;
	const struct epf_gpu_ops *ops;
	struct epf_gpu_options o;
	void *module;

	epf_gpu_options_init(&o);
	o.device = (int)(r->me % cfg.devices);
	o.timeout_ns = deadline_ns(r->plan->arg);
	JOB_CHECK(r, epf_gpu_backend(cfg.gpu, &ops) == 0);
	JOB_CHECK(r, ops->open(o.device, &p->dev) == 0);
	JOB_CHECK(r, ops->describe(p->dev, &p->props) == 0);
	JOB_CHECK(r, ops->module_load(p->dev, image, &module) == 0);
	JOB_CHECK(r, ops->function(p->dev, module, "p2p_bench_stream_kernel", &p->function) == 0);
	JOB_CHECK(r, ops->stream_create(p->dev, &p->stream) == 0);
	JOB_CHECK(r, ops->mem_alloc(p->dev, 4096, 0, &p->words) == 0);
	JOB_CHECK(r, epf_gpu_open(r->ep, &o, &p->gpu) == 0);
}

/* Runs one kernel with its puts and flushes. Returns 0, or its error. */
static int pusher_run(struct pusher *p)
{
	struct p2p_bench_args a = { .ctx = (uint64_t)(uintptr_t)epf_gpu_context(p->gpu),
				    .result = p->words.addr,
				    .to = REGION_BYTES / 2,
				    .bytes = BYTES,
				    .stride = BYTES,
				    .places = REGION_BYTES / 2 / BYTES,
				    .count = is_fake() ? 64 : 100000,
				    .peer = 1,
				    .region = GPU,
				    .op = P2P_BENCH_PUT,
				    .lanes = p->props.warp,
				    .warps = WARPS };
	void *argv[] = { &a };
	struct epf_gpu_launch l = { .grid = WARPS, .block = p->props.warp, .args = argv };

	JOB_CHECK(p->r, p->dev->ops->launch(p->dev, p->stream, p->function, &l) == 0);
	JOB_CHECK(p->r, p->dev->ops->stream_sync(p->dev, p->stream) == 0);
	return epf_gpu_check(p->gpu);
}

static double since_kill(const struct job_rank *r)
{
	uint64_t killed = job_get(&r->page->words[W_KILLED_NS]);

	return killed ? (double)(epf_now_ns() - killed) / 1e9 : -1;
}

static void body(struct job_rank *r)
{
	const struct scene *scene = r->plan->arg;
	struct pusher p = { .r = r };
	uint32_t region;
	void *memory;
	int rc = 0;

	job_rank_enter(r);
	JOB_CHECK(r, epf_gpu_alloc(r->ep, (int)(r->me % cfg.devices), REGION_BYTES, &memory) == 0);
	JOB_CHECK(r, epf_region_register_gpu(r->ep, memory, REGION_BYTES,
					     EPF_REMOTE_WRITE | EPF_REMOTE_READ, &region) == 0 &&
			     region == GPU);
	JOB_CHECK(r, epf_exchange(r->ep) == 0);
	if (r->me == 0)
		pusher_open(&p);
	JOB_CHECK(r, epf_barrier(r->ep) == 0);
	for (uint32_t i = 0; r->me == 0 && !rc && (scene->victim != NOBODY || i < 3); i++) {
		rc = pusher_run(&p);
		job_set(&r->report->rounds, i + 1);
	}
	if (scene->victim == NOBODY) {
		JOB_CHECK(r, rc == 0);
		JOB_CHECK(r, epf_barrier(r->ep) == 0);
		job_rank_leave(r);
		return;
	}
	if (r->me == 1)
		rc = epf_signal_wait(r->ep, 0, 1, 2 * SECOND * (job_ms(TOLD_S * 1000) / 1000));
	printf("gpu_kill %s %s: rank %u after %.3f s: %s\n", cfg.gpu, scene->what, r->me,
	       since_kill(r), epf_last_error());
	fflush(stdout);
	JOB_CHECK(r, rc < 0 && rc != -ENOENT);
	JOB_CHECK(r, since_kill(r) >= 0 && since_kill(r) < job_ms(TOLD_S * 1000) / 1000.0);
	JOB_CHECK(r, strstr(epf_last_error(), scene->notified[r->me]));
	job_rank_leave(r);
}

static uint64_t sleeps(struct job_rank *r)
{
	uint64_t n = 0;

	JOB_CHECK(r, epf_counter(r->ep, "sleeps", &n) == 0);
	return n;
}

static void check_awake(struct job_rank *r)
{
	uint64_t before = sleeps(r);

	usleep(50000); /* more than the longest sleep */
	JOB_CHECK(r, sleeps(r) == before);
}

static void check_falls_asleep(struct job_rank *r)
{
	uint64_t before = sleeps(r), deadline = epf_now_ns() + job_wait_ns();

	while (sleeps(r) == before) {
		JOB_CHECK(r, epf_now_ns() < deadline);
		usleep(1000);
	}
}

/* Rank 0 has a GPU context, and is killed with it. */
static void body_awake(struct job_rank *r)
{
	struct epf_gpu_options o;
	struct epf_gpu *gpu;

	epf_gpu_options_init(&o);
	job_rank_enter(r);
	if (r->me == 0) {
		check_falls_asleep(r);
		JOB_CHECK(r, epf_gpu_open(r->ep, &o, &gpu) == 0);
		check_awake(r);
		JOB_CHECK(r, epf_gpu_pushes(gpu, 0) == 0);
		check_falls_asleep(r);
		JOB_CHECK(r, epf_gpu_pushes(gpu, 1) == 0);
		check_awake(r);
		epf_gpu_close(gpu);
		check_falls_asleep(r);
		JOB_CHECK(r, epf_gpu_open(r->ep, &o, &gpu) == 0);
		check_awake(r);
		job_set(&r->report->rounds, 2);
		for (;;)
			pause();
	}
	JOB_CHECK(r, job_await(&r->page->words[W_KILLED_NS], 1, job_ms(JOB_WAIT_MS)) == 0);
	check_falls_asleep(r);
	job_rank_leave(r);
}

/* The text of `ep-fabric status` names the job that stays awake, and rank 0 alone. Returns 0, or -1. */
static int check_status(void)
{
	const char *const argv[] = { "status", "--instance", "node0", NULL };
	const char *first, *pushes = ", kernels push commands\n";
	char *text = NULL;
	int bad = daemons_command(&cfg.daemons, argv, &text);

	first = text ? strstr(text, pushes) : NULL;
	bad |= !first || strstr(first + 1, pushes) || !strstr(text, ", stays awake for kernels\n");
	if (bad)
		printf("ep-fabric status says: %s\n", text ? text : "nothing");
	free(text);
	return bad ? -1 : 0;
}

/* Kills the victim while the kernels run. Returns 0, or -1 if they never did. */
static int strike(struct job *job, const struct scene *scene)
{
	if (job_await(&job->page->rank[0].rounds, 2, JOB_WAIT_MS))
		return -1;
	if (scene->awake && check_status())
		return -1;
	usleep(20000);
	job_set(&job->page->words[W_KILLED_NS], epf_now_ns());
	if (scene->victim == RANK_0 || scene->victim == RANK_1)
		job_kill(job, scene->victim - RANK_0);
	else
		daemons_kill(&cfg.daemons, scene->victim - DAEMON_0);
	return 0;
}

/* Runs a whole job. Returns 0 when all its survivors ended well. */
static int run_scene(const struct scene *scene)
{
	char gpu[32], copy[48], stats[64];
	const char *const settings[] = { gpu, copy, stats, NULL };
	struct job_plan plan = { .name = "gpu_kill",
				 .world = 2,
				 .settings = settings,
				 .daemons = scene->service && !scene->awake ? &cfg.daemons : NULL,
				 .body = scene->awake ? body_awake : body,
				 .arg = (void *)(uintptr_t)scene,
				 .alarm_s = ALARM_S };
	struct job job;
	int bad;

	for (unsigned i = 0; scene->awake && i < 2; i++)
		plan.client[i] = daemons_client(&cfg.daemons, 0);
	snprintf(gpu, sizeof(gpu), "gpu-backend=%s", cfg.gpu);
	snprintf(copy, sizeof(copy), "emu-gpu-copy=%s", cfg.copy);
	snprintf(stats, sizeof(stats), "stats-dir=%s", stats_dir);
	bad = job_fork(&job, &plan);
	if (!bad && scene->victim != NOBODY)
		bad = strike(&job, scene);
	if (!bad)
		bad = job_wait(&job, 0, ALARM_S * 1000);
	for (unsigned i = 0; job.page && i < 2; i++)
		bad |= job.page->rank[i].failed != 0;
	job_end(&job);
	if (scene->victim >= DAEMON_0)
		bad |= daemons_restart(&cfg.daemons, scene->victim - DAEMON_0) != 0;
	printf("gpu_kill %s %s: %s\n", cfg.gpu, scene->what, bad ? "FAILED" : "ok");
	return bad;
}

/* In a child: ranks must be forked from a process that has loaded no driver. */
static int probe(void)
{
	const struct epf_gpu_ops *ops;
	int status = 0, n;
	pid_t pid;

	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		if (!is_fake() && !ring_gpu_image)
			printf("skipped: built without nvcc\n");
		else if (epf_gpu_backend(cfg.gpu, &ops) || ops->count(&n))
			printf("skipped: %s\n", epf_last_error());
		else
			_exit(0);
		fflush(stdout);
		_exit(77);
	}
	waitpid(pid, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

static int play(void)
{
	static const struct scene scenes[] = {
		{ "embedded, rank 1 killed", RANK_1, false, false, { "rank 1", NULL } },
		{ "embedded, rank 0 killed", RANK_0, false, false, { NULL, "rank 0" } },
		{ "embedded, nobody killed", NOBODY, false, false, { NULL, NULL } },
		{ "service, rank 1 killed", RANK_1, true, false, { "rank 1", NULL } },
		{ "service, rank 0 killed", RANK_0, true, false, { NULL, "rank 0" } },
		{ "service, daemon of rank 1 killed",
		  DAEMON_1,
		  true,
		  false,
		  { "rank 1", "daemon" } },
		{ "service, daemon of rank 0 killed",
		  DAEMON_0,
		  true,
		  false,
		  { "daemon", "rank 0" } },
		{ "service, awake for kernels of rank 0, killed",
		  RANK_0,
		  true,
		  true,
		  { NULL, NULL } },
		{ "service, nobody killed", NOBODY, true, false, { NULL, NULL } },
	};
	int bad = 0;

	for (unsigned i = 0; i < sizeof(scenes) / sizeof(scenes[0]); i++)
		bad |= run_scene(&scenes[i]);
	return bad;
}

/* A killed rank leaves its statistics file. */
static void remove_stats(void)
{
	char command[64];

	snprintf(command, sizeof(command), "rm -r %s", stats_dir);
	if (system(command))
		fprintf(stderr, "cannot remove %s\n", stats_dir);
}

int main(int argc, char **argv)
{
	static const struct option known[] = { { "gpu", 1, NULL, 'g' },
					       { "devices", 1, NULL, 'd' },
					       { "copy", 1, NULL, 'c' },
					       { 0 } };
	char gpu[32], copy[48];
	const char *const settings[] = { gpu, copy, NULL };
	int c, rc;

	while ((c = getopt_long(argc, argv, "", known, NULL)) != -1) {
		if (c == 'g')
			cfg.gpu = optarg;
		else if (c == 'c')
			cfg.copy = optarg;
		else if (c == 'd')
			cfg.devices = (uint32_t)strtoul(optarg, NULL, 0);
		else
			return 1;
	}
	if (!cfg.devices || !mkdtemp(stats_dir))
		return 1;
	rc = probe();
	if (rc) {
		remove_stats();
		return rc;
	}
	snprintf(gpu, sizeof(gpu), "gpu-backend=%s", cfg.gpu);
	snprintf(copy, sizeof(copy), "emu-gpu-copy=%s", cfg.copy);
	rc = daemons_start(&cfg.daemons, 2, settings);
	if (!rc) {
		rc = play();
		if (rc)
			daemons_print_logs(&cfg.daemons);
		rc |= daemons_stop(&cfg.daemons) != 0;
	}
	remove_stats();
	printf("gpu_kill: %s\n", rc ? "FAILED" : "all right");
	return rc != 0;
}
