/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls of libfabric that several files make: registrations, with the keys for them, and what a call that fails is reported as. Slow path.
 */
#include "fabric/nic/ofi/ofi.h"

#include "fabric/base/err.h"

#include <sys/random.h>

enum { KEY_TRIES = 16 };

int epf_ofi_call_failed(const struct epf_ofi *v, const char *call, int rc)
{
	return epf_fail(rc == -FI_ENOMEM ? EPF_R_NO_MEMORY : EPF_R_OFI_CALL, "ofi: %s: %s: %s",
			v->name, call, v->lib->strerror(-rc));
}

uint64_t epf_ofi_random(struct epf_ofi *v)
{
	uint64_t value;

	if (getrandom(&value, sizeof(value), 0) != sizeof(value)) {
		/* An old kernel: predictable, but different for each call. */
		v->random = v->random * 6364136223846793005u + 1442695040888963407u;
		value = v->random ^ v->random >> 29;
	}
	return value;
}

/* Of an endpoint's own registrations: bound to it, then enabled. */
static int bind_mr(struct epf_ofi *v, struct fid_mr *mr)
{
	int rc = fi_mr_bind(mr, &v->ep->fid, 0);

	return rc ? rc : fi_mr_enable(mr);
}

int epf_ofi_mr_make(struct epf_ofi *v, void *addr, uint64_t len, uint64_t access,
		    struct fid_mr **out)
{
	int rc = -FI_ENOKEY;

	for (int i = 0; i < KEY_TRIES && rc == -FI_ENOKEY; i++) {
		uint32_t key = (uint32_t)epf_ofi_random(v);

		rc = fi_mr_reg(v->domain, addr, len, access, 0, key, 0, out, NULL);
	}
	if (rc || !(v->info->domain_attr->mr_mode & FI_MR_ENDPOINT))
		return rc;
	rc = bind_mr(v, *out);
	if (rc)
		fi_close(&(*out)->fid);
	return rc;
}
