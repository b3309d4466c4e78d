/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rendezvous inside one process: for tests that run many ranks as threads, or a thousand ranks
 * by one thread, and for jobs whose ranks share a process. Same rules and same errors as over TCP.
 * A rank posts, and the last one to post builds the result that all then collect: one block that
 * they share. A rank cannot post again before it has collected, so there is never more than one
 * complete result. Nothing here waits without a deadline.
 */
#include "bootstrap/auth.h"
#include "bootstrap/boot_priv.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct seat {
	bool opened;
	bool posted; /* in the round that is being filled */
	struct epf_blob blob;
};

struct epf_boot_group {
	pthread_mutex_t lock;
	pthread_cond_t moved; /* a round ended, or the group failed */
	uint32_t world;
	uint32_t holders; /* open handles, and the creator */
	uint32_t posted;
	uint64_t timeout_ns;
	uint64_t done; /* rounds completed */
	size_t bytes;  /* handed into this round */
	enum epf_boot_kind kind;
	uint32_t kind_rank;      /* who came first in this round */
	struct epf_blob *result; /* of the last round, one reference for each rank */
	enum epf_reason failed;
	char why[400];
	struct seat seats[];
};

struct local_boot {
	struct epf_boot base;
	struct epf_boot_group *group;
	uint64_t next; /* the round to post into */
	bool uncollected;
};

static struct local_boot *local_of(struct epf_boot *b)
{
	return (struct local_boot *)b;
}

static int group_error(const struct epf_boot_group *g)
{
	return epf_fail(g->failed, "%s", g->why);
}

static void fail_group(struct epf_boot_group *g, enum epf_reason reason, const char *why)
{
	if (g->failed)
		return;
	g->failed = reason;
	snprintf(g->why, sizeof(g->why), "%s", why);
	pthread_cond_broadcast(&g->moved);
}

static void drop_blobs(struct epf_boot_group *g)
{
	for (uint32_t r = 0; r < g->world; r++) {
		free((void *)g->seats[r].blob.data);
		g->seats[r].blob = (struct epf_blob){ 0 };
		g->seats[r].posted = false;
	}
	g->posted = 0;
	g->bytes = 0;
}

static void put_group(struct epf_boot_group *g)
{
	bool last;

	pthread_mutex_lock(&g->lock);
	last = --g->holders == 0;
	pthread_mutex_unlock(&g->lock);
	if (!last)
		return;
	drop_blobs(g);
	pthread_cond_destroy(&g->moved);
	pthread_mutex_destroy(&g->lock);
	free(g);
}

/* Everybody has posted: make the result. */
static int finish_round(struct epf_boot_group *g)
{
	struct epf_blob *in = calloc(g->world, sizeof(*in));
	uint8_t *stream;
	size_t bytes;

	if (!in)
		return epf_fail(EPF_R_NO_MEMORY, "the list of %u ranks' data", g->world);
	for (uint32_t r = 0; r < g->world; r++)
		in[r] = g->seats[r].blob;
	bytes = epf_boot_stream_write(g->world, in, NULL);
	g->result = epf_boot_stream_new(g->world, bytes, g->world, &stream);
	if (g->result) {
		epf_boot_stream_write(g->world, in, stream);
		epf_boot_stream_index(g->world, stream, bytes, g->result);
	}
	free(in);
	if (!g->result)
		return epf_fail(EPF_R_NO_MEMORY, "an allgather result of %zu bytes", bytes);
	drop_blobs(g);
	g->done++;
	pthread_cond_broadcast(&g->moved);
	return 0;
}

/* Whether this rank may post now, in this kind of round. */
static int admit(struct local_boot *l, size_t len, enum epf_boot_kind kind)
{
	struct epf_boot_group *g = l->group;
	char why[200];

	if (l->uncollected)
		return epf_fail(EPF_R_BOOT_BUSY, "rank %u posts before it has collected round %llu",
				l->base.rank, (unsigned long long)l->next - 1);
	if (g->failed)
		return group_error(g);
	if (g->posted && g->kind != kind) {
		snprintf(why, sizeof(why), "rank %u called %s where rank %u called %s",
			 l->base.rank, epf_boot_kind_text(kind), g->kind_rank,
			 epf_boot_kind_text(g->kind));
		fail_group(g, EPF_R_BOOT_ORDER, why);
		return group_error(g);
	}
	if (len > EPF_BOOT_GATHER_MAX - g->bytes) {
		snprintf(why, sizeof(why),
			 "rank %u's %zu bytes exceed the limit of %u bytes for all ranks together",
			 l->base.rank, len, EPF_BOOT_GATHER_MAX);
		fail_group(g, EPF_R_BOOT_LIMIT, why);
		return group_error(g);
	}
	return 0;
}

