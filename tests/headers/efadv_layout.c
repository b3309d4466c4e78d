/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The declarations of fabric/nic/efa/dv.h against a real <infiniband/efadv.h>: each structure, member and value that the header has, at
 * compile time. Compiled twice: with the header that is installed, and with the newer one of this folder. What an older
 * header lacks is left out, as the probes of meson.build found it (EFADV_HAS_*), and efadv_report.c says so.
 */
#include "fabric/nic/efa/lib.h"

#include <infiniband/efadv.h>

#define SAME_VALUE(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #theirs)
#define SAME_MEMBER(ours, theirs, member)                                           \
 _Static_assert(offsetof(struct ours, member) == offsetof(struct theirs, member) && \
			sizeof(((struct ours *)0)->member) ==                       \
				sizeof(((struct theirs *)0)->member),               \
		#theirs "." #member)

SAME_VALUE(EPF_EFADV_CAP_RDMA_READ, EFADV_DEVICE_ATTR_CAPS_RDMA_READ);
SAME_VALUE(EPF_EFADV_CAP_RNR_RETRY, EFADV_DEVICE_ATTR_CAPS_RNR_RETRY);
SAME_VALUE(EPF_EFADV_CAP_CQ_WITH_SGID, EFADV_DEVICE_ATTR_CAPS_CQ_WITH_SGID);
SAME_VALUE(EPF_EFADV_QP_TYPE_SRD, EFADV_QP_DRIVER_TYPE_SRD);

/* Structures may be longer in later releases: the library gets the size. */
_Static_assert(sizeof(struct epf_efadv_device_attr) <= sizeof(struct efadv_device_attr), "size");
SAME_MEMBER(epf_efadv_device_attr, efadv_device_attr, comp_mask);
SAME_MEMBER(epf_efadv_device_attr, efadv_device_attr, max_sq_wr);
SAME_MEMBER(epf_efadv_device_attr, efadv_device_attr, max_rq_wr);
SAME_MEMBER(epf_efadv_device_attr, efadv_device_attr, max_sq_sge);
SAME_MEMBER(epf_efadv_device_attr, efadv_device_attr, max_rq_sge);
SAME_MEMBER(epf_efadv_device_attr, efadv_device_attr, inline_buf_size);
SAME_MEMBER(epf_efadv_device_attr, efadv_device_attr, device_caps);
SAME_MEMBER(epf_efadv_device_attr, efadv_device_attr, max_rdma_size);

_Static_assert(sizeof(struct epf_efadv_qp_attr) <= sizeof(struct efadv_qp_init_attr), "size");
SAME_MEMBER(epf_efadv_qp_attr, efadv_qp_init_attr, comp_mask);
SAME_MEMBER(epf_efadv_qp_attr, efadv_qp_init_attr, driver_qp_type);
_Static_assert(sizeof(struct epf_efadv_cq_attr) <= sizeof(struct efadv_cq_init_attr), "size");
SAME_MEMBER(epf_efadv_cq_attr, efadv_cq_init_attr, comp_mask);
SAME_MEMBER(epf_efadv_cq_attr, efadv_cq_init_attr, wc_flags);
SAME_MEMBER(epf_efadv_cq, efadv_cq, comp_mask);
SAME_MEMBER(epf_efadv_cq, efadv_cq, wc_read_sgid);

#ifdef EFADV_HAS_RDMA_WRITE
SAME_VALUE(EPF_EFADV_CAP_RDMA_WRITE, EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE);
#endif
#ifdef EFADV_HAS_UNSOLICITED
SAME_VALUE(EPF_EFADV_CAP_UNSOLICITED_WRITE_RECV, EFADV_DEVICE_ATTR_CAPS_UNSOLICITED_WRITE_RECV);
SAME_VALUE(EPF_EFADV_QP_UNSOLICITED_WRITE_RECV, EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV);
SAME_VALUE(EPF_EFADV_WC_WITH_IS_UNSOLICITED, EFADV_WC_EX_WITH_IS_UNSOLICITED);
SAME_MEMBER(epf_efadv_cq, efadv_cq, wc_is_unsolicited);
SAME_MEMBER(epf_efadv_qp_attr, efadv_qp_init_attr, flags);
#endif
#ifdef EFADV_HAS_SL
SAME_MEMBER(epf_efadv_qp_attr, efadv_qp_init_attr, sl);
#endif
#ifdef EFADV_HAS_INLINE_WRITE
SAME_VALUE(EPF_EFADV_QP_INLINE_WRITE, EFADV_QP_FLAGS_INLINE_WRITE);
SAME_MEMBER(epf_efadv_device_attr, efadv_device_attr, inline_buf_size_ex);
#endif

/* The functions: what epf_efa_lib calls takes as many arguments of the same kinds. Never called, only compiled. */
int epf_efadv_calls(struct ibv_context *context, struct efadv_device_attr *device,
		    struct ibv_qp_init_attr_ex *qp, struct efadv_qp_init_attr *efa_qp,
		    struct ibv_cq_init_attr_ex *cq, struct efadv_cq_init_attr *efa_cq);

int epf_efadv_calls(struct ibv_context *context, struct efadv_device_attr *device,
		    struct ibv_qp_init_attr_ex *qp, struct efadv_qp_init_attr *efa_qp,
		    struct ibv_cq_init_attr_ex *cq, struct efadv_cq_init_attr *efa_cq)
{
	int (*query)(struct ibv_context *, struct efadv_device_attr *, uint32_t) =
		efadv_query_device;
	struct ibv_qp *(*create_qp)(struct ibv_context *, struct ibv_qp_init_attr_ex *,
				    struct efadv_qp_init_attr *, uint32_t) = efadv_create_qp_ex;
	struct ibv_cq_ex *(*create_cq)(struct ibv_context *, struct ibv_cq_init_attr_ex *,
				       struct efadv_cq_init_attr *, uint32_t) = efadv_create_cq;
	struct efadv_cq *(*cq_of)(struct ibv_cq_ex *) = efadv_cq_from_ibv_cq_ex;

	return query(context, device, sizeof(*device)) ||
	       !create_qp(context, qp, efa_qp, sizeof(*efa_qp)) ||
	       !cq_of(create_cq(context, cq, efa_cq, sizeof(*efa_cq)));
}
