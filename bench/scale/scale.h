/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs of up to thousands of ranks in one thread: the engine's own cores (fabric/engine), one for each node as a daemon has it, on the simulated
 * network (simnet.h) and a virtual clock. A program pushes the commands that the kernels push, and waits as they wait. Used by ep-bench scale
 * and tests/prop/test_sim_scale.
 *
 * Time of a core: a step costs `step_ns`, and `command_ns` for each command that it dequeues and `arrival_ns` for each arrival; what it posts leaves,
 * and what it raises is seen, when that time is over. Cores of several jobs on a node share a thread as in the daemon (fabric/engine/fair.h).
 */
#ifndef EPF_BENCH_SCALE_SCALE_H
#define EPF_BENCH_SCALE_SCALE_H

#include "bench/scale/simnet.h"
#include "fabric/base/conf.h"
#include "fabric/engine/engine.h"
#include "fabric/engine/fair.h"
#include "queues/epf_stats.h"

#include <stdbool.h>

#define SCALE_REGION_BYTES (UINT64_C(1) << 36)

enum { SCALE_JOBS_MAX = 8, SCALE_TOPK = 8, SCALE_EXPERTS = 256, SCALE_GROUPS = 8, SCALE_LIMIT = 4 };

struct scale_options {
	uint32_t ranks; /* of a job */
	uint32_t
		per_node; /* ranks of an engine: here a node, whatever the machine; a multiple of the ports */
	uint32_t near; /* ranks of a machine, which reach each other by stores */
	uint32_t jobs;
	uint32_t weight[SCALE_JOBS_MAX]; /* of a job's turns; 0: 1 */
	uint32_t hidden, tokens;
	uint32_t tokens_max; /* low latency: what memory is laid out for */
	/* High throughput; 0: DeepSeek-V3's rows, 256 KiB, and experts for all ranks alike. */
	uint32_t row_bytes[2]; /* of a row between nodes: of a dispatch, of a combine */
	uint32_t put_bytes;    /* of a command */
	uint32_t local;        /* experts of a rank */
	double step_ns, command_ns, arrival_ns,
		doorbell_ns;   /* doorbell: for each lane that a step posts to */
	const char *nic;       /* of the fabric, in place of the simulated one (real.c): NULL */
	uint64_t region_bytes; /* with nic: of each rank */
	struct sim_net_options net;  /* nodes, jobs, links and lanes are filled in */
	const char *const *settings; /* of the fabric: NULL-terminated "name=value", or NULL */
	uint64_t seed;
	/* Where tokens go: the rank of each entry; NULL: the simulation's own choice. */
	void (*route)(void *arg, uint32_t rank, uint32_t token, uint32_t to[SCALE_TOPK]);
	void *route_arg;
	uint64_t limit_ns; /* virtual time without an end after which a phase is stuck */
};

/*
 * A job on nodes of 8 ports at 400 Gbit/s, with RoCE v2's headers, that are 1.5 us apart, with 60 ns of an engine for a command and an arrival. ranks, per_node, near, tokens and
 * tokens_max are left to the caller.
 */
struct scale_options scale_defaults(void);

struct scale;
struct scale_core;

/* A rank: what a GPU's process has. */
struct scale_rank {
	struct scale *s;
	struct scale_core *core;
	uint32_t rank, local, number; /* in its job; on its node; among all jobs' */
	struct epf_signal *signals;
	uint32_t n_signals;
	void *region; /* with a NIC of the fabric */
	struct epf_wakeup wakeup;
	struct epf_ring_shm *shm;
	struct epf_ring_producer ring;
	/* Of the phase under way. */
	uint32_t peer, at, part, waits; /* where the program is */
	int done;
	uint64_t begun_ns, done_ns;
	struct sim_times last; /* of the message that was taken last */
	uint64_t commands;
};

