/* SPDX-License-Identifier: Apache-2.0 */
/* Staging memory of compressed chunks, and their commands in the rings of a connection (pack_priv.h). */
#include "fabric/gpu/coder.h"
#include "fabric/p2p/pack_priv.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

/* On the connection's thread, at its join: staging memory, which both ends publish together. */
static int open_pack(struct conn *c)
{
	struct pack *p = c->pack;
	struct engine_path *e = c->engine;
	struct msg_stage m = { 0 };
	uint64_t half = 2 * epf_p2p_pack_part(p);
	void *memory =
		mmap(NULL, 2 * half, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int rc = 0;

	if (memory == MAP_FAILED)
		return epf_fail(EPF_R_NO_MEMORY, "%s: staging memory for compression", c->label);
	p->memory = memory;
	if (c->packs_gpu)
		rc = epf_p2p_pack_gpu_pin(c, 2 * half);
	if (!rc)
		rc = epf_region_register(e->ep, p->memory, half, EPF_REMOTE_WRITE, &p->in_region);
	if (!rc)
		rc = epf_region_register(e->ep, p->memory + half, half, 0, &p->out_region);
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
	if (p->gpu_memory)
		epf_p2p_pack_gpu_unpin(c);
	if (p->memory)
		munmap(p->memory, 4 * epf_p2p_pack_part(p));
	pthread_mutex_destroy(&p->lock);
	free(p);
	c->pack = NULL;
}

int epf_p2p_pack_new(struct conn *c)
{
	struct pack *p = calloc(1, sizeof(*p));

	if (!p)
		return epf_fail(EPF_R_NO_MEMORY, "%s: compression", c->label);
	p->slot_bytes = c->packs_gpu ? (uint32_t)EPF_CODER_ROOM : (uint32_t)CODEC_ROOM;
	p->slot_bytes = (p->slot_bytes + PACK_PAGE - 1) / PACK_PAGE * PACK_PAGE;
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
	bool is_on = false, is_off = false;
	uint32_t state;

	pthread_mutex_lock(&c->pack->lock);
	for (unsigned i = 0; i < PACK_GAINS; i++) {
		is_on |= g[i].is_on;
		is_off |= g[i].way == GAIN_FREE;
	}
	state = is_on ? PACK_ON : is_off ? PACK_OFF : PACK_TRYING;
	pthread_mutex_unlock(&c->pack->lock);
	return state;
}

uint8_t *epf_p2p_pack_in(struct pack *p, bool is_read, uint32_t slot)
{
	return p->memory + is_read * epf_p2p_pack_part(p) + slot * (uint64_t)p->slot_bytes;
}

uint8_t *epf_p2p_pack_out(struct pack *p, bool is_read, uint32_t slot)
{
	return epf_p2p_pack_in(p, is_read, slot) + 2 * epf_p2p_pack_part(p);
}

/* Whether commands of any slot are under way. lock held. */
static bool is_moving(const struct pack *p)
{
	bool is = false;

	for (unsigned i = 0; i < 4 * PACK_SLOTS; i++)
		is |= p->slots[i].state == SLOT_PUT || p->slots[i].state == SLOT_FLUSHING;
	return is;
}

/* The commands of a slot are in its ring: from now on polls look after it. The first one wakes the thread that polls. ring_lock held. */
static void is_put(struct conn *c, struct pack_slot *s)
{
	bool was_moving;

	s->t.end = epf_ring_pushed(c->engine->rings[s->ring].ring);
	pthread_mutex_lock(&c->pack->lock);
	was_moving = is_moving(c->pack);
	s->state = SLOT_PUT;
	pthread_mutex_unlock(&c->pack->lock);
	if (!was_moving)
		epf_p2p_kick(c->ep);
}

int epf_p2p_pack_put(struct conn *c, struct pack_slot *s)
{
	struct engine_path *e = c->engine;
	uint64_t at = (uint64_t)(epf_p2p_pack_in(c->pack, s->is_read, s->index) - c->pack->memory);
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

void epf_p2p_pack_look(struct conn *c, struct pack_over *out)
{
	struct pack *p = c->pack;
	struct engine_path *e = c->engine;

	out->n = 0;
	out->is_moving = false;
	if (!p || !EPF_LOAD_RELAXED(&p->busy))
		return;
	if (pthread_mutex_trylock(&e->ring_lock)) {
		out->is_moving = true; /* whoever has it may be putting one */
		return;
	}
	pthread_mutex_lock(&p->lock);
	for (unsigned i = 0; i < e->n_rings; i++)
		poll_ring(c, i, out);
	for (unsigned i = 0; i < 4 * PACK_SLOTS; i++)
		out->is_moving |=
			p->slots[i].state == SLOT_PUT || p->slots[i].state == SLOT_FLUSHING;
	pthread_mutex_unlock(&p->lock);
	pthread_mutex_unlock(&e->ring_lock);
}
