/* SPDX-License-Identifier: Apache-2.0 */
/* See endpoints.h. */
#include "tools/waits/endpoints.h"
#include "tools/waits/waits_priv.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct endpoint_wait *push(struct endpoints *e)
{
	struct endpoint_wait *grown = realloc(e->wait, (e->n + 1) * sizeof(*grown));

	if (!grown)
		return NULL;
	e->wait = grown;
	grown += e->n++;
	memset(grown, 0, sizeof(*grown));
	return grown;
}

static bool read_conn(const struct waits *w, const struct waits_instance *in,
		      const struct waits_block *at, struct endpoints *e)
{
	struct epf_stats_value v;
	struct endpoint_wait *wait;

	e->connections++;
	if (waits_value(at, "compress", &v)) {
		e->compressing += v.number != 0;
		e->compress_off += v.number == 3;
	}
	e->packed_from += waits_number(at, "bytes_packed_from", 0);
	e->packed_to += waits_number(at, "bytes_packed_to", 0);
	if (!waits_value(at, "wait", &v) || v.number == EPF_STATS_CONN_NONE ||
	    v.number > EPF_STATS_CONN_RELEASE || v.since_ns > w->now_ns ||
	    w->now_ns - v.since_ns < w->least_ns)
		return true;
	wait = push(e);
	if (!wait)
		return false;
	snprintf(wait->endpoint, sizeof(wait->endpoint), "%s", waits_label(at, "endpoint"));
	snprintf(wait->peer, sizeof(wait->peer), "%s", waits_label(at, "peer"));
	snprintf(wait->host, sizeof(wait->host), "%s", waits_label(at, "host"));
	wait->own_pid = in->pid;
	wait->pid = strtoull(waits_label(at, "pid"), NULL, 10);
	wait->process = wait->pid ? epf_stats_process_state(wait->pid, in->pid_space) : 0;
	wait->kind = (unsigned)v.number;
	wait->age_ns = w->now_ns - v.since_ns;
	wait->under_way = waits_number(at, "under_way", 0);
	wait->bytes_left = waits_number(at, "bytes_left", 0);
	return true;
}

static bool read_file(const struct waits *w, const struct waits_instance *in, struct endpoints *e)
{
	bool is_well = true;

	for (unsigned i = 0; is_well && i < epf_stats_reader_info(in->reader)->block_count; i++) {
		const struct waits_block at = waits_block(in->reader, i);

		if (!strcmp(at.cls->name, "endpoint")) {
			e->endpoints++;
			e->lost += (uint32_t)waits_number(&at, "lost", 0);
		} else if (!strcmp(at.cls->name, "conn")) {
			is_well = read_conn(w, in, &at, e);
		}
	}
	return is_well;
}

static bool is_stopped(const struct endpoint_wait *w)
{
	return w->process == 'T' || w->process == 't';
}

static int by_weight(const void *a, const void *b)
{
	const struct endpoint_wait *x = a, *y = b;

	if (is_stopped(x) != is_stopped(y))
		return is_stopped(x) ? -1 : 1;
	return x->age_ns < y->age_ns ? 1 : x->age_ns > y->age_ns ? -1 : 0;
}

/* On another machine processes have no number: there the endpoint's name tells them apart. */
static bool is_for_the_same(const struct endpoint_wait *a, const struct endpoint_wait *b)
{
	return a->pid == b->pid && !strcmp(a->host, b->host) &&
	       (a->pid || !strcmp(a->peer, b->peer));
}

struct endpoints *endpoints_read(const struct waits *w)
{
	struct endpoints *e = calloc(1, sizeof(*e));

	for (uint32_t i = 0; i < w->n_instances && e; i++) {
		const struct waits_instance *in = &w->instance[i];

		if (!in->reader || in->left_out || read_file(w, in, e))
			continue;
		endpoints_free(e);
		e = NULL;
	}
	if (!e || !e->n)
		return e;
	qsort(e->wait, e->n, sizeof(*e->wait), by_weight);
	for (uint32_t i = 0; i < e->n; i++)
		for (uint32_t k = 0; k < e->n; k++)
			e->wait[i].others += is_for_the_same(&e->wait[i], &e->wait[k]);
	return e;
}

void endpoints_free(struct endpoints *e)
{
	if (!e)
		return;
	free(e->wait);
	free(e);
}

const char *endpoint_wait_word(unsigned kind)
{
	static const char *const words[] = {
		[EPF_STATS_CONN_NONE] = "none",       [EPF_STATS_CONN_COPY] = "copy",
		[EPF_STATS_CONN_GPU] = "gpu",         [EPF_STATS_CONN_NIC] = "nic",
		[EPF_STATS_CONN_NOTE] = "note",       [EPF_STATS_CONN_ANSWER] = "answer",
		[EPF_STATS_CONN_RELEASE] = "release",
	};

	return kind < sizeof(words) / sizeof(*words) ? words[kind] : "unknown";
}

static const char *what(unsigned kind)
{
	switch (kind) {
	case EPF_STATS_CONN_COPY:
		return "nobody copies their blocks: the program neither waits nor polls, and its endpoint gets no CPU";
	case EPF_STATS_CONN_GPU:
		return "a GPU does not finish its copies";
	case EPF_STATS_CONN_NIC:
		return "the engine moves nothing to or from it";
	case EPF_STATS_CONN_NOTE:
		return "it takes no notifications";
	case EPF_STATS_CONN_ANSWER:
		return "its endpoint does not answer an import";
	default:
		return "it still copies to or from memory that was withdrawn";
	}
}

const char *endpoint_sentence(const struct endpoint_wait *wait, char *text, size_t bytes)
{
	char tail[200] = "", who[64] = "";

	if (wait->pid)
		snprintf(who, sizeof(who), "process %" PRIu64 " on ", wait->pid);
	if (wait->pid && is_stopped(wait))
		snprintf(tail, sizeof(tail),
			 "; process %" PRIu64
			 " is stopped by a signal or a debugger: kill -CONT %" PRIu64
			 " lets it go on",
			 wait->pid, wait->pid);
	else if (wait->pid && (wait->process == 'X' || wait->process == 'Z'))
		snprintf(tail, sizeof(tail), "; process %" PRIu64 " has ended", wait->pid);
	else if (!wait->pid)
		snprintf(tail, sizeof(tail), "; run ep-fabric why on %s", wait->host);
	snprintf(text, bytes,
		 "endpoint %s (process %" PRIu64
		 ") waits for peer %s (%s%s) for %.1f s: %s; %" PRIu64 " transfers, %" PRIu64
		 " bytes to go%s",
		 wait->endpoint, wait->own_pid, wait->peer, who, wait->host,
		 (double)wait->age_ns / 1e9, what(wait->kind), wait->under_way, wait->bytes_left,
		 tail);
	return text;
}
