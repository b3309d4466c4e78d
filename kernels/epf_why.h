/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the time of dispatch and combine goes: what the kernels of kernels/ll and kernels/ht count about their calls, as a report, and what follows from the
 * reports of one rank or of all. Python's Buffer.why_slow(), ep-fabric why and ep-top call this. Part of libepf-ll; the functions
 * that need no struct epf_ll are a library of their own for tools (kernels/why).
 *
 * A call's time on the GPU is split into phases, as the kernel's first block sees it. What it waited for is counted for each rank.
 *
 * Errors: 0 or a negative errno, with epf_ll_error() set. Threads: any thread for epf_why_read() while the struct epf_ll is open; the others are pure.
 */
#ifndef EPF_KERNELS_WHY_H
#define EPF_KERNELS_WHY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

struct epf_ll;

/* Kinds of calls. Their names (epf_why_call_name()) are those of the ranges that profilers show. */
enum epf_why_call {
	EPF_WHY_HT_LAYOUT = 0,
	EPF_WHY_HT_NOTIFY = 1,
	EPF_WHY_HT_DISPATCH = 2,
	EPF_WHY_HT_COMBINE = 3,
	EPF_WHY_LL_DISPATCH_SEND = 4,
	EPF_WHY_LL_DISPATCH_RECV = 5,
	EPF_WHY_LL_COMBINE_SEND = 6,
	EPF_WHY_LL_COMBINE_RECV = 7,
	EPF_WHY_CALLS = 8,
};

enum epf_why_phase {
	EPF_WHY_WAIT = 0, /* other ranks are waited for: to begin; in low latency, for their rows */
	EPF_WHY_MOVE = 1, /* rows are on their way between ranks */
	EPF_WHY_COPY = 2, /* rows are here: they are unpacked, copied or added */
	EPF_WHY_PHASES = 3,
};

/* Why a rank was waited for, as far as the rank that waited can know. */
enum epf_why_reason {
	EPF_WHY_LATE = 0,   /* it had not begun the call */
	EPF_WHY_SLOW = 1,   /* it had, and its rows were on their way */
	EPF_WHY_EITHER = 2, /* one of them */
	EPF_WHY_REASONS = 3,
};

struct epf_why_calls {
	uint64_t calls;
	uint64_t ns[EPF_WHY_PHASES];
};

struct epf_why_wait {
	uint64_t ns;
	uint64_t times; /* waits longer than EPF_WHY_LEAST_NS */
	uint64_t most_ns;
};

#define EPF_WHY_LEAST_NS 20000u

/* What one rank knows of another in one kind of call. */
struct epf_why_peer {
	struct epf_why_wait wait[EPF_WHY_REASONS];
	uint64_t
		rows_to; /* rows that rank receives: high throughput, of all ranks; low latency, of this one */
	uint64_t rows_from; /* rows that this rank received from it */
};

/* Sums since the start. */
struct epf_why_report {
	uint32_t bytes; /* epf_why_report_bytes(ranks) */
	uint32_t rank;
	uint32_t ranks;
	uint32_t reserved;
	struct epf_why_calls call[EPF_WHY_CALLS];
	struct epf_why_peer peer[]; /* [EPF_WHY_CALLS][ranks] */
};

enum epf_why_kind {
	EPF_WHY_IS_LATE = 0,    /* the rank begins its calls later than the others */
	EPF_WHY_IS_LINK = 1,    /* it begins in time, and its rows take longer */
	EPF_WHY_IS_LOAD = 2,    /* it sends or receives more rows than the others */
	EPF_WHY_IS_UNKNOWN = 3, /* late, or a slow link: the report of the rank itself is needed */
};

/* One cause, for one rank. */
struct epf_why_cause {
	uint32_t kind; /* enum epf_why_kind */
	uint32_t rank;
	uint64_t ns;      /* all other ranks of the reports together waited so long for it */
	uint64_t times;   /* in so many waits */
	uint64_t most_ns; /* the longest of them */
	double share;     /* ns of the time of all calls of these ranks */
	double received; /* rows it receives, as a multiple of the mean of the others; 0: not known */
	double sent;     /* rows it sends, likewise */
	uint32_t call;   /* enum epf_why_call in which it was waited for longest */
	uint32_t reserved;
};

/* Returns the name of a kind of call ("ht.dispatch"), of a kind of cause ("late"). Never NULL. */
const char *epf_why_call_name(uint32_t call);
const char *epf_why_kind_name(uint32_t kind);

uint64_t epf_why_report_bytes(uint32_t ranks);

/*
 * Copies what the kernels have counted so far. out: epf_why_report_bytes() of the job's ranks. Does not disturb the streams of the calls; a call that
 * runs meanwhile may be counted in part. -ENODATA: the setting call-stats is off.
 */
int epf_why_read(struct epf_ll *ll, struct epf_why_report *out);

/* What happened between two reports of one rank: *later becomes the difference. Longest waits stay those since the start. */
void epf_why_since(struct epf_why_report *later, const struct epf_why_report *before);

/*
 * Finds causes in the reports of n ranks of a job: writes at most `most`, the longest waits first, and returns how many there are. Causes below a twentieth of the time
 * are left out, and loads below one and a half times the others'. 0 without reports or if they are of different jobs.
 */
uint32_t epf_why_explain(const struct epf_why_report *const *reports, uint32_t n,
			 struct epf_why_cause *out, uint32_t most);

/* Writes the same as lines of text: the split of time, then causes by rank, then kinds of calls. Returns the length that the whole text has. */
size_t epf_why_text(const struct epf_why_report *const *reports, uint32_t n, char *text,
		    size_t bytes);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif
