/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Joining a job in service mode: the ranks carry messages between their daemons over the bootstrap, in the rounds of backend.h, and no
 * daemon waits for anybody. Round 0 makes the job's number, 1 carries which rank lives on which node, 2 carries the sealed
 * descriptions, 3 is a barrier. Descriptions are opaque here: daemons seal them against the ranks that carry them.
 */
#define EPF_LOG_COMP "join"
#include "bootstrap/auth.h"
#include "fabric/base/err.h"
#include "fabric/base/log.h"
#include "fabric/client/choose_nic.h"
#include "fabric/client/remote_priv.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

_Static_assert(EPF_SVC_KEY == EPF_AUTH_KEY_BYTES && EPF_SVC_KEY == EPF_BOOT_KEY_BYTES,
	       "a job's key goes to the daemon as it is");
_Static_assert(EPF_SVC_MEMBER_BYTES == 2 * EPF_SVC_ID, "a member is a node and a nonce");

static int give(const void *bytes, size_t n, uint8_t **buf, size_t *len)
{
	*buf = malloc(n ? n : 1);
	if (!*buf)
		return epf_fail(EPF_R_NO_MEMORY, "join: no memory for %zu bytes", n);
	if (n)
		memcpy(*buf, bytes, n);
	*len = n;
	return 0;
}

/* Everybody's bytes of a round in a row; all must have given `each` bytes. */
static int collect(const struct epf *ep, const struct epf_blob *blobs, size_t each, uint8_t **out)
{
	uint8_t *all = NULL;

	for (uint32_t r = 0; r < ep->world; r++)
		if (blobs[r].len != each)
			return epf_fail(
				EPF_R_PEER_ANSWER,
				"rank %u does not join through a daemon as rank %u does (it gave %zu "
				"bytes, not %zu): set service for all ranks or for none, and run one "
				"release",
				r, ep->rank, blobs[r].len, each);
	all = malloc(ep->world * each);
	if (!all)
		return epf_fail(EPF_R_NO_MEMORY, "join: no memory for %u ranks", ep->world);
	for (uint32_t r = 0; r < ep->world; r++)
		memcpy(all + r * each, blobs[r].data, each);
	*out = all;
	return 0;
}

/* Takes the peers page and the wakeup that ATTACH brought; closes both descriptors. */
static int take_pages(struct epf *ep, const struct epf_svc_attach_reply *a, const int fds[2])
{
	struct epf_remote *r = ep->remote;
	void *mem = NULL;
	int rc;

	if (a->peers_bytes < epf_peers_bytes_least(ep->world) ||
	    a->kick_bytes < sizeof(struct epf_wakeup) ||
	    a->peers_bytes > epf_peers_bytes(ep->world) + (1 << 20) || a->kick_bytes > 1 << 20) {
		close(fds[0]);
		close(fds[1]);
		return epf_fail(
			EPF_R_SVC_MESSAGE,
			"ATTACH: the daemon announces pages of %llu and %llu bytes for %u ranks",
			(unsigned long long)a->peers_bytes, (unsigned long long)a->kick_bytes,
			ep->world);
	}
	remote_pages_free(ep);
	rc = remote_map(fds[0], a->peers_bytes, PROT_READ, NULL, &mem, "peers page");
	if (rc) {
		close(fds[1]);
		return rc;
	}
	r->peers = mem;
	r->peers_bytes = a->peers_bytes;
	rc = remote_map(fds[1], a->kick_bytes, PROT_READ | PROT_WRITE, NULL, &mem, "kick wakeup");
	if (rc)
		return rc;
	r->kick = mem;
	r->kick_bytes = a->kick_bytes;
	if (EPF_LOAD_ACQUIRE(&r->peers->magic) != EPF_PEERS_MAGIC ||
	    r->peers->version != EPF_PEERS_VERSION || r->peers->world != ep->world)
		return epf_fail(
			EPF_R_SVC_MESSAGE,
			"ATTACH: the peers page is version %u for %u ranks, not version %u for "
			"%u",
			r->peers->version, r->peers->world, EPF_PEERS_VERSION, ep->world);
	return 0;
}

