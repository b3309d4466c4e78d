/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many checked commands over RDMA devices while packets are lost and links come and go: two daemons, four ranks, every byte of every letter looked at, every
 * signal counted. Used for soaking, for random link flaps, and with duplicate detection broken to show that a wrong count would be seen.
 *
 *   rxe_soak --commands N [--flaps K] [--rails 1|2] [--seed S] [--hook all|keep] [SETTING=VALUE...]
 *     --commands   at least so many in all; --flaps: random cuts of one pair at a time meanwhile; --rails: devices of a node
 *     --hook       of a build with test hooks, in engines inside the ranks. all: a failed lane's work is all sent again, and what had
 *                  arrived must be dropped; keep: it is not dropped: exit status 0 when a wrong count was seen
 *
 * RXE_ON_STALL: a command that is called with the process numbers of both daemons when nothing moves any more. Output is for people, "# result:" lines for jobs.sh; with a seed a run cuts the same pairs for the same times. Exit status 0 or 1.
 */
#include "fabric/base/clock.h"
#include "fabric/engine/lane_hot.h"
#include "tests/rxe/rig.h"

#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

/* A round: LETTERS letters of up to SLOT bytes to each other rank, then the same from each; two sets of slots take turns. */
enum {
	LETTERS = 48,
	SLOT = 256,
	FILLING = 0xa5,
	FLUSH_EVERY = 8,
	ROUND_S = 60,
	REGION = 2,
	PUBLISH_EVERY = 2,
	PAUSE_COMMANDS = 3000,
	RECOVER_S = 30,
	STALL_S = 30,
	END_MS = 120000,
	ALARM_S = 7000,
	MANY_FLAPS = 30
};

/* A word of the page: set by a rank that saw wrong bytes, or a wrong count of signals; with a hook only the latter. */
enum { W_WRONG = 3 };

/* Counters of a report: what the engine of the rank's node counted, and the rank's own. */
enum { C_COMMANDS = 4, C_SLOWEST_NS = 5, C_BYTES = 6, C_SPARED = 7 };

static struct {
	uint64_t commands, seed;
	unsigned flaps, rails;
	int hook; /* enum epf_hook; 0: none, and engines are in daemons */
} opt = { .commands = 20000, .rails = 1 };

static const char *const counter_name[] = { "lane_errors", "arrivals_refused", "replays",
					    "duplicates_dropped" };

/* Words of the page that ranks 0 and 2 keep for their engines while they play, four each. */
enum { W_LIVE = 8, LIVE_ERRORS = 0, LIVE_FAILOVERS = 1, LIVE_RECOVERIES = 2, LIVE_PAUSE_NS = 3 };

static const char *const live_name[] = { "lane_errors", "failovers", "recoveries",
					 "failover_max_ns" };

/* ---- a rank ---- */

struct letter {
	uint32_t offset, bytes, manner;
	uint64_t stream;
};

static struct letter letter_of(const struct job_rank *r, uint32_t from, uint32_t to, uint32_t k)
{
	uint64_t s =
		r->plan->tag << 52 ^ (uint64_t)from << 48 ^ (uint64_t)to << 44 ^ r->round << 6 ^ k;
	struct letter l;
	uint64_t x;

	s = job_random(&s);
	x = job_random(&s);
	l.manner = (uint32_t)(x >> 60) % 8;
	l.offset = (uint32_t)(x & 0xfff) % SLOT;
	l.bytes = 1 + (uint32_t)((x >> 20) % (SLOT - l.offset));
	if (x >> 50 & 3) {
		l.offset &= ~15u;
		l.bytes = (l.bytes + 15) & ~15u;
	}
	l.stream = s;
	return l;
}

static void letter_write(const struct letter *l, uint8_t *slot)
{
	uint64_t s = l->stream, x = 0;

	for (uint32_t i = 0; i < l->bytes; i++, x >>= 8) {
		if (i % 8 == 0)
			x = job_random(&s);
		slot[l->offset + i] = (uint8_t)x;
	}
}

/* Of a letter from rank `from` to rank `to`, in the receiver's memory or, `out`, in the sender's. */
static uint64_t slot_at(const struct job_rank *r, bool out, uint32_t other, uint32_t k)
{
	return ((((out ? 2 : 0) + (r->round & 1)) * r->world + other) * LETTERS + k) * SLOT;
}

