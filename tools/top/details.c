/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Everything that is known of one line of an ep-top screen (view.h): all rows of its block with their growth and meaning, or all fields
 * of a wait and the chain that it follows from. Works on the model alone.
 */
#include "tools/top/columns.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct out {
	top_detail_fn *each;
	void *arg;
	uint32_t n;
};

static void put(struct out *o, const char *name, const char *value, const char *help)
{
	o->each(o->arg, name, value, help);
	o->n++;
}

static void put_number(struct out *o, const char *name, uint64_t n, const char *help)
{
	char text[32];

	snprintf(text, sizeof(text), "%" PRIu64, n);
	put(o, name, text, help);
}

static void put_maybe(struct out *o, const char *name, uint32_t n, const char *help)
{
	if (n != TOP_NONE)
		put_number(o, name, n, help);
}

static void value_text(const struct top_shot *now, const struct top_shot *before,
		       const struct top_block *block, const struct top_block *was, uint32_t r,
		       const struct top_row *row, char *text, size_t size)
{
	const struct top_value *v = &block->value[r];
	char part[72], rate[32] = "";

	if (!v->known) {
		snprintf(text, size, "-");
	} else if (v->hist) {
		snprintf(text, size,
			 "n %" PRIu64 " p50 %" PRIu64 " p99 %" PRIu64 " p99.9 %" PRIu64
			 " max %" PRIu64 " %s",
			 v->hist->count, v->hist->p50, v->hist->p99, v->hist->p999, v->hist->max,
			 row->unit);
	} else if (row->type == EPF_STATS_STATE) {
		char age[24];

		top_format_age(top_age(now, &now->instance[block->instance], v->since_ns), age,
			       sizeof(age));
		snprintf(text, size, "%s for %s",
			 top_state_name(row, v->number, part, sizeof(part)), age);
	} else {
		double seconds = top_seconds(now, before);

		if (row->type == EPF_STATS_COUNTER && was && seconds > 0 && r < was->n_values &&
		    was->value[r].known)
			snprintf(rate, sizeof(rate), "  %s",
				 top_format_rate(
					 (double)top_growth(v->number, was->value[r].number) /
						 seconds,
					 false, part, sizeof(part)));
		snprintf(text, size, "%" PRIu64 " %s%s", v->number, row->unit, rate);
	}
}

static void block_details(const struct top_schema *schema, const struct top_shot *now,
			  const struct top_shot *before, const struct top_block *block,
			  struct out *o)
{
	const struct top_block *was = before ? top_block_in(before, now, block) : NULL;
	const struct top_class *cls = &schema->cls[block->cls];
	char text[200];

	for (uint32_t i = 0; i < cls->n_labels; i++)
		put(o, cls->label[i], *block->label[i] ? block->label[i] : "-", "");
	for (uint32_t r = 0; r < block->n_values; r++) {
		if (cls->row[r].type == EPF_STATS_EVENTS)
			continue;
		value_text(now, before, block, was, r, &cls->row[r], text, sizeof(text));
		put(o, cls->row[r].name, text, cls->row[r].help);
	}
}

static void wait_details(const struct top_shot *now, const struct top_wait *e, struct out *o)
{
	uint32_t steps = 0;
	char age[24];

	put(o, "what", e->text, "");
	put(o, "reason", e->reason, "");
	if (e->age_ns)
		put(o, "since", top_format_age(e->age_ns, age, sizeof(age)), "");
	put_maybe(o, "rank", e->rank, "who waits, or is meant");
	if (e->kernel)
		put(o, "by", "a kernel of a GPU", "who of the rank waits");
	put_maybe(o, "peer", e->peer, "the rank that it waits for");
	put_maybe(o, "stream", e->stream, "");
	put_maybe(o, "lane", e->lane, "");
	put_maybe(o, "ring", e->ring, "");
	if (e->has_signal) {
		put_number(o, "signal", e->signal, "");
		put_number(o, "value", e->value, "where the signal stands");
		put_number(o, "wanted", e->least, "value it must reach");
	}
	put_number(o, "deferred", e->deferred, "commands or requests that wait with it");
	put_number(o, "behind", e->consequences, "waits that follow from this one");
	/* Never longer than there are waits, even where a recording says so. */
	for (uint32_t at = e->follows; at < now->n_waits && steps++ < now->n_waits;
	     at = now->wait[at].follows)
		put(o, "because", now->wait[at].text, "");
}

uint32_t top_details(const struct top_schema *schema, const struct top_shot *now,
		     const struct top_shot *before, const struct top_line *line,
		     top_detail_fn *each, void *arg)
{
	struct out o = { each, arg, 0 };

	if (line->wait) {
		wait_details(now, line->wait, &o);
	} else if (line->block) {
		block_details(schema, now, before, line->block, &o);
	} else if (line->job) {
		for (uint32_t b = 0; b < now->n_blocks; b++)
			if (top_job_has(schema, line->job, &now->block[b])) {
				put(&o, "instance", now->instance[now->block[b].instance].name, "");
				block_details(schema, now, before, &now->block[b], &o);
			}
	}
	if (line->instance) {
		const struct top_instance *in = line->instance;

		put(&o, "instance", in->name, "");
		put(&o, "file", in->path, "");
		put(&o, "writer", in->read ? waits_alive_word(in->alive) : in->error,
		    in->alive == EPF_STATS_DEAD ? "these are its final snapshot" : "");
		put_number(&o, "process", in->pid, "");
	}
	return o.n;
}
