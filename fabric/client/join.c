/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libepf, part 2: joining a job. The ranks meet over the bootstrap in rounds: in each, every rank gives bytes and gets everybody's.
 * What the bytes mean is the back-end's (backend.h): descriptions of engines, then an empty round as a barrier before any
 * traffic. Also coming back as a lost rank (epf_rejoin); the collective calls after the join are in collective.c. Any thread: locks.meeting
 * is held through each call, since the bootstrap handle serves one thread, and locks.calls around each call of the back-end.
 */
#define EPF_LOG_COMP "join"
#include "bootstrap/auth.h"
#include "bootstrap/rank_env.h"
#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/base/log.h"
#include "fabric/client/drive.h"
#include "fabric/client/handle.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	STEPS_PER_LOOK = 64,
	REJOIN_AGAIN_US = 20 * 1000,
	LOOK_AGAIN_US = 25 * 1000, /* above the 20 ms between looks */
	LOOKS_LEFT = 20
};

/* Ranks that are lost only to each other's engines may all be in the barrier, which then ends first. */
#define BARRIER_LOST_NS 500000000ull

/* A rank in a barrier, and since when it has known of a lost one; 0: it knows of none. */
struct barrier {
	struct epf *ep;
	uint64_t lost_since_ns;
};

/* Fills in who this rank is in which job: what is not configured comes from the launcher's variables (info keeps the texts). */
static int find_place(const struct epf *ep, struct epf_rank_info *info, bool need_rendezvous,
		      struct epf_boot_opts *o)
{
	const struct epf_conf *c = &ep->conf;

	if (c->rank < 0 || c->world_size < 0 || !c->rendezvous[0]) {
		int rc = epf_rank_discover(info);

		if (rc && (need_rendezvous || c->rank < 0 || c->world_size < 0))
			return rc;
	}
	o->rank = c->rank >= 0 ? (uint32_t)c->rank : info->rank;
	o->world = c->world_size >= 0 ? (uint32_t)c->world_size : info->world;
	o->rendezvous = c->rendezvous[0] ? c->rendezvous : info->rendezvous;
	o->job = c->job[0] ? c->job : info->job;
	o->secret_file = c->secret_file[0] ? c->secret_file : NULL;
	return 0;
}

/* What ends a wait for the other ranks before they come: epf_abort, or the loss of this rank's daemon. */
static int why_end(void *arg)
{
	struct epf *ep = arg;

	/* Where nobody else steps the engine it goes on here, since peers may wait for it (epf_reconnect). */
	for (unsigned i = 0; i < STEPS_PER_LOOK && epf_joined(ep); i++)
		if (!epf_progress_once(ep))
			break;
	if (EPF_LOAD_RELAXED(&ep->aborted))
		return epf_fail(EPF_R_ABORTED, "rank %u: the wait for the other ranks was aborted",
				epf_rank(ep));
	return ep->be->check(ep);
}

/* Opens the TCP bootstrap as configured. */
static int open_boot(struct epf *ep)
{
	const struct epf_conf *c = &ep->conf;
	struct epf_boot_opts o = { .size = sizeof(o) };
	struct epf_rank_info info = { 0 };
	int rc = find_place(ep, &info, true, &o);

	if (rc)
		return rc;
	o.ifname = c->socket_ifname[0] ? c->socket_ifname : NULL;
	o.timeout_ns = c->bootstrap_timeout_ns;
	o.is_root = o.rank == 0 && !getenv("EPF_BOOTSTRAP_SERVER");
	o.node = ep->node;
	o.why = why_end;
	o.why_arg = ep;
	EPF_STORE_RELAXED(&ep->rank,
			  o.rank); /* for the text of an interruption; counts when joined */
	snprintf(ep->job, sizeof(ep->job), "%s", o.job);
	rc = epf_boot_tcp_open(&o, &ep->boot);
	ep->own_boot = !rc;
	return rc;
}

/* Two nodes must not come to one name, so a name that does not fit is not cut. */
static int set_node_name(struct epf *ep)
{
	char host[HOST_NAME_MAX + 1] = "";

	if (!ep->conf.node[0] && gethostname(host, sizeof(host)))
		return epf_fail_sys(EPF_R_SYSTEM, errno, "join: the host name");
	host[HOST_NAME_MAX] = 0;
	if (strlen(host) >= sizeof(ep->node))
		return epf_fail(
			EPF_R_CONF_RANGE,
			"node: the host name has %zu characters, a node's name at most %zu: "
			"set node",
			strlen(host), sizeof(ep->node) - 1);
	snprintf(ep->node, sizeof(ep->node), "%.*s", (int)sizeof(ep->node) - 1,
		 ep->conf.node[0] ? ep->conf.node : host);
	return 0;
}

/*
 * Another rank's end may be a mere consequence, of which that rank heard first: of the loss of a daemon that served it too, or of a node that
 * cannot be reached. So before it is named this rank looks whether its own daemon is there, and whether ranks are lost; a while longer
 * where that rank has left in order, which it would hardly do in the middle of things.
 */
