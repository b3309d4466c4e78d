/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads configuration files and the environment into a struct epf_conf. Called by the library and
 * by tools through epf_conf_load(). A file may be anything a user can name, so it is read whole,
 * with a limit, and never trusted. It must never print a value that could be a secret.
 */
#define EPF_LOG_COMP "conf"
#include "fabric/base/conf_priv.h"

#include "fabric/base/err.h"
#include "fabric/base/log.h"

#include <ini.h>

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PREFIX     "EPF_"
#define PREFIX_LEN 4
#define NAME_BYTES 64
#define PLACE_MAX  4200 /* a path, a colon and a line number */

/* A file in memory on its way through the parser of libinih. */
struct file {
	struct epf_conf *conf;
	const char *name;
	const char *text;
	size_t len;
	size_t at;
	uint32_t line;
	int rc; /* the first error */
	enum epf_conf_source source;
	uint32_t set_in_line[EPF_CONF_KEYS];
};

/*
 * Gives libinih the next line, at most room - 1 bytes and the end. It would silently split a
 * longer line, take an indented one as continuation of the value above, and skip a section without
 * keys; none of this is wanted, so lines are checked and their indent is dropped here. This also
 * counts them, as the packaged library does not tell its handler the line.
 */
static char *next_line(char *out, int room, void *arg)
{
	struct file *f = arg;
	const char *line = f->text + f->at;
	const char *end;
	size_t len;

	if (f->rc || f->at == f->len)
		return NULL;
	end = memchr(line, '\n', f->len - f->at);
	f->line++;
	f->at = end ? (size_t)(end - f->text) + 1 : f->len;
	len = (size_t)(f->text + f->at - line);
	if (memchr(line, '\0', len)) {
		f->rc = epf_fail(EPF_R_CONF_SYNTAX, "%s:%u: holds a zero byte", f->name, f->line);
		return NULL;
	}
	while (len && (*line == ' ' || *line == '\t')) {
		line++;
		len--;
	}
	if (len && *line == '[') {
		f->rc = epf_fail(EPF_R_CONF_SYNTAX, "%s:%u: this file has no sections", f->name,
				 f->line);
		return NULL;
	}
	if (len + 1 > (size_t)room) {
		f->rc = epf_fail(EPF_R_CONF_LINE_LENGTH, "%s:%u: %zu bytes, the limit is %d",
				 f->name, f->line, len, room - 1);
		return NULL;
	}
	memcpy(out, line, len);
	out[len] = '\0';
	return out;
}

/* Called by libinih for each "name = value". Return: nonzero to go on, as it asks for. */
static int take_pair(void *arg, const char *section, const char *name, const char *value)
{
	struct file *f = arg;
	char where[PLACE_MAX], nearest[NAME_BYTES];
	int id = epf_conf_find(name);

	if (f->rc)
		return 0;
	snprintf(where, sizeof(where), "%s:%u", f->name, f->line);
	if (id < 0) {
		epf_conf_nearest(name, false, nearest, sizeof(nearest));
		f->rc = epf_fail(EPF_R_CONF_UNKNOWN_KEY,
				 "%s: '%.64s' is not a setting, the nearest is %s", where, name,
				 nearest);
		return 0;
	}
	if (f->set_in_line[id]) {
		f->rc = epf_fail(EPF_R_CONF_TWICE, "%s: %s is set in line %u already", where,
				 epf_conf_key((enum epf_conf_id)id)->name, f->set_in_line[id]);
		return 0;
	}
	f->set_in_line[id] = f->line;
	f->rc = epf_conf_set_at(f->conf, (enum epf_conf_id)id, value, f->source, where);
	return !f->rc;
}

int epf_conf_load_text(struct epf_conf *conf, const char *text, size_t len,
		       enum epf_conf_source source, const char *name)
{
	struct file f = {
		.conf = conf,
		.name = name,
		.text = text,
		.len = len,
		.source = source,
	};
	int bad_line = ini_parse_stream(next_line, &f, take_pair, &f);

	if (f.rc)
		return f.rc;
	if (bad_line > 0)
		return epf_fail(EPF_R_CONF_SYNTAX, "%s:%d: is not 'name = value'", name, bad_line);
	if (bad_line < 0)
		return epf_fail(EPF_R_NO_MEMORY, "%s", name);
	return 0;
}

/* Reads up to size bytes. Return: how many, or minus errno. */
static ssize_t read_up_to(int fd, char *buf, size_t size)
{
	size_t got = 0;

	while (got < size) {
		ssize_t n = read(fd, buf + got, size - got);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (!n)
			break;
		got += (size_t)n;
	}
	return (ssize_t)got;
}

/* Only regular files: opening a pipe or a device could wait forever. */
static int read_whole(const char *path, int fd, char **text, size_t *len)
{
	size_t room = EPF_CONF_FILE_MAX_BYTES + 1;
	struct stat st;
	ssize_t got;
	char *buf;

	if (fstat(fd, &st))
		return epf_fail_sys(EPF_R_CONF_FILE, errno, "%s", path);
	if (!S_ISREG(st.st_mode))
		return epf_fail_sys(EPF_R_CONF_FILE, EINVAL, "%s: is not a regular file", path);
	buf = malloc(room);
	if (!buf)
		return epf_fail(EPF_R_NO_MEMORY, "%s", path);
	got = read_up_to(fd, buf, room);
	if (got < 0 || (size_t)got == room) {
		free(buf);
		if (got < 0)
			return epf_fail_sys(EPF_R_CONF_FILE, (int)-got, "%s", path);
		return epf_fail(EPF_R_CONF_FILE_SIZE, "%s: is larger than %d bytes", path,
				EPF_CONF_FILE_MAX_BYTES);
	}
	*text = buf;
	*len = (size_t)got;
	return 0;
}

