/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The embedded back-end of libepf (backend.h): an engine core inside this process, with one rank, which is a node. Called by
 * lib.c, join.c and wait.c. What touches the core goes through epf_engine_call(), so that it happens between two steps, whichever thread makes
 * them. In this mode the engine number of a rank is its rank; the node numbers people see come from the node names (join/world.h).
 */
#define EPF_LOG_COMP "epf"
#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/base/log.h"
#include "fabric/client/embedded_priv.h"
#include "fabric/engine/counter.h"
#include "fabric/engine/drive.h"
#include "fabric/engine/watch.h"
#include "fabric/gpu/rdma.h"
#include "fabric/join/world.h"
#include "fabric/place/numa.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
	FAREWELL_SLEEP_NS = 1000 * 1000,
	STEPS_PER_LOOK = 255,
};

/* Notifies the peers that this rank leaves on purpose, so that they do not count it as lost. */
static int say_bye(struct epf_core *core, void *arg)
{
	(void)arg;
	return epf_core_say_bye(core);
}

/* A quiet moment of the farewell: peers that have ended meanwhile are not waited for, and those that live need the CPU. */
static void rest(struct epf *ep, uint64_t *next_watch)
{
	uint64_t now = epf_now_ns();

	if (now >= *next_watch) {
		*next_watch = now + EPF_WATCH_NS;
		ep->ops->watch(ep->nic);
	}
	epf_core_sleep(ep->core, FAREWELL_SLEEP_NS);
}

/* True if this rank has masked all others: there is nobody to notify, and nothing to wait for. */
static bool is_alone(const struct epf *ep)
{
	for (uint32_t r = 0; r < ep->world; r++)
		if (r != ep->rank && !EPF_LOAD_RELAXED(&ep->masked[r]))
			return false;
	return true;
}

static void embedded_leave(struct epf *ep)
{
	uint64_t deadline, next_watch = 0;

	(void)epf_core_call(ep->core, say_bye, NULL);
	if (ep->started) {
		ep->kick = NULL;
		epf_core_stop(ep->core);
		pthread_join(ep->thread, NULL);
		ep->started = false;
	}
	/* What was said must arrive, or the others take this rank for lost: a peer that is slow gets the time that any silence gets. */
	deadline = epf_now_ns() + ep->conf.peer_timeout_ns;
	while (!ep->opts.now && !ep->opts.progress && !is_alone(ep) &&
	       (epf_core_say_bye(ep->core) || !epf_core_is_quiet(ep->core)) &&
	       epf_now_ns() < deadline) {
		if (epf_core_step(ep->core) == 0)
			rest(ep, &next_watch);
		epf_core_wake(ep->core);
	}
}

static void embedded_close(struct epf *ep)
{
	for (struct epf_ring *ring = ep->rings; ring; ring = ring->next)
		munmap(ring->shm, ring->bytes);
	ep->peers = NULL;
	epf_core_destroy(ep->core);
	ep->core = NULL;
	while (ep->undrained) {
		struct epf_ring_memory *m = ep->undrained;

		ep->undrained = m->next;
		munmap(m->shm, m->bytes);
		free(m);
	}
	epf_place_bind_destroy(&ep->bind);
	if (ep->nic)
		ep->ops->close(ep->nic);
	ep->nic = NULL;
	epf_device_gpu_close(ep->device_gpus);
	ep->device_gpus = NULL;
	if (ep->signals)
		munmap(ep->signals, ep->signal_bytes + sizeof(struct epf_wakeup));
	ep->signals = NULL;
	epf_stats_destroy(ep->stats, 0);
	ep->stats = NULL;
}

/* What the NIC must know before anybody can reach it. */
static int set_job(struct epf *ep)
{
	struct epf_nic_job job = { .route = NULL };
	char label[sizeof(ep->job) + 16], host[EPF_BOOT_ADDRESS_MAX];
	bool is_secret = false;
	int rc;

	snprintf(label, sizeof(label), "lanes of %s", ep->job);
	rc = epf_boot_job_key(ep->boot, label, job.key);
	if (!rc)
		rc = epf_boot_route(ep->boot, host, &is_secret);
	job.is_secret = is_secret;
	job.route = host[0] ? host : NULL;
	if (!rc)
		rc = ep->ops->set_job(ep->nic, &job);
	explicit_bzero(job.key, sizeof(job.key));
	return rc;
}

