/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libefa, opened at run time, and what the EFA NIC needs of libibverbs beyond nic/rdma/lib.h. Nothing of ours links either, so
 * programs run on machines without them, and tests put a separate provider in their place. It must never be called from a
 * _hot file.
 */
#ifndef EPF_FABRIC_NIC_EFA_LIB_H
#define EPF_FABRIC_NIC_EFA_LIB_H

#include "fabric/nic/efa/dv.h"
#include "fabric/nic/rdma/lib.h"

/* Each entry as its man page says, under the name without ibv_ or efadv_. No entry is NULL. */
struct epf_efa_lib {
	const struct epf_verbs_lib *verbs;
	int (*query_gid)(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid);
	struct ibv_ah *(*create_ah)(struct ibv_pd *pd, struct ibv_ah_attr *attr);
	int (*destroy_ah)(struct ibv_ah *ah);
	int (*efa_query_device)(struct ibv_context *context, struct epf_efadv_device_attr *attr,
				uint32_t size);
	struct ibv_qp *(*efa_create_qp_ex)(struct ibv_context *context,
					   struct ibv_qp_init_attr_ex *attr,
					   struct epf_efadv_qp_attr *efa_attr, uint32_t size);
	struct ibv_cq_ex *(*efa_create_cq)(struct ibv_context *context,
					   struct ibv_cq_init_attr_ex *attr,
					   struct epf_efadv_cq_attr *efa_attr, uint32_t size);
	struct epf_efadv_cq *(*efa_cq_of)(struct ibv_cq_ex *cq);
};

/**
 * epf_efa_lib() - the table, filled at the first call; it stays for the life of the process.
 *
 * Return: 0 and *out; -ENOENT with epf_last_error() set when a library, or a function of it, is not there.
 */
int epf_efa_lib(const struct epf_efa_lib **out);

#endif