/* What a daemon needs to choose a NIC and an interface, which it cannot know: that the job is on several hosts, and the way to the others. */
static void say_route(struct epf *ep, struct epf_svc_attach *req)
{
	char host[EPF_BOOT_ADDRESS_MAX];
	bool is_secret;

	if (!ep->boot || !epf_job_spans_hosts(&ep->conf) ||
	    epf_boot_route(ep->boot, host, &is_secret) || strlen(host) >= sizeof(req->route))
		return;
	memcpy(req->route, host, strlen(host));
}

static int attach(struct epf *ep, const uint8_t *job_key, uint32_t flags,
		  struct epf_svc_attach_reply *a)
{
	struct epf_remote *r = ep->remote;
	struct epf_svc_attach req = { .rank = ep->rank,
				      .world = ep->world,
				      .flags = flags,
				      .weight = (uint32_t)ep->conf.job_weight };
	int fds[2], rc;

	if (!(flags & EPF_SVC_REJOIN))
		memcpy(req.job_id, r->job_id, sizeof(req.job_id));
	memcpy(req.job_key, job_key, sizeof(req.job_key));
	say_route(ep, &req);
	/* One byte less than the bootstrap takes; the key is of the whole name. */
	snprintf(req.job, sizeof(req.job), "%.*s", (int)sizeof(req.job) - 1, ep->job);
	rc = remote_call(ep, EPF_SVC_ATTACH, &req, -1, a, fds, 2);
	if (rc)
		return rc;
	EPF_STORE_RELAXED(&r->attached, true);
	memcpy(r->node_id, a->node_id, sizeof(r->node_id));
	return take_pages(ep, a, fds);
}

/* Round 1: the random numbers of all ranks make the number of this run of the job. */
static int round_attach(struct epf *ep, const struct epf_blob *blobs, uint8_t **buf, size_t *len)
{
	uint8_t key[EPF_SVC_KEY], digest[EPF_AUTH_HASH_BYTES], member[EPF_SVC_MEMBER_BYTES];
	struct epf_svc_attach_reply a;
	uint8_t *all = NULL;
	int rc = collect(ep, blobs, EPF_SVC_ID, &all);

	if (rc)
		return rc;
	epf_auth_digest(all, ep->world * (size_t)EPF_SVC_ID, digest);
	free(all);
	memcpy(ep->remote->job_id, digest, EPF_SVC_ID);
	rc = epf_boot_job_key(ep->boot, ep->job, key);
	if (!rc)
		rc = attach(ep, key, 0, &a);
	if (rc)
		return rc;
	memcpy(member, a.node_id, EPF_SVC_ID);
	memcpy(member + EPF_SVC_ID, a.nonce, EPF_SVC_ID);
	return give(member, sizeof(member), buf, len);
}

/* Round 2: which rank lives where. */
static int round_world(struct epf *ep, const struct epf_blob *blobs, uint8_t **buf, size_t *len)
{
	struct epf_remote *r = ep->remote;
	struct epf_svc_world_reply a;
	struct epf_svc_world req;
	uint32_t lowest = 0;
	uint8_t *table = NULL;
	int rc = collect(ep, blobs, EPF_SVC_MEMBER_BYTES, &table);

	if (rc)
		return rc;
	while (lowest < ep->rank &&
	       memcmp(table + (size_t)lowest * EPF_SVC_MEMBER_BYTES, r->node_id, EPF_SVC_ID) != 0)
		lowest++;
	r->lowest = lowest == ep->rank;
	req.table = (struct epf_svc_bytes){ table, ep->world * EPF_SVC_MEMBER_BYTES };
	rc = remote_call(ep, EPF_SVC_WORLD, &req, -1, &a, NULL, 0);
	free(table);
	return rc ? rc : give(a.sealed.data, a.sealed.len, buf, len);
}

