/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client of the daemon without libepf, for tests of bad input and of other versions: it speaks the control protocol by
 * hand, maps what the daemon gives it, and writes whatever it likes there. One process can be several ranks of a job on several
 * daemons. Nothing here ends the process; every wait has a deadline. It shares fabric/protocol/proto.c with what it tests, so
 * the tests of the bytes themselves are tests/unit's.
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
	unsigned tail;  /* unknown bytes put behind every body: what a newer minor would send */
	uint32_t seq;
	/* The last answer. */
	struct epf_svc_head head;
	uint8_t *body;
	int fds[EPF_SVC_FDS_MAX]; /* -1: none, or taken */
	unsigned n_fds;
	char text[512]; /* what a failure said */
};

/* Connects: 0 or -errno. No HELLO. */
int raw_open(struct raw *c, const char *path);
/* Closes; also what the last answer left. Accepts a connection that failed to open, and a second call. */
void raw_close(struct raw *c);
/* Sends bytes as they are, descriptors on the first: bytes sent or -errno. */
int raw_send(struct raw *c, const void *bytes, size_t len, const int *fds, unsigned n_fds);
/* Sends a frame with the given header. */
int raw_frame(struct raw *c, const struct epf_svc_head *head, const void *body, size_t len,
	      const int *fds, unsigned n_fds);
/* Reads one answer: 0; -ECONNRESET closed; -ETIMEDOUT; -EBADMSG. */
int raw_recv(struct raw *c, unsigned timeout_ms);
/* True when the daemon has closed the connection within timeout_ms; what it says before is thrown away. */
bool raw_is_closed(struct raw *c, unsigned timeout_ms);
/* One request and its answer: the answer's status, or -errno of raw_send and raw_recv. reply: NULL or the struct; points into c. */
int raw_call(struct raw *c, unsigned type, const void *msg, const int *fds, unsigned n_fds,
	     void *reply);
/* HELLO as `major`.`minor`; from then on c speaks that minor. */
int raw_hello(struct raw *c, unsigned major, unsigned minor, uint32_t flags);
/* Open, HELLO of our version. */
int raw_connect(struct raw *c, const char *path, uint32_t flags);
/* The daemon's state as JSON: malloced, NULL when it does not answer. */
char *raw_status(const char *path);
/* Link `link` of all NICs of a job (empty: of all) down or up: number of NICs or -errno. */
int raw_link(const char *path, const char *job, uint32_t link, bool up);

/* A rank by hand. */
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

/* A memfd of `bytes` with the given F_SEAL_*; -1. */
int raw_memfd(size_t bytes, unsigned seals);
/* Connects as minor `minor` with `tail` unknown bytes, asks for signals. 0 or -errno. */
int raw_rank_open(struct raw_rank *r, const char *path, unsigned minor, unsigned tail,
		  uint32_t n_signals);
/* Makes memory and registers it. */
int raw_rank_region(struct raw_rank *r, size_t bytes, uint32_t access);
/* Opens a ring of 2^log2 slots: its index in r->ring, or -errno. */
int raw_rank_ring(struct raw_rank *r, unsigned log2);
/* Ends a ring: the daemon drains it by itself. The index stays used. */
int raw_rank_ring_close(struct raw_rank *r, int ring);
/* ATTACH. job_id and key: of the job, made up by the caller, the same for all its ranks. */
int raw_rank_attach(struct raw_rank *r, const char *job, const uint8_t job_id[EPF_SVC_ID],
		    const uint8_t key[EPF_SVC_KEY], uint32_t rank, uint32_t world, uint32_t flags);
/* WORLD, and CONNECT, with what all ranks said. */
int raw_rank_world(struct raw_rank *r, const uint8_t *table);
int raw_rank_connect(struct raw_rank *r, const void *blobs, size_t len);
/* Frees everything; leave: with LEAVE, else the socket just ends. */
void raw_rank_close(struct raw_rank *r, bool leave);
/* Wakes the daemon after pushes. */
void raw_rank_kick(struct raw_rank *r);
/* Waits until a ring has retired `n` commands: 0 or -ETIMEDOUT. */
int raw_rank_retired(struct raw_rank *r, int ring, uint64_t n, unsigned timeout_ms);

/* Whole jobs by hand: all ranks in this process, opened and with regions and rings. 0 or -errno; text: of which failed. */
int raw_job_join(struct raw_rank *const *r, uint32_t n, const char *job, uint64_t number);
/* The number's job id and key, as raw_job_join makes them. */
void raw_job_names(uint64_t number, uint8_t job_id[EPF_SVC_ID], uint8_t key[EPF_SVC_KEY]);

#endif
