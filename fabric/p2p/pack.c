/* SPDX-License-Identifier: Apache-2.0 */
/* Compressed chunks of own transfers (pack_priv.h): slots, compressing, what the peer answers, and the end of a connection. */
#include "fabric/base/clock.h"
#include "fabric/p2p/pack_priv.h"

#include <errno.h>
#include <string.h>

bool epf_p2p_pack_reserve(struct epf_p2p_xfer *x, struct pack_slot **slot)
{
	struct pack *p = x->conn->pack;
	bool is_read = x->op == EPF_P2P_OP_READ;
	struct pack_slot *s = NULL;
	enum gain_way way;

	*slot = NULL;
	if (p && EPF_LOAD_ACQUIRE(&p->stale))
		return false;
	if (!x->may_pack || !EPF_LOAD_ACQUIRE(&p->is_ready) ||
	    (x->packs_gpu && EPF_LOAD_RELAXED(&p->gpu_failed)))
		return true;
	pthread_mutex_lock(&p->lock);
	for (uint32_t i = 0; i < PACK_SLOTS && !s; i++)
		if (epf_p2p_pack_slot(p, false, is_read, i)->state == SLOT_FREE)
			s = epf_p2p_pack_slot(p, false, is_read, i);
	if (s)
		s->is_gpu = x->packs_gpu;
	way = s ? epf_p2p_gain_begin(epf_p2p_pack_gain(p, s), epf_now_ns()) : GAIN_WAIT;
	if (way == GAIN_PLAIN || way == GAIN_PACKED) {
		s->state = SLOT_RESERVED;
		s->is_packed = way == GAIN_PACKED;
		__atomic_fetch_add(&p->busy, 1u, __ATOMIC_RELAXED);
		*slot = s;
	}
	pthread_mutex_unlock(&p->lock);
	return way != GAIN_WAIT;
}

/* Frees an own slot. lock held. */
static void release(struct pack *p, struct pack_slot *s)
{
	s->x = NULL;
	s->state = SLOT_FREE;
	if (s->is_stale)
		__atomic_fetch_sub(&p->stale, 1u, __ATOMIC_RELEASE);
	s->is_stale = false;
	__atomic_fetch_sub(&p->busy, 1u, __ATOMIC_RELAXED);
}

void epf_p2p_pack_unreserve(struct conn *c, struct pack_slot *s)
{
	pthread_mutex_lock(&c->pack->lock);
	release(c->pack, s);
	epf_p2p_gain_abort(epf_p2p_pack_gain(c->pack, s), epf_now_ns());
	pthread_mutex_unlock(&c->pack->lock);
}

void epf_p2p_pack_finish(struct conn *c, struct pack_slot *s, int status)
{
	struct pack *p = c->pack;
	epf_p2p_flight_end *end = s->end;
	struct epf_p2p_xfer *x;
	uint64_t bytes = s->bytes;

	pthread_mutex_lock(&p->lock);
	x = s->x;
	if (!status && s->is_packed) {
		__atomic_fetch_add(&c->packed_from, bytes, __ATOMIC_RELAXED);
		__atomic_fetch_add(&c->packed_to, s->packed, __ATOMIC_RELAXED);
	}
	release(p, s);
	epf_p2p_gain_end(epf_p2p_pack_gain(p, s), epf_now_ns(), status ? 0 : bytes);
	pthread_mutex_unlock(&p->lock);
	if (x)
		end(x, bytes, status);
}

/* The blocks of an own chunk, in the memory of its region. */
static void own_pieces(const struct pack_slot *s, struct iovec *iov)
{
	for (uint32_t i = 0; i < s->n; i++) {
		uint64_t bytes = s->b[i].lo >> 48 | s->b[i].hi >> 48 << 16;

		iov[i].iov_base = s->v->region->addr + (s->b[i].lo & 0xffffffffffffull) + s->skip;
		iov[i].iov_len = s->n == 1 ? s->bytes : bytes;
	}
}

/* A chunk of the host's memory. */
static int compress_and_put(struct conn *c, struct pack_slot *s)
{
	struct packer *k = epf_p2p_packer_get(c->pack);
	struct iovec iov[CHUNK_PIECES];

	if (!k)
		return -ENOMEM;
	own_pieces(s, iov);
	s->packed = epf_p2p_pack_encode(k, c->compress, s->v->type, iov, s->n, s->bytes,
					epf_p2p_pack_out(c->pack, false, s->index));
	epf_p2p_packer_put(c->pack, k);
	return epf_p2p_pack_put(c, s);
}

