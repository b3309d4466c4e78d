/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Removing what a dead daemon left behind (fabric/base/sweep.h): only without a living holder of the lock, only what is a socket, and
 * a daemon that begins meanwhile keeps what is its own.
 */
#include "fabric/base/err.h"
#include "fabric/base/sweep.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[64], sock[96], lock[96];

static void make_socket(void);
static int make_lock(void);

static int newcomer = -1; /* the lock of a daemon that begins in the worst moment */
static bool worst_moment;

/* In place of the system's: between a sweeper's open and its lock, another one removes the file and a daemon begins. */
int flock(int fd, int operation)
{
	if (worst_moment) {
		worst_moment = false;
		unlink(lock);
		unlink(sock);
		newcomer = make_lock();
		syscall(SYS_flock, newcomer, LOCK_EX | LOCK_NB);
		make_socket();
	}
	return (int)syscall(SYS_flock, fd, operation);
}

static void make_socket(void)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	snprintf(at.sun_path, sizeof(at.sun_path), "%s", sock);
	assert_return_code(bind(fd, (struct sockaddr *)&at, sizeof(at)), errno);
	close(fd);
}

static int make_lock(void)
{
	int fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0640);

	assert_true(fd >= 0);
	return fd;
}

static bool is_there(const char *path)
{
	struct stat st;

	return lstat(path, &st) == 0;
}

static void the_dead_are_swept(void **state)
{
	assert_int_equal(epf_svc_sweep(dir, "a"), 0);
	assert_false(is_there(lock));
	make_socket();
	close(make_lock());
	assert_int_equal(epf_svc_sweep(dir, "a"), 1);
	assert_false(is_there(sock));
	assert_false(is_there(lock));
	/* One of the two is enough. */
	make_socket();
	assert_int_equal(epf_svc_sweep(dir, "a"), 1);
	close(make_lock());
	assert_int_equal(epf_svc_sweep(dir, "a"), 1);
	assert_false(is_there(sock) || is_there(lock));
}

static void the_living_are_not(void **state)
{
	int fd;

	make_socket();
	fd = make_lock();
	assert_return_code(flock(fd, LOCK_EX | LOCK_NB), errno);
	assert_int_equal(epf_svc_sweep(dir, "a"), 0);
	assert_true(is_there(sock) && is_there(lock));
	close(fd); /* it dies */
	assert_int_equal(epf_svc_sweep(dir, "a"), 1);
}

static void other_files_stay(void **state)
{
	int fd = open(sock, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	char target[96];

	close(fd);
	epf_svc_sweep(dir, "a");
	assert_true(is_there(sock));
	unlink(sock);
	/* A lock that points elsewhere is nobody's lock. */
	snprintf(target, sizeof(target), "%s/precious", dir);
	close(open(target, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
	make_socket();
	assert_return_code(symlink(target, lock), errno);
	assert_true(epf_svc_sweep(dir, "a") < 0);
	assert_true(is_there(sock) && is_there(lock) && is_there(target));
	unlink(sock);
	unlink(lock);
	unlink(target);
}

static void names(void **state)
{
	static char longer[5000];

	assert_true(epf_svc_sweep(dir, "") < 0);
	assert_int_equal(epf_last_reason(), EPF_R_SVC_ABSENT);
	assert_true(epf_svc_sweep(dir, "../a") < 0);
	memset(longer, 'x', sizeof(longer) - 1);
	assert_true(epf_svc_sweep(dir, longer) < 0);
	assert_int_equal(epf_svc_sweep("/nonexistent", "a"), 0);
}

static void a_lock_that_is_no_longer_there_is_none(void **state)
{
	make_socket();
	close(make_lock());
	worst_moment = true;
	assert_int_equal(epf_svc_sweep(dir, "a"), 0);
	assert_false(worst_moment);
	assert_true(is_there(sock) && is_there(lock));
	close(newcomer);
	assert_int_equal(epf_svc_sweep(dir, "a"), 1);
}

/* Without the right to write there nothing happens, not even a lock is taken. Only root can try as somebody else. */
static void no_permission(void **state)
{
	int status = 0;
	pid_t pid;

	if (geteuid() != 0)
		skip();
	make_socket();
	assert_return_code(chmod(dir, 0755), errno);
	pid = fork();
	if (pid == 0)
		_exit(seteuid(65534) ? 9 : epf_svc_sweep(dir, "a") == 0 ? 0 : 1);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_true(is_there(sock));
	assert_false(is_there(lock));
	assert_int_equal(epf_svc_sweep(dir, "a"), 1);
}

/*
 * Daemons begin and die while others sweep: whoever holds the lock and sees its own file in the directory must find its socket in place
 * for as long as it holds it.
 */
static void sweeping_beside_starts(void **state)
{
	enum { SWEEPERS = 2, STARTS = 300 };

	pid_t sweeper[SWEEPERS];
	unsigned started = 0;

	for (int i = 0; i < SWEEPERS; i++) {
		sweeper[i] = fork();
		if (sweeper[i] == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			for (;;)
				epf_svc_sweep(dir, "a");
		}
	}
	while (started < STARTS) {
		struct stat mine, there;
		int fd = make_lock();

		if (flock(fd, LOCK_EX | LOCK_NB) == 0 && stat(lock, &there) == 0 &&
		    fstat(fd, &mine) == 0 && mine.st_ino == there.st_ino) {
			unlink(sock);
			make_socket();
			usleep(200);
			assert_true(is_there(sock));
			started++;
		}
		close(fd);
	}
	for (int i = 0; i < SWEEPERS; i++) {
		kill(sweeper[i], SIGKILL);
		waitpid(sweeper[i], NULL, 0);
	}
	epf_svc_sweep(dir, "a");
}

static int make_dir(void **state)
{
	snprintf(dir, sizeof(dir), "/tmp/epf-sweep-XXXXXX");
	if (!mkdtemp(dir))
		return -1;
	snprintf(sock, sizeof(sock), "%s/a.sock", dir);
	snprintf(lock, sizeof(lock), "%s/a.lock", dir);
	return 0;
}

static int remove_dir(void **state)
{
	return rmdir(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_dead_are_swept),
		cmocka_unit_test(the_living_are_not),
		cmocka_unit_test(other_files_stay),
		cmocka_unit_test(names),
		cmocka_unit_test(a_lock_that_is_no_longer_there_is_none),
		cmocka_unit_test(no_permission),
		cmocka_unit_test(sweeping_beside_starts),
	};

	return cmocka_run_group_tests(tests, make_dir, remove_dir) ? 1 : 0;
}
