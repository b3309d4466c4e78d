/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a running job or an operator asks: masks, a core that stays awake, counters, draining, links. An operator is root or the user the
 * daemon runs as; anybody who reaches the socket may look (status.c).
 */
#define EPF_LOG_COMP "svc"
#include "fabric/base/log.h"
#include "fabric/engine/counter.h"
#include "fabric/service/service_priv.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

struct mask_args {
	uint32_t local, rank, masked;
};

static int mask(struct epf_core *core, void *arg)
{
	const struct mask_args *a = arg;

	epf_core_mask_peer(core, a->local, a->rank, (int)a->masked);
	return 0;
}

int svc_operate_mask(struct epf_svc *s, struct svc_session *c, const union svc_message *msg,
		     struct svc_answer *a)
{
	struct svc_job *job = c->member->job;
	struct mask_args m = { .local = c->member->local,
			       .rank = msg->mask.rank,
			       .masked = msg->mask.masked != 0 };
	int rc = svc_job_check(job);

	(void)s;
	(void)a;
	if (rc)
		return rc;
	if (m.rank >= job->world)
		return epf_fail(EPF_R_PEER_RANGE, "rank %u: the job has %u", m.rank, job->world);
	return epf_core_call(job->core, mask, &m);
}

void svc_job_keep_awake(struct svc_job *job)
{
	bool awake = false;

	for (uint32_t i = 0; i < job->n_seats && !awake; i++)
		awake = job->seats[i].state == SVC_SEAT_HERE && job->seats[i].member->pushes;
	if (awake == job->awake)
		return;
	(void)epf_core_call(job->core, epf_core_stay_awake, &awake);
	job->awake = awake;
	epf_info("job %s: %s", svc_job_name(job),
		 awake ? "kernels push commands: its core does not sleep"
		       : "no kernel pushes commands any more: its core idles as core-idle says");
}

int svc_operate_awake(struct epf_svc *s, struct svc_session *c, const union svc_message *msg,
		      struct svc_answer *a)
{
	int rc = svc_job_check(c->member->job);

	(void)s;
	(void)a;
	if (rc)
		return rc;
	c->member->pushes = msg->awake.on != 0;
	svc_job_keep_awake(c->member->job);
	return 0;
}

int svc_operate_counter(struct epf_svc *s, struct svc_session *c, const union svc_message *msg,
			struct svc_answer *a)
{
	struct svc_job *job = c->member ? c->member->job : NULL;
	int rc = svc_job_check(job);

	(void)s;
	return rc ? rc : epf_counter_read(job->core, msg->counter.name, &a->counter.value);
}

static int check_operator(const struct svc_session *c, const char *what)
{
	if (c->uid == 0 || c->uid == geteuid())
		return 0;
	return epf_fail(EPF_R_SVC_ACCESS,
			"%s: user %u may not: only root and user %u, whose daemon it is", what,
			(unsigned)c->uid, (unsigned)geteuid());
}

int svc_operate_drain(struct epf_svc *s, struct svc_session *c, const union svc_message *msg,
		      struct svc_answer *a)
{
	bool on = msg->drain.on != 0;
	int rc = check_operator(c, "drain");

	if (rc)
		return rc;
	if (s->draining != (on || s->stopping))
		epf_note("instance %s: %s by process %d, user %u; %u jobs run", s->instance,
			 on ? "new jobs are refused from now on" : "new jobs are served again",
			 (int)c->pid, (unsigned)c->uid, s->n_jobs);
	s->draining = on || s->stopping;
	a->drain.jobs = s->n_jobs;
	return 0;
}

struct link_args {
	uint32_t link, up;
};

static int set_link(struct epf_core *core, void *arg)
{
	const struct link_args *a = arg;

	return core->ops->set_link(core->nic, a->link, (int)a->up);
}

int svc_operate_link(struct epf_svc *s, struct svc_session *c, const union svc_message *msg,
		     struct svc_answer *a)
{
	struct link_args l = { .link = msg->link.link, .up = msg->link.up != 0 };
	int rc = check_operator(c, "link");

	for (struct svc_job *job = s->jobs; job && !rc; job = job->next) {
		if (!job->core || (msg->link.job[0] && strcmp(job->name, msg->link.job) != 0))
			continue;
		rc = epf_core_call(job->core, set_link, &l);
		if (rc == -EINVAL)
			rc = epf_fail(EPF_R_NIC_OPTION,
				      "link %u: the NIC of job %s has no such link", l.link,
				      svc_job_name(job));
		if (rc)
			break;
		a->link.nics++;
		epf_note("job %s: link %u %s by process %d, user %u", svc_job_name(job), l.link,
			 l.up ? "restored" : "cut", (int)c->pid, (unsigned)c->uid);
	}
	return rc;
}
