/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compresses chunks of floating-point values in GPU memory, and expands them there: values become planes of bytes (queues/epf_pack.h), each
 * compressed in parts by nvCOMP's ANS coder, or stored where that is not shorter. Values are never interpreted: every bit survives. Knows nothing of
 * endpoints; the expansion trusts no length, but nvCOMP trusts what it decodes. CUDA only, and the fake GPU of the tests.
 *
 *   head | part 0 of plane 0 | part 1 | ... | part 0 of plane 1 | ...       each part begins at a multiple of 16
 *
 * Slow path. All functions return 0 or -errno with a reason. A coder is used by one thread at a time.
 */
#ifndef EPF_FABRIC_GPU_CODER_H
#define EPF_FABRIC_GPU_CODER_H

#include "queues/epf_pack.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/uio.h>

enum { EPF_CODER_BYTES = 2 << 20 }; /* most bytes of a chunk */

struct epf_coder_head {
	uint32_t bytes; /* of the chunk */
	uint32_t size;  /* of a value: 1, 2 or 4 */
	uint64_t sum;   /* of the values */
	uint8_t tail[4];
	uint32_t parts;
	uint64_t reserved; /* 0 */
	uint32_t length[EPF_PACK_PARTS];
};

/* Most bytes of a compressed chunk: all of it stored. */
enum {
	EPF_CODER_ROOM = EPF_CODER_BYTES + (int)sizeof(struct epf_coder_head) +
			 EPF_PACK_PARTS * EPF_PACK_ALIGN,
};

/* Memory of this process where a compressed chunk lies: its address, and the one that the GPU uses (epf_coder_pin()). */
struct epf_coder_buffer {
	uint8_t *host;
	uint64_t device;
};

struct epf_coder;

/**
 * epf_coder_open() - a coder of one GPU.
 * @backend: setting gpu-backend: "auto", "cuda" or "fake".
 *
 * Opens nvCOMP, loads the kernels, and expands what it has compressed once: from then on the device has loaded all code, and a library that does not
 * behave as expected is refused. Takes some 10 MB of GPU memory. -ENOENT: no nvCOMP. -EOPNOTSUPP: HIP, or a build without nvcc.
 */
int epf_coder_open(const char *backend, int device, struct epf_coder **out);
/* Accepts NULL. */
void epf_coder_close(struct epf_coder *c);
int epf_coder_device(const struct epf_coder *c);
/* "nvCOMP 6.0.0" */
void epf_coder_name(const struct epf_coder *c, char *buf, size_t size);

/* Makes memory of whole pages reachable by every GPU of the process, and undoes it. Any thread, also while the coder is used. */
int epf_coder_pin(struct epf_coder *c, void *addr, uint64_t bytes, uint64_t *device_addr);
void epf_coder_unpin(struct epf_coder *c, void *addr);

/*
 * Compresses n pieces of the GPU's memory, together `bytes` bytes of values of `size` bytes, into EPF_CODER_ROOM bytes at `to`, and waits. full: all
 * planes, else only the one of exponents. *packed: the length of the chunk.
 */
int epf_coder_compress(struct epf_coder *c, bool full, uint32_t size, const struct iovec *from,
		       uint32_t n, uint32_t bytes, const struct epf_coder_buffer *to,
		       uint32_t *packed);
/*
 * Expands a chunk to n pieces of the GPU's memory, together `bytes` bytes, and waits. `from` may change meanwhile: it is copied before anything
 * looks at it. -EBADMSG: it is not the compressed form of so many bytes of such values; nothing was written. nvCOMP does not check the inside of a compressed
 * part: a forged one can make it touch any address of the GPU's, so only a trusted peer may send one (docs/SECURITY.md).
 */
int epf_coder_expand(struct epf_coder *c, const struct epf_coder_buffer *from, uint32_t packed,
		     uint32_t size, const struct iovec *to, uint32_t n, uint32_t bytes);

#endif
