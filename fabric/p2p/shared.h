/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What two endpoints of one machine share, as memfds that travel over their Unix socket: the table of an endpoint's exports (peers map
 * it read-only), its bell (peers write it), and one segment for each connection. Nothing read from a bell or a segment is trusted.
 *
 * Withdrawal (Dekker): who copies raises `inuse` of the export, then looks at its state; who withdraws changes the state, then waits
 * until `inuse` is 0. Both with sequentially consistent operations, so at least one of the two sees the other. Labels W1, W2.
 * Wakeup (Dekker): who notifies sets a bit of the bell, then looks at `armed`; who goes to sleep sets `armed`, then looks at the bits. N1, N2.
 */
#ifndef EPF_FABRIC_P2P_SHARED_H
#define EPF_FABRIC_P2P_SHARED_H

#include "fabric/p2p/epf_p2p.h"
#include "queues/epf_base.h"

#include <stdint.h>

enum {
	P2P_EXPORTS = EPF_P2P_EXPORTS,
	P2P_LOCAL_CONNS = 4096, /* most connections of an endpoint to others of its machine */
	P2P_NOTE_RING = 32768,  /* bytes of notifications on their way, each direction */
};

/* State of an export, in the low byte of its word; the rest is its generation. */
enum export_state { EXPORT_FREE = 0, EXPORT_LIVE = 1, EXPORT_WITHDRAWN = 2, EXPORT_EXPIRED = 3 };

struct export_table {
	uint64_t word[P2P_EXPORTS]; /* generation << 8 | enum export_state */
};

struct bell {
	uint32_t armed; /* not 0: the endpoint's thread sleeps, wake it over the socket */
	uint8_t pad[60];
	uint64_t pending[P2P_LOCAL_CONNS / 64]; /* connections that have notifications */
};

/* Notifications of one direction: byte counters that only grow; a record is its length (4 bytes), then its bytes, to a multiple of 8. */
struct note_ring {
	uint64_t head; /* written by the sender */
	uint8_t pad0[56];
	uint64_t tail; /* written by the receiver */
	uint8_t pad1[56];
	uint8_t data[P2P_NOTE_RING];
};

/* What the end of that number writes (but the other end the tail of its notes). */
struct half {
	uint32_t closed; /* this end has disconnected: the other copies no more [W1] */
	uint8_t pad[60];
	struct note_ring notes;
	uint32_t inuse[P2P_EXPORTS]; /* copies under way to or from that export of the other end */
};

struct segment {
	struct half half[2]; /* 0: of who connected, 1: of who accepted */
};

EPF_STATIC_ASSERT(sizeof(struct note_ring) == P2P_NOTE_RING + 128, "notes have no padding");

#endif