static int load_file(struct epf_conf *conf, const char *path, enum epf_conf_source source)
{
	char *text = NULL;
	size_t len = 0;
	int fd, rc;

	if (strlen(path) > PLACE_MAX - 16)
		return epf_fail_sys(EPF_R_CONF_FILE, ENAMETOOLONG, "%.64s...", path);
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0) {
		if (errno == ENOENT && source == EPF_CONF_SYSTEM)
			return 0;
		return epf_fail_sys(EPF_R_CONF_FILE, errno, "%s", path);
	}
	rc = read_whole(path, fd, &text, &len);
	close(fd);
	if (!rc)
		rc = epf_conf_load_text(conf, text, len, source, path);
	free(text);
	return rc;
}

/* The value of a variable in a list as environ(7), NULL when it is not there. */
static const char *variable(char *const *environment, const char *name, size_t len)
{
	for (; environment && *environment; environment++) {
		if (!strncmp(*environment, name, len) && (*environment)[len] == '=')
			return *environment + len + 1;
	}
	return NULL;
}

/* A variable of another product: what we cannot take from it is no reason to refuse to start. */
static int load_aliases(struct epf_conf *conf, char *const *environment, enum epf_conf_id id)
{
	const char *name = epf_conf_key(id)->aliases;
	char where[128];

	for (; *name; name += strspn(name, " ")) {
		size_t len = strcspn(name, " ");
		const char *value = variable(environment, name, len);

		if (value && *value) {
			snprintf(where, sizeof(where), "environment %.*s (alias)", (int)len, name);
			if (!epf_conf_set_at(conf, id, value, EPF_CONF_ALIAS, where))
				return 0;
			if (epf_last_reason() == EPF_R_NO_MEMORY)
				return -ENOMEM;
			epf_warn("%s; ignored", epf_last_error());
			epf_clear_error();
		}
		name += len;
	}
	return 0;
}

static bool is_known_variable(const char *name, size_t len)
{
	for (const struct epf_conf_variable *v = epf_conf_variables(); v->name; v++) {
		if (strlen(v->name) == len && !memcmp(v->name, name, len))
			return true;
	}
	return false;
}

/* The setting that "EPF_RING_SLOTS" means, -1 for none; variables are in capitals only. */
static int setting_of_variable(const char *name, size_t len)
{
	char option[NAME_BYTES];
	size_t n = len - PREFIX_LEN;

	if (n >= sizeof(option))
		return -1;
	for (size_t i = 0; i < n; i++) {
		unsigned char c = (unsigned char)name[PREFIX_LEN + i];

		if (c == '-' || islower(c))
			return -1;
		option[i] = c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : (char)c;
	}
	option[n] = '\0';
	return epf_conf_find(option);
}

static void warn_unknown(const char *name, size_t len)
{
	char copy[NAME_BYTES], nearest[NAME_BYTES];

	snprintf(copy, sizeof(copy), "%.*s", len < NAME_BYTES ? (int)len : NAME_BYTES - 1, name);
	epf_conf_nearest(copy, true, nearest, sizeof(nearest));
	epf_warn("environment %s: is no variable of ep-fabric and does nothing; nearest: %s", copy,
		 nearest);
}

static int load_environment(struct epf_conf *conf, char *const *environment)
{
	for (char *const *e = environment; e && *e; e++) {
		const char *eq = strchr(*e, '=');
		size_t len = eq ? (size_t)(eq - *e) : 0;
		int id, rc;

		if (len <= PREFIX_LEN || strncmp(*e, PREFIX, PREFIX_LEN) ||
		    is_known_variable(*e, len))
			continue;
		id = setting_of_variable(*e, len);
		if (id < 0) {
			warn_unknown(*e, len);
			continue;
		}
		rc = epf_conf_set(conf, epf_conf_key((enum epf_conf_id)id)->name, eq + 1,
				  EPF_CONF_ENVIRONMENT);
		if (rc)
			return rc;
	}
	return 0;
}

int epf_conf_load(struct epf_conf *conf, const struct epf_conf_places *places)
{
	const struct epf_conf_places usual = {
		.system_file = EPF_CONF_SYSTEM_FILE,
		.environment = environ,
	};
	const char *named;
	int rc = 0;

	if (!places)
		places = &usual;
	named = places->named_file ? places->named_file : conf->config_file;
	if (!named)
		named = variable(places->environment, "EPF_CONFIG", strlen("EPF_CONFIG"));
	for (int i = 0; !rc && i < EPF_CONF_KEYS; i++)
		rc = load_aliases(conf, places->environment, (enum epf_conf_id)i);
	if (!rc && places->system_file)
		rc = load_file(conf, places->system_file, EPF_CONF_SYSTEM);
	if (!rc && named && *named)
		rc = load_file(conf, named, EPF_CONF_FILE);
	if (!rc)
		rc = load_environment(conf, places->environment);
	return rc;
}
