/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The service back-end of libepf (backend.h): the engine is in an ep-fabric daemon of this node, which remote_connect.c talks to. Regions and rings:
 * remote_memory.c; the join: remote_join.c.
 */
#define EPF_LOG_COMP "epf"
#include "fabric/client/remote_priv.h"
#include "fabric/gpu/rdma.h"

#include "fabric/base/err.h"
#include "fabric/base/log.h"
#include "fabric/engine/limits.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CHECK_NS = 20 * 1000 * 1000 };

#define LEAVE_NS UINT64_C(2000000000) /* longest wait for the daemon's answer to LEAVE */

/* What a new connection needs: the signals; after another one was lost, all regions and rings too. */
static int restore(struct epf *ep, bool again)
{
	int rc = remote_signals(ep);

	return rc || !again ? rc : remote_register_again(ep);
}

static int remote_open(struct epf *ep)
{
	struct epf_remote *r = calloc(1, sizeof(*r));

	if (!r)
		return epf_fail(EPF_R_NO_MEMORY, "epf_open: no memory");
	ep->remote = r;
	r->timeout_ns = ep->conf.service_timeout_ns;
	ep->keeps_memory = true;
	ep->threaded = true;
	ep->call_progress = ep->opts.progress != NULL;
	r->restore = restore;
	return remote_connect(ep);
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
		remote_sweep(r);
}

static void remote_close(struct epf *ep)
{
	struct epf_remote *r = ep->remote;

	if (!r)
		return;
	remote_hang_up(r);
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
		remote_sweep(r);
		rc = remote_gone(ep);
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
		return remote_gone(ep);
	now = epf_limits_now(NULL);
	if (EPF_LIKELY(now - EPF_LOAD_RELAXED(&r->checked_ns) < CHECK_NS))
		return 0;
	EPF_STORE_RELAXED(&r->checked_ns, now);
	return look(ep);
}

static int remote_stay_awake(struct epf *ep, bool on)
{
	struct epf_svc_awake req = { .on = on };

	if (!ep->remote->ch || epf_svc_channel_minor(ep->remote->ch) >= 5)
		return remote_call(ep, EPF_SVC_AWAKE, &req, -1, NULL, NULL, 0);
	if (on)
		epf_note(
			"rank %u: the daemon %s speaks version %u.%u, 1.5 is needed to keep it awake for kernels: "
			"each of their commands may wait 20 ms unless its core-idle is pause or spin",
			ep->rank, ep->remote->instance, EPF_SVC_MAJOR,
			epf_svc_channel_minor(ep->remote->ch));
	return 0;
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

/* The daemon lives on and reports it. */
static bool remote_has_notified(struct epf *ep)
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

static unsigned remote_drive(struct epf *ep, bool *drives)
{
	(void)ep;
	(void)drives;
	return 0;
}

static void remote_undrive(struct epf *ep)
{
	(void)ep;
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
	.stay_awake = remote_stay_awake,
	.peer_mask = remote_peer_mask,
	.counter = remote_counter,
	.stats_file = remote_stats_file,
	.bytes_per_peer = remote_bytes_per_peer,
	.progress = remote_progress,
	.sleep = remote_sleep,
	.drive = remote_drive,
	.undrive = remote_undrive,
	.check = remote_check,
	.has_notified = remote_has_notified,
	.engine_pid = remote_engine_pid,
};
