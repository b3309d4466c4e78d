/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lock protocol of the runtime directory, seen from who cleans up (sweep.h). Called by libepf when its daemon is dead; it must
 * touch nothing without the lock. It waits for it no longer than a process takes to die.
 */
#define EPF_LOG_COMP "svc"
#include "fabric/base/sweep.h"

#include "fabric/base/err.h"
#include "fabric/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_ROOM = 4096, TRIES = 8, DYING_TRIES = 25, DYING_US = 2000 };

static bool is_there(const char *path)
{
	struct stat st;

	return lstat(path, &st) == 0;
}

/* The descriptor that holds the lock, -EWOULDBLOCK when somebody else has it, or another -errno. */
static int take_lock(const char *path)
{
	for (int i = 0; i < TRIES; i++) {
		struct stat mine, there;
		int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0640);
		int err;

		if (fd < 0)
			return -errno;
		if (flock(fd, LOCK_EX | LOCK_NB)) {
			err = errno;
			close(fd);
			return -err;
		}
		/* Its last holder may have removed it between our two calls: then we hold a file that nobody finds. */
		if (fstat(fd, &mine) == 0 && stat(path, &there) == 0 &&
		    mine.st_ino == there.st_ino && mine.st_dev == there.st_dev)
			return fd;
		close(fd);
	}
	return -EWOULDBLOCK;
}

/* 1 when it was there and is gone. */
static int remove_one(const char *path, mode_t type)
{
	struct stat st;

	if (lstat(path, &st) || (st.st_mode & S_IFMT) != type)
		return 0;
	if (unlink(path) == 0)
		return 1;
	return errno == ENOENT
		       ? 0
		       : epf_fail_sys(EPF_R_SYSTEM, errno, "service: cannot remove %s", path);
}

int epf_svc_sweep(const char *dir, const char *instance)
{
	char sock[PATH_ROOM], lock[PATH_ROOM];
	int fd, rc;

	if (!*instance || strchr(instance, '/') ||
	    snprintf(sock, sizeof(sock), "%s/%s.sock", dir, instance) >= (int)sizeof(sock) ||
	    snprintf(lock, sizeof(lock), "%s/%s.lock", dir, instance) >= (int)sizeof(lock))
		return epf_fail(EPF_R_SVC_ABSENT, "service: \"%s\" in %s is no name of an instance",
				instance, dir);
	if ((!is_there(sock) && !is_there(lock)) ||
	    faccessat(AT_FDCWD, dir, W_OK | X_OK, AT_EACCESS))
		return 0;
	/* The kernel closes a dying daemon's descriptors one after the other: its sockets perhaps before its lock. */
	for (int i = 0; (fd = take_lock(lock)) == -EWOULDBLOCK && i < DYING_TRIES; i++)
		usleep(DYING_US);
	if (fd == -EWOULDBLOCK || fd == -EACCES || fd == -EPERM || fd == -ENOENT)
		return 0;
	if (fd < 0)
		return epf_fail_sys(EPF_R_SYSTEM, -fd, "service: cannot lock %s", lock);
	rc = remove_one(sock, S_IFSOCK);
	if (rc == 1)
		epf_note("instance %s: socket of a dead daemon removed: %s", instance, sock);
	/* Last, and while it is held: who opened it meanwhile sees that it is another file now. */
	if (rc >= 0 && unlink(lock) == 0)
		rc = 1;
	close(fd);
	return rc;
}
