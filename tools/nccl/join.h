/* SPDX-License-Identifier: Apache-2.0 */
/* Making links (link.h), from either end. */
#ifndef EPF_TOOLS_NCCL_JOIN_H
#define EPF_TOOLS_NCCL_JOIN_H

#include "tools/nccl/link.h"

/*
 * Finds or makes the link to the process of a handle. Returns 0 with *out and a reference; -EAGAIN while it is made: call again; else -errno with
 * epf_last_error(). Takes the plug's lock; waits for nobody.
 */
int epf_link_get(const struct epf_nccl_handle *h, struct epf_link **out);
/* A stranger on fd, which belongs to the link when this returns 0. */
int epf_link_accept(int fd);

#endif
