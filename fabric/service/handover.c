/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank's memory goes to an engine when the rank attaches, and is freed when the rank has gone.
 */
#include "fabric/service/service_priv.h"

#include <stdlib.h>

struct hand_over {
	struct svc_member *m;
	uint32_t rank, max_regions;
	pid_t pid;
};

static int hand_over(struct epf_core *core, void *arg)
{
	struct hand_over *h = arg;
	struct svc_member *m = h->m;
	int rc = m->rejoining
			 ? epf_core_rank_back(core, m->local, m->signals, m->n_signals, m->wakeup)
			 : epf_core_add_rank(core, h->rank, m->signals, m->n_signals,
					     h->max_regions, m->wakeup, &m->local);

	m->handed = rc == 0;
	if (m->handed)
		core->ranks[m->local].pid = (uint32_t)h->pid;
	for (uint32_t i = 0; i < m->n_regions && !rc; i++) {
		struct svc_region_args args = { .m = m, .r = &m->regions[i] };

		rc = svc_region_add(core, &args);
	}
	for (uint32_t i = 0; i < m->n_rings && !rc; i++) {
		struct svc_ring_args args = { .m = m, .r = &m->rings[i] };

		if (m->rings[i].state != SVC_RING_OPEN)
			continue;
		m->rings[i].shm->rank = h->rank;
		rc = svc_ring_add(core, &args);
	}
	if (rc && m->handed && m->rejoining)
		epf_core_rank_gone(core, m->local, EPF_R_RANK_DIED);
	return rc;
}

int svc_member_hand_over(struct svc_member *m, struct svc_job *job, uint32_t rank, pid_t pid)
{
	struct hand_over h = {
		.m = m, .pid = pid, .rank = rank, .max_regions = (uint32_t)job->svc->conf->regions
	};

	return epf_core_call(job->core, hand_over, &h);
}

void svc_member_destroy(struct epf_svc *s, struct svc_member *m)
{
	if (!m)
		return;
	for (uint32_t i = 0; i < m->n_rings; i++)
		svc_ring_unmap(m, &m->rings[i]);
	for (uint32_t i = 0; i < m->n_regions; i++)
		svc_region_free(s, m, &m->regions[i]);
	if (m->signals) {
		svc_memory_unmap(m->signals, m->signal_bytes);
		svc_user_give(m->user, SVC_SIGNALS, m->n_signals);
	}
	svc_user_put(s, m->user);
	free(m->regions);
	free(m->rings);
	free(m);
}
