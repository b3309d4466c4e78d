/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A link: what two processes share that NCCL connects, a job of two ranks with its engine, and a control connection. All connections of NCCL between the two
 * use it, so that engines grow with peers and not with channels. A link comes with the first connection, from either side, and ends with its peer or with the
 * plug-in. Its thread makes it, then answers control messages: opening and closing connections, and publishing regions, which both ranks do together.
 */
#ifndef EPF_TOOLS_NCCL_LINK_H
#define EPF_TOOLS_NCCL_LINK_H

#include "fabric/base/err.h"
#include "fabric/client/epf.h"
#include "tools/nccl/layout.h"
#include "tools/nccl/plug.h"

#include <stdbool.h>
#include <stdint.h>

struct epf_boot;
struct epf_boot_server;

enum {
	EPF_LINK_CONTROL = 0, /* the region of both ranks that layout.h divides */
	EPF_LINK_REGIONS = 4096,
};

enum epf_link_state {
	EPF_LINK_GREETING = 0, /* accepted, not in the table */
	EPF_LINK_DIALING,      /* in the table from here to DEAD */
	EPF_LINK_WAITING,      /* the peer is busy dialing us, or still has the link of before */
	EPF_LINK_JOINING,
	EPF_LINK_UP,
	EPF_LINK_DEAD,
};

/* A connection at one end: free when both ends have closed it, so that nothing late meets a new one. */
struct epf_link_slot {
	void *comm;
	bool here, there;
};

/* A registered piece of memory, shared by all who register the same. */
struct epf_mr {
	LIST_ENTRY(epf_mr) entry;
	struct epf_link *link;
	uintptr_t addr;
	size_t bytes;
	int type;
	unsigned users;
	uint32_t region;
	uint64_t order; /* published when link->published reaches it */
	bool ready;
};

struct epf_link {
	TAILQ_ENTRY(epf_link) entry;
	unsigned refs;
	enum epf_link_state state;
	uint32_t lost; /* atomic: the control connection ended */
	uint32_t stop; /* atomic: the plug-in ends */
	bool dialed, was_up;
	struct epf_nccl_self peer;
	struct epf_net_addr address; /* dialed: of the peer's door */
	uint8_t secret[EPF_NCCL_SECRET_BYTES];
	int fd, wake_fd;
	pthread_mutex_t writing; /* one message at a time on fd */
	struct epf *ep;
	struct epf_boot *boot;
	struct epf_boot_server *server;
	uint32_t other; /* the peer's rank: 0 or 1 */
	uint8_t *control;
	struct epf_link_slot sends[EPF_LINK_SLOTS], recvs[EPF_LINK_SLOTS];

	LIST_HEAD(epf_mr_list, epf_mr) mrs;
	uint64_t registered, wanted,
		published; /* registrations: made, asked to be published, published */
	bool asked;
	struct epf_error why; /* of DEAD */
};

enum epf_link_message {
	EPF_LINK_OPEN = 1,        /* slot: the sender's; value: the listener */
	EPF_LINK_OPENED = 2,      /* slot: the sender's; other: the receiver's */
	EPF_LINK_REFUSED = 3,     /* slot: the sender's */
	EPF_LINK_SEND_CLOSED = 4, /* slot: the receiver's */
	EPF_LINK_RECV_CLOSED = 5, /* slot: the sender's */
	EPF_LINK_PUBLISH = 6,     /* rank 1 asks rank 0 for a publication */
	EPF_LINK_PUBLISH_NOW = 7, /* rank 0: both now */
};

/* 24 bytes on the control connection, little-endian. */
struct epf_link_msg {
	uint32_t type, slot, other, reserved;
	uint64_t value;
};

/* A new one with one reference, around fd or -1; NULL without memory. It is nobody's until it is in epf_plug.links. */
struct epf_link *epf_link_make(int fd);
/* One more reference, under the plug's lock; and one less, without it: the last one closes engine and memory. */
void epf_link_ref(struct epf_link *link);
void epf_link_unref(struct epf_link *link);

/* Out of the table, if it is there, with this thread's last error as the reason: whoever waits for it looks again, or learns why. Under the plug's lock. */
void epf_link_die(struct epf_link *link);

/* True if the plug-in ends. Any thread. */
static inline bool epf_link_is_stopping(const struct epf_link *link)
{
	return __atomic_load_n(&link->stop, __ATOMIC_RELAXED);
}

/* Makes all links end. Under the plug's lock. */
void epf_links_stop(void);

/* Sends a control message. Returns 0, or -errno with epf_last_error(). Any thread, without the plug's lock. */
int epf_link_say(struct epf_link *link, enum epf_link_message type, uint32_t slot, uint32_t other,
		 uint64_t value);

/* Asks for a publication of what is registered, and waits until `order` is published. Without the plug's lock. */
int epf_link_publish(struct epf_link *link, uint64_t order);

/* True if nothing more will come from the peer: its process, its engine or all ways to it are lost. Any thread, no lock. */
bool epf_link_is_lost(const struct epf_link *link);
/* Fails with what happened to the peer, which the line names: "nccl: process 17 on host a: ...". Any thread. */
int epf_link_fail(const struct epf_link *link, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* Fails with the reason of the loss. Any thread. */
int epf_link_why(struct epf_link *link);

#endif
