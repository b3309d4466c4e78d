/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The numbers of regions in a pair's job, given out again after a withdrawal: a job has REGIONS of them, and a server that lives for weeks withdraws more.
 *
 * A number must not come to a new region while anything can still name the former one. Tags in the engine's commands and messages would not do: a command
 * has 16 bits for a region, of which 12 are used, so a tag would come round. So both ends become quiescent first, and tags, of 32 bits and in
 * this process only, serve for handles (struct import), which may be as old as their user likes:
 *
 *   1. The owner has withdrawn the region: the peer's engine refuses commands that name it, what it had staged has drained, and the NIC's key is gone, so that
 *      nothing late or repeated on the wire reaches memory.
 *   2. FORGET to the peer: the number gets a new tag, which makes handles stale: no further command is pushed for them (ring_lock). Commands
 *      pushed before are retired, refused or not. Then its engine forgets the number.
 *   3. FORGOTTEN back: the owner's commands pushed before are retired too: those of a transfer that failed may name the region as their source. The number is free.
 *
 * Exchanges: all of this runs on the two connection threads, which also make the exchanges. An exchange in which the owner described the former region
 * was announced to the peer by a message before FORGET, so the peer has taken its description before it forgets; later ones do not have it.
 * Likewise FORGET follows the answer to any import that found the former region, so a handle never gets the new tag for it.
 *
 * An import that is released gives the number back early: RELEASE, on which the owner withdraws that region alone. The export stays.
 */
#define EPF_LOG_COMP "p2p"
#include "fabric/base/log.h"
#include "fabric/client/reuse.h"
#include "fabric/p2p/engine.h"
#include "fabric/p2p/engine_priv.h"

#include <errno.h>
#include <stdlib.h>

enum phase {
	WITHDRAWING, /* released by the peer; the key is still in the export's list */
	FORGETTING,  /* the peer's: its handles are stale */
	FREEING,     /* one's own, which the peer has forgotten */
};

/* ring_lock held. */
static void note_pushed(const struct engine_path *e, struct number *n)
{
	for (unsigned i = 0; i < epf_p2p_all_rings(e); i++)
		n->until[i] = epf_ring_pushed(e->rings[i].ring);
}

static bool is_quiet(struct engine_path *e, const struct number *n)
{
	bool is = true;

	pthread_mutex_lock(&e->ring_lock);
	for (unsigned i = 0; i < epf_p2p_all_rings(e) && is; i++)
		is = (int64_t)(epf_ring_done(e->rings[i].ring) - n->until[i]) >= 0;
	pthread_mutex_unlock(&e->ring_lock);
	return is;
}

static bool poll_all(struct conn *c);

static bool is_on_its_way(const struct engine_path *e, enum phase phase, uint32_t region)
{
	const struct number *n = e->numbers;

	while (n && (n->phase != phase || n->region != region))
		n = n->next;
	return n != NULL;
}

/* Adds a number to those on their way. NULL: it is there already, which a peer may repeat as often as it likes, or there is no memory: it is never used again. */
static struct number *begin(struct conn *c, enum phase phase, uint32_t region)
{
	struct number *n;

	if (is_on_its_way(c->engine, phase, region))
		return NULL;
	n = calloc(1, sizeof(*n));
	if (!n) {
		epf_warn_ratelimited(
			"%s: no memory: a number of its connection's regions is not used again",
			c->label);
		return NULL;
	}
	n->phase = phase;
	n->region = region;
	n->next = c->engine->numbers;
	c->engine->numbers = n;
	c->engine->numbers_poll = poll_all;
	return n;
}

/* A message that does not leave costs a number: a peer that takes none loses its connection elsewhere. */
static void tell(struct conn *c, enum message type, uint32_t region)
{
	struct msg_number m = { .region = region };

	(void)epf_p2p_send(&c->stream, type, &m, sizeof(m), NULL, 0);
}

/* On the connection's thread, as are all below: behind the answers that name the region. */
static void ask_to_forget(struct conn *c, const void *data)
{
	tell(c, MSG_FORGET, *(const uint32_t *)data);
}

void epf_p2p_number_withdrawn(struct conn *c, uint32_t region)
{
	if (c->reuses_numbers && EPF_LOAD_ACQUIRE(&c->state) == CONN_OPEN)
		(void)epf_p2p_engine_do(c, ask_to_forget, &region, sizeof(region));
}

static void forget(struct conn *c, const void *data)
{
	const struct msg_number *m = data;
	struct engine_path *e = c->engine;
	struct number *n = begin(c, FORGETTING, m->region);

	pthread_mutex_lock(&e->ring_lock);
	e->tags[m->region]++;
	if (n)
		note_pushed(e, n);
	pthread_mutex_unlock(&e->ring_lock);
}

