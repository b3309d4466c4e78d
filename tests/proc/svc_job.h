/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs of rank processes for the tests of the service: forks a rendezvous server and ranks, each rank a client of the daemon that
 * its plan names, and gives them a page of shared memory to talk to the test. Traffic: rounds in which every rank sends random
 * bytes to every other one by changing means (put with signal, grouped puts, pieces, wide forms) and checks every byte
 * of what it gets, those included that must not have changed. Everything dies with the test.
 */
#ifndef EPF_TESTS_SVC_JOB_H
#define EPF_TESTS_SVC_JOB_H

#include "bootstrap/boot.h"
#include "fabric/client/epf.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>
#include <unistd.h>

enum { JOB_RANKS_MAX = 8, JOB_SLOT = 2048, JOB_GUARD = 65536, JOB_SIGNALS = 64, JOB_WORDS = 32 };

/* Where a rank is. Stored before the calls begin, so a rank killed at step S died in S. */
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

/* What job_play() leaves in a report's counters: of the engine of its node, so ranks of one node say the same. */
enum {
	JOB_LANE_ERRORS = 0,
	JOB_ARRIVALS_REFUSED = 1,
	JOB_REPLAYS = 2,
	JOB_DUPLICATES = 3,
	JOB_COUNTERS = 4
};

/* What a rank tells the test. Plain words, written and read with __atomic built-ins. */
struct job_report {
	uint64_t step;        /* enum job_step */
	uint64_t rounds;      /* played */
	uint64_t notified_ns; /* when it came back with an error, 0: it did not */
	int64_t rc;           /* that error */
	uint64_t failed;      /* 1: the rank found a fault */
	uint64_t counter[8];  /* the body's */
	char text[512];       /* epf_last_error() of that error */
	char failure[128];    /* of -EIO: the ring's first failure */
};

struct job_page {
	uint64_t open;             /* the rendezvous has its address */
	uint64_t end;              /* set by the test: ranks may leave */
	uint64_t go;               /* the same: the rank that pauses goes on */
	uint64_t words[JOB_WORDS]; /* the test's own */
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
	uint8_t *guard; /* region 1: exported, never written by anybody */
	uint64_t guard_sum;
	uint64_t round;
	uint64_t seq[JOB_RANKS_MAX]; /* rounds played with each rank */
	uint64_t expect
		[JOB_RANKS_MAX];  /* value of the signal of each rank when its next slot is in */
	bool sent[JOB_RANKS_MAX]; /* this round's puts to it are pushed */
	bool got[JOB_RANKS_MAX];  /* its slot was checked */
	bool masked[JOB_RANKS_MAX];
	struct epf_ring_failure failure; /* of the last -EIO */
};

struct job_plan {
	const char *name; /* of the job */
	uint32_t world;
	uint64_t tag;                /* makes the bytes of this job unlike those of another */
	const char *const *settings; /* NULL, or of all ranks, ending with NULL */
	const char *const *client[JOB_RANKS_MAX]; /* of each rank: daemons_client() */
	uint64_t boot_timeout_ns;
	void (*body)(struct job_rank *r); /* the rank exits with 0 when it returns */
	void *arg;
	unsigned alarm_s; /* 0: 120 */
	/* Rank `pauses` is stalled at that step until page->go; JOB_FORKED: nobody does. */
	enum job_step pause_at;
	uint32_t pauses;
	/* So many rounds end with a flush in place of a wait for their commands; 0: 8. */
	unsigned flush_every;
	/* A job of two machines: bits of the ranks forked here (0: all); one of both listens at an address (NULL: any of loopback), the other
	 * names it as its rendezvous (else NULL) and has no server. Both need EPF_SECRET. */
	uint32_t local;
	const char *listen, *rendezvous;
};

struct job {
	struct job_plan plan;
	struct job_page *page;
	pid_t server;
	pid_t pid[JOB_RANKS_MAX]; /* 0: waited for */
};

/* A fault of a rank: one line, and the process ends with 1. */
#define JOB_CHECK(r, condition)                                                           \
 do {                                                                                     \
  if (!(condition)) {                                                                     \
   fprintf(stderr, "%s:%d: job %s rank %u: %s is false (%s) %s\n", __FILE__, __LINE__,    \
	   (r)->plan->name, (r)->me, #condition, epf_last_error(), (r)->report->failure); \
   __atomic_store_n(&(r)->report->failed, 1, __ATOMIC_RELEASE);                           \
   _exit(1);                                                                              \
  }                                                                                       \
 } while (0)

/* Forks server and ranks; the caller must have no thread. 0, or -1 after a message. The plan is copied, what it points to is not. */
int job_fork(struct job *job, const struct job_plan *plan);
/* Forks one more process as rank `rank`, for a rank that comes back; body in place of the plan's. Its pid, or -1. */
pid_t job_fork_rank(struct job *job, uint32_t rank, void (*body)(struct job_rank *r));
/* Waits until every living rank has played `rounds`: 0; -1 when one ended before, or after timeout_ms. */
int job_reach(struct job *job, uint64_t rounds, unsigned timeout_ms);
/*
 * Waits for all ranks, at most timeout_ms in all (then they are killed and count as bad): how many did not exit with 0.
 * killed: a bit for each rank that was killed and does not count.
 */
int job_wait(struct job *job, uint32_t killed, unsigned timeout_ms);
/* Kills what is left, ends the server, frees the page. Accepts a zeroed job, and a job twice. */
void job_end(struct job *job);

/* For bodies: opens boot, fabric, memory and ring; then job_rank_join(). 0 or the error, and report->step says where. */
int job_rank_open(struct job_rank *r);
int job_rank_join(struct job_rank *r);
/* Memory, regions 0 and 1, and the ring: part of job_rank_open, and of a rank that rejoins. */
int job_rank_register(struct job_rank *r);
/* One round with every rank not masked: 0 or the error. Called again after an error it goes on with the same round. */
int job_rank_round(struct job_rank *r, uint64_t timeout_ns);
/* Forgets what was exchanged with a rank that has come back: both sides begin at 0. */
void job_rank_renew(struct job_rank *r, uint32_t peer);
/* The rank is there now, and is stalled if it is to. */
void job_rank_step(struct job_rank *r, enum job_step step);
/* Keeps an error in the report: time, number, text. */
void job_rank_told(struct job_rank *r, int rc);
/* 0 when nobody wrote the guard region. */
int job_rank_guard(const struct job_rank *r);
/* Opens, joins, plays until page->end, closes; every error is a fault. The simplest body. */
void job_play(struct job_rank *r);

/* A word of the page, waited for with a deadline: 0 or -1. */
int job_await(const uint64_t *word, uint64_t at_least, unsigned timeout_ms);
void job_set(uint64_t *word, uint64_t value);
uint64_t job_get(const uint64_t *word);

/* Time limits of tests are for plain builds: milliseconds as they are, or longer under a sanitizer. */
unsigned job_ms(unsigned ms);
bool job_long(void); /* EPF_TEST_LONG */
/* EPF_SEED or `def`; printed by the caller. */
uint64_t job_seed(uint64_t def);
/* splitmix64: the next number of a stream. */
uint64_t job_random(uint64_t *state);

#endif