static int first_cause(struct epf *ep, int rc)
{
	unsigned looks = rc == -EPIPE ? LOOKS_LEFT : rc == -ECONNRESET ? 1 : 0;

	for (unsigned i = 0; i < looks && ep->boot; i++) {
		int why;

		usleep(LOOK_AGAIN_US);
		why = why_end(ep);
		if (!why && epf_joined(ep))
			why = epf_wait_lost(ep, true);
		if (why)
			return why;
	}
	return rc;
}

/* The handle may be the caller's, who may close it before this rank: nothing of ours stays in it after the call. */
int epf_meet_allgather(struct epf *ep, const void *mine, size_t len, struct epf_blob **all)
{
	int rc;

	epf_boot_interrupt(ep->boot, why_end, ep);
	rc = epf_boot_allgather(ep->boot, mine, len, all);
	epf_boot_interrupt(ep->boot, NULL, NULL);
	return first_cause(ep, rc);
}

/*
 * The engine hears of a lost node within its deadlines; the rendezvous, if the node is stopped or cut off, only when TCP gives up, or never. A lost rank does not
 * come to the barrier.
 */
static int why_end_barrier(void *arg)
{
	struct barrier *b = arg;
	int rc = why_end(b->ep);
	uint64_t now;

	if (rc || !epf_joined(b->ep))
		return rc;
	rc = epf_wait_lost(b->ep, false);
	now = epf_now_ns();
	if (!rc)
		b->lost_since_ns = 0;
	else if (!b->lost_since_ns)
		b->lost_since_ns = now;
	return rc && now - b->lost_since_ns >= BARRIER_LOST_NS ? rc : 0;
}

int epf_meet_barrier(struct epf *ep)
{
	struct barrier b = { .ep = ep };
	int rc;

	epf_boot_interrupt(ep->boot, why_end_barrier, &b);
	rc = epf_boot_barrier(ep->boot);
	epf_boot_interrupt(ep->boot, NULL, NULL);
	return first_cause(ep, rc);
}

void epf_meet(struct epf *ep)
{
	pthread_mutex_lock(&ep->locks.meeting);
}

int epf_part(struct epf *ep, int rc)
{
	pthread_mutex_unlock(&ep->locks.meeting);
	return rc;
}

/* Hands a blob to the bootstrap: at once on TCP (blocking), posted on the in-process one. */
static int gather_post(struct epf *ep, const void *buf, size_t len)
{
	int rc = epf_boot_local_post(ep->boot, buf, len);

	if (rc == -EOPNOTSUPP)
		rc = epf_meet_allgather(ep, buf, len, &ep->blobs);
	return rc;
}

static int gather_collect(struct epf *ep)
{
	return ep->blobs ? 0 : epf_boot_local_collect(ep->boot, &ep->blobs);
}

/* One round of the join: what everybody gave in the last one goes in, this rank's bytes for the next one go out. */
static int join_round(struct epf *ep, unsigned n)
{
	uint8_t *buf = NULL;
	size_t len = 0;
	bool last = false;
	int rc;

	epf_lock_calls(ep);
	rc = ep->be->join_round(ep, n, ep->blobs, &buf, &len, &last);
	epf_unlock_calls(ep);
	if (!rc && last) {
		ep->who = ep->blobs;
		ep->is_crowded = epf_drive_is_crowded(ep);
	} else {
		epf_boot_free_blobs(ep->blobs);
	}
	ep->blobs = NULL;
	/* The last round, in which the back-end has nothing to send, carries the process of each rank for error texts. */
	if (!rc && !last && !len)
		rc = epf_who_describe(ep, &buf, &len);
	if (!rc && last)
		EPF_STORE_RELEASE(&ep->join_phase, EPF_JOIN_DONE);
	else if (!rc)
		rc = gather_post(ep, buf, len);
	free(buf);
	if (!rc)
		ep->round = n;
	/* To who asks, -EAGAIN says that ranks are still missing. */
	return rc == -EAGAIN ? -EBUSY : rc;
}

/* Rank and world are known: what the waits keep of every rank. */
static int set_place(struct epf *ep, uint32_t rank, uint32_t world)
{
	ep->masked = calloc(world, sizeof(*ep->masked));
	if (!ep->masked)
		return epf_fail(EPF_R_NO_MEMORY, "join: no memory for %u ranks", world);
	EPF_STORE_RELAXED(&ep->rank, rank);
	EPF_STORE_RELAXED(&ep->world, world);
	return 0;
}

static int check_fresh(const struct epf *ep, const char *call)
{
	return ep->masked ? epf_fail(EPF_R_JOIN_ORDER, "%s: this rank has joined already", call)
			  : 0;
}

static void say_joined(const struct epf *ep, const char *how)
{
	epf_info("rank %u of %u: %s, node %u of %u (%s), nic %s, %s", ep->rank, ep->world, how,
		 epf_node_of(ep, ep->rank), epf_nodes(ep), ep->node, ep->nic_name, ep->mode);
}

