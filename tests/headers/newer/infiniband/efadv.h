/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Declarations under the names that recent releases of rdma-core give them in <infiniband/efadv.h>, as far as the EFA NIC relies on
 * them; written from the manual pages efadv_query_device(3), efadv_create_qp_ex(3) and efadv_create_cq(3) of August 2026.
 * For compiling the NIC against both generations of the header, where the one that is installed is an older one (Debian
 * 12's has no RDMA write). Only for tests; nothing here is ever installed or called.
 */
#ifndef EPF_TESTS_NEWER_EFADV_H
#define EPF_TESTS_NEWER_EFADV_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>

enum { EFADV_QP_DRIVER_TYPE_SRD };

enum {
	EFADV_DEVICE_ATTR_CAPS_RDMA_READ = 0x1,
	EFADV_DEVICE_ATTR_CAPS_RNR_RETRY = 0x2,
	EFADV_DEVICE_ATTR_CAPS_CQ_WITH_SGID = 0x4,
	EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE = 0x8,
	EFADV_DEVICE_ATTR_CAPS_UNSOLICITED_WRITE_RECV = 0x10,
};

enum {
	EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV = 0x1,
	EFADV_QP_FLAGS_INLINE_WRITE = 0x2,
};

enum {
	EFADV_WC_EX_WITH_SGID = 0x1,
	EFADV_WC_EX_WITH_IS_UNSOLICITED = 0x2,
};

struct efadv_device_attr {
	uint64_t comp_mask;
	uint32_t max_sq_wr, max_rq_wr;
	uint16_t max_sq_sge, max_rq_sge, inline_buf_size, inline_buf_size_ex;
	uint32_t device_caps, max_rdma_size;
};

/* wr_flags came last: the first 16 bytes are what all releases have. */
struct efadv_qp_init_attr {
	uint64_t comp_mask;
	uint32_t driver_qp_type;
	uint16_t flags;
	uint8_t sl, reserved;
	uint64_t wr_flags;
};

/* And so on, for memory that the caller brings. */
struct efadv_cq_init_attr {
	uint64_t comp_mask, wc_flags, flags;
};

struct efadv_cq {
	uint64_t comp_mask;
	int (*wc_read_sgid)(struct efadv_cq *cq, union ibv_gid *gid);
	bool (*wc_is_unsolicited)(struct efadv_cq *cq);
};

int efadv_query_device(struct ibv_context *context, struct efadv_device_attr *attr, uint32_t size);
struct ibv_qp *efadv_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr,
				  struct efadv_qp_init_attr *efa, uint32_t size);
struct ibv_cq_ex *efadv_create_cq(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr,
				  struct efadv_cq_init_attr *efa, uint32_t size);
struct efadv_cq *efadv_cq_from_ibv_cq_ex(struct ibv_cq_ex *cq);

#endif
