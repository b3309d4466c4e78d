/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The flight recorder: the last events of one engine core, always on, in its statistics file (class flight), so that they can be read
 * while it works and after it was killed. One event a batch or a change of state, never one a command or a byte. Written by the
 * core's thread by plain stores; `ep-fabric trace` prints it. The inline below must never call, allocate or wait.
 *
 * Event number i lies at place i modulo EPF_FLIGHT_EVENTS; `written` is stored (release) after it [S2]. A reader of a living writer
 * leaves out the EPF_FLIGHT_MARGIN oldest, which may be written over while it reads, and any whose number does not fit its place.
 */
#ifndef EPF_QUEUES_FLIGHT_H
#define EPF_QUEUES_FLIGHT_H

#include "queues/epf_base.h"

#include <stddef.h>
#include <stdint.h>

#define EPF_FLIGHT_EVENTS      1024u /* kept; a power of two */
#define EPF_FLIGHT_EVENT_WORDS 4u
#define EPF_FLIGHT_WORDS       (EPF_FLIGHT_EVENTS * EPF_FLIGHT_EVENT_WORDS)
#define EPF_FLIGHT_MARGIN      64u

/* What happened. Numbers are ABI: a reader shows one that it does not know by its number. */
enum epf_flight_kind {
	EPF_FLIGHT_DEQUEUE = 1,    /* a batch was dequeued: id ring, x commands, b first number */
	EPF_FLIGHT_STEP = 2,       /* arrived or retired: x handled, y arrived, b ticks or 0 */
	EPF_FLIGHT_DEFER = 3,      /* first without credit: id stream, x rank, y lane, b number */
	EPF_FLIGHT_BLOCK = 4,      /* not dequeued: id ring, x rank, y stream, b number */
	EPF_FLIGHT_FLUSH = 5,      /* begins: id ring, b number of the FLUSH */
	EPF_FLIGHT_FLUSHED = 6,    /* is over: id ring, x lost rank or UINT32_MAX, b number */
	EPF_FLIGHT_LANE_ERROR = 7, /* id lane, sub status, x lowest rank of its node, y index */
	EPF_FLIGHT_LANE_MOVED = 8, /* goes on elsewhere: id lane, x rank, y index, b pause ns */
	EPF_FLIGHT_LANE_UP = 9,    /* in use again: id lane, x rank, y index */
	EPF_FLIGHT_NODE_DOWN = 10, /* id lowest rank of the node, sub status, x reason */
	EPF_FLIGHT_PEER = 11,      /* id rank, sub state of the peers page, x reason, y epoch */
	EPF_FLIGHT_WAIT = 12,      /* id object, sub epf_stats_wait, x rank, y row, b since ns */
};

/* One event, 32 bytes. what: bits 7:0 kind, 15:8 sub, 31:16 number of the event modulo 2^16, 63:32 id. */
struct epf_flight_event {
	uint64_t tsc;
	uint64_t what;
	uint64_t xy; /* bits 31:0 x, 63:32 y */
	uint64_t b;
};

EPF_STATIC_ASSERT(sizeof(struct epf_flight_event) == 8u * EPF_FLIGHT_EVENT_WORDS, "layout");

/* The rows `written` and `events` of a block, which lie together. */
struct epf_flight {
	uint64_t written;
	struct epf_flight_event events[];
};

EPF_STATIC_ASSERT(offsetof(struct epf_flight, events) == 8, "layout");

/* Writes one event; NULL: there is no recorder. [S2] */
EPF_INLINE void epf_flight_note(struct epf_flight *f, uint64_t tsc, uint32_t kind, uint32_t sub,
				uint32_t id, uint32_t x, uint32_t y, uint64_t b)
{
	struct epf_flight_event *e;
	uint64_t n;

	if (!f)
		return;
	n = EPF_LOAD_RELAXED(&f->written);
	e = &f->events[n & (EPF_FLIGHT_EVENTS - 1u)];
	EPF_STORE_RELAXED(&e->what,
			  (uint64_t)id << 32 | (n & 0xffffu) << 16 | (sub & 0xffu) << 8 | kind);
	EPF_STORE_RELAXED(&e->tsc, tsc);
	EPF_STORE_RELAXED(&e->xy, (uint64_t)y << 32 | x);
	EPF_STORE_RELAXED(&e->b, b);
	EPF_STORE_RELEASE(&f->written, n + 1);
}

#endif
