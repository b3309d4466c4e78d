/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunks of values compressed and expanded on a GPU (coder.h). One stream does all of a chunk, so that the host waits once:
 *
 *   compress: control block -> gather the pieces -> planes -> checksum -> nvCOMP -> parts and their lengths into memory of the host
 *   expand:   control block, chunk -> nvCOMP, stored parts -> values -> checksum -> verdict -> scatter to the pieces, if it is good
 *
 * The chunk of a peer is copied into the GPU's memory first, and its head into the host's, so that the peer cannot change what was checked.
 */
#include "fabric/gpu/coder_priv.h"

#include "fabric/base/err.h"

#include <errno.h>
#include <sched.h>
#include <string.h>

enum { BLOCKS = 512 }; /* most blocks of a launch */

/* Describes a chunk: its planes and parts. */
static void shape(const struct epf_coder *c, uint32_t size, uint32_t bytes,
		  struct epf_pack_job *job)
{
	uint32_t n = bytes / size, per_plane = (n + EPF_PACK_PART - 1) / EPF_PACK_PART;

	*job = (struct epf_pack_job){ .control = c->control.addr,
				      .result = c->result_addr,
				      .values = c->values.addr,
				      .planes = c->planes.addr,
				      .threads = EPF_PACK_THREADS,
				      .bytes = bytes,
				      .size = size,
				      .n = n,
				      .stride = per_plane * EPF_PACK_PART,
				      .per_plane = per_plane,
				      .parts = per_plane * size };
}

static uint32_t raw_bytes(const struct epf_pack_job *job, uint32_t part)
{
	uint32_t at = part % job->per_plane * EPF_PACK_PART;

	return job->n - at < EPF_PACK_PART ? job->n - at : EPF_PACK_PART;
}

static uint64_t plane_part(const struct epf_pack_job *job, uint32_t part)
{
	return job->planes + (uint64_t)(part / job->per_plane) * job->stride +
	       (uint64_t)(part % job->per_plane) * EPF_PACK_PART;
}

static int launch(struct epf_coder *c, enum coder_kernel k, struct epf_pack_job *job,
		  uint32_t blocks)
{
	void *args[1] = { job };
	struct epf_gpu_launch how = { .block = EPF_PACK_THREADS, .args = args };

	job->blocks = how.grid = blocks == 0 ? 1 : blocks < BLOCKS ? blocks : BLOCKS;
	return c->dev->ops->launch(c->dev, c->stream, c->kernels[k], &how);
}

/* Launches a kernel that handles so many items, a few a thread. */
static int launch_over(struct epf_coder *c, enum coder_kernel k, struct epf_pack_job *job,
		       uint32_t items)
{
	return launch(c, k, job, (items + EPF_PACK_THREADS - 1) / EPF_PACK_THREADS);
}

/* Copies the spans [first, first + count) of the control block. */
static int move(struct epf_coder *c, struct epf_pack_job *job, uint32_t first, uint32_t count,
		bool needs_ok)
{
	uint64_t most = 0;

	for (uint32_t i = 0; i < count; i++)
		if (c->to_device->spans[first + i].bytes > most)
			most = c->to_device->spans[first + i].bytes;
	job->first = first;
	job->count = count;
	job->segments = (uint32_t)((most + EPF_PACK_SEGMENT - 1) / EPF_PACK_SEGMENT);
	job->needs_ok = needs_ok;
	return most ? launch(c, CODER_MOVE, job, count * job->segments) : 0;
}

static int send_control(struct epf_coder *c)
{
	return c->dev->ops->copy_async(c->dev, c->stream, c->control.addr, c->to_device_addr,
				       sizeof(*c->to_device));
}

/*
 * Waits for the stream; other threads get the CPU meanwhile. rc: what submitting has come to; after a failure, too, nothing of this chunk may touch
 * memory any more.
 */
static int finish(struct epf_coder *c, int rc)
{
	int failed = rc, done = 0;

	if (!rc)
		failed = c->dev->ops->event_record(c->dev, c->stream, c->event);
	while (!failed && !done) {
		done = c->dev->ops->event_query(c->dev, c->event);
		if (!done)
			sched_yield();
	}
	if (failed)
		(void)c->dev->ops->stream_sync(c->dev, c->stream);
	return failed ? failed : done < 0 ? done : 0;
}

