/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies between two processes of one machine: by plain stores where the peer's memory is mapped here (epf_p2p_alloc), else by
 * process_vm_writev(2) and process_vm_readv(2), which copy once, without the target's help, and refuse what is not mapped. Every block was
 * checked when the transfer was prepared.
 */
#include "fabric/base/clock.h"
#include "fabric/p2p/engine.h"
#include "fabric/p2p/gpu.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>
#ifdef __SSE2__
# include <emmintrin.h>
#endif

enum {
	STREAMING = 32 << 20, /* transfers larger than the caches: their stores bypass them */
	GAP = 1024,           /* largest gap between two blocks that one read covers */
};

/* The fields of a block. */
static uint64_t local_of(const struct epf_p2p_block *b)
{
	return b->lo & 0xffffffffffffull;
}

static uint64_t remote_of(const struct epf_p2p_block *b)
{
	return b->hi & 0xffffffffffffull;
}

static uint32_t bytes_of(const struct epf_p2p_block *b)
{
	return (uint32_t)(b->lo >> 48 | b->hi >> 48 << 16);
}

#ifdef __SSE2__
static inline void stream_line(uint8_t *to, const uint8_t *from)
{
	__m128i a = _mm_loadu_si128((const __m128i *)(const void *)from);
	__m128i b = _mm_loadu_si128((const __m128i *)(const void *)(from + 16));
	__m128i c = _mm_loadu_si128((const __m128i *)(const void *)(from + 32));
	__m128i d = _mm_loadu_si128((const __m128i *)(const void *)(from + 48));

	_mm_stream_si128((__m128i *)(void *)to, a);
	_mm_stream_si128((__m128i *)(void *)(to + 16), b);
	_mm_stream_si128((__m128i *)(void *)(to + 32), c);
	_mm_stream_si128((__m128i *)(void *)(to + 48), d);
}
#endif

/*
 * memcpy past the caches: as memcpy(3) does it from some size on, for pieces of something that large. Four pages at a time: more rows of the memory are
 * open, and the CPU's prefetchers follow each page. GB/s of CPU time in pieces of 256 KiB (Xeon, busy machine): 10.6; page after page 9.3, and with a
 * prefetch instruction 7.0; memcpy(3) 7.0, and 11.0 for 256 MiB in one call.
 */
static void copy_past(uint8_t *to, const uint8_t *from, size_t bytes)
{
#ifdef __SSE2__
	enum { LINE = 64, PAGE = 4096, PAGES = 4 };

	size_t head = -(uintptr_t)to & (LINE - 1);

	if (bytes < PAGE) {
		memcpy(to, from, bytes);
		return;
	}
	memcpy(to, from, head);
	to += head;
	from += head;
	bytes -= head;
	for (; bytes >= PAGES * PAGE;
	     bytes -= PAGES * PAGE, to += PAGES * PAGE, from += PAGES * PAGE)
		for (size_t at = 0; at < PAGE; at += LINE)
			for (size_t page = 0; page < PAGES; page++)
				stream_line(to + page * PAGE + at, from + page * PAGE + at);
	for (; bytes >= LINE; bytes -= LINE, to += LINE, from += LINE)
		stream_line(to, from);
	_mm_sfence();
#endif
	memcpy(to, from, bytes);
}

static void copy_mapped(const struct epf_p2p_xfer *x, const struct vector *v,
			const struct epf_p2p_block *b, uint32_t n, uint64_t skip, uint64_t bytes)
{
	bool past = x->bytes >= STREAMING;

	for (uint32_t i = 0; i < n; i++) {
		uint8_t *here = v->region->addr + local_of(&b[i]) + skip;
		uint8_t *there = v->import->mapped + remote_of(&b[i]) + skip;
		uint64_t len = n == 1 ? bytes : bytes_of(&b[i]);
		uint8_t *to = x->op == EPF_P2P_OP_WRITE ? there : here;
		const uint8_t *from = x->op == EPF_P2P_OP_WRITE ? here : there;

		if (past)
			copy_past(to, from, len);
		else
			memcpy(to, from, len);
	}
}

/* Drops the first `done` bytes of a list of ranges. Returns how many are left. */
static unsigned advance(struct iovec **iov, unsigned n, size_t done)
{
	while (n && done >= (*iov)->iov_len) {
		done -= (*iov)->iov_len;
		++*iov;
		n--;
	}
	if (n && done) {
		(*iov)->iov_base = (uint8_t *)(*iov)->iov_base + done;
		(*iov)->iov_len -= done;
	}
	return n;
}

/* The lists of process_vm_writev(2): local pieces and the peer's. */
struct ranges {
	struct iovec here[2 * P2P_CHUNK_BLOCKS], there[P2P_CHUNK_BLOCKS];
	unsigned n_here, n_there;
	uint64_t bytes;
};

/*
 * Adds a block. A read also copies a short gap before the block and drops it: the kernel takes as long to find another range of the peer's
 * pages as to copy a kilobyte or two. The gap lies inside the export.
 */
