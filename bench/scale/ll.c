/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The commands of low-latency dispatch and combine as kernels/ll pushes them (epf_ll_dispatch.cuh, epf_ll_combine.cuh), in its layout, without the rows'
 * bytes: to each rank of another node, from the next one on, the rows for it, a note, and a signal that counts them. tests/prop holds
 * the numbers against those of the kernels. That everything arrived is known place by place, from what the network has written.
 */
#include "bench/scale/scale.h"

#include "kernels/epf_ll.h"
#include "kernels/ll/ll.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct scale_ll {
	struct scale *s;
	uint32_t job, set, round;
	int combine;
	uint64_t calls[2]; /* of dispatch and combine */
	struct ll_layout lay;
	uint32_t *out_at,
		*out; /* dispatch: [ranks + 1] where a rank's list begins; entries: rank << 16 | token */
	uint32_t *in_at,
		*in; /* combine: the same, by the rank that has the rows: home << 16 | token * top-k + k */
	uint64_t *
		rows; /* [ranks][ranks][words] bits: tokens that have landed, by receiver and sender */
	uint64_t *notes; /* [ranks][ranks / 64] */
	uint64_t *home;  /* [ranks][tokens * top-k / 64] */
	uint32_t words, note_words, home_words;
};

static struct scale_ll *ll_of(const struct scale_rank *r)
{
	return r->s->state[r->core->job];
}

static int by_value(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

static void sort_lists(uint32_t *list, const uint32_t *at, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		qsort(list + at[i], at[i + 1] - at[i], sizeof(*list), by_value);
}

/* The entries of a rank's list for one peer: [*begin, *end). */
static void find(const uint32_t *list, const uint32_t *at, uint32_t rank, uint32_t peer,
		 uint32_t *begin, uint32_t *end)
{
	uint32_t lo = at[rank], hi = at[rank + 1];

	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;

		if (list[mid] >> 16 < peer)
			lo = mid + 1;
		else
			hi = mid;
	}
	*begin = lo;
	for (hi = lo; hi < at[rank + 1] && list[hi] >> 16 == peer; hi++)
		;
	*end = hi;
}

static void make_out(struct scale_ll *ll)
{
	const struct scale_options *o = &ll->s->o;
	uint32_t n = 0;

	for (uint32_t r = 0; r < o->ranks; r++) {
		ll->out_at[r] = n;
		for (uint32_t t = 0; t < o->tokens; t++) {
			uint32_t to[SCALE_TOPK];

			scale_route(ll->s, ll->round, r, t, to);
			for (uint32_t k = 0; k < SCALE_TOPK; k++) {
				uint32_t i = 0;

				while (i < k && to[i] != to[k])
					i++;
				if (i == k) /* once to each rank */
					ll->out[n++] = to[k] << 16 | t;
			}
		}
	}
	ll->out_at[o->ranks] = n;
	sort_lists(ll->out, ll->out_at, o->ranks);
}

static void make_in(struct scale_ll *ll)
{
	const struct scale_options *o = &ll->s->o;
	uint32_t *fill = ll->in_at, sum = 0;

	memset(fill, 0, (o->ranks + 1) * sizeof(*fill));
	for (int pass = 0; pass < 2; pass++) {
		for (uint32_t r = 0; r < o->ranks; r++)
			for (uint32_t t = 0; t < o->tokens; t++) {
				uint32_t to[SCALE_TOPK];

				scale_route(ll->s, ll->round, r, t, to);
				for (uint32_t k = 0; k < SCALE_TOPK; k++) {
					if (pass)
						ll->in[fill[to[k]]] =
							r << 16 | (t * SCALE_TOPK + k);
					fill[to[k]]++;
				}
			}
		/* Counts become beginnings; after the second pass ends, which are the next one's beginnings. */
		for (uint32_t r = 0; r < o->ranks && !pass; r++) {
			uint32_t count = fill[r];

			fill[r] = sum;
			sum += count;
		}
	}
	memmove(fill + 1, fill, o->ranks * sizeof(*fill));
	fill[0] = 0;
	sort_lists(ll->in, ll->in_at, o->ranks);
}

/* ---- sending ---- */

static uint32_t signal_of(const struct scale_ll *ll, uint32_t from)
{
	return ((ll->combine ? LL_COMBINE : LL_DISPATCH) * 2u + ll->set) * ll->s->o.ranks + from;
}

static struct epf_op row_op(const struct scale_ll *ll, const struct scale_rank *r, uint32_t peer,
			    uint32_t entry)
{
	const struct scale_options *o = &ll->s->o;
	uint32_t at = entry & 0xffffu, home = 2u * o->hidden;

	if (ll->combine)
		return scale_transfer(
			EPF_OP_PUT, peer, ll->lay.out[ll->set] + (uint64_t)r->at * home,
			ll->lay.home[ll->set] +
				((uint64_t)at / SCALE_TOPK * EPF_LL_TOPK_MAX + at % SCALE_TOPK) *
					(2u * o->hidden),
			home, signal_of(ll, r->rank), EPF_F_COUNTED);
	return scale_transfer(EPF_OP_PUT, peer, ll->lay.stage[ll->set] + at * ll->lay.row_bytes,
			      ll->lay.inbox[ll->set] +
				      ((uint64_t)r->rank * o->tokens_max + at) * ll->lay.row_bytes,
			      ll_row_used(o->hidden, 1), signal_of(ll, r->rank), EPF_F_COUNTED);
}

