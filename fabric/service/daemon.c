/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Life of the service daemon and its loop (service.h). One turn: what the sockets have, a slice of each region that is being looked at,
 * what jobs wait for, who is late. A turn never waits for anybody but the kernel.
 */
#define EPF_LOG_COMP "svc"
#include "fabric/base/clock.h"
#include "fabric/base/log.h"
#include "fabric/engine/limits.h"
#include "fabric/place/bind.h"
#include "fabric/service/service_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

enum { EVENTS = 64, TURN_MS = 50, UNMAP_MS = 2, BEAT_MS = 500, END_MS = 3000 };

/* Only the daemons' own secret: a job's EPF_SECRET would be known to clients. */
static const char *fabric_env(const char *name, void *arg)
{
	(void)arg;
	return strcmp(name, "EPF_SECRET_FD") == 0 ? getenv("EPF_FABRIC_SECRET_FD") : NULL;
}

static int needs_secret(enum epf_conf_nic nic)
{
	return nic == EPF_CONF_NIC_VERBS || nic == EPF_CONF_NIC_EFA || nic == EPF_CONF_NIC_OFI;
}

static int load_secret(struct epf_svc *s)
{
	const char *file = s->conf->fabric_secret_file;
	uint8_t id[EPF_AUTH_NONCE_BYTES];
	int rc;

	epf_auth_nonce(id);
	memcpy(s->node_id, id, sizeof(s->node_id));
	snprintf(s->place, sizeof(s->place), "%.40s@%02x%02x%02x%02x%02x%02x%02x%02x", s->instance,
		 id[0], id[1], id[2], id[3], id[4], id[5], id[6], id[7]);
	rc = epf_auth_load(NULL, 0, *file ? file : NULL, fabric_env, NULL, &s->auth);
	if (!rc && !s->auth.has_secret && needs_secret(s->conf->nic))
		rc = epf_fail(
			EPF_R_SVC_SEAL,
			"instance %s: nic %s reaches other machines, and there is no fabric secret",
			s->instance, epf_conf_nic(s->conf));
	return rc;
}

static int open_stats(struct epf_svc *s)
{
	struct epf_stats_opts o = { .size = sizeof(o),
				    .instance = s->instance,
				    .tsc_hz = epf_tsc_hz() };
	uint64_t most = s->conf->service_cores * EPF_SCHEDULER_JOBS_MAX;
	char dir[4096], why[256] = "";
	int rc = epf_conf_stats_dir(s->conf, dir, sizeof(dir));

	if (rc)
		return rc;
	o.dir = dir;
	o.blocks[EPF_STATS_CORE] = o.blocks[EPF_STATS_NIC] =
		(uint32_t)(most < SVC_JOBS_MAX ? most : SVC_JOBS_MAX);
	o.blocks[EPF_STATS_JOB] = o.blocks[EPF_STATS_CORE];
	/* A recorder has 32 KiB: later jobs than these go without one, and the job's block shows it. */
	o.blocks[EPF_STATS_FLIGHT] =
		o.blocks[EPF_STATS_CORE] < SVC_RECORDERS ? o.blocks[EPF_STATS_CORE] : SVC_RECORDERS;
	o.blocks[EPF_STATS_RANK] = o.blocks[EPF_STATS_RING] = o.blocks[EPF_STATS_LANE] =
		o.blocks[EPF_STATS_PEER] = (uint32_t)s->conf->stats_blocks * SVC_STATS_TIMES;
	if (epf_stats_make_dir(dir, why, sizeof(why)) ||
	    epf_stats_create(&o, &s->stats, why, sizeof(why))) {
		epf_note(
			"statistics: %s: kept in memory only, ep-fabric stats will not see this daemon",
			why);
		o.dir = NULL;
		if (epf_stats_create(&o, &s->stats, why, sizeof(why)))
			return epf_fail(EPF_R_NO_MEMORY, "statistics: %s", why);
	}
	return 0;
}

