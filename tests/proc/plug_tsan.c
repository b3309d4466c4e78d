/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ThreadSanitizer reports a false race in the plug-in's threads. The C library caches the stacks of threads that have ended; when a new thread takes one over, it
 * frees the thread-local variables of the old thread. A lock inside the C library orders the two, and ThreadSanitizer does not see it.
 */
const char *__tsan_default_suppressions(void);

const char *__tsan_default_suppressions(void)
{
	return "race:_dl_deallocate_tls\n";
}
