/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How somebody wants ep-top's terminal, kept from one time to the next in a file of JSON (docs/guides/ep-top.md). setup.c reads and writes it;
 * setup_keys.c changes it on the screen. What ep-top prints without a terminal never depends on it.
 */
#ifndef EPF_TOOLS_TOP_SETUP_H
#define EPF_TOOLS_TOP_SETUP_H

#include "tools/top/view.h"

#define TOP_DELAY_LEAST 0.1
#define TOP_DELAY_MOST  3600.0
#define TOP_PATH_BYTES  4096

struct top_setup {
	double delay_s; /* between two readings, TOP_DELAY_LEAST .. TOP_DELAY_MOST */
	bool totals, colours;

	struct top_setup_screen {
		uint32_t sort, hidden; /* as in struct top_look */
		bool invert;
	} screen[TOP_SCREENS];
};

/* One second, rates, colours, all columns, lines as they come. */
void top_setup_default(struct top_setup *setup);

/*
 * Name of the file: below XDG_CONFIG_HOME where that is an absolute path, else below .config of HOME. 0; -ENOENT where neither is set,
 * -ENAMETOOLONG.
 */
int top_setup_path(char *path, size_t bytes);

/*
 * Reads the file. 0, also where there is none: the defaults. -EBADMSG or what open(2) says: the defaults, and in @reason one line with the name,
 * the place and what is wrong there.
 */
int top_setup_load(struct top_setup *setup, const char *path, char *reason, size_t reason_bytes);

/*
 * Writes the file in one go, a reader sees the old one or the new one; makes the directories above it that are missing, for the user alone.
 * 0 or a negative errno with the line in @reason.
 */
int top_setup_save(const struct top_setup *setup, const char *path, char *reason,
		   size_t reason_bytes);

#endif
