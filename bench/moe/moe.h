/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of ep-bench moe: options, the data of a round and what must come out of it, one process's
 * ranks, results. Shared by the parent, the rank processes, --local and the tests.
 */
#ifndef EPF_BENCH_MOE_H
#define EPF_BENCH_MOE_H

#include "bench/common/launched.h"
#include "fabric/client/epf.h"
#include "kernels/host/gate.h"
#include "kernels/host/moe.h"
#include "tests/ref/ref.h"

#include <stdbool.h>
#include <stdint.h>

#define MOE_SETTINGS_MAX 24

enum moe_routing {
	MOE_AUTO, /* deepseek when the shape allows it, else uniform */
	MOE_UNIFORM,
	MOE_ZIPF,
	MOE_ONE_EXPERT,
	MOE_EMPTY_RANKS,
	MOE_DEEPSEEK,
};

struct moe_opts {
	uint64_t ranks;
	uint64_t nodes;
	uint64_t tokens;
	uint64_t hidden;
	uint64_t topk;
	uint64_t experts;
	bool fp8;
	enum epf_moe_mode mode;
	bool unordered;
	uint64_t seed;
	uint64_t delay_us;
	double reorder;
	double duplicate;
	double drop;
	double unselected; /* probability that an entry becomes -1 */
	enum moe_routing routing;
	uint64_t rounds;
	uint64_t timeout_s;
	bool json;
	bool local;
	bool service;                /* ranks use daemons, one a node */
	bool both;                   /* embedded, then through daemons */
	bool launched;               /* this process is one rank of a launcher's job */
	struct bench_launched place; /* with launched: which; its boot is open */
	const char *fabric_program;  /* of the daemons; NULL: beside this one */
	bool quiet;
	const char *setting[MOE_SETTINGS_MAX + 1]; /* "name=value", NULL-terminated */
	uint32_t settings;
	char text[8][64]; /* storage of settings made from options */
	char nic[64];     /* the setting that --nic stands for */
};

/*
 * opts.c: reads and checks; returns 0, or BENCH_USAGE after one line of complaint. With --launched it meets the other ranks, whose number and nodes the
 * checks need; the caller closes o->place.boot, also after an error.
 */
int moe_opts_parse(int argc, char **argv, struct moe_opts *o);
const char *moe_routing_name(enum moe_routing r);
/* The configuration of one rank's kernel. node_of stays the caller's. */
struct epf_moe_config moe_config(const struct moe_opts *o, uint32_t rank, const uint32_t *node_of);

/* What moved and how long it took: dispatch or combine of one round, one rank or a sum of ranks. */
struct moe_phase {
	uint64_t ns;        /* of the slowest rank */
	uint64_t kernel_ns; /* CPU time of the ranks' own threads, without the engines' */
	uint64_t cpu_ns;    /* of all their threads, also until everything is sent */
	uint64_t bytes_remote_node;
	uint64_t bytes_same_node;
	uint64_t commands;
	uint64_t doorbells;
	uint64_t wrong;
	uint64_t expected_remote_node; /* what the reference says must cross */
};

enum { MOE_DISPATCH, MOE_COMBINE, MOE_PHASES };

/* Counters over the whole run: what the NIC did to the traffic and what the engine made of it. */
#define MOE_FAULTS(F)      \
 F(signals_applied)        \
 F(signals_waited)         \
 F(duplicates_dropped)     \
 F(arrivals)               \
 F(nic_packets_reordered)  \
 F(nic_packets_duplicated) \
 F(nic_packets_dropped)    \
 F(nic_retransmits)        \
 F(failovers)              \
 F(recoveries)             \
 F(replays)                \
 F(failover_max_ns)

enum moe_fault {

#define F(name) MOE_F_##name,
	MOE_FAULTS(F)
#undef F
		MOE_FAULT_COUNT
};

extern const char *const moe_fault_name[MOE_FAULT_COUNT];

struct moe_fault_sum {
	uint64_t count;
	uint32_t known; /* 0: the library has no such counter */
};

/* Adds one engine's counter: to the sum, or where it says how long something took at most, to the largest. */
void moe_fault_add(struct moe_fault_sum *sum, int fault, uint64_t value);

#define MOE_ROUNDS_MAX 64

struct moe_result {
	struct moe_phase phase[MOE_ROUNDS_MAX][MOE_PHASES];
	struct moe_fault_sum fault[MOE_FAULT_COUNT];
	uint64_t peak_bytes;     /* memory of the process */
	uint64_t bytes_per_peer; /* largest of any rank */
	uint64_t received_rows;
	char first_wrong[512]; /* what was wrong first, or "" */
};

/* The data of a round: a function of the options and the round's number. */
struct moe_data {
	const struct moe_opts *opts;
	struct ref_job job; /* x is NULL: rows are made one by one */
	uint64_t seed;      /* of this round's rows and routing */
	uint32_t *node_of;
	int *node_of_rank;
	int *tokens;
	int64_t **idx;
	float **weight;
	uint32_t local_experts;
	uint32_t row_bytes;     /* of a dispatch row, as engines count it */
	uint32_t payload_bytes; /* of it, what the reference knows */
	/* scratch of one row */
	uint16_t *x;
	uint16_t *deq;
	uint16_t *y;
	uint8_t *payload;
	uint8_t *payload2;
	float *acc;
	uint16_t *y2;
};

int moe_data_init(struct moe_data *d, const struct moe_opts *o);
void moe_data_free(struct moe_data *d);
/* Makes routing and seed of round n. Return 0 or -errno after a complaint. */
int moe_data_round(struct moe_data *d, uint32_t n);
/* The BF16 input row of a token, into d->x. */
const uint16_t *moe_data_x(struct moe_data *d, uint32_t src, uint32_t token);
/*
 * The stand-in for an expert: y[c] = x[c] times a power of two (1 to 8) and a sign that depend on
 * expert and channel, exact in BF16 for every input the generator makes.
 */
