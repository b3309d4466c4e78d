/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-bench core --service: what the way through a daemon costs a client that does nothing but push. Called by main.c.
 */
#ifndef EPF_BENCH_CORE_SERVICE_H
#define EPF_BENCH_CORE_SERVICE_H

#include <stdbool.h>
#include <stdint.h>

struct core_service_opts {
	uint64_t rounds; /* at most BENCH_ROUNDS_MAX */
	uint64_t ms;     /* of one measurement of the rate */
	uint64_t batch;
	const char *fabric_program; /* NULL: beside this one */
	bool json;
};

/* Returns an exit code. */
int bench_core_service(const struct core_service_opts *o);

#endif
