/* SPDX-License-Identifier: Apache-2.0 */
/* Orders to the other thread of the EFA NIC (nic/rdma/opener.h), shared by reopen.c and reopen_end.c. */
#ifndef EPF_FABRIC_NIC_EFA_OPENER_PRIV_H
#define EPF_FABRIC_NIC_EFA_OPENER_PRIV_H

#include "fabric/nic/efa/efa.h"
#include "fabric/nic/rdma/opener.h"

/* The order, and what goes with it. */
struct epf_efa_opener {
	struct epf_opener o;
	uint32_t depth;
	uint64_t token;            /* CONNECT: of the peer */
	struct epf_efa_peer peer;  /* CONNECT */
	struct epf_efa_lane old;   /* OPEN: to be freed first */
	struct epf_efa_lane fresh; /* OPEN: made; DISCARD: to be freed */
	struct epf_efa_ah *handle; /* CONNECT: made */
};

#endif
