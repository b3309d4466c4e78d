/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program and a separate daemon: for `ep-fabric shim --daemon`. Called by the launcher's only thread, once.
 */
#ifndef EPF_TOOLS_CLI_SHIM_DAEMON_H
#define EPF_TOOLS_CLI_SHIM_DAEMON_H

/*
 * Starts `ep-fabric run` with the settings of the environment, waits until it serves, runs the program with EPF_SERVICE and with preload in LD_PRELOAD, and
 * ends the daemon after it. Returns the exit status of the program as a shell gives it, or EXIT_FAILURE; what: who speaks in messages.
 */
int shim_daemon_run(const char *what, const char *preload, char **program);

#endif
