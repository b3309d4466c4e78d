/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libfabric, opened at run time, so that programs run where it is not installed. Everything else of its API is inline functions over tables that these
 * functions return. Used by nic/ofi only; tests put functions of their own here.
 */
#ifndef EPF_FABRIC_NIC_OFI_LIB_H
#define EPF_FABRIC_NIC_OFI_LIB_H

#include <rdma/fabric.h>
#include <stdint.h>

struct epf_ofi_lib {
	int (*getinfo)(uint32_t version, const char *node, const char *service, uint64_t flags,
		       const struct fi_info *hints, struct fi_info **info);
	void (*freeinfo)(struct fi_info *info);
	struct fi_info *(*dupinfo)(const struct fi_info *info);
	int (*fabric)(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context);
	const char *(*strerror)(int errnum);
	uint32_t (*version)(void);
};

/**
 * epf_ofi_lib() - the table, filled by the first call; it stays valid for the life of the process.
 *
 * Return: 0 and *out; -ENOENT with epf_last_error() set if the library, or a function of it, is missing. Any thread.
 */
int epf_ofi_lib(const struct epf_ofi_lib **out);

#endif