static int join_post(struct epf *ep, struct epf_boot *boot)
{
	int rc = check_fresh(ep, "epf_join");

	if (!rc)
		rc = set_node_name(ep);
	if (rc)
		return rc;
	snprintf(ep->job, sizeof(ep->job), "%s", ep->conf.job);
	ep->boot = boot;
	if (!boot) {
		rc = open_boot(ep);
		if (rc)
			return rc;
	}
	rc = set_place(ep, epf_boot_rank(ep->boot), epf_boot_world(ep->boot));
	if (!rc)
		rc = join_round(ep, 0);
	if (!rc)
		EPF_STORE_RELEASE(&ep->join_phase, EPF_JOIN_ROUNDS);
	return rc;
}

int epf_join_post(struct epf *ep, struct epf_boot *boot)
{
	epf_meet(ep);
	return epf_part(ep, join_post(ep, boot));
}

static int join_finish(struct epf *ep)
{
	if (ep->join_phase == EPF_JOIN_NONE)
		return epf_fail(EPF_R_JOIN_ORDER, "epf_join_finish: before epf_join_post");
	if (ep->join_phase == EPF_JOIN_DONE)
		return 0;
	while (ep->join_phase == EPF_JOIN_ROUNDS) {
		int rc = gather_collect(ep);

		if (!rc)
			rc = join_round(ep, ep->round + 1);
		if (rc)
			return rc;
	}
	say_joined(ep, "joined");
	return 0;
}

int epf_join_finish(struct epf *ep)
{
	epf_meet(ep);
	return epf_part(ep, join_finish(ep));
}

int epf_join(struct epf *ep, struct epf_boot *boot)
{
	uint64_t deadline = epf_now_ns() + ep->conf.bootstrap_timeout_ns;
	int rc = epf_join_post(ep, boot);

	while (!rc && (rc = epf_join_finish(ep)) == -EAGAIN) {
		if (epf_now_ns() > deadline)
			return epf_fail(EPF_R_WAIT_TIMEOUT, "epf_join: not all ranks came");
		usleep(100);
		rc = 0;
	}
	return rc;
}

/* The key that shows the daemon which job this is: the same as the bootstrap of the job's other ranks gives. */
static int make_job_key(const struct epf_boot_opts *o, uint8_t key[EPF_AUTH_KEY_BYTES])
{
	struct epf_auth auth;
	int rc = epf_auth_load(NULL, 0, o->secret_file, NULL, NULL, &auth);

	if (rc)
		return rc;
	epf_auth_job_key(&auth, o->job, key);
	epf_auth_wipe(&auth);
	return 0;
}

/* Asks for the place until the engines have cleared up behind the lost process. */
static int take_place(struct epf *ep, const uint8_t *key)
{
	uint64_t deadline = epf_now_ns() + ep->conf.bootstrap_timeout_ns;
	int rc;

	for (;;) {
		epf_lock_calls(ep);
		rc = ep->be->rejoin(ep, key);
		epf_unlock_calls(ep);
		if (rc != -EAGAIN || epf_now_ns() >= deadline)
			break;
		usleep(REJOIN_AGAIN_US);
	}
	if (rc == -EAGAIN)
		return epf_fail(EPF_R_WAIT_TIMEOUT, "epf_rejoin: rank %u: not after %llu ms: %s",
				ep->rank,
				(unsigned long long)(ep->conf.bootstrap_timeout_ns / 1000000),
				epf_last_error());
	return rc;
}

static int rejoin(struct epf *ep)
{
	struct epf_boot_opts o = { .size = sizeof(o) };
	struct epf_rank_info info = { 0 };
	uint8_t key[EPF_AUTH_KEY_BYTES];
	int rc = check_fresh(ep, "epf_rejoin");

	if (rc)
		return rc;
	if (!ep->be->can_rejoin)
		return ep->be->rejoin(ep, NULL);
	rc = set_node_name(ep);
	if (!rc)
		rc = find_place(ep, &info, false, &o);
	if (!rc && o.rank >= o.world)
		rc = epf_fail(EPF_R_PEER_RANGE, "epf_rejoin: rank %u of a job of %u ranks", o.rank,
			      o.world);
	if (!rc)
		rc = make_job_key(&o, key);
	if (!rc)
		rc = set_place(ep, o.rank, o.world);
	if (rc)
		return rc;
	snprintf(ep->job, sizeof(ep->job), "%s", o.job);
	rc = take_place(ep, key);
	if (rc) {
		/* Nothing has been joined: it may be tried again, and epf_join too. */
		free(ep->masked);
		ep->masked = NULL;
		EPF_STORE_RELAXED(&ep->world, 0u);
		return rc;
	}
	EPF_STORE_RELEASE(&ep->join_phase, EPF_JOIN_DONE);
	say_joined(ep, "rejoined");
	return 0;
}

int epf_rejoin(struct epf *ep)
{
	epf_meet(ep);
	return epf_part(ep, rejoin(ep));
}

uint32_t epf_node_of(const struct epf *ep, uint32_t rank)
{
	if (!epf_joined(ep) || rank >= ep->world)
		return UINT32_MAX;
	return EPF_LOAD_RELAXED(&ep->peers->peers[rank].node);
}

uint32_t epf_nodes(const struct epf *ep)
{
	return epf_joined(ep) ? EPF_LOAD_RELAXED(&ep->peers->n_nodes) : 0;
}
