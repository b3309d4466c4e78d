/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Levels from EPF_LOG and the one function that writes a line. Called through the macros of log.h
 * from every slow path. It must never block on anything but stderr, allocate memory, or change
 * errno.
 */
#define EPF_LOG_COMP "log"
#include "fabric/base/log.h"

#include "fabric/base/clock.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LINE_MAX_BYTES  1024
#define COMPS_MAX       16
#define COMP_NAME_BYTES 16
#define LIMIT_WINDOW_NS 5000000000ull
#define LIMIT_LINES     5

struct comp_level {
	char name[COMP_NAME_BYTES];
	enum epf_log_level level;
};

struct levels {
	enum epf_log_level general;
	uint32_t ncomps;
	struct comp_level comps[COMPS_MAX];
};

static const char *const level_names[] = {
	[EPF_LOG_ERR] = "error", [EPF_LOG_WARN] = "warning", [EPF_LOG_NOTE] = "note",
	[EPF_LOG_INFO] = "info", [EPF_LOG_DEBUG] = "debug",
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_rwlock_t levels_lock = PTHREAD_RWLOCK_INITIALIZER;
static struct levels levels = { .general = EPF_LOG_NOTE };
/* The most talkative level of any component: one load answers nearly every debug line. */
static int loudest = EPF_LOG_NOTE;
static bool for_journal;
/* "host ep-fabric/instance"; empty: short lines. */
static char full_name[160];

static int level_from_name(const char *name, size_t len, enum epf_log_level *out)
{
	for (int i = EPF_LOG_ERR; i <= EPF_LOG_DEBUG; i++) {
		if (strlen(level_names[i]) == len && !memcmp(level_names[i], name, len)) {
			*out = (enum epf_log_level)i;
			return 0;
		}
	}
	return -EINVAL;
}

/* One item of the list: "level" or "component=level". */
static int add_item(struct levels *to, const char *item, size_t len)
{
	const char *eq = memchr(item, '=', len);
	struct comp_level *c;
	size_t name_len;

	if (!eq)
		return level_from_name(item, len, &to->general);
	name_len = (size_t)(eq - item);
	if (!name_len || name_len >= COMP_NAME_BYTES || to->ncomps == COMPS_MAX)
		return -EINVAL;
	c = &to->comps[to->ncomps];
	if (level_from_name(eq + 1, len - name_len - 1, &c->level))
		return -EINVAL;
	memcpy(c->name, item, name_len);
	c->name[name_len] = '\0';
	to->ncomps++;
	return 0;
}

static int set_levels(const char *spec)
{
	struct levels fresh = { .general = EPF_LOG_NOTE };
	enum epf_log_level most;

	while (spec && *spec) {
		size_t len = strcspn(spec, ",");

		if (len && add_item(&fresh, spec, len))
			return -EINVAL;
		spec += len;
		spec += *spec == ',';
	}
	most = fresh.general;
	for (uint32_t i = 0; i < fresh.ncomps; i++) {
		if (fresh.comps[i].level > most)
			most = fresh.comps[i].level;
	}
	pthread_rwlock_wrlock(&levels_lock);
	levels = fresh;
	pthread_rwlock_unlock(&levels_lock);
	__atomic_store_n(&loudest, (int)most, __ATOMIC_RELAXED);
	return 0;
}

/* $JOURNAL_STREAM is "device:inode" of the journal's socket; stderr may have been moved since. */
static bool stderr_is_journal(void)
{
	const char *text = getenv("JOURNAL_STREAM");
	unsigned long long dev, ino;
	struct stat st;

	return text && sscanf(text, "%llu:%llu", &dev, &ino) == 2 && !fstat(STDERR_FILENO, &st) &&
	       st.st_dev == dev && st.st_ino == ino;
}

static void read_environment(void)
{
	const char *spec = getenv("EPF_LOG");

	for_journal = stderr_is_journal();
	if (spec && set_levels(spec))
		epf_log_write(EPF_LOG_COMP, EPF_LOG_WARN,
			      "EPF_LOG=%s ignored: write level or component=level items with "
			      "commas; levels are error, warning, note, info, debug",
			      spec);
}

bool epf_log_enabled(const char *comp, enum epf_log_level level)
{
	enum epf_log_level limit;
	int saved = errno;

	pthread_once(&once, read_environment);
	if ((int)level > __atomic_load_n(&loudest, __ATOMIC_RELAXED)) {
		errno = saved;
		return false;
	}
	pthread_rwlock_rdlock(&levels_lock);
	limit = levels.general;
	for (uint32_t i = 0; i < levels.ncomps; i++) {
		if (!strcmp(levels.comps[i].name, comp))
			limit = levels.comps[i].level;
	}
	pthread_rwlock_unlock(&levels_lock);
	errno = saved;
	return level <= limit;
}

int epf_log_configure(const char *spec)
{
	pthread_once(&once, read_environment);
	return set_levels(spec);
}

void epf_log_name(const char *instance)
{
	char host[65] = "", name[sizeof(full_name)] = "";

	if (instance && (gethostname(host, sizeof(host) - 1) || !*host))
		snprintf(host, sizeof(host), "localhost");
	if (instance)
		snprintf(name, sizeof(name), "%s ep-fabric/%.63s", host, instance);
	/* Not written when it is the same: other threads may be logging. */
	if (strcmp(name, full_name) != 0)
		memcpy(full_name, name, sizeof(full_name));
}

/* What comes before the component: "<N>" for journald, the time, who we are. Returns its length. */
static size_t begin_line(char *buf, size_t size, enum epf_log_level level)
{
	size_t len = for_journal ? (size_t)snprintf(buf, size, "<%d>", (int)level) : 0;
	struct timespec now;
	struct tm utc;

	if (*full_name && !for_journal && !clock_gettime(CLOCK_REALTIME, &now) &&
	    gmtime_r(&now.tv_sec, &utc)) {
		len += strftime(buf + len, size - len, "%Y-%m-%dT%H:%M:%S", &utc);
		len += (size_t)snprintf(buf + len, size - len, ".%03ldZ ", now.tv_nsec / 1000000);
	}
	return len + (size_t)snprintf(buf + len, size - len, "%s[%d] ",
				      *full_name ? full_name : "ep-fabric", (int)getpid());
}

/* Finishes the line in buf, len characters long as snprintf counts them; returns its length. */
static size_t finish_line(char *buf, size_t start, size_t len)
{
	static const char cut[] = "...";

	if (len > LINE_MAX_BYTES - 2) {
		len = LINE_MAX_BYTES - 2;
		memcpy(buf + len - strlen(cut), cut, strlen(cut));
	}
	for (size_t i = start; i < len; i++) {
		unsigned char c = (unsigned char)buf[i];

		if (c < 0x20 || c == 0x7f)
			buf[i] = '?';
	}
	buf[len++] = '\n';
	return len;
}

void epf_log_write(const char *comp, enum epf_log_level level, const char *fmt, ...)
{
	char buf[LINE_MAX_BYTES];
	int saved = errno;
	size_t len;
	va_list ap;
	int n;

	len = begin_line(buf, sizeof(buf), level);
	n = snprintf(buf + len, sizeof(buf) - len, "%.*s %s: ", COMP_NAME_BYTES, comp,
		     level_names[level]);
	if (n < 0)
		goto out;
	len += (size_t)n;
	va_start(ap, fmt);
	errno = saved; /* for %m */
	n = vsnprintf(buf + len, sizeof(buf) - len, fmt, ap);
	va_end(ap);
	if (n < 0)
		goto out;
	len = finish_line(buf, len, len + (size_t)n);
	for (size_t done = 0; done < len;) {
		ssize_t w = write(STDERR_FILENO, buf + done, len - done);

		if (w < 0 && errno == EINTR)
			continue;
		if (w <= 0)
			break;
		done += (size_t)w;
	}
out:
	errno = saved;
}

bool epf_log_limit_pass(struct epf_log_limit *limit, uint32_t *swallowed)
{
	uint64_t now = epf_now_ns();
	uint64_t start = __atomic_load_n(&limit->window_start_ns, __ATOMIC_RELAXED);

	if (!start || now - start >= LIMIT_WINDOW_NS) {
		__atomic_store_n(&limit->window_start_ns, now, __ATOMIC_RELAXED);
		__atomic_store_n(&limit->written, 1, __ATOMIC_RELAXED);
		*swallowed = __atomic_exchange_n(&limit->swallowed, 0, __ATOMIC_RELAXED);
		return true;
	}
	if (__atomic_fetch_add(&limit->written, 1, __ATOMIC_RELAXED) < LIMIT_LINES) {
		*swallowed = 0;
		return true;
	}
	__atomic_fetch_add(&limit->swallowed, 1, __ATOMIC_RELAXED);
	return false;
}
