/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Joining a job after ATTACH (attach.c): WORLD, CONNECT, and later exchanges of regions. The clients carry the rounds over the job's own
 * bootstrap: the daemon never waits for a rank. What clients carry between daemons is sealed (protocol/seal.h).
 */
#define EPF_LOG_COMP "svc"
#include "bootstrap/boot.h"
#include "fabric/base/log.h"
#include "fabric/join/world.h"
#include "fabric/place/numa.h"
#include "fabric/service/service_priv.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int compare_members(const void *arg, uint32_t a, uint32_t b)
{
	const uint8_t *table = arg;

	return memcmp(table + (size_t)a * EPF_SVC_MEMBER_BYTES,
		      table + (size_t)b * EPF_SVC_MEMBER_BYTES, EPF_SVC_MEMBER_BYTES);
}

/* Gives every rank the number of its node, in order of the nodes' lowest ranks. */
static int number_nodes(struct svc_job *job, const uint8_t *table)
{
	job->node_of = calloc(job->world, sizeof(*job->node_of));
	job->n_nodes = 0;
	if (!job->node_of)
		return epf_fail(EPF_R_NO_MEMORY, "job %s: no memory", svc_job_name(job));
	return epf_world_group(job->world, compare_members, table, job->node_of, &job->n_nodes);
}

/* Ranks that the table puts on this node are the ones that have attached, no more and no less. */
static int check_table(struct svc_job *job, const uint8_t *table)
{
	uint8_t *is_here = calloc(job->world, 1), mine[EPF_SVC_MEMBER_BYTES];
	int rc = 0;

	if (!is_here)
		return epf_fail(EPF_R_NO_MEMORY, "job %s: no memory", svc_job_name(job));
	memcpy(mine, job->svc->node_id, EPF_SVC_ID);
	memcpy(mine + EPF_SVC_ID, job->nonce, EPF_SVC_ID);
	for (uint32_t i = 0; i < job->n_seats; i++)
		is_here[job->seats[i].rank] = 1;
	for (uint32_t r = 0; r < job->world && !rc; r++) {
		bool says =
			memcmp(table + (size_t)r * EPF_SVC_MEMBER_BYTES, mine, sizeof(mine)) == 0;

		if (says != (is_here[r] != 0))
			rc = epf_fail(
				EPF_R_SVC_MESSAGE,
				"WORLD: job %s: rank %u %s attached here but the table says %s",
				svc_job_name(job), r, says ? "is not" : "is",
				says ? "this node" : "another node");
	}
	free(is_here);
	return rc;
}

static int set_world(struct svc_job *job, const struct epf_svc_bytes *table)
{
	struct epf_numa before;
	int rc = check_table(job, table->data);

	if (rc)
		return rc;
	rc = number_nodes(job, table->data);
	job->table = malloc(table->len);
	job->tokens = calloc((size_t)job->n_nodes * job->core->limits.lanes_per_node + 1,
			     sizeof(*job->tokens));
	if (!rc && (!job->table || !job->tokens))
		rc = epf_fail(EPF_R_NO_MEMORY, "job %s: no memory", svc_job_name(job));
	if (!rc) {
		memcpy(job->table, table->data, table->len);
		job->node = job->node_of[job->seats[0].rank];
		epf_seal_session_init(&job->seal, job->id, job->table, table->len, job->world);
		(void)epf_numa_begin(epf_numa_lib(), job->svc->memory_node, &before);
		svc_job_limit_engine(job->svc, job);
		rc = epf_core_set_world(job->core, job->world, job->n_nodes, job->node, job->peers,
					job->tokens);
		rc = svc_job_count_engine(job->svc, job, rc);
		epf_numa_end(epf_numa_lib(), &before);
	}
	if (rc)
		svc_job_break(job, epf_last_reason(), "this node cannot take part in it");
	else
		job->state = SVC_JOB_WORLD;
	return rc;
}

struct describe_args {
	const struct svc_member *m;
	const char *place;
	const uint64_t *tokens;
	uint8_t *buf;
	size_t len;
};

static int describe(struct epf_core *core, void *arg)
{
	struct describe_args *a = arg;

	return epf_world_describe(core, a->m->local, a->place, a->tokens, &a->buf, &a->len);
}

/* The rank that speaks for this node. */
static uint32_t lowest_rank(const struct svc_job *job)
{
	uint32_t lowest = 0;

	while (job->node_of[lowest] != job->node)
		lowest++;
	return lowest;
}

