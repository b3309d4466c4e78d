/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work requests as DeepEP's kernels write them (64 bytes, big-endian, the shapes of an mlx5 send queue), and the rings they stand in:
 * memory of ours that the kernels take for a NIC's. A ring's owner takes requests out of it, turns them into fabric commands, and
 * notifies the kernel by a completion word. Called by one thread a ring; wr_hot.c is the hot half, wr.c makes rings and holds the words.
 *
 * A request in 32-bit words of memory (be32 unless said; "index" is the request's number in its ring, modulo 2^16):
 *
 *   word  0  opmod << 24 | index << 8 | opcode      1  ring number << 8 | 16-byte units      2  bytes 8..10 zero, byte 11 = 8      3  0
 *   word  4  remote address, high    5  low         6  key we gave out for the peer          7  0
 *   put      8  bytes                9  our local key           10, 11  local address
 *   inline   8  0x80000004           9  the value, as it lies in memory
 *   add      8  value                9  0          10, 11  undefined     12  4    13  our key    14, 15  our address of the old value
 *
 * A doorbell may be seen before the request it announces: fences in those kernels order for the GPU, not for a CPU. So each slot is filled with
 * a poison when it has been dequeued, and a request counts as written only when every word its shape needs has left its poison. The poison
 * can be no valid word; the two words that may hold any value have one that changes with each use of a slot.
 */
#ifndef EPF_TOOLS_SHIM_WR_H
#define EPF_TOOLS_SHIM_WR_H

#include "queues/epf_cmd.h"

#include <stddef.h>
#include <stdint.h>

enum {
	EPF_WR_BYTES = 64,
	EPF_WR_WORDS = 16,
	EPF_WR_MAX_SLOTS = 32768, /* indices are 16 bits; half of them tell before from behind */
	EPF_WR_MAX_PES = 4096,    /* ranks that a key can name */
	EPF_WR_CQE_BYTES = 64,    /* a completion entry */
	EPF_WR_CQE_COUNTER = 60,  /* its be16: index of the last request that is done */
};

/* Keys and addresses that we hand to the kernels, as be32 values and plain addresses. They say what is meant; nothing else is accepted. */
#define EPF_WR_RKEY        UINT32_C(0xef50a000) /* | rank: the peer that a request goes to */
#define EPF_WR_LKEY        UINT32_C(0xef50beef) /* the heap */
#define EPF_WR_OLD_LKEY    UINT32_C(0xef50bead) /* where an add's old value would go */
#define EPF_WR_OLD_ADDR    (UINT64_C(1) << 45)  /* its address, never written */
#define EPF_WR_REMOTE_BASE (UINT64_C(1) << 46)  /* every peer's heap begins here */
#define EPF_WR_MAX_HEAP    (UINT64_C(1) << 40)  /* bytes of the heap */
#define EPF_WR_POISON      __builtin_bswap32(0xfff1de5du) /* as a word of memory */

/* Operations. */
enum epf_wr_kind {
	EPF_WR_PUT = 1,    /* heap to a peer's heap */
	EPF_WR_INLINE = 2, /* 4 bytes to a peer's heap */
	EPF_WR_ADD =
		3, /* adds a 32-bit value to 4 bytes of a peer's heap, after earlier requests to it */
};

/* Why a request, or a ring's doorbell, is refused; epf_wr_refusal_text() has the words. */
enum epf_wr_refusal {
	EPF_WR_OK = 0,
	EPF_WR_DOORBELL_RING,  /* the doorbell names another ring */
	EPF_WR_DOORBELL_INDEX, /* it announces more requests than the ring holds */
	EPF_WR_OPCODE,         /* an operation that is not served */
	EPF_WR_INDEX,          /* another request's number: the ring was overrun, it is too short */
	EPF_WR_RING,           /* another ring's number */
	EPF_WR_SHAPE,          /* length, flags or a reserved word do not fit the operation */
	EPF_WR_PEER,           /* a remote key that was not handed out */
	EPF_WR_REMOTE,         /* not inside the peer's heap */
	EPF_WR_LOCAL_KEY,      /* a local key that was not handed out */
	EPF_WR_LOCAL,          /* not inside the own heap */
	EPF_WR_ALIGN,          /* an address that is no multiple of 4 */
	EPF_WR_LENGTH,         /* 0 bytes, or more than 2 GiB */
	EPF_WR_REFUSALS
};

/* What addresses and keys of a rank's requests may be. Read only while rings are served. */
struct epf_wr_space {
	uint64_t heap_base;  /* address of the own heap as kernels know it */
	uint64_t heap_bytes; /* of every rank's heap, at most EPF_WR_MAX_HEAP */
	uint32_t pes;        /* ranks, at most EPF_WR_MAX_PES */
	uint16_t region;     /* number of the heap's region, the same at every rank */
};

/* A request, checked. */
struct epf_wr {
	uint64_t local_offset;  /* bytes into the heap; PUT only */
	uint64_t remote_offset; /* bytes into the peer's heap */
	uint32_t pe;
	uint32_t bytes; /* 1..2^31; 4 for INLINE and ADD */
	uint32_t value; /* INLINE: as it lies in memory; ADD: the summand */
	uint32_t kind;  /* enum epf_wr_kind */
};

/* A ring. slots and wakeup are written by kernels of a GPU; everything else belongs to the thread that serves the ring. */
struct epf_wr_ring {
	uint32_t (*slots)[EPF_WR_WORDS];
	uint64_t *wakeup;  /* be32 index << 8 | (be32 ring number << 8) << 32, in memory order */
	uint8_t *cqe;      /* EPF_WR_CQE_BYTES; read by kernels */
	uint64_t dequeued; /* requests dequeued since the ring was made */
	uint64_t rung;     /* requests that the newest doorbell announced */
	uint32_t n_slots;  /* power of two, 4..EPF_WR_MAX_SLOTS */
	uint32_t number;   /* 24 bits */
	uint32_t seed;     /* of the changing poison */
	uint32_t looks;    /* at a request that holds its changing poison, or might */
	uint32_t early;    /* counts: doorbells seen before their request */
	uint32_t
		refusal; /* enum epf_wr_refusal; not 0: the ring is given up at request `dequeued` */
};

/* After so many looks a word that equals its changing poison counts as a value (chance of that: 2^-30 a request). */
#define EPF_WR_LOOKS (UINT32_C(1) << 20)

/**
 * epf_wr_ring_init() - a ring over memory of the caller's.
 * @slots: n_slots * 64 bytes, 64-byte aligned. @wakeup: 8 bytes, aligned. @cqe: 64 bytes, 64-byte aligned.
 *
 * Poisons the slots and sets doorbell and completion word to "nothing yet". No kernel may know the memory yet.
 * -EINVAL: n_slots or number out of range.
 */
int epf_wr_ring_init(struct epf_wr_ring *ring, void *slots, uint32_t n_slots, uint64_t *wakeup,
		     void *cqe, uint32_t number, uint32_t seed);

/**
 * epf_wr_take() - the next request of a ring. Hot.
 *
 * Return: 1 with *out filled (the slot is poisoned again and may be reused), 0 when nothing is there, or not yet all of it, or the ring
 * was given up. A request that must be refused gives the ring up: ring->refusal says why, once for all; those before it are not touched by that.
 * Everything the kernel wrote to host memory before the request is visible after a return of 1 (acquire).
 */
int epf_wr_take(struct epf_wr_ring *ring, const struct epf_wr_space *space, struct epf_wr *out);

/* epf_wr_prefetch() - brings what epf_wr_take() will look at first near, without waiting for it. Hot. */
void epf_wr_prefetch(const struct epf_wr_ring *ring);

/**
 * epf_wr_complete() - reports to kernels that the first `count` requests of the ring are done. Hot.
 * @count: 1..ring->dequeued; visible at their targets. It must not go back.
 */
void epf_wr_complete(struct epf_wr_ring *ring, uint64_t count);

/**
 * epf_wr_op() - the fabric command of a request. Hot.
 *
 * PUT and INLINE as they are. ADD: the fabric adds to aligned 8-byte words, so the summand is shifted to the half the request means. A sum
 * of a lower half past 2^32 would carry into the upper one; a NIC would not. DeepEP's kernels add once to a zeroed word, or count up.
 */
void epf_wr_op(const struct epf_wr *wr, const struct epf_wr_space *space, struct epf_op *out);

/* The words of a refusal: what was found and what to do. Never NULL. */
const char *epf_wr_refusal_text(uint32_t refusal);

/* epf_wr_poison() - fills slot `index % n_slots` for its use as request `index`. Hot. */
void epf_wr_poison(struct epf_wr_ring *ring, uint64_t index);

#endif
