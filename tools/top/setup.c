/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-top's setup as a file (setup.h). Columns and screens stand in it by name, so that those of another version are recognised. Whoever
 * writes it by hand hears of each mistake: nothing in it is passed over.
 */
#include "tools/top/setup.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SCHEMA "epf.top.setup/1"

enum { FILE_MOST = 1 << 16, WHAT = 160 };

void top_setup_default(struct top_setup *setup)
{
	*setup = (struct top_setup){ .delay_s = 1, .colours = true };
	for (unsigned s = 0; s < TOP_SCREENS; s++)
		setup->screen[s].sort = TOP_NATURAL;
}

int top_setup_path(char *path, size_t bytes)
{
	const char *config = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
	int n;

	if (config && *config == '/')
		n = snprintf(path, bytes, "%s/ep-fabric/top.json", config);
	else if (home && *home == '/')
		n = snprintf(path, bytes, "%s/.config/ep-fabric/top.json", home);
	else
		return -ENOENT;
	return n < 0 || (size_t)n >= bytes ? -ENAMETOOLONG : 0;
}

/* ---- reading: each returns whether it is well, else `what` says what is not ---- */

static bool wrong(char *what, const char *key, const char *text)
{
	char name[40]; /* a stranger's text */

	top_text(name, sizeof(name), key);
	snprintf(what, WHAT, "\"%s\" %s", name, text);
	return false;
}

static bool read_bool(bool *to, const char *key, const json_t *v, char *what)
{
	*to = json_is_true(v);
	return json_is_boolean(v) || wrong(what, key, "must be true or false");
}

static bool column_find(enum top_screen_number screen, const json_t *v, uint32_t *at)
{
	struct top_column column[TOP_COLUMNS_MAX];
	uint32_t n = top_columns(screen, column);
	const char *title = json_string_value(v);

	for (*at = 0; title && *at < n; ++*at)
		if (!strcmp(column[*at].title, title))
			return true;
	return false;
}

static bool read_screen(struct top_setup *setup, enum top_screen_number s, const json_t *from,
			char *what)
{
	struct top_setup_screen *to = &setup->screen[s];
	const char *key;
	json_t *v;
	uint32_t at;
	size_t i;

	if (!json_is_object(from))
		return wrong(what, top_screen_name(s), "must be an object");
	json_object_foreach((json_t *)(uintptr_t)from, key, v)
	{
		if (!strcmp(key, "invert")) {
			if (!read_bool(&to->invert, key, v, what))
				return false;
		} else if (!strcmp(key, "sort")) {
			if (!column_find(s, v, &to->sort))
				return wrong(what, top_screen_name(s),
					     "has no such column to sort by");
		} else if (!strcmp(key, "hidden")) {
			if (!json_is_array(v))
				return wrong(what, key, "must be a list of columns");
			for (i = 0; i < json_array_size(v); i++) {
				if (!column_find(s, json_array_get(v, i), &at))
					return wrong(what, top_screen_name(s),
						     "has no such column to hide");
				to->hidden |= UINT32_C(1) << at;
			}
		} else {
			return wrong(what, key, "is not known: it is sort, invert or hidden");
		}
	}
	return true;
}

static bool read_screens(struct top_setup *setup, const json_t *from, char *what)
{
	const char *key;
	json_t *v;

	if (!json_is_object(from))
		return wrong(what, "screens", "must be an object");
	json_object_foreach((json_t *)(uintptr_t)from, key, v)
	{
		enum top_screen_number s = top_screen_find(key);

		if (s == TOP_SCREENS)
			return wrong(what, key, "is not a screen");
		if (!read_screen(setup, s, v, what))
			return false;
	}
	return true;
}

static bool read_all(struct top_setup *setup, const json_t *top, char *what)
{
	const char *schema = json_string_value(json_object_get(top, "schema"));
	const char *key;
	json_t *v;
	bool good = true;

	if (!schema || strcmp(schema, SCHEMA) != 0)
		return wrong(what, "schema", "must be \"" SCHEMA "\"");
	json_object_foreach((json_t *)(uintptr_t)top, key, v)
	{
		if (!strcmp(key, "totals")) {
			good = read_bool(&setup->totals, key, v, what);
		} else if (!strcmp(key, "colours")) {
			good = read_bool(&setup->colours, key, v, what);
		} else if (!strcmp(key, "screens")) {
			good = read_screens(setup, v, what);
		} else if (!strcmp(key, "delay_seconds")) {
			setup->delay_s = json_number_value(v);
			if (!(setup->delay_s >= TOP_DELAY_LEAST &&
			      setup->delay_s <= TOP_DELAY_MOST))
				return wrong(what, key, "must be 0.1 to 3600");
		} else if (strcmp(key, "schema") != 0) {
			return wrong(what, key, "is not known");
		}
		if (!good)
			return false;
	}
	return true;
}

