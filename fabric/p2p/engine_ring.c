/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers over the engine: commands in the ring of a connection, and when they are retired. One thread at a time is its producer (ring_lock). */
#include "fabric/p2p/engine.h"
#include "fabric/p2p/engine_priv.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

enum { SLOTS_OF_BLOCK = 2, PUT_MOST = 1 << 30 };

/* True if the transfer has the ring of urgent transfers. */
static bool is_apart(const struct epf_p2p_xfer *x)
{
	return x->priority == EPF_P2P_URGENT && x->conn->engine->has_urgent;
}

static bool ring_has_room(const struct path_ring *r)
{
	return epf_ring_pushed(r->ring) - epf_ring_done(r->ring) +
		       SLOTS_OF_BLOCK * P2P_CHUNK_BLOCKS <
	       RING_SLOTS / SLOTS_OF_BLOCK;
}

/* Returns true if nothing is under way in a ring. */
static bool ring_is_idle(const struct path_ring *r)
{
	return epf_ring_pushed(r->ring) == epf_ring_done(r->ring);
}

bool epf_p2p_engine_has_room(const struct epf_p2p_xfer *x)
{
	struct conn *c = x->conn;
	struct engine_path *e = c->engine;
	bool has = false;

	if (!EPF_LOAD_ACQUIRE(&e->is_joined) || EPF_LOAD_ACQUIRE(&e->is_closed))
		return EPF_LOAD_ACQUIRE(&c->state) != CONN_OPEN; /* then the push says why not */
	if (pthread_mutex_trylock(&e->ring_lock))
		return false;
	if (is_apart(x))
		has = ring_has_room(&e->rings[e->n_rings]);
	/*
	 * Transfers that come one at a time stay in the first ring. Its lane also carries what the peer answers, and so the acknowledgement of the data: on
	 * another lane that comes later, by itself.
	 */
	if (e->n_rings && ring_is_idle(&e->rings[0]))
		e->next_ring = 0;
	for (unsigned i = 0; i < e->n_rings && !has && !is_apart(x); i++) {
		unsigned at = (e->next_ring + i) % e->n_rings;

		has = ring_has_room(&e->rings[at]);
		if (has)
			e->next_ring = at;
	}
	pthread_mutex_unlock(&e->ring_lock);
	return has;
}

/* The number of a local region in the pair's job; registered at its first use. ring_lock held. */
static int local_region(struct conn *c, struct region *r, uint32_t *out)
{
	struct engine_path *e = c->engine;
	struct engine_key *k;
	int rc;

	pthread_mutex_lock(&c->ep->lock);
	for (k = r->keys; k && k->conn != c->id; k = k->next)
		;
	pthread_mutex_unlock(&c->ep->lock);
	if (k) {
		*out = k->region;
		return 0;
	}
	k = calloc(1, sizeof(*k));
	if (!k)
		rc = -ENOMEM;
	else if (r->device >= 0)
		rc = epf_region_register_gpu(e->ep, r->addr, r->bytes, 0, &k->region);
	else
		rc = epf_region_register(e->ep, r->addr, r->bytes, 0, &k->region);
	if (rc) {
		free(k);
		return rc;
	}
	k->conn = c->id;
	*out = k->region;
	pthread_mutex_lock(&c->ep->lock);
	k->next = r->keys;
	r->keys = k;
	pthread_mutex_unlock(&c->ep->lock);
	return 0;
}

static int push_block(struct epf_ring *ring, const struct epf_p2p_xfer *x, uint32_t here,
		      uint32_t there, uint64_t local, uint64_t remote, uint64_t bytes)
{
	int rc = 0;

	for (uint64_t at = 0; at < bytes && !rc; at += PUT_MOST) {
		uint64_t len = bytes - at < PUT_MOST ? bytes - at : PUT_MOST;

		rc = x->op == EPF_P2P_OP_WRITE
			     ? epf_put(ring, !x->conn->is_passive, here, local + at, there,
				       remote + at, len, EPF_BULK)
			     : epf_get(ring, !x->conn->is_passive, here, local + at, there,
				       remote + at, len, EPF_BULK);
	}
	return rc;
}

int epf_p2p_engine_push_at(struct epf_p2p_xfer *x, const struct vector *v,
			   const struct epf_p2p_block *b, uint32_t n, uint64_t skip, uint64_t bytes,
			   unsigned *at, uint64_t *first)
{
	struct engine_path *e = x->conn->engine;
	struct epf_ring *ring = NULL;
	uint32_t here;
	int rc = -ECONNRESET;

	if (v->import->engine_region >= REGIONS ||
	    e->tags[v->import->engine_region] != v->import->engine_tag) {
		rc = -EKEYREVOKED; /* the number names another region by now, or none */
	} else if (e->n_rings) {
		*at = is_apart(x) ? e->n_rings : e->next_ring++ % e->n_rings;
		ring = e->rings[*at].ring;
		*first = epf_ring_pushed(ring);
		rc = local_region(x->conn, v->region, &here);
	}
	for (uint32_t i = 0; i < n && !rc; i++) {
		uint64_t len = n == 1 ? bytes : (b[i].lo >> 48 | b[i].hi >> 48 << 16);

		rc = push_block(ring, x, here, v->import->engine_region,
				(b[i].lo & 0xffffffffffffull) + skip,
				(b[i].hi & 0xffffffffffffull) + skip, len);
	}
	/* Whether a peer that is gone has left in order only the control connection can tell. */
	return rc == -EPIPE ? -ECONNRESET : rc;
}

