/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of the door (door.h), for porter.c, given.c, callers.c and dial.c only. All but what stands under `lock` belongs to the door's thread.
 */
#ifndef EPF_FABRIC_NIC_TCP_DOOR_PRIV_H
#define EPF_FABRIC_NIC_TCP_DOOR_PRIV_H

#include "fabric/nic/tcp/door.h"

#include <pthread.h>

/* A connection that is not proven yet. */
struct epf_tcp_caller {
	struct epf_tcp_caller *next, *prev; /* oldest first */
	struct epf_tcp_greet greet;
	int fd; /* -1: between two attempts to dial */
	uint64_t deadline_ns;
	/* Dialing only. */
	struct epf_tcp_place *place; /* NULL: a stranger who called */
	uint64_t give_up_ns;
	uint32_t at; /* address that is tried */
	int is_connected;
	int rc; /* of the last attempt */
	char why[160];
};

struct epf_tcp_callers {
	struct epf_tcp_caller *first, *last;
	uint32_t count;
};

struct epf_tcp_door {
	struct epf_tcp_opts opts;
	struct epf_auth auth;
	uint8_t id[EPF_TCP_ID];
	struct epf_net_addr listen[EPF_TCP_LISTEN_MAX];
	int listen_fd[EPF_TCP_LISTEN_MAX];
	uint32_t n_listen;
	int outer_fd, inner_fd, event_fd;
	struct epf_wakeup *wakeup;
	pthread_t thread;
	int runs, stop;
	uint64_t deaf_until_ns; /* no descriptors left: nobody is let in until then; 0: all are */
	struct epf_tcp_callers strangers, dials;
	struct epf_tcp_door_counts counts;
	pthread_mutex_t lock;
	pthread_cond_t gave;
	struct epf_tcp_given *given, **given_end; /* lock */
	struct epf_tcp_caller *asked;             /* lock: dials that the thread has not seen yet */
	uint64_t *forgotten;                      /* lock: tokens whose dials are to end */
	uint32_t n_forgotten, room_forgotten;     /* lock */
	uint32_t has_given;
};

/* Counts on the door's thread, for readers on others. */
static inline void epf_tcp_count(uint64_t *counter)
{
	__atomic_store_n(counter, *counter + 1, __ATOMIC_RELAXED);
}

static inline void epf_tcp_callers_add(struct epf_tcp_callers *list, struct epf_tcp_caller *c)
{
	c->next = NULL;
	c->prev = list->last;
	if (list->last)
		list->last->next = c;
	else
		list->first = c;
	list->last = c;
	list->count++;
}

static inline void epf_tcp_callers_remove(struct epf_tcp_callers *list, struct epf_tcp_caller *c)
{
	if (c->prev)
		c->prev->next = c->next;
	else
		list->first = c->next;
	if (c->next)
		c->next->prev = c->prev;
	else
		list->last = c->prev;
	list->count--;
}

/* ---- callers.c ---- */
/* Sends and receives what the handshake wants now. 1: it is over, and the descriptor may be given; 0: later; -errno. */
int epf_tcp_caller_run(struct epf_tcp_caller *c);
/* Watches a caller's descriptor for what it waits for. first: it is new. */
int epf_tcp_caller_watch(struct epf_tcp_door *door, struct epf_tcp_caller *c, int first);
/* Options of a connection, before it carries anything. */
void epf_tcp_tune(int fd);
/* Chooses the congestion control, before a socket listens, whose connections have the same, or connects. "": the system's. */
int epf_tcp_use_congestion(int fd, const char *name);
/* Lets in all who stand at a listener. */
void epf_tcp_callers_let_in(struct epf_tcp_door *door, uint32_t listener);
/* Something has happened to a stranger. */
void epf_tcp_stranger_event(struct epf_tcp_door *door, struct epf_tcp_caller *c);
/* Closes strangers whose time is over. */
void epf_tcp_strangers_tick(struct epf_tcp_door *door, uint64_t now_ns);
void epf_tcp_stranger_close(struct epf_tcp_door *door, struct epf_tcp_caller *c);

/* ---- dial.c ---- */
void epf_tcp_dial_begin(struct epf_tcp_door *door, struct epf_tcp_caller *c);
void epf_tcp_dial_event(struct epf_tcp_door *door, struct epf_tcp_caller *c, uint32_t events);
void epf_tcp_dials_tick(struct epf_tcp_door *door, uint64_t now_ns);
/* Ends it without an outcome. */
void epf_tcp_dial_close(struct epf_tcp_door *door, struct epf_tcp_caller *c);

/* ---- given.c ---- */
/* Gives the core an outcome; fd -1 with rc and why: dialing failed. The descriptor is no longer watched. */
void epf_tcp_door_give(struct epf_tcp_door *door, const struct epf_tcp_caller *c, int fd, int rc,
		       const char *why);

#endif
