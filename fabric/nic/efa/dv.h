/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the EFA NIC uses of libefa, declared here: the library's binary interface as efadv(7) and its pages describe it, and the
 * status codes of the device interface. Headers of many distributions lack RDMA write and unsolicited write receives
 * (Debian 12's <infiniband/efadv.h> does), while the library that is there at run time may well have them; so the NIC is
 * compiled the same everywhere and asks the library what it can do. tests/headers/efadv_layout.c compares each member and
 * value with the header that is installed, and with the newer declarations. It must not include <infiniband/efadv.h>.
 *
 * The library takes the length of each structure and refuses members that are set and that it does not know; all that is
 * reserved is 0.
 */
#ifndef EPF_FABRIC_NIC_EFA_DV_H
#define EPF_FABRIC_NIC_EFA_DV_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* efadv_query_device(3): device_caps */
enum {
	EPF_EFADV_CAP_RDMA_READ = 1 << 0,
	EPF_EFADV_CAP_RNR_RETRY = 1 << 1,
	EPF_EFADV_CAP_CQ_WITH_SGID = 1 << 2,
	EPF_EFADV_CAP_RDMA_WRITE = 1 << 3,             /* not in Debian 12's header */
	EPF_EFADV_CAP_UNSOLICITED_WRITE_RECV = 1 << 4, /* not in Debian 12's header */
};

struct epf_efadv_device_attr {
	uint64_t comp_mask;
	uint32_t max_sq_wr;
	uint32_t max_rq_wr;
	uint16_t max_sq_sge;
	uint16_t max_rq_sge;
	uint16_t inline_buf_size;
	uint16_t inline_buf_size_ex; /* 0 where the library does not know it (reserved before) */
	uint32_t device_caps;
	uint32_t max_rdma_size;
};

/* efadv_create_qp_ex(3) */
enum {
	EPF_EFADV_QP_TYPE_SRD = 0,
	EPF_EFADV_QP_UNSOLICITED_WRITE_RECV = 1 << 0, /* not in Debian 12's header */
	EPF_EFADV_QP_INLINE_WRITE = 1 << 1,           /* not in Debian 12's header */
};

/* The 16 bytes that every release of the library knows; flags and sl were reserved at first. */
struct epf_efadv_qp_attr {
	uint64_t comp_mask;
	uint32_t driver_qp_type;
	uint16_t flags;
	uint8_t sl;
	uint8_t reserved;
};

/* efadv_create_cq(3) */
enum { EPF_EFADV_WC_WITH_IS_UNSOLICITED = 1 << 1 }; /* not in Debian 12's header */

/* The 16 bytes that every release of the library knows. */
struct epf_efadv_cq_attr {
	uint64_t comp_mask;
	uint64_t wc_flags;
};

/* What efadv_cq_from_ibv_cq_ex(3) returns. The second function is there where it was asked for by wc_flags only. */
struct epf_efadv_cq {
	uint64_t comp_mask;
	int (*wc_read_sgid)(struct epf_efadv_cq *cq, union ibv_gid *sgid);
	bool (*wc_is_unsolicited)(struct epf_efadv_cq *cq);
};

_Static_assert(sizeof(struct epf_efadv_device_attr) == 32, "as the library has it");
_Static_assert(sizeof(struct epf_efadv_qp_attr) == 16, "as the library had it first");
_Static_assert(sizeof(struct epf_efadv_cq_attr) == 16, "as the library had it first");
_Static_assert(offsetof(struct epf_efadv_cq, wc_is_unsolicited) == 16, "a table of functions");

/*
 * A completion's status as the device gives it, which ibv_wc_read_vendor_err(3) returns: finer than enum ibv_wc_status. From the
 * device interface in rdma-core (providers/efa/efa_io_defs.h).
 */
enum epf_efa_status {
	EPF_EFA_OK = 0,
	EPF_EFA_FLUSHED = 1,
	EPF_EFA_LOCAL_QP_ERROR = 2,
	EPF_EFA_LOCAL_UNSUPPORTED_OP = 3,
	EPF_EFA_LOCAL_INVALID_AH = 4,
	EPF_EFA_LOCAL_INVALID_LKEY = 5,
	EPF_EFA_LOCAL_BAD_LENGTH = 6,
	EPF_EFA_REMOTE_BAD_ADDRESS = 7,
	EPF_EFA_REMOTE_ABORT = 8,
	EPF_EFA_REMOTE_BAD_DEST_QPN = 9, /* there is no such queue pair, or it is in error */
	EPF_EFA_REMOTE_RNR = 10,
	EPF_EFA_REMOTE_BAD_LENGTH = 11,
	EPF_EFA_REMOTE_BAD_STATUS = 12,
	EPF_EFA_UNRESPONSIVE_REMOTE = 13, /* answered before */
	EPF_EFA_REMOTE_UNKNOWN_PEER = 14, /* the target has no address handle for us */
	EPF_EFA_UNREACHABLE_REMOTE = 15,  /* has never answered */
	EPF_EFA_REMOTE_FEATURE_MISMATCH = 18,
};

#endif
