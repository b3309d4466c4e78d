/* SPDX-License-Identifier: Apache-2.0 */
/* Compressed chunks of the peer's transfers (pack_priv.h): checking what it asks for, and expanding or compressing on the connection's thread. */
#include "fabric/gpu/coder.h"
#include "fabric/p2p/pack_priv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

const char epf_p2p_pack_lost[] = "it does not take messages about compressed chunks";
const char epf_p2p_pack_damaged[] = "it sent a compressed chunk that is damaged";

/* A checked request, for the connection's thread. */
struct order {
	struct msg_chunk m;
	struct piece piece[CHUNK_PIECES];
};

static int check(const struct pack *p, const struct msg_chunk *m, const struct piece *piece)
{
	uint64_t bytes = 0, most = m->is_gpu ? (uint64_t)EPF_CODER_BYTES : (uint64_t)CODEC_BYTES;
	uint32_t room = m->is_gpu ? (uint32_t)EPF_CODER_ROOM : (uint32_t)CODEC_ROOM;

	for (uint32_t i = 0; i < m->n; i++)
		bytes += piece[i].bytes;
	if (m->slot >= PACK_SLOTS || m->is_read > 1 || !m->n || m->bytes != bytes || bytes > most ||
	    m->packed > room || !epf_p2p_float_bytes(m->type) || m->is_gpu > (p->gpu_memory != 0))
		return -EBADMSG;
	return 0;
}

int epf_p2p_pack_asked(struct conn *c, const uint8_t *data, uint32_t bytes)
{
	struct pack *p = c->pack;
	struct order o = { .m.n = 0 };
	struct pack_slot *s;
	bool is_free;

	if (bytes < sizeof(o.m))
		return -EBADMSG;
	memcpy(&o.m, data, sizeof(o.m));
	if (o.m.n > CHUNK_PIECES || bytes != sizeof(o.m) + o.m.n * sizeof(o.piece[0]))
		return -EBADMSG;
	memcpy(o.piece, data + sizeof(o.m), o.m.n * sizeof(o.piece[0]));
	if (check(p, &o.m, o.piece) || !EPF_LOAD_ACQUIRE(&c->engine->is_joined) ||
	    !EPF_LOAD_ACQUIRE(&p->is_ready))
		return -EBADMSG;
	s = epf_p2p_pack_slot(p, true, o.m.is_read, o.m.slot);
	pthread_mutex_lock(&p->lock);
	is_free = s->state == SLOT_FREE;
	if (is_free) {
		s->state = SLOT_RESERVED;
		__atomic_fetch_add(&p->busy, 1u, __ATOMIC_RELAXED);
	}
	pthread_mutex_unlock(&p->lock);
	if (!is_free)
		return -EBADMSG;
	return epf_p2p_engine_do(c, epf_p2p_pack_serve, &o, sizeof(o)) ? -EBADMSG : 0;
}

/* Frees a served slot and answers. */
void epf_p2p_pack_served(struct conn *c, struct pack_slot *s, int status)
{
	struct pack *p = c->pack;
	struct msg_chunk_done m = {
		.slot = s->index, .is_read = s->is_read, .status = status, .packed = s->packed
	};

	pthread_mutex_lock(&p->lock);
	s->state = SLOT_FREE;
	__atomic_fetch_sub(&p->busy, 1u, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&p->lock);
	if (epf_p2p_send(&c->stream, MSG_CHUNK_DONE, &m, sizeof(m), NULL, 0))
		epf_p2p_conn_end(c, CONN_LOST, epf_p2p_pack_lost);
}

/* The pieces of a request in the memory of an export. -ERANGE: outside. */
static int peer_pieces(const struct order *o, const struct export *e, struct iovec *iov)
{
	for (uint32_t i = 0; i < o->m.n; i++) {
		const struct piece *p = &o->piece[i];

		if (p->offset > e->key.bytes || p->bytes > e->key.bytes - p->offset)
			return -EACCES;
		iov[i].iov_base = (uint8_t *)(uintptr_t)e->key.addr + p->offset;
		iov[i].iov_len = p->bytes;
	}
	return 0;
}

/* Copies between an export and a slot. The export is pinned. */
static int copy(struct conn *c, struct pack_slot *s, const struct order *o, const struct export *e)
{
	struct pack *p = c->pack;
	struct iovec iov[CHUNK_PIECES];
	struct packer *k;
	int rc = peer_pieces(o, e, iov);

	if (rc)
		return rc;
	if (s->is_gpu && s->is_read)
		return epf_p2p_pack_gpu_compress(c, s, e->region->device, o->m.type, iov, o->m.n,
						 epf_p2p_pack_out(p, true, s->index));
	if (s->is_gpu)
		return epf_p2p_pack_gpu_expand(c, epf_p2p_pack_in(p, false, s->index), o->m.packed,
					       e->region->device, o->m.type, iov, o->m.n,
					       o->m.bytes);
	k = epf_p2p_packer_get(p);
	if (!k)
		return -ENOMEM;
	if (s->is_read)
		s->packed = epf_p2p_pack_encode(k, c->compress, o->m.type, iov, o->m.n, o->m.bytes,
						epf_p2p_pack_out(p, true, s->index));
	else
		rc = epf_p2p_pack_decode(k, epf_p2p_pack_in(p, false, s->index), o->m.packed, iov,
					 o->m.n, o->m.bytes);
	epf_p2p_packer_put(p, k);
	return rc;
}

void epf_p2p_pack_serve(struct conn *c, const void *data)
{
	const struct order *o = data;
	struct pack_slot *s = epf_p2p_pack_slot(c->pack, true, o->m.is_read, o->m.slot);
	struct export *e;
	int rc = epf_p2p_export_pin(c, o->m.export_slot, o->m.generation,
				    s->is_read ? EPF_P2P_READ : EPF_P2P_WRITE, o->m.is_gpu, &e);

	s->bytes = o->m.bytes;
	s->packed = 0;
	s->is_gpu = o->m.is_gpu;
	if (!rc) {
		rc = copy(c, s, o, e);
		epf_p2p_export_unpin(c);
	}
	if (rc == -EBADMSG) {
		epf_p2p_conn_end(c, CONN_LOST, epf_p2p_pack_damaged);
		rc = -ECONNRESET;
	}
	if (!rc && s->is_read)
		rc = epf_p2p_pack_put(c, s);
	if (rc || !s->is_read)
		epf_p2p_pack_served(c, s, rc);
}
