/* SPDX-License-Identifier: Apache-2.0 */
/* The high-throughput calls that move rows, and what all calls share: arguments are checked, made a job for the kernels, and launched. Allocates nothing. */
#include "kernels/ht/ht.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { TOLD_ROWS = 64 };

struct ht_job ht_job_begin(const struct epf_ht *ht)
{
	struct ht_job j = {
		.ctx = (uintptr_t)epf_gpu_context(ht->ll->gpu),
		.state = (uintptr_t)ht->words,
		.control = (uintptr_t)ht->opts.control,
		.timeout_ns = ht->opts.timeout_ns,
		.tally = ll_tally_at(ht->ll),
		.tally_mask = ht->tally_every - 1u,
		.topology = (uintptr_t)ht->words + sizeof(struct ht_state) +
			    ht->ll->ranks * sizeof(struct ht_peer),
		.counts = (uintptr_t)ht->counts.at,
		.counts_region = ht->counts.region,
		.first_signal = ht->opts.first_signal,
		.put_bytes = ht->put_bytes,
		.nodes = ht->nodes,
		.node = ht->node,
		.node_max = ht->node_max,
		.rank = ht->ll->rank,
		.ranks = ht->ll->ranks,
		.threads = ht->threads,
		.align = 1,
		.parts = 1,
		.chunks = 1,
		.segments = (uintptr_t)ht->segments_at,
	};

	return j;
}

int ht_launch(struct epf_ht *ht, enum ht_kernel kernel, struct ht_job *j, void *stream)
{
	void *args[1] = { j };
	int err;

	if (ht->ll->opts.device < 0) {
		ht_cpu_run(ht, kernel, j);
		return 0;
	}
	err = epf_gpu_module_launch(ht->code, ht->kernel[kernel], stream, j->blocks, ht->threads,
				    args);
	return err ? ll_fail_fabric(err, "high-throughput kernel") : 0;
}

/* A kernel that moves rows, behind one that waits for the other nodes. */
static int launch_move(struct epf_ht *ht, enum ht_kernel kernel, struct ht_job *j, void *stream)
{
	uint32_t blocks = j->blocks;
	int err = 0;

	if (ht->nodes > 1) {
		j->blocks = 1;
		err = ht_launch(ht, HT_K_READY, j, stream);
		j->blocks = blocks;
	}
	return err ? err : ht_launch(ht, kernel, j, stream);
}

int ht_given(const void *p, const char *name, uint32_t align)
{
	if (p && (uintptr_t)p % align == 0)
		return 0;
	return ll_fail(-EINVAL, "%s is %p: an address is needed, a multiple of %u", name, p, align);
}

int ht_check_size(const char *what, size_t size, size_t known)
{
	return size == known ? 0
			     : ll_fail(-EINVAL, "size of %s is %zu, this library knows %zu", what,
				       size, known);
}

int ht_check_row(uint32_t bytes)
{
	return bytes && bytes % HT_VEC == 0
		       ? 0
		       : ll_fail(-EINVAL, "a row has %u bytes: a positive multiple of %u is needed",
				 bytes, HT_VEC);
}

/* Blocks of a kernel that moves rows; wanted 0: all that there are. */
static uint32_t blocks_of(const struct epf_ht *ht, uint32_t wanted)
{
	return wanted && wanted < ht->blocks ? wanted : ht->blocks;
}

/* What a call has of its plan, and of the memory between nodes. */
static int job_of_plan(struct epf_ht *ht, const void *plan, const struct epf_ht_row *row,
		       uint32_t heads, uint32_t across, const int32_t *links, uint32_t forwarded,
		       struct ht_job *j)
{
	int err = ht_given(plan, "plan", HT_VEC);

	j->rec = ht_record_of(row, heads);
	if (!err && ht->nodes > 1 && 2 * (uint64_t)across * j->rec.bytes > ht->net.bytes)
		err = ll_fail(-E2BIG,
			      "%u rows between nodes need %llu bytes, there are %llu: reserve them",
			      across, 2ull * across * j->rec.bytes,
			      (unsigned long long)ht->net.bytes);
	if (!err && forwarded)
		err = ht_given(links, "links", 4);
	j->plan = (uintptr_t)plan;
	j->at = ht_plan_of(ht, j->tokens);
	j->net_room = across;
	j->links = (uintptr_t)links;
	j->forwarded = forwarded;
	return err;
}

