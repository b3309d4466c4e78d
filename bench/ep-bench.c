/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-bench: measures EP fabric and checks what it moved. A table of subcommands, each with its own
 * options. Exit code 0 only when everything that was checked was right.
 */
#include "bench/common/bench.h"

#include "fabric/client/epf.h"

#include <stdio.h>
#include <string.h>

static const struct bench_command commands[] = {
	{ "moe", "dispatch and combine of a Mixture-of-Experts layer, checked bit for bit",
	  bench_moe, false },
	{ "moe-rank", "one rank of moe", bench_moe_rank, true },
	{ "core", "how many commands one engine core handles a second", bench_core, false },
	{ "empty",
	  "what the fabric adds to a bare post loop, on an RDMA provider that does nothing",
	  bench_empty, false },
	{ "ring", "throughput and round trip of the command ring beside a bare rte_ring",
	  bench_ring, false },
	{ "p2p", "latency and bandwidth of put, put_signal and get between two ranks", bench_p2p,
	  false },
	{ "p2p-rank", "one rank of p2p", bench_p2p_rank, true },
	{ "copies", "time of the software NIC's own copies for a list, without rings and engine",
	  bench_copies, false },
	{ "jobs", "a decode-like job alone and beside a bulk job on the same daemons", bench_jobs,
	  false },
	{ "jobs-rank", "one rank of jobs", bench_jobs_rank, true },
	{ "scale", "dispatch and combine of up to thousands of ranks on a simulated network",
	  bench_scale, false },
	{ "startup", "how long thousands of ranks take to meet over the bootstrap", bench_startup,
	  false },
	{ "xfer", "point-to-point transfers of many blocks between two processes, verified",
	  bench_xfer, false },
	{ "rawverbs",
	  "rate of a bare verbs post loop between two processes: what the fabric is compared with",
	  bench_rawverbs, false },
};

#define COMMANDS (sizeof(commands) / sizeof(commands[0]))

static void usage(FILE *f)
{
	fprintf(f, "Usage: ep-bench COMMAND [OPTION...]\n\n");
	for (size_t i = 0; i < COMMANDS; i++)
		if (!commands[i].hidden)
			fprintf(f, "  %-8s %s\n", commands[i].name, commands[i].help);
	fprintf(f, "\nep-bench COMMAND --help lists the options.\n");
}

int main(int argc, char **argv)
{
	if (argc >= 2 &&
	    (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "-?"))) {
		usage(stdout);
		return BENCH_OK;
	}
	if (argc >= 2 && !strcmp(argv[1], "--version")) {
		printf("ep-bench %s\n", epf_version());
		return BENCH_OK;
	}
	for (size_t i = 0; argc >= 2 && i < COMMANDS; i++)
		if (!strcmp(argv[1], commands[i].name))
			return commands[i].run(argc - 1, argv + 1);
	if (argc >= 2)
		bench_complain("%s is not a command: see ep-bench --help", argv[1]);
	else
		usage(stderr);
	return BENCH_USAGE;
}