static int library(const struct epf_coder *c, int status, const char *call)
{
	return status ? epf_fail(EPF_R_GPU_CALL, "nvCOMP: %s: %s (%d)", call,
				 c->lib->status_text(status), status)
		      : 0;
}

static int call_compress(struct epf_coder *c, uint32_t n)
{
	const struct epf_pack_control *k = c->on_device;
	int rc = c->dev->ops->enter(c->dev);

	if (rc)
		return rc;
	rc = c->lib->compress((const void *const *)k->from, (const size_t *)k->from_bytes,
			      EPF_PACK_PART, n, (void *)(uintptr_t)c->temp.addr, c->temp_bytes,
			      (void *const *)k->to, (size_t *)k->used, epf_coder_compress_how,
			      (int *)k->status, c->stream);
	c->dev->ops->leave(c->dev);
	return library(c, rc, "nvcompBatchedANSCompressAsync");
}

static int call_expand(struct epf_coder *c, uint32_t n)
{
	const struct epf_pack_control *k = c->on_device;
	int rc = c->dev->ops->enter(c->dev);

	if (rc)
		return rc;
	rc = c->lib->expand((const void *const *)k->from, (const size_t *)k->from_bytes,
			    (const size_t *)k->room, (size_t *)k->used, n,
			    (void *)(uintptr_t)c->temp.addr, c->temp_bytes, (void *const *)k->to,
			    epf_coder_expand_how, (int *)k->status, c->stream);
	c->dev->ops->leave(c->dev);
	return library(c, rc, "nvcompBatchedANSDecompressAsync");
}

/* The copies that bring pieces together, or apart again. */
static void spans_of(struct epf_coder *c, const struct iovec *piece, uint32_t n, bool is_gather)
{
	uint64_t at = c->values.addr;

	for (uint32_t i = 0; i < n; i++) {
		uint64_t there = (uint64_t)(uintptr_t)piece[i].iov_base;

		c->to_device->spans[i] = (struct epf_pack_span){ .dst = is_gather ? at : there,
								 .src = is_gather ? there : at,
								 .bytes = piece[i].iov_len };
		at += piece[i].iov_len;
	}
}

static uint32_t padded(uint32_t length)
{
	length &= ~EPF_PACK_STORED;
	return (length + EPF_PACK_ALIGN - 1) / EPF_PACK_ALIGN * EPF_PACK_ALIGN;
}

static int check_arguments(uint32_t size, uint32_t n, uint32_t bytes)
{
	if ((size == 1 || size == 2 || size == 4) && n <= EPF_PACK_PIECES &&
	    bytes <= EPF_CODER_BYTES)
		return 0;
	return epf_fail(EPF_R_GPU_UNSUPPORTED,
			"a chunk of %u bytes in %u pieces, of values of %u bytes", bytes, n, size);
}

int epf_coder_compress(struct epf_coder *c, bool full, uint32_t size, const struct iovec *from,
		       uint32_t n, uint32_t bytes, const struct epf_coder_buffer *to,
		       uint32_t *packed)
{
	struct epf_coder_head head = { .bytes = bytes, .size = size };
	struct epf_pack_job job;
	int rc = check_arguments(size, n, bytes);

	if (rc)
		return rc;
	shape(c, size, bytes, &job);
	job.out = to->device + sizeof(head);
	job.coded = full ? job.parts : job.per_plane;
	c->to_device->sum = 0;
	spans_of(c, from, n, true);
	for (uint32_t i = 0; i < job.coded; i++) {
		c->to_device->from[i] = plane_part(&job, i);
		c->to_device->from_bytes[i] = raw_bytes(&job, i);
		c->to_device->to[i] = c->packed.addr + (uint64_t)i * c->part_room;
		c->to_device->status[i] = -1;
		c->to_device->used[i] = 0;
	}
	rc = send_control(c);
	if (!rc)
		rc = move(c, &job, 0, n, false);
	if (!rc && job.parts)
		rc = launch_over(c, CODER_SPLIT, &job, (job.n + 3) / 4);
	if (!rc)
		rc = launch_over(c, CODER_SUM, &job, (bytes + 3) / 4);
	if (!rc && job.coded)
		rc = call_compress(c, job.coded);
	if (!rc)
		rc = launch(c, CODER_CLOSE, &job, job.parts * (EPF_PACK_PART / EPF_PACK_SEGMENT));
	rc = finish(c, rc);
	if (rc)
		return rc;
	head.parts = job.parts;
	head.sum = c->result->sum;
	memcpy(head.tail, c->result->tail, bytes % size);
	*packed = sizeof(head);
	for (uint32_t i = 0; i < job.parts; i++) {
		head.length[i] = c->result->length[i];
		*packed += padded(head.length[i]);
	}
	memcpy(to->host, &head, sizeof(head));
	return 0;
}

