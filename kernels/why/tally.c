/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host's side of what kernels count: its memory, a thread that shows it in a statistics file of its own twice a second, and epf_why_read(). The file
 * belongs to the process that makes the calls, also where a daemon owns the engine. Readers copy from the device on a stream of libepf, beside the
 * streams of the calls.
 */
#include "kernels/why/tally.h"
#include "kernels/ll/ll.h"
#include "queues/epf_gpu.h"
#include "queues/epf_stats.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
	SHOW_EVERY_MS = 500,
	BLOCKS_MAX = 1024, /* of class wait */
	LL_EVERY = 64, /* of so many low-latency halves on a GPU one is counted; a power of two */
};

struct tally {
	struct epf_ll *ll;
	void *at; /* struct tally_call [], then struct tally_peer []: device memory */
	uint64_t bytes;
	uint32_t timer_khz;
	uint64_t job_id;
	/* The thread's. */
	struct epf_stats *stats; /* NULL: not shown */
	struct epf_why_report *report;
	struct epf_stats_block *calls[EPF_WHY_CALLS];
	struct epf_stats_block **waits; /* [EPF_WHY_CALLS][ranks]; NULL: nothing to show yet */
	pthread_t thread;
	bool started;
	pthread_mutex_t lock;
	pthread_cond_t end;
	bool ending;
};

uint64_t ll_tally_at(const struct epf_ll *ll)
{
	return ll->tally ? (uintptr_t)ll->tally->at : 0;
}

uint32_t ll_tally_every(const struct epf_ll *ll)
{
	return ll->side_by_side ? LL_EVERY : 1;
}

/* ---- reading ---- */

/* Copies all counts to words of the host. On a CPU kernels may be counting: word by word. */
static int fetch(const struct tally *t, uint64_t *words)
{
	const uint64_t *at = t->at;

	if (t->ll->opts.device >= 0)
		return t->ll->dev->copy(t->ll, words, t->at, t->bytes);
	for (uint64_t i = 0; i < t->bytes / 8; i++)
		words[i] = EPF_LOAD_RELAXED(&at[i]);
	return 0;
}

static uint64_t to_ns(const struct tally *t, uint64_t ticks)
{
	return t->timer_khz == 1000000 ? ticks
				       : ticks / t->timer_khz * 1000000 +
						 ticks % t->timer_khz * 1000000 / t->timer_khz;
}

/* For how many halves one that was counted stands. Waits stand for themselves. */
static uint64_t stands_for(const struct tally *t, uint32_t call)
{
	return call >= EPF_WHY_LL_DISPATCH_SEND ? ll_tally_every(t->ll) : 1;
}

static void fill_report(const struct tally *t, const void *words, struct epf_why_report *out)
{
	uint32_t ranks = t->ll->ranks;
	const struct tally_call *calls = words;
	const struct tally_peer *peers = (const void *)(calls + EPF_WHY_CALLS);

	memset(out, 0, sizeof(*out));
	out->bytes = (uint32_t)epf_why_report_bytes(ranks);
	out->rank = t->ll->rank;
	out->ranks = ranks;
	for (uint32_t c = 0; c < EPF_WHY_CALLS; c++) {
		out->call[c].calls = calls[c].calls * stands_for(t, c);
		for (unsigned p = 0; p < EPF_WHY_PHASES; p++)
			out->call[c].ns[p] = to_ns(t, calls[c].ticks[p]) * stands_for(t, c);
	}
	for (uint32_t i = 0; i < EPF_WHY_CALLS * ranks; i++) {
		for (unsigned w = 0; w < EPF_WHY_REASONS; w++) {
			out->peer[i].wait[w].ns = to_ns(t, peers[i].wait[w].ticks);
			out->peer[i].wait[w].times = peers[i].wait[w].times;
			out->peer[i].wait[w].most_ns = to_ns(t, peers[i].wait[w].most);
		}
		out->peer[i].rows_to = peers[i].rows_to * stands_for(t, i / ranks);
		out->peer[i].rows_from = peers[i].rows_from * stands_for(t, i / ranks);
	}
}

static int read_report(const struct tally *t, struct epf_why_report *out)
{
	uint64_t *words = malloc(t->bytes);
	int err = words ? fetch(t, words)
			: ll_fail(-ENOMEM, "no memory for a report of %u ranks", t->ll->ranks);

	if (!err)
		fill_report(t, words, out);
	free(words);
	return err;
}