static int send_letter(struct job_rank *r, uint32_t peer, uint32_t k)
{
	struct letter l = letter_of(r, r->me, peer, k);
	uint64_t from = slot_at(r, true, peer, k) + l.offset;
	uint64_t to = slot_at(r, false, r->me, k) + l.offset;
	uint32_t half = l.bytes / 2;
	int rc;

	letter_write(&l, r->mem + from - l.offset);
	switch (l.manner) {
	case 0:
		return epf_put_signal(r->ring, peer, REGION, from, REGION, to, l.bytes, r->me, 1,
				      EPF_FENCE);
	case 1: /* a group has a separate stream */
		rc = epf_put_group(r->ring, peer, REGION, from, REGION, to, l.bytes, r->me,
				   EPF_BULK);
		return rc ? rc : epf_signal_counted(r->ring, peer, r->me, 1, 1, 0);
	case 2:
		rc = half ? epf_put(r->ring, peer, REGION, from, REGION, to, half, EPF_BULK) : 0;
		if (!rc)
			rc = epf_put(r->ring, peer, REGION, from + half, REGION, to + half,
				     l.bytes - half, 0);
		return rc ? rc : epf_signal_send(r->ring, peer, r->me, 1, 0);
	default: /* most: the signal rides in the write */
		return epf_put_signal(r->ring, peer, REGION, from, REGION, to, l.bytes, r->me, 1,
				      0);
	}
}

/* What the engine promised; anything else that fails is only a failed run. */
#define RIGHT(r, condition)                \
 do {                                      \
  if (!(condition))                        \
   job_set(&(r)->page->words[W_WRONG], 1); \
  JOB_CHECK(r, condition);                 \
 } while (0)

/*
 * Not with a hook: what is sent again without asking overwrites what the receiver has put there since, which no count at the receiver can prevent. It is
 * the counts that must be right then, or wrong.
 */
static void check_letters(struct job_rank *r, uint32_t peer)
{
	uint8_t want[SLOT];

	if (opt.hook)
		return;
	for (uint32_t k = 0; k < LETTERS; k++) {
		struct letter l = letter_of(r, peer, r->me, k);
		uint8_t *slot = r->mem + slot_at(r, false, peer, k);

		memset(want, FILLING, SLOT);
		letter_write(&l, want);
		RIGHT(r, memcmp(slot, want, SLOT) == 0);
		memset(slot, FILLING, SLOT);
	}
}

/* Signals count letters: exactly one each, from a peer that is at most one round ahead. */
static void check_sum(struct job_rank *r, uint32_t peer, uint64_t rounds, uint64_t ahead)
{
	uint64_t value = epf_signal_value(r->ep, peer);

	RIGHT(r, value >= rounds * LETTERS && value <= (rounds + ahead) * LETTERS);
}

static void play_round(struct job_rank *r)
{
	uint64_t begun = epf_now_ns(), took;

	for (uint32_t p = 0; p < r->world; p++)
		for (uint32_t k = 0; p != r->me && k < LETTERS; k++)
			JOB_CHECK(r, send_letter(r, p, k) == 0);
	for (uint32_t p = 0; p < r->world; p++) {
		if (p == r->me)
			continue;
		JOB_CHECK(r, epf_signal_wait(r->ep, p, (r->round + 1) * LETTERS,
					     ROUND_S * UINT64_C(1000000000)) == 0);
		check_sum(r, p, r->round + 1, 1);
		check_letters(r, p);
	}
	if (r->round % FLUSH_EVERY == FLUSH_EVERY - 1)
		JOB_CHECK(r, epf_flush(r->ring, 0, ROUND_S * UINT64_C(1000000000)) == 0);
	else
		JOB_CHECK(r, epf_wait_retired(r->ring, epf_ring_pushed(r->ring),
					      ROUND_S * UINT64_C(1000000000)) == 0);
	took = epf_now_ns() - begun;
	if (took > r->report->counter[C_SLOWEST_NS])
		job_set(&r->report->counter[C_SLOWEST_NS], took);
	job_set(&r->report->counter[C_COMMANDS], epf_ring_pushed(r->ring));
	job_set(&r->report->rounds, ++r->round);
}

#ifdef EPF_TEST_HOOKS
static void set_hook(void)
{
	epf_hook = opt.hook;
}

static int hook_of(const char *name)
{
	return strcmp(name, "all") == 0    ? EPF_HOOK_REPLAY_ALL
	       : strcmp(name, "keep") == 0 ? EPF_HOOK_REPLAY_KEEP
					   : -1;
}

static bool must_go_wrong(void)
{
	return opt.hook == EPF_HOOK_REPLAY_KEEP;
}
#else
static void set_hook(void)
{
}

static int hook_of(const char *name)
{
	(void)name;
	return -1;
}

static bool must_go_wrong(void)
{
	return false;
}
#endif

static void open_rank(struct job_rank *r)
{
	uint64_t bytes = (uint64_t)4 * r->world * LETTERS * SLOT;
	uint32_t region;
	void *mem;

	set_hook();
	JOB_CHECK(r, job_rank_open(r) == 0); /* its regions 0 and 1 are not used */
	JOB_CHECK(r, epf_memory_alloc(r->ep, bytes, &mem) == 0);
	memset(mem, FILLING, bytes);
	JOB_CHECK(r, epf_region_register(r->ep, mem, bytes, EPF_REMOTE_WRITE, &region) == 0);
	JOB_CHECK(r, region == REGION);
	r->mem = mem;
	JOB_CHECK(r, job_rank_join(r) == 0);
}

/* What the parent steers by. Asking costs a request, so not in every round. */
static void publish(struct job_rank *r)
{
	uint64_t *word = &r->page->words[W_LIVE + r->me * 2], value;

	for (unsigned i = 0; i < 4 && !(r->me & 1);
	     i++) /* ranks 1 and 3 share their engine, or are not asked */
		if (epf_counter(r->ep, live_name[i], &value) == 0)
			job_set(&word[i], value);
}

static void soak(struct job_rank *r)
{
	open_rank(r);
	/* All end with the same round: rank 0 says which, some rounds ahead of everybody. */
	for (;;) {
		uint64_t last = job_get(&r->page->words[0]);

		if (r->me == 0 && !last && job_get(&r->page->end))
			job_set(&r->page->words[0], r->round + 4);
		if (last && r->round >= last)
			break;
		play_round(r);
		if (r->round % PUBLISH_EVERY == 0)
			publish(r);
	}
	JOB_CHECK(r, epf_barrier(r->ep) == 0);
	for (uint32_t p = 0; p < r->world; p++)
		if (p != r->me)
			check_sum(r, p, r->round, 0);
	for (unsigned i = 0; i < JOB_COUNTERS; i++)
		JOB_CHECK(r, epf_counter(r->ep, counter_name[i], &r->report->counter[i]) == 0);
	JOB_CHECK(r,
		  epf_counter(r->ep, "put_bytes_remote_node", &r->report->counter[C_BYTES]) == 0);
	JOB_CHECK(r, epf_counter(r->ep, "replays_spared", &r->report->counter[C_SPARED]) == 0);
	publish(r);
	JOB_CHECK(r, epf_barrier(r->ep) == 0);
	epf_close(r->ep);
	epf_boot_close(r->boot);
}

/* ---- the parent ---- */

static uint64_t commands(void)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < RIG_WORLD; i++)
		sum += job_get(&rig.job.page->rank[i].counter[C_COMMANDS]);
	return sum;
}

/* Of all engines: one a node, which ranks 0 and 2 speak for, or one a rank. */
static uint64_t engines(unsigned counter)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < RIG_WORLD; i += opt.hook ? 1 : 2)
		sum += rig.job.page->rank[i].counter[counter];
	return sum;
}

static uint64_t live(unsigned what)
{
	return job_get(&rig.job.page->words[W_LIVE + what]) +
	       job_get(&rig.job.page->words[W_LIVE + 4 + what]);
}

static bool went_wrong(void)
{
	return job_get(&rig.job.page->words[W_WRONG]) != 0;
}

/* Nothing moves, and all processes are still there: for a debugger, with the daemons' process numbers. */
static void on_stall(void)
{
	const char *command = getenv("RXE_ON_STALL");

	printf("nothing moves for %d s: %llu commands, %llu lane errors, %llu failovers, %llu recoveries\n",
	       STALL_S, (unsigned long long)commands(), (unsigned long long)live(LIVE_ERRORS),
	       (unsigned long long)live(LIVE_FAILOVERS), (unsigned long long)live(LIVE_RECOVERIES));
	if (command && !opt.hook)
		rig_shell("%s %d %d", command, rig.daemons.pid[0], rig.daemons.pid[1]);
}

