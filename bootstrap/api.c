/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of boot.h that does not depend on a back-end: calls go through the table of operations,
 * results live in one block with a count of holders. Errors are decided by the back-ends.
 */
#include "bootstrap/boot_priv.h"

#include "bootstrap/wire.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* In front of the entries; as large as the alignment asks for. */
struct block_head {
	_Atomic uint32_t refs;
	uint32_t pad[3];
};

static_assert(sizeof(struct block_head) == EPF_BOOT_ALIGN, "blobs keep malloc's alignment");
static_assert(sizeof(struct epf_blob) % EPF_BOOT_ALIGN == 0, "blobs keep malloc's alignment");

int epf_boot_allgather(struct epf_boot *boot, const void *mine, size_t len, struct epf_blob **all)
{
	int rc = epf_boot_check_blob(boot, mine, len);

	return rc ? rc : boot->ops->allgather(boot, mine, len, all);
}

int epf_boot_barrier(struct epf_boot *boot)
{
	return boot->ops->barrier(boot);
}

void epf_boot_interrupt(struct epf_boot *boot, int (*why)(void *arg), void *arg)
{
	boot->why = why;
	boot->why_arg = arg;
}

void epf_boot_blame(struct epf_boot *boot, uint32_t rank, enum epf_reason reason)
{
	boot->lost_rank = rank;
	boot->lost_reason = reason;
}

int epf_boot_check(struct epf_boot *boot)
{
	return boot->ops->check(boot);
}

int epf_boot_job_key(struct epf_boot *boot, const char *label, uint8_t key[EPF_BOOT_KEY_BYTES])
{
	if (!label)
		return epf_fail(EPF_R_BOOT_OPTION, "rank %u: a job key without a label",
				boot->rank);
	return boot->ops->job_key(boot, label, key);
}

int epf_boot_route(struct epf_boot *boot, char host[EPF_BOOT_ADDRESS_MAX], bool *is_secret)
{
	return boot->ops->route(boot, host, EPF_BOOT_ADDRESS_MAX, is_secret);
}

int epf_boot_local_post(struct epf_boot *boot, const void *mine, size_t len)
{
	int rc = epf_boot_check_blob(boot, mine, len);

	return rc ? rc : boot->ops->post(boot, mine, len);
}

int epf_boot_local_collect(struct epf_boot *boot, struct epf_blob **all)
{
	return boot->ops->collect(boot, all);
}

uint32_t epf_boot_rank(const struct epf_boot *boot)
{
	return boot->rank;
}

uint32_t epf_boot_world(const struct epf_boot *boot)
{
	return boot->world;
}

void epf_boot_close(struct epf_boot *boot)
{
	if (boot)
		boot->ops->close(boot);
}

void epf_boot_free_blobs(struct epf_blob *all)
{
	struct block_head *head;

	if (!all)
		return;
	head = (void *)((char *)all - sizeof(*head));
	/* Release: what this holder read is read before the last holder frees; acquire: for that. */
	if (atomic_fetch_sub_explicit(&head->refs, 1, memory_order_acq_rel) == 1)
		free(head);
}

struct epf_blob *epf_boot_stream_new(uint32_t world, size_t bytes, uint32_t refs, uint8_t **stream)
{
	size_t entries = (size_t)world * sizeof(struct epf_blob);
	struct block_head *head = malloc(sizeof(*head) + entries + bytes);

	if (!head)
		return NULL;
	atomic_init(&head->refs, refs);
	*stream = (uint8_t *)(head + 1) + entries;
	return (void *)(head + 1);
}

int epf_boot_stream_index(uint32_t world, const uint8_t *stream, size_t bytes, struct epf_blob *all)
{
	size_t at = epf_boot_pad((size_t)world * 4);

	if (at > bytes)
		return -EBADMSG;
	for (uint32_t r = 0; r < world; r++) {
		uint32_t len = epf_wire_get_u32(stream + (size_t)r * 4);

		if (len > EPF_BOOT_BLOB_MAX || epf_boot_pad(len) > bytes - at)
			return -EBADMSG;
		all[r].data = stream + at;
		all[r].len = len;
		at += epf_boot_pad(len);
	}
	return at == bytes ? 0 : -EBADMSG;
}