void moe_expert(uint32_t expert, const uint16_t *x, uint32_t hidden, uint16_t *y);
/* Tokens of src with at least one expert on ranks for which pick() holds. */
uint32_t moe_data_count(const struct moe_data *d, uint32_t src, uint32_t first_rank,
			uint32_t end_rank);
uint32_t moe_data_count_node(const struct moe_data *d, uint32_t src, uint32_t node);

/* One rank of this process. */
struct moe_rank {
	uint32_t rank;
	struct epf *ep;
	struct epf_moe *moe;
	uint16_t *x;         /* [tokens][hidden] */
	uint16_t *out;       /* [tokens][hidden] */
	uint64_t counter[8]; /* at the start of the phase */
	uint64_t own_bytes;  /* rows that it had kept when the phase began */
	bool counted; /* by a lower rank of its node: they share the engine and its counters */
};

/* All ranks of this process. */
struct moe_job {
	const struct moe_opts *opts;
	struct moe_data data;
	struct moe_rank *rank;
	uint32_t ranks;
	int (*barrier)(struct moe_job *job); /* over all processes; 0 or -errno */
	void (*progress)(struct moe_job *job, uint32_t round, unsigned phase);
	void *arg;
	uint8_t poison;
	bool poison_all; /* small enough to poison every byte that peers may write */
	struct moe_result result;
};

typedef void (*moe_progress)(void *arg, struct moe_job *job, uint32_t round, unsigned phase);

/* rank.c: the barrier of a job with one rank in each process. */
int moe_process_barrier(struct moe_job *job);

/*
 * rank.c: a rank process, from opening the fabric to closing it. done: called after the last round with every rank still there, for the results. Returns 0
 * or -errno after a complaint.
 */
int moe_rank_run(struct moe_job *job, struct epf_boot *boot, int (*done)(struct moe_job *job));

/* launched.c: runs this process's rank of a launcher's job; rank 0 reports. Returns the exit code. */
int moe_launched_run(struct moe_opts *o, moe_progress progress, void *arg);

/* Opens kernels on ranks whose ep is open, before the join. Complains. */
int moe_job_open(struct moe_job *job);
/* Runs all rounds with all checks. Return: 0 also when something was wrong (see result). */
int moe_job_run(struct moe_job *job);
void moe_job_close(struct moe_job *job);

/* check.c: counts what is wrong into the phase, notes the first in the result. */
void moe_wrong(struct moe_job *job, struct moe_phase *ph, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* The source's own rows: the fast quantisation that receivers compare with equals the reference's. */
void moe_check_input(struct moe_job *job, struct moe_rank *r, struct moe_phase *ph);
void moe_check_dispatch(struct moe_job *job, struct moe_rank *r, struct moe_phase *ph);
void moe_check_combine(struct moe_job *job, struct moe_rank *r, struct moe_phase *ph);
/* The caller's part between dispatch and combine: from received rows to output rows. */
void moe_compute(struct moe_job *job, struct moe_rank *r);

/* poison.c: fills what peers will write in the coming round; afterwards looks at what they must not. */
void moe_poison(struct moe_job *job, struct moe_rank *r);
void moe_check_poison(struct moe_job *job, struct moe_rank *r, struct moe_phase *ph);

/*
 * local.c: runs everything inside this process. Return 0 also when something was wrong.
 * progress: NULL, or called after each phase, before its results are looked at.
 */
int moe_local_run(const struct moe_opts *o, moe_progress progress, void *arg,
		  struct moe_result *out);

/* result.c */
extern const char *const moe_phase_name[MOE_PHASES];
void moe_result_add(struct moe_result *sum, const struct moe_result *one, uint32_t rounds);
/*
 * Wrong of a phase over all rounds: failed checks, and rounds whose bytes between nodes are not
 * what the reference says. note: gets the first of the latter, if it is empty.
 */
uint64_t moe_phase_wrong(const struct moe_opts *o, const struct moe_result *r, int p, char *note,
			 size_t note_bytes);

/* report.c: prints table or JSON; returns BENCH_OK or BENCH_WRONG. */
int moe_report(const struct moe_opts *o, const struct moe_result *r, double seconds);

/* What a report says of one run. Times and bytes of the timed rounds; wrong of all rounds. */
struct moe_summary {
	double us[MOE_PHASES];
	struct moe_phase mean[MOE_PHASES];
	uint64_t wrong[MOE_PHASES];
	uint64_t wrong_sum;
	uint64_t moved;
	char note[512]; /* what was wrong first, or "" */
};

void moe_summarise(const struct moe_opts *o, const struct moe_result *r, struct moe_summary *s);
double moe_gb_per_second(const struct moe_summary *s, int p);
/* The two lines that say what ran. */
void moe_print_head(const struct moe_opts *o, const char *how);
/* One run as JSON; the caller's. Printing takes it. */
struct json_t *moe_json(const struct moe_opts *o, const struct moe_result *r,
			const struct moe_summary *s, double seconds);

/* gpu.c: whether --gpu is among the options; and what --gpu runs instead: does not return, or BENCH_USAGE after a complaint. Takes --gpu out of argv. */
bool moe_wants_gpu(int argc, char **argv);
int moe_gpu_run(int argc, char **argv);

/* both.c: both runs side by side. Indices: 0 embedded, 1 service. Returns BENCH_OK or BENCH_WRONG. */
int moe_report_both(const struct moe_opts *o, const struct moe_result r[2],
		    const double seconds[2]);

#endif
