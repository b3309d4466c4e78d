/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connection of the service back-end: finds the daemon, connects, repeats requests. A daemon that is lost before the join is replaced by the
 * next one, to which restore() of struct epf_remote registers everything again; after the join its loss is final (EPF_R_SVC_GONE). One thread
 * at a time: the one that holds locks.calls.
 */
#define EPF_LOG_COMP "epf"
#include "fabric/client/remote_priv.h"

#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/base/log.h"
#include "fabric/base/sweep.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { AGAIN_US = 10 * 1000, REGION_BYTES_A_SECOND = 16 << 20 };

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
void remote_sweep(const struct epf_remote *r)
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

/* Connects and restores what every connection needs. */
static int connect_to(struct epf *ep, uint64_t timeout_ns, bool again)
{
	struct epf_remote *r = ep->remote;
	int rc = epf_svc_channel_open(r->path, 0, &r->ch);

	if (remote_lost(rc)) {
		remote_sweep(r);
		rc = epf_svc_channel_open(r->path, timeout_ns, &r->ch);
	}
	if (!rc)
		rc = greet(ep);
	if (!rc)
		rc = r->restore(ep, again);
	return rc;
}

void remote_hang_up(struct epf_remote *r)
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
		remote_hang_up(r);
		rc = connect_to(ep, time_left(deadline), true);
		if (!remote_lost(rc) || !time_left(deadline))
			break;
		usleep(AGAIN_US);
	}
	if (rc)
		remote_hang_up(r);
	else
		epf_note("daemon %s: connected again, %u regions registered again", r->instance,
			 r->n_regions);
	return rc;
}

int remote_gone(const struct epf *ep)
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
		return remote_gone(ep);
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
			remote_sweep(r);
		EPF_STORE_RELAXED(&r->gone, true);
		return remote_gone(ep);
	}
	deadline = epf_now_ns() + r->timeout_ns;
	do {
		rc = connect_again(ep, deadline);
		if (!rc)
			rc = remote_call_once(ep, type, req, fd, reply, reply_fds, n_reply_fds);
	} while (remote_lost(rc) && time_left(deadline));
	return rc;
}

int remote_connect(struct epf *ep)
{
	struct epf_remote *r = ep->remote;
	int rc = find_socket(ep);

	if (!rc)
		rc = connect_to(ep, r->timeout_ns, false);
	/* It was there, and died while we introduced ourselves. */
	if (remote_lost(rc) && r->ch)
		rc = connect_again(ep, epf_now_ns() + r->timeout_ns);
	return rc;
}
