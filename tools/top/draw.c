/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is seen of ep-top on a terminal (ui.h), of any size from one character up. All texts but the sparklines are printable ASCII, so that bytes are
 * columns. It changes nothing but what follows from the size of the terminal.
 */
#include "tools/top/ui.h"

#include <curses.h>
#include <inttypes.h>
#include <langinfo.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_HEADER = 10, ROWS_SPARK = 16, ROWS_KEYS = 4, SPARK = 40, DETAIL_NAME = 24 };

static int attribute(const struct top_ui *ui, enum top_colour c)
{
	static const int plain[TOP_COLOURS] = { [TOP_BAD] = A_BOLD,
						[TOP_WARN] = A_BOLD,
						[TOP_DIM] = A_DIM,
						[TOP_HEAD] = A_REVERSE,
						[TOP_TITLE] = A_REVERSE };

	if (!ui->colours || c == TOP_PLAIN || c == TOP_DIM)
		return plain[c];
	return (int)((c == TOP_BAD ? A_BOLD : 0) | (unsigned)COLOR_PAIR(c));
}

void top_draw_init(struct top_ui *ui)
{
	const char *no = getenv("NO_COLOR");

	ui->utf8 = !strcmp(nl_langinfo(CODESET), "UTF-8");
	ui->can_colour = !(no && *no) && !ui->run->no_colour && has_colors() && start_color() == OK;
	if (!ui->can_colour)
		return;
	use_default_colors();
	init_pair(TOP_GOOD, COLOR_GREEN, -1);
	init_pair(TOP_WARN, COLOR_YELLOW, -1);
	init_pair(TOP_BAD, COLOR_RED, -1);
	init_pair(TOP_HEAD, COLOR_BLACK, COLOR_CYAN);
	init_pair(TOP_TITLE, COLOR_BLACK, COLOR_GREEN);
}

/* Text at a place, cut at the terminal's edge. */
static void put(const struct top_ui *ui, int y, int x, const char *text, enum top_colour colour)
{
	if (y < 0 || y >= LINES || x < 0 || x >= COLS)
		return;
	attrset(attribute(ui, colour));
	mvaddnstr(y, x, text, COLS - x);
	attrset(0);
}

/* A whole line in one colour. */
static void put_bar(const struct top_ui *ui, int y, const char *text, enum top_colour colour)
{
	if (y < 0 || y >= LINES)
		return;
	attrset(attribute(ui, colour));
	mvhline(y, 0, ' ', COLS);
	mvaddnstr(y, 0, text, COLS);
	attrset(0);
}

/* ---- header ---- */

static int put_spark(const struct top_ui *ui, int y, int x, const char *name, const double *value)
{
	static const char *const blocks[] = { "\u2581", "\u2582", "\u2583", "\u2584",
					      "\u2585", "\u2586", "\u2587", "\u2588" };
	static const char ascii[] = "_.-:=+*#";
	uint32_t n = ui->n_history < SPARK ? ui->n_history : SPARK;
	double most = 0;

	put(ui, y, x, name, TOP_PLAIN);
	x += (int)strlen(name) + 1;
	for (uint32_t i = ui->n_history - n; i < ui->n_history; i++)
		most = value[i] > most ? value[i] : most;
	for (uint32_t i = ui->n_history - n; i < ui->n_history && x < COLS; i++, x++) {
		int level = most > 0 ? (int)(value[i] / most * 7 + 0.5) : 0;
		char one[2] = { ascii[level], 0 };

		attrset(attribute(ui, TOP_GOOD));
		mvaddstr(y, x, ui->utf8 ? blocks[level] : one);
		attrset(0);
	}
	return x + 2;
}

/* Returns the next free line. */
static int draw_header(const struct top_ui *ui)
{
	char lines[TOP_HEADER_LINES][TOP_HEADER_BYTES];
	enum top_colour health;
	int y = 0;

	if (ui->no_header || LINES < 5)
		return 0;
	top_format_header(ui->run->schema, ui->now, ui->before, lines, &health);
	if (LINES >= ROWS_HEADER) {
		put(ui, y++, 0, lines[0], TOP_PLAIN);
		put(ui, y++, 0, lines[1], TOP_PLAIN);
	}
	put(ui, y++, 0, lines[2], health);
	if (LINES >= ROWS_SPARK) {
		int x = put_spark(ui, y, 0, "commands", ui->commands);

		put_spark(ui, y++, x, "payload", ui->bytes);
	}
	return y;
}

