/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread behind the door of a TCP NIC (door.h), and how it is started, asked and ended. Waking a sleeper: the sockets of the lanes are in an epoll descriptor of the core's
 * ("inner"), which is itself watched here for one event each time a sleeper arms it, so a core that does not sleep costs this thread nothing.
 */
#include "fabric/nic/tcp/door_priv.h"

#include "fabric/base/clock.h"
#include "fabric/base/err.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { BACKLOG = 1024, EVENTS = 64, TICK_MS = 20 };

/* epoll_event.data.u64 of what is no caller. */
enum { TAG_EVENT = 1, TAG_INNER, TAG_LISTEN };

/* ---- the thread ---- */

static void end_forgotten(struct epf_tcp_door *door, uint64_t token)
{
	for (struct epf_tcp_caller *c = door->dials.first, *next; c; c = next) {
		next = c->next;
		if (c->greet.claim.from_token == token)
			epf_tcp_dial_close(door, c);
	}
}

static void take_orders(struct epf_tcp_door *door)
{
	struct epf_tcp_caller *asked, *next;
	uint64_t times, *forgotten;
	uint32_t n;

	if (read(door->event_fd, &times, sizeof(times)) < 0)
		return;
	pthread_mutex_lock(&door->lock);
	asked = door->asked;
	forgotten = door->forgotten;
	n = door->n_forgotten;
	door->asked = NULL;
	door->forgotten = NULL;
	door->n_forgotten = door->room_forgotten = 0;
	pthread_mutex_unlock(&door->lock);
	for (uint32_t i = 0; i < n; i++)
		end_forgotten(door, forgotten[i]);
	free(forgotten);
	for (struct epf_tcp_caller *c = asked; c; c = next) {
		next = c->next;
		epf_tcp_dial_begin(door, c);
	}
}

static void listen_on(struct epf_tcp_door *door, int is_on)
{
	for (uint32_t i = 0; i < door->n_listen; i++) {
		struct epoll_event ev = { .events = is_on ? EPOLLIN : 0,
					  .data.u64 = TAG_LISTEN + i };

		epoll_ctl(door->outer_fd, EPOLL_CTL_MOD, door->listen_fd[i], &ev);
	}
}

static void handle(struct epf_tcp_door *door, const struct epoll_event *ev)
{
	if (ev->data.u64 == TAG_EVENT) {
		take_orders(door);
	} else if (ev->data.u64 == TAG_INNER) {
		if (epf_wakeup_is_needed(door->wakeup))
			epf_wakeup_wake(door->wakeup);
	} else if (ev->data.u64 < TAG_LISTEN + EPF_TCP_LISTEN_MAX) {
		epf_tcp_callers_let_in(door, (uint32_t)(ev->data.u64 - TAG_LISTEN));
		if (door->deaf_until_ns)
			listen_on(door, 0);
	}
}

static void tick(struct epf_tcp_door *door)
{
	uint64_t now = epf_now_ns();

	epf_tcp_strangers_tick(door, now);
	epf_tcp_dials_tick(door, now);
	if (door->deaf_until_ns && now >= door->deaf_until_ns) {
		door->deaf_until_ns = 0;
		listen_on(door, 1);
	}
}

/*
 * Callers first, and of each its one event: they free themselves. Then the rest, whose handling may free a caller (the oldest stranger, a dial that is
 * forgotten).
 */
static void handle_all(struct epf_tcp_door *door, const struct epoll_event *ev, int n)
{
	for (int i = 0; i < n; i++) {
		struct epf_tcp_caller *c = ev[i].data.ptr;

		if (ev[i].data.u64 < TAG_LISTEN + EPF_TCP_LISTEN_MAX)
			continue;
		if (c->place)
			epf_tcp_dial_event(door, c, ev[i].events);
		else
			epf_tcp_stranger_event(door, c);
	}
	for (int i = 0; i < n; i++)
		if (ev[i].data.u64 < TAG_LISTEN + EPF_TCP_LISTEN_MAX)
			handle(door, &ev[i]);
}

