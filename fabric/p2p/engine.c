/* SPDX-License-Identifier: Apache-2.0 */
/* A connection's job of two over the engine (engine.h). */
#define EPF_LOG_COMP "p2p"
#include "fabric/p2p/engine.h"
#include "fabric/p2p/engine_priv.h"

#include "fabric/base/clock.h"
#include "fabric/base/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { NAP_NS = 1000 * 1000 };

/* The peer is gone while both join: why, as far as it has said. */
static int lost_while_joining(struct conn *c)
{
	char why[sizeof(c->why)];

	pthread_mutex_lock(&c->ep->lock);
	snprintf(why, sizeof(why), "%s", c->why);
	pthread_mutex_unlock(&c->ep->lock);
	return epf_fail(EPF_R_P2P_LOST, "%s, while its engine joined: %s", c->label,
			why[0] ? why : "it has gone");
}

/* The exchange of the pair's bootstrap, over the control connection. */
static int exchange(void *arg, const void *mine, size_t len, void **theirs, size_t *their_len)
{
	struct conn *c = arg;
	struct engine_path *e = c->engine;
	uint64_t end = epf_p2p_deadline(c->ep, 0);
	struct timespec until = { (time_t)(end / 1000000000), (long)(end % 1000000000) };
	struct inbox *in;
	int rc = 0;

	if (len > P2P_PAYLOAD_MAX)
		return epf_fail(EPF_R_BOOT_LIMIT, "%s: a description of %zu bytes", c->label, len);
	if (epf_p2p_send(&c->stream, MSG_BOOT, mine, len, NULL, 0))
		return lost_while_joining(c);
	pthread_mutex_lock(&e->lock);
	while (!e->inbox && !e->is_leaving && !rc)
		rc = pthread_cond_timedwait(&e->changed, &e->lock, &until);
	in = e->inbox;
	if (in)
		e->inbox = in->next;
	pthread_mutex_unlock(&e->lock);
	if (!in && rc)
		return epf_fail(EPF_R_P2P_TIMEOUT, "%s: its engine did not answer", c->label);
	if (!in)
		return lost_while_joining(c);
	*their_len = in->bytes;
	*theirs = malloc(in->bytes ? in->bytes : 1);
	if (*theirs)
		memcpy(*theirs, in->data, in->bytes);
	free(in);
	return *theirs ? 0 : epf_fail(EPF_R_NO_MEMORY, "a description");
}

/* Returns the number of rings: one for each lane, and at least one for each NIC. */
static unsigned rings_of(const struct epf_conf *conf)
{
	uint64_t n = conf->lanes_per_peer;

	if (conf->nic_count > n)
		n = conf->nic_count;
	if (conf->emu_links > n)
		n = conf->emu_links;
	return n < P2P_RINGS ? (unsigned)n : P2P_RINGS;
}

static int open_ring(struct engine_path *e, bool is_urgent)
{
	struct epf_ring_options o = { .size = sizeof(o),
				      .slots = RING_SLOTS,
				      .weight = is_urgent ? 255 : 0 };
	struct epf_ring *ring;
	int rc = epf_ring_open(e->ep, &o, &ring);

	if (rc)
		return rc;
	/* The endpoint's thread already reads the rings. */
	pthread_mutex_lock(&e->ring_lock);
	e->rings[e->n_rings].ring = ring;
	e->has_urgent = is_urgent;
	e->n_rings += !is_urgent;
	pthread_mutex_unlock(&e->ring_lock);
	return 0;
}

