/* SPDX-License-Identifier: Apache-2.0 */
/* The door of the process: the socket that its handles name. Called by start.c. */
#ifndef EPF_TOOLS_NCCL_DOOR_H
#define EPF_TOOLS_NCCL_DOOR_H

/* Listens; sets epf_plug.address and door_fd. Returns 0 or -errno with epf_last_error(). */
int epf_door_open(void);

/* The thread that accepts connections and hands each to a new link, until epf_plug.stop_fd is written. */
void *epf_door_run(void *arg);

#endif