/* The rank's description, sealed for this round; *sealed is malloced. */
static int describe_sealed(struct epf_svc *s, struct svc_session *c, uint32_t round,
			   uint8_t **sealed, size_t *len)
{
	struct svc_job *job = c->member->job;
	uint32_t rank = job->seats[c->member->local].rank;
	struct describe_args a = { .m = c->member, .place = s->place };
	int rc;

	a.tokens = rank == lowest_rank(job) ? job->tokens : NULL;
	rc = epf_core_call(job->core, describe, &a);
	if (rc)
		return rc;
	rc = epf_seal(&s->auth, &job->seal, rank, round, a.buf, a.len, sealed, len);
	free(a.buf);
	return rc;
}

int svc_join_world(struct epf_svc *s, struct svc_session *c, const union svc_message *msg,
		   struct svc_answer *a)
{
	const struct epf_svc_bytes *table = &msg->world.table;
	struct svc_job *job = c->member->job;
	uint8_t *sealed;
	size_t len;
	int rc = svc_job_check(job);

	if (rc)
		return rc;
	if (c->member->rejoining || table->len != (size_t)job->world * EPF_SVC_MEMBER_BYTES ||
	    (job->table && memcmp(job->table, table->data, table->len) != 0))
		return epf_fail(EPF_R_SVC_MESSAGE,
				"WORLD: job %s: the table is not that of the other ranks",
				svc_job_name(job));
	if (job->state == SVC_JOB_JOINING)
		rc = set_world(job, table);
	if (!rc)
		rc = describe_sealed(s, c, 0, &sealed, &len);
	if (rc)
		return rc;
	a->owned = sealed;
	a->world = (struct epf_svc_world_reply){ .n_nodes = job->n_nodes,
						 .node = job->node,
						 .sealed = { sealed, (uint32_t)len } };
	c->state = SVC_WORLD;
	return 0;
}

/* Opens every rank's seal: blobs then point into data. */
static int open_seals(struct epf_svc *s, struct svc_job *job, const struct epf_svc_bytes *data,
		      uint32_t round, struct epf_blob *blobs)
{
	int rc = epf_svc_unpack(data->data, data->len, job->world, blobs);

	for (uint32_t r = 0; r < job->world && !rc; r++) {
		const void *bytes;
		size_t len;

		if (round && !blobs[r].len) /* a rank that is lost says nothing */
			continue;
		rc = epf_seal_open(&s->auth, &job->seal, r, round, blobs[r].data, blobs[r].len,
				   &bytes, &len);
		if (!rc)
			blobs[r] = (struct epf_blob){ bytes, len };
	}
	return rc;
}

static int connect_all(struct epf_svc *s, struct svc_job *job, const struct epf_svc_bytes *data)
{
	struct epf_blob *blobs = calloc(job->world, sizeof(*blobs));
	int rc = blobs ? 0 : epf_fail(EPF_R_NO_MEMORY, "job %s: no memory", svc_job_name(job));

	if (!rc)
		rc = open_seals(s, job, data, 0, blobs);
	if (!rc) {
		svc_job_limit_engine(s, job);
		rc = svc_job_count_engine(s, job,
					  epf_world_connect(job->core, blobs, job->node_of));
	}
	if (!rc)
		rc = svc_job_start(s, job);
	free(blobs);
	if (rc) {
		char why[200];

		epf_last_detail(why, sizeof(why));
		svc_job_break(job, epf_last_reason(), why);
		return rc;
	}
	job->state = SVC_JOB_CONNECTED;
	epf_note("job %s: joined, node %u of %u, %u of %u ranks here, engine thread %u",
		 svc_job_name(job), job->node, job->n_nodes, job->n_here, job->world,
		 job->scheduler_number);
	return 0;
}

static int announce(struct epf_core *core, void *arg)
{
	return epf_core_rank_announce(core, *(uint32_t *)arg);
}

int svc_join_connect(struct epf_svc *s, struct svc_session *c, const union svc_message *msg,
		     struct svc_answer *a)
{
	const struct epf_svc_bytes *data = &msg->connect.sealed;
	struct svc_member *m = c->member;
	int rc = svc_job_check(m->job);

	(void)a;
	if (rc)
		return rc;
	if (m->rejoining) {
		if (data->len)
			return epf_fail(EPF_R_SVC_MESSAGE,
					"CONNECT: a rank that comes back brings no descriptions");
		rc = epf_core_call(m->job->core, announce, &m->local);
		m->rejoining = rc != 0;
	} else if (c->state != SVC_WORLD) {
		return epf_fail(EPF_R_SVC_MESSAGE, "CONNECT: WORLD comes before it");
	} else if (data->len && m->job->state == SVC_JOB_WORLD) {
		rc = connect_all(s, m->job, data);
	}
	if (!rc)
		c->state = SVC_CONNECTED;
	return rc;
}

