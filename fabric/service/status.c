/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon's state as JSON, schema "epf.service/1": what runs, who uses what, what was refused. Read-only; called on the control
 * thread. No key, secret or address of memory may get in.
 */
#include "fabric/base/clock.h"
#include "fabric/service/service_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static json_t *number(uint64_t n)
{
	return json_integer((json_int_t)(n > INT64_MAX ? INT64_MAX : n));
}

static const char *job_state(const struct svc_job *job)
{
	static const char *const words[] = { [SVC_JOB_JOINING] = "joining",
					     [SVC_JOB_WORLD] = "joining",
					     [SVC_JOB_CONNECTED] = "running",
					     [SVC_JOB_BROKEN] = "broken",
					     [SVC_JOB_ENDING] = "ending" };

	return job->state == SVC_JOB_CONNECTED && !job->n_here ? "grace" : words[job->state];
}

static const char *seat_state(const struct svc_seat *seat)
{
	if (seat->state == SVC_SEAT_HERE)
		return "here";
	return seat->cause ? "lost" : "left";
}

static json_t *rank_json(const struct svc_job *job, const struct svc_seat *seat)
{
	const struct svc_member *m = seat->member;
	uint64_t bytes = 0;
	uint32_t rings = 0, regions = 0;

	for (uint32_t i = 0; m && i < m->n_rings; i++)
		rings += m->rings[i].state != SVC_RING_FREE;
	for (uint32_t i = 0; m && i < m->n_regions; i++) {
		regions += m->regions[i].state != SVC_REGION_GONE;
		bytes += m->regions[i].state != SVC_REGION_GONE ? m->regions[i].bytes : 0;
	}
	return json_pack("{s:o,s:o,s:o,s:o,s:s,s:b,s:b,s:o,s:o,s:o,s:o}", "rank",
			 number(seat->rank), "pid", number((uint64_t)seat->pid), "uid",
			 number(job->user->uid), "epoch", number(seat->epoch), "state",
			 seat_state(seat), "memory_in_use", m != NULL, "kernels_push",
			 seat->state == SVC_SEAT_HERE && m->pushes, "rings", number(rings),
			 "regions", number(regions), "bytes", number(bytes), "signals",
			 number(m ? m->n_signals : 0));
}

static json_t *ranks_json(const struct svc_job *job)
{
	json_t *ranks = json_array();

	for (uint32_t i = 0; i < job->n_seats; i++)
		if (job->seats[i].state)
			json_array_append_new(ranks, rank_json(job, &job->seats[i]));
	return ranks;
}

/* 8 digits of the job's number, enough to tell two runs of one name apart. */
static json_t *id_json(const struct svc_job *job)
{
	char text[9];

	snprintf(text, sizeof(text), "%02x%02x%02x%02x", job->id[0], job->id[1], job->id[2],
		 job->id[3]);
	return json_string(text);
}

static json_t *job_json(const struct svc_job *job, uint64_t now)
{
	uint64_t used = 0;
	bool runs = job->scheduler && epf_scheduler_used(job->scheduler, job->core, &used) == 0;
	uint64_t refused = job->block ? epf_stat_get(job->block, EPF_STAT_CORE_CMDS_REFUSED) : 0;
	json_t *node = job->table ? number(job->node) : json_null();
	json_t *nodes = job->table ? number(job->n_nodes) : json_null();
	json_t *cause = job->state == SVC_JOB_BROKEN ? json_string(job->broken) : json_null();

	return json_pack("{s:s,s:o,s:o,s:s,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:b,s:o,s:o,s:o}",
			 "name", svc_job_name(job), "number", number(job->number), "id",
			 id_json(job), "state", job_state(job), "cause", cause, "uid",
			 number(job->user->uid), "world", number(job->world), "node", node, "nodes",
			 nodes, "weight", number(job->weight), "core",
			 runs ? number(job->scheduler_number) : json_null(), "used_ns",
			 runs ? number(used) : json_null(), "stays_awake", job->awake, "age_ms",
			 number((now - job->started_ns) / SVC_MS), "commands_refused",
			 number(refused), "ranks", ranks_json(job));
}

static json_t *users_json(const struct epf_svc *s)
{
	json_t *users = json_array();

	for (const struct svc_user *u = s->users; u; u = u->next) {
		json_t *one = json_pack("{s:o}", "uid", number(u->uid));

		for (unsigned use = 0; use < SVC_USES; use++)
			json_object_set_new(one, svc_use_setting(use),
					    json_pack("{s:o,s:o}", "used", number(u->used[use]),
						      "limit", number(svc_use_limit(s, use))));
		json_array_append_new(users, one);
	}
	return users;
}

/* Commands that engines refused for a reason, those of jobs that have ended included. */
static uint64_t commands_refused(const struct epf_svc *s, unsigned reason)
{
	unsigned at = reason - EPF_CMD_REASON_FIRST;
	uint64_t n;

	if (reason < EPF_CMD_REASON_FIRST || at >= EPF_CMD_REASONS)
		return 0;
	n = s->commands_refused[at];
	for (const struct svc_job *job = s->jobs; job; job = job->next)
		n += job->core ? EPF_LOAD_RELAXED(&job->core->refusals[at]) : 0;
	return n;
}

static json_t *refusals_json(const struct epf_svc *s)
{
	json_t *all = json_object();
	char name[16];

	for (unsigned r = 1; r < SVC_REASONS; r++) {
		uint64_t n = s->refusals[r].count + commands_refused(s, r);

		if (!n)
			continue;
		snprintf(name, sizeof(name), "EPF-%u", r);
		json_object_set_new(all, name, number(n));
	}
	return all;
}

/* Connections that have not said who they are; operators share their budget but are none. */
static uint64_t count_strangers(const struct epf_svc *s)
{
	uint64_t n = 0;

	for (const struct svc_session *c = s->first; c; c = c->next)
		n += c->state == SVC_STRANGER;
	return n;
}

json_t *svc_status_json(const struct epf_svc *s)
{
	uint64_t now = epf_now_ns();
	json_t *jobs = json_array();
	char protocol[24];

	for (const struct svc_job *job = s->jobs; job; job = job->next)
		json_array_append_new(jobs, job_json(job, now));
	snprintf(protocol, sizeof(protocol), "%u.%u", EPF_SVC_MAJOR, EPF_SVC_MINOR);
	return json_pack("{s:s,s:s,s:s,s:s,s:o,s:o,s:b,s:s,s:o,s:o,s:o,s:o,s:o,s:o,s:o}", "schema",
			 "epf.service/1", "instance", s->instance, "version", s->version,
			 "protocol", protocol, "pid", number((uint64_t)getpid()), "uptime_s",
			 json_real((double)(now - s->started_ns) / 1e9), "draining", s->draining,
			 "socket", s->socket, "clients", number(s->n_clients), "strangers",
			 number(count_strangers(s)), "jobs_begun", number(s->jobs_begun),
			 "ranks_lost", number(s->ranks_lost), "users", users_json(s), "refusals",
			 refusals_json(s), "jobs", jobs);
}

int svc_status(struct epf_svc *s, struct svc_session *c, const union svc_message *m,
	       struct svc_answer *a)
{
	json_t *top = svc_status_json(s);
	char *text = top ? json_dumps(top, JSON_COMPACT) : NULL;

	(void)c;
	(void)m;
	json_decref(top);
	if (!text)
		return epf_fail(EPF_R_NO_MEMORY, "status: no memory");
	a->owned = text;
	a->status.json = (struct epf_svc_bytes){ text, (uint32_t)strlen(text) };
	return 0;
}
