/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the keys of ep-top do (ui.h): those that users of htop and spdk_top know. It changes the state and never draws.
 */
#include "tools/top/ui.h"

#include <curses.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ESCAPE    27
#define CONTROL_L 12

const char *const top_help[] = {
	"ep-top: what the instances of this machine do. Reading does not disturb the engines.",
	"",
	"  1 .. 9, 0, e     screen: waiting, NICs, cores, rings, ranks, peers, lanes, jobs, instances, calls, endpoints",
	"  Tab, Shift-Tab   next, previous screen",
	"  Up, Down, PgUp, PgDn, Home, End, j, k",
	"                   move; Left, Right: columns",
	"  Enter            details: all numbers of a line, and what they mean; Esc: back",
	"  F3, /            search; n: next",
	"  F4, \\            filter: only lines with a text; empty: all",
	"  F6, s            sort by ...; < and >: by the previous, next column; .: unsorted",
	"  I                reverse the order",
	"  c                columns: Enter hides and shows",
	"  F2               setup: time, totals, colours, order and columns; Left, Right and Enter",
	"                   change, Tab: next screen, Esc keeps it in a file",
	"  r, t             rates or totals",
	"  Space, p, Z      pause; of a recording [ and ]: one back, one on",
	"  d, F5            time between readings; read now",
	"  #                with or without header",
	"  F1, h, ?         this page",
	"  F10, q, Ctrl-C   end",
	"",
	"  Screen 1, waiting: causes first, then what follows from them. BEHIND says how many waits a",
	"  cause holds up. Enter shows the chain. ep-fabric why prints the same as sentences.",
	"  Screen 0, calls: which rank waited for which in dispatch and combine. LATE: it had not begun; SLOW: its",
	"  rows were on their way; EITHER: one of them. Shares of the time. ep-fabric why concludes.",
	"  Red: stuck or broken. Yellow: look at it. Dim: final snapshot of an instance that has ended.",
	"  Totals are whole numbers since an instance began; rates are of the time between two readings.",
	NULL,
};

static struct top_look *look_of(struct top_ui *ui)
{
	return &ui->look[ui->screen];
}

void top_ui_refresh_table(struct top_ui *ui)
{
	struct top_look *look = look_of(ui);

	look->screen = ui->screen;
	look->totals = ui->totals;
	if (!ui->now)
		return;
	if (top_table_make(&ui->table, ui->run->schema, ui->now, ui->before, look))
		snprintf(ui->note, sizeof(ui->note), "out of memory: not everything is shown");
	for (uint32_t i = 0; *ui->cursor_id && i < ui->table.n_lines; i++)
		if (!strcmp(ui->table.line[i].id, ui->cursor_id)) {
			ui->cursor = i;
			break;
		}
	if (ui->cursor >= ui->table.n_lines)
		ui->cursor = ui->table.n_lines ? ui->table.n_lines - 1 : 0;
	ui->stale_table = false;
}

/* Moves the cursor to a line that may be outside. */
static void go(struct top_ui *ui, long line)
{
	long last = (long)ui->table.n_lines - 1;

	if (line > last)
		line = last;
	ui->cursor = line < 0 ? 0 : (uint32_t)line;
	ui->cursor_id[0] = '\0';
	if (ui->cursor < ui->table.n_lines)
		snprintf(ui->cursor_id, sizeof(ui->cursor_id), "%s", ui->table.line[ui->cursor].id);
}

static void show_screen(struct top_ui *ui, unsigned screen)
{
	ui->screen = (enum top_screen_number)(screen % TOP_SCREENS);
	ui->cursor = ui->first = ui->first_column = 0;
	ui->cursor_id[0] = '\0';
	ui->mode = TOP_TABLE;
	ui->stale_table = true;
}

static void search(struct top_ui *ui, bool next)
{
	if (!*ui->search)
		return;
	for (uint32_t i = next ? 1 : 0; i < ui->table.n_lines + next; i++) {
		uint32_t at = (ui->cursor + i) % ui->table.n_lines;

		if (top_line_has(&ui->table, &ui->table.line[at], ui->search)) {
			go(ui, at);
			return;
		}
	}
	snprintf(ui->note, sizeof(ui->note), "not found: %s", ui->search);
}

/* ---- prompts ---- */