int epf_why_read(struct epf_ll *ll, struct epf_why_report *out)
{
	if (!ll->tally)
		return ll_fail(
			-ENODATA,
			"the kernels count nothing: the setting call-stats is off (EPF_CALL_STATS)");
	return read_report(ll->tally, out);
}

/* ---- showing ---- */

static struct epf_stats_block *block_of_call(struct tally *t, uint32_t call)
{
	struct epf_stats_label labels[2] = { { NULL, t->ll->rank },
					     { epf_why_call_name(call), 0 } };

	if (!t->calls[call] &&
	    !epf_stats_add_block(t->stats, EPF_STATS_CALL, labels, 2, &t->calls[call])) {
		epf_stat_set(t->calls[call], EPF_STAT_CALL_JOB, t->job_id);
		epf_stat_set(t->calls[call], EPF_STAT_CALL_WORLD, t->ll->ranks);
	}
	return t->calls[call];
}

static struct epf_stats_block *block_of_peer(struct tally *t, uint32_t call, uint32_t peer)
{
	struct epf_stats_block **at = &t->waits[call * t->ll->ranks + peer];
	struct epf_stats_label labels[3] = { { NULL, t->ll->rank },
					     { NULL, peer },
					     { epf_why_call_name(call), 0 } };

	if (!*at)
		(void)epf_stats_add_block(t->stats, EPF_STATS_WAIT, labels, 3, at);
	return *at;
}

static bool is_empty(const struct epf_why_peer *p)
{
	static const struct epf_why_peer none;

	return memcmp(p, &none, sizeof(none)) == 0;
}

static void show_peer(struct epf_stats_block *b, const struct epf_why_peer *p)
{
	epf_stat_set(b, EPF_STAT_WAIT_LATE_NS, p->wait[EPF_WHY_LATE].ns);
	epf_stat_set(b, EPF_STAT_WAIT_LATE, p->wait[EPF_WHY_LATE].times);
	epf_stat_set(b, EPF_STAT_WAIT_LATE_MAX_NS, p->wait[EPF_WHY_LATE].most_ns);
	epf_stat_set(b, EPF_STAT_WAIT_SLOW_NS, p->wait[EPF_WHY_SLOW].ns);
	epf_stat_set(b, EPF_STAT_WAIT_SLOW, p->wait[EPF_WHY_SLOW].times);
	epf_stat_set(b, EPF_STAT_WAIT_SLOW_MAX_NS, p->wait[EPF_WHY_SLOW].most_ns);
	epf_stat_set(b, EPF_STAT_WAIT_EITHER_NS, p->wait[EPF_WHY_EITHER].ns);
	epf_stat_set(b, EPF_STAT_WAIT_EITHER, p->wait[EPF_WHY_EITHER].times);
	epf_stat_set(b, EPF_STAT_WAIT_EITHER_MAX_NS, p->wait[EPF_WHY_EITHER].most_ns);
	epf_stat_set(b, EPF_STAT_WAIT_ROWS_TO, p->rows_to);
	epf_stat_set(b, EPF_STAT_WAIT_ROWS_FROM, p->rows_from);
}

static void show_call(struct tally *t, uint32_t call)
{
	const struct epf_why_calls *c = &t->report->call[call];
	struct epf_stats_block *b = c->calls ? block_of_call(t, call) : NULL;
	uint32_t hidden = 0;

	if (!b)
		return;
	for (uint32_t r = 0; r < t->ll->ranks; r++) {
		const struct epf_why_peer *p = &t->report->peer[call * t->ll->ranks + r];
		struct epf_stats_block *of = is_empty(p) ? NULL : block_of_peer(t, call, r);

		if (of)
			show_peer(of, p);
		else if (!is_empty(p))
			hidden++;
	}
	epf_stat_set(b, EPF_STAT_CALL_CALLS, c->calls);
	epf_stat_set(b, EPF_STAT_CALL_WAIT_NS, c->ns[EPF_WHY_WAIT]);
	epf_stat_set(b, EPF_STAT_CALL_MOVE_NS, c->ns[EPF_WHY_MOVE]);
	epf_stat_set(b, EPF_STAT_CALL_COPY_NS, c->ns[EPF_WHY_COPY]);
	epf_stat_set(b, EPF_STAT_CALL_PEERS_HIDDEN, hidden);
}

