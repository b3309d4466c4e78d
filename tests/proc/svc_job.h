/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs of rank processes: forks a rendezvous server and ranks, and gives them a page of shared memory to talk to the test. A rank is a
 * client of the daemon that its plan names, or embedded. Traffic: rounds in which every rank sends random bytes to every other one in
 * several ways (put with signal, grouped puts, pieces, wide forms) and checks every byte it receives, including those that must not
 * have changed. All processes die with the test.
 */
#ifndef EPF_TESTS_SVC_JOB_H
#define EPF_TESTS_SVC_JOB_H

#include "bootstrap/boot.h"
#include "fabric/client/epf.h"
#include "tests/proc/daemons.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>
#include <unistd.h>

enum { JOB_RANKS_MAX = 8, JOB_SLOT = 2048, JOB_GUARD = 65536, JOB_SIGNALS = 64, JOB_WORDS = 32 };

enum { JOB_WAIT_MS = 60000 }; /* of every wait: longer is a hang */

/* What a rank is doing. Stored before the calls begin, so a rank killed at step S died in S. */
enum job_step {
	JOB_FORKED = 0,
	JOB_START = 1,    /* epf_open */
	JOB_REGISTER = 2, /* memory, regions, rings */
	JOB_JOIN = 3,     /* epf_join */
	JOB_DISPATCH = 4, /* a round of puts and waits */
	JOB_COMBINE = 5,  /* the round that answers it */
	JOB_CLOSE = 6,    /* epf_close */
	JOB_ENDED = 7,
	JOB_STEPS = 8
};

extern const char *const job_step_name[JOB_STEPS];

/* Counters that job_play() leaves in its report. They belong to the node's engine, so ranks of one node report the same. */
enum {
	JOB_LANE_ERRORS = 0,
	JOB_ARRIVALS_REFUSED = 1,
	JOB_REPLAYS = 2,
	JOB_DUPLICATES = 3,
	JOB_COUNTERS = 4
};

/* Results of a rank. Plain words, accessed with __atomic built-ins. */
struct job_report {
	uint64_t step;        /* enum job_step */
	uint64_t rounds;      /* played */
	uint64_t notified_ns; /* when a call returned an error; 0: none did */
	int64_t rc;           /* that error */
	uint64_t failed;      /* 1: a check of the rank failed */
	uint64_t counter[8];  /* of the body */
	char text[512];       /* epf_last_error() of that error */
	char failure[128];    /* of -EIO: the ring's first failure */
};

struct job_page {
	uint64_t open;             /* the rendezvous has its address */
	uint64_t end;              /* set by the test: ranks may leave */
	uint64_t go;               /* set by the test: the paused rank continues */
	uint64_t words[JOB_WORDS]; /* of the test */
	char rendezvous[EPF_BOOT_ADDRESS_MAX];
	struct job_report rank[JOB_RANKS_MAX];
};

struct job_rank {
	struct job_page *page;
	struct job_report *report;
	const struct job_plan *plan;
	uint32_t me, world;
	struct epf_boot *boot;
	struct epf *ep;
	struct epf_ring *ring;
	uint8_t *mem;   /* region 0: [2][world] slots received, [2][world] slots sent */
	uint8_t *guard; /* region 1: exported, written by nobody */
	uint64_t guard_sum;
	uint64_t round;
	uint64_t seq[JOB_RANKS_MAX];    /* rounds played with each rank */
	uint64_t expect[JOB_RANKS_MAX]; /* signal value of each rank before its next slot */
	bool sent[JOB_RANKS_MAX];       /* this round's puts to it are pushed */
	bool got[JOB_RANKS_MAX];        /* its slot was checked */
	bool masked[JOB_RANKS_MAX];
	struct epf_ring_failure failure; /* of the last -EIO */
};

struct job_plan {
	const char *name;
	uint32_t world;
	uint64_t tag;                /* distinguishes the bytes of this job from those of others */
	const char *const *settings; /* of all ranks, NULL-terminated; or NULL */
	const struct daemons
		*daemons; /* serve the ranks, in equal shares; NULL: client[] decides */
	const char *const
		*client[JOB_RANKS_MAX];   /* more settings of each rank, or NULL: embedded */
	uint64_t boot_timeout_ns;         /* 0: JOB_WAIT_MS */
	void (*body)(struct job_rank *r); /* the rank exits with 0 when it returns */
	void *arg;
	unsigned alarm_s; /* 0: 120 */
	/* Rank `pauses` waits at step pause_at for page->go; JOB_FORKED: no rank does. */
	enum job_step pause_at;
	uint32_t pauses;
	/* Every so many rounds, a flush replaces the wait for retirement; 0: 8. */
	unsigned flush_every;
	unsigned rest_us; /* between the rounds of job_play(): for a job that only has to go on */
	/* A job across two machines: local has a bit for each rank forked here (0: all). One machine listens at an address (NULL: any port of
	 * loopback); the other names it as its rendezvous (else NULL) and has no server. Both need EPF_SECRET. */
	uint32_t local;
	const char *listen, *rendezvous;
};

struct job {
	struct job_plan plan;
	struct job_page *page;
	pid_t server;
	pid_t pid[JOB_RANKS_MAX]; /* 0: reaped */
};

/* A cmocka test `name` that runs fn with *state = arg. */
#define JOB_CASE(name, fn, arg, set_up, tear_down)     \
 {                                                     \
#  name, fn, set_up, tear_down, (void *)(uintptr_t)arg \
 }

