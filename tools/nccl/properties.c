/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See properties.h. One device, whatever the fabric uses below: it chooses, joins and replaces NICs itself. NCCL tunes by the speed, so it is of the right size
 * rather than exact.
 */
#include "tools/nccl/properties.h"

#include "fabric/base/err.h"
#include "tools/nccl/layout.h"
#include "tools/nccl/plug.h"

enum {
	SPEED_EMU_MBPS = 200000,
	SPEED_RDMA_MBPS = 200000,
	SPEED_TCP_MBPS = 25000,
	MAX_BYTES = 1 << 30
};

int epf_nccl_check_device(int device)
{
	return device == 0 ? 0 : epf_fail(EPF_R_NCCL_CALL, "nccl: device %d of 1", device);
}

/* NCCL may hand over GPU memory where one kind of NIC serves every peer and can reach it; else it stages through pinned host memory. */
static int reaches_gpus(enum epf_conf_nic nic)
{
	return nic == EPF_CONF_NIC_EMU || nic == EPF_CONF_NIC_VERBS || nic == EPF_CONF_NIC_EFA;
}

int epf_nccl_net_properties(int device, struct epf_nccl_properties_v12 *out)
{
	static char name[] = "epf";
	enum epf_conf_nic nic = epf_plug.conf.nic;
	int rc = epf_nccl_check_device(device);

	if (rc)
		return rc;
	*out = (struct epf_nccl_properties_v12){
		.name = name,
		.guid = 0x657066,
		.ptr_support = EPF_NCCL_HOST | (reaches_gpus(nic) ? EPF_NCCL_CUDA : 0),
		.speed_mbps = nic == EPF_CONF_NIC_TCP   ? SPEED_TCP_MBPS
			      : nic == EPF_CONF_NIC_EMU ? SPEED_EMU_MBPS
							: SPEED_RDMA_MBPS,
		.port = 1,
		.max_comms = EPF_LINK_SLOTS,
		.max_recvs = EPF_NET_PARTS,
		.device_type = EPF_NCCL_DEVICE_HOST,
		.vdevice = { .n = 1 },
		.max_p2p_bytes = MAX_BYTES,
		.max_coll_bytes = MAX_BYTES,
		.max_multi_request = 1,
		.rail = -1,
		.plane = -1,
	};
	return 0;
}

#define COPY_HEAD(out, p)                                                                         \
 (out)->name = (p)->name, (out)->pci_path = (p)->pci_path, (out)->guid = (p)->guid,               \
 (out)->ptr_support = (p)->ptr_support, (out)->reg_is_global = (p)->reg_is_global,                \
 (out)->force_flush = (p)->force_flush, (out)->speed_mbps = (p)->speed_mbps,                      \
 (out)->port = (p)->port, (out)->latency_us = (p)->latency_us, (out)->max_comms = (p)->max_comms, \
 (out)->max_recvs = (p)->max_recvs, (out)->device_type = (p)->device_type,                        \
 (out)->device_version = (p)->device_version, (out)->max_p2p_bytes = (p)->max_p2p_bytes,          \
 (out)->max_coll_bytes = (p)->max_coll_bytes

void epf_nccl_properties_as_v10(const struct epf_nccl_properties_v12 *p,
				struct epf_nccl_properties_v10 *out)
{
	*out = (struct epf_nccl_properties_v10){ .vdevice = { .n = 1 } };
	COPY_HEAD(out, p);
}

void epf_nccl_properties_as_v11(const struct epf_nccl_properties_v12 *p,
				struct epf_nccl_properties_v11 *out)
{
	*out = (struct epf_nccl_properties_v11){ .vdevice = { .n = 1 },
						 .max_multi_request = p->max_multi_request };
	COPY_HEAD(out, p);
}
