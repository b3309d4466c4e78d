/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/xfer/memory.h"

#include "bench/common/bench.h"
#include "fabric/gpu/copy.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

void *xfer_as_numpy(uint64_t bytes)
{
	enum { HUGE_PAGE = 2 << 20 };

	void *at = NULL;

	if (bytes < 2 * HUGE_PAGE)
		return malloc(bytes);
	if (posix_memalign(&at, HUGE_PAGE, bytes))
		return NULL;
	(void)madvise(at, bytes, MADV_HUGEPAGE);
	return at;
}

static int gpu_memory(struct xfer_memory *m, const char *backend)
{
	void *at = NULL;
	int rc = bench_check(epf_copy_ops_find(backend, &m->gpu));

	if (!rc)
		rc = bench_check(m->gpu->load());
	if (!rc)
		rc = bench_check(m->gpu->mem_alloc(m->device, m->bytes, &at));
	m->at = at;
	return rc;
}

int xfer_memory_make(struct xfer_memory *m, struct epf_p2p *ep, bool mapped, const char *backend)
{
	void *at = NULL;
	int rc = 0;

	m->gpu = NULL;
	m->is_mapped = mapped;
	if (m->device >= 0)
		rc = gpu_memory(m, backend);
	else if (mapped)
		rc = bench_check(epf_p2p_alloc(ep, m->bytes, &at));
	if (rc)
		return rc;
	m->host = mapped ? at : xfer_as_numpy(m->bytes);
	if (!m->host) {
		bench_complain("xfer: no memory for %llu bytes", (unsigned long long)m->bytes);
		return -ENOMEM;
	}
	m->at = m->gpu ? m->at : m->host;
	return 0;
}

void xfer_memory_free(struct xfer_memory *m)
{
	if (m->gpu)
		m->gpu->mem_free(m->at);
	if (!m->is_mapped)
		free(m->host);
}

int xfer_memory_set(const struct xfer_memory *m)
{
	return m->gpu ? bench_check(m->gpu->copy(m->at, m->host, m->bytes)) : 0;
}

int xfer_memory_see(const struct xfer_memory *m)
{
	return m->gpu ? bench_check(m->gpu->copy(m->host, m->at, m->bytes)) : 0;
}
