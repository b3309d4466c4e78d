/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks and daemons killed while kernels push transfers of GPU memory over the software NIC. The kernel of who is left ends, with a status,
 * by its deadline; waiting for the device returns; every survivor learns the name of the lost rank; the next job is served.
 *
 *   test_gpu_kill [--gpu fake|cuda] [--devices M] [--copy engine|kernel]
 *
 * Rank 0 pushes, rank 1 waits for a signal that never comes. Without arguments: the fake GPU. With --gpu cuda and no GPU, or in a build
 * without kernels: exit 77 with the reason.
 */
#include "bench/ring/gpu.h"
#include "fabric/gpu/gpu.h"
#include "kernels/bench/p2p.h"
#include "tests/proc/daemons.h"
#include "tests/proc/ranks.h"

#include <errno.h>
#include <getopt.h>

#define SECOND UINT64_C(1000000000)

enum {
	GPU = 1, /* region; 0 is ranks.h's */
	REGION_BYTES = 32 << 20,
	BYTES = 7168,
	WARPS = 8,
	DEADLINE_S = 8, /* of every wait in a kernel */
	TOLD_S = 30,    /* every survivor has its error by then, on any machine */
};

static struct {
	const char *gpu, *copy;
	uint32_t devices;
	struct daemons daemons;
} cfg = { .gpu = "fake", .copy = "engine", .devices = 1 };

enum victim { NOBODY, RANK_0, RANK_1, DAEMON_0, DAEMON_1 };

struct job {
	const char *what;
	enum victim victim;
	bool service;
	const char *notified[2]; /* part of the sentence at each rank; NULL: the rank is killed */
};

static bool is_fake(void)
{
	return strcmp(cfg.gpu, "fake") == 0;
}

/* What a rank needs to launch kernels. */
struct pusher {
	struct rank *r;
	struct epf_gpu_dev *dev;
	struct epf_gpu_props props;
	struct epf_gpu *gpu;
	struct epf_gpu_mem words;
	void *function, *stream;
};

static void pusher_open(struct pusher *p)
{
	const void *image = is_fake() ? (const void *)ring_gpu_fake_kernels : ring_gpu_image;
	struct rank *r = p->r;
	const struct epf_gpu_ops *ops;
	struct epf_gpu_options o;
	void *module;

	epf_gpu_options_init(&o);
	o.device = (int)(r->me % cfg.devices);
	o.timeout_ns = DEADLINE_S * SECOND;
	RANK_CHECK(r, epf_gpu_backend(cfg.gpu, &ops) == 0);
	RANK_CHECK(r, ops->open(o.device, &p->dev) == 0);
	RANK_CHECK(r, ops->describe(p->dev, &p->props) == 0);
	RANK_CHECK(r, ops->module_load(p->dev, image, &module) == 0);
	RANK_CHECK(r, ops->function(p->dev, module, "p2p_bench_stream_kernel", &p->function) == 0);
	RANK_CHECK(r, ops->stream_create(p->dev, &p->stream) == 0);
	RANK_CHECK(r, ops->mem_alloc(p->dev, 4096, 0, &p->words) == 0);
	RANK_CHECK(r, epf_gpu_open(r->ep, &o, &p->gpu) == 0);
}

/* One kernel with its puts and flushes; 0, or what it reported. */
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

	RANK_CHECK(p->r, p->dev->ops->launch(p->dev, p->stream, p->function, &l) == 0);
	RANK_CHECK(p->r, p->dev->ops->stream_sync(p->dev, p->stream) == 0);
	return epf_gpu_check(p->gpu);
}

static double since_kill(const struct rank *r)
{
	uint64_t killed = __atomic_load_n(&r->page->killed_ns, __ATOMIC_ACQUIRE);

	return killed ? (double)(epf_now_ns() - killed) / 1e9 : -1;
}

static void rank_body(struct rank *r, const struct job *job)
{
	struct pusher p = { .r = r };
	uint32_t region;
	void *memory;
	int rc = 0;

	RANK_CHECK(r, epf_gpu_alloc(r->ep, (int)(r->me % cfg.devices), REGION_BYTES, &memory) == 0);
	RANK_CHECK(r, epf_region_register_gpu(r->ep, memory, REGION_BYTES,
					      EPF_REMOTE_WRITE | EPF_REMOTE_READ, &region) == 0 &&
			      region == GPU);
	RANK_CHECK(r, epf_exchange(r->ep) == 0);
	if (r->me == 0)
		pusher_open(&p);
	RANK_CHECK(r, epf_barrier(r->ep) == 0);
	for (uint32_t i = 0; r->me == 0 && !rc && (job->victim != NOBODY || i < 3); i++) {
		rc = pusher_run(&p);
		__atomic_store_n(&r->page->rounds[0], i + 1, __ATOMIC_RELEASE);
	}
	if (job->victim == NOBODY) {
		RANK_CHECK(r, rc == 0);
		RANK_CHECK(r, epf_barrier(r->ep) == 0);
		return;
	}
	if (r->me == 1)
		rc = epf_signal_wait(r->ep, 0, 1, 2 * TOLD_S * SECOND);
	printf("gpu_kill %s %s: rank %u after %.3f s: %s\n", cfg.gpu, job->what, r->me,
	       since_kill(r), epf_last_error());
	fflush(stdout);
	RANK_CHECK(r, rc < 0 && rc != -ENOENT);
	RANK_CHECK(r, since_kill(r) >= 0 && since_kill(r) < TOLD_S);
	RANK_CHECK(r, strstr(epf_last_error(), job->notified[r->me]));
}