static int draw_tabs(const struct top_ui *ui, int y)
{
	int x = 0;

	if (LINES < 3)
		return y;
	for (unsigned s = 0; s < TOP_SCREENS; s++) {
		char text[24];

		snprintf(text, sizeof(text), " %c %s ", "1234567890e"[s],
			 top_screen_name((enum top_screen_number)s));
		/* Where not all fit, the chosen one does. */
		if (s == ui->screen || COLS >= 90 || x + (int)strlen(text) < COLS) {
			put(ui, y, x, text, s == ui->screen ? TOP_HEAD : TOP_PLAIN);
			x += (int)strlen(text);
		}
	}
	return y + 1;
}

/* ---- table ---- */

static void put_cell(const struct top_ui *ui, int y, int x, const struct top_column *column,
		     const char *text, enum top_colour colour)
{
	char cell[TOP_CELL_BYTES + 64];

	snprintf(cell, sizeof(cell), "%*s", column->left ? -column->width : column->width, text);
	put(ui, y, x, cell, colour);
}

static bool is_shown(const struct top_ui *ui, uint32_t c)
{
	return c >= ui->first_column && !(ui->look[ui->screen].hidden >> c & 1);
}

static void draw_titles(const struct top_ui *ui, int y)
{
	const struct top_table *t = &ui->table;
	int x = 0;

	put_bar(ui, y, "", TOP_TITLE);
	for (uint32_t c = 0; c < t->n_columns; c++) {
		char title[20];

		if (!is_shown(ui, c))
			continue;
		snprintf(title, sizeof(title), "%s", t->column[c].title);
		put_cell(ui, y, x, &t->column[c], title, TOP_TITLE);
		/* The mark of the column that is sorted by lies in the gap behind it. */
		if (c == ui->look[ui->screen].sort)
			put(ui, y, x + t->column[c].width, ui->look[ui->screen].invert ? "^" : "v",
			    TOP_TITLE);
		x += t->column[c].width + 1;
	}
}

static void draw_line(const struct top_ui *ui, int y, const struct top_line *line, bool chosen)
{
	const struct top_table *t = &ui->table;
	int x = 0;

	if (chosen)
		put_bar(ui, y, "", TOP_HEAD);
	for (uint32_t c = 0; c < t->n_columns; c++) {
		enum top_colour colour =
			line->colour == TOP_PLAIN ? line->cell[c].colour : line->colour;

		if (!is_shown(ui, c))
			continue;
		put_cell(ui, y, x, &t->column[c], line->cell[c].text, chosen ? TOP_HEAD : colour);
		x += t->column[c].width + 1;
	}
	if (line->tail)
		put(ui, y, x + 1, line->tail, chosen ? TOP_HEAD : line->colour);
}

static const char *nothing(const struct top_ui *ui, char *text, size_t size)
{
	if (*ui->look[ui->screen].filter && ui->table.n_all)
		return "no line has this text: F4 changes the filter";
	if (!ui->now->n_instances)
		return waits_nobody(ui->now->left_out, text, size);
	if (ui->screen == TOP_WAITING)
		return "nothing waits";
	return "nothing to show";
}

static void draw_table(struct top_ui *ui, int y, int last)
{
	char text[80];

	ui->page = last - y > 1 ? (uint32_t)(last - y - 1) : 0;
	if (LINES >= 2)
		draw_titles(ui, y++);
	if (ui->cursor < ui->first)
		ui->first = ui->cursor;
	if (ui->page && ui->cursor >= ui->first + ui->page)
		ui->first = ui->cursor - ui->page + 1;
	for (uint32_t i = ui->first; i < ui->table.n_lines && y < last; i++, y++)
		draw_line(ui, y, &ui->table.line[i], i == ui->cursor);
	if (!ui->table.n_lines)
		put(ui, y, 0, nothing(ui, text, sizeof(text)), TOP_DIM);
}

/* ---- pages and menus ---- */

struct page {
	const struct top_ui *ui;
	int y, last, name;
	uint32_t skip, n;
};

/* One line of a page, wrapped where it is longer than the terminal. */
static void page_line(struct page *p, int indent, const char *text, enum top_colour colour)
{
	size_t room = COLS > indent + 1 ? (size_t)(COLS - indent) : 1;

	do {
		size_t n = strlen(text) > room ? room : strlen(text);
		char part[512];

		if (n >= sizeof(part))
			n = sizeof(part) - 1;
		snprintf(part, sizeof(part), "%.*s", (int)n, text);
		if (p->n++ >= p->skip && p->y < p->last)
			put(p->ui, p->y++, indent, part, colour);
		text += n;
	} while (*text);
}

static void detail(void *arg, const char *name, const char *value, const char *help)
{
	struct page *p = arg;
	char text[1024];

	snprintf(text, sizeof(text), "%-*s %-28s  %s", DETAIL_NAME, name, value, help);
	page_line(p, 0, text, TOP_PLAIN);
}

