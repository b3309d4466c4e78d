/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-top's setup on the screen (F2): its lines and what the keys do in it. What is changed is seen at once, and kept in the file when
 * the setup is left. It draws nothing itself.
 */
#include "tools/top/ui.h"

#include <curses.h>
#include <stdio.h>

#define ESCAPE 27

/* Lines of the setup; the columns of the screen follow. */
enum { LINE_DELAY, LINE_TOTALS, LINE_COLOURS, LINE_SORT, LINE_INVERT, LINE_COLUMNS };

static const double delays[] = { 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300, 3600 };

enum { DELAYS = sizeof(delays) / sizeof(*delays) };

uint32_t top_setup_lines(const struct top_ui *ui)
{
	return LINE_COLUMNS + ui->table.n_columns;
}

static const char *title_of(const struct top_ui *ui, uint32_t column)
{
	const char *title = ui->table.column[column].title;

	return *title ? title : "(bar)";
}

void top_setup_line(const struct top_ui *ui, uint32_t line, char *text, size_t bytes)
{
	const struct top_look *look = &ui->look[ui->screen];
	const char *screen = top_screen_name(ui->screen);

	switch (line) {
	case LINE_DELAY:
		snprintf(text, bytes, " Seconds between readings: %g", ui->delay_s);
		break;
	case LINE_TOTALS:
		snprintf(text, bytes, " [%c] Totals instead of rates", ui->totals ? 'x' : ' ');
		break;
	case LINE_COLOURS:
		snprintf(text, bytes, " [%c] Colours%s", ui->wants_colours ? 'x' : ' ',
			 ui->can_colour ? "" : " (none: NO_COLOR, -C, or the terminal has none)");
		break;
	case LINE_SORT:
		snprintf(text, bytes, " Sort %s by: %s", screen,
			 look->sort < ui->table.n_columns ? title_of(ui, look->sort)
							  : "(unsorted)");
		break;
	case LINE_INVERT:
		snprintf(text, bytes, " [%c] Sort %s the other way", look->invert ? 'x' : ' ',
			 screen);
		break;
	default:
		snprintf(text, bytes, " [%c] Column %s of %s",
			 look->hidden >> (line - LINE_COLUMNS) & 1 ? ' ' : 'x',
			 title_of(ui, line - LINE_COLUMNS), screen);
	}
}

void top_setup_open(struct top_ui *ui)
{
	ui->mode = TOP_SETUP;
	ui->menu = 0;
}

/* by: -1, 1; 0: on, and from the end to the beginning. */
static double next_delay(double now, int by)
{
	int at = 0;

	if (by < 0) {
		for (at = DELAYS - 1; at > 0 && delays[at] >= now;)
			at--;
		return delays[at];
	}
	while (at < DELAYS && delays[at] <= now)
		at++;
	return at < DELAYS ? delays[at] : delays[by ? DELAYS - 1 : 0];
}

/* The same for a column; before the first one stands the order in which things are. */
static uint32_t next_sort(uint32_t now, int by, uint32_t n)
{
	uint32_t at = now < n ? now + 1 : 0;

	if (by < 0)
		at -= at > 0;
	else if (at < n)
		at++;
	else if (!by)
		at = 0;
	return at ? at - 1 : TOP_NATURAL;
}

static void change(struct top_ui *ui, int by)
{
	struct top_look *look = &ui->look[ui->screen];

	switch (ui->menu) {
	case LINE_DELAY:
		ui->delay_s = next_delay(ui->delay_s, by);
		break;
	case LINE_TOTALS:
		ui->totals = !ui->totals;
		break;
	case LINE_COLOURS:
		ui->wants_colours = !ui->wants_colours;
		break;
	case LINE_SORT:
		look->sort = next_sort(look->sort, by, ui->table.n_columns);
		break;
	case LINE_INVERT:
		look->invert = !look->invert;
		break;
	default:
		look->hidden ^= UINT32_C(1) << (ui->menu - LINE_COLUMNS);
	}
	ui->stale_table = ui->setup_changed = true;
}

/* The columns are those of the screen: another one may have fewer. */
static void turn(struct top_ui *ui, unsigned screen)
{
	struct top_column column[TOP_COLUMNS_MAX];
	uint32_t last;

	ui->screen = (enum top_screen_number)(screen % TOP_SCREENS);
	ui->cursor = ui->first = ui->first_column = 0;
	ui->cursor_id[0] = '\0';
	ui->stale_table = true;
	last = LINE_COLUMNS + top_columns(ui->screen, column) - 1;
	ui->menu = ui->menu > last ? last : ui->menu;
}

static void leave(struct top_ui *ui)
{
	struct top_setup setup = { .delay_s = ui->delay_s,
				   .totals = ui->totals,
				   .colours = ui->wants_colours };

	ui->mode = TOP_TABLE;
	if (!ui->setup_changed)
		return;
	ui->setup_changed = false;
	for (unsigned s = 0; s < TOP_SCREENS; s++)
		setup.screen[s] = (struct top_setup_screen){ .sort = ui->look[s].sort,
							     .hidden = ui->look[s].hidden,
							     .invert = ui->look[s].invert };
	if (!*ui->setup_path)
		snprintf(ui->note, sizeof(ui->note),
			 "setup: not kept: neither XDG_CONFIG_HOME nor HOME is set");
	else if (!top_setup_save(&setup, ui->setup_path, ui->note, sizeof(ui->note)))
		snprintf(ui->note, sizeof(ui->note), "setup: kept in %.150s", ui->setup_path);
}

void top_setup_key(struct top_ui *ui, int key)
{
	uint32_t last = top_setup_lines(ui) - 1;

	if ((key == KEY_UP || key == 'k') && ui->menu)
		ui->menu--;
	else if ((key == KEY_DOWN || key == 'j') && ui->menu < last)
		ui->menu++;
	else if (key == KEY_HOME)
		ui->menu = 0;
	else if (key == KEY_END)
		ui->menu = last;
	else if (key == KEY_LEFT || key == KEY_RIGHT)
		change(ui, key == KEY_LEFT ? -1 : 1);
	else if (key == '\n' || key == '\r' || key == KEY_ENTER || key == ' ')
		change(ui, 0);
	else if (key == '\t')
		turn(ui, ui->screen + 1u);
	else if (key == KEY_BTAB)
		turn(ui, ui->screen + TOP_SCREENS - 1u);
	else if (key == ESCAPE || key == 'q' || key == KEY_F(2) || key == KEY_F(10))
		leave(ui);
}
