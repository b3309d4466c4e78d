/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ofi NIC's name in a build without <rdma/fabric.h>: it says so when it is opened. Compiled in place of the other files.
 */
#include "fabric/nic/nic.h"

#include "fabric/base/err.h"

static int absent_open(const struct epf_conf *conf, uint64_t (*now)(void *), void *now_arg,
		       struct epf_nic **out)
{
	return epf_fail(EPF_R_OFI_ABSENT, "ofi: not in this build");
}

const struct epf_nic_ops epf_nic_ofi_ops = {
	.name = "ofi",
	.open = absent_open,
};
