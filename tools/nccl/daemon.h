/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plug-in's own daemon (setting nccl-daemon): `ep-fabric run` as a child of NCCL's process, in which the engines of groups run. Its driver calls wait for nothing that
 * this process does: docs/design.md, section 19. Used by group.c, from any thread.
 */
#ifndef EPF_TOOLS_NCCL_DAEMON_H
#define EPF_TOOLS_NCCL_DAEMON_H

#include <stdbool.h>

enum { EPF_NCCL_DAEMON_NAME = 64 };

struct epf_nccl_daemon;

/*
 * One more user of the daemon that uses this NIC; the first one starts it and waits until it serves. Returns 0 with *out and its instance name in `name`, or
 * -errno: EPF_R_NCCL_DAEMON.
 */
int epf_nccl_daemon_get(const char *nic, char name[EPF_NCCL_DAEMON_NAME],
			struct epf_nccl_daemon **out);
/* One less; the last one ends it. Accepts NULL. */
void epf_nccl_daemon_put(struct epf_nccl_daemon *daemon);

/* Returns true if it has ended though it has users; it stays so. Hot path. */
bool epf_nccl_daemon_is_lost(const struct epf_nccl_daemon *daemon);
/* Fails with EPF_R_NCCL_DAEMON and how it ended. */
int epf_nccl_daemon_lost(const struct epf_nccl_daemon *daemon);

#endif
