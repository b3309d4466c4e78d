/* SPDX-License-Identifier: Apache-2.0 */
/* How the two sides of ep-bench xfer meet if they are on different hosts: a TCP connection for keys and commands. */
#ifndef EPF_BENCH_XFER_MEET_H
#define EPF_BENCH_XFER_MEET_H

#include <stdint.h>

/* Waits for the initiator at a port. Returns a socket, or -1 after a complaint. */
int xfer_listen(uint64_t port);
/* Connects to the target at "HOST:PORT"; waits 30 s for it to start. Returns a socket, or -1 after a complaint. */
int xfer_dial(const char *peer);

#endif
