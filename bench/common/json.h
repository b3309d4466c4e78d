/* SPDX-License-Identifier: Apache-2.0 */
/* How every command of ep-bench ends with --json. Header only. */
#ifndef EPF_BENCH_JSON_H
#define EPF_BENCH_JSON_H

#include <jansson.h>
#include <stdio.h>

/* Prints the object and a newline, and releases it. Accepts NULL. */
static inline void bench_print_json(json_t *j)
{
	if (j)
		json_dumpf(j, stdout, JSON_INDENT(2));
	printf("\n");
	json_decref(j);
}

#endif
