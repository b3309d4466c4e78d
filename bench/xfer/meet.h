/* SPDX-License-Identifier: Apache-2.0 */
/* What the two sides of ep-bench xfer say to each other, over a socket; and how they meet if they are on different hosts. */
#ifndef EPF_BENCH_XFER_MEET_H
#define EPF_BENCH_XFER_MEET_H

#include "fabric/p2p/epf_p2p.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

/* What the target says first. */
struct xfer_hello {
	uint32_t metadata_bytes;
	uint8_t metadata[EPF_P2P_METADATA_BYTES], key[EPF_P2P_KEY_BYTES];
};

static inline bool xfer_get(int fd, void *data, size_t bytes)
{
	return recv(fd, data, bytes, MSG_WAITALL) == (ssize_t)bytes;
}

static inline bool xfer_put(int fd, const void *data, size_t bytes)
{
	return send(fd, data, bytes, MSG_NOSIGNAL) == (ssize_t)bytes;
}

/* Waits for the initiator at a port. Returns a socket, or -1 after a complaint. */
int xfer_listen(uint64_t port);
/* Connects to the target at "HOST:PORT"; waits 30 s for it to start. Returns a socket, or -1 after a complaint. */
int xfer_dial(const char *peer);

#endif
