/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hot half of wr.h: looks at doorbells, waits for requests that are not all there, checks and takes them. It must never believe a word
 * twice: a slot is copied first, and only the copy is looked at. Nothing here allocates, locks, logs or enters the kernel.
 */
#include "tools/shim/wr.h"

enum {
	AHEAD = 2
}; /* requests: a GPU's stores are far away, and the next ones come while this one is dequeued */

/* Opcodes, and the shape of a 32-bit masked add. */
enum { OP_WRITE = 0x08, OP_MASKED_ADD = 0x15, OPMOD_4_BYTES = 0x08 };

#define INLINE_4    UINT32_C(0x80000004)
#define WANT_CQE    UINT32_C(8) /* word 2: byte 11 */
#define VALUE_WORD  8u          /* of an add */
#define INLINE_WORD 9u
#define MAX_PUT     (UINT32_C(1) << 31)
#define KEY_PE_MASK UINT32_C(0xfff)
#define LOW16       UINT64_C(0xffff)

static uint32_t be(uint32_t word)
{
	return __builtin_bswap32(word);
}

static uint64_t be_pair(const uint32_t *w)
{
	return (uint64_t)be(w[0]) << 32 | be(w[1]);
}

/* Any mixing will do: what matters is that a program cannot know it. */
static uint32_t mix(uint32_t seed, uint64_t index)
{
	uint64_t x = (index ^ (uint64_t)seed << 32) + UINT64_C(0x9e3779b97f4a7c15);

	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return (uint32_t)(x >> 32);
}

/* As word 8 it must be no length of a put and not INLINE_4: both are distinguished from values by it. */
static uint32_t poison_value(const struct epf_wr_ring *ring, uint64_t index)
{
	return be((mix(ring->seed, index) | UINT32_C(0x80000010)));
}

/* As word 9 it must be neither a key of ours nor the zero behind an add's summand. */
static uint32_t poison_inline(const struct epf_wr_ring *ring, uint64_t index)
{
	uint32_t p = mix(~ring->seed, index);

	return p == 0 || p == be(EPF_WR_LKEY) ? EPF_WR_POISON : p;
}

void epf_wr_poison(struct epf_wr_ring *ring, uint64_t index)
{
	uint32_t *slot = ring->slots[index & (ring->n_slots - 1)];

	for (unsigned i = 0; i < EPF_WR_WORDS; i++)
		EPF_STORE_RELAXED(&slot[i], EPF_WR_POISON);
	EPF_STORE_RELAXED(&slot[VALUE_WORD], poison_value(ring, index));
	EPF_STORE_RELAXED(&slot[INLINE_WORD], poison_inline(ring, index));
}

/* Words that have not been written, one bit each. */
static unsigned missing(const struct epf_wr_ring *ring, const uint32_t *w)
{
	unsigned bits = 0;

	for (unsigned i = 0; i < EPF_WR_WORDS; i++)
		bits |= (unsigned)(w[i] == EPF_WR_POISON) << i;
	bits &= ~(1u << VALUE_WORD | 1u << INLINE_WORD);
	bits |= (unsigned)(w[VALUE_WORD] == poison_value(ring, ring->dequeued)) << VALUE_WORD;
	bits |= (unsigned)(w[INLINE_WORD] == poison_inline(ring, ring->dequeued)) << INLINE_WORD;
	return bits;
}

/* Words that a request of this first word, and this ninth one, consists of. 0: no such operation. */
static unsigned needed(const uint32_t *w)
{
	uint32_t first = be(w[0]);

	if ((first & 0xff) == OP_WRITE)
		return be(w[8]) == INLINE_4 ? 0x03ffu : 0x0fffu;
	if ((first & 0xff) == OP_MASKED_ADD)
		return 0xf3ffu;
	return 0;
}

static uint32_t check_remote(const struct epf_wr_space *space, const uint32_t *w,
			     struct epf_wr *out)
{
	uint32_t key = be(w[6]);
	uint64_t offset = be_pair(w + 4) - EPF_WR_REMOTE_BASE;

