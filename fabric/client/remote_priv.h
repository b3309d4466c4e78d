/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of the service back-end: remote.c (connection, calls, what backend.h asks for), remote_memory.c (memory shared with the
 * daemon, and how it is registered again after a restart), remote_join.c (joining, coming back). Nobody else includes this.
 * What comes from the daemon is checked before it is used: a wrong daemon may end this rank's work, but not its process.
 */
#ifndef EPF_FABRIC_CLIENT_REMOTE_H
#define EPF_FABRIC_CLIENT_REMOTE_H

#include "fabric/client/handle.h"
#include "fabric/gpu/copy.h"
#include "fabric/protocol/channel.h"

/* A registered region, for registering it again. */
struct remote_region {
	int fd; /* owned; -1 after the join: then nothing is registered again */
	bool closed;
	uint32_t access;
	uint64_t offset;
	uint64_t bytes;
	struct epf_copy_mem *gpu; /* GPU memory: a use of it; NULL otherwise, or after the join */
	uint64_t next_poll_ns;    /* of its withdrawal */
};

struct epf_remote {
	struct epf_svc_channel *ch; /* NULL: no connection */
	char dir[4096];             /* "" when the socket was given by a path of another form */
	char instance[EPF_SVC_NAME];
	char path[108];
	uint64_t timeout_ns; /* service-timeout */
	uint64_t checked_ns; /* when the connection was looked at last */
	/* Changed under locks.calls, read by any wait: */
	bool attached; /* the daemon knows this rank's job: no way back to another run of it */
	bool gone;     /* noticed and said */

	uint64_t signal_bytes; /* mapped at ep->signals */
	struct remote_region *regions;
	uint32_t n_regions;
	struct epf_peers_shm *peers;
	uint64_t peers_bytes;
	struct epf_wakeup *kick;
	uint64_t kick_bytes;

	uint8_t job_id[EPF_SVC_ID];
	uint8_t node_id[EPF_SVC_ID];
	bool lowest; /* of the node's ranks: it hands in what all have said */

	/* Called after each connect; again: another connection was lost. */
	int (*restore)(struct epf *ep, bool again);
};

/* ---- remote_connect.c ---- */
/* Finds the daemon that the configuration names and connects to it. */
int remote_connect(struct epf *ep);
void remote_hang_up(struct epf_remote *r);
/* Removes what a dead daemon left, if it is dead and we may. */
void remote_sweep(const struct epf_remote *r);
/* Fails: the daemon is gone. */
int remote_gone(const struct epf *ep);
/*
 * One request and its answer. Before the attach a lost daemon is connected to again and the request repeated; afterwards it fails with
 * EPF_R_SVC_GONE. n_reply_fds descriptors exactly, or it fails and there are none.
 */
int remote_call(struct epf *ep, unsigned type, const void *req, int fd, void *reply, int *reply_fds,
		unsigned n_reply_fds);
/* The same without connecting again: for what connecting again is made of. */
int remote_call_once(struct epf *ep, unsigned type, const void *req, int fd, void *reply,
		     int *reply_fds, unsigned n_reply_fds);
/* Whether this thread's last error is the loss of the daemon. */
bool remote_lost(int rc);

/* ---- remote_memory.c ---- */
/*
 * Maps a descriptor of the daemon, which must be sealed against shrinking and hold `bytes`; closes it in any case. at: NULL, or the
 * mapping to replace. what: for the error.
 */
int remote_map(int fd, uint64_t bytes, int prot, void *at, void **out, const char *what);
/* Asks for the signals: the first time, and again over the same addresses. */
int remote_signals(struct epf *ep);
/* Regions and rings of ep once more, after a new connection. */
int remote_register_again(struct epf *ep);
void remote_mem_free(struct epf *ep);
/* Unmaps what an attach brought: peers page and kick wakeup. */
void remote_pages_free(struct epf *ep);

int remote_region_register(struct epf *ep, void *addr, uint64_t bytes, unsigned access,
			   uint32_t *region);
int remote_region_register_gpu(struct epf *ep, struct epf_copy_mem *mem, unsigned access,
			       uint32_t *region);
int remote_region_withdraw(struct epf *ep, uint32_t region);
int remote_region_withdrawn(struct epf *ep, uint32_t region, uint32_t *missing);
int remote_ring_open(struct epf *ep, struct epf_ring *ring, unsigned log2, unsigned weight,
		     uint64_t start);
void remote_ring_close(struct epf_ring *ring);
/* The join is over: what was kept for registering again is given up. */
void remote_forget(struct epf *ep);

/* ---- remote_join.c ---- */
int remote_join_round(struct epf *ep, unsigned n, const struct epf_blob *blobs, uint8_t **buf,
		      size_t *len, bool *last);
int remote_describe(struct epf *ep, uint8_t **buf, size_t *len);
int remote_update(struct epf *ep, const struct epf_blob *blobs);
int remote_rejoin(struct epf *ep, const uint8_t *job_key);
int remote_reconnect(struct epf *ep, unsigned step, const struct epf_blob *blobs, uint8_t **buf,
		     size_t *len);

#endif