/* The JSON of a file that is one, and not so large that nobody has written it. NULL, with rc and what. */
static json_t *read_file(const char *path, int *rc, char *what)
{
	int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	struct stat st;
	json_error_t error;
	json_t *top = NULL;

	*rc = 0;
	if (fd < 0 || fstat(fd, &st)) {
		*rc = -errno;
		snprintf(what, WHAT, "%s", strerror(errno));
	} else if (!S_ISREG(st.st_mode) || st.st_size > FILE_MOST) {
		*rc = -EBADMSG;
		snprintf(what, WHAT, "not a file of up to %d bytes", FILE_MOST);
	} else if (!(top = json_loadfd(fd, JSON_REJECT_DUPLICATES, &error))) {
		char text[100]; /* it quotes what is there */

		*rc = -EBADMSG;
		top_text(text, sizeof(text), error.text);
		snprintf(what, WHAT, "line %d: %s", error.line, text);
	}
	if (fd >= 0)
		close(fd);
	return top;
}

int top_setup_load(struct top_setup *setup, const char *path, char *reason, size_t reason_bytes)
{
	char what[WHAT] = "";
	int rc;
	json_t *top = read_file(path, &rc, what);

	top_setup_default(setup);
	if (rc == -ENOENT)
		return 0;
	if (!rc && !read_all(setup, top, what))
		rc = -EBADMSG;
	json_decref(top);
	if (rc) {
		top_setup_default(setup);
		snprintf(reason, reason_bytes, "setup: %s: defaults are used (%s)", what, path);
	}
	return rc;
}

/* ---- writing ---- */

static json_t *screen_json(const struct top_setup_screen *from, enum top_screen_number s)
{
	struct top_column column[TOP_COLUMNS_MAX];
	uint32_t n = top_columns(s, column);
	json_t *o = json_object(), *hidden = json_array();

	for (uint32_t c = 0; c < n; c++)
		if (from->hidden >> c & 1)
			json_array_append_new(hidden, json_string(column[c].title));
	if (from->sort < n)
		json_object_set_new(o, "sort", json_string(column[from->sort].title));
	if (from->invert)
		json_object_set_new(o, "invert", json_true());
	if (json_array_size(hidden))
		json_object_set(o, "hidden", hidden);
	json_decref(hidden);
	return o;
}

static json_t *setup_json(const struct top_setup *setup)
{
	json_t *screens = json_object();

	for (unsigned s = 0; s < TOP_SCREENS; s++) {
		json_t *one = screen_json(&setup->screen[s], (enum top_screen_number)s);

		if (json_object_size(one))
			json_object_set(screens, top_screen_name((enum top_screen_number)s), one);
		json_decref(one);
	}
	return json_pack("{s:s, s:f, s:b, s:b, s:o}", "schema", SCHEMA, "delay_seconds",
			 setup->delay_s, "totals", setup->totals, "colours", setup->colours,
			 "screens", screens);
}

/* The directories above a file; what is there stays as it is. */
static int make_directories(const char *path)
{
	char at[TOP_PATH_BYTES];

	if (snprintf(at, sizeof(at), "%s", path) >= (int)sizeof(at))
		return -ENAMETOOLONG;
	for (char *slash = strchr(at + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		if (mkdir(at, 0700) && errno != EEXIST)
			return -errno;
		*slash = '/';
	}
	return 0;
}

static int write_file(const json_t *json, const char *path)
{
	char fresh[TOP_PATH_BYTES + 8];
	int fd, rc = 0;

	snprintf(fresh, sizeof(fresh), "%s.XXXXXX", path);
	fd = mkostemp(fresh, O_CLOEXEC);
	if (fd < 0)
		return -errno;
	errno = EIO;
	if (json_dumpfd(json, fd, JSON_INDENT(1) | JSON_REAL_PRECISION(6)) ||
	    write(fd, "\n", 1) != 1)
		rc = -errno;
	if (close(fd) && !rc)
		rc = -errno;
	if (!rc && rename(fresh, path))
		rc = -errno;
	if (rc)
		unlink(fresh);
	return rc;
}

int top_setup_save(const struct top_setup *setup, const char *path, char *reason,
		   size_t reason_bytes)
{
	json_t *json = setup_json(setup);
	int rc = json ? make_directories(path) : -ENOMEM;

	if (!rc)
		rc = write_file(json, path);
	if (rc)
		snprintf(reason, reason_bytes, "setup: not kept: %s (%s)", strerror(-rc), path);
	json_decref(json);
	return rc;
}
