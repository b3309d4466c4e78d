/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs whose regions are GPU memory, on the software NIC: rank processes, served by two daemons or embedded. Every rank puts, gets, adds
 * and signals between its own and every other rank's GPU and host memory, with fresh random bytes each time, and compares all of them.
 * With --rate it then measures what one rank can send to another, and with more than two ranks what pairs can send at once, in messages
 * as in expert-parallel decoding, next to the rate of the same batched copies without a NIC.
 *
 *   test_gpu_job [--gpu fake|cuda] [--mode service|embedded|both] [--ranks N] [--devices M] [--copy engine|kernel] [--rounds N]
 *                [--rate COUNT] [--hold 1] [--plain 1] [--signals host|gpu]
 *
 * --hold 1, on real GPUs: kernels on every SM wait for a put, and driver calls wait for the device, under traffic (gpu_hold.h).
 * --plain 1: memory of cuMemAlloc, exported by IPC handles.
 * --signals gpu: signals in GPU memory (epf_signals_place); host: in host memory; default: both, one job after the other.
 *
 * Without arguments: the fake GPU, both modes. With --gpu cuda and no GPU: exit status 77 with the reason.
 */
#include "bench/p2p/gpu_ceiling.h"
#include "fabric/gpu/copy.h"
#include "fabric/gpu/gpu.h"
#include "tests/proc/gpu_hold.h"
#include "tests/proc/gpu_job.h"

#include <getopt.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>

enum { ALARM_S = 170 };

static char stats_dir[] = "/tmp/epf-test-gpu-XXXXXX";

static struct {
	const char *gpu, *mode, *copy, *signals;
	uint32_t ranks, devices, rounds, rate, hold, plain;
	uint64_t seed;
	struct daemons daemons;
	bool service, gpu_signals;
	const char *what;
} cfg = { .gpu = "fake", .mode = "both", .copy = "engine", .ranks = 2, .devices = 1, .rounds = 30 };

/* Key of item i that sender sends to receiver in this round: fresh bytes. */
static uint64_t key_of(uint32_t sender, uint32_t receiver, uint64_t round, uint32_t item)
{
	return mix(cfg.seed ^ mix(round << 24 | (uint64_t)sender << 16 | receiver << 8 | item));
}

static uint32_t size_of(uint64_t key)
{
	static const uint32_t sizes[] = { 7168, 14352, 16, 1, 4096, 65536, 33333, 8, 4097, 131072 };

	return sizes[key % (sizeof(sizes) / sizeof(sizes[0]))];
}

static uint64_t part(uint32_t rank, uint32_t slot)
{
	return (uint64_t)rank * PART + (uint64_t)slot * SLOT;
}

/* Compares bytes of a region with the bytes of a key. */
static void compare(struct gpu_rank *g, unsigned region, uint64_t offset, uint64_t key)
{
	uint32_t bytes = size_of(key);
	const uint8_t *at = g->host + offset;

	if (region == GPU) {
		CHECK(g, epf_gpu_copy(g->r.ep, g->plain, g->gpu + offset, bytes) == 0);
		at = g->plain;
	}
	fill(g->want, bytes, key);
	if (memcmp(at, g->want, bytes) != 0) {
		uint32_t i = 0;

		while (at[i] == g->want[i])
			i++;
		fprintf(stderr, "rank %u: region %u offset %llu: byte %u of %u differs\n", g->r.me,
			region, (unsigned long long)offset, i, bytes);
		_exit(1);
	}
	g->bytes_checked += bytes;
}

/* Writes the bytes of a key to a region of this rank. */
static void prepare(struct gpu_rank *g, unsigned region, uint64_t offset, uint64_t key)
{
	uint32_t bytes = size_of(key);

	if (region == HOST) {
		fill(g->host + offset, bytes, key);
		return;
	}
	fill(g->plain, bytes, key);
	CHECK(g, epf_gpu_copy(g->r.ep, g->gpu + offset, g->plain, bytes) == 0);
}

