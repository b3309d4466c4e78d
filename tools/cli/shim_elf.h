/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a compiled file asks of NVSHMEM's host library, for ep-fabric shim. Reads ELF files of any origin: they are untrusted, every offset is
 * checked. Called by tools/cli/shim.c only; it loads nothing and runs nothing.
 */
#ifndef EPF_TOOLS_CLI_SHIM_ELF_H
#define EPF_TOOLS_CLI_SHIM_ELF_H

#include <stdbool.h>
#include <stddef.h>

enum { SHIM_ELF_UNSERVED = 400 };

struct shim_elf {
	bool is_dynamic;    /* has an interpreter or dynamic symbols: LD_PRELOAD can reach it */
	unsigned wanted;    /* undefined nvshmem symbols: functions and variables */
	unsigned served;    /* of these, what the shim has */
	unsigned left_over; /* of these, what it has not... */
	char unserved[SHIM_ELF_UNSERVED]; /* ...names with commas, cut */
};

/* shim_elf_read() - 0 and *out filled, or -1 with one sentence in text. */
int shim_elf_read(const char *path, struct shim_elf *out, char *text, size_t size);

#endif