/* An engine: a job's on a node. */
struct scale_core {
	struct epf_core *core;
	struct epf_nic *nic;
	struct epf_stats *stats;
	struct epf_stats_block *block;
	struct scale_rank *ranks;
	uint32_t n_ranks, node, job;
	uint64_t busy_ns, longest_ns, most_inflight, dequeued, doorbells, messages_before,
		bytes_before;
};

/* The thread that steps the engines of a node. */
struct scale_cpu {
	struct epf_fair fair;
	struct scale_core *seats[SCALE_JOBS_MAX];
	uint32_t at, idle;
	uint32_t round,
		behind; /* as the scheduler's loop: whose turn it is, and which of those behind are looked at */
	uint64_t due_ns;  /* when it runs next */
	uint64_t free_ns; /* what it does now is over */
	uint64_t until;   /* of the turn, in the seat's time */
	bool in_turn, dead;
};

/* What ranks do in a phase. */
struct scale_program {
	const char *name;
	/* Does what a rank can do now. Returns how much, or -1 with scale_wrong(). Sets done. */
	int (*poll)(struct scale_rank *r);
	/* A write of so many bytes has landed at this offset of the rank's region. */
	void (*landed)(struct scale_rank *r, uint64_t offset, uint32_t bytes);
};

struct scale {
	struct scale_options o;
	struct epf_conf conf;
	struct sim_net *net;
	uint32_t n_nodes, n_numbers;
	struct scale_core *cores; /* [jobs][nodes] */
	struct scale_cpu *cpus;   /* [nodes] */
	struct scale_rank *ranks; /* [jobs][ranks] */
	const struct scale_program *program[SCALE_JOBS_MAX];
	void *state[SCALE_JOBS_MAX]; /* the program's */
	uint32_t running;            /* ranks that have not ended their phase */
	uint64_t steps;
	uint64_t join_ns[3]; /* real time: worlds set, described, connected; of all engines */
	uint64_t description_bytes; /* of all ranks */
	uint64_t wrong;
	char why[256]; /* the first thing wrong */
	/* Faults, by number of sim_net_at(): called at their time. */
	void (*fault)(struct scale *s, uint32_t what);
};

/* Opens and joins. NULL with epf_last_error(). */
struct scale *scale_open(const struct scale_options *o);
void scale_close(struct scale *s);

/* Runs a phase: job j does program[j]; those with NULL nothing. Returns 0, -ETIME when it is stuck, -EIO when something was wrong. */
int scale_run(struct scale *s);
/* Calls s->fault(s, what) after so long. */
void scale_fault_at(struct scale *s, uint64_t after_ns, uint32_t what);
/* A node stops: neither its engines nor its ports do anything any more. */
void scale_kill_node(struct scale *s, uint32_t node);

