/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening libefa at run time (lib.h). Called when an EFA NIC is opened. The libraries are never closed again: their providers
 * hold state that outlives a NIC.
 */
#include "fabric/nic/efa/lib.h"

#include "fabric/base/err.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static const struct {
	const char *file, *symbol;
	size_t at;
} symbols[] = {

#define S(lib, sym, field)                      \
 {                                              \
  lib, sym, offsetof(struct epf_efa_lib, field) \
 }
	S("libibverbs.so.1", "ibv_query_gid", query_gid),
	S("libibverbs.so.1", "ibv_create_ah", create_ah),
	S("libibverbs.so.1", "ibv_destroy_ah", destroy_ah),
	S("libefa.so.1", "efadv_query_device", efa_query_device),
	S("libefa.so.1", "efadv_create_qp_ex", efa_create_qp_ex),
	S("libefa.so.1", "efadv_create_cq", efa_create_cq),
	S("libefa.so.1", "efadv_cq_from_ibv_cq_ex", efa_cq_of),
#undef S
};

_Static_assert(sizeof(symbols) / sizeof(symbols[0]) ==
		       sizeof(struct epf_efa_lib) / sizeof(void *) - 1,
	       "every entry of the table but the first has its symbol");

static struct epf_efa_lib table;
static char why[256]; /* empty: the table is filled */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void load(void)
{
	/* It has been asked for before this, with success. */
	if (epf_verbs_lib(&table.verbs))
		snprintf(why, sizeof(why), "no libibverbs");
	for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
		void *handle = dlopen(symbols[i].file, RTLD_NOW | RTLD_GLOBAL), *at;

		if (!handle) {
			snprintf(why, sizeof(why), "%s", dlerror());
			return;
		}
		at = dlsym(handle, symbols[i].symbol);
		if (!at) {
			snprintf(why, sizeof(why), "%s is too old: it has no %s", symbols[i].file,
				 symbols[i].symbol);
			return;
		}
		memcpy((char *)&table + symbols[i].at, &at, sizeof(at));
	}
}

int epf_efa_lib(const struct epf_efa_lib **out)
{
	const struct epf_verbs_lib *verbs;
	int rc = epf_verbs_lib(&verbs);

	if (rc)
		return rc;
	pthread_once(&once, load);
	if (why[0])
		return epf_fail(EPF_R_EFA_LIBRARY, "efa: %s", why);
	*out = &table;
	return 0;
}
