/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-top's tables (view.h): for each screen a list of columns, each found in the schema by name, so that files of older and newer
 * engines are shown as far as they say something. Jobs, waits and instances, which are not blocks, are lists.c's.
 */
#include "tools/top/columns.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define END           \
 {                    \
  NULL, NULL, NULL, 0 \
 }

/* clang-format off */
static const struct top_column_spec nics[] = {
	{ "INSTANCE", NULL, NULL, SHOW_INSTANCE }, { "DEVICE", "device", NULL, SHOW_LABEL }, { "PORT", "port", NULL, SHOW_LABEL },
	{ "CORE", "core", NULL, SHOW_LABEL }, { "LINK", "link", NULL, SHOW_STATE }, { "UP", "links_up", "links", SHOW_OF },
	{ "TX", "bytes_tx", NULL, SHOW_NUMBER }, { "RX", "bytes_rx", NULL, SHOW_NUMBER },
	{ "MSG-TX", "messages_tx", NULL, SHOW_NUMBER }, { "MSG-RX", "messages_rx", NULL, SHOW_NUMBER },
	{ "RETRANS", "retransmits", NULL, SHOW_NUMBER }, { "DROPPED", "packets_dropped", NULL, SHOW_NUMBER },
	{ "REORDER", "packets_reordered", NULL, SHOW_NUMBER }, { "RNR", "rnr_events", NULL, SHOW_BAD }, { "ERRORS", "errors", NULL, SHOW_BAD }, END };
static const struct top_column_spec cores[] = {
	{ "INSTANCE", NULL, NULL, SHOW_INSTANCE }, { "CORE", "core", NULL, SHOW_LABEL }, { "NUMA", "numa", NULL, SHOW_LABEL },
	{ "BUSY", NULL, NULL, SHOW_BUSY }, { "", NULL, NULL, SHOW_BUSY_BAR }, { "COMMANDS", "cmds_dequeued", NULL, SHOW_NUMBER },
	{ "REQUESTS", "wrs_posted", NULL, SHOW_NUMBER }, { "ARRIVALS", "arrivals", NULL, SHOW_NUMBER },
	{ "SIGNALS", "signals_applied", NULL, SHOW_NUMBER }, { "PUT-REMOTE", "put_bytes_remote_node", NULL, SHOW_NUMBER },
	{ "PUT-LOCAL", "put_bytes_same_node", NULL, SHOW_NUMBER }, { "GET", "get_bytes", NULL, SHOW_NUMBER },
	{ "DEFERRED", "cmds_deferred", NULL, SHOW_NUMBER }, { "NO-CREDIT", "credit_stalls", NULL, SHOW_NUMBER },
	{ "SQ-FULL", "queue_full_stalls", NULL, SHOW_NUMBER }, { "FAILED", "cmds_failed", NULL, SHOW_BAD },
	{ "FAILOVER", "failovers", NULL, SHOW_BAD }, { "STEP-P99", "step_ns", NULL, SHOW_P99 }, { "DELAY-P99", "queue_delay_ns", NULL, SHOW_P99 }, END };
static const struct top_column_spec rings[] = {
	{ "INSTANCE", NULL, NULL, SHOW_INSTANCE }, { "RANK", "rank", NULL, SHOW_LABEL }, { "RING", "ring", NULL, SHOW_LABEL },
	{ "CORE", "core", NULL, SHOW_LABEL }, { "GPU", "gpu", NULL, SHOW_LABEL }, { "PUSHED", "cmds_pushed_seen", NULL, SHOW_NUMBER },
	{ "TAKEN", "cmds_dequeued", NULL, SHOW_NUMBER }, { "RETIRED", "cmds_retired", NULL, SHOW_NUMBER }, { "FAILED", "cmds_failed", NULL, SHOW_BAD },
	{ "FILL", "occupancy", "slots", SHOW_OF }, { "", "occupancy", "slots", SHOW_OF_BAR }, { "DEFERRED", "deferred", NULL, SHOW_NUMBER },
	{ "FULL", "ring_full_seen", NULL, SHOW_NUMBER }, { "WAIT", "wait", NULL, SHOW_WAIT }, { "FOR-RANK", "wait_rank", "wait", SHOW_IF_WAITS },
	{ "STREAM", "wait_stream", "wait", SHOW_IF_WAITS }, { "LANE", "wait_lane", "wait", SHOW_IF_WAITS }, END };