size_t epf_boot_stream_write(uint32_t world, const struct epf_blob *in, uint8_t *out)
{
	size_t at = epf_boot_pad((size_t)world * 4);

	if (out)
		memset(out, 0, at);
	for (uint32_t r = 0; r < world; r++) {
		size_t len = in[r].len, room = epf_boot_pad(len);

		if (out) {
			epf_wire_put_u32(out + (size_t)r * 4, (uint32_t)len);
			if (len)
				memcpy(out + at, in[r].data, len);
			memset(out + at + len, 0, room - len);
		}
		at += room;
	}
	return at;
}

const char *epf_boot_kind_text(enum epf_boot_kind kind)
{
	return kind == EPF_BOOT_BARRIER ? "barrier" : "allgather";
}

int epf_boot_copy_opts(const char *what, void *dst, size_t dst_size, const void *src)
{
	size_t size;

	if (!src)
		return epf_fail(EPF_R_BOOT_OPTION, "%s: no options", what);
	memcpy(&size, src, sizeof(size));
	if (size <= sizeof(size))
		return epf_fail(EPF_R_BOOT_OPTION, "%s: the size field of the options is not set",
				what);
	/* A caller built against a later header may set what this library does not know: refuse. */
	for (size_t i = dst_size; i < size; i++)
		if (((const uint8_t *)src)[i])
			return epf_fail(
				EPF_R_BOOT_OPTION,
				"%s: the options have a field that this library does not know",
				what);
	memset(dst, 0, dst_size);
	memcpy(dst, src, size < dst_size ? size : dst_size);
	return 0;
}

int epf_boot_check_blob(const struct epf_boot *b, const void *mine, size_t len)
{
	if (len > EPF_BOOT_BLOB_MAX)
		return epf_fail(EPF_R_BOOT_LIMIT, "rank %u hands in %zu bytes, the limit is %u",
				b->rank, len, EPF_BOOT_BLOB_MAX);
	if (len && !mine)
		return epf_fail(EPF_R_BOOT_OPTION, "rank %u hands in %zu bytes at NULL", b->rank,
				len);
	return 0;
}

void epf_boot_rank_list(const bool *missing, uint32_t world, char *buf, size_t size)
{
	uint32_t total = 0, shown = 0;
	int at;

	for (uint32_t r = 0; r < world; r++)
		total += missing[r];
	at = snprintf(buf, size, total == 1 ? "rank" : "ranks");
	for (uint32_t r = 0; r < world && (size_t)at < size; r++) {
		uint32_t last = r;

		if (!missing[r])
			continue;
		while (last + 1 < world && missing[last + 1])
			last++;
		/* Keep room for the longest item and the closing words. */
		if (size - (size_t)at < 48)
			break;
		at += snprintf(buf + at, size - (size_t)at, "%s %u", shown ? "," : "", r);
		if (last > r)
			at += snprintf(buf + at, size - (size_t)at, "%s%u",
				       last == r + 1 ? ", " : "-", last);
		shown += last - r + 1;
		r = last;
	}
	if (shown < total && (size_t)at < size)
		snprintf(buf + at, size - (size_t)at, " and %u more", total - shown);
}

void epf_boot_time_text(uint64_t ns, char *buf, size_t size)
{
	if (ns % 1000000000 == 0)
		snprintf(buf, size, "%llu s", (unsigned long long)(ns / 1000000000));
	else if (ns > 1000000000)
		snprintf(buf, size, "%.1f s", (double)ns / 1e9);
	else
		snprintf(buf, size, "%.4g ms", (double)ns / 1e6);
}
