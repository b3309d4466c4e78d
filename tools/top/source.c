/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sources of ep-top's shots and recordings of them (source.h). It reads statistics files through waits/waits.h alone, and writes only the
 * recording that was asked for.
 */
#include "tools/top/source.h"
#include "fabric/base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* A recording whose beginning is lost is whole again after so many records. */
#define SCHEMA_EVERY 64u

/* A line of a recording. */
struct place {
	off_t at;
	bool has_schema;
};

struct top_source {
	struct top_schema *schema;
	struct waits *w; /* live */
	char *dir;       /* NULL: only what was named */
	uint64_t least_ns;
	FILE *file; /* replay */
	char *path, *line;
	size_t line_room;
	struct place *record;
	uint32_t n_records, room, at, damaged;
	uint32_t schema_from; /* records before this one have given their classes */
};

static int say(char *reason, size_t bytes, int rc, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

static int say(char *reason, size_t bytes, int rc, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	if (bytes)
		vsnprintf(reason, bytes, fmt, ap);
	va_end(ap);
	return rc;
}

void top_source_close(struct top_source *source)
{
	if (!source)
		return;
	waits_free(source->w);
	if (source->file)
		fclose(source->file);
	free(source->dir);
	free(source->path);
	free(source->line);
	free(source->record);
	free(source);
}

int top_source_live(struct top_source **out, struct top_schema *schema, const char *dir,
		    char *const *names, int n, uint64_t least_ns, bool with_dead, char *reason,
		    size_t reason_bytes)
{
	struct top_source *s = calloc(1, sizeof(*s));
	int rc = -ENOMEM;

	if (s) {
		s->schema = schema;
		s->least_ns = least_ns;
		s->w = waits_new();
		s->dir = n ? NULL : strdup(dir);
	}
	if (s && s->w && (n || s->dir)) {
		s->w->with_dead = with_dead;
		rc = waits_add_names(s->w, dir, names, n);
	}
	if (rc) {
		top_source_close(s);
		return say(reason, reason_bytes, rc, "%s: %s: set --stats-dir", dir, strerror(-rc));
	}
	*out = s;
	return 0;
}

static int next_live(struct top_source *s, struct top_shot **out, char *reason, size_t bytes)
{
	struct timespec ts;
	int rc = s->dir ? waits_add_dir(s->w, s->dir) : 0;

	if (rc >= 0)
		rc = waits_refresh(s->w, epf_now_ns(), s->least_ns);
	if (rc < 0)
		return say(reason, bytes, rc, "%s: %s", s->dir ? s->dir : "reading", strerror(-rc));
	clock_gettime(CLOCK_REALTIME, &ts);
	*out = top_shot_take(s->schema, s->w,
			     (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec);
	return *out ? 0 : say(reason, bytes, -ENOMEM, "out of memory");
}

/* ---- replay ---- */

/* The next line that is not empty into s->line: its length, 0 at the end, -EFBIG. */
static ssize_t read_line(struct top_source *s)
{
	size_t n = 0;
	int c;

	while ((c = getc_unlocked(s->file)) != EOF && (c != '\n' || n == 0)) {
		if (c == '\n')
			continue;
		if (n == TOP_LINE_MAX)
			return -EFBIG;
		if (n + 1 >= s->line_room) {
			size_t room = s->line_room ? 2 * s->line_room : 65536;
			char *bigger = realloc(s->line, room);

			if (!bigger)
				return -ENOMEM;
			s->line = bigger;
			s->line_room = room;
		}
		s->line[n++] = (char)c;
	}
	return (ssize_t)n;
}

static bool note_record(struct top_source *s, off_t at, bool has_schema)
{
	if (s->n_records == s->room) {
		uint32_t room = s->room ? 2 * s->room : 1024;
		struct place *bigger = realloc(s->record, room * sizeof(*bigger));

		if (!bigger)
			return false;
		s->record = bigger;
		s->room = room;
	}
	s->record[s->n_records++] = (struct place){ at, has_schema };
	return true;
}

/* Where lines begin that may be records; they are read when they are wanted. */
static int index_records(struct top_source *s, char *reason, size_t bytes)
{
	static const char begin[] = "{\"schema\":\"epf.top/1\"", classes[] = "\"classes\":[";

	for (;;) {
		off_t at = ftello(s->file);
		ssize_t n = read_line(s);

		if (n == 0)
			break;
		if (n < 0)
			return say(reason, bytes, (int)n, "%s: %s", s->path,
				   n == -EFBIG ? "a line above 256 MiB (TOP_LINE_MAX)"
					       : strerror((int)-n));
		if ((size_t)n < sizeof(begin) || memcmp(s->line, begin, sizeof(begin) - 1) != 0)
			s->damaged++;
		else if (!note_record(s, at,
				      memmem(s->line, (size_t)n, classes, sizeof(classes) - 1)))
			return say(reason, bytes, -ENOMEM, "out of memory");
	}
	if (ferror(s->file))
		return say(reason, bytes, -EIO, "%s: cannot read", s->path);
	if (!s->n_records)
		return say(reason, bytes, -EBADMSG,
			   "%s: no recording of ep-top: nothing in it is of schema epf.top/1",
			   s->path);
	return 0;
}

int top_source_replay(struct top_source **out, struct top_schema *schema, const char *path,
		      char *reason, size_t reason_bytes)
{
	struct top_source *s = calloc(1, sizeof(*s));
	struct stat sb;
	int rc = 0, fd;

	if (!s || !(s->path = strdup(path))) {
		free(s);
		return say(reason, reason_bytes, -ENOMEM, "out of memory");
	}
	s->schema = schema;
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0 || fstat(fd, &sb))
		rc = say(reason, reason_bytes, -errno, "%s: cannot open: %s", path,
			 strerror(errno));
	else if (!S_ISREG(sb.st_mode))
		rc = say(reason, reason_bytes, -EBADMSG, "%s: not a regular file", path);
	if (!rc && !(s->file = fdopen(fd, "r")))
		rc = say(reason, reason_bytes, -errno, "%s: cannot open", path);
	if (rc && fd >= 0)
		close(fd);
	if (!rc)
		rc = index_records(s, reason, reason_bytes);
	if (rc)
		top_source_close(s);
	else
		*out = s;
	return rc;
}

/* Reads a record, and of it its classes at least: 0 and *out, -EBADMSG, -ENOMEM. */
static int load_record(struct top_source *s, uint32_t number, struct top_shot **out)
{
	json_t *top = NULL;
	ssize_t n = -1;
	int rc = -EBADMSG;
	char why[128];

	if (!fseeko(s->file, s->record[number].at, SEEK_SET))
		n = read_line(s);
	if (n > 0)
		top = json_loadb(s->line, (size_t)n, 0, NULL);
	if (top)
		rc = top_load(s->schema, top, out, why, sizeof(why));
	json_decref(top);
	return rc;
}

/* Classes of records that are jumped over. */
static void load_classes(struct top_source *s, uint32_t until)
{
	for (; s->schema_from < until; s->schema_from++) {
		struct top_shot *shot = NULL;

		if (s->record[s->schema_from].has_schema && !load_record(s, s->schema_from, &shot))
			top_shot_free(shot);
	}
}

static int next_record(struct top_source *s, struct top_shot **out, char *reason, size_t bytes)
{
	while (s->at < s->n_records) {
		int rc;

		load_classes(s, s->at);
		rc = load_record(s, s->at, out);
		s->at++;
		if (!rc || rc == -ENOMEM)
			return rc ? say(reason, bytes, rc, "out of memory") : 0;
		s->damaged++;
	}
	return say(reason, bytes, -ENODATA, "%s: the recording has ended", s->path);
}

int top_source_next(struct top_source *source, struct top_shot **out, char *reason,
		    size_t reason_bytes)
{
	return source->w ? next_live(source, out, reason, reason_bytes)
			 : next_record(source, out, reason, reason_bytes);
}

uint32_t top_source_records(const struct top_source *source)
{
	return source->n_records;
}

uint32_t top_source_at(const struct top_source *source)
{
	return source->at;
}

uint32_t top_source_damaged(const struct top_source *source)
{
	return source->damaged;
}

void top_source_seek(struct top_source *source, uint32_t record)
{
	source->at = record ? record - 1 : 0;
	if (source->at > source->n_records)
		source->at = source->n_records;
}

/* ---- recording ---- */

struct top_record {
	FILE *file;
	char *path;
	uint32_t n, schema_version;
};

int top_record_open(const char *path, struct top_record **out, char *reason, size_t reason_bytes)
{
	struct top_record *r = calloc(1, sizeof(*r));
	char head[21] = "";
	struct stat sb;
	int fd;

	if (!r || !(r->path = strdup(path))) {
		free(r);
		return say(reason, reason_bytes, -ENOMEM, "out of memory");
	}
	fd = open(path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0600);
	if (fd >= 0 && !fstat(fd, &sb) && S_ISREG(sb.st_mode) && sb.st_size > 0 &&
	    (pread(fd, head, sizeof(head), 0) != (ssize_t)sizeof(head) ||
	     memcmp(head, "{\"schema\":\"epf.top/1\"", sizeof(head)) != 0)) {
		close(fd);
		free(r->path);
		free(r);
		return say(reason, reason_bytes, -EEXIST,
			   "%s: is there and is no recording: name another file", path);
	}
	r->file = fd >= 0 ? fdopen(fd, "a") : NULL;
	if (!r->file) {
		int rc = say(reason, reason_bytes, -errno, "%s: cannot write: %s", path,
			     strerror(errno));

		if (fd >= 0)
			close(fd);
		free(r->path);
		free(r);
		return rc;
	}
	/* What was cut short by a crash must not swallow the first line of this run. */
	if (S_ISREG(sb.st_mode) && sb.st_size > 0)
		fputc('\n', r->file);
	*out = r;
	return 0;
}

int top_record_add(struct top_record *record, const struct top_schema *schema,
		   const struct top_shot *shot, char *reason, size_t reason_bytes)
{
	bool with_schema =
		record->n % SCHEMA_EVERY == 0 || record->schema_version != schema->version;
	json_t *top = top_json(schema, shot, with_schema);
	int rc;

	if (!top)
		return say(reason, reason_bytes, -ENOMEM, "out of memory");
	errno = 0;
	rc = json_dumpf(top, record->file, JSON_COMPACT) || fputc('\n', record->file) == EOF ||
	     fflush(record->file);
	json_decref(top);
	if (rc)
		return say(reason, reason_bytes, errno ? -errno : -EIO, "%s: cannot write: %s",
			   record->path, strerror(errno ? errno : EIO));
	record->n++;
	record->schema_version = schema->version;
	return 0;
}

int top_record_close(struct top_record *record)
{
	int rc = 0;

	if (!record)
		return 0;
	if (fclose(record->file))
		rc = -errno;
	free(record->path);
	free(record);
	return rc;
}
