/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ATTACH: a rank takes its seat in a job, which its first rank makes; or a lost rank returns to its seat.
 */
#define EPF_LOG_COMP "svc"
#include "bootstrap/boot.h"
#include "fabric/base/log.h"
#include "fabric/service/service_priv.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

static const uint8_t no_id[EPF_SVC_ID];

static int check_same(const struct svc_job *job, const struct svc_session *c,
		      const struct epf_svc_attach *m)
{
	if (job->user->uid != c->uid || !epf_auth_equal(job->key, m->job_key))
		return epf_fail(EPF_R_SVC_JOB,
				"job %s: user or secret of rank %u is not that of the others",
				svc_job_name(job), m->rank);
	if (job->world != m->world)
		return epf_fail(EPF_R_SVC_JOB, "job %s: rank %u says %u ranks, the others %u",
				svc_job_name(job), m->rank, m->world, job->world);
	return 0;
}

static struct svc_job *find_by_id(struct epf_svc *s, const uint8_t *id)
{
	for (struct svc_job *job = s->jobs; job; job = job->next)
		if (job->state != SVC_JOB_ENDING && memcmp(job->id, id, EPF_SVC_ID) == 0)
			return job;
	return NULL;
}

static int answer_attach(struct svc_job *job, const struct svc_seat *seat, struct svc_answer *a)
{
	a->fds[0] = dup(job->peers_fd);
	a->fds[1] = a->fds[0] < 0 ? -1 : dup(job->kick_fd);
	if (a->fds[1] < 0) {
		if (a->fds[0] >= 0)
			close(a->fds[0]);
		return epf_fail_sys(EPF_R_SYSTEM, errno, "job %s: no descriptor",
				    svc_job_name(job));
	}
	a->n_fds = 2;
	memcpy(a->attach.node_id, job->svc->node_id, EPF_SVC_ID);
	memcpy(a->attach.nonce, job->nonce, EPF_SVC_ID);
	memcpy(a->attach.job_id, job->id, EPF_SVC_ID);
	a->attach.epoch = seat->epoch;
	a->attach.peers_bytes = epf_peers_bytes(job->world);
	a->attach.kick_bytes = job->kick_bytes;
	return 0;
}

static void take_seat(struct svc_session *c, struct svc_job *job, struct svc_seat *seat,
		      uint32_t rank)
{
	seat->member = c->member;
	seat->rank = rank;
	seat->state = SVC_SEAT_HERE;
	seat->cause = 0;
	seat->pid = c->pid;
	c->member->job = job;
	c->state = SVC_ATTACHED;
	job->n_here++;
}

/* A rank that was not here before. */
static int attach_new(struct epf_svc *s, struct svc_session *c, const struct epf_svc_attach *m,
		      struct svc_answer *a)
{
	struct svc_job *job = find_by_id(s, m->job_id), *made = NULL;
	struct svc_seat *seat;
	int rc = 0;

	if (!memcmp(m->job_id, no_id, EPF_SVC_ID))
		return epf_fail(EPF_R_SVC_MESSAGE, "ATTACH: the job's number is 0");
	if (!job) {
		rc = svc_job_create(s, c, m, &job);
		made = rc ? NULL : job;
	} else {
		rc = check_same(job, c, m);
		if (!rc)
			rc = svc_job_check(job);
	}
	if (rc)
		return rc;
	if (svc_job_seat(job, m->rank))
		return epf_fail(EPF_R_SVC_RANK_TAKEN, "job %s: rank %u is served already",
				svc_job_name(job), m->rank);
	if (job->state != SVC_JOB_JOINING)
		return epf_fail(EPF_R_SVC_JOB, "job %s: it has been joined without rank %u here",
				svc_job_name(job), m->rank);
	rc = svc_member_hand_over(c->member, job, m->rank, c->pid);
	seat = &job->seats[c->member->local];
	if (!rc)
		rc = answer_attach(job, seat, a);
	if (rc && made)
		svc_job_destroy(s, made);
	else if (rc) /* the engine may hold memory of this client: nobody can use it any more */
		svc_job_break(job, epf_last_reason(), "a rank's memory cannot be registered");
	if (rc)
		return rc;
	job->n_seats = c->member->local + 1 > job->n_seats ? c->member->local + 1 : job->n_seats;
	take_seat(c, job, seat, m->rank);
	if (made)
		epf_note("job %s: begins, number %u, user %u, %u ranks in all, weight %u",
			 svc_job_name(job), job->number, (unsigned)c->uid, job->world, job->weight);
	epf_info("job %s: rank %u attached, process %d", svc_job_name(job), m->rank, (int)c->pid);
	return 0;
}