/* Round 0: the engine learns the size of the job, and what it says of itself goes to everybody. */
static int describe_self(struct epf *ep, uint8_t **buf, size_t *len)
{
	uint64_t *tokens =
		calloc((size_t)ep->world * ep->core->limits.lanes_per_node, sizeof(*tokens));
	struct epf_numa before;
	int rc;

	if (!tokens)
		return epf_fail(EPF_R_NO_MEMORY, "join: no memory for %u ranks", ep->world);
	ep->core->ranks[LOCAL].rank = ep->rank;
	(void)epf_numa_begin(epf_numa_lib(), ep->bind.node, &before);
	rc = set_job(ep);
	if (!rc)
		rc = epf_core_set_world(ep->core, ep->world, ep->world, ep->rank, NULL, tokens);
	epf_numa_end(epf_numa_lib(), &before);
	if (!rc)
		rc = epf_world_describe(ep->core, LOCAL, ep->node, tokens, buf, len);
	free(tokens);
	return rc;
}

/* Round 1: everybody has spoken. */
static int connect_all(struct epf *ep, const struct epf_blob *blobs)
{
	uint32_t *node_of = calloc(ep->world, sizeof(*node_of));
	int rc;

	if (!node_of)
		return epf_fail(EPF_R_NO_MEMORY, "join: no memory for %u ranks", ep->world);
	for (uint32_t r = 0; r < ep->world; r++)
		node_of[r] = r;
	rc = epf_world_connect(ep->core, blobs, node_of);
	if (!rc)
		epf_embedded_identify(ep, &blobs[0]);
	free(node_of);
	return rc;
}

static int embedded_join_round(struct epf *ep, unsigned n, const struct epf_blob *blobs,
			       uint8_t **buf, size_t *len, bool *last)
{
	int rc;

	epf_engine_lock(ep);
	if (n == 0)
		rc = describe_self(ep, buf, len);
	else if (n ==
		 1) /* nobody sends before everybody is connected: it gives nothing but its end */
		rc = connect_all(ep, blobs);
	else
		rc = epf_embedded_start(ep);
	epf_engine_unlock(ep);
	if (rc || n < 2)
		return rc;
	EPF_STORE_RELEASE(&ep->peers, ep->core->peers_page);
	*last = true;
	return 0;
}

struct blobs_args {
	struct epf *ep;
	uint8_t **buf;
	size_t *len;
	const struct epf_blob *blobs;
};

static int describe_again(struct epf_core *core, void *arg)
{
	const struct blobs_args *a = arg;

	return epf_world_describe(core, LOCAL, a->ep->node, NULL, a->buf, a->len);
}

static int embedded_describe(struct epf *ep, uint8_t **buf, size_t *len)
{
	struct blobs_args a = { .ep = ep, .buf = buf, .len = len };

	return epf_engine_call(ep, describe_again, &a);
}

static int take_update(struct epf_core *core, void *arg)
{
	return epf_world_update(core, ((const struct blobs_args *)arg)->blobs);
}

static int embedded_update(struct epf *ep, const struct epf_blob *blobs)
{
	struct blobs_args a = { .ep = ep, .blobs = blobs };

	return epf_engine_call(ep, take_update, &a);
}

struct reconnect_args {
	struct blobs_args b;
	unsigned step;
};

static int reconnect_step(struct epf_core *core, void *arg)
{
	const struct reconnect_args *a = arg;

	return epf_world_reconnect(core, a->step, a->b.ep->node, a->b.blobs, a->b.buf, a->b.len);
}

static int embedded_reconnect(struct epf *ep, unsigned step, const struct epf_blob *blobs,
			      uint8_t **buf, size_t *len)
{
	struct reconnect_args a = { { ep, buf, len, blobs }, step };

	return epf_engine_call(ep, reconnect_step, &a);
}

