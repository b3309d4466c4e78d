/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of reasons and the thread's last error line. Called from slow paths of everything.
 * It must never log, allocate, or change errno.
 */
#include "fabric/base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define MESSAGE_BYTES 512
/* A detail is cut here; the table's remedies are at most 120 characters (asserted below). */
#define DETAIL_BYTES 370

static const struct epf_reason_info table[] = {
#define R(rname, number, eno, rcause, rremedy) \
 { .reason = EPF_R_##rname, .err = (eno), .name = #rname, .cause = (rcause), .remedy = (rremedy) },
#include "fabric/base/err_keys.h"
#undef R
};

#define NROWS (sizeof(table) / sizeof(table[0]))

#define R(rname, number, eno, rcause, rremedy)                                      \
 _Static_assert(sizeof(rremedy) <= 121, "remedy of " #rname " is longer than 120"); \
 _Static_assert((number) > 0 && (number) < 100000, "number of " #rname);
#include "fabric/base/err_keys.h"
#undef R

/* Two rows with one number do not compile: a case may appear only once. */
static inline int numbers_are_unique(int n)
{
	switch (n) {
#define R(rname, number, eno, rcause, rremedy) case number:
#include "fabric/base/err_keys.h"
#undef R
		return 1;
	default:
		return 0;
	}
}

static _Thread_local struct {
	enum epf_reason reason;
	size_t detail; /* bytes of the text before the remedy */
	char text[MESSAGE_BYTES];
} last;

const struct epf_reason_info *epf_reason_table(size_t *count)
{
	*count = NROWS;
	return table;
}

const struct epf_reason_info *epf_reason_info(enum epf_reason r)
{
	if (!numbers_are_unique((int)r))
		return NULL;
	for (size_t i = 0; i < NROWS; i++) {
		if (table[i].reason == r)
			return &table[i];
	}
	return NULL;
}

/* Formats into a buffer of our own first: an argument may point into the last error. */
static void record(enum epf_reason r, const char *sys, const char *fmt, va_list ap)
{
	const struct epf_reason_info *info = epf_reason_info(r);
	char detail[DETAIL_BYTES];
	size_t sys_len = sys ? strlen(sys) + 2 : 0;
	size_t room = sizeof(detail) > sys_len + 4 ? sizeof(detail) - sys_len : 4;
	int n = vsnprintf(detail, room, fmt, ap);
	size_t len = n < 0 ? 0 : (size_t)n;

	if (n < 0)
		detail[0] = '\0';
	if (len >= room) {
		len = room - 1;
		memcpy(detail + len - 3, "...", 3);
	}
	if (sys)
		snprintf(detail + len, sizeof(detail) - len, ": %s", sys);
	for (char *c = detail; *c; c++) {
		if ((unsigned char)*c < 0x20 || *c == 0x7f)
			*c = '?';
	}
	snprintf(last.text, sizeof(last.text), "%s: %s [EPF-%d]", detail,
		 info ? info->remedy : "report this, the reason is not in the table", (int)r);
	last.detail = strlen(detail);
	last.reason = r;
}

int epf_fail(enum epf_reason r, const char *fmt, ...)
{
	const struct epf_reason_info *info = epf_reason_info(r);
	int saved = errno;
	va_list ap;

	va_start(ap, fmt);
	record(r, NULL, fmt, ap);
	va_end(ap);
	errno = saved;
	return info ? -info->err : -EINVAL;
}

int epf_fail_sys(enum epf_reason r, int err, const char *fmt, ...)
{
	const struct epf_reason_info *info;
	int saved = errno;
	char text[96];
	va_list ap;

	/* This has one remedy, whatever the call was for. */
	if (err == EMFILE || err == ENFILE)
		r = EPF_R_FILES;
	info = epf_reason_info(r);
	va_start(ap, fmt);
	record(r, err > 0 ? strerror_r(err, text, sizeof(text)) : NULL, fmt, ap);
	va_end(ap);
	errno = saved;
	if (err > 0)
		return -err;
	return info ? -info->err : -EINVAL;
}

_Static_assert(sizeof(last.text) == EPF_ERROR_BYTES, "an error fits where it is kept");

void epf_error_get(struct epf_error *out)
{
	out->reason = last.reason;
	out->detail = last.detail;
	memcpy(out->text, last.text, sizeof(out->text));
}

void epf_error_set(const struct epf_error *error)
{
	last.reason = error->reason;
	last.detail = error->detail;
	memcpy(last.text, error->text, sizeof(last.text));
}

const char *epf_last_error(void)
{
	return last.text;
}

void epf_last_detail(char *buf, size_t size)
{
	snprintf(buf, size, "%.*s", (int)last.detail, last.text);
}

enum epf_reason epf_last_reason(void)
{
	return last.reason;
}

void epf_clear_error(void)
{
	last.reason = EPF_R_NONE;
	last.detail = 0;
	last.text[0] = '\0';
}