static void forgotten(struct conn *c, const void *data)
{
	const struct msg_number *m = data;
	struct engine_path *e = c->engine;
	struct number *n = begin(c, FREEING, m->region);

	if (!n)
		return;
	pthread_mutex_lock(&e->ring_lock);
	note_pushed(e, n);
	pthread_mutex_unlock(&e->ring_lock);
}

/* This connection's key of an export, or NULL. region UINT32_MAX: the one that answers imports. ep->lock held. */
static struct engine_key **key_of(struct conn *c, uint32_t slot, uint64_t generation,
				  uint32_t region)
{
	struct export *x = slot < P2P_EXPORTS ? c->ep->export_at[slot] : NULL;
	struct engine_key **at;

	if (!x || x->key.generation != generation)
		return NULL;
	for (at = &x->keys; *at; at = &(*at)->next)
		if ((*at)->conn == c->id &&
		    (region == UINT32_MAX ? (*at)->opened != 0 : (*at)->region == region))
			return at;
	return NULL;
}

bool epf_p2p_number_share(struct conn *c, const struct export *e, uint32_t *region)
{
	struct engine_key **at = key_of(c, e->key.slot, e->key.generation, UINT32_MAX);

	if (!at)
		return false;
	(*at)->opened++;
	*region = (*at)->region;
	return true;
}

uint32_t epf_p2p_number_tag(struct conn *c, uint32_t region)
{
	struct engine_path *e = c->engine;
	uint32_t tag;

	if (region >= REGIONS)
		return 0;
	pthread_mutex_lock(&e->ring_lock);
	tag = e->tags[region];
	pthread_mutex_unlock(&e->ring_lock);
	return tag;
}

static void released(struct conn *c, const void *data)
{
	const struct msg_release *m = data;
	struct engine_key **at;
	struct number *n;
	uint32_t region = UINT32_MAX;

	pthread_mutex_lock(&c->ep->lock);
	at = key_of(c, m->slot, m->generation, UINT32_MAX);
	if (at && --(*at)->opened == 0)
		region = (*at)->region;
	pthread_mutex_unlock(&c->ep->lock);
	n = region == UINT32_MAX ? NULL : begin(c, WITHDRAWING, region);
	if (n) {
		n->slot = m->slot;
		n->generation = m->generation;
	}
}

int epf_p2p_number_arrived(struct conn *c, enum message type, const struct msg_number *m)
{
	if (m->region >= REGIONS)
		return -EBADMSG;
	return epf_p2p_engine_do(c, type == MSG_FORGET ? forget : forgotten, m, sizeof(*m));
}

int epf_p2p_release_arrived(struct conn *c, const struct msg_release *m)
{
	return epf_p2p_engine_do(c, released, m, sizeof(*m));
}

/* Any thread. */
static void release(struct conn *c, const struct export_key *key)
{
	struct msg_release m = { .slot = key->slot, .generation = key->generation };

	if (c->reuses_numbers && EPF_LOAD_ACQUIRE(&c->state) == CONN_OPEN)
		(void)epf_p2p_send(&c->stream, MSG_RELEASE, &m, sizeof(m), NULL, 0);
}

void epf_p2p_numbers_new(struct conn *c)
{
	c->import_end = release;
}

/* Whoever takes the key out of the list, this or a withdrawal of the whole export, asks the peer to forget. Returns whether this number is settled here. */
static bool withdraw(struct conn *c, const struct number *n)
{
	struct engine_key **at, *k = NULL;

	pthread_mutex_lock(&c->ep->lock);
	at = key_of(c, n->slot, n->generation, n->region);
	pthread_mutex_unlock(&c->ep->lock);
	if (!at)
		return true;
	if (epf_p2p_engine_withdraw(c, n->region, 1))
		return false;
	pthread_mutex_lock(&c->ep->lock);
	at = key_of(c, n->slot, n->generation, n->region);
	if (at) {
		k = *at;
		*at = k->next;
	}
	pthread_mutex_unlock(&c->ep->lock);
	if (k)
		tell(c, MSG_FORGET, n->region);
	free(k);
	return true;
}

static bool advance(struct conn *c, const struct number *n)
{
	struct engine_path *e = c->engine;
	int rc;

	if (n->phase == WITHDRAWING)
		return withdraw(c, n);
	if (!is_quiet(e, n))
		return false;
	rc = epf_region_reuse(e->ep, n->phase == FREEING ? c->is_passive : !c->is_passive,
			      n->region);
	if (n->phase == FREEING)
		return true; /* an error: the peer answers what was not asked */
	if (!rc)
		tell(c, MSG_FORGOTTEN, n->region);
	return rc != -ENOENT; /* its withdrawal is under way */
}

/* Moves on all numbers. Returns true if one is settled. */
static bool poll_all(struct conn *c)
{
	struct number **at = &c->engine->numbers;
	bool moved = false;

	while (*at) {
		struct number *n = *at;

		if (!advance(c, n)) {
			at = &n->next;
			continue;
		}
		*at = n->next;
		free(n);
		moved = true;
	}
	return moved;
}
