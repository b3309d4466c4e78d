/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-bench startup: thousands of ranks meet over the real bootstrap on this machine, as processes with several threads each, a thread a rank: they
 * connect, prove the secret, exchange what a join exchanges, and end at a barrier. A rank may be late, missing or wrong: all others must then name it. It
 * judges what ranks get, never times.
 */
#include "bench/common/bench.h"
#include "bench/common/json.h"

#include "bootstrap/boot.h"
#include "fabric/base/clock.h"
#include "fabric/base/err.h"

#include <argp.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define SECRET "what all ranks of this measurement know"

enum {
	O_RANKS = 256,
	O_HOSTS,
	O_PROCESSES,
	O_LANES,
	O_TIMEOUT,
	O_LATE,
	O_MISSING,
	O_WRONG,
	O_JSON
};

enum { ROUNDS = 4, STACK = 512 << 10, NOBODY = 1 << 20, LATE_US = 4000000, SHORT_S = 5 };

/* The rendezvous says so often who has not come, where one is late: also while only that one has not. */
enum { NOTICE_NS = 100000000 };

/* The bytes of a rank's description beside its lanes (fabric/join/describe.c, one region), and of an address. */
enum { DESCRIPTION = 300, TEXT = 300 };

struct opts {
	uint64_t ranks, hosts, processes, lanes, timeout_s, late, missing, wrong;
	bool json;
};

/* What a rank tells the parent, in memory that all share. */
struct told {
	uint64_t opened_ns, gathered_ns, ended_ns;
	int rc, wrong;
	char text[TEXT];
};

struct shared {
	char where[128];
	int go; /* the server listens */
	uint64_t begun_ns;
	uint32_t opened; /* ranks that have connected */
	struct told told[];
};

struct rank {
	const struct opts *o;
	struct shared *shared;
	uint32_t rank;
	pthread_t thread;
};