static void set_delay(struct top_ui *ui)
{
	char *end;
	double d = strtod(ui->input, &end);

	if (end == ui->input || *end || !(d >= 0.1 && d <= 3600))
		snprintf(ui->note, sizeof(ui->note), "delay: 0.1 to 3600 seconds");
	else
		ui->delay_s = d;
}

static void ask(struct top_ui *ui, enum top_mode mode, const char *text)
{
	ui->mode = mode;
	snprintf(ui->input, sizeof(ui->input), "%s", text);
}

static void answer(struct top_ui *ui)
{
	if (ui->mode == TOP_ASK_SEARCH) {
		memcpy(ui->search, ui->input, sizeof(ui->search));
		search(ui, false);
	} else if (ui->mode == TOP_ASK_FILTER) {
		memcpy(look_of(ui)->filter, ui->input, sizeof(ui->input));
		ui->stale_table = true;
	} else {
		set_delay(ui);
	}
	ui->mode = TOP_TABLE;
}

static void prompt_key(struct top_ui *ui, int key)
{
	size_t n = strlen(ui->input);

	if (key == '\n' || key == '\r' || key == KEY_ENTER) {
		answer(ui);
	} else if (key == ESCAPE || key == KEY_F(10)) {
		ui->mode = TOP_TABLE;
	} else if ((key == KEY_BACKSPACE || key == 127 || key == 8) && n) {
		ui->input[n - 1] = '\0';
	} else if (key >= ' ' && key <= '~' && n + 1 < sizeof(ui->input)) {
		ui->input[n] = (char)key;
		ui->input[n + 1] = '\0';
	}
}

/* ---- menus, help, details ---- */

static void choose(struct top_ui *ui)
{
	struct top_look *look = look_of(ui);

	if (ui->mode == TOP_MENU_COLUMNS) {
		look->hidden ^= UINT32_C(1) << ui->menu;
		return; /* to choose more */
	}
	look->sort = ui->menu ? ui->menu - 1 : TOP_NATURAL; /* the first is the natural order */
	ui->stale_table = true;
	ui->mode = TOP_TABLE;
}

static void menu_key(struct top_ui *ui, int key)
{
	uint32_t last = ui->table.n_columns - (ui->mode == TOP_MENU_COLUMNS);

	if (key == '\n' || key == '\r' || key == KEY_ENTER)
		choose(ui);
	else if ((key == KEY_UP || key == 'k') && ui->menu)
		ui->menu--;
	else if ((key == KEY_DOWN || key == 'j') && ui->menu < last)
		ui->menu++;
	else if (key == KEY_HOME)
		ui->menu = 0;
	else if (key == KEY_END)
		ui->menu = last;
	else if (key == ESCAPE || key == 'q' || key == KEY_F(10) || key == KEY_F(6) || key == 'c')
		ui->mode = TOP_TABLE;
}

static void page_key(struct top_ui *ui, int key)
{
	uint32_t page = ui->page ? ui->page : 1;

	if (key == KEY_UP || key == 'k')
		ui->scroll -= ui->scroll > 0;
	else if (key == KEY_DOWN || key == 'j')
		ui->scroll++; /* top_draw() stops at the end */
	else if (key == KEY_PPAGE)
		ui->scroll -= ui->scroll < page ? ui->scroll : page;
	else if (key == KEY_NPAGE)
		ui->scroll += page;
	else if (key == KEY_HOME)
		ui->scroll = 0;
	else if (key == ' ')
		ui->paused = !ui->paused;
	else if (key == 'r' || key == 't')
		ui->totals = !ui->totals;
	else
		ui->mode = TOP_TABLE;
}

static void open_page(struct top_ui *ui, enum top_mode mode)
{
	if (mode == TOP_DETAILS && !ui->table.n_lines)
		return;
	if (mode == TOP_DETAILS) /* stays with the thing, wherever it goes */
		go(ui, ui->cursor);
	ui->mode = mode;
	ui->scroll = 0;
}

/* ---- the table ---- */