static void draw_page(struct top_ui *ui, int y, int last)
{
	struct page p = { .ui = ui, .y = y, .last = last, .skip = ui->scroll };

	ui->page = last > y ? (uint32_t)(last - y) : 0;
	if (ui->mode == TOP_HELP)
		for (unsigned i = 0; top_help[i]; i++)
			page_line(&p, 0, top_help[i], i ? TOP_PLAIN : TOP_HEAD);
	else if (ui->cursor < ui->table.n_lines)
		top_details(ui->run->schema, ui->now, ui->before, &ui->table.line[ui->cursor],
			    detail, &p);
	if (p.n && ui->scroll >= p.n)
		ui->scroll = p.n - 1;
}

static void draw_menu(const struct top_ui *ui, int y, int last)
{
	const struct top_look *look = &ui->look[ui->screen];
	bool sort = ui->mode == TOP_MENU_SORT;
	uint32_t n = ui->table.n_columns + sort, room = last > y + 1 ? (uint32_t)(last - y - 1) : 1;
	uint32_t from = ui->menu >= room ? ui->menu - room + 1 : 0;

	put_bar(ui, y++,
		sort ? "Sort by: Enter chooses, Esc leaves"
		     : "Columns: Enter hides and shows, Esc leaves",
		TOP_HEAD);
	for (uint32_t i = from; i < n && y < last; i++, y++) {
		const char *title = sort && !i ? "(unsorted)" : ui->table.column[i - sort].title;
		char text[48];

		snprintf(text, sizeof(text), " %s%s",
			 sort                    ? ""
			 : look->hidden >> i & 1 ? "[ ] "
						 : "[x] ",
			 *title ? title : "(bar)");
		put(ui, y, 0, text, i == ui->menu ? TOP_HEAD : TOP_PLAIN);
	}
}

static void draw_setup(const struct top_ui *ui, int y, int last)
{
	uint32_t n = top_setup_lines(ui), room = last > y + 1 ? (uint32_t)(last - y - 1) : 1;

	put_bar(ui, y++, "Setup: Left, Right and Enter change, Tab: next screen, Esc keeps it",
		TOP_HEAD);
	for (uint32_t i = ui->menu >= room ? ui->menu - room + 1 : 0; i < n && y < last; i++, y++) {
		char text[96];

		top_setup_line(ui, i, text, sizeof(text));
		put(ui, y, 0, text, i == ui->menu ? TOP_HEAD : TOP_PLAIN);
	}
}

static void draw_bottom(const struct top_ui *ui)
{
	const struct top_look *look = &ui->look[ui->screen];
	uint32_t records = top_source_records(ui->run->source);
	char text[512], replay[64] = "", filter[96] = "";

	if (LINES < ROWS_KEYS && ui->mode < TOP_ASK_SEARCH && !*ui->note)
		return;
	if (records)
		snprintf(replay, sizeof(replay), "  record %" PRIu32 "/%" PRIu32,
			 top_source_at(ui->run->source), records);
	if (*look->filter)
		snprintf(filter, sizeof(filter), "  filter '%s': %" PRIu32 " of %" PRIu32,
			 look->filter, ui->table.n_lines, ui->table.n_all);
	if (ui->mode >= TOP_ASK_SEARCH)
		snprintf(text, sizeof(text), "%s: %s_",
			 ui->mode == TOP_ASK_SEARCH   ? "Search"
			 : ui->mode == TOP_ASK_FILTER ? "Filter"
						      : "Seconds between readings",
			 ui->input);
	else if (*ui->note)
		snprintf(text, sizeof(text), "%s", ui->note);
	else
		snprintf(
			text, sizeof(text),
			"%s%s%s%s  F1 Help  F2 Setup  F3 Search  F4 Filter  F6 Sort  Tab Screen  Enter Details  r Rates  Space Pause  q Quit",
			ui->paused ? "PAUSED  " : "",
			ui->totals || !ui->table.has_rates ? "totals" : "rates", replay, filter);
	put_bar(ui, LINES - 1, text, TOP_HEAD);
}

void top_draw(struct top_ui *ui)
{
	int y = 0, last = LINES >= ROWS_KEYS ? LINES - 1 : LINES;

	ui->colours = ui->can_colour && ui->wants_colours;
	erase();
	if (ui->mode != TOP_HELP)
		y = draw_header(ui);
	if (ui->mode != TOP_HELP)
		y = draw_tabs(ui, y);
	if (ui->mode == TOP_HELP || ui->mode == TOP_DETAILS)
		draw_page(ui, y, last);
	else if (ui->mode == TOP_MENU_SORT || ui->mode == TOP_MENU_COLUMNS)
		draw_menu(ui, y, last);
	else if (ui->mode == TOP_SETUP)
		draw_setup(ui, y, last);
	else
		draw_table(ui, y, last);
	draw_bottom(ui);
	refresh();
}
