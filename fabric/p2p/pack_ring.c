/* SPDX-License-Identifier: Apache-2.0 */
/* Staging memory of compressed chunks, and their commands in the rings of a connection (pack_priv.h). */
#include "fabric/p2p/pack_priv.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { PARTS = 4 };

/* On the connection's thread, at its join: staging memory, which both ends publish together. */
static int open_pack(struct conn *c)
{
	struct pack *p = c->pack;
	struct engine_path *e = c->engine;
	struct msg_stage m = { 0 };
	void *memory = mmap(NULL, PARTS * PACK_PART, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int rc;

	if (memory == MAP_FAILED)
		return epf_fail(EPF_R_NO_MEMORY, "%s: staging memory for compression", c->label);
	p->memory = memory;
	rc = epf_region_register(e->ep, p->memory, 2 * PACK_PART, EPF_REMOTE_WRITE, &p->in_region);
	if (!rc)
		rc = epf_region_register(e->ep, p->memory + 2 * PACK_PART, 2 * PACK_PART, 0,
					 &p->out_region);
	m.region = p->in_region;
	if (!rc && epf_p2p_send(&c->stream, MSG_STAGE, &m, sizeof(m), NULL, 0))
		rc = epf_fail(EPF_R_P2P_LOST, "%s: it has gone while its engine joined", c->label);
	return rc ? rc : epf_exchange(e->ep);
}

static void free_pack(struct conn *c)
{
	struct pack *p = c->pack;

	if (!p)
		return;
	epf_p2p_packers_free(p);
	if (p->memory)
		munmap(p->memory, PARTS * PACK_PART);
	pthread_mutex_destroy(&p->lock);
	free(p);
	c->pack = NULL;
}

int epf_p2p_pack_new(struct conn *c)
{
	struct pack *p = calloc(1, sizeof(*p));

	if (!p)
		return epf_fail(EPF_R_NO_MEMORY, "%s: compression", c->label);
	pthread_mutex_init(&p->lock, NULL);
	for (uint32_t i = 0; i < 4 * PACK_SLOTS; i++)
		p->slots[i] = (struct pack_slot){ .is_read = i / PACK_SLOTS % 2,
						  .is_served = i / PACK_SLOTS >= 2,
						  .index = i % PACK_SLOTS };
	c->pack = p;
	c->pack_open = open_pack;
	c->pack_free = free_pack;
	return 0;
}

uint32_t epf_p2p_pack_state(struct conn *c)
{
	const struct gain *g = c->pack->gain;
	uint32_t state = PACK_TRYING;

	pthread_mutex_lock(&c->pack->lock);
	if (g[0].is_on || g[1].is_on)
		state = PACK_ON;
	else if (g[0].way == GAIN_FREE || g[1].way == GAIN_FREE)
		state = PACK_OFF;
	pthread_mutex_unlock(&c->pack->lock);
	return state;
}

uint8_t *epf_p2p_pack_in(struct pack *p, bool is_read, uint32_t slot)
{
	return p->memory + is_read * PACK_PART + slot * PACK_SLOT_BYTES;
}

uint8_t *epf_p2p_pack_out(struct pack *p, bool is_read, uint32_t slot)
{
	return epf_p2p_pack_in(p, is_read, slot) + 2 * PACK_PART;
}

/* The commands of a slot are in its ring: from now on a poll looks after it. ring_lock held. */
static void is_put(struct conn *c, struct pack_slot *s)
{
	s->t.end = epf_ring_pushed(c->engine->rings[s->ring].ring);
	pthread_mutex_lock(&c->pack->lock);
	s->state = SLOT_PUT;
	pthread_mutex_unlock(&c->pack->lock);
}

int epf_p2p_pack_put(struct conn *c, struct pack_slot *s)
{
	struct engine_path *e = c->engine;
	uint64_t at = s->is_read * (uint64_t)PACK_PART + s->index * (uint64_t)PACK_SLOT_BYTES;
	int rc = -ECONNRESET;

	pthread_mutex_lock(&e->ring_lock);
	if (e->n_rings) {
		struct epf_ring *ring;

		s->ring = e->next_ring++ % e->n_rings;
		ring = e->rings[s->ring].ring;
		s->t.first = epf_ring_pushed(ring);
		rc = epf_put(ring, !c->is_passive, c->pack->out_region, at, c->pack->peer_region,
			     at, s->packed, EPF_BULK);
		if (!rc)
			is_put(c, s);
	}
	pthread_mutex_unlock(&e->ring_lock);
	return rc == -EPIPE ? -ECONNRESET : rc;
}

int epf_p2p_pack_put_plain(struct conn *c, struct pack_slot *s)
{
	struct engine_path *e = c->engine;
	int rc;

	pthread_mutex_lock(&e->ring_lock);
	rc = epf_p2p_engine_push_at(s->x, s->v, s->b, s->n, s->skip, s->bytes, &s->ring,
				    &s->t.first);
	if (!rc)
		is_put(c, s);
	pthread_mutex_unlock(&e->ring_lock);
	return rc;
}

/* A flush covers all slots of a ring that were put since the last one; one at a time, so that puts are not held up behind several. */
static void flush_ring(struct conn *c, struct pack_slot *const *put, unsigned n)
{
	struct epf_ring *ring = c->engine->rings[put[0]->ring].ring;

	if (epf_flush_post(ring, 0))
		return; /* a full ring: at the next poll */
	c->pack->flush_end[put[0]->ring] = epf_ring_pushed(ring);
	for (unsigned i = 0; i < n; i++) {
		put[i]->t.end = epf_ring_pushed(ring);
		put[i]->state = SLOT_FLUSHING;
	}
}

/* Looks at the slots of one ring. Both locks held. */
static void poll_ring(struct conn *c, unsigned ring, struct pack_over *out)
{
	struct pack *p = c->pack;
	struct path_ring *r = &c->engine->rings[ring];
	uint64_t done = epf_ring_done(r->ring);
	struct pack_slot *put[4 * PACK_SLOTS];
	unsigned n = 0;

	for (unsigned i = 0; i < 4 * PACK_SLOTS; i++) {
		struct pack_slot *s = &p->slots[i];

		if (s->ring != ring || (s->state != SLOT_PUT && s->state != SLOT_FLUSHING))
			continue;
		if (s->state == SLOT_PUT && (s->is_served || s->is_packed || !s->is_read)) {
			put[n++] = s;
		} else if ((int64_t)(done - s->t.end) >= 0) { /* what was read needs no flush */
			out->status[out->n] = epf_p2p_engine_outcome(r, &s->t);
			out->slot[out->n++] = s;
			s->state = SLOT_RESERVED;
		}
	}
	if (p->flush_end[ring] && (int64_t)(done - p->flush_end[ring]) >= 0)
		p->flush_end[ring] = 0;
	if (n && !p->flush_end[ring])
		flush_ring(c, put, n);
}

bool epf_p2p_pack_look(struct conn *c, struct pack_over *out)
{
	struct pack *p = c->pack;
	struct engine_path *e = c->engine;

	out->n = 0;
	if (!p || !EPF_LOAD_RELAXED(&p->busy) || pthread_mutex_trylock(&e->ring_lock))
		return false;
	pthread_mutex_lock(&p->lock);
	for (unsigned i = 0; i < e->n_rings; i++)
		poll_ring(c, i, out);
	pthread_mutex_unlock(&p->lock);
	pthread_mutex_unlock(&e->ring_lock);
	return out->n != 0;
}