static bool move_key(struct top_ui *ui, int key)
{
	long at = ui->cursor, page = ui->page ? ui->page : 1;

	switch (key) {
	case KEY_UP:
	case 'k':
		go(ui, at - 1);
		return true;
	case KEY_DOWN:
	case 'j':
		go(ui, at + 1);
		return true;
	case KEY_PPAGE:
		go(ui, at - page);
		return true;
	case KEY_NPAGE:
		go(ui, at + page);
		return true;
	case KEY_HOME:
		go(ui, 0);
		return true;
	case KEY_END:
		go(ui, (long)ui->table.n_lines - 1);
		return true;
	case KEY_LEFT:
		ui->first_column -= ui->first_column > 0;
		return true;
	case KEY_RIGHT:
		ui->first_column += ui->first_column < ui->table.n_columns;
		return true;
	default:
		return false;
	}
}

static bool sort_key(struct top_ui *ui, int key)
{
	struct top_look *look = look_of(ui);

	switch (key) {
	case '<':
		look->sort =
			look->sort == 0 || look->sort == TOP_NATURAL ? TOP_NATURAL : look->sort - 1;
		break;
	case '>':
		if (look->sort == TOP_NATURAL)
			look->sort = 0;
		else if (look->sort + 1 < ui->table.n_columns)
			look->sort++;
		break;
	case '.':
		look->sort = TOP_NATURAL;
		break;
	case 'I':
		look->invert = !look->invert;
		break;
	case KEY_F(6):
	case 's':
		ui->menu = look->sort == TOP_NATURAL ? 0 : look->sort + 1;
		ui->mode = TOP_MENU_SORT;
		return true;
	case 'c':
		ui->menu = 0;
		ui->mode = TOP_MENU_COLUMNS;
		return true;
	default:
		return false;
	}
	ui->stale_table = true;
	return true;
}

static bool time_key(struct top_ui *ui, int key)
{
	char text[32];

	switch (key) {
	case ' ':
	case 'p':
	case 'Z':
		ui->paused = !ui->paused;
		return true;
	case '[':
	case ']':
		if (top_source_records(ui->run->source)) {
			ui->paused = true;
			ui->step = key == '[' ? -1 : 1;
		}
		return true;
	case 'r':
	case 't':
		ui->totals = !ui->totals;
		ui->stale_table = true;
		return true;
	case 'd':
		snprintf(text, sizeof(text), "%g", ui->delay_s);
		ask(ui, TOP_ASK_DELAY, text);
		return true;
	case KEY_F(5):
		ui->read_now = true;
		return true;
	default:
		return false;
	}
}

static void table_key(struct top_ui *ui, int key)
{
	if (move_key(ui, key) || sort_key(ui, key) || time_key(ui, key))
		return;
	if (key >= '0' && key <= '9') {
		show_screen(ui, key == '0' ? 9u : (unsigned)(key - '1'));
		return;
	}
	switch (key) {
	case '\t':
		show_screen(ui, ui->screen + 1u);
		break;
	case KEY_BTAB:
		show_screen(ui, ui->screen + TOP_SCREENS - 1u);
		break;
	case 'e':
		show_screen(ui, TOP_ENDPOINTS);
		break;
	case KEY_F(1):
	case 'h':
	case '?':
		open_page(ui, TOP_HELP);
		break;
	case '\n':
	case '\r':
	case KEY_ENTER:
		open_page(ui, TOP_DETAILS);
		break;
	case KEY_F(2):
		top_setup_open(ui);
		break;
	case KEY_F(3):
	case '/':
		ask(ui, TOP_ASK_SEARCH, "");
		break;
	case 'n':
		search(ui, true);
		break;
	case KEY_F(4):
	case '\\':
		ask(ui, TOP_ASK_FILTER, look_of(ui)->filter);
		break;
	case '#':
		ui->no_header = !ui->no_header;
		break;
	case KEY_F(10):
	case 'q':
		ui->quit = true;
		break;
	default:
		break;
	}
}

void top_key(struct top_ui *ui, int key)
{
	ui->note[0] = '\0';
	if (key == KEY_RESIZE || key == CONTROL_L)
		return; /* drawn again in any case */
	if (ui->mode >= TOP_ASK_SEARCH)
		prompt_key(ui, key);
	else if (ui->mode == TOP_MENU_SORT || ui->mode == TOP_MENU_COLUMNS)
		menu_key(ui, key);
	else if (ui->mode == TOP_SETUP)
		top_setup_key(ui, key);
	else if (ui->mode == TOP_TABLE)
		table_key(ui, key);
	else
		page_key(ui, key);
}
