/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where everything lies in communication memory, and the size hint: pure functions of a shape and the number of ranks. Texts of errors, too,
 * because these are the calls that need no object.
 */
#include "kernels/ll/ll.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { PAGE = 4096 };

static _Thread_local char why[512];

int ll_fail(int err, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, sizeof(why), fmt, ap);
	va_end(ap);
	return err;
}

int ll_fail_fabric(int err, const char *doing)
{
	return ll_fail(err, "%s: %s", doing, epf_last_error());
}

const char *epf_ll_error(void)
{
	return why;
}

static int check_shape(const struct epf_ll_shape *s, uint32_t ranks)
{
	if (!ranks || ranks > EPF_LL_RANKS_MAX)
		return ll_fail(-EINVAL, "%u ranks: 1 to %u are possible", ranks, EPF_LL_RANKS_MAX);
	if (!s->tokens_max || s->tokens_max > EPF_LL_TOKENS_MAX)
		return ll_fail(-EINVAL, "tokens_max is %u: 1 to %u are possible", s->tokens_max,
			       EPF_LL_TOKENS_MAX);
	if (!s->hidden || s->hidden % EPF_LL_BLOCK || s->hidden > EPF_LL_HIDDEN_MAX)
		return ll_fail(-EINVAL,
			       "hidden is %u: a multiple of %u up to %u is needed (pad the rows)",
			       s->hidden, EPF_LL_BLOCK, EPF_LL_HIDDEN_MAX);
	if (!s->experts || s->experts % ranks || s->experts > EPF_LL_EXPERTS_MAX)
		return ll_fail(-EINVAL,
			       "%u experts on %u ranks: a multiple of the ranks up to %u is needed",
			       s->experts, ranks, EPF_LL_EXPERTS_MAX);
	if (!s->topk || s->topk > EPF_LL_TOPK_MAX)
		return ll_fail(-EINVAL, "topk is %u: 1 to %u are possible", s->topk,
			       EPF_LL_TOPK_MAX);
	return 0;
}

/* Takes room at the end, page by page: areas of different use never share one. */
static uint64_t take(struct ll_layout *l, uint64_t bytes)
{
	uint64_t at = l->bytes;

	l->bytes += (bytes + PAGE - 1) / PAGE * PAGE;
	return at;
}

int ll_layout_make(const struct epf_ll_shape *s, uint32_t ranks, struct ll_layout *out)
{
	struct ll_layout l = { 0 };
	uint64_t row = ll_log_bytes(s->hidden); /* of a combine, in its longer form */
	int err = check_shape(s, ranks);

	if (err)
		return err;
	l.row_bytes = (ll_row_used(s->hidden, 0) + LL_LINE - 1) / LL_LINE * LL_LINE;
	l.note_bytes =
		(ll_note_used(s->experts / ranks, s->tokens_max) + LL_LINE - 1) / LL_LINE * LL_LINE;
	l.term_bytes =
		(ll_terms_used(s->tokens_max, EPF_LL_TOPK_MAX) + LL_LINE - 1) / LL_LINE * LL_LINE;
	l.bytes = epf_ll_head_bytes(ranks); /* l.flags is 0: they are the head */
	for (int i = 0; i < 2; i++)
		l.out[i] = take(&l, (uint64_t)s->experts * s->tokens_max * row);
	for (int i = 0; i < 2; i++) {
		l.stage[i] = take(&l, (uint64_t)s->tokens_max * l.row_bytes);
		l.notes[i] = take(&l, (uint64_t)ranks * l.note_bytes);
		l.inbox[i] = take(&l, (uint64_t)ranks * s->tokens_max * l.row_bytes);
		l.inotes[i] = take(&l, (uint64_t)ranks * l.note_bytes);
		l.home[i] = take(&l, (uint64_t)s->tokens_max * EPF_LL_TOPK_MAX * row);
		l.terms[i] = take(&l, l.term_bytes);
		l.iterms[i] = take(&l, (uint64_t)ranks * l.term_bytes);
	}
	*out = l;
	return 0;
}

uint64_t epf_ll_head_bytes(uint32_t ranks)
{
	struct ll_layout l = { 0 };

	if (!ranks || ranks > EPF_LL_RANKS_MAX) {
		(void)ll_fail(-EINVAL, "%u ranks: 1 to %u are possible", ranks, EPF_LL_RANKS_MAX);
		return 0;
	}
	(void)take(&l, 2ull * LL_KINDS * ranks * LL_FLAG_BYTES);
	return l.bytes;
}

uint64_t epf_ll_size_hint(uint32_t tokens_max, uint32_t hidden, uint32_t ranks, uint32_t experts)
{
	struct epf_ll_shape shape = { tokens_max, hidden, experts, EPF_LL_TOPK_MAX };
	struct ll_layout l;

	return ll_layout_make(&shape, ranks, &l) ? 0 : l.bytes;
}