/* Tells the peer of an own chunk: what is in its slot, or what to put into one here. */
static int announce(struct conn *c, const struct pack_slot *s)
{
	struct {
		struct msg_chunk head;
		struct piece piece[CHUNK_PIECES];
	} m = { .head = { .slot = s->index,
			  .is_read = s->is_read,
			  .export_slot = s->v->import->key.slot,
			  .n = s->n,
			  .generation = s->v->import->key.generation,
			  .type = s->v->type,
			  .bytes = s->bytes,
			  .packed = s->is_read ? 0 : s->packed,
			  .is_gpu = s->is_gpu } };

	for (uint32_t i = 0; i < s->n; i++) {
		m.piece[i].offset = (s->b[i].hi & 0xffffffffffffull) + s->skip;
		m.piece[i].bytes = s->n == 1
					   ? s->bytes
					   : (uint32_t)(s->b[i].lo >> 48 | s->b[i].hi >> 48 << 16);
	}
	return epf_p2p_send(&c->stream, MSG_CHUNK, &m, sizeof(m.head) + s->n * sizeof(m.piece[0]),
			    NULL, 0);
}

void epf_p2p_pack_announce(struct conn *c, struct pack_slot *s)
{
	struct pack *p = c->pack;
	bool is_wanted;
	int rc = 0;

	pthread_mutex_lock(&p->lock);
	is_wanted = s->x != NULL; /* else the transfer has failed, and its blocks may be gone */
	if (is_wanted) {
		rc = announce(c, s); /* under the lock: nobody cancels meanwhile */
		s->state = SLOT_ASKED;
	}
	pthread_mutex_unlock(&p->lock);
	if (!is_wanted)
		epf_p2p_pack_finish(c, s, -ECANCELED);
	else if (rc)
		epf_p2p_conn_end(c, CONN_LOST, epf_p2p_pack_lost);
}

static void set_state(struct pack *p, struct pack_slot *s, enum pack_state state)
{
	pthread_mutex_lock(&p->lock);
	s->state = state;
	pthread_mutex_unlock(&p->lock);
}

/* Whether the transfer still waits for a chunk of GPU memory; then it is not detached before the slot is put. */
static bool keep(struct pack *p, struct pack_slot *s)
{
	bool is_wanted;

	pthread_mutex_lock(&p->lock);
	is_wanted = s->x != NULL;
	if (is_wanted)
		s->state = SLOT_RESERVED;
	pthread_mutex_unlock(&p->lock);
	return is_wanted;
}

/*
 * A job: compresses a chunk of GPU memory, and waits for the GPU. The transfer may end meanwhile, at its deadline when the GPU hangs: then its
 * blocks may be gone, and the chunk is not sent. The GPU still reads the region, which is therefore not deregistered before.
 */
static void code(struct conn *c, const void *data)
{
	struct pack *p = c->pack;
	struct iovec iov[CHUNK_PIECES];
	enum epf_p2p_float type = EPF_P2P_NO_FLOAT;
	struct region *region = NULL;
	uint32_t index, n = 0;
	struct pack_slot *s;
	int rc = -ECANCELED;

	memcpy(&index, data, sizeof(index));
	s = epf_p2p_pack_slot(p, false, false, index);
	pthread_mutex_lock(&p->lock);
	if (s->x) {
		own_pieces(s, iov);
		n = s->n;
		type = s->v->type;
		region = s->v->region; /* kept by the transfer so far */
		__atomic_fetch_add(&region->refs, 1u, __ATOMIC_RELAXED);
		__atomic_fetch_add(&region->users, 1u, __ATOMIC_SEQ_CST);
	}
	pthread_mutex_unlock(&p->lock);
	if (region) {
		rc = epf_p2p_pack_gpu_compress(c, s, region->device, type, iov, n,
					       epf_p2p_pack_out(p, false, index));
		if (rc) /* the reason is logged; from now on all goes as it is */
			EPF_STORE_RELAXED(&p->gpu_failed, true);
		__atomic_fetch_sub(&region->users, 1u, __ATOMIC_SEQ_CST);
		epf_p2p_region_put(region);
	}
	if (!keep(p, s)) {
		rc = -ECANCELED;
	} else if (rc) {
		s->is_packed = false;
		rc = epf_p2p_pack_put_plain(c, s);
	} else {
		rc = epf_p2p_pack_put(c, s);
	}
	if (rc)
		epf_p2p_pack_finish(c, s, rc);
}

/*
 * Leaves it to the connection's thread, so that neither the endpoint's nor a caller waits for a GPU that is busy. A connection that has closed meanwhile runs
 * no more jobs, and may have looked through its slots before this one was among them.
 */
static int code_later(struct conn *c, struct pack_slot *s)
{
	struct pack *p = c->pack;
	bool is_mine;
	int rc;

	set_state(p, s, SLOT_CODING);
	rc = epf_p2p_engine_do(c, code, &s->index, sizeof(s->index));
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	if (!rc && !epf_p2p_engine_is_closed(c))
		return 0;
	pthread_mutex_lock(&p->lock);
	is_mine = s->state == SLOT_CODING;
	if (is_mine)
		s->state = SLOT_RESERVED;
	pthread_mutex_unlock(&p->lock);
	return !is_mine ? 0 : rc ? rc : -ECONNRESET;
}

