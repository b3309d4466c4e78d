/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ThreadSanitizer cannot know of the plug-in's threads: the C library keeps the stacks of those that have ended, and gives back what a thread had of a loaded
 * library's thread-local variables when another one gets its stack. What orders the two is a lock of its own, unseen.
 */
const char *__tsan_default_suppressions(void);

const char *__tsan_default_suppressions(void)
{
	return "race:_dl_deallocate_tls\n";
}
