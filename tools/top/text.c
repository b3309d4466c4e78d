/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-top without a terminal (view.h): screens as plain text for --once and --batch. It prints what it is given and nothing else.
 */
#include "tools/top/view.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

static void print_table(FILE *out, const struct top_table *t, const struct top_look *look)
{
	fprintf(out, "\n%s: %" PRIu32 " line%s%s\n", top_screen_name(look->screen), t->n_lines,
		t->n_lines == 1 ? "" : "s", t->has_rates ? ", rates" : "");
	for (uint32_t c = 0; t->n_lines && c < t->n_columns; c++)
		fprintf(out, "%s%*s", c ? " " : "",
			t->column[c].left ? -t->column[c].width : t->column[c].width,
			t->column[c].title);
	if (t->n_lines)
		fputc('\n', out);
	for (uint32_t i = 0; i < t->n_lines; i++) {
		const struct top_line *line = &t->line[i];

		for (uint32_t c = 0; c < t->n_columns; c++)
			fprintf(out, "%s%*s", c ? " " : "",
				t->column[c].left ? -t->column[c].width : t->column[c].width,
				line->cell[c].text);
		fprintf(out, "%s%s\n", line->tail ? "  " : "", line->tail ? line->tail : "");
	}
}

int top_print(FILE *out, const struct top_schema *schema, const struct top_shot *now,
	      const struct top_shot *before, const struct top_look *look)
{
	char lines[TOP_HEADER_LINES][TOP_HEADER_BYTES];
	struct top_table table = { 0 };
	struct top_look one = *look;
	enum top_colour health;
	int rc = 0;

	top_format_header(schema, now, before, lines, &health);
	for (unsigned i = 0; i < TOP_HEADER_LINES; i++)
		fprintf(out, "%s\n", lines[i]);
	for (unsigned s = 0; s < TOP_SCREENS && !rc; s++) {
		if (look->screen != TOP_SCREENS && look->screen != s)
			continue;
		one.screen = (enum top_screen_number)s;
		rc = top_table_make(&table, schema, now, before, &one);
		if (!rc)
			print_table(out, &table, &one);
	}
	top_table_free(&table);
	return rc;
}
