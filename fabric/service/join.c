/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Joining a job: ATTACH, WORLD, CONNECT, and later exchanges of regions. The rounds between them go over the job's own bootstrap, among
 * the clients: the daemon never waits for a rank. What clients carry between daemons is sealed (protocol/seal.h).
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
	rc = svc_core_call(job, describe, &a);
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
		rc = svc_core_call(m->job, announce, &m->local);
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
		rc = svc_core_call(job, update, &u);
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
		rc = svc_core_call(job, reconnect_step, &r);
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
