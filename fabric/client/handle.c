/* SPDX-License-Identifier: Apache-2.0 */
/* What every part of libepf asks of struct epf: its locks, who this rank is, a step of the engine. */
#include "fabric/client/handle.h"

/* The locks are no part of what a caller of a const call sees. */
static struct epf_locks *locks(const struct epf *ep)
{
	return (struct epf_locks *)(uintptr_t)&ep->locks;
}

void epf_lock_calls(const struct epf *ep)
{
	pthread_mutex_lock(&locks(ep)->calls);
}

void epf_unlock_calls(const struct epf *ep)
{
	pthread_mutex_unlock(&locks(ep)->calls);
}

void epf_lock_lists(const struct epf *ep)
{
	pthread_mutex_lock(&locks(ep)->lists);
}

void epf_unlock_lists(const struct epf *ep)
{
	pthread_mutex_unlock(&locks(ep)->lists);
}

uint32_t epf_rank(const struct epf *ep)
{
	return EPF_LOAD_RELAXED(&ep->rank);
}

uint32_t epf_world(const struct epf *ep)
{
	return EPF_LOAD_RELAXED(&ep->world);
}

unsigned epf_progress_once(struct epf *ep)
{
	if (ep->call_progress)
		return (unsigned)ep->opts.progress(ep->opts.progress_arg);
	return ep->be->progress(ep);
}