/* Items 0..3: GPU to GPU, GPU to host, host to GPU, GPU to GPU with the signal; 4: for gets. */
static void send_to(struct gpu_rank *g, uint32_t p, uint64_t round)
{
	static const unsigned from[] = { GPU, GPU, HOST, GPU }, to[] = { GPU, HOST, GPU, GPU };
	uint32_t me = g->r.me;

	for (uint32_t i = 0; i < 4; i++) {
		uint64_t key = key_of(me, p, round, i);
		uint64_t src = part(g->r.world, i);

		prepare(g, from[i], src, key);
		if (i < 3)
			CHECK(g, epf_put(g->r.ring, p, from[i], src, to[i], part(me, i),
					 size_of(key), 0) == 0);
		else
			CHECK(g, epf_put_signal(g->r.ring, p, GPU, src, GPU, part(me, i),
						size_of(key), SIG_DATA + me, 1, EPF_FENCE) == 0);
	}
	CHECK(g, epf_add(g->r.ring, p, GPU, part(me, SLOTS), round + 1, 0) == 0);
	CHECK(g, epf_add(g->r.ring, p, GPU, part(me, SLOTS) + 8, 3, 0) == 0);
	CHECK(g, epf_put_inline(g->r.ring, p, GPU, part(me, SLOTS) + 16, mix(round), 8, 0) == 0);
	CHECK(g, epf_signal_send(g->r.ring, p, SIG_DATA + me, 1, 0) == 0);
	/* The sources may be reused only after they have been read. */
	CHECK(g, epf_flush(g->r.ring, 0, WAIT_NS) == 0);
}

static void receive_from(struct gpu_rank *g, uint32_t p, uint64_t round)
{
	static const unsigned to[] = { GPU, HOST, GPU, GPU };
	uint64_t words[3];
	uint32_t me = g->r.me;

	CHECK(g, epf_signal_wait(g->r.ep, SIG_DATA + p, 2 * round + 2, WAIT_NS) == 0);
	for (uint32_t i = 0; i < 4; i++)
		compare(g, to[i], part(p, i), key_of(p, me, round, i));
	CHECK(g, epf_gpu_copy(g->r.ep, words, g->gpu + part(p, SLOTS), sizeof(words)) == 0);
	CHECK(g, words[0] == (round + 1) * (round + 2) / 2);
	CHECK(g, words[1] == 3 * (round + 1));
	CHECK(g, words[2] == mix(round));
}

/* Gets from p's GPU and host memory into both of ours. */
static void get_from(struct gpu_rank *g, uint32_t p, uint64_t round)
{
	uint32_t me = g->r.me;

	CHECK(g, epf_signal_wait(g->r.ep, SIG_READ + p, round + 1, WAIT_NS) == 0);
	for (uint32_t i = 0; i < 4; i++) {
		uint64_t key = key_of(p, 200, round, i & 1);

		CHECK(g,
		      epf_get(g->r.ring, p, i >> 1 ? HOST : GPU, part(p, 8 + i), i & 1 ? HOST : GPU,
			      part(g->r.world, 8 + (i & 1)), size_of(key), 0) == 0);
	}
	CHECK(g, epf_flush(g->r.ring, 0, WAIT_NS) == 0);
	for (uint32_t i = 0; i < 4; i++)
		compare(g, i >> 1 ? HOST : GPU, part(p, 8 + i), key_of(p, 200, round, i & 1));
	CHECK(g, epf_signal_send(g->r.ring, p, SIG_DONE + me, 1, 0) == 0);
}

static void play(struct gpu_rank *g)
{
	uint32_t me = g->r.me, world = g->r.world;

	for (uint64_t round = 0; round < cfg.rounds; round++) {
		for (uint32_t i = 0; i < 2; i++)
			prepare(g, i ? HOST : GPU, part(world, 8 + i), key_of(me, 200, round, i));
		for (uint32_t k = 1; k < world; k++)
			CHECK(g, epf_signal_send(g->r.ring, (me + k) % world, SIG_READ + me, 1,
						 0) == 0);
		for (uint32_t k = 1; k < world; k++)
			send_to(g, (me + k) % world, round);
		for (uint32_t k = 1; k < world; k++)
			receive_from(g, (me + k) % world, round);
		for (uint32_t k = 1; k < world; k++)
			get_from(g, (me + k) % world, round);
		for (uint32_t k = 1; k < world; k++)
			CHECK(g, epf_signal_wait(g->r.ep, SIG_DONE + (me + k) % world, round + 1,
						 WAIT_NS) == 0);
	}
	printf("gpu_job %s rank %u: %u rounds with %u peers, %llu bytes compared\n", cfg.what, me,
	       cfg.rounds, world - 1, (unsigned long long)g->bytes_checked);
	fflush(stdout);
}

static void hold(struct gpu_rank *g)
{
	struct gpu_hold h = { .ep = g->r.ep,
			      .ring = g->r.ring,
			      .backend = cfg.gpu,
			      .what = cfg.what,
			      .device = (int)(g->r.me % cfg.devices),
			      .me = g->r.me,
			      .world = g->r.world,
			      .region = GPU,
			      .signal = SIG_RATE + 2,
			      .gpu = g->gpu,
			      .words = part(g->r.world, SLOTS),
			      .from = part(g->r.world, 0),
			      .to = part(0, 0) };

	CHECK(g, epf_gpu_copy(g->r.ep, g->gpu + h.words, &(uint64_t[2]){ 0 }, 16) == 0);
	CHECK(g, gpu_hold(&h) == 0);
}

