/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The path over the engine and its NICs: a job of two for each connection that is not local, joined when the endpoints connect. A thread
 * of the connection makes the calls for which both ends must meet (the join, exchanges of regions); transfers go into one ring. Both ends
 * make as many exchanges: one for each import that an end answers, and one for each answer that it gets.
 */
#ifndef EPF_FABRIC_P2P_ENGINE_H
#define EPF_FABRIC_P2P_ENGINE_H

#include "fabric/p2p/p2p_priv.h"

struct pack_slot;

/* Something that the connection's thread is to do, in order. */
struct engine_job {
	struct engine_job *next;
	void (*run)(struct conn *c, const void *data);
	uint8_t data[];
};

/* Starts the connection's thread, which joins. The connection keeps what it needs until epf_p2p_engine_stop(). */
int epf_p2p_engine_start(struct conn *c, const uint8_t key[EPF_AUTH_KEY_BYTES]);
/* Waits until the join is over: 0, or its error. */
int epf_p2p_engine_wait(struct conn *c, uint64_t end);
/* The connection has ended: the thread closes the engine. Returns at once. */
void epf_p2p_engine_leave(struct conn *c);
/* Waits for the thread and frees all. */
void epf_p2p_engine_stop(struct conn *c);

/* Bytes of the other end's bootstrap. */
void epf_p2p_engine_boot(struct conn *c, const uint8_t *data, uint32_t bytes);
/* Has the connection's thread call run(c, copy of data). */
int epf_p2p_engine_do(struct conn *c, void (*run)(struct conn *c, const void *data),
		      const void *data, size_t bytes);
/* On that thread: publishes regions, together with the other end. */
int epf_p2p_engine_exchange(struct conn *c);
/* On any thread: registers memory in the pair's job / withdraws it. device: a GPU's, or EPF_P2P_HOST. */
int epf_p2p_engine_register(struct conn *c, void *addr, uint64_t bytes, int device, unsigned rights,
			    uint32_t *region);
int epf_p2p_engine_withdraw(struct conn *c, uint32_t region, uint64_t timeout_ns);

/*
 * engine_numbers.c: numbers of withdrawn regions are used again. A region of this end is withdrawn and its key in no list any more. Any thread.
 */
void epf_p2p_number_withdrawn(struct conn *c, uint32_t region);
/* Of a connection over NICs, before its engine starts: its imports give their numbers back. */
void epf_p2p_numbers_new(struct conn *c);
/* What arrives about them. 0 or -errno. */
int epf_p2p_number_arrived(struct conn *c, enum message type, const struct msg_number *m);
int epf_p2p_release_arrived(struct conn *c, const struct msg_release *m);
/* An import of the peer finds the region that answers earlier ones: true with its number. ep->lock held. */
bool epf_p2p_number_share(struct conn *c, const struct export *e, uint32_t *region);
/* Which use of a number this is. */
uint32_t epf_p2p_number_tag(struct conn *c, uint32_t region);

/* Whether a ring takes a chunk of this transfer now. */
bool epf_p2p_engine_has_room(const struct epf_p2p_xfer *x);
/* pack.c, pack_peer.c, pack_ring.c: compressed chunks. */
int epf_p2p_pack_new(struct conn *c);

/* For statistics: whether its chunks are compressed. */
enum { PACK_NONE = 0, PACK_TRYING = 1, PACK_ON = 2, PACK_OFF = 3 };

uint32_t epf_p2p_pack_state(struct conn *c);
/* Returns whether a chunk of the transfer may be claimed now, with *slot if it is compressed or measured. */
bool epf_p2p_pack_reserve(struct epf_p2p_xfer *x, struct pack_slot **slot);
void epf_p2p_pack_unreserve(struct conn *c, struct pack_slot *slot);
/* Ends the flight of a chunk: its bytes have arrived, or it failed. */
typedef void epf_p2p_flight_end(struct epf_p2p_xfer *x, uint64_t bytes, int status);
/* Sends a chunk through its slot, which ends the flight that the caller has begun. */
void epf_p2p_pack_push(struct epf_p2p_xfer *x, struct pack_slot *slot, const struct vector *v,
		       const struct epf_p2p_block *b, uint32_t n, uint64_t skip, uint64_t bytes,
		       epf_p2p_flight_end *end);
/* Moves on chunks whose commands are retired. Returns whether commands of others are under way, which nothing but a poll reports. */
bool epf_p2p_pack_poll(struct conn *c);
/* The same for all connections. On the endpoint's thread. */
bool epf_p2p_pack_poll_all(struct epf_p2p *ep);
/* A transfer fails: does not wait for its compressed chunks, which touch no memory of it any more. */
void epf_p2p_pack_cancel(struct epf_p2p_xfer *x);
/* The connection has ended. is_closed: its engine too, so that nothing touches memory. */
void epf_p2p_pack_end(struct conn *c, bool is_closed);
/* What arrives about them. 0 or -EBADMSG. */
int epf_p2p_pack_staged(struct conn *c, const struct msg_stage *m);
int epf_p2p_pack_asked(struct conn *c, const uint8_t *data, uint32_t bytes);
int epf_p2p_pack_answered(struct conn *c, const struct msg_chunk_done *m);

/* Pushes the blocks of a chunk. */
int epf_p2p_engine_push(struct epf_p2p_xfer *x, const struct vector *v,
			const struct epf_p2p_block *b, uint32_t n, uint64_t skip, uint64_t bytes);
/* Everything of the transfer is pushed: notes what must be retired for it. */
void epf_p2p_engine_seal(struct epf_p2p_xfer *x);
/* Returns 1 if it is, with *status; 0: not yet. */
int epf_p2p_engine_is_done(struct epf_p2p_xfer *x, int *status);
/* Returns how many commands its rings have retired, which shows progress. On the endpoint's thread. */
uint64_t epf_p2p_engine_retired(struct conn *c);
/* Steps the engine of a connection while its thread sleeps, for a wait. Returns true if that did something. */
bool epf_p2p_engine_step(struct conn *c);
/* Waits a moment for it. */
void epf_p2p_engine_rest(struct epf_p2p_xfer *x, uint64_t ns);
/* Whether its engine is closed: nothing touches memory any more. */
bool epf_p2p_engine_is_closed(const struct conn *c);
/* Its name: "engine:tcp". */
void epf_p2p_engine_name(const struct conn *c, char *buf, size_t size);

#endif
