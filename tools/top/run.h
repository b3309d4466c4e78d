/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ep-top's main program (ep-top.c) hands to the part that runs: the screens (screen.c), plain output (batch.c) or the
 * HTTP server (listen.c). Each returns an exit status and prints one line on stderr where that is not 0.
 */
#ifndef EPF_TOOLS_TOP_RUN_H
#define EPF_TOOLS_TOP_RUN_H

#include "tools/top/source.h"
#include "tools/top/view.h"

struct top_run {
	struct top_schema *schema;
	struct top_source *source;
	struct top_record *record; /* NULL: none */
	double delay_s;            /* 1 by default */
	uint32_t iterations;       /* 0: until the end of the recording, or forever */
	bool json, prometheus, once, peer_labels, no_colour, has_names;
	bool has_delay;       /* said on the command line: the setup does not say otherwise */
	struct top_look look; /* to begin with; screen TOP_SCREENS: the first, or all */
	const char *listen;   /* NULL, or ADDR:PORT */
};

/* --once, --batch, --json, --prometheus. */
int top_run_batch(struct top_run *run);
/* The terminal. */
int top_run_screen(struct top_run *run);
/* --listen: until SIGINT or SIGTERM. */
int top_run_listen(struct top_run *run);

#endif