static struct epf_op note_op(const struct scale_ll *ll, const struct scale_rank *r, uint32_t peer)
{
	const struct scale_options *o = &ll->s->o;
	uint32_t experts = o->ranks > SCALE_EXPERTS ? o->ranks : SCALE_EXPERTS;

	return scale_transfer(EPF_OP_PUT, peer,
			      ll->lay.notes[ll->set] + (uint64_t)peer * ll->lay.note_bytes,
			      ll->lay.inotes[ll->set] + (uint64_t)r->rank * ll->lay.note_bytes,
			      ll_note_used(experts / o->ranks, o->tokens_max),
			      signal_of(ll, r->rank), EPF_F_COUNTED);
}

static struct epf_op signal_op(const struct scale_ll *ll, const struct scale_rank *r, uint32_t peer,
			       uint32_t puts)
{
	return (struct epf_op){ .op = EPF_OP_SIGNAL,
				.flags = puts ? EPF_F_COUNTED : 0,
				.rank = peer,
				.signal = signal_of(ll, r->rank),
				.value = 1,
				.count = puts };
}

/* Pushes what the ring has room for: part 0 rows, 1 the note, 2 the signal. Returns how many. */
static int send(struct scale_ll *ll, struct scale_rank *r)
{
	const uint32_t *list = ll->combine ? ll->in : ll->out;
	uint32_t ranks = ll->s->o.ranks, begin, end;
	int pushed = 0;

	while (r->peer < ranks - 1) {
		uint32_t peer = (r->rank + 1 + r->peer) % ranks;
		struct epf_op op;

		if (scale_is_near(ll->s, peer, r->rank) || scale_is_lost(r, peer)) {
			r->peer++;
			r->at = r->part = 0;
			continue;
		}
		find(list, ll->combine ? ll->in_at : ll->out_at, r->rank, peer, &begin, &end);
		if (r->part == 0 && begin + r->at == end)
			r->part = ll->combine ? 2 : 1;
		if (r->part == 0)
			op = row_op(ll, r, peer, list[begin + r->at]);
		else if (r->part == 1)
			op = note_op(ll, r, peer);
		else
			op = signal_op(ll, r, peer, end - begin + !ll->combine);
		if (!scale_push(r, &op))
			break;
		pushed++;
		if (r->part == 0) {
			r->at++;
			continue;
		}
		r->at = 0;
		r->peer += r->part == 2;
		r->part = r->part == 1 ? 2 : 0;
	}
	return pushed;
}

/* ---- receiving ---- */

static void mark(uint64_t *bits, uint64_t at)
{
	bits[at / 64] |= UINT64_C(1) << at % 64;
}

static int has(const uint64_t *bits, uint64_t at)
{
	return (int)(bits[at / 64] >> at % 64 & 1u);
}

static uint64_t *rows_of(const struct scale_ll *ll, uint32_t to, uint32_t from)
{
	return ll->rows + ((size_t)to * ll->s->o.ranks + from) * ll->words;
}

static void landed(struct scale_rank *r, uint64_t offset, uint32_t bytes)
{
	struct scale_ll *ll = ll_of(r);
	const struct scale_options *o = &ll->s->o;
	const struct ll_layout *lay = &ll->lay;
	uint64_t at;

	(void)bytes;
	if (ll->combine) {
		at = (offset - lay->home[ll->set]) / (2u * o->hidden);
		if (at / EPF_LL_TOPK_MAX >= o->tokens)
			scale_wrong(r->s, "rank %u: a row landed outside its slots", r->rank);
		else
			mark(ll->home + (size_t)r->rank * ll->home_words,
			     at / EPF_LL_TOPK_MAX * SCALE_TOPK + at % EPF_LL_TOPK_MAX);
		return;
	}
	at = offset - lay->inotes[ll->set];
	if (offset >= lay->inotes[ll->set] && at / lay->note_bytes < o->ranks) {
		mark(ll->notes + (size_t)r->rank * ll->note_words, at / lay->note_bytes);
		return;
	}
	at = (offset - lay->inbox[ll->set]) / lay->row_bytes;
	if (at / o->tokens_max >= o->ranks)
		scale_wrong(r->s, "rank %u: a row landed outside its inbox", r->rank);
	else
		mark(rows_of(ll, r->rank, (uint32_t)(at / o->tokens_max)), at % o->tokens_max);
}

/* What a rank's signal says is here and is not. */
static uint32_t missing(const struct scale_ll *ll, uint32_t to, uint32_t from)
{
	const uint32_t *list = ll->combine ? ll->in : ll->out;
	const uint64_t *bits =
		ll->combine ? ll->home + (size_t)to * ll->home_words : rows_of(ll, to, from);
	uint32_t begin, end, n = 0;

	find(list, ll->combine ? ll->in_at : ll->out_at, from, to, &begin, &end);
	for (uint32_t i = begin; i < end; i++)
		n += !has(bits, list[i] & 0xffffu);
	if (!ll->combine)
		n += !has(ll->notes + (size_t)to * ll->note_words, from);
	return n;
}

