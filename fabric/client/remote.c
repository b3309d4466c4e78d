/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The service back-end of libepf (backend.h): the engine is in an ep-fabric daemon of this node. Called by lib.c, join.c and wait.c.
 * The control socket is for rare things only, and serves one thread at a time: the one that holds locks.calls. A daemon that is lost before the join is waited for and everything is
 * registered with the next one (remote_memory.c); after the join its loss ends every wait with EPF_R_SVC_GONE.
 */
#define EPF_LOG_COMP "epf"
#include "fabric/client/remote.h"
#include "fabric/gpu/rdma.h"

#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/base/log.h"
#include "fabric/base/sweep.h"
#include "fabric/engine/limits.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CHECK_NS = 20 * 1000 * 1000, AGAIN_US = 10 * 1000, REGION_BYTES_A_SECOND = 16 << 20 };

#define LEAVE_NS UINT64_C(2000000000) /* longest wait for the daemon's answer to LEAVE */

bool remote_lost(int rc)
{
	enum epf_reason r = epf_last_reason();

	return rc < 0 && (r == EPF_R_SVC_GONE || r == EPF_R_SVC_ABSENT);
}

/* The setting `service` is a path, or an instance name in the runtime directory. */
static int find_socket(struct epf *ep)
{
	const char *service = ep->conf.service, *slash, *dot;
	struct epf_remote *r = ep->remote;
	int n;

	if (service[0] != '/') {
		if (strchr(service, '/') || strlen(service) >= sizeof(r->instance))
			return epf_fail(EPF_R_CONF_RANGE,
					"service: \"%s\" is neither the name of an instance nor a "
					"path that begins with /",
					service);
		if (ep->conf.runtime_dir[0])
			snprintf(r->dir, sizeof(r->dir), "%s", ep->conf.runtime_dir);
		else if (epf_conf_stats_dir(&ep->conf, r->dir, sizeof(r->dir)))
			return -ERANGE;
		snprintf(r->instance, sizeof(r->instance), "%s", service);
		n = snprintf(r->path, sizeof(r->path), "%s/%s.sock", r->dir, service);
		if (n >= (int)sizeof(r->path))
			return epf_fail(
				EPF_R_CONF_RANGE,
				"service: the socket %s/%s.sock has a path of %d bytes, %zu are "
				"possible: choose a shorter runtime-dir",
				r->dir, service, n, sizeof(r->path) - 1);
		return 0;
	}
	if (snprintf(r->path, sizeof(r->path), "%s", service) >= (int)sizeof(r->path))
		return epf_fail(EPF_R_CONF_RANGE, "service: a path has at most %zu bytes: %s",
				sizeof(r->path) - 1, service);
	slash = strrchr(service, '/');
	dot = strrchr(service, '.');
	n = dot && dot > slash ? (int)(dot - slash - 1) : (int)strlen(slash + 1);
	snprintf(r->instance, sizeof(r->instance), "%.*s", n, slash + 1);
	/* Only a name of the usual form has a lock beside it. */
	if (dot && dot > slash + 1 && strcmp(dot, ".sock") == 0)
		snprintf(r->dir, sizeof(r->dir), "%.*s",
			 slash == service ? 1 : (int)(slash - service), service);
	return 0;
}

/* Removes what a dead daemon left, if it is dead and we may. What goes wrong is no error of ours. */
static void sweep(const struct epf_remote *r)
{
	if (r->dir[0] && epf_svc_sweep(r->dir, r->instance) < 0)
		epf_dbg("%s", epf_last_error());
}

static int greet(struct epf *ep)
{
	struct epf_remote *r = ep->remote;
	struct epf_svc_hello_reply hello;
	int rc = epf_svc_hello(r->ch, 0, program_invocation_short_name, &hello, r->timeout_ns);

	if (rc)
		return rc;
	memcpy(r->node_id, hello.node_id, sizeof(r->node_id));
	if (ep->mode[0]) /* again: other threads may be reading these texts */
		return 0;
	if (hello.instance[0])
		snprintf(r->instance, sizeof(r->instance), "%s", hello.instance);
	snprintf(ep->mode, sizeof(ep->mode), "service:%s", r->instance);
	return 0;
}

/* Connects and asks for the signals. */
static int connect_to(struct epf *ep, uint64_t timeout_ns)
{
	struct epf_remote *r = ep->remote;
	int rc = epf_svc_channel_open(r->path, 0, &r->ch);

	if (remote_lost(rc)) {
		sweep(r);
		rc = epf_svc_channel_open(r->path, timeout_ns, &r->ch);
	}
	if (!rc)
		rc = greet(ep);
	if (!rc)
		rc = remote_signals(ep);
	return rc;
}

