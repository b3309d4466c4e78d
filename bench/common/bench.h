/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the subcommands of ep-bench share: reading options with their ranges, printing JSON, medians,
 * two threads on two CPUs. Included by bench/ only.
 */
#ifndef EPF_BENCH_BENCH_H
#define EPF_BENCH_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A subcommand: returns an exit code, 0 only when what it measured is also right. */
struct bench_command {
	const char *name;
	const char *help;
	int (*run)(int argc, char **argv);
	bool hidden;
};

int bench_moe(int argc, char **argv);
int bench_moe_rank(int argc, char **argv);
int bench_core(int argc, char **argv);
int bench_ring(int argc, char **argv);
int bench_p2p(int argc, char **argv);
int bench_p2p_rank(int argc, char **argv);
int bench_copies(int argc, char **argv);
int bench_jobs(int argc, char **argv);
int bench_jobs_rank(int argc, char **argv);
int bench_rawverbs(int argc, char **argv);
int bench_empty(int argc, char **argv);
int bench_scale(int argc, char **argv);
int bench_startup(int argc, char **argv);
int bench_xfer(int argc, char **argv);

/* Exit codes. */
enum {
	BENCH_OK = 0,
	BENCH_WRONG = 1, /* ran, and a check failed or a rank did */
	BENCH_USAGE = 2, /* nothing ran: an option makes no sense */
};

/* Prints "ep-bench: <message>" to stderr. */
void bench_complain(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* For an error of libepf: complains of epf_last_error() unless err is 0. Returns err. */
int bench_check(int err);

/* From now on complaints go to this function instead of stderr (without the prefix). */
void bench_complain_to(void (*sink)(const char *line));

/*
 * Reads an option's number and complains, naming option and range, when it is not one inside
 * min..max. Return: 0, or -EINVAL with nothing written.
 */
int bench_uint(const char *option, const char *text, uint64_t min, uint64_t max, uint64_t *out);
int bench_probability(const char *option, const char *text, double *out);

/* Index of text in a NULL-terminated list, or -EINVAL after a complaint that names the list. */
int bench_word(const char *option, const char *text, const char *const *words);

/*
 * Settings of --set are [NODE:]NAME=VALUE: without a number they are everybody's, with one that node's only.
 * check: complains about text of another form; list: about a node that is none of the job's. Return 0 or -EINVAL.
 */
int bench_setting_check(const char *text);
int bench_settings_check(const char *const *settings, uint64_t nodes);
/* Appends the text of a --set to a list of `most` at most. 0, or -EINVAL after a complaint. */
int bench_setting_add(const char **list, uint32_t *n, uint32_t most, const char *text);
/* The settings a node gets, as NAME=VALUE, in their order: pointers into the texts. out: room for all. Return: how many. */
uint32_t bench_settings_of(const char *const *settings, uint32_t node, const char **out);

/*
 * Longest time, ns, that a rank may wait for others in a run that has timeout_s: three quarters of it. A rank that gives up can say which ranks it
 * waited; the parent, when the whole time is over, only who has no result.
 */
uint64_t bench_rank_limit_ns(uint64_t timeout_s);

/* Median; sorts v. 0 for n = 0. */
double bench_median(double *v, size_t n);

/* A percentile is not reported when fewer samples than this lie beyond it: it would be the figure of one or two outliers. */
enum { BENCH_BEYOND = 10 };

/* The sample of rank ceil(n * per_mille / 1000) of n sorted ones; NAN with fewer than BENCH_BEYOND samples beyond it. */
double bench_percentile(const double *sorted, uint64_t n, unsigned per_mille);

/* A figure as text in two decimals, "n/a" for NAN. Uses `text`. */
const char *bench_figure(double v, char text[32]);

/*
 * The best rate over windows of at least `least` events and BENCH_WINDOW_NS each. per_second is NAN until one window is complete. note: the
 * caller read `count`, the events so far, between the times before_ns and now_ns. A window runs from the first time of one reading to the second
 * of another, so that a caller preempted between count and clock reports no higher rate. end: the peak, NAN or at least the average of the run,
 * which is a window too.
 */
enum { BENCH_WINDOW_NS = 10000000 };

struct bench_peak {
	uint64_t least, count, ns;
	double per_second;
};

void bench_peak_start(struct bench_peak *p, uint64_t least, uint64_t now_ns);
void bench_peak_note(struct bench_peak *p, uint64_t count, uint64_t before_ns, uint64_t now_ns);
double bench_peak_end(const struct bench_peak *p, double average_per_second);

/* -EINVAL after a complaint, "--set is SETTING, WHY", where a list of --set gives this NAME=VALUE to some node; else 0. */
int bench_settings_refuse(const char *const *settings, const char *setting, const char *why);

/* CPU time of the calling thread, ns: CLOCK_THREAD_CPUTIME_ID of clock_gettime(2). */
uint64_t bench_thread_ns(void);

/* Pins the calling thread to the n-th CPU that it may run on; quietly does nothing when it cannot. */
void bench_pin(unsigned n);

/* Number of the n-th CPU that this process may run on; -1: there are not so many. */
int bench_cpu_number(unsigned n);

/* CPUs this process started with. Call it, or bench_pin(), first from a single thread. */
unsigned bench_cpus(void);

/*
 * Path of a program of the tree: the one given, else ../tools/NAME beside this program (the build tree), or NAME beside it (installed). option:
 * what names it, for complaints. Returns 0 or -ENOENT after a complaint.
 */
int bench_find_program(const char *name, const char *option, const char *given, char *path,
		       size_t bytes);

/*
 * Makes a directory of this run in TMPDIR, /tmp or /dev/shm; the caller removes it. The path of a socket must be short: a TMPDIR that leaves
 * less than 32 of `bytes` is passed over. Returns 0 or -EACCES after a complaint.
 */
int bench_private_dir(char *dir, size_t bytes);

/*
 * Memory that this process costs, bytes (memory.c): its share of what is mapped, and all of the memory of epf_memory_alloc that it still holds by
 * descriptor, touched or not: a daemon allocates regions whole. 0 when unknown.
 */
uint64_t bench_held_bytes(void);
/* The same of a daemon, less the memory of its ranks, who count it themselves. */
uint64_t bench_held_of_daemon(unsigned long pid);

/* Bytes of memory that can still be had: the smaller of the machine's and the control group's. */
uint64_t bench_memory_available(void);

#endif
