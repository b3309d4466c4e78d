/* SPDX-License-Identifier: Apache-2.0 */
/* What is served: the releases of NVSHMEM, and which modules of a program (`shim-modules`). The shim checks the caller of each call, `ep-fabric shim` a file. */
#ifndef EPF_TOOLS_SHIM_MODULES_H
#define EPF_TOOLS_SHIM_MODULES_H

#include "fabric/base/conf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define EPF_NV_SERVED "3.4.5, 3.5.1, 3.5.19, 3.5.21, 3.6.5, 3.7.0 to 3.7.2 and 3.8.0"

/**
 * epf_shim_names() - whether a word of the list is in a file's name, or is the name of its folder: deep_ep_cpp.so, deep_ep/_C.so.
 * @path: as the loader has it; may be relative.
 *
 * Any thread.
 */
static inline bool epf_shim_names(const struct epf_conf_list *words, const char *path)
{
	const char *slash = strrchr(path, '/');
	const char *file = slash ? slash + 1 : path;
	const char *folder = slash;

	while (folder && folder > path && folder[-1] != '/')
		folder--;
	for (uint32_t i = 0; i < words->count; i++) {
		const char *word = words->item[i];
		size_t n = strlen(word);

		if (strstr(file, word))
			return true;
		if (slash && (size_t)(slash - folder) == n && memcmp(folder, word, n) == 0)
			return true;
	}
	return false;
}

#endif
