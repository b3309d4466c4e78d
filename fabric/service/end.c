/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How ranks and jobs end. A rank that has gone leaves memory that the engine and its peers may still use: it is unmapped when the engine
 * says so. A job ends when its last rank here has gone: at once when it left, after service-grace when it was lost, since it may come
 * back. All of it is looked at by svc_jobs_step() on the control thread, never waited for.
 */
#define EPF_LOG_COMP "svc"
#include "fabric/base/clock.h"
#include "fabric/base/log.h"
#include "fabric/service/service_priv.h"

#include <stdio.h>

enum { LAST_LOOK_MS = 50, END_LOOK_MS = 4, ENDING_MS = 1000 };

struct gone_args {
	uint32_t local, cause;
};

static int rank_gone(struct epf_core *core, void *arg)
{
	const struct gone_args *a = arg;

	epf_core_rank_gone(core, a->local, a->cause);
	return 0;
}

static int rank_drained(struct epf_core *core, void *arg)
{
	return epf_core_rank_drained(core, ((const struct gone_args *)arg)->local);
}

static void log_gone(const struct svc_job *job, const struct svc_seat *seat, unsigned cause)
{
	if (cause == EPF_R_NODE_LOST)
		epf_note("job %s: rank %u is cut off, process %d; %u of its ranks are left here",
			 svc_job_name(job), seat->rank, (int)seat->pid, job->n_here);
	else if (cause)
		epf_warn(
			"job %s: rank %u lost: process %d ended without closing; %u of its ranks are left here",
			svc_job_name(job), seat->rank, (int)seat->pid, job->n_here);
	else
		epf_info("job %s: rank %u left, process %d; %u of its ranks are left here",
			 svc_job_name(job), seat->rank, (int)seat->pid, job->n_here);
}

/* The job's last rank here has gone. */
static void begin_end(struct svc_job *job, unsigned cause, uint64_t now)
{
	job->grace_ns = now;
	if (cause && job->state == SVC_JOB_CONNECTED) {
		job->grace_ns = now + job->svc->conf->service_grace_ns;
		epf_note("job %s: no rank is left here, it stays %llu ms in case one comes back",
			 svc_job_name(job),
			 (unsigned long long)(job->svc->conf->service_grace_ns / SVC_MS));
	}
}

void svc_rank_gone(struct epf_svc *s, struct svc_session *c, unsigned cause)
{
	struct svc_member *m = c->member;
	struct svc_job *job = m ? m->job : NULL;
	struct svc_seat *seat;
	char why[64];

	c->member = NULL;
	if (!job) {
		svc_member_destroy(s, m);
		return;
	}
	seat = &job->seats[m->local];
	seat->cause = cause;
	job->n_here--;
	s->ranks_lost += cause != 0;
	log_gone(job, seat, cause);
	if (job->state == SVC_JOB_CONNECTED) {
		struct gone_args a = { .local = m->local, .cause = cause };

		seat->state = SVC_SEAT_DRAINING;
		epf_core_call(job->core, rank_gone, &a);
		svc_job_keep_awake(job);
	} else {
		/* Nothing runs yet: without this rank the job cannot be joined, and its engine goes now. */
		snprintf(why, sizeof(why), "rank %u %s before the job was joined", seat->rank,
			 cause == EPF_R_RANK_DIED ? "died" : "left");
		svc_job_break(job, EPF_R_RANK_DIED, why);
		seat->state = SVC_SEAT_EMPTY;
		seat->member = NULL;
		svc_member_destroy(s, m);
	}
	if (!job->n_here)
		begin_end(job, cause, epf_now_ns());
	svc_job_look(job);
}