/* Looks at the sender that the rank waits for; of small jobs at all, so that no signal comes before its rows unnoticed. */
static int receive(struct scale_ll *ll, struct scale_rank *r)
{
	uint32_t ranks = ll->s->o.ranks, ahead = ranks <= 64 ? ranks : 1;
	int did = 0;

	for (uint32_t i = 0; r->waits < ranks && i < ahead && r->waits + i < ranks;) {
		uint32_t from = (r->rank + r->waits + i) % ranks;
		uint64_t seen;
		int lost = scale_is_lost(r, from);

		seen = epf_signal_read(&r->signals[signal_of(ll, from)]);
		if (!scale_is_near(ll->s, from, r->rank) && !lost) {
			if (seen > ll->calls[ll->combine] / 2 + 1)
				return scale_wrong(ll->s, "rank %u: the signal of rank %u is %llu",
						   r->rank, from, (unsigned long long)seen);
			if (seen <= ll->calls[ll->combine] / 2) {
				i++; /* not yet: what follows may be there */
				continue;
			}
			if (!ll->s->o.nic && missing(ll, r->rank, from))
				return scale_wrong(
					ll->s,
					"rank %u: %u rows of rank %u are not there when it says so",
					r->rank, missing(ll, r->rank, from), from);
		}
		if (i)
			i++;
		else
			r->waits++;
		did += !i;
	}
	return did;
}

static int poll(struct scale_rank *r)
{
	struct scale_ll *ll = ll_of(r);
	int sent = send(ll, r), got = 0;

	if (r->peer >= ll->s->o.ranks - 1) {
		got = receive(ll, r);
		if (got < 0)
			return got;
		r->done = r->waits == ll->s->o.ranks;
	}
	return sent + got;
}

static const struct scale_program program = { "ll", poll, landed };

uint64_t scale_ll_missing(const struct scale_ll *ll)
{
	const struct scale *s = ll->s;
	const struct scale_rank *ranks = &s->ranks[(size_t)ll->job * s->o.ranks];
	uint64_t n = 0;

	for (uint32_t to = 0; to < s->o.ranks; to++)
		for (uint32_t from = 0; from < s->o.ranks; from++)
			if (ranks[to].done == 1 && ranks[from].done == 1 &&
			    !scale_is_near(s, to, from))
				n += missing(ll, to, from);
	return n;
}

int scale_ll_begin(struct scale_ll *ll, uint32_t round, int combine)
{
	const struct scale_options *o = &ll->s->o;

	ll->round = round;
	ll->combine = combine;
	ll->calls[combine] = round;
	ll->set = round & 1u;
	ll->s->program[ll->job] = &program;
	ll->s->state[ll->job] = ll;
	memset(ll->rows, 0, (size_t)o->ranks * o->ranks * ll->words * 8);
	memset(ll->notes, 0, (size_t)o->ranks * ll->note_words * 8);
	memset(ll->home, 0, (size_t)o->ranks * ll->home_words * 8);
	if (combine)
		make_in(ll);
	else
		make_out(ll);
	return 0;
}

struct scale_ll *scale_ll_open(struct scale *s, uint32_t job)
{
	const struct scale_options *o = &s->o;
	struct epf_ll_shape shape = { o->tokens_max, o->hidden,
				      o->ranks > SCALE_EXPERTS ? o->ranks : SCALE_EXPERTS,
				      SCALE_TOPK };
	struct scale_ll *ll = calloc(1, sizeof(*ll));
	size_t entries = (size_t)o->ranks * o->tokens * SCALE_TOPK;

	if (!ll || ll_layout_make(&shape, o->ranks, &ll->lay)) {
		free(ll);
		return NULL;
	}
	ll->s = s;
	ll->job = job;
	ll->words = (o->tokens_max + 63) / 64;
	ll->note_words = (o->ranks + 63) / 64;
	ll->home_words = (o->tokens * SCALE_TOPK + 63) / 64;
	ll->out_at = calloc(o->ranks + 2, sizeof(*ll->out_at));
	ll->in_at = calloc(o->ranks + 2, sizeof(*ll->in_at));
	ll->out = malloc(entries * sizeof(*ll->out));
	ll->in = malloc(entries * sizeof(*ll->in));
	ll->rows = malloc((size_t)o->ranks * o->ranks * ll->words * 8);
	ll->notes = malloc((size_t)o->ranks * ll->note_words * 8);
	ll->home = malloc((size_t)o->ranks * ll->home_words * 8);
	if (ll->out_at && ll->in_at && ll->out && ll->in && ll->rows && ll->notes && ll->home)
		return ll;
	scale_ll_close(ll);
	return NULL;
}

void scale_ll_close(struct scale_ll *ll)
{
	if (!ll)
		return;
	free(ll->out_at);
	free(ll->in_at);
	free(ll->out);
	free(ll->in);
	free(ll->rows);
	free(ll->notes);
	free(ll->home);
	free(ll);
}