static int open_engine(struct conn *c)
{
	struct engine_path *e = c->engine;
	struct epf_options o;
	/* Where several hosts are concerned, a NIC that leaves this one: as a job with a rendezvous elsewhere. */
	char where[96], regions[32];
	const char *settings[P2P_SETTINGS + 4] = { where, regions, "progress=thread" };
	struct epf_boot_pair pair = {
		.rank = c->is_passive, .route = c->ep->meta.host, .exchange = exchange, .arg = c
	};
	unsigned n = 3;
	int rc;

	snprintf(where, sizeof(where),
		 strchr(c->peer.host, ':') ? "rendezvous=[%s]:%u" : "rendezvous=%s:%u",
		 c->peer.host, c->peer.port);
	snprintf(regions, sizeof(regions), "regions=%d", REGIONS);
	for (unsigned i = 0; i < P2P_SETTINGS && c->ep->settings[i]; i++)
		settings[n++] = c->ep->settings[i];
	epf_options_init(&o);
	o.settings = settings;
	rc = epf_open(&o, &e->ep);
	memcpy(pair.key, e->key, sizeof(pair.key));
	if (!rc)
		rc = epf_boot_pair_open(&pair, &e->boot);
	if (!rc)
		rc = epf_join(e->ep, e->boot);
	for (unsigned i = 0; i < rings_of(&c->ep->conf) && !rc; i++)
		rc = open_ring(e, false);
	if (!rc)
		rc = open_ring(e, true);
	if (!rc && c->pack)
		rc = c->pack_open(c);
	return rc;
}

/* A peer that is lost hears no farewell, and a NIC may not notice its death: the engine is closed without waiting for it. */
static void close_engine(struct conn *c)
{
	struct engine_path *e = c->engine;

	pthread_mutex_lock(&e->ring_lock);
	e->is_closing = true;
	if (e->ep)
		epf_abort(e->ep); /* withdrawals under way end */
	while (e->withdrawing)
		pthread_cond_wait(&e->settled, &e->ring_lock);
	if (e->ep && e->is_joined && EPF_LOAD_ACQUIRE(&c->state) == CONN_LOST)
		(void)epf_peer_mask(e->ep, !c->is_passive);
	pthread_mutex_lock(&e->step_lock);
	epf_close(e->ep); /* with its ring */
	epf_boot_close(e->boot);
	e->ep = NULL;
	pthread_mutex_unlock(&e->step_lock);
	e->n_rings = 0;
	e->has_urgent = false;
	e->boot = NULL;
	EPF_STORE_RELEASE(&e->is_closed, true);
	pthread_cond_broadcast(&e->settled);
	pthread_mutex_unlock(&e->ring_lock);
}

static void report(struct conn *c, int rc)
{
	struct engine_path *e = c->engine;

	pthread_mutex_lock(&e->lock);
	if (rc) {
		e->err = rc;
		epf_error_get(&e->failed);
		e->has_failed = true;
	} else {
		EPF_STORE_RELEASE(&e->is_joined, true);
	}
	pthread_cond_broadcast(&e->changed);
	pthread_mutex_unlock(&e->lock);
}

/* lock held, and given up meanwhile. */
static bool poll_numbers(struct conn *c)
{
	bool moved;

	pthread_mutex_unlock(&c->engine->lock);
	moved = c->engine->numbers_poll(c);
	pthread_mutex_lock(&c->engine->lock);
	return moved;
}

/* Waits for a job, or a moment while numbers are on their way. lock held. */
static void rest(struct engine_path *e)
{
	uint64_t end = epf_now_ns() + NAP_NS;
	struct timespec until = { (time_t)(end / 1000000000), (long)(end % 1000000000) };

	if (!e->numbers)
		pthread_cond_wait(&e->changed, &e->lock);
	else
		pthread_cond_timedwait(&e->changed, &e->lock, &until);
}

/* This end's engine could not be opened or joined: the peer hears why, and the log of this process where nobody has called. */
static void give_up(struct conn *c, const char *why)
{
	if (EPF_LOAD_ACQUIRE(&c->state) == CONN_OPEN) {
		if (c->is_passive)
			epf_warn_ratelimited("%s: no engine for its connection: %s", c->label,
					     epf_last_error());
		(void)epf_p2p_send(&c->stream, MSG_BYE, why, strlen(why), NULL, 0);
	}
	epf_p2p_conn_end(c, CONN_LOST, why);
}

static void *serve(void *arg)
{
	struct conn *c = arg;
	struct engine_path *e = c->engine;
	char why[160];
	int rc;

	pthread_setname_np(pthread_self(), "epf-p2p-pair");
	rc = open_engine(c);
	epf_last_detail(why, sizeof(why));
	report(c, rc);
	if (rc)
		give_up(c, why);
	pthread_mutex_lock(&e->lock);
	while (!e->is_leaving) {
		struct engine_job *job = e->jobs;

		if (e->numbers && poll_numbers(c))
			continue;
		if (!job || !e->is_joined) {
			rest(e);
			continue;
		}
		e->jobs = job->next;
		pthread_mutex_unlock(&e->lock);
		job->run(c, job->data);
		free(job);
		pthread_mutex_lock(&e->lock);
	}
	pthread_mutex_unlock(&e->lock);
	close_engine(c);
	epf_p2p_kick(c->ep); /* its transfers can end now */
	return NULL;
}

