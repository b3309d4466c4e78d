/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening a GPU vendor's library at run time and finding its functions: what cuda_lib.c and hip_lib.c have in common. The
 * library is never closed again: it keeps threads.
 */
#ifndef EPF_FABRIC_GPU_LIBRARY_H
#define EPF_FABRIC_GPU_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>

/* A function: its name in the library and where its pointer belongs in the table. */
struct epf_gpu_symbol {
	const char *name;
	size_t at;
};

/*
 * Opens the first of the libraries that is there (names end with NULL) and fills `table` with all of the symbols. Returns the library's
 * handle, or NULL and a sentence in `why` (size bytes). is_shared: other libraries of the process may use its symbols.
 */
void *epf_gpu_library(const char *const *names, bool is_shared,
		      const struct epf_gpu_symbol *symbols, size_t n, void *table, char *why,
		      size_t size);

/* A function that may be missing: stores its pointer, or NULL, at `to`. handle NULL: missing. */
void epf_gpu_library_find(void *handle, const char *name, void *to);

#endif
