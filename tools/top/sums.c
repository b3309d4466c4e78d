/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums over a shot of ep-top (top.h): what stands in the header, and what two shots say of the time between them. Works on the model alone.
 */
#include "tools/top/top.h"

#include <string.h>

double top_seconds(const struct top_shot *now, const struct top_shot *before)
{
	if (!before || now->now_ns <= before->now_ns)
		return 0;
	return (double)(now->now_ns - before->now_ns) / 1e9;
}

uint64_t top_growth(uint64_t now, uint64_t was)
{
	return now >= was ? now - was : now;
}

/* How much a counter of a block has grown; false: not known. */
static bool grown(const struct top_schema *schema, const struct top_block *now,
		  const struct top_block *before, const char *row, uint64_t *out)
{
	const struct top_value *a = top_value_of(schema, now, row);
	const struct top_value *b = before ? top_value_of(schema, before, row) : NULL;

	if (!a || !b)
		return false;
	*out = top_growth(a->number, b->number);
	return true;
}

double top_busy(const struct top_schema *schema, const struct top_shot *now,
		const struct top_shot *before, const struct top_block *core)
{
	const struct top_block *was = before ? top_block_in(before, now, core) : NULL;
	const struct top_instance *in = &now->instance[core->instance];
	double seconds = top_seconds(now, before), share;
	uint64_t cycles;

	/* What has ended keeps its final snapshot and does nothing. */
	if (!was || !in->tsc_hz || seconds <= 0 || !grown(schema, core, was, "busy_tsc", &cycles))
		return -1;
	share = (double)cycles / (double)in->tsc_hz / seconds;
	return share > 1 ? 1 : share;
}

static uint64_t number(const struct top_schema *schema, const struct top_block *block,
		       const char *row)
{
	const struct top_value *v = top_value_of(schema, block, row);

	return v ? v->number : 0;
}

static void sum_core(const struct top_schema *schema, const struct top_shot *now,
		     const struct top_shot *before, const struct top_block *core,
		     struct top_sums *out, double *busy, uint32_t *known)
{
	static const char *const bytes[] = { "put_bytes_remote_node", "put_bytes_same_node",
					     "get_bytes" };
	const struct top_block *was = before ? top_block_in(before, now, core) : NULL;
	double share = top_busy(schema, now, before, core);
	uint64_t more;

	out->cores++;
	out->total_commands += number(schema, core, "cmds_dequeued");
	if (share >= 0) {
		*busy += share;
		(*known)++;
	}
	if (out->has_rates && grown(schema, core, was, "cmds_dequeued", &more))
		out->commands += (double)more / out->seconds;
	for (unsigned i = 0; i < sizeof(bytes) / sizeof(*bytes); i++) {
		out->total_bytes += number(schema, core, bytes[i]);
		if (out->has_rates && grown(schema, core, was, bytes[i], &more))
			out->bytes += (double)more / out->seconds;
	}
}

static void sum_instances(const struct top_shot *now, struct top_sums *out)
{
	out->instances = now->n_instances + now->left_out;
	out->dead = now->left_out;
	for (uint32_t i = 0; i < now->n_instances; i++) {
		const struct top_instance *in = &now->instance[i];

		if (!in->read)
			out->unreadable++;
		else if (in->alive == EPF_STATS_STALE || in->process == 'T' || in->process == 't')
			out->stale++;
		else if (in->alive == EPF_STATS_DEAD || in->alive == EPF_STATS_ENDED)
			out->dead++;
		else
			out->living++;
		if (in->alive == EPF_STATS_DEAD || in->alive == EPF_STATS_ENDED)
			continue;
		out->links += in->links;
		out->links_up += in->links_up;
	}
}

void top_sum(const struct top_schema *schema, const struct top_shot *now,
	     const struct top_shot *before, struct top_sums *out)
{
	uint32_t core = top_class_find(schema, "core"), nic = top_class_find(schema, "nic");
	uint32_t rank = top_class_find(schema, "rank"), known = 0;
	double busy = 0;

	*out = (struct top_sums){ .jobs = now->n_jobs, .busy = -1 };
	out->seconds = top_seconds(now, before);
	out->has_rates = out->seconds > 0;
	sum_instances(now, out);
	for (uint32_t b = 0; b < now->n_blocks; b++) {
		const struct top_block *block = &now->block[b];
		enum epf_stats_alive alive = now->instance[block->instance].alive;

		if (alive == EPF_STATS_DEAD || alive == EPF_STATS_ENDED)
			continue;
		if (block->cls == core)
			sum_core(schema, now, before, block, out, &busy, &known);
		out->nics += block->cls == nic;
		out->ranks += block->cls == rank;
	}
	if (known)
		out->busy = busy / known;
	for (uint32_t i = 0; i < now->n_waits; i++) {
		out->causes += now->wait[i].is_cause;
		out->waits += strcmp(now->wait[i].who, "fact") != 0;
	}
}