static const struct top_column_spec ranks[] = {
	{ "INSTANCE", NULL, NULL, SHOW_INSTANCE }, { "RANK", "rank", NULL, SHOW_LABEL }, { "CORE", "core", NULL, SHOW_LABEL },
	{ "STATE", "state", NULL, SHOW_STATE }, { "PID", "pid", NULL, SHOW_PLAIN }, { "IDLE", "active_ns", NULL, SHOW_AGO },
	{ "WAIT", "wait", NULL, SHOW_WAIT }, { "BY", "wait_kernel", "wait", SHOW_BY }, { "NUMBER", "wait_number", "wait", SHOW_IF_WAITS }, { "VALUE", "wait_value", "wait", SHOW_IF_WAITS },
	{ "WANTED", "wait_least", "wait", SHOW_IF_WAITS }, { "FOR-RANK", "wait_rank", "wait", SHOW_IF_WAITS }, END };
static const struct top_column_spec peers[] = {
	{ "INSTANCE", NULL, NULL, SHOW_INSTANCE }, { "PEER", "peer", NULL, SHOW_LABEL }, { "CORE", "core", NULL, SHOW_LABEL },
	{ "STATE", "state", NULL, SHOW_STATE }, { "COMMANDS", "cmds", NULL, SHOW_NUMBER }, { "SENT", "bytes_sent", NULL, SHOW_NUMBER },
	{ "SIG-SENT", "signals_sent", NULL, SHOW_NUMBER }, { "SIG-APPL", "signals_applied", NULL, SHOW_NUMBER },
	{ "NO-CREDIT", "stalls_no_credit", NULL, SHOW_NUMBER }, { "SQ-FULL", "stalls_queue_full", NULL, SHOW_NUMBER },
	{ "NO-LANE", "stalls_lane_down", NULL, SHOW_NUMBER }, { "DEFERRED", "deferred", NULL, SHOW_NUMBER }, { "SILENT", "silent_ns", NULL, SHOW_NS }, { "WAIT", "wait", NULL, SHOW_WAIT },
	{ "STREAM", "wait_stream", "wait", SHOW_IF_WAITS }, { "LANE", "wait_lane", "wait", SHOW_IF_WAITS }, END };
static const struct top_column_spec lanes[] = {
	{ "INSTANCE", NULL, NULL, SHOW_INSTANCE }, { "LANE", "lane", NULL, SHOW_LABEL }, { "PEER", "peer", NULL, SHOW_LABEL },
	{ "NIC", "nic", NULL, SHOW_LABEL }, { "CORE", "core", NULL, SHOW_LABEL }, { "STATE", "state", NULL, SHOW_STATE },
	{ "REQUESTS", "wrs_posted", NULL, SHOW_NUMBER }, { "SENT", "bytes_posted", NULL, SHOW_NUMBER },
	{ "COMPLETED", "completions", NULL, SHOW_NUMBER }, { "IN-FLIGHT", "in_flight", NULL, SHOW_NUMBER },
	{ "CREDITS", "credits_available", NULL, SHOW_NUMBER },
	{ "ERRORS", "errors", NULL, SHOW_BAD }, { "REPLAYS", "replays", NULL, SHOW_BAD }, { "EPOCH", "epoch", NULL, SHOW_PLAIN },
	{ "PATH", "path", NULL, SHOW_STATE }, { "RESENT", "retransmits", NULL, SHOW_NUMBER }, { "RTT-US", "rtt_us", NULL, SHOW_PLAIN },
	{ "WAIT", "wait", NULL, SHOW_WAIT }, END };
