/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libepf: the collective calls after the join. Any thread: each call is one meeting (epf_meet), in which client/join.c does the
 * rounds over the bootstrap, and holds locks.calls around each call of the back-end.
 */
#define EPF_LOG_COMP "join"
#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/base/log.h"
#include "fabric/client/handle.h"
#include "fabric/join/world.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RECONNECT_AGAIN_US = 500 };

/* 0 when the rank has joined and can still meet the others. */
static int check_boot(const struct epf *ep, const char *call)
{
	if (!epf_joined(ep))
		return epf_fail(EPF_R_NOT_JOINED, "%s: not joined", call);
	if (!ep->boot)
		return epf_fail(
			EPF_R_SVC_UNSUPPORTED,
			"%s: rank %u rejoined by epf_rejoin and has no rendezvous with the others",
			call, ep->rank);
	return 0;
}

static int describe(struct epf *ep, uint8_t **buf, size_t *len)
{
	int rc;

	epf_lock_calls(ep);
	rc = ep->be->describe(ep, buf, len);
	epf_unlock_calls(ep);
	return rc;
}

static int update(struct epf *ep, const struct epf_blob *blobs)
{
	int rc;

	epf_lock_calls(ep);
	rc = ep->be->update(ep, blobs);
	epf_unlock_calls(ep);
	return rc;
}

static int exchange(struct epf *ep)
{
	struct epf_blob *blobs = NULL;
	uint8_t *buf = NULL;
	size_t len = 0;
	int rc = check_boot(ep, "epf_exchange");

	if (rc)
		return rc;
	rc = describe(ep, &buf, &len);
	if (!rc)
		rc = epf_meet_allgather(ep, buf, len, &blobs);
	free(buf);
	if (!rc)
		rc = update(ep, blobs);
	epf_boot_free_blobs(blobs);
	/* Nobody names a new region before everybody knows it. */
	return rc ? rc : epf_meet_barrier(ep);
}

int epf_exchange(struct epf *ep)
{
	epf_meet(ep);
	return epf_part(ep, exchange(ep));
}

static int allgather(struct epf *ep, const void *mine, size_t bytes, void *all)
{
	struct epf_blob *blobs;
	int rc = check_boot(ep, "epf_allgather");

	if (rc)
		return rc;
	rc = epf_meet_allgather(ep, mine, bytes, &blobs);
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

int epf_allgather(struct epf *ep, const void *mine, size_t bytes, void *all)
{
	epf_meet(ep);
	return epf_part(ep, allgather(ep, mine, bytes, all));
}

int epf_barrier(struct epf *ep)
{
	int rc;

	epf_meet(ep);
	rc = check_boot(ep, "epf_barrier");
	return epf_part(ep, rc ? rc : epf_meet_barrier(ep));
}

/* This rank's part of one step; until the engine is there, at most bootstrap-timeout. */
static int reconnect_step(struct epf *ep, unsigned step, const struct epf_blob *blobs,
			  uint8_t **buf, size_t *len)
{
	uint64_t deadline = epf_now_ns() + ep->conf.bootstrap_timeout_ns;
	for (;;) {
		int rc;

		epf_lock_calls(ep);
		rc = ep->be->reconnect(ep, step, blobs, buf, len);
		epf_unlock_calls(ep);
		if (rc != -EAGAIN)
			return rc;
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
}

/* The outcome of all, so that every rank returns the same: one byte each, 0: well. The barrier behind which commands may flow. */
static int reconnect_outcome(struct epf *ep, int rc, char *why)
{
	uint8_t failed = rc != 0;
	struct epf_blob *blobs = NULL;
	int met = epf_meet_allgather(ep, &failed, 1, &blobs);

	for (uint32_t r = 0; r < ep->world && !rc && !met; r++)
		if (blobs[r].len != 1 || ((const uint8_t *)blobs[r].data)[0])
			rc = epf_fail(EPF_R_RECONNECT, "epf_reconnect: as rank %u says", r);
	if (!met && failed)
		rc = epf_fail(EPF_R_RECONNECT, "epf_reconnect: %s", why);
	epf_boot_free_blobs(blobs);
	return met ? met : rc;
}

static int reconnect(struct epf *ep)
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
			met = epf_meet_allgather(ep, rc ? NULL : buf, rc ? 0 : len, &blobs);
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

int epf_reconnect(struct epf *ep)
{
	epf_meet(ep);
	return epf_part(ep, reconnect(ep));
}
