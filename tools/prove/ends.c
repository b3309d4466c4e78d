/* SPDX-License-Identifier: Apache-2.0 */
/* Where a requirement that is not met ends: see ends.h. */
#include "tools/prove/ends.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

struct rig_verdicts rig_verdicts;

void rig_broken(const char *file, int line, const char *format, ...)
{
	char text[RIG_TEXT];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	rig_verdicts.broken(file, line, text);
	abort();
}

void rig_not_tried(const char *format, ...)
{
	char text[RIG_TEXT];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	rig_verdicts.not_tried(text);
	abort();
}
