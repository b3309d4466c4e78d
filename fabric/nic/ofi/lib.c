/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens libfabric at run time (lib.h). Called when an ofi NIC is opened. The library is never closed again: its providers hold state and threads that
 * outlive a NIC.
 */
#include "fabric/nic/ofi/lib.h"

#include "fabric/base/err.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

static const struct {
	const char *symbol;
	size_t at;
} symbols[] = {
	{ "fi_getinfo", offsetof(struct epf_ofi_lib, getinfo) },
	{ "fi_freeinfo", offsetof(struct epf_ofi_lib, freeinfo) },
	{ "fi_dupinfo", offsetof(struct epf_ofi_lib, dupinfo) },
	{ "fi_fabric", offsetof(struct epf_ofi_lib, fabric) },
	{ "fi_strerror", offsetof(struct epf_ofi_lib, strerror) },
	{ "fi_version", offsetof(struct epf_ofi_lib, version) },
};

_Static_assert(sizeof(symbols) / sizeof(symbols[0]) == sizeof(struct epf_ofi_lib) / sizeof(void *),
	       "every entry of the table has its symbol");

static struct epf_ofi_lib table;
static char why[256]; /* empty: the table is filled */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void load(void)
{
	void *handle = dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL);

	if (!handle) {
		snprintf(why, sizeof(why), "%s", dlerror());
		return;
	}
	for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
		void *at = dlsym(handle, symbols[i].symbol);

		if (!at) {
			snprintf(why, sizeof(why), "libfabric.so.1 has no %s", symbols[i].symbol);
			return;
		}
		memcpy((char *)&table + symbols[i].at, &at, sizeof(at));
	}
}

int epf_ofi_lib(const struct epf_ofi_lib **out)
{
	pthread_once(&once, load);
	if (why[0])
		return epf_fail(EPF_R_OFI_LIBRARY, "ofi: %s", why);
	*out = &table;
	return 0;
}