/* Words that travel behind a row's scales: its number, and those of its entries. */
static uint32_t numbered(const struct epf_ht_dispatch *d)
{
	if (!(d->flags & EPF_HT_NUMBERED))
		return 0;
	return d->flags & EPF_HT_GROUPED ? 1 + d->row.topk : 1;
}

static int check_window(const struct epf_ht *ht, const struct epf_ht_row *row, uint32_t room)
{
	uint64_t bytes = epf_ht_window_bytes(row, room);

	if (bytes <= ht->window_bytes)
		return 0;
	return ll_fail(-E2BIG, "%u rows need a window of %llu bytes, there are %llu", room,
		       (unsigned long long)bytes, (unsigned long long)ht->window_bytes);
}

/* How often ranks are told how many rows are in their windows: often enough that a spread begins early, rarely enough that it costs little. */
static uint32_t told_of(const struct epf_ht *ht, uint32_t tokens)
{
	uint32_t told = tokens / TOLD_ROWS;

	if (ht->threads / ht->warp < 2)
		return 0; /* a warp has no other one that tells; a spread waits for the end */
	return told < 1 ? 1 : told > HT_TOLD ? HT_TOLD : told;
}

static int check_outputs(const struct epf_ht_dispatch *d)
{
	int err = d->received ? ht_given(d->out, "out", HT_VEC) : 0;

	if (!err && d->received && d->row.scale_words)
		err = ht_given(d->out_scales, "out_scales", 4);
	if (!err && d->row.scale_words && (d->out_stride[0] | d->out_stride[1]) > UINT32_MAX)
		return ll_fail(
			-EINVAL, "strides of out_scales of %llu and %llu words: at most 2^32 - 1",
			(unsigned long long)d->out_stride[0], (unsigned long long)d->out_stride[1]);
	if (!err && d->received && d->flags & EPF_HT_NUMBERED)
		err = ht_given(d->out_numbers, "out_numbers", 4);
	if (!err && d->received && d->row.topk)
		err = ht_given(d->out_index, "out_index", 8);
	return err;
}

static int check_grouped(const struct epf_ht *ht, const struct epf_ht_dispatch *d)
{
	if (!d->row.topk)
		return ll_fail(-EINVAL, "EPF_HT_GROUPED with rows that have no entries");
	if (d->flags & EPF_HT_NUMBERED && d->tokens && !d->numbers)
		return ll_fail(-EINVAL, "EPF_HT_NUMBERED, and numbers are missing");
	if (ht->spread_due)
		return ll_fail(
			-EINVAL,
			"the rows of the last grouped dispatch are still in the window: epf_ht_spread() first");
	return 0;
}

/* HT_PLACE() of an output; 0: it is not in a mapped segment. */
static uint64_t place_of(struct epf_ht *ht, const void *out)
{
	uint64_t offset;
	uint32_t segment = ht_segment_of(ht, out, &offset);

	return segment ? HT_PLACE(segment, offset) : 0;
}

/*
 * What travels with rows goes straight to its outputs, if all of these are in mapped segments. Scales by column arrive in the window: stored one by one in each
 * column they would fill the link.
 */
static void offer_beside(struct epf_ht *ht, const struct epf_ht_dispatch *d, struct ht_job *j)
{
	struct ht_job o = *j;

	if (ht->node_max > HT_BESIDE_RANKS || (d->row.scale_words && d->out_stride[1] != 1))
		return;
	o.places[HT_PLACE_INDEX] = j->topk ? place_of(ht, d->out_index) : 0;
	o.places[HT_PLACE_WEIGHTS] = j->out_weights ? place_of(ht, d->out_weights) : 0;
	o.places[HT_PLACE_SCALES] = d->row.scale_words ? place_of(ht, d->out_scales) : 0;
	o.places[HT_PLACE_NUMBERS] = j->numbered ? place_of(ht, d->out_numbers) : 0;
	o.beside = !j->topk == !o.places[HT_PLACE_INDEX] &&
		   !j->out_weights == !o.places[HT_PLACE_WEIGHTS] &&
		   !d->row.scale_words == !o.places[HT_PLACE_SCALES] &&
		   !j->numbered == !o.places[HT_PLACE_NUMBERS];
	if (o.beside)
		*j = o;
}

/*
 * Makes a dispatch the one that exchanges the counts, which epf_ht_notify() left to it, and forgets that. Returns 0 or -EINVAL: it is not the dispatch of these
 * counts.
 */