static int start_schedulers(struct epf_svc *s)
{
	const struct epf_conf *conf = s->conf;
	sigset_t all, before;
	char name[16];
	int rc = 0;

	/* Signals are the caller's thread's. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	for (uint32_t i = 0; i < conf->service_cores && i < SVC_SCHEDULERS_MAX && !rc; i++) {
		struct epf_scheduler_options o = { .name = name,
						   .idle = (enum epf_idle)conf->core_idle,
						   .idle_after_ns = conf->core_idle_after_ns,
						   .quantum_ns = conf->service_fair
									 ? conf->service_quantum_ns
									 : 0,
						   .now = epf_limits_now };

		struct epf_place_bind bind;

		rc = epf_place_bind(conf, NULL, -1, i, (uint32_t)conf->service_cores, &bind);
		if (rc)
			break;
		if (bind.why[0])
			epf_note("instance %s: engine thread %u: %s", s->instance, i, bind.why);
		if (i == 0)
			s->memory_node = bind.node;
		o.cpu = bind.cpu;
		o.n_cpus = bind.count;
		snprintf(name, sizeof(name), "epf-core-%u", i);
		rc = epf_scheduler_create(&o, &s->schedulers[i]);
		s->n_schedulers += rc == 0;
		epf_place_bind_destroy(&bind);
	}
	if (!rc)
		rc = svc_unmap_start(s);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return rc;
}

static int watch_fd(struct epf_svc *s, int *fd)
{
	struct epoll_event e = { .events = EPOLLIN, .data.ptr = fd };

	return epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, *fd, &e);
}

static int open_loop(struct epf_svc *s)
{
	struct rlimit files;

	if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
		files.rlim_cur = files.rlim_max;
		setrlimit(RLIMIT_NOFILE, &files);
	}
	s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	s->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	s->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	if (s->epoll_fd < 0 || s->stop_fd < 0 || watch_fd(s, &s->stop_fd) ||
	    watch_fd(s, &s->listen_fd))
		return epf_fail_sys(EPF_R_SYSTEM, errno, "service: no event loop");
	return 0;
}

int epf_svc_create(const struct epf_conf *conf, const char *version, struct epf_svc **out)
{
	struct epf_svc *s = calloc(1, sizeof(*s));
	int rc;

	if (!s)
		return epf_fail(EPF_R_NO_MEMORY, "service: no memory");
	s->conf = conf;
	s->lock_fd = s->listen_fd = s->epoll_fd = s->stop_fd = s->spare_fd = -1;
	s->started_ns = epf_now_ns();
	svc_notify_open(s);
	s->beat_ns = svc_notify_period(s, BEAT_MS * (uint64_t)SVC_MS);
	snprintf(s->version, sizeof(s->version), "%s", version);
	rc = svc_place_take(s);
	if (!rc)
		rc = load_secret(s);
	if (!rc)
		rc = open_stats(s);
	if (!rc)
		rc = open_loop(s);
	if (!rc)
		rc = start_schedulers(s);
	if (rc) {
		epf_svc_destroy(s);
		return rc;
	}
	epf_note(
		"instance %s: begins, process %d, version %s, protocol %u.%u, nic %s, %u engine threads, %s",
		s->instance, (int)getpid(), s->version, EPF_SVC_MAJOR, EPF_SVC_MINOR,
		epf_limits_nic(conf), s->n_schedulers,
		s->auth.has_secret ? "with the fabric's secret" : "without a fabric secret");
	*out = s;
	return 0;
}

void epf_svc_stop(struct epf_svc *s)
{
	uint64_t one = 1;
	int saved = errno;

	if (write(s->stop_fd, &one, sizeof(one)) < 0)
		errno = saved; /* the counter is full, so a notification is pending already */
	errno = saved;
}

/* The first request drains; the second, or the end of the time for it, ends all jobs. */
static void take_stops(struct epf_svc *s, uint64_t drain_timeout_ns)
{
	uint64_t n = 0;

	if (read(s->stop_fd, &n, sizeof(n)) != sizeof(n) || !n)
		return;
	s->stops += n > 2 ? 2 : (uint32_t)n;
	s->ending |= s->stops > 1;
	if (s->stopping)
		return;
	s->stopping = s->draining = true;
	s->drain_until_ns = drain_timeout_ns ? epf_now_ns() + drain_timeout_ns : UINT64_MAX;
	epf_note("instance %s: stops, %u jobs still run", s->instance, s->n_jobs);
	svc_notify_beat(s, false);
}

