/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What each user has in use, against the limits of the configuration. Called by whatever allocates something for a client; what is charged is
 * released when it is really free, not when the client says so.
 */
#include "fabric/service/service_priv.h"

#include <errno.h>
#include <stdlib.h>

struct use_row {
	const char *what;
	enum epf_conf_id id;
	size_t offset; /* of the limit in struct epf_conf */
};

static const struct use_row uses[SVC_USES] = {
	[SVC_CLIENTS] = { "connections", EPF_CONF_ID_user_clients,
			  offsetof(struct epf_conf, user_clients) },
	[SVC_JOBS] = { "jobs", EPF_CONF_ID_user_jobs, offsetof(struct epf_conf, user_jobs) },
	[SVC_RINGS] = { "rings", EPF_CONF_ID_user_rings, offsetof(struct epf_conf, user_rings) },
	[SVC_REGIONS] = { "regions", EPF_CONF_ID_user_regions,
			  offsetof(struct epf_conf, user_regions) },
	[SVC_BYTES] = { "bytes of memory", EPF_CONF_ID_user_bytes,
			offsetof(struct epf_conf, user_bytes) },
	[SVC_ENGINE] = { "bytes of engines", EPF_CONF_ID_user_engine_bytes,
			 offsetof(struct epf_conf, user_engine_bytes) },
	[SVC_SIGNALS] = { "signals", EPF_CONF_ID_user_signals,
			  offsetof(struct epf_conf, user_signals) },
};

const char *svc_use_setting(enum svc_use use)
{
	return epf_conf_key(uses[use].id)->name;
}

uint64_t svc_use_limit(const struct epf_svc *s, enum svc_use use)
{
	return *(const uint64_t *)(const void *)((const char *)s->conf + uses[use].offset);
}

struct svc_user *svc_user_get(struct epf_svc *s, uid_t uid)
{
	struct svc_user *u = s->users;

	while (u && u->uid != uid)
		u = u->next;
	if (!u) {
		u = calloc(1, sizeof(*u));
		if (!u)
			return NULL;
		u->uid = uid;
		u->next = s->users;
		s->users = u;
	}
	u->refs++;
	return u;
}

void svc_user_put(struct epf_svc *s, struct svc_user *user)
{
	if (!user || --user->refs)
		return;
	for (struct svc_user **link = &s->users; *link; link = &(*link)->next)
		if (*link == user) {
			*link = user->next;
			break;
		}
	free(user);
}

int svc_user_take(struct epf_svc *s, struct svc_user *user, enum svc_use use, uint64_t n)
{
	uint64_t limit = svc_use_limit(s, use);

	if (n > limit || user->used[use] > limit - n)
		return epf_fail(EPF_R_SVC_LIMIT,
				"user %u: %llu %s in use and %llu more asked for, %s is %llu",
				(unsigned)user->uid, (unsigned long long)user->used[use],
				uses[use].what, (unsigned long long)n, svc_use_setting(use),
				(unsigned long long)limit);
	user->used[use] += n;
	return 0;
}

void svc_user_give(struct svc_user *user, enum svc_use use, uint64_t n)
{
	user->used[use] -= n;
}
