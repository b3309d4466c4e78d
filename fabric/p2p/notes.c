/* SPDX-License-Identifier: Apache-2.0 */
/* Notifications between processes of one machine, and how all of them begin. */
#include "fabric/base/clock.h"
#include "fabric/p2p/p2p_priv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { NAP_NS = 1000 * 1000 }; /* how often a full ring of a peer is tried again */

_Static_assert(EPF_P2P_NOTE_BYTES + 16 <= P2P_NOTE_RING, "a notification fits");

static void ring_copy_in(struct note_ring *ring, uint64_t at, const void *data, size_t bytes)
{
	size_t first = P2P_NOTE_RING - at % P2P_NOTE_RING;

	if (!bytes) /* data may be NULL then */
		return;
	if (first > bytes)
		first = bytes;
	memcpy(ring->data + at % P2P_NOTE_RING, data, first);
	if (bytes > first)
		memcpy(ring->data, (const uint8_t *)data + first, bytes - first);
}

static void ring_copy_out(const struct note_ring *ring, uint64_t at, void *data, size_t bytes)
{
	size_t first = P2P_NOTE_RING - at % P2P_NOTE_RING;

	if (first > bytes)
		first = bytes;
	memcpy(data, ring->data + at % P2P_NOTE_RING, first);
	if (bytes > first)
		memcpy((uint8_t *)data + first, ring->data, bytes - first);
}

static uint64_t record(uint32_t bytes)
{
	return (sizeof(uint32_t) + (uint64_t)bytes + 7) / 8 * 8;
}

int epf_p2p_note_push(struct conn *c, const void *note, uint32_t bytes)
{
	struct note_ring *ring;
	uint64_t tail, need = record(bytes);

	if (!c->is_local)
		return epf_p2p_send(&c->stream, MSG_NOTE, note, bytes, NULL, 0);
	ring = &c->mine->notes;
	pthread_mutex_lock(&c->note_lock);
	tail = EPF_LOAD_ACQUIRE(&ring->tail);
	if (c->note_head - tail > P2P_NOTE_RING || P2P_NOTE_RING - (c->note_head - tail) < need) {
		pthread_mutex_unlock(&c->note_lock);
		return -EAGAIN;
	}
	ring_copy_in(ring, c->note_head, &bytes, sizeof(bytes));
	ring_copy_in(ring, c->note_head + sizeof(bytes), note, bytes);
	c->note_head += need;
	EPF_STORE_RELEASE(&ring->head, c->note_head);
	pthread_mutex_unlock(&c->note_lock);
	__atomic_fetch_or(&c->bell->pending[c->bell_index / 64], 1ull << c->bell_index % 64,
			  __ATOMIC_SEQ_CST);                      /* N2 */
	if (__atomic_load_n(&c->bell->armed, __ATOMIC_SEQ_CST) && /* N2 */
	    __atomic_exchange_n(&c->bell->armed, 0u, __ATOMIC_SEQ_CST))
		(void)epf_p2p_send(&c->stream, MSG_WAKE, NULL, 0, NULL, 0);
	return 0;
}

/* Takes one notification of a peer: 1, 0 there is none, or -EBADMSG. */
static int take_note(struct conn *c)
{
	struct note_ring *ring = &c->theirs->notes;
	uint64_t head = EPF_LOAD_ACQUIRE(&ring->head);
	struct event *ev;
	uint32_t bytes;

	if (head == c->note_tail)
		return 0;
	ring_copy_out(ring, c->note_tail, &bytes, sizeof(bytes));
	if (head - c->note_tail > P2P_NOTE_RING || bytes > EPF_P2P_NOTE_BYTES ||
	    record(bytes) > head - c->note_tail)
		return -EBADMSG;
	ev = calloc(1, sizeof(*ev));
	if (!ev)
		return 0; /* stays where it is */
	ev->e = (struct epf_p2p_event){ .kind = EPF_P2P_NOTE, .conn = c->number, .bytes = bytes };
	if (bytes) {
		ev->e.data = malloc(bytes);
		if (!ev->e.data) {
			free(ev);
			return 0;
		}
		ring_copy_out(ring, c->note_tail + sizeof(bytes), ev->e.data, bytes);
	}
	c->note_tail += record(bytes);
	EPF_STORE_RELEASE(&ring->tail, c->note_tail);
	epf_p2p_append(c->ep, ev);
	return 1;
}