static void hang_up(struct epf_remote *r)
{
	epf_svc_channel_close(r->ch);
	r->ch = NULL;
}

static uint64_t time_left(uint64_t deadline)
{
	uint64_t now = epf_now_ns();

	return now < deadline ? deadline - now : 0;
}

/* The daemon was lost before this rank was part of a job: the next one gets everything again. */
static int connect_again(struct epf *ep, uint64_t deadline)
{
	struct epf_remote *r = ep->remote;
	int rc;

	epf_note("daemon %s was lost; connecting to %s again", r->instance, r->path);
	for (;;) {
		hang_up(r);
		rc = connect_to(ep, time_left(deadline));
		if (!rc)
			rc = remote_register_again(ep);
		if (!remote_lost(rc) || !time_left(deadline))
			break;
		usleep(AGAIN_US);
	}
	if (rc)
		hang_up(r);
	else
		epf_note("daemon %s: connected again, %u regions registered again", r->instance,
			 r->n_regions);
	return rc;
}

static int gone(const struct epf *ep)
{
	return epf_fail(EPF_R_SVC_GONE, "rank %u: the ep-fabric daemon %s at %s is gone",
			epf_rank(ep), ep->remote->instance, ep->remote->path);
}

/* A daemon allocates a region whole before it answers, and those of other ranks beside it: that takes time by the byte. */
static uint64_t answer_ns(const struct epf_remote *r, unsigned type, const void *req)
{
	const struct epf_svc_region *region = req;

	return r->timeout_ns +
	       (type == EPF_SVC_REGION ? region->bytes / REGION_BYTES_A_SECOND * 1000000000u : 0);
}

int remote_call_once(struct epf *ep, unsigned type, const void *req, int fd, void *reply,
		     int *reply_fds, unsigned n_reply_fds)
{
	struct epf_remote *r = ep->remote;
	unsigned n = 0;
	int rc;

	if (!r->ch)
		return gone(ep);
	rc = epf_svc_call(r->ch, type, req, fd >= 0 ? &fd : NULL, fd >= 0, reply, reply_fds,
			  n_reply_fds, &n, answer_ns(r, type, req));
	if (rc || n == n_reply_fds)
		return rc;
	for (unsigned i = 0; i < n; i++)
		close(reply_fds[i]);
	return epf_fail(EPF_R_SVC_DESCRIPTOR, "%s: the daemon's answer has %u descriptors, not %u",
			epf_svc_type_name(type), n, n_reply_fds);
}

int remote_call(struct epf *ep, unsigned type, const void *req, int fd, void *reply, int *reply_fds,
		unsigned n_reply_fds)
{
	struct epf_remote *r = ep->remote;
	uint64_t deadline;
	int rc = remote_call_once(ep, type, req, fd, reply, reply_fds, n_reply_fds);

	if (!remote_lost(rc))
		return rc;
	if (r->attached) {
		if (!r->gone)
			sweep(r);
		EPF_STORE_RELAXED(&r->gone, true);
		return gone(ep);
	}
	deadline = epf_now_ns() + r->timeout_ns;
	do {
		rc = connect_again(ep, deadline);
		if (!rc)
			rc = remote_call_once(ep, type, req, fd, reply, reply_fds, n_reply_fds);
	} while (remote_lost(rc) && time_left(deadline));
	return rc;
}

static int remote_open(struct epf *ep)
{
	struct epf_remote *r = calloc(1, sizeof(*r));
	int rc;

	if (!r)
		return epf_fail(EPF_R_NO_MEMORY, "epf_open: no memory");
	ep->remote = r;
	r->timeout_ns = ep->conf.service_timeout_ns;
	ep->keeps_memory = true;
	ep->threaded = true;
	ep->call_progress = ep->opts.progress != NULL;
	rc = find_socket(ep);
	if (!rc)
		rc = connect_to(ep, r->timeout_ns);
	/* It was there, and died while we introduced ourselves. */
	if (remote_lost(rc) && r->ch)
		rc = connect_again(ep, epf_now_ns() + r->timeout_ns);
	return rc;
}

static void remote_leave(struct epf *ep)
{
	struct epf_remote *r = ep->remote;
	uint64_t ns = r->timeout_ns < LEAVE_NS ? r->timeout_ns : LEAVE_NS;
	int rc = 0;

	ep->kick = NULL;
	if (r->ch && !r->gone)
		rc = epf_svc_call(r->ch, EPF_SVC_LEAVE, NULL, NULL, 0, NULL, NULL, 0, NULL, ns);
	if (rc)
		epf_info("rank %u: the daemon %s did not hear the farewell: %s", ep->rank,
			 r->instance, epf_last_error());
	if (remote_lost(rc))
		sweep(r);
}

