/* SPDX-License-Identifier: Apache-2.0 */
/* Compressing and expanding pieces of memory (pack_priv.h). A thread takes a packer for one chunk; as many exist as threads did that at a time. */
#include "fabric/p2p/pack_priv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct packer *epf_p2p_packer_get(struct pack *p)
{
	struct packer *k;

	pthread_mutex_lock(&p->lock);
	k = p->packers;
	if (k)
		p->packers = k->next;
	pthread_mutex_unlock(&p->lock);
	if (k)
		return k;
	k = calloc(1, sizeof(*k));
	if (k && epf_p2p_codec_new(&k->codec)) {
		free(k);
		k = NULL;
	}
	return k;
}

void epf_p2p_packer_put(struct pack *p, struct packer *k)
{
	pthread_mutex_lock(&p->lock);
	k->next = p->packers;
	p->packers = k;
	pthread_mutex_unlock(&p->lock);
}

void epf_p2p_packers_free(struct pack *p)
{
	while (p->packers) {
		struct packer *k = p->packers;

		p->packers = k->next;
		epf_p2p_codec_free(k->codec);
		free(k);
	}
}

uint32_t epf_p2p_pack_encode(struct packer *k, enum codec_strategy strategy,
			     enum epf_p2p_float type, const struct iovec *from, uint32_t n,
			     uint32_t bytes, uint8_t *to)
{
	uint8_t *at = k->values;

	if (n == 1)
		return epf_p2p_encode(k->codec, strategy, type, from[0].iov_base, bytes, to);
	for (uint32_t i = 0; i < n; i++) {
		memcpy(at, from[i].iov_base, from[i].iov_len);
		at += from[i].iov_len;
	}
	return epf_p2p_encode(k->codec, strategy, type, k->values, bytes, to);
}

int epf_p2p_pack_decode(struct packer *k, const uint8_t *from, uint32_t from_bytes,
			const struct iovec *to, uint32_t n, uint32_t bytes)
{
	const uint8_t *at = k->values;
	int rc;

	memcpy(k->chunk, from, from_bytes); /* the peer may change it while it is read */
	if (n == 1)
		return epf_p2p_decode(k->codec, k->chunk, from_bytes, to[0].iov_base, bytes);
	rc = epf_p2p_decode(k->codec, k->chunk, from_bytes, k->values, bytes);
	for (uint32_t i = 0; i < n && !rc; i++) {
		memcpy(to[i].iov_base, at, to[i].iov_len);
		at += to[i].iov_len;
	}
	return rc;
}