/* Until so many commands are through. A rank that ends before has found a fault. */
static void reach_commands(uint64_t goal)
{
	uint64_t seen = 0, since = epf_now_ns();
	bool stalled = false;

	while (commands() < goal && !(must_go_wrong() && went_wrong())) {
		for (unsigned i = 0; i < RIG_WORLD; i++)
			RIG_CHECK(!job_get(&rig.job.page->rank[i].failed) ||
				  (must_go_wrong() && went_wrong()));
		if (commands() != seen) {
			seen = commands();
			since = epf_now_ns();
			stalled = false;
		}
		if (!stalled && epf_now_ns() - since > STALL_S * UINT64_C(1000000000)) {
			stalled = true;
			on_stall();
		}
		RIG_CHECK(epf_now_ns() - since < (ROUND_S + 10) * UINT64_C(1000000000));
		usleep(20000);
	}
}

/* ---- flaps ---- */

/* The longer one of both ends. */
static uint64_t longest_pause(void)
{
	const uint64_t *words = &rig.job.page->words[W_LIVE + LIVE_PAUSE_NS];

	return words[0] > words[4] ? words[0] : words[4];
}

/* Until commands go on and every lane that failed is back: then another pair may be cut. */
static void wait_recovered(void)
{
	uint64_t since = epf_now_ns();

	reach_commands(commands() + PAUSE_COMMANDS);
	while (live(LIVE_RECOVERIES) < live(LIVE_FAILOVERS) && !went_wrong()) {
		if (epf_now_ns() - since > RECOVER_S * UINT64_C(1000000000))
			rig_die("%llu failovers, %llu recoveries %d s after the link was up again",
				(unsigned long long)live(LIVE_FAILOVERS),
				(unsigned long long)live(LIVE_RECOVERIES), RECOVER_S);
		reach_commands(commands() + 1);
		usleep(20000);
	}
}

/* A random pair, at a random time, for a random time. */
static void flap(uint64_t *state, unsigned i)
{
	char pair = job_random(state) & 1 ? 'B' : 'A';
	unsigned before_ms = (unsigned)(job_random(state) % 300);
	unsigned down_ms = 10 + (unsigned)(job_random(state) % (i % 4 == 3 ? 1500 : 300));

	/* Spread over the whole run. */
	reach_commands(opt.commands * i / opt.flaps);
	usleep(before_ms * 1000);
	rig_link(pair, false);
	usleep(down_ms * 1000);
	rig_link(pair, true);
	wait_recovered();
	printf("flap %u: pair %c down for %u ms; so far %llu lane errors, %llu failovers, %llu recoveries, %llu commands\n",
	       i + 1, pair, down_ms, (unsigned long long)live(LIVE_ERRORS),
	       (unsigned long long)live(LIVE_FAILOVERS), (unsigned long long)live(LIVE_RECOVERIES),
	       (unsigned long long)commands());
}

static void check_result(uint64_t begun)
{
	uint64_t slowest = 0, replays = engines(JOB_REPLAYS), spared = engines(C_SPARED),
		 duplicates = engines(JOB_DUPLICATES);

	for (unsigned i = 0; i < RIG_WORLD; i++)
		if (rig.job.page->rank[i].counter[C_SLOWEST_NS] > slowest)
			slowest = rig.job.page->rank[i].counter[C_SLOWEST_NS];
	printf("# result: %llu commands, %llu rounds, %.1f s, %.1f MB between nodes, 0 wrong%s\n",
	       (unsigned long long)commands(), (unsigned long long)rig.job.page->rank[0].rounds,
	       (double)(epf_now_ns() - begun) / 1e9, (double)engines(C_BYTES) / 1e6,
	       opt.hook ? " counts (bytes not looked at)" : "");
	printf("# result: %u flaps, seed %llu: %llu lane errors, %llu failovers, %llu recoveries, %llu replays, %llu arrived already and not sent again, %llu duplicates dropped; longest pause %.0f ms, slowest round %.0f ms\n",
	       opt.flaps, (unsigned long long)opt.seed, (unsigned long long)live(LIVE_ERRORS),
	       (unsigned long long)live(LIVE_FAILOVERS), (unsigned long long)live(LIVE_RECOVERIES),
	       (unsigned long long)replays, (unsigned long long)spared,
	       (unsigned long long)duplicates, (double)longest_pause() / 1e6,
	       (double)slowest / 1e6);
	RIG_CHECK(engines(JOB_ARRIVALS_REFUSED) == 0);
	if (!opt.flaps) {
		RIG_CHECK(live(LIVE_ERRORS) == 0);
		return;
	}
	RIG_CHECK(live(LIVE_FAILOVERS) >= opt.flaps);
	RIG_CHECK(live(LIVE_RECOVERIES) == live(LIVE_FAILOVERS));
	RIG_CHECK(opt.flaps == 1 || replays > 0);
	/* Whether an acknowledgement was lost at the moment of a cut is chance: some 1 to 10 of a hundred replays. */
	RIG_CHECK(opt.flaps < MANY_FLAPS || (opt.hook ? duplicates : spared) > 0);
	/* One flap: one failover and one recovery at each end. */
	RIG_CHECK(opt.flaps != 1 || live(LIVE_FAILOVERS) == 2);
}

