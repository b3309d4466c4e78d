/* SPDX-License-Identifier: Apache-2.0 */
/* Posting, testing, waiting for and freeing transfers; run.c copies. */
#include "fabric/base/clock.h"
#include "fabric/p2p/engine.h"
#include "fabric/p2p/gpu.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WAIT_NS = 1000 * 1000, SPINS = 200, YIELDS = 1200, GPU_REST_NS = 10 * 1000 };

static const uint64_t cancel_ns = 2000000000ull;

static int explain(const struct epf_p2p_xfer *x, int status)
{
	const char *who = x->conn->label;
	uint64_t left;

	switch (status) {
	case -ECONNRESET:
	case -EPIPE:
		if (EPF_LOAD_ACQUIRE(&x->conn->state) != CONN_OPEN)
			return epf_p2p_conn_error(x->conn);
		if (status == -ECONNRESET) /* the NIC knows before the control connection does */
			return epf_fail(EPF_R_P2P_LOST, "transfer: %s does not answer the NIC",
					who);
		return epf_fail(EPF_R_P2P_CLOSED, "transfer: %s has disconnected", who);
	case -EKEYREVOKED:
		return epf_fail(EPF_R_P2P_REVOKED, "transfer: %s has withdrawn its memory", who);
	case -EKEYEXPIRED:
		return epf_fail(EPF_R_P2P_EXPIRED, "transfer: the export of %s has expired", who);
	case -ETIMEDOUT:
		left = EPF_LOAD_ACQUIRE(&x->left);
		return epf_fail(EPF_R_P2P_TIMEOUT,
				"transfer: not over with %s at its deadline: %llu of %llu bytes %s",
				who, (unsigned long long)(left ? left : x->bytes),
				(unsigned long long)x->bytes,
				!left             ? "are there, but their end is not confirmed"
				: x->conn->engine ? "are not handed to the NICs"
						  : "are not copied");
	case -ECANCELED:
		return epf_fail(EPF_R_P2P_CANCELLED, "transfer: cancelled with %s", who);
	case -EFAULT:
		return epf_fail(EPF_R_P2P_FAULT, "transfer: memory is not mapped, here or at %s",
				who);
	case -EIO:
		return epf_fail(EPF_R_GPU_CALL, "transfer: a GPU failed to copy to or from %s",
				who);
	case -EPERM:
		return epf_fail(EPF_R_P2P_FORBIDDEN,
				"transfer: the kernel refuses copies to or from %s", who);
	default:
		return epf_fail_sys(EPF_R_SYSTEM, -status, "transfer: with %s", who);
	}
}

/* Says that the transfer uses its regions; undone if one is gone. */
static int use_regions(struct epf_p2p_xfer *x)
{
	for (uint32_t i = 0; i < x->n_vectors; i++) {
		struct region *r = x->vectors[i].region;

		__atomic_fetch_add(&r->users, 1u, __ATOMIC_SEQ_CST); /* W2 */
		if (!__atomic_load_n(&r->gone, __ATOMIC_SEQ_CST))    /* W2 */
			continue;
		for (uint32_t k = 0; k <= i; k++)
			__atomic_fetch_sub(&x->vectors[k].region->users, 1u, __ATOMIC_SEQ_CST);
		return epf_fail(EPF_R_P2P_STALE, "post: the region of vector %u was deregistered",
				i);
	}
	return 0;
}

static int keep_note(struct epf_p2p_xfer *x, const void *note, size_t bytes)
{
	if (bytes > EPF_P2P_NOTE_BYTES || (bytes && !note))
		return epf_fail(EPF_R_P2P_ARGUMENT, "post: a notification of %zu bytes; at most %u",
				bytes, EPF_P2P_NOTE_BYTES);
	if (bytes > x->note_room) {
		char *more = realloc(x->note, bytes);

		if (!more)
			return epf_fail(EPF_R_NO_MEMORY, "post: a notification");
		x->note = more;
		x->note_room = (uint32_t)bytes;
	}
	if (bytes)
		memcpy(x->note, note, bytes);
	x->note_bytes = (uint32_t)bytes;
	x->has_note = note != NULL;
	return 0;
}

/*
 * True if a transfer over NICs is pushed, and nobody but who tests it or waits for it cares when it ends, while the endpoint's thread looks soon by
 * itself. Waking it would take a CPU from the caller: of 47 us for 4 KiB the caller spent 32 here.
 */
static bool is_watched(const struct epf_p2p_xfer *x)
{
	return !x->wants_event && !x->has_note && EPF_LOAD_ACQUIRE(&x->state) != XFER_RUNNING &&
	       EPF_LOAD_ACQUIRE(&x->ep->naps);
}