/*
 * Checks the head of a chunk, and fills the control block for its expansion: nvCOMP's arrays for the parts that are compressed, and spans behind `n` for
 * those that are stored.
 */
static int read_head(struct epf_coder *c, const struct epf_coder_head *h, uint32_t packed,
		     uint32_t n, struct epf_pack_job *job, uint32_t *stored)
{
	uint64_t at = sizeof(*h);

	*stored = 0;
	if (h->bytes != job->bytes || h->size != job->size || h->parts != job->parts)
		return -EBADMSG;
	for (uint32_t i = 0; i < h->parts; i++) {
		uint32_t bytes = h->length[i] & ~EPF_PACK_STORED, raw = raw_bytes(job, i);
		uint64_t from = c->packed.addr + at, to = plane_part(job, i);

		if (!bytes)
			return -EBADMSG;
		if (h->length[i] & EPF_PACK_STORED) {
			if (bytes != raw)
				return -EBADMSG;
			c->to_device->spans[n + (*stored)++] =
				(struct epf_pack_span){ to, from, raw };
		} else {
			c->to_device->from[job->coded] = from;
			c->to_device->from_bytes[job->coded] = bytes;
			c->to_device->to[job->coded] = to;
			c->to_device->room[job->coded] = raw;
			c->to_device->status[job->coded] = -1;
			c->to_device->used[job->coded++] = 0;
		}
		at += padded(bytes);
	}
	c->to_device->sum = 0;
	c->to_device->want = h->sum;
	c->to_device->ok = 0;
	memcpy(c->to_device->tail, h->tail, sizeof(h->tail));
	return at == packed ? 0 : -EBADMSG; /* else parts are outside, and nothing is launched */
}

int epf_coder_expand(struct epf_coder *c, const struct epf_coder_buffer *from, uint32_t packed,
		     uint32_t size, const struct iovec *to, uint32_t n, uint32_t bytes)
{
	struct epf_coder_head head;
	struct epf_pack_job job;
	uint32_t stored;
	int rc = check_arguments(size, n, bytes);

	if (rc)
		return rc;
	if (packed < sizeof(head) || packed > EPF_CODER_ROOM)
		return -EBADMSG;
	memcpy(&head, from->host, sizeof(head)); /* the peer may change it while it is read */
	shape(c, size, bytes, &job);
	spans_of(c, to, n, false);
	rc = read_head(c, &head, packed, n, &job, &stored);
	if (rc)
		return rc;
	c->result->ok = 0;
	rc = send_control(c);
	if (!rc)
		rc = c->dev->ops->copy_async(c->dev, c->stream, c->packed.addr, from->device,
					     packed);
	if (!rc && job.coded)
		rc = call_expand(c, job.coded);
	if (!rc)
		rc = move(c, &job, n, stored, false);
	if (!rc)
		rc = launch_over(c, CODER_JOIN, &job, job.n);
	if (!rc)
		rc = launch_over(c, CODER_SUM, &job, (bytes + 3) / 4);
	if (!rc)
		rc = launch(c, CODER_VERDICT, &job, 1);
	if (!rc)
		rc = move(c, &job, 0, n, true);
	rc = finish(c, rc);
	return rc ? rc : c->result->ok ? 0 : -EBADMSG;
}