int epf_p2p_engine_start(struct conn *c, const uint8_t key[EPF_AUTH_KEY_BYTES])
{
	struct engine_path *e = calloc(1, sizeof(*e));
	pthread_condattr_t mono;
	int rc;

	if (!e)
		return epf_fail(EPF_R_NO_MEMORY, "%s: its engine", c->label);
	memcpy(e->key, key, sizeof(e->key));
	snprintf(e->nic, sizeof(e->nic), "engine");
	pthread_condattr_init(&mono);
	pthread_condattr_setclock(&mono, CLOCK_MONOTONIC);
	pthread_mutex_init(&e->lock, NULL);
	pthread_mutex_init(&e->ring_lock, NULL);
	pthread_mutex_init(&e->step_lock, NULL);
	pthread_cond_init(&e->changed, &mono);
	pthread_cond_init(&e->settled, &mono);
	pthread_condattr_destroy(&mono);
	c->engine = e;
	c->engine_stop = epf_p2p_engine_stop;
	rc = pthread_create(&e->thread, NULL, serve, c);
	if (!rc)
		return 0;
	c->engine = NULL;
	free(e);
	return epf_fail_sys(EPF_R_SYSTEM, rc, "%s: a thread for its engine", c->label);
}

int epf_p2p_engine_wait(struct conn *c, uint64_t end)
{
	struct engine_path *e = c->engine;
	struct timespec until = { (time_t)(end / 1000000000), (long)(end % 1000000000) };
	int rc = 0;

	pthread_mutex_lock(&e->lock);
	while (!e->is_joined && !e->has_failed && !rc)
		rc = pthread_cond_timedwait(&e->changed, &e->lock, &until);
	if (e->is_joined)
		rc = 0;
	else if (e->has_failed) {
		rc = e->err;
		epf_error_set(&e->failed);
	}
	pthread_mutex_unlock(&e->lock);
	return rc == ETIMEDOUT
		       ? epf_fail(EPF_R_P2P_TIMEOUT,
				  "connect: the engine of %s did not answer in time", c->label)
		       : rc;
}

void epf_p2p_engine_leave(struct conn *c)
{
	struct engine_path *e = c->engine;

	pthread_mutex_lock(&e->lock);
	e->is_leaving = true;
	pthread_cond_broadcast(&e->changed);
	pthread_mutex_unlock(&e->lock);
}

void epf_p2p_engine_stop(struct conn *c)
{
	struct engine_path *e = c->engine;

	if (!e)
		return;
	epf_p2p_engine_leave(c);
	pthread_join(e->thread, NULL);
	while (e->jobs) {
		struct engine_job *job = e->jobs;

		e->jobs = job->next;
		free(job);
	}
	while (e->numbers) {
		struct number *n = e->numbers;

		e->numbers = n->next;
		free(n);
	}
	while (e->inbox) {
		struct inbox *in = e->inbox;

		e->inbox = in->next;
		free(in);
	}
	pthread_cond_destroy(&e->changed);
	pthread_cond_destroy(&e->settled);
	pthread_mutex_destroy(&e->lock);
	pthread_mutex_destroy(&e->ring_lock);
	pthread_mutex_destroy(&e->step_lock);
	explicit_bzero(e->key, sizeof(e->key));
	free(e);
	c->engine = NULL;
}

void epf_p2p_engine_boot(struct conn *c, const uint8_t *data, uint32_t bytes)
{
	struct engine_path *e = c->engine;
	struct inbox *in = malloc(sizeof(*in) + bytes), **at = &e->inbox;

	if (!in) {
		epf_p2p_conn_end(c, CONN_LOST, "no memory for its description");
		return;
	}
	in->next = NULL;
	in->bytes = bytes;
	memcpy(in->data, data, bytes);
	pthread_mutex_lock(&e->lock);
	while (*at)
		at = &(*at)->next;
	*at = in;
	pthread_cond_broadcast(&e->changed);
	pthread_mutex_unlock(&e->lock);
}

