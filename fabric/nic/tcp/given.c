/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the door's thread gives to the core's: connections that have proven themselves, and the outcomes of dialing (door.h).
 */
#include "fabric/nic/tcp/door_priv.h"

#include "fabric/base/clock.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int make_seal(const struct epf_tcp_caller *c, struct epf_tcp_seal **out)
{
	struct epf_tcp_seal_keys keys;

	epf_tcp_greet_keys(&c->greet, c->place != NULL, &keys);
	*out = epf_tcp_seal_open(&keys);
	explicit_bzero(&keys, sizeof(keys));
	return *out ? 0 : -ENOMEM;
}

void epf_tcp_given_free(struct epf_tcp_given *g)
{
	epf_tcp_seal_close(g->seal);
	if (g->fd >= 0)
		close(g->fd);
	free(g);
}

void epf_tcp_door_give(struct epf_tcp_door *door, const struct epf_tcp_caller *c, int fd, int rc,
		       const char *why)
{
	struct epf_tcp_given *g = calloc(1, sizeof(*g));
	const struct epf_tcp_claim *claim = &c->greet.claim;
	int dialed = c->place != NULL;

	if (!g || (fd >= 0 && door->opts.encrypts && make_seal(c, &g->seal))) {
		/* The lane notices that no connection comes. */
		if (fd >= 0)
			close(fd);
		free(g);
		return;
	}
	g->fd = fd;
	g->rc = rc;
	g->dialed = dialed;
	g->token = dialed ? claim->from_token : claim->to_token;
	g->peer_token = dialed ? claim->to_token : claim->from_token;
	memcpy(g->peer, dialed ? claim->to : claim->from, EPF_TCP_ID);
	snprintf(g->why, sizeof(g->why), "%s", why);
	pthread_mutex_lock(&door->lock);
	*door->given_end = g;
	door->given_end = &g->next;
	__atomic_store_n(&door->has_given, 1, __ATOMIC_RELEASE);
	pthread_cond_broadcast(&door->gave);
	pthread_mutex_unlock(&door->lock);
	if (epf_wakeup_is_needed(door->wakeup))
		epf_wakeup_wake(door->wakeup);
}

int epf_tcp_door_has_given(const struct epf_tcp_door *door)
{
	return __atomic_load_n(&door->has_given, __ATOMIC_ACQUIRE) != 0;
}

struct epf_tcp_given *epf_tcp_door_take(struct epf_tcp_door *door)
{
	struct epf_tcp_given *g;

	pthread_mutex_lock(&door->lock);
	g = door->given;
	door->given = NULL;
	door->given_end = &door->given;
	__atomic_store_n(&door->has_given, 0, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&door->lock);
	return g;
}

void epf_tcp_door_wait(struct epf_tcp_door *door, uint64_t timeout_ns)
{
	uint64_t until = epf_now_ns() + timeout_ns;
	struct timespec ts = { .tv_sec = (time_t)(until / 1000000000u),
			       .tv_nsec = (long)(until % 1000000000u) };

	pthread_mutex_lock(&door->lock);
	while (!door->given)
		if (pthread_cond_timedwait(&door->gave, &door->lock, &ts))
			break;
	pthread_mutex_unlock(&door->lock);
}
