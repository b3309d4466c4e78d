/* SPDX-License-Identifier: Apache-2.0 */
/* Making a connection's object, and what two endpoints of one machine share. Slow path. */
#include "fabric/base/clock.h"
#include "fabric/p2p/p2p_priv.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_pidfd_open
# define SYS_pidfd_open 434 /* linux 5.3, the same on all architectures */
#endif

int epf_p2p_conn_make(struct epf_p2p *ep, const struct metadata *peer, bool is_local,
		      bool is_passive, struct conn **out)
{
	struct conn *c = calloc(1, sizeof(*c));

	if (!c)
		return epf_fail(EPF_R_NO_MEMORY, "p2p: a connection");
	c->ep = ep;
	c->id = __atomic_add_fetch(&ep->next_id, 1u, __ATOMIC_RELAXED);
	c->refs = 2; /* its number's, and the thread's */
	c->peer = *peer;
	c->is_local = is_local;
	c->is_passive = is_passive;
	c->pidfd = -1;
	c->stream.fd = -1;
	pthread_mutex_init(&c->note_lock, NULL);
	pthread_mutex_init(&c->take_lock, NULL);
	snprintf(c->label, sizeof(c->label), "peer %s (pid %u on %s)", c->peer.name, c->peer.pid,
		 c->peer.host);
	*out = c;
	return 0;
}

void epf_p2p_conn_discard(struct conn *c)
{
	c->refs = 1;
	epf_p2p_conn_put(c);
}

int epf_p2p_bell_index(struct epf_p2p *ep, struct conn *c)
{
	for (uint32_t i = 0; i < P2P_LOCAL_CONNS; i++) {
		uint32_t at = (ep->next_bell + i) % P2P_LOCAL_CONNS;

		if (ep->by_bell[at])
			continue;
		ep->next_bell = at + 1;
		ep->by_bell[at] = c;
		c->own_index = at;
		return 0;
	}
	return epf_fail(EPF_R_P2P_LIMIT, "an endpoint has at most %d connections on its machine",
			P2P_LOCAL_CONNS);
}

/* Maps a memfd of a peer: of that size, and sealed against shrinking, so that no access can fault. */
static int map_peer(const struct conn *c, int fd, size_t bytes, int prot, void **out)
{
	struct stat st;
	int seals = fcntl(fd, F_GET_SEALS);
	void *at;

	if (fd < 0 || fstat(fd, &st) || (size_t)st.st_size != bytes || seals < 0 ||
	    !(seals & F_SEAL_SHRINK))
		return epf_fail(EPF_R_P2P_METADATA,
				"%s: a descriptor is no sealed memfd of %zu bytes", c->label,
				bytes);
	at = mmap(NULL, bytes, prot, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED)
		return epf_fail(EPF_R_NO_MEMORY, "%s: its shared memory cannot be mapped",
				c->label);
	*out = at;
	return 0;
}

int epf_p2p_conn_share(struct conn *c, int segment_fd, int table_fd, int bell_fd, pid_t pid)
{
	void *segment, *table, *bell;
	int rc = map_peer(c, segment_fd, sizeof(*c->segment), PROT_READ | PROT_WRITE, &segment);

	if (rc)
		return rc;
	c->segment = segment;
	c->mine = &c->segment->half[c->is_passive];
	c->theirs = &c->segment->half[!c->is_passive];
	rc = map_peer(c, table_fd, sizeof(*c->table), PROT_READ, &table);
	if (rc)
		return rc;
	c->table = table;
	rc = map_peer(c, bell_fd, sizeof(*c->bell), PROT_READ | PROT_WRITE, &bell);
	if (rc)
		return rc;
	c->bell = bell;
	c->pid = pid;
	c->pidfd = (int)syscall(SYS_pidfd_open, pid,
				0); /* -1: its socket alone says that it has ended */
	c->seen_ns = epf_now_ns();
	return 0;
}

void epf_p2p_conn_publish(struct conn *c, bool passive)
{
	struct epf_p2p *ep = c->ep;
	struct epf_p2p_event e = { .kind = EPF_P2P_CONNECTED, .conn = c->number };

	c->next = ep->all;
	ep->all = c;
	ep->stats.connected++;
	ep->has_new = true;
	pthread_cond_broadcast(&ep->changed);
	if (passive)
		epf_p2p_event(ep, &e, NULL);
}