static const struct top_column_spec calls[] = {
	{ "INSTANCE", NULL, NULL, SHOW_INSTANCE }, { "RANK", "rank", NULL, SHOW_LABEL }, { "FOR-RANK", "peer", NULL, SHOW_LABEL },
	{ "CALL", "call", NULL, SHOW_LABEL }, { "LATE", "late_ns", NULL, SHOW_SHARE }, { "LATE-N", "late", NULL, SHOW_NUMBER },
	{ "LATE-MAX", "late_max_ns", NULL, SHOW_NS }, { "SLOW", "slow_ns", NULL, SHOW_SHARE }, { "SLOW-N", "slow", NULL, SHOW_NUMBER },
	{ "SLOW-MAX", "slow_max_ns", NULL, SHOW_NS }, { "EITHER", "either_ns", NULL, SHOW_SHARE }, { "EITHER-N", "either", NULL, SHOW_NUMBER },
	{ "EITHER-MAX", "either_max_ns", NULL, SHOW_NS }, { "ROWS-TO", "rows_to", NULL, SHOW_NUMBER }, { "ROWS-FROM", "rows_from", NULL, SHOW_NUMBER }, END };
static const struct top_column_spec endpoints[] = {
	{ "INSTANCE", NULL, NULL, SHOW_INSTANCE }, { "ENDPOINT", "endpoint", NULL, SHOW_LABEL }, { "PEER", "peer", NULL, SHOW_LABEL },
	{ "PID", "pid", NULL, SHOW_LABEL }, { "HOST", "host", NULL, SHOW_LABEL }, { "STATE", "state", NULL, SHOW_STATE },
	{ "LOCAL", "local", NULL, SHOW_PLAIN }, { "TRANSFERS", "transfers", NULL, SHOW_NUMBER }, { "FAILED", "failed", NULL, SHOW_BAD },
	{ "WRITTEN", "bytes_written", NULL, SHOW_NUMBER }, { "READ", "bytes_read", NULL, SHOW_NUMBER }, { "UNDER-WAY", "under_way", NULL, SHOW_NUMBER },
	{ "LEFT", "bytes_left", NULL, SHOW_NUMBER }, { "COMPRESS", "compress", NULL, SHOW_STATE },
	{ "PACKED-FROM", "bytes_packed_from", NULL, SHOW_NUMBER }, { "PACKED-TO", "bytes_packed_to", NULL, SHOW_NUMBER }, { "WAIT", "wait", NULL, SHOW_WAIT }, END };

/* clang-format on */

static const struct {
	const char *name, *cls;
	const struct top_column_spec *columns;
} screens[TOP_SCREENS] = {
	[TOP_WAITING] = { "waiting", NULL, top_wait_columns },
	[TOP_NICS] = { "nics", "nic", nics },
	[TOP_CORES] = { "cores", "core", cores },
	[TOP_RINGS] = { "rings", "ring", rings },
	[TOP_RANKS] = { "ranks", "rank", ranks },
	[TOP_PEERS] = { "peers", "peer", peers },
	[TOP_LANES] = { "lanes", "lane", lanes },
	[TOP_JOBS] = { "jobs", NULL, top_job_columns },
	[TOP_INSTANCES] = { "instances", NULL, top_instance_columns },
	[TOP_CALLS] = { "calls", "wait", calls },
	[TOP_ENDPOINTS] = { "endpoints", "conn", endpoints },
};

const char *top_screen_name(enum top_screen_number screen)
{
	return screen < TOP_SCREENS ? screens[screen].name : "all";
}

enum top_screen_number top_screen_find(const char *name)
{
	unsigned i = 0;

	while (i < TOP_SCREENS && strcmp(screens[i].name, name) != 0)
		i++;
	return (enum top_screen_number)i;
}

uint32_t top_columns(enum top_screen_number screen, struct top_column *column)
{
	const struct top_column_spec *spec = screens[screen].columns;
	uint32_t n = 0;

	for (; spec[n].title; n++) {
		snprintf(column[n].title, sizeof(column[n].title), "%s", spec[n].title);
		column[n].width = (int)strlen(column[n].title);
		column[n].left = spec[n].show == SHOW_INSTANCE || spec[n].show == SHOW_STATE ||
				 spec[n].show == SHOW_WAIT || spec[n].show == SHOW_TEXT ||
				 spec[n].show == SHOW_BUSY_BAR || spec[n].show == SHOW_OF_BAR;
	}
	return n;
}