int epf_p2p_post(struct epf_p2p_xfer *x, const void *note, size_t note_bytes)
{
	uint32_t state = EPF_LOAD_ACQUIRE(&x->state);
	int rc;

	if (state != XFER_IDLE && state != XFER_DONE)
		return epf_fail(EPF_R_P2P_BUSY, "post: the transfer with %s is under way",
				x->conn->label);
	if (EPF_LOAD_ACQUIRE(&x->conn->state) != CONN_OPEN)
		return epf_p2p_conn_error(x->conn);
	rc = keep_note(x, note, note_bytes);
	if (!rc)
		rc = use_regions(x);
	if (rc)
		return rc;
	EPF_STORE_RELAXED(&x->deadline_ns, epf_p2p_deadline(x->ep, x->limit_ns));
	__atomic_fetch_add(&x->conn->under_way, 1u, __ATOMIC_RELAXED);
	__atomic_fetch_add(&x->ep->run.active, 1u, __ATOMIC_RELAXED);
	EPF_STORE_RELAXED(&x->status, 0);
	x->rings = 0;
	EPF_STORE_RELAXED(&x->left, x->bytes);
	EPF_STORE_RELAXED(&x->cursor, 0ull);
	epf_p2p_begin(x);
	if (x->bytes <= P2P_INLINE && x->n_blocks <= P2P_CHUNK_BLOCKS) {
		while (epf_p2p_step(x))
			;
		if (x->conn->engine ? is_watched(x) : !x->has_gpu)
			return 0;
	}
	epf_p2p_enqueue(x); /* GPU copies too: the thread ends them if nobody polls */
	return 0;
}

/* Whether something more urgent is to be copied first. */
static bool must_yield(const struct epf_p2p_xfer *x)
{
	return x->priority == EPF_P2P_BACKGROUND &&
	       (EPF_LOAD_RELAXED(&x->ep->run.queued[EPF_P2P_NORMAL]) ||
		EPF_LOAD_RELAXED(&x->ep->run.queued[EPF_P2P_URGENT]));
}

int epf_p2p_test(struct epf_p2p_xfer *x)
{
	uint32_t state = EPF_LOAD_ACQUIRE(&x->state);
	int status;

	if (state == XFER_IDLE)
		return epf_fail(EPF_R_P2P_ARGUMENT, "test: the transfer was never posted");
	if (state != XFER_DONE) {
		__atomic_fetch_add(&x->ep->polls, 1u, __ATOMIC_RELAXED);
		if (x->has_gpu)
			epf_p2p_gpu_poll(x->ep);
		if (x->may_pack)
			(void)epf_p2p_pack_poll(x->conn);
		if (state == XFER_NOTING || state == XFER_DRAINING)
			epf_p2p_try_end(x);
		else if (!must_yield(x))
			(void)epf_p2p_step(x);
		if (x->conn->engine && epf_p2p_engine_step(x->conn))
			epf_p2p_try_end(x);
		if (EPF_LOAD_ACQUIRE(&x->state) != XFER_DONE && epf_now_ns() > x->deadline_ns)
			epf_p2p_xfer_fail(x, -ETIMEDOUT);
	}
	if (EPF_LOAD_ACQUIRE(&x->state) != XFER_DONE)
		return 0;
	status = EPF_LOAD_ACQUIRE(&x->status);
	return status ? explain(x, status) : 1;
}

/* Sleeps until a transfer has ended, at most a moment. */
static void rest(struct epf_p2p_xfer *x)
{
	struct epf_p2p *ep = x->ep;
	uint64_t end = epf_now_ns() + WAIT_NS;
	struct timespec until = { (time_t)(end / 1000000000), (long)(end % 1000000000) };

	pthread_mutex_lock(&ep->run.lock);
	__atomic_fetch_add(&ep->run.waiters, 1u, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(&x->state, __ATOMIC_SEQ_CST) != XFER_DONE)
		(void)pthread_cond_timedwait(&ep->run.idle, &ep->run.lock, &until);
	__atomic_fetch_sub(&ep->run.waiters, 1u, __ATOMIC_SEQ_CST);
	pthread_mutex_unlock(&ep->run.lock);
}

static int wait_for(struct epf_p2p_xfer *x, uint64_t timeout_ns)
{
	uint64_t end = epf_p2p_deadline(x->ep, timeout_ns);
	unsigned idle = 0;
	uint64_t cursor;

	for (;;) {
		int rc;

		cursor = EPF_LOAD_RELAXED(&x->cursor);
		rc = epf_p2p_test(x);
		if (rc)
			return rc < 0 ? rc : 0;
		if (epf_now_ns() >= end)
			return epf_fail(EPF_R_P2P_TIMEOUT,
					"wait: the transfer with %s is still under way",
					x->conn->label);
		if (cursor != EPF_LOAD_RELAXED(&x->cursor) ||
		    (x->conn->engine && epf_p2p_engine_step(x->conn)))
			idle = 0;
		else if (++idle > SPINS && idle < YIELDS && x->conn->engine)
			sched_yield(); /* the engines may need this CPU; a nap takes 50 us longer than asked */
		else if (idle > SPINS && (x->conn->engine || x->has_gpu))
			epf_p2p_engine_rest(x, x->has_gpu ? GPU_REST_NS : WAIT_NS);
		else if (idle > SPINS)
			rest(x);
	}
}

