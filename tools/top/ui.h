/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of ep-top's terminal, between screen.c (loop), keys.c and setup_keys.c (what a key does) and draw.c (what
 * is seen). Drawing never touches a file; of the keys only leaving the setup does.
 */
#ifndef EPF_TOOLS_TOP_UI_H
#define EPF_TOOLS_TOP_UI_H

#include "tools/top/run.h"
#include "tools/top/setup.h"

#define TOP_HISTORY 120

enum top_mode {
	TOP_TABLE,
	TOP_HELP,
	TOP_DETAILS,
	TOP_MENU_SORT,
	TOP_MENU_COLUMNS,
	TOP_SETUP,
	TOP_ASK_SEARCH,
	TOP_ASK_FILTER,
	TOP_ASK_DELAY
};

struct top_ui {
	struct top_run *run;
	struct top_shot *now, *before; /* before may be NULL */
	struct top_look look[TOP_SCREENS];
	enum top_screen_number screen;
	struct top_table table;
	bool stale_table;             /* make it again before drawing */
	uint32_t cursor, first;       /* line under the cursor, topmost line */
	uint32_t first_column, page;  /* page: lines that fit */
	char cursor_id[TOP_ID_BYTES]; /* the cursor stays on this thing */
	enum top_mode mode;
	uint32_t menu, scroll; /* chosen line of a menu; first line of help and details */
	char input[TOP_FILTER], search[TOP_FILTER];
	bool totals, paused, no_header, quit, read_now;
	int step; /* replay: -1 or 1, asked for */
	double delay_s;
	char note[200]; /* until the next key */
	double commands[TOP_HISTORY], bytes[TOP_HISTORY];
	uint32_t n_history;
	bool utf8, colours;
	bool can_colour, wants_colours;  /* the terminal may; the setup says so: colours is both */
	bool setup_changed;              /* since it was opened */
	char setup_path[TOP_PATH_BYTES]; /* "": there is no place for it */
};

/* A key of curses; may change anything but the shots. */
void top_key(struct top_ui *ui, int key);
/* Makes the table of the screen, the cursor on what it was on. */
void top_ui_refresh_table(struct top_ui *ui);
/* All of the terminal. */
void top_draw(struct top_ui *ui);
void top_draw_init(struct top_ui *ui);

/* setup_keys.c: the setup opens; a key in it; its lines, of which each is a text. */
void top_setup_open(struct top_ui *ui);
void top_setup_key(struct top_ui *ui, int key);
uint32_t top_setup_lines(const struct top_ui *ui);
void top_setup_line(const struct top_ui *ui, uint32_t line, char *text, size_t bytes);

/* Lines of the help screen; NULL ends them. */
extern const char *const top_help[];

#endif