	if ((key & ~KEY_PE_MASK) != EPF_WR_RKEY || (key & KEY_PE_MASK) >= space->pes)
		return EPF_WR_PEER;
	if (offset & 3)
		return EPF_WR_ALIGN;
	if (offset >= space->heap_bytes || out->bytes > space->heap_bytes - offset)
		return EPF_WR_REMOTE;
	out->pe = key & KEY_PE_MASK;
	out->remote_offset = offset;
	return EPF_WR_OK;
}

static uint32_t check_put(const struct epf_wr_space *space, const uint32_t *w, struct epf_wr *out)
{
	uint64_t offset = be_pair(w + 10) - space->heap_base;

	out->kind = EPF_WR_PUT;
	out->bytes = be(w[8]);
	out->value = 0;
	if (out->bytes == 0 || out->bytes > MAX_PUT)
		return EPF_WR_LENGTH;
	if (be(w[9]) != EPF_WR_LKEY)
		return EPF_WR_LOCAL_KEY;
	if (be_pair(w + 10) & 3)
		return EPF_WR_ALIGN;
	if (offset >= space->heap_bytes || out->bytes > space->heap_bytes - offset)
		return EPF_WR_LOCAL;
	out->local_offset = offset;
	return check_remote(space, w, out);
}

static uint32_t check_small(const struct epf_wr_space *space, const uint32_t *w, struct epf_wr *out)
{
	out->local_offset = 0;
	out->bytes = 4;
	if ((be(w[0]) & 0xff) == OP_WRITE) {
		out->kind = EPF_WR_INLINE;
		out->value = w[9];
	} else {
		out->kind = EPF_WR_ADD;
		out->value = be(w[8]);
		if (w[9] != 0 || be(w[12]) != 4)
			return EPF_WR_SHAPE;
		if (be(w[13]) != EPF_WR_OLD_LKEY || be_pair(w + 14) != EPF_WR_OLD_ADDR)
			return EPF_WR_LOCAL_KEY;
	}
	return check_remote(space, w, out);
}

/* A request that is all there. */
static uint32_t check(const struct epf_wr_ring *ring, const struct epf_wr_space *space,
		      const uint32_t *w, struct epf_wr *out)
{
	uint32_t first = be(w[0]), second = be(w[1]);
	int is_add = (first & 0xff) == OP_MASKED_ADD;

	if ((first >> 8 & 0xffff) != (ring->dequeued & LOW16))
		return EPF_WR_INDEX;
	if (second >> 8 != ring->number)
		return EPF_WR_RING;
	if (first >> 24 != (is_add ? OPMOD_4_BYTES : 0u) || (second & 0xff) != (is_add ? 4u : 3u) ||
	    be(w[2]) != WANT_CQE || w[3] != 0 || w[7] != 0)
		return EPF_WR_SHAPE;
	if (is_add || be(w[8]) == INLINE_4)
		return check_small(space, w, out);
	return check_put(space, w, out);
}

/*
 * Whether a doorbell announces a request that has not been dequeued. One that goes back announces nothing: the kernels' lock orders two stores to it for a
 * block only, and what an older one announces has been dequeued.
 */
static int is_rung(struct epf_wr_ring *ring)
{
	uint64_t wakeup = EPF_LOAD_ACQUIRE(ring->wakeup);
	uint32_t index = be((uint32_t)wakeup), number = be((uint32_t)(wakeup >> 32));
	uint64_t more;

	if (ring->dequeued != ring->rung)
		return 1;
	more = ((index >> 8) - ring->dequeued) & LOW16;
	if (EPF_LIKELY(more == 0 && (index & ~UINT32_C(0xffff00)) == 0 &&
		       number == ring->number << 8))
		return 0;
	if (number != ring->number << 8)
		ring->refusal = EPF_WR_DOORBELL_RING;
	else if ((index & ~UINT32_C(0xffff00)) != 0)
		ring->refusal = EPF_WR_DOORBELL_INDEX;
	else if (more > ring->n_slots)
		ring->refusal =
			((0 - more) & LOW16) <= ring->n_slots ? EPF_WR_OK : EPF_WR_DOORBELL_INDEX;
	else
		ring->rung = ring->dequeued + more;
	return ring->dequeued != ring->rung;
}