/* Memory of the driver's allocator, which has no descriptor. */
static void *plain_memory(struct gpu_rank *g, uint64_t bytes)
{
	const struct epf_gpu_ops *ops;
	struct epf_gpu_dev *dev;
	struct epf_gpu_mem mem;

	CHECK(g, epf_gpu_backend(cfg.gpu, &ops) == 0);
	CHECK(g, ops->open((int)(g->r.me % cfg.devices), &dev) == 0);
	CHECK(g, ops->mem_alloc(dev, bytes, 0, &mem) == 0);
	return (void *)(uintptr_t)mem.addr;
}

/* Opens and joins, with region 0: a page, or the signals in GPU memory. */
static void enter(struct gpu_rank *g)
{
	struct job_rank *r = &g->r;
	struct job_plan plan = *r->plan;
	char cpu[32];
	const char *const own[] = { cpu, NULL };
	uint32_t region;
	void *page;

	if (cfg.rate && !cfg.service && gpu_own_cpus(r->me, r->world, cpu))
		plan.client[r->me] = own;
	r->plan = &plan;
	CHECK(g, job_rank_connect(r) == 0);
	if (cfg.gpu_signals)
		CHECK(g,
		      epf_signals_place(r->ep, EPF_SIGNALS_GPU, (int)(r->me % cfg.devices)) == 0);
	else
		CHECK(g, epf_memory_alloc(r->ep, 4096, &page) == 0 &&
				 epf_region_register(r->ep, page, 4096, EPF_REMOTE_WRITE,
						     &region) == 0);
	CHECK(g, epf_ring_open(r->ep, NULL, &r->ring) == 0);
	CHECK(g, job_rank_join(r) == 0);
	r->plan = g->plan;
}

static void body(struct job_rank *r)
{
	struct gpu_rank g = { .r = *r, .plan = r->plan };
	uint64_t bytes = (uint64_t)(r->world + 1) * PART + (cfg.rate ? RATE_BYTES : 0);
	void *gpu, *host;
	uint32_t region;

	enter(&g);
	r = &g.r;
	if (cfg.plain)
		gpu = plain_memory(&g, bytes);
	else
		CHECK(&g, epf_gpu_alloc(r->ep, (int)(r->me % cfg.devices), bytes, &gpu) == 0);
	CHECK(&g, epf_memory_alloc(r->ep, (uint64_t)(r->world + 1) * PART, &host) == 0);
	g.gpu = gpu;
	g.host = host;
	g.plain = malloc(SLOT);
	g.want = malloc(SLOT);
	CHECK(&g, g.plain && g.want);
	CHECK(&g, epf_region_register_gpu(r->ep, gpu, bytes, EPF_REMOTE_WRITE | EPF_REMOTE_READ,
					  &region) == 0 &&
			  region == GPU);
	CHECK(&g, epf_region_register(r->ep, host, (uint64_t)(r->world + 1) * PART,
				      EPF_REMOTE_WRITE | EPF_REMOTE_READ, &region) == 0 &&
			  region == HOST);
	CHECK(&g, epf_exchange(r->ep) == 0);
	play(&g);
	if (cfg.rate) {
		for (uint32_t i = 0; i < 2; i++)
			gpu_rate(&g, cfg.what, cfg.rate, 7168, false, cfg.seed);
		gpu_rate(&g, cfg.what, cfg.rate, 14352, false, cfg.seed);
		for (uint32_t i = 0; i < 4 && cfg.ranks > 2; i++)
			gpu_rate(&g, cfg.what, cfg.rate, i < 2 ? 7168 : 14352, true, cfg.seed);
		gpu_round_trip(&g, cfg.what, 8);
		gpu_round_trip(&g, cfg.what, 7168);
	}
	if (cfg.hold)
		hold(&g);
	CHECK(&g, epf_barrier(r->ep) == 0);
	job_rank_leave(r);
}

static void ceiling(uint32_t bytes)
{
	struct gpu_ceiling c;

	if (gpu_ceiling(cfg.gpu, strcmp(cfg.copy, "kernel") == 0, 0,
			(int)((cfg.ranks - 1) % cfg.devices), bytes, &c)) {
		fprintf(stderr, "ceiling: %s\n", epf_last_error());
		exit(1);
	}
	printf("gpu_job ceiling, %s %s: %u bytes in batches of %u: %.3f M/s, %.2f GB/s; %.1f ns a copy in submits\n",
	       cfg.gpu, cfg.copy, bytes, c.batch, c.per_second / 1e6, c.per_second * bytes / 1e9,
	       c.submit_ns);
	exit(0);
}

