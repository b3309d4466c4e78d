/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The 128 bytes that NCCL carries from a listening object to whoever connects to it: where that process is reached, and the secret that shows who was given
 * the handle. Pure functions; called by net.c, gin.c and the fuzzer. A handle that was not made by epf_nccl_handle_write() is refused, never followed.
 */
#ifndef EPF_TOOLS_NCCL_HANDLE_H
#define EPF_TOOLS_NCCL_HANDLE_H

#include "bootstrap/auth.h"
#include "bootstrap/net.h"

#include <stdint.h>

enum { EPF_NCCL_ID_BYTES = 16, EPF_NCCL_SECRET_BYTES = 32 };

enum epf_nccl_handle_kind { EPF_NCCL_HANDLE_NET = 1, EPF_NCCL_HANDLE_GROUP = 2 };

struct epf_nccl_handle {
	enum epf_nccl_handle_kind kind;
	struct epf_net_addr address; /* of the process's door, or of the group's rendezvous */
	uint64_t listener;           /* which listening object of that process */
	uint8_t process[EPF_NCCL_ID_BYTES];
	uint8_t secret[EPF_NCCL_SECRET_BYTES];
};

/* Writes EPF_NCCL_HANDLE_BYTES. */
void epf_nccl_handle_write(const struct epf_nccl_handle *h, void *out);

/* Reads them. Returns 0, or -EINVAL with epf_last_error(): not ours, another release's, or damaged. */
int epf_nccl_handle_read(const void *in, enum epf_nccl_handle_kind kind,
			 struct epf_nccl_handle *out);

#endif