static int count_in(struct epf_ht *ht, struct ht_job *j)
{
	const struct ht_job due = ht->due, *n = &due;
	/* Blocks, but for block 0, for each rank; one of them counts, if the others number. */
	uint32_t room = (j->blocks - 1u) / j->ranks;

	ht->due.blocks = 0;
	if (j->grouped || !j->if_it_fits || j->tokens != n->tokens || j->received != n->received ||
	    j->room != n->room || j->place != n->place || j->matrix != n->matrix ||
	    j->plan != n->plan || (j->topk && j->local != n->local) ||
	    (n->looks && j->topk != n->topk))
		return ll_fail(
			-EINVAL,
			"a dispatch that is not the one which the notify before it described: EPF_HT_WITH_DISPATCH leaves the exchange of counts to the next dispatch");
	j->counting = 1;
	j->if_it_fits = 0;
	j->looks = n->looks;
	room -= !n->looks && room;
	j->chunks = room < 1 ? 1 : room < n->chunks ? room : n->chunks;
	j->grown = n->grown;
	j->spare = n->spare;
	j->align = n->align;
	j->local = n->local;
	j->scratch = n->scratch;
	j->in_rank = n->in_rank;
	j->per_rank = n->per_rank;
	j->per_expert = n->per_expert;
	j->host = n->host;
	j->ticket = n->ticket;
	return 0;
}

int epf_ht_dispatch(struct epf_ht *ht, const struct epf_ht_dispatch *d, void *stream)
{
	struct ht_job j = ht_job_begin(ht);
	int err = ht_check_size("a dispatch", d->size, sizeof(*d));
	uint32_t grouped = d->flags & EPF_HT_GROUPED, received = grouped ? d->room : d->received;
	struct epf_ht_row row = { 0 };

	if (!err) {
		row = d->row;
		row.scale_words += numbered(d);
	}
	if (!err)
		err = ht_check_row(d->row.bytes);
	if (!err && d->flags & EPF_HT_IF_IT_FITS && ht->nodes > 1)
		err = ll_fail(-EINVAL, "EPF_HT_IF_IT_FITS with %u nodes: it is for one", ht->nodes);
	if (!err && (grouped || ht->node_max > 1))
		err = check_window(ht, &row, d->room);
	if (!err && d->tokens)
		err = ht_given(d->x, "x", HT_VEC);
	if (!err)
		err = grouped ? check_grouped(ht, d) : check_outputs(d);
	if (!err && (uint64_t)received * row.scale_words > INT32_MAX)
		err = ll_fail(-EINVAL,
			      "%u rows with %u scales each are more than 2^31: give fewer rows",
			      received, row.scale_words);
	if (!err)
		err = ht_given(d->matrix, "matrix", 4);
	j.tokens = d->tokens;
	if (!err)
		err = job_of_plan(ht, d->plan, &row, ht->node_max, d->across, d->links,
				  d->forwarded, &j);
	if (err) {
		ht->due.blocks = 0; /* the counts that were left to this dispatch */
		return err;
	}
	j.call = EPF_WHY_HT_DISPATCH;
	j.if_it_fits = d->flags & EPF_HT_IF_IT_FITS;
	j.unmet = !d->row.topk || !d->links; /* no counts were exchanged in front of it */
	j.blocks = blocks_of(ht, d->blocks);
	j.places[HT_PLACE_OUT] = d->received && !grouped ? place_of(ht, d->out) : 0;
	j.lay = ht_layout_of(&row, d->room);
	j.topk = row.topk;
	j.local = d->local;
	j.room = d->room;
	j.row_bytes = row.bytes;
	j.scale_words = row.scale_words;
	j.numbered = numbered(d);
	j.numbers = (uintptr_t)d->numbers;
	j.first_number = d->first_number;
	j.grouped = grouped;
	j.told = grouped ? told_of(ht, d->tokens) : 0;
	j.received = received;
	for (int i = 0; i < 2; i++) {
		j.scale_stride[i] = d->scale_stride[i];
		j.out_stride[i] = d->out_stride[i];
	}
	j.topk_idx = (uintptr_t)d->topk_idx;
	j.place = (uintptr_t)d->place;
	j.matrix = (uintptr_t)d->matrix;
	j.x = (uintptr_t)d->x;
	j.scales = (uintptr_t)d->scales;
	j.weights = (uintptr_t)d->weights;
	j.out = (uintptr_t)d->out;
	j.out_scales = (uintptr_t)d->out_scales;
	j.out_numbers = (uintptr_t)d->out_numbers;
	j.out_index = (uintptr_t)d->out_index;
	j.out_weights = (uintptr_t)d->out_weights;
	if (d->received && !grouped)
		offer_beside(ht, d, &j);
	if (ht->due.blocks) {
		err = count_in(ht, &j);
		return err ? err : ht_launch(ht, HT_K_COUNTED, &j, stream);
	}
	/* Whether one with EPF_HT_IF_IT_FITS moves rows is not known here. */
	ht->spread_due = grouped && !j.if_it_fits;
	return launch_move(ht, HT_K_DISPATCH, &j, stream);
}