static void block_lines(struct top_table *table, const struct top_view_from *from, uint32_t cls,
			const struct top_column_spec *spec)
{
	const struct top_shot *now = from->now;

	for (uint32_t b = 0; b < now->n_blocks; b++) {
		const struct top_block *block = &now->block[b];
		const struct top_instance *in = &now->instance[block->instance];
		struct top_line *line = block->cls == cls ? top_table_push(table) : NULL;

		if (!line)
			continue;
		line->block = block;
		line->instance = in;
		if (in->alive == EPF_STATS_DEAD || in->alive == EPF_STATS_ENDED)
			line->colour = TOP_DIM;
		snprintf(line->id, sizeof(line->id), "%s/%" PRIu32 "/%s/%s/%s/%s", in->name, cls,
			 block->label[0], block->label[1], block->label[2], block->label[3]);
		for (uint32_t c = 0; spec[c].title; c++)
			top_cell_make(from, line, &spec[c], &line->cell[c]);
	}
}

bool top_line_has(const struct top_table *table, const struct top_line *line, const char *text)
{
	for (uint32_t c = 0; c < table->n_columns; c++)
		if (strcasestr(line->cell[c].text, text))
			return true;
	return line->tail && strcasestr(line->tail, text);
}

static void filter(struct top_table *table, const char *text)
{
	uint32_t n = 0;

	table->n_all = table->n_lines;
	for (uint32_t i = 0; *text && i < table->n_lines; i++) {
		if (!top_line_has(table, &table->line[i], text))
			continue;
		if (n != i)
			table->line[n] = table->line[i];
		n++;
	}
	if (*text)
		table->n_lines = n;
}

static int compare(const void *a, const void *b, void *arg)
{
	const struct top_look *look = arg;
	const struct top_line *x = a, *y = b;
	const struct top_cell *p = &x->cell[look->sort], *q = &y->cell[look->sort];
	int way;

	if (p->is_number != q->is_number)
		return p->is_number ? -1 : 1; /* what is not known comes last, whichever the way */
	if (p->is_number)
		way = p->key > q->key ? -1 : p->key < q->key;
	else
		way = strcmp(p->text, q->text);
	if (look->invert)
		way = -way;
	return way ? way : strcmp(x->id, y->id);
}

static void measure(struct top_table *table)
{
	for (uint32_t c = 0; c < table->n_columns; c++)
		for (uint32_t i = 0; i < table->n_lines; i++) {
			int n = (int)strlen(table->line[i].cell[c].text);

			if (n > table->column[c].width)
				table->column[c].width = n;
		}
}

int top_table_make(struct top_table *table, const struct top_schema *schema,
		   const struct top_shot *now, const struct top_shot *before,
		   const struct top_look *look)
{
	struct top_view_from from = { schema, now, before, look, top_seconds(now, before) };
	uint32_t cls;

	table->n_lines = 0;
	table->no_memory = false;
	table->has_rates = from.seconds > 0 && !look->totals;
	table->n_columns = top_columns(look->screen, table->column);
	if (look->screen == TOP_WAITING)
		top_wait_lines(table, &from);
	else if (look->screen == TOP_JOBS)
		top_job_lines(table, &from);
	else if (look->screen == TOP_INSTANCES)
		top_instance_lines(table, &from);
	else if ((cls = top_class_find(schema, screens[look->screen].cls)) != TOP_NONE)
		block_lines(table, &from, cls, screens[look->screen].columns);
	filter(table, look->filter);
	if (look->sort < table->n_columns && table->n_lines)
		qsort_r(table->line, table->n_lines, sizeof(*table->line), compare,
			(void *)(uintptr_t)look);
	else if (look->invert)
		for (uint32_t i = 0; i < table->n_lines / 2; i++) {
			struct top_line swap = table->line[i];

			table->line[i] = table->line[table->n_lines - 1 - i];
			table->line[table->n_lines - 1 - i] = swap;
		}
	measure(table);
	return table->no_memory ? -ENOMEM : 0;
}

void top_table_free(struct top_table *table)
{
	free(table->line);
	memset(table, 0, sizeof(*table));
}
