/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process between ep-bench and its daemons: starts them, waits until ep-bench ends or says so, ends them, removes
 * their files. Must never outlive ep-bench by more than the daemons' deadline.
 */
#ifndef EPF_BENCH_KEEPER_H
#define EPF_BENCH_KEEPER_H

#include <stdint.h>

enum { BENCH_DAEMONS_MAX = 256, BENCH_DAEMONS_DIR = 80 };

struct bench_daemons_options {
	uint32_t nodes;
	const char *
		program; /* ep-fabric; NULL: ../tools/ep-fabric beside this program, or ep-fabric beside it */
	const char *const *
		settings; /* NULL, or list of [NODE:]NAME=VALUE ended by NULL: options of every daemon, or of one */
	uint32_t
		pin; /* 1: engine threads of daemon n on the n-th CPU (modulo) this process may use */
};

/*
 * Two reports to ep-bench, each one line: after the start and after the end. The first byte says good or bad; then the process
 * numbers (good, at the start) or what went wrong.
 */
enum { KEEPER_GOOD = '+', KEEPER_BAD = '-', KEEPER_REPORT_MAX = 4096 };

/* Does not return. control: ends when ep-bench wants the end, or is gone. */
void bench_keeper_main(const struct bench_daemons_options *o, const char *dir, const char *program,
		       int control, int report) __attribute__((noreturn));

/* The first warnings and errors that daemon n wrote. */
void bench_keeper_warnings(const char *dir, uint32_t n, void (*each)(uint32_t n, const char *line));

#endif