int epf_p2p_engine_push(struct epf_p2p_xfer *x, const struct vector *v,
			const struct epf_p2p_block *b, uint32_t n, uint64_t skip, uint64_t bytes)
{
	struct engine_path *e = x->conn->engine;
	unsigned at = 0;
	uint64_t first = 0;
	int rc;

	pthread_mutex_lock(&e->ring_lock);
	rc = epf_p2p_engine_push_at(x, v, b, n, skip, bytes, &at, &first);
	if (e->n_rings &&
	    !(x->rings & 1u << at)) { /* also if only some of its commands were taken */
		x->ticket[at].first = first;
		x->rings |= 1u << at;
	}
	pthread_mutex_unlock(&e->ring_lock);
	return rc;
}

void epf_p2p_engine_seal(struct epf_p2p_xfer *x)
{
	struct engine_path *e = x->conn->engine;

	pthread_mutex_lock(&e->ring_lock);
	for (unsigned i = 0; i < epf_p2p_all_rings(e); i++) {
		if (!(x->rings & 1u << i))
			continue;
		/* Visible at the peer, not only sent. */
		if (x->op == EPF_P2P_OP_WRITE)
			(void)epf_flush_post(e->rings[i].ring, 0);
		x->ticket[i].end = epf_ring_pushed(e->rings[i].ring);
	}
	pthread_mutex_unlock(&e->ring_lock);
}

static int status_of(unsigned status)
{
	switch (status) {
	case 8: /* EPF_S_REVOKED */
		return -EKEYREVOKED;
	case 4: /* EPF_S_REMOTE_ACCESS */
		return -EACCES;
	case 6: /* EPF_S_REFUSED */
		return -EKEYREVOKED;
	default:
		return -ECONNRESET;
	}
}

/*
 * What has failed since the last look. The ring names the first failure only: transfers with commands at or after it that end from then on
 * fail too, until one is found that begins after the last command pushed at this look.
 */
static void look_for_failures(struct path_ring *r)
{
	struct epf_ring_failure f;

	if (epf_ring_error(r->ring, &f) != 1)
		return;
	r->failed_status = status_of(f.status);
	r->first_failed = r->failures ? r->looked : f.index;
	r->failures = f.failed;
	r->last_failed = epf_ring_done(r->ring);
}

int epf_p2p_engine_outcome(struct path_ring *r, const struct ticket *t)
{
	int status = 0;

	look_for_failures(r);
	if (r->failures && t->end > r->first_failed && t->first < r->last_failed)
		status = r->failed_status;
	r->looked = t->end > r->looked ? t->end : r->looked;
	return status;
}

int epf_p2p_engine_is_done(struct epf_p2p_xfer *x, int *status)
{
	struct engine_path *e = x->conn->engine;
	int done = 1;

	*status = 0;
	if (EPF_LOAD_ACQUIRE(&x->conn->state) != CONN_OPEN) {
		*status = x->conn->error;
		return EPF_LOAD_ACQUIRE(
			&e->is_closed); /* the engine may touch the memory until then */
	}
	if (pthread_mutex_trylock(&e->ring_lock))
		return 0;
	for (unsigned i = 0; i < epf_p2p_all_rings(e) && done; i++)
		if (x->rings & 1u << i)
			done = (int64_t)(epf_ring_done(e->rings[i].ring) - x->ticket[i].end) >= 0;
	for (unsigned i = 0; i < epf_p2p_all_rings(e) && done; i++)
		if (x->rings & 1u << i) {
			int rc = epf_p2p_engine_outcome(&e->rings[i], &x->ticket[i]);

			*status = *status ? *status : rc;
		}
	pthread_mutex_unlock(&e->ring_lock);
	return done;
}

uint64_t epf_p2p_engine_retired(struct conn *c)
{
	struct engine_path *e = c->engine;

	if (pthread_mutex_trylock(&e->ring_lock))
		return e->retired;
	e->retired = 0;
	for (unsigned i = 0; i < epf_p2p_all_rings(e); i++)
		e->retired += epf_ring_done(e->rings[i].ring);
	pthread_mutex_unlock(&e->ring_lock);
	return e->retired;
}

bool epf_p2p_engine_step(struct conn *c)
{
	struct engine_path *e = c->engine;
	int handled = 0;

	if (!EPF_LOAD_ACQUIRE(&e->is_joined) || pthread_mutex_trylock(&e->step_lock))
		return false;
	if (e->ep)
		handled = epf_progress(e->ep);
	pthread_mutex_unlock(&e->step_lock);
	return handled > 0;
}

void epf_p2p_engine_rest(struct epf_p2p_xfer *x, uint64_t ns)
{
	struct timespec nap = { 0, (long)(ns < 100000 ? ns : 100000) };

	(void)x;
	nanosleep(&nap, NULL);
}