/* The job in which this rank was lost, else the newest one that could be meant. */
static struct svc_job *find_lost(struct epf_svc *s, struct svc_session *c,
				 const struct epf_svc_attach *m)
{
	struct svc_job *other = NULL;

	for (struct svc_job *job = s->jobs; job; job = job->next) {
		struct svc_seat *seat = svc_job_seat(job, m->rank);

		if (job->state != SVC_JOB_CONNECTED || !seat || strcmp(job->name, m->job) != 0 ||
		    check_same(job, c, m))
			continue;
		if (seat->state == SVC_SEAT_EMPTY && seat->cause)
			return job;
		other = other ? other : job;
	}
	return other;
}

static int attach_again(struct epf_svc *s, struct svc_session *c, const struct epf_svc_attach *m,
			struct svc_answer *a)
{
	struct svc_job *job = find_lost(s, c, m);
	struct svc_seat *seat = job ? svc_job_seat(job, m->rank) : NULL;
	int rc;

	if (!job)
		return epf_fail(EPF_R_SVC_JOB,
				"job %s: no such job of this user has lost rank %u here", m->job,
				m->rank);
	if (seat->state == SVC_SEAT_HERE)
		return epf_fail(EPF_R_REJOIN, "job %s: rank %u is not lost", svc_job_name(job),
				m->rank);
	if (!seat->cause)
		return epf_fail(EPF_R_SVC_JOB, "job %s: rank %u has left in order",
				svc_job_name(job), m->rank);
	if (seat->state == SVC_SEAT_DRAINING)
		return epf_fail(EPF_R_REJOIN, "job %s: memory of the lost rank %u is still in use",
				svc_job_name(job), m->rank);
	c->member->rejoining = true;
	c->member->local = (uint32_t)(seat - job->seats);
	rc = svc_member_hand_over(c->member, job, m->rank, c->pid);
	if (rc && c->member->handed) {
		/* The engine has begun to use its memory, so that is the job's to end now. */
		seat->member = c->member;
		seat->member->job = job;
		seat->state = SVC_SEAT_DRAINING;
		c->member = NULL;
		svc_job_look(job);
	}
	if (rc)
		return rc;
	seat->epoch++;
	take_seat(c, job, seat, m->rank);
	epf_note("job %s: rank %u is back, process %d", svc_job_name(job), m->rank, (int)c->pid);
	return answer_attach(job, seat, a);
}

int svc_join_attach(struct epf_svc *s, struct svc_session *c, const union svc_message *msg,
		    struct svc_answer *a)
{
	const struct epf_svc_attach *m = &msg->attach;

	if (!c->member || !c->member->signals)
		return epf_fail(EPF_R_SVC_MESSAGE, "ATTACH: SIGNALS comes before it");
	if (!m->world || m->world > EPF_BOOT_WORLD_MAX || m->rank >= m->world || m->weight > 255 ||
	    m->flags & ~(uint32_t)EPF_SVC_REJOIN)
		return epf_fail(EPF_R_SVC_MESSAGE, "ATTACH: rank %u of %u, weight %u, flags %#x",
				m->rank, m->world, m->weight, m->flags);
	return m->flags & EPF_SVC_REJOIN ? attach_again(s, c, m, a) : attach_new(s, c, m, a);
}