static void add_range(struct ranges *r, bool is_read, uint8_t *here, uint64_t there, size_t len,
		      uint8_t *dropped)
{
	struct iovec *last = r->n_there ? &r->there[r->n_there - 1] : NULL;
	uint64_t end = last ? (uint64_t)(uintptr_t)last->iov_base + last->iov_len : 0;

	if (last && is_read && there >= end && there - end <= GAP) {
		if (there > end)
			r->here[r->n_here++] = (struct iovec){ dropped, there - end };
		last->iov_len += there - end + len;
		r->bytes += there - end;
	} else {
		r->there[r->n_there++] = (struct iovec){ (void *)(uintptr_t)there, len };
	}
	r->here[r->n_here++] = (struct iovec){ here, len };
	r->bytes += len;
}

/* stage: NULL, or memory that holds the local bytes of all blocks, back to back. */
static int copy_process(const struct epf_p2p_xfer *x, const struct vector *v,
			const struct epf_p2p_block *b, uint32_t n, uint64_t skip, uint64_t bytes,
			uint8_t *stage)
{
	struct ranges r;
	uint8_t dropped[GAP];
	struct iovec *h = r.here, *t = r.there;
	unsigned nh, nt;
	uint64_t left;

	r.n_here = r.n_there = 0; /* the lists need no zeros */
	r.bytes = 0;
	for (uint32_t i = 0; i < n; i++) {
		size_t len = n == 1 ? bytes : bytes_of(&b[i]);

		add_range(&r, x->op == EPF_P2P_OP_READ,
			  stage ? stage : v->region->addr + local_of(&b[i]) + skip,
			  v->import->key.addr + remote_of(&b[i]) + skip, len, dropped);
		if (stage)
			stage += len;
	}
	left = r.bytes;
	nh = r.n_here;
	nt = r.n_there;
	while (left) {
		ssize_t done = x->op == EPF_P2P_OP_WRITE
				       ? process_vm_writev(x->conn->pid, h, nh, t, nt, 0)
				       : process_vm_readv(x->conn->pid, h, nh, t, nt, 0);

		if (done < 0 && errno == EINTR)
			continue;
		if (done <= 0)
			return done < 0 ? -errno : -EFAULT;
		left -= (uint64_t)done;
		nh = advance(&h, nh, (size_t)done);
		nt = advance(&t, nt, (size_t)done);
	}
	return 0;
}

/* Between GPU memory here and memory of the peer that cannot be mapped: two copies. */
static int copy_staged(struct epf_p2p_xfer *x, const struct vector *v,
		       const struct epf_p2p_block *b, uint32_t n, uint64_t skip, uint64_t bytes)
{
	struct gpu_stage *s = &v->lane->stage;
	int rc;

	pthread_mutex_lock(&s->lock);
	rc = epf_p2p_gpu_await_stage(x, v->lane);
	if (!rc && x->op == EPF_P2P_OP_WRITE)
		rc = epf_p2p_gpu_stage(x, v, b, n, skip, bytes);
	if (!rc)
		rc = copy_process(x, v, b, n, skip, bytes, s->memory);
	if (!rc && x->op == EPF_P2P_OP_READ)
		rc = epf_p2p_gpu_stage(x, v, b, n, skip, bytes);
	pthread_mutex_unlock(&s->lock);
	return rc;
}

/* What the state of an export says to who is about to copy. */
static int check_export(const struct import *i)
{
	uint64_t word =
		__atomic_load_n(&i->conn->table->word[i->key.slot], __ATOMIC_SEQ_CST); /* W2 */

	if (word >> 8 != i->key.generation)
		return -EKEYREVOKED;
	switch (word & 0xff) {
	case EXPORT_LIVE:
		return 0;
	case EXPORT_EXPIRED:
		return -EKEYEXPIRED;
	default:
		return -EKEYREVOKED;
	}
}

int epf_p2p_copy(struct epf_p2p_xfer *x, const struct vector *v, const struct epf_p2p_block *b,
		 uint32_t n, uint64_t skip, uint64_t bytes)
{
	struct conn *c = x->conn;
	uint32_t *inuse;
	int rc;

	if (c->engine)
		return epf_p2p_engine_push(x, v, b, n, skip, bytes);
	inuse = &c->mine->inuse[v->import->key.slot];

	if (!epf_p2p_conn_is_alive(c))
		return -ECONNRESET;
	__atomic_fetch_add(inuse, 1u, __ATOMIC_SEQ_CST); /* W2 */
	rc = check_export(v->import);
	if (!rc && __atomic_load_n(&c->theirs->closed, __ATOMIC_SEQ_CST)) /* W2 */
		rc = -EPIPE;
	if (!rc && v->lane)
		rc = v->is_staged ? copy_staged(x, v, b, n, skip, bytes)
				  : epf_p2p_gpu_copy(x, v, b, n, skip, bytes, inuse);
	else if (!rc && v->import->mapped)
		copy_mapped(x, v, b, n, skip, bytes);
	else if (!rc)
		rc = copy_process(x, v, b, n, skip, bytes, NULL);
	if (rc == P2P_LATER)
		return rc;
	__atomic_fetch_sub(inuse, 1u, __ATOMIC_SEQ_CST);
	if (rc == -ESRCH) {
		epf_p2p_conn_end(c, CONN_LOST, "the process has ended");
		rc = -ECONNRESET;
	}
	return rc;
}
