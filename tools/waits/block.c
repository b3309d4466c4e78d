/* SPDX-License-Identifier: Apache-2.0 */
/* One block of a statistics file, its rows and labels by name (waits_priv.h). */
#include "tools/waits/waits_priv.h"

#include <stdlib.h>
#include <string.h>

struct waits_block waits_block(const struct epf_stats_reader *r, unsigned number)
{
	const struct epf_stats_entry *e = epf_stats_reader_block(r, number);

	return (struct waits_block){
		.r = r, .e = e, .cls = epf_stats_reader_class(r, e->class_index), .block = number
	};
}

bool waits_value(const struct waits_block *at, const char *row, struct epf_stats_value *v)
{
	for (unsigned i = 0; i < at->cls->row_count; i++)
		if (!strcmp(epf_stats_reader_row(at->r, at->e->class_index, i)->name, row)) {
			epf_stats_reader_value(at->r, at->block, i, v);
			return v->known;
		}
	memset(v, 0, sizeof(*v));
	return false;
}

uint64_t waits_number(const struct waits_block *at, const char *row, uint64_t otherwise)
{
	struct epf_stats_value v;

	return waits_value(at, row, &v) ? v.number : otherwise;
}

const char *waits_label(const struct waits_block *at, const char *name)
{
	for (unsigned i = 0; i < at->cls->label_count; i++)
		if (!strcmp(at->cls->label[i], name))
			return at->e->label[i];
	return "";
}

uint32_t waits_label_below(const struct waits_block *at, const char *name, uint32_t end)
{
	const char *text = waits_label(at, name);
	char *rest;
	unsigned long long n = strtoull(text, &rest, 10);

	return *text && !*rest && n < end ? (uint32_t)n : end;
}
