/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compressed chunks between memory of GPUs (pack_priv.h, fabric/gpu/coder.h). The compressed bytes lie in staging memory of the host, so that every
 * NIC can send them. An endpoint has as many coders of a GPU as threads used one at a time; its first one shows that nvCOMP works here, before peers
 * are told so.
 */
#define EPF_LOG_COMP "p2p"
#include "fabric/gpu/coder.h"
#include "fabric/gpu/copy.h"
#include "fabric/p2p/pack_priv.h"

#include "fabric/base/log.h"

#include <errno.h>
#include <stdlib.h>

struct free_coder {
	struct free_coder *next;
	struct epf_coder *coder;
};

_Static_assert((int)P2P_PACK_CHUNK == (int)EPF_CODER_BYTES, "a chunk fits a coder");
_Static_assert((int)CHUNK_PIECES <= (int)EPF_PACK_PIECES, "and so do its pieces");

static void put(struct epf_p2p *ep, struct free_coder *f)
{
	pthread_mutex_lock(&ep->gpu.lock);
	f->next = ep->gpu.coders;
	ep->gpu.coders = f;
	pthread_mutex_unlock(&ep->gpu.lock);
}

/* Gives a coder back, whose GPU has ended. */
static void finished(struct epf_p2p *ep, struct free_coder *f)
{
	put(ep, f);
	__atomic_fetch_sub(&ep->gpu.coding, 1u, __ATOMIC_RELEASE);
}

static int open_coder(struct epf_p2p *ep, int device, struct free_coder **out)
{
	struct free_coder *f = calloc(1, sizeof(*f));
	int rc;

	if (!f)
		return epf_fail(EPF_R_NO_MEMORY, "compression by GPU %d", device);
	rc = epf_coder_open(epf_copy_gpu_name(&ep->conf), device, &f->coder);
	if (rc)
		free(f);
	else
		*out = f;
	return rc;
}

/* Takes a coder of that GPU, or opens one; finished() gives it back. */
static int get(struct epf_p2p *ep, int device, struct free_coder **out)
{
	struct free_coder **at, *f;
	int rc;

	pthread_mutex_lock(&ep->gpu.lock);
	for (at = &ep->gpu.coders; *at && epf_coder_device((*at)->coder) != device;
	     at = &(*at)->next)
		;
	f = *at;
	if (f)
		*at = f->next;
	pthread_mutex_unlock(&ep->gpu.lock);
	*out = f;
	__atomic_fetch_add(&ep->gpu.coding, 1u, __ATOMIC_RELAXED); /* opening one uses it, too */
	rc = f ? 0 : open_coder(ep, device, out);
	if (rc)
		__atomic_fetch_sub(&ep->gpu.coding, 1u, __ATOMIC_RELEASE);
	return rc;
}

void epf_p2p_coder_find(struct epf_p2p *ep, int device)
{
	struct free_coder *f;
	char name[32];

	/* The driver is loaded by whoever makes GPU memory, which may be after the endpoint was opened. */
	if (epf_p2p_strategy(ep) == CODEC_NONE ||
	    !epf_copy_may_have(epf_copy_gpu_name(&ep->conf)) ||
	    __atomic_exchange_n(&ep->gpu.coder_tried, true, __ATOMIC_ACQ_REL))
		return;
	if (open_coder(ep, device, &f)) {
		epf_note("p2p-compress: GPU memory goes uncompressed: %s", epf_last_error());
		return;
	}
	epf_coder_name(f->coder, name, sizeof(name));
	epf_info("GPU memory is compressed by %s where peers have it too", name);
	put(ep, f);
	EPF_STORE_RELEASE(&ep->gpu.coder, f->coder);
}

void epf_p2p_coders_close(struct epf_p2p *ep)
{
	struct free_coder *f;

	while ((f = ep->gpu.coders)) {
		ep->gpu.coders = f->next;
		epf_coder_close(f->coder);
		free(f);
	}
}

int epf_p2p_pack_gpu_pin(struct conn *c, uint64_t bytes)
{
	return epf_coder_pin(c->ep->gpu.coder, c->pack->memory, bytes, &c->pack->gpu_memory);
}

void epf_p2p_pack_gpu_unpin(struct conn *c)
{
	epf_coder_unpin(c->ep->gpu.coder, c->pack->memory);
}

/* The place of a slot in the staging memory. */
static struct epf_coder_buffer buffer(struct pack *p, const uint8_t *at)
{
	uint64_t offset = (uint64_t)(at - p->memory);

	return (struct epf_coder_buffer){ p->memory + offset, p->gpu_memory + offset };
}

/* Logs a failure of the GPU or its library, of which the transfer reports only the errno. */
static int outcome(int device, int rc)
{
	if (!rc || rc == -EBADMSG)
		return rc;
	epf_warn_ratelimited("compression by GPU %d: %s", device, epf_last_error());
	return -EIO;
}

int epf_p2p_pack_gpu_compress(struct conn *c, struct pack_slot *s, int device,
			      enum epf_p2p_float type, const struct iovec *from, uint32_t n,
			      uint8_t *to)
{
	struct epf_coder_buffer at = buffer(c->pack, to);
	struct free_coder *f;
	int rc = get(c->ep, device, &f);

	if (!rc) {
		rc = epf_coder_compress(f->coder, c->compress == CODEC_FULL,
					epf_p2p_float_bytes(type), from, n, s->bytes, &at,
					&s->packed);
		finished(c->ep, f);
	}
	return outcome(device, rc);
}

int epf_p2p_pack_gpu_expand(struct conn *c, const uint8_t *from, uint32_t packed, int device,
			    enum epf_p2p_float type, const struct iovec *to, uint32_t n,
			    uint32_t bytes)
{
	struct epf_coder_buffer at = buffer(c->pack, from);
	struct free_coder *f;
	int rc = get(c->ep, device, &f);

	if (!rc) {
		rc = epf_coder_expand(f->coder, &at, packed, epf_p2p_float_bytes(type), to, n,
				      bytes);
		finished(c->ep, f);
	}
	return outcome(device, rc);
}
