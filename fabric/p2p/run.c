/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers under way: any number of threads copy chunks of one at the same time, the endpoint's and those that wait or test. A chunk is
 * claimed by moving the cursor; who leaves last, with nothing left to copy or after a failure, ends the transfer. queue.c has those that nobody else copies.
 */
#include "fabric/p2p/engine.h"
#include "fabric/p2p/gpu.h"

#include <errno.h>

#ifdef EPF_TEST_HOOKS
/* Where a thread begins and ends a visit, and how long chunks are that a GPU copies. */
void (*epf_p2p_hook_visit)(const struct epf_p2p_xfer *x, bool leaves);
uint64_t epf_p2p_hook_gpu_chunk = P2P_GPU_CHUNK;
# define GPU_CHUNK epf_p2p_hook_gpu_chunk
# define HOOK(x, leaves)           \
  do {                             \
   if (epf_p2p_hook_visit)         \
    epf_p2p_hook_visit(x, leaves); \
  } while (0)
#else
# define GPU_CHUNK       ((uint64_t)P2P_GPU_CHUNK)
# define HOOK(x, leaves) ((void)0)
#endif

struct claim {
	const struct vector *vector;
	const struct epf_p2p_block *block;
	uint32_t n;
	uint64_t skip, bytes; /* of one block; bytes of all */
};

static uint32_t length(const struct epf_p2p_block *b)
{
	return (uint32_t)(b->lo >> 48 | b->hi >> 48 << 16);
}

static const struct vector *vector_of(const struct epf_p2p_xfer *x, uint32_t block)
{
	uint32_t low = 0, high = x->n_vectors;

	while (high - low > 1) {
		uint32_t mid = low + (high - low) / 2;

		if (x->vectors[mid].first <= block)
			low = mid;
		else
			high = mid;
	}
	return &x->vectors[low];
}

/* True if chunks of this vector become flights: a GPU copies them asynchronously. */
static bool is_flown(const struct vector *v)
{
	return v->lane && !v->is_staged;
}

/* The chunk that begins at a cursor; returns the cursor behind it. */
static uint64_t chunk_at(const struct epf_p2p_xfer *x, uint64_t cursor, struct claim *out)
{
	uint32_t block = (uint32_t)(cursor >> 32), part = (uint32_t)cursor;
	const struct epf_p2p_block *b = &x->blocks[block];
	const struct vector *v = vector_of(x, block);
	uint64_t len = length(b), most = is_flown(v)    ? GPU_CHUNK
					 : x->packs_gpu ? P2P_PACK_CHUNK
							: P2P_CHUNK;
	uint32_t n = 1, end, blocks = is_flown(v) ? P2P_GPU_BLOCKS : P2P_CHUNK_BLOCKS;

	*out = (struct claim){ v, b, 1, 0, len };
	if (part || len > most) {
		out->skip = part * most;
		out->bytes = len - out->skip < most ? len - out->skip : most;
		return out->skip + out->bytes == len ? ((uint64_t)block + 1) << 32 : cursor + 1;
	}
	end = out->vector->first + out->vector->count;
	while (block + n < end && n < blocks && len + length(b + n) <= most)
		len += length(b + n++);
	out->n = n;
	out->bytes = len;
	return ((uint64_t)block + n) << 32;
}

/* Claims the next chunk, and a place in the GPU's lane if it becomes a flight. */
static bool claim(struct epf_p2p_xfer *x, struct claim *out)
{
	uint64_t cursor = EPF_LOAD_ACQUIRE(&x->cursor), next;

	for (;;) {
		if (cursor >> 32 >= x->n_blocks)
			return false;
		next = chunk_at(x, cursor, out);
		if (is_flown(out->vector) && !epf_p2p_gpu_reserve(out->vector->lane))
			return false;
		if (__atomic_compare_exchange_n(&x->cursor, &cursor, next, false, __ATOMIC_ACQ_REL,
						__ATOMIC_ACQUIRE))
			return true;
		if (is_flown(out->vector))
			epf_p2p_gpu_unreserve(out->vector->lane);
	}
}

static void set_status(struct epf_p2p_xfer *x, int status)
{
	int32_t none = 0;

	__atomic_compare_exchange_n(&x->status, &none, status, false, __ATOMIC_SEQ_CST,
				    __ATOMIC_SEQ_CST);
}

