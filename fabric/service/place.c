/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon's place in the file system: runtime directory, lock, socket. Called when the daemon begins and ends. Whoever holds the lock
 * of an instance may remove what a dead one left behind; nobody else may.
 */
#define EPF_LOG_COMP "svc"
#include "fabric/base/clock.h"
#include "fabric/base/log.h"
#include "fabric/service/service_priv.h"
#include "queues/epf_stats.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { LISTEN_BACKLOG = 512, SWEEPER_MS = 500 };

/* The gid that service-group names; (gid_t)-1: the daemon's own, nothing to change. */
static int find_group(const struct epf_svc *s, gid_t *gid)
{
	const char *name = s->conf->service_group;
	const struct group *g;
	char *end;
	unsigned long number;

	*gid = (gid_t)-1;
	if (!*name)
		return 0;
	errno = 0;
	g = getgrnam(name);
	if (g) {
		*gid = g->gr_gid;
		return 0;
	}
	number = strtoul(name, &end, 10);
	if (*end || number >= UINT32_MAX)
		return epf_fail(EPF_R_CONF_RANGE, "service-group: no group named %s", name);
	*gid = (gid_t)number;
	return 0;
}

static int give_to_group(const char *path, gid_t gid, mode_t mode)
{
	if (gid != (gid_t)-1 && chown(path, (uid_t)-1, gid))
		return epf_fail_sys(EPF_R_SYSTEM, errno,
				    "service-group: cannot give %s to group %u", path,
				    (unsigned)gid);
	if (chmod(path, mode))
		return epf_fail_sys(EPF_R_SYSTEM, errno, "service: cannot set the mode of %s",
				    path);
	return 0;
}

/* A directory where only we can make names: else somebody could put a socket of his own in our place. */
static int make_dir(struct epf_svc *s, gid_t gid)
{
	char why[256];
	bool made;
	int rc;

	made = mkdir(s->dir, 0750) == 0;
	rc = epf_stats_make_dir(s->dir, why, sizeof(why));
	if (rc)
		return epf_fail_sys(EPF_R_SYSTEM, -rc, "runtime-dir: %s", why);
	/* A directory that was there keeps its mode unless a group is to get in. */
	return made || gid != (gid_t)-1 ? give_to_group(s->dir, gid, 0750) : 0;
}

static int check_name(struct epf_svc *s)
{
	const char *name = *s->conf->instance ? s->conf->instance : "node";
	size_t n = strlen(name);

	if (n >= sizeof(s->instance) || name[0] == '.' ||
	    strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") != n)
		return epf_fail(
			EPF_R_CONF_RANGE,
			"instance: \"%s\" is not 1 to 63 of A-Z a-z 0-9 . _ - without a dot at the start",
			name);
	snprintf(s->instance, sizeof(s->instance), "%s", name);
	if (*s->conf->runtime_dir)
		snprintf(s->dir, sizeof(s->dir), "%s", s->conf->runtime_dir);
	else if (epf_conf_stats_dir(s->conf, s->dir, sizeof(s->dir)))
		return -ERANGE;
	if (snprintf(s->socket, sizeof(s->socket), "%.4000s/%s.sock", s->dir, name) >=
	    (int)sizeof(s->socket))
		return epf_fail(
			EPF_R_CONF_RANGE,
			"runtime-dir: %s/%s.sock has more than the %zu bytes of a socket's path",
			s->dir, name, sizeof(s->socket) - 1);
	snprintf(s->lock, sizeof(s->lock), "%s/%s.lock", s->dir, name);
	epf_log_name(s->instance);
	return 0;
}

/* Opens and locks the lock file; it may be removed by its holder between the two. 1: locked, 0: somebody holds it. */
static int try_lock(struct epf_svc *s)
{
	for (;;) {
		int fd = open(s->lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0640);
		struct stat mine, there;
		int rc;

		if (fd < 0)
			return epf_fail_sys(EPF_R_SYSTEM, errno, "service: cannot open %s",
					    s->lock);
		if (flock(fd, LOCK_EX | LOCK_NB)) {
			rc = errno == EWOULDBLOCK
				     ? 0
				     : epf_fail_sys(EPF_R_SYSTEM, errno, "service: cannot lock %s",
						    s->lock);
			close(fd);
			return rc;
		}
		if (fstat(fd, &mine) == 0 && stat(s->lock, &there) == 0 &&
		    mine.st_ino == there.st_ino && mine.st_dev == there.st_dev) {
			s->lock_fd = fd;
			return 1;
		}
		close(fd);
	}
}

static long holder_of(const struct epf_svc *s)
{
	int fd = open(s->lock, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	char text[32] = "";
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);

	if (fd >= 0)
		close(fd);
	return n > 0 ? strtol(text, NULL, 10) : 0;
}

static int take_lock(struct epf_svc *s)
{
	uint64_t end = epf_now_ns() + SWEEPER_MS * (uint64_t)SVC_MS;
	char text[32];
	int rc, n;

	/* A client that finds a dead daemon's socket holds the lock for a moment while it sweeps. */
	while ((rc = try_lock(s)) == 0) {
		if (epf_now_ns() > end)
			return epf_fail(EPF_R_SVC_RUNNING, "instance %s: process %ld serves %s",
					s->instance, holder_of(s), s->socket);
		usleep(20000);
	}
	if (rc < 0)
		return rc;
	n = snprintf(text, sizeof(text), "%d\n", (int)getpid());
	if (ftruncate(s->lock_fd, 0) || pwrite(s->lock_fd, text, (size_t)n, 0) != n)
		return epf_fail_sys(EPF_R_SYSTEM, errno, "service: cannot write %s", s->lock);
	return 0;
}

static int listen_there(struct epf_svc *s, gid_t gid)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	struct stat st;
	mode_t mask;
	int rc;

	if (lstat(s->socket, &st) == 0) {
		epf_note("instance %s: socket of a dead daemon removed: %s", s->instance,
			 s->socket);
		if (unlink(s->socket))
			return epf_fail_sys(EPF_R_SYSTEM, errno, "service: cannot remove %s",
					    s->socket);
	}
	s->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (s->listen_fd < 0)
		return epf_fail_sys(EPF_R_SYSTEM, errno, "service: no socket");
	memcpy(a.sun_path, s->socket, strlen(s->socket));
	mask = umask(0177); /* nobody gets in before the group is set */
	rc = bind(s->listen_fd, (struct sockaddr *)&a, sizeof(a));
	umask(mask);
	if (rc)
		return epf_fail_sys(EPF_R_SYSTEM, errno, "service: cannot make %s", s->socket);
	rc = give_to_group(s->socket, gid, 0660);
	if (rc)
		return rc;
	if (listen(s->listen_fd, LISTEN_BACKLOG))
		return epf_fail_sys(EPF_R_SYSTEM, errno, "service: cannot listen at %s", s->socket);
	return 0;
}

int svc_place_take(struct epf_svc *s)
{
	gid_t gid;
	int rc = check_name(s);

	if (!rc)
		rc = find_group(s, &gid);
	if (!rc)
		rc = make_dir(s, gid);
	if (!rc)
		rc = take_lock(s);
	if (!rc)
		rc = listen_there(s, gid);
	return rc;
}

void svc_place_leave(struct epf_svc *s)
{
	if (s->listen_fd >= 0) {
		close(s->listen_fd);
		unlink(s->socket);
		s->listen_fd = -1;
	}
	if (s->lock_fd < 0)
		return;
	/* Removed while it is held: whoever opened it meanwhile sees that it is another file now. */
	unlink(s->lock);
	close(s->lock_fd);
	s->lock_fd = -1;
}