int epf_p2p_engine_do(struct conn *c, void (*run)(struct conn *c, const void *data),
		      const void *data, size_t bytes)
{
	struct engine_path *e = c->engine;
	struct engine_job *job = malloc(sizeof(*job) + bytes), **at = &e->jobs;

	if (!job)
		return epf_fail(EPF_R_NO_MEMORY, "%s: a request", c->label);
	job->next = NULL;
	job->run = run;
	memcpy(job->data, data, bytes);
	pthread_mutex_lock(&e->lock);
	while (*at)
		at = &(*at)->next;
	*at = job;
	pthread_cond_broadcast(&e->changed);
	pthread_mutex_unlock(&e->lock);
	return 0;
}

int epf_p2p_engine_exchange(struct conn *c)
{
	return epf_exchange(c->engine->ep);
}

int epf_p2p_engine_register(struct conn *c, void *addr, uint64_t bytes, int device, unsigned rights,
			    uint32_t *region)
{
	struct engine_path *e = c->engine;
	unsigned access = (rights & EPF_P2P_WRITE ? EPF_REMOTE_WRITE : 0u) |
			  (rights & EPF_P2P_READ ? EPF_REMOTE_READ : 0u);
	int rc;

	pthread_mutex_lock(&e->ring_lock);
	if (!e->ep)
		rc = epf_fail(EPF_R_P2P_LOST, "%s: its engine is closed", c->label);
	else if (device >= 0)
		rc = epf_region_register_gpu(e->ep, addr, bytes, access, region);
	else
		rc = epf_region_register(e->ep, addr, bytes, access, region);
	pthread_mutex_unlock(&e->ring_lock);
	return rc;
}

/*
 * Withdraws once, without ring_lock while it waits for the peer: others post meanwhile. ring_lock held before and after. Returns -ECANCELED if
 * the engine is being closed.
 */
static int withdraw_once(struct engine_path *e, uint32_t region, uint64_t end)
{
	uint64_t now = epf_now_ns();
	int rc;

	if (!e->ep || e->is_closing)
		return -ECANCELED;
	e->withdrawing++;
	pthread_mutex_unlock(&e->ring_lock);
	rc = epf_region_withdraw(e->ep, region, end > now ? end - now : 1);
	pthread_mutex_lock(&e->ring_lock);
	if (--e->withdrawing == 0)
		pthread_cond_broadcast(&e->settled);
	return rc;
}

int epf_p2p_engine_withdraw(struct conn *c, uint32_t region, uint64_t timeout_ns)
{
	struct engine_path *e = c->engine;
	uint64_t end = epf_p2p_deadline(c->ep, timeout_ns);
	struct timespec until = { (time_t)(end / 1000000000), (long)(end % 1000000000) };
	struct timespec nap = { 0, NAP_NS };
	int rc;

	pthread_mutex_lock(&e->ring_lock);
	/* -ECONNRESET: a lost peer is not waited for, but commands of this end to the region retire first. */
	while ((rc = withdraw_once(e, region, end)) == -ECONNRESET && epf_now_ns() < end) {
		pthread_mutex_unlock(&e->ring_lock);
		nanosleep(&nap, NULL);
		pthread_mutex_lock(&e->ring_lock);
	}
	/* Closed, the engine touches no memory. Its own thread makes calls before it closes the engine only. */
	while (rc == -ECANCELED && !e->is_closed)
		if (pthread_cond_timedwait(&e->settled, &e->ring_lock, &until))
			rc = epf_fail(EPF_R_P2P_TIMEOUT, "withdraw: the engine of %s is closing",
				      c->label);
	pthread_mutex_unlock(&e->ring_lock);
	/* -ENOENT: its expiry has withdrawn it before. */
	return rc == -ECANCELED || rc == -ENOENT ? 0 : rc;
}

bool epf_p2p_engine_is_closed(const struct conn *c)
{
	return EPF_LOAD_ACQUIRE(&c->engine->is_closed);
}

void epf_p2p_engine_name(const struct conn *c, char *buf, size_t size)
{
	snprintf(buf, size, "%s", c->engine ? c->engine->nic : "engine");
}
