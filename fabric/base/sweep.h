/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Removing what a dead daemon left in the runtime directory: its socket and its lock file. Called by clients that find nobody at
 * the socket, and usable by tools. It must never remove anything of a daemon that lives: the lock says whether one does.
 */
#ifndef EPF_FABRIC_BASE_SWEEP_H
#define EPF_FABRIC_BASE_SWEEP_H

/**
 * epf_svc_sweep() - remove INSTANCE.sock and INSTANCE.lock of a daemon that is dead.
 * @dir: runtime directory. @instance: its name, without a slash.
 *
 * Takes the lock (flock(2), for 50 ms at most while it is held: a daemon may be dying) and removes both while it is held, the lock file last; the daemon's start does the same,
 * and both look again whether the file they have locked is still the one in the directory.
 *
 * Return: 1 something was removed, 0 nothing is there, somebody holds the lock, or this user may not write to the directory;
 * -errno with EPF_R_SYSTEM or EPF_R_SVC_ABSENT (a name that cannot be one).
 */
int epf_svc_sweep(const char *dir, const char *instance);

#endif