uint32_t ht_parts_of(const struct epf_ht *ht, uint32_t room)
{
	uint32_t parts = ht->nodes > 1 ? 1 : room / ht->part_rows;

	return parts < 1 ? 1 : parts > HT_PARTS ? HT_PARTS : parts;
}

/* Chunks of a row. */
static uint32_t row_chunks(const struct epf_ht *ht, uint32_t row_bytes)
{
	uint32_t lanes = HT_CHUNK_VECS * ht->warp;

	return (row_bytes / HT_VEC + lanes - 1) / lanes;
}

/*
 * Bytes of rows that a combine has on their way to other ranks at once: fewer do not keep NVLink busy, and more delay what is added. Two H200, rows of 14 KiB: with 24
 * multiprocessors 4,096 tokens take 192 us with 588 KiB and 221 with 672, 2,048 tokens 116 with 462 and 140 with 588; with 32 of them, whose warps write faster, 4,096
 * tokens 195 with 504 and 205 with 588. With few rows it makes little difference, and with few multiprocessors these are the bound.
 */
static uint64_t in_flight(uint64_t bytes, uint32_t blocks)
{
	const uint64_t kib = 1024, most = 588 * kib, fewer = 336 * kib + bytes / 448;

	if (bytes < 20 * kib * kib || blocks < 16)
		return most;
	return (fewer < most ? fewer : most) * (blocks > 24 ? 7 : 8) / 8;
}

/*
 * Warps that write rows in a combine; the others add meanwhile. Each has one chunk on its way, however many blocks they are in. With few multiprocessors 6 of 16 warps
 * a block are best: with 8 of them four H200 take 771 us, 854 with 5 and 800 with 8.
 */
static uint32_t writers_of(const struct epf_ht *ht, uint32_t blocks, const struct epf_ht_combine *c)
{
	uint32_t warps = ht->threads / ht->warp, most = warps * 3 / 8 * blocks;
	uint64_t flight = in_flight((uint64_t)c->received * c->row_bytes, blocks);
	uint64_t writers = flight * row_chunks(ht, c->row_bytes) / c->row_bytes;

	if (ht->nodes > 1 || warps < 4)
		return warps * blocks;
	if (blocks > writers)
		return blocks;
	return writers < most ? (uint32_t)writers : most;
}

int epf_ht_combine(struct epf_ht *ht, const struct epf_ht_combine *c, void *stream)
{
	struct epf_ht_row row = { .bytes = c->row_bytes, .topk = c->topk };
	struct ht_job j = ht_job_begin(ht);
	int err = ht_check_size("a combine", c->size, sizeof(*c));

	if (!err)
		err = ht_check_row(c->row_bytes);
	if (!err && ht->node_max > 1)
		err = check_window(ht, &row, c->room);
	if (!err &&
	    (uint64_t)c->received * row_chunks(ht, c->row_bytes) > INT32_MAX / ht->ll->ranks)
		err = ll_fail(
			-EINVAL,
			"%u rows of %u bytes are more than 2^31 pieces for %u ranks: give fewer rows",
			c->received, c->row_bytes, ht->ll->ranks);
	if (!err && c->received)
		err = ht_given(c->x, "x", HT_VEC);
	if (!err && c->tokens)
		err = ht_given(c->out, "out", HT_VEC);
	if (!err)
		err = ht_given(c->matrix, "matrix", 4);
	if (!err && c->folded && ht->nodes > 1)
		err = ll_fail(-EINVAL, "folded with %u nodes: it is for one", ht->nodes);
	j.tokens = c->tokens;
	if (!err)
		err = job_of_plan(ht, c->plan, &row, 0, c->across, c->links, c->forwarded, &j);
	if (err)
		return err;
	j.call = EPF_WHY_HT_COMBINE;
	j.unmet = 1;
	j.blocks = blocks_of(ht, c->blocks);
	j.parts = ht_parts_of(ht, c->room);
	j.folded = (uintptr_t)c->folded;
	j.writers = writers_of(ht, j.blocks, c);
	j.lay = ht_layout_of(&row, c->room);
	j.topk = c->topk;
	j.room = c->room;
	j.row_bytes = c->row_bytes;
	j.received = c->received;
	j.place = (uintptr_t)c->place;
	j.matrix = (uintptr_t)c->matrix;
	j.x = (uintptr_t)c->x;
	j.weights = c->topk ? (uintptr_t)c->weights : 0;
	j.bias[0] = (uintptr_t)c->bias[0];
	j.bias[1] = (uintptr_t)c->bias[1];
	j.out = (uintptr_t)c->out;
	j.out_weights = c->topk ? (uintptr_t)c->out_weights : 0;
	return launch_move(ht, HT_K_COMBINE, &j, stream);
}