static int embedded_rejoin(struct epf *ep, const uint8_t *job_key)
{
	(void)job_key;
	return epf_fail(
		EPF_R_SVC_UNSUPPORTED,
		"epf_rejoin: this rank runs its engine itself (mode %s); a lost rank comes back "
		"only in service mode, see the setting service",
		ep->mode);
}

struct mask_args {
	uint32_t rank;
	bool masked;
};

static int mask_peer(struct epf_core *core, void *arg)
{
	const struct mask_args *a = arg;

	epf_core_mask_peer(core, LOCAL, a->rank, a->masked);
	return 0;
}

static int embedded_stay_awake(struct epf *ep, bool on)
{
	return epf_engine_call(ep, epf_core_stay_awake, &on);
}

static int embedded_peer_mask(struct epf *ep, uint32_t rank, bool masked)
{
	struct mask_args a = { rank, masked };

	return epf_engine_call(ep, mask_peer, &a);
}

static int embedded_counter(const struct epf *ep, const char *name, uint64_t *value)
{
	struct epf *owner =
		(struct epf *)(uintptr_t)ep; /* the lock is no part of what is constant */
	int rc;

	/* Not by epf_engine_call(): what needs the core's thread is called there by epf_counter_read() itself. */
	epf_engine_lock(owner);
	rc = epf_counter_read(ep->core, name, value);
	epf_engine_unlock(owner);
	return rc;
}

static const char *embedded_stats_file(const struct epf *ep)
{
	const char *path = epf_stats_path(ep->stats);

	return path ? path : "";
}

static uint64_t embedded_bytes_per_peer(const struct epf *ep)
{
	return epf_counter_bytes_per_peer(ep->core);
}

static unsigned embedded_progress(struct epf *ep)
{
	unsigned handled;

	if (ep->threaded || !epf_engine_try(ep))
		return 0;
	handled = epf_core_step(ep->core);
	epf_core_wake(ep->core);
	if ((ep->core->steps & STEPS_PER_LOOK) == 0)
		epf_watch_look(ep->core);
	epf_engine_unlock(ep);
	return handled;
}

static bool embedded_sleep(struct epf *ep, uint64_t max_ns)
{
	if (!epf_engine_try(ep)) {
		/* Who sleeps as the engine looks for what this thread has pushed. */
		if (epf_wakeup_is_needed(ep->core->wakeup))
			epf_wakeup_wake(ep->core->wakeup);
		return false;
	}
	epf_core_sleep(ep->core, max_ns);
	epf_engine_unlock(ep);
	return true;
}

static unsigned embedded_drive(struct epf *ep, bool *drives)
{
	unsigned handled = epf_core_drive(ep->core, drives);

	if (!*drives && ep->is_crowded)
		epf_core_drive_wish(ep->core);
	return handled;
}

static void embedded_undrive(struct epf *ep)
{
	epf_core_drive_end(ep->core);
}

static int embedded_check(struct epf *ep)
{
	(void)ep;
	return 0;
}

const struct epf_backend_ops epf_backend_embedded = {
	.name = "embedded",
	.open = epf_embedded_open,
	.leave = embedded_leave,
	.close = embedded_close,
	.region_register = epf_embedded_region_register,
	.region_register_gpu = epf_embedded_region_register_gpu,
	.region_withdraw = epf_embedded_region_withdraw,
	.region_withdrawn = epf_embedded_region_withdrawn,
	.region_reuse = epf_embedded_region_reuse,
	.ring_open = epf_embedded_ring_open,
	.ring_close = epf_embedded_ring_close,
	.join_round = embedded_join_round,
	.describe = embedded_describe,
	.update = embedded_update,
	.rejoin = embedded_rejoin,
	.reconnect = embedded_reconnect,
	.stay_awake = embedded_stay_awake,
	.peer_mask = embedded_peer_mask,
	.counter = embedded_counter,
	.stats_file = embedded_stats_file,
	.bytes_per_peer = embedded_bytes_per_peer,
	.progress = embedded_progress,
	.sleep = embedded_sleep,
	.drive = embedded_drive,
	.undrive = embedded_undrive,
	.check = embedded_check,
	.has_notified = epf_embedded_has_notified,
	.engine_pid = epf_embedded_engine_pid,
};