static void remote_close(struct epf *ep)
{
	struct epf_remote *r = ep->remote;

	if (!r)
		return;
	hang_up(r);
	remote_mem_free(ep);
	epf_device_gpu_close(ep->device_gpus);
	ep->device_gpus = NULL;
	free(r);
	ep->remote = NULL;
}

/* Looks at the connection: 0, or the daemon is gone. A thread that is just calling the daemon will see for itself. */
static int look(struct epf *ep)
{
	struct epf_remote *r = ep->remote;
	int rc = 0;

	if (pthread_mutex_trylock(&ep->locks.calls))
		return 0;
	if (r->attached && !r->gone && epf_svc_channel_check(r->ch)) {
		EPF_STORE_RELAXED(&r->gone, true);
		sweep(r);
		rc = gone(ep);
	}
	epf_unlock_calls(ep);
	return rc;
}

static int remote_check(struct epf *ep)
{
	struct epf_remote *r = ep->remote;
	uint64_t now;

	/* Before the join the next call connects again, and nothing can come anyway. */
	if (!EPF_LOAD_RELAXED(&r->attached))
		return 0;
	if (EPF_UNLIKELY(EPF_LOAD_RELAXED(&r->gone)))
		return gone(ep);
	now = epf_limits_now(NULL);
	if (EPF_LIKELY(now - EPF_LOAD_RELAXED(&r->checked_ns) < CHECK_NS))
		return 0;
	EPF_STORE_RELAXED(&r->checked_ns, now);
	return look(ep);
}

static int remote_peer_mask(struct epf *ep, uint32_t rank, bool masked)
{
	struct epf_svc_mask req = { .rank = rank, .masked = masked };

	return remote_call(ep, EPF_SVC_MASK, &req, -1, NULL, NULL, 0);
}

static int remote_counter(const struct epf *ep, const char *name, uint64_t *value)
{
	struct epf_svc_counter req = { 0 };
	struct epf_svc_counter_reply a;
	int rc;

	if (strlen(name) >= sizeof(req.name))
		return -ENOENT;
	snprintf(req.name, sizeof(req.name), "%s", name);
	/* The connection is behind a pointer: what is constant for the caller stays so. */
	rc = remote_call_once((struct epf *)(uintptr_t)ep, EPF_SVC_COUNTER, &req, -1, &a, NULL, 0);
	if (!rc)
		*value = a.value;
	return rc;
}

static const char *remote_stats_file(const struct epf *ep)
{
	(void)ep;
	return ""; /* the daemon's, not this rank's */
}

static uint64_t remote_bytes_per_peer(const struct epf *ep)
{
	uint64_t bytes;

	return remote_counter(ep, "bytes_per_peer", &bytes) ? 0 : bytes;
}

static unsigned remote_progress(struct epf *ep)
{
	(void)ep;
	return 0;
}

/* The daemon lives on, and tells by itself. */
static bool remote_has_told(struct epf *ep)
{
	(void)ep;
	return true;
}

static uint32_t remote_engine_pid(const struct epf *ep)
{
	struct ucred peer = { 0 };
	socklen_t len = sizeof(peer);

	if (!ep->remote->ch ||
	    getsockopt(epf_svc_channel_fd(ep->remote->ch), SOL_SOCKET, SO_PEERCRED, &peer, &len))
		return 0;
	return (uint32_t)peer.pid;
}

/* Waits sleep on the rank's wakeup: the engine is elsewhere. */
static bool remote_sleep(struct epf *ep, uint64_t max_ns)
{
	(void)ep;
	(void)max_ns;
	return false;
}

const struct epf_backend_ops epf_backend_service = {
	.name = "service",
	.can_rejoin = true,
	.open = remote_open,
	.leave = remote_leave,
	.close = remote_close,
	.region_register = remote_region_register,
	.region_register_gpu = remote_region_register_gpu,
	.region_withdraw = remote_region_withdraw,
	.region_withdrawn = remote_region_withdrawn,
	.ring_open = remote_ring_open,
	.ring_close = remote_ring_close,
	.join_round = remote_join_round,
	.describe = remote_describe,
	.update = remote_update,
	.rejoin = remote_rejoin,
	.reconnect = remote_reconnect,
	.peer_mask = remote_peer_mask,
	.counter = remote_counter,
	.stats_file = remote_stats_file,
	.bytes_per_peer = remote_bytes_per_peer,
	.progress = remote_progress,
	.sleep = remote_sleep,
	.check = remote_check,
	.has_told = remote_has_told,
	.engine_pid = remote_engine_pid,
};
