/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the back-ends of boot.h share: the table of operations, the memory of a result, and words
 * for messages. Included by the files of this folder only.
 */
#ifndef EPF_BOOTSTRAP_BOOT_PRIV_H
#define EPF_BOOTSTRAP_BOOT_PRIV_H

#include "bootstrap/boot.h"

#include "fabric/base/clock.h"
#include "fabric/base/err.h"

/* One back-end. Every entry is set; what a back-end cannot do returns -EOPNOTSUPP. */
struct epf_boot_ops {
	int (*allgather)(struct epf_boot *b, const void *mine, size_t len, struct epf_blob **all);
	int (*barrier)(struct epf_boot *b);
	int (*check)(struct epf_boot *b);
	int (*post)(struct epf_boot *b, const void *mine, size_t len);
	int (*collect)(struct epf_boot *b, struct epf_blob **all);
	int (*job_key)(struct epf_boot *b, const char *label, uint8_t key[EPF_BOOT_KEY_BYTES]);
	int (*route)(struct epf_boot *b, char *host, size_t size, bool *is_secret);
	void (*close)(struct epf_boot *b);
};

/* First member of every back-end's handle. */
struct epf_boot {
	const struct epf_boot_ops *ops;
	uint32_t rank;
	uint32_t world;
	int (*why)(void *arg); /* asked while a call waits, or NULL: epf_boot_interrupt() */
	void *why_arg;
	enum epf_reason lost_reason; /* epf_boot_blame(); 0: nobody is blamed */
	uint32_t lost_rank;
};

enum { EPF_BOOT_ASK_MS = 20 }; /* how often */

/* What the ranks do together in a round. */
enum epf_boot_kind { EPF_BOOT_GATHER = 1, EPF_BOOT_BARRIER = 2 };

/* epf_boot_kind_text() - the name of the call. */
const char *epf_boot_kind_text(enum epf_boot_kind kind);

/*
 * A result is a stream: world lengths as little-endian 32-bit numbers, then the blobs; the lengths
 * together and each blob are filled up with zeros to a multiple of 16 bytes.
 */
#define EPF_BOOT_ALIGN 16u

/* epf_boot_pad() - @bytes rounded up to the alignment of a blob. */
static inline size_t epf_boot_pad(size_t bytes)
{
	return (bytes + EPF_BOOT_ALIGN - 1) & ~(size_t)(EPF_BOOT_ALIGN - 1);
}

/* The largest stream of a world that respects the limits. */
static inline size_t epf_boot_stream_max(uint32_t world)
{
	return epf_boot_pad((size_t)world * 4) + EPF_BOOT_GATHER_MAX +
	       (size_t)world * EPF_BOOT_ALIGN;
}

/**
 * epf_boot_stream_new() - one block for a result: @world entries and room for the stream.
 * @refs: how often epf_boot_free_blobs() will be called for it.
 * @stream: set to the room, of @bytes.
 *
 * Return: the entries, or NULL without memory.
 */
struct epf_blob *epf_boot_stream_new(uint32_t world, size_t bytes, uint32_t refs, uint8_t **stream);

/* epf_boot_stream_index() - fill the entries from the stream; -EBADMSG when it contradicts itself. */
int epf_boot_stream_index(uint32_t world, const uint8_t *stream, size_t bytes,
			  struct epf_blob *all);

/* epf_boot_stream_write() - write the stream of @world blobs; NULL @out only counts its bytes. */
size_t epf_boot_stream_write(uint32_t world, const struct epf_blob *in, uint8_t *out);

/* epf_boot_copy_opts() - take @src of a caller's size into @dst of ours, zero the rest. */
int epf_boot_copy_opts(const char *what, void *dst, size_t dst_size, const void *src);

/* epf_boot_check_blob() - the limits and arguments of an allgather. */
int epf_boot_check_blob(const struct epf_boot *b, const void *mine, size_t len);

/**
 * epf_boot_rank_list() - "rank 3" or "ranks 3, 7, 9-15 and 200 more" into @buf.
 * @missing: @world flags.
 */
void epf_boot_rank_list(const bool *missing, uint32_t world, char *buf, size_t size);

/* What is printed while the job assembles: the first line after @first, then one each @again. */
struct epf_boot_notice {
	uint64_t first_ns, again_ns;
	uint64_t next_ns; /* moment of the next line; UINT64_MAX: none */
};

/* epf_boot_deadline() - the moment of epf_now_ns() in @timeout_ns from now; far ones saturate. */
static inline uint64_t epf_boot_deadline(uint64_t timeout_ns)
{
	uint64_t now = epf_now_ns();

	return timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + timeout_ns;
}

/* epf_boot_notice_begin() - begin to wait now. Zero intervals mean the defaults, 3 s and 10 s. */
static inline void epf_boot_notice_begin(struct epf_boot_notice *n)
{
	n->first_ns = n->first_ns ? n->first_ns : EPF_BOOT_NOTICE_FIRST_NS;
	n->again_ns = n->again_ns ? n->again_ns : EPF_BOOT_NOTICE_AGAIN_NS;
	n->next_ns = epf_boot_deadline(n->first_ns);
}

/* epf_boot_notice_due() - true when a line is to be printed; then the next one is scheduled. */
static inline bool epf_boot_notice_due(struct epf_boot_notice *n)
{
	if (epf_now_ns() < n->next_ns)
		return false;
	n->next_ns = epf_boot_deadline(n->again_ns);
	return true;
}

/* epf_boot_time_text() - "60 s", "1.5 s", "250 ms" into @buf. */
void epf_boot_time_text(uint64_t ns, char *buf, size_t size);

#endif
