/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compressed chunks of a connection over NICs (setting p2p-compress). A chunk of a write is compressed into a slot of this end's staging memory, put
 * into the same slot of the peer's, and after a flush announced over the control connection; a thread of the peer expands it into the exported
 * memory, which is kept from withdrawal meanwhile, and answers. A chunk of a read is asked for, and comes the other way. Each end has slots for
 * the transfers that it starts and slots for those of its peer; whoever starts a transfer chooses, so they need no agreement.
 *
 *   write:  RESERVED -> (compress; GPU memory: CODING -> RESERVED) PUT -> FLUSHING -> ASKED -> (answer) FREE
 *   read:   RESERVED -> ASKED -> (answer) TAKING -> (expand) FREE
 *   served: RESERVED (a job of the connection's thread) -> FREE, or for a read -> PUT -> FLUSHING -> FREE and answered
 * Plain chunks that are measured go RESERVED -> PUT -> FLUSHING -> FREE. Locks: ring_lock, then pack.lock; neither over a copy.
 */
#ifndef EPF_FABRIC_P2P_PACK_PRIV_H
#define EPF_FABRIC_P2P_PACK_PRIV_H

#include "fabric/p2p/engine.h"
#include "fabric/p2p/engine_priv.h"
#include "fabric/p2p/gain.h"

#include <sys/uio.h>

enum {
	PACK_SLOTS = 8, /* chunks under way, of writes and of reads */
	PACK_PAGE = 4096,
	PACK_GAINS = 4, /* measured apart: writes and reads, of the host's memory and of GPUs' */
};

enum pack_state {
	SLOT_FREE,
	SLOT_RESERVED,
	SLOT_PUT,
	SLOT_FLUSHING,
	SLOT_ASKED,
	SLOT_TAKING,
	SLOT_CODING, /* an own chunk of GPU memory: the connection's thread compresses it, or is about to */
};

struct pack_slot {
	enum pack_state state;
	bool is_read, is_served, is_packed, is_stale;
	bool is_gpu; /* between memory of GPUs */
	uint32_t index;
	/* Of an own chunk. x: NULL once the transfer does not wait for it any more. */
	struct epf_p2p_xfer *x;
	epf_p2p_flight_end *end;
	const struct vector *v;
	const struct epf_p2p_block *b;
	uint32_t n;
	uint64_t skip;
	uint32_t bytes, packed; /* of the chunk; of what travels */
	unsigned ring;
	struct ticket t; /* its commands; end with the flush */
};

/* What one thread needs to compress or expand. */
struct packer {
	struct packer *next;
	struct codec *codec;
	uint8_t values[CODEC_BYTES]; /* of several blocks */
	uint8_t chunk[CODEC_ROOM];   /* copied from memory that the peer can write */
};

struct pack {
	pthread_mutex_t lock;
	uint8_t *
		memory; /* staging: what peers write (writes, answers to reads), then what this end sends (the same) */
	uint64_t gpu_memory; /* the same for GPUs; 0: none is agreed on */
	uint32_t slot_bytes; /* the same at both ends */
	uint32_t in_region, out_region, peer_region;
	bool gpu_failed; /* own chunks of GPU memory go as they are from now on; atomic */
	bool is_ready;   /* the peer's staging is known; atomic */
	uint32_t busy;   /* slots that are not free; atomic to readers */
	/*
	 * Chunks that the peer may still write for transfers that have failed. Nothing else is sent until it has answered, so that they never
	 * overwrite what a later transfer wrote. Atomic to readers.
	 */
	uint32_t stale;
	struct pack_slot
		slots[4 * PACK_SLOTS]; /* own writes, own reads, served writes, served reads */
	struct gain gain[PACK_GAINS];
	struct packer *packers;        /* free ones */
	uint64_t flush_end[P2P_RINGS]; /* the flush under way in a ring; 0: none */
};

static inline struct pack_slot *epf_p2p_pack_slot(struct pack *p, bool is_served, bool is_read,
						  uint32_t index)
{
	return &p->slots[(is_served ? 2u * PACK_SLOTS : 0) + (is_read ? PACK_SLOTS : 0) + index];
}

static inline struct gain *epf_p2p_pack_gain(struct pack *p, const struct pack_slot *s)
{
	return &p->gain[2 * s->is_gpu + s->is_read];
}

/* Staging memory of the slots of one kind. */
static inline uint64_t epf_p2p_pack_part(const struct pack *p)
{
	return PACK_SLOTS * (uint64_t)p->slot_bytes;
}

/* Slots whose commands are retired. */
struct pack_over {
	struct pack_slot *slot[4 * PACK_SLOTS];
	int status[4 * PACK_SLOTS];
	unsigned n;
	bool is_moving; /* commands of others are under way */
};

/* pack_ring.c: staging memory, commands, and when they are retired. */
int epf_p2p_pack_put(struct conn *c,
		     struct pack_slot *s); /* a compressed chunk into the peer's slot */
int epf_p2p_pack_put_plain(struct conn *c, struct pack_slot *s); /* a chunk to where it belongs */
void epf_p2p_pack_look(struct conn *c, struct pack_over *out);
uint8_t *epf_p2p_pack_in(struct pack *p, bool is_read, uint32_t slot);
uint8_t *epf_p2p_pack_out(struct pack *p, bool is_read, uint32_t slot);

/* pack_copy.c */
struct packer *epf_p2p_packer_get(struct pack *p); /* NULL: no memory */
void epf_p2p_packer_put(struct pack *p, struct packer *k);
void epf_p2p_packers_free(struct pack *p);
/* Compresses n pieces of memory, together `bytes` bytes, to `to` (CODEC_ROOM bytes). Returns the length of the chunk. */
uint32_t epf_p2p_pack_encode(struct packer *k, enum codec_strategy strategy,
			     enum epf_p2p_float type, const struct iovec *from, uint32_t n,
			     uint32_t bytes, uint8_t *to);
/* Expands a chunk, at most CODEC_ROOM bytes that the peer can write, into n pieces of memory. -EBADMSG: nothing was written. */
int epf_p2p_pack_decode(struct packer *k, const uint8_t *from, uint32_t from_bytes,
			const struct iovec *to, uint32_t n, uint32_t bytes);

/* pack_gpu.c */
/*
 * Compresses n pieces of a GPU's memory to `to` in the staging memory, and notes the length in the slot; expands what is there. Both wait for the GPU.
 * -EBADMSG: damaged, nothing was written.
 */
int epf_p2p_pack_gpu_compress(struct conn *c, struct pack_slot *s, int device,
			      enum epf_p2p_float type, const struct iovec *from, uint32_t n,
			      uint8_t *to);
int epf_p2p_pack_gpu_expand(struct conn *c, const uint8_t *from, uint32_t packed, int device,
			    enum epf_p2p_float type, const struct iovec *to, uint32_t n,
			    uint32_t bytes);
/* Makes the staging memory, of so many bytes, reachable by GPUs, and undoes it. */
int epf_p2p_pack_gpu_pin(struct conn *c, uint64_t bytes);
void epf_p2p_pack_gpu_unpin(struct conn *c);

/* pack.c */
void epf_p2p_pack_announce(struct conn *c,
			   struct pack_slot *s); /* an own write is in the peer's slot */
void epf_p2p_pack_finish(struct conn *c, struct pack_slot *s, int status);
void epf_p2p_pack_take(struct conn *c, const void *data); /* a job: expands the answer to a read */

/* pack_peer.c */
extern const char epf_p2p_pack_lost[], epf_p2p_pack_damaged[]; /* why a connection ends */
void epf_p2p_pack_served(struct conn *c, struct pack_slot *s, int status);
void epf_p2p_pack_serve(struct conn *c, const void *data); /* a job: a chunk of the peer */

#endif
