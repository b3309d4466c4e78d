/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rendezvous server: start, the thread's loop, time limits, stop. Used by the root rank inside
 * its process and by `ep-fabric bootstrap serve`. One thread and one epoll set serve all ranks.
 * It never listens beyond loopback without a secret, and no client can make it wait.
 */
#include "bootstrap/server_priv.h"

#define EPF_LOG_COMP "boot"
#include "fabric/base/log.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#define EVENTS_PER_TURN  64
#define ACCEPTS_PER_TURN 64
#define HANDSHAKE_NS     10000000000ull
#define ACCEPT_PAUSE_NS  100000000ull
#define DRAIN_LOOK_NS    5000000ull
#define DRAIN_NS         10000000000ull

/* Markers in epoll's data for the two descriptors that are no connections. */
static char listen_mark, wake_mark;

static void evict_oldest(struct epf_boot_server *srv)
{
	struct srv_conn *c = TAILQ_FIRST(&srv->strangers);

	if (!c)
		return;
	epf_warn_ratelimited(
		"client %s closed: more than %u connections have not proven themselves", c->address,
		srv->pending_max);
	srv_count(srv, evicted, 1);
	srv_conn_close(srv, c);
}

static void pause_accepting(struct epf_boot_server *srv)
{
	epoll_ctl(srv->epoll_fd, EPOLL_CTL_DEL, srv->listen_fd, NULL);
	srv->accept_again_ns = epf_boot_deadline(ACCEPT_PAUSE_NS);
}

static void resume_accepting(struct epf_boot_server *srv)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.ptr = &listen_mark };

	epoll_ctl(srv->epoll_fd, EPOLL_CTL_ADD, srv->listen_fd, &ev);
	srv->accept_again_ns = 0;
}

