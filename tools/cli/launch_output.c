/* SPDX-License-Identifier: Apache-2.0 */
/* What the launcher has to say: lines of ranks and remote shells, behind host and rank, and why the job fails. */
#include "tools/cli/launch_run_priv.h"

#include "fabric/base/clock.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_MAX_BYTES = 65536 };

static void put_line(FILE *out, const char *prefix, const char *text, size_t len)
{
	/* stdout and stderr may be one file: each line goes out before the next of the other. */
	fprintf(out, "%s%.*s\n", prefix, (int)len, text);
	fflush(out);
}

/* Prints whole lines and keeps the rest; prints the rest too if @len is 0. */
static void put_text(struct launch_line *l, FILE *out, const char *prefix, const char *bytes,
		     size_t len)
{
	const char *end;

	if (!len) {
		if (l->have)
			put_line(out, prefix, l->text, l->have);
		l->have = 0;
		return;
	}
	while (len) {
		size_t n, room = LINE_MAX_BYTES - l->have;

		end = memchr(bytes, '\n', len);
		n = end ? (size_t)(end - bytes) : len;
		if (!l->text)
			l->text = malloc(LINE_MAX_BYTES);
		if (!l->text)
			return;
		n = n < room ? n : room;
		memcpy(l->text + l->have, bytes, n);
		l->have += n;
		bytes += n;
		len -= n;
		if (l->have == LINE_MAX_BYTES || (len && *bytes == '\n')) {
			put_line(out, prefix, l->text, l->have);
			l->have = 0;
		}
		if (len && *bytes == '\n') {
			bytes++;
			len--;
		}
	}
}

void launch_put_rank(struct launch *l, const struct launch_host *h, uint32_t rank, bool is_err,
		     const char *bytes, size_t len)
{
	char prefix[LAUNCH_NAME_MAX + 32];

	snprintf(prefix, sizeof(prefix), "[%s %u] ", h->name, rank);
	put_text(&l->line[2 * (size_t)rank + is_err], is_err ? stderr : stdout, prefix, bytes, len);
}

/* What the remote shell itself says. */
void launch_put_shell(struct launch_host *h, const char *bytes, size_t len)
{
	char prefix[LAUNCH_NAME_MAX + 8];
	size_t end = len, start;

	while (end && (bytes[end - 1] == '\n' || bytes[end - 1] == '\r'))
		end--;
	for (start = end; start && bytes[start - 1] != '\n';)
		start--;
	if (end > start)
		snprintf(h->last, sizeof(h->last), "%.*s", (int)(end - start), bytes + start);
	snprintf(prefix, sizeof(prefix), "[%s] ", h->name);
	put_text(&h->said, stderr, prefix, bytes, len);
}

void launch_blame(struct launch *l, bool best, const char *fmt, ...)
{
	va_list ap;

	if (l->phase == PHASE_STOP || (l->why[0] && (l->is_best_cause || !best)))
		return;
	va_start(ap, fmt);
	vsnprintf(l->why, sizeof(l->why), fmt, ap);
	va_end(ap);
	l->is_best_cause = best;
	if (l->phase == PHASE_CONNECT || !l->deadline_ns)
		l->deadline_ns = epf_now_ns() + (l->phase == PHASE_CONNECT ? 0 : LAUNCH_GRACE_NS);
}
