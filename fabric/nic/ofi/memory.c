/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of operations and receives, in chunks that live as long as the NIC: the provider may report an operation long after its lane is gone. Slow path.
 */
#include "fabric/nic/ofi/ofi.h"

#include "fabric/base/err.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { LEAST = 256 };

static int chunk_make(struct epf_ofi *v, size_t size, uint32_t count, uint64_t access, void **desc,
		      struct epf_ofi_chunk **out)
{
	struct epf_ofi_chunk *c = calloc(1, sizeof(*c));
	void *memory = aligned_alloc(4096, (size * count + 4095) / 4096 * 4096);
	int rc = 0;

	if (!c || !memory) {
		free(c);
		free(memory);
		return epf_fail(EPF_R_NO_MEMORY, "ofi: %u operations", count);
	}
	memset(memory, 0, size * count);
	c->count = count;
	*out = c;
	if (v->local_mr)
		rc = epf_ofi_mr_make(v, memory, size * count, access, &c->mr);
	if (rc) {
		free(memory);
		free(c);
		return epf_ofi_call_failed(v, "fi_mr_reg", rc);
	}
	*desc = c->mr ? fi_mr_desc(c->mr) : NULL;
	c->next = v->chunks;
	v->chunks = c;
	*out = c;
	c->ops = memory; /* the caller says what it is */
	return 0;
}

int epf_ofi_more_ops(struct epf_ofi *v, uint32_t n)
{
	struct epf_ofi_chunk *c;
	uint32_t count;
	void *desc;
	int rc;

	if (n <= v->all_ops)
		return 0;
	count = n - v->all_ops < LEAST ? LEAST : n - v->all_ops;
	rc = chunk_make(v, sizeof(*c->ops), count, FI_SEND | FI_WRITE, &desc, &c);
	if (rc)
		return rc;
	for (uint32_t i = 0; i < count; i++) {
		c->ops[i].message_desc = desc;
		c->ops[i].next = v->free_ops;
		v->free_ops = &c->ops[i];
	}
	v->all_ops += count;
	return 0;
}

int epf_ofi_more_slots(struct epf_ofi *v, uint32_t n)
{
	struct epf_ofi_chunk *c;
	void *desc;
	int rc = chunk_make(v, sizeof(*c->slots), n, FI_RECV, &desc, &c);

	if (rc)
		return rc;
	c->slots = (struct epf_ofi_slot *)(void *)c->ops;
	c->ops = NULL;
	v->slot_desc = desc;
	for (uint32_t i = 0; i < n; i++) {
		c->slots[i].next = v->free_slots;
		v->free_slots = &c->slots[i];
	}
	return 0;
}

void epf_ofi_memory_free(struct epf_ofi *v)
{
	while (v->chunks) {
		struct epf_ofi_chunk *c = v->chunks;

		v->chunks = c->next;
		if (c->mr)
			fi_close(&c->mr->fid);
		free(c->ops);
		free(c->slots);
		free(c);
	}
}
