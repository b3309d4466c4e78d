/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plug-in's state in a process: one, whatever the number of communicators. It owns the door, where other processes knock that were given a handle, and
 * the links to them (link.h). Used by the tables' functions, on NCCL's threads, and by the threads of door.c and join.c. One lock guards
 * everything slow; what moves data (transfer.c) takes none.
 */
#ifndef EPF_TOOLS_NCCL_PLUG_H
#define EPF_TOOLS_NCCL_PLUG_H

#include "fabric/base/conf.h"
#include "tools/nccl/abi.h"
#include "tools/nccl/greet.h"
#include "tools/nccl/handle.h"

#include <pthread.h>
#include <stdbool.h>
#include <sys/queue.h>

struct epf_link;
struct epf_link_msg;
struct epf_listener;
struct epf_send;

/* What links report to connections (net.c). */
struct epf_link_events {
	/* A message about a connection. On the link's thread, without the plug's lock. */
	void (*message)(struct epf_link *link, const struct epf_link_msg *msg);
	/* The link is dead: connections that wait for it start again. Under the plug's lock. */
	void (*died)(struct epf_link *link);
};

struct epf_plug {
	pthread_mutex_t lock;
	pthread_cond_t changed; /* a link, connection or publication moved on */
	unsigned users;         /* of start.h */
	unsigned threads;       /* of door and links that have not ended */
	bool stopping;
	const struct epf_link_events *events;
	epf_nccl_log_fn log;
	struct epf_conf conf;
	struct epf_nccl_self self;
	uint8_t secret[EPF_NCCL_SECRET_BYTES];
	struct epf_net_addr address;
	int door_fd, stop_fd;
	uint64_t listeners_made;

	TAILQ_HEAD(epf_listener_list, epf_listener) listeners;
	TAILQ_HEAD(epf_link_list, epf_link) links;
	TAILQ_HEAD(epf_send_list, epf_send) connecting;
};

/* The process's. */
extern struct epf_plug epf_plug;

/* Lock, unlock, wake who waits for a change, wait for one until a moment of epf_now_ns(). Returns 0 or -ETIMEDOUT. */
void epf_plug_lock(void);
void epf_plug_unlock(void);
void epf_plug_notify(void);
int epf_plug_wait(uint64_t deadline_ns);

/* Starts a detached thread that the plug-in waits for at its end; run() ends with epf_plug_thread_ends(). Under the lock. */
int epf_plug_thread(void *(*run)(void *arg), void *arg);
void epf_plug_thread_ends(void);

/*
 * The edge: logs epf_last_error() once, in NCCL's log and in ours, as one line that begins with what failed, and returns NCCL's number for rc.
 * 0 stays 0 without a line.
 */
int epf_plug_result(const char *what, int rc);

/* The NIC for peers of this host, or for others, where the setting says auto: as epf_choose_nic() chooses for a job. Static text. */
const char *epf_plug_nic(bool within_host);

/* One line of information for NCCL_DEBUG=INFO. */
void epf_plug_info(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
