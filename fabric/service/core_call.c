/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every request needs of its job: its name, its state, and calls that run on its engine's thread. Control thread only.
 */
#include "fabric/base/clock.h"
#include "fabric/service/service_priv.h"

enum { ERROR_BYTES = 512 };

struct core_call {
	int (*fn)(struct epf_core *core, void *arg);
	void *arg;
	enum epf_reason reason;
	char text[ERROR_BYTES];
};

/* On the engine's thread. Error texts are per thread, so the text travels with the call. */
static int run_call(struct epf_core *core, void *arg)
{
	struct core_call *c = arg;
	int rc;

	epf_clear_error();
	rc = c->fn(core, c->arg);
	if (rc < 0) {
		c->reason = epf_last_reason();
		epf_last_detail(c->text, sizeof(c->text));
	}
	return rc;
}

int svc_core_call(struct svc_job *job, int (*fn)(struct epf_core *core, void *arg), void *arg)
{
	struct core_call c = { .fn = fn, .arg = arg };
	int rc = epf_core_call(job->core, run_call, &c);

	if (rc < 0 && epf_reason_info(c.reason))
		epf_fail(c.reason, "%s", c.text);
	return rc;
}

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
