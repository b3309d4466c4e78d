/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libepf: which process is which rank, for error texts. Every rank says it in the last round of the join, which carries nothing else;
 * ranks of earlier releases say nothing. The bytes come from other processes: read with every length checked, and shown only.
 *
 * Bytes, little-endian: u32 the rank's process, u32 the process that runs its engine (0: not known), then the name of the host.
 */
#include "fabric/base/err.h"
#include "fabric/client/handle.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FIXED_BYTES = 8 };

static void put_u32(uint8_t *at, uint32_t value)
{
	for (unsigned i = 0; i < 4; i++)
		at[i] = (uint8_t)(value >> 8 * i);
}

static uint32_t get_u32(const uint8_t *at)
{
	return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

int epf_who_describe(const struct epf *ep, uint8_t **buf, size_t *len)
{
	char host[HOST_NAME_MAX + 1] = "";
	uint8_t *b;

	if (gethostname(host, sizeof(host) - 1))
		host[0] = 0;
	b = malloc(FIXED_BYTES + strlen(host));
	if (!b)
		return epf_fail(EPF_R_NO_MEMORY, "join: no memory");
	put_u32(b, (uint32_t)getpid());
	put_u32(b + 4, ep->be->engine_pid(ep));
	memcpy(b + FIXED_BYTES, host, strlen(host));
	*buf = b;
	*len = FIXED_BYTES + strlen(host);
	return 0;
}

uint32_t epf_who_here(const struct epf *ep)
{
	const struct epf_blob *me = &ep->who[ep->rank];
	uint32_t n = 0;

	for (uint32_t r = 0; r < ep->world && me->len > FIXED_BYTES; r++) {
		const struct epf_blob *b = &ep->who[r];

		n += b->len == me->len &&
		     memcmp((const uint8_t *)b->data + FIXED_BYTES,
			    (const uint8_t *)me->data + FIXED_BYTES, me->len - FIXED_BYTES) == 0;
	}
	return n;
}

void epf_who_text(const struct epf *ep, uint32_t rank, char *text, size_t size)
{
	const struct epf_blob *blob = ep->who ? &ep->who[rank] : NULL;
	uint32_t node = EPF_LOAD_RELAXED(&ep->peers->peers[rank].node), pid, engine;
	char host[HOST_NAME_MAX + 1];
	const uint8_t *b;
	size_t n;

	/* A rank that rejoined is another process, which has not been published. */
	if (!blob || blob->len < FIXED_BYTES || EPF_LOAD_RELAXED(&ep->peers->peers[rank].epoch)) {
		snprintf(text, size, "rank %u on node %u", rank, node);
		return;
	}
	b = blob->data;
	pid = get_u32(b);
	engine = get_u32(b + 4);
	n = blob->len - FIXED_BYTES < sizeof(host) - 1 ? blob->len - FIXED_BYTES : sizeof(host) - 1;
	for (size_t i = 0; i < n; i++)
		host[i] = isgraph(b[FIXED_BYTES + i]) ? (char)b[FIXED_BYTES + i] : '?';
	host[n] = 0;
	if (engine == pid)
		snprintf(text, size, "rank %u on node %u (host %s, process %u)", rank, node, host,
			 pid);
	else
		snprintf(text, size, "the daemon of rank %u on node %u (host %s, process %u)", rank,
			 node, host, engine);
}