/* Appends the ranks that are late with one flag, and forgets them. Returns how many. */
static unsigned name_late(struct epf_ht *ht, uint64_t flag, char *text, size_t size)
{
	uint8_t *peers = (uint8_t *)ht->words + sizeof(struct ht_state);
	size_t used = strlen(text);
	unsigned n = 0;

	for (uint32_t r = 0; r < ht->ll->ranks; r++) {
		uint8_t *at = peers + r * sizeof(struct ht_peer) + offsetof(struct ht_peer, late);
		uint64_t late = 0, none = 0;

		if (ht->ll->dev->copy(ht->ll, &late, at, sizeof(late)) || late != flag + 1 ||
		    ht->ll->dev->copy(ht->ll, at, &none, sizeof(none)))
			continue;
		if (used + 1 < size)
			used += (size_t)snprintf(text + used, size - used, "%s%u", n ? ", " : "",
						 r);
		n++;
	}
	return n;
}

/* rc: what epf_gpu_check() said: a loss or an abort, whose sentence says more than what came of it, or else. */
static int fail_late(const struct epf_ht *ht, int rc, const char *ranks, const char *missing)
{
	if (rc == -ECONNRESET || rc == -ECANCELED)
		return ll_fail(
			rc,
			"rank %u: rank %s did not send %s: %s; outputs of this call are undefined",
			ht->ll->rank, ranks, missing, epf_last_error());
	return ll_fail(
		-ETIMEDOUT,
		"rank %u: rank %s did not send %s in time: it is late, stopped or dead, or made other calls, or with another number of experts; outputs of this call are undefined (see ep-fabric why; a longer wait: EPF_GPU_TIMEOUT)",
		ht->ll->rank, ranks, missing);
}

int epf_ht_check(struct epf_ht *ht)
{
	static const char *const missing[HT_FLAGS] = { [HT_COUNTS] = "its counts of rows",
						       [HT_READY] =
							       "its consent to write to its memory",
						       [HT_ROWS] = "its rows" };
	uint8_t *words = ht->words;
	uint64_t bad = 0, none = 0, rows = 0;
	char ranks[256] = "";
	int rc = epf_gpu_check(ht->ll->gpu);

	if (!rc)
		return 0;
	if (ht->ll->dev->copy(ht->ll, &bad, words + offsetof(struct ht_state, bad), sizeof(bad)) ||
	    !bad)
		return ll_fail_fabric(rc, "high-throughput kernel");
	(void)ht->ll->dev->copy(ht->ll, &rows, words + offsetof(struct ht_state, rows),
				sizeof(rows));
	(void)ht->ll->dev->copy(ht->ll, words + offsetof(struct ht_state, bad), &none,
				sizeof(none));
	for (unsigned f = 0; f < HT_FLAGS; f++)
		if ((bad >> f & 1) && name_late(ht, f, ranks, sizeof(ranks)))
			return fail_late(ht, rc, ranks, missing[f]);
	if (bad & HT_BAD_ROOM)
		return ll_fail(
			-ENOSPC,
			"rank %u: %llu rows arrived and there is room for fewer: raise num_worst_tokens; the rest was left out",
			ht->ll->rank, (unsigned long long)rows);
	if (bad & HT_BAD_LAYOUT)
		return ll_fail(
			-EINVAL,
			"rank %u: per_rank (num_tokens_per_rank) and in_rank (is_token_in_rank) do not agree on how many tokens go to a rank: both must be of one layout; outputs of this call are undefined",
			ht->ll->rank);
	return ll_fail(-EINVAL,
		       "rank %u: topk_idx names an expert that does not exist; it was read as -1",
		       ht->ll->rank);
}