/* Runs a function in a separate process: this one forks ranks later and must not have loaded a driver. */
static int in_child(void (*fn)(uint32_t), uint32_t arg)
{
	pid_t pid;
	int status = 1;

	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		fn(arg);
		_exit(0);
	}
	waitpid(pid, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

static void probe(uint32_t unused)
{
	const struct epf_copy_ops *ops;

	(void)unused;
	if (epf_copy_ops_find(cfg.gpu, &ops) == 0 && ops->load() == 0)
		_exit(0);
	printf("skipped: %s\n", epf_last_error());
	fflush(stdout);
	_exit(77);
}

/* Runs a whole job. Returns 0 when every rank and every daemon ended well. */
static int run_job(bool service)
{
	char gpu[32], copy[48], stats[64], what[96];
	const char *const settings[] = { gpu, copy, stats, NULL };
	struct job_plan plan = { .name = "gpu_job",
				 .world = cfg.ranks,
				 .settings = settings,
				 .daemons = service ? &cfg.daemons : NULL,
				 .body = body,
				 .alarm_s = ALARM_S };
	struct job job;
	int bad;

	cfg.service = service;
	snprintf(what, sizeof(what), "%s %s %s%s", cfg.gpu, service ? "service" : "embedded",
		 cfg.copy, cfg.gpu_signals ? ", signals in GPU memory" : "");
	cfg.what = what;
	snprintf(gpu, sizeof(gpu), "gpu-backend=%s", cfg.gpu);
	snprintf(copy, sizeof(copy), "emu-gpu-copy=%s", cfg.copy);
	snprintf(stats, sizeof(stats), "stats-dir=%s", stats_dir);
	if (service && daemons_start(&cfg.daemons, 2, (const char *const[]){ gpu, copy, NULL }))
		return 1;
	bad = job_fork(&job, &plan) || job_wait(&job, 0, ALARM_S * 1000);
	job_end(&job);
	if (service && bad)
		daemons_print_logs(&cfg.daemons);
	if (service)
		bad |= daemons_stop(&cfg.daemons) != 0;
	return bad;
}

static int options(int argc, char **argv)
{
	static const struct option known[] = {
		{ "gpu", 1, NULL, 'g' },
		{ "mode", 1, NULL, 'm' },
		{ "ranks", 1, NULL, 'n' },
		{ "devices", 1, NULL, 'd' },
		{ "copy", 1, NULL, 'c' },
		{ "rounds", 1, NULL, 'r' },
		{ "rate", 1, NULL, 'R' },
		{ "hold", 1, NULL, 'h' },
		{ "plain", 1, NULL, 'p' },
		{ "signals", 1, NULL, 's' },
		{ 0 },
	};
	int c;

	while ((c = getopt_long(argc, argv, "", known, NULL)) != -1) {
		uint32_t number = optarg ? (uint32_t)strtoul(optarg, NULL, 0) : 0;

		if (c == 'g')
			cfg.gpu = optarg;
		else if (c == 'm')
			cfg.mode = optarg;
		else if (c == 's')
			cfg.signals = optarg;
		else if (c == 'c')
			cfg.copy = optarg;
		else if (c == 'n')
			cfg.ranks = number;
		else if (c == 'd')
			cfg.devices = number;
		else if (c == 'r')
			cfg.rounds = number;
		else if (c == 'R')
			cfg.rate = number;
		else if (c == 'p')
			cfg.plain = number;
		else if (c == 'h')
			cfg.hold = number;
		else
			return 1;
	}
	return cfg.ranks < 2 || cfg.ranks > JOB_RANKS_MAX || !cfg.devices;
}

int main(int argc, char **argv)
{
	int bad = 0, rc;

	if (options(argc, argv)) {
		fprintf(stderr, "usage: see the head of test_gpu_job.c\n");
		return 1;
	}
	if (getrandom(&cfg.seed, sizeof(cfg.seed), 0) != sizeof(cfg.seed) || !mkdtemp(stats_dir))
		return 1;
	printf("gpu_job: seed %#llx\n", (unsigned long long)cfg.seed);
	rc = in_child(probe, 0);
	if (rc) {
		rmdir(stats_dir);
		return rc;
	}
	if (cfg.rate)
		bad |= in_child(ceiling, 7168) | in_child(ceiling, 14352);
	for (int i = 0; i < 2; i++) {
		if (cfg.signals && strcmp(cfg.signals, i ? "gpu" : "host") != 0)
			continue;
		cfg.gpu_signals = i == 1;
		if (strcmp(cfg.mode, "embedded") != 0)
			bad |= run_job(true);
		if (strcmp(cfg.mode, "service") != 0)
			bad |= run_job(false);
	}
	rmdir(stats_dir);
	printf("gpu_job: %s\n", bad ? "FAILED" : "all right");
	return bad;
}