/* Something is not as it must be; the first time is kept. Returns -1. */
int scale_wrong(struct scale *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Pushes an operation in the form that the kernels choose. 0: the ring is full. */
int scale_push(struct scale_rank *r, const struct epf_op *op);
/* The rank's program is asked again at this time, if it has not been before. */
void scale_wake_at(struct scale_rank *r, uint64_t at);
/* A transfer within the regions of two ranks. */
struct epf_op scale_transfer(unsigned op, uint32_t rank, uint64_t from, uint64_t to, uint32_t bytes,
			     uint32_t signal, unsigned flags);
/* The rank's engine has given that one up. */
int scale_is_lost(const struct scale_rank *r, uint32_t rank);
uint32_t scale_node_of(const struct scale *s, uint32_t rank);
/* The kernels of a machine store to each other's memory: nothing goes through the engine. */
int scale_is_near(const struct scale *s, uint32_t a, uint32_t b);
/* splitmix64 of a seed and three numbers. */
uint64_t scale_mix(uint64_t seed, uint64_t a, uint64_t b, uint64_t c);
/* The ranks that a token's entries go to: DeepSeek-V3's choice, 8 of 256 experts from 4 of 8 groups; above 256 ranks one of an expert's copies. */
void scale_route(const struct scale *s, uint32_t round, uint32_t rank, uint32_t token,
		 uint32_t to[SCALE_TOPK]);

/* ll.c: low latency. One object for a job; a call of dispatch, then one of combine, each a phase. */
struct scale_ll;
struct scale_ll *scale_ll_open(struct scale *s, uint32_t job);
void scale_ll_close(struct scale_ll *ll);
int scale_ll_begin(struct scale_ll *ll, uint32_t round, int combine);
/* Rows and notes that have not arrived at ranks that live from ranks that live. */
uint64_t scale_ll_missing(const struct scale_ll *ll);

/* ht.c: high throughput, likewise. */
struct scale_ht;
struct scale_ht *scale_ht_open(struct scale *s, uint32_t job);
void scale_ht_close(struct scale_ht *ht);
int scale_ht_begin(struct scale_ht *ht, uint32_t round, int combine);
uint64_t scale_ht_missing(const struct scale_ht *ht);

/* tenants.c: job 0 decodes, the others put as much as they may; all on the same nodes. */
struct scale_tenants_options {
	uint32_t rounds, rows; /* of decode: rows of a round from a rank to each other one */
	uint32_t
		warm_up; /* rounds of them that do not count: in the first all jobs begin at once */
	uint32_t bulk_bytes; /* of a put of the others */
	uint64_t pause_ns;   /* between rounds, on average */
};

struct scale_tenants_result {
	double median_us, p99_us, most_us;  /* of decode's rounds, over ranks and rounds */
	double bulk_gbytes[SCALE_JOBS_MAX]; /* a second, that landed; of all ranks of a job */
	double share[SCALE_JOBS_MAX]; /* of the time, that a job had the thread of the first node */
	double step_us[SCALE_JOBS_MAX]; /* its longest step */
	uint64_t
		most_inflight; /* payload that a bulk job had under way on a port, as it counts it */
	char why[256];
};

/* Opens a simulation of so->jobs jobs, plays, closes it. 0, or less with out->why. */
int scale_tenants(const struct scale_options *so, const struct scale_tenants_options *o,
		  struct scale_tenants_result *out);

/* Lets the ranks of an engine do what they can. Returns how much. */
int scale_poll(struct scale *s, struct scale_core *c);
/* Doorbells of an engine so far. */
uint64_t scale_doorbells(const struct scale_core *c);
/* Begins a phase: all ranks whose job has a program run. */
void scale_begin(struct scale *s, uint64_t now_ns);

/* real.c: prints what an engine works in low-latency calls of 8 to `most` ranks, real and by the model. Returns 0, or less with epf_last_error(). */
int scale_real(const struct scale_options *o, uint32_t most, uint32_t rounds);

/* What a phase came to. */
struct scale_result {
	uint64_t ranks;                    /* that ended it */
	double time_us, median_us, p99_us; /* the slowest rank's, and over ranks */
	double wire_us;                    /* the fullest port's bytes at its rate, and one way */
	double cpu_us;                     /* the busiest engine thread */
	double queued_us;                  /* longest wait at a receiving port */
	double commands, messages, bytes;  /* a rank's, on average */
	/* Of the slowest percent of ranks: how many owe their time to what. */
	uint32_t slow, slow_sender, slow_out, slow_way, slow_in, slow_receiver;
};

void scale_result(struct scale *s, uint32_t job, struct scale_result *out);

/* What the engines of a job hold. */
struct scale_memory {
	uint64_t queue_pairs;     /* of a node */
	uint64_t engine_bytes;    /* of an engine, the largest: what it has allocated for peers */
	uint64_t engine_most;     /* what it may grow to */
	uint64_t peer_pair_bytes; /* engine_bytes for each pair of a local rank and another rank */
	uint64_t signal_bytes,
		ll_bytes; /* of a rank: its signals, and communication memory of low latency */
};

void scale_memory(const struct scale *s, struct scale_memory *out);

#endif
