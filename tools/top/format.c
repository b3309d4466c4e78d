/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers and header lines of ep-top as people read them (view.h). Works on the model alone; it must never know a terminal.
 */
#include "tools/top/view.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

const char *top_format_rate(double per_second, bool bytes, char *text, size_t size)
{
	static const char *const scale[] = { "", "k", "M", "G", "T", "P", "E" };
	unsigned s = 0;

	while (per_second >= 999.5 && s + 1 < sizeof(scale) / sizeof(*scale)) {
		per_second /= 1000;
		s++;
	}
	snprintf(text, size, "%.*f%s%s/s",
		 per_second < 9.995 && per_second > 0   ? 2
		 : per_second < 99.95 && per_second > 0 ? 1
							: 0,
		 per_second, scale[s], bytes ? "B" : "");
	return text;
}

const char *top_format_age(uint64_t ns, char *text, size_t size)
{
	double s = (double)ns / 1e9;

	if (s < 1000)
		snprintf(text, size, "%.1fs", s);
	else if (s < 36000)
		snprintf(text, size, "%.0fmin", s / 60);
	else
		snprintf(text, size, "%.1fh", s / 3600);
	return text;
}

const char *top_format_bar(double share, int width, char *text, size_t size)
{
	int inner = width - 2, full;

	if (width + 1 > (int)size)
		inner = (int)size - 3;
	if (inner < 1) {
		text[0] = '\0';
		return text;
	}
	full = share < 0 ? 0 : share > 1 ? inner : (int)(share * inner + 0.5);
	if (share > 0 && full == 0)
		full = 1;
	text[0] = '[';
	memset(text + 1, share < 0 ? '-' : ' ', (size_t)inner);
	memset(text + 1, '|', (size_t)full);
	text[inner + 1] = ']';
	text[inner + 2] = '\0';
	return text;
}

static const char *plural(uint64_t n)
{
	return n == 1 ? "" : "s";
}

static void clock_text(uint64_t realtime_ns, char *text, size_t size)
{
	time_t t = (time_t)(realtime_ns / 1000000000u);
	struct tm tm;

	if (!localtime_r(&t, &tm) || !strftime(text, size, "%H:%M:%S", &tm))
		snprintf(text, size, "-");
}

/* What a glance must see: "OK", or the first cause. */
static enum top_colour health_line(const struct top_shot *now, const struct top_sums *s, char *text,
				   size_t size)
{
	if (s->causes) {
		const struct top_wait *first = &now->wait[0];

		snprintf(text, size, "health: STUCK  %" PRIu32 " wait%s, %" PRIu32 " cause%s: %s",
			 s->waits, plural(s->waits), s->causes, plural(s->causes), first->text);
		return TOP_BAD;
	}
	if (s->stale || s->unreadable || s->links_up < s->links) {
		snprintf(text, size,
			 "health: WARN  %" PRIu32 " engine%s with no heartbeat, %" PRIu32
			 " file%s unreadable, %" PRIu32 " of %" PRIu32 " links down",
			 s->stale, plural(s->stale), s->unreadable, plural(s->unreadable),
			 s->links - s->links_up, s->links);
		return TOP_WARN;
	}
	if (s->living) {
		snprintf(text, size, "health: OK  nothing waits");
		return TOP_GOOD;
	}
	snprintf(text, size, "health: ");
	waits_nobody(now->left_out, text + strlen(text), size - strlen(text));
	return TOP_DIM;
}

void top_format_header(const struct top_schema *schema, const struct top_shot *now,
		       const struct top_shot *before,
		       char lines[TOP_HEADER_LINES][TOP_HEADER_BYTES], enum top_colour *health)
{
	char at[16], busy[16] = "-", commands[32] = "-", bytes[32] = "-", bar[24];
	struct top_sums s;

	top_sum(schema, now, before, &s);
	clock_text(now->realtime_ns, at, sizeof(at));
	snprintf(lines[0], sizeof(lines[0]),
		 "%s %s  instances %" PRIu32 " (%" PRIu32 " alive, %" PRIu32 " dead)  jobs %" PRIu32
		 "  ranks %" PRIu32 "  NICs %" PRIu32 "  cores %" PRIu32,
		 now->host, at, s.instances, s.living + s.stale, s.dead, s.jobs, s.ranks, s.nics,
		 s.cores);
	if (s.busy >= 0)
		snprintf(busy, sizeof(busy), "%.1f%%", s.busy * 100);
	if (s.has_rates) {
		top_format_rate(s.commands, false, commands, sizeof(commands));
		top_format_rate(s.bytes, true, bytes, sizeof(bytes));
	}
	snprintf(lines[1], sizeof(lines[1]),
		 "busy %s %s  commands %s, %" PRIu64 " in all  payload %s, %" PRIu64
		 " bytes in all",
		 top_format_bar(s.busy, 22, bar, sizeof(bar)), busy, commands, s.total_commands,
		 bytes, s.total_bytes);
	*health = health_line(now, &s, lines[2], sizeof(lines[2]));
}
