/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections of NCCL's net interface: one direction, one sender, one receiver, over the link of two processes (link.h). Called through the tables of
 * net_tables.c on NCCL's threads: one thread at a time for one connection, any number for different ones. Functions return 0 or -errno with
 * epf_last_error(); the tables turn that into NCCL's numbers and the line in its log.
 */
#ifndef EPF_TOOLS_NCCL_NET_H
#define EPF_TOOLS_NCCL_NET_H

#include "tools/nccl/link.h"

#include <stdbool.h>
#include <stdint.h>

enum epf_comm_kind { EPF_COMM_SEND = 1, EPF_COMM_RECV = 2 };

struct epf_comm;

struct epf_request {
	struct epf_comm *comm;
	uint64_t number; /* send: ticket of its ring; receive: number of the request */
	uint64_t bytes;  /* send */
	unsigned parts;
	bool used;
};

/* What both ends of a connection have. */
struct epf_comm {
	enum epf_comm_kind kind;
	struct epf_link *link;
	struct epf_ring *
		ring; /* of this connection alone: no lock, and a stream whose order no other connection touches */
	uint32_t slot, peer_slot;
};

enum epf_send_state {
	EPF_SEND_LINKING = 0,
	EPF_SEND_OPENING,
	EPF_SEND_READY,
	EPF_SEND_AGAIN,  /* its link died before the connection stood */
	EPF_SEND_FAILED, /* why says it */
};

struct epf_send {
	struct epf_comm comm;        /* first */
	TAILQ_ENTRY(epf_send) entry; /* of epf_plug.connecting */
	const void
		*handle_at; /* NCCL calls connect() again with the same handle at the same place */
	struct epf_nccl_handle handle;
	enum epf_send_state state;
	struct epf_error why;
	uint64_t deadline_ns;
	uint64_t next;    /* the posted request that the next message goes to */
	uint32_t matched; /* its parts that have their message */
	struct epf_request requests[EPF_NET_POSTED * EPF_NET_PARTS];
};

struct epf_recv {
	struct epf_comm comm;        /* first */
	TAILQ_ENTRY(epf_recv) entry; /* of its listener's ready */
	uint64_t posted;
	struct epf_request requests[EPF_NET_POSTED];
};

struct epf_listener {
	TAILQ_ENTRY(epf_listener) entry;
	uint64_t id;

	TAILQ_HEAD(epf_recv_list, epf_recv) ready;
};

/* Writes EPF_NCCL_HANDLE_BYTES of handle. */
int epf_net_listen(void *handle, struct epf_listener **out);
void epf_net_close_listen(struct epf_listener *listener);

/* *out stays NULL while the connection is under way: called again then. Never wait. */
int epf_net_connect(const void *handle, struct epf_send **out);
int epf_net_accept(struct epf_listener *listener, struct epf_recv **out);

/* Return when what was sent is at the peer, or is given up after a few seconds. Accept NULL. */
void epf_net_close(struct epf_comm *comm);

/* What the plug-in gives to links. */
extern const struct epf_link_events epf_net_events;

/* memory.c. Memory of the host or a GPU. For a receiver it returns when the sender's engine knows it. */
int epf_net_register(struct epf_comm *comm, void *data, size_t bytes, int type,
		     struct epf_mr **out);
/* Nothing may be under way in it. */
void epf_net_deregister(struct epf_mr *mr);

/*
 * transfer.c. *request stays NULL where there is no room, or, for a send, where the receiver has not posted a receive of that tag at the head of its queue: NCCL
 * calls again. A message longer than its receive is cut.
 */
int epf_net_isend(struct epf_send *send, void *data, size_t bytes, int tag, struct epf_mr *mr,
		  struct epf_request **request);
int epf_net_irecv(struct epf_recv *recv, int n, void *const *data, const size_t *bytes,
		  const int *tags, struct epf_mr *const *mrs, struct epf_request **request);
/* *done 1: the request is over and bytes[] (or NULL) says how much came; it is no request any more. */
int epf_net_test(struct epf_request *request, int *done, int *bytes);

#endif
