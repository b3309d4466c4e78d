/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread of a TCP NIC: it listens, lets strangers prove themselves, dials peers, and wakes a core that sleeps. The core's thread gets connections
 * that have proven themselves and nothing else, so strangers cost it nothing.
 *
 * Functions are called by the core's thread, or by whoever sets the NIC up; what both threads touch has a lock, which is held for a few instructions.
 */
#ifndef EPF_FABRIC_NIC_TCP_DOOR_H
#define EPF_FABRIC_NIC_TCP_DOOR_H

#include "bootstrap/net.h"
#include "fabric/nic/tcp/greet.h"
#include "fabric/nic/tcp/opts.h"
#include "queues/epf_wakeup.h"

enum {
	EPF_TCP_ADDRS = 8,      /* addresses of one NIC that peers may try */
	EPF_TCP_LISTEN_MAX = 2, /* that it listens at: one of each family */
};

struct epf_tcp_door;

/* What came of dialing, or a connection that a peer dialed. */
struct epf_tcp_given {
	struct epf_tcp_given *next;
	int fd;                    /* -1: dialing failed, for why */
	struct epf_tcp_seal *seal; /* with wire-encryption; goes where fd goes */
	int rc;
	int dialed;
	uint64_t token;      /* of the own lane */
	uint64_t peer_token; /* that the peer says */
	uint8_t peer[EPF_TCP_ID];
	char why[160];
};

/* Where a peer's NIC is. */
struct epf_tcp_place {
	uint8_t id[EPF_TCP_ID];
	uint32_t count;
	struct epf_net_addr addrs[EPF_TCP_ADDRS];
};

/* What the door has seen of strangers; every number only grows. */
struct epf_tcp_door_counts {
	uint64_t refused;  /* malformed, or without a valid proof */
	uint64_t silent;   /* ran out of time, or hung up before they had proven themselves */
	uint64_t evicted;  /* the oldest, to make room */
	uint64_t accepted; /* have proven themselves */
};

/**
 * epf_tcp_door_open() - listens and starts the thread.
 * @auth: copied. @id: of the NIC, copied. @listen: addresses to listen at, each with port 0, which becomes the port it got. @count: of them.
 * @inner_fd: an epoll descriptor whose events wake the core, once armed. @wakeup: of the core.
 *
 * Return: 0 and *out; -errno with epf_last_error() set.
 */
int epf_tcp_door_open(const struct epf_tcp_opts *opts, const struct epf_auth *auth,
		      const uint8_t *id, struct epf_net_addr *listen, uint32_t count, int inner_fd,
		      struct epf_wakeup *wakeup, struct epf_tcp_door **out);
/* Ends the thread and closes all it holds; accepts NULL. */
void epf_tcp_door_close(struct epf_tcp_door *door);

/* Begins to dial; the outcome is given. -ENOMEM. */
int epf_tcp_door_dial(struct epf_tcp_door *door, const struct epf_tcp_place *place,
		      const struct epf_tcp_claim *claim);
/* Nobody waits for that lane's connection any more. */
void epf_tcp_door_forget(struct epf_tcp_door *door, uint64_t token);
/* 1: something has been given. No lock. */
int epf_tcp_door_has_given(const struct epf_tcp_door *door);
/* Closes what it holds and frees it. */
void epf_tcp_given_free(struct epf_tcp_given *g);
/* Takes all that was given since, as a list in its order; the caller frees each (epf_tcp_given_free). */
struct epf_tcp_given *epf_tcp_door_take(struct epf_tcp_door *door);
/* Waits until something is given, at most for so long. */
void epf_tcp_door_wait(struct epf_tcp_door *door, uint64_t timeout_ns);
/* The next event of inner_fd rings the wakeup. */
int epf_tcp_door_arm(struct epf_tcp_door *door);
void epf_tcp_door_counts(const struct epf_tcp_door *door, struct epf_tcp_door_counts *out);

#endif
