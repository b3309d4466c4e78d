/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verbs NIC's name in a build without <infiniband/verbs.h>: it says so when it is opened. Compiled in place of nic.c and
 * verbs_*.c.
 */
#include "fabric/nic/nic.h"

#include "fabric/base/err.h"

static int absent_open(const struct epf_conf *conf, uint64_t (*now)(void *), void *now_arg,
		       struct epf_nic **out)
{
	return epf_fail(EPF_R_VERBS_ABSENT, "verbs: not in this build");
}

const struct epf_nic_ops epf_nic_verbs_ops = {
	.name = "verbs",
	.open = absent_open,
};