void epf_p2p_pack_push(struct epf_p2p_xfer *x, struct pack_slot *s, const struct vector *v,
		       const struct epf_p2p_block *b, uint32_t n, uint64_t skip, uint64_t bytes,
		       epf_p2p_flight_end *end)
{
	struct conn *c = x->conn;
	int rc = 0;

	s->v = v;
	s->b = b;
	s->n = n;
	s->skip = skip;
	s->bytes = s->packed = (uint32_t)bytes;
	s->x = x;
	s->end = end;
	if (!s->is_packed)
		rc = epf_p2p_pack_put_plain(c, s);
	else if (s->is_read)
		epf_p2p_pack_announce(c, s);
	else if (s->is_gpu)
		rc = code_later(c, s);
	else
		rc = compress_and_put(c, s);
	if (rc)
		epf_p2p_pack_finish(c, s, rc);
}

void epf_p2p_pack_take(struct conn *c, const void *data)
{
	const struct msg_chunk_done *m = data;
	struct pack *p = c->pack;
	struct pack_slot *s = epf_p2p_pack_slot(p, false, true, m->slot);
	struct packer *k = s->is_gpu ? NULL : epf_p2p_packer_get(p);
	struct iovec iov[CHUNK_PIECES];
	int rc = -ENOMEM;

	own_pieces(s, iov);
	if (s->is_gpu) {
		rc = epf_p2p_pack_gpu_expand(c, epf_p2p_pack_in(p, true, s->index), m->packed,
					     s->v->region->device, s->v->type, iov, s->n, s->bytes);
	} else if (k) {
		rc = m->packed > CODEC_ROOM
			     ? -EBADMSG
			     : epf_p2p_pack_decode(k, epf_p2p_pack_in(p, true, s->index), m->packed,
						   iov, s->n, s->bytes);
		epf_p2p_packer_put(p, k);
	}
	s->packed = m->packed;
	if (rc == -EBADMSG) {
		epf_p2p_conn_end(c, CONN_LOST, epf_p2p_pack_damaged);
		rc = -ECONNRESET;
	}
	epf_p2p_pack_finish(c, s, rc);
}

int epf_p2p_pack_answered(struct conn *c, const struct msg_chunk_done *m)
{
	struct pack *p = c->pack;
	struct pack_slot *s;
	bool is_ok, is_wanted;

	if (m->slot >= PACK_SLOTS || m->is_read > 1 || m->packed > p->slot_bytes || m->status > 0)
		return -EBADMSG;
	s = epf_p2p_pack_slot(p, false, m->is_read, m->slot);
	pthread_mutex_lock(&p->lock);
	is_ok = s->state == SLOT_ASKED;
	is_wanted = s->x && m->is_read && !m->status;
	if (is_ok)
		s->state = is_wanted ? SLOT_TAKING : SLOT_RESERVED;
	pthread_mutex_unlock(&p->lock);
	if (!is_ok)
		return -EBADMSG;
	if (is_wanted && epf_p2p_engine_do(c, epf_p2p_pack_take, m, sizeof(*m)) == 0)
		return 0;
	epf_p2p_pack_finish(c, s, is_wanted ? -ENOMEM : m->status);
	return 0;
}

int epf_p2p_pack_staged(struct conn *c, const struct msg_stage *m)
{
	struct pack *p = c->pack;

	if (p->is_ready || m->region >= REGIONS)
		return -EBADMSG;
	p->peer_region = m->region;
	EPF_STORE_RELEASE(&p->is_ready, true);
	return 0;
}

/* Ends the flights of own slots that `which` selects; their slots stay with the peer or the NIC. */
static void detach(struct conn *c, const struct epf_p2p_xfer *of, bool is_closed, int status)
{
	struct pack *p = c->pack;

	for (uint32_t i = 0; i < 2 * PACK_SLOTS; i++) {
		struct pack_slot *s = &p->slots[i];
		epf_p2p_flight_end *end = NULL;
		struct epf_p2p_xfer *x = NULL;
		bool is_safe;

		pthread_mutex_lock(&p->lock);
		/* Plain chunks touch the transfer's memory until the NIC or the engine has ended, and expanding writes it. A GPU that compresses only reads. */
		is_safe = is_closed
				  ? s->state >= SLOT_PUT
				  : s->is_packed && s->state >= SLOT_PUT && s->state != SLOT_TAKING;
		if (is_safe && s->x && (!of || s->x == of)) {
			x = s->x;
			end = s->end;
			s->x = NULL;
			s->is_stale = s->state == SLOT_ASKED && !s->is_read;
			__atomic_fetch_add(&p->stale, s->is_stale, __ATOMIC_RELEASE);
		}
		if (is_safe && is_closed) /* nothing is measured any more */
			release(p, s);
		pthread_mutex_unlock(&p->lock);
		if (x)
			end(x, 0, status);
	}
}

void epf_p2p_pack_cancel(struct epf_p2p_xfer *x)
{
	int status = EPF_LOAD_ACQUIRE(&x->status);

	if (x->may_pack)
		detach(x->conn, x, false, status ? status : -ECANCELED);
}

void epf_p2p_pack_end(struct conn *c, bool is_closed)
{
	if (c->pack)
		detach(c, NULL, is_closed, c->error);
}
