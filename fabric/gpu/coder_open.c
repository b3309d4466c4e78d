/* SPDX-License-Identifier: Apache-2.0 */
/* Opening and closing a coder (coder.h): the library, kernels, memory, and the chunk that it must compress and expand first. */
#include "fabric/gpu/coder_priv.h"

#include "fabric/base/err.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, ALIGN = 256, TEST_BYTES = 3 * EPF_PACK_PART + 6 };

static const char *const kernel_name[CODER_KERNELS] = {
	[CODER_MOVE] = "epf_pack_k_move",   [CODER_SPLIT] = "epf_pack_k_split",
	[CODER_JOIN] = "epf_pack_k_join",   [CODER_SUM] = "epf_pack_k_sum",
	[CODER_CLOSE] = "epf_pack_k_close", [CODER_VERDICT] = "epf_pack_k_verdict",
};

static uint64_t whole_pages(uint64_t bytes)
{
	return (bytes + PAGE - 1) / PAGE * PAGE;
}

static int open_device(struct epf_coder *c, const char *backend, int device)
{
	const struct epf_gpu_ops *ops;
	const void *image = epf_pack_fake_image;
	int rc = epf_gpu_backend(backend, &ops);

	if (!rc && ops != &epf_gpu_cuda_ops && ops != &epf_gpu_fake_ops)
		rc = epf_fail(EPF_R_GPU_UNSUPPORTED,
			      "compression on a GPU of %s: nvCOMP is a library for CUDA",
			      ops->name);
	if (!rc && ops == &epf_gpu_cuda_ops)
		image = epf_pack_cuda_image;
	if (!rc && !image)
		rc = epf_fail(EPF_R_GPU_UNSUPPORTED,
			      "compression on a GPU: this build was made without nvcc");
	if (!rc)
		rc = epf_nvcomp(&c->lib, &c->version);
	if (!rc)
		rc = ops->open(device, &c->dev);
	if (!rc)
		rc = ops->stream_create(c->dev, &c->stream);
	if (!rc)
		rc = ops->event_create(c->dev, &c->event);
	if (!rc)
		rc = ops->module_load(c->dev, image, &c->module);
	for (int k = 0; k < CODER_KERNELS && !rc; k++)
		rc = ops->function(c->dev, c->module, kernel_name[k], &c->kernels[k]);
	return rc;
}

/* Asks the library for sizes and alignments. */
static int ask(struct epf_coder *c, size_t *temp)
{
	struct epf_nvcomp_align in = { 0 }, out = { 0 };
	size_t most = 0, a = 0, b = 0;
	int rc = c->dev->ops->enter(c->dev);

	if (rc)
		return rc;
	rc = c->lib->compress_most(EPF_PACK_PART, epf_coder_compress_how, &most);
	if (!rc)
		rc = c->lib->compress_temp(EPF_PACK_PARTS, EPF_PACK_PART, epf_coder_compress_how,
					   &a, (size_t)EPF_PACK_PARTS * EPF_PACK_PART, c->stream);
	if (!rc)
		rc = c->lib->expand_temp(EPF_PACK_PARTS, EPF_PACK_PART, epf_coder_expand_how, &b,
					 (size_t)EPF_PACK_PARTS * EPF_PACK_PART, c->stream);
	if (!rc)
		rc = c->lib->compress_align(epf_coder_compress_how, &in);
	if (!rc)
		rc = c->lib->expand_align(epf_coder_expand_how, &out);
	c->dev->ops->leave(c->dev);
	if (rc)
		return epf_fail(EPF_R_GPU_CALL, "nvCOMP: sizes of its ANS coder: %s (%d)",
				c->lib->status_text(rc), rc);
	if (in.output > ALIGN || in.input > EPF_PACK_PART || out.input > EPF_PACK_ALIGN ||
	    out.output > EPF_PACK_PART)
		return epf_fail(EPF_R_GPU_UNSUPPORTED,
				"nvCOMP: its ANS coder wants alignments of %zu and %zu bytes",
				in.output, out.input);
	c->part_room = (most + ALIGN - 1) / ALIGN * ALIGN;
	*temp = a > b ? a : b;
	return 0;
}

static int alloc(struct epf_coder *c, uint64_t bytes, struct epf_gpu_mem *out)
{
	return c->dev->ops->mem_alloc(c->dev, bytes, 0, out);
}