static void show(struct tally *t)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	if (read_report(t, t->report) == 0)
		for (uint32_t c = 0; c < EPF_WHY_CALLS; c++)
			show_call(t, c);
	epf_stats_beat(t->stats, (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec);
}

/* Twice a second until ll_tally_close(). */
static void *show_always(void *arg)
{
	struct tally *t = arg;
	bool ending = false;

	while (!ending) {
		struct timespec until;

		show(t);
		clock_gettime(CLOCK_MONOTONIC, &until);
		until.tv_nsec += SHOW_EVERY_MS * 1000000;
		until.tv_sec += until.tv_nsec / 1000000000;
		until.tv_nsec %= 1000000000;
		pthread_mutex_lock(&t->lock);
		while (!t->ending && pthread_cond_timedwait(&t->end, &t->lock, &until) != ETIMEDOUT)
			;
		ending = t->ending;
		pthread_mutex_unlock(&t->lock);
	}
	return NULL;
}

/* Makes the statistics file and its thread. Without them the calls go on, and epf_why_read() serves. */
static void start_showing(struct tally *t, const struct epf_info *info)
{
	struct epf_stats_opts o = { .size = sizeof(o), .dir = info->stats_dir, .job = info->job };
	uint64_t waits = (uint64_t)t->ll->ranks * EPF_WHY_CALLS;
	char name[EPF_STATS_NAME_BYTES], reason[256];
	pthread_condattr_t attr;

	snprintf(name, sizeof(name), "calls-%d-%llx", (int)getpid(),
		 (unsigned long long)(uintptr_t)t->ll >> 4);
	o.instance = name;
	o.blocks[EPF_STATS_CALL] = EPF_WHY_CALLS;
	o.blocks[EPF_STATS_WAIT] = waits < BLOCKS_MAX ? (uint32_t)waits : BLOCKS_MAX;
	t->report = calloc(1, epf_why_report_bytes(t->ll->ranks));
	t->waits = calloc(waits, sizeof(*t->waits));
	if (!t->report || !t->waits || epf_stats_make_dir(o.dir, reason, sizeof(reason)) ||
	    epf_stats_create(&o, &t->stats, reason, sizeof(reason)))
		return;
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_mutex_init(&t->lock, NULL);
	pthread_cond_init(&t->end, &attr);
	pthread_condattr_destroy(&attr);
	t->started = pthread_create(&t->thread, NULL, show_always, t) == 0;
}

/* ---- life ---- */

static int make_counts(struct tally *t)
{
	struct epf_ll *ll = t->ll;
	const uint8_t *ctx = (const void *)epf_gpu_context(ll->gpu);
	void *zeros = calloc(1, t->bytes);
	int err = zeros ? ll->dev->alloc(ll, t->bytes, &t->at)
			: ll_fail(-ENOMEM, "no memory for the counts of %u ranks", ll->ranks);

	if (!err)
		err = ll->dev->copy(ll, t->at, zeros, t->bytes);
	if (!err)
		err = ll->dev->copy(ll, &t->timer_khz,
				    ctx + offsetof(struct epf_gpu_ctx, timer_khz),
				    sizeof(t->timer_khz));
	free(zeros);
	return err;
}

int ll_tally_open(struct epf_ll *ll)
{
	struct epf_info info = { .size = sizeof(info) };
	struct tally *t;
	int err = epf_describe(ll->ep, &info);

	if (err)
		return ll_fail_fabric(err, "statistics of calls");
	if (!info.call_stats)
		return 0;
	t = calloc(1, sizeof(*t));
	if (!t)
		return ll_fail(-ENOMEM, "no memory for statistics of calls");
	t->ll = ll;
	t->bytes = tally_bytes(ll->ranks);
	t->job_id = info.job_id;
	ll->tally = t;
	err = make_counts(t);
	if (!err)
		start_showing(t, &info);
	return err;
}

void ll_tally_close(struct epf_ll *ll)
{
	struct tally *t = ll->tally;

	ll->tally = NULL;
	if (!t)
		return;
	if (t->started) {
		pthread_mutex_lock(&t->lock);
		t->ending = true;
		pthread_cond_signal(&t->end);
		pthread_mutex_unlock(&t->lock);
		pthread_join(t->thread, NULL);
		pthread_cond_destroy(&t->end);
		pthread_mutex_destroy(&t->lock);
	}
	epf_stats_destroy(t->stats, 0);
	ll->dev->free(ll, t->at);
	free(t->report);
	free(t->waits);
	free(t);
}
