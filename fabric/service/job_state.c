/* SPDX-License-Identifier: Apache-2.0 */
/* What every request needs of its job: its name, its seats and its state. Control thread only. */
#include "fabric/base/clock.h"
#include "fabric/service/service_priv.h"

const char *svc_job_name(const struct svc_job *job)
{
	return *job->name ? job->name : "-";
}

struct svc_seat *svc_job_seat(struct svc_job *job, uint32_t rank)
{
	for (uint32_t i = 0; i < job->n_seats; i++)
		if (job->seats[i].rank == rank)
			return &job->seats[i];
	return NULL;
}

int svc_job_check(const struct svc_job *job)
{
	if (!job)
		return epf_fail(EPF_R_NOT_JOINED, "client: it is no rank of a job yet");
	if (job->state == SVC_JOB_BROKEN)
		return epf_fail((enum epf_reason)job->broken_reason, "job %s: %s",
				svc_job_name(job), job->broken);
	return 0;
}

void svc_job_look(struct svc_job *job)
{
	job->wait_ns = SVC_MS;
	job->next_ns = epf_now_ns() + job->wait_ns;
}
