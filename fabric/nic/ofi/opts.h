/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options of the ofi NIC, for the NIC itself and for tests that open one without a configuration.
 */
#ifndef EPF_FABRIC_NIC_OFI_OPTS_H
#define EPF_FABRIC_NIC_OFI_OPTS_H

#include "fabric/base/conf.h"
#include "fabric/nic/nic.h"

struct epf_ofi_lib;

struct epf_ofi_opts {
	const char *provider;         /* as libfabric names it; NULL or "": cxi, then efa */
	struct epf_conf_list devices; /* names of domains, as nic-device; none: one domain */
	uint32_t count;               /* domains at most, as nic-count; 0: all that devices name */
	uint32_t completions;         /* entries of the completion queue */
	uint64_t timeout_ns;          /* time without progress after which a lane fails */
	int remote_data;              /* 0: notifications always travel as messages */
	uint64_t fail_after;          /* for tests: even lanes fail after so many work requests */
};

void epf_ofi_opts_defaults(struct epf_ofi_opts *opts);
void epf_ofi_opts_from_conf(struct epf_ofi_opts *opts, const struct epf_conf *conf);

/**
 * epf_ofi_open() - opens the domains that opts choose as one NIC, with a link for each.
 * @lib: libfabric, or a test's stand-in; outlives the NIC.
 * @opts: copied, except devices, which is only read during the call.
 * @now: the core's clock in ns.
 *
 * Slow. Return: 0 and *out, or -errno with epf_last_error() set.
 */
int epf_ofi_open(const struct epf_ofi_lib *lib, const struct epf_ofi_opts *opts,
		 uint64_t (*now)(void *), void *now_arg, struct epf_nic **out);

#endif
