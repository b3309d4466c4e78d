/* SPDX-License-Identifier: Apache-2.0 */
/* What the plug-in says of its one device to NCCL, for all versions of the tables. Called by net_tables.c and gin_tables.c. */
#ifndef EPF_TOOLS_NCCL_PROPERTIES_H
#define EPF_TOOLS_NCCL_PROPERTIES_H

#include "tools/nccl/abi.h"

/* Returns 0, or -EINVAL with epf_last_error() for a number that is no device. */
int epf_nccl_check_device(int device);

/* Texts are static. Returns as above. */
int epf_nccl_net_properties(int device, struct epf_nccl_properties_v12 *out);

void epf_nccl_properties_as_v10(const struct epf_nccl_properties_v12 *p,
				struct epf_nccl_properties_v10 *out);
void epf_nccl_properties_as_v11(const struct epf_nccl_properties_v12 *p,
				struct epf_nccl_properties_v11 *out);

#endif
