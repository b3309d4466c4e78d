/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading a sysfs tree that is not trusted, for the readers of placement: a file is opened without blocking and read up to a page, links
 * are resolved by the kernel (which ends loops) and must stay inside the tree, and what cannot be read becomes a note that says
 * what it costs. It must never open anything for writing.
 */
#include "fabric/base/err.h"
#include "fabric/place/place_priv.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int epf_place_join(char *path, const char *fmt, ...)
{
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(path, PATH_MAX, fmt, ap);
	va_end(ap);
	return n < 0 || n >= PATH_MAX ? -ENAMETOOLONG : 0;
}

int epf_place_text(const char *folder, const char *name, char *text)
{
	char path[PATH_MAX];
	ssize_t n;
	int fd, err;

	if (epf_place_join(path, "%s/%s", folder, name))
		return -ENAMETOOLONG;
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0)
		return -errno;
	n = read(fd, text, EPF_PLACE_TEXT_BYTES);
	err = errno;
	close(fd);
	if (n < 0)
		return -err;
	if (n == EPF_PLACE_TEXT_BYTES)
		return -EFBIG;
	if (memchr(text, '\0', (size_t)n))
		return -EBADMSG;
	while (n > 0 && isspace((unsigned char)text[n - 1]))
		n--;
	text[n] = '\0';
	return 0;
}

int epf_place_text_noted(struct epf_place_map *map, const char *what, const char *folder,
			 const char *name, char *text, const char *cost)
{
	int rc = epf_place_text(folder, name, text);

	if (rc)
		epf_place_note_map(map, "%s: %s cannot be read (%s): %s", what, name, strerror(-rc),
				   cost);
	return rc;
}

void epf_place_nonsense(struct epf_place_map *map, const char *what, const char *name,
			const char *text, const char *cost)
{
	epf_place_note_map(map, "%s: %s is '%.60s', which makes no sense: %s", what, name, text,
			   cost);
}

/* ---- folders -------------------------------------------------------------------------------- */

void epf_place_names_free(struct epf_place_names *names)
{
	for (uint32_t i = 0; i < names->count; i++)
		free(names->name[i]);
	free(names->name);
	memset(names, 0, sizeof(*names));
}

static int add_name(struct epf_place_names *names, const char *name)
{
	char **grown = epf_place_grow(names->name, names->count, sizeof(*grown));

	if (!grown)
		return -ENOMEM;
	names->name = grown;
	grown[names->count] = strdup(name);
	return grown[names->count] ? (names->count++, 0) : -ENOMEM;
}

bool epf_place_is_printable(const char *name)
{
	for (; *name; name++)
		if (!isgraph((unsigned char)*name))
			return false;
	return true;
}

/* Takes a name into the list, or notes why not. */
static int take_name(struct epf_place_map *map, const char *folder, const char *prefix,
		     const char *name, struct epf_place_names *out)
{
	if (name[0] == '.' || strncmp(name, prefix, strlen(prefix)) != 0)
		return 0;
	if (epf_place_is_printable(name))
		return add_name(out, name);
	epf_place_note_map(map, "%s: '%s' is no name of a device: left out", folder, name);
	return 0;
}

int epf_place_names(struct epf_place_map *map, const char *folder, const char *prefix,
		    struct epf_place_names *out)
{
	struct dirent **entry = NULL;
	char path[PATH_MAX];
	int rc = 0, n = -1;

	memset(out, 0, sizeof(*out));
	errno = ENAMETOOLONG;
	if (!epf_place_join(path, "%s/%s", map->root, folder))
		n = scandir(path, &entry, NULL, versionsort);
	if (n < 0 && errno == ENOMEM)
		return epf_place_no_memory();
	if (n < 0)
		epf_place_note_map(map, "%s cannot be read (%s)", folder, strerror(errno));
	for (int i = 0; i < n; i++) {
		if (!rc)
			rc = take_name(map, folder, prefix, entry[i]->d_name, out);
		free(entry[i]);
	}
	free(entry);
	if (!rc)
		return 0;
	epf_place_names_free(out);
	return epf_place_no_memory();
}

int epf_place_read_cpus(struct epf_place_map *map, const char *what, const char *folder,
			const char *name, struct epf_place_cpus *out)
{
	static const char cost[] = "the CPUs near it are not known";
	char text[EPF_PLACE_TEXT_BYTES];
	int rc;

	if (epf_place_text_noted(map, what, folder, name, text, cost))
		return 0;
	rc = epf_place_cpus_parse(text, out);
	if (rc == -EINVAL)
		epf_place_nonsense(map, what, name, text, cost);
	return rc == -EINVAL ? 0 : rc;
}

/* The resolved path of ROOT/LINK, which must stay inside the root. */
int epf_place_resolve(struct epf_place_map *map, const char *link, char *path)
{
	char joined[PATH_MAX];
	size_t len = strlen(map->root);

	if (epf_place_join(joined, "%s/%s", map->root, link))
		return -ENAMETOOLONG;
	if (!realpath(joined, path))
		return -errno;
	return strncmp(path, map->root, len) != 0 || path[len] != '/' ? -EXDEV : 0;
}