/* The transfer has ended: nobody but who holds a pin or the handle may touch it after the store of its state. */
static void done(struct epf_p2p_xfer *x)
{
	struct epf_p2p *ep = x->ep;
	struct epf_p2p_event e = { .kind = EPF_P2P_DONE,
				   .status = EPF_LOAD_ACQUIRE(&x->status),
				   .conn = x->conn->number,
				   .user = x->user };
	bool wants_event = x->wants_event;

	for (uint32_t i = 0; i < x->n_vectors; i++)
		__atomic_fetch_sub(&x->vectors[i].region->users, 1u, __ATOMIC_SEQ_CST);
	if (!e.status) {
		__atomic_fetch_add(&x->conn->transfers, 1u, __ATOMIC_RELAXED);
		__atomic_fetch_add(x->op == EPF_P2P_OP_WRITE ? &x->conn->bytes_written
							     : &x->conn->bytes_read,
				   x->bytes, __ATOMIC_RELAXED);
	} else {
		__atomic_fetch_add(&x->conn->failed, 1u, __ATOMIC_RELAXED);
	}
	__atomic_fetch_sub(&x->conn->under_way, 1u, __ATOMIC_RELAXED);
	__atomic_fetch_sub(&ep->run.active, 1u, __ATOMIC_RELAXED);
	__atomic_store_n(&x->state, XFER_DONE, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(&ep->run.waiters, __ATOMIC_SEQ_CST)) {
		pthread_mutex_lock(&ep->run.lock);
		pthread_cond_broadcast(&ep->run.idle);
		pthread_mutex_unlock(&ep->run.lock);
	}
	if (wants_event)
		epf_p2p_event(ep, &e, NULL);
}

/* Tries to send the notification of a transfer whose data is there. PUSHING: the caller's. */
static void push_note(struct epf_p2p_xfer *x)
{
	int rc = 0;

	if (x->has_note && !EPF_LOAD_ACQUIRE(&x->status))
		rc = epf_p2p_note_push(x->conn, x->note, x->note_bytes);
	if (rc == -EAGAIN) {
		EPF_STORE_RELEASE(&x->state, (uint32_t)XFER_NOTING);
		return;
	}
	if (rc)
		set_status(x, rc);
	done(x);
}

static bool move(struct epf_p2p_xfer *x, uint32_t from)
{
	return __atomic_compare_exchange_n(&x->state, &from, XFER_PUSHING, false, __ATOMIC_ACQ_REL,
					   __ATOMIC_RELAXED);
}

void epf_p2p_try_end(struct epf_p2p_xfer *x)
{
	int status;

	if (move(x, XFER_NOTING)) {
		push_note(x);
	} else if (move(x, XFER_DRAINING)) {
		if (!epf_p2p_engine_is_done(x, &status)) {
			EPF_STORE_RELEASE(&x->state, (uint32_t)XFER_DRAINING);
			return;
		}
		if (status)
			set_status(x, status);
		push_note(x);
	}
}

static void finish(struct epf_p2p_xfer *x)
{
	if (x->conn->engine) {
		epf_p2p_engine_seal(x);
		EPF_STORE_RELEASE(&x->state, (uint32_t)XFER_DRAINING);
		epf_p2p_try_end(x);
		return;
	}
	if (EPF_LOAD_ACQUIRE(&x->status) || !x->has_note) {
		done(x);
		return;
	}
	EPF_STORE_RELEASE(&x->state, (uint32_t)XFER_PUSHING);
	push_note(x);
}

/*
 * The end of a visit: who leaves last ends what is over. A thread that left last may still be here when another one has left last after it, has ended the transfer, and
 * the caller has posted it again: so each post is ended by its number.
 */
static void leave(struct epf_p2p_xfer *x)
{
	uint32_t post, before;

	if (__atomic_fetch_sub(&x->active, 1u, __ATOMIC_SEQ_CST) != 1)
		return;
	post = __atomic_load_n(&x->posts, __ATOMIC_SEQ_CST);
	before = post - 1;
	if (__atomic_load_n(&x->left, __ATOMIC_SEQ_CST) &&
	    !__atomic_load_n(&x->status, __ATOMIC_SEQ_CST))
		return;
	HOOK(x, true);
	if (!__atomic_compare_exchange_n(&x->ends, &before, post, false, __ATOMIC_SEQ_CST,
					 __ATOMIC_SEQ_CST))
		return;
	__atomic_store_n(&x->state, XFER_FINISHING, __ATOMIC_SEQ_CST);
	finish(x);
}

