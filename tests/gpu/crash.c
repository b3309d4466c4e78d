/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preloaded into another project's program (nccl_clients.sh): if it crashes, its C stack goes to standard error, for a log that is all there will be of it.
 * Python's faulthandler, if enabled, prints first and calls on.
 */
#include <execinfo.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

static void say(const char *text)
{
	if (write(STDERR_FILENO, text, strlen(text)) < 0)
		_exit(127);
}

static void crashed(int number)
{
	void *frames[64];
	int n = backtrace(frames, 64);

	say("# crash: C stack\n");
	backtrace_symbols_fd(frames, n, STDERR_FILENO);
	say("# crash: end\n");
	signal(number, SIG_DFL);
	raise(number);
}

__attribute__((constructor)) static void watch(void)
{
	static const int numbers[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT };
	void *frame;

	backtrace(&frame, 1); /* loads what it needs now: not possible after a crash */
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		signal(numbers[i], crashed);
}