static void end_all(struct epf_svc *s)
{
	struct svc_session *c = s->first;

	while (c) {
		struct svc_session *next = c->next;

		svc_session_close(s, c, "the daemon ends");
		c = next;
	}
}

/* 1 when the loop is over. */
static int step_end(struct epf_svc *s, uint64_t now)
{
	if (!s->stopping)
		return 0;
	if (!s->ending && now >= s->drain_until_ns)
		s->ending = true;
	if (!s->ending)
		return s->n_jobs == 0;
	if (s->drain_until_ns) { /* once */
		s->drain_until_ns = 0;
		if (s->n_jobs)
			epf_warn("instance %s: ends %u jobs that still run", s->instance,
				 s->n_jobs);
		end_all(s);
	}
	return s->n_jobs == 0;
}

static int wait_ms(const struct epf_svc *s, uint64_t now)
{
	uint64_t at = svc_jobs_next(s), ms = TURN_MS;

	if (s->n_filling)
		return 0;
	if (at <= now)
		return 0;
	if (s->unmaps.pending)
		return UNMAP_MS;
	if (at - now < TURN_MS * (uint64_t)SVC_MS)
		ms = (at - now) / SVC_MS + 1;
	/* With nobody connected and nothing to look after, only the statistics' sign of life. */
	else if (!s->first && !s->stopping)
		ms = s->beat_ns / SVC_MS;
	return (int)ms;
}

static void handle(struct epf_svc *s, const struct epoll_event *e, uint64_t drain_timeout_ns)
{
	if (e->data.ptr == &s->listen_fd)
		svc_accept(s);
	else if (e->data.ptr == &s->stop_fd)
		take_stops(s, drain_timeout_ns);
	else
		svc_session_event(s, e->data.ptr, e->events);
}

int epf_svc_run(struct epf_svc *s, uint64_t drain_timeout_ns)
{
	struct epoll_event events[EVENTS];
	uint64_t now = epf_now_ns(), late = 0;

	epf_note("instance %s: ready at %s", s->instance, s->socket);
	svc_notify_beat(s, true);
	while (!step_end(s, now)) {
		int n = epoll_wait(s->epoll_fd, events, EVENTS, wait_ms(s, now));

		if (n < 0 && errno != EINTR)
			return epf_fail_sys(EPF_R_SYSTEM, errno, "service: epoll");
		for (int i = 0; i < n; i++)
			handle(s, &events[i], drain_timeout_ns);
		if (s->n_filling)
			svc_sessions_fill(s);
		now = epf_now_ns();
		svc_jobs_step(s, now);
		if (now >= late) {
			late = now + TURN_MS * (uint64_t)SVC_MS;
			svc_sessions_deadlines(s, now);
		}
		if (now >= s->next_beat_ns) {
			s->next_beat_ns = now + s->beat_ns;
			epf_stats_beat(s->stats, now);
			svc_notify_beat(s, false);
		}
		svc_unmap_collect(s);
		svc_sessions_bury(s);
	}
	epf_note("instance %s: ended in order after %llu s, %u jobs served", s->instance,
		 (unsigned long long)((now - s->started_ns) / 1000000000u), s->jobs_begun);
	return 0;
}

void epf_svc_destroy(struct epf_svc *s)
{
	if (!s)
		return;
	svc_place_leave(s); /* nobody finds a socket that is not served any more */
	end_all(s);
	svc_sessions_bury(s);
	while (s->jobs)
		svc_job_destroy(s, s->jobs);
	for (uint32_t i = 0; i < s->n_schedulers; i++)
		epf_scheduler_destroy(s->schedulers[i]);
	svc_unmap_stop(s);
	epf_stats_destroy(s->stats, 0);
	epf_auth_wipe(&s->auth);
	if (s->epoll_fd >= 0)
		close(s->epoll_fd);
	if (s->stop_fd >= 0)
		close(s->stop_fd);
	if (s->spare_fd >= 0)
		close(s->spare_fd);
	svc_notify_close(s);
	free(s);
}

const char *epf_svc_socket(const struct epf_svc *s)
{
	return s->socket;
}
