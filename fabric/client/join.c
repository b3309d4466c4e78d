/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libepf, part 2: joining a job. The ranks meet over the bootstrap in rounds: in each, every rank gives bytes and gets everybody's.
 * What the bytes mean is the back-end's (backend.h): descriptions of engines, then an empty round as a barrier before any
 * traffic. Also the collective calls after the join, and coming back as a lost rank (epf_rejoin). Called by the rank's own thread.
 */
#define EPF_LOG_COMP "join"
#include "bootstrap/auth.h"
#include "bootstrap/rank_env.h"
#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/base/log.h"
#include "fabric/client/lib.h"
#include "fabric/join/world.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	STEPS_PER_LOOK = 64,
	RECONNECT_AGAIN_US = 500,
	REJOIN_AGAIN_US = 20 * 1000,
	LOOK_AGAIN_US = 25 * 1000, /* above the 20 ms between looks */
	LOOKS_LEFT = 20
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
	for (unsigned i = 0; i < STEPS_PER_LOOK && ep->join_phase == EPF_JOIN_DONE; i++)
		if (!epf_progress_once(ep))
			break;
	if (EPF_LOAD_RELAXED(&ep->aborted))
		return epf_fail(EPF_R_ABORTED, "rank %u: the wait for the other ranks was aborted",
				ep->rank);
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
	ep->rank = o.rank; /* for the text of an interruption; counts when joined */
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
	snprintf(ep->node, sizeof(ep->node), "%s", ep->conf.node[0] ? ep->conf.node : host);
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
		if (!why && ep->join_phase == EPF_JOIN_DONE)
			why = epf_wait_lost(ep, true);
		if (why)
			return why;
	}
	return rc;
}

/* The handle may be the caller's, who may close it before this rank: nothing of ours stays in it after the call. */
static int boot_allgather(struct epf *ep, const void *mine, size_t len, struct epf_blob **all)
{
	int rc;

	epf_boot_interrupt(ep->boot, why_end, ep);
	rc = epf_boot_allgather(ep->boot, mine, len, all);
	epf_boot_interrupt(ep->boot, NULL, NULL);
	return first_cause(ep, rc);
}

static int boot_barrier(struct epf *ep)
{
	int rc;

	epf_boot_interrupt(ep->boot, why_end, ep);
	rc = epf_boot_barrier(ep->boot);
	epf_boot_interrupt(ep->boot, NULL, NULL);
	return first_cause(ep, rc);
}

/* Hands a blob to the bootstrap: at once on TCP (blocking), posted on the in-process one. */
static int gather_post(struct epf *ep, const void *buf, size_t len)
{
	int rc = epf_boot_local_post(ep->boot, buf, len);

	if (rc == -EOPNOTSUPP)
		rc = boot_allgather(ep, buf, len, &ep->blobs);
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
	int rc = ep->be->join_round(ep, n, ep->blobs, &buf, &len, &last);

	if (!rc && last)
		ep->who = ep->blobs;
	else
		epf_boot_free_blobs(ep->blobs);
	ep->blobs = NULL;
	/* The round in which the back-end has nothing to give, the last one, tells people who is where. */
	if (!rc && !last && !len)
		rc = epf_who_describe(ep, &buf, &len);
	if (!rc && last)
		ep->join_phase = EPF_JOIN_DONE;
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
	ep->rank = rank;
	ep->world = world;
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

int epf_join_post(struct epf *ep, struct epf_boot *boot)
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
		ep->join_phase = EPF_JOIN_ROUNDS;
	return rc;
}

int epf_join_finish(struct epf *ep)
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

	while ((rc = ep->be->rejoin(ep, key)) == -EAGAIN && epf_now_ns() < deadline)
		usleep(REJOIN_AGAIN_US);
	if (rc == -EAGAIN)
		return epf_fail(EPF_R_WAIT_TIMEOUT, "epf_rejoin: rank %u: not after %llu ms: %s",
				ep->rank,
				(unsigned long long)(ep->conf.bootstrap_timeout_ns / 1000000),
				epf_last_error());
	return rc;
}

int epf_rejoin(struct epf *ep)
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
		ep->world = 0;
		return rc;
	}
	ep->join_phase = EPF_JOIN_DONE;
	say_joined(ep, "came back");
	return 0;
}

/* 0 when the rank has joined and can still meet the others. */
static int check_boot(const struct epf *ep, const char *call)
{
	if (ep->join_phase != EPF_JOIN_DONE)
		return epf_fail(EPF_R_NOT_JOINED, "%s: not joined", call);
	if (!ep->boot)
		return epf_fail(
			EPF_R_SVC_UNSUPPORTED,
			"%s: rank %u came back by epf_rejoin and has no rendezvous with the others",
			call, ep->rank);
	return 0;
}

