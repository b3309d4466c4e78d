/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of ep-bench p2p: options and the rows of numbers that rank 0 sends to the parent.
 */
#ifndef EPF_BENCH_P2P_H
#define EPF_BENCH_P2P_H

#include <stdbool.h>
#include <stdint.h>

#define P2P_SETTINGS_MAX 16
#define P2P_SIZE_MAX     (8u << 20)

enum p2p_op { P2P_PUT, P2P_PUT_SIGNAL, P2P_GET };

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
	uint64_t wrong; /* bytes at the target that are not the source's */
};

int p2p_opts_parse(int argc, char **argv, struct p2p_opts *o);
/* Sizes of the run in order; returns how many, at most 32. */
unsigned p2p_sizes(const struct p2p_opts *o, uint64_t sizes[32]);

extern const char *const p2p_op_name[];

/* p2p_service.c: embedded against service. argc and argv are what the ranks get. Returns an exit code. */
int bench_p2p_service(const struct p2p_opts *o, int argc, char **argv);

#endif
