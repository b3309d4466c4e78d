/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preloaded into a program that is stalled: on the signal SIGRTMIN+10 every thread of the process writes where it is to
 * $STACKS_DIR/PID.txt, one after the other. For GPU tests (shim_internode.sh), where no debugger is: it tells a thread that waits for a lock of
 * the GPU's driver from one that waits for a kernel. Built by the test: cc -shared -fPIC. It must not be in a program that is measured.
 */
#ifndef _GNU_SOURCE
# define _GNU_SOURCE
#endif
#include <dirent.h>
#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { FRAMES = 40, PATIENCE_US = 200000, STEP_US = 500 };

static char path[512];
static volatile int said;

/* In the thread that is asked. */
static void tell(int number)
{
	void *frames[FRAMES];
	char name[17] = "", line[64];
	int fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0644);
	int n = backtrace(frames, FRAMES);

	(void)number;
	(void)prctl(PR_GET_NAME, name);
	if (fd >= 0) {
		int len =
			snprintf(line, sizeof(line), "thread %ld %s\n", syscall(SYS_gettid), name);

		if (write(fd, line, (size_t)len) == len)
			backtrace_symbols_fd(frames, n, fd);
		close(fd);
	}
	__atomic_store_n(&said, 1, __ATOMIC_RELEASE);
}

/* In whichever thread gets the signal: asks one thread after the other, itself at last. */
static void ask(int number)
{
	DIR *d = opendir("/proc/self/task");
	long me = syscall(SYS_gettid);
	struct dirent *e;

	(void)number;
	while (d && (e = readdir(d))) {
		long tid = strtol(e->d_name, NULL, 10);

		if (tid <= 0 || tid == me)
			continue;
		__atomic_store_n(&said, 0, __ATOMIC_RELEASE);
		if (syscall(SYS_tgkill, getpid(), tid, SIGRTMIN + 11))
			continue;
		for (int us = 0; us < PATIENCE_US && !__atomic_load_n(&said, __ATOMIC_ACQUIRE);
		     us += STEP_US)
			usleep(STEP_US);
	}
	if (d)
		closedir(d);
	tell(0);
}

__attribute__((constructor)) static void begin(void)
{
	const char *dir = getenv("STACKS_DIR");
	struct sigaction asked = { .sa_handler = ask, .sa_flags = SA_RESTART };
	struct sigaction one = { .sa_handler = tell, .sa_flags = SA_RESTART };
	void *frame[1];

	if (!dir)
		return;
	snprintf(path, sizeof(path), "%s/%d.txt", dir, getpid());
	(void)backtrace(frame, 1); /* loads the unwinder now, not in a handler */
	sigfillset(&asked.sa_mask);
	sigfillset(&one.sa_mask);
	sigaction(SIGRTMIN + 10, &asked, NULL);
	sigaction(SIGRTMIN + 11, &one, NULL);
}
