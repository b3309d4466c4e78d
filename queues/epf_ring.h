/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command ring: slots of 16 bytes written by one producer domain (a GPU kernel, a CPU thread) and
 * consumed by one engine core. Layout, host-side producer and host-side consumer; the device-side
 * producer of the same layout is kernels/'s.
 *
 * Memory of one ring (all offsets in docs/abi.md): a 512-byte header, then 2^log2 slots. The producer writes
 * slots only; the core writes `dequeued`, the operator or library writes `abort`; each in a separate line,
 * because a GPU polls them and polled words closer than 32 bytes serialise.
 *
 * The consumer never reads an index from memory a client can write: a slot's parity says whether it is
 * full, so there is nothing to clamp. Each slot is loaded once, checked in the copy, never read again.
 *
 * Ordering (labels explained in queues/README.md):
 *   R1 producer: slot store is a release     A1 consumer: slot load is an acquire
 *   R2 consumer: `dequeued` store is a release  A2 producer: `dequeued` load is an acquire
 */
#ifndef EPF_QUEUES_RING_H
#define EPF_QUEUES_RING_H

#include "queues/epf_base.h"
#include "queues/epf_cmd.h"

#include <stddef.h>
#include <stdint.h>

#define EPF_RING_MAGIC    UINT64_C(0x31474e5246504545) /* "EEPFRNG1" in memory order */
#define EPF_RING_VERSION  1u
#define EPF_RING_LOG2_MIN 4u
#define EPF_RING_LOG2_MAX 20u

/*
 * Completion words of a ring: written by the core, read by the producer. R3 (release of `failed` and `retired` after the
 * error record) pairs with A3 (acquire load of either).
 */
struct epf_done {
	uint64_t retired;      /* commands retired, in ring order (a wide command counts once) */
	uint64_t failed;       /* of those: refused or failed */
	uint64_t error_index;  /* index of the first failed command plus 1; 0: none */
	uint32_t error_rank;   /* the rank it named */
	uint16_t error_status; /* enum epf_status */
	uint16_t error_reason; /* enum epf_reason (docs/errors.md) */
	uint64_t reserved[12];
};

EPF_STATIC_ASSERT(sizeof(struct epf_done) == 128,
		  "completion counters have their own pair of lines");
EPF_STATIC_ASSERT(offsetof(struct epf_done, error_rank) == 24, "completion counter layout is ABI");

struct epf_ring_shm {
	/* line 0: identity, written once */
	uint64_t magic;
	uint32_t version;
	uint32_t log2_slots;
	uint32_t ring_id; /* number of the ring within its rank */
	uint32_t rank;
	uint64_t reserved0[13];
	/* line 2: the consumer's */
	uint64_t dequeued; /* slots released to the producer */
	uint64_t reserved1[15];
	/* line 4: set by who wants every wait on this ring to end: a negative errno */
	int64_t abort;
	uint64_t reserved2[15];
	struct epf_done done;
};

EPF_STATIC_ASSERT(sizeof(struct epf_ring_shm) == 512, "ring header is 512 bytes");
EPF_STATIC_ASSERT(offsetof(struct epf_ring_shm, dequeued) == 128, "ring layout is ABI");
EPF_STATIC_ASSERT(offsetof(struct epf_ring_shm, abort) == 256, "ring layout is ABI");
EPF_STATIC_ASSERT(offsetof(struct epf_ring_shm, done) == 384, "ring layout is ABI");

/* Bytes of a ring of 2^log2 slots. */
EPF_INLINE size_t epf_ring_bytes(unsigned log2)
{
	return sizeof(struct epf_ring_shm) + ((size_t)EPF_CMD_BYTES << log2);
}

EPF_INLINE struct epf_cmd *epf_ring_slots(struct epf_ring_shm *shm)
{
	return (struct epf_cmd *)(void *)(shm + 1);
}

/* Writes the header of a ring into zeroed memory; the slots stay zero (empty). */
EPF_INLINE void epf_ring_format(struct epf_ring_shm *shm, unsigned log2, uint32_t ring_id,
				uint32_t rank)
{
	shm->version = EPF_RING_VERSION;
	shm->log2_slots = log2;
	shm->ring_id = ring_id;
	shm->rank = rank;
	EPF_STORE_RELEASE(&shm->magic, EPF_RING_MAGIC);
}

/* Sets all counters of a formatted ring to `start` and makes every slot empty for that lap: tests of wrap. */
EPF_INLINE void epf_ring_reset(struct epf_ring_shm *shm, uint64_t start)
{
	uint64_t size = UINT64_C(1) << shm->log2_slots, i;
	struct epf_cmd *slots = epf_ring_slots(shm);

	for (i = 0; i < size; i++) { /* start + i may wrap */
		uint64_t empty = epf_cmd_parity(start + i, shm->log2_slots) ^ 1u;

		slots[(start + i) & (size - 1)].lo = empty;
		slots[(start + i) & (size - 1)].hi = empty;
	}
	shm->dequeued = start;
	EPF_STORE_RELEASE(&shm->done.retired, start);
}

/* The producer's private side. One thread at a time. */
struct epf_ring_producer {
	struct epf_ring_shm *shm;
	struct epf_cmd *slots;
	uint64_t head;     /* slots written */
	uint64_t dequeued; /* last value seen of shm->dequeued */
	uint64_t pushed;   /* commands written: what done.retired counts up to */
	uint32_t log2;
	uint32_t reserved;
};

/* The core's private side: own copies of size and base; from shm it loads slots only. */
struct epf_ring_consumer {
	struct epf_ring_shm *shm;
	const struct epf_cmd *slots;
	uint64_t tail;      /* slots dequeued */
	uint64_t published; /* last value stored to shm->dequeued */
	uint32_t mask;
	uint32_t log2;
};

