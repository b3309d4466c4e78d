/* SPDX-License-Identifier: Apache-2.0 */
/* See pinned.h. */
#define EPF_LOG_COMP "tcp"
#include "fabric/nic/tcp/pinned.h"

#include "fabric/base/err.h"
#include "fabric/base/log.h"

#include <errno.h>
#include <stddef.h>
#include <sys/mman.h>

void epf_tcp_pinned_release(struct epf_tcp_spares *spares, struct epf_tcp_pinned *p)
{
	struct epf_tcp_spare *s = (struct epf_tcp_spare *)(void *)p->base;

	if (!s)
		return;
	*s = (struct epf_tcp_spare){ spares->first, p->bytes };
	spares->first = s;
	p->base = NULL;
}

static void *take_spare(struct epf_tcp_spares *spares, uint64_t bytes)
{
	for (struct epf_tcp_spare **at = &spares->first, *s; (s = *at); at = &s->next)
		if (s->bytes == bytes) {
			*at = s->next;
			return s;
		}
	return NULL;
}

void epf_tcp_spares_drop(struct epf_tcp_spares *spares)
{
	for (struct epf_tcp_spare *s = spares->first, *next; s; s = next) {
		next = s->next;
		spares->ops->host_unregister(s);
		munmap(s, s->bytes);
	}
}

int epf_tcp_pin(struct epf_tcp_spares *spares, struct epf_tcp_pinned *p, uint64_t bytes)
{
	void *at;

	epf_tcp_pinned_release(spares, p);
	at = take_spare(spares, bytes);
	if (!at) {
		at = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
		if (at == MAP_FAILED) {
			epf_warn_ratelimited(
				"GPU copies: no memory for %llu pinned bytes of a connection",
				(unsigned long long)bytes);
			return -ENOMEM;
		}
		if (spares->ops->host_register(at, bytes)) /* slower without */
			epf_warn_ratelimited("GPU copies: pinning memory: %s", epf_last_error());
	}
	p->base = at;
	p->bytes = bytes;
	return 0;
}