/* Takes the notifications of one connection. Several threads may drain at once, each connection one. */
static void drain_conn(struct epf_p2p *ep, uint32_t index)
{
	struct conn *c;
	int rc = 0;
	bool again;

	pthread_mutex_lock(&ep->lock);
	c = ep->by_bell[index];
	again = c && (!c->number || !c->theirs); /* in its handshake still */
	if (c && !again)
		epf_p2p_conn_ref(c);
	pthread_mutex_unlock(&ep->lock);
	if (c && !again) {
		pthread_mutex_lock(&c->take_lock);
		while (!again && (rc = take_note(c)) == 1)
			again = EPF_LOAD_RELAXED(&ep->events.notes) >= EPF_P2P_UNREAD;
		pthread_mutex_unlock(&c->take_lock);
		if (rc < 0)
			epf_p2p_conn_end(c, CONN_LOST, "its notifications are damaged");
		epf_p2p_conn_put(c);
	}
	if (again)
		__atomic_fetch_or(&ep->bell->pending[index / 64], 1ull << index % 64,
				  __ATOMIC_SEQ_CST);
}

int epf_p2p_note_arrived(struct conn *c, const void *note, uint32_t bytes)
{
	struct epf_p2p_event e = { .kind = EPF_P2P_NOTE, .conn = c->number, .bytes = bytes };

	if (bytes > EPF_P2P_NOTE_BYTES)
		return -EBADMSG;
	if (EPF_LOAD_RELAXED(&c->ep->events.notes) >= EPF_P2P_UNREAD * 4)
		return -ENOBUFS;
	epf_p2p_event(c->ep, &e, note);
	return 0;
}

void epf_p2p_drain(struct epf_p2p *ep)
{
	if (EPF_LOAD_RELAXED(&ep->events.notes) >= EPF_P2P_UNREAD)
		return;
	for (unsigned w = 0; w < P2P_LOCAL_CONNS / 64; w++) {
		uint64_t bits;

		if (!EPF_LOAD_RELAXED(&ep->bell->pending[w]))
			continue;
		bits = __atomic_exchange_n(&ep->bell->pending[w], 0, __ATOMIC_SEQ_CST);
		while (bits) {
			drain_conn(ep, w * 64 + (unsigned)__builtin_ctzll(bits));
			bits &= bits - 1;
		}
	}
}

bool epf_p2p_is_pending(const struct epf_p2p *ep)
{
	if (EPF_LOAD_RELAXED(&ep->events.notes) >= EPF_P2P_UNREAD)
		return false;
	for (unsigned w = 0; w < P2P_LOCAL_CONNS / 64; w++)
		if (__atomic_load_n(&ep->bell->pending[w], __ATOMIC_SEQ_CST)) /* N1 */
			return true;
	return false;
}

static int notify(struct epf_p2p *ep, uint64_t conn, const void *note, size_t note_bytes,
		  uint64_t timeout_ns)
{
	uint64_t end = epf_p2p_deadline(ep, timeout_ns);
	struct timespec nap = { 0, NAP_NS };
	struct conn *c;
	int rc;

	if (note_bytes > EPF_P2P_NOTE_BYTES || (note_bytes && !note))
		return epf_fail(EPF_R_P2P_ARGUMENT, "notify: %zu bytes; at most %u", note_bytes,
				EPF_P2P_NOTE_BYTES);
	c = epf_p2p_conn_get(ep, conn);
	if (!c)
		return -ENOENT;
	for (;;) {
		rc = EPF_LOAD_ACQUIRE(&c->state) == CONN_OPEN
			     ? epf_p2p_note_push(c, note, (uint32_t)note_bytes)
			     : epf_p2p_conn_error(c);
		if (rc != -EAGAIN)
			break;
		if (epf_now_ns() >= end) {
			rc = epf_fail(EPF_R_P2P_TIMEOUT, "notify: %s takes no notifications",
				      c->label);
			break;
		}
		epf_p2p_stats_waits(&c->stats.noting, &c->stats.noting_seen);
		nanosleep(&nap, NULL);
	}
	epf_p2p_conn_put(c);
	return rc;
}

int epf_p2p_notify(struct epf_p2p *ep, uint64_t conn, const void *note, size_t note_bytes,
		   uint64_t timeout_ns)
{
	int rc;

	epf_p2p_enter(ep);
	rc = notify(ep, conn, note, note_bytes, timeout_ns);
	epf_p2p_leave(ep);
	return rc;
}