/* start: value of all counters at the beginning; 0 but in tests of wrap (both sides must agree). */
EPF_INLINE void epf_ring_producer_init(struct epf_ring_producer *p, struct epf_ring_shm *shm,
				       uint64_t start)
{
	p->shm = shm;
	p->slots = epf_ring_slots(shm);
	p->log2 = shm->log2_slots;
	p->head = start;
	p->dequeued = start;
	p->pushed = EPF_LOAD_RELAXED(&shm->done.retired);
	p->reserved = 0;
}

EPF_INLINE void epf_ring_consumer_init(struct epf_ring_consumer *c, struct epf_ring_shm *shm,
				       unsigned log2, uint64_t start)
{
	c->shm = shm;
	c->slots = epf_ring_slots(shm);
	c->log2 = log2;
	c->mask = (1u << log2) - 1u;
	c->tail = start;
	c->published = start;
}

#if defined(__SSE2__) && !defined(__CUDACC__) && !defined(__SANITIZE_THREAD__)
/* Both words of a slot. <emmintrin.h> has a type for it, too, but takes a compiler longer than all of this header. */
typedef uint64_t epf_slot_words __attribute__((vector_size(16), may_alias));
#endif

/* Loads a slot: one 16-byte load where the machine has it; two acquire loads elsewhere, held together by the parities. [A1] */
EPF_INLINE struct epf_cmd epf_slot_load(const struct epf_cmd *slot)
{
	struct epf_cmd c;

#if defined(__SSE2__) && !defined(__CUDACC__) && !defined(__SANITIZE_THREAD__)
	/* x86 does not reorder loads with loads, so a plain load is an acquire; the barrier is for the compiler, which must have both words in a register. */
	epf_slot_words v = *(const epf_slot_words *)(const void *)slot;

	__asm__ __volatile__("" : "+x"(v)::"memory");
	c.lo = v[0];
	c.hi = v[1];
#else
	c.lo = EPF_LOAD_ACQUIRE(&slot->lo);
	c.hi = EPF_LOAD_ACQUIRE(&slot->hi);
#endif
	return c;
}

/* Stores a slot: one aligned 16-byte store where the machine has it. [R1] */
EPF_INLINE void epf_slot_store(struct epf_cmd *slot, struct epf_cmd c)
{
#if defined(__SSE2__) && !defined(__CUDACC__) && !defined(__SANITIZE_THREAD__)
	/* x86 does not reorder stores with stores, so a plain store is a release; the barrier as above. */
	epf_slot_words v = { c.lo, c.hi };

	__asm__ __volatile__("" : "+x"(v)::"memory");
	*(epf_slot_words *)(void *)slot = v;
#else
	EPF_STORE_RELEASE(&slot->lo, c.lo);
	EPF_STORE_RELEASE(&slot->hi, c.hi);
#endif
}

/* Free slots seen by the producer; re-reads `dequeued` only when it seems that fewer than `want` are free. [A2] */
EPF_INLINE uint64_t epf_ring_room(struct epf_ring_producer *p, uint64_t want)
{
	uint64_t size = UINT64_C(1) << p->log2;

	if (EPF_UNLIKELY(p->head - p->dequeued + want > size))
		p->dequeued = EPF_LOAD_ACQUIRE(&p->shm->dequeued);
	return size - (p->head - p->dequeued);
}

/* Writes one packed slot (parity 0 in c); room must have been found. */
EPF_INLINE void epf_ring_put_slot(struct epf_ring_producer *p, struct epf_cmd c)
{
	uint64_t parity = epf_cmd_parity(p->head, p->log2);

	epf_slot_store(&p->slots[p->head & ((UINT64_C(1) << p->log2) - 1u)],
		       epf_cmd_with_parity(c, parity));
	p->head++;
}

/*
 * Pushes a narrow command. Returns 1, or 0 when the ring is full (nothing written).
 * Payload written before by this thread is visible to the core with the command.
 */
EPF_INLINE int epf_ring_push(struct epf_ring_producer *p, struct epf_cmd c)
{
	if (EPF_UNLIKELY(epf_ring_room(p, 1) < 1))
		return 0;
	epf_ring_put_slot(p, c);
	p->pushed++;
	return 1;
}

/* Pushes a wide command: both slots or none. */
EPF_INLINE int epf_ring_push_wide(struct epf_ring_producer *p, const struct epf_cmd c[2])
{
	if (EPF_UNLIKELY(epf_ring_room(p, 2) < 2))
		return 0;
	epf_ring_put_slot(p, c[0]);
	epf_ring_put_slot(p, c[1]);
	p->pushed++;
	return 1;
}

/* Consumer: loads the slot at `index` into *out; 1 if it is full in that lap. The caller then works on the copy. [A1] */
EPF_INLINE int epf_ring_peek(const struct epf_ring_consumer *c, uint64_t index, struct epf_cmd *out)
{
	uint64_t parity = epf_cmd_parity(index, c->log2);

	*out = epf_slot_load(&c->slots[index & c->mask]);
	return ((out->lo ^ parity) & 1u) == 0 && ((out->hi ^ parity) & 1u) == 0;
}

/* Consumer: gives all slots up to its tail back to the producer. [R2] */
EPF_INLINE void epf_ring_release(struct epf_ring_consumer *c)
{
	if (c->published != c->tail) {
		c->published = c->tail;
		EPF_STORE_RELEASE(&c->shm->dequeued, c->tail);
	}
}

/* Producer: commands retired so far. [A3] */
EPF_INLINE uint64_t epf_ring_retired(const struct epf_ring_producer *p)
{
	return EPF_LOAD_ACQUIRE(&p->shm->done.retired);
}

#endif