/* A failed check of a rank prints one line and ends the process with status 1. */
#define JOB_CHECK(r, condition)                                                           \
 do {                                                                                     \
  if (!(condition)) {                                                                     \
   fprintf(stderr, "%s:%d: job %s rank %u: %s is false (%s) %s\n", __FILE__, __LINE__,    \
	   (r)->plan->name, (r)->me, #condition, epf_last_error(), (r)->report->failure); \
   __atomic_store_n(&(r)->report->failed, 1, __ATOMIC_RELEASE);                           \
   _exit(1);                                                                              \
  }                                                                                       \
 } while (0)

/* Forks server and ranks; the caller must have no thread. Returns 0, or -1 after a message. Copies the plan, not what it points to. */
int job_fork(struct job *job, const struct job_plan *plan);
/* Forks one more process as rank `rank`, which runs body instead of the plan's. Returns its pid, or -1. */
pid_t job_fork_rank(struct job *job, uint32_t rank, void (*body)(struct job_rank *r));
/* Waits until every living rank has played `rounds`. Returns 0, or -1 if one exited or after timeout_ms. */
int job_reach(struct job *job, uint64_t rounds, unsigned timeout_ms);
/* Waits until every living rank is `rounds` further than rank 0 is now. Returns 0 or -1. */
int job_more(struct job *job, uint64_t rounds);
/*
 * Waits for all ranks, at most timeout_ms in all; then kills the rest, which count as bad. Returns how many did not exit with 0.
 * killed: a bit for each rank that was killed and does not count.
 */
int job_wait(struct job *job, uint32_t killed, unsigned timeout_ms);
/* Ends job_play() in all ranks, then job_wait(). */
int job_finish(struct job *job);
/* Runs a whole job: job_fork(), job_finish(), job_end(). Returns how many ranks did not exit with 0, or -1. */
int job_run(const struct job_plan *plan);
/* Sends SIGKILL to a rank and reaps it. */
void job_kill(struct job *job, uint32_t rank);
/* Kills what is left, ends the server, frees the page. Accepts a zeroed job; may be called twice. */
void job_end(struct job *job);

/* For bodies. Opens rendezvous and fabric, no memory. Returns 0 or the error. */
int job_rank_connect(struct job_rank *r);
/* Opens rendezvous, fabric, memory and ring; job_rank_join() is next. Returns 0 or the error, and report->step says where. */
int job_rank_open(struct job_rank *r);
int job_rank_join(struct job_rank *r);
/* job_rank_open() and job_rank_join(); an error fails a check. */
void job_rank_enter(struct job_rank *r);
/* Closes fabric and rendezvous. */
void job_rank_leave(struct job_rank *r);
/* Makes memory, regions 0 and 1, and the ring: part of job_rank_open(), and of a rank that rejoins. */
int job_rank_register(struct job_rank *r);
/* Plays one round with every rank not masked. Returns 0 or the error; after an error the next call continues the same round. */
int job_rank_round(struct job_rank *r, uint64_t timeout_ns);
/* Plays rounds until one returns an error, which is returned. */
int job_rank_until_error(struct job_rank *r);
/* Resets the exchange with a rank that has come back: both sides begin at 0. */
void job_rank_renew(struct job_rank *r, uint32_t peer);
/* Records the step of the rank, and pauses there if the plan says so. */
void job_rank_step(struct job_rank *r, enum job_step step);
/* Stores an error in the report: time, number, text. */
void job_rank_told(struct job_rank *r, int rc);
/* Returns 0 if the guard region is unchanged. */
int job_rank_guard(const struct job_rank *r);
/* The simplest body: opens, joins, plays until page->end, closes; every error fails a check. */
void job_play(struct job_rank *r);

/* Waits until a word of the page is at_least. Returns 0, or -1 after timeout_ms. */
int job_await(const uint64_t *word, uint64_t at_least, unsigned timeout_ms);
void job_set(uint64_t *word, uint64_t value);
uint64_t job_get(const uint64_t *word);
/* Adds 1 to a word. */
void job_count(uint64_t *word);

/* Scales a time limit of plain builds on a quiet machine: longer under a sanitizer, and with LIMIT_TIMES (`tools/quickstart test --busy`). */
unsigned job_ms(unsigned ms);
/* job_ms(JOB_WAIT_MS) in nanoseconds. */
uint64_t job_wait_ns(void);
bool job_long(void); /* EPF_TEST_LONG */
/* EPF_SEED or `def`; the caller prints it. */
uint64_t job_seed(uint64_t def);
/* splitmix64: the next number of a stream. */
uint64_t job_random(uint64_t *state);

/* What a process holds, read from /proc: for tests that nothing is left behind. */
struct proc_holds {
	unsigned fds;      /* open descriptors */
	unsigned mappings; /* of memfds */
};

/* Zeros if there is no such process. */
struct proc_holds proc_look(pid_t pid);
/* Waits until the process holds no more than base. Returns 0, or -1 after timeout_ms and a message that lists what it holds. */
int proc_settle(pid_t pid, struct proc_holds base, unsigned timeout_ms);
/* Counts the files of a directory whose names contain `word` (NULL: all). names: NULL, or receives "NAME NAME ". */
unsigned proc_files(const char *dir, const char *word, char *names, size_t size);

#endif