static void accept_new(struct epf_boot_server *srv)
{
	for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
		struct epf_net_addr from = { .len = sizeof(from.any) };
		int fd = accept4(srv->listen_fd, &from.sa, &from.len, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (fd < 0 &&
		    (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)) {
			epf_warn_ratelimited("server %s: accept: %s", srv->address,
					     strerror(errno));
			evict_oldest(srv);
			pause_accepting(srv);
			return;
		}
		if (fd < 0)
			return;
		srv_count(srv, accepted, 1);
		if (!srv->auth.has_secret && !epf_net_is_loopback(&from)) {
			close(fd);
			continue;
		}
		if (srv->strangers_count >= srv->pending_max)
			evict_oldest(srv);
		if (srv_conn_new(srv, fd, &from))
			close(fd);
	}
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Does what is due and returns when the next thing is. */
static uint64_t run_timers(struct epf_boot_server *srv)
{
	uint64_t now = epf_now_ns(), next = UINT64_MAX;
	struct srv_conn *c;

	while ((c = TAILQ_FIRST(&srv->strangers)) && c->deadline_ns <= now) {
		epf_warn_ratelimited("client %s closed: it did not prove itself in time",
				     c->address);
		srv_count(srv, silent, 1);
		srv_conn_close(srv, c);
	}
	if (c)
		next = earlier(next, c->deadline_ns);
	while ((c = TAILQ_FIRST(&srv->closing)) && c->deadline_ns <= now)
		srv_conn_close(srv, c);
	if (c)
		next = earlier(next, c->deadline_ns);
	if (srv->round_deadline_ns <= now)
		srv_job_timeout(srv);
	next = earlier(next, srv->round_deadline_ns);
	next = earlier(next, srv_job_notice(srv));
	if (srv->accept_again_ns && srv->accept_again_ns <= now)
		resume_accepting(srv);
	if (srv->accept_again_ns)
		next = earlier(next, srv->accept_again_ns);
	if (srv->failure.reason)
		next = earlier(next, srv->end_ns);
	return next;
}

static int epoll_ms(uint64_t next_ns)
{
	uint64_t now = epf_now_ns(), ms;

	if (next_ns == UINT64_MAX)
		return -1;
	if (next_ns <= now)
		return 0;
	ms = (next_ns - now + 999999) / 1000000;
	return ms > 1000000 ? 1000000 : (int)ms;
}

static void turn(struct epf_boot_server *srv, uint64_t next_ns)
{
	struct epoll_event ev[EVENTS_PER_TURN];
	int n = epoll_wait(srv->epoll_fd, ev, EVENTS_PER_TURN, epoll_ms(next_ns));

	for (int i = 0; i < n; i++) {
		if (ev[i].data.ptr == &listen_mark) {
			accept_new(srv);
		} else if (ev[i].data.ptr == &wake_mark) {
			uint64_t drop;

			while (read(srv->wake_fd, &drop, sizeof(drop)) > 0)
				;
		} else {
			srv_conn_event(srv, ev[i].data.ptr, ev[i].events);
		}
	}
	srv_conn_reap(srv);
}

static bool is_over(const struct epf_boot_server *srv)
{
	if (srv->left == srv->world)
		return true;
	return srv->failure.reason && (TAILQ_EMPTY(&srv->members) || epf_now_ns() >= srv->end_ns);
}

/* Whether anything is on its way to a member that still acknowledges; results: whether a member still receives the last one. */
static bool is_sending(const struct epf_boot_server *srv, bool results)
{
	const struct srv_conn *c;

	TAILQ_FOREACH(c, &srv->members, link)
		if ((c->receiving || !results) && !srv_conn_is_drained(c))
			return true;
	return false;
}

/*
 * Asked to stop: what was sent may arrive, and the ranks are notified. The root leaves when it has the last result, which others may still receive: that first, or they
 * would lose it to the notice.
 */
static void drain(struct epf_boot_server *srv)
{
	uint64_t end = epf_boot_deadline(DRAIN_NS);

	while (is_sending(srv, true) && epf_now_ns() < end)
		turn(srv, epf_boot_deadline(DRAIN_LOOK_NS));
	if (srv->left < srv->world)
		srv_job_fail(srv, EPF_R_BOOT_SERVER_LOST, EPF_WIRE_SERVER,
			     "the rendezvous at %.64s was closed by the process that hosts it",
			     srv->where);
	while (is_sending(srv, false) && epf_now_ns() < end)
		turn(srv, epf_boot_deadline(DRAIN_LOOK_NS));
}

static void *serve(void *arg)
{
	struct epf_boot_server *srv = arg;

	while (!atomic_load_explicit(&srv->stop, memory_order_relaxed) && !is_over(srv))
		turn(srv, run_timers(srv));
	if (atomic_load_explicit(&srv->stop, memory_order_relaxed))
		drain(srv);
	close(srv->listen_fd);
	for (struct srv_conn *c; (c = TAILQ_FIRST(&srv->strangers));)
		srv_conn_close(srv, c);
	for (struct srv_conn *c; (c = TAILQ_FIRST(&srv->closing));)
		srv_conn_close(srv, c);
	for (struct srv_conn *c; (c = TAILQ_FIRST(&srv->members));)
		srv_conn_close(srv, c);
	srv_conn_reap(srv);
	pthread_mutex_lock(&srv->lock);
	srv->ended = true;
	pthread_cond_broadcast(&srv->ended_cond);
	pthread_mutex_unlock(&srv->lock);
	return NULL;
}

/* A world of ranks needs as many descriptors; the soft limit is often 1,024. */
static int raise_descriptors(const struct epf_boot_server *srv)
{
	rlim_t want = (rlim_t)srv->world + srv->pending_max + 256 + 64;
	struct rlimit lim;

	if (getrlimit(RLIMIT_NOFILE, &lim) || lim.rlim_cur >= want)
		return 0;
	/* Strangers can do with fewer, ranks cannot. */
	if (lim.rlim_max < (rlim_t)srv->world + 64)
		return epf_fail(EPF_R_BOOT_LIMIT,
				"%u ranks need more open files than this process may have (%llu)",
				srv->world, (unsigned long long)lim.rlim_max);
	lim.rlim_cur = want < lim.rlim_max ? want : lim.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &lim))
		return epf_fail_sys(EPF_R_SYSTEM, errno, "setrlimit(RLIMIT_NOFILE)");
	return 0;
}