/* Unmaps what the engine has let go of; 1 when something is left to look after. */
static int sweep_seats(struct epf_svc *s, struct svc_job *job)
{
	int left = 0;

	for (uint32_t i = 0; i < job->n_seats; i++) {
		struct svc_seat *seat = &job->seats[i];
		struct gone_args a = { .local = i };

		if (seat->state == SVC_SEAT_HERE && seat->member->closing)
			left |= svc_member_sweep(seat->member);
		if (seat->state != SVC_SEAT_DRAINING)
			continue;
		if (epf_core_call(job->core, rank_drained, &a) != 1) {
			left = 1;
			continue;
		}
		svc_member_destroy(s, seat->member);
		seat->member = NULL;
		seat->state = SVC_SEAT_EMPTY;
		epf_dbg("job %s: memory of rank %u released", svc_job_name(job), seat->rank);
	}
	return left;
}

static int say_bye(struct epf_core *core, void *arg)
{
	(void)arg;
	return epf_core_say_bye(core);
}

static int is_quiet(struct epf_core *core, void *arg)
{
	(void)arg;
	return epf_core_is_quiet(core);
}

/* Every node has heard the goodbye, or is gone itself. */
static bool has_parted(struct svc_job *job)
{
	return epf_core_call(job->core, say_bye, NULL) == 0 &&
	       epf_core_call(job->core, is_quiet, NULL) == 1;
}

/*
 * The goodbye: peers' daemons are to know that this node left in order; what they have not heard when the engine closes makes them call it
 * lost. So a daemon that is slow gets the time that any silence gets, unless this one has to end. 1 when the job is gone.
 */
static int end_job(struct epf_svc *s, struct svc_job *job, uint64_t now)
{
	char name[EPF_SVC_JOB_NAME];
	uint64_t ms = (now - job->started_ns) / SVC_MS;
	uint32_t number = job->number;

	if (job->scheduler && !job->said_bye) {
		job->state = SVC_JOB_ENDING;
		job->said_bye = true;
		job->wait_ns = SVC_MS / 2;
		job->grace_ns = now + s->conf->peer_timeout_ns;
		epf_core_call(job->core, say_bye, NULL);
		return 0;
	}
	if (s->ending && job->grace_ns > now + ENDING_MS * (uint64_t)SVC_MS)
		job->grace_ns = now + ENDING_MS * (uint64_t)SVC_MS;
	if (job->scheduler && now < job->grace_ns && !has_parted(job))
		return 0;
	snprintf(name, sizeof(name), "%s", svc_job_name(job));
	svc_job_destroy(s, job);
	epf_note("job %s: ended, number %u, after %llu.%03llu s; %u jobs are left", name, number,
		 (unsigned long long)(ms / 1000), (unsigned long long)(ms % 1000), s->n_jobs);
	return 1;
}

/* 1 when the job is gone. */
static int look_after(struct epf_svc *s, struct svc_job *job, uint64_t now)
{
	int left = 0;

	if (job->state == SVC_JOB_CONNECTED)
		left = sweep_seats(s, job);
	if (!job->n_here) {
		if ((now >= job->grace_ns || s->ending || job->said_bye) && end_job(s, job, now))
			return 1;
		left = 1;
	}
	job->wait_ns = job->wait_ns * 2 < LAST_LOOK_MS * (uint64_t)SVC_MS
			       ? job->wait_ns * 2
			       : LAST_LOOK_MS * (uint64_t)SVC_MS;
	if (job->state == SVC_JOB_ENDING && job->wait_ns > END_LOOK_MS * (uint64_t)SVC_MS)
		job->wait_ns = END_LOOK_MS * (uint64_t)SVC_MS;
	job->next_ns = left ? now + job->wait_ns : 0;
	return 0;
}

void svc_jobs_step(struct epf_svc *s, uint64_t now)
{
	for (struct svc_job *job = s->jobs, *next; job; job = next) {
		next = job->next;
		if (job->next_ns && now >= job->next_ns)
			look_after(s, job, now);
	}
}

uint64_t svc_jobs_next(const struct epf_svc *s)
{
	uint64_t at = UINT64_MAX;

	for (const struct svc_job *job = s->jobs; job; job = job->next)
		if (job->next_ns && job->next_ns < at)
			at = job->next_ns;
	return at;
}