static int open_memory(struct epf_coder *c)
{
	uint64_t control = whole_pages(sizeof(struct epf_pack_control)), packed;
	uint64_t pages = control + whole_pages(sizeof(struct epf_pack_result));
	int rc = ask(c, &c->temp_bytes);

	if (rc)
		return rc;
	packed = EPF_PACK_PARTS * c->part_room;
	if (packed < EPF_CODER_ROOM)
		packed = EPF_CODER_ROOM;
	c->pages = mmap(NULL, pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (c->pages == MAP_FAILED) {
		c->pages = NULL;
		return epf_fail(EPF_R_NO_MEMORY, "compression on a GPU");
	}
	rc = epf_coder_pin(c, c->pages, pages, &c->pages_addr);
	if (!rc)
		rc = alloc(c, control, &c->control);
	if (!rc)
		rc = alloc(c, EPF_CODER_BYTES, &c->values);
	if (!rc)
		rc = alloc(c, (uint64_t)EPF_PACK_PARTS * EPF_PACK_PART, &c->planes);
	if (!rc)
		rc = alloc(c, packed, &c->packed);
	if (!rc && c->temp_bytes)
		rc = alloc(c, c->temp_bytes, &c->temp);
	if (rc)
		return rc;
	c->on_device = (struct epf_pack_control *)(uintptr_t)c->control.addr;
	c->to_device = c->pages;
	c->to_device_addr = c->pages_addr;
	c->result = (struct epf_pack_result *)(void *)((uint8_t *)c->pages + control);
	c->result_addr = c->pages_addr + control;
	return 0;
}

static int unfit(const struct epf_coder *c, const char *what, uint32_t packed)
{
	char name[32];

	epf_coder_name(c, name, sizeof(name));
	return epf_fail(EPF_R_GPU_NVCOMP, "%s: %s (%d bytes, compressed %u, nvCOMP's parts %u)",
			name, what, TEST_BYTES, packed, (unsigned)c->result->length[0]);
}

/* Values like those of weights, with some bits of every kind, compressed and expanded in pinned memory of the host, which the GPU can use. */
static int try_out(struct epf_coder *c)
{
	uint64_t bytes = whole_pages(2 * TEST_BYTES), room = whole_pages(EPF_CODER_ROOM), addr = 0;
	static const uint8_t odd[] = { 0xff, 0x7f, 0x00, 0x80 }; /* NaNs, infinities, zeros */
	struct epf_coder_buffer chunk;
	struct iovec from, to;
	uint32_t packed = 0;
	uint8_t *at = mmap(NULL, bytes + room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			   -1, 0);
	int rc;

	if (at == MAP_FAILED)
		return epf_fail(EPF_R_NO_MEMORY, "compression on a GPU");
	for (uint32_t i = 0; i < TEST_BYTES; i++)
		at[i] = (uint8_t)(i % 2 == 0     ? i * 37 + i / 256
				  : i % 514 == 1 ? odd[i / 514 % sizeof(odd)]
						 : 0x3e + i / 7 % 2);
	rc = epf_coder_pin(c, at, bytes + room, &addr);
	if (!rc) {
		from = (struct iovec){ (void *)(uintptr_t)addr, TEST_BYTES };
		to = (struct iovec){ (void *)(uintptr_t)(addr + TEST_BYTES), TEST_BYTES };
		chunk = (struct epf_coder_buffer){ at + bytes, addr + bytes };
		rc = epf_coder_compress(c, true, 2, &from, 1, TEST_BYTES, &chunk, &packed);
		if (!rc)
			rc = epf_coder_expand(c, &chunk, packed, 2, &to, 1, TEST_BYTES);
		if (!rc && memcmp(at, at + TEST_BYTES, TEST_BYTES) != 0)
			rc = -EBADMSG;
		if (rc == -EBADMSG)
			rc = unfit(c, "other values come back than it was given", packed);
		else if (!rc && packed >= TEST_BYTES - TEST_BYTES / 8)
			rc = unfit(c, "few exponents do not become shorter", packed);
		epf_coder_unpin(c, at);
	}
	munmap(at, bytes + room);
	return rc;
}

int epf_coder_open(const char *backend, int device, struct epf_coder **out)
{
	struct epf_coder *c = calloc(1, sizeof(*c));
	int rc;

	if (!c)
		return epf_fail(EPF_R_NO_MEMORY, "compression on a GPU");
	rc = open_device(c, backend, device);
	if (!rc)
		rc = open_memory(c);
	if (!rc)
		rc = try_out(c);
	if (rc) {
		epf_coder_close(c);
		return rc;
	}
	*out = c;
	return 0;
}

static void close_device(struct epf_coder *c)
{
	struct epf_gpu_mem *const mem[] = { &c->control, &c->values, &c->planes, &c->packed,
					    &c->temp };
	const struct epf_gpu_ops *ops = c->dev->ops;

	if (c->stream)
		(void)ops->stream_sync(c->dev, c->stream);
	for (size_t i = 0; i < sizeof(mem) / sizeof(mem[0]); i++)
		if (mem[i]->addr)
			ops->mem_free(c->dev, mem[i]);
	if (c->module)
		ops->module_unload(c->dev, c->module);
	ops->event_destroy(c->dev, c->event);
	ops->stream_destroy(c->dev, c->stream);
	if (c->pages_addr)
		epf_coder_unpin(c, c->pages);
	ops->close(c->dev);
}

void epf_coder_close(struct epf_coder *c)
{
	if (!c)
		return;
	if (c->dev)
		close_device(c);
	if (c->pages)
		munmap(c->pages, whole_pages(sizeof(struct epf_pack_control)) +
					 whole_pages(sizeof(struct epf_pack_result)));
	free(c);
}

int epf_coder_device(const struct epf_coder *c)
{
	return c->dev->index;
}

void epf_coder_name(const struct epf_coder *c, char *buf, size_t size)
{
	snprintf(buf, size, "nvCOMP %u.%u.%u", c->version / 1000, c->version % 1000 / 100,
		 c->version % 100);
}

int epf_coder_pin(struct epf_coder *c, void *addr, uint64_t bytes, uint64_t *device_addr)
{
	return c->dev->ops->pin(c->dev, addr, bytes, 0, device_addr);
}

void epf_coder_unpin(struct epf_coder *c, void *addr)
{
	c->dev->ops->unpin(c->dev, addr);
}