static int try_listen(struct epf_boot_server *srv, const struct epf_net_addr *at)
{
	int fd = socket(at->sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int on = 1, off = 0;
	int err;

	if (fd < 0)
		return -errno;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (at->sa.sa_family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
	srv->bound.len = sizeof(srv->bound.any);
	if (bind(fd, &at->sa, at->len) || listen(fd, 4096) ||
	    getsockname(fd, &srv->bound.sa, &srv->bound.len)) {
		err = errno;
		close(fd);
		return -err;
	}
	srv->listen_fd = fd;
	epf_net_print(&srv->bound, srv->address, sizeof(srv->address));
	return 0;
}

/* Where to listen when @text is how the clients know us: everywhere, or as the interface says. */
static int listen_widely(struct epf_boot_server *srv, const struct epf_net_addr *named,
			 bool literal, const char *ifname)
{
	uint16_t port = epf_net_port(named);
	struct epf_net_addr at;
	int rc;

	if (ifname && *ifname) {
		rc = epf_net_pick(ifname, literal ? named->sa.sa_family : AF_UNSPEC, &at, NULL);
		if (rc)
			return rc;
		epf_net_set_port(&at, port);
	} else {
		at = epf_net_any(literal ? named->sa.sa_family : AF_INET6, port);
	}
	rc = try_listen(srv, &at);
	/* A kernel without IPv6. */
	if (rc == -EAFNOSUPPORT && at.sa.sa_family == AF_INET6 && !literal) {
		at = epf_net_any(AF_INET, port);
		rc = try_listen(srv, &at);
	}
	if (rc)
		return epf_fail_sys(EPF_R_BOOT_LISTEN, -rc, "listening on port %u of %s", port,
				    ifname && *ifname ? ifname : "all interfaces");
	return 0;
}

static int open_listener(struct epf_boot_server *srv, const struct epf_boot_server_opts *o)
{
	struct epf_net_addr at[EPF_NET_ADDRS_MAX];
	char host[EPF_NET_HOST_MAX];
	size_t count, pick = 0;
	uint16_t port;
	int rc = epf_net_split(o->listen, host, &port);

	if (!rc)
		rc = epf_net_resolve(host, port, at, &count);
	if (rc)
		return rc;
	if (!srv->auth.has_secret) {
		while (pick < count && !epf_net_is_loopback(&at[pick]))
			pick++;
		if (pick == count)
			return epf_fail(EPF_R_BOOT_NO_SECRET,
					"no secret is set, so the rendezvous cannot listen at %s",
					o->listen);
	} else if (o->any_address && !(epf_net_is_loopback(&at[0]) &&
				       (epf_net_is_literal(host) || !strcmp(host, "localhost")))) {
		/* A host's own name often means 127.0.1.1 on that host: others need more. */
		return listen_widely(srv, &at[0], epf_net_is_literal(host), o->ifname);
	}
	rc = try_listen(srv, &at[pick]);
	if (rc)
		return epf_fail_sys(EPF_R_BOOT_LISTEN, -rc, "listening at %s", o->listen);
	return 0;
}

static int open_loop(struct epf_boot_server *srv)
{
	struct epoll_event ev = { .events = EPOLLIN };

	srv->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	srv->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (srv->epoll_fd < 0 || srv->wake_fd < 0)
		return epf_fail_sys(EPF_R_SYSTEM, errno, "epoll_create1 or eventfd");
	ev.data.ptr = &wake_mark;
	if (epoll_ctl(srv->epoll_fd, EPOLL_CTL_ADD, srv->wake_fd, &ev))
		return epf_fail_sys(EPF_R_SYSTEM, errno, "epoll_ctl");
	resume_accepting(srv);
	return 0;
}

static void free_server(struct epf_boot_server *srv)
{
	if (srv->epoll_fd >= 0)
		close(srv->epoll_fd);
	if (srv->wake_fd >= 0)
		close(srv->wake_fd);
	srv_job_free(srv);
	epf_auth_wipe(&srv->auth);
	pthread_cond_destroy(&srv->ended_cond);
	pthread_mutex_destroy(&srv->lock);
	free(srv);
}

static struct epf_boot_server *new_server(const struct epf_boot_server_opts *o)
{
	struct epf_boot_server *srv = calloc(1, sizeof(*srv));
	pthread_condattr_t attr;

	if (!srv)
		return NULL;
	srv->job_calls = &srv_job_calls;
	srv->seat = calloc(o->world, sizeof(struct srv_conn *));
	if (!srv->seat) {
		free(srv);
		return NULL;
	}
	srv->world = o->world;
	srv->job_known = o->job != NULL;
	snprintf(srv->job, sizeof(srv->job), "%s", o->job ? o->job : "");
	srv->timeout_ns = o->timeout_ns ? o->timeout_ns : EPF_BOOT_TIMEOUT_NS;
	srv->handshake_ns = o->handshake_ns ? o->handshake_ns : HANDSHAKE_NS;
	srv->pending_max = o->pending_max ? o->pending_max : o->world + 64;
	srv->listen_fd = srv->epoll_fd = srv->wake_fd = -1;
	srv->round_deadline_ns = UINT64_MAX;
	srv->notice =
		(struct epf_boot_notice){ o->notice_first_ns, o->notice_again_ns, UINT64_MAX };
	TAILQ_INIT(&srv->strangers);
	TAILQ_INIT(&srv->members);
	TAILQ_INIT(&srv->closing);
	TAILQ_INIT(&srv->dead);
	pthread_mutex_init(&srv->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&srv->ended_cond, &attr);
	pthread_condattr_destroy(&attr);
	return srv;
}

/* The application's signals are none of this thread's business. */
static int start_thread(struct epf_boot_server *srv)
{
	sigset_t all, before;
	int rc;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = pthread_create(&srv->thread, NULL, serve, srv);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return rc;
}

int epf_boot_server_start(const struct epf_boot_server_opts *opts, struct epf_boot_server **out)
{
	struct epf_boot_server_opts o;
	struct epf_boot_server *srv;
	int rc = epf_boot_copy_opts("rendezvous server", &o, sizeof(o), opts);

	if (rc)
		return rc;
	if (!o.world || o.world > EPF_BOOT_WORLD_MAX)
		return epf_fail(EPF_R_BOOT_LIMIT, "a world of %u ranks is outside 1 to %u", o.world,
				EPF_BOOT_WORLD_MAX);
	if (o.job && strlen(o.job) > EPF_BOOT_NAME_MAX)
		return epf_fail(EPF_R_BOOT_LIMIT, "the job's name is longer than %u bytes",
				EPF_BOOT_NAME_MAX);
	srv = new_server(&o);
	if (!srv)
		return epf_fail(EPF_R_NO_MEMORY, "a rendezvous server for %u ranks", o.world);
	rc = epf_auth_load(o.secret, o.secret_len, o.secret_file, NULL, NULL, &srv->auth);
	if (!rc)
		rc = raise_descriptors(srv);
	if (!rc)
		rc = open_listener(srv, &o);
	if (rc)
		goto err_free;
	snprintf(srv->where, sizeof(srv->where), "%s", o.any_address ? o.listen : srv->address);
	rc = open_loop(srv);
	if (rc)
		goto err_close;
	rc = start_thread(srv);
	if (rc) {
		rc = epf_fail_sys(EPF_R_SYSTEM, rc, "the thread of the rendezvous server");
		goto err_close;
	}
	*out = srv;
	return 0;
err_close:
	close(srv->listen_fd);
err_free:
	free_server(srv);
	return rc;
}

const char *epf_boot_server_address(const struct epf_boot_server *srv)
{
	return srv->address;
}

uint16_t epf_boot_server_port(const struct epf_boot_server *srv)
{
	return epf_net_port(&srv->bound);
}

int epf_boot_server_reached(struct epf_boot_server *srv, struct epf_net_addr *out)
{
	int rc;

	pthread_mutex_lock(&srv->lock);
	rc = srv->reached.len ? 0 : -ENOENT;
	if (!rc)
		*out = srv->reached;
	pthread_mutex_unlock(&srv->lock);
	return rc;
}

void epf_boot_server_stats(const struct epf_boot_server *srv, struct epf_boot_server_stats *out)
{
#define S(name) out->name = atomic_load_explicit(&srv->stats.name, memory_order_relaxed);
	EPF_SRV_STATS(S)
#undef S
}

int epf_boot_server_wait(struct epf_boot_server *srv, uint64_t timeout_ns)
{
	uint64_t end_ns = epf_boot_deadline(timeout_ns);
	struct timespec end = { (time_t)(end_ns / 1000000000), (long)(end_ns % 1000000000) };
	bool ended;
	int rc = 0;

	pthread_mutex_lock(&srv->lock);
	while (!srv->ended && rc != ETIMEDOUT)
		rc = pthread_cond_timedwait(&srv->ended_cond, &srv->lock, &end);
	ended = srv->ended;
	pthread_mutex_unlock(&srv->lock);
	if (!ended)
		return -ETIME;
	if (srv->failure.reason)
		return epf_fail((enum epf_reason)srv->failure.reason, "%s", srv->failure.text);
	return 0;
}

void epf_boot_server_stop(struct epf_boot_server *srv)
{
	uint64_t one = 1;

	if (!srv)
		return;
	atomic_store_explicit(&srv->stop, true, memory_order_relaxed);
	if (write(srv->wake_fd, &one, sizeof(one)) < 0)
		epf_dbg("server %s: its thread is awake already", srv->address);
	pthread_join(srv->thread, NULL);
	free_server(srv);
}
