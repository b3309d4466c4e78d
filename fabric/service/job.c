/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job on this daemon: one engine core on a separate NIC, a page of peers, a wakeup. Made when its first rank attaches, started when
 * the ranks are connected, destroyed when the last one has gone. Control thread only; the engine is reached by epf_core_call() once it runs.
 */
#define EPF_LOG_COMP "svc"
#include "bootstrap/net.h"
#include "fabric/base/clock.h"
#include "fabric/base/log.h"
#include "fabric/engine/limits.h"
#include "fabric/engine/watch.h"
#include "fabric/place/numa.h"
#include "fabric/place/place.h"
#include "fabric/service/service_priv.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PAGE = 4096 };

/* What nobody measures yet must not read as zero. */
static void forget_unmeasured(struct epf_stats_block *block)
{
	epf_stat_forget(block, EPF_STAT_CORE_RING_FULL_SEEN);
}

/* Blocks of the daemon's statistics file, or, when that is full, of memory that nobody else sees. */
static int open_stats(struct epf_svc *s, struct svc_job *job)
{
	struct epf_stats_opts o = { .size = sizeof(o), .instance = s->instance, .job = job->name };
	struct epf_stats_label core[2] = { { NULL, job->number }, EPF_STATS_NO_LABEL };
	char device[EPF_STATS_LABEL_BYTES], why[256];
	struct epf_stats_label nic[3] = { { device, 0 }, { NULL, 1 }, { NULL, job->number } };
	struct epf_stats *stats = s->stats;

	snprintf(device, sizeof(device), "%s:%.24s", job->nic_kind, svc_job_name(job));
	if (epf_stats_add_block(stats, EPF_STATS_CORE, core, 2, &job->block) == 0) {
		if (epf_stats_add_block(stats, EPF_STATS_NIC, nic, 3, &job->nic_block) == 0) {
			forget_unmeasured(job->block);
			return 0;
		}
		epf_stats_remove_block(stats, job->block);
	}
	o.blocks[EPF_STATS_CORE] = o.blocks[EPF_STATS_NIC] = 1;
	if (epf_stats_create(&o, &job->own_stats, why, sizeof(why)) ||
	    epf_stats_add_block(job->own_stats, EPF_STATS_CORE, core, 2, &job->block) ||
	    epf_stats_add_block(job->own_stats, EPF_STATS_NIC, nic, 3, &job->nic_block))
		return epf_fail(EPF_R_NO_MEMORY, "job %s: no memory for its statistics",
				svc_job_name(job));
	return 0;
}

static void close_stats(struct svc_job *job)
{
	if (!job->own_stats && job->nic_block) {
		epf_stats_remove_block(job->svc->stats, job->block);
		epf_stats_remove_block(job->svc->stats, job->nic_block);
	}
	epf_stats_destroy(job->own_stats, 0);
}

/* The pool of a software NIC is given page by page, as packets are used for the first time: none has been yet. */
static int count_nic(struct epf_svc *s, struct svc_job *job)
{
	struct epf_nic_caps caps;
	int rc;

	job->ops->describe(job->nic, &caps);
	rc = svc_user_take(s, job->user, SVC_ENGINE, caps.memory_bytes);
	if (!rc)
		job->nic_bytes = caps.memory_bytes;
	return rc;
}

/* Daemons of one job prove the fabric's secret to each other, which its clients do not know. */
/*
 * The kind of NIC for a job. auto: as a rank without a daemon chooses (client/choose_nic.c), by what the first rank says of the job; its word can make no more of this daemon than a
 * listener for a job of its own.
 */
static int choose_nic(struct epf_svc *s, struct svc_job *job)
{
	struct epf_place_map map = { 0 };
	const char *nic = NULL;

	job->nic_kind = epf_limits_nic(s->conf);
	if (s->conf->nic != EPF_CONF_NIC_AUTO || !job->route[0])
		return 0;
	if (!s->auth.has_secret)
		return epf_fail(EPF_R_SVC_SEAL,
				"job %s is on several hosts, and instance %s has no fabric secret",
				svc_job_name(job), s->instance);
	if (!s->conf->wire_encryption && epf_place_read(NULL, &map) == 0)
		nic = epf_place_rdma(&map);
	epf_place_map_destroy(&map);
	job->nic_kind = nic ? nic : "tcp";
	epf_info("job %s: nic auto: %s, since it is on several hosts", svc_job_name(job),
		 job->nic_kind);
	return 0;
}

/* The way to the other hosts, if it is an address of this daemon's own network: a client may be in another one. */
static const char *way_of(const struct svc_job *job)
{
	struct epf_net_addr at[EPF_NET_ADDRS_MAX];
	size_t n = 0;

	if (!job->route[0] || !epf_net_is_literal(job->route) ||
	    epf_net_resolve(job->route, 0, at, &n) || epf_net_is_loopback(&at[0]) ||
	    !epf_net_is_local(&at[0]))
		return NULL;
	return job->route;
}