static int post_locked(struct local_boot *l, void *copy, size_t len, enum epf_boot_kind kind)
{
	struct epf_boot_group *g = l->group;
	struct seat *seat = &g->seats[l->base.rank];
	int rc = admit(l, len, kind);

	if (rc) {
		free(copy);
		return rc;
	}
	if (!g->posted) {
		g->kind = kind;
		g->kind_rank = l->base.rank;
	}
	seat->blob = (struct epf_blob){ copy, len };
	seat->posted = true;
	g->bytes += len;
	l->next++;
	l->uncollected = true;
	if (++g->posted < g->world)
		return 0;
	rc = finish_round(g);
	if (rc)
		fail_group(g, EPF_R_NO_MEMORY, "no memory for the result of an exchange");
	return rc;
}

static int post(struct local_boot *l, const void *mine, size_t len, enum epf_boot_kind kind)
{
	void *copy = len ? malloc(len) : NULL;
	int rc;

	if (len && !copy)
		return epf_fail(EPF_R_NO_MEMORY, "a copy of %zu bytes", len);
	if (len)
		memcpy(copy, mine, len);
	pthread_mutex_lock(&l->group->lock);
	rc = post_locked(l, copy, len, kind);
	pthread_mutex_unlock(&l->group->lock);
	return rc;
}

static int collect_locked(struct local_boot *l, struct epf_blob **all)
{
	if (!l->uncollected)
		return epf_fail(EPF_R_BOOT_BUSY, "rank %u collects without having posted",
				l->base.rank);
	if (l->group->done < l->next)
		return l->group->failed ? group_error(l->group) : -EAGAIN;
	l->uncollected = false;
	*all = l->group->result;
	return 0;
}

static void name_missing(struct epf_boot_group *g)
{
	bool *missing = calloc(g->world, sizeof(*missing));
	char why[sizeof(g->why)], ranks[256] = "some ranks", time[32];

	for (uint32_t r = 0; missing && r < g->world; r++)
		missing[r] = !g->seats[r].posted;
	if (missing)
		epf_boot_rank_list(missing, g->world, ranks, sizeof(ranks));
	free(missing);
	epf_boot_time_text(g->timeout_ns, time, sizeof(time));
	snprintf(why, sizeof(why),
		 "%s did not arrive at exchange %llu (%s) within %s in this process", ranks,
		 (unsigned long long)g->done, epf_boot_kind_text(g->kind), time);
	fail_group(g, EPF_R_BOOT_TIMEOUT, why);
}

/* With the lock held: the rank's own reason not to wait any longer, if it has one, ends the round for all: it has posted. */
static void ask(struct local_boot *l)
{
	char why[sizeof(l->group->why)];
	int rc;

	/* It may take long, and take locks. */
	pthread_mutex_unlock(&l->group->lock);
	rc = l->base.why ? l->base.why(l->base.why_arg) : 0;
	epf_last_detail(why, sizeof(why));
	pthread_mutex_lock(&l->group->lock);
	if (rc)
		fail_group(l->group, epf_last_reason(), why);
}

static int wait_and_collect(struct local_boot *l, struct epf_blob **all)
{
	struct epf_boot_group *g = l->group;
	uint64_t end_ns = epf_boot_deadline(g->timeout_ns);
	int rc;

	pthread_mutex_lock(&g->lock);
	while ((rc = collect_locked(l, all)) == -EAGAIN) {
		uint64_t ask_ns =
			l->base.why ? epf_boot_deadline(EPF_BOOT_ASK_MS * 1000000ull) : end_ns;
		uint64_t ns = ask_ns < end_ns ? ask_ns : end_ns;
		struct timespec until = { (time_t)(ns / 1000000000), (long)(ns % 1000000000) };

		if (pthread_cond_timedwait(&g->moved, &g->lock, &until) != ETIMEDOUT ||
		    g->done >= l->next)
			continue;
		if (epf_now_ns() >= end_ns)
			name_missing(g);
		else
			ask(l);
	}
	pthread_mutex_unlock(&g->lock);
	return rc;
}

static int local_allgather(struct epf_boot *b, const void *mine, size_t len, struct epf_blob **all)
{
	int rc = post(local_of(b), mine, len, EPF_BOOT_GATHER);

	return rc ? rc : wait_and_collect(local_of(b), all);
}

static int local_barrier(struct epf_boot *b)
{
	struct epf_blob *all;
	int rc = post(local_of(b), NULL, 0, EPF_BOOT_BARRIER);

	if (!rc)
		rc = wait_and_collect(local_of(b), &all);
	if (!rc)
		epf_boot_free_blobs(all);
	return rc;
}

