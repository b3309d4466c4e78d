/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Log lines of the slow paths: set-up, teardown, state changes, errors. Used by every part of the
 * library and by the tools; to stderr only. A file names its component before the include:
 *
 *	#define EPF_LOG_COMP "boot"
 *	#include "fabric/base/log.h"
 *
 * It must never be included by a _hot file: a line costs a system call. It never ends a process.
 */
#ifndef EPF_BASE_LOG_H
#define EPF_BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>

/* Severities; the numbers are those of syslog(3), so that journald can take them as they are. */
enum epf_log_level {
	EPF_LOG_ERR = 3,
	EPF_LOG_WARN = 4,
	EPF_LOG_NOTE = 5,
	EPF_LOG_INFO = 6,
	EPF_LOG_DEBUG = 7,
};

/* Lines above this level are not compiled in; a build may lower it with -DEPF_LOG_CEILING=5. */
#ifndef EPF_LOG_CEILING
# define EPF_LOG_CEILING EPF_LOG_DEBUG
#endif

/**
 * epf_log_enabled() - whether a line of this component and level would be written.
 * @comp: component name, the file's EPF_LOG_COMP.
 *
 * The answer comes from the environment variable EPF_LOG, read once, or from the last
 * epf_log_configure(). One relaxed load when nobody has asked for more than the default.
 */
bool epf_log_enabled(const char *comp, enum epf_log_level level);

/**
 * epf_log_write() - write one line to stderr with a single write(2).
 * @comp: component name.
 * @fmt: printf format without a newline; the text starts with its subject ("ring 3: ...").
 *
 * Keeps errno. Control characters become '?', so that text from a peer cannot forge a line; a
 * line longer than 1 KiB is cut and ends in "...". With $JOURNAL_STREAM naming stderr the line
 * starts with "<N>", see sd-daemon(3). Any thread may call it. Use the macros below instead.
 */
void epf_log_write(const char *comp, enum epf_log_level level, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/**
 * epf_log_configure() - replace the levels that EPF_LOG gave.
 * @spec: "level" or "component=level" items separated by commas, e.g. "info,boot=debug"; a level
 *        is one of error, warning, note, info, debug. NULL means the default, "note".
 *
 * Return: 0; -EINVAL for a malformed item or more than 16 components, nothing is changed then.
 */
int epf_log_configure(const char *spec);

/**
 * epf_log_name() - what lines call this process, for programs that run long beside others of their kind.
 * @instance: copied, at most 63 bytes. From then on a line begins with the UTC time (unless journald writes its own),
 *            the host, and this name. Before other threads are started. NULL: as before.
 */
void epf_log_name(const char *instance);

/* State of one rate-limited place in the code; zero at start. */
struct epf_log_limit {
	uint64_t window_start_ns;
	uint32_t written;
	uint32_t swallowed;
};

/**
 * epf_log_limit_pass() - whether a rate-limited place may write now: 5 lines in 5 seconds.
 * @swallowed: set to the lines held back before this one, when it may.
 *
 * Threads that race here may write a line more than the limit, never a wrong one.
 */
bool epf_log_limit_pass(struct epf_log_limit *limit, uint32_t *swallowed);

#define epf_log_at(level, ...)                                              \
 do {                                                                       \
  if ((level) <= EPF_LOG_CEILING && epf_log_enabled(EPF_LOG_COMP, (level))) \
   epf_log_write(EPF_LOG_COMP, (level), __VA_ARGS__);                       \
 } while (0)

#define epf_err(...)  epf_log_at(EPF_LOG_ERR, __VA_ARGS__)
#define epf_warn(...) epf_log_at(EPF_LOG_WARN, __VA_ARGS__)
#define epf_note(...) epf_log_at(EPF_LOG_NOTE, __VA_ARGS__)
#define epf_info(...) epf_log_at(EPF_LOG_INFO, __VA_ARGS__)
#define epf_dbg(...)  epf_log_at(EPF_LOG_DEBUG, __VA_ARGS__)

/* A warning that a hostile or broken peer could provoke without end. */
#define epf_warn_ratelimited(...)                                                          \
 do {                                                                                      \
  static struct epf_log_limit epf_limit_here;                                              \
  uint32_t epf_swallowed = 0;                                                              \
  if (epf_log_enabled(EPF_LOG_COMP, EPF_LOG_WARN) &&                                       \
      epf_log_limit_pass(&epf_limit_here, &epf_swallowed)) {                               \
   if (epf_swallowed)                                                                      \
    epf_log_write(EPF_LOG_COMP, EPF_LOG_WARN, "%u lines like the next one were held back", \
		  epf_swallowed);                                                          \
   epf_log_write(EPF_LOG_COMP, EPF_LOG_WARN, __VA_ARGS__);                                 \
  }                                                                                        \
 } while (0)

#endif