int epf_exchange(struct epf *ep)
{
	struct epf_blob *blobs = NULL;
	uint8_t *buf = NULL;
	size_t len = 0;
	int rc = check_boot(ep, "epf_exchange");

	if (rc)
		return rc;
	rc = ep->be->describe(ep, &buf, &len);
	if (!rc)
		rc = boot_allgather(ep, buf, len, &blobs);
	free(buf);
	if (!rc)
		rc = ep->be->update(ep, blobs);
	epf_boot_free_blobs(blobs);
	/* Nobody names a new region before everybody knows it. */
	return rc ? rc : boot_barrier(ep);
}

int epf_allgather(struct epf *ep, const void *mine, size_t bytes, void *all)
{
	struct epf_blob *blobs;
	int rc = check_boot(ep, "epf_allgather");

	if (rc)
		return rc;
	rc = boot_allgather(ep, mine, bytes, &blobs);
	if (rc)
		return rc;
	for (uint32_t r = 0; r < ep->world && !rc; r++) {
		if (blobs[r].len != bytes)
			rc = epf_fail(EPF_R_PEER_ANSWER,
				      "epf_allgather: rank %u gave %zu bytes, this rank %zu", r,
				      blobs[r].len, bytes);
		else
			memcpy((uint8_t *)all + r * bytes, blobs[r].data, bytes);
	}
	epf_boot_free_blobs(blobs);
	return rc;
}

int epf_barrier(struct epf *ep)
{
	int rc = check_boot(ep, "epf_barrier");

	return rc ? rc : boot_barrier(ep);
}

/* This rank's part of one step; until the engine is there, at most bootstrap-timeout. */
static int reconnect_step(struct epf *ep, unsigned step, const struct epf_blob *blobs,
			  uint8_t **buf, size_t *len)
{
	uint64_t deadline = epf_now_ns() + ep->conf.bootstrap_timeout_ns;
	int rc;

	while ((rc = ep->be->reconnect(ep, step, blobs, buf, len)) == -EAGAIN) {
		if (EPF_LOAD_RELAXED(&ep->aborted))
			return epf_fail(EPF_R_ABORTED, "rank %u: epf_reconnect was aborted",
					ep->rank);
		if (epf_now_ns() > deadline)
			return epf_fail(
				EPF_R_WAIT_TIMEOUT,
				"epf_reconnect: step %u was not over after %llu ms", step,
				(unsigned long long)(ep->conf.bootstrap_timeout_ns / 1000000));
		if (!epf_progress_once(ep))
			usleep(RECONNECT_AGAIN_US);
	}
	return rc;
}

/* The outcome of all, so that every rank returns the same: one byte each, 0: well. The barrier behind which commands may flow. */
static int reconnect_outcome(struct epf *ep, int rc, char *why)
{
	uint8_t failed = rc != 0;
	struct epf_blob *blobs = NULL;
	int met = boot_allgather(ep, &failed, 1, &blobs);

	for (uint32_t r = 0; r < ep->world && !rc && !met; r++)
		if (blobs[r].len != 1 || ((const uint8_t *)blobs[r].data)[0])
			rc = epf_fail(EPF_R_RECONNECT, "epf_reconnect: as rank %u says", r);
	if (!met && failed)
		rc = epf_fail(EPF_R_RECONNECT, "epf_reconnect: %s", why);
	epf_boot_free_blobs(blobs);
	return met ? met : rc;
}

int epf_reconnect(struct epf *ep)
{
	struct epf_blob *blobs = NULL;
	char why[200] = "";
	int rc = check_boot(ep, "epf_reconnect"), met = 0;

	if (rc)
		return rc;
	/* Who cannot go on gives nothing from then on, which the others understand; nobody is left waiting. */
	for (unsigned step = 0; step < EPF_RECONNECT_STEPS && !met; step++) {
		uint8_t *buf = NULL;
		size_t len = 0;

		if (!rc)
			rc = reconnect_step(ep, step, blobs, &buf, &len);
		if (rc && !why[0])
			snprintf(why, sizeof(why), "%s", epf_last_error());
		epf_boot_free_blobs(blobs);
		blobs = NULL;
		if (step + 1 < EPF_RECONNECT_STEPS)
			met = boot_allgather(ep, rc ? NULL : buf, rc ? 0 : len, &blobs);
		free(buf);
	}
	epf_boot_free_blobs(blobs);
	if (met)
		return met;
	rc = reconnect_outcome(ep, rc, why);
	if (!rc)
		epf_info("rank %u: all nodes are connected again", ep->rank);
	return rc;
}

uint32_t epf_rank(const struct epf *ep)
{
	return ep->rank;
}

uint32_t epf_world(const struct epf *ep)
{
	return ep->world;
}

uint32_t epf_node_of(const struct epf *ep, uint32_t rank)
{
	if (ep->join_phase != EPF_JOIN_DONE || rank >= ep->world)
		return UINT32_MAX;
	return EPF_LOAD_RELAXED(&ep->peers->peers[rank].node);
}

uint32_t epf_nodes(const struct epf *ep)
{
	return ep->join_phase == EPF_JOIN_DONE ? EPF_LOAD_RELAXED(&ep->peers->n_nodes) : 0;
}
