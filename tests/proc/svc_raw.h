/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client of the daemon without libepf, for tests of bad input and of other versions: it speaks the control protocol, maps what the
 * daemon sends, and may write anything there. One process can be several ranks of a job on several daemons. Nothing here ends the process;
 * every wait has a deadline. It shares fabric/protocol/proto.c with the daemon, so tests/unit tests the bytes themselves.
 */
#ifndef EPF_TESTS_SVC_RAW_H
#define EPF_TESTS_SVC_RAW_H

#include "fabric/protocol/proto.h"
#include "queues/epf_peers.h"
#include "queues/epf_ring.h"
#include "queues/epf_signal.h"
#include "queues/epf_wakeup.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { RAW_TIMEOUT_MS = 60000, RAW_REGIONS = 8, RAW_RINGS = 64 };

/* One connection. */
struct raw {
	int fd;
	unsigned minor; /* spoken from HELLO on */
	unsigned tail;  /* unknown bytes appended to every body, as from a newer minor */
	uint32_t seq;
	/* The last answer. */
	struct epf_svc_head head;
	uint8_t *body;
	int fds[EPF_SVC_FDS_MAX]; /* -1: none */
	unsigned n_fds;
	char text[512]; /* of a failure */
};

/* Connects without HELLO. Returns 0 or -errno. */
int raw_open(struct raw *c, const char *path);
/* Closes the connection and the descriptors of the last answer. Accepts a connection that failed to open, and a second call. */
void raw_close(struct raw *c);
/* Sends raw bytes, with descriptors on the first. Returns the bytes sent or -errno. */
int raw_send(struct raw *c, const void *bytes, size_t len, const int *fds, unsigned n_fds);
/* Sends a frame with the given header. */
int raw_frame(struct raw *c, const struct epf_svc_head *head, const void *body, size_t len,
	      const int *fds, unsigned n_fds);
/* Reads one answer. Returns 0, -ECONNRESET if closed, -ETIMEDOUT, or -EBADMSG. */
int raw_recv(struct raw *c, unsigned timeout_ms);
/* Returns true if the daemon closes the connection within timeout_ms; discards what it sends before. */
bool raw_is_closed(struct raw *c, unsigned timeout_ms);
/* Sends a request and reads its answer. Returns the answer's status, or -errno of raw_send and raw_recv. reply: NULL, or points into c. */
int raw_call(struct raw *c, unsigned type, const void *msg, const int *fds, unsigned n_fds,
	     void *reply);
/* Sends HELLO as `major`.`minor`; c speaks that minor from then on. */
int raw_hello(struct raw *c, unsigned major, unsigned minor, uint32_t flags);
/* Connects and sends HELLO of our version. */
int raw_connect(struct raw *c, const char *path, uint32_t flags);
/* Returns the daemon's status as JSON, malloced; NULL if it does not answer. */
char *raw_status(const char *path);
/* Sets a link of all NICs of a job (empty: of all jobs) down or up. Returns the number of NICs or -errno. */
int raw_link(const char *path, const char *job, uint32_t link, bool up);

struct raw_ring {
	struct epf_ring_shm *shm;
	size_t bytes;
	struct epf_ring_producer producer;
	uint32_t number;
};

struct raw_rank {
	struct raw c;
	uint32_t rank, world;
	struct epf_signal *signals; /* then the wakeup */
	struct epf_wakeup *wakeup;
	uint32_t n_signals;
	size_t signals_bytes;
	uint8_t *mem[RAW_REGIONS]; /* by region number */
	size_t mem_bytes[RAW_REGIONS];
	int mem_fd[RAW_REGIONS];
	uint32_t n_regions;
	struct raw_ring ring[RAW_RINGS];
	uint32_t n_rings;
	const struct epf_peers_shm *peers;
	size_t peers_bytes;
	struct epf_wakeup *kick;
	size_t kick_bytes;
	uint8_t member[EPF_SVC_MEMBER_BYTES]; /* node id, nonce */
	uint8_t *sealed;                      /* this rank's description */
	uint32_t sealed_len;
};

/* Makes a memfd of `bytes` with the given F_SEAL_*. Returns it, or -1. */
int raw_memfd(size_t bytes, unsigned seals);
/* Connects as minor `minor` with `tail` unknown bytes, and requests signals. Returns 0 or -errno. */
int raw_rank_open(struct raw_rank *r, const char *path, unsigned minor, unsigned tail,
		  uint32_t n_signals);
/* Makes memory and registers it. */
int raw_rank_region(struct raw_rank *r, size_t bytes, uint32_t access);
/* Opens a ring of 2^log2 slots. Returns its index in r->ring, or -errno. */
int raw_rank_ring(struct raw_rank *r, unsigned log2);
/* Closes a ring, which the daemon drains. Its index may be reused. */
int raw_rank_ring_close(struct raw_rank *r, int ring);
/* Sends ATTACH. job_id and key are chosen by the caller, the same for all ranks of the job. */
int raw_rank_attach(struct raw_rank *r, const char *job, const uint8_t job_id[EPF_SVC_ID],
		    const uint8_t key[EPF_SVC_KEY], uint32_t rank, uint32_t world, uint32_t flags);
/* Send WORLD, and CONNECT, with the data of all ranks. */
int raw_rank_world(struct raw_rank *r, const uint8_t *table);
int raw_rank_connect(struct raw_rank *r, const void *blobs, size_t len);
/* Frees everything. leave: sends LEAVE first; otherwise just closes the socket. */
void raw_rank_close(struct raw_rank *r, bool leave);
/* Wakes the daemon after pushes. */
void raw_rank_kick(struct raw_rank *r);
/* Waits until a ring has retired `n` commands. Returns 0 or -ETIMEDOUT. */
int raw_rank_retired(struct raw_rank *r, int ring, uint64_t n, unsigned timeout_ms);

/* Joins all ranks of a job, which are in this process and have their regions and rings. Returns 0 or -errno. */
int raw_job_join(struct raw_rank *const *r, uint32_t n, const char *job, uint64_t number);
/* Derives a job id and key from a number, as raw_job_join() does. */
void raw_job_names(uint64_t number, uint8_t job_id[EPF_SVC_ID], uint8_t key[EPF_SVC_KEY]);

#endif
