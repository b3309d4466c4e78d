/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens libfabric at run time (lib.h). Called when an ofi NIC is opened. The library is never closed again: its providers hold state and threads that
 * outlive a NIC.
 */
#include "fabric/nic/ofi/lib.h"

#include "fabric/base/err.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
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

static void find_symbols(void)
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

/*
 * Libraries behind providers (PSM and PSM2 in Debian's build) set signal handlers when they are loaded, and theirs for SIGTERM ends the process: a daemon could not
 * stop in order. So what was set before is set again, also after the first query, which loads providers that are files of their own.
 */
static void load(void)
{
	struct sigaction before[NSIG];
	struct fi_info *list = NULL;
	int known[NSIG];

	for (int i = 1; i < NSIG; i++)
		known[i] = sigaction(i, NULL, &before[i]) == 0;
	find_symbols();
	if (!why[0] &&
	    table.getinfo(FI_VERSION(1, 9), NULL, NULL, FI_PROV_ATTR_ONLY, NULL, &list) == 0)
		table.freeinfo(list);
	for (int i = 1; i < NSIG; i++) {
		struct sigaction now;

		if (known[i] && sigaction(i, NULL, &now) == 0 &&
		    now.sa_sigaction != before[i].sa_sigaction)
			sigaction(i, &before[i], NULL);
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
