/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A loop whose turns wait for the kernel or a device, spread over a few threads: connecting hundreds of queue pairs is mostly
 * waiting. Slow path of set-up; the threads live as long as the call. It must never be used for work that a step does.
 */
#ifndef EPF_BASE_PARALLEL_H
#define EPF_BASE_PARALLEL_H

#include <stdint.h>

enum { EPF_PARALLEL_MAX = 64 }; /* threads */

/**
 * epf_parallel() - call fn(arg, i) once for each i below @n, on at most @threads threads, the caller's among them.
 * @fn: for different i it must be safe to run at once. Returns 0 or -errno with its own thread's epf_last_error() set.
 * @failed: on failure the i it is about; may be NULL.
 *
 * After a failure no further i is begun; those begun are waited for. Signals are left to the caller's thread. A thread that
 * cannot be started is done without: the loop is then slower, not wrong. What fn wrote is seen by the caller.
 *
 * Return: 0; or what the failed fn with the lowest i among those that ran returned, its error then being this thread's.
 */
int epf_parallel(unsigned threads, uint32_t n, int (*fn)(void *arg, uint32_t i), void *arg,
		 uint32_t *failed);

#endif