static void *door_thread(void *arg)
{
	struct epf_tcp_door *door = arg;
	struct epoll_event ev[EVENTS];

	pthread_setname_np(pthread_self(), "epf-tcp");
	while (!__atomic_load_n(&door->stop, __ATOMIC_ACQUIRE)) {
		int busy = door->strangers.count || door->dials.count || door->deaf_until_ns;
		int n = epoll_wait(door->outer_fd, ev, EVENTS, busy ? TICK_MS : -1);

		if (n < 0 && errno != EINTR)
			break;
		handle_all(door, ev, n);
		if (busy)
			tick(door);
	}
	return NULL;
}

/* ---- opening and closing ---- */

static int watch(struct epf_tcp_door *door, int fd, uint64_t tag, uint32_t events)
{
	struct epoll_event ev = { .events = events, .data.u64 = tag };

	return epoll_ctl(door->outer_fd, EPOLL_CTL_ADD, fd, &ev)
		       ? epf_fail_sys(EPF_R_SYSTEM, errno, "tcp: epoll_ctl")
		       : 0;
}

static int listen_at(struct epf_tcp_door *door, struct epf_net_addr *at)
{
	char text[EPF_NET_HOST_MAX + 16];
	int on = 1, fd = socket(at->sa.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0),
	    rc;

	epf_net_print(at, text, sizeof(text));
	if (fd < 0)
		return epf_fail_sys(EPF_R_SYSTEM, errno, "tcp: a socket for %s", text);
	door->listen_fd[door->n_listen++] = fd;
	rc = epf_tcp_use_congestion(fd, door->opts.congestion);
	if (rc)
		return rc;
	if (at->sa.sa_family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
	if (bind(fd, &at->sa, at->len) || listen(fd, BACKLOG) || getsockname(fd, &at->sa, &at->len))
		return epf_fail_sys(EPF_R_NIC_LINK, errno, "tcp: cannot listen at %s", text);
	door->listen[door->n_listen - 1] = *at;
	return watch(door, fd, TAG_LISTEN + door->n_listen - 1, EPOLLIN);
}

static int start(struct epf_tcp_door *door)
{
	sigset_t all, old;
	int rc;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(&door->thread, NULL, door_thread, door);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	door->runs = !rc;
	return rc ? epf_fail_sys(EPF_R_SYSTEM, rc, "tcp: cannot start a thread") : 0;
}

static int set_up(struct epf_tcp_door *door, struct epf_net_addr *listen, uint32_t count)
{
	int rc = 0;

	door->outer_fd = epoll_create1(EPOLL_CLOEXEC);
	door->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (door->outer_fd < 0 || door->event_fd < 0)
		return epf_fail_sys(EPF_R_SYSTEM, errno, "tcp: no descriptors");
	for (uint32_t i = 0; i < count && i < EPF_TCP_LISTEN_MAX && !rc; i++)
		rc = listen_at(door, &listen[i]);
	if (!rc)
		rc = watch(door, door->event_fd, TAG_EVENT, EPOLLIN);
	if (!rc)
		rc = watch(door, door->inner_fd, TAG_INNER, EPOLLONESHOT);
	return rc ? rc : start(door);
}

int epf_tcp_door_open(const struct epf_tcp_opts *opts, const struct epf_auth *auth,
		      const uint8_t *id, struct epf_net_addr *listen, uint32_t count, int inner_fd,
		      struct epf_wakeup *wakeup, struct epf_tcp_door **out)
{
	struct epf_tcp_door *door = calloc(1, sizeof(*door));
	pthread_condattr_t attr;
	int rc;

	if (!door)
		return epf_fail(EPF_R_NO_MEMORY, "tcp: a NIC");
	door->opts = *opts;
	door->auth = *auth;
	memcpy(door->id, id, EPF_TCP_ID);
	door->outer_fd = door->event_fd = -1;
	door->inner_fd = inner_fd;
	door->wakeup = wakeup;
	door->given_end = &door->given;
	pthread_mutex_init(&door->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&door->gave, &attr);
	pthread_condattr_destroy(&attr);
	rc = set_up(door, listen, count);
	if (rc)
		epf_tcp_door_close(door);
	else
		*out = door;
	return rc;
}

static void ring(struct epf_tcp_door *door)
{
	uint64_t one = 1;

	if (write(door->event_fd, &one, sizeof(one)) < 0)
		return; /* full: it is ringing already */
}

void epf_tcp_door_close(struct epf_tcp_door *door)
{
	struct epf_tcp_given *g, *next;

	if (!door)
		return;
	__atomic_store_n(&door->stop, 1, __ATOMIC_RELEASE);
	if (door->runs) {
		ring(door);
		pthread_join(door->thread, NULL);
	}
	while (door->strangers.first)
		epf_tcp_stranger_close(door, door->strangers.first);
	while (door->dials.first)
		epf_tcp_dial_close(door, door->dials.first);
	while (door->asked) {
		struct epf_tcp_caller *c = door->asked;

		door->asked = c->next;
		free(c->place);
		free(c);
	}
	for (g = door->given; g; g = next) {
		next = g->next;
		epf_tcp_given_free(g);
	}
	for (uint32_t i = 0; i < door->n_listen; i++)
		close(door->listen_fd[i]);
	if (door->event_fd >= 0)
		close(door->event_fd);
	if (door->outer_fd >= 0)
		close(door->outer_fd);
	free(door->forgotten);
	pthread_cond_destroy(&door->gave);
	pthread_mutex_destroy(&door->lock);
	epf_auth_wipe(&door->auth);
	free(door);
}

/* ---- the core's thread ---- */

int epf_tcp_door_dial(struct epf_tcp_door *door, const struct epf_tcp_place *place,
		      const struct epf_tcp_claim *claim)
{
	struct epf_tcp_caller *c = calloc(1, sizeof(*c)), **end;
	struct epf_tcp_place *copy = malloc(sizeof(*copy));

	if (!c || !copy) {
		free(c);
		free(copy);
		return epf_fail(EPF_R_NO_MEMORY, "tcp: a connection");
	}
	*copy = *place;
	c->place = copy;
	c->fd = -1;
	c->greet.claim = *claim;
	pthread_mutex_lock(&door->lock);
	for (end = &door->asked; *end;)
		end = &(*end)->next;
	*end = c;
	pthread_mutex_unlock(&door->lock);
	ring(door);
	return 0;
}

/* Only a dial that is under way has to end; without memory it ends by its deadline, and what it gives finds no lane. */
void epf_tcp_door_forget(struct epf_tcp_door *door, uint64_t token)
{
	pthread_mutex_lock(&door->lock);
	if (door->n_forgotten == door->room_forgotten) {
		uint32_t room = door->room_forgotten ? 2 * door->room_forgotten : 16;
		uint64_t *more = realloc(door->forgotten, room * sizeof(*more));

		if (more) {
			door->forgotten = more;
			door->room_forgotten = room;
		}
	}
	if (door->n_forgotten < door->room_forgotten)
		door->forgotten[door->n_forgotten++] = token;
	pthread_mutex_unlock(&door->lock);
	ring(door);
}

int epf_tcp_door_arm(struct epf_tcp_door *door)
{
	struct epoll_event ev = { .events = EPOLLIN | EPOLLONESHOT, .data.u64 = TAG_INNER };

	return epoll_ctl(door->outer_fd, EPOLL_CTL_MOD, door->inner_fd, &ev) ? -errno : 0;
}

void epf_tcp_door_counts(const struct epf_tcp_door *door, struct epf_tcp_door_counts *out)
{
	out->refused = __atomic_load_n(&door->counts.refused, __ATOMIC_RELAXED);
	out->silent = __atomic_load_n(&door->counts.silent, __ATOMIC_RELAXED);
	out->evicted = __atomic_load_n(&door->counts.evicted, __ATOMIC_RELAXED);
	out->accepted = __atomic_load_n(&door->counts.accepted, __ATOMIC_RELAXED);
}
