/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of checks, in the order of reports: see check.h. */
#include "tools/prove/check.h"

const struct check *const check_tables[] = { checks_data,     checks_memory, checks_refusals,
					     checks_failures, checks_limits, NULL };
