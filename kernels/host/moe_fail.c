/* SPDX-License-Identifier: Apache-2.0 */
/* The reason of a failed call, as one line in the moe object. */
#include "kernels/host/moe_priv.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

int epf_moe_fail(struct epf_moe *m, int err, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(m->why, sizeof(m->why), fmt, ap);
	va_end(ap);
	return err;
}

int epf_moe_fail_fabric(struct epf_moe *m, int err, const char *doing)
{
	char why[sizeof(m->why)];
	struct epf_ring_failure f;

	snprintf(why, sizeof(why), "%s", epf_last_error());
	if (epf_ring_error(m->ring, &f))
		return epf_moe_fail(m, err, "rank %u, round %u, %s: %s; %s", m->cfg.rank, m->round,
				    doing, why, epf_last_error());
	return epf_moe_fail(m, err, "rank %u, round %u, %s: %s", m->cfg.rank, m->round, doing, why);
}