static const struct argp_option options[] = {
	{ "ranks", O_RANKS, "R", 0, "ranks of the job (2048)", 0 },
	{ "hosts", O_HOSTS, "N", 0, "hosts that they say they are on (256)", 0 },
	{ "processes", O_PROCESSES, "N", 0, "processes that share the ranks (32)", 0 },
	{ "lanes", O_LANES, "N", 0, "lanes of a daemon to each host, which it describes (2)", 0 },
	{ "timeout-s", O_TIMEOUT, "S", 0, "deadline of a rank's waits (120)", 0 },
	{ "late", O_LATE, "RANK", 0, "this rank comes 4 s after all others", 0 },
	{ "missing", O_MISSING, "RANK", 0, "this rank does not come", 0 },
	{ "wrong", O_WRONG, "RANK", 0, "this rank says another number of ranks", 0 },
	{ "json", O_JSON, NULL, 0, "print one JSON object", 0 },
	{ 0 },
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct opts *o = state->input;

	switch (key) {
	case O_RANKS:
		return bench_uint("--ranks", arg, 2, 4096, &o->ranks) ? EINVAL : 0;
	case O_HOSTS:
		return bench_uint("--hosts", arg, 1, 4096, &o->hosts) ? EINVAL : 0;
	case O_PROCESSES:
		return bench_uint("--processes", arg, 1, 1024, &o->processes) ? EINVAL : 0;
	case O_LANES:
		return bench_uint("--lanes", arg, 1, 8, &o->lanes) ? EINVAL : 0;
	case O_TIMEOUT:
		return bench_uint("--timeout-s", arg, 1, 3600, &o->timeout_s) ? EINVAL : 0;
	case O_LATE:
		return bench_uint("--late", arg, 0, 4095, &o->late) ? EINVAL : 0;
	case O_MISSING:
		return bench_uint("--missing", arg, 0, 4095, &o->missing) ? EINVAL : 0;
	case O_WRONG:
		return bench_uint("--wrong", arg, 0, 4095, &o->wrong) ? EINVAL : 0;
	case O_JSON:
		o->json = true;
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

/* Bytes that a rank gives in a round: random ones, its daemon's number, its description, a result. */
static size_t given(const struct opts *o, uint32_t rank, unsigned round)
{
	static const size_t fixed[ROUNDS] = { 16, 64, DESCRIPTION, 8 };
	int is_lowest = rank % (o->ranks / o->hosts) == 0;

	return fixed[round] + (round == 2 && is_lowest ? 8 * o->lanes * o->hosts : 0);
}

static unsigned char byte_of(uint32_t rank, unsigned round)
{
	return (unsigned char)(rank * 31 + round + 1);
}

/* Every rank's bytes, as far as their length, first and last tell. */
static int wrong_blobs(const struct opts *o, const struct epf_blob *all, unsigned round)
{
	int wrong = 0;

	for (uint32_t r = 0; r < o->ranks; r++) {
		const unsigned char *b = all[r].data;
		size_t len = given(o, r, round);

		wrong += all[r].len != len || b[0] != byte_of(r, round) ||
			 b[len - 1] != byte_of(r, round);
	}
	return wrong;
}

static int meet(const struct opts *o, struct epf_boot *boot, uint32_t rank, struct told *t)
{
	int rc = 0;

	for (unsigned round = 0; round < ROUNDS && !rc; round++) {
		size_t len = given(o, rank, round);
		unsigned char *mine = malloc(len);
		struct epf_blob *all;

		if (!mine)
			return -ENOMEM;
		memset(mine, byte_of(rank, round), len);
		rc = epf_boot_allgather(boot, mine, len, &all);
		free(mine);
		if (rc)
			break;
		t->wrong += wrong_blobs(o, all, round);
		epf_boot_free_blobs(all);
	}
	t->gathered_ns = epf_now_ns();
	return rc ? rc : epf_boot_barrier(boot);
}

/* Waits until all ranks but one have connected, however long that takes. */
static void wait_for_others(const struct rank *r, uint32_t but)
{
	while (__atomic_load_n(&r->shared->opened, __ATOMIC_ACQUIRE) < r->o->ranks - but)
		usleep(10000);
}

/* One rank loses its patience soon, where one does not come: when all others are there, so that nobody is named for being slow. */
static uint64_t patience_s(const struct rank *r)
{
	const struct opts *o = r->o;
	uint32_t culprit = (uint32_t)(o->missing < NOBODY ? o->missing : o->wrong);

	return culprit < NOBODY && r->rank == (culprit == 0) ? SHORT_S : o->timeout_s;
}

static void *rank_main(void *arg)
{
	const struct rank *r = arg;
	struct told *t = &r->shared->told[r->rank];
	struct epf_boot *boot = NULL;
	char node[32];
	struct epf_boot_opts opts = { .size = sizeof(opts),
				      .rank = r->rank,
				      .world = (uint32_t)r->o->ranks + (r->rank == r->o->wrong),
				      .rendezvous = r->shared->where,
				      .job = "startup",
				      .secret = SECRET,
				      .secret_len = sizeof(SECRET) - 1,
				      .timeout_ns = patience_s(r) * 1000000000u,
				      .node = node };

	snprintf(node, sizeof(node), "host%u", (unsigned)(r->rank / (r->o->ranks / r->o->hosts)));
	if (r->rank == r->o->late) {
		wait_for_others(r, 1);
		usleep(LATE_US);
	}
	/* Its patience must last for connecting, too: beside nobody else who connects. */
	if (patience_s(r) != r->o->timeout_s)
		wait_for_others(r, 2);
	t->rc = epf_boot_tcp_open(&opts, &boot);
	t->opened_ns = epf_now_ns();
	if (!t->rc)
		__atomic_fetch_add(&r->shared->opened, 1, __ATOMIC_RELEASE);
	if (patience_s(r) != r->o->timeout_s)
		wait_for_others(r, 1);
	if (!t->rc)
		t->rc = meet(r->o, boot, r->rank, t);
	t->ended_ns = epf_now_ns();
	if (t->rc)
		snprintf(t->text, sizeof(t->text), "%s", epf_last_error());
	epf_boot_close(boot);
	return NULL;
}

/* A process: ranks [from, to), a thread each. */
static int run_ranks(const struct opts *o, struct shared *shared, uint32_t from, uint32_t to)
{
	struct rank *ranks = calloc(to - from, sizeof(*ranks));
	pthread_attr_t attr;
	uint32_t n = 0;

	if (!ranks)
		return 1;
	while (!__atomic_load_n(&shared->go, __ATOMIC_ACQUIRE))
		usleep(1000);
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, STACK);
	for (uint32_t r = from; r < to; r++) {
		if (r == o->missing)
			continue;
		ranks[n] = (struct rank){ .o = o, .shared = shared, .rank = r };
		if (pthread_create(&ranks[n].thread, &attr, rank_main, &ranks[n])) {
			shared->told[r].rc = -EAGAIN;
			snprintf(shared->told[r].text, TEXT, "no thread for rank %u", r);
			continue;
		}
		n++;
	}
	for (uint32_t i = 0; i < n; i++)
		pthread_join(ranks[i].thread, NULL);
	free(ranks);
	return 0;
}

struct outcome {
	double opened_s, gathered_s, ended_s; /* the last rank's */
	uint64_t failed, wrong, unnamed;
	char text[TEXT]; /* the first error */
};

/* The number stands in the text's first words, alone or among others: "rank 7 did", "ranks 3, 7 did". */
static int names(const char *text, uint64_t rank)
{
	static const char *const stops[] = { " did not", " of ", " came" };
	const char *at = strstr(text, "rank"), *end = text + strlen(text);

	for (unsigned i = 0; i < 3; i++) {
		const char *stop = strstr(text, stops[i]);

		end = stop && stop < end ? stop : end;
	}
	while (at && at < end) {
		char *next;

		if (*at < '0' || *at > '9') {
			at++;
			continue;
		}
		if (strtoull(at, &next, 10) == rank)
			return 1;
		at = next;
	}
	return 0;
}

/* Ranks end well, or, where one is missing or wrong, with an error that names it. */
static void judge(const struct opts *o, const struct shared *s, struct outcome *out)
{
	uint64_t culprit = o->missing < NOBODY ? o->missing : o->wrong;

	for (uint32_t r = 0; r < o->ranks; r++) {
		const struct told *t = &s->told[r];
		double opened = (double)(t->opened_ns - s->begun_ns) / 1e9;
		double gathered = (double)(t->gathered_ns - s->begun_ns) / 1e9;
		double ended = (double)(t->ended_ns - s->begun_ns) / 1e9;
		if (r == o->missing)
			continue;
		out->wrong += (uint64_t)t->wrong;
		out->failed += t->rc != 0;
		if (t->rc && !out->text[0])
			memcpy(out->text, t->text, TEXT);
		out->unnamed += culprit < NOBODY && (!t->rc || !names(t->text, culprit));
		if (t->rc)
			gathered = 0;
		out->opened_s = opened > out->opened_s ? opened : out->opened_s;
		out->gathered_s = gathered > out->gathered_s ? gathered : out->gathered_s;
		out->ended_s = ended > out->ended_s ? ended : out->ended_s;
	}
}

static void report(const struct opts *o, const struct outcome *r, uint64_t server_bytes, int wrong)
{
	if (o->json) {
		bench_print_json(json_pack(
			"{s:s, s:I, s:I, s:I, s:f, s:f, s:f, s:I, s:I, s:I, s:s, s:i}", "bench",
			"startup", "ranks", (json_int_t)o->ranks, "hosts", (json_int_t)o->hosts,
			"processes", (json_int_t)o->processes, "opened_s", r->opened_s,
			"gathered_s", r->gathered_s, "ended_s", r->ended_s, "server_sent_bytes",
			(json_int_t)server_bytes, "failed", (json_int_t)r->failed, "unnamed",
			(json_int_t)r->unnamed, "error", r->text, "wrong", wrong));
		return;
	}
	printf("# ep-bench startup: %llu ranks that say they are on %llu hosts, in %llu processes, %u CPUs\n",
	       (unsigned long long)o->ranks, (unsigned long long)o->hosts,
	       (unsigned long long)o->processes, bench_cpus());
	printf("all_connected_s   %.2f\nall_exchanged_s   %.2f\nall_ended_s       %.2f\n",
	       r->opened_s, r->gathered_s, r->ended_s);
	printf("# the rendezvous sent %.1f MB\n", (double)server_bytes / 1e6);
	if (r->failed)
		printf("# %llu ranks failed, %llu of all do not name the cause: %s\n",
		       (unsigned long long)r->failed, (unsigned long long)r->unnamed, r->text);
	printf("# wrong: %d\n", wrong);
}

static int start_processes(const struct opts *o, struct shared *shared)
{
	for (uint64_t p = 0; p < o->processes; p++) {
		pid_t pid = fork();

		if (pid < 0)
			return -errno;
		if (pid == 0)
			_exit(run_ranks(o, shared, (uint32_t)(o->ranks * p / o->processes),
					(uint32_t)(o->ranks * (p + 1) / o->processes)));
	}
	return 0;
}

static int run(const struct opts *o, struct shared *shared)
{
	struct epf_boot_server_opts so = { .size = sizeof(so),
					   .world = (uint32_t)o->ranks,
					   .listen = "127.0.0.1:0",
					   .job = "startup",
					   .secret = SECRET,
					   .secret_len = sizeof(SECRET) - 1,
					   .notice_first_ns = o->late < NOBODY ? NOTICE_NS : 0,
					   .notice_again_ns = o->late < NOBODY ? NOTICE_NS : 0 };
	struct epf_boot_server_stats stats = { 0 };
	struct epf_boot_server *server = NULL;
	struct outcome r = { 0 };
	int err = start_processes(o, shared), status, wrong;

	if (!err)
		err = bench_check(epf_boot_server_start(&so, &server));
	if (!err) {
		snprintf(shared->where, sizeof(shared->where), "%s",
			 epf_boot_server_address(server));
		shared->begun_ns = epf_now_ns();
	}
	/* In any case: processes wait for it. Without an address they fail. */
	__atomic_store_n(&shared->go, 1, __ATOMIC_RELEASE);
	while (wait(&status) > 0)
		err = err ? err : status ? -ECHILD : 0;
	if (err) {
		epf_boot_server_stop(server);
		return err;
	}
	epf_boot_server_stats(server, &stats);
	epf_boot_server_stop(server);
	judge(o, shared, &r);
	wrong = r.wrong || r.unnamed || (r.failed && o->missing >= NOBODY && o->wrong >= NOBODY);
	report(o, &r, stats.sent_bytes, wrong);
	return wrong ? -EIO : 0;
}

int bench_startup(int argc, char **argv)
{
	static const struct argp argp = {
		.options = options,
		.parser = parse,
		.doc = "How long thousands of ranks take to meet over the bootstrap on this machine, and whether they name one that is missing or wrong.",
	};
	struct opts o = { .ranks = 2048,
			  .hosts = 256,
			  .processes = 32,
			  .lanes = 2,
			  .timeout_s = 120,
			  .late = NOBODY,
			  .missing = NOBODY,
			  .wrong = NOBODY };
	struct rlimit files;
	struct shared *shared;
	size_t bytes;
	int err;

	if (argp_parse(&argp, argc, argv, 0, NULL, &o))
		return BENCH_USAGE;
	if (o.ranks % o.hosts || o.processes > o.ranks) {
		bench_complain("--ranks must be a multiple of --hosts, and at least --processes");
		return BENCH_USAGE;
	}
	/* A connection for each rank ends here. */
	if (!getrlimit(RLIMIT_NOFILE, &files) && files.rlim_cur < files.rlim_max) {
		files.rlim_cur = files.rlim_max;
		(void)setrlimit(RLIMIT_NOFILE, &files);
	}
	bytes = sizeof(*shared) + o.ranks * sizeof(struct told);
	shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED) {
		bench_complain("no memory");
		return BENCH_WRONG;
	}
	err = run(&o, shared);
	munmap(shared, bytes);
	return err ? BENCH_WRONG : BENCH_OK;
}
