/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmocka ends the program with 255 and no word if a thread other than the test's receives a signal or fails a check. In every test program this says
 * which thread it was, and where it was.
 */
#include <execinfo.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { FRAMES = 32 };

static void tell(void)
{
	void *frames[FRAMES];
	char name[16] = "?";

	if (syscall(SYS_gettid) == getpid())
		return;
	(void)pthread_getname_np(pthread_self(), name, sizeof(name));
	fprintf(stderr,
		"the thread '%s' ended the program (addr2line -fe PROGRAM +ADDRESS names lines):\n",
		name);
	backtrace_symbols_fd(frames, backtrace(frames, FRAMES), STDERR_FILENO);
}

__attribute__((constructor)) static void listen_for_exit(void)
{
	(void)atexit(tell);
}
