/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of ep-bench p2p: options and the rows of numbers that rank 0 sends to the parent.
 */
#ifndef EPF_BENCH_P2P_H
#define EPF_BENCH_P2P_H

#include "bench/verbs/rawverbs.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define P2P_SETTINGS_MAX 32
#define P2P_SIZE_MAX     (8u << 20)
#define P2P_GPU_NAME     96
#define P2P_GPU_CPUS     8u
#define P2P_AGAINST_MAX  (1u << 20) /* bytes of a write of --against */

struct epf;
struct epf_boot;
struct epf_ring;

enum p2p_op {
	P2P_PUT,
	P2P_PUT_SIGNAL,
	P2P_GET,
	P2P_PUT_ADD, /* --gpu, latency: the signal is a word of GPU memory, to which the NIC adds */
};

enum p2p_test { P2P_LAT, P2P_BW };

struct p2p_opts {
	enum p2p_op op;
	enum p2p_test test;
	uint64_t size;
	uint64_t iterations; /* 0: not given */
	uint64_t duration_s; /* 0: count iterations */
	bool all;            /* sizes 2, 4, ... 8 MiB */
	bool both;           /* both ranks send at once */
	bool same_node;
	bool json;
	bool service; /* embedded against daemons; with test_given only that test */
	bool test_given;
	bool size_given;
	uint64_t rounds; /* of service */
	const char *fabric_program;
	uint64_t timeout_s;
	const char *setting[P2P_SETTINGS_MAX + 1];
	uint32_t settings;
	const char *nic;
	char way[96]; /* of two hosts: this one's address on the way to the other, with the port: what nic=auto goes by */
	const char *host;                    /* the client of two hosts; NULL: not */
	bool server;                         /* the other end of that */
	uint64_t tcp_port;                   /* where they meet */
	char device[2][RAWVERBS_DEVICE_MAX]; /* of each rank's node; "": not given */
	/* --against rawverbs: what both sides of the comparison get. */
	bool against;
	struct rawverbs_opts raw;
	bool threaded;   /* rank 0's engine has a separate thread */
	uint64_t slices; /* of a pair, alternating; their median counts */
	uint64_t gate;   /* per cent of the bare loop's rate that fail below; 0: none */
	/* --gpu */
	bool gpu;                /* between GPU memories, asked for by kernels */
	const char *gpu_backend; /* as gpu-backend */
	bool gpu_kernel;         /* the software NIC copies by kernels, not by copy engines */
	bool gpu_signals;        /* signals lie in GPU memory (epf_signals_place) */
	bool stages;             /* time by stage is printed (stages.c) */
	bool pretend;            /* the fake GPU copies nothing, but takes this long: */
	uint64_t copy_ns, submit_ns;
	uint64_t warps;     /* that push at once, of a stream */
	char made[16][96];  /* settings made out of the letters above */
	uint32_t made_used; /* of them */
};

/* Where an engine's core spends its time, ns a transfer (--gpu --test bw). */
enum p2p_stage {
	P2P_TAKE,
	P2P_CHECK,
	P2P_STAGE,
	P2P_POST,
	P2P_COMPLETE,
	P2P_ARRIVE,
	P2P_BUSY, /* all of its busy steps, the NIC's own work included */
	P2P_STAGES,
};

enum { P2P_NIC_STAGES = 7, P2P_NIC_TALLIES = 5 };

/* --stages: the same inside the NIC and of the copier's thread, ns and numbers in all (fabric/nic/emu/stages.h). */
struct p2p_stages {
	double nic_ns[P2P_NIC_STAGES], nic_n[P2P_NIC_TALLIES];
	double take_ns, pump_ns, submit_ns, copies, batches;
	double wall_ns;
};

/* One size. Times in us, bandwidth in MB/s of 2^20 bytes as perftest prints them. */
struct p2p_row {
	uint64_t bytes;
	uint64_t iterations;
	double min_us;
	double max_us;
	double typical_us; /* median */
	double average_us;
	double stdev_us;
	double p99_us;
	double p999_us;
	double peak_mb_s;
	double average_mb_s;
	double rate_mpps;
	double stage_ns[P2P_STAGES];
	struct p2p_stages stages;
	double stalls;  /* times a transfer found its lane full or no credit, a transfer */
	uint64_t wrong; /* bytes at the target that are not the source's */
};

