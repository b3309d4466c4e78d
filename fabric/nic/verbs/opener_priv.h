/* SPDX-License-Identifier: Apache-2.0 */
/* Orders to the other thread of the verbs NIC (nic/rdma/opener.h), shared by reopen.c and reopen_end.c. */
#ifndef EPF_FABRIC_NIC_VERBS_OPENER_PRIV_H
#define EPF_FABRIC_NIC_VERBS_OPENER_PRIV_H

#include "fabric/nic/rdma/opener.h"
#include "fabric/nic/verbs/verbs.h"

/* The order, and what goes with it. */
struct epf_verbs_opener {
	struct epf_opener o;
	uint32_t depth;
	uint64_t token; /* of the peer */
	size_t addr_len;
	uint8_t addr[EPF_VERBS_ADDR_BYTES];
	struct epf_verbs_lane old;   /* OPEN: to be freed first */
	struct epf_verbs_lane fresh; /* OPEN: made; CONNECT: a copy of the lane */
};

#endif