int epf_p2p_wait(struct epf_p2p_xfer *x, uint64_t timeout_ns)
{
	struct epf_p2p *ep = x->ep; /* closing frees the transfer too, when this has left */
	int rc;

	epf_p2p_enter(ep);
	rc = wait_for(x, timeout_ns);
	epf_p2p_leave(ep);
	return rc;
}

void epf_p2p_xfer_free(struct epf_p2p_xfer *x)
{
	uint64_t end;
	struct timespec until;
	struct epf_p2p *ep;
	uint32_t state;
	bool is_over;

	if (!x)
		return;
	ep = x->ep;
	epf_p2p_xfer_fail(x, -ECANCELED);
	end = epf_now_ns() + cancel_ns;
	until = (struct timespec){ (time_t)(end / 1000000000), (long)(end % 1000000000) };
	pthread_mutex_lock(&ep->run.lock);
	epf_p2p_dequeue(x);
	__atomic_fetch_add(&ep->run.waiters, 1u, __ATOMIC_SEQ_CST);
	for (;;) {
		state = __atomic_load_n(&x->state, __ATOMIC_SEQ_CST);
		if (!x->pins && !x->flights && (state == XFER_IDLE || state == XFER_DONE))
			break;
		if (pthread_cond_timedwait(&ep->run.idle, &ep->run.lock, &until) == ETIMEDOUT &&
		    !x->pins)
			break;
	}
	x->is_orphan = x->flights != 0;
	is_over = !x->is_orphan;
	__atomic_fetch_sub(&ep->run.waiters, 1u, __ATOMIC_SEQ_CST);
	pthread_mutex_unlock(&ep->run.lock);
	if (is_over)
		epf_p2p_xfer_destroy(x);
}

void epf_p2p_xfers_free(struct epf_p2p *ep)
{
	while (ep->run.all)
		epf_p2p_xfer_free(ep->run.all);
}

static int one_block(struct epf_p2p *ep, uint64_t conn, enum epf_p2p_op op, uint64_t region,
		     uint64_t local_offset, uint64_t import, uint64_t remote_offset, uint64_t bytes,
		     uint64_t timeout_ns)
{
	enum { PIECES = 16 };
	struct epf_p2p_block block[PIECES];
	uint32_t most = 1u << 31;
	struct epf_p2p_vector v = { region, import, block, 0 };
	struct epf_p2p_xfer_options o = { .size = sizeof(o), .deadline_ns = timeout_ns };
	struct epf_p2p_xfer *x;
	int rc;

	if (local_offset >> 48 || remote_offset >> 48)
		return epf_fail(EPF_R_P2P_RANGE, "offsets are below 2^48");
	if (bytes > (uint64_t)most * PIECES)
		return epf_fail(EPF_R_P2P_LIMIT, "one transfer of a block has at most %u GiB",
				PIECES * 2);
	for (uint64_t at = 0; at < bytes; v.count++) {
		uint64_t len = bytes - at < most ? bytes - at : most;

		block[v.count] =
			epf_p2p_block(local_offset + at, remote_offset + at, (uint32_t)len);
		at += len;
	}
	rc = epf_p2p_prepare(ep, conn, op, &v, 1, &o, &x);
	if (rc)
		return rc;
	rc = epf_p2p_post(x, NULL, 0);
	if (!rc)
		rc = epf_p2p_wait(x, timeout_ns);
	epf_p2p_xfer_free(x);
	return rc;
}

int epf_p2p_write(struct epf_p2p *ep, uint64_t conn, uint64_t region, uint64_t local_offset,
		  uint64_t import, uint64_t remote_offset, uint64_t bytes, uint64_t timeout_ns)
{
	return one_block(ep, conn, EPF_P2P_OP_WRITE, region, local_offset, import, remote_offset,
			 bytes, timeout_ns);
}

int epf_p2p_read(struct epf_p2p *ep, uint64_t conn, uint64_t region, uint64_t local_offset,
		 uint64_t import, uint64_t remote_offset, uint64_t bytes, uint64_t timeout_ns)
{
	return one_block(ep, conn, EPF_P2P_OP_READ, region, local_offset, import, remote_offset,
			 bytes, timeout_ns);
}
