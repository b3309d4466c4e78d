/* SPDX-License-Identifier: Apache-2.0 */
/* See library.h. Slow path, called once for each vendor. */
#include "fabric/gpu/library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

void epf_gpu_library_find(void *handle, const char *name, void *to)
{
	void *at = handle ? dlsym(handle, name) : NULL;

	memcpy(to, &at, sizeof(at));
}

void *epf_gpu_library(const char *const *names, bool is_shared,
		      const struct epf_gpu_symbol *symbols, size_t n, void *table, char *why,
		      size_t size)
{
	const char *const *name = names;
	void *handle = NULL;

	for (; *name && !handle; name++)
		handle = dlopen(*name, RTLD_NOW | (is_shared ? RTLD_GLOBAL : RTLD_LOCAL));
	if (!handle) {
		snprintf(why, size, "%s", dlerror());
		return NULL;
	}
	for (size_t i = 0; i < n; i++) {
		void *at = dlsym(handle, symbols[i].name);

		if (!at) {
			snprintf(why, size, "%s is too old: it has no %s", name[-1],
				 symbols[i].name);
			return NULL;
		}
		memcpy((char *)table + symbols[i].at, &at, sizeof(at));
	}
	return handle;
}
