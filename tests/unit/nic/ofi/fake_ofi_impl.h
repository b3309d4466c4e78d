/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the fake libfabric share: fake_ofi.c has its objects, fake_ofi_traffic.c its endpoints and completion queues. Included by them only. */
#ifndef EPF_TESTS_FAKE_OFI_IMPL_H
#define EPF_TESTS_FAKE_OFI_IMPL_H

#include "tests/unit/nic/ofi/fake_ofi.h"

#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>

struct fake_mr {
	struct fid_mr mr;
	void *domain;
	uint8_t *base;
	size_t len;
	uint64_t access;
	bool is_enabled;
};

/* Whether the test wants this call to fail: 0 or -FI_EIO. */
int fake_ofi_fails(const char *call);
/* Closes what is no more than memory. */
int fake_ofi_free(struct fid *fid);
/* The registration of a domain with a key, or NULL. */
struct fake_mr *fake_ofi_find(const void *domain, uint64_t key);
/* Local memory has to be registered where the provider says so. */
void fake_ofi_check_local(const void *desc, const struct iovec *iov, uint64_t access);

/* Of domains. */
int fake_ofi_cq_open(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **out,
		     void *context);
int fake_ofi_endpoint(struct fid_domain *domain, struct fi_info *info, struct fid_ep **out,
		      void *context);

#endif
