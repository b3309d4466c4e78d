/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors with a cause and a remedy. The function that decides that something is an error calls
 * epf_fail() and returns what it returns; callers only pass the number on; the tool or the user of
 * the library at the end shows epf_last_error(). Nothing here logs, allocates or ends a process,
 * and nothing here may be called from a _hot file.
 */
#ifndef EPF_BASE_ERR_H
#define EPF_BASE_ERR_H

#include <stddef.h>

/* Why a call failed: stable numbers, one for each row of err_keys.h. */
enum epf_reason {
	EPF_R_NONE = 0,

#define R(name, number, err, cause, remedy) EPF_R_##name = number,
#include "fabric/base/err_keys.h"
#undef R
};

/* A row of the table. */
struct epf_reason_info {
	enum epf_reason reason;
	int err;            /* positive errno value */
	const char *name;   /* "CONF_RANGE" */
	const char *cause;  /* one sentence */
	const char *remedy; /* what to do, without a full stop */
};

/**
 * epf_fail() - record why the calling function fails.
 * @r: the reason, a row of err_keys.h.
 * @fmt: the detail, without a newline: subject first, with the values needed to act.
 *
 * Keeps "<detail>: <remedy> [EPF-<number>]" for this thread, one line of at most 511 characters
 * (a long detail is cut, the remedy never); control characters become '?'. An argument may be
 * the text of an earlier epf_last_error(). Keeps errno.
 *
 * Return: minus the errno value of the row, for the caller to return.
 */
int epf_fail(enum epf_reason r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/**
 * epf_fail_sys() - the same for a failed system call.
 * @err: the errno value it gave, positive.
 *
 * The detail gets ": " and the system's words for @err, and -@err is returned in place of the
 * row's number (the row's number when @err is not positive).
 */
int epf_fail_sys(enum epf_reason r, int err, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/**
 * epf_last_error() - the line of this thread's last epf_fail(); "" when there is none.
 *
 * The text is valid until the next epf_fail() or epf_clear_error() in this thread.
 */
const char *epf_last_error(void) __attribute__((visibility("default")));

/* epf_last_detail() - that line without remedy and number, cut to @size: to be part of another error. */
void epf_last_detail(char *buf, size_t size);

/* epf_last_reason() - the reason of this thread's last epf_fail(), EPF_R_NONE when there is none. */
enum epf_reason epf_last_reason(void);

/* epf_clear_error() - forget this thread's last error. */
void epf_clear_error(void);

enum { EPF_ERROR_BYTES = 512 };

/* An error on its way from one thread to another. */
struct epf_error {
	enum epf_reason reason;
	size_t detail; /* bytes of the text before the remedy */
	char text[EPF_ERROR_BYTES];
};

/* epf_error_get() - a copy of this thread's last error. */
void epf_error_get(struct epf_error *out);
/* epf_error_set() - make it this thread's last error, word for word. */
void epf_error_set(const struct epf_error *error);

/* epf_reason_info() - the table's row for a reason, NULL for a number that is not in it. */
const struct epf_reason_info *epf_reason_info(enum epf_reason r);

/**
 * epf_reason_table() - all rows, sorted by number, for documentation.
 * @count: set to the number of rows.
 */
const struct epf_reason_info *epf_reason_table(size_t *count);

#endif