/* --against: one size in one round, as rank 0 sends it. Writes a second; medians of the slices. */
struct p2p_pair {
	uint64_t bytes;
	uint64_t round;
	double fabric_per_second;
	double bare_per_second;
	double fabric_list; /* work requests of one post, mean */
	uint64_t broken;    /* connections of the loop that failed until now and were made again */
};

int p2p_opts_parse(int argc, char **argv, struct p2p_opts *o);
/* Sizes of the run in order; returns how many, at most 32. */
unsigned p2p_sizes(const struct p2p_opts *o, uint64_t sizes[32]);

extern const char *const p2p_op_name[];
extern const char *const p2p_test_name[];

/* The settings behind the letters, made once all options are known (a server learns some from its client). 0 or -EINVAL. */
int p2p_settings(struct p2p_opts *o);
/* row.c: the latency columns from n samples in us, which it sorts; the table as perftest prints it; a row's JSON object. */
void p2p_statistics(double *v, uint64_t n, struct p2p_row *row);
void p2p_print_head(const struct p2p_opts *o);
void p2p_print_row(const struct p2p_opts *o, const struct p2p_row *r);
json_t *p2p_row_json(const struct p2p_opts *o, const struct p2p_row *r);

/* host.c: one of two hosts. Returns an exit code. */
int bench_p2p_host(struct p2p_opts *o);

/* against.c: collects the pairs of a run and prints them. */
struct p2p_against;
/* NULL after a complaint. */
struct p2p_against *p2p_against_new(const struct p2p_opts *o);
void p2p_against_add(struct p2p_against *run, const struct p2p_pair *pair);
/* Prints medians and ratios. Return: how many sizes are below the gate. */
int p2p_against_print(struct p2p_against *run, uint64_t wrong);

/* against.c, the parent: the fabric against a bare post loop in the same two processes. Returns an exit code. */
int bench_p2p_against(const struct p2p_opts *o, int argc, char **argv);

struct p2p_gpu;

/* One of the two ranks. */
struct p2p_rank {
	const struct p2p_opts *o;
	uint32_t rank;
	uint32_t peer;
	struct epf *ep;
	struct epf_ring *ring;
	uint32_t region;
	uint8_t *source; /* P2P_SIZE_MAX bytes, and as many behind them: */
	uint8_t *target;
	uint64_t signals; /* received so far */
	double *sample;
	struct p2p_gpu *gpu; /* --gpu */
	uint64_t wrong;
	/* Where rows go: the parent's pipe, or printed. */
	void (*row)(void *arg, const void *row, size_t bytes);
	void *row_arg;
};

/* rank.c: opens, joins, runs what the options say, closes; r: o, rank, row and row_arg. 0, or -errno after a complaint. */
int p2p_run(struct p2p_rank *r, struct epf_boot *boot);
extern const char *const p2p_stage_name[P2P_STAGES];

/*
 * gpu.c: a rank's part of --gpu. memory: before the join, registers the region; open: after it; size: one size, as rank.c does
 * for ordinary memory (complains by itself); close accepts a rank that has none. 0 or -errno with epf_last_error().
 */
int p2p_gpu_memory(struct p2p_rank *r);
int p2p_gpu_open(struct p2p_rank *r);
int p2p_gpu_size(struct p2p_rank *r, uint64_t bytes, unsigned number);
void p2p_gpu_close(struct p2p_rank *r);
/* The parent's: 0 with the GPUs' name, or an exit code after a line that says why (BENCH_NO_GPU: there is none). */
int p2p_gpu_probe(const struct p2p_opts *o, char name[P2P_GPU_NAME]);
/* What bare batched copies of this size reach, a second; 0: not known. */
double p2p_gpu_ceiling(const struct p2p_opts *o, uint64_t bytes);

/* stages.c: asks for them, before the NIC is opened; adds them as they are now (sign -1: takes them off); the lines of one rank. */
void p2p_stages_want(void);
void p2p_stages_add(struct p2p_stages *s, double sign);
void p2p_stages_print(const struct p2p_row *r, double puts);
json_t *p2p_stages_json(const struct p2p_row *r, double puts);

/* pairs.c: the rank's part of --against. */
int p2p_pairs(struct p2p_rank *r);

/* service.c: embedded against service. argc and argv are what the ranks get. Returns an exit code. */
int bench_p2p_service(const struct p2p_opts *o, int argc, char **argv);

#endif