/* The visit keeps others from ending a post that has no number yet. */
void epf_p2p_begin(struct epf_p2p_xfer *x)
{
	__atomic_fetch_add(&x->active, 1u, __ATOMIC_SEQ_CST);
	__atomic_store_n(&x->state, XFER_RUNNING, __ATOMIC_SEQ_CST);
	__atomic_fetch_add(&x->posts, 1u, __ATOMIC_SEQ_CST);
	leave(x);
}

static void begin_flight(struct epf_p2p_xfer *x)
{
	pthread_mutex_lock(&x->ep->run.lock);
	x->flights++;
	pthread_mutex_unlock(&x->ep->run.lock);
}

/* Ends the visit that began a flight, once its copies are complete. */
static void end_flight(struct epf_p2p_xfer *x, uint64_t bytes, int status)
{
	struct epf_p2p *ep = x->ep;
	bool is_last;

	if (status)
		set_status(x, status);
	else
		__atomic_fetch_sub(&x->left, bytes, __ATOMIC_SEQ_CST);
	leave(x);
	pthread_mutex_lock(&ep->run.lock);
	is_last = --x->flights == 0 && x->is_orphan && !x->pins;
	if (!x->flights)
		pthread_cond_broadcast(&ep->run.idle);
	pthread_mutex_unlock(&ep->run.lock);
	if (is_last)
		epf_p2p_xfer_destroy(x);
}

/* Copies one chunk. Returns false if there is none to claim. */
bool epf_p2p_step(struct epf_p2p_xfer *x)
{
	struct pack_slot *slot = NULL;
	struct claim c = { .n = 0 };
	bool has = false;
	int rc;

	__atomic_fetch_add(&x->active, 1u, __ATOMIC_SEQ_CST);
	HOOK(x, false);
	if (__atomic_load_n(&x->state, __ATOMIC_SEQ_CST) == XFER_RUNNING &&
	    EPF_LOAD_ACQUIRE(&x->cursor) >> 32 < x->n_blocks &&
	    !__atomic_load_n(&x->status, __ATOMIC_SEQ_CST) &&
	    (!x->conn->engine || (epf_p2p_engine_has_room(x) && epf_p2p_pack_reserve(x, &slot))))
		has = claim(x, &c);
	if (slot && (!has || EPF_LOAD_ACQUIRE(&x->conn->state) != CONN_OPEN)) {
		epf_p2p_pack_unreserve(x->conn, slot);
		slot = NULL;
	}
	if (slot) {
		begin_flight(x);
		epf_p2p_pack_push(x, slot, c.vector, c.block, c.n, c.skip, c.bytes, end_flight);
		return true; /* as below */
	}
	if (has) {
		rc = EPF_LOAD_ACQUIRE(&x->conn->state) == CONN_OPEN
			     ? epf_p2p_copy(x, c.vector, c.block, c.n, c.skip, c.bytes)
			     : x->conn->error;
		if (rc == P2P_LATER)
			return true; /* this visit ends with the flight */
		if (is_flown(c.vector))
			epf_p2p_gpu_unreserve(c.vector->lane);
		if (rc)
			set_status(x, rc);
		else
			__atomic_fetch_sub(&x->left, c.bytes, __ATOMIC_SEQ_CST);
	}
	leave(x);
	return has;
}

void epf_p2p_gpu_poll(struct epf_p2p *ep)
{
	struct gpu_flight over[GPU_FLIGHTS];
	int status = 0;

	for (struct gpu_lane *l = EPF_LOAD_ACQUIRE(&ep->gpu.lanes); l; l = l->next) {
		unsigned n = epf_p2p_gpu_over(l, over, &status);

		for (unsigned i = 0; i < n; i++)
			end_flight(over[i].x, over[i].bytes, status);
	}
}

void epf_p2p_xfer_fail(struct epf_p2p_xfer *x, int status)
{
	__atomic_fetch_add(&x->active, 1u, __ATOMIC_SEQ_CST);
	switch (__atomic_load_n(&x->state, __ATOMIC_SEQ_CST)) {
	case XFER_RUNNING:
	case XFER_NOTING:
	case XFER_DRAINING:
		set_status(x, status);
		break;
	default:
		break;
	}
	epf_p2p_pack_cancel(x);
	leave(x);
	epf_p2p_try_end(x); /* one that waits for the peer to take its notification ends too */
}
