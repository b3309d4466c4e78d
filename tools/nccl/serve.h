/* SPDX-License-Identifier: Apache-2.0 */
/* What a link's thread does while the link is up (link.h). Called by link.c alone. */
#ifndef EPF_TOOLS_NCCL_SERVE_H
#define EPF_TOOLS_NCCL_SERVE_H

struct epf_link;

/* Answers control messages and publishes regions until the peer or the plug-in ends; then epf_last_error() says which. */
void epf_link_serve(struct epf_link *link);

#endif
