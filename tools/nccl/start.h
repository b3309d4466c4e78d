/* SPDX-License-Identifier: Apache-2.0 */
/* The plug-in's start with the first communicator of a process, and its end with the last. Called by the tables (net_tables.c, gin_tables.c). */
#ifndef EPF_TOOLS_NCCL_START_H
#define EPF_TOOLS_NCCL_START_H

#include "tools/nccl/abi.h"

/*
 * The first user opens the door. log may be NULL: the one from before. Returns 0 or -errno with epf_last_error(). Each success is followed by one
 * epf_plug_close(), whose last one ends links and threads.
 */
int epf_plug_open(epf_nccl_log_fn log);
void epf_plug_close(void);

#endif