int svc_join_describe(struct epf_svc *s, struct svc_session *c, const union svc_message *msg,
		      struct svc_answer *a)
{
	struct svc_job *job = c->member->job;
	uint8_t *sealed;
	size_t len;
	int rc = svc_job_check(job);

	(void)msg;
	if (!rc)
		rc = describe_sealed(s, c, job->round + 1, &sealed, &len);
	if (rc)
		return rc;
	a->owned = sealed;
	a->describe.sealed = (struct epf_svc_bytes){ sealed, (uint32_t)len };
	return 0;
}

struct update_args {
	struct epf_blob *blobs;
};

static int update(struct epf_core *core, void *arg)
{
	struct update_args *a = arg;

	return epf_world_update(core, a->blobs);
}

int svc_join_update(struct epf_svc *s, struct svc_session *c, const union svc_message *msg,
		    struct svc_answer *a)
{
	struct svc_job *job = c->member->job;
	struct update_args u;
	int rc = svc_job_check(job);

	(void)a;
	if (rc || !msg->connect.sealed.len) /* empty: the node's lowest rank brings it */
		return rc;
	u.blobs = calloc(job->world, sizeof(*u.blobs));
	if (!u.blobs)
		return epf_fail(EPF_R_NO_MEMORY, "job %s: no memory", svc_job_name(job));
	rc = open_seals(s, job, &msg->connect.sealed, job->round + 1, u.blobs);
	if (!rc)
		rc = epf_core_call(job->core, update, &u);
	if (!rc)
		job->round++;
	free(u.blobs);
	return rc;
}

struct reconnect_args {
	const char *place;
	const struct epf_blob *blobs;
	unsigned step;
	uint8_t *buf;
	size_t len;
};

static int reconnect_step(struct epf_core *core, void *arg)
{
	struct reconnect_args *a = arg;

	return epf_world_reconnect(core, a->step, a->place, a->blobs, &a->buf, &a->len);
}

/* What goes out after a step: exchanges count their rounds from 1, so nothing of one attempt passes for that of another, or for an exchange. */
_Static_assert(EPF_RECONNECT_STEPS <= 8, "a step has 3 bits of a round");

static uint32_t reconnect_round(const struct svc_job *job, unsigned step)
{
	return UINT32_C(1) << 31 | job->reconnects << 3 | step;
}

/* The engine's part of a step; *sealed is malloced, or NULL where it has nothing to say. */
static int reconnect_sealed(struct epf_svc *s, struct svc_job *job,
			    const struct epf_svc_reconnect *m, uint8_t **sealed, size_t *len)
{
	struct epf_blob *blobs = calloc(job->world, sizeof(*blobs));
	struct reconnect_args r = { .place = s->place, .blobs = blobs, .step = m->step };
	int rc = blobs ? 0 : epf_fail(EPF_R_NO_MEMORY, "job %s: no memory", svc_job_name(job));

	if (!rc && m->step)
		rc = open_seals(s, job, &m->sealed, reconnect_round(job, m->step - 1), blobs);
	if (!rc)
		rc = epf_core_call(job->core, reconnect_step, &r);
	if (!rc && r.len)
		rc = epf_seal(&s->auth, &job->seal, lowest_rank(job), reconnect_round(job, m->step),
			      r.buf, r.len, sealed, len);
	free(r.buf);
	free(blobs);
	return rc;
}

int svc_join_reconnect(struct epf_svc *s, struct svc_session *c, const union svc_message *msg,
		       struct svc_answer *a)
{
	const struct epf_svc_reconnect *m = &msg->reconnect;
	struct svc_job *job = c->member->job;
	uint8_t *sealed = NULL;
	size_t len = 0;
	int rc = svc_job_check(job);

	if (rc)
		return rc;
	if (m->step >= EPF_RECONNECT_STEPS || job->seats[c->member->local].rank != lowest_rank(job))
		return epf_fail(
			EPF_R_SVC_MESSAGE,
			"RECONNECT: step %u by rank %u: steps 0 to %d are the lowest rank's",
			m->step, job->seats[c->member->local].rank, EPF_RECONNECT_STEPS - 1);
	job->reconnects += m->step == EPF_RECONNECT_BEGIN;
	rc = reconnect_sealed(s, job, m, &sealed, &len);
	if (rc && rc != -EAGAIN)
		return rc;
	if (!rc && m->step == EPF_RECONNECT_FINISH)
		epf_note("job %s: its nodes are connected again", svc_job_name(job));
	a->owned = sealed;
	a->reconnect = (struct epf_svc_reconnect_reply){ .done = !rc,
							 .sealed = { sealed, (uint32_t)len } };
	return 0;
}
