/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that peers of this machine can map, and what metadata shows. Slow path. */
#include "fabric/p2p/p2p_priv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int epf_p2p_metadata(const struct epf_p2p *ep, void *buf, size_t size)
{
	if (size < sizeof(ep->meta))
		return epf_fail_sys(EPF_R_P2P_ARGUMENT, EMSGSIZE, "metadata needs %zu bytes",
				    sizeof(ep->meta));
	memcpy(buf, &ep->meta, sizeof(ep->meta));
	return (int)sizeof(ep->meta);
}

void epf_p2p_meta_show(const struct metadata *m, struct epf_p2p_peer *out)
{
	memcpy(out->name, m->name, sizeof(out->name));
	memcpy(out->host, m->host, sizeof(out->host));
	memcpy(out->id, m->id, sizeof(out->id));
	out->port = m->port;
	out->gpu = m->gpu;
}

int epf_p2p_describe(const void *metadata, size_t bytes, struct epf_p2p_peer *out)
{
	struct epf_p2p_peer full = { 0 };
	struct metadata meta;
	size_t size = out->size < sizeof(full) ? out->size : sizeof(full);
	int rc = epf_p2p_meta_read(metadata, bytes, &meta);

	if (rc)
		return rc;
	epf_p2p_meta_show(&meta, &full);
	full.size = out->size;
	memcpy(out, &full, size);
	return 0;
}

int epf_p2p_alloc(struct epf_p2p *ep, uint64_t bytes, void **addr)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	struct block_memory *m = calloc(1, sizeof(*m));
	void *at;
	int rc;

	if (!m || !bytes || bytes > 1ull << 47) {
		free(m);
		return m ? epf_fail(EPF_R_P2P_ARGUMENT, "p2p: memory of %llu bytes",
				    (unsigned long long)bytes)
			 : epf_fail(EPF_R_NO_MEMORY, "p2p: memory");
	}
	m->bytes = (bytes + page - 1) / page * page;
	rc = epf_p2p_new_memfd("epf-p2p-memory", m->bytes, &m->fd);
	if (rc) {
		free(m);
		return rc;
	}
	at = mmap(NULL, m->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, m->fd, 0);
	if (at == MAP_FAILED) {
		close(m->fd);
		free(m);
		return epf_fail(EPF_R_NO_MEMORY, "p2p: memory of %llu bytes",
				(unsigned long long)bytes);
	}
	m->addr = at;
	pthread_mutex_lock(&ep->lock);
	m->next = ep->memory;
	ep->memory = m;
	pthread_mutex_unlock(&ep->lock);
	*addr = at;
	return 0;
}

void epf_p2p_free(struct epf_p2p *ep, void *addr)
{
	struct block_memory **at = &ep->memory, *m;

	pthread_mutex_lock(&ep->lock);
	while (*at && (*at)->addr != addr)
		at = &(*at)->next;
	m = *at;
	if (m)
		*at = m->next;
	pthread_mutex_unlock(&ep->lock);
	if (!m)
		return;
	munmap(m->addr, m->bytes);
	close(m->fd);
	free(m);
}