static void parse(int argc, char **argv, const char **more)
{
	static const struct option options[] = {
		{ "commands", required_argument, NULL, 'c' },
		{ "flaps", required_argument, NULL, 'f' },
		{ "rails", required_argument, NULL, 'r' },
		{ "seed", required_argument, NULL, 's' },
		{ "hook", required_argument, NULL, 'h' },
		{ NULL, 0, NULL, 0 },
	};
	int c, n = 0;

	opt.seed = job_seed(epf_now_ns() & 0xffffffff);
	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (c == 'c')
			opt.commands = strtoull(optarg, NULL, 10);
		else if (c == 'f')
			opt.flaps = (unsigned)strtoul(optarg, NULL, 10);
		else if (c == 'r')
			opt.rails = (unsigned)strtoul(optarg, NULL, 10);
		else if (c == 's')
			opt.seed = strtoull(optarg, NULL, 10);
		else if (c == 'h')
			opt.hook = hook_of(optarg);
		if (c == '?' || opt.hook < 0) {
			fprintf(stderr,
				"rxe_soak: see the head of tests/rxe/soak.c; --hook needs a build with test hooks\n");
			exit(2);
		}
	}
	for (; optind < argc && n < 12; optind++)
		more[n++] = argv[optind];
	more[n] = NULL;
}

static const char *const node_devices[2][2] = { { "rxe0", "rxe1" }, { "rxe0,rxe2", "rxe1,rxe3" } };

/* Ranks with separate engines, even ones on the even devices. */
static void embedded_job(const char *const *more)
{
	static char device[2][32];
	static const char *own[2][16];
	struct job_plan plan = { .name = "soak",
				 .world = RIG_WORLD,
				 .tag = opt.seed & 0xff,
				 .body = soak,
				 .boot_timeout_ns = UINT64_C(60000000000),
				 .alarm_s = ALARM_S };

	for (unsigned i = 0; i < 2; i++) {
		unsigned n = 0;

		snprintf(device[i], sizeof(device[i]), "nic-device=%s",
			 node_devices[opt.rails == 2][i]);
		own[i][n++] = "nic=verbs";
		own[i][n++] = device[i];
		for (unsigned m = 0; more[m]; m++)
			own[i][n++] = more[m];
	}
	for (unsigned i = 0; i < RIG_WORLD; i++)
		plan.client[i] = own[i & 1];
	RIG_CHECK(job_fork(&rig.job, &plan) == 0);
	RIG_CHECK(job_reach(&rig.job, 2, 120000) == 0);
}

int main(int argc, char **argv)
{
	static const unsigned nodes[RIG_WORLD] = { 0, 0, 1, 1 };
	const char *more[16];
	unsigned flaps = 0;
	uint64_t begun, state;

	parse(argc, argv, more);
	state = opt.seed;
	printf("seed %llu\n", (unsigned long long)opt.seed);
	if (opt.hook) {
		embedded_job(more);
	} else {
		rig.alarm_s = ALARM_S;
		rig_start(2, node_devices[opt.rails == 2], more);
		rig_job(&rig.job, "soak", nodes, soak);
	}
	begun = epf_now_ns();
	for (; flaps < opt.flaps && !went_wrong(); flaps++)
		flap(&state, flaps);
	if (!went_wrong())
		reach_commands(opt.commands);
	job_set(&rig.job.page->end, 1);
	if (must_go_wrong()) {
		/* Sums are compared exactly when all have ended. */
		job_wait(&rig.job, 0, went_wrong() ? 1 : END_MS);
		RIG_CHECK(went_wrong());
		printf("# result: without duplicate detection a wrong signal count was seen after %u flaps, seed %llu\n",
		       flaps, (unsigned long long)opt.seed);
		job_end(&rig.job);
		return 0;
	}
	RIG_CHECK(job_wait(&rig.job, 0, END_MS) == 0);
	check_result(begun);
	job_end(&rig.job);
	if (!opt.hook)
		rig_stop();
	return 0;
}
