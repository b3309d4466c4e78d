/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The statistics files of a directory: listing them, and removing old ones of writers that have ended (epf_stats.h). Called by readers, and
 * by each writer when it makes its own file. It must never remove the file of a writer that may still run.
 */
#include "queues/stats_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct dead {
	char *name;
	dev_t dev;
	ino_t ino;
	uint64_t last_ns; /* CLOCK_REALTIME of the last sign of life */
};

static int is_stats(const struct dirent *entry)
{
	size_t n = strlen(entry->d_name), suffix = strlen(EPF_STATS_SUFFIX);

	return entry->d_name[0] != '.' && n > suffix &&
	       !strcmp(entry->d_name + n - suffix, EPF_STATS_SUFFIX);
}

/* A writer and what /proc says of it. It takes the kernel longer the more threads a process has, and a process may have hundreds of files. */
struct known {
	struct epf_stats_proc writer;
	enum epf_stats_alive alive;
};

static enum epf_stats_alive ask(const struct epf_stats_proc *writer, struct known *last)
{
	if (memcmp(writer, &last->writer, sizeof(*writer)) != 0) {
		last->writer = *writer;
		last->alive = epf_stats_proc_alive(writer);
	}
	return last->alive;
}

int epf_stats_list(const char *dir, struct dirent ***list)
{
	int n = scandir(dir, list, is_stats, alphasort);

	return n < 0 ? -errno : n;
}

/* Whether the writer of an open file has certainly ended, and when it last gave a sign of life. last: whom the file before is of. */
static bool has_ended(int fd, struct known *last, struct dead *out)
{
	struct epf_stats_header h;
	struct stat sb;

	if (fstat(fd, &sb) || !S_ISREG(sb.st_mode) || pread(fd, &h, sizeof(h), 0) != sizeof(h) ||
	    h.magic != EPF_STATS_MAGIC || h.version_major != EPF_STATS_VERSION_MAJOR)
		return false;
	if ((h.phase & 0xff) != EPF_STATS_CLOSED && ask(&h.writer, last) != EPF_STATS_DEAD)
		return false;
	out->dev = sb.st_dev;
	out->ino = sb.st_ino;
	/* Its own clocks alone: the machine may have been restarted since. */
	out->last_ns = h.created_realtime_ns;
	if (h.heartbeat_ns > h.created_monotonic_ns)
		out->last_ns += h.heartbeat_ns - h.created_monotonic_ns;
	return true;
}

static int newest_first(const void *a, const void *b)
{
	const struct dead *x = a, *y = b;

	return (x->last_ns < y->last_ns) - (x->last_ns > y->last_ns);
}

/* Unless the name is another file's by now. */
static bool remove_file(int dir, const struct dead *d)
{
	struct stat sb;

	return !fstatat(dir, d->name, &sb, AT_SYMLINK_NOFOLLOW) && sb.st_dev == d->dev &&
	       sb.st_ino == d->ino && !unlinkat(dir, d->name, 0);
}

unsigned epf_stats_sweep(const char *dir, uint64_t now_ns)
{
	int at = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC), n = 0, fd;
	unsigned ended = 0, gone = 0;
	struct dirent **list = NULL;
	struct dead *dead = NULL;
	struct known last = { .alive = EPF_STATS_UNKNOWN }; /* of nobody */

	if (at >= 0)
		n = epf_stats_list(dir, &list);
	if (n > 0)
		dead = malloc((size_t)n * sizeof(*dead));
	for (int i = 0; dead && i < n; i++) {
		dead[ended].name = list[i]->d_name;
		fd = openat(at, list[i]->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
		if (fd < 0)
			continue;
		ended += has_ended(fd, &last, &dead[ended]);
		close(fd);
	}
	if (ended)
		qsort(dead, ended, sizeof(*dead), newest_first);
	for (unsigned i = 0; i < ended; i++)
		if (i >= EPF_STATS_DEAD_FILES ||
		    (dead[i].last_ns < now_ns && now_ns - dead[i].last_ns > EPF_STATS_DEAD_NS))
			gone += remove_file(at, &dead[i]);
	for (int i = 0; i < n; i++)
		free(list[i]);
	free(list);
	free(dead);
	if (at >= 0)
		close(at);
	return gone;
}