static void rank_main(struct ranks *ranks, const struct job *job, uint32_t i)
{
	char gpu[32], copy[48];
	const char *settings[8] = { gpu, copy, "core-idle=pause" };
	struct rank r = { .page = ranks->page,
			  .rendezvous = ranks->page->rendezvous,
			  .settings = settings,
			  .job = "gpu_kill",
			  .me = i,
			  .world = 2 };
	int n = 3;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	alarm(170); /* whatever happens, nothing is left behind */
	snprintf(gpu, sizeof(gpu), "gpu-backend=%s", cfg.gpu);
	snprintf(copy, sizeof(copy), "emu-gpu-copy=%s", cfg.copy);
	if (job->service)
		for (const char *const *c = daemons_client(&cfg.daemons, i); *c; c++)
			settings[n++] = *c;
	while (!__atomic_load_n(&ranks->page->open, __ATOMIC_ACQUIRE))
		usleep(500);
	rank_open(&r);
	rank_body(&r, job);
	epf_close(r.ep);
	epf_boot_close(r.boot);
	exit(0);
}

/* When the kernels run: the victim dies. -1: they never did. */
static int strike(struct ranks *ranks, const struct job *job)
{
	for (unsigned i = 0; __atomic_load_n(&ranks->page->rounds[0], __ATOMIC_ACQUIRE) < 2; i++) {
		if (i == 60000)
			return -1;
		usleep(1000);
	}
	usleep(20000);
	__atomic_store_n(&ranks->page->killed_ns, epf_now_ns(), __ATOMIC_RELEASE);
	if (job->victim == RANK_0 || job->victim == RANK_1)
		kill(ranks->pid[job->victim - RANK_0], SIGKILL);
	else
		daemons_kill(&cfg.daemons, job->victim - DAEMON_0);
	return 0;
}

/* A whole job; 0 when all that is left of it ended well. */
static int run_job(const struct job *job)
{
	struct ranks ranks = { .count = 2 };
	int bad;

	ranks.page = mmap(NULL, sizeof(*ranks.page), PROT_READ | PROT_WRITE,
			  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (ranks.page == MAP_FAILED)
		return 1;
	fflush(NULL);
	for (uint32_t i = 0; i < 2; i++) {
		ranks.pid[i] = fork();
		if (ranks.pid[i] == 0)
			rank_main(&ranks, job, i);
	}
	bad = ranks_serve(&ranks, "gpu_kill") != 0;
	if (!bad && job->victim != NOBODY)
		bad = strike(&ranks, job) != 0;
	bad |= ranks_wait(&ranks, job->victim == RANK_0 ? 0 : job->victim == RANK_1 ? 1 : -1) != 0;
	ranks_end(&ranks);
	if (job->victim >= DAEMON_0)
		bad |= daemons_restart(&cfg.daemons, job->victim - DAEMON_0) != 0;
	printf("gpu_kill %s %s: %s\n", cfg.gpu, job->what, bad ? "FAILED" : "ok");
	return bad;
}

/* In a child: the ranks are forked from a process that has met no driver. */
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
	static const struct job jobs[] = {
		{ "embedded, rank 1 killed", RANK_1, false, { "rank 1", NULL } },
		{ "embedded, rank 0 killed", RANK_0, false, { NULL, "rank 0" } },
		{ "embedded, nobody killed", NOBODY, false, { NULL, NULL } },
		{ "service, rank 1 killed", RANK_1, true, { "rank 1", NULL } },
		{ "service, rank 0 killed", RANK_0, true, { NULL, "rank 0" } },
		{ "service, daemon of rank 1 killed", DAEMON_1, true, { "rank 1", "daemon" } },
		{ "service, daemon of rank 0 killed", DAEMON_0, true, { "daemon", "rank 0" } },
		{ "service, nobody killed", NOBODY, true, { NULL, NULL } },
	};
	int bad = 0;

	for (unsigned i = 0; i < sizeof(jobs) / sizeof(jobs[0]); i++)
		bad |= run_job(&jobs[i]);
	return bad;
}

int main(int argc, char **argv)
{
	static const struct option known[] = { { "gpu", 1, NULL, 'g' },
					       { "devices", 1, NULL, 'd' },
					       { "copy", 1, NULL, 'c' },
					       { 0 } };
	char gpu[32], copy[48];
	const char *const settings[] = { gpu, copy, "core-idle=pause", NULL };
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
	if (!cfg.devices || !mkdtemp(ranks_dir))
		return 1;
	rc = probe();
	if (rc) {
		ranks_dir_remove(NULL);
		return rc;
	}
	snprintf(gpu, sizeof(gpu), "gpu-backend=%s", cfg.gpu);
	snprintf(copy, sizeof(copy), "emu-gpu-copy=%s", cfg.copy);
	rc = daemons_start(&cfg.daemons, 2, settings);
	if (!rc) {
		rc = play();
		for (unsigned i = 0; rc && i < 2; i++) {
			char *log = daemons_log(&cfg.daemons, i);

			fprintf(stderr, "%s\n", log ? log : "");
			free(log);
		}
		rc |= daemons_stop(&cfg.daemons) != 0;
	}
	ranks_dir_remove(NULL);
	printf("gpu_kill: %s\n", rc ? "FAILED" : "all right");
	return rc != 0;
}