/* Hands all ranks' sealed descriptions to the daemon; one rank of a node is enough. */
static int hand_in(struct epf *ep, unsigned type, const struct epf_blob *blobs)
{
	struct epf_svc_connect req = { .sealed = { NULL, 0 } };
	uint8_t *all = NULL;
	size_t len = 0;
	int rc = ep->remote->lowest ? epf_svc_pack(blobs, ep->world, &all, &len) : 0;

	if (!rc && len > EPF_SVC_BODY_MAX - sizeof(uint32_t))
		rc = epf_fail(
			EPF_R_SVC_LIMIT,
			"%s: the descriptions of %u ranks have %zu bytes, a message at most %u",
			epf_svc_type_name(type), ep->world, len, EPF_SVC_BODY_MAX);
	if (!rc) {
		req.sealed = (struct epf_svc_bytes){ all, (uint32_t)len };
		rc = remote_call(ep, type, &req, -1, NULL, NULL, 0);
	}
	free(all);
	return rc;
}

/* From here on the rank belongs to the job: nothing is registered again, pushes wake the daemon. */
static void joined(struct epf *ep)
{
	if (ep->remote->peers_bytes >=
	    epf_peers_bytes(ep->world)) /* a daemon of an earlier release has none */
		ep->details = epf_peers_details(ep->remote->peers, ep->world);
	EPF_STORE_RELEASE(&ep->peers, ep->remote->peers);
	EPF_STORE_RELEASE(&ep->kick, ep->remote->kick);
	remote_forget(ep);
}

int remote_join_round(struct epf *ep, unsigned n, const struct epf_blob *blobs, uint8_t **buf,
		      size_t *len, bool *last)
{
	uint8_t random[EPF_AUTH_NONCE_BYTES];

	switch (n) {
	case 0:
		epf_auth_nonce(random);
		return give(random, EPF_SVC_ID, buf, len);
	case 1:
		return round_attach(ep, blobs, buf, len);
	case 2:
		return round_world(ep, blobs, buf, len);
	case 3:
		return hand_in(ep, EPF_SVC_CONNECT, blobs);
	default:
		joined(ep);
		*last = true;
		return 0;
	}
}

int remote_describe(struct epf *ep, uint8_t **buf, size_t *len)
{
	struct epf_svc_describe_reply a;
	int rc = remote_call(ep, EPF_SVC_DESCRIBE, NULL, -1, &a, NULL, 0);

	return rc ? rc : give(a.sealed.data, a.sealed.len, buf, len);
}

int remote_update(struct epf *ep, const struct epf_blob *blobs)
{
	return hand_in(ep, EPF_SVC_UPDATE, blobs);
}

int remote_rejoin(struct epf *ep, const uint8_t *job_key)
{
	struct epf_svc_connect req = { .sealed = { NULL, 0 } };
	struct epf_remote *r = ep->remote;
	struct epf_svc_attach_reply a;
	int rc = r->attached ? 0 : attach(ep, job_key, EPF_SVC_REJOIN, &a);

	if (!rc)
		rc = remote_call(ep, EPF_SVC_CONNECT, &req, -1, NULL, NULL, 0);
	if (!rc) {
		joined(ep);
		return 0;
	}
	if (r->attached && remote_lost(rc)) {
		/* Not part of the job yet: the next try connects to the next daemon. */
		EPF_STORE_RELAXED(&r->attached, false);
		EPF_STORE_RELAXED(&r->gone, false);
		return -EAGAIN;
	}
	return rc;
}

int remote_reconnect(struct epf *ep, unsigned step, const struct epf_blob *blobs, uint8_t **buf,
		     size_t *len)
{
	struct epf_svc_reconnect req = { .step = step };
	struct epf_svc_reconnect_reply a;
	uint8_t *all = NULL;
	size_t n = 0;
	int rc;

	if (!ep->remote->lowest)
		return 0;
	rc = blobs ? epf_svc_pack(blobs, ep->world, &all, &n) : 0;
	if (!rc && n > EPF_SVC_BODY_MAX - 2 * sizeof(uint32_t))
		rc = epf_fail(
			EPF_R_SVC_LIMIT,
			"epf_reconnect: what %u ranks say has %zu bytes, a message at most %u",
			ep->world, n, EPF_SVC_BODY_MAX);
	req.sealed = (struct epf_svc_bytes){ all, (uint32_t)n };
	if (!rc)
		rc = remote_call(ep, EPF_SVC_RECONNECT, &req, -1, &a, NULL, 0);
	free(all);
	if (rc)
		return rc;
	return a.done ? give(a.sealed.data, a.sealed.len, buf, len) : -EAGAIN;
}
