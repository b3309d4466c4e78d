/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process between ep-bench and its daemons: starts them, waits until ep-bench ends or says so, ends them, removes
 * their files. For daemons.c only. Must never outlive ep-bench by more than the daemons' deadline.
 */
#ifndef EPF_BENCH_KEEPER_H
#define EPF_BENCH_KEEPER_H

#include "bench/daemons.h"

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