static int local_check(struct epf_boot *b)
{
	struct epf_boot_group *g = local_of(b)->group;
	int rc;

	pthread_mutex_lock(&g->lock);
	rc = g->failed ? group_error(g) : 0;
	pthread_mutex_unlock(&g->lock);
	return rc;
}

static int local_post(struct epf_boot *b, const void *mine, size_t len)
{
	return post(local_of(b), mine, len, EPF_BOOT_GATHER);
}

static int local_collect(struct epf_boot *b, struct epf_blob **all)
{
	struct local_boot *l = local_of(b);
	int rc;

	pthread_mutex_lock(&l->group->lock);
	rc = collect_locked(l, all);
	pthread_mutex_unlock(&l->group->lock);
	return rc;
}

/* Ranks of one process have no secrets before each other. */
static int local_job_key(struct epf_boot *b, const char *label, uint8_t key[EPF_BOOT_KEY_BYTES])
{
	static const struct epf_auth none;

	epf_auth_job_key(&none, label, key);
	return 0;
}

/* They are all here. */
static int local_route(struct epf_boot *b, char *host, size_t size, bool *is_secret)
{
	host[0] = 0;
	*is_secret = false;
	return 0;
}

static void local_close(struct epf_boot *b)
{
	struct local_boot *l = local_of(b);
	struct epf_boot_group *g = l->group;
	char why[128];

	pthread_mutex_lock(&g->lock);
	if (l->uncollected && g->done >= l->next)
		epf_boot_free_blobs(g->result);
	snprintf(why, sizeof(why), "rank %u has closed its bootstrap", b->rank);
	if (b->lost_reason)
		snprintf(why, sizeof(why),
			 "rank %u was lost (EPF-%u), says rank %u, which left because of it",
			 b->lost_rank, (unsigned)b->lost_reason, b->rank);
	fail_group(g, b->lost_reason ? EPF_R_BOOT_RANK_LOST : EPF_R_BOOT_RANK_LEFT, why);
	pthread_mutex_unlock(&g->lock);
	put_group(g);
	free(l);
}

static const struct epf_boot_ops local_ops = {
	.allgather = local_allgather,
	.barrier = local_barrier,
	.check = local_check,
	.close = local_close,
	.collect = local_collect,
	.job_key = local_job_key,
	.post = local_post,
	.route = local_route,
};

int epf_boot_local_create(uint32_t world, struct epf_boot_group **out)
{
	struct epf_boot_group *g;
	pthread_condattr_t attr;

	if (!world || world > EPF_BOOT_WORLD_MAX)
		return epf_fail(EPF_R_BOOT_LIMIT, "a world of %u ranks is outside 1 to %u", world,
				EPF_BOOT_WORLD_MAX);
	g = calloc(1, sizeof(*g) + world * sizeof(g->seats[0]));
	if (!g)
		return epf_fail(EPF_R_NO_MEMORY, "an in-process rendezvous of %u ranks", world);
	g->world = world;
	g->holders = 1;
	g->timeout_ns = EPF_BOOT_TIMEOUT_NS;
	pthread_mutex_init(&g->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&g->moved, &attr);
	pthread_condattr_destroy(&attr);
	*out = g;
	return 0;
}

void epf_boot_local_timeout(struct epf_boot_group *group, uint64_t timeout_ns)
{
	pthread_mutex_lock(&group->lock);
	group->timeout_ns = timeout_ns ? timeout_ns : EPF_BOOT_TIMEOUT_NS;
	pthread_mutex_unlock(&group->lock);
}

int epf_boot_local_open(struct epf_boot_group *group, uint32_t rank, struct epf_boot **out)
{
	struct local_boot *l;
	bool taken;

	if (rank >= group->world)
		return epf_fail(EPF_R_BOOT_WORLD, "rank %u is outside a world of %u", rank,
				group->world);
	l = calloc(1, sizeof(*l));
	if (!l)
		return epf_fail(EPF_R_NO_MEMORY, "the bootstrap of rank %u", rank);
	l->base = (struct epf_boot){ &local_ops, rank, group->world };
	l->group = group;
	pthread_mutex_lock(&group->lock);
	taken = group->seats[rank].opened;
	group->seats[rank].opened = true;
	group->holders += !taken;
	pthread_mutex_unlock(&group->lock);
	if (taken) {
		free(l);
		return epf_fail(EPF_R_BOOT_DUPLICATE_RANK,
				"rank %u is already open in this process", rank);
	}
	*out = &l->base;
	return 0;
}

void epf_boot_local_destroy(struct epf_boot_group *group)
{
	if (group)
		put_group(group);
}