static int set_job(struct epf_svc *s, struct svc_job *job)
{
	char label[32 + 2 * sizeof(job->id)] = "lanes of ";
	struct epf_nic_job mine = { .is_secret = s->auth.has_secret, .route = way_of(job) };
	size_t at = strlen(label);
	int rc;

	for (size_t i = 0; i < sizeof(job->id); i++)
		at += (size_t)snprintf(label + at, sizeof(label) - at, "%02x", job->id[i]);
	epf_auth_job_key(&s->auth, label, mine.key);
	rc = job->ops->set_job(job->nic, &mine);
	explicit_bzero(mine.key, sizeof(mine.key));
	return rc;
}

int svc_job_open_nic(const struct epf_svc *s, struct svc_job *job, uint64_t (*now)(void *))
{
	struct epf_conf conf = *s->conf;

	conf.job_weight = job->weight;
	return job->ops->open(&conf, now, NULL, &job->nic);
}

static int open_engine(struct epf_svc *s, struct svc_job *job)
{
	struct epf_core_config cfg = { .now = epf_limits_now, .max_ranks = job->world };
	struct epf_watch_config watch = { .stats = job->own_stats ? job->own_stats : s->stats,
					  .number = job->number,
					  .most = (uint32_t)s->conf->stats_blocks * SVC_STATS_TIMES,
					  .job = svc_job_name(job),
					  .id = &job->run };
	int rc;

	job->ops = epf_nic_find(job->nic_kind);
	if (!job->ops)
		return epf_fail(EPF_R_NIC_UNKNOWN, "nic: no back-end named %s", job->nic_kind);
	rc = svc_job_open_nic(s, job, cfg.now);
	if (rc)
		return rc;
	job->ops = job->nic->ops; /* of several devices as one, say */
	rc = set_job(s, job);
	if (rc)
		return rc;
	rc = count_nic(s, job);
	if (rc)
		return rc;
	epf_limits_from_conf(s->conf, &cfg.limits);
	cfg.nic = job->nic;
	cfg.stats = job->block;
	rc = epf_core_create(&cfg, &job->core);
	return rc ? rc : epf_watch_open(job->core, &watch);
}

/* With its memory where the daemon's engine threads run. */
static int open_near(struct epf_svc *s, struct svc_job *job)
{
	struct epf_numa before;
	int rc;

	(void)epf_numa_begin(epf_numa_lib(), s->memory_node, &before);
	rc = open_engine(s, job);
	epf_numa_end(epf_numa_lib(), &before);
	return rc;
}

static int open_shared(struct svc_job *job)
{
	void *at;
	int rc;

	job->peers_bytes = (epf_peers_bytes(job->world) + PAGE - 1) / PAGE * PAGE;
	rc = svc_memory_make("epf-peers", job->peers_bytes, true, &at, &job->peers_fd);
	if (rc)
		return rc;
	job->peers = at;
	epf_peers_format(job->peers, job->world);
	job->kick_bytes = PAGE;
	rc = svc_memory_make("epf-kick", job->kick_bytes, false, &at, &job->kick_fd);
	if (!rc)
		job->kick = at;
	return rc;
}

static int check_limits(struct epf_svc *s, struct svc_session *c, const struct epf_svc_attach *m)
{
	uint64_t most = (uint64_t)s->n_schedulers * EPF_SCHEDULER_JOBS_MAX;

	if (s->draining)
		return epf_fail(EPF_R_SVC_DRAINING, "job %s: instance %s takes no new jobs", m->job,
				s->instance);
	if (most > SVC_JOBS_MAX)
		most = SVC_JOBS_MAX;
	if (s->n_jobs >= most)
		return epf_fail(EPF_R_SVC_LIMIT,
				"job %s: %u jobs run here, service-cores is %u and each takes %d",
				m->job, s->n_jobs, s->n_schedulers, EPF_SCHEDULER_JOBS_MAX);
	return svc_user_take(s, c->user, SVC_JOBS, 1);
}

int svc_job_create(struct epf_svc *s, struct svc_session *c, const struct epf_svc_attach *m,
		   struct svc_job **out)
{
	uint8_t nonce[EPF_AUTH_NONCE_BYTES];
	struct svc_job *job;
	int rc = check_limits(s, c, m);