/* Whether what is missing may be missing no longer: 1 wait, 0 take the words for values. */
static int must_wait(struct epf_wr_ring *ring, unsigned need, unsigned lacks, int is_add,
		     int is_inline)
{
	unsigned values = is_add ? 1u << VALUE_WORD : is_inline ? 1u << INLINE_WORD : 0;

	ring->early += ring->looks == 0;
	if ((lacks & need & ~values) != 0) {
		ring->looks = 1;
		return 1;
	}
	return ++ring->looks < EPF_WR_LOOKS;
}

void epf_wr_prefetch(const struct epf_wr_ring *ring)
{
	for (unsigned i = 0; i < AHEAD; i++)
		__builtin_prefetch(ring->slots[(ring->dequeued + i) & (ring->n_slots - 1)]);
}

int epf_wr_take(struct epf_wr_ring *ring, const struct epf_wr_space *space, struct epf_wr *out)
{
	uint32_t copy[EPF_WR_WORDS];
	const uint32_t *slot;
	unsigned lacks, need;
	struct epf_wr wr;

	if (ring->refusal || !is_rung(ring))
		return 0;
	slot = ring->slots[ring->dequeued & (ring->n_slots - 1)];
	if (ring->rung - ring->dequeued > AHEAD)
		__builtin_prefetch(ring->slots[(ring->dequeued + AHEAD) & (ring->n_slots - 1)]);
	for (unsigned i = 0; i < EPF_WR_WORDS; i++)
		copy[i] = EPF_LOAD_ACQUIRE(&slot[i]);
	lacks = missing(ring, copy);
	need = needed(copy);
	if (!need && !(lacks & 1u)) {
		ring->refusal = EPF_WR_OPCODE;
		return 0;
	}
	if (EPF_UNLIKELY(!need || (lacks & need) != 0) &&
	    must_wait(ring, need ? need : 1u, lacks, need == 0xf3ffu, need == 0x03ffu))
		return 0;
	ring->refusal = check(ring, space, copy, &wr);
	if (ring->refusal)
		return 0;
	ring->looks = 0;
	epf_wr_poison(ring, ring->dequeued + ring->n_slots);
	ring->dequeued++;
	*out = wr;
	return 1;
}

void epf_wr_complete(struct epf_wr_ring *ring, uint64_t count)
{
	uint16_t last = (uint16_t)(count - 1);

	/* Release: slots that this completion lets a kernel use again have been poisoned before. */
	EPF_STORE_RELEASE((uint16_t *)(void *)(ring->cqe + EPF_WR_CQE_COUNTER),
			  __builtin_bswap16(last));
}

void epf_wr_op(const struct epf_wr *wr, const struct epf_wr_space *space, struct epf_op *out)
{
	*out = (struct epf_op){ .op = EPF_OP_PUT,
				.rank = wr->pe,
				.local_region = space->region,
				.remote_region = space->region,
				.local_offset = wr->local_offset,
				.remote_offset = wr->remote_offset,
				.length = wr->bytes,
				.add = 1 };
	if (wr->kind == EPF_WR_PUT)
		return;
	out->local_region = 0;
	out->value = wr->value;
	if (wr->kind == EPF_WR_INLINE) {
		out->op = EPF_OP_PUT_INLINE;
		return;
	}
	out->op = EPF_OP_ADD;
	out->length = 8;
	out->remote_offset = wr->remote_offset & ~UINT64_C(7);
	if (wr->remote_offset & 4)
		out->value <<= 32;
}
