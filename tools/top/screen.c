/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-top on a terminal: reads, draws, waits for a key or the next reading (run.h). Curses' own handlers give the terminal back when it
 * is interrupted.
 */
#include "fabric/base/clock.h"
#include "tools/top/ui.h"

#include <curses.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void note_history(struct top_ui *ui)
{
	struct top_sums s;

	top_sum(ui->run->schema, ui->now, ui->before, &s);
	if (!s.has_rates)
		return;
	if (ui->n_history == TOP_HISTORY) {
		memmove(ui->commands, ui->commands + 1, sizeof(ui->commands) - sizeof(double));
		memmove(ui->bytes, ui->bytes + 1, sizeof(ui->bytes) - sizeof(double));
		ui->n_history--;
	}
	ui->commands[ui->n_history] = s.commands;
	ui->bytes[ui->n_history++] = s.bytes;
}

/* The next reading. 0; what could not be read or written stands in the note, and the screens stay. */
static void read_next(struct top_ui *ui)
{
	struct top_shot *shot = NULL;
	int rc = top_source_next(ui->run->source, &shot, ui->note, sizeof(ui->note));

	if (rc == -ENODATA) {
		ui->paused = true;
		snprintf(ui->note, sizeof(ui->note),
			 "the recording has ended: [ goes back, q ends");
	}
	if (rc)
		return;
	top_shot_free(ui->before);
	ui->before = ui->now;
	ui->now = shot;
	if (ui->run->record &&
	    top_record_add(ui->run->record, ui->run->schema, shot, ui->note, sizeof(ui->note))) {
		top_record_close(ui->run->record);
		ui->run->record = NULL;
	}
	note_history(ui);
	top_ui_refresh_table(ui);
}

/* Of a recording: shows the record before or behind, with the rates that belong to it. */
static void step(struct top_ui *ui)
{
	uint32_t at = top_source_at(ui->run->source), records = top_source_records(ui->run->source);
	uint32_t to = ui->step < 0 ? (at > 1 ? at - 1 : 1) : at + 1;

	ui->step = 0;
	if (to > records)
		to = records;
	ui->n_history = 0;
	top_source_seek(ui->run->source, to > 1 ? to - 1 : to);
	read_next(ui);
	if (to > 1)
		read_next(ui);
}

static void loop(struct top_ui *ui)
{
	uint64_t next = epf_now_ns();

	while (!ui->quit) {
		uint64_t now = epf_now_ns();
		int key;

		if (ui->step)
			step(ui);
		else if (ui->read_now || (!ui->paused && now >= next))
			read_next(ui);
		if (ui->read_now || now >= next)
			next = now + (uint64_t)(ui->delay_s * 1e9);
		ui->read_now = false;
		if (ui->stale_table)
			top_ui_refresh_table(ui);
		top_draw(ui);
		timeout(ui->paused ? -1 : (int)((next - now) / 1000000) + 1);
		key = getch();
		/* A closed terminal gives errors forever. */
		if (key == ERR && ui->paused)
			break;
		/* Typed ahead or held down: one drawing for all of it. */
		for (timeout(0); key != ERR && !ui->quit; key = getch()) {
			top_key(ui, key);
			if (ui->stale_table)
				top_ui_refresh_table(ui);
			if (ui->step || ui->read_now)
				break;
		}
	}
}

/* As the file says, and the command line before it. A file that is broken stands in the note, with what is wrong in it. */
static void set_up(struct top_ui *ui, char *reason, size_t bytes)
{
	const struct top_run *run = ui->run;
	struct top_setup setup;

	if (top_setup_path(ui->setup_path, sizeof(ui->setup_path))) {
		ui->setup_path[0] = '\0';
		top_setup_default(&setup);
	} else {
		(void)top_setup_load(&setup, ui->setup_path, reason, bytes);
	}
	ui->delay_s = run->has_delay ? run->delay_s : setup.delay_s;
	ui->totals = run->look.totals || setup.totals;
	ui->wants_colours = setup.colours;
	for (unsigned s = 0; s < TOP_SCREENS; s++) {
		const struct top_setup_screen *from = &setup.screen[s];

		ui->look[s].sort = from->sort;
		ui->look[s].hidden = from->hidden;
		ui->look[s].invert = from->invert;
	}
	memcpy(ui->look[ui->screen].filter, run->look.filter, sizeof(run->look.filter));
	if (run->look.sort != TOP_NATURAL) {
		ui->look[ui->screen].sort = run->look.sort;
		ui->look[ui->screen].invert = run->look.invert;
	}
}

int top_run_screen(struct top_run *run)
{
	struct top_ui *ui = calloc(1, sizeof(*ui));
	char broken[sizeof(ui->note)] = "";
	SCREEN *screen;

	if (!ui) {
		fprintf(stderr, "ep-top: out of memory\n");
		return EXIT_FAILURE;
	}
	ui->run = run;
	ui->screen = run->look.screen == TOP_SCREENS ? TOP_WAITING : run->look.screen;
	set_up(ui, broken, sizeof(broken));
	read_next(ui);
	if (!ui->now) {
		fprintf(stderr, "ep-top: %s\n", ui->note);
		free(ui);
		return EXIT_FAILURE;
	}
	screen = newterm(NULL, stdout, stdin);
	if (!screen) {
		fprintf(stderr,
			"ep-top: terminal '%s' is not known: set TERM, or use --once or --batch\n",
			getenv("TERM") ? getenv("TERM") : "");
	} else {
		cbreak();
		noecho();
		keypad(stdscr, TRUE);
		set_escdelay(25);
		curs_set(0);
		top_draw_init(ui);
		if (*broken)
			memcpy(ui->note, broken, sizeof(ui->note));
		loop(ui);
		endwin();
		delscreen(screen);
	}
	top_shot_free(ui->now);
	top_shot_free(ui->before);
	top_table_free(&ui->table);
	free(ui);
	return screen ? EXIT_SUCCESS : EXIT_FAILURE;
}