	if (rc)
		return rc;
	job = calloc(1, sizeof(*job));
	if (!job) {
		svc_user_give(c->user, SVC_JOBS, 1);
		return epf_fail(EPF_R_NO_MEMORY, "job %s: no memory", m->job);
	}
	job->svc = s;
	job->user = c->user;
	job->user->refs++;
	job->number = ++s->jobs_begun;
	job->world = m->world;
	job->weight = m->weight ? m->weight : (uint32_t)s->conf->job_weight;
	job->peers_fd = job->kick_fd = -1;
	job->started_ns = epf_now_ns();
	memcpy(job->name, m->job, sizeof(job->name));
	memcpy(job->id, m->job_id, sizeof(job->id));
	for (unsigned i = 0; i < sizeof(job->run) && i < sizeof(job->id); i++)
		job->run = job->run << 8 | job->id[i];
	memcpy(job->key, m->job_key, sizeof(job->key));
	memcpy(job->route, m->route, sizeof(job->route));
	epf_auth_nonce(nonce);
	memcpy(job->nonce, nonce, sizeof(job->nonce));
	job->next = s->jobs;
	s->jobs = job;
	s->n_jobs++;
	job->seats = calloc(job->world, sizeof(*job->seats));
	rc = job->seats ? 0
			: epf_fail(EPF_R_NO_MEMORY, "job %s: no memory for %u ranks", m->job,
				   m->world);
	if (!rc)
		rc = choose_nic(s, job);
	if (!rc)
		rc = open_stats(s, job);
	if (!rc)
		rc = open_near(s, job);
	if (!rc)
		rc = open_shared(job);
	if (rc) {
		svc_job_destroy(s, job);
		return rc;
	}
	*out = job;
	return 0;
}

/* On the scheduler's thread, about twice a second. */
static void beat(void *arg)
{
	struct svc_job *job = arg;

	epf_watch_nic(job->core, job->nic_block);
}

int svc_job_start(struct epf_svc *s, struct svc_job *job)
{
	uint32_t best = 0;
	int rc;

	for (uint32_t i = 1; i < s->n_schedulers; i++)
		if (s->scheduler_jobs[i] < s->scheduler_jobs[best])
			best = i;
	rc = epf_scheduler_add(s->schedulers[best], job->core, job->weight, job->kick, beat, job);
	if (rc)
		return epf_fail(EPF_R_SVC_LIMIT,
				"job %s: no engine thread has room, service-cores is %u",
				svc_job_name(job), s->n_schedulers);
	job->scheduler = s->schedulers[best];
	job->scheduler_number = best;
	s->scheduler_jobs[best]++;
	return 0;
}

void svc_job_limit_engine(struct epf_svc *s, struct svc_job *job)
{
	uint64_t limit = svc_use_limit(s, SVC_ENGINE), used = job->user->used[SVC_ENGINE];
	uint64_t left = limit > used ? limit - used : 0;

	/* What it has is counted already; 0 would be no limit. */
	job->core->peer_memory_most = job->engine_bytes + left ? job->engine_bytes + left : 1;
	job->core->peer_memory_wanted = 0;
}

int svc_job_count_engine(struct epf_svc *s, struct svc_job *job, int rc)
{
	uint64_t wanted = job->core->peer_memory_wanted, bytes = job->core->peer_memory_bytes;
	int taken;

	if (rc && wanted)
		return svc_user_take(s, job->user, SVC_ENGINE, wanted - job->engine_bytes);
	if (rc)
		return rc;
	taken = svc_user_take(s, job->user, SVC_ENGINE, bytes - job->engine_bytes);
	if (!taken)
		job->engine_bytes = bytes;
	return taken;
}

static void close_engine(struct svc_job *job)
{
	if (job->scheduler) {
		epf_scheduler_remove(job->scheduler, job->core);
		job->svc->scheduler_jobs[job->scheduler_number]--;
		job->scheduler = NULL;
	}
	for (unsigned r = 0; job->core && r < EPF_CMD_REASONS; r++)
		job->svc->commands_refused[r] += job->core->refusals[r];
	epf_core_destroy(job->core);
	job->core = NULL;
	if (job->nic)
		job->ops->close(job->nic);
	job->nic = NULL;
	svc_user_give(job->user, SVC_ENGINE, job->engine_bytes + job->nic_bytes);
	job->engine_bytes = job->nic_bytes = 0;
}

void svc_job_break(struct svc_job *job, unsigned reason, const char *why)
{
	if (job->state >= SVC_JOB_BROKEN)
		return;
	job->state = SVC_JOB_BROKEN;
	job->broken_reason = reason;
	snprintf(job->broken, sizeof(job->broken), "%s", why);
	epf_note("job %s: cannot be joined: %s", svc_job_name(job), why);
	close_engine(job);
}

void svc_job_destroy(struct epf_svc *s, struct svc_job *job)
{
	for (struct svc_job **link = &s->jobs; *link; link = &(*link)->next)
		if (*link == job) {
			*link = job->next;
			s->n_jobs--;
			break;
		}
	close_engine(job);
	for (uint32_t i = 0; i < job->n_seats; i++)
		svc_member_destroy(s, job->seats[i].member);
	close_stats(job);
	svc_memory_unmap(job->peers, job->peers_bytes);
	svc_memory_unmap(job->kick, job->kick_bytes);
	if (job->peers_fd >= 0)
		close(job->peers_fd);
	if (job->kick_fd >= 0)
		close(job->kick_fd);
	svc_user_give(job->user, SVC_JOBS, 1);
	svc_user_put(s, job->user);
	free(job->seats);
	free(job->table);
	free(job->node_of);
	free(job->tokens);
	explicit_bzero(job->key, sizeof(job->key));
	free(job);
}
